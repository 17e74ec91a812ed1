//! The back end's own list: every span that the gateway passes on, and every series of its span metrics.
//!
//! An HTTP server on loopback that accepts OTLP (protobuf, not compressed). The fleet compares the list with that of the makers.
//! Traces go to a real Jaeger beside it. Does not: keep what a span says, or answer with anything but success.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::Metric;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use prost::Message;
use sandglass_model::TraceId;
use tokio::net::TcpListener;

/// The list; cheap to clone, all clones are one.
#[derive(Clone, Debug)]
pub struct Ledger {
    /// Where it listens.
    pub address: SocketAddr,
    list: Arc<Mutex<List>>,
}

/// What arrived.
#[derive(Debug, Default)]
pub struct List {
    /// Ids of the spans of each trace, each once.
    traces: HashMap<u128, Vec<u64>>,
    /// Spans that had arrived before, with the same ids.
    pub duplicates: u64,
    /// Requests that are no OTLP.
    pub undecodable: u64,
    /// Series of the gateway's metrics.
    series: HashSet<u64>,
    /// Last value of each counter of calls, by series and its start.
    calls: HashMap<(u64, u64), u64>,
    /// Bytes of requests with metrics.
    pub metric_bytes: u64,
}

impl Ledger {
    /// Listens on a free port of loopback until the runtime ends.
    pub async fn start() -> Result<Ledger> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let ledger = Ledger {
            address: listener.local_addr()?,
            list: Arc::default(),
        };
        let list = Arc::clone(&ledger.list);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let list = Arc::clone(&list);
                let service = service_fn(move |request| answer(request, Arc::clone(&list)));
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Ok(ledger)
    }

    /// The list now.
    pub fn list(&self) -> MutexGuard<'_, List> {
        lock(&self.list)
    }
}

impl List {
    /// Distinct spans of a trace.
    #[must_use]
    pub fn spans_of(&self, trace: TraceId) -> usize {
        self.traces.get(&trace.0).map_or(0, Vec::len)
    }

    /// Traces of which a span arrived.
    #[must_use]
    pub fn traces(&self) -> usize {
        self.traces.len()
    }

    /// Series of the gateway's metrics, as Prometheus stores them: an exponential histogram is one.
    #[must_use]
    pub fn series(&self) -> usize {
        self.series.len()
    }

    /// Spans that the gateway's counters of calls count, those of its earlier runs included.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls.values().sum()
    }

    /// How often a counter of calls began, per series: once, and once more for each restart of the gateway.
    #[must_use]
    pub fn starts_per_counter(&self) -> f64 {
        let counters: HashSet<u64> = self.calls.keys().map(|(series, _)| *series).collect();
        self.calls.len() as f64 / counters.len().max(1) as f64
    }

    fn add_spans(&mut self, request: ExportTraceServiceRequest) {
        let scopes = request.resource_spans.into_iter().flat_map(|spans| spans.scope_spans);
        for span in scopes.flat_map(|scope| scope.spans) {
            let ids = (span.trace_id.try_into(), span.span_id.try_into());
            let (Ok(trace), Ok(span)) = ids else {
                self.undecodable += 1;
                continue;
            };
            let spans = self.traces.entry(u128::from_be_bytes(trace)).or_default();
            let span = u64::from_be_bytes(span);
            if spans.contains(&span) {
                self.duplicates += 1;
            } else {
                spans.push(span);
            }
        }
    }

    fn add_series(&mut self, found: Found) {
        self.series.extend(found.series);
        self.calls.extend(found.calls);
        self.undecodable += found.undecodable;
        self.metric_bytes += found.bytes;
    }
}

/// What one request with metrics has. A flush of a fleet's gateway has a million labels: the list is not held meanwhile.
#[derive(Debug, Default)]
struct Found {
    series: Vec<u64>,
    calls: Vec<((u64, u64), u64)>,
    undecodable: u64,
    bytes: u64,
}

impl Found {
    fn of(body: &[u8]) -> Option<Found> {
        let request = ExportMetricsServiceRequest::decode(body).ok()?;
        let mut found = Found {
            bytes: body.len() as u64,
            ..Found::default()
        };
        for resource in request.resource_metrics {
            let of = resource.resource.map_or(0, |resource| hash(0, &resource.attributes));
            for metric in resource.scope_metrics.into_iter().flat_map(|scope| scope.metrics) {
                found.add(of, metric);
            }
        }
        Some(found)
    }

    fn add(&mut self, resource: u64, metric: Metric) {
        let mut name = DefaultHasher::new();
        (resource, &metric.name).hash(&mut name);
        let of = name.finish();
        match metric.data {
            Some(Data::Sum(sum)) => {
                let is_calls = metric.name.ends_with(".calls");
                for point in sum.data_points {
                    let series = hash(of, &point.attributes);
                    self.series.push(series);
                    if let (true, Some(Value::AsInt(calls))) = (is_calls, point.value) {
                        let key = (series, point.start_time_unix_nano);
                        self.calls.push((key, u64::try_from(calls).unwrap_or(0)));
                    }
                }
            }
            Some(Data::ExponentialHistogram(histogram)) => {
                let points = histogram.data_points.iter();
                self.series.extend(points.map(|point| hash(of, &point.attributes)));
            }
            Some(Data::Gauge(gauge)) => {
                let points = gauge.data_points.iter();
                self.series.extend(points.map(|point| hash(of, &point.attributes)));
            }
            // The gateway of the example makes none of these.
            Some(Data::Histogram(_) | Data::Summary(_)) | None => self.undecodable += 1,
        }
    }
}

