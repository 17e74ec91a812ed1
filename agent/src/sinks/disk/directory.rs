//! The spool's directory: its mode, the names of its files, a lock for each part of it.
//!
//! Used by the spool, by the journal of open traces and by the store, which share it and open their parts one by one. Does not: know what is in
//! a file.

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::platform;

/// Whether a request is worth more than another one when room is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::sinks) enum Worth {
    /// It holds traces of something that went badly.
    Bad,
    /// It holds nothing of that kind.
    Good,
}

/// Creates the directory, or makes an existing one private: requests hold names of pods and arguments of commands.
pub(in crate::sinks) fn private_directory(directory: &Path) -> io::Result<()> {
    // Not tried in vain: under the chart's seccomp profile mkdir(2) fails for a directory that exists too.
    if !directory.is_dir() {
        platform::create_private_directory(directory)?;
    }
    let Some(mode) = platform::shared_mode(directory)? else {
        return Ok(());
    };
    // It may be a directory that others need, named by mistake.
    if let Some(other) = foreign_file(directory)? {
        return Err(io::Error::other(format!(
            "its mode is {mode:o}, not 700, and it holds {other:?}: the spool needs a directory of its own"
        )));
    }
    platform::make_private(directory)
}

/// The name of a file in the directory that is not the spool's.
fn foreign_file(directory: &Path) -> io::Result<Option<OsString>> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let logs = [JOURNAL, STORE]
            .into_iter()
            .flat_map(|log| log.files.into_iter().chain([log.lock]));
        if !logs.chain([LOCK]).any(|own| entry.file_name() == own) && parse_name(&entry.path()).is_none() {
            return Ok(Some(entry.file_name()));
        }
    }
    Ok(None)
}

/// Locks the directory for this process.
///
/// # Errors
/// Another process has it locked for a second.
pub(in crate::sinks) fn lock(directory: &Path) -> io::Result<File> {
    lock_as(directory, LOCK)
}

/// Locks a part of the directory, by the name of its lock.
///
/// # Errors
/// Another process has it locked for a second.
pub(in crate::sinks) fn lock_as(directory: &Path, name: &str) -> io::Result<File> {
    let file = platform::open_private(&directory.join(name))?;
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
pub(in crate::sinks) fn name(number: u64, worth: Worth) -> String {
    let extension = match worth {
        Worth::Bad => "bad",
        Worth::Good => "good",
    };
    format!("{number:016x}.{extension}")
}

/// Number and lane of a file, if it is the spool's.
pub(in crate::sinks) fn parse_name(path: &Path) -> Option<(u64, Worth)> {
    let (number, extension) = path.file_name()?.to_str()?.split_once('.')?;
    let worth = match extension {
        "bad" => Worth::Bad,
        "good" => Worth::Good,
        _ => return None,
    };
    let number = (number.len() == 16).then(|| u64::from_str_radix(number, 16).ok())??;
    Some((number, worth))
}

/// The files of a log of traces (`log.rs`), which lie beside the spool's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sinks) struct LogFiles {
    pub(in crate::sinks) files: [&'static str; 4],
    /// Locked by the process that writes them. Each part of the directory is opened when it can be.
    pub(in crate::sinks) lock: &'static str,
    /// What a file of it begins with.
    pub(in crate::sinks) magic: [u8; 8],
}

/// The journal of open traces.
pub(in crate::sinks) const JOURNAL: LogFiles = LogFiles {
    files: ["open.0", "open.1", "open.2", "open.3"],
    lock: "open.lock",
    magic: *b"SGOPEN\n\0",
};
/// The store behind the page.
pub(in crate::sinks) const STORE: LogFiles = LogFiles {
    files: ["store.0", "store.1", "store.2", "store.3"],
    lock: "store.lock",
    magic: *b"SGSTORE\n",
};
/// Name of the file that is locked.
const LOCK: &str = "lock";
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(50);
