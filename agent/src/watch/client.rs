//! The agent's HTTP API as `watch` needs it: one GET, and the event stream with reconnects.
//!
//! Answers and events are bounded and waits have deadlines: the agent may be hung or of another version.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::row::ReceivedRow;
use crate::failure::{Advice, causes};
use crate::health::RefusedProcess;

/// A running agent.
#[derive(Clone)]
pub struct Agent {
    /// `host:port` of its page.
    pub address: String,
    /// What it wants to see of who reads its page.
    pub token: Option<String>,
    /// Of a page that has a certificate.
    pub tls: Option<TlsConnector>,
}

impl fmt::Debug for Agent {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// Why watching ended.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// Nobody listens there.
    #[error("cannot reach an agent at {address}: {reason}")]
    Connect {
        /// The address.
        address: String,
        /// What went wrong.
        reason: String,
    },
    /// No encrypted connection with it.
    #[error("no TLS with the agent at {address}: {reason}")]
    Tls {
        /// The address.
        address: String,
        /// What went wrong.
        reason: String,
    },
    /// It answered with an error.
    #[error("the agent at {address} answered {status}: {message}")]
    Refused {
        /// The address.
        address: String,
        /// HTTP status.
        status: u16,
        /// The error of its answer.
        message: String,
    },
    /// The answer is not that of an agent of this version.
    #[error("the answer of {address} is not understood: {reason}")]
    Answer {
        /// The address.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Standard output is gone.
    #[error("cannot write to standard output")]
    Write {
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

impl Advice for WatchError {
    fn hint(&self) -> Cow<'_, str> {
        let hint = match self {
            WatchError::Connect { .. } => {
                "start one with `sandglass run`, or give the address of its page, with https:// where it has a certificate"
            }
            WatchError::Tls { .. } => {
                "--ca-file names the authority of the page's certificate, which must name the host; \
                 --certificate-file and --key-file are for an agent that wants one of its clients"
            }
            WatchError::Refused { status: 401, .. } => "--token-file names the file with the agent's token",
            WatchError::Refused { status: 404, .. } => {
                "give the address of the page (page.address), not that of metrics"
            }
            WatchError::Refused { .. } => "is another program listening there? see the agent's log",
            WatchError::Answer { .. } => "is it a sandglass agent of the same version?",
            WatchError::Write { .. } => "the reader of the pipe has gone away",
        };
        hint.into()
    }
}

/// One event of the stream.
#[derive(Debug)]
pub enum StreamMessage {
    /// A trace changed.
    Row(Box<ReceivedRow>),
    /// The node's name.
    Node(String),
    /// The stream is open: what was known before may be old.
    Connected,
    /// Changes were missed.
    Reload,
    /// The stream broke; it is tried again.
    Broken(WatchError),
}

/// The agent's account of itself, as far as it is shown.
#[derive(Debug, Deserialize)]
pub struct NodeHealth {
    /// The node.
    pub node: NodeName,
}

/// What the agent refused.
#[derive(Debug, Deserialize)]
pub struct Refused {
    /// Newest first.
    #[serde(default)]
    pub refused: Vec<RefusedProcess>,
}

/// A node.
#[derive(Debug, Deserialize)]
pub struct NodeName {
    /// Its name.
    pub name: String,
}

/// Requests JSON.
pub async fn get<T: DeserializeOwned>(agent: &Agent, path: &str) -> Result<T, WatchError> {
    let answer = |reason: String| WatchError::Answer {
        address: agent.address.clone(),
        reason,
    };
    let response = request(agent, path).await?;
    let body = Limited::new(response.into_body(), MAX_ANSWER);
    let bytes = timeout(PATIENCE, body.collect())
        .await
        .map_err(|_| answer("it did not end in time".to_owned()))?
        .map_err(|error| answer(error.to_string()))?
        .to_bytes();
    serde_json::from_slice(&bytes).map_err(|error| answer(error.to_string()))
}

async fn request(agent: &Agent, path: &str) -> Result<Response<Incoming>, WatchError> {
    let address = agent.address.as_str();
    let connect = |reason: String| WatchError::Connect {
        address: address.to_owned(),
        reason,
    };
    let late = |_| connect("no answer in time".to_owned());
    let stream = timeout(PATIENCE, TcpStream::connect(address))
        .await
        .map_err(late)?
        .map_err(|error| connect(error.to_string()))?;
    let broken = |error: hyper::Error| match &agent.tls {
        // With TLS 1.3 a client whose certificate is refused learns of it when it reads.
        Some(_) => WatchError::Tls {
            address: address.to_owned(),
            reason: causes(&error),
        },
        None => connect(causes(&error)),
    };
    let mut sender = match &agent.tls {
        None => handshake(stream).await.map_err(broken)?,
        Some(tls) => {
            let refused = |reason: String| WatchError::Tls {
                address: address.to_owned(),
                reason,
            };
            let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
            let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())
                .map_err(|error| refused(error.to_string()))?;
            let stream = timeout(PATIENCE, tls.connect(name, stream))
                .await
                .map_err(late)?
                .map_err(|error| refused(error.to_string()))?;
            handshake(stream).await.map_err(broken)?
        }
    };
    let mut request = Request::get(path)
        .header("host", address)
        .header("accept", "application/json, text/event-stream");
    if let Some(token) = &agent.token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let request = request
        .body(Empty::<Bytes>::new())
        .map_err(|error| connect(error.to_string()))?;
    let response = timeout(PATIENCE, sender.send_request(request))
        .await
        .map_err(late)?
        .map_err(broken)?;
    if response.status().is_success() {
        return Ok(response);
    }
    Err(refused(address, response).await)
}

async fn handshake<S>(stream: S) -> Result<SendRequest<Empty<Bytes>>, hyper::Error>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

async fn refused(address: &str, response: Response<Incoming>) -> WatchError {
    #[derive(Default, Deserialize)]
    struct RefusalBody {
        #[serde(default)]
        error: String,
    }
    let status = response.status().as_u16();
    let body = timeout(PATIENCE, Limited::new(response.into_body(), 64 << 10).collect()).await;
    let answer: RefusalBody = match body {
        Ok(Ok(body)) => serde_json::from_slice(&body.to_bytes()).unwrap_or_default(),
        Ok(Err(_)) | Err(_) => RefusalBody::default(),
    };
    WatchError::Refused {
        address: address.to_owned(),
        status,
        message: answer.error,
    }
}

/// The stream, which connects again when it breaks.
#[derive(Debug)]
pub struct Messages {
    agent: Agent,
    body: Option<Incoming>,
    parser: EventStreamParser,
    failures: u32,
}

impl Messages {
    /// Connects at the first [`Messages::next`].
    pub fn new(agent: Agent) -> Messages {
        Messages {
            agent,
            body: None,
            parser: EventStreamParser::default(),
            failures: 0,
        }
    }

