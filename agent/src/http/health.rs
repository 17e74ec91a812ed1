//! The agent's account of itself as JSON: `/api/v1/health` and the stream's `health` events.
//!
//! The counters are read through their own OpenMetrics text: a label family cannot be listed otherwise, and so the
//! page and `/metrics` cannot disagree. Does not: count anything.

use std::collections::BTreeMap;

use prometheus_client::registry::Registry;
use serde::Serialize;

use crate::health::{Health, ProbeStatus};
use crate::node::NodeInfo;
use crate::sinks::store::StoreSize;

/// The whole account.
#[derive(Clone, Debug, Serialize)]
pub struct HealthReport {
    /// The node.
    pub node: NodeInfo,
    /// Time of the answer, nanoseconds since 1970, as text.
    pub now_unix_ns: String,
    /// Empty when the pipeline makes progress.
    pub not_alive: String,
    /// Empty when a source is attached.
    pub not_ready: String,
    /// Each signal and its hook.
    pub probes: Vec<ProbeStatus>,
    /// Events that reached the pipeline.
    pub events: u64,
    /// Records lost on the kernel side, by probe.
    pub lost: Count,
    /// Events that came after the reorder window.
    pub late: Count,
    /// Events without an owner.
    pub orphan: Count,
    /// Entries dropped by full tables, by table.
    pub evicted: Count,
    /// Outputs dropped by full queues, by sink.
    pub shed: Count,
    /// Records that could not be decoded, by probe.
    pub undecodable: Count,
    /// Events waiting for the correlator.
    pub queue_depth: i64,
    /// Bytes waiting in the kernel's ring buffer.
    pub ring_bytes: i64,
    /// Traces that are open.
    pub open_traces: i64,
    /// How full the store is.
    pub store: StoreSize,
    /// Event streams open.
    pub streams: usize,
    /// Longer than this is called stuck, nanoseconds.
    pub stuck_after_ns: u64,
    /// How OTLP export stands.
    pub otlp: serde_json::Value,
}

/// One counter and its parts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// All.
    pub total: u64,
    /// By label; empty when it has none.
    pub by: BTreeMap<String, u64>,
}

/// The counters' values at one moment.
#[derive(Debug)]
pub struct Counters {
    text: String,
}

/// Registers `health` once, so that its values can be read many times.
pub fn registry(health: &Health) -> Registry {
    let mut registry = Registry::default();
    health.register(&mut registry);
    registry
}

impl Counters {
    /// Reads all.
    pub fn read(registry: &Registry) -> Counters {
        let mut text = String::new();
        // Writing to a string does not fail; were it to, the counters would show as 0.
        let _ = prometheus_client::encoding::text::encode(&mut text, registry);
        Counters { text }
    }

    /// A counter that was registered as `name`.
    pub fn count(&self, name: &str) -> Count {
        let mut count = Count::default();
        for (label, value) in self.samples(&format!("{name}_total")) {
            count.total += value;
            if let Some(label) = label {
                count.by.insert(label.to_owned(), value);
            }
        }
        count
    }

    /// A gauge that was registered as `name`.
    pub fn gauge(&self, name: &str) -> i64 {
        let mut samples = self.samples::<i64>(name);
        samples.next().map_or(0, |(_, value)| value)
    }

    /// Lines `name 1` and `name{label="x"} 1`; our families have one label each.
    fn samples<T: std::str::FromStr>(&self, name: &str) -> impl Iterator<Item = (Option<&str>, T)> {
        self.text.lines().filter_map(move |line| {
            let rest = line.strip_prefix(name)?;
            let (label, value) = match rest.strip_prefix('{') {
                Some(rest) => {
                    let (labels, value) = rest.rsplit_once("} ")?;
                    (Some(labels.split_once('"')?.1.strip_suffix('"')?), value)
                }
                None => (None, rest.strip_prefix(' ')?),
            };
            Some((label, value.parse().ok()?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::{ProbeLabel, SinkLabel};

    #[test]
    fn counters_are_read_with_their_labels() {
        let health = Health::default();
        let registry = registry(&health);
        health.late.inc_by(7);
        health.queue_depth.set(-3);
        for (probe, count) in [("exec", 2), ("stdio", 5)] {
            let label = ProbeLabel { probe: probe.into() };
            health.lost.get_or_create(&label).inc_by(count);
        }
        health.shed.get_or_create(&SinkLabel { sink: "store" }).inc();
        let counters = Counters::read(&registry);
        let lost = counters.count("events_lost");
        assert_eq!((lost.total, lost.by["exec"], lost.by["stdio"]), (7, 2, 5));
        assert_eq!(counters.count("events_late").total, 7);
        assert_eq!(counters.count("events").total, 0);
        assert_eq!(counters.count("shed").by["store"], 1);
        assert_eq!(counters.gauge("queue_depth"), -3);
    }
}
