//! Holds `dashboards/` against the code, against Grafana's and Prometheus' own rules, and against real peers.
//!
//! Dashboards, rules, alerts and runbooks are files that nothing compiles. Here every name in them is held against what
//! the agent really serves, every query is evaluated by a real Prometheus over real recordings, and an alert goes all
//! the way to a receiver. What a machine does not have (Prometheus, Alertmanager, jsonnet) is skipped by name.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test"
)]

mod alerting;
mod documents;
mod exposition;
mod linter;
mod names;
mod node;
mod promql;
mod queries;
mod questions;
mod receiver;
mod schema;
#[path = "../lab/served.rs"]
mod served;
mod texts;

#[allow(unused_imports, reason = "each test binary uses its own part")]
#[path = "../samples/mod.rs"]
mod samples;
