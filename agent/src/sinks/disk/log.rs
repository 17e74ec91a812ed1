//! A log of traces in files: append, begin anew in another file, read what an earlier process left.
//!
//! Used by the thread of the journal of open traces and by that of the store. One file is in use; when it has grown, what is live is written into an empty one, which has
//! the next generation, and the first is emptied after that. So at any instant at which the process can be killed the files, read
//! in the order of their generations, give the same state: a trace that stands in both has the same content. Only the last
//! record of a file can be torn, and a file with a torn record is not appended to. There are four, so that two are left where a newer
//! version has used two.
//! Files are neither renamed nor removed: the chart's seccomp profile need not allow it.
//! Does not: fsync (a node's crash loses what its kernel had not written), know what a trace is, or run on another thread.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sandglass_model::RootId;

use super::directory::{LogFiles, lock_as, private_directory};
use super::format::{self, Record};
use crate::platform::open_private;

/// Contents of the traces that are live, by root.
pub(in crate::sinks) type Live = BTreeMap<RootId, Vec<u8>>;

/// A locked directory, and the file in use.
#[derive(Debug)]
pub(in crate::sinks) struct TraceLog {
    directory: PathBuf,
    names: LogFiles,
    /// Indices of the files that are not left alone.
    usable: Vec<usize>,
    /// Indices of the files with content, by generation.
    filled: Vec<usize>,
    /// The file in use, whose cursor is at its end; none until one was begun by this process.
    current: Option<File>,
    generation: u64,
    /// Bytes of the file in use.
    bytes: u64,
    _lock: File,
}

/// What an earlier process left.
#[derive(Debug, Default)]
pub(in crate::sinks) struct Left {
    pub(in crate::sinks) live: Live,
    /// Bytes that belong to no whole record.
    pub(in crate::sinks) cut_bytes: u64,
    /// Files of a newer version, or that cannot be read; they are left alone.
    pub(in crate::sinks) skipped: usize,
}

impl TraceLog {
    /// Locks the directory and reads what is in it.
    ///
    /// # Errors
    /// The directory cannot be made or is locked, or too many files are left alone.
    pub(in crate::sinks) fn open(directory: &Path, names: LogFiles) -> io::Result<(TraceLog, Left)> {
        private_directory(directory)?;
        let lock = lock_as(directory, names.lock)?;
        let read = |(index, name): (usize, &&str)| Some((index, read(&directory.join(name)).ok()?));
        let texts: Vec<(usize, Vec<u8>)> = names.files.iter().enumerate().filter_map(read).collect();
        let contents = texts
            .iter()
            .map(|(index, bytes)| (*index, format::read_file(names.magic, bytes)));
        let mut contents: Vec<_> = contents.filter(|(_, content)| !content.newer).collect();
        contents.sort_by_key(|(_, content)| content.generation);
        let mut left = Left {
            skipped: names.files.len() - contents.len(),
            ..Left::default()
        };
        if contents.len() < 2 {
            return Err(io::Error::other(format!(
                "{} of the files {} are of a newer version or not readable",
                left.skipped,
                names.files.join(", ")
            )));
        }
        for (_, content) in &contents {
            left.cut_bytes += content.lost_bytes;
            for record in &content.records {
                match record {
                    Record::Trace(root, content) => drop(left.live.insert(*root, content.to_vec())),
                    Record::Gone(root) => drop(left.live.remove(root)),
                }
            }
        }
        let is_filled = |index: &usize| texts.iter().any(|(of, bytes)| of == index && !bytes.is_empty());
        let log = TraceLog {
            directory: directory.to_owned(),
            names,
            usable: contents.iter().map(|(index, _)| *index).collect(),
            filled: contents.iter().map(|(index, _)| *index).filter(is_filled).collect(),
            generation: contents.last().map_or(0, |(_, content)| content.generation),
            current: None,
            bytes: 0,
            _lock: lock,
        };
        Ok((log, left))
    }

