//! Converts the registry's values to OTLP messages, with the temporality that the collector wants.
//!
//! Used by the push. Delta values are what came since the last value of the same series that the collector accepted, so a push
//! that failed loses nothing. Does not: encode, or send.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::exponential_histogram_data_point::Buckets;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Exemplar, ExponentialHistogram, ExponentialHistogramDataPoint, Gauge, Metric,
    NumberDataPoint, Sum, exemplar, number_data_point,
};

use super::names::name_and_unit;
use crate::sinks::otlp::config::Temporality;
use crate::sinks::prometheus::{FamilyKind, MetricFamily, MetricSeries, PushedDurations, SeriesValue};

/// A series across pushes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SeriesKey {
    name: String,
    labels: Vec<(String, String)>,
}

/// The value of a series that the collector has, and of when it is.
#[derive(Clone, Debug)]
pub(super) struct Baseline {
    at: SystemTime,
    value: SeriesValue,
}

/// What the collector has.
#[derive(Debug)]
pub(super) struct PushState {
    temporality: Temporality,
    /// When the agent started: from then on cumulative values count.
    start: SystemTime,
    /// Only of series with delta temporality.
    baselines: HashMap<SeriesKey, Baseline>,
    /// The time of the last push of which every request was accepted: older exemplars were sent.
    exemplars_after: Option<SystemTime>,
}

/// A metric with one data point, and what becomes the baseline once it is accepted.
#[derive(Debug)]
pub(super) struct Point {
    pub(super) metric: Metric,
    pub(super) baseline: Option<(SeriesKey, Baseline)>,
}

impl PushState {
    pub(super) fn new(temporality: Temporality, start: SystemTime) -> PushState {
        PushState {
            temporality,
            start,
            baselines: HashMap::new(),
            exemplars_after: None,
        }
    }

    /// The collector accepted these values.
    pub(super) fn accepted(&mut self, baselines: Vec<(SeriesKey, Baseline)>) {
        self.baselines.extend(baselines);
    }

    /// The collector accepted every request of the push at this time.
    pub(super) fn completed(&mut self, now: SystemTime) {
        self.exemplars_after = Some(now);
    }

    /// The data points of all series at `now`, those of one metric one after another.
    pub(super) fn points(&self, families: Vec<MetricFamily>, now: SystemTime) -> Vec<Point> {
        let mut points = Vec::new();
        for mut family in families {
            let (name, unit) = name_and_unit(&family);
            let temporality = self.temporality_of(&family);
            for series in std::mem::take(&mut family.series) {
                let (data, baseline) = self.data(&family, unit, temporality, series, now);
                let metric = Metric {
                    name: name.clone(),
                    description: family.help.clone(),
                    unit: unit.to_owned(),
                    metadata: Vec::new(),
                    data: Some(data),
                };
                points.push(Point { metric, baseline });
            }
        }
        points
    }

    /// Gauges have none; an info metric is a sum that does not grow, and those are cumulative whatever is wanted.
    fn temporality_of(&self, family: &MetricFamily) -> AggregationTemporality {
        let grows = matches!(family.kind, FamilyKind::Counter | FamilyKind::Histogram);
        match self.temporality {
            Temporality::Delta if grows => AggregationTemporality::Delta,
            Temporality::LowMemory if grows && family.name != ASYNCHRONOUS => AggregationTemporality::Delta,
            Temporality::Cumulative | Temporality::Delta | Temporality::LowMemory => AggregationTemporality::Cumulative,
        }
    }

