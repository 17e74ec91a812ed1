//! The server over a real socket: every route, every refusal, every limit.

use std::time::Instant;

use super::*;
use crate::health::{ProbeStatus, SinkLabel};
use crate::node::NodeInfo;
use crate::samples;
use crate::sinks::store::StoreOptions;
use crate::wall_clock::wall_ns;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

mod tls;

struct Rig {
    store: Store,
    health: Health,
    address: SocketAddr,
    server: Option<Running>,
    stop: watch::Sender<bool>,
}

impl Rig {
    async fn start(change: impl FnOnce(&mut HttpOptions)) -> Rig {
        let node = NodeInfo {
            name: "node-1".into(),
            ..NodeInfo::default()
        };
        let store = Store::new(
            StoreOptions {
                max_lag: 8,
                ..StoreOptions::live(1_000)
            },
            node,
        );
        let health = Health::default();
        let mut options = HttpOptions::new(([127, 0, 0, 1], 0).into(), Duration::from_secs(30));
        change(&mut options);
        let services = Services {
            store: store.clone(),
            health: health.clone(),
            metrics: Arc::new(|| Ok("sandglass_x_total 1\n# EOF\n".to_owned())),
            alive: Arc::new(|| Ok(())),
            ready: Arc::new(|| Err("no source is attached".to_owned())),
            otlp: Arc::new(|| serde_json::json!({ "endpoint": "here" })),
        };
        let (stop, stopped) = watch::channel(false);
        let server = serve(options, services, stopped).await.unwrap();
        Rig {
            store,
            health,
            address: server.address,
            server: Some(server),
            stop,
        }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends `head` (a method and path, or more), reads to the end of the connection.
    async fn ask(&self, head: &str) -> HttpResponse {
        let request = format!("{head} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        self.send(request.as_bytes()).await
    }

    async fn send(&self, request: &[u8]) -> HttpResponse {
        converse(self.connect().await, request).await
    }

    /// As [`Rig::send`], to the listener of metrics and health.
    async fn send_to_metrics(&self, request: &[u8]) -> HttpResponse {
        let address = self.server.as_ref().and_then(|server| server.metrics).unwrap();
        converse(TcpStream::connect(address).await.unwrap(), request).await
    }

    /// A connection from another address than that of the others.
    async fn connect_from(&self, address: [u8; 4]) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((address, 0).into()).unwrap();
        socket.connect(self.address).await.unwrap()
    }

    async fn json(&self, path: &str) -> Value {
        let answer = self.ask(&format!("GET {path}")).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        assert_eq!(answer.header("content-type"), "application/json");
        serde_json::from_str(&answer.body).unwrap()
    }
}

async fn converse(mut stream: TcpStream, request: &[u8]) -> HttpResponse {
    // The server may have refused before all of it was taken.
    let _ = stream.write_all(request).await;
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await;
    HttpResponse::parse(&String::from_utf8_lossy(&bytes))
}

fn with_metrics(options: &mut HttpOptions) {
    options.metrics = Some(ListenOptions {
        host_names: vec!["node-1".into()],
        ..ListenOptions::at(([127, 0, 0, 1], 0).into())
    });
}

#[derive(Debug)]
struct HttpResponse {
    status: u16,
    head: String,
    body: String,
}

impl HttpResponse {
    fn parse(text: &str) -> HttpResponse {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
        HttpResponse {
            status: head
                .split(' ')
                .nth(1)
                .and_then(|status| status.parse().ok())
                .unwrap_or(0),
            head: head.to_lowercase(),
            body: body.to_owned(),
        }
    }

