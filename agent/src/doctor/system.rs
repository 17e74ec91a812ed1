//! The operating system below the agent: what it offers, and what this process may use of it.

#[cfg_attr(windows, path = "windows.rs")]
#[cfg_attr(not(windows), path = "kernel.rs")]
mod imp;

pub(super) use imp::{VITAL, check, has_proc};
