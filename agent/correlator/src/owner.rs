//! The owner of traffic: the sandbox, or the node, that a record is attributed to.
//!
//! Used by the rooms of traffic and of Windows. A sandbox is named by its id, not by the key of a trace, since it has
//! traffic long after its trace closed. Imports no room.

use std::sync::Arc;

use crate::finding::Scope;

/// An owner, and the namespace in which the traffic was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    /// Inode of the network namespace (Linux), number of the compartment (Windows); 0 when not known.
    pub(crate) netns: u64,
    /// The sandbox; `None` for the node.
    pub(crate) sandbox: Option<Arc<str>>,
}

impl Owner {
    /// It was seen in this namespace, and no sandbox is known as its owner.
    pub(crate) fn is_unknown_in(&self, netns: u64) -> bool {
        self.netns == netns && self.sandbox.is_none()
    }

    /// The same sandbox, or the same namespace where no sandbox is known.
    pub(crate) fn is_same(&self, other: &Owner) -> bool {
        self.sandbox == other.sandbox && (self.sandbox.is_some() || self.netns == other.netns)
    }

    /// The kind of owner, for metrics.
    pub(crate) fn scope(&self) -> Scope {
        match self.sandbox {
            Some(_) => Scope::Sandbox,
            None => Scope::Node,
        }
    }
}