    fn header(&self, name: &str) -> &str {
        let mut lines = self.head.lines();
        lines
            .find_map(|line| line.strip_prefix(&format!("{name}: ")))
            .unwrap_or_default()
    }
}

/// Reads until `wanted` has come, or a second has passed; returns all that came.
async fn read_until(stream: &mut TcpStream, wanted: &str) -> String {
    let mut text = String::new();
    let mut buffer = [0; 4_096];
    let limit = Instant::now() + Duration::from_secs(3);
    while !text.contains(wanted) && Instant::now() < limit {
        match tokio::time::timeout(Duration::from_secs(1), stream.read(&mut buffer)).await {
            Ok(Ok(count)) if count > 0 => text.push_str(&String::from_utf8_lossy(&buffer[..count])),
            _ => break,
        }
    }
    text
}

const STREAM: &[u8] = b"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n";

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
async fn only_our_own_names_are_answered_on_loopback() {
    let rig = Rig::start(|options| options.page.host_names = vec!["agent.lan".into()]).await;
    for (host, status) in [
        ("Host: evil.example\r\n", 403),
        ("Host: 127.0.0.1.evil.example:9477\r\n", 403),
        ("", 403),
        ("Host: 127.0.0.1:9477\r\n", 200),
        ("Host: [::1]:9477\r\n", 200),
        ("Host: agent.lan\r\n", 200),
    ] {
        let request = format!("GET / HTTP/1.1\r\n{host}Connection: close\r\n\r\n");
        assert_eq!(rig.send(request.as_bytes()).await.status, status, "{host}");
    }
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
async fn bodies_are_bounded() {
    let rig = Rig::start(|_| {}).await;
    let large = format!(
        "GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n",
        1 << 20
    );
    assert_eq!(rig.send(large.as_bytes()).await.status, 413);
    let chunk = format!("4000\r\n{}\r\n", "x".repeat(0x4000));
    let chunked = format!(
        "GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n{}0\r\n\r\n",
        chunk.repeat(5)
    );
    assert_eq!(rig.send(chunked.as_bytes()).await.status, 413);
    let small = b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
    assert_eq!(rig.send(small).await.status, 200);
}

#[tokio::test]
async fn large_heads_are_refused() {
    let rig = Rig::start(|_| {}).await;
    let long = format!("GET /?{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "x".repeat(100_000));
    let status = rig.send(long.as_bytes()).await.status;
    assert!(matches!(status, 0 | 400 | 414 | 431), "{status}");
    let many = format!("GET / HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "a: b\r\n".repeat(200));
    let status = rig.send(many.as_bytes()).await.status;
    assert!(matches!(status, 400 | 431), "{status}");
}

#[tokio::test]
async fn slow_peers_are_cut() {
    let rig = Rig::start(|options| {
        options.head_timeout = Duration::from_millis(200);
        options.request_timeout = Duration::from_millis(200);
    })
    .await;
    // A head that never ends.
    let begin = Instant::now();
    let mut slow = rig.connect().await;
    slow.write_all(b"GET / HTTP/1.1\r\nHost:").await.unwrap();
    let mut rest = Vec::new();
    let _ = slow.read_to_end(&mut rest).await;
    assert!(begin.elapsed() < Duration::from_secs(3));
    // A body that never comes.
    let answer = rig
        .send(b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nab")
        .await;
    assert_eq!(answer.status, 408);
    // A connection that asks nothing more.
    let mut idle = rig.connect().await;
    idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .await
        .unwrap();
    let begin = Instant::now();
    let _ = idle.read_to_end(&mut rest).await;
    assert!(begin.elapsed() < Duration::from_secs(3));
}

#[tokio::test]
async fn metrics_and_health_are_served_apart_from_page_and_api() {
    let rig = Rig::start(with_metrics).await;
    for (path, status) in [
        ("/metrics", 200),
        ("/healthz", 200),
        ("/readyz", 503),
        ("/", 404),
        ("/ui/app.js", 404),
        ("/api/v1/sandboxes", 404),
        ("/api/v1/stream", 404),
    ] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: 10.0.0.7:9477\r\n\r\n");
        let answer = rig.send_to_metrics(request.as_bytes()).await;
        assert_eq!(answer.status, status, "{path}");
        assert_eq!(answer.header("connection"), "close");
        assert!(status != 404 || answer.body.contains("page.address"), "{}", answer.body);
    }
    // What Prometheus and the kubelet send, and what a page from elsewhere would.
    for (host, status) in [
        ("node-1:9477", 200),
        ("[2001:db8::7]:9477", 200),
        ("localhost", 200),
        ("evil.example", 403),
        ("node-1.evil.example", 403),
        ("", 403),
    ] {
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let answer = rig.send_to_metrics(request.as_bytes()).await;
        assert_eq!(answer.status, status, "{host}");
    }
    let target = b"GET http://evil.example/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
    assert_eq!(rig.send_to_metrics(target).await.status, 403);
    // The page has metrics and health too, for who forwards its port only.
    assert_eq!(rig.ask("GET /metrics").await.status, 200);
    assert_eq!(rig.ask("GET /healthz").await.status, 200);
}

#[tokio::test]
async fn with_a_token_only_its_holders_read_the_page() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut file, b"0123456789abcdef0123456789abcdef\n").unwrap();
    let rig = Rig::start(|options| {
        with_metrics(options);
        options.access.token = Some(file.path().to_owned());
    })
    .await;
    for path in [
        "/",
        "/api/v1/health",
        "/api/v1/stream",
        "/metrics",
        "/healthz",
        "/nothing",
    ] {
        let refused = rig.ask(&format!("GET {path}")).await;
        assert_eq!(
            (refused.status, refused.header("www-authenticate")),
            (401, "bearer"),
            "{path}"
        );
    }
    let with = |sent: &str| format!("GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: {sent}\r\n\r\n");
    let wrong = rig
        .send(with("Bearer 0123456789abcdef0123456789abcdeX").as_bytes())
        .await;
    assert_eq!(wrong.status, 401);
    let right = rig
        .send(with("Bearer 0123456789abcdef0123456789abcdef").as_bytes())
        .await;
    assert_eq!(right.status, 200);
    let probe = b"GET /healthz HTTP/1.1\r\nHost: 10.0.0.7:9477\r\n\r\n";
    assert_eq!(rig.send_to_metrics(probe).await.status, 200, "the kubelet has no token");
}

#[tokio::test]
async fn requests_beyond_a_peers_share_wait_and_health_does_not() {
    // A body that does not come holds a request's place. The interim response says that the place is taken.
    const SLOW: &[u8] =
        b"GET /api/v1/health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n";
    const ASK: &[u8] = b"GET /api/v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let rig = Rig::start(|options| {
        options.max_requests = 8;
        options.head_timeout = Duration::from_secs(60);
        options.request_timeout = Duration::from_secs(60);
    })
    .await;
    let mut held = Vec::new();
    for _ in 0..4 {
        let mut stream = rig.connect().await;
        stream.write_all(SLOW).await.unwrap();
        assert!(read_until(&mut stream, "100 Continue").await.contains("100 Continue"));
        held.push(stream);
    }
    let mut late = rig.connect().await;
    late.write_all(ASK).await.unwrap();
    let mut buffer = [0; 512];
    let waited = tokio::time::timeout(Duration::from_millis(300), late.read(&mut buffer)).await;
    assert!(waited.is_err(), "a peer got more than its share");
    assert_eq!(rig.ask("GET /healthz").await.status, 200);
    let other = converse(rig.connect_from([127, 0, 0, 2]).await, ASK).await;
    assert_eq!(other.status, 200, "another peer has places left");
    held.pop();
    assert!(read_until(&mut late, "200 OK").await.contains("200 OK"));
}