    fn data(
        &self,
        family: &MetricFamily,
        unit: &str,
        temporality: AggregationTemporality,
        series: MetricSeries,
        now: SystemTime,
    ) -> (Data, Option<(SeriesKey, Baseline)>) {
        let attributes = attributes(&series.labels);
        let (mut since, mut value, mut baseline) = (self.start, series.value, None);
        if temporality == AggregationTemporality::Delta {
            let key = SeriesKey {
                name: family.name.clone(),
                labels: series.labels,
            };
            let now_value = value.clone();
            if let Some(before) = self.baselines.get(&key) {
                since = before.at;
                value = difference(value, &before.value);
            }
            baseline = Some((
                key,
                Baseline {
                    at: now,
                    value: now_value,
                },
            ));
        }
        let (start, time) = (nanos(since), nanos(now));
        let data = match value {
            SeriesValue::Durations(pushed) => Data::ExponentialHistogram(ExponentialHistogram {
                data_points: vec![self.histogram(&pushed, attributes, start, time)],
                aggregation_temporality: temporality.into(),
            }),
            number => {
                let point = NumberDataPoint {
                    attributes,
                    start_time_unix_nano: if family.kind == FamilyKind::Gauge { 0 } else { start },
                    time_unix_nano: time,
                    exemplars: Vec::new(),
                    flags: 0,
                    value: number_of(&number, unit),
                };
                match family.kind {
                    FamilyKind::Gauge => Data::Gauge(Gauge {
                        data_points: vec![point],
                    }),
                    kind => Data::Sum(Sum {
                        data_points: vec![point],
                        aggregation_temporality: temporality.into(),
                        is_monotonic: kind != FamilyKind::Info,
                    }),
                }
            }
        };
        (data, baseline)
    }

    fn histogram(
        &self,
        pushed: &PushedDurations,
        attributes: Vec<KeyValue>,
        start: u64,
        time: u64,
    ) -> ExponentialHistogramDataPoint {
        let histogram = &pushed.histogram;
        let new = pushed
            .exemplars
            .iter()
            .filter(|exemplar| self.exemplars_after.is_none_or(|sent| exemplar.at > sent));
        ExponentialHistogramDataPoint {
            attributes,
            start_time_unix_nano: start,
            time_unix_nano: time,
            count: histogram.count,
            sum: Some(histogram.sum),
            scale: histogram.scale,
            zero_count: histogram.zero,
            positive: Some(Buckets {
                offset: histogram.first,
                bucket_counts: histogram.counts.clone(),
            }),
            exemplars: new
                .map(|exemplar| Exemplar {
                    filtered_attributes: Vec::new(),
                    time_unix_nano: nanos(exemplar.at),
                    span_id: Vec::new(),
                    trace_id: exemplar.trace.0.to_be_bytes().to_vec(),
                    value: Some(exemplar::Value::AsDouble(exemplar.seconds)),
                })
                .collect(),
            ..ExponentialHistogramDataPoint::default()
        }
    }
}

/// What came between two values of a series.
fn difference(now: SeriesValue, before: &SeriesValue) -> SeriesValue {
    match (now, before) {
        (SeriesValue::Int(now), SeriesValue::Int(before)) => SeriesValue::Int(now - before),
        (SeriesValue::Durations(now), SeriesValue::Durations(before)) => {
            SeriesValue::Durations(Box::new(PushedDurations {
                histogram: now.histogram.since(&before.histogram),
                exemplars: now.exemplars,
            }))
        }
        // Seconds are whole numbers now and then.
        (now, before) => match (float(&now), float(before)) {
            (Some(now), Some(before)) => SeriesValue::Double(now - before),
            _ => now,
        },
    }
}

fn float(value: &SeriesValue) -> Option<f64> {
    match value {
        SeriesValue::Int(number) => Some(*number as f64),
        SeriesValue::Double(number) => Some(*number),
        SeriesValue::Durations(_) => None,
    }
}

/// Seconds are floating-point numbers in every push, also where they are whole ones.
fn number_of(value: &SeriesValue, unit: &str) -> Option<number_data_point::Value> {
    match value {
        SeriesValue::Int(number) if unit != "s" => Some(number_data_point::Value::AsInt(*number)),
        value => float(value).map(number_data_point::Value::AsDouble),
    }
}

pub(super) fn attributes(labels: &[(String, String)]) -> Vec<KeyValue> {
    let pairs = labels.iter().map(|(key, value)| KeyValue {
        key: key.clone(),
        value: Some(AnyValue {
            value: Some(any_value::Value::StringValue(value.clone())),
        }),
        ..KeyValue::default()
    });
    pairs.collect()
}

fn nanos(at: SystemTime) -> u64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// The one counter that is read from elsewhere when it is exported, which OpenTelemetry calls asynchronous.
const ASYNCHRONOUS: &str = "sandglass_process_cpu_seconds";
