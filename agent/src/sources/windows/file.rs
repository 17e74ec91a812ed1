//! An `.etl` file as a source: read, decoded and normalized on any machine, in bounded memory.
//!
//! Used by `sandglass replay`. The file's header has what a recording's header needs: version of Windows, boot time and clock,
//! from which all ids derive. Unreadable and undecodable records are counted. Does not: pace itself.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{Cursor, Read, Seek};
use std::path::{Path, PathBuf};

use sandglass_etw::{DecodeCounts, Decoder, EtlError, EtlEvents, EtlStatistics, ReadOptions};
use sandglass_model::recording::Header;
use sandglass_model::{Body, ClockAnchor, Event, Timestamp, TraceId};

use super::NODE_COMPARTMENT;
use super::normalize::{ActivityNames, DNS_CLIENT, Normalizer, TCPIP};
use crate::failure::Advice;

/// Why a file cannot be replayed.
#[derive(Debug, thiserror::Error)]
#[error("cannot replay {}: {source}", path.display())]
pub struct FileError {
    /// Which file.
    pub path: PathBuf,
    /// Why.
    #[source]
    pub source: EtlError,
}

impl Advice for FileError {
    fn hint(&self) -> Cow<'_, str> {
        "give a file that an ETW session wrote (pktmon, wpr, logman, netsh trace)".into()
    }
}

/// A seekable input.
trait Input: Read + Seek + std::fmt::Debug {}
impl<T: Read + Seek + std::fmt::Debug> Input for T {}

/// An open file: an iterator of events.
#[derive(Debug)]
pub struct EtlFile {
    /// The header of a recording of this file.
    pub header: Header,
    /// For errors.
    path: PathBuf,
    events: EtlEvents<Box<dyn Input>>,
    normalizer: Normalizer,
    /// Events to return next: one event of ETW may make several.
    ready: VecDeque<Event>,
    /// Empty between two events; keeps its allocation.
    facts: Vec<Event>,
    /// Latest time so far; 0 before the first event.
    last: Timestamp,
    /// The event that traffic is watched was returned.
    traffic: bool,
    /// The end of the file was reached.
    ended: bool,
    /// Unreadable buffers.
    broken: u64,
}

/// Counts of records that became no event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unused {
    /// Events that the session lost, those in lost buffers included; a lower bound.
    pub lost: u64,
    /// Unreadable records and buffers.
    pub unreadable: u64,
    /// Records without a schema, or with a malformed one.
    pub undecodable: u64,
    /// WPP messages: only the vendor's symbol files describe them.
    pub wpp: u64,
    /// Events of other providers.
    pub foreign: u64,
}

/// Longest silence at the end of a file that is replayed; a session may have ended hours after its last event.
const MAX_SILENCE_NS: u64 = 60_000_000_000;

