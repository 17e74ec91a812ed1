//! `dns` and `traffic`: which messages are DNS, and what is made of lookups, connections and conntrack entries.
//!
//! Used by [`super::Config`]. Defaults are the correlator's own, so that they stand in one place.

use sandglass_correlator::TrafficConfig as Bounds;
use serde::{Deserialize, Serialize};

use super::{ConfigError, Period};

/// `dns`: which messages are DNS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DnsConfig {
    /// Ports of DNS servers, over UDP and TCP; further ones where a node-local cache listens on another.
    pub ports: Vec<u16>,
}

/// `traffic`: deadlines, thresholds and bounds of what is made of lookups and connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrafficConfig {
    /// A sandbox that has sent nothing for so long after it was ready counts as silent, and its trace ends.
    pub ready_deadline: Period,
    /// After the first answered lookup, how long to wait for the first connection to begin, and the other way round.
    pub ready_grace: Period,
    /// How long a query without an answer is waited for.
    pub lookup_deadline: Period,
    /// After an answer that names nothing, how long to wait for the next name of the search path.
    pub search_gap: Period,
    /// A lookup that takes longer is slow, and becomes a journey.
    pub slow_lookup: Period,
    /// A connection whose set-up takes longer is slow, and becomes a journey.
    pub slow_connect: Period,
    /// Most journeys (traces of bad lookups and connections) a minute; those held back are counted.
    pub journeys_per_minute: u32,
    /// Most lookups open at once.
    pub max_lookups: usize,
    /// Most connections open at once.
    pub max_connects: usize,
    /// Most conntrack entries remembered, to join translations.
    pub max_flows: usize,
}

impl Default for DnsConfig {
    fn default() -> DnsConfig {
        DnsConfig { ports: vec![53] }
    }
}

impl Default for TrafficConfig {
    fn default() -> TrafficConfig {
        let bounds = Bounds::default();
        let period = |ns: u64| Period::from_millis(ns / 1_000_000);
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
        Err(bad("dns.ports", problem))
    }
}

impl TrafficConfig {
    /// As the correlator takes them.
    #[must_use]
    pub fn bounds(&self) -> Bounds {
        Bounds {
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
            if bound == 0 {
                return Err(bad(key, "must be at least 1"));
            }
        }
        if self.ready_deadline <= self.ready_grace {
            return Err(bad("traffic.ready_deadline", "must be longer than traffic.ready_grace"));
        }
        if self.lookup_deadline <= self.search_gap {
            return Err(bad("traffic.lookup_deadline", "must be longer than traffic.search_gap"));
        }
        Ok(())
    }
}

fn bad(key: &str, problem: &str) -> ConfigError {
    ConfigError::Value {
        key: key.to_owned(),
        problem: problem.to_owned(),
    }
}

/// As many as the kernel side's table of ports holds.
const MAX_PORTS: usize = 8;
