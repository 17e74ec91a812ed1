//! A CNI plugin or a command that does nothing, depending on the name by which it is executed.
//!
//! `load` creates links to it: `bench-main` executes `bench-ipam` beside it as its delegate, `bench-meta` executes the command
//! `bench-command` outside of the plugin directory. Both inherit the environment, as with libcni's plugins.
//! Does not: read a network configuration, print a result, or touch any network.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

fn main() -> ExitCode {
    let called = std::env::args_os().next().unwrap_or_default();
    let called = Path::new(&called);
    let here = called.parent().unwrap_or(Path::new("."));
    let below = match called.file_name().and_then(|name| name.to_str()) {
        Some("bench-main") => here.join("bench-ipam"),
        Some("bench-meta") => here.join("../sbin/bench-command"),
        _ => return ExitCode::SUCCESS,
    };
    let run = Command::new(below).stdin(Stdio::null()).stdout(Stdio::null()).status();
    if run.is_ok_and(|status| status.success()) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