#[tokio::test]
async fn idle_connections_displace_their_own() {
    let rig = Rig::start(|options| {
        options.max_waiting = 16;
        options.head_timeout = Duration::from_secs(60);
    })
    .await;
    let mut other = rig.connect_from([127, 0, 0, 2]).await;
    other.write_all(b"GET /healthz HTTP/1.1\r\n").await.unwrap();
    let mut idle = Vec::new();
    for _ in 0..200 {
        idle.push(rig.connect().await);
    }
    // The first of the peer with most went; that of the other peer is still there.
    let first = idle[0].read(&mut [0; 1]).await;
    assert!(matches!(first, Ok(0) | Err(_)), "{first:?}");
    other.write_all(b"Host: localhost\r\n\r\n").await.unwrap();
    assert!(read_until(&mut other, "ok\n").await.contains("200 OK"));
    assert_eq!(rig.ask("GET /healthz").await.status, 200);
}

#[tokio::test]
async fn a_stream_sends_rows_and_health_and_ends_with_the_server() {
    let mut rig = Rig::start(|options| options.health_interval = Duration::from_millis(100)).await;
    let mut stream = rig.connect().await;
    stream.write_all(STREAM).await.unwrap();
    let head = read_until(&mut stream, "event: health").await;
    assert!(
        head.contains("content-type: text/event-stream") && head.contains("retry: 2000"),
        "{head}"
    );
    let trace = samples::failed("n", "p", 7, wall_ns(), None);
    for _ in 0..5 {
        rig.store.update(trace.clone());
    }
    let text = read_until(&mut stream, "event: row").await + &read_until(&mut stream, "event: health").await;
    let rows = text.matches("event: row").count();
    assert_eq!(rows, 1, "five changes at once are one event: {text}");
    assert!(
        text.contains(&trace.id.to_string()) && text.contains("\"result\":\"failed\""),
        "{text}"
    );

    rig.stop.send(true).unwrap();
    let begin = Instant::now();
    rig.server.take().unwrap().stopped().await;
    assert!(begin.elapsed() < DRAIN, "an open stream held up the end");
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    assert!(TcpStream::connect(rig.address).await.is_err(), "still listening");
}

