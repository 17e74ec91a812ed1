//! Loads and attaches the kernel side, and gives typed access to what was loaded.
//!
//! The only module that imports aya. Used by the probes when they start, then by their threads.
//! Does not: decode records, choose a rung, or keep the kernel's type information (BTF).

pub mod error;
pub mod family;
mod hook;
pub mod iterator;
pub mod maps;
pub mod roles;
pub mod run_time;
mod types;
