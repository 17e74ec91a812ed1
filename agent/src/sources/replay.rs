//! A recording as a source: reads its header, then its events, line by line in bounded memory.
//!
//! Used by `sandglass replay` and by tests. The format is `sandglass_model::recording`'s. A line that is no event is skipped
//! and counted with its number. Memory is bounded by one line of [`MAX_LINE`] bytes, or by the open buffers of an `.etl` file
//! (256 MiB).
//! Does not: pace itself; the recording of a night replays in seconds.

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use sandglass_model::Event;
use sandglass_model::recording::{self, Header, LineError, MAX_LINE};

use super::windows::file::{EtlFile, FileError};
use super::windows::normalize::ActivityNames;
use crate::failure::{Advice, ExitReason};

/// Why a recording cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The file cannot be opened or read.
    #[error("cannot read recording {}: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The first line is not a header this agent reads.
    #[error("cannot replay {}: {source}", path.display())]
    Header {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: LineError,
    },
    /// An `.etl` file cannot be read on.
    #[error(transparent)]
    Etl(FileError),
}

impl Advice for ReplayError {
    fn hint(&self) -> Cow<'_, str> {
        let hint = match self {
            ReplayError::Read { .. } => "make one with `sandglass record FILE`",
            ReplayError::Header { source, .. } => match source {
                LineError::TooNew { .. } => "replay it with the agent that made it, or a newer one",
                LineError::NotARecording | LineError::NotAnEvent(_) | LineError::TooLong => {
                    "make a recording with `sandglass record FILE`, or give an .etl file of a Windows node"
                }
            },
            ReplayError::Etl(error) => return error.hint(),
        };
        hint.into()
    }

    fn exit(&self) -> ExitReason {
        match self {
            ReplayError::Read { .. } | ReplayError::Etl(_) => ExitReason::Runtime,
            ReplayError::Header { .. } => ExitReason::Usage,
        }
    }
}

/// A file to replay; its content decides which kind it is.
#[derive(Debug)]
pub enum Replay {
    /// A recording of ours.
    Recording(Box<Recording>),
    /// What an ETW session wrote.
    Etl(Box<EtlFile>),
}

impl Replay {
    /// Opens `path`, whatever it is called; `names` are for an `.etl` file. What is neither is refused as no recording.
    ///
    /// # Errors
    /// When the file cannot be read, or neither kind of header can.
    pub fn open(path: &Path, names: ActivityNames) -> Result<Replay, ReplayError> {
        match Recording::open(path) {
            Ok(recording) => Ok(Replay::Recording(Box::new(recording))),
            Err(refused @ ReplayError::Header { .. }) => match EtlFile::open(path, names) {
                Ok(file) => Ok(Replay::Etl(Box::new(file))),
                Err(_) => Err(refused),
            },
            Err(error) => Err(error),
        }
    }

    /// The header: where the events come from.
    #[must_use]
    pub fn header(&self) -> &Header {
        match self {
            Replay::Recording(recording) => &recording.header,
            Replay::Etl(file) => &file.header,
        }
    }

    /// The next event, `None` at the end. Lines and records that are no events are skipped and counted.
    ///
    /// # Errors
    /// When the file cannot be read on.
    pub fn next_event(&mut self) -> Result<Option<Event>, ReplayError> {
        match self {
            Replay::Recording(recording) => recording.next_event(),
            Replay::Etl(file) => file.next_event().map_err(ReplayError::Etl),
        }
    }

    /// Bytes read and bytes in all, for a progress bar. The second may be less than the first in a file that still grows.
    #[must_use]
    pub fn progress(&self) -> (u64, u64) {
        match self {
            Replay::Recording(recording) => recording.progress(),
            Replay::Etl(file) => file.progress(),
        }
    }
}

/// An open recording: an iterator of events.
#[derive(Debug)]
pub struct Recording {
    /// Its header.
    pub header: Header,
    /// Behind the last line that was read.
    reader: BufReader<File>,
    /// For errors.
    path: PathBuf,
    /// Number of the line read last, from 1: the header's.
    line: u64,
    /// Bytes of all lines so far, skipped ones and line ends included.
    bytes_read: u64,
    /// Size of the file when it was opened; a recording that is still written may grow beyond it.
    bytes_total: u64,
    skipped: Skipped,
}

/// Lines that were skipped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// How many.
    pub count: u64,
    /// The first few: line number and reason.
    pub examples: Vec<(u64, String)>,
}

