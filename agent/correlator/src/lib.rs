//! Events in, traces out: a pure, deterministic, single-threaded state machine.
//!
//! The pipeline pushes every event into [`Reorder`] and hands what it releases to [`Correlator::handle`], then drains
//! the outputs. Time is in the events; silence is a tick. Does not: perform I/O, read a clock, lock, or know an
//! operating system; `clippy.toml` beside this crate bans what could.

#![forbid(unsafe_code)]
#![warn(clippy::wildcard_enum_match_arm)]

mod collections;
mod correlator;
mod open;
mod plugins;
mod reorder;
mod sandboxes;
mod slots;
mod snapshots;
mod timers;
pub mod traffic;
mod windows;

pub use correlator::{Config, Correlator, Counters, EndedKind, EndedSpan, Output, Sizes};
pub use reorder::{Ordered, Reorder};
pub use snapshots::Snapshots;
pub use traffic::{ActivityEnded, Traffic, TrafficConfig};
