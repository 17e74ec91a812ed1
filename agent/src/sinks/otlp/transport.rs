//! One attempt to send one request to the collector, over HTTP/1.1 or gRPC, with or without TLS.
//!
//! Used by the delivery task and by the push of metrics. Keeps its connection between attempts. A request that fails on a kept connection is sent once
//! more on a new one, since servers close idle connections.
//! Does not: wait or retry otherwise, follow redirects, use a proxy, accept compressed responses, or log.

use std::time::SystemTime;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::client::conn::{http1, http2};
use hyper::header::{ACCEPT, CONTENT_ENCODING, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Response};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

use super::config::{Connection, OtlpProtocol, Signal, Target};
use super::response::{self, AttemptResult};
use crate::failure::causes;
use crate::grpc::{self, CallError};
use crate::tls::{self, TlsError};

/// The connection to the collector.
pub(super) struct OtlpTransport {
    signal: Signal,
    target: Target,
    protocol: OtlpProtocol,
    headers: HeaderMap,
    timeout: std::time::Duration,
    tls: Option<TlsConnector>,
    connection: Option<OtlpConnection>,
}

enum OtlpConnection {
    Http(http1::SendRequest<Full<Bytes>>),
    Grpc(http2::SendRequest<Full<Bytes>>),
}

/// Why an attempt got no response. All of these are retried.
#[derive(Debug, thiserror::Error)]
enum NoResponse {
    #[error("cannot connect to {target}: {source}")]
    Connect {
        target: String,
        #[source]
        source: std::io::Error,
    },
    #[error(
        "cannot set up TLS with {target}: {source} (trusted are the system's authorities, or those in otlp.ca_file)"
    )]
    Tls {
        target: String,
        #[source]
        source: std::io::Error,
    },
    #[error("the connection to {target} failed: {why}{hint}")]
    Broken {
        target: String,
        why: String,
        hint: &'static str,
    },
    #[error("no answer from {target} within {} ms", timeout.as_millis())]
    Timeout {
        target: String,
        timeout: std::time::Duration,
    },
}

impl OtlpTransport {
    /// Reads the certificate files; does not connect.
    pub(super) fn new(config: &Connection, agent_version: &str) -> Result<OtlpTransport, TlsError> {
        let mut headers = config.headers.clone();
        if !headers.contains_key(USER_AGENT)
            && let Ok(agent) = HeaderValue::from_str(&user_agent(agent_version))
        {
            headers.insert(USER_AGENT, agent);
        }
        Ok(OtlpTransport {
            signal: config.signal,
            target: config.target.clone(),
            protocol: config.protocol,
            headers,
            timeout: config.timeout,
            tls: match config.target.tls {
                true => Some(tls::connector(&config.tls, config.protocol.alpn())?),
                false => None,
            },
            connection: None,
        })
    }

    /// Sends `body`, the signal's `Export...ServiceRequest`; `gzip` if it is compressed.
    pub(super) async fn send(&mut self, body: &Bytes, gzip: bool) -> AttemptResult {
        let deadline = Instant::now() + self.timeout;
        let kept = self.connection.as_ref().is_some_and(OtlpConnection::is_open);
        if !kept {
            self.connection = None;
        }
        let mut result = self.attempt(body, gzip, deadline).await;
        if kept && matches!(result, Err(NoResponse::Broken { .. })) {
            self.connection = None;
            result = self.attempt(body, gzip, deadline).await;
        }
        result.unwrap_or_else(|error| {
            self.connection = None;
            AttemptResult::Later {
                after: None,
                why: error.to_string(),
            }
        })
    }

