//! Configuration: one YAML file under the flags, every key with a default and an origin.
//!
//! Precedence: flag, then file, then default; `print-config` shows each key with where its value came from. The
//! environment gives the log filter (`SANDGLASS_LOG`), the node name (`NODE_NAME`, from the downward API) and what
//! OpenTelemetry defines (`OTEL_*`, see `sinks::otlp`). Unknown keys are errors that name the nearest valid one.

pub mod duration;
mod layers;
mod traffic;
mod windows;

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::sinks::otlp::config::Settings;

pub use duration::Period;
pub use layers::{ConfigError, Layers, Origin};
pub use traffic::{DnsConfig, TrafficConfig};
pub use windows::WindowsConfig;

/// All settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Name of the node on spans; empty: `NODE_NAME` of the environment, then the host name.
    pub node_name: String,
    /// Page, API and metrics.
    pub http: HttpConfig,
    /// The hooks of this node.
    pub probes: ProbesConfig,
    /// Which messages are DNS.
    pub dns: DnsConfig,
    /// What is made of lookups, connections and conntrack entries.
    pub traffic: TrafficConfig,
    /// Deadlines and bounds of the correlator.
    pub correlation: CorrelationConfig,
    /// The runtime's CRI socket, an optional enrichment.
    pub cri: CriConfig,
    /// Where the CNI configuration lies.
    pub cni: CniConfig,
    /// OTLP export; off without an endpoint here or in `OTEL_EXPORTER_OTLP_ENDPOINT`.
    pub otlp: Settings,
    /// The embedded store behind the page.
    pub store: StoreConfig,
    /// Bounds of `/metrics`.
    pub metrics: MetricsConfig,
    /// What is particular to Windows.
    pub windows: WindowsConfig,
}

/// `http`: page, API and metrics.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpConfig {
    /// Address and port; loopback unless told otherwise.
    pub address: SocketAddr,
    /// Host names besides the address under which the page may be asked for (protection against DNS rebinding).
    pub hosts: Vec<String>,
}

/// `probes`: the hooks of this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProbesConfig {
    /// Size of the kernel's ring buffer in bytes; rounded up to a power of two of pages.
    pub ring_buffer_bytes: u32,
    /// Read what plugins say on standard output, for their error messages, where the kernel lets us.
    pub stdio: bool,
    /// See DNS queries and answers.
    pub dns: bool,
    /// See TCP connections being set up.
    pub connect: bool,
    /// See conntrack entries come and go, and read conntrack's counters.
    pub conntrack: bool,
    /// See the kernel drop DNS packets and SYNs.
    pub drops: bool,
    /// Events that may wait between the sources and the correlator.
    pub queue_events: usize,
}

/// `correlation`: deadlines and bounds of the correlator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CorrelationConfig {
    /// How long events of different processors are held to put them in order.
    pub reorder: Period,
    /// How long an operation whose plugins have ended waits for the next plugin of its chain.
    pub settle: Period,
    /// How long a sandbox waits for the runtime's next step.
    pub runtime_wait: Period,
    /// How long a plugin may run before it is given up.
    pub deadline: Period,
    /// How long a running operation may take before the page calls it stuck.
    pub stuck_after: Period,
    /// Most traces open at once.
    pub max_traces: usize,
    /// Most processes tracked at once.
    pub max_processes: usize,
    /// Most spans in one trace.
    pub max_spans: usize,
    /// Most ended sandboxes remembered, for links and attempt numbers.
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

/// `cni`: where the CNI configuration lies.
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
}

/// `metrics`: bounds of `/metrics`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MetricsConfig {
    /// Most distinct plugins, commands and networks, each; further ones are counted as `other`.
    pub max_label_values: usize,
}

impl Default for HttpConfig {
    fn default() -> HttpConfig {
        HttpConfig {
            address: SocketAddr::from(([127, 0, 0, 1], 9477)),
            hosts: Vec::new(),
        }
    }
}

impl Default for ProbesConfig {
    fn default() -> ProbesConfig {
        ProbesConfig {
            ring_buffer_bytes: 1 << 20,
            stdio: true,
            dns: true,
            connect: true,
            conntrack: true,
            drops: true,
            queue_events: 8_192,
        }
    }
}

impl Default for CorrelationConfig {
    fn default() -> CorrelationConfig {
        CorrelationConfig {
            reorder: Period::from_millis(100),
            settle: Period::from_millis(500),
            runtime_wait: Period::from_secs(10),
            deadline: Period::from_secs(300),
            stuck_after: Period::from_secs(30),
            max_traces: 4_096,
            max_processes: 16_384,
            max_spans: 512,
            max_remembered: 8_192,
        }
    }
}

impl Default for CriConfig {
    fn default() -> CriConfig {
        CriConfig {
            endpoint: "auto".to_owned(),
            timeout: Period::from_secs(2),
        }
    }
}

impl Default for StoreConfig {
    fn default() -> StoreConfig {
        StoreConfig { max_traces: 1_000 }
    }
}

impl Default for MetricsConfig {
    fn default() -> MetricsConfig {
        MetricsConfig { max_label_values: 50 }
    }
}

impl Config {
    /// Refuses what no type can refuse: zero bounds and deadlines that contradict each other.
    fn validate(&self) -> Result<(), ConfigError> {
        let bad = |key: &str, problem: &str| {
            Err(ConfigError::Value {
                key: key.to_owned(),
                problem: problem.to_owned(),
            })
        };
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
            if bound == 0 {
                return bad(key, "must be at least 1");
            }
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
        self.dns.validate()?;
        self.windows.validate()?;
        self.traffic.validate()
    }
}

#[cfg(test)]
mod tests;
