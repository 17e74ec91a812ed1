//! What each route answers, and what the server refuses with a hint.

use super::*;

#[tokio::test]
async fn every_route_answers() {
    let rig = Rig::start(|_| {}).await;
    for trace in samples::busy_node(wall_ns()) {
        rig.store.update(trace);
    }
    rig.health.set_probe(ProbeStatus {
        probe: "exec".into(),
        hook: "tp_btf".into(),
        attached: true,
        consequence: String::new(),
        hint: String::new(),
    });
    rig.health.late.inc_by(4);

    let page = rig.ask("GET /").await;
    assert_eq!(
        (page.status, page.header("content-type")),
        (200, "text/html; charset=utf-8")
    );
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("x-frame-options", "deny"),
    ] {
        assert_eq!(page.header(name), value);
    }
    assert!(page.header("content-security-policy").contains("default-src 'self'"));
    for asset in assets::ASSETS {
        let answer = rig.ask(&format!("GET {}", asset.path)).await;
        assert_eq!(
            (answer.status, answer.body.len()),
            (200, asset.bytes.len()),
            "{}",
            asset.path
        );
        assert_eq!(answer.header("content-type"), asset.content_type);
    }

    let list = rig
        .json("/api/v1/sandboxes?kind=sandbox&result=failed&sort=slowest&limit=2")
        .await;
    assert_eq!(
        (list["total"].as_u64(), list["rows"].as_array().unwrap().len()),
        (Some(3), 2)
    );
    assert_eq!(list["rows"][0]["pod"], "ingress-0");
    let id = list["rows"][0]["trace_id"].as_str().unwrap().to_owned();
    let trace = rig.json(&format!("/api/v1/traces/{id}")).await;
    assert_eq!(
        (&trace["pod"], trace["timeline"].as_array().unwrap().len()),
        (&Value::from("ingress-0"), 5)
    );
    let operations = rig.json("/api/v1/operations").await;
    assert_eq!(operations["operations"][0]["stuck"], true);
    let health = rig.json("/api/v1/health").await;
    assert_eq!(health["probes"][0]["hook"], "tp_btf");
    assert_eq!(
        (health["late"]["total"].as_u64(), &health["node"]["name"]),
        (Some(4), &Value::from("node-1"))
    );
    assert_eq!(health["not_ready"], "no source is attached");
    assert_eq!(health["otlp"]["endpoint"], "here");
    assert_eq!(rig.json("/api/v1/known").await["sandboxes"], Value::Array(Vec::new()));

    let metrics = rig.ask("GET /metrics").await;
    assert_eq!(
        metrics.header("content-type"),
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    );
    assert!(metrics.body.ends_with("# EOF\n"));
    assert_eq!(rig.ask("GET /healthz").await.body, "ok\n");
    let ready = rig.ask("GET /readyz").await;
    assert_eq!(ready.status, 503);
    assert!(ready.body.contains("no source is attached"));
}

#[tokio::test]
async fn the_network_is_served_and_its_changes_streamed() {
    let rig = Rig::start(|options| options.health_interval = Duration::from_millis(50)).await;
    let mut stream = rig.connect().await;
    stream.write_all(STREAM).await.unwrap();
    assert!(
        !read_until(&mut stream, "event: health")
            .await
            .contains("event: network")
    );
    let now = wall_ns();
    for (at, traffic) in samples::an_hour(now) {
        rig.store.traffic(&traffic, at);
    }
    let sandbox = samples::stalled("shop", "web-0", 1, now);
    rig.store.update(samples::stalled_journey(&sandbox, now));
    rig.store.update(sandbox);
    assert!(
        read_until(&mut stream, "event: network")
            .await
            .contains("\"revision\":")
    );
    let network = rig.json("/api/v1/network").await;
    assert_eq!(network["window_slots"], 360);
    assert_eq!(network["slots"].as_array().unwrap().len(), 350);
    assert_eq!(network["conntrack"]["limit"], 262_144);
    assert_eq!(network["journeys"][0]["reason"], "retried");
    assert_eq!(network["readiness"]["ready"], 1);
    assert!(network["slots"][0]["insert_failed"].is_u64() && network["until_unix_ns"].is_string());
    let rows = rig
        .json("/api/v1/sandboxes?kind=journey&reason=retried&cause=conntrack_race")
        .await;
    assert_eq!(rows["total"], 1);
    assert_eq!(rig.ask("GET /api/v1/network?x=1").await.status, 400);
}

