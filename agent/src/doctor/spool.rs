//! The spool's directory, if one is configured: whether the agent can keep traces there, and what lies there for the collector and for the page.
//!
//! Does not: open or lock the spool, which the running agent holds, or write to the directory.

use std::fs;
use std::path::Path;

use super::{Finding, Level};
use crate::platform;
use crate::sinks::store::disk::FILES;

/// One finding, or none without a spool.
pub(super) fn check(directory: Option<&Path>) -> Vec<Finding> {
    let Some(directory) = directory else {
        return Vec::new();
    };
    let shown = directory.display();
    let finding = match fs::read_dir(directory) {
        Ok(entries) => {
            // The journal of open traces, which lies there too, is neither.
            let (mut waiting, mut page) = (Vec::new(), 0);
            for entry in entries.flatten() {
                let (name, size) = (entry.file_name(), entry.metadata().map_or(0, |data| data.len()));
                let is_request = Path::new(&name)
                    .extension()
                    .is_some_and(|end| end == "bad" || end == "good");
                match is_request {
                    true if size > 0 => waiting.push(size),
                    false if FILES.iter().any(|file| name == *file) => page += size,
                    _ => {}
                }
            }
            let bytes: u64 = waiting.iter().sum();
            private(directory).unwrap_or_else(|| {
                Finding::ok(
                    CHECK,
                    format!(
                        "{shown}: {bytes} bytes in {} files wait for the collector, {page} bytes are the page's",
                        waiting.len()
                    ),
                )
            })
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Finding::ok(CHECK, format!("{shown} does not exist yet: the agent makes it"))
        }
        Err(error) => Finding::new(Level::Warn, CHECK, format!("cannot read {shown}: {error}"))
            .why(IN_MEMORY)
            .hint("set otlp.spool_directory to a directory that the agent may write, or unset it"),
    };
    vec![finding]
}

/// A finding if others may enter the directory.
fn private(directory: &Path) -> Option<Finding> {
    let mode = platform::shared_mode(directory).ok()??;
    let finding = Finding::new(Level::Note, CHECK, format!("{} has mode {mode:o}, not 700", directory.display()))
        .why("it holds names of pods and arguments of commands; an agent makes it private when it starts, unless it holds other files")
        .hint("give the spool a directory of its own");
    Some(finding)
}

const CHECK: &str = "spool";
const IN_MEMORY: &str =
    "traces that wait for the collector, and those of the page, are in memory, and lost when the agent ends";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spool_is_judged_by_its_directory() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("spool");
        assert_eq!(check(None), []);
        assert!(check(Some(&directory))[0].what.contains("does not exist yet"));
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("0000000000000001.bad"), "twelve bytes").unwrap();
        fs::write(directory.join("open.0"), "of the journal").unwrap();
        fs::write(directory.join("store.1"), "of the page").unwrap();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
            assert_eq!(check(Some(&directory))[0].level, Level::Note);
            fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).unwrap();
        }
        let found = &check(Some(&directory))[0];
        assert_eq!(found.level, Level::Ok);
        assert!(found.what.contains("12 bytes in 1 files"), "{}", found.what);
        assert!(found.what.contains("11 bytes are the page's"), "{}", found.what);
        let found = &check(Some(&directory.join("0000000000000001.bad")))[0];
        assert_eq!(found.level, Level::Warn, "{}", found.what);
    }
}
