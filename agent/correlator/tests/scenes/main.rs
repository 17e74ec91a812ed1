//! What the correlator makes of histories written by hand, one file per subject.

#![expect(
    clippy::expect_used,
    reason = "the scene builder is test code outside of test functions"
)]

mod attempts;
mod callers;
mod causes;
mod chains;
mod daemon_threads;
mod daemons;
mod detection;
mod faults;
mod journeys;
mod labels;
mod late_owners;
mod locks;
mod lookup_identity;
mod lookups;
mod nesting;
mod netlink;
mod noisy;
mod ready;
mod requests;
mod runtime_forks;
mod sandboxes;
mod scene;
mod stuck;
mod unserved;
mod waits;
mod windows;
mod wire;
