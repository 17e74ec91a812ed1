//! A client of the Container Runtime Interface, version v1, on a Unix socket or a TCP address.
//!
//! `identity` asks it who a sandbox belongs to, `doctor` times it, the demo and the tests make sandboxes with it. The
//! runtime is a peer, not a friend: every call has a deadline, answers are bounded ([`crate::grpc::MAX_ANSWER`]).
//! A connection that broke between calls is made anew. Does not: stream events, pull images, run containers.

use std::borrow::Cow;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http2::SendRequest;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use prost::Message;

use crate::failure::Advice;
use crate::grpc::{self, CallError};
use crate::platform;

mod endpoint;
pub mod messages;
#[cfg(test)]
#[cfg(target_os = "linux")]
pub(crate) mod private_containerd;
#[cfg(test)]
#[cfg(unix)]
pub(crate) mod scripted;
pub mod stats;
#[cfg(test)]
#[cfg(unix)]
mod tests;

pub use endpoint::{BadEndpoint, DEFAULT_SOCKETS, Endpoint, RuntimeChoice};

use messages::{
    Container, ListContainersRequest, ListContainersResponse, ListPodSandboxRequest, ListPodSandboxResponse,
    PodSandbox, PodSandboxConfig, PodSandboxStatusRequest, PodSandboxStatusResponse, RemovePodSandboxRequest,
    RemovePodSandboxResponse, RunPodSandboxRequest, RunPodSandboxResponse, StatusRequest, StatusResponse,
    StopPodSandboxRequest, StopPodSandboxResponse, VersionRequest, VersionResponse,
};
use stats::{
    ContainerStats, ListContainerStatsRequest, ListContainerStatsResponse, ListPodSandboxStatsRequest,
    ListPodSandboxStatsResponse, PodSandboxStats,
};

type Connection = SendRequest<Full<Bytes>>;

/// A connection to a container runtime. Calls may run at the same time.
#[derive(Debug)]
pub struct Cri {
    endpoint: Endpoint,
    timeout: Duration,
    connection: Mutex<Option<Connection>>,
}

/// Why the runtime gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum CriError {
    /// The address is none.
    #[error("no container runtime can be asked")]
    Endpoint(#[source] BadEndpoint),
    /// Nobody listens there, or it is not allowed.
    #[error("cannot connect to the container runtime at {endpoint}")]
    Connect {
        /// Where.
        endpoint: Endpoint,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The other side does not speak HTTP/2, or broke off, or answered with an error.
    #[error("CRI {method} at {endpoint}")]
    Call {
        /// Where.
        endpoint: Endpoint,
        /// Which call.
        method: &'static str,
        /// What went wrong.
        #[source]
        source: CallError,
    },
    /// No answer in time.
    #[error("CRI {method} at {endpoint} gave no answer within {after:?}")]
    Deadline {
        /// Where.
        endpoint: Endpoint,
        /// Which call.
        method: &'static str,
        /// The deadline.
        after: Duration,
    },
    /// The answer is not the message it should be.
    #[error("CRI {method} at {endpoint}: the answer cannot be decoded")]
    Decode {
        /// Where.
        endpoint: Endpoint,
        /// Which call.
        method: &'static str,
        /// Why not.
        #[source]
        source: prost::DecodeError,
    },
}

impl CriError {
    /// The gRPC status, when the runtime itself said no.
    #[must_use]
    pub fn status(&self) -> Option<u32> {
        match self {
            CriError::Call {
                source: CallError::Status { code, .. },
                ..
            } => Some(*code),
            _ => None,
        }
    }

    /// Whether the runtime has no such sandbox.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.status() == Some(grpc_status::NOT_FOUND)
    }

    /// Whether the runtime does not know the method.
    #[must_use]
    pub fn is_unimplemented(&self) -> bool {
        self.status() == Some(grpc_status::UNIMPLEMENTED)
    }
}

impl Advice for CriError {
    fn hint(&self) -> Cow<'_, str> {
        let hint = match self {
            CriError::Endpoint(_) => "give a socket as /path or unix:///path, a TCP address as tcp://host:port",
            CriError::Connect { source, .. } => match source.kind() {
                std::io::ErrorKind::PermissionDenied => {
                    "run as root, or mount the socket so that the agent may open it"
                }
                std::io::ErrorKind::NotFound => {
                    "set the endpoint, or mount the runtime's socket into the agent's container"
                }
                _ => "is the container runtime running, and is this its CRI socket?",
            },
            CriError::Call { .. } if self.is_unimplemented() => {
                "the runtime has no such method: its CRI plugin is disabled, or it is older than CRI v1"
            }
            CriError::Call {
                source: CallError::Status { .. },
                ..
            } => "the runtime itself says so: its log may say more",
            CriError::Call { .. } | CriError::Decode { .. } => {
                "is this a CRI v1 socket? `crictl version` asks the same"
            }
            CriError::Deadline { .. } => "the runtime is overloaded or hangs: see its own log",
        };
        hint.into()
    }
}

