//! Processes that the running agent refused as plugin, runtime or daemon, with their executables.
//!
//! Of a running agent only: the list comes from its health page, newest first. A refused plugin is either somebody who poses as one,
//! or a plugin of this node that runs without the rights that a plugin needs: only a person can tell. Who is trusted is decided in
//! the kernel at exec and explained in SECURITY.md. Does not: judge processes itself.

use super::{Finding, Level};
use crate::health::RefusedProcess;

/// A finding for each, up to [`SHOWN_MAX`]; none without a running agent.
pub(super) fn check(refused: &[RefusedProcess]) -> Vec<Finding> {
    refused.iter().take(SHOWN_MAX).map(finding).collect()
}

/// Path and cgroup identify who it is, user and reason why it was refused. Both texts are of its own choice, so they are shown and
/// never used.
fn finding(process: &RefusedProcess) -> Finding {
    let RefusedProcess {
        path,
        claim,
        reason,
        uid,
        cgroup,
        ..
    } = process;
    // Programs with a runtime's name run in containers too: that one of them is refused is usual.
    let level = if claim == "runtime" { Level::Note } else { Level::Warn };
    // The cgroup names the container in most layouts, which is how a reader finds the pod.
    let place = if cgroup.is_empty() { "an unknown cgroup" } else { cgroup };
    Finding::new(
        level,
        "trust.refused",
        format!("{path} was refused as {claim} (user {uid}, in {place})"),
    )
    .why(format!("{}: {}", meaning(reason), missing(claim)))
    .hint("if it belongs to this node's runtime, see plugins.trust in docs/reference.md; else somebody poses as one")
}

/// What is not there because of it.
fn missing(claim: &str) -> &'static str {
    match claim {
        "daemon" => "what it runs for plugins is in no trace",
        _ => "it makes no trace, metric or label",
    }
}

/// The reason in words; the names are `REASONS` of `health/refused.rs`.
/// A newer agent may report one that this doctor does not know: it is shown as it is.
fn meaning(reason: &str) -> &str {
    match reason {
        "user_namespace" => "it is in a user namespace of its own",
        "pid_namespace" => "it is in a pid namespace of its own, as in a container",
        "capabilities" => "it has neither CAP_NET_ADMIN nor CAP_SYS_ADMIN",
        "file_privileges" => "it has its capabilities from its file only",
        // Shown as it came, which is better than a wrong explanation.
        other => other,
    }
}

/// Findings at most, the newest first. The agent itself remembers a bounded number of them.
const SHOWN_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_process_is_shown_with_path_and_reason() {
        let process = |claim: &str| RefusedProcess {
            path: "/tmp/forger".to_owned(),
            claim: claim.to_owned(),
            reason: "capabilities".to_owned(),
            uid: 65_534,
            ..RefusedProcess::default()
        };
        let findings = check(&[process("plugin"), process("runtime"), process("daemon")]);
        let levels: Vec<Level> = findings.iter().map(|finding| finding.level).collect();
        assert_eq!(levels, [Level::Warn, Level::Note, Level::Warn]);
        assert!(findings[2].why.ends_with("what it runs for plugins is in no trace"));
        assert!(
            findings[0]
                .what
                .contains("/tmp/forger was refused as plugin (user 65534")
        );
        assert!(findings[0].why.starts_with("it has neither CAP_NET_ADMIN"));
        assert_eq!(check(&vec![process("plugin"); 100]).len(), SHOWN_MAX);
        assert!(check(&[]).is_empty());
    }
}
