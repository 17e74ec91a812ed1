//! A collector that does what a script says: each kind of answer, of fault and of delay, over HTTP/1.1 and gRPC, with or
//! without TLS. It keeps every request with its time, its connection and its raw bytes.

use std::collections::VecDeque;
use std::io::Read;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, Span};
use prost::Message;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// What to do with one request.
#[derive(Clone, Debug)]
pub enum Act {
    /// HTTP status, headers, body.
    Answer(u16, Vec<(&'static str, String)>, Vec<u8>),
    /// gRPC status, `grpc-status-details-bin`, message of the answer.
    Grpc(u32, String, Vec<u8>),
    /// Reset the connection without an answer (gRPC: reset the stream).
    Reset,
    /// Close the connection without an answer.
    Close,
    /// Promise more bytes than are sent, then close.
    Truncate(u16),
    /// Answer as if all is well, then close the connection without saying so.
    OkThenClose,
    /// Say nothing for so long, then close.
    Hang(Duration),
    /// Send the head of this status, and then no body.
    HeadOnly(u16),
}

impl Act {
    /// An HTTP status without more.
    pub fn status(status: u16) -> Act {
        Act::Answer(status, Vec::new(), Vec::new())
    }

    /// A gRPC status without more.
    pub fn grpc(code: u32) -> Act {
        Act::Grpc(code, String::new(), Vec::new())
    }

    fn is_success(&self) -> bool {
        matches!(self, Act::Answer(200, ..) | Act::Grpc(0, ..) | Act::OkThenClose)
    }
}

/// One request as it came.
#[derive(Clone, Debug)]
pub struct Seen {
    pub at: Instant,
    pub connection: usize,
    pub path: String,
    pub headers: HeaderMap,
    /// As on the wire; without the five bytes of gRPC's frame.
    pub raw: Vec<u8>,
    /// Answered with success.
    pub taken: bool,
}

impl Seen {
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map(|value| value.to_str().unwrap())
            .unwrap_or_default()
    }

    pub fn decode(&self) -> ExportTraceServiceRequest {
        ExportTraceServiceRequest::decode(self.plain().as_slice()).unwrap()
    }

    /// The message, decompressed.
    pub fn plain(&self) -> Vec<u8> {
        let gzip = self.header("content-encoding") == "gzip" || self.header("grpc-encoding") == "gzip";
        let mut plain = Vec::new();
        if gzip {
            flate2::read::GzDecoder::new(self.raw.as_slice())
                .read_to_end(&mut plain)
                .unwrap();
        } else {
            plain.clone_from(&self.raw);
        }
        plain
    }

    pub fn spans(&self) -> Vec<Span> {
        spans_of(&self.decode().resource_spans)
    }
}

fn spans_of(resources: &[ResourceSpans]) -> Vec<Span> {
    resources
        .iter()
        .flat_map(|resource| &resource.scope_spans)
        .flat_map(|scope| scope.spans.clone())
        .collect()
}

/// The collector.
pub struct Collector {
    pub address: SocketAddr,
    state: Arc<State>,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Default)]
struct State {
    script: Mutex<VecDeque<Act>>,
    seen: Mutex<Vec<Seen>>,
    connections: Mutex<Vec<tokio::task::AbortHandle>>,
}

impl State {
    /// What to do with the request; after the script, success.
    fn next(&self, mut seen: Seen, grpc: bool) -> Act {
        let success = if grpc { Act::grpc(0) } else { Act::status(200) };
        let act = self.script.lock().unwrap().pop_front().unwrap_or(success);
        seen.taken = act.is_success();
        self.seen.lock().unwrap().push(seen);
        act
    }
}

impl Collector {
    pub async fn http(script: Vec<Act>) -> Collector {
        Collector::start("127.0.0.1:0", script, false, None).await
    }

    pub async fn grpc(script: Vec<Act>) -> Collector {
        Collector::start("127.0.0.1:0", script, true, None).await
    }

    pub async fn start(address: &str, script: Vec<Act>, grpc: bool, tls: Option<TlsAcceptor>) -> Collector {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State {
            script: Mutex::new(script.into()),
            ..State::default()
        });
        let task = tokio::spawn(accept(listener, Arc::clone(&state), grpc, tls));
        Collector { address, state, task }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.state.seen.lock().unwrap().clone()
    }

    /// Spans of all requests that were answered with success, in order.
    pub fn spans(&self) -> Vec<Span> {
        self.seen()
            .iter()
            .filter(|seen| seen.taken)
            .flat_map(Seen::spans)
            .collect()
    }

    /// Stops listening and breaks every connection.
    pub async fn go_away(self) -> SocketAddr {
        self.task.abort();
        let _ = self.task.await;
        for connection in self.state.connections.lock().unwrap().drain(..) {
            connection.abort();
        }
        self.address
    }
}

async fn accept(listener: TcpListener, state: Arc<State>, grpc: bool, tls: Option<TlsAcceptor>) {
    let mut number = 0;
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let served = Arc::clone(&state);
        let tls = tls.clone();
        let task = tokio::spawn(async move {
            match tls {
                None if grpc => serve_grpc(stream, served, number).await,
                None => serve_http(stream, served, number, reset).await,
                Some(tls) => match tls.accept(stream).await {
                    Ok(stream) if grpc => serve_grpc(stream, served, number).await,
                    Ok(stream) => serve_http(stream, served, number, drop).await,
                    Err(_) => {}
                },
            }
        });
        state.connections.lock().unwrap().push(task.abort_handle());
        number += 1;
    }
}

/// Makes the kernel send RST instead of FIN.
fn reset(stream: TcpStream) {
    stream.set_zero_linger().unwrap();
}