    /// Empties what an earlier process left. Does nothing where nothing is left.
    ///
    /// # Errors
    /// The files cannot be written, or another process uses them.
    pub(in crate::sinks) fn empty(directory: &Path, names: LogFiles) -> io::Result<()> {
        let sizes = names
            .files
            .iter()
            .filter_map(|name| fs::metadata(directory.join(name)).ok());
        if sizes
            .map(|data| data.len())
            .all(|length| length <= format::FILE_HEADER as u64)
        {
            return Ok(());
        }
        let (mut log, _) = TraceLog::open(directory, names)?;
        log.begin(std::iter::empty::<(RootId, Vec<u8>)>())
    }

    /// Bytes of the file in use.
    pub(in crate::sinks) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends records with one write.
    ///
    /// # Errors
    /// They may be torn: [`TraceLog::begin`] has to be called before the next append.
    pub(in crate::sinks) fn append(&mut self, records: &[u8]) -> io::Result<()> {
        let Some(file) = &mut self.current else {
            return Err(io::Error::other("no file is begun"));
        };
        file.write_all(records)?;
        self.bytes += records.len() as u64;
        Ok(())
    }

    /// Writes what is live into an empty file, and empties the others after that.
    ///
    /// # Errors
    /// The file cannot be written: what was there before stays as it is.
    pub(in crate::sinks) fn begin<C: AsRef<[u8]>>(
        &mut self,
        live: impl IntoIterator<Item = (RootId, C)>,
    ) -> io::Result<()> {
        let empty = self.usable.iter().find(|index| !self.filled.contains(index));
        // Never so by this process, which fills two at most. The oldest is the one whose content the others repeat.
        let next = *empty.or(self.filled.first()).unwrap_or(&0);
        let mut file = open_private(&self.path(next))?;
        file.set_len(0)?;
        let generation = self.generation.saturating_add(1);
        let written = write_records(&mut file, format::file_header(self.names.magic, generation), live);
        let length = match written {
            Ok(length) => length,
            Err(error) => {
                // A full disk has room for others again.
                let _ = file.set_len(0);
                return Err(error);
            }
        };
        // From here on it holds everything.
        self.generation = generation;
        self.bytes = length;
        self.current = Some(file);
        for index in std::mem::replace(&mut self.filled, vec![next]) {
            if index != next
                && let Err(error) = open_private(&self.path(index)).and_then(|file| file.set_len(0))
            {
                self.filled.insert(0, index);
                return Err(error);
            }
        }
        Ok(())
    }

    fn path(&self, index: usize) -> PathBuf {
        self.directory
            .join(self.names.files.get(index).copied().unwrap_or_default())
    }
}

/// Writes `bytes` and a record for each trace; returns how many bytes that were.
fn write_records<C: AsRef<[u8]>>(
    file: &mut File,
    mut bytes: Vec<u8>,
    live: impl IntoIterator<Item = (RootId, C)>,
) -> io::Result<u64> {
    let mut length = 0;
    for (root, content) in live {
        Record::Trace(root, content.as_ref()).encode(&mut bytes);
        if bytes.len() >= CHUNK {
            file.write_all(&bytes)?;
            length += bytes.len() as u64;
            bytes.clear();
        }
    }
    file.write_all(&bytes)?;
    Ok(length + bytes.len() as u64)
}

/// All of a file, as far as one of this version can be long; nothing of a file that does not exist.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Ok(metadata) if !metadata.is_file() => return Err(io::Error::other("no file")),
        _ => {}
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_READ).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// How long a directory that could not be used is left alone.
pub(in crate::sinks) const OPEN_AGAIN: Duration = if cfg!(test) {
    Duration::from_millis(100)
} else {
    Duration::from_secs(30)
};
/// Bytes that are written at once when a file is begun.
const CHUNK: usize = 64 << 10;
/// More than a log has within its bounds.
const MAX_READ: u64 = 64 << 20;
