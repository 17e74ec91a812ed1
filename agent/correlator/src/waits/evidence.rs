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
