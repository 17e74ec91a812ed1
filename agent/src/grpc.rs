//! Unary gRPC over hyper's HTTP/2: what the CRI socket and OTLP's port 4317 need, and nothing more.
//!
//! A message is one length-prefixed frame (<https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>); the result
//! stands in the `grpc-status` trailer. The caller owns the connection (TCP, TLS or a Unix socket) and the deadline.
//! Does not: stream, balance, retry or resolve names.

use std::io::Read;

use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, TE};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioExecutor;

use crate::failure::causes;

/// Largest answer that is read, in bytes.
pub const MAX_ANSWER: usize = 16 << 20;

/// Why a call returned no message.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The method path is not a valid request target.
    #[error("bad method path {0:?}")]
    Method(String),
    /// No whole answer came: broken connection, HTTP error.
    #[error("the connection failed: {0}")]
    Transport(String),
    /// The server answered with an HTTP status that is not gRPC's.
    #[error("the server answered HTTP {0}: not gRPC?")]
    Http(u16),
    /// The server answered with a gRPC status other than OK.
    #[error("gRPC status {code} ({name}): {message}", name = status_name(*.code))]
    Status {
        /// Numeric status, see [`status_name`].
        code: u32,
        /// `grpc-message`, percent-decoded.
        message: String,
        /// `grpc-status-details-bin`, still base64; empty when absent.
        details: String,
    },
    /// The answer is not one message, plain or gzip.
    #[error("the answer is not one gRPC message, plain or gzip")]
    Frame,
    /// The answer exceeds the caller's bound.
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
}

/// Starts HTTP/2 on a connected stream and drives it in the background.
pub async fn handshake<S>(stream: S) -> Result<SendRequest<Full<Bytes>>, CallError>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), hyper_util::rt::TokioIo::new(stream))
            .await
            .map_err(|error| CallError::Transport(causes(&error)))?;
    tokio::spawn(async move {
        // A broken connection is the error of the next call.
        let _ = connection.await;
    });
    Ok(sender)
}

/// Makes one call. `scheme_and_authority` is `http://host:port` (any name for a Unix socket), `path` is
/// `/package.Service/Method`, `message` is the encoded request; `gzip` marks it as already compressed.
pub async fn call(
    sender: &mut SendRequest<Full<Bytes>>,
    scheme_and_authority: &str,
    path: &str,
    headers: &HeaderMap,
    message: &[u8],
    gzip: bool,
) -> Result<Bytes, CallError> {
    call_bounded(sender, scheme_and_authority, path, headers, message, gzip, MAX_ANSWER).await
}

/// Makes one call, and reads at most `max_answer` bytes of the answer.
pub async fn call_bounded(
    sender: &mut SendRequest<Full<Bytes>>,
    scheme_and_authority: &str,
    path: &str,
    headers: &HeaderMap,
    message: &[u8],
    gzip: bool,
    max_answer: usize,
) -> Result<Bytes, CallError> {
    let mut request = Request::builder()
        .method(Method::POST)
        .uri(format!("{scheme_and_authority}{path}"))
        .body(Full::new(frame(message, gzip)))
        .map_err(|_| CallError::Method(path.to_owned()))?;
    request.headers_mut().extend(headers.clone());
    request
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    request.headers_mut().insert(TE, HeaderValue::from_static("trailers"));
    if gzip {
        request.headers_mut().insert(
            HeaderName::from_static("grpc-encoding"),
            HeaderValue::from_static("gzip"),
        );
    }
    let transport = |error: hyper::Error| CallError::Transport(causes(&error));
    sender.ready().await.map_err(transport)?;
    let response = sender.send_request(request).await.map_err(transport)?;
    answer(response, max_answer).await
}

async fn answer(response: hyper::Response<Incoming>, max_answer: usize) -> Result<Bytes, CallError> {
    let (head, body) = response.into_parts();
    // A "trailers-only" answer has its status among the headers; where there is one, it counts more than HTTP's.
    check_status(&head.headers, true)?;
    if head.status != StatusCode::OK {
        return Err(CallError::Http(head.status.as_u16()));
    }
    let body = Limited::new(body, max_answer).collect().await.map_err(|error| {
        if error.is::<LengthLimitError>() {
            CallError::TooLarge(max_answer)
        } else {
            CallError::Transport(causes(error.as_ref()))
        }
    })?;
    match body.trailers() {
        Some(trailers) => check_status(trailers, false)?,
        None if head.headers.contains_key("grpc-status") => {}
        None => {
            return Err(CallError::Transport(
                "the answer ended without a gRPC status".to_owned(),
            ));
        }
    }
    unframe(body.to_bytes(), max_answer)
}

fn check_status(headers: &HeaderMap, may_be_absent: bool) -> Result<(), CallError> {
    let text = |name: &str| {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    };
    let status = text("grpc-status");
    if status == "0" || (may_be_absent && status.is_empty()) {
        return Ok(());
    }
    Err(CallError::Status {
        code: status.parse().unwrap_or(2),
        message: percent_decode(text("grpc-message")),
        details: text("grpc-status-details-bin").to_owned(),
    })
}

/// One length-prefixed message.
#[must_use]
pub fn frame(message: &[u8], gzip: bool) -> Bytes {
    let mut framed = BytesMut::with_capacity(message.len() + 5);
    framed.put_u8(u8::from(gzip));
    framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    framed.put_slice(message);
    framed.freeze()
}

/// The message in a frame. A server may compress its answer as the request was (grpc-go does).
fn unframe(mut body: Bytes, max_answer: usize) -> Result<Bytes, CallError> {
    if body.is_empty() {
        return Ok(body);
    }
    if body.len() < 5 {
        return Err(CallError::Frame);
    }
    let compressed = body[0];
    let length = u32::from_be_bytes([body[1], body[2], body[3], body[4]]) as usize;
    let message = body.split_off(5);
    match compressed {
        _ if message.len() != length => Err(CallError::Frame),
        0 => Ok(message),
        1 => inflate(&message, max_answer),
        _ => Err(CallError::Frame),
    }
}

/// Decompresses gzip, at most `max` bytes.
fn inflate(message: &[u8], max: usize) -> Result<Bytes, CallError> {
    let mut plain = Vec::new();
    let mut reader = flate2::read::GzDecoder::new(message).take(max as u64 + 1);
    reader.read_to_end(&mut plain).map_err(|_| CallError::Frame)?;
    if plain.len() > max {
        Err(CallError::TooLarge(max))
    } else {
        Ok(plain.into())
    }
}

/// Decodes `%41` (RFC 3986, section 2.1). An incomplete escape stays as it is; bytes that are not UTF-8 become U+FFFD.
#[must_use]
pub fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = tail
            .get(..2)
            .filter(|hex| hex.iter().all(u8::is_ascii_hexdigit))
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match (first, hex) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Name of a gRPC status code (<https://grpc.io/docs/guides/status-codes/>).
#[must_use]
pub fn status_name(code: u32) -> &'static str {
    const NAMES: [&str; 17] = [
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];
    NAMES.get(code as usize).copied().unwrap_or("UNKNOWN")
}

#[cfg(test)]
mod tests;
