//! Processes that a test kills: this test program again, with one test of it.
//!
//! Used by the tests of what survives a kill (store, journal, spool, OTLP). Does not: end the process, or read its errors, which are this program's.

use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// Starts the test of this path (`sinks::journal::tests::killed::child`) with these variables. Returns the process and the lines that it
/// prints.
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
    let mut attempts = 0;
    let mut child = loop {
        attempts += 1;
        match command.spawn() {
            Err(error) if attempts < 3 && is_wines_failure(&error) => eprintln!("{test} is started again: {error}"),
            child => break child.unwrap(),
        }
    };
    let output = child.stdout.take().unwrap();
    (child, BufReader::new(output).lines())
}

/// Wine's answer if the process ended before its program began (wine 8.0, dlls/ntdll/unix/process.c, `NtCreateUserProcess`:
/// `STATUS_INTERNAL_ERROR`, here as `ERROR_INTERNAL_ERROR`). Nothing of this program ran in it then.
fn is_wines_failure(error: &std::io::Error) -> bool {
    cfg!(windows) && error.raw_os_error() == Some(1_359)
}
