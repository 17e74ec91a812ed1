//! Operations that run now: how many, and how old the oldest is, per verb.
//!
//! The pipeline replaces the picture when open traces change; the age is made at scrape time, so a stuck operation
//! grows old on a node where nothing else happens.

use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use sandglass_model::{CniCommand, Detail, Timestamp, Trace};

/// Gives the present time of the boot clock.
pub type Clock = fn() -> Timestamp;

/// The picture, cheap to clone.
#[derive(Clone, Debug)]
pub struct InFlight {
    clock: Clock,
    running: Arc<Mutex<[Running; CniCommand::ALL.len()]>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Running {
    count: i64,
    oldest: Option<Timestamp>,
}

impl InFlight {
    /// Nothing runs.
    #[must_use]
    pub fn new(clock: Clock) -> InFlight {
        InFlight {
            clock,
            running: Arc::default(),
        }
    }

    /// Replaces the picture by what runs in `open`.
    pub fn set<'a>(&self, open: impl Iterator<Item = &'a Trace>) {
        let mut picture = [Running::default(); CniCommand::ALL.len()];
        for (command, start) in open.flat_map(running_operations) {
            let place = &mut picture[command as usize];
            place.count += 1;
            place.oldest = Some(place.oldest.map_or(start, |oldest| oldest.min(start)));
        }
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = picture;
    }
}

/// Operations of which a plugin runs now. One whose plugins have all ended only waits to be closed.
fn running_operations(trace: &Trace) -> impl Iterator<Item = (CniCommand, Timestamp)> {
    trace
        .spans
        .iter()
        .enumerate()
        .filter_map(|(index, span)| match &span.detail {
            Detail::Operation(operation) if span.end.is_none() => trace
                .spans
                .iter()
                .any(|child| child.parent == Some(index) && child.end.is_none())
                .then_some((operation.command, span.start)),
            _ => None,
        })
}

impl Collector for InFlight {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let picture = *self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let now = (self.clock)();
        let mut family = encoder.encode_descriptor(
            "cni_operations_in_flight",
            "CNI operations that run now",
            None,
            MetricType::Gauge,
        )?;
        for (command, running) in CniCommand::ALL.iter().zip(picture) {
            ConstGauge::new(running.count).encode(family.encode_family(&[("operation", command.as_str())])?)?;
        }
        let mut family = encoder.encode_descriptor(
            "cni_operation_oldest_age_seconds",
            "Age of the oldest CNI operation that runs now; 0 when none runs",
            None,
            MetricType::Gauge,
        )?;
        for (command, running) in CniCommand::ALL.iter().zip(picture) {
            let age = running.oldest.map_or(0.0, |oldest| now.since(oldest) as f64 / 1e9);
            ConstGauge::new(age).encode(family.encode_family(&[("operation", command.as_str())])?)?;
        }
        Ok(())
    }
}
