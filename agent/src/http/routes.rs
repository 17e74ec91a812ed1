//! From a request to its answer.
//!
//! Does not: accept connections or feed streams. Every error is JSON with `error` and `hint`.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use prometheus_client::registry::Registry;
use sandglass_model::{SpanId, TraceId};
use serde::Serialize;
use tokio::sync::{Semaphore, watch};

use super::assets::{self, Asset};
use super::guard;
use super::health::{self, Counters, HealthReport};
use super::parameters::{self, BadQuery};
use super::stream::{self, EventStream};
use super::{HttpOptions, Services};
use crate::view;
use crate::wall_clock::wall_ns;

/// The body of an answer.
pub type Body = Either<Full<Bytes>, EventStream>;

/// What all connections share.
pub struct Server {
    pub options: HttpOptions,
    pub services: Services,
    pub shutdown: watch::Receiver<bool>,
    /// Host names are checked: bound to loopback, or names were configured.
    check_host: bool,
    streams: Arc<Semaphore>,
    counters: Mutex<Registry>,
}

/// An answer that is not what was asked for.
struct Refusal {
    status: StatusCode,
    error: String,
    hint: &'static str,
}

impl Refusal {
    fn new(status: StatusCode, error: impl Into<String>, hint: &'static str) -> Refusal {
        Refusal {
            status,
            error: error.into(),
            hint,
        }
    }
}

impl From<BadQuery> for Refusal {
    fn from(bad: BadQuery) -> Refusal {
        Refusal::new(
            StatusCode::BAD_REQUEST,
            bad.to_string(),
            "/api/v1/sandboxes takes sort, state, result, kind, q, plugin, reason, cause, limit and offset; other addresses take none",
        )
    }
}

impl Server {
    pub fn new(
        options: HttpOptions,
        services: Services,
        address: SocketAddr,
        shutdown: watch::Receiver<bool>,
    ) -> Server {
        Server {
            check_host: address.ip().is_loopback() || !options.host_names.is_empty(),
            streams: Arc::new(Semaphore::new(options.max_streams)),
            counters: Mutex::new(health::registry(&services.health)),
            options,
            services,
            shutdown,
        }
    }

    /// The agent's account of itself, now.
    pub fn health_report(&self) -> HealthReport {
        let counters = Counters::read(&self.counters.lock().unwrap_or_else(PoisonError::into_inner));
        let Services { store, health, .. } = &self.services;
        HealthReport {
            node: store.node().clone(),
            now_unix_ns: wall_ns().to_string(),
            not_alive: (self.services.alive)().err().unwrap_or_default(),
            not_ready: (self.services.ready)().err().unwrap_or_default(),
            probes: health.probes(),
            events: counters.count("events").total,
            lost: counters.count("events_lost"),
            late: counters.count("events_late"),
            orphan: counters.count("events_orphan"),
            evicted: counters.count("evicted"),
            shed: counters.count("shed"),
            undecodable: counters.count("events_undecodable"),
            queue_depth: counters.gauge("queue_depth"),
            ring_bytes: counters.gauge("ring_used_bytes"),
            open_traces: counters.gauge("open_traces"),
            store: store.size(),
            streams: self.options.max_streams - self.streams.available_permits(),
            stuck_after_ns: self.stuck_after_ns(),
            otlp: (self.services.otlp)(),
        }
    }

    fn stuck_after_ns(&self) -> u64 {
        u64::try_from(self.options.stuck_after.as_nanos()).unwrap_or(u64::MAX)
    }

    async fn answer(self: Arc<Server>, request: Request<Incoming>) -> Response<Body> {
        let limit = self.options.request_timeout;
        let mut response = match tokio::time::timeout(limit, self.dispatch(request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(refusal)) => refused(&refusal),
            Err(_) => refused(&Refusal::new(
                StatusCode::REQUEST_TIMEOUT,
                "the request was not complete in time",
                "send it without a body",
            )),
        };
        guard::secure(response.headers_mut());
        response
    }

    async fn dispatch(self: Arc<Server>, request: Request<Incoming>) -> Result<Response<Body>, Refusal> {
        self.check_peer(&request)?;
        let (head, body) = request.into_parts();
        self.pass_over(body).await?;
        let path = head.uri.path();
        let query = head.uri.query().unwrap_or_default();
        if let Some(asset) = assets::find(path) {
            let known = head.headers.get(header::IF_NONE_MATCH);
            return Ok(file(asset, known));
        }
        let store = &self.services.store;
        match path {
            "/api/v1/sandboxes" => Ok(json(&view::list(store, &parameters::list(query)?))),
            "/api/v1/operations" => {
                parameters::none(query)?;
                Ok(json(&serde_json::json!({
                    "stuck_after_ns": self.stuck_after_ns(),
                    "operations": view::operations(store, self.stuck_after_ns()),
                })))
            }
            "/api/v1/known" => {
                parameters::none(query)?;
                Ok(json(&serde_json::json!({ "sandboxes": view::known_sandboxes(store) })))
            }
            "/api/v1/network" => {
                parameters::none(query)?;
                Ok(json(&view::network(store)))
            }
            "/api/v1/health" => {
                parameters::none(query)?;
                Ok(json(&self.health_report()))
            }
            "/api/v1/stream" => self.stream(&head.method),
            "/metrics" => self.metrics(),
            "/healthz" => probe((self.services.alive)()),
            "/readyz" => probe((self.services.ready)()),
            _ => match path.strip_prefix("/api/v1/traces/") {
                Some(ids) => self.trace(ids, query),
                None => Err(Refusal::new(
                    StatusCode::NOT_FOUND,
                    "nothing is served here",
                    "the page is at /, the API at /api/v1/sandboxes, metrics at /metrics",
                )),
            },
        }
    }

