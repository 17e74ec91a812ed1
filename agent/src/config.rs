//! Configuration: one YAML file below the flags, every key with a default and an origin.
//!
//! Used by all commands. Precedence: flag, then file, then default; `print-config` shows each key with the origin of its
//! value. The environment sets the log filter (`SANDGLASS_LOG`), the node name (`NODE_NAME`, from the downward API) and
//! what OpenTelemetry defines (`OTEL_*`, see `sinks::otlp`). An unknown key is an error that names the nearest valid one.

pub mod defaults;
pub mod duration;
mod error;
mod layers;
mod page;
mod plugins;
mod traffic;
mod waits;
mod windows;
mod yaml;

use std::net::SocketAddr;
use std::path::PathBuf;

use sandglass_model::masking::Arguments;
use serde::{Deserialize, Serialize};

use crate::sinks::otlp::config::Settings;

pub use duration::Period;
pub use error::ConfigError;
pub use layers::{Layers, Origin};
pub use page::PageConfig;
pub use plugins::{PluginsConfig, TrustConfig};
pub use traffic::{DnsConfig, TrafficConfig};
pub use waits::WaitsConfig;
pub use windows::WindowsConfig;

/// All settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Name of the node on spans; empty: `NODE_NAME` of the environment, then the host name.
    pub node_name: String,
    /// Metrics and health.
    pub http: HttpConfig,
    /// Page and API.
    pub page: PageConfig,
    /// The hooks of this node.
    pub probes: ProbesConfig,
    /// What of commands becomes part of events.
    pub commands: CommandsConfig,
    /// Which packets count as DNS.
    pub dns: DnsConfig,
    /// Deadlines, thresholds and bounds for lookups, connections and conntrack entries.
    pub traffic: TrafficConfig,
    /// Deadlines and bounds of the correlator.
    pub correlation: CorrelationConfig,
    /// The runtime's CRI socket: labels of pods, and sandboxes older than the agent.
    pub cri: CriConfig,
    /// Location of the CNI configuration.
    pub cni: CniConfig,
    /// Which processes count as plugins and runtimes.
    pub plugins: PluginsConfig,
    /// OTLP export; off without an endpoint here or in `OTEL_EXPORTER_OTLP_ENDPOINT`.
    pub otlp: Settings,
    /// The embedded store behind the page.
    pub store: StoreConfig,
    /// Why a plugin took its time.
    pub waits: WaitsConfig,
    /// Bounds of `/metrics`.
    pub metrics: MetricsConfig,
    /// Settings of Windows nodes.
    pub windows: WindowsConfig,
}

/// `http`: metrics and health.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpConfig {
    /// Address and port to listen on; loopback by default.
    pub address: SocketAddr,
    /// Host names that requests may name besides the node's own and addresses (protection against DNS rebinding).
    pub hosts: Vec<String>,
}

/// `probes`: the hooks of this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProbesConfig {
    /// Size of the kernel's ring buffer in bytes; rounded up to a power of two of pages.
    pub ring_buffer_bytes: u32,
    /// Read the standard output of plugins, for their error messages, where the kernel allows it.
    pub stdio: bool,
    /// Observe when the runtime receives requests to make sandboxes, and when it responds.
    pub cri: bool,
    /// Observe DNS queries and answers.
    pub dns: bool,
    /// Observe the establishment of TCP connections.
    pub connect: bool,
    /// Observe conntrack entries being created and destroyed, and read conntrack's counters.
    pub conntrack: bool,
    /// Observe DNS packets and SYNs that the kernel drops.
    pub drops: bool,
    /// Events that may wait between the sources and the correlator.
    pub queue_events: usize,
}

/// `commands`: what of commands becomes part of events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CommandsConfig {
    /// Arguments of commands, plugins and runtimes: `masked`, `full` or `none`.
    pub arguments: Arguments,
}