    async fn attempt(&mut self, body: &Bytes, gzip: bool, deadline: Instant) -> Result<AttemptResult, NoResponse> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => timeout_at(deadline, self.connect())
                .await
                .map_err(|_| self.timed_out())??,
        };
        let result = match &mut connection {
            OtlpConnection::Http(sender) => self.post(sender, body, gzip, deadline).await?,
            OtlpConnection::Grpc(sender) => self.call(sender, body, gzip, deadline).await?,
        };
        self.connection = Some(connection);
        Ok(result)
    }

    async fn post(
        &self,
        sender: &mut http1::SendRequest<Full<Bytes>>,
        body: &Bytes,
        gzip: bool,
        deadline: Instant,
    ) -> Result<AttemptResult, NoResponse> {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(&self.target.path)
            .header(HOST, self.target.authority())
            .body(Full::new(body.clone()))
            .map_err(|error| self.broken(error.to_string()))?;
        let headers = request.headers_mut();
        headers.extend(self.headers.clone());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/x-protobuf"));
        if gzip {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        let exchange = async {
            sender.ready().await?;
            sender.send_request(request).await
        };
        let response = timeout_at(deadline, exchange)
            .await
            .map_err(|_| self.timed_out())?
            .map_err(|error| self.broken(causes(&error)))?;
        self.read(response, deadline).await
    }

    /// Reads the body. Without a body, a status other than success decides alone.
    async fn read(
        &self,
        response: Response<hyper::body::Incoming>,
        deadline: Instant,
    ) -> Result<AttemptResult, NoResponse> {
        let (head, body) = response.into_parts();
        let body = match timeout_at(deadline, Limited::new(body, MAX_RESPONSE).collect()).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) if error.is::<LengthLimitError>() => {
                return Ok(AttemptResult::Rejected {
                    why: format!("the collector's response (HTTP {}) is larger than 4 MiB", head.status),
                });
            }
            Ok(Err(_)) | Err(_) if !head.status.is_success() => Bytes::new(),
            Ok(Err(error)) => return Err(self.broken(error.to_string())),
            Err(_) => return Err(self.timed_out()),
        };
        Ok(response::of_http(head.status, &head.headers, &body, SystemTime::now()))
    }

    async fn call(
        &self,
        sender: &mut http2::SendRequest<Full<Bytes>>,
        body: &Bytes,
        gzip: bool,
        deadline: Instant,
    ) -> Result<AttemptResult, NoResponse> {
        let mut headers = self.headers.clone();
        let left = deadline.saturating_duration_since(Instant::now()).as_millis();
        if let Ok(left) = HeaderValue::from_str(&format!("{left}m")) {
            headers.insert(HeaderName::from_static("grpc-timeout"), left);
        }
        let origin = format!("{}://{}", self.target.scheme(), self.target.authority());
        let call = grpc::call_bounded(
            sender,
            &origin,
            self.signal.method(),
            &headers,
            body,
            gzip,
            MAX_RESPONSE,
        );
        match timeout_at(deadline, call).await {
            Ok(Err(CallError::Transport(why))) => Err(self.broken(why)),
            Ok(result) => Ok(response::of_grpc(result)),
            Err(_) => Err(self.timed_out()),
        }
    }

    async fn connect(&self) -> Result<OtlpConnection, NoResponse> {
        let stream = TcpStream::connect((self.target.host.as_str(), self.target.port))
            .await
            .map_err(|source| NoResponse::Connect {
                target: self.target.to_string(),
                source,
            })?;
        // Requests are written whole: Nagle's algorithm would only add delay.
        let _ = stream.set_nodelay(true);
        match &self.tls {
            None => self.handshake(stream).await,
            Some(connector) => {
                let name = ServerName::try_from(self.target.host.clone())
                    .map_err(|error| self.broken(format!("{:?} is no name for TLS: {error}", self.target.host)))?;
                let stream = connector
                    .connect(name, stream)
                    .await
                    .map_err(|source| NoResponse::Tls {
                        target: self.target.to_string(),
                        source,
                    })?;
                self.handshake(stream).await
            }
        }
    }

    async fn handshake<S>(&self, stream: S) -> Result<OtlpConnection, NoResponse>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        match self.protocol {
            OtlpProtocol::Grpc => Ok(OtlpConnection::Grpc(
                grpc::handshake(stream)
                    .await
                    .map_err(|error| self.broken(error.to_string()))?,
            )),
            OtlpProtocol::Http => {
                let (sender, connection) = http1::handshake(hyper_util::rt::TokioIo::new(stream))
                    .await
                    .map_err(|error| self.broken(causes(&error)))?;
                tokio::spawn(async move {
                    // The sender receives the error of a broken connection with its request.
                    let _ = connection.await;
                });
                Ok(OtlpConnection::Http(sender))
            }
        }
    }

    fn broken(&self, why: String) -> NoResponse {
        NoResponse::Broken {
            target: self.target.to_string(),
            why,
            hint: match (self.protocol, self.target.port) {
                (OtlpProtocol::Http, 4317) => " (4317 is the port of gRPC: is the protocol right?)",
                (OtlpProtocol::Grpc, 4318) => " (4318 is the port of http/protobuf: is the protocol right?)",
                _ => "",
            },
        }
    }

    fn timed_out(&self) -> NoResponse {
        NoResponse::Timeout {
            target: self.target.to_string(),
            timeout: self.timeout,
        }
    }
}

impl OtlpConnection {
    fn is_open(&self) -> bool {
        match self {
            OtlpConnection::Http(sender) => !sender.is_closed(),
            OtlpConnection::Grpc(sender) => !sender.is_closed(),
        }
    }
}

/// `OTel-OTLP-Exporter-Rust/<its version> sandglass/<version>` (OTLP exporter specification, "User Agent").
fn user_agent(agent_version: &str) -> String {
    format!("OTel-OTLP-Exporter-Rust/{EXPORTER_VERSION} sandglass/{agent_version}")
}

/// Version of the crate `opentelemetry-otlp`; a test compares it with the crate's own.
pub(super) const EXPORTER_VERSION: &str = "0.33.1";
/// Largest response that is read (OTLP specification 1.11, "OTLP/HTTP Response").
const MAX_RESPONSE: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use super::super::config::{Resolution, Settings, resolve};
    use super::*;

    #[test]
    fn a_broken_connection_on_the_other_protocols_port_says_so() {
        for (endpoint, protocol, hint) in [
            ("http://c:4317", "http/protobuf", "4317 is the port of gRPC"),
            ("http://c:4318", "grpc", "4318 is the port of http/protobuf"),
            ("http://c:4318", "http/protobuf", "broken"),
            ("http://c:4317", "grpc", "broken"),
        ] {
            let flags = Settings {
                endpoint: Some(endpoint.to_owned()),
                protocol: Some(protocol.to_owned()),
                ..Settings::default()
            };
            let Ok(Resolution::On(config)) = resolve(&flags, &|_| None, &Settings::default()) else {
                panic!("{endpoint}")
            };
            let transport = OtlpTransport::new(&config.connection, "1").unwrap();
            let text = transport.broken("broken".to_owned()).to_string();
            assert!(text.contains(hint), "{text}");
            assert_eq!(text.contains("is the protocol right?"), hint != "broken", "{text}");
        }
    }
}
