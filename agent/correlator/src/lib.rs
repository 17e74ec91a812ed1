//! The correlator: a pure, deterministic, single-threaded state machine. Events go in, traces and findings come out.
//!
//! The pipeline pushes every event into [`Reorder`], passes what it releases to [`Correlator::handle`], then drains the
//! outputs. Time is in the events; silence is a tick. The same events give the same outputs, ids included, so that a
//! recording replays byte for byte.
//!
//! Four rooms own the state: `plugins` (processes, operations and chains), `sandboxes` (traces of sandboxes), `traffic`
//! (lookups, connects, conntrack, drops, causes, journeys) and `windows` (what Windows does not report and is
//! inferred). Each is a file with the room's type, whose header says what the room may touch, and a folder of the same
//! name. No room imports another, and no files import one another in a circle (`tests/rooms.rs`). `correlator.rs` routes
//! every event to the rooms, and the facts (`facts.rs`) that one room reports to the rooms that need them.
//! What all rooms share lies beside them and knows no room: `context.rs` (configuration, time, open traces, effects),
//! `traces.rs`, `open_trace.rs`, and leaves such as `keys.rs`, `timers.rs` and `output.rs`.
//!
//! Where to add what:
//! - An event: a variant of `Body` in the model, one arm in `Correlator::handle`, an `on_<event>` method of the room
//!   that owns it.
//! - Why something waited, which is not recorded yet: what one process's records show goes to `plugins` (kept in
//!   `plugins/state.rs`, shown by `plugins/exits.rs`), since it alone maps a process to its span; what needs other
//!   processes, such as a lock's holder, is a room of its own that reports facts to `plugins`.
//! - Why a lookup or connect went badly: one function in `traffic/causes.rs` and a name in the registry (`CAUSES`).
//! - A room: a file and a folder that take events and a `&mut Context` and report facts, its name in `tests/rooms.rs`,
//!   its lines in `correlator.rs`.
//!
//! Operating systems are known by their evidence only, behind one seam, the image of an exec with its CNI parameters:
//! `invocation.rs` reads those of Linux, `windows` infers those of Windows, and the other rooms see no difference.
//! Does not: perform I/O, read a clock, lock, or iterate unordered maps; `clippy.toml` beside this crate bans what
//! could.

#![forbid(unsafe_code)]
#![warn(clippy::wildcard_enum_match_arm)]

mod by_trace;
mod chains;
mod collections;
mod config;
mod context;
mod correlator;
mod counters;
mod daemon_path;
mod daemons;
mod effects;
mod exchange;
mod facts;
pub mod finding;
mod invocation;
mod keys;
mod lookup_status;
mod names;
mod notes;
mod open_trace;
mod output;
mod owner;
mod placement;
mod plugins;
mod reorder;
mod sandboxes;
mod snapshots;
mod stand_in;
mod standing;
mod timers;
mod traces;
mod traffic;
mod waits;
mod windows;

pub use config::{CorrelatorConfig, TrafficBounds};
pub use correlator::Correlator;
pub use counters::{Counters, Evictions, Sizes};
pub use finding::{ActivityEnded, Finding};
pub use output::{EndedKind, EndedSpan, Output};
pub use reorder::{FEED_WAIT_NS, Ordered, Reorder};
pub use snapshots::Snapshots;
