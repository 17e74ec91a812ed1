//! Settings of OTLP export: flags, the standard `OTEL_*` variables and the configuration file, resolved to one [`Resolved`].
//!
//! Precedence, per key: flag, environment, file, default. A header list is taken whole from the first origin that has one.
//! Variables: `OTEL_EXPORTER_OTLP_[TRACES_|METRICS_]{ENDPOINT, PROTOCOL, HEADERS, COMPRESSION, TIMEOUT, CERTIFICATE,
//! CLIENT_CERTIFICATE, CLIENT_KEY, INSECURE}` (that of the signal wins), `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`,
//! `OTEL_SDK_DISABLED`, `OTEL_TRACES_EXPORTER`, and those of metrics in `push.rs`; an empty one counts as unset
//! (<https://opentelemetry.io/docs/specs/otel/protocol/exporter/>).
//! Deviations from that text: without an endpoint the sink is off (a node rarely has a collector on localhost), and gzip is
//! the default.
//! Does not: read the process environment (the caller passes a function) or files, use proxies, or print header values.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use hyper::header::HeaderMap;
use serde::{Deserialize, Serialize, Serializer};

use sandglass_model::ClockAnchor;

use self::layers::SettingLayers;
use crate::failure::{Advice, ExitReason};
use crate::sinks::prometheus::Buckets;
use crate::sinks::sampling::Policy;
use crate::tls::TlsFiles;

pub mod defaults;
mod layers;
mod parse;
mod push;
mod setting;

pub use push::{PushOptions, Temporality, resolve_push};

/// The settings of one origin: the flags, or the section `otlp` of the configuration file. Absent keys are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Base URL of the collector; for `http/protobuf`, `v1/traces` or `v1/metrics` is appended, in place of one of the two that it ends in.
    pub endpoint: Option<String>,
    /// `http/protobuf` (default) or `grpc`.
    pub protocol: Option<String>,
    /// Headers of every request. Values are secrets.
    pub headers: Option<BTreeMap<String, Secret>>,
    /// `gzip` (default) or `none`.
    pub compression: Option<String>,
    /// Longest attempt in milliseconds, connecting included (default 10000).
    pub timeout_ms: Option<u64>,
    /// PEM file of the certificate authorities to trust, instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// PEM file of the client certificate chain.
    pub client_certificate_file: Option<PathBuf>,
    /// PEM file of its private key.
    pub client_key_file: Option<PathBuf>,
    /// For gRPC endpoints without a scheme: no TLS.
    pub insecure: Option<bool>,
    /// Attributes added to every resource.
    pub resource: Option<BTreeMap<String, String>>,
    /// Largest number of spans in a request (default 512).
    pub batch_spans: Option<u32>,
    /// Milliseconds a span may wait for others to share its request (default 1000).
    pub batch_delay_ms: Option<u64>,
    /// Traces that may wait to be encoded (default 2048).
    pub queue_traces: Option<u32>,
    /// Bytes of requests that may wait for the collector in memory, oldest evicted first (default 16 MiB).
    pub queue_bytes: Option<u64>,
    /// Which traces are sent: `all` (default), or `bad` and a share of the good ones.
    pub sampling: Option<String>,
    /// With `sampling: bad`, how many of a thousand good traces are sent (default 10).
    pub good_per_thousand: Option<u32>,
    /// With `sampling: bad`, milliseconds from which a creation, a network or an operation is slow (default 2000).
    pub slow_ms: Option<u64>,
    /// Directory in which requests wait for the collector, so that they survive the agent's end; unset: in memory.
    pub spool_directory: Option<PathBuf>,
    /// Bytes of the files in it (default 128 MiB).
    pub spool_bytes: Option<u64>,
    /// Hours after which what waits in it is dropped (default 24).
    pub spool_hours: Option<u64>,
    /// Push metrics beside the scrape (default: only where a variable asks for it).
    pub metrics: Option<bool>,
    /// Milliseconds between two pushes (default 60000).
    pub metrics_interval_ms: Option<u64>,
    /// `cumulative` (default), `delta` or `lowmemory`.
    pub metrics_temporality: Option<String>,
}

/// Text that is neither printed nor serialized.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("***")
    }
}

/// Whether and how to export.
#[derive(Clone, Debug)]
pub enum Resolution<Settings = Resolved> {
    /// Off, with the reason.
    Off(String),
    /// On, with these settings.
    On(Box<Settings>),
}

/// What is exported. Each has its variables, its path and its gRPC service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Spans.
    Traces,
    /// Metrics.
    Metrics,
}

/// How requests of one signal reach the collector.
#[derive(Clone, Debug)]
pub struct Connection {
    /// What is sent.
    pub signal: Signal,
    /// The collector.
    pub target: Target,
    /// The protocol.
    pub protocol: OtlpProtocol,
    /// Extra headers; the values are marked sensitive, so that `Debug` does not show them.
    pub headers: HeaderMap,
    /// Whether requests are compressed.
    pub gzip: bool,
    /// Longest attempt, connecting included.
    pub timeout: Duration,
    /// Certificate files.
    pub tls: TlsFiles,
}

/// Complete settings of the sink.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The way to the collector.
    pub connection: Connection,
    /// Which buckets the sink's own histogram records. The composition root sets it; the default is those of a scrape.
    pub buckets: Buckets,
    /// `service.name` from the environment; `None` for the node's.
    pub service: Option<String>,
    /// Attributes added to every resource.
    pub resource: ResourceAttributes,
    /// Which traces are sent.
    pub sampling: Policy,
    /// Sizes and times of queues.
    pub tuning: Tuning,
    /// The spool on disk.
    pub spool: Option<SpoolOptions>,
}

