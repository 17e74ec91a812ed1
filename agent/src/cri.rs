//! A client of the Container Runtime Interface, version v1, on a Unix socket or a TCP address.
//!
//! `identity` resolves sandboxes with it, `doctor` times it, the demo and the tests make sandboxes with it. The runtime is
//! not trusted: every call has a deadline, answers are bounded ([`crate::grpc::MAX_ANSWER`]). A connection that broke
//! between calls is opened again. Does not: stream events, pull images, run containers.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http2::SendRequest;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use prost::Message;

use crate::grpc::{self, CallError};
use crate::platform;

mod endpoint;
mod error;
pub mod messages;
#[cfg(test)]
#[cfg(target_os = "linux")]
pub(crate) mod scripted;
pub mod stats;

pub use endpoint::{BadEndpoint, DEFAULT_SOCKETS, Endpoint, RuntimeChoice};
pub use error::CriError;

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

/// Whether a call may be sent a second time after the connection broke under the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// The call has the same effect once and twice.
    Safe,
    /// A second call might make a second thing.
    Never,
}

impl Cri {
    /// Connects to `endpoint` (`unix:///path`, `/path`, `tcp://host:port`). `timeout` holds for this and, unless a
    /// method says otherwise, for every call.
    pub async fn connect(endpoint: &str, timeout: Duration) -> Result<Cri, CriError> {
        Cri::connect_to(Endpoint::parse(endpoint).map_err(CriError::Endpoint)?, timeout).await
    }

    /// Like [`Cri::connect`], with a parsed address.
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

    /// Name and version of the runtime.
    pub async fn version(&self) -> Result<VersionResponse, CriError> {
        let request = VersionRequest {
            version: "v1".to_owned(),
        };
        self.call("Version", &request, Repeat::Safe).await
    }

    /// The runtime's conditions; with `verbose` also its configuration.
    pub async fn status(&self, verbose: bool) -> Result<StatusResponse, CriError> {
        self.call("Status", &StatusRequest { verbose }, Repeat::Safe).await
    }

    /// All sandboxes.
    pub async fn list_pod_sandbox(&self) -> Result<Vec<PodSandbox>, CriError> {
        let answer: ListPodSandboxResponse = self
            .call("ListPodSandbox", &ListPodSandboxRequest {}, Repeat::Safe)
            .await?;
        Ok(answer.items)
    }

    /// One sandbox; with `verbose` also the runtime's own texts about it.
    pub async fn pod_sandbox_status(&self, id: &str, verbose: bool) -> Result<PodSandboxStatusResponse, CriError> {
        let request = PodSandboxStatusRequest {
            pod_sandbox_id: id.to_owned(),
            verbose,
        };
        self.call("PodSandboxStatus", &request, Repeat::Safe).await
    }

    /// All containers.
    pub async fn list_containers(&self) -> Result<Vec<Container>, CriError> {
        let answer: ListContainersResponse = self
            .call("ListContainers", &ListContainersRequest {}, Repeat::Safe)
            .await?;
        Ok(answer.containers)
    }

    /// Statistics of all sandboxes.
    pub async fn list_pod_sandbox_stats(&self) -> Result<Vec<PodSandboxStats>, CriError> {
        let answer: ListPodSandboxStatsResponse = self
            .call("ListPodSandboxStats", &ListPodSandboxStatsRequest {}, Repeat::Safe)
            .await?;
        Ok(answer.stats)
    }

    /// Statistics of all containers.
    pub async fn list_container_stats(&self) -> Result<Vec<ContainerStats>, CriError> {
        let answer: ListContainerStatsResponse = self
            .call("ListContainerStats", &ListContainerStatsRequest {}, Repeat::Safe)
            .await?;
        Ok(answer.stats)
    }

    /// Makes a sandbox and returns its id. Takes as long as its plugins do, so it has a deadline of its own. Never sent
    /// twice: the sandbox may have been made before the connection broke.
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
            .call_within("RunPodSandbox", &request, Repeat::Never, deadline)
            .await?;
        Ok(answer.pod_sandbox_id)
    }

    /// Stops a sandbox: the runtime removes its network (CNI DEL). Has a deadline of its own.
    pub async fn stop_pod_sandbox(&self, id: &str, deadline: Duration) -> Result<(), CriError> {
        let request = StopPodSandboxRequest {
            pod_sandbox_id: id.to_owned(),
        };
        let _: StopPodSandboxResponse = self
            .call_within("StopPodSandbox", &request, Repeat::Safe, deadline)
            .await?;
        Ok(())
    }

    /// Removes a sandbox, stopping it if need be. Has a deadline of its own.
    pub async fn remove_pod_sandbox(&self, id: &str, deadline: Duration) -> Result<(), CriError> {
        let request = RemovePodSandboxRequest {
            pod_sandbox_id: id.to_owned(),
        };
        let _: RemovePodSandboxResponse = self
            .call_within("RemovePodSandbox", &request, Repeat::Safe, deadline)
            .await?;
        Ok(())
    }

    async fn call<A: Message + Default>(
        &self,
        method: &'static str,
        request: &impl Message,
        repeat: Repeat,
    ) -> Result<A, CriError> {
        self.call_within(method, request, repeat, self.timeout).await
    }

    /// Sends `request` to a method of the runtime's service, also one that this client has no function for.
    ///
    /// # Errors
    /// When the runtime cannot be reached, refuses, or does not answer within `deadline`.
    pub async fn call_within<A: Message + Default>(
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
                // The connection may be dead without an error: the next call opens another.
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
        let kept = self.open_connection();
        let was_kept = kept.is_some();
        let connection = match kept {
            Some(connection) => connection,
            None => self.open(method).await?,
        };
        let first = self.send(connection, method, message, deadline).await;
        // If the runtime was restarted since the last call, only this one shows it.
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

    fn open_connection(&self) -> Option<Connection> {
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

/// `grpc-timeout` has at most 8 digits (gRPC over HTTP/2, "Requests").
const MAX_GRPC_TIMEOUT: u128 = 99_999_999;
