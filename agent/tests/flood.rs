//! The HTTP server beside peers that hold connections: a probe of the kubelet always passes, and the page answers others.
//!
//! Four kinds of such peers, all from one address, all of which connect again when they are cut: idle ones, ones that
//! never end their headers, ones that send a byte a second, and half-open ones, which close their side in the middle of a
//! request or never read. The probe comes from the same address as they do. Does not: send SYNs without a handshake, which
//! only the kernel sees.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a test")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sandglass::health::Health;
use sandglass::http::{HttpOptions, ListenOptions, Running, Services, serve};
use sandglass::node::NodeInfo;
use sandglass::sinks::store::StoreOptions;
use sandglass::view::Store;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// With `SANDGLASS_FLOOD=whole` two minutes of 2,000 peers on each listener, and the page within a second; for `make test`
/// shorter, smaller, and with the kubelet's bound for both.
#[test]
fn probe_and_page_are_answered_beside_many_idle_and_slow_peers() {
    if std::env::var_os("SANDGLASS_FLOOD").is_some_and(|length| length == "whole") {
        flood(2_000, Duration::from_secs(120), Duration::from_secs(1));
    } else {
        flood(400, Duration::from_secs(7), Duration::from_secs(5));
    }
}

/// Holds `peers` connections to each listener for `length`; the page must answer within `page_limit`.
fn flood(peers: usize, length: Duration, page_limit: Duration) {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    )
    .unwrap();
    // The agent's own runtime has one worker thread more than the least that it may have.
    let server = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let (_stop, stopped) = watch::channel(false);
    let running = server.block_on(start(stopped));
    let clients = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let (probe, page, connections) = clients.block_on(measure(&running, peers, length));
    eprintln!(
        "{peers} peers on each listener for {length:?}, {connections} connections: slowest of {} probes {:?}, of {} pages {:?}",
        probe.len(),
        probe.iter().max().unwrap(),
        page.len(),
        page.iter().max().unwrap(),
    );
    assert!(connections >= 2 * peers, "only {connections} connections were made");
    assert!(page.iter().all(|took| *took < page_limit), "{page:?}");
}

async fn start(stopped: watch::Receiver<bool>) -> Running {
    let options = HttpOptions {
        metrics: Some(ListenOptions::at(([127, 0, 0, 1], 0).into())),
        ..HttpOptions::new(([127, 0, 0, 1], 0).into(), Duration::from_secs(30))
    };
    let services = Services {
        store: Store::new(StoreOptions::live(10), NodeInfo::default()),
        health: Health::default(),
        metrics: Arc::new(|| Ok("# EOF\n".to_owned())),
        alive: Arc::new(|| Ok(())),
        ready: Arc::new(|| Ok(())),
        journal: None,
        otlp: Arc::new(|| serde_json::Value::Null),
    };
    serve(options, services, stopped).await.unwrap()
}

/// Times of the probes and of the page's answers, and how many connections the peers made. A probe takes 5 s at most.
async fn measure(running: &Running, peers: usize, length: Duration) -> (Vec<Duration>, Vec<Duration>, usize) {
    let (metrics, page) = (running.metrics.unwrap(), running.address);
    let connections = Arc::new(AtomicUsize::new(0));
    let mut held = JoinSet::new();
    for number in 0..peers {
        for address in [metrics, page] {
            held.spawn(peer(number, address, Arc::clone(&connections)));
        }
    }
    let begin = Instant::now();
    let (mut probes, mut pages) = (Vec::new(), Vec::new());
    while begin.elapsed() < length || probes.len() < 3 {
        let next = Instant::now() + Duration::from_secs(2);
        for (address, path, from, is_probe) in [
            (metrics, "/healthz", [127, 0, 0, 1], true),
            (page, "/healthz", [127, 0, 0, 1], true),
            (metrics, "/metrics", [127, 0, 0, 2], false),
            (page, "/api/v1/sandboxes", [127, 0, 0, 2], false),
        ] {
            let sent = Instant::now();
            let answer = timeout(Duration::from_secs(5), ask(address, path, from)).await;
            assert!(
                answer.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200")),
                "{path} after {:?}",
                begin.elapsed()
            );
            if is_probe { &mut probes } else { &mut pages }.push(sent.elapsed());
        }
        sleep(next.saturating_duration_since(Instant::now())).await;
    }
    (probes, pages, connections.load(Ordering::Relaxed))
}

async fn ask(address: SocketAddr, path: &str, from: [u8; 4]) -> String {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    let mut stream = socket.connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// Connects again and again, and keeps each connection as long as it can.
async fn peer(number: usize, address: SocketAddr, connections: Arc<AtomicUsize>) {
    loop {
        if let Ok(stream) = TcpStream::connect(address).await {
            connections.fetch_add(1, Ordering::Relaxed);
            // It ends when the server cuts it.
            let _ = hold(number, stream).await;
        }
        sleep(Duration::from_millis(20)).await;
    }
}

async fn hold(number: usize, mut stream: TcpStream) -> std::io::Result<()> {
    let second = Duration::from_secs(1);
    match number % 5 {
        0 => stream.read_u8().await.map(|_| ()),
        1 => {
            stream
                .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
                .await?;
            loop {
                sleep(second).await;
                stream.write_all(b"X-Slow: 1\r\n").await?;
            }
        }
        2 => loop {
            for byte in b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n" {
                stream.write_all(&[*byte]).await?;
                sleep(second).await;
            }
        },
        3 => {
            stream.write_all(b"GET /heal").await?;
            stream.shutdown().await?;
            stream.read_u8().await.map(|_| ())
        }
        // Asks for an endless answer where there is one, and does not read it.
        _ => {
            stream
                .write_all(b"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
                .await?;
            sleep(Duration::from_secs(10)).await;
            Ok(())
        }
    }
}
