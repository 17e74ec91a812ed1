//! Responses: JSON, files, text for the kubelet, and refusals as JSON with `error` and `hint`.
//!
//! Used by `routes`. Does not: know the store or the routes.

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;

use super::assets::Asset;
use super::parameters::BadQuery;
use super::stream::EventStream;

/// The body of a response.
pub type ResponseBody = Either<Full<Bytes>, EventStream>;

/// A response with an error status.
pub struct Refusal {
    status: StatusCode,
    error: String,
    hint: &'static str,
}

impl Refusal {
    pub fn new(status: StatusCode, error: impl Into<String>, hint: &'static str) -> Refusal {
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

/// The response to a probe of the kubelet: 200 `ok`, or 503 with the reason.
pub fn probe(result: Result<(), String>) -> Result<Response<ResponseBody>, Refusal> {
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

pub fn file(asset: &Asset, known: Option<&HeaderValue>) -> Response<ResponseBody> {
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

pub fn json(value: &impl Serialize) -> Response<ResponseBody> {
    match serde_json::to_vec(value) {
        Ok(bytes) => typed(StatusCode::OK, JSON, Either::Left(Full::from(bytes))),
        Err(error) => refused(&Refusal::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            error.to_string(),
            "this is a defect of the agent; please report it",
        )),
    }
}

pub fn refused(refusal: &Refusal) -> Response<ResponseBody> {
    let body = serde_json::json!({ "error": refusal.error, "hint": refusal.hint });
    let mut response = typed(refusal.status, JSON, Either::Left(Full::from(body.to_string())));
    if refusal.status == StatusCode::METHOD_NOT_ALLOWED {
        let headers = response.headers_mut();
        headers.insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    if refusal.status == StatusCode::UNAUTHORIZED {
        let headers = response.headers_mut();
        headers.append(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        // Browsers ask their user for this one only.
        headers.append(
            header::WWW_AUTHENTICATE,
            HeaderValue::from_static("Basic realm=\"sandglass: any name, the token as password\""),
        );
    }
    response
}

pub fn typed(status: StatusCode, content_type: &'static str, body: ResponseBody) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

const JSON: &str = "application/json";