impl Recording {
    /// Opens `path` and reads its header.
    ///
    /// # Errors
    /// When the file cannot be read, or its first line is not the header of a recording of this version or an older one.
    pub fn open(path: &Path) -> Result<Recording, ReplayError> {
        let read = |source| ReplayError::Read {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(read)?;
        let bytes_total = file.metadata().map_err(read)?.len();
        let mut reader = BufReader::with_capacity(1 << 16, file);
        let mut line = Vec::new();
        let bytes_read = next_line(&mut reader, &mut line).map_err(read)?;
        let bad = |source| ReplayError::Header {
            path: path.to_owned(),
            source,
        };
        let text = std::str::from_utf8(&line).map_err(|_| bad(LineError::NotARecording))?;
        let header = recording::decode_header(text).map_err(bad)?;
        Ok(Recording {
            header,
            reader,
            path: path.to_owned(),
            line: 1,
            bytes_read,
            bytes_total,
            skipped: Skipped::default(),
        })
    }

    /// The next event, `None` at the end. A recording that was cut within a line, as by a full disk, loses that event only.
    ///
    /// # Errors
    /// When the file cannot be read on.
    pub fn next_event(&mut self) -> Result<Option<Event>, ReplayError> {
        let mut line = Vec::new();
        loop {
            let read = next_line(&mut self.reader, &mut line).map_err(|source| ReplayError::Read {
                path: self.path.clone(),
                source,
            })?;
            if read == 0 {
                return Ok(None);
            }
            self.line += 1;
            self.bytes_read += read;
            let text = match std::str::from_utf8(&line) {
                Ok(text) if text.trim().is_empty() => continue,
                Ok(text) => text,
                Err(error) => {
                    self.skip(&error.to_string());
                    continue;
                }
            };
            match recording::decode_event(text) {
                Ok(event) => return Ok(Some(event)),
                Err(error) => self.skip(&error.to_string()),
            }
        }
    }

    /// Lines skipped so far.
    #[must_use]
    pub fn skipped(&self) -> &Skipped {
        &self.skipped
    }

    /// Bytes read and bytes in all, for a progress bar.
    #[must_use]
    pub fn progress(&self) -> (u64, u64) {
        (self.bytes_read, self.bytes_total)
    }

    /// Counts a line. The first three are kept: they show whether the file is damaged or of another kind, and a damaged
    /// recording of a night has millions.
    fn skip(&mut self, reason: &str) {
        self.skipped.count += 1;
        if self.skipped.examples.len() < 3 {
            self.skipped.examples.push((self.line, reason.to_owned()));
        }
    }
}

/// Reads one line without its end into `line`. A line of more than [`MAX_LINE`] bytes is cut one byte beyond, so that decoding
/// rejects it as too long, and the rest of it is skipped. Returns the bytes consumed, 0 at the end.
fn next_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> std::io::Result<u64> {
    line.clear();
    let limit = MAX_LINE as u64 + 1;
    let mut read = reader.by_ref().take(limit).read_until(b'\n', line)? as u64;
    if line.last() == Some(&b'\n') {
        line.pop();
    } else if read == limit {
        read += reader.skip_until(b'\n')? as u64;
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::failure::Failure;
    use sandglass_model::{Body, ClockAnchor, Timestamp};

    fn header() -> String {
        recording::encode(&Header::new("0", "b".to_owned(), ClockAnchor::default())).unwrap()
    }

    fn file(lines: &[&[u8]]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        for line in lines {
            file.write_all(line).unwrap();
            file.write_all(b"\n").unwrap();
        }
        file
    }

    /// Broken JSON, bytes that are no UTF-8, a line beyond the bound: each is one skipped line. An empty line is none.
    #[test]
    fn bad_lines_are_counted_and_nothing_else_is_lost() {
        let tick = recording::encode(&Event {
            at: Timestamp(1),
            body: Body::Tick,
        })
        .unwrap();
        let huge = vec![b'x'; MAX_LINE + 100];
        let file = file(&[
            header().as_bytes(),
            tick.as_bytes(),
            b"{]",
            b"\xff\xfe",
            b"",
            &huge,
            tick.as_bytes(),
        ]);
        let mut recording = Recording::open(file.path()).unwrap();
        let mut events = 0;
        while recording.next_event().unwrap().is_some() {
            events += 1;
        }
        assert_eq!(events, 2);
        assert_eq!(recording.skipped().count, 3);
        assert_eq!(recording.skipped().examples[0].0, 3);
        let (read, total) = recording.progress();
        assert_eq!(read, total);
    }

    /// An operator who names the wrong file learns which command makes the right one.
    #[test]
    fn what_is_no_recording_is_refused_with_a_hint() {
        for first in [&b""[..], b"{}", b"\xff", b"hello"] {
            let error = Failure::from(Recording::open(file(&[first]).path()).unwrap_err()).to_string();
            assert!(
                error.contains("not a sandglass recording") && error.contains("hint:"),
                "{error}"
            );
        }
        assert!(
            Recording::open(Path::new("/nonexistent"))
                .unwrap_err()
                .hint()
                .contains("sandglass record")
        );
        assert!(Recording::open(Path::new("/")).is_err());
    }
}
