//! What the fuzz target of a collector's answers runs: an HTTP/2 server that answers what the input says, or sends the input
//! itself, and the agent's gRPC client and the rules of OTLP on the other side.

use std::convert::Infallible;
use std::future::Ready;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http_body_util::combinators::WithTrailers;
use http_body_util::{BodyExt as _, Full};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use sandglass::grpc;
use sandglass::sinks::otlp::response;
use tokio::io::AsyncWriteExt as _;
use tokio::runtime::Runtime;

static RUNTIME: Mutex<Option<Runtime>> = Mutex::new(None);

/// The first byte chooses: HTTP's rules, an answer of gRPC, or raw bytes for HTTP/2.
pub fn run(data: &[u8]) {
    let Some((&how, data)) = data.split_first() else { return };
    let answer = Answer::of(data);
    if how % 4 < 2 {
        let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::OK);
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        check(&response::of_http(status, &answer.headers, &answer.body, now));
        return;
    }
    let mut runtime = RUNTIME.lock().expect("one thread");
    let runtime = runtime.get_or_insert_with(|| {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime")
    });
    let result = runtime.block_on(async {
        let (ours, mut theirs) = tokio::io::duplex(1 << 16);
        let raw = data.to_vec();
        let server = tokio::spawn(async move {
            if how % 4 == 2 {
                let _ = theirs.write_all(&raw).await;
                return;
            }
            let service = hyper::service::service_fn(move |_| {
                let answer = answer.clone();
                async move { Ok::<_, Infallible>(answer.grpc()) }
            });
            let io = TokioIo::new(theirs);
            let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(io, service)
                .await;
        });
        let call = async {
            let mut sender = grpc::handshake(ours).await?;
            grpc::call_bounded(
                &mut sender,
                "http://collector",
                "/a.B/C",
                &HeaderMap::new(),
                b"",
                false,
                MAX_ANSWER,
            )
            .await
        };
        let result = tokio::time::timeout(Duration::from_millis(100), call).await;
        server.abort();
        result
    });
    if let Ok(result) = result {
        if let Ok(bytes) = &result {
            assert!(bytes.len() <= MAX_ANSWER);
        }
        check(&response::of_grpc(result));
    }
}

fn check(result: &response::AttemptResult) {
    let text = match result {
        response::AttemptResult::Delivered { note, .. } => note,
        response::AttemptResult::Later { why, .. } | response::AttemptResult::Rejected { why } => why,
    };
    // What a collector says reaches a log: bounded.
    assert!(text.len() < 4096, "{} bytes", text.len());
}

/// An answer: its status, headers and trailers, and its body, framed or not.
#[derive(Clone)]
struct Answer {
    status: u16,
    headers: HeaderMap,
    trailers: bool,
    body: Bytes,
}

impl Answer {
    fn of(data: &[u8]) -> Answer {
        let byte = |at: usize| data.get(at).copied().unwrap_or(0);
        let status = u16::from_le_bytes([byte(0), byte(1)]);
        let options = byte(2);
        let lengths = [3, 4, 5].map(|at| usize::from(byte(at)));
        let mut rest = data.get(6..).unwrap_or_default();
        let mut headers = HeaderMap::new();
        let names = ["retry-after", "grpc-message", "grpc-status-details-bin"];
        for (name, len) in names.into_iter().zip(lengths) {
            let (value, after) = rest.split_at(len.min(rest.len()));
            rest = after;
            if let Ok(value) = HeaderValue::from_bytes(value) {
                headers.insert(HeaderName::from_static(name), value);
            }
        }
        if options & 1 == 0 {
            headers.insert("grpc-status", HeaderValue::from(u16::from(options >> 3)));
        }
        let body = match options & 2 {
            0 => Bytes::copy_from_slice(rest),
            _ => grpc::frame(rest, options & 4 != 0),
        };
        Answer {
            status: status % 1000,
            headers,
            trailers: options & 0x80 != 0,
            body,
        }
    }

    fn grpc(self) -> Response<Body> {
        let status = StatusCode::from_u16(self.status).ok();
        let (headers, trailers) = match self.trailers {
            true => (HeaderMap::new(), Some(Ok(self.headers))),
            false => (self.headers, None),
        };
        let mut response = Response::new(Full::new(self.body).with_trailers(std::future::ready(trailers)));
        // Those below 200 are no answers but notes before one.
        *response.status_mut() = status.filter(|status| status.as_u16() >= 200).unwrap_or(StatusCode::OK);
        *response.headers_mut() = headers;
        response
    }
}

type Body = WithTrailers<Full<Bytes>, Ready<Option<Result<HeaderMap, Infallible>>>>;

const MAX_ANSWER: usize = 1 << 16;