/// Where and how much is spooled.
#[derive(Clone, Debug)]
pub struct SpoolOptions {
    /// The directory, of which this agent is the only user.
    pub directory: PathBuf,
    /// Bytes of its files.
    pub bytes: u64,
    /// Age after which a request is dropped.
    pub age: Duration,
    /// Reads both clocks. The composition root sets the node's; the default has the wall clock for both.
    pub clock: fn() -> ClockAnchor,
}

/// Attributes as key and value, sorted by key.
pub type ResourceAttributes = Vec<(String, String)>;

/// Address of the collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Whether to use TLS.
    pub tls: bool,
    /// Host name or address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Path and query of the request; empty for gRPC.
    pub path: String,
}

impl Target {
    /// `host` or `host:port` as in a URL; the default port of the scheme is left out.
    #[must_use]
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') {
            format!("[{}]", self.host)
        } else {
            self.host.clone()
        };
        match (self.tls, self.port) {
            (true, 443) | (false, 80) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }

    /// `http` or `https`.
    #[must_use]
    pub fn scheme(&self) -> &'static str {
        if self.tls { "https" } else { "http" }
    }
}

impl fmt::Display for Target {
    /// Without the query, which may hold a key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.split('?').next().unwrap_or_default();
        write!(f, "{}://{}{path}", self.scheme(), self.authority())
    }
}

/// Transport protocol of OTLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum OtlpProtocol {
    /// Protobuf over HTTP/1.1.
    #[serde(rename = "http/protobuf")]
    Http,
    /// gRPC over HTTP/2.
    #[serde(rename = "grpc")]
    Grpc,
}

impl Signal {
    /// The part of its variables' names, `OTEL_EXPORTER_OTLP_<part>_*`.
    fn variable(self) -> &'static str {
        match self {
            Signal::Traces => "TRACES",
            Signal::Metrics => "METRICS",
        }
    }

    /// What is appended to a base URL (OTLP exporter specification, "Endpoint URLs for OTLP/HTTP").
    fn path(self) -> &'static str {
        match self {
            Signal::Traces => "/v1/traces",
            Signal::Metrics => "/v1/metrics",
        }
    }

    /// The gRPC method.
    pub(super) fn method(self) -> &'static str {
        match self {
            Signal::Traces => "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
            Signal::Metrics => "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
        }
    }
}

impl OtlpProtocol {
    /// Its name in TLS (ALPN).
    pub(super) fn alpn(self) -> &'static [u8] {
        match self {
            OtlpProtocol::Http => b"http/1.1",
            OtlpProtocol::Grpc => b"h2",
        }
    }
}

/// Bounds and times of queues. Those of [`Settings`] can be configured, the others are constants ([`defaults`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Traces that may wait to be encoded.
    pub queue_traces: usize,
    /// Spans in a request.
    pub batch_spans: usize,
    /// Bytes in a request before compression, roughly.
    pub batch_bytes: usize,
    /// Longest wait of a trace for others to share its request.
    pub batch_delay: Duration,
    /// Requests that may wait for the collector.
    pub queue_requests: usize,
    /// Bytes of these requests.
    pub queue_bytes: usize,
    /// First wait after a failed attempt.
    pub backoff_initial: Duration,
    /// Longest wait after a failed attempt, unless the collector requests a longer one.
    pub backoff_max: Duration,
    /// Seed of the jitter; `None` derives it from the node.
    pub seed: Option<u64>,
}

/// A setting that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingError {
    /// The value of a key is malformed.
    #[error("cannot use {origin}: {problem}")]
    Value {
        /// Which key of which origin.
        origin: String,
        /// What is wrong, without a secret.
        problem: String,
        /// How to correct it.
        hint: &'static str,
    },
    /// A client certificate without its key, or the other way round.
    #[error("cannot use the client certificate: {missing} is not set")]
    HalfClient {
        /// Which of the two.
        missing: &'static str,
    },
}

impl Advice for SettingError {
    fn hint(&self) -> Cow<'_, str> {
        let hint: &str = match self {
            SettingError::Value { hint, .. } => hint,
            SettingError::HalfClient { .. } => {
                "set both OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY, or neither"
            }
        };
        hint.into()
    }

    fn exit(&self) -> ExitReason {
        ExitReason::Usage
    }
}

/// Which traces are sent, whether or not there is a collector.
///
/// # Errors
/// A value is not allowed.
pub fn sampling(flags: &Settings, file: &Settings) -> Result<Policy, SettingError> {
    let env = |_: &str| None;
    let signal = Signal::Traces;
    SettingLayers {
        flags,
        env: &env,
        file,
        signal,
    }
    .sampling()
}

/// Resolves the three origins; `env` looks up one environment variable.
pub fn resolve(
    flags: &Settings,
    env: &dyn Fn(&str) -> Option<String>,
    file: &Settings,
) -> Result<Resolution, SettingError> {
    let signal = Signal::Traces;
    let layers = SettingLayers {
        flags,
        env,
        file,
        signal,
    };
    if let Some(reason) = layers.switched_off() {
        return Ok(Resolution::Off(reason));
    }
    // Before the endpoint: a wrong value is an error also where nothing is exported yet.
    let (sampling, tuning, spool) = (layers.sampling()?, layers.tuning()?, layers.spool()?);
    let Some(connection) = layers.connection()? else {
        return Ok(Resolution::Off(NO_ENDPOINT.to_owned()));
    };
    let (service, resource) = layers.resource()?;
    Ok(Resolution::On(Box::new(Resolved {
        connection,
        buckets: Buckets::default(),
        service,
        resource,
        sampling,
        tuning,
        spool,
    })))
}

/// Why export is off by default.
pub const NO_ENDPOINT: &str = "no endpoint is configured";

#[cfg(test)]
mod tests;
