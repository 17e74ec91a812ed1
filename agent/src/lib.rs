//! The agent: sources, the pipeline around the correlator, sinks, and the command line that composes them.
//!
//! A library only so that tests and `bench/` can drive its parts; the product is the binary `sandglass`.
//! Sources never import sinks or the correlator, sinks never import sources: `tests/layering.rs` holds that.

pub mod cni_conf;
pub mod cri;
pub mod doctor;
pub mod grpc;
pub mod health;
pub mod identity;
pub mod node;
pub mod pipeline;
pub mod sinks;
pub mod sources;
