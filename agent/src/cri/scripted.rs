//! A container runtime for tests: a real HTTP/2 server on a Unix socket that answers from a script.
//!
//! Used by the tests of `cri`, which are below, of `identity` and `doctor`. Compiled for tests only.

mod tests;

use std::collections::HashMap;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

use crate::grpc;

/// The scripted answer to a call.
#[derive(Clone)]
pub(crate) enum ScriptedResponse {
    /// A message, framed and with status 0.
    Message(Vec<u8>),
    /// A gRPC error.
    Status(u32, &'static str),
    /// A body as it is, with status 0.
    Body(Vec<u8>),
    /// A message after some time.
    Slow(Duration, Vec<u8>),
    /// An HTTP error.
    Http(u16),
}

impl ScriptedResponse {
    pub(crate) fn of(message: &impl Message) -> ScriptedResponse {
        ScriptedResponse::Message(message.encode_to_vec())
    }
}

type Script = Arc<Mutex<HashMap<String, ScriptedResponse>>>;

/// A runtime; stops when dropped. Unscripted methods are `UNIMPLEMENTED`.
pub(crate) struct Runtime {
    pub(crate) socket: PathBuf,
    _directory: tempfile::TempDir,
    script: Script,
    calls: Arc<Mutex<Vec<String>>>,
    server: Mutex<JoinHandle<()>>,
}

impl Runtime {
    pub(crate) fn start() -> Runtime {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("cri.sock");
        let script = Script::default();
        let calls = Arc::default();
        let server = Mutex::new(serve(&socket, &script, &calls));
        Runtime {
            socket,
            _directory: directory,
            script,
            calls,
            server,
        }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    pub(crate) fn on(&self, method: &str, answer: ScriptedResponse) {
        self.script.lock().unwrap().insert(method.to_owned(), answer);
    }

    /// How often a method was called.
    pub(crate) fn called(&self, method: &str) -> usize {
        self.calls.lock().unwrap().iter().filter(|call| *call == method).count()
    }

    /// Breaks all connections and stops listening.
    pub(crate) async fn stop(&self) {
        let handle = {
            let mut server = self.server.lock().unwrap();
            server.abort();
            std::mem::replace(&mut *server, tokio::spawn(async {}))
        };
        let _ = handle.await;
        let _ = std::fs::remove_file(&self.socket);
    }

    /// Listens again at the same socket.
    pub(crate) fn start_again(&self) {
        *self.server.lock().unwrap() = serve(&self.socket, &self.script, &self.calls);
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.server.lock().unwrap().abort();
    }
}

fn serve(socket: &std::path::Path, script: &Script, calls: &Arc<Mutex<Vec<String>>>) -> JoinHandle<()> {
    let listener = UnixListener::bind(socket).unwrap();
    let (script, calls) = (Arc::clone(script), Arc::clone(calls));
    tokio::spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let (script, calls) = (Arc::clone(&script), Arc::clone(&calls));
            connections.spawn(async move {
                let service = service_fn(move |request: Request<Incoming>| {
                    let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
                    calls.lock().unwrap().push(method.clone());
                    let answer = script.lock().unwrap().get(&method).cloned();
                    async move { Ok::<_, Infallible>(respond(answer).await) }
                });
                let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    })
}

async fn respond(
    answer: Option<ScriptedResponse>,
) -> Response<http_body_util::combinators::BoxBody<Bytes, Infallible>> {
    let (body, status, message) = match answer.unwrap_or(ScriptedResponse::Status(12, "unknown method")) {
        ScriptedResponse::Message(message) => (grpc::frame(&message, false), 0, ""),
        ScriptedResponse::Status(code, message) => (Bytes::new(), code, message),
        ScriptedResponse::Body(body) => (Bytes::from(body), 0, ""),
        ScriptedResponse::Slow(wait, message) => {
            tokio::time::sleep(wait).await;
            (grpc::frame(&message, false), 0, "")
        }
        ScriptedResponse::Http(code) => {
            return Response::builder()
                .status(code)
                .body(Full::new(Bytes::new()).boxed())
                .unwrap();
        }
    };
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from(status));
    trailers.insert("grpc-message", HeaderValue::from_static(message));
    Response::builder()
        .header("content-type", "application/grpc")
        .body(Full::new(body).with_trailers(async move { Some(Ok(trailers)) }).boxed())
        .unwrap()
}
