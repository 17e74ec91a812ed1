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
    /// Inode number of the node's network namespace.
    netns: u64,
    node: NodeTable,
    sandboxes: Visits,
}

/// The node's own table.
enum NodeTable {
    /// Read every second through one socket, which is kept.
    Open(CounterReader),
    /// Cannot be read; tried again at this time.
    Closed(Timestamp),
}

/// The tables of sandboxes.
enum Visits {
    /// Before the first poll: the thread that polls has to open its own namespace.
    Unopened(KnownNamespaces),
    Open(Box<SandboxTables>),
    /// The agent may not enter namespaces, which does not change while it runs.
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

    /// Polls the tables that are due. A failure is logged once and stops only its own kind of table.
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

    /// The node's table; opens it first where that is due.
    fn poll_node(&mut self, now: Timestamp) -> io::Result<Option<Event>> {
        if matches!(self.node, NodeTable::Closed(until) if now >= until) {
            self.node = NodeTable::Open(CounterReader::open(self.netns)?);
        }
        match &mut self.node {
            NodeTable::Open(counters) => counters.poll(now),
            NodeTable::Closed(_) => Ok(None),
        }
    }

    /// The sandboxes' tables. An error means that the thread cannot enter a namespace, or cannot return to its own.
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

/// Between two attempts to open the node's table. The module may be loaded long after the agent starts, by the first rule that
/// needs it.
const TRY_EVERY_NS: u64 = 60 * SECOND;
