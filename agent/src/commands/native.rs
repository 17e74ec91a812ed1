//! The parts of commands that one operating system alone has: Windows records `.etl` files and runs services.

#[cfg_attr(target_os = "linux", path = "native/linux.rs")]
#[cfg_attr(windows, path = "native/windows.rs")]
mod imp;

pub(super) use imp::{record_etl, service};
