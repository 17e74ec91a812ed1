//! The tables whose counters are polled: the node's own every second, those of sandboxes as `sandboxes` decides.
//!
//! Used by the feeds of `conntrack`, once a second. A node's table that cannot be read, because the module is not loaded yet
//! for example, is tried again every minute. Does not: send events.

use std::io;

use sandglass_model::time::SECOND;
use sandglass_model::{Event, Timestamp};

use super::counts::CounterReader;
use super::sandboxes::SandboxTables;
use crate::sources::linux::known_namespaces::KnownNamespaces;

/// The tables. Their sockets belong to the namespace of the thread that polls first.
pub struct Tables {
    netns: u64,
    node: NodeTable,
    sandboxes: Visits,
}

/// The node's own table.
enum NodeTable {
    Open(CounterReader),
    /// Cannot be read; tried again at this time.
    Closed(Timestamp),
}

/// The tables of sandboxes.
enum Visits {
    Unopened(KnownNamespaces),
    Open(Box<SandboxTables>),
    Impossible,
}

impl Tables {
    /// `netns` is the node's own namespace.
    pub fn new(netns: u64, known: KnownNamespaces) -> Tables {
        Tables {
            netns,
            node: NodeTable::Closed(Timestamp(0)),
            sandboxes: Visits::Unopened(known),
        }
    }

    /// Polls the tables that are due.
    pub fn poll(&mut self, now: Timestamp) -> Vec<Event> {
        let mut events = Vec::new();
        match self.poll_node(now) {
            Ok(event) => events.extend(event),
            Err(error) => {
                tracing::warn!(%error, "conntrack's counters cannot be read; tried again in a minute");
                self.node = NodeTable::Closed(Timestamp(now.0 + TRY_EVERY_NS));
            }
        }
        match self.poll_sandboxes(now) {
            Ok(counted) => events.extend(counted),
            Err(error) => {
                tracing::info!(%error, "no conntrack counters of sandboxes: visiting them needs CAP_SYS_ADMIN");
                self.sandboxes = Visits::Impossible;
            }
        }
        events
    }

    fn poll_node(&mut self, now: Timestamp) -> io::Result<Option<Event>> {
        if matches!(self.node, NodeTable::Closed(until) if now >= until) {
            self.node = NodeTable::Open(CounterReader::open(self.netns)?);
        }
        match &mut self.node {
            NodeTable::Open(counters) => counters.poll(now),
            NodeTable::Closed(_) => Ok(None),
        }
    }

    fn poll_sandboxes(&mut self, now: Timestamp) -> io::Result<Vec<Event>> {
        if let Visits::Unopened(known) = &self.sandboxes {
            self.sandboxes = Visits::Open(Box::new(SandboxTables::new(known.clone())?));
        }
        match &mut self.sandboxes {
            Visits::Open(sandboxes) => sandboxes.poll(now),
            Visits::Unopened(_) | Visits::Impossible => Ok(Vec::new()),
        }
    }
}

const TRY_EVERY_NS: u64 = 60 * SECOND;
