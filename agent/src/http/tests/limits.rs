//! The bounds of what a peer may send and hold: sizes, times, requests, connections.

use super::*;

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
    assert!(begin.elapsed() < PATIENCE);
    // A body that never comes.
    let answer = rig
        .send(b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nab")
        .await;
    assert_eq!(answer.status, 408);
    // A connection that requests nothing more.
    let mut idle = rig.connect().await;
    idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .await
        .unwrap();
    let begin = Instant::now();
    let _ = idle.read_to_end(&mut rest).await;
    assert!(begin.elapsed() < PATIENCE);
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
