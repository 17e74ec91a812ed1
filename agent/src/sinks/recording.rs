//! The recording sink: writes every event that arrives as one line, behind a header.
//!
//! Used by `sandglass record` and `run --record`. It writes on the pipeline's thread on purpose: before the correlator
//! we block rather than shed, so that a recording is whole. When the disk fails, the recording ends there, the error
//! is kept, and everything else goes on. Only the file's owner may read it (mode 0600): it holds names and addresses of the
//! node's pods, unless it is anonymized. On Windows it has the permissions that its directory gives to new files.

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandglass_model::Event;
use sandglass_model::anonymize::Anonymizer;
use sandglass_model::recording::{self, Header};
use tokio::sync::Notify;

use crate::failure::Advice;
use crate::platform::create_private;

/// Why a recording cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file cannot be made.
    #[error("cannot create recording {}: {source}", path.display())]
    Create {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file cannot be written on.
    #[error("cannot write recording {}: {source}", path.display())]
    Write {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

impl Advice for RecordError {
    fn hint(&self) -> Cow<'_, str> {
        let hint = match self {
            RecordError::Create { .. } => "give the path of a new file in a directory you may write",
            RecordError::Write { .. } => "free space on its file system; the lines up to here are whole",
        };
        hint.into()
    }
}

/// A recording being written.
#[derive(Debug)]
pub struct Recorder {
    path: PathBuf,
    file: BufWriter<File>,
    flushed: Instant,
    events: u64,
    anonymizer: Option<Anonymizer>,
    /// An event came, or an end: the file is the user's from then on.
    begun: bool,
    failed: Option<RecordError>,
    /// Notified when the file cannot be written on.
    broken: Arc<Notify>,
}

/// How often lines reach the file on a quiet node.
const FLUSH: Duration = Duration::from_secs(1);

impl Recorder {
    /// Makes the file, which must not exist, and writes the header.
    pub fn create(path: &Path, header: &Header) -> Result<Recorder, RecordError> {
        Recorder::open(path, header, None)
    }

    /// The same, with names and addresses replaced.
    pub fn create_anonymized(path: &Path, header: &Header) -> Result<Recorder, RecordError> {
        let mut anonymizer = Anonymizer::default();
        let header = anonymizer.header(header);
        Recorder::open(path, &header, Some(anonymizer))
    }

    fn open(path: &Path, header: &Header, anonymizer: Option<Anonymizer>) -> Result<Recorder, RecordError> {
        let create = |source| RecordError::Create {
            path: path.to_owned(),
            source,
        };
        let file = create_private(path).map_err(create)?;
        let mut file = BufWriter::with_capacity(1 << 16, file);
        let line = recording::encode(header).map_err(|error| create(error.into()))?;
        writeln!(file, "{line}").and_then(|()| file.flush()).map_err(create)?;
        Ok(Recorder {
            path: path.to_owned(),
            file,
            flushed: Instant::now(),
            events: 0,
            anonymizer,
            begun: false,
            failed: None,
            broken: Arc::default(),
        })
    }

    /// Notified once, when the recording ended because the file could not be written on.
    #[must_use]
    pub fn broken(&self) -> Arc<Notify> {
        Arc::clone(&self.broken)
    }

    /// Writes one event.
    pub fn record(&mut self, event: &Event) {
        self.begun = true;
        if self.failed.is_some() {
            return;
        }
        let line = match &mut self.anonymizer {
            Some(anonymizer) => {
                let mut event = event.clone();
                anonymizer.event(&mut event);
                recording::encode(&event)
            }
            None => recording::encode(event),
        };
        let written = line
            .map_err(std::io::Error::from)
            .and_then(|line| writeln!(self.file, "{line}"))
            .and_then(|()| self.flush_in_time());
        match written {
            Ok(()) => self.events += 1,
            Err(source) => {
                let error = RecordError::Write {
                    path: self.path.clone(),
                    source,
                };
                tracing::warn!(file = %self.path.display(), "the recording ends here: its file cannot be written on");
                self.failed = Some(error);
                self.broken.notify_one();
            }
        }
    }

    /// Ends the recording; returns how many events it holds.
    pub fn finish(mut self) -> Result<u64, RecordError> {
        self.begun = true;
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        self.file.flush().map_err(|source| RecordError::Write {
            path: self.path.clone(),
            source,
        })?;
        Ok(self.events)
    }

    fn flush_in_time(&mut self) -> std::io::Result<()> {
        if self.flushed.elapsed() >= FLUSH {
            self.flushed = Instant::now();
            self.file.flush()?;
        }
        Ok(())
    }
}

/// An agent that did not start leaves no file in the way of the next try.
impl Drop for Recorder {
    fn drop(&mut self) {
        if !self.begun {
            // What cannot be removed is only a header.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::replay::Recording;
    use sandglass_model::{Body, ClockAnchor, Timestamp};

    fn header() -> Header {
        Header::new("0", "b".to_owned(), ClockAnchor::default())
    }

    #[test]
    fn what_is_recorded_is_read_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("events.jsonl");
        let mut recorder = Recorder::create(&path, &header()).unwrap();
        let event = Event {
            at: Timestamp(3),
            body: Body::Tick,
        };
        recorder.record(&event);
        assert_eq!(recorder.finish().unwrap(), 1);
        let mut recording = Recording::open(&path).unwrap();
        assert_eq!(recording.header, header());
        assert_eq!(recording.next_event().unwrap(), Some(event));
        assert_eq!(recording.next_event().unwrap(), None);
        assert!(
            Recorder::create(&path, &header())
                .unwrap_err()
                .hint()
                .contains("new file")
        );
    }

    #[cfg(unix)]
    #[test]
    fn only_the_owner_may_read_a_recording() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("events.jsonl");
        Recorder::create(&path, &header()).unwrap().finish().unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn an_anonymized_recording_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("events.jsonl");
        let named = Header {
            node: "worker-7".into(),
            ..header()
        };
        Recorder::create_anonymized(&path, &named).unwrap().finish().unwrap();
        let header = Recording::open(&path).unwrap().header;
        assert!(header.holds.is_some_and(|holds| holds.anonymized));
        assert_eq!(header.node, "node");
    }

    #[test]
    fn a_recording_that_never_began_leaves_no_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("events.jsonl");
        drop(Recorder::create(&path, &header()).unwrap());
        assert!(!path.exists());
        assert_eq!(Recorder::create(&path, &header()).unwrap().finish().unwrap(), 0);
        assert!(path.exists());
    }

    #[test]
    fn a_full_disk_ends_the_recording_with_an_error() {
        if !Path::new("/dev/full").exists() {
            eprintln!("SKIPPED a_full_disk_ends_the_recording_with_an_error: no /dev/full");
            return;
        }
        let file = BufWriter::with_capacity(1, std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
        let mut recorder = Recorder {
            path: "/dev/full".into(),
            file,
            flushed: Instant::now(),
            events: 0,
            anonymizer: None,
            begun: true,
            failed: None,
            broken: Arc::default(),
        };
        recorder.record(&Event {
            at: Timestamp(3),
            body: Body::Tick,
        });
        assert!(recorder.finish().unwrap_err().to_string().contains("/dev/full"));
    }
}
