//! What the correlator makes of histories written by hand, one file per subject.

#![expect(
    clippy::expect_used,
    reason = "the scene builder is test code outside of test functions"
)]

mod attempts;
mod causes;
mod chains;
mod faults;
mod journeys;
mod labels;
mod late_owners;
mod lookups;
mod nesting;
mod noisy;
mod ready;
mod sandboxes;
mod scene;
mod unserved;
mod waits;
mod windows;
mod wire;
