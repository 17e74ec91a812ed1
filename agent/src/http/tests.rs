//! The server over a real socket: every route, every refusal, every limit. This file has the server and the client that they share.

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

mod access;
mod limits;
mod routes;
mod streams;
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
            journal: None,
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

/// Reads until `wanted` has come, the peer has closed, or [`PATIENCE`] is over; returns all that came.
async fn read_until(stream: &mut TcpStream, wanted: &str) -> String {
    let mut text = String::new();
    let mut buffer = [0; 4_096];
    let limit = tokio::time::Instant::now() + PATIENCE;
    while !text.contains(wanted) {
        match tokio::time::timeout_at(limit, stream.read(&mut buffer)).await {
            Ok(Ok(count)) if count > 0 => text.push_str(&String::from_utf8_lossy(&buffer[..count])),
            _ => break,
        }
    }
    text
}

/// For what must come or end by itself, and otherwise would after a minute or never.
const PATIENCE: Duration = Duration::from_secs(20);

const STREAM: &[u8] = b"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n";
