//! What the rooms share: configuration, time, the open traces, and what they bring about.
//!
//! Every room gets it as `&mut Context` with each event or fact. Imports no room. Does not: decide anything.

use sandglass_model::cni::NetworkList;
use sandglass_model::{ClockAnchor, Timestamp};

use crate::config::CorrelatorConfig;
use crate::effects::Effects;
use crate::facts::Facts;
use crate::names::NameCache;
use crate::traces::OpenTraces;

/// What the rooms share.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) config: CorrelatorConfig,
    /// The newest time seen; while a timer fires, the time it was due.
    pub(crate) now: Timestamp,
    pub(crate) anchor: ClockAnchor,
    pub(crate) losses: Losses,
    /// The node's CNI configuration: its networks, and the plugins of each.
    pub(crate) networks: Vec<NetworkList>,
    /// File names of executables.
    pub(crate) names: NameCache,
    pub(crate) traces: OpenTraces,
    pub(crate) effects: Effects,
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
            names: NameCache::default(),
            traces: OpenTraces::new(config.max_traces),
            effects: Effects::default(),
            config,
        }
    }

    /// The serial number of the next exchange.
    pub(crate) fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }
}

/// Until when what begins may miss records that a probe lost.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    pub(crate) processes: Option<Timestamp>,
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
