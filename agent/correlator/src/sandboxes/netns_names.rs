//! The names that runtimes gave to network namespaces, and which of them wait for their first plugin.
//!
//! The state of `unserved.rs`, which decides. Bounded by [`NAMES_MAX`]. Does not: open a trace.

use std::collections::VecDeque;

use sandglass_model::Timestamp;
use sandglass_model::trace::Cause;

use crate::collections::recent::Recent;

/// Names of network namespaces. Bounded by [`NAMES_MAX`], those that wait and those that were served alike.
#[derive(Debug)]
pub(crate) struct Unserved {
    pub(crate) names: Recent<NetnsState>,
    /// When the wait for each name is over. All wait equally long, so the front is due first.
    pub(crate) due: VecDeque<(Timestamp, Box<str>)>,
    /// An ADD with a namespace was seen: plugins of this node's runtime are visible.
    pub(crate) sees_plugins: bool,
}

/// What is known of a named network namespace.
#[derive(Debug)]
pub(crate) enum NetnsState {
    /// An ADD used it. Kept, since a name's record may come after the exec of its first plugin.
    Served,
    /// No ADD used it yet.
    Waiting(Box<Waiting>),
}

/// A network namespace that no ADD used yet.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) named: Timestamp,
    pub(crate) removed: Option<Timestamp>,
    /// What the configuration showed when it was named: it may be mended since.
    pub(crate) cause: Option<Box<Cause>>,
    /// `CNI_CONTAINERID` and `CNI_ARGS` of a DEL that named it.
    pub(crate) sandbox: Option<(String, String)>,
}

/// More sandboxes than are in creation at once.
pub(crate) const NAMES_MAX: usize = 1_024;

impl Default for Unserved {
    fn default() -> Unserved {
        Unserved {
            names: Recent::new(NAMES_MAX),
            due: VecDeque::new(),
            sees_plugins: false,
        }
    }
}

impl Unserved {
    /// How many names wait for their first plugin.
    pub(crate) fn len(&self) -> usize {
        self.due.len()
    }
}
