//! The context: what all rooms share, namely configuration, time, the open traces, and the effects of handling an
//! event.
//!
//! Every room gets it as `&mut Context` with each event or fact. Imports no room. Does not: decide anything, or hold
//! state that only one room uses.

use sandglass_model::cni::{ConfigProblem, NetworkList};
use sandglass_model::{ClockAnchor, Timestamp};

use crate::config::CorrelatorConfig;
use crate::effects::Effects;
use crate::facts::Facts;
use crate::names::NameCache;
use crate::traces::OpenTraces;

/// What the rooms share. Its fields are apart from one another, so that a room can hold an open trace and push an
/// output.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) config: CorrelatorConfig,
    /// The newest time seen; while a timer fires, the time at which it was due. Never goes back, also when a late event
    /// has an older time of its own.
    pub(crate) now: Timestamp,
    /// Maps boot time to wall-clock time. A trace takes the anchor that holds when it opens and keeps it.
    pub(crate) anchor: ClockAnchor,
    /// How far the last losses reach.
    pub(crate) losses: Losses,
    /// The node's CNI configuration in the order of the file names: the network lists and the plugins of each.
    pub(crate) networks: Vec<NetworkList>,
    /// What keeps sandboxes from getting a network, as the CNI configuration was judged last.
    pub(crate) problems: Vec<ConfigProblem>,
    /// Names of executables and paths, each kept once.
    pub(crate) names: NameCache,
    pub(crate) traces: OpenTraces,
    pub(crate) effects: Effects,
    /// Facts that the router has not routed yet.
    pub(crate) facts: Facts,
    /// The last serial number of an exchange.
    serial: u64,
}

impl Context {
    pub(crate) fn new(config: CorrelatorConfig) -> Context {
        Context {
            now: Timestamp(0),
            anchor: config.anchor,
            losses: Losses::default(),
            facts: Facts::default(),
            serial: 0,
            networks: Vec::new(),
            problems: Vec::new(),
            names: NameCache::default(),
            traces: OpenTraces::default(),
            effects: Effects::default(),
            config,
        }
    }

    /// The serial number of the next exchange. Lookups and connects of all rooms share one sequence, so that a number
    /// names one exchange and sorts by begin.
    pub(crate) fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }
}

/// Until when something that begins may miss records that a probe lost; `None` before the first loss.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    /// Of processes, on which all spans of operations depend.
    pub(crate) processes: Option<Timestamp>,
    /// Of traffic: DNS messages, connects, conntrack, drops.
    pub(crate) traffic: Option<Timestamp>,
}

impl Losses {
    /// A trace that begins at this time may miss processes.
    pub(crate) fn processes_at(&self, at: Timestamp) -> bool {
        self.processes.is_some_and(|until| at <= until)
    }

    /// An exchange that begins at this time may miss records.
    pub(crate) fn traffic_at(&self, at: Timestamp) -> bool {
        self.traffic.is_some_and(|until| at <= until)
    }
}
