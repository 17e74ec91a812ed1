//! What the page, the API and the terminal show: kept traces turned into rows, details and figures.
//!
//! `http`, `watch` and `terminal` use it; it reads the store (`sinks::store`), which keeps traces and renders nothing.
//! Everything here serializes to the JSON of `/api/v1`, except the verdict and readiness that the terminal prints too.
//! Does not: keep anything, speak HTTP, or draw.

#![forbid(unsafe_code)]

mod json;
mod list;
mod network;
mod now;
mod open_spans;
mod quantile;
mod readiness;
mod row;
mod running;
mod trace;
mod verdict;

use std::cmp::Reverse;
use std::sync::Arc;

use sandglass_model::{PodIdentity, RootId, SandboxId, SpanId, TraceId};
use serde::Serialize;

use crate::sinks::store;
use crate::wall_clock::wall_ns;

pub use list::{Counts, KindFilter, Page, Query, Sort, StateFilter};
pub use network::NetworkView;
pub use readiness::{Readiness, ReadinessCounts, ReadinessState};
use row::Kept;
pub use row::{Row, Store, attempt};
pub use running::RunningOperation;
pub use store::index::TraceOutcome;
pub use trace::{SpanView, TraceView, timeline};
pub use verdict::verdict;

/// A sandbox older than the agent.
#[derive(Clone, Debug, Serialize)]
pub struct KnownSandbox {
    /// Its id.
    pub sandbox: SandboxId,
    /// Its pod.
    pub identity: PodIdentity,
    /// When the runtime says it was created, nanoseconds since boot.
    pub created_boot_ns: u64,
}

/// The rows that match, in the order of the query, and the counts around them.
#[must_use]
pub fn list(store: &Store, query: &Query) -> Page {
    list::run(query, &store.traces(), &store.size(), wall_ns())
}

/// The row of one trace.
#[must_use]
pub fn row(store: &Store, root: RootId) -> Option<Row> {
    row::of(&*store.get(root)?, wall_ns())
}

/// One trace with every span: the one that [`store::Store::find`] finds.
#[must_use]
pub fn trace(store: &Store, id: TraceId, span: Option<SpanId>) -> Option<TraceView> {
    let kept = store.find(id, span)?;
    TraceView::new(&kept, &store.traces(), wall_ns())
}

/// What runs now, oldest first; an operation older than `stuck_after_ns` counts as stuck.
#[must_use]
pub fn operations(store: &Store, stuck_after_ns: u64) -> Vec<RunningOperation> {
    running::operations(&store.running(), wall_ns(), stuck_after_ns)
}

/// Sandboxes older than the agent, by id.
#[must_use]
pub fn known_sandboxes(store: &Store) -> Vec<KnownSandbox> {
    let known = store.known_sandboxes().into_iter();
    known
        .map(|(sandbox, known)| KnownSandbox {
            sandbox,
            identity: known.identity,
            created_boot_ns: known.created.0,
        })
        .collect()
}

/// The node's traffic over the last hour, with readiness and journeys of the traces that are kept.
#[must_use]
pub fn network(store: &Store) -> NetworkView {
    let now = wall_ns();
    let until = (!store.is_replayed()).then_some(now);
    let mut view = store.read_hour(|hour| NetworkView::of(hour, now, until));
    let traces = store.traces();
    let readiness = traces
        .iter()
        .filter_map(|kept| row::read(kept, now, |row| row.network).flatten());
    view.readiness = ReadinessCounts::of(readiness);
    let mut journeys: Vec<&Arc<Kept>> = traces.iter().filter(|kept| kept.index.reason.is_some()).collect();
    journeys.sort_by_key(|kept| Reverse((kept.index.start_unix_ns, kept.arrival)));
    journeys.truncate(MAX_JOURNEYS);
    view.journeys = journeys.into_iter().filter_map(|kept| row::of(kept, now)).collect();
    view
}

/// Journeys in the view of the network.
const MAX_JOURNEYS: usize = 30;

#[cfg(test)]
mod tests;
