//! Operations that run now: their number, the age of the oldest and what they wait for, per verb.
//!
//! The pipeline replaces the snapshot when open traces change. The age is computed at scrape time, so that of a stuck
//! operation grows on a node where nothing else happens. Does not: list operations (`view` does).

use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use sandglass_model::waits::TimeReason;
use sandglass_model::{CniCommand, Detail, Timestamp, Trace, registry};

/// Returns the current time of the boot clock.
pub type Clock = fn() -> Timestamp;

/// The snapshot; cheap to clone, all clones are one snapshot.
#[derive(Clone, Debug)]
pub struct InFlight {
    clock: Clock,
    running: Arc<Mutex<[VerbInFlight; CniCommand::ALL.len()]>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct VerbInFlight {
    count: i64,
    oldest: Option<Timestamp>,
    /// Those that wait for this now, in the order of [`TimeReason::ALL`].
    waiting: [i64; TimeReason::ALL.len()],
}

impl InFlight {
    /// An empty snapshot.
    #[must_use]
    pub fn new(clock: Clock) -> InFlight {
        InFlight {
            clock,
            running: Arc::default(),
        }
    }

    /// Replaces the snapshot by the running operations of `open`.
    pub fn set<'a>(&self, open: impl Iterator<Item = &'a Trace>) {
        let mut snapshot = [VerbInFlight::default(); CniCommand::ALL.len()];
        for (command, start, waiting) in open.flat_map(running_operations) {
            let entry = &mut snapshot[command as usize];
            entry.count += 1;
            entry.oldest = Some(entry.oldest.map_or(start, |oldest| oldest.min(start)));
            if let Some(reason) = waiting {
                entry.waiting[reason as usize] += 1;
            }
        }
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = snapshot;
    }
}

/// Operations with a running plugin. One whose plugins have all ended is only waiting for its settle time.
fn running_operations(trace: &Trace) -> impl Iterator<Item = (CniCommand, Timestamp, Option<TimeReason>)> {
    trace
        .spans
        .iter()
        .enumerate()
        .filter_map(|(index, span)| match &span.detail {
            Detail::Operation(operation) if span.end.is_none() => trace
                .spans
                .iter()
                .any(|child| child.parent == Some(index) && child.end.is_none())
                .then(|| {
                    let waiting = registry::waiting_of(trace, span).map(|waiting| waiting.reason);
                    (operation.command, span.start, waiting)
                }),
            _ => None,
        })
}

impl Collector for InFlight {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let snapshot = *self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let now = (self.clock)();
        let mut family = encoder.encode_descriptor(
            "cni_operations_in_flight",
            "Running CNI operations",
            None,
            MetricType::Gauge,
        )?;
        for (command, running) in CniCommand::ALL.iter().zip(snapshot) {
            ConstGauge::new(running.count).encode(family.encode_family(&[("operation", command.as_str())])?)?;
        }
        let mut family = encoder.encode_descriptor(
            "cni_operation_oldest_age_seconds",
            "Age of the oldest running CNI operation; 0 if none runs",
            None,
            MetricType::Gauge,
        )?;
        for (command, running) in CniCommand::ALL.iter().zip(snapshot) {
            let age = running.oldest.map_or(0.0, |oldest| now.since(oldest) as f64 / 1e9);
            ConstGauge::new(age).encode(family.encode_family(&[("operation", command.as_str())])?)?;
        }
        let mut family = encoder.encode_descriptor(
            "cni_operations_waiting",
            "Running CNI operations whose processes were looked at, by what they wait for",
            None,
            MetricType::Gauge,
        )?;
        for (command, running) in CniCommand::ALL.iter().zip(snapshot) {
            for (reason, count) in TimeReason::ALL
                .iter()
                .zip(running.waiting)
                .filter(|(_, count)| *count > 0)
            {
                let labels = [("operation", command.as_str()), ("reason", reason.as_str())];
                ConstGauge::new(count).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
