//! From a request to its response.
//!
//! Does not: accept connections or feed streams.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;

use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode, header};
use sandglass_model::{SpanId, TraceId};

use super::places::Peer;
use super::response::{Refusal, ResponseBody, file, json, probe, refused, typed};
use super::server::Server;
use super::site::{Role, Site};
use super::{assets, guard, parameters, stream};
use crate::view;

impl Site {
    async fn respond(&self, request: Request<Incoming>, peer: Peer) -> Response<ResponseBody> {
        let limit = self.server.options.request_timeout;
        let mut response = match tokio::time::timeout(limit, self.dispatch(request, peer)).await {
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

    async fn dispatch(&self, request: Request<Incoming>, peer: Peer) -> Result<Response<ResponseBody>, Refusal> {
        self.check_peer(&request)?;
        let server = &self.server;
        let (head, body) = request.into_parts();
        server.discard(body).await?;
        match head.uri.path() {
            "/metrics" => server.metrics(),
            "/healthz" => probe((server.services.alive)()),
            "/readyz" => probe((server.services.ready)()),
            path => match self.role {
                Role::Metrics => Err(Refusal::new(
                    StatusCode::NOT_FOUND,
                    "only metrics and health are served here",
                    "metrics are at /metrics; page and API have an address of their own, page.address",
                )),
                Role::Page => server.page(&head, path, peer),
            },
        }
    }

    fn check_peer(&self, request: &Request<Incoming>) -> Result<(), Refusal> {
        let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
        // A request can name a host in its target too, which then counts (RFC 9112, section 3.2.2).
        let target = request.uri().authority().map(|authority| authority.as_str());
        let ours = |host: &str| guard::host_is_ours(host, &self.host_names);
        if !host.is_some_and(ours) || !target.is_none_or(ours) {
            return Err(Refusal::new(
                StatusCode::FORBIDDEN,
                "this host name is not served",
                match self.role {
                    Role::Metrics => "use the node's address or its name, or add the name to http.hosts",
                    Role::Page => "use 127.0.0.1 or localhost, or add the name to page.hosts",
                },
            ));
        }
        if !self.access.admits(request.headers()) {
            return Err(Refusal::new(
                StatusCode::UNAUTHORIZED,
                "the token is missing or wrong",
                "send `Authorization: Bearer TOKEN` with the token in page.token_file; `sandglass watch` has --token-file",
            ));
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
}

impl Server {
    /// Page and API.
    fn page(self: &Arc<Server>, head: &Parts, path: &str, peer: Peer) -> Result<Response<ResponseBody>, Refusal> {
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
            "/api/v1/stream" => self.stream(&head.method, peer),
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

    /// Reads a body and discards it: a peer that still sends would not read the response.
    async fn discard(&self, body: Incoming) -> Result<(), Refusal> {
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
    fn trace(&self, ids: &str, query: &str) -> Result<Response<ResponseBody>, Refusal> {
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

    fn stream(self: &Arc<Server>, method: &Method, peer: Peer) -> Result<Response<ResponseBody>, Refusal> {
        let place = self.streams.try_take(peer).ok_or_else(|| {
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

    fn metrics(&self) -> Result<Response<ResponseBody>, Refusal> {
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

/// A site as hyper sees it, for one connection.
pub struct Answering {
    pub site: Arc<Site>,
    pub peer: Peer,
}

impl hyper::service::Service<Request<Incoming>> for Answering {
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<ResponseBody>, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let (site, peer) = (Arc::clone(&self.site), self.peer);
        Box::pin(async move { Ok(site.respond(request, peer).await) })
    }
}
