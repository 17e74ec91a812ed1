//! Which hook each signal got, in the words the probes themselves chose.

use super::system::VITAL;
use super::{Finding, Level};
use crate::health::ProbeStatus;

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
