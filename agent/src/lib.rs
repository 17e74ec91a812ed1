//! The agent: sources, the pipeline around the correlator, sinks, and the command line that composes them.
//!
//! A library only so that tests and `bench/` can drive its parts; the product is the binary `sandglass`.
//! Sources never import sinks or the correlator, sinks never import sources, only `view` renders what the store keeps:
//! `tests/layering.rs` holds that.

pub mod app;
pub mod cli;
pub mod cni_conf;
pub mod cni_state;
pub mod commands;
pub mod config;
pub mod config_state;
pub mod cri;
pub mod doctor;
pub mod failure;
pub mod grpc;
pub mod health;
pub mod http;
pub mod identity;
pub mod ip_pools;
pub mod log;
pub mod log_file;
pub mod node;
pub mod pem;
pub mod pipeline;
pub mod platform;
mod registration;
pub mod resident;
pub mod scheduling;
pub mod selinux;
pub mod sinks;
pub mod sources;
pub mod terminal;
pub mod tls;
pub mod view;
pub mod wall_clock;
pub mod watch;

// Hand-made traces, shared with the tests in `tests/`.
#[cfg(test)]
#[path = "../tests/samples/mod.rs"]
mod samples;
#[cfg(test)]
mod test_certificates;
#[cfg(test)]
mod test_processes;
