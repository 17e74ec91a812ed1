//! The model: the vocabulary of sandglass as code, namely events that sources emit, and traces that the correlator
//! makes of them.
//!
//! Used by every other crate. The words are those of ARCHITECTURE.md's glossary, one type for each. Does not: perform
//! I/O, read a clock, depend on an operating system, or render for a protocol; names and attributes of spans are in
//! [`registry`], the protocols in the agent's sinks.

#![forbid(unsafe_code)]

pub mod anonymize;
pub mod cni;
pub mod cri;
pub mod daemons;
pub mod event;
pub mod id;
pub mod locks;
pub mod masking;
pub mod network;
pub mod phases;
pub mod recording;
pub mod registry;
pub mod sampling;
pub mod text;
pub mod text_list;
pub mod time;
pub mod trace;
pub mod waits;
pub mod windows;

pub use cni::{CniCommand, CniError, PodIdentity};
pub use event::{Body, Event};
pub use id::{ProcessKey, RootId, SandboxId, SpanId, TraceId};
pub use smol_str::SmolStr;
pub use text_list::{TextList, TextPairs, Texts};
pub use time::{ClockAnchor, Timestamp};
pub use trace::{Detail, Span, Status, Trace};
