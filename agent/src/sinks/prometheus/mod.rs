//! The Prometheus sink: product metrics from what the correlator found, and the registry that `/metrics` encodes.
//!
//! OpenMetrics text, base units, labels from closed sets or bounded ones ([`bounded`]): never pod, container, address or
//! name of a lookup. Those are in the traces; exemplars carry the trace id. Does not: serve HTTP (`crate::http` does).

mod bounded;
mod in_flight;
mod process;
mod product;

use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::health::Health;
use crate::node::NodeInfo;

pub use in_flight::InFlight;
pub use product::ProductMetrics;

/// Content type of what [`Metrics::encode`] gives.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The registry, shared by those who register and the HTTP server.
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
        registry.register_collector(Box::new(process::ProcessCollector));
        Metrics {
            registry: Arc::new(Mutex::new(registry)),
            probes,
            health: health.clone(),
        }
    }

    /// Lets an owner register its metrics.
    pub fn register(&self, owner: impl FnOnce(&mut Registry)) {
        owner(&mut self.registry.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The whole of `/metrics`.
    pub fn encode(&self) -> Result<String, std::fmt::Error> {
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
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        prometheus_client::encoding::text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests;
