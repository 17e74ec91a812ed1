//! ETW as a stage: the Win32 functions that start, feed and stop sessions, played by this crate where there is no Windows.
//!
//! Used by the tests of the agent's live source, which link it in place of advapi32 and tdh: ferrisetw and the source run
//! as they are, callbacks and threads included. A test decides what ETW refuses, delivers and loses.
//! Does not: know what Windows would do beyond its documentation. What passes here is proven of our side only.

#[cfg(not(windows))]
mod exports;
#[cfg(not(windows))]
mod record;
#[cfg(not(windows))]
mod state;

#[cfg(not(windows))]
pub use state::{ACCESS_DENIED, Enabled, FakeEtw, NO_SYSTEM_RESOURCES};
