//! What is remembered of sandboxes and pods after their traces closed: for links, labels and attempt numbers.
//!
//! Used by the files of this room. The kubelet makes a new sandbox, with a new id, for each attempt at a pod; a runtime
//! retries operations under the same id. Bounded by `max_remembered` of each kind: the Kubernetes namespace with the most
//! entries loses the one that was not used for the longest time, and the caller counts it.
//! Does not: know open traces.

use std::sync::Arc;

use sandglass_model::{CniCommand, PodIdentity, RootId};

use crate::collections::recent::Recent;
use crate::owner::namespace_key;
use crate::sandboxes::packed_pod::PackedPod;

/// What is remembered of a sandbox.
#[derive(Clone, Debug, Default)]
pub(crate) struct RememberedSandbox {
    /// The pod with its labels, as far as reported.
    pub(crate) pod: PackedPod,
    /// Root span of its creation; `None` when that was not seen.
    pub(crate) root: Option<RootId>,
    /// Number of this attempt for the pod, from 1.
    pub(crate) attempt: u32,
    /// It exists: an ADD now is another attachment, not its creation.
    pub(crate) created: bool,
    /// Its creation was seen to fail.
    pub(crate) failed: bool,
    /// Interfaces that were added and not removed since, mostly one or two: a vector, because a tree took more memory
    /// than everything else in this entry (bench: memory).
    pub(crate) attached: Vec<Box<str>>,
    /// The last operation with a trace of its own, by verb and interface, with its attempt number.
    pub(crate) operations: Vec<CountedOperation>,
}

/// An operation that is a trace of its own, and how often it was attempted.
#[derive(Clone, Debug)]
pub(crate) struct CountedOperation {
    /// Its verb: ADD or DEL, the ones that are attempted again.
    command: CniCommand,
    ifname: Box<str>,
    attempt: u32,
    /// Root of its last attempt, for the link to it.
    root: RootId,
}

/// Bound on interfaces, and on counted operations, of one sandbox. Beyond it an attempt counts as the first.
const MAX_INTERFACES: usize = 32;

impl RememberedSandbox {
    /// An interface was added. One that is there already, or is beyond the bound, changes nothing.
    pub(crate) fn attach(&mut self, ifname: &str) {
        if self.attached.len() < MAX_INTERFACES && !self.attached.iter().any(|attached| **attached == *ifname) {
            self.attached.reserve_exact(1);
            self.attached.push(ifname.into());
        }
    }

    /// An interface was removed. With the last one the sandbox is attached to nothing, and a later ADD creates it anew:
    /// cnitool derives the id from the namespace path and uses it over and over.
    pub(crate) fn detach(&mut self, ifname: &str) {
        let before = self.attached.len();
        self.attached.retain(|attached| **attached != *ifname);
        if before > 0 && self.attached.is_empty() {
            self.created = false;
            self.attached = Vec::new();
        }
    }

    /// Counts an operation that is a trace of its own. Returns its attempt number, from 1, and the root of the attempt
    /// before.
    pub(crate) fn count(&mut self, command: CniCommand, ifname: &str, root: RootId) -> (u32, Option<RootId>) {
        let mut counted = self.operations.iter_mut();
        if let Some(counted) = counted.find(|counted| counted.command == command && *counted.ifname == *ifname) {
            counted.attempt = counted.attempt.saturating_add(1);
            return (counted.attempt, Some(std::mem::replace(&mut counted.root, root)));
        }
        if self.operations.len() < MAX_INTERFACES {
            // Mostly the one DEL: a vector that grows by itself begins with room for four.
            self.operations.reserve_exact(1);
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

/// The newest attempt to create a sandbox for a pod.
#[derive(Clone, Debug)]
pub(crate) struct PodAttempt {
    /// Id of the sandbox; a later attempt has another. Shared with the key of the sandbox's own entry.
    pub(crate) sandbox: Arc<str>,
    /// Number of the attempt, from 1.
    pub(crate) number: u32,
    pub(crate) root: RootId,
    /// [`namespace_key`] of the pod.
    pub(crate) namespace: u64,
}

/// The two tables.
#[derive(Debug)]
pub(crate) struct Memory {
    /// By the runtime's id of the sandbox.
    pub(crate) sandboxes: Recent<RememberedSandbox>,
    /// By `pod_key`.
    pub(crate) pods: Recent<PodAttempt>,
}

impl Memory {
    pub(crate) fn new(max: usize) -> Memory {
        Memory {
            sandboxes: Recent::shared(max, |sandbox| namespace_key(sandbox.pod.namespace())),
            pods: Recent::shared(max, |pod| pod.namespace),
        }
    }
}

/// The key of a pod across its sandboxes: the uid, which no two pods share, or namespace and name where the runtime
/// passes no uid (`K8S_POD_UID` in `CNI_ARGS`). `None` without a name.
pub(crate) fn pod_key(identity: &PodIdentity) -> Option<String> {
    if !identity.uid.is_empty() {
        Some(identity.uid.clone())
    } else if !identity.name.is_empty() {
        Some(format!("{}/{}", identity.namespace, identity.name))
    } else {
        None
    }
}
