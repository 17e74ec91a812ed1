//! What is remembered after a trace has closed: sandboxes and pods, for links and attempt numbers.
//!
//! Bounded: the entry that was not used for the longest time goes first, counted by the caller.

use sandglass_model::{CniCommand, PodIdentity, RootId};

use crate::collections::recent::Recent;

/// What is remembered of a sandbox.
#[derive(Clone, Debug, Default)]
pub(crate) struct RememberedSandbox {
    pub(crate) identity: PodIdentity,
    /// Its creation, when seen.
    pub(crate) root: Option<RootId>,
    pub(crate) attempt: u32,
    /// It exists: an ADD now is another attachment, not its creation.
    pub(crate) created: bool,
    /// Its creation was seen to fail.
    pub(crate) failed: bool,
    /// Interfaces that were added and not removed since: mostly one or two. A tree took more memory than everything else
    /// here (bench: memory).
    pub(crate) attached: Vec<Box<str>>,
    /// Last operation of its own trace, and its attempt, by verb and interface.
    pub(crate) operations: Vec<CountedOperation>,
}

/// What is remembered of operations that are traces of their own.
#[derive(Clone, Debug)]
pub(crate) struct CountedOperation {
    command: CniCommand,
    ifname: Box<str>,
    attempt: u32,
    root: RootId,
}

/// Most interfaces remembered of one sandbox.
const MAX_INTERFACES: usize = 32;

impl RememberedSandbox {
    pub(crate) fn attach(&mut self, ifname: &str) {
        if self.attached.len() < MAX_INTERFACES && !self.attached.iter().any(|attached| **attached == *ifname) {
            self.attached.push(ifname.into());
        }
    }

    /// An interface was removed. With the last one the sandbox is no longer attached to anything, and a later ADD
    /// makes it anew (cnitool uses one id per namespace path over and over).
    pub(crate) fn detach(&mut self, ifname: &str) {
        let before = self.attached.len();
        self.attached.retain(|attached| **attached != *ifname);
        if before > 0 && self.attached.is_empty() {
            self.created = false;
        }
    }

    /// Counts an operation that is a trace of its own; returns its attempt and the previous one.
    pub(crate) fn count(&mut self, command: CniCommand, ifname: &str, root: RootId) -> (u32, Option<RootId>) {
        let mut counted = self.operations.iter_mut();
        if let Some(counted) = counted.find(|counted| counted.command == command && *counted.ifname == *ifname) {
            counted.attempt = counted.attempt.saturating_add(1);
            return (counted.attempt, Some(std::mem::replace(&mut counted.root, root)));
        }
        if self.operations.len() < MAX_INTERFACES {
            self.operations.push(CountedOperation {
                command,
                ifname: ifname.into(),
                attempt: 1,
                root,
            });
        }
        (1, None)
    }
}

/// The newest attempt to make a sandbox for a pod.
#[derive(Clone, Debug)]
pub(crate) struct PodAttempt {
    pub(crate) sandbox: String,
    pub(crate) number: u32,
    pub(crate) root: RootId,
}

/// Everything remembered.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) sandboxes: Recent<RememberedSandbox>,
    pub(crate) pods: Recent<PodAttempt>,
}

impl Memory {
    pub(crate) fn new(max: usize) -> Memory {
        Memory {
            sandboxes: Recent::new(max),
            pods: Recent::new(max),
        }
    }
}

/// What identifies a pod across its sandboxes; `None` when it has no name.
pub(crate) fn pod_key(identity: &PodIdentity) -> Option<String> {
    if !identity.uid.is_empty() {
        Some(identity.uid.clone())
    } else if !identity.name.is_empty() {
        Some(format!("{}/{}", identity.namespace, identity.name))
    } else {
        None
    }
}
