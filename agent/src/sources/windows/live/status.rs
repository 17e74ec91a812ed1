//! What the source reports of itself: the status of its probes, and lost records.
//!
//! Used by all threads of the source. Does not: count; `crate::health` does.

use sandglass_model::{Body, Event};

use crate::health::{ProbeLabel, ProbeStatus};
use crate::sources::clock;

/// The event of `count` records that ETW lost, at the time of the query: ETW keeps no time of a loss.
pub(super) fn lost(count: u64) -> Event {
    Event {
        at: clock::now(),
        body: Body::Lost {
            probe: "etw".to_owned(),
            count,
        },
    }
}

/// Label of the source's counters. One for both sessions: which of them lost events is counted by session beside it.
pub(super) fn label() -> ProbeLabel {
    ProbeLabel {
        probe: "etw".to_owned(),
    }
}

/// The status of an attached probe.
pub(super) fn attached(probe: &str, hook: &str) -> ProbeStatus {
    ProbeStatus {
        probe: probe.to_owned(),
        hook: hook.to_owned(),
        attached: true,
        consequence: String::new(),
        hint: String::new(),
    }
}

/// The status of a probe that is not attached.
pub(super) fn unattached(probe: &str, consequence: &str, why: &impl std::fmt::Display, hint: &str) -> ProbeStatus {
    ProbeStatus {
        probe: probe.to_owned(),
        hook: "none".to_owned(),
        attached: false,
        consequence: format!("{consequence}: {why}"),
        hint: hint.to_owned(),
    }
}
