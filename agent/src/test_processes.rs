//! Processes that a test kills: this test program again, with one test of it.
//!
//! Used by the tests of what survives a kill (store, journal, spool, OTLP). Does not: end the process, or read its errors, which are this program's.

use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// Starts the test of this path (`sinks::journal::tests::killed::child`) with these variables; answers the process and the lines
/// that it prints.
///
/// # Panics
/// If it cannot be started.
pub fn start(
    test: &str,
    directory: (&str, &Path),
    variables: &[(&str, String)],
) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture"])
        .env(directory.0, directory.1)
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let output = child.stdout.take().unwrap();
    (child, BufReader::new(output).lines())
}