    fn check_peer(&self, request: &Request<Incoming>) -> Result<(), Refusal> {
        if self.check_host {
            let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
            if !host.is_some_and(|host| guard::host_is_ours(host, &self.options.host_names)) {
                return Err(Refusal::new(
                    StatusCode::FORBIDDEN,
                    "this host name is not served",
                    "use 127.0.0.1 or localhost, or add the name to the configuration",
                ));
            }
        }
        if matches!(*request.method(), Method::GET | Method::HEAD) {
            return Ok(());
        }
        Err(Refusal::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "nothing here can be changed",
            "use GET or HEAD",
        ))
    }

    /// Reads and forgets a body, so that the connection can be used again.
    async fn pass_over(&self, body: Incoming) -> Result<(), Refusal> {
        let limit = usize::try_from(self.options.max_body_bytes).unwrap_or(usize::MAX);
        let too_large = || {
            Refusal::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "the request's body is too large",
                "send it without a body",
            )
        };
        if hyper::body::Body::size_hint(&body).lower() > self.options.max_body_bytes {
            return Err(too_large());
        }
        Limited::new(body, limit).collect().await.map_err(|_| too_large())?;
        Ok(())
    }

    /// `ids` is a trace id, and behind it the span id of its root where that is not enough.
    fn trace(&self, ids: &str, query: &str) -> Result<Response<Body>, Refusal> {
        parameters::none(query)?;
        let (id, span) = match ids.split_once('/') {
            Some((id, span)) => (id, Some(span)),
            None => (ids, None),
        };
        let id: TraceId = id.parse().map_err(|_| {
            Refusal::new(
                StatusCode::BAD_REQUEST,
                "not a trace id",
                "a trace id has 32 hexadecimal digits",
            )
        })?;
        let span: Option<SpanId> = span.map(str::parse).transpose().map_err(|_| {
            Refusal::new(
                StatusCode::BAD_REQUEST,
                "not a span id",
                "a span id has 16 hexadecimal digits",
            )
        })?;
        let trace = view::trace(&self.services.store, id, span).ok_or_else(|| {
            Refusal::new(
                StatusCode::NOT_FOUND,
                "this trace is not kept here",
                "the store holds the newest traces only; older ones are where OTLP export sent them",
            )
        })?;
        Ok(json(&trace))
    }

    fn stream(self: &Arc<Server>, method: &Method) -> Result<Response<Body>, Refusal> {
        let place = self.streams.clone().try_acquire_owned().map_err(|_| {
            Refusal::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "too many event streams are open",
                "close a page, or ask /api/v1/sandboxes instead",
            )
        })?;
        let body = if method == Method::HEAD {
            Either::Left(Full::default())
        } else {
            Either::Right(stream::start(self.clone(), place))
        };
        Ok(typed(StatusCode::OK, "text/event-stream", body))
    }

    fn metrics(&self) -> Result<Response<Body>, Refusal> {
        let text = (self.services.metrics)().map_err(|_| {
            Refusal::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the metrics could not be written",
                "this is a defect of the agent; please report it",
            )
        })?;
        Ok(typed(
            StatusCode::OK,
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Either::Left(Full::from(text)),
        ))
    }
}

/// The server as hyper sees it.
#[derive(Clone)]
pub struct Answering(pub Arc<Server>);

impl hyper::service::Service<Request<Incoming>> for Answering {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let server = self.0.clone();
        Box::pin(async move { Ok(server.answer(request).await) })
    }
}

/// An answer to the kubelet: 200 `ok`, or 503 with the reason.
fn probe(result: Result<(), String>) -> Result<Response<Body>, Refusal> {
    match result {
        Ok(()) => Ok(typed(
            StatusCode::OK,
            "text/plain; charset=utf-8",
            Either::Left(Full::from("ok\n")),
        )),
        Err(reason) => Err(Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            reason,
            "see /api/v1/health and the agent's log; `sandglass doctor` says what the node lacks",
        )),
    }
}

fn file(asset: &Asset, known: Option<&HeaderValue>) -> Response<Body> {
    let tag = asset.tag();
    let same = known.is_some_and(|known| known.as_bytes() == tag.as_bytes());
    let (status, body) = if same {
        (StatusCode::NOT_MODIFIED, Full::default())
    } else {
        (StatusCode::OK, Full::from(asset.bytes))
    };
    let mut response = typed(status, asset.content_type, Either::Left(body));
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(header::ETAG, tag);
    }
    response
}

fn json(value: &impl Serialize) -> Response<Body> {
    match serde_json::to_vec(value) {
        Ok(bytes) => typed(StatusCode::OK, JSON, Either::Left(Full::from(bytes))),
        Err(error) => refused(&Refusal::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            error.to_string(),
            "this is a defect of the agent; please report it",
        )),
    }
}

fn refused(refusal: &Refusal) -> Response<Body> {
    let body = serde_json::json!({ "error": refusal.error, "hint": refusal.hint });
    let mut response = typed(refusal.status, JSON, Either::Left(Full::from(body.to_string())));
    if refusal.status == StatusCode::METHOD_NOT_ALLOWED {
        let headers = response.headers_mut();
        headers.insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    if matches!(
        refusal.status,
        StatusCode::METHOD_NOT_ALLOWED | StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT
    ) {
        // What is left of the body is not read.
        let headers = response.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

fn typed(status: StatusCode, content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

const JSON: &str = "application/json";
