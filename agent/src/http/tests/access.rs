//! Who is served what: by the name that a request uses, by listener, by token.

use super::*;

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
