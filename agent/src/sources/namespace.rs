//! How the agent requests from a source the network namespace of a sandbox that is older than the agent.
//!
//! Identity (CRI) knows the place from the runtime and calls; the native source answers. Does not: look itself.

use std::fmt;
use std::sync::Arc;

use sandglass_model::SandboxId;
use sandglass_model::event::Netns;

/// Where the network namespace of a sandbox is, as the runtime reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespacePlace {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// Path of the namespace; empty when the runtime does not report it.
    pub path: String,
    /// A process in it; 0 when the runtime does not report it.
    pub pid: u32,
}

/// Looks at such a place. May block.
#[derive(Clone)]
pub struct NamespaceLook(Arc<Look>);

type Look = dyn Fn(&NamespacePlace) -> Option<Netns> + Send + Sync;

impl NamespaceLook {
    /// Looks with the function `look`.
    pub fn new(look: impl Fn(&NamespacePlace) -> Option<Netns> + Send + Sync + 'static) -> NamespaceLook {
        NamespaceLook(Arc::new(look))
    }

    /// The namespace at `place`; `None` when it is gone or cannot be seen.
    #[must_use]
    pub fn at(&self, place: &NamespacePlace) -> Option<Netns> {
        (self.0)(place)
    }
}

impl fmt::Debug for NamespaceLook {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("NamespaceLook")
    }
}
