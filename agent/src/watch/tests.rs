//! What the terminal shows for given rows, and what the stream's bytes become.

use super::client::EventStreamParser;
use super::*;
use crate::failure::Advice as _;
use crate::node::NodeInfo;
use crate::sinks::store::StoreOptions;
use crate::view::{self, KindFilter, Query, Store};
use crate::wall_clock::wall_ns;

use crate::samples;

fn screen() -> Screen {
    let store = Store::new(StoreOptions::live(1_000), NodeInfo::default());
    for trace in samples::busy_node(wall_ns()) {
        store.update(trace);
    }
    store.update(samples::hostile(91, wall_ns()));
    let query = Query {
        kind: KindFilter::All,
        ..Query::default()
    };
    // Through JSON, as over the network.
    let json = serde_json::to_string(&view::list(&store, &query)).unwrap();
    let list: List = serde_json::from_str(&json).unwrap();
    Screen {
        node: "worker-3".into(),
        rows: list.rows,
        trouble: String::new(),
    }
}

#[test]
fn rows_fit_the_window_and_say_what_they_should() {
    let screen = screen();
    for (width, height) in [(80, 24), (120, 50), (200, 500)] {
        let lines = screen.lines(width, height, false);
        assert!(lines.len() <= height, "{} of {height}", lines.len());
        for line in &lines {
            assert!(line.chars().count() <= width.max(96), "{width}: {line}");
            assert!(!line.chars().any(char::is_control), "{line:?}");
        }
    }
    let text = screen.lines(120, 500, false).join("\n");
    assert!(
        text.starts_with("sandglass on worker-3   27 traces, 4 failed, 1 running"),
        "{text}"
    );
    assert!(
        text.contains("command sleep of plugin slow-firewall took 4.20 s"),
        "{text}"
    );
    assert!(text.contains("DEL platform/mailer-6b8d7f9c4-tm5vn #3"), "{text}");
}

#[test]
fn waiting_sandboxes_and_journeys_have_their_own_words() {
    let store = Store::new(StoreOptions::live(1_000), NodeInfo::default());
    let sandbox = samples::network_ready("shop", "web-0", 1, wall_ns());
    store.update(samples::waiting("shop", "web-1", 2, wall_ns() - 9_000_000_000));
    store.update(samples::stalled_journey(&sandbox, wall_ns()));
    store.update(samples::refused_journey(wall_ns()));
    store.update(sandbox);
    let json = serde_json::to_string(&view::list(&store, &Query::default())).unwrap();
    let list: List = serde_json::from_str(&json).unwrap();
    let ended = list.rows.iter().filter(|row| row.ended()).count();
    let screen = Screen {
        node: String::new(),
        rows: list.rows,
        trouble: String::new(),
    };
    let text = screen.lines(140, 500, false).join("\n");
    assert!(
        text.contains("4 traces, 1 failed, 0 running, 1 without traffic yet"),
        "{text}"
    );
    assert!(
        text.contains("shop/web-0 › db.shop.svc.cluster.local") && text.contains("node › 10.96.0.80:8080"),
        "{text}"
    );
    assert!(text.contains("○ shop/web-1"), "{text}");
    assert_eq!(ended, 3);
}

#[test]
fn a_row_that_comes_again_takes_its_place() {
    let mut screen = screen();
    let count = screen.rows.len();
    let mut row = screen.rows[3].clone();
    row.result = "failed".into();
    screen.put(row);
    assert_eq!((screen.rows.len(), screen.rows[3].result.as_str()), (count, "failed"));
}

#[test]
fn operations_of_one_trace_have_a_row_each() {
    let store = Store::new(StoreOptions::live(1_000), NodeInfo::default());
    let sandbox = samples::usual("shop", "web-0", 1, wall_ns());
    for del in samples::dels_of_one_trace(&sandbox, wall_ns()) {
        store.update(del);
    }
    let json = serde_json::to_string(&view::list(&store, &Query::default())).unwrap();
    let list: List = serde_json::from_str(&json).unwrap();
    let mut screen = Screen::default();
    for row in list.rows.iter().chain(&list.rows) {
        screen.put(row.clone());
    }
    let results: Vec<&str> = screen.rows.iter().map(|row| row.result.as_str()).collect();
    assert_eq!(results, ["ok", "failed"]);
}

