//! A feed whose records become events one by one: takes them from their ring buffer, decodes them, sends the events.
//!
//! Used by `dns`, `drops` and `connect`, which differ only in their [`Decoder`]. A record that cannot be decoded is counted,
//! and the next one is read: one bad record must not stop a probe. Does not: decode.

use std::os::fd::{AsFd as _, BorrowedFd};

use sandglass_model::{Event, Timestamp};

use super::{Drained, Feed, Outlet, RECORDS_MAX};
use crate::sources::clock;
use crate::sources::linux::loader::family::RecordStream;
use crate::sources::linux::record::DecodeError;
use crate::sources::queue::{Spent, Stopped};

/// Turns the records of one probe into events.
pub trait Decoder: Send + 'static {
    /// Appends the events of one record to `events`; there may be none.
    ///
    /// # Errors
    /// When the bytes are no record.
    fn decode(&mut self, record: &[u8], events: &mut Vec<Event>) -> Result<(), DecodeError>;

    /// Called about once a second: appends the events that follow from `now` alone.
    fn sweep(&mut self, _now: Timestamp, _events: &mut Vec<Event>) {}

    /// Where the decoder keeps messages whose memory it uses again, if it does.
    fn spare_messages(&mut self) -> Option<&mut Spent> {
        None
    }
}

/// The feed.
pub struct DecodedFeed<D> {
    stream: RecordStream,
    outlet: Outlet,
    decoder: D,
    /// Events that are not sent yet; empty between two drains. Keeps its allocation.
    events: Vec<Event>,
}

impl<D: Decoder> DecodedFeed<D> {
    /// Puts the parts together.
    pub fn new(stream: RecordStream, outlet: Outlet, decoder: D) -> DecodedFeed<D> {
        DecodedFeed {
            stream,
            outlet,
            decoder,
            events: Vec::new(),
        }
    }
}

impl<D: Decoder> Feed for DecodedFeed<D> {
    fn outlet(&self) -> &Outlet {
        &self.outlet
    }

    fn wake_fd(&self, _asleep: bool) -> Option<BorrowedFd<'_>> {
        Some(self.stream.ring.as_fd())
    }

    fn request_wake(&mut self) -> bool {
        self.stream.reader.request_wake()
    }

    fn drain(&mut self) -> Result<Drained, Stopped> {
        if let Some(spare) = self.decoder.spare_messages().filter(|spare| spare.is_empty()) {
            self.outlet.take_spent(spare);
        }
        let mut records = 0;
        while records < RECORDS_MAX {
            let next = self
                .stream
                .ring
                .next(|record| self.decoder.decode(record, &mut self.events));
            let Some(outcome) = next else { break };
            records += 1;
            if let Err(error) = outcome {
                self.outlet.count_undecodable(&error);
            }
            if self.events.len() >= BATCH {
                self.outlet.send_all(self.events.drain(..))?;
            }
        }
        self.outlet.send_all(self.events.drain(..))?;
        Ok(Drained::from_count(records))
    }

    /// Sweeps before it reports losses, so that what was lost comes behind the events of what came before.
    fn check(&mut self) -> Result<(), Stopped> {
        self.decoder.sweep(clock::now(), &mut self.events);
        self.outlet.send_all(self.events.drain(..))?;
        self.outlet.report_losses(&mut self.stream.lost)
    }
}

/// Events are sent so many at a time: enough that the queue's lock costs nothing, and few enough for the first cache.
const BATCH: usize = 64;
