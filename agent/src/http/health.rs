//! The agent's health as JSON: `/api/v1/health` and the `health` events of the stream.
//!
//! Reads the counters that `/metrics` exports. Does not: count anything.

use serde::Serialize;

use crate::cni_state::CniReport;
use crate::config_state::ConfigReport;
use crate::health::{Count, ProbeStatus, RefusedProcess};
use crate::ip_pools::IpPool;
use crate::node::NodeInfo;
use crate::sinks::journal::JournalStatus;
use crate::sinks::store::StoreSize;
use crate::sinks::store::disk::DiskStatus;

/// The whole report.
#[derive(Clone, Debug, Serialize)]
pub struct HealthReport {
    /// Facts about the node.
    pub node: NodeInfo,
    /// Time of the response, nanoseconds since 1970, as text: JavaScript numbers are not exact there.
    pub now_unix_ns: String,
    /// Empty when the pipeline makes progress.
    pub not_alive: String,
    /// Empty when a source is attached.
    pub not_ready: String,
    /// Each probe and its hook.
    pub probes: Vec<ProbeStatus>,
    /// The agent's configuration; `null` in a replay.
    pub configuration: Option<ConfigReport>,
    /// The node's CNI configuration; `null` before it was read, and in a replay.
    pub cni: Option<CniReport>,
    /// The node's pools of IP addresses; `null` before they were read, and in a replay.
    pub ip_pools: Option<Vec<IpPool>>,
    /// Events that reached the pipeline.
    pub events: u64,
    /// Records lost on the kernel side, by probe.
    pub lost: Count,
    /// Records left out on purpose because their owner has too many, by probe.
    pub limited: Count,
    /// Events that came after the reorder window.
    pub late: Count,
    /// Events without an owner.
    pub orphan: Count,
    /// Entries evicted from full tables, by table.
    pub evicted: Count,
    /// Outputs shed by full queues, by sink.
    pub shed: Count,
    /// Records that could not be decoded, by probe.
    pub undecodable: Count,
    /// Processes refused as plugin or runtime, by claim and reason.
    pub untrusted: Count,
    /// The newest of them, newest first.
    pub refused: Vec<RefusedProcess>,
    /// Events waiting for the correlator.
    pub queue_depth: i64,
    /// Bytes waiting in the kernel's ring buffer.
    pub ring_bytes: i64,
    /// Traces that are open.
    pub open_traces: i64,
    /// How full the store is.
    pub store: StoreSize,
    /// The store's files; `null` where its traces are in memory only.
    pub store_disk: Option<DiskStatus>,
    /// The journal of open traces; `null` without one.
    pub journal: Option<JournalStatus>,
    /// Event streams open.
    pub streams: usize,
    /// Age at which a running operation counts as stuck, nanoseconds.
    pub stuck_after_ns: u64,
    /// Status of OTLP export; `null` without it.
    pub otlp: serde_json::Value,
}