mod grpc_status {
    pub(super) const NOT_FOUND: u32 = 5;
    pub(super) const UNIMPLEMENTED: u32 = 12;
}

/// Whether a call may be sent a second time after the connection broke under the first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeat {
    Safe,
    Never,
}

impl Cri {
    /// Connects to `endpoint` (`unix:///path`, `/path`, `tcp://host:port`). `timeout` holds for this and, unless a
    /// method says otherwise, for every call.
    pub async fn connect(endpoint: &str, timeout: Duration) -> Result<Cri, CriError> {
        Cri::connect_to(Endpoint::parse(endpoint).map_err(CriError::Endpoint)?, timeout).await
    }

    /// Like [`Cri::connect`], with an address that is already read.
    pub async fn connect_to(endpoint: Endpoint, timeout: Duration) -> Result<Cri, CriError> {
        let cri = Cri {
            endpoint,
            timeout,
            connection: Mutex::new(None),
        };
        let connecting = tokio::time::timeout(timeout, cri.open("connect"));
        let connection = connecting.await.map_err(|_| cri.late("connect", timeout))??;
        cri.keep(Some(connection));
        Ok(cri)
    }

    /// Where the runtime is.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Which runtime answers.
    pub async fn version(&self) -> Result<VersionResponse, CriError> {
        let request = VersionRequest {
            version: "v1".to_owned(),
        };
        self.ask("Version", &request, Repeat::Safe).await
    }

    /// The runtime's conditions; with `verbose` also its configuration.
    pub async fn status(&self, verbose: bool) -> Result<StatusResponse, CriError> {
        self.ask("Status", &StatusRequest { verbose }, Repeat::Safe).await
    }

    /// All sandboxes.
    pub async fn list_pod_sandbox(&self) -> Result<Vec<PodSandbox>, CriError> {
        let answer: ListPodSandboxResponse = self
            .ask("ListPodSandbox", &ListPodSandboxRequest {}, Repeat::Safe)
            .await?;
        Ok(answer.items)
    }

    /// One sandbox; with `verbose` also the runtime's own texts about it.
    pub async fn pod_sandbox_status(&self, id: &str, verbose: bool) -> Result<PodSandboxStatusResponse, CriError> {
        let request = PodSandboxStatusRequest {
            pod_sandbox_id: id.to_owned(),
            verbose,
        };
        self.ask("PodSandboxStatus", &request, Repeat::Safe).await
    }

    /// All containers.
    pub async fn list_containers(&self) -> Result<Vec<Container>, CriError> {
        let answer: ListContainersResponse = self
            .ask("ListContainers", &ListContainersRequest {}, Repeat::Safe)
            .await?;
        Ok(answer.containers)
    }

    /// Statistics of all sandboxes.
    pub async fn list_pod_sandbox_stats(&self) -> Result<Vec<PodSandboxStats>, CriError> {
        let answer: ListPodSandboxStatsResponse = self
            .ask("ListPodSandboxStats", &ListPodSandboxStatsRequest {}, Repeat::Safe)
            .await?;
        Ok(answer.stats)
    }

    /// Statistics of all containers.
    pub async fn list_container_stats(&self) -> Result<Vec<ContainerStats>, CriError> {
        let answer: ListContainerStatsResponse = self
            .ask("ListContainerStats", &ListContainerStatsRequest {}, Repeat::Safe)
            .await?;
        Ok(answer.stats)
    }

    /// Makes a sandbox and gives its id. Takes as long as its plugins do, so it has a deadline of its own. Never sent
    /// twice: a broken connection may hide a sandbox that was made.
    pub async fn run_pod_sandbox(
        &self,
        config: PodSandboxConfig,
        runtime_handler: &str,
        deadline: Duration,
    ) -> Result<String, CriError> {
        let request = RunPodSandboxRequest {
            config: Some(config),
            runtime_handler: runtime_handler.to_owned(),
        };
        let answer: RunPodSandboxResponse = self
            .ask_within("RunPodSandbox", &request, Repeat::Never, deadline)
            .await?;
        Ok(answer.pod_sandbox_id)
    }

    /// Stops a sandbox: its network goes (CNI DEL). Has a deadline of its own.
    pub async fn stop_pod_sandbox(&self, id: &str, deadline: Duration) -> Result<(), CriError> {
        let request = StopPodSandboxRequest {
            pod_sandbox_id: id.to_owned(),
        };
        let _: StopPodSandboxResponse = self
            .ask_within("StopPodSandbox", &request, Repeat::Safe, deadline)
            .await?;
        Ok(())
    }

