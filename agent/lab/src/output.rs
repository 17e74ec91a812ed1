//! What a peer prints, kept in a file beside its configuration and printed if the test that started it fails.
//!
//! Used by [`crate::jaeger`] and [`crate::peers`]: why a peer did not start, or did not answer, is known only to the peer. Does
//! not: print anything of a test that passes.

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Prints the end of the file when dropped while a test fails. The folder must still be there then.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
}

impl Output {
    /// Sends what `command` will print to `folder`/`name`.log; a peer that is started again continues that file.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn of(command: &mut Command, folder: &Path, name: &str) -> io::Result<Output> {
        let path = folder.join(format!("{name}.log"));
        let file = OpenOptions::new().create(true).append(true).open(&path)?;
        command.stdout(file.try_clone()?).stderr(file);
        Ok(Output { path })
    }

    /// The last lines; none where the file cannot be read.
    fn end(&self) -> String {
        let printed = std::fs::read(&self.path).unwrap_or_default();
        let printed = String::from_utf8_lossy(&printed);
        let lines: Vec<&str> = printed.lines().collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }
}

impl Drop for Output {
    #[expect(clippy::print_stderr, reason = "part of a test's failure")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the end of {}:\n{}", self.path.display(), self.end());
        }
    }
}

const LINES: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_of_both_streams_are_kept_over_a_second_start() {
        let folder = tempfile::tempdir().unwrap();
        let run = |script: &str| {
            let mut command = Command::new("sh");
            let output = Output::of(command.args(["-c", script]), folder.path(), "peer").unwrap();
            assert!(command.status().unwrap().success());
            output
        };
        run("seq 50");
        let output = run("echo out; echo err >&2");
        let end = output.end();
        assert!(end.starts_with("13\n"), "{end}");
        assert!(end.ends_with("50\nout\nerr"), "{end}");
    }
}
