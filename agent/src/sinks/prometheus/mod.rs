//! The Prometheus sink: product metrics from the correlator's outputs, and the registry that `/metrics` encodes and the push sends.
//!
//! OpenMetrics text, base units, labels from closed or bounded sets ([`bounded`]): never a pod, container, address or name of
//! a lookup. Those are in traces; exemplars carry the trace id. Does not: serve HTTP (`crate::http` does).

mod bounded;
mod conntrack;
mod durations;
mod exponential;
mod in_flight;
mod process;
mod product;
mod readiness;
mod series;
mod snapshot;
mod traffic;
mod windows;

use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::health::Health;
use crate::node::NodeInfo;

pub use durations::{Buckets, DurationExemplar, DurationSeries, PushedDurations};
pub use exponential::ExponentialHistogram;
pub use in_flight::InFlight;
pub use product::ProductMetrics;
pub use snapshot::{FamilyKind, MetricFamily, MetricSeries, SeriesValue};

/// Content type of the text of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The registry; cheap to clone, all clones are one registry.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
    probes: ProbeFamilies,
    health: Health,
}

#[derive(Clone, Debug, Default)]
struct ProbeFamilies {
    info: Family<ProbeInfoLabels, Gauge>,
    attached: Family<ProbeInfoLabels, Gauge>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProbeInfoLabels {
    probe: String,
    hook: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BuildLabels {
    version: String,
    os: String,
    arch: String,
}

impl Metrics {
    /// A registry with the agent's own metrics in it.
    #[must_use]
    pub fn new(node: &NodeInfo, health: &Health) -> Metrics {
        let mut registry = Registry::with_prefix("sandglass");
        health.register(&mut registry);
        let build = BuildLabels {
            version: node.version.clone(),
            os: node.os.clone(),
            arch: node.machine.clone(),
        };
        registry.register(
            "build",
            "Version of the agent and of the node it runs on",
            Info::new(build),
        );
        let probes = ProbeFamilies::default();
        registry.register(
            "probe_info",
            "Which hook each probe uses; the value is always 1",
            probes.info.clone(),
        );
        registry.register(
            "probe_attached",
            "Whether a probe is attached: 1 or 0",
            probes.attached.clone(),
        );
        Metrics {
            registry: Arc::new(Mutex::new(registry)),
            probes,
            health: health.clone(),
        }
    }

    /// Adds processor time, memory and descriptors of this process.
    pub fn register_process(&self) {
        self.register(|registry| registry.register_collector(Box::new(process::ProcessCollector)));
    }

    /// Passes the registry to `owner`, which registers its metrics.
    pub fn register(&self, owner: impl FnOnce(&mut Registry)) {
        owner(&mut self.registry.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The text of `/metrics`.
    ///
    /// # Errors
    /// A collector cannot be encoded.
    pub fn encode(&self) -> Result<String, std::fmt::Error> {
        Ok(in_order(&self.text()?))
    }

    /// All metrics as values. Histograms are those that were made with [`Buckets::AndExponential`]; others are left out.
    ///
    /// # Errors
    /// A collector cannot be encoded.
    pub fn families(&self) -> Result<Vec<MetricFamily>, std::fmt::Error> {
        let (text, pushed) = durations::collecting(|| self.text());
        Ok(snapshot::parse(&text?, pushed))
    }

    fn text(&self) -> Result<String, std::fmt::Error> {
        // Held from here: another scrape between clearing and encoding would find families without samples.
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        self.probes.info.clear();
        self.probes.attached.clear();
        for probe in self.health.probes() {
            let labels = ProbeInfoLabels {
                probe: probe.probe,
                hook: probe.hook,
            };
            self.probes.info.get_or_create(&labels).set(1);
            self.probes
                .attached
                .get_or_create(&labels)
                .set(i64::from(probe.attached));
        }
        let mut text = String::with_capacity(64 << 10);
        prometheus_client::encoding::text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

/// The same text with the samples of each family sorted by labels. Families are hash tables, and two replays of one
/// recording must print the same text. The samples of one label set keep their order: buckets must not be sorted as text.
fn in_order(text: &str) -> String {
    let mut ordered = String::with_capacity(text.len());
    let mut samples: Vec<(String, &str)> = Vec::new();
    for line in text.lines() {
        if line.starts_with('#') {
            flush(&mut samples, &mut ordered);
            ordered.push_str(line);
            ordered.push('\n');
        } else {
            samples.push((label_set(line), line));
        }
    }
    flush(&mut samples, &mut ordered);
    ordered
}

fn flush(samples: &mut Vec<(String, &str)>, ordered: &mut String) {
    samples.sort_by(|(one, _), (other, _)| one.cmp(other));
    for (_, line) in samples.drain(..) {
        ordered.push_str(line);
        ordered.push('\n');
    }
}

/// Labels of a sample without `le`.
fn label_set(line: &str) -> String {
    let Some((_, rest)) = line.split_once('{') else {
        return String::new();
    };
    let (mut quoted, mut escaped) = (false, false);
    let end = rest.find(|char| {
        match char {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            '}' if !quoted => return true,
            _ => {}
        }
        false
    });
    let labels = &rest[..end.unwrap_or(rest.len())];
    // The encoder writes `le` first.
    let bucket = labels.strip_prefix("le=\"").and_then(|rest| rest.split_once('"'));
    let labels = bucket.map_or(labels, |(_, rest)| rest.strip_prefix(',').unwrap_or(rest));
    labels.to_owned()
}

#[cfg(test)]
mod tests;
