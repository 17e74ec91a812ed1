//! The sinks of a replay, and what it prints.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use sandglass_correlator::Output;
use sandglass_model::{ClockAnchor, Event, Timestamp, Trace, TraceId, text};
use serde::Serialize;

use crate::cli::Print;
use crate::failure::Failure;
use crate::pipeline::Outputs;
use crate::sinks::otlp::OtlpSink;
use crate::sinks::prometheus::{Metrics, ProductMetrics};
use crate::view::{self, Store};

/// The sinks of a replay.
pub struct Replayed {
    pub product: ProductMetrics,
    pub otlp: Option<OtlpSink>,
    pub closed: Vec<Arc<Trace>>,
    /// Served afterwards. It receives traffic at once, traces at the end.
    pub store: Option<Store>,
    pub anchor: ClockAnchor,
    pub at: Timestamp,
}

impl Outputs for Replayed {
    fn arrived(&mut self, event: &Event) {
        self.at = self.at.max(event.at);
    }

    fn output(&mut self, output: &Output) {
        self.product.record(output);
        if let (Output::Finding(traffic), Some(store)) = (output, &self.store) {
            store.traffic(traffic, self.anchor.unix_ns(self.at));
        }
        if let Output::Closed(trace) = output {
            if let Some(otlp) = &self.otlp {
                otlp.offer(trace);
            }
            self.closed.push(Arc::clone(trace));
        }
    }

    fn changed(&mut self, _open: &mut dyn Iterator<Item = &Trace>, _changed: &BTreeSet<TraceId>) {}
}

/// One trace as a line of JSON: what OTLP would carry, with nothing in it that depends on when it is printed.
#[derive(Serialize)]
struct Line<'a> {
    trace_id: TraceId,
    sandbox: Option<&'a str>,
    pod: &'a sandglass_model::PodIdentity,
    incomplete: bool,
    spans: Vec<view::SpanView>,
}

impl Replayed {
    /// Waits for the collector: a replay is faster than any, and would shed.
    pub async fn make_room(&self) {
        while let Some(otlp) = &self.otlp
            && otlp.status().waiting > MOST_WAITING
            && !otlp.status().failing
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub fn render(&self, what: Print, metrics: &Metrics) -> Result<String, Failure> {
        let mut rendered = String::new();
        match what {
            Print::Nothing => {}
            Print::Tree => {
                for trace in &self.closed {
                    rendered.push_str(&text::tree(trace, end(trace)));
                    rendered.push('\n');
                }
            }
            Print::Spans => {
                for trace in &self.closed {
                    let line = Line {
                        trace_id: trace.id,
                        sandbox: trace.sandbox.as_ref().map(|sandbox| sandbox.0.as_str()),
                        pod: &trace.identity,
                        incomplete: trace.incomplete,
                        spans: view::timeline(trace, end(trace)),
                    };
                    rendered.push_str(&serde_json::to_string(&line).map_err(Failure::defect)?);
                    rendered.push('\n');
                }
            }
            Print::Metrics => {
                rendered = metrics
                    .encode()
                    .map_err(|_| Failure::defect("cannot encode the metrics"))?;
            }
        }
        Ok(rendered)
    }
}

fn end(trace: &Trace) -> Timestamp {
    trace.root().end.unwrap_or(trace.root().start)
}

/// Spans that may wait for the collector before the replay pauses.
const MOST_WAITING: u64 = 4_096;
