//! The agent's HTTP server, on two listeners: metrics and health; page, JSON API and event stream.
//!
//! Started by the composition root with what it may show ([`Services`]). Read only, loopback unless configured
//! otherwise, and limited in everything a peer can choose: connections that wait, requests at once in all and of each
//! peer, streams, header size and time, body size, time per request, time without progress. Probes of the kubelet have
//! places of their own. Does not: change anything in the agent, or serve the page beyond loopback without a token or
//! clients' certificates (`config::page` refuses that).

mod access;
mod assets;
mod guard;
mod head;
mod health;
mod listener;
mod lobby;
mod parameters;
mod patient;
mod places;
mod response;
mod routes;
mod server;
mod site;
mod stream;

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::failure::Advice;
use crate::health::Health;
use crate::sinks::journal::Journal;
use crate::view::Store;
pub use access::AccessFiles;
use access::{Access, AccessError};
pub use health::HealthReport;
use listener::Listener;
use server::Server;
use site::{Role, Site};

/// Where one listener listens, and under which names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenOptions {
    /// Address to listen on; port 0 takes any free one.
    pub address: SocketAddr,
    /// A taken port is replaced by any free one; for an address that the user did not choose.
    pub any_port: bool,
    /// Host names that requests may name, besides `localhost` and IP addresses.
    pub host_names: Vec<String>,
}

impl ListenOptions {
    /// At this address and under no further name.
    #[must_use]
    pub fn at(address: SocketAddr) -> ListenOptions {
        ListenOptions {
            address,
            any_port: false,
            host_names: Vec::new(),
        }
    }
}

/// Where to listen, and every limit. Numbers of connections and requests are those of each listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpOptions {
    /// The listener of metrics and health; none for a replay, where the page's serves them.
    pub metrics: Option<ListenOptions>,
    /// The listener of page and API.
    pub page: ListenOptions,
    /// What the page's listener requires of readers.
    pub access: AccessFiles,
    /// Connections that have not sent a request, at most a quarter of the files that the process may open; a further one
    /// displaces the oldest of the peer with most.
    pub max_waiting: usize,
    /// Requests answered at once, of one peer address half of them; more wait.
    pub max_requests: usize,
    /// Places for probes of the kubelet, besides.
    pub health_places: usize,
    /// Event streams at once, of one peer address half of them; more are refused with 503.
    pub max_streams: usize,
    /// Time from a connection's begin until its request has arrived and has a place.
    pub head_timeout: Duration,
    /// Time for everything from the head to the answer, except event streams.
    pub request_timeout: Duration,
    /// Time for a request with its answer and the peer's reading of it, except event streams.
    pub response_timeout: Duration,
    /// Time that a peer may take no data although there is some to send.
    pub write_timeout: Duration,
    /// Largest request body that is discarded; a larger one is refused with 413.
    pub max_body_bytes: u64,
    /// Time between two `health` events of a stream.
    pub health_interval: Duration,
    /// An operation that runs this long is called stuck, until [`StuckAfter`] changes it.
    pub stuck_after: Duration,
}

