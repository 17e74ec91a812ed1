//! The spool's directory: its mode, its lock, the names of its files.
//!
//! Used by `segments.rs`, and by the journal of open traces. Does not: know what is in a file.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;
use std::time::Duration;

/// Whether a request is worth more than another one when room is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::sinks::otlp) enum Worth {
    /// It holds traces of something that went badly.
    Bad,
    /// It holds nothing of that kind.
    Good,
}

/// Creates the directory, or makes an existing one private: requests hold names of pods and arguments of commands.
pub(in crate::sinks::otlp) fn private_directory(directory: &Path) -> io::Result<()> {
    let exists = directory.is_dir();
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
        builder.mode(0o700);
        // Not tried in vain: under the chart's seccomp profile mkdir(2) fails for a directory that exists too.
        if !exists {
            builder.create(directory)?;
        }
        let mode = std::fs::metadata(directory)?.permissions().mode() & 0o777;
        if mode == 0o700 {
            return Ok(());
        }
        // It may be a directory that others need, named by mistake.
        if let Some(other) = foreign_file(directory)? {
            return Err(io::Error::other(format!(
                "its mode is {mode:o}, not 700, and it holds {other:?}: the spool needs a directory of its own"
            )));
        }
        // By descriptor: the chart's seccomp profile allows fchmod(2) only.
        File::open(directory)?.set_permissions(std::fs::Permissions::from_mode(0o700))
    }
    #[cfg(not(unix))]
    if exists { Ok(()) } else { builder.create(directory) }
}

/// The name of a file in the directory that is not the spool's.
#[cfg(unix)]
fn foreign_file(directory: &Path) -> io::Result<Option<std::ffi::OsString>> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let own = [LOCK, JOURNAL_LOCK].into_iter().chain(JOURNAL_FILES);
        if !own.into_iter().any(|own| entry.file_name() == own) && parse_name(&entry.path()).is_none() {
            return Ok(Some(entry.file_name()));
        }
    }
    Ok(None)
}

/// Creates a file that only its owner may read.
pub(super) fn private_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Locks the directory for this process.
///
/// # Errors
/// Another process has it locked for a second.
pub(super) fn lock(directory: &Path) -> io::Result<File> {
    lock_as(directory, LOCK)
}

/// Locks a part of the directory, by the name of its lock.
///
/// # Errors
/// Another process has it locked for a second.
pub(in crate::sinks::otlp) fn lock_as(directory: &Path, name: &str) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(directory.join(name))?;
    // The agent that this one replaces may be about to end.
    for _ in 0..LOCK_TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Err(io::Error::new(
        io::ErrorKind::ResourceBusy,
        "another agent uses the directory",
    ))
}

/// The name of a file: its number and its lane.
pub(super) fn name(number: u64, worth: Worth) -> String {
    let extension = match worth {
        Worth::Bad => "bad",
        Worth::Good => "good",
    };
    format!("{number:016x}.{extension}")
}

/// Number and lane of a file, if it is the spool's.
pub(super) fn parse_name(path: &Path) -> Option<(u64, Worth)> {
    let (number, extension) = path.file_name()?.to_str()?.split_once('.')?;
    let worth = match extension {
        "bad" => Worth::Bad,
        "good" => Worth::Good,
        _ => return None,
    };
    let number = (number.len() == 16).then(|| u64::from_str_radix(number, 16).ok())??;
    Some((number, worth))
}

/// The files of the journal of open traces (`journal.rs`), which lie beside the spool's.
pub(in crate::sinks::otlp) const JOURNAL_FILES: [&str; 4] = ["open.0", "open.1", "open.2", "open.3"];
/// Locked by the process that writes them. The spool has a lock of its own: each is opened when it can be.
pub(in crate::sinks::otlp) const JOURNAL_LOCK: &str = "open.lock";
/// Name of the file that is locked.
const LOCK: &str = "lock";
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(50);
