//! The files of a journal: append, begin anew in the other file, read what an earlier process left.
//!
//! Used by the journal's thread only. One file is in use; when it has grown, what is live is written into an empty one, which has
//! the next generation, and the first is emptied after that. So at any instant at which the process can be killed the files, read
//! in the order of their generations, give the same state: a trace that stands in both has the same content. Only the last
//! record of a file can be torn, and a file with a torn record is not appended to. There are four, so that two are left where a newer
//! version has used two.
//! Files are neither renamed nor removed: the chart's seccomp profile need not allow it.
//! Does not: fsync (a node's crash loses what its kernel had not written), know what a trace is, or run on another thread.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use sandglass_model::RootId;

use super::format::{self, Record};
use crate::sinks::otlp::spool::directory::{JOURNAL_FILES, JOURNAL_LOCK, lock_as, private_directory};

/// Contents of the traces that are live, by root.
pub(super) type Live = BTreeMap<RootId, Vec<u8>>;

/// A locked directory, and the file in use.
#[derive(Debug)]
pub(super) struct JournalFiles {
    directory: PathBuf,
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
pub(super) struct Left {
    pub(super) live: Live,
    /// Bytes that belong to no whole record.
    pub(super) cut_bytes: u64,
    /// Files of a newer version, or that cannot be read; they are left alone.
    pub(super) skipped: usize,
}

impl JournalFiles {
    /// Locks the directory and reads what is in it.
    ///
    /// # Errors
    /// The directory cannot be made or is locked, or too many files are left alone.
    pub(super) fn open(directory: &Path) -> io::Result<(JournalFiles, Left)> {
        private_directory(directory)?;
        let lock = lock_as(directory, JOURNAL_LOCK)?;
        let read = |(index, name): (usize, &&str)| Some((index, read(&directory.join(name)).ok()?));
        let texts: Vec<(usize, Vec<u8>)> = JOURNAL_FILES.iter().enumerate().filter_map(read).collect();
        let contents = texts.iter().map(|(index, bytes)| (*index, format::read_file(bytes)));
        let mut contents: Vec<_> = contents.filter(|(_, content)| !content.newer).collect();
        contents.sort_by_key(|(_, content)| content.generation);
        let mut left = Left {
            skipped: JOURNAL_FILES.len() - contents.len(),
            ..Left::default()
        };
        if contents.len() < 2 {
            return Err(io::Error::other(format!(
                "{} of the files {} are of a newer version or not readable",
                left.skipped,
                JOURNAL_FILES.join(", ")
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
        let files = JournalFiles {
            directory: directory.to_owned(),
            usable: contents.iter().map(|(index, _)| *index).collect(),
            filled: contents.iter().map(|(index, _)| *index).filter(is_filled).collect(),
            generation: contents.last().map_or(0, |(_, content)| content.generation),
            current: None,
            bytes: 0,
            _lock: lock,
        };
        Ok((files, left))
    }

    /// Bytes of the file in use.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends records with one write.
    ///
    /// # Errors
    /// They may be torn: [`JournalFiles::begin`] has to be called before the next append.
    pub(super) fn append(&mut self, records: &[u8]) -> io::Result<()> {
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
    pub(super) fn begin(&mut self, live: &Live) -> io::Result<()> {
        let empty = self.usable.iter().find(|index| !self.filled.contains(index));
        // Never so by this process, which fills two at most. The oldest is the one whose content the others repeat.
        let next = *empty.or(self.filled.first()).unwrap_or(&0);
        let mut file = open(&self.path(next))?;
        file.set_len(0)?;
        let generation = self.generation.saturating_add(1);
        let mut bytes = format::file_header(generation);
        for (root, content) in live {
            Record::Trace(*root, content).encode(&mut bytes);
        }
        file.write_all(&bytes)?;
        // From here on it holds everything.
        self.generation = generation;
        self.bytes = bytes.len() as u64;
        self.current = Some(file);
        for index in std::mem::replace(&mut self.filled, vec![next]) {
            if index != next
                && let Err(error) = open(&self.path(index)).and_then(|file| file.set_len(0))
            {
                self.filled.insert(0, index);
                return Err(error);
            }
        }
        Ok(())
    }

    fn path(&self, index: usize) -> PathBuf {
        self.directory
            .join(JOURNAL_FILES.get(index).copied().unwrap_or_default())
    }
}

/// A file that is made if it does not exist. Only its owner may read it.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).write(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
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

/// More than a journal has within its bounds.
const MAX_READ: u64 = 64 << 20;
