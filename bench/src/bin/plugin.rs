//! Plays a CNI plugin or a command, as the name it is called by says.
//!
//! `load` makes links to it: `bench-main` runs `bench-ipam` beside it as its delegate, `bench-meta` runs the command
//! `bench-command` from outside the plugin directory. The environment goes on as libcni's plugins pass it on.
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
