//! `dns` and `traffic`: which packets count as DNS; deadlines and bounds for lookups, connections, conntrack entries.
//!
//! Used by [`super::Config`]. Defaults: [`super::defaults`].

use sandglass_correlator::TrafficBounds;
use serde::{Deserialize, Serialize};

use super::{ConfigError, Period, check_bound};

/// `dns`: which packets count as DNS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DnsConfig {
    /// Ports of DNS servers, over UDP and TCP, at most 8. Add that of a node-local cache on another port.
    pub ports: Vec<u16>,
}

/// `traffic`: deadlines, thresholds and bounds for lookups, connections and conntrack entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrafficConfig {
    /// A sandbox that sends nothing for this long after it was ready counts as silent, and its trace ends.
    pub ready_deadline: Period,
    /// How long to wait for the first connection after the first answered lookup, or for the lookup after the connection.
    pub ready_grace: Period,
    /// How long a query waits for its answer.
    pub lookup_deadline: Period,
    /// How long to wait for the next name of the search path after a negative answer.
    pub search_gap: Period,
    /// A lookup that takes longer is slow: it becomes a journey.
    pub slow_lookup: Period,
    /// A connection that takes longer to establish is slow: it becomes a journey.
    pub slow_connect: Period,
    /// Most journeys (traces of failed or slow lookups and connections) a minute; further ones are counted only.
    pub journeys_per_minute: u32,
    /// Most lookups open at once.
    pub max_lookups: usize,
    /// Most connections open at once.
    pub max_connects: usize,
    /// Most conntrack entries kept, to attribute address translations.
    pub max_flows: usize,
}

impl DnsConfig {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let problem = if self.ports.is_empty() {
            "must name at least one port; probes.dns: false turns DNS off"
        } else if self.ports.len() > MAX_PORTS {
            "must name at most 8 ports"
        } else if self.ports.contains(&0) {
            "0 is no port"
        } else {
            return Ok(());
        };
        Err(ConfigError::value("dns.ports", problem))
    }
}

impl TrafficConfig {
    /// As the correlator takes them.
    #[must_use]
    pub fn bounds(&self) -> TrafficBounds {
        TrafficBounds {
            ready_deadline_ns: self.ready_deadline.as_nanos(),
            ready_grace_ns: self.ready_grace.as_nanos(),
            lookup_deadline_ns: self.lookup_deadline.as_nanos(),
            search_gap_ns: self.search_gap.as_nanos(),
            slow_lookup_ns: self.slow_lookup.as_nanos(),
            slow_connect_ns: self.slow_connect.as_nanos(),
            journeys_per_minute: self.journeys_per_minute,
            max_lookups: self.max_lookups,
            max_connects: self.max_connects,
            max_flows: self.max_flows,
        }
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        for (key, bound) in [
            ("traffic.max_lookups", self.max_lookups),
            ("traffic.max_connects", self.max_connects),
            ("traffic.max_flows", self.max_flows),
        ] {
            check_bound(key, bound)?;
        }
        if self.ready_deadline <= self.ready_grace {
            return Err(ConfigError::value(
                "traffic.ready_deadline",
                "must be longer than traffic.ready_grace",
            ));
        }
        if self.lookup_deadline <= self.search_gap {
            return Err(ConfigError::value(
                "traffic.lookup_deadline",
                "must be longer than traffic.search_gap",
            ));
        }
        Ok(())
    }
}

/// Size of the kernel side's table of ports (`DNS_PORTS_MAX` of the wire records).
const MAX_PORTS: usize = 8;
