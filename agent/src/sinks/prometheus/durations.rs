//! Histograms of durations: one set of buckets for all of them, and exemplars with a trace id.
//!
//! Used by all product metrics. Does not: hold a histogram of the agent's own work.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::exemplar::HistogramWithExemplars;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use sandglass_model::TraceId;

/// Upper bounds of the buckets in seconds: 1 ms to 240 s, the kubelet's timeout for a sandbox (twice its
/// `--runtime-request-timeout` of 2 min). Bounds at 1, 5, 10, 30, 60, 120 and 240 s, the usual timeouts of plugins,
/// resolvers and runtimes.
const BUCKETS: [f64; 20] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0,
    240.0,
];

/// The exemplar's label.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct TraceLabel {
    trace_id: String,
}

/// Creates histograms with [`BUCKETS`].
#[derive(Clone, Copy, Debug)]
pub struct Durations;

impl MetricConstructor<HistogramWithExemplars<TraceLabel>> for Durations {
    fn new_metric(&self) -> HistogramWithExemplars<TraceLabel> {
        HistogramWithExemplars::new(BUCKETS.into_iter())
    }
}

/// A family of such histograms.
pub type DurationFamily<Labels> = Family<Labels, HistogramWithExemplars<TraceLabel>, Durations>;

/// An empty family.
pub fn durations<Labels: Clone + std::hash::Hash + Eq>() -> DurationFamily<Labels> {
    Family::new_with_constructor(Durations)
}

/// Counts one duration in a series, with the trace that shows it as exemplar.
pub fn observe_in(series: &HistogramWithExemplars<TraceLabel>, ns: u64, trace: Option<TraceId>) {
    let exemplar = trace.map(|trace| TraceLabel {
        trace_id: trace.to_string(),
    });
    series.observe(ns as f64 / 1e9, exemplar, None);
}

/// The same, in the series with these labels.
pub fn observe<Labels>(family: &DurationFamily<Labels>, labels: &Labels, ns: u64, trace: Option<TraceId>)
where
    Labels: Clone + std::hash::Hash + Eq,
{
    observe_in(&family.get_or_create(labels), ns, trace);
}
