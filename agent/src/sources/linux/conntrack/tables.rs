//! The tables whose counters are polled: the node's own every second, those of sandboxes as `sandboxes` decides.
//!
//! Used by the threads of `conntrack`, once a second. A node's table that cannot be read (conntrack is a module that is
//! not loaded yet, say) is tried again every minute. Does not: send what there is to tell.

use std::io;

use sandglass_model::time::SECOND;
use sandglass_model::{Event, Timestamp};

use super::counts::Counters;
use super::sandboxes::{KnownNamespaces, Sandboxes};

/// The tables. What it opens belongs to the namespace of the thread that polls first.
pub struct Tables {
    netns: u64,
    node: Node,
    sandboxes: Visits,
}

/// The node's own.
enum Node {
    Open(Counters),
    /// Not to be had; to be tried again then.
    Closed(Timestamp),
}

/// Those of sandboxes.
enum Visits {
    Unopened(KnownNamespaces),
    Open(Box<Sandboxes>),
    Impossible,
}

impl Tables {
    /// `netns` is the node's own namespace.
    pub fn new(netns: u64, known: KnownNamespaces) -> Tables {
        Tables {
            netns,
            node: Node::Closed(Timestamp(0)),
            sandboxes: Visits::Unopened(known),
        }
    }

    /// Looks at what is due; gives what there is to tell.
    pub fn poll(&mut self, now: Timestamp) -> Vec<Event> {
        let mut told = Vec::new();
        match self.poll_node(now) {
            Ok(event) => told.extend(event),
            Err(error) => {
                tracing::warn!(%error, "conntrack's counters cannot be read; tried again in a minute");
                self.node = Node::Closed(Timestamp(now.0 + TRY_EVERY_NS));
            }
        }
        match self.poll_sandboxes(now) {
            Ok(events) => told.extend(events),
            Err(error) => {
                tracing::info!(%error, "no conntrack counters of sandboxes: visiting them needs CAP_SYS_ADMIN");
                self.sandboxes = Visits::Impossible;
            }
        }
        told
    }

    fn poll_node(&mut self, now: Timestamp) -> io::Result<Option<Event>> {
        if matches!(self.node, Node::Closed(until) if now >= until) {
            self.node = Node::Open(Counters::open(self.netns)?);
        }
        match &mut self.node {
            Node::Open(counters) => counters.poll(now),
            Node::Closed(_) => Ok(None),
        }
    }

    fn poll_sandboxes(&mut self, now: Timestamp) -> io::Result<Vec<Event>> {
        if let Visits::Unopened(known) = &self.sandboxes {
            self.sandboxes = Visits::Open(Box::new(Sandboxes::new(known.clone())?));
        }
        match &mut self.sandboxes {
            Visits::Open(sandboxes) => sandboxes.poll(now),
            Visits::Unopened(_) | Visits::Impossible => Ok(Vec::new()),
        }
    }
}

const TRY_EVERY_NS: u64 = 60 * SECOND;