async fn answer(request: Request<Incoming>, list: Arc<Mutex<List>>) -> Result<Response<Full<Bytes>>, Infallible> {
    let is_traces = request.uri().path().ends_with("/v1/traces");
    // The sender of one that breaks off was ended, and sends it again.
    if let Ok(body) = request.into_body().collect().await {
        let body = body.to_bytes();
        let undecodable = match is_traces {
            true => match ExportTraceServiceRequest::decode(body) {
                Ok(request) => {
                    lock(&list).add_spans(request);
                    0
                }
                Err(_) => 1,
            },
            false => match Found::of(&body) {
                Some(found) => {
                    lock(&list).add_series(found);
                    0
                }
                None => 1,
            },
        };
        lock(&list).undecodable += undecodable;
    }
    let mut response = Response::new(Full::default());
    let kind = hyper::header::HeaderValue::from_static("application/x-protobuf");
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, kind);
    Ok(response)
}

/// Of labels in any order, and of what they belong to.
fn hash(of: u64, attributes: &[KeyValue]) -> u64 {
    let labels = attributes.iter().map(|pair| {
        let mut hasher = DefaultHasher::new();
        pair.key.hash(&mut hasher);
        match pair.value.as_ref().and_then(|value| value.value.as_ref()) {
            Some(any_value::Value::StringValue(text)) => text.hash(&mut hasher),
            Some(other) => format!("{other:?}").hash(&mut hasher),
            None => {}
        }
        hasher.finish()
    });
    let labels = labels.fold(0_u64, u64::wrapping_add);
    let mut hasher = DefaultHasher::new();
    (of, labels, attributes.len()).hash(&mut hasher);
    hasher.finish()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::common::v1::AnyValue;
    use opentelemetry_proto::tonic::metrics::v1::{NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum};
    use opentelemetry_proto::tonic::resource::v1::Resource;
    use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};

    use super::*;

    fn traces(ids: &[(u128, u64)]) -> ExportTraceServiceRequest {
        let spans = ids.iter().map(|(trace, span)| Span {
            trace_id: trace.to_be_bytes().to_vec(),
            span_id: span.to_be_bytes().to_vec(),
            ..Span::default()
        });
        let scope = ScopeSpans {
            spans: spans.collect(),
            ..ScopeSpans::default()
        };
        let resource = ResourceSpans {
            scope_spans: vec![scope],
            ..ResourceSpans::default()
        };
        ExportTraceServiceRequest {
            resource_spans: vec![resource],
        }
    }

    #[test]
    fn spans_count_once_and_duplicates_beside_them() {
        let mut list = List::default();
        list.add_spans(traces(&[(1, 1), (1, 2), (2, 1)]));
        list.add_spans(traces(&[(1, 2), (1, 3)]));
        assert_eq!((list.spans_of(TraceId(1)), list.spans_of(TraceId(2))), (3, 1));
        assert_eq!((list.traces(), list.duplicates, list.spans_of(TraceId(3))), (2, 1, 0));
        assert!(Found::of(b"no protobuf").is_none());
    }

    fn calls(node: &str, pairs: &[(&str, &str)], start: u64, value: i64) -> Found {
        let pair = |(key, value): &(&str, &str)| KeyValue {
            key: (*key).to_owned(),
            value: Some(AnyValue {
                value: Some(any_value::Value::StringValue((*value).to_owned())),
            }),
            ..KeyValue::default()
        };
        let point = NumberDataPoint {
            attributes: pairs.iter().map(pair).collect(),
            start_time_unix_nano: start,
            value: Some(Value::AsInt(value)),
            ..NumberDataPoint::default()
        };
        let metric = Metric {
            name: "span.calls".to_owned(),
            data: Some(Data::Sum(Sum {
                data_points: vec![point],
                ..Sum::default()
            })),
            ..Metric::default()
        };
        let request = ExportMetricsServiceRequest {
            resource_metrics: vec![ResourceMetrics {
                resource: Some(Resource {
                    attributes: vec![pair(&("node", node))],
                    ..Resource::default()
                }),
                scope_metrics: vec![ScopeMetrics {
                    metrics: vec![metric],
                    ..ScopeMetrics::default()
                }],
                ..ResourceMetrics::default()
            }],
        };
        Found::of(&request.encode_to_vec()).unwrap()
    }

    #[test]
    fn a_series_is_its_labels_and_a_restart_begins_a_count() {
        let mut list = List::default();
        list.add_series(calls("a", &[("x", "1"), ("y", "2")], 10, 3));
        list.add_series(calls("a", &[("y", "2"), ("x", "1")], 10, 5));
        assert_eq!((list.series(), list.calls()), (1, 5));
        list.add_series(calls("b", &[("x", "1"), ("y", "2")], 10, 1));
        list.add_series(calls("a", &[("x", "1"), ("y", "2")], 20, 4));
        assert_eq!((list.series(), list.calls()), (2, 10));
        assert_eq!(list.starts_per_counter(), 1.5);
    }
}
