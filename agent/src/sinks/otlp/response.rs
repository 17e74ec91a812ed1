//! What a response of the collector means for the request: delivered, retry later, or rejected.
//!
//! Used by the transport after each attempt, and fuzzed (`agent/fuzz`). The rules are those of the OTLP specification 1.11
//! (<https://opentelemetry.io/docs/specs/otlp/>), sections "OTLP/gRPC Response", "OTLP/HTTP Response" and the two on throttling.
//! Does not: decompress responses (the transport requests none), or log.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{HeaderMap, RETRY_AFTER};
use prost::Message;

use crate::grpc::CallError;

/// The result of one attempt to send a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptResult {
    /// The collector accepted it.
    Delivered {
        /// Spans that the collector rejected nevertheless. They must not be sent again.
        refused: u64,
        /// The collector's message, or what is odd in its response; usually empty.
        note: String,
    },
    /// A later attempt may succeed.
    Later {
        /// The shortest wait, if the collector requests one.
        after: Option<Duration>,
        /// What happened.
        why: String,
    },
    /// No attempt will succeed.
    Rejected {
        /// The collector's message.
        why: String,
    },
}

/// The result of an HTTP response.
#[must_use]
pub fn of_http(status: StatusCode, headers: &HeaderMap, body: &[u8], now: SystemTime) -> AttemptResult {
    if status.is_success() {
        return of_message(body);
    }
    let why = match message_of(body) {
        message if message.is_empty() => format!("the collector responded with HTTP {status}"),
        message => format!("the collector responded with HTTP {status}: {message}"),
    };
    if is_retryable_http(status.as_u16()) {
        AttemptResult::Later {
            after: headers
                .get(RETRY_AFTER)
                .and_then(|value| value.to_str().ok())
                .and_then(|value| retry_after(value, now)),
            why,
        }
    } else {
        AttemptResult::Rejected { why }
    }
}

/// The result of a gRPC call.
#[must_use]
pub fn of_grpc(result: Result<Bytes, CallError>) -> AttemptResult {
    let error = match result {
        Ok(message) => return of_message(&message),
        Err(error) => error,
    };
    let why = bounded(&error.to_string());
    match error {
        CallError::Status { code, details, .. } => {
            let requested = retry_info(&details);
            match code {
                // CANCELLED, DEADLINE_EXCEEDED, ABORTED, OUT_OF_RANGE, UNAVAILABLE, DATA_LOSS.
                1 | 4 | 10 | 11 | 14 | 15 => AttemptResult::Later {
                    after: requested.flatten(),
                    why,
                },
                // RESOURCE_EXHAUSTED is retryable only with RetryInfo (OTLP specification, "OTLP/gRPC Throttling").
                8 if requested.is_some() => AttemptResult::Later {
                    after: requested.flatten(),
                    why,
                },
                _ => AttemptResult::Rejected { why },
            }
        }
        // gRPC maps these to UNAVAILABLE, and others to codes that are not retried
        // (https://github.com/grpc/grpc/blob/master/doc/http-grpc-status-mapping.md).
        CallError::Http(status) if is_retryable_http(status) => AttemptResult::Later { after: None, why },
        CallError::Transport(_) => AttemptResult::Later { after: None, why },
        // The status was OK; only the message cannot be decoded.
        CallError::Frame => AttemptResult::Delivered { refused: 0, note: why },
        CallError::Http(_) | CallError::Method(_) | CallError::TooLarge(_) => AttemptResult::Rejected { why },
    }
}

/// The result of a response with success and this message.
fn of_message(body: &[u8]) -> AttemptResult {
    match ExportTraceServiceResponse::decode(body) {
        Ok(ExportTraceServiceResponse { partial_success: None }) => AttemptResult::Delivered {
            refused: 0,
            note: String::new(),
        },
        Ok(ExportTraceServiceResponse {
            partial_success: Some(partial),
        }) => AttemptResult::Delivered {
            refused: u64::try_from(partial.rejected_spans).unwrap_or(0),
            note: bounded(&partial.error_message),
        },
        Err(_) => AttemptResult::Delivered {
            refused: 0,
            note: "the response has a success status but is not OTLP protobuf: is the endpoint an OTLP receiver?"
                .to_owned(),
        },
    }
}

fn is_retryable_http(status: u16) -> bool {
    matches!(status, 429 | 502 | 503 | 504)
}

/// `Retry-After`: seconds, or an HTTP date (RFC 9110, 10.2.3). A date in the past is a wait of zero.
fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(value).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

/// The collector's message: that of a `google.rpc.Status`, or the text of the body.
fn message_of(body: &[u8]) -> String {
    match RpcStatus::decode(body) {
        Ok(status) if !status.message.is_empty() => bounded(&status.message),
        _ => std::str::from_utf8(body).map(bounded).unwrap_or_default(),
    }
}

/// Printable, on one line, and short: untrusted text for logs and the page.
fn bounded(text: &str) -> String {
    let visible = |character: char| if character.is_control() { ' ' } else { character };
    let line: String = text.chars().map(visible).take(MAX_NOTE_CHARS).collect();
    let more = text.chars().nth(MAX_NOTE_CHARS).is_some();
    format!("{}{}", line.trim(), if more { "…" } else { "" })
}

/// The `RetryInfo` in `grpc-status-details-bin`: `None` without one, `Some(None)` for one without a delay.
fn retry_info(details: &str) -> Option<Option<Duration>> {
    let bytes = BASE64.decode(details).ok()?;
    let status = RpcStatus::decode(bytes.as_slice()).ok()?;
    let any = status
        .details
        .iter()
        .find(|any| any.type_url.rsplit('/').next() == Some("google.rpc.RetryInfo"))?;
    let info = RetryInfo::decode(any.value.as_slice()).ok()?;
    Some(info.retry_delay.and_then(|delay| {
        let seconds = u64::try_from(delay.seconds).ok()?;
        let nanos = u32::try_from(delay.nanos).ok().filter(|nanos| *nanos < 1_000_000_000)?;
        Some(Duration::new(seconds, nanos))
    }))
}

/// gRPC senders may omit the padding (gRPC over HTTP/2, "Binary-Header").
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);
const MAX_NOTE_CHARS: usize = 300;

/// `opentelemetry.proto.collector.trace.v1.ExportTraceServiceResponse`.
#[derive(Clone, PartialEq, Message)]
struct ExportTraceServiceResponse {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<ExportTracePartialSuccess>,
}

#[derive(Clone, PartialEq, Message)]
struct ExportTracePartialSuccess {
    #[prost(int64, tag = "1")]
    rejected_spans: i64,
    #[prost(string, tag = "2")]
    error_message: String,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `google.rpc.RetryInfo`.
#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<ProtoDuration>,
}

/// `google.protobuf.Duration`.
#[derive(Clone, PartialEq, Message)]
struct ProtoDuration {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

#[cfg(test)]
pub(super) mod tests;