#[test]
fn events_are_found_wherever_the_bytes_are_cut() {
    let bytes =
        b"retry: 2000\n\nevent: health\ndata: {\"node\":{\"name\":\"n-1\"}}\n\nevent: new-in-2030\ndata: {}\n\n\
        event: row\ndata: {broken}\n\nevent: reload\ndata: {\"missed\":3}\n\n";
    for step in [1, 7, 1_000] {
        let mut parser = EventStreamParser::default();
        for chunk in bytes.chunks(step) {
            parser.push(chunk).unwrap();
        }
        let shown: Vec<String> = parser.ready().map(|message| format!("{message:?}")).collect();
        assert_eq!(shown, ["Node(\"n-1\")", "Reload"], "{step}");
    }
}

#[test]
fn an_endless_event_is_refused() {
    let mut parser = EventStreamParser::default();
    let outcome = (0..2_000).try_for_each(|_| parser.push(&[b'x'; 1_024]));
    assert!(outcome.is_err());
}

#[tokio::test]
async fn a_running_agent_is_followed_and_a_missing_one_is_a_clear_error() {
    use crate::health::Health;
    use crate::http::{HttpOptions, Services, serve};
    use std::sync::Arc;

    let node = NodeInfo {
        name: "worker-9".into(),
        ..NodeInfo::default()
    };
    let store = Store::new(StoreOptions::live(1_000), node);
    store.update(samples::usual("n", "before", 1, wall_ns()));
    let services = Services {
        store: store.clone(),
        health: Health::default(),
        metrics: Arc::new(|| Ok(String::new())),
        alive: Arc::new(|| Ok(())),
        ready: Arc::new(|| Ok(())),
        journal: None,
        otlp: Arc::new(|| serde_json::Value::Null),
    };
    let options = HttpOptions::new(([127, 0, 0, 1], 0).into(), Duration::from_secs(30));
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let server = serve(options, services, stopped).await.unwrap();
    let address = server.address.to_string();
    let agent = Agent {
        address: address.clone(),
        token: None,
        tls: None,
    };

    let mut screen = Screen::default();
    screen.load(&agent).await.unwrap();
    assert_eq!(screen.rows[0].pod, "before");
    let mut messages = Messages::new(agent.clone());
    assert!(matches!(messages.next().await, StreamMessage::Connected));
    assert!(matches!(messages.next().await, StreamMessage::Node(name) if name == "worker-9"));
    store.update(samples::usual("n", "after", 2, wall_ns()));
    let message = messages.next().await;
    screen.take(message, &agent).await;
    assert_eq!(screen.rows.len(), 2);

    stop.send(true).unwrap();
    server.stopped().await;
    assert!(matches!(messages.next().await, StreamMessage::Broken(_)));
    let error = screen.load(&agent).await.unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with(&format!("cannot reach an agent at {address}: ")),
        "{error}"
    );
    assert!(error.hint().contains("sandglass run"));
}

#[tokio::test]
async fn an_agent_that_comes_back_is_found_although_the_screen_is_redrawn_meanwhile() {
    use tokio::io::AsyncWriteExt;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let agent = Agent {
        address: listener.local_addr().unwrap().to_string(),
        token: None,
        tls: None,
    };
    tokio::spawn(async move {
        // Gone the first time, there the second.
        drop(listener.accept().await.unwrap());
        let (mut stream, _) = listener.accept().await.unwrap();
        let answer = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\nevent: reload\ndata: {}\n\n";
        stream.write_all(answer).await.unwrap();
        tokio::time::sleep(Duration::from_secs(30)).await;
    });
    let mut messages = Listening::start(agent);
    let seen = tokio::time::timeout(Duration::from_secs(10), async {
        let mut seen = Vec::new();
        while seen.last() != Some(&"reload") {
            let waited = tokio::time::timeout(Duration::from_millis(250), messages.next()).await;
            match waited {
                Ok(StreamMessage::Broken(_)) => seen.push("broken"),
                Ok(StreamMessage::Connected) => seen.push("connected"),
                Ok(StreamMessage::Reload) => seen.push("reload"),
                Ok(StreamMessage::Row(_) | StreamMessage::Node(_)) | Err(_) => {}
            }
        }
        seen
    });
    assert_eq!(seen.await.unwrap(), ["broken", "connected", "reload"]);
}