async fn serve_http<S>(mut stream: S, state: Arc<State>, connection: usize, reset: fn(S))
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut buffer = Vec::new();
    while let Some(seen) = read_request(&mut stream, &mut buffer, connection).await {
        let act = state.next(seen, false);
        let answer = match act {
            Act::Answer(status, headers, body) => {
                let headers: String = headers
                    .iter()
                    .map(|(name, value)| format!("{name}: {value}\r\n"))
                    .collect();
                let mut answer =
                    format!("HTTP/1.1 {status} x\r\n{headers}content-length: {}\r\n\r\n", body.len()).into_bytes();
                answer.extend_from_slice(&body);
                answer
            }
            Act::Truncate(status) => {
                let answer = format!("HTTP/1.1 {status} x\r\ncontent-length: 100\r\n\r\nabc");
                stream.write_all(answer.as_bytes()).await.unwrap();
                return;
            }
            Act::HeadOnly(status) => {
                let answer = format!("HTTP/1.1 {status} x\r\ncontent-length: 100\r\n\r\n");
                stream.write_all(answer.as_bytes()).await.unwrap();
                tokio::time::sleep(Duration::from_secs(60)).await;
                return;
            }
            Act::Hang(time) => {
                tokio::time::sleep(time).await;
                return;
            }
            Act::Reset => return reset(stream),
            Act::Close => return,
            Act::OkThenClose => {
                stream
                    .write_all(b"HTTP/1.1 200 x\r\ncontent-length: 0\r\n\r\n")
                    .await
                    .unwrap();
                return;
            }
            Act::Grpc(..) => panic!("gRPC over HTTP/1.1"),
        };
        if stream.write_all(&answer).await.is_err() {
            return;
        }
    }
}

async fn read_request(stream: &mut (impl AsyncRead + Unpin), buffer: &mut Vec<u8>, connection: usize) -> Option<Seen> {
    let head_end = loop {
        if let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        read_some(stream, buffer).await?;
    };
    let head = String::from_utf8(buffer[..head_end].to_vec()).unwrap();
    let mut lines = head.lines();
    let path = lines.next().unwrap().split(' ').nth(1).unwrap().to_owned();
    let headers: HeaderMap = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| {
            (
                HeaderName::from_bytes(name.as_bytes()).unwrap(),
                HeaderValue::from_str(value).unwrap(),
            )
        })
        .collect();
    // HTTP/2's preface has no length: the connection ends.
    let length: usize = headers.get("content-length")?.to_str().unwrap().parse().unwrap();
    while buffer.len() < head_end + length {
        read_some(stream, buffer).await?;
    }
    let raw = buffer[head_end..head_end + length].to_vec();
    buffer.drain(..head_end + length);
    Some(Seen {
        at: Instant::now(),
        connection,
        path,
        headers,
        raw,
        taken: false,
    })
}

async fn read_some(stream: &mut (impl AsyncRead + Unpin), buffer: &mut Vec<u8>) -> Option<()> {
    let read = stream.read_buf(buffer).await.ok()?;
    (read > 0).then_some(())
}

async fn serve_grpc<S>(stream: S, state: Arc<State>, connection: usize)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let service = hyper::service::service_fn(move |request| {
        let state = Arc::clone(&state);
        async move { answer_grpc(request, state, connection).await }
    });
    let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// An answer's body: known frames, one after the other.
struct Frames(VecDeque<Result<Frame<Bytes>, Broken>>);

impl Body for Frames {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        Poll::Ready(self.0.pop_front())
    }
}

/// Ends a stream with RST_STREAM.
#[derive(Debug, thiserror::Error)]
#[error("broken on purpose")]
pub struct Broken;

async fn answer_grpc(
    request: Request<Incoming>,
    state: Arc<State>,
    connection: usize,
) -> Result<Response<Frames>, Broken> {
    let (head, body) = request.into_parts();
    let framed = body.collect().await.map_err(|_| Broken)?.to_bytes();
    assert_eq!(framed[0] == 1, head.headers.contains_key("grpc-encoding"));
    assert_eq!(framed[1..5], u32::to_be_bytes(framed.len() as u32 - 5));
    let seen = Seen {
        at: Instant::now(),
        connection,
        path: head.uri.to_string(),
        headers: head.headers,
        raw: framed[5..].to_vec(),
        taken: false,
    };
    let respond = |status: u16, frames: Vec<Result<Frame<Bytes>, Broken>>| {
        Response::builder()
            .status(status)
            .header("content-type", "application/grpc")
            .body(Frames(frames.into()))
            .map_err(|_| Broken)
    };
    match state.next(seen, true) {
        Act::Grpc(code, details, message) => {
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", HeaderValue::from(code));
            trailers.insert("grpc-message", HeaderValue::from_static("as%20scripted"));
            if !details.is_empty() {
                trailers.insert("grpc-status-details-bin", HeaderValue::from_str(&details).unwrap());
            }
            let data = Frame::data(crate::grpc::frame(&message, false));
            respond(200, vec![Ok(data), Ok(Frame::trailers(trailers))])
        }
        Act::Answer(status, _, body) => respond(status, vec![Ok(Frame::data(body.into()))]),
        Act::Truncate(status) => respond(status, vec![Ok(Frame::data(Bytes::from_static(b"\0\0"))), Err(Broken)]),
        Act::Hang(time) => {
            tokio::time::sleep(time).await;
            Err(Broken)
        }
        Act::HeadOnly(_) => panic!("only over HTTP/1.1"),
        Act::Reset | Act::Close | Act::OkThenClose => Err(Broken),
    }
}
