//! What a process that runs waits for now, from the newest look at its threads.
//!
//! Used by the room of waits. A sleep that lasts has no wake-up that names its cause, so the way goes down instead: a process
//! that waits for a child, a pipe or one of several things waits for what its children wait for. Of several threads the one that
//! sleeps for the most telling reason counts: the others of a Go program only wait for it.
//! Bounded by what the source reports of one look, and by the room's processes.
//! Does not: know spans.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use sandglass_model::network::ConnectStep;
use sandglass_model::waits::{SocketSeen, ThreadsSeen, TimeReason, Waiting};
use sandglass_model::{ProcessKey, SmolStr, Timestamp};

use crate::waits::evidence::Evidence;
use crate::waits::path::{Thread, ThreadId, Wait};
use crate::waits::seen::{Sleeper, rank};
use crate::waits::{Process, Waits};

/// Processes that run, by parent.
type Children = BTreeMap<ProcessKey, Vec<ProcessKey>>;

/// A chain of processes that wait for one another is a few long.
const DEPTH_MAX: usize = 16;

// === what goes in ===

impl Waits {
    /// A look. Returns the processes that wait for something else than before, or for nothing that is known.
    pub(crate) fn on_seen(&mut self, seen: &ThreadsSeen) -> Vec<(ProcessKey, Option<Waiting>)> {
        let unchanged: BTreeSet<ThreadId> = seen.unchanged.iter().copied().collect();
        self.seen.threads.retain(|thread, _| unchanged.contains(thread));
        for thread in &seen.threads {
            if self.processes.contains_key(&thread.process) {
                self.seen.threads.insert(thread.thread, Sleeper::of(thread));
            }
        }
        let processes = &self.processes;
        let sockets = seen.sockets.iter();
        self.seen
            .peers
            .on_sockets(sockets.filter(|socket: &&SocketSeen| processes.contains_key(&socket.process)));
        self.changed()
    }

    /// A process began to connect.
    pub(crate) fn on_connect(&mut self, at: Timestamp, step: &ConnectStep) {
        let process = step.initiator.as_ref().map(|initiator| initiator.process);
        if let Some(process) = process.filter(|process| self.processes.contains_key(process)) {
            self.seen.peers.on_connect(at, process, step.remote);
        }
    }

    /// The API server's service address is known.
    pub(crate) fn on_api_server(&mut self, address: SocketAddr) {
        self.seen.peers.api_server = Some(address);
    }

    /// A thread was woken or runs: what the look found is over.
    pub(super) fn not_asleep(&mut self, thread: ThreadId) {
        self.seen.threads.remove(&thread);
    }

    /// A process has ended.
    pub(super) fn not_seen(&mut self, process: ProcessKey) {
        self.seen.threads.retain(|_, sleeper| sleeper.process != process);
        self.seen.found.remove(&process);
        self.seen.peers.forget(process);
    }
}

// === what comes out ===

impl Waits {
    fn changed(&mut self) -> Vec<(ProcessKey, Option<Waiting>)> {
        let children = self.children();
        let running = self.processes.iter().filter(|(_, process)| !process.ended);
        let mut found = BTreeMap::new();
        for (key, process) in running {
            if let Some(waiting) = self.waiting(*key, process, &children, 0) {
                found.insert(*key, waiting);
            }
        }
        let before = std::mem::replace(&mut self.seen.found, found);
        let now = &self.seen.found;
        let changed = now
            .iter()
            .filter(|(process, waiting)| before.get(*process) != Some(*waiting));
        let mut changes: Vec<_> = changed
            .map(|(process, waiting)| (*process, Some(waiting.clone())))
            .collect();
        let over = before.keys().filter(|process| !now.contains_key(*process));
        changes.extend(over.map(|process| (*process, None)));
        changes
    }

    fn children(&self) -> Children {
        let mut children = Children::new();
        for (key, process) in self.processes.iter().filter(|(_, process)| !process.ended) {
            if let Some(parent) = process.parent {
                children.entry(parent).or_default().push(*key);
            }
        }
        children
    }

    /// What a process waits for: the most telling of its threads, or what its children wait for.
    fn waiting(&self, key: ProcessKey, process: &Process, children: &Children, depth: usize) -> Option<Waiting> {
        let own = self.most_telling(key);
        if own.is_none_or(Sleeper::passes_on) && depth < DEPTH_MAX {
            let below = children.get(&key).into_iter().flatten().filter_map(|child| {
                let process = self.processes.get(child)?;
                self.waiting(*child, process, children, depth + 1)
            });
            if let Some(waiting) = below.min_by_key(|waiting| (rank(waiting.reason), waiting.since)) {
                return Some(waiting);
            }
        }
        let sleeper = own?;
        let evidence = self.evidence_of(key, sleeper);
        Some(Waiting {
            reason: evidence.reason,
            what: evidence.what,
            who: process.name.clone(),
            by: evidence.by,
            confidence: evidence.confidence,
            function: if rank(sleeper.reason) == 0 {
                SmolStr::default()
            } else {
                sleeper.function.clone()
            },
            since: sleeper.since,
        })
    }

