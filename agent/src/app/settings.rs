//! From the configuration to the options of each part of the agent.
//!
//! Used by the composition root and by the commands that start single parts (`replay`, `doctor`). Reads the boot clock's
//! facts of the node and `NODE_NAME`; starts nothing.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use sandglass_correlator::CorrelatorConfig;
use sandglass_model::ClockAnchor;
use sandglass_model::recording::{self, Header};

use crate::cni_conf::CniOptions;
use crate::config::Config;
use crate::cri::{DEFAULT_SOCKETS, Endpoint, RuntimeChoice};
use crate::failure::Failure;
use crate::http::{AccessFiles, HttpOptions, ListenOptions};
use crate::node::NodeInfo;
use crate::sinks::store::StoreOptions;
use crate::sources::windows::normalize::{ActivityNames, NamesFileError};
use crate::sources::{SourceSettings, TrustSettings, clock, native};

/// Facts about this node, with the configured name.
#[must_use]
pub fn node_info(config: &Config) -> NodeInfo {
    let facts = clock::node_facts();
    let named = [
        config.node_name.clone(),
        std::env::var("NODE_NAME").unwrap_or_default(),
        facts.host,
    ];
    NodeInfo {
        name: named.into_iter().find(|name| !name.is_empty()).unwrap_or_default(),
        service: "sandglass".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        boot_id: facts.boot_id,
        os: facts.os,
        kernel: facts.kernel,
        machine: facts.machine,
    }
}

/// Deadlines and bounds of the correlator.
#[must_use]
pub fn correlator_config(config: &Config, node: &NodeInfo, anchor: ClockAnchor) -> CorrelatorConfig {
    let correlation = &config.correlation;
    CorrelatorConfig {
        boot_id: node.boot_id.clone(),
        anchor,
        settle_ns: correlation.settle.as_nanos(),
        runtime_wait_ns: correlation.runtime_wait.as_nanos(),
        deadline_ns: correlation.deadline.as_nanos(),
        labels_wait_ns: match RuntimeChoice::parse(&config.cri.endpoint) {
            Ok(RuntimeChoice::Off) => 0,
            Ok(RuntimeChoice::Auto | RuntimeChoice::At(_)) | Err(_) => CorrelatorConfig::default().labels_wait_ns,
        },
        max_traces: correlation.max_traces,
        max_processes: correlation.max_processes,
        max_spans: correlation.max_spans,
        max_remembered: correlation.max_remembered,
        traffic: config.traffic.bounds(),
        windows: node.os == "Windows",
    }
}

/// What this node's source observes.
#[must_use]
pub fn source_settings(config: &Config) -> SourceSettings {
    let probes = &config.probes;
    SourceSettings {
        ring_bytes: probes.ring_buffer_bytes,
        stdio: probes.stdio,
        dns: probes.dns,
        connect: probes.connect,
        conntrack: probes.conntrack,
        drops: probes.drops,
        cri_sockets: cri_sockets(config),
        waits_after: config.waits.enabled.then(|| config.waits.after.into()),
        dns_ports: config.dns.ports.clone(),
        trust: TrustSettings {
            cgroups: config.plugins.trust.cgroups.clone(),
            users: config.plugins.trust.users.clone(),
        },
        node_netns: None,
        netns_directories: Vec::new(),
        vfp: config.windows.vfp.into(),
        activities: config.windows.activities.clone(),
    }
}

/// Where the runtime's CRI socket may be. Without a configured one all default places: the socket is not opened for this, so that the
/// agent need not be allowed to use it.
fn cri_sockets(config: &Config) -> Vec<PathBuf> {
    match RuntimeChoice::parse(&config.cri.endpoint) {
        _ if !config.probes.cri => Vec::new(),
        Ok(RuntimeChoice::At(Endpoint::Unix(path))) => vec![path],
        Ok(RuntimeChoice::At(Endpoint::Tcp(_) | Endpoint::Pipe(_))) => Vec::new(),
        Ok(RuntimeChoice::Auto | RuntimeChoice::Off) | Err(_) => DEFAULT_SOCKETS.map(PathBuf::from).to_vec(),
    }
}

/// What this node's source observes with every key at its default: benchmarks and tests vary single options of it.
///
/// # Errors
/// None: the table of activity names is the agent's own.
pub fn default_source() -> Result<native::Options, NamesFileError> {
    native::Options::from_settings(source_settings(&Config::default()))
}