impl HttpOptions {
    /// The page's listener alone, with the built-in limits; `stuck_after` is the age at which a running operation counts
    /// as stuck.
    #[must_use]
    pub fn new(page: SocketAddr, stuck_after: Duration) -> HttpOptions {
        HttpOptions {
            metrics: None,
            page: ListenOptions::at(page),
            access: AccessFiles::default(),
            max_waiting: 2_304,
            max_requests: 64,
            health_places: 16,
            max_streams: 16,
            head_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(10),
            response_timeout: Duration::from_secs(30),
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
    /// The journal of open traces, when there is one.
    pub journal: Option<Journal>,
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
        /// Which flag sets it.
        flag: &'static str,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// A file that limits who may read cannot be used.
    #[error(transparent)]
    Access(#[from] AccessError),
}

impl Advice for ServeError {
    fn hint(&self) -> Cow<'_, str> {
        let (flag, source) = match self {
            ServeError::Listen { flag, source, .. } => (flag, source),
            ServeError::Access(error) => return error.hint(),
        };
        match source.kind() {
            std::io::ErrorKind::AddrInUse => {
                format!("another program, perhaps another sandglass, listens there: choose another port with {flag}")
            }
            std::io::ErrorKind::PermissionDenied => "ports below 1024 need a privilege: choose a higher one".to_owned(),
            _ => format!("{flag} wants an address of this node, as 127.0.0.1:9477"),
        }
        .into()
    }
}

/// A running server.
#[derive(Debug)]
pub struct Running {
    /// Where page and API are; metrics and health are there too.
    pub address: SocketAddr,
    /// The listener of metrics and health.
    pub metrics: Option<SocketAddr>,
    /// The page's listener speaks TLS.
    pub tls: bool,
    stuck_after_ns: Arc<AtomicU64>,
    tasks: Vec<JoinHandle<()>>,
}

/// Changes at which age a running operation counts as stuck, in a running server.
#[derive(Clone, Debug)]
pub struct StuckAfter(Arc<AtomicU64>);

impl StuckAfter {
    /// From the next request on.
    pub fn set(&self, age: Duration) {
        self.0.store(server::nanoseconds(age), Ordering::Relaxed);
    }
}

impl Running {
    /// Changes the age at which a running operation counts as stuck.
    #[must_use]
    pub fn stuck_after(&self) -> StuckAfter {
        StuckAfter(Arc::clone(&self.stuck_after_ns))
    }

    /// Waits until it has stopped, after `shutdown` came true.
    pub async fn stopped(self) {
        for task in self.tasks {
            // A panic of an accept loop has been logged; the agent stops either way.
            let _ = task.await;
        }
    }

    /// Logs what is served where, and who can reach it.
    pub fn announce(&self) {
        if let Some(address) = self.metrics {
            tracing::info!(%address, "metrics and health are served");
        }
        let (address, tls) = (self.address, self.tls);
        if address.ip().is_loopback() {
            tracing::info!(%address, tls, "the page is served");
        } else if tls {
            tracing::info!(%address, tls, "the page is served to the network");
        } else {
            tracing::warn!(
                %address,
                tls,
                "the page is served to the network without encryption: who can listen there can copy the token"
            );
        }
    }
}

/// Listens and serves until `shutdown` is true or its sender is gone; open requests get [`DRAIN`] to end.
///
/// # Errors
/// An address cannot be listened on, or a file that limits who may read cannot be used.
pub async fn serve(
    options: HttpOptions,
    services: Services,
    shutdown: watch::Receiver<bool>,
) -> Result<Running, ServeError> {
    let access = Access::from_files(&options.access)?;
    let tls = access.tls.is_some();
    // Both before one serves: a start that fails has answered nobody.
    let metrics = match &options.metrics {
        Some(listen) => Some((bind(listen, "--listen")?, listen.host_names.clone())),
        None => None,
    };
    let page = (bind(&options.page, "--page-listen")?, options.page.host_names.clone());
    let server = Arc::new(Server::new(options, services, shutdown));
    let mut tasks = Vec::new();
    let mut start = |role, ((socket, address), names), access| {
        let site = Site {
            role,
            host_names: names,
            access,
            server: Arc::clone(&server),
        };
        tasks.push(tokio::spawn(Listener::new(site).run(socket)));
        address
    };
    let metrics = metrics.map(|metrics| start(Role::Metrics, metrics, Access::open()));
    let address = start(Role::Page, page, access);
    Ok(Running {
        address,
        metrics,
        tls,
        stuck_after_ns: Arc::clone(&server.stuck_after_ns),
        tasks,
    })
}

/// Listens; returns the address with the port that was taken.
fn bind(listen: &ListenOptions, flag: &'static str) -> Result<(TcpListener, SocketAddr), ServeError> {
    let address = listen.address;
    let error = |source| ServeError::Listen { address, flag, source };
    let listener = match listener::bind(address) {
        Err(taken) if listen.any_port && taken.kind() == std::io::ErrorKind::AddrInUse => {
            listener::bind(SocketAddr::new(address.ip(), 0))
        }
        bound => bound,
    };
    let listener = listener.map_err(error)?;
    let address = listener.local_addr().map_err(error)?;
    Ok((listener, address))
}

/// Time that open requests have to end after shutdown began.
const DRAIN: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests;
