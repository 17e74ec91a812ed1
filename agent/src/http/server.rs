//! The state that all connections of the server share.
//!
//! Used by `routes`, which answers requests, and by `stream`, which feeds event streams. Does not: speak HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use super::health::HealthReport;
use super::places::Places;
use super::{HttpOptions, Services};
use crate::health::Count;
use crate::sinks::journal::Journal;
use crate::wall_clock::wall_ns;

/// What all connections of both listeners share.
pub struct Server {
    pub options: HttpOptions,
    pub services: Services,
    pub shutdown: watch::Receiver<bool>,
    /// Age at which a running operation counts as stuck, in nanoseconds. A reload of the configuration changes it.
    pub stuck_after_ns: Arc<AtomicU64>,
    /// One place for each event stream; a peer has half of them.
    pub streams: Arc<Places>,
}

impl Server {
    pub fn new(options: HttpOptions, services: Services, shutdown: watch::Receiver<bool>) -> Server {
        Server {
            stuck_after_ns: Arc::new(AtomicU64::new(nanoseconds(options.stuck_after))),
            streams: Places::new(options.max_streams, options.max_streams.div_ceil(2)),
            options,
            services,
            shutdown,
        }
    }

    /// The agent's health, now.
    pub fn health_report(&self) -> HealthReport {
        let Services { store, health, .. } = &self.services;
        HealthReport {
            node: store.node().clone(),
            now_unix_ns: wall_ns().to_string(),
            not_alive: (self.services.alive)().err().unwrap_or_default(),
            not_ready: (self.services.ready)().err().unwrap_or_default(),
            probes: health.probes(),
            configuration: health.configuration.report(),
            cni: health.cni.report(),
            ip_pools: health.pools.pools(),
            events: health.events.get(),
            lost: health.lost.count(),
            limited: health.limited.count(),
            late: Count::from(&health.late),
            orphan: Count::from(&health.orphan),
            evicted: health.evicted.count(),
            shed: health.shed.count(),
            undecodable: health.undecodable.count(),
            untrusted: health.untrusted.count(),
            refused: health.refused.newest_first(),
            queue_depth: health.queue_depth.get(),
            ring_bytes: health.ring_bytes.get(),
            open_traces: health.open_traces.get(),
            store: store.size(),
            store_disk: store.disk(),
            journal: self.services.journal.as_ref().map(Journal::status),
            streams: self.streams.used(),
            stuck_after_ns: self.stuck_after_ns(),
            otlp: (self.services.otlp)(),
        }
    }

    /// Age at which a running operation counts as stuck.
    pub fn stuck_after_ns(&self) -> u64 {
        self.stuck_after_ns.load(Ordering::Relaxed)
    }
}

/// A length of time that JSON can hold.
pub fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
