//! Which hook each probe got, with the consequence and hint that the probe itself reported.
//!
//! The evidence for all other sections: a probe that is attached proves what files can only promise. Does not: start a probe; the
//! command did, for a moment.

use super::system::VITAL;
use super::{Finding, Level};
use crate::health::ProbeStatus;

/// One finding for each probe, in the order in which the source started them.
pub(super) fn check(probes: &[ProbeStatus]) -> Vec<Finding> {
    if probes.is_empty() {
        return vec![
            Finding::new(Level::Fail, "probe", "no probe could be started")
                .why("without probes there is nothing to observe: only recordings can be shown")
                .hint("see the findings below; on Linux the agent needs root, or CAP_BPF and CAP_PERFMON"),
        ];
    }
    probes.iter().map(finding).collect()
}

/// A probe on a lesser rung of its ladder is a note: it works, and its consequence says what is missing. Only the vital probe's
/// absence is a failure, since the agent refuses to start without it.
fn finding(status: &ProbeStatus) -> Finding {
    let level = match (status.attached, status.probe.as_str()) {
        (true, _) if status.consequence.is_empty() => Level::Ok,
        (true, _) => Level::Note,
        (false, VITAL) => Level::Fail,
        (false, _) => Level::Warn,
    };
    let hook = if status.attached { status.hook.as_str() } else { "none" };
    Finding::new(level, "probe", format!("{}: {hook}", status.probe))
        .why(status.consequence.clone())
        .hint(status.hint.clone())
}
