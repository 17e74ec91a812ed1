//! Conntrack's counters of sandboxes: visits their network namespaces, a few a second, and reads.
//!
//! Used by `tables`; `netns` finds the namespaces. A visit moves the calling thread into the namespace and back (setns(2)),
//! which takes CAP_SYS_ADMIN; without it no sandbox is visited. Nothing of a namespace stays open between visits: an open
//! socket would keep the namespace alive after its sandbox. Bounded: [`VISITS_MAX`] visits a second, each namespace every
//! [`VISIT_EVERY_NS`], one whose table is in use every
//! [`BUSY_EVERY_NS`].

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sandglass_model::network::ConntrackCounts;
use sandglass_model::time::SECOND;
use sandglass_model::{Body, Event, Timestamp};

use super::counts::{Meter, read};
use super::socket::Requests;
use crate::sources::linux::known_namespaces::KnownNamespaces;
use crate::sources::linux::process_root::path_in_root;

/// The visits.
pub struct SandboxTables {
    /// Where the namespaces are; one that is gone is removed there.
    known: KnownNamespaces,
    /// The node's own namespace, to return to.
    home: File,
    /// By inode number; only namespaces that are known.
    visited: BTreeMap<u64, Visited>,
}

/// What is kept of a namespace between two visits.
struct Visited {
    /// Identifies the namespace together with its inode: the kernel uses the inode of a destroyed namespace again, with another
    /// path.
    path: String,
    meter: Meter,
    /// Time of the next visit.
    due: Timestamp,
}

impl SandboxTables {
    /// Of the calling thread.
    ///
    /// # Errors
    /// When the thread may not enter namespaces.
    pub fn new(known: KnownNamespaces) -> io::Result<SandboxTables> {
        let home = File::open("/proc/thread-self/ns/net")?;
        // Tried where it changes nothing: without the capability it fails here, not at the first sandbox.
        enter(&home)?;
        Ok(SandboxTables {
            known,
            home,
            visited: BTreeMap::new(),
        })
    }

    /// Visits the namespaces that are due.
    ///
    /// # Errors
    /// When the thread cannot return to its own namespace.
    pub fn poll(&mut self, now: Timestamp) -> io::Result<Vec<Event>> {
        let inodes = self.known.inodes();
        self.visited.retain(|inode, _| inodes.binary_search(inode).is_ok());
        let mut due: Vec<(Timestamp, u64)> = inodes
            .iter()
            .map(|inode| {
                (
                    self.visited.get(inode).map_or(Timestamp(0), |visited| visited.due),
                    *inode,
                )
            })
            .filter(|(due, _)| *due <= now)
            .collect();
        // The longest due come first, so that each gets its turn.
        due.sort_unstable();
        due.truncate(VISITS_MAX);
        let counted: Vec<ConntrackCounts> = due.iter().filter_map(|(_, inode)| self.visit(*inode, now)).collect();
        if !due.is_empty() {
            enter(&self.home)?;
        }
        let event = |counts| Event {
            at: now,
            body: Body::ConntrackCounted(Box::new(counts)),
        };
        Ok(counted.into_iter().map(event).collect())
    }

    /// Reads one namespace's counters, and leaves the thread there.
    fn visit(&mut self, inode: u64, now: Timestamp) -> Option<ConntrackCounts> {
        let path = self.known.path(inode)?;
        let Some(namespace) = open(&path, inode) else {
            // The sandbox is gone.
            self.known.remove(inode);
            self.visited.remove(&inode);
            return None;
        };
        let reading = enter(&namespace).and_then(|()| read(&mut Requests::open()?));
        let new = || Visited {
            path: path.clone(),
            meter: Meter::new(inode),
            due: now,
        };
        let visited = self.visited.entry(inode).or_insert_with(new);
        if visited.path != path {
            *visited = new();
        }
        visited.due = Timestamp(now.0 + VISIT_EVERY_NS);
        let reading = reading
            .inspect_err(|error| tracing::debug!(%error, inode, "conntrack's counters of a sandbox cannot be read"))
            .ok()?;
        let counts = visited.meter.take(reading, now);
        if reading.is_in_use() {
            visited.due = Timestamp(now.0 + BUSY_EVERY_NS);
        }
        // Most sandboxes never use conntrack: an empty table is not reported.
        counts.filter(|_| reading.is_in_use())
    }
}

/// The namespace at a path of the node, if it still has this inode.
fn open(path: &str, inode: u64) -> Option<File> {
    let is_it = |file: &File| file.metadata().is_ok_and(|seen| seen.ino() == inode);
    let of_node = File::open(path_in_root(1, path)).ok().filter(is_it);
    of_node.or_else(|| File::open(path).ok().filter(is_it))
}

/// Moves the calling thread, and no other of the agent, into a network namespace (setns(2), CLONE_NEWNET).
fn enter(namespace: &File) -> io::Result<()> {
    Ok(move_into_link_name_space(
        namespace.as_fd(),
        Some(LinkNameSpaceType::Network),
    )?)
}

/// Visits a second: enough for the 110 pods of the kubelet's default limit, of which few use conntrack. With more, each is
/// visited later than is due, in its turn.
const VISITS_MAX: usize = 8;
/// Between two visits of a namespace that does not use conntrack, as most do not.
const VISIT_EVERY_NS: u64 = 60 * SECOND;
/// Between two visits of one that does: its drops are then reported soon enough to explain a lookup that still waits.
const BUSY_EVERY_NS: u64 = 5 * SECOND;
