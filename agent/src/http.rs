//! The agent's HTTP server: the page, the JSON API, its event stream, `/metrics`, `/healthz`, `/readyz`.
//!
//! Started by the composition root with what it may show ([`Services`]). Read only, loopback unless configured
//! otherwise, and limited in everything a peer can choose: connections, streams, header size and time, body size,
//! time per request, time without progress. Does not: speak TLS, authenticate, or change anything in the agent.

mod assets;
mod guard;
mod health;
mod parameters;
mod response;
mod routes;
mod server;
mod stream;

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use crate::failure::Advice;
use crate::health::Health;
use crate::view::Store;
use guard::PatientIo;
pub use health::HealthReport;
use routes::Answering;
use server::Server;

/// Where to listen, and every limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpOptions {
    /// Address to listen on; port 0 takes any free one.
    pub listen: SocketAddr,
    /// Host names that requests may name, besides `localhost` and IP addresses. Any name is accepted when the address is
    /// not loopback and this is empty.
    pub host_names: Vec<String>,
    /// Connections at once; more wait to be accepted.
    pub max_connections: usize,
    /// Event streams at once; more are refused with 503.
    pub max_streams: usize,
    /// Time for a request's head to arrive, idle time between requests included.
    pub head_timeout: Duration,
    /// Time for everything from the head to the answer, except event streams.
    pub request_timeout: Duration,
    /// Time that a peer may take no data although there is some to send.
    pub write_timeout: Duration,
    /// Largest request body that is discarded; a larger one is refused with 413.
    pub max_body_bytes: u64,
    /// Time between two `health` events of a stream.
    pub health_interval: Duration,
    /// An operation that runs this long is called stuck.
    pub stuck_after: Duration,
}

impl HttpOptions {
    /// Options with the built-in limits; `stuck_after` is the age at which a running operation counts as stuck.
    #[must_use]
    pub fn new(listen: SocketAddr, stuck_after: Duration) -> HttpOptions {
        HttpOptions {
            listen,
            host_names: Vec::new(),
            max_connections: 64,
            max_streams: 16,
            head_timeout: Duration::from_secs(15),
            request_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(30),
            max_body_bytes: 64 << 10,
            health_interval: Duration::from_secs(3),
            stuck_after,
        }
    }
}

/// What the server shows. Closures are called per request, from the server's threads, and must not block.
#[derive(Clone)]
pub struct Services {
    /// The traces.
    pub store: Store,
    /// Probes and counters.
    pub health: Health,
    /// The text of `/metrics`: OpenMetrics 1.0, with its `# EOF`.
    pub metrics: Arc<dyn Fn() -> Result<String, std::fmt::Error> + Send + Sync>,
    /// Whether the pipeline makes progress; the error names how long it has not.
    pub alive: Arc<dyn Fn() -> Result<(), String> + Send + Sync>,
    /// Whether at least one source is attached; the error names what is missing.
    pub ready: Arc<dyn Fn() -> Result<(), String> + Send + Sync>,
    /// Status of OTLP export.
    pub otlp: Arc<dyn Fn() -> serde_json::Value + Send + Sync>,
}

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// The configured address.
        address: SocketAddr,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

impl Advice for ServeError {
    fn hint(&self) -> Cow<'_, str> {
        let hint = match self {
            ServeError::Listen { source, .. } => match source.kind() {
                std::io::ErrorKind::AddrInUse => {
                    "another program, perhaps another sandglass, listens there: choose another port with --listen"
                }
                std::io::ErrorKind::PermissionDenied => "ports below 1024 need a privilege: choose a higher one",
                _ => "--listen wants an address of this node, as 127.0.0.1:9477",
            },
        };
        hint.into()
    }
}

/// A running server.
#[derive(Debug)]
pub struct Running {
    /// Where it listens.
    pub address: SocketAddr,
    task: JoinHandle<()>,
}

impl Running {
    /// Waits until it has stopped, after `shutdown` came true.
    pub async fn stopped(self) {
        // A panic of the accept loop has been logged; the agent stops either way.
        let _ = self.task.await;
    }
}

/// Listens and serves until `shutdown` is true or its sender is gone; open requests get [`DRAIN`] to end.
pub async fn serve(
    options: HttpOptions,
    services: Services,
    shutdown: watch::Receiver<bool>,
) -> Result<Running, ServeError> {
    let address = options.listen;
    let listen = |source| ServeError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(listen)?;
    let address = listener.local_addr().map_err(listen)?;
    let server = Arc::new(Server::new(options, services, address, shutdown.clone()));
    let task = tokio::spawn(accept(listener, server, shutdown));
    Ok(Running { address, task })
}

/// Logs where the page is, and who can reach it.
pub fn announce(address: SocketAddr) {
    if address.ip().is_loopback() {
        tracing::info!(%address, "the page is served");
    } else {
        tracing::warn!(
            %address,
            "the page is served to the network, without authentication: who reaches it sees pod names and commands"
        );
    }
}

async fn accept(listener: TcpListener, server: Arc<Server>, mut shutdown: watch::Receiver<bool>) {
    let permits = Arc::new(Semaphore::new(server.options.max_connections));
    let graceful = GracefulShutdown::new();
    loop {
        // The permit comes first: connections beyond the bound wait in the kernel's queue.
        let next = async {
            let permit = permits.clone().acquire_owned().await.ok()?;
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // No file descriptors, or the peer has gone: neither ends the server.
                    tracing::debug!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    return Some(());
                }
            };
            let connection = graceful.watch(connect(stream, &server));
            tokio::spawn(async move {
                let _permit = permit;
                // An error of one connection concerns only its peer.
                let _ = connection.await;
            });
            Some(())
        };
        tokio::select! {
            _ = shutdown.wait_for(|stop| *stop) => break,
            more = next => if more.is_none() { break },
        }
    }
    drop(listener);
    let _ = tokio::time::timeout(DRAIN, graceful.shutdown()).await;
}

fn connect(
    stream: TcpStream,
    server: &Arc<Server>,
) -> hyper::server::conn::http1::Connection<TokioIo<PatientIo>, Answering> {
    // Events are small and must not wait for more data.
    let _ = stream.set_nodelay(true);
    let io = TokioIo::new(PatientIo::new(stream, server.options.write_timeout));
    hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(server.options.head_timeout)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(64)
        .serve_connection(io, Answering(server.clone()))
}

/// Time that open requests have to end after shutdown began.
const DRAIN: Duration = Duration::from_secs(2);
const MAX_HEAD_BYTES: usize = 16 << 10;

#[cfg(test)]
mod tests;
