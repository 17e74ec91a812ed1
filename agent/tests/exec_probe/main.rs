//! The process probe against this machine's kernel: real plugins, real environments, real exits.
//!
//! Needs root with BPF; where that is missing each test prints `SKIPPED` and the reason.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a test")]

mod bounds;
#[path = "../collected/mod.rs"]
mod collected;
mod cri;
mod daemon_threads;
mod daemons;
mod detection;
mod dhcp;
mod locks;
mod multus;
mod netlink;
mod nft_cleanup;
mod recognition;
mod recorder;
#[allow(dead_code, reason = "each test binary uses its own part")]
#[path = "../api_server/server.rs"]
mod server;
mod slow_answers;
mod speech;
mod stuck;
mod timehist;
#[allow(dead_code, reason = "each test binary uses its own part")]
#[path = "../lab/tracefs.rs"]
mod tracefs;
mod trust;
mod unreadable;
mod waits;
mod watch;
