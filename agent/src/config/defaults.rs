//! Every default of the configuration, each a named constant or the correlator's own.
//!
//! The command line, the options of the sources and the tests of README and chart (`tests/docs.rs`) refer to these.
//! Deadlines and bounds of the correlator, those of `traffic` included, come from its own `Config`: it also runs without
//! the agent, in `bench` and in the golden tests.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use sandglass_correlator::CorrelatorConfig;

use super::{
    CorrelationConfig, CriConfig, DnsConfig, HttpConfig, MetricsConfig, Period, ProbesConfig, StoreConfig,
    TrafficConfig, WaitsConfig, WindowsConfig,
};

/// Metrics and health: only from the node itself.
pub const HTTP_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9477);
/// Page and API where `page.address` is unset and `http.address` is [`HTTP_ADDRESS`].
pub const PAGE_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9478);
/// The kernel's ring buffer, in bytes.
pub const RING_BUFFER_BYTES: u32 = 1 << 20;
/// Events that may wait between the sources and the correlator.
pub const QUEUE_EVENTS: usize = 8_192;
/// The port of DNS servers (RFC 1035, section 4.2).
pub const DNS_PORT: u16 = 53;
/// How long events of different processors are held to put them in order.
pub const REORDER: Period = Period::from_millis(100);
/// How long a running operation may take before the page calls it stuck.
pub const STUCK_AFTER: Period = Period::from_secs(30);
/// The first default socket of a container runtime that exists.
pub const CRI_ENDPOINT: &str = "auto";
/// Longest wait for one CRI call.
pub const CRI_TIMEOUT: Period = Period::from_secs(2);
/// Most traces in the store behind the page.
pub const STORE_TRACES: usize = 1_000;
/// Most values of one label without a closed set of them.
pub const LABEL_VALUES: usize = 50;
/// How long a plugin runs before its waits are recorded. `portmap` takes 25 to 60 ms for the ADD of a healthy pod, by the node's speed, so that
/// attaching the programs is no part of it (bench/BUDGETS.md, ADD).
pub const WAITS_AFTER: Period = Period::from_millis(80);
/// Flows of the Windows virtual switch: off.
pub const VFP: Period = Period::from_secs(0);

/// One buffer of an ETW session, in KiB. ETW allows up to 16 MiB (EVENT_TRACE_PROPERTIES, `BufferSize`); a record must fit.
pub const ETW_BUFFER_KIB: u32 = 128;
/// ETW records that may wait between the session's callbacks and the decoder.
pub const ETW_QUEUE_RECORDS: usize = 8_192;

impl Default for HttpConfig {
    fn default() -> HttpConfig {
        HttpConfig {
            address: HTTP_ADDRESS,
            hosts: Vec::new(),
        }
    }
}

impl Default for ProbesConfig {
    fn default() -> ProbesConfig {
        ProbesConfig {
            ring_buffer_bytes: RING_BUFFER_BYTES,
            stdio: true,
            dns: true,
            connect: true,
            conntrack: true,
            drops: true,
            cri: true,
            queue_events: QUEUE_EVENTS,
        }
    }
}

impl Default for DnsConfig {
    fn default() -> DnsConfig {
        DnsConfig { ports: vec![DNS_PORT] }
    }
}

impl Default for TrafficConfig {
    fn default() -> TrafficConfig {
        let bounds = CorrelatorConfig::default().traffic;
        TrafficConfig {
            ready_deadline: period(bounds.ready_deadline_ns),
            ready_grace: period(bounds.ready_grace_ns),
            lookup_deadline: period(bounds.lookup_deadline_ns),
            search_gap: period(bounds.search_gap_ns),
            slow_lookup: period(bounds.slow_lookup_ns),
            slow_connect: period(bounds.slow_connect_ns),
            journeys_per_minute: bounds.journeys_per_minute,
            max_lookups: bounds.max_lookups,
            max_connects: bounds.max_connects,
            max_flows: bounds.max_flows,
        }
    }
}

impl Default for CorrelationConfig {
    fn default() -> CorrelationConfig {
        let bounds = CorrelatorConfig::default();
        CorrelationConfig {
            reorder: REORDER,
            settle: period(bounds.settle_ns),
            runtime_wait: period(bounds.runtime_wait_ns),
            deadline: period(bounds.deadline_ns),
            stuck_after: STUCK_AFTER,
            max_traces: bounds.max_traces,
            max_processes: bounds.max_processes,
            max_spans: bounds.max_spans,
            max_remembered: bounds.max_remembered,
        }
    }
}

impl Default for CriConfig {
    fn default() -> CriConfig {
        CriConfig {
            endpoint: CRI_ENDPOINT.to_owned(),
            timeout: CRI_TIMEOUT,
        }
    }
}

impl Default for StoreConfig {
    fn default() -> StoreConfig {
        StoreConfig {
            max_traces: STORE_TRACES,
            on_disk: true,
        }
    }
}

impl Default for MetricsConfig {
    fn default() -> MetricsConfig {
        MetricsConfig {
            max_label_values: LABEL_VALUES,
        }
    }
}

impl Default for WaitsConfig {
    fn default() -> WaitsConfig {
        WaitsConfig {
            enabled: true,
            after: WAITS_AFTER,
        }
    }
}

impl Default for WindowsConfig {
    fn default() -> WindowsConfig {
        WindowsConfig {
            vfp: VFP,
            activities: None,
        }
    }
}

fn period(ns: u64) -> Period {
    Period::from_millis(ns / 1_000_000)
}
