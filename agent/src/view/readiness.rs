//! Whether and when a sandbox's network has proven usable: of one sandbox, and counted over many.
//!
//! Used by the list rows, the network view and the terminal. Does not: decide it; the correlator does, and the trace's root
//! carries the times.

use sandglass_model::{Detail, Timestamp, Trace};
use serde::Serialize;

use super::quantile::quantile;
use crate::sinks::creation;

/// Readiness of one sandbox. Times are nanoseconds from the begin of the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Readiness {
    /// Whether the network has proven usable.
    pub state: ReadinessState,
    /// When the sandbox was created.
    pub created_ns: u64,
    /// The sandbox's first query or SYN.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_attempt_ns: Option<u64>,
    /// When the network had proven usable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_ns: Option<u64>,
    /// From the first query or SYN to `ready_ns`, or to the end of the last attempt: the network's own part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_ns: Option<u64>,
}

/// Whether a sandbox's network has proven usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadinessState {
    /// Its first traffic is pending, or has not succeeded yet.
    Waiting,
    /// The first lookup was answered, or the first connect established.
    Ready,
    /// It sent traffic, and none succeeded.
    Failed,
}

impl Readiness {
    /// Of the trace of a created sandbox; `None` of other traces, and of a sandbox that sent nothing.
    #[must_use]
    pub fn of(trace: &Trace) -> Option<Readiness> {
        let Detail::Sandbox(sandbox) = &trace.root().detail else {
            return None;
        };
        let created = creation::created(trace)?;
        let usable = sandbox.network_ready;
        let state = match (usable, trace.closed, sandbox.first_attempt) {
            (Some(_), ..) => ReadinessState::Ready,
            (None, false, _) => ReadinessState::Waiting,
            (None, true, Some(_)) => ReadinessState::Failed,
            (None, true, None) => return None,
        };
        let offset = |at: Timestamp| at.since(trace.start());
        let until = usable.or(trace.root().end);
        Some(Readiness {
            state,
            created_ns: offset(created),
            first_attempt_ns: sandbox.first_attempt.map(offset),
            ready_ns: usable.map(offset),
            wait_ns: sandbox
                .first_attempt
                .zip(until)
                .map(|(first, until)| until.since(first)),
        })
    }
}

/// Readiness of many sandboxes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReadinessCounts {
    /// Sandboxes whose network has proven usable.
    pub ready: usize,
    /// Sandboxes whose traffic never succeeded.
    pub failed: usize,
    /// Sandboxes whose first traffic is pending.
    pub waiting: usize,
    /// Median time from the first query or SYN until the network was usable.
    pub wait_p50_ns: Option<u64>,
    /// 95th percentile of the same.
    pub wait_p95_ns: Option<u64>,
}

impl ReadinessCounts {
    pub(super) fn of(sandboxes: impl Iterator<Item = Readiness>) -> ReadinessCounts {
        let mut counts = ReadinessCounts::default();
        let mut waits = Vec::new();
        for readiness in sandboxes {
            match readiness.state {
                ReadinessState::Waiting => counts.waiting += 1,
                ReadinessState::Failed => counts.failed += 1,
                ReadinessState::Ready => {
                    counts.ready += 1;
                    waits.extend(readiness.wait_ns);
                }
            }
        }
        waits.sort_unstable();
        counts.wait_p50_ns = quantile(&waits, 50);
        counts.wait_p95_ns = quantile(&waits, 95);
        counts
    }
}