#[tokio::test]
async fn streams_are_counted_and_places_come_back() {
    // Of four, a peer has two.
    let rig = Rig::start(|options| options.max_streams = 4).await;
    let mut open = Vec::new();
    for _ in 0..2 {
        let mut stream = rig.connect().await;
        stream.write_all(STREAM).await.unwrap();
        assert!(read_until(&mut stream, "event: health").await.contains("200 OK"));
        open.push(stream);
    }
    assert_eq!(rig.json("/api/v1/health").await["streams"], 2);
    let refused = rig.ask("GET /api/v1/stream").await;
    assert_eq!(refused.status, 503, "{refused:?}");
    let mut other = rig.connect_from([127, 0, 0, 2]).await;
    other.write_all(STREAM).await.unwrap();
    assert!(read_until(&mut other, "event: health").await.contains("200 OK"));
    drop(other);
    open.clear();
    for _ in 0..50 {
        if rig.json("/api/v1/health").await["streams"] == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the places of gone streams did not come back");
}

#[tokio::test]
async fn a_reader_that_stops_reading_never_holds_up_the_store_and_is_notified() {
    let rig = Rig::start(|options| options.write_timeout = Duration::from_secs(20)).await;
    let mut stream = rig.connect().await;
    stream.write_all(STREAM).await.unwrap();
    assert!(read_until(&mut stream, "event: health").await.contains("200 OK"));
    let begin = Instant::now();
    let shed = || rig.health.shed.get_or_create(&SinkLabel { sink: "store" }).get();
    let mut number = 0;
    while shed() == 0 && begin.elapsed() < Duration::from_secs(8) {
        for _ in 0..200 {
            number += 1;
            let update = Instant::now();
            rig.store.update(samples::usual("n", "p", number % 2_000, 1));
            assert!(update.elapsed() < Duration::from_secs(1));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(shed() > 0, "nothing was counted as shed");
    assert!(read_until(&mut stream, "event: reload").await.contains("event: reload"));
}

// The sockets of Wine take more than is written here.
#[cfg(not(windows))]
#[tokio::test]
async fn a_reader_that_takes_nothing_is_cut() {
    let rig = Rig::start(|options| {
        options.write_timeout = Duration::from_millis(200);
        options.health_interval = Duration::from_millis(1);
    })
    .await;
    let mut stream = rig.connect().await;
    stream.write_all(STREAM).await.unwrap();
    // Events fill the buffers of both ends, on a busy machine slowly; then the connection goes.
    for _ in 0..1_200 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        if rig.json("/api/v1/health").await["streams"] == 0 {
            return;
        }
    }
    panic!("a reader that takes nothing kept its place");
}

#[tokio::test]
async fn noise_is_survived() {
    let rig = Rig::start(|options| options.head_timeout = Duration::from_millis(100)).await;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..300 {
        let noise: Vec<u8> = (0..round)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state.to_le_bytes()[0]
            })
            .collect();
        let mut request = if round % 3 == 0 { b"GET /".to_vec() } else { Vec::new() };
        request.extend_from_slice(&noise);
        if round % 2 == 0 {
            request.extend_from_slice(b" HTTP/1.1\r\nHost: localhost\r\n\r\n");
        }
        let mut stream = rig.connect().await;
        let _ = stream.write_all(&request).await;
        let _ = stream.shutdown().await;
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
    }
    assert_eq!(rig.ask("GET /healthz").await.status, 200);
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
        otlp: Arc::new(|| Value::Null),
    };
    let options = HttpOptions::new(rig.address, Duration::from_secs(30));
    let error = serve(options, services, stopped).await.map(|_| ()).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot listen on {}", rig.address));
    assert!(error.hint().contains("another port"));
}
