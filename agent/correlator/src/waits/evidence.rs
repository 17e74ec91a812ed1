//! Why a thread slept: what a wait group shows of it.
//!
//! Used by the room of waits; each kind is kept once. Does not: find the reason.

use sandglass_model::SmolStr;
use sandglass_model::trace::Confidence;
use sandglass_model::waits::TimeReason;

/// Why a thread slept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Evidence {
    pub(crate) reason: TimeReason,
    /// See [`WaitGroup::what`](sandglass_model::waits::WaitGroup::what).
    pub(crate) what: String,
    /// See [`WaitGroup::by`](sandglass_model::waits::WaitGroup::by).
    pub(crate) by: SmolStr,
    /// See [`WaitGroup::confidence`](sandglass_model::waits::WaitGroup::confidence).
    pub(crate) confidence: Option<Confidence>,
}

/// Name of a thread that ended a wait or held a lock. The kernel numbers its workers by processor and pool (`kworker/1:2`, `kworker/u8:1`;
/// kernel/workqueue.c, `format_worker_id`). Which of them it was says nothing, and would make one wait of several.
pub(crate) fn name_of(thread: &SmolStr) -> SmolStr {
    match thread.split_once('/') {
        Some((WORKER, _)) => SmolStr::new_static(WORKER),
        _ => thread.clone(),
    }
}

/// What a worker of the kernel is called before its numbers.
const WORKER: &str = "kworker";