#[tokio::test]
async fn every_operation_of_one_trace_is_listed_streamed_and_answered() {
    let rig = Rig::start(|_| {}).await;
    let mut stream = rig.connect().await;
    stream.write_all(STREAM).await.unwrap();
    read_until(&mut stream, "event: health").await;
    let now = wall_ns();
    let [failed, second] = samples::dels_of_one_trace(&samples::usual("shop", "web-0", 1, now), now);
    rig.store.update(failed.clone());
    rig.store.update(second.clone());
    let received = read_until(&mut stream, &format!("\"root_span_id\":\"{}\"", second.spans[0].id)).await;
    assert_eq!(received.matches("event: row").count(), 2, "{received}");

    let list = rig.json("/api/v1/sandboxes?kind=DEL").await;
    let rows = list["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for (row, (trace, result)) in rows.iter().zip([(&second, "ok"), (&failed, "failed")]) {
        let root = trace.spans[0].id.to_string();
        assert_eq!((&row["root_span_id"], &row["result"]), (&root.into(), &result.into()));
        let text = |key: &str| row[key].as_str().unwrap();
        let path = format!("/api/v1/traces/{}/{}", text("trace_id"), text("root_span_id"));
        let answer = rig.json(&path).await;
        assert_eq!(answer["result"], result);
        assert_eq!(answer["timeline"][0]["id"], row["root_span_id"]);
        assert_eq!(answer["related"].as_array().unwrap().len(), 1, "{answer}");
    }
    let newest = rig.json(&format!("/api/v1/traces/{}", failed.id)).await;
    assert_eq!(newest["root_span_id"], rows[0]["root_span_id"]);
    assert_eq!(newest["related"][0]["root_span_id"], rows[1]["root_span_id"]);
}

#[tokio::test]
async fn head_has_no_body_and_tags_spare_one() {
    let rig = Rig::start(|_| {}).await;
    let head = rig.ask("HEAD /ui/app.js").await;
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    assert_ne!(head.header("content-length"), "0");
    let tag = head.header("etag");
    let request =
        format!("GET /ui/app.js HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: {tag}\r\nConnection: close\r\n\r\n");
    let again = rig.send(request.as_bytes()).await;
    assert_eq!((again.status, again.body.as_str()), (304, ""));
    let stream = rig.ask("HEAD /api/v1/stream").await;
    assert_eq!(
        (stream.status, stream.header("content-type")),
        (200, "text/event-stream")
    );
}

#[tokio::test]
async fn refusals_are_json_with_a_hint() {
    let rig = Rig::start(|_| {}).await;
    for (head, status, word) in [
        ("GET /nothing", 404, "nothing is served here"),
        ("GET /ui/../http.rs", 404, "nothing is served here"),
        ("GET /api/v1/traces/xyz", 400, "not a trace id"),
        (
            "GET /api/v1/traces/00000000000000000000000000000001/2",
            400,
            "not a span id",
        ),
        (
            "GET /api/v1/traces/00000000000000000000000000000001/0000000000000002",
            404,
            "not kept here",
        ),
        (
            "GET /api/v1/traces/00000000000000000000000000000001",
            404,
            "not kept here",
        ),
        ("GET /api/v1/sandboxes?sort=up", 400, "expected newest or slowest"),
        ("GET /api/v1/sandboxes?q=%zz", 400, "percent-encoded"),
        ("GET /api/v1/health?x=1", 400, "unknown parameter"),
        ("POST /api/v1/sandboxes", 405, "nothing here can be changed"),
        ("DELETE /", 405, "nothing here can be changed"),
    ] {
        let answer = rig.ask(head).await;
        assert_eq!(answer.status, status, "{head}");
        let body: Value = serde_json::from_str(&answer.body).unwrap();
        assert!(body["error"].as_str().unwrap().contains(word), "{head}: {body}");
        assert!(!body["hint"].as_str().unwrap().is_empty());
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
    }
    assert_eq!(rig.ask("POST /").await.header("allow"), "get, head");
}

#[tokio::test]
async fn a_taken_port_is_a_clear_error() {
    let rig = Rig::start(|_| {}).await;
    let (_stop, stopped) = watch::channel(false);
    let services = Services {
        store: rig.store.clone(),
        health: Health::default(),
        metrics: Arc::new(|| Ok(String::new())),
        alive: Arc::new(|| Ok(())),
        ready: Arc::new(|| Ok(())),
        journal: None,
        otlp: Arc::new(|| Value::Null),
    };
    let options = HttpOptions::new(rig.address, Duration::from_secs(30));
    let error = serve(options, services, stopped).await.map(|_| ()).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot listen on {}", rig.address));
    assert!(error.hint().contains("another port"));
}
