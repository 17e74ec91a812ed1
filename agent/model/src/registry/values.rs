//! Values of attributes and parts of names: closed sets as the registry writes them.
//!
//! Used by the registry and by metrics, which have the same labels. Does not: know a span.

use crate::trace::{DaemonDetail, Relation, RuntimePart, RuntimeStep};

/// Value of [`RELATION`](super::RELATION).
#[must_use]
pub fn relation(relation: Relation) -> &'static str {
    match relation {
        Relation::PreviousAttempt => "previous_attempt",
        Relation::Sandbox => "sandbox",
        Relation::Caller => "caller",
        Relation::Runtime => "runtime",
    }
}

/// Name of a daemon; `unknown` where its process is not known.
#[must_use]
pub fn daemon_name(daemon: &DaemonDetail) -> &str {
    if daemon.name.is_empty() {
        "unknown"
    } else {
        &daemon.name
    }
}

/// Name of a step of the runtime.
#[must_use]
pub fn step_name(step: RuntimeStep) -> &'static str {
    match step {
        RuntimeStep::Shim => "shim",
        RuntimeStep::Create => "create",
        RuntimeStep::Start => "start",
    }
}

/// Name of a part of the runtime's own work.
#[must_use]
pub fn part_name(part: RuntimePart) -> &'static str {
    match part {
        RuntimePart::Prepare => "prepare",
        RuntimePart::Finish => "finish",
    }
}