/// Names of HNS's and HCS's activities.
///
/// # Errors
/// The configured table cannot be used.
pub fn activity_names(config: &Config) -> Result<ActivityNames, Failure> {
    Ok(ActivityNames::with_file(config.windows.activities.as_deref())?)
}

/// Where the CNI configuration is looked for.
#[must_use]
pub fn cni_options(config: &Config) -> CniOptions {
    CniOptions {
        conf_dir: config.cni.conf_dir.clone(),
        bin_dirs: config.cni.bin_dirs.clone(),
        ..CniOptions::found_below(Path::new("/"))
    }
}

/// The container runtime that labels are requested from.
///
/// # Errors
/// The key is not an endpoint.
pub fn runtime_choice(config: &Config) -> Result<RuntimeChoice, Failure> {
    RuntimeChoice::parse(&config.cri.endpoint).map_err(|error| {
        Failure::usage(
            format!("configuration key cri.endpoint: {error}"),
            "write unix:///path/to/socket, tcp://127.0.0.1:port, auto or none",
        )
    })
}

/// Bounds of the store behind the page.
#[must_use]
pub fn store_options(config: &Config) -> StoreOptions {
    StoreOptions::live(config.store.max_traces)
}

/// The directory in which the store keeps its traces, or must not keep them (`store.on_disk`): the spool's, with a collector or without one.
///
/// # Errors
/// The path is relative: the working directory of a service is arbitrary.
pub fn store_directory(config: &Config) -> Result<Option<&Path>, Failure> {
    let directory = config.otlp.spool_directory.as_deref();
    match directory.filter(|directory| !directory.as_os_str().is_empty()) {
        Some(directory) if !directory.has_root() => Err(Failure::usage(
            format!(
                "configuration key otlp.spool_directory: {} is not an absolute path",
                directory.display()
            ),
            "write a path such as /var/lib/sandglass/spool",
        )),
        directory => Ok(directory),
    }
}

/// Where the HTTP server listens, and its limits. `node` gives the node's own names.
#[must_use]
pub fn http_options(config: &Config, node: &NodeInfo) -> HttpOptions {
    let (http, page) = (&config.http, &config.page);
    // Prometheus sends what it connects to, which can be the node's name.
    let short = node.name.split('.').next().unwrap_or_default();
    let own = [node.name.as_str(), short].into_iter().filter(|name| !name.is_empty());
    HttpOptions {
        metrics: Some(ListenOptions {
            host_names: own.map(str::to_owned).chain(http.hosts.iter().cloned()).collect(),
            ..ListenOptions::at(http.address)
        }),
        ..page_options(config, page.listen(http.address), page.address.is_none())
    }
}

/// Only the page's listener, for a replay: at `page.address`, or else at `http.address`.
#[must_use]
pub fn replay_http_options(config: &Config) -> HttpOptions {
    let page = config.page.address;
    page_options(config, page.unwrap_or(config.http.address), false)
}

fn page_options(config: &Config, address: SocketAddr, any_port: bool) -> HttpOptions {
    let page = &config.page;
    HttpOptions {
        page: ListenOptions {
            any_port,
            host_names: page.hosts.clone(),
            ..ListenOptions::at(address)
        },
        access: AccessFiles {
            token: page.token_file.clone(),
            certificate: page.certificate_file.clone().zip(page.key_file.clone()),
            client_authorities: page.client_ca_file.clone(),
        },
        ..HttpOptions::new(address, config.correlation.stuck_after.into())
    }
}

/// The header of a recording made on this node.
pub(super) fn recording_header(config: &Config, node: &NodeInfo, clock: ClockAnchor) -> Header {
    Header {
        os: node.os.clone(),
        kernel: node.kernel.clone(),
        machine: node.machine.clone(),
        node: node.name.clone(),
        holds: Some(recording::Holds {
            arguments: config.commands.arguments,
            anonymized: false,
        }),
        ..Header::new(&node.version, node.boot_id.clone(), clock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_waited_for_only_where_a_runtime_may_give_them() {
        let waits = |endpoint: &str| {
            let mut config = Config::default();
            config.cri.endpoint = endpoint.to_owned();
            correlator_config(&config, &NodeInfo::default(), ClockAnchor::default()).labels_wait_ns > 0
        };
        assert!(waits("auto") && waits("unix:///run/cri.sock"));
        assert!(!waits("none"));
    }
}
