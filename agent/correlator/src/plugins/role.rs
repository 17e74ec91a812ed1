//! The role of a process: what its exec and exit mean to the room of plugins.
//!
//! Kept in the process table for every tracked process. Does not: own the span; a role that names a span of a closed
//! trace is allowed, and is found to be stale by the key's serial number.

use sandglass_model::ProcessKey;

use crate::keys::SpanRef;

/// What a process is to the correlator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Forked below a plugin, has not executed an image; the span is its nearest ancestor's.
    Forked(SpanRef),
    /// A plugin or a command, with its span.
    Spanned(SpanRef),
    /// A process of the runtime; with a span when it is a step of a sandbox that is being created.
    Runtime(Option<SpanRef>),
    /// A daemon: the plugin that it was below has ended. Its events are no orphans, and make no spans.
    Detached,
    /// Has ended.
    Gone {
        /// It was a plugin or below one: its children are detached.
        below_plugin: bool,
    },
}

/// The result of a look-up by pid and start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PidMatch {
    /// This very process is in the table.
    Known(Role),
    /// Another process with this pid is: an older one whose exit was not seen, or a newer one if the record is late.
    Namesake(ProcessKey, Role),
    /// No process with this pid is.
    Never,
}
