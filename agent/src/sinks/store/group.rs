//! Groups of traces that are equally worth keeping: by what they are about, and by how they stand.
//!
//! Used by [`super::traces`], whose order of eviction they are. Does not: know bounds, or who owns a trace ([`super::owners`]).

use super::index::{TraceIndex, TraceKind, TraceOutcome};

/// Whose room a trace takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Side {
    /// Operations and journeys.
    Others,
    Sandboxes,
}

/// What is evicted first among the traces of a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    Good,
    Bad,
    /// Created, and its first traffic is pending.
    Waiting,
    Running,
}

/// Traces that are equally worth keeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Group {
    pub(super) side: Side,
    pub(super) rank: Rank,
}

impl Group {
    pub(super) fn of(index: &TraceIndex, bad: bool) -> Group {
        Group {
            side: match index.kind {
                TraceKind::Sandbox => Side::Sandboxes,
                TraceKind::Operation | TraceKind::Journey => Side::Others,
            },
            rank: match index.outcome {
                TraceOutcome::Running => Rank::Running,
                TraceOutcome::Waiting => Rank::Waiting,
                TraceOutcome::Ok if !bad => Rank::Good,
                TraceOutcome::Ok | TraceOutcome::Failed => Rank::Bad,
            },
        }
    }
}