/// `correlation`: deadlines and bounds of the correlator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CorrelationConfig {
    /// How long events of different processors are held to put them in order.
    pub reorder: Period,
    /// How long an operation stays open for the next plugin of its chain after the last one ended, unless the CNI
    /// configuration names that plugin: `runtime_wait` counts then.
    pub settle: Period,
    /// How long a sandbox's trace waits for the runtime's next step.
    pub runtime_wait: Period,
    /// How long a plugin may run until its operation is closed as incomplete.
    pub deadline: Period,
    /// How long a running operation may take before the page calls it stuck.
    pub stuck_after: Period,
    /// Most traces open at once.
    pub max_traces: usize,
    /// Most processes tracked at once.
    pub max_processes: usize,
    /// Most spans in one trace.
    pub max_spans: usize,
    /// Most ended sandboxes kept in memory, for links and attempt numbers.
    pub max_remembered: usize,
}

/// `cri`: the runtime's CRI socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CriConfig {
    /// `unix:///path`, a path or `tcp://127.0.0.1:port`; `auto`: the default sockets of containerd and CRI-O; `none`.
    pub endpoint: String,
    /// Longest wait for one call.
    pub timeout: Period,
}

/// `cni`: location of the CNI configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CniConfig {
    /// Configuration directory; unset: the runtime's own setting, then `/etc/cni/net.d`.
    pub conf_dir: Option<PathBuf>,
    /// Plugin directories; empty: the runtime's own setting, then `/opt/cni/bin`.
    pub bin_dirs: Vec<PathBuf>,
}

/// `store`: the embedded store behind the page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreConfig {
    /// Most traces kept.
    pub max_traces: usize,
    /// Closed traces are kept on disk too, in `otlp.spool_directory`, where one is set: they survive a restart of the agent.
    pub on_disk: bool,
}

/// `metrics`: bounds of `/metrics`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MetricsConfig {
    /// Most distinct plugins, commands and networks, each, and a quarter of the label sets that they make in one metric; further
    /// ones are counted as `other`.
    pub max_label_values: usize,
}

impl Config {
    /// Checks what types cannot: zero bounds, and deadlines that contradict each other.
    fn validate(&self) -> Result<(), ConfigError> {
        let bad = |key: &str, problem: &str| Err(ConfigError::value(key, problem));
        let correlation = &self.correlation;
        for (key, bound) in [
            ("correlation.max_traces", correlation.max_traces),
            ("correlation.max_processes", correlation.max_processes),
            ("correlation.max_spans", correlation.max_spans),
            ("correlation.max_remembered", correlation.max_remembered),
            ("probes.queue_events", self.probes.queue_events),
            ("store.max_traces", self.store.max_traces),
            ("metrics.max_label_values", self.metrics.max_label_values),
        ] {
            check_bound(key, bound)?;
        }
        if correlation.max_spans < 8 {
            return bad(
                "correlation.max_spans",
                "must be at least 8: a sandbox has that many by itself",
            );
        }
        if correlation.deadline <= correlation.settle {
            return bad("correlation.deadline", "must be longer than correlation.settle");
        }
        if !(65_536..=1 << 30).contains(&self.probes.ring_buffer_bytes) {
            return bad(
                "probes.ring_buffer_bytes",
                "must lie between 65536 (64 KiB) and 1073741824 (1 GiB)",
            );
        }
        self.page.validate(self.http.address)?;
        self.dns.validate()?;
        self.plugins.validate()?;
        self.windows.validate()?;
        self.traffic.validate()
    }
}

/// Whether the bound of a table is one that a node's memory can hold.
fn check_bound(key: &str, bound: usize) -> Result<(), ConfigError> {
    match bound {
        0 => Err(ConfigError::value(key, "must be at least 1")),
        1..=MAX_BOUND => Ok(()),
        _ => Err(ConfigError::value(key, "must be at most 16777216")),
    }
}

/// The largest bound of a table; the chart's schema has it too.
const MAX_BOUND: usize = 1 << 24;

#[cfg(test)]
mod tests;