    /// Removes a sandbox, stopping it if need be. Has a deadline of its own.
    pub async fn remove_pod_sandbox(&self, id: &str, deadline: Duration) -> Result<(), CriError> {
        let request = RemovePodSandboxRequest {
            pod_sandbox_id: id.to_owned(),
        };
        let _: RemovePodSandboxResponse = self
            .ask_within("RemovePodSandbox", &request, Repeat::Safe, deadline)
            .await?;
        Ok(())
    }

    async fn ask<A: Message + Default>(
        &self,
        method: &'static str,
        request: &impl Message,
        repeat: Repeat,
    ) -> Result<A, CriError> {
        self.ask_within(method, request, repeat, self.timeout).await
    }

    async fn ask_within<A: Message + Default>(
        &self,
        method: &'static str,
        request: &impl Message,
        repeat: Repeat,
        deadline: Duration,
    ) -> Result<A, CriError> {
        let message = request.encode_to_vec();
        let exchange = self.exchange(method, &message, repeat, deadline);
        let answer = match tokio::time::timeout(deadline, exchange).await {
            Ok(answer) => answer?,
            Err(_) => {
                // A connection that swallows calls is not worth keeping: the next call starts afresh.
                self.keep(None);
                return Err(self.late(method, deadline));
            }
        };
        A::decode(answer).map_err(|source| CriError::Decode {
            endpoint: self.endpoint.clone(),
            method,
            source,
        })
    }

    async fn exchange(
        &self,
        method: &'static str,
        message: &[u8],
        repeat: Repeat,
        deadline: Duration,
    ) -> Result<Bytes, CriError> {
        let kept = self.kept();
        let was_kept = kept.is_some();
        let connection = match kept {
            Some(connection) => connection,
            None => self.open(method).await?,
        };
        let first = self.send(connection, method, message, deadline).await;
        // The runtime may have been restarted since the last call: that shows only now.
        if was_kept && repeat == Repeat::Safe && matches!(first, Err(CallError::Transport(_))) {
            let connection = self.open(method).await?;
            let second = self.send(connection, method, message, deadline).await;
            return second.map_err(|source| self.failed(method, source));
        }
        first.map_err(|source| self.failed(method, source))
    }

    async fn send(
        &self,
        mut connection: Connection,
        method: &'static str,
        message: &[u8],
        deadline: Duration,
    ) -> Result<Bytes, CallError> {
        let mut headers = HeaderMap::new();
        let milliseconds = deadline.as_millis().clamp(1, MAX_GRPC_TIMEOUT);
        if let Ok(value) = HeaderValue::try_from(format!("{milliseconds}m")) {
            headers.insert(HeaderName::from_static("grpc-timeout"), value);
        }
        let path = format!("/runtime.v1.RuntimeService/{method}");
        let origin = self.endpoint.origin();
        let answer = grpc::call(&mut connection, &origin, &path, &headers, message, false).await;
        match answer {
            Err(CallError::Transport(_)) => self.keep(None),
            Ok(_) | Err(_) => self.keep(Some(connection)),
        }
        answer
    }

    async fn open(&self, method: &'static str) -> Result<Connection, CriError> {
        let refused = |source| CriError::Connect {
            endpoint: self.endpoint.clone(),
            source,
        };
        let opened = match &self.endpoint {
            Endpoint::Unix(path) => grpc::handshake(platform::connect_socket(path).await.map_err(refused)?).await,
            Endpoint::Pipe(path) => grpc::handshake(platform::connect_pipe(path).await.map_err(refused)?).await,
            Endpoint::Tcp(address) => {
                let stream = tokio::net::TcpStream::connect(address).await.map_err(refused)?;
                grpc::handshake(stream).await
            }
        };
        opened.map_err(|source| self.failed(method, source))
    }

    fn kept(&self) -> Option<Connection> {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        connection.clone().filter(|connection| !connection.is_closed())
    }

    fn keep(&self, connection: Option<Connection>) {
        *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = connection;
    }

    fn failed(&self, method: &'static str, source: CallError) -> CriError {
        CriError::Call {
            endpoint: self.endpoint.clone(),
            method,
            source,
        }
    }

    fn late(&self, method: &'static str, after: Duration) -> CriError {
        CriError::Deadline {
            endpoint: self.endpoint.clone(),
            method,
            after,
        }
    }
}

/// `grpc-timeout` has at most 8 digits.
const MAX_GRPC_TIMEOUT: u128 = 99_999_999;
