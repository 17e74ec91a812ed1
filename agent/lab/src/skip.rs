//! Tests that cannot run on this machine: they print one line, which `scripts/count.sh` counts.

use std::io::Write;

/// Prints `SKIPPED <test>: <reason>`, to the stream itself: the test harness captures what `eprintln!` prints in a test
/// that passes.
pub fn skipped(test: &str, reason: &str) {
    // Without a standard error there is no reader.
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {reason}");
}

/// Whether a program is installed; prints that the test is skipped when it is not.
#[must_use]
pub fn has(test: &str, program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(Into::into);
    let found = std::env::split_paths(&path)
        .chain(system)
        .any(|folder| folder.join(program).is_file());
    if !found {
        skipped(test, &format!("{program} is not installed"));
    }
    found
}
