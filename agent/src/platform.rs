//! What the agent needs of the operating system besides observing it: signals, the terminal's size, local sockets.
//!
//! The same names on Linux and on Windows; `sources::native` is the counterpart for observing. A leaf.

#[cfg_attr(target_os = "linux", path = "platform/linux.rs")]
#[cfg_attr(windows, path = "platform/windows.rs")]
mod imp;

pub use imp::*;