    /// The next message. Not cancel safe: a dropped future restarts its timeouts (see [`Listening`]).
    pub async fn next(&mut self) -> StreamMessage {
        loop {
            if let Some(message) = self.parser.ready.pop_front() {
                return message;
            }
            let Some(body) = &mut self.body else {
                if self.failures > 0 {
                    tokio::time::sleep(Duration::from_secs(2)).await;
                }
                match request(&self.agent, "/api/v1/stream").await {
                    Ok(response) => {
                        self.failures = 0;
                        self.body = Some(response.into_body());
                        return StreamMessage::Connected;
                    }
                    Err(error) => {
                        self.failures += 1;
                        return StreamMessage::Broken(error);
                    }
                }
            };
            // The agent sends its health every few seconds: silence means that it is gone.
            let frame = timeout(SILENCE, body.frame()).await;
            let reason = match frame {
                Ok(Some(Ok(frame))) => match self.parser.push(frame.data_ref().map_or(&[], |data| data)) {
                    Ok(()) => continue,
                    Err(reason) => reason.to_owned(),
                },
                Ok(Some(Err(error))) => error.to_string(),
                Ok(None) => "it ended the stream".to_owned(),
                Err(_) => "nothing was heard for a while".to_owned(),
            };
            self.body = None;
            self.failures += 1;
            self.parser = EventStreamParser::default();
            return StreamMessage::Broken(WatchError::Connect {
                address: self.agent.address.clone(),
                reason,
            });
        }
    }
}

/// The stream, read by a task of its own, so that a caller can wait for other things too.
#[derive(Debug)]
pub struct Listening {
    messages: mpsc::Receiver<StreamMessage>,
    /// Ends with this.
    _task: JoinSet<()>,
}

impl Listening {
    /// Begins to read.
    pub fn start(agent: Agent) -> Listening {
        let (sender, messages) = mpsc::channel(64);
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut stream = Messages::new(agent);
            while sender.send(stream.next().await).await.is_ok() {}
        });
        Listening { messages, _task: task }
    }

    /// The next message. Cancel safe.
    pub async fn next(&mut self) -> StreamMessage {
        match self.messages.recv().await {
            Some(message) => message,
            // The task ends only with `self`; if it panicked, no message follows.
            None => std::future::pending().await,
        }
    }
}

/// Splits the stream into events.
#[derive(Debug, Default)]
pub struct EventStreamParser {
    held: Vec<u8>,
    ready: VecDeque<StreamMessage>,
}

impl EventStreamParser {
    #[cfg(test)]
    pub fn ready(&mut self) -> impl Iterator<Item = StreamMessage> + use<'_> {
        self.ready.drain(..)
    }

    /// Takes what came; whole events become messages, unknown ones are passed over.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), &'static str> {
        // The held bytes contain no end of an event, but the last may be the first half of one.
        let mut from = self.held.len().saturating_sub(1);
        self.held.extend_from_slice(bytes);
        while let Some(end) = self.held[from..].windows(2).position(|pair| pair == b"\n\n") {
            let event: Vec<u8> = self.held.drain(..from + end + 2).collect();
            self.ready.extend(message(&String::from_utf8_lossy(&event)));
            from = 0;
        }
        if self.held.len() > MAX_EVENT {
            return Err("an event is too large");
        }
        Ok(())
    }
}

fn message(event: &str) -> Option<StreamMessage> {
    let field = |name: &str| {
        event
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .map(str::trim_start)
    };
    let data = field("data:")?;
    match field("event:")? {
        "row" => serde_json::from_str(data).ok().map(StreamMessage::Row),
        "health" => serde_json::from_str::<NodeHealth>(data)
            .ok()
            .map(|health| StreamMessage::Node(health.node.name)),
        "reload" => Some(StreamMessage::Reload),
        _ => None,
    }
}

const PATIENCE: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_secs(30);
const MAX_ANSWER: usize = 8 << 20;
const MAX_EVENT: usize = 1 << 20;
