//! Waits in words: what a process waited for, and who held it; what it waits for now.
//!
//! Used by the attributes of spans, verdicts, the view and the terminal. Does not: find a reason, or know what time it is.

use crate::phases::human;
use crate::trace::{Confidence, Span, Trace};
use crate::waits::{TimeReason, WaitGroup, Waiting};

/// Who ended a wait, or held what it waited for; `None` when that is not known.
#[must_use]
pub fn wait_by(reason: TimeReason, by: &str) -> Option<String> {
    match reason {
        _ if by.is_empty() => None,
        TimeReason::FileLock | TimeReason::KernelLock => Some(format!("held by {by}")),
        _ => Some(format!("woken by {by}")),
    }
}

/// Waits of one kind as a clause: `iptables waited 398 ms for a lock on a file (/run/xtables.lock, held by kube-proxy)`.
#[must_use]
pub fn wait_text(wait: &WaitGroup) -> String {
    let who = if wait.who.is_empty() { "it" } else { wait.who.as_str() };
    format!("{who} {}", wait_clause(wait))
}

/// The same without who it was: `waited 398 ms for a lock on a file (/run/xtables.lock, held by kube-proxy)`.
#[must_use]
pub fn wait_clause(wait: &WaitGroup) -> String {
    let times = if wait.count > 1 {
        format!(" {} times", wait.count)
    } else {
        String::new()
    };
    let by = wait_by(wait.reason, &wait.by).unwrap_or_default();
    let details = details(&wait.what, &by, wait.confidence);
    format!("waited{times} {} {}{details}", human(wait.ns), wait.reason.as_text())
}

/// What a wait for the end of duplicate address detection was for begins so; the addresses follow.
pub const DETECTION: &str = "duplicate address detection of";

/// What a process waits for now, or waited for when it was cut off; of an operation, that of the plugin that it waits for, or
/// that it ended with.
#[must_use]
pub fn waiting_of<'t>(trace: &'t Trace, span: &'t Span) -> Option<&'t Waiting> {
    if span.detail.as_operation().is_none() {
        return span.process()?.waiting.as_deref();
    }
    let plugin = trace.spans.iter().rfind(|below| {
        let parent = below.parent.and_then(|parent| trace.spans.get(parent));
        parent.is_some_and(|parent| parent.id == span.id) && below.detail.as_plugin().is_some()
    });
    plugin?.process()?.waiting.as_deref()
}

/// What a process waits for now, or waited for when it `ended`: `iptables waits for a lock on a file (/run/xtables.lock, held by
/// kube-proxy), in locks_lock_inode_wait`.
#[must_use]
pub fn waiting_text(waiting: &Waiting, ended: bool) -> String {
    let who = if waiting.who.is_empty() {
        "it"
    } else {
        waiting.who.as_str()
    };
    let verb = match (waiting.reason, ended) {
        (TimeReason::Processor, false) => "runs",
        (TimeReason::Processor, true) => "ran",
        (_, false) => "waits",
        (_, true) => "waited",
    };
    let by = match waiting.reason {
        _ if waiting.by.is_empty() => String::new(),
        TimeReason::Daemon => format!("behind it {}", waiting.by),
        reason => wait_by(reason, &waiting.by).unwrap_or_default(),
    };
    let details = details(&waiting.what, &by, waiting.confidence);
    let place = if waiting.function.is_empty() || waiting.what == waiting.function {
        String::new()
    } else {
        format!(", in {}", waiting.function)
    };
    format!("{who} {verb} {}{details}{place}", waiting.reason.as_text())
}

/// What is known beside the reason, in brackets; empty where it says all.
fn details(what: &str, by: &str, confidence: Option<Confidence>) -> String {
    let sure = confidence.map_or("", Confidence::as_str);
    let known: Vec<&str> = [what, by, sure].into_iter().filter(|text| !text.is_empty()).collect();
    if known.is_empty() {
        String::new()
    } else {
        format!(" ({})", known.join(", "))
    }
}
