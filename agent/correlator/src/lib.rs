//! Events in, traces out: a pure, deterministic, single-threaded state machine.
//!
//! The pipeline pushes every event into [`Reorder`] and hands what it releases to [`Correlator::handle`], then drains the
//! outputs. Time is in the events; silence is a tick.
//!
//! Four rooms own the state: `plugins`, `sandboxes`, `traffic`, `windows`. Each is a file and a folder of its name, and none
//! knows another; `correlator.rs` routes events to them, and the facts (`facts.rs`) that one reports for another. What all
//! share lies beside them and knows no room: `context.rs`, `traces.rs`, `open_trace.rs`, and leaves such as `keys.rs`. A new
//! room is one more folder that takes events and a `&mut Context`, reports facts, and gets its lines in `correlator.rs`.
//!
//! Knows operating systems by their evidence only, behind one seam, the image of an exec with its CNI parameters:
//! `invocation.rs` reads those of Linux, `windows` infers those of Windows, and the other rooms see no difference. Does not:
//! perform I/O, read a clock, or lock; `clippy.toml` beside this crate bans what could.

#![forbid(unsafe_code)]
#![warn(clippy::wildcard_enum_match_arm)]

mod by_trace;
mod chains;
mod collections;
mod config;
mod context;
mod correlator;
mod counters;
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
mod windows;

pub use config::{CorrelatorConfig, TrafficBounds};
pub use correlator::Correlator;
pub use counters::{Counters, Sizes};
pub use finding::{ActivityEnded, Finding};
pub use output::{EndedKind, EndedSpan, Output};
pub use reorder::{Ordered, Reorder};
pub use snapshots::Snapshots;
