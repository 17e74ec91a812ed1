//! The health of the agent: its probes, its losses, its queues.
//!
//! Sources, pipeline and sinks count here; `/metrics` and `/api/v1/health` read the same counters.
//! Six words, six counters, never interchangeable: lost, limited, late, orphan, evicted, shed (ARCHITECTURE.md).

mod family;
mod refused;

use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::Serialize;

use crate::cni_state::CniState;
use crate::config_state::ConfigState;
use crate::ip_pools::IpPools;
use crate::registration::register;

pub use family::{Count, CounterFamily, Label};
pub use refused::{CLAIMS, REASONS, RefusedLabel, RefusedProcess, RefusedProcesses};

/// One probe, and the hook it is attached to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProbeStatus {
    /// What it observes: `exec`, `stdio`, ...
    pub probe: String,
    /// The rung of the ladder in use, e.g. `tp_btf`; `none` when nothing could be attached.
    pub hook: String,
    /// Whether it is attached.
    pub attached: bool,
    /// What is missing without it, or why a lower rung is in use; empty on the best rung.
    pub consequence: String,
    /// How to get the best rung; empty on it.
    pub hint: String,
}

/// Label: which probe.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct ProbeLabel {
    /// Name as in [`ProbeStatus::probe`].
    pub probe: String,
}

/// Label: which ETW session (Windows).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct SessionLabel {
    /// Its name: one of the agent's own, or that of the session that wrote a replayed file.
    pub session: String,
}

impl SessionLabel {
    /// The label of a session. A name longer than ETW allows is cut.
    #[must_use]
    pub fn new(session: &str) -> SessionLabel {
        SessionLabel {
            session: session.chars().take(MAX_SESSION_NAME).collect(),
        }
    }
}

/// Label: which table of the correlator, and whose entries were evicted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct TableLabel {
    /// Name of the table.
    pub table: &'static str,
    /// `noisy`: an owner that had more than a quarter of the full table; else the kind of owner, `sandbox` or `node`.
    pub owner: &'static str,
}

/// Label: which sink.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct SinkLabel {
    /// `otlp` or `store`: a recording blocks instead.
    pub sink: &'static str,
}

impl Label for ProbeLabel {
    fn value(&self) -> &str {
        &self.probe
    }
}

impl Label for SessionLabel {
    fn value(&self) -> &str {
        &self.session
    }
}

impl Label for TableLabel {
    fn value(&self) -> &str {
        self.table
    }
}

impl Label for SinkLabel {
    fn value(&self) -> &str {
        self.sink
    }
}

/// Bound of a label's value; the name of an ETW session is shorter.
const MAX_SESSION_NAME: usize = 128;

/// Counters and probes, shared by all parts; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Health {
    /// Events that reached the pipeline.
    pub events: Counter,
    /// Records lost on the kernel side, per probe.
    pub lost: CounterFamily<ProbeLabel>,
    /// Events that ETW lost before the agent could read them, those in lost buffers included, per session (Windows).
    /// `lost` counts them too.
    pub etw_lost: CounterFamily<SessionLabel>,
    /// Records left out on purpose because their owner has too many, per probe.
    pub limited: CounterFamily<ProbeLabel>,
    /// Events that came after the reorder window had passed them.
    pub late: Counter,
    /// Events whose owner was not found.
    pub orphan: Counter,
    /// Entries evicted because a table was full, per table and owner.
    pub evicted: CounterFamily<TableLabel>,
    /// Outputs shed because a sink's queue was full, per sink.
    pub shed: CounterFamily<SinkLabel>,
    /// Records that could not be decoded, per probe.
    pub undecodable: CounterFamily<ProbeLabel>,
    /// Processes that were refused as plugin or runtime, by claim and reason.
    pub untrusted: CounterFamily<RefusedLabel>,
    /// The newest of them.
    pub refused: RefusedProcesses,
    /// Events waiting between the sources and the correlator.
    pub queue_depth: Gauge,
    /// Bytes waiting in the kernel's ring buffer at the last look.
    pub ring_bytes: Gauge,
    /// Traces that are open.
    pub open_traces: Gauge,
    /// The agent's own configuration.
    pub configuration: ConfigState,
    /// The node's CNI configuration.
    pub cni: CniState,
    /// The node's pools of IP addresses.
    pub pools: IpPools,
    probes: Arc<Mutex<Vec<ProbeStatus>>>,
}

impl Health {
    /// Sets the status of a probe, and replaces an earlier one of the same probe.
    pub fn set_probe(&self, status: ProbeStatus) {
        // The series exist from now on, at 0: an alert on a rate needs a first sample.
        let label = ProbeLabel {
            probe: status.probe.clone(),
        };
        drop(self.lost.get_or_create(&label));
        drop(self.undecodable.get_or_create(&label));
        let mut probes = self.probes.lock().unwrap_or_else(PoisonError::into_inner);
        match probes.iter_mut().find(|probe| probe.probe == status.probe) {
            Some(probe) => *probe = status,
            None => probes.push(status),
        }
    }

    /// All probes, in the order they were first reported.
    #[must_use]
    pub fn probes(&self) -> Vec<ProbeStatus> {
        self.probes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Registers the counters; `sandglass` is the registry's prefix.
    pub fn register(&self, registry: &mut Registry) {
        for sink in ["otlp", "store"] {
            drop(self.shed.get_or_create(&SinkLabel { sink }));
        }
        register! { registry,
            "events": self.events, "Events that reached the pipeline";
            "events_lost": self.lost, "Records lost on the kernel side, per probe";
            "etw_events_lost": self.etw_lost, "Events that ETW lost before the agent could read them, per session (Windows)";
            "events_limited": self.limited, "Records left out on purpose because their owner has too many, per probe";
            "events_late": self.late, "Events that came after the reorder window, and the second that it waits for a probe that is behind, had passed them";
            "events_orphan": self.orphan, "Events whose owner was not found";
        }
        register! { registry,
            "evicted": self.evicted, "Entries evicted because a table of the correlator was full, per table and kind of owner; noisy: an owner that had more than a quarter of it";
            "shed": self.shed, "Outputs shed because a sink's queue was full";
            "events_undecodable": self.undecodable, "Records that could not be decoded, per probe";
        }
        register! { registry,
            "untrusted_processes": self.untrusted, "Processes refused as plugin or runtime, by claim and reason";
            "queue_depth": self.queue_depth, "Events waiting between the sources and the correlator";
            "ring_used_bytes": self.ring_bytes, "Bytes waiting in the kernel's ring buffer at the last look";
            "open_traces": self.open_traces, "Traces that are open";
        }
        registry.register_collector(Box::new(self.configuration.clone()));
        registry.register_collector(Box::new(self.cni.clone()));
        registry.register_collector(Box::new(self.pools.clone()));
    }
}