impl EtlFile {
    /// Opens `path` and reads the header of its session.
    ///
    /// # Errors
    ///
    /// [`FileError`] when the file cannot be read, or its first buffer is not the header of an ETW log file.
    pub fn open(path: &Path, names: ActivityNames) -> Result<EtlFile, FileError> {
        let bad = |source| FileError {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(|source| bad(EtlError::Read { offset: 0, source }))?;
        EtlFile::new(path, Box::new(file), names).map_err(bad)
    }

    /// From bytes; `name` is the path in errors.
    ///
    /// # Errors
    ///
    /// As for [`EtlFile::open`].
    pub fn from_bytes(name: &str, bytes: Vec<u8>, names: ActivityNames) -> Result<EtlFile, FileError> {
        let path = PathBuf::from(name);
        EtlFile::new(&path, Box::new(Cursor::new(bytes)), names).map_err(|source| FileError { path, source })
    }

    fn new(path: &Path, input: Box<dyn Input>, names: ActivityNames) -> Result<EtlFile, EtlError> {
        let events = EtlEvents::new(input, ReadOptions::default(), Decoder::default())?;
        let session = events.session();
        // ETW has no boot id. Boot time, build and number of processors identify a boot of a node well enough for ids of
        // traces, and two files of one boot get the same.
        let boot = TraceId::of(&[
            b"etl",
            &session.booted_ns.to_le_bytes(),
            &session.os_build.to_le_bytes(),
            &session.processors.to_le_bytes(),
        ]);
        // ETW has one clock: boot and wall clock are the same.
        let clock = ClockAnchor {
            boot_ns: session.started_ns,
            unix_ns: session.started_ns,
        };
        let header = Header {
            os: "Windows".to_owned(),
            kernel: format!("{}.{}.{}", session.os_version.0, session.os_version.1, session.os_build),
            machine: if session.pointer_size == 4 { "x86" } else { "x86_64" }.to_owned(),
            ..Header::new(env!("CARGO_PKG_VERSION"), boot.to_string(), clock)
        };
        Ok(EtlFile {
            header,
            path: path.to_owned(),
            events,
            normalizer: Normalizer::new(names),
            ready: VecDeque::new(),
            facts: Vec::new(),
            last: Timestamp(0),
            traffic: false,
            ended: false,
            broken: 0,
        })
    }

    /// The next event; `None` at the end.
    ///
    /// # Errors
    ///
    /// [`FileError`] after more than 1,000 unreadable buffers.
    pub fn next_event(&mut self) -> Result<Option<Event>, FileError> {
        while self.ready.is_empty() && !self.ended {
            match self.events.next_event() {
                Ok(Some(event)) => {
                    let at = Timestamp(event.at_ns);
                    let begins = self.last == Timestamp(0);
                    self.last = self.last.max(at);
                    if begins {
                        self.report_loss(at);
                    }
                    // From the first event of these providers on, silence means that nothing was sent.
                    if !self.traffic && (event.provider == DNS_CLIENT || event.provider == TCPIP) {
                        self.traffic = true;
                        let node_netns = NODE_COMPARTMENT;
                        self.ready.push_back(Event {
                            at,
                            body: Body::TrafficWatched { node_netns },
                        });
                    }
                    self.normalizer.facts(&event, &mut self.facts);
                    self.ready.extend(self.facts.drain(..));
                }
                Ok(None) => self.end(),
                // Skips one buffer. On a failing disk every buffer is unreadable: the count is bounded.
                Err(error) => {
                    self.broken += 1;
                    if self.broken > MAX_BROKEN {
                        return Err(FileError {
                            path: self.path.clone(),
                            source: error,
                        });
                    }
                }
            }
        }
        Ok(self.ready.pop_front())
    }

    /// Reports the losses of the whole file; their time is unknown.
    fn report_loss(&mut self, at: Timestamp) {
        let count = self.unused().lost;
        if count > 0 {
            let probe = "etw".to_owned();
            self.ready.push_back(Event {
                at,
                body: Body::Lost { probe, count },
            });
        }
    }

    /// Ends the replay: the losses that only the last buffers show, then the passing of time to the session's end, so that
    /// deadlines of what was open expire as they would have on the node.
    fn end(&mut self) {
        self.ended = true;
        if self.last == Timestamp(0) {
            return;
        }
        self.report_loss(self.last);
        let ended = Timestamp(self.events.session().ended_ns);
        self.ready.push_back(Event {
            at: ended.clamp(self.last, self.last.plus(MAX_SILENCE_NS)),
            body: Body::Tick,
        });
    }

    /// Name of the session that wrote the file.
    #[must_use]
    pub fn session_name(&self) -> &str {
        &self.events.session().name
    }

    /// Counts so far.
    #[must_use]
    pub fn unused(&self) -> Unused {
        let statistics: &EtlStatistics = self.events.statistics();
        let counts: DecodeCounts = self.events.counts();
        Unused {
            // The header of a session that was not stopped has no counts, but its buffers are marked.
            lost: (statistics.events_lost + statistics.buffers_lost)
                .max(statistics.buffers_after_lost_events + statistics.buffers_after_lost_buffers),
            unreadable: statistics.bad_records
                + statistics.damaged_buffers
                + statistics.unknown_headers
                + statistics.unindexed_buffers
                + u64::from(statistics.cut_off)
                + self.broken,
            undecodable: counts.no_schema + counts.bad_schema,
            wpp: statistics.wpp + counts.wpp,
            foreign: self.normalizer.unknown_providers().values().sum(),
        }
    }

    /// Bytes of records read and bytes of the file, for a progress bar.
    #[must_use]
    pub fn progress(&self) -> (u64, u64) {
        let statistics = self.events.statistics();
        // Compressed records are larger than their file.
        (
            statistics.record_bytes.min(statistics.file_bytes),
            statistics.file_bytes,
        )
    }
}

/// Bound on unreadable buffers.
const MAX_BROKEN: u64 = 1_000;
