//! The owner of traffic: the sandbox, or the node, that a record of traffic is attributed to.

use std::sync::Arc;

use crate::finding::Scope;

/// An owner, and where it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    /// Inode of the network namespace (Linux), number of the compartment (Windows); 0 when not known.
    pub(crate) netns: u64,
    /// The sandbox; `None` for the node.
    pub(crate) sandbox: Option<Arc<str>>,
}

impl Owner {
    /// It was seen in this namespace, and no sandbox is known for it.
    pub(crate) fn is_unknown_in(&self, netns: u64) -> bool {
        self.netns == netns && self.sandbox.is_none()
    }

    pub(crate) fn scope(&self) -> Scope {
        match self.sandbox {
            Some(_) => Scope::Sandbox,
            None => Scope::Node,
        }
    }
}
