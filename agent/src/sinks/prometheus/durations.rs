//! Histograms of durations: one set of buckets for all of them, and exemplars with a trace id.
//!
//! Used by all product metrics, and by the OTLP sink for its own attempts. Where metrics are pushed, each series has
//! exponential buckets beside the classic ones, which cannot be converted into them. Does not: choose which trace is an exemplar.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::exemplar::HistogramWithExemplars;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::{MetricType, TypedMetric};
use sandglass_model::TraceId;

use super::exponential::ExponentialHistogram;

/// Upper bounds of the buckets in seconds: 1 ms to 240 s, the kubelet's timeout for a sandbox (twice its
/// `--runtime-request-timeout` of 2 min). Bounds at 1, 5, 10, 30, 60, 120 and 240 s, the usual timeouts of plugins,
/// resolvers and runtimes.
const BUCKETS: [f64; 20] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0,
    240.0,
];

/// Which buckets a histogram records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Buckets {
    /// Those of a scrape.
    #[default]
    Classic,
    /// Those, and exponential ones for the push.
    AndExponential,
}

/// The exemplar's label.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct TraceLabel {
    trace_id: String,
}

/// What is pushed of one series.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PushedDurations {
    /// All durations so far.
    pub histogram: ExponentialHistogram,
    /// The latest duration with a trace in each power of two, at most [`MAX_EXEMPLARS`].
    pub exemplars: Vec<DurationExemplar>,
}

/// A duration, and the trace that shows it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DurationExemplar {
    /// The duration in seconds.
    pub seconds: f64,
    /// The trace.
    pub trace: TraceId,
    /// When it was counted.
    pub at: SystemTime,
}

/// Most exemplars of a series that are kept for the push; the oldest goes first.
const MAX_EXEMPLARS: usize = 8;

impl PushedDurations {
    fn observe(&mut self, seconds: f64, trace: Option<TraceId>) {
        self.histogram.observe(seconds);
        let Some(trace) = trace else { return };
        let power = |seconds: f64| seconds.log2().floor();
        self.exemplars.retain(|kept| power(kept.seconds) != power(seconds));
        if self.exemplars.len() >= MAX_EXEMPLARS {
            self.exemplars.remove(0);
        }
        self.exemplars.push(DurationExemplar {
            seconds,
            trace,
            at: SystemTime::now(),
        });
    }
}

/// One series; cheap to clone, all clones are one series.
#[derive(Clone, Debug)]
pub struct DurationSeries {
    classic: HistogramWithExemplars<TraceLabel>,
    pushed: Option<Arc<Mutex<PushedDurations>>>,
}

impl DurationSeries {
    /// A series whose classic buckets have these upper bounds.
    pub fn new(bounds: impl IntoIterator<Item = f64>, buckets: Buckets) -> DurationSeries {
        DurationSeries {
            classic: HistogramWithExemplars::new(bounds.into_iter()),
            pushed: (buckets == Buckets::AndExponential).then(Arc::default),
        }
    }

    /// Counts one duration in seconds, with the trace that shows it as exemplar.
    pub fn observe(&self, seconds: f64, trace: Option<TraceId>) {
        let exemplar = trace.map(|trace| TraceLabel {
            trace_id: trace.to_string(),
        });
        self.classic.observe(seconds, exemplar, None);
        if let Some(pushed) = &self.pushed {
            let mut pushed = pushed.lock().unwrap_or_else(PoisonError::into_inner);
            pushed.observe(seconds, trace);
        }
    }
}

impl EncodeMetric for DurationSeries {
    /// The classic histogram; within [`collecting`] the position of the exponential one in its result, as a single sample.
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        let position = COLLECTED.with_borrow_mut(|collected| {
            let (collected, pushed) = (collected.as_mut()?, self.pushed.as_ref()?);
            collected.push(pushed.lock().unwrap_or_else(PoisonError::into_inner).clone());
            Some(collected.len() as u64 - 1)
        });
        match position {
            Some(position) => encoder.encode_gauge(&position),
            None => self.classic.encode(encoder),
        }
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

impl TypedMetric for DurationSeries {
    const TYPE: MetricType = MetricType::Histogram;
}

thread_local! {
    /// The exponential histograms that this thread has encoded for a push; `None` while it encodes for a scrape.
    static COLLECTED: RefCell<Option<Vec<PushedDurations>>> = const { RefCell::new(None) };
}

/// Runs `encode`, which encodes a registry as text. Each series with exponential buckets encodes the position of its
/// histogram in the returned list, since the text format has no exponential ones and `EncodeMetric` takes no argument.
pub fn collecting<R>(encode: impl FnOnce() -> R) -> (R, Vec<PushedDurations>) {
    COLLECTED.set(Some(Vec::new()));
    let result = encode();
    (result, COLLECTED.take().unwrap_or_default())
}

/// Creates series with [`BUCKETS`].
#[derive(Clone, Copy, Debug)]
pub struct Durations(Buckets);

impl MetricConstructor<DurationSeries> for Durations {
    fn new_metric(&self) -> DurationSeries {
        DurationSeries::new(BUCKETS, self.0)
    }
}

/// A family of such histograms.
pub type DurationFamily<Labels> = Family<Labels, DurationSeries, Durations>;

/// An empty family.
pub fn durations<Labels: Clone + std::hash::Hash + Eq>(buckets: Buckets) -> DurationFamily<Labels> {
    Family::new_with_constructor(Durations(buckets))
}

/// Counts one duration in a series, with the trace that shows it as exemplar.
pub fn observe_in(series: &DurationSeries, ns: u64, trace: Option<TraceId>) {
    series.observe(ns as f64 / 1e9, trace);
}

/// The same, in the series with these labels.
pub fn observe<Labels>(family: &DurationFamily<Labels>, labels: &Labels, ns: u64, trace: Option<TraceId>)
where
    Labels: Clone + std::hash::Hash + Eq,
{
    observe_in(&family.get_or_create(labels), ns, trace);
}
