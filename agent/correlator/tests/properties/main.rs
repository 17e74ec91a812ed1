//! What holds for every history: order within the window does not matter, a record may come twice, any record may be
//! missing, input may end anywhere, and whatever comes, nothing panics and everything stays bounded.
//!
//! One file makes histories that make sense, two make soup, which only has to do no harm.

#![expect(clippy::expect_used, reason = "the player is test code outside of test functions")]

mod bodies;
mod daemon_threads;
mod daemons;
mod histories;
mod play;
mod soup;
mod windows;
