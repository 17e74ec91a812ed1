//! Where traces leave: OTLP, Prometheus, the embedded store with its page, a recording.
//!
//! Each is bounded and sheds (counting) rather than slow the pipeline. Sinks never import sources.

pub mod creation;
mod disk;
pub mod histogram;
pub mod journal;
pub mod otlp;
pub mod prometheus;
pub mod recording;
pub mod sampling;
pub mod store;
pub mod worth;
