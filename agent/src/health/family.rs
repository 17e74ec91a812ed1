//! A family of counters, one for each value of a label, that can be listed as well as exported.
//!
//! Used by [`super::Health`]. `prometheus_client`'s own family encodes its members and does not list them; the page shows
//! the same counters that `/metrics` exports. Does not: bound the number of labels, which callers take from closed sets.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::{MetricType, TypedMetric};
use serde::Serialize;

/// A label set.
pub trait Label: EncodeLabelSet + Clone + Ord {
    /// What it is listed by. Counters of the same value are listed as their sum.
    fn value(&self) -> &str;
}

/// One counter for each label; cheap to clone, all clones are one family.
#[derive(Clone, Debug)]
pub struct CounterFamily<L>(Arc<Mutex<BTreeMap<L, Counter>>>);

/// The value of one counter, or of a family and its members, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// The sum of all.
    pub total: u64,
    /// By label; empty for a counter without labels.
    pub by: BTreeMap<String, u64>,
}

impl<L> Default for CounterFamily<L> {
    fn default() -> CounterFamily<L> {
        CounterFamily(Arc::default())
    }
}

impl<L: Label> CounterFamily<L> {
    /// The counter of this label. A new one starts at 0 and is exported from then on.
    #[must_use]
    pub fn get_or_create(&self, label: &L) -> Counter {
        let mut members = self.members();
        match members.get(label) {
            Some(counter) => counter.clone(),
            None => members.entry(label.clone()).or_default().clone(),
        }
    }

    /// All values now.
    #[must_use]
    pub fn count(&self) -> Count {
        let members = self.members();
        let mut by: BTreeMap<String, u64> = BTreeMap::new();
        for (label, counter) in members.iter() {
            *by.entry(label.value().to_owned()).or_default() += counter.get();
        }
        Count {
            total: by.values().sum(),
            by,
        }
    }

    fn members(&self) -> MutexGuard<'_, BTreeMap<L, Counter>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<&Counter> for Count {
    fn from(counter: &Counter) -> Count {
        Count {
            total: counter.get(),
            by: BTreeMap::new(),
        }
    }
}

impl<L: Label> EncodeMetric for CounterFamily<L> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        for (label, counter) in self.members().iter() {
            counter.encode(encoder.encode_family(label)?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        Counter::<u64>::TYPE
    }

    fn is_empty(&self) -> bool {
        self.members().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::super::{Health, ProbeLabel, SinkLabel};
    use super::*;

    #[test]
    fn counters_are_listed_and_exported_with_their_labels() {
        let health = Health::default();
        let mut registry = Registry::default();
        health.register(&mut registry);
        health.late.inc_by(7);
        for (probe, count) in [("stdio", 5), ("exec", 2)] {
            let label = ProbeLabel { probe: probe.into() };
            health.lost.get_or_create(&label).inc_by(count);
        }
        health.shed.get_or_create(&SinkLabel { sink: "store" }).inc();
        let lost = health.lost.count();
        assert_eq!((lost.total, lost.by["exec"], lost.by["stdio"]), (7, 2, 5));
        assert_eq!(Count::from(&health.late).total, 7);
        assert_eq!(health.shed.count().by["store"], 1);
        assert_eq!(health.evicted.count(), Count::default());
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "# TYPE events_lost counter",
            "events_lost_total{probe=\"exec\"} 2",
            "events_lost_total{probe=\"stdio\"} 5",
            "shed_total{sink=\"otlp\"} 0",
            "shed_total{sink=\"store\"} 1",
        ] {
            assert!(text.lines().any(|there| there == line), "{line}: {text}");
        }
        // A family without members is left out, as the library does.
        assert!(!text.contains("evicted"), "{text}");
    }
}
