//! The part of these tests that `tests/cluster.rs` uses: what is asked, and whom.
//!
//! Does not: hold a test.

pub mod documents;
pub mod promql;
pub mod questions;
pub mod receiver;