    fn most_telling(&self, process: ProcessKey) -> Option<&Sleeper> {
        // Of one that polls the sockets of its process may say what for.
        let rank = |sleeper: &Sleeper| match sleeper.polls {
            true => rank(self.evidence_of(process, sleeper).reason),
            false => rank(sleeper.reason),
        };
        let threads = self.seen.threads.values();
        threads
            .filter(|sleeper| sleeper.process == process)
            .min_by_key(|sleeper| (rank(sleeper), sleeper.polls, sleeper.since))
    }

    /// Why a thread sleeps: the lock and its holder, the address, or the daemon behind a socket.
    fn evidence_of(&self, process: ProcessKey, sleeper: &Sleeper) -> Evidence {
        let mut evidence = Evidence {
            reason: sleeper.reason,
            what: sleeper.what.to_owned(),
            by: SmolStr::default(),
            confidence: None,
        };
        let peers = &self.seen.peers;
        if sleeper.reason == TimeReason::FileLock {
            self.locks
                .complete_now((process, sleeper.thread), sleeper.since, &mut evidence);
        } else if sleeper.reason == TimeReason::Network {
            peers.name_remote(&mut evidence.what, process, sleeper.since);
        } else if sleeper.reason == TimeReason::Daemon {
            evidence.by = peers.name_listener(&mut evidence.what, process);
        } else if sleeper.polls {
            if let Some(remote) = peers.only_remote(process) {
                (evidence.reason, evidence.what) = (TimeReason::Network, remote);
            } else {
                evidence.by = peers.name_listener(&mut evidence.what, process);
                if !evidence.what.is_empty() {
                    evidence.reason = TimeReason::Daemon;
                }
            }
        }
        let has_no_peer = sleeper.polls && evidence.reason == TimeReason::Other;
        if (has_no_peer || evidence.reason == TimeReason::Timer)
            && let Some(root) = self.processes.get(&process).map(|process| process.root)
            && let Some(detection) = self.detections.now(root, sleeper.since)
        {
            return detection;
        }
        if evidence.reason == TimeReason::Other && evidence.what.is_empty() {
            evidence.what = sleeper.function.to_string();
        }
        evidence
    }

    /// The newest child that runs, for which a sleep of its parent that has no other cause is.
    pub(super) fn newest_child(&self, process: ProcessKey) -> Option<ThreadId> {
        let running = self.processes.iter().filter(|(_, child)| !child.ended);
        let children = running.filter(|(_, child)| child.parent == Some(process));
        let began = |key: &ProcessKey| self.threads.by_id().get(&key.pid).map(|thread| thread.begin);
        children.map(|(key, _)| *key).max_by_key(began).map(|key| key.pid)
    }

    /// The threads with their sleeps that last, as if these ended at `to`: for a path that ends while its processes run. `None` when
    /// no thread below the same plugin sleeps.
    pub(super) fn until(&mut self, process: ProcessKey, to: Timestamp) -> Option<BTreeMap<ThreadId, Thread>> {
        let root = self.processes.get(&process)?.root;
        let is_below = |sleeper: &&Sleeper| {
            let process = self.processes.get(&sleeper.process);
            process.is_some_and(|process| process.root == root && !process.ended)
        };
        let asleep = self.seen.threads.iter();
        let asleep: Vec<(ThreadId, Sleeper)> = asleep
            .filter(|(_, sleeper)| is_below(sleeper) && sleeper.since < to && rank(sleeper.reason) > 0)
            .map(|(thread, sleeper)| (*thread, sleeper.clone()))
            .collect();
        if asleep.is_empty() {
            return None;
        }
        let mut waits = Vec::new();
        for (thread, sleeper) in asleep {
            let evidence = self.evidence_of(sleeper.process, &sleeper);
            let waker = sleeper
                .passes_on()
                .then(|| self.newest_child(sleeper.process))
                .flatten();
            self.threads.thread(sleeper.process, thread, sleeper.begin);
            let wait = Wait {
                out: sleeper.since,
                woken: to,
                ran: to,
                waker,
                evidence: self.evidence_index(evidence),
                throttled_ns: 0,
                counted: None,
                goroutine: None,
            };
            waits.push((thread, wait));
        }
        let of_root = |thread: &Thread| {
            let process = self.processes.get(&thread.process);
            process.is_some_and(|process| process.root == root)
        };
        let below = self.threads.by_id().iter().filter(|(_, thread)| of_root(thread));
        let mut threads: BTreeMap<ThreadId, Thread> = below.map(|(id, thread)| (*id, thread.clone())).collect();
        for (id, mut wait) in waits {
            if let Some(thread) = threads.get_mut(&id) {
                let after = thread.waits.last().map_or(Timestamp(0), |last| last.ran);
                wait.out = wait.out.max(after).min(to);
                thread.waits.push(wait);
            }
        }
        Some(threads)
    }
}