/// A page with a certificate, which wants a token or a certificate of its clients too.
#[tokio::test]
async fn a_page_with_tls_is_read_by_who_trusts_it_and_is_let_in() {
    use crate::health::Health;
    use crate::http::{AccessFiles, HttpOptions, Services, serve};
    use crate::tls::{TlsFiles, connector};
    use std::sync::Arc;

    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    if !crate::test_certificates::make("a_page_with_tls_is_read_by_who_trusts_it_and_is_let_in", folder.path()) {
        return;
    }
    let token = "0123456789abcdef";
    std::fs::write(path("token"), token).unwrap();
    let certificate = Some((path("server.pem"), path("server.key")));
    let tls = |ca: &str, client: Option<&str>| {
        let client = client.map(|name| (path(&format!("{name}.pem")), path(&format!("{name}.key"))));
        let ca = Some(path(&format!("{ca}.pem")));
        connector(&TlsFiles { ca, client }, b"http/1.1").unwrap()
    };
    for (access, allowed, refused) in [
        (
            AccessFiles {
                token: Some(path("token")),
                certificate: certificate.clone(),
                client_authorities: None,
            },
            (Some(token), Some(tls("ca", None))),
            vec![
                ((None, Some(tls("ca", None))), "answered 401", "--token-file"),
                (
                    (Some(token), Some(tls("other", None))),
                    "no TLS with the agent",
                    "--ca-file",
                ),
                ((Some(token), None), "cannot reach an agent", "https://"),
            ],
        ),
        (
            AccessFiles {
                token: None,
                certificate,
                client_authorities: Some(path("ca.pem")),
            },
            (None, Some(tls("ca", Some("client")))),
            vec![
                (
                    (None, Some(tls("ca", None))),
                    "no TLS with the agent",
                    "--certificate-file",
                ),
                (
                    (None, Some(tls("ca", Some("stranger")))),
                    "no TLS with the agent",
                    "--certificate-file",
                ),
            ],
        ),
    ] {
        let store = Store::new(StoreOptions::live(1_000), NodeInfo::default());
        store.update(samples::usual("n", "before", 1, wall_ns()));
        let services = Services {
            store,
            health: Health::default(),
            metrics: Arc::new(|| Ok(String::new())),
            alive: Arc::new(|| Ok(())),
            ready: Arc::new(|| Ok(())),
            journal: None,
            otlp: Arc::new(|| serde_json::Value::Null),
        };
        let mut options = HttpOptions::new(([127, 0, 0, 1], 0).into(), Duration::from_secs(30));
        options.access = access;
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let server = serve(options, services, stopped).await.unwrap();
        let agent = |(token, tls): (Option<&str>, _)| Agent {
            address: server.address.to_string(),
            token: token.map(str::to_owned),
            tls,
        };
        let mut screen = Screen::default();
        screen.load(&agent(allowed.clone())).await.unwrap();
        assert_eq!(screen.rows[0].pod, "before");
        let mut messages = Messages::new(agent(allowed));
        assert!(matches!(messages.next().await, StreamMessage::Connected));
        assert!(matches!(messages.next().await, StreamMessage::Node(_)));
        for (client, printed, hint) in refused {
            let error = screen.load(&agent(client)).await.unwrap_err();
            assert!(error.to_string().contains(printed), "{printed}: {error}");
            assert!(error.hint().contains(hint), "{hint}: {}", error.hint());
        }
        drop(messages);
        stop.send(true).unwrap();
        server.stopped().await;
    }
}
