//! The agent as a process of its own, for the end-to-end test that kills it in the middle of an operation.
//!
//! The same commands as the binary `sandglass`, which Cargo does not build for the tests of another package.

use std::process::ExitCode;

use clap::Parser;
use sandglass::cli::Cli;
use sandglass::commands;

fn main() -> ExitCode {
    match commands::run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => ExitCode::from(failure.exit().code()),
    }
}
