//! The part of these tests that `tests/cluster.rs` uses: the queries, and the programs that receive them.
//!
//! Does not: hold a test.

pub mod documents;
pub mod promql;
pub mod questions;
pub mod receiver;
