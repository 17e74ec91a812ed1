//! A feed of packet records: takes them from their ring buffer, has them decoded, sends the events.
//!
//! Used by `dns` and `drops`, whose records differ only in what they mean. Does not: decode; that is a [`Decoder`]'s.

use std::os::fd::{AsFd as _, BorrowedFd};

use sandglass_model::Event;

use super::{AT_ONCE, Feed, Found, Outlet};
use crate::sources::Stopped;
use crate::sources::linux::loader::family::Stream;
use crate::sources::linux::record::DecodeError;

/// Turns the records of one probe into events.
pub trait Decoder: Send + 'static {
    /// Adds what `record` tells to `events`.
    fn decode(&mut self, record: &[u8], events: &mut Vec<Event>) -> Result<(), DecodeError>;
}

/// What the thread owns.
pub struct DecodedFeed<D> {
    stream: Stream,
    outlet: Outlet,
    decoder: D,
    events: Vec<Event>,
}

impl<D: Decoder> DecodedFeed<D> {
    /// Puts the parts together.
    pub fn new(stream: Stream, outlet: Outlet, decoder: D) -> DecodedFeed<D> {
        DecodedFeed {
            stream,
            outlet,
            decoder,
            events: Vec::new(),
        }
    }
}

impl<D: Decoder> Feed for DecodedFeed<D> {
    fn wakes(&self, _asleep: bool) -> Option<BorrowedFd<'_>> {
        Some(self.stream.ring.as_fd())
    }

    fn sleeps(&mut self) -> bool {
        self.stream.reader.sleeps()
    }

    fn drain(&mut self) -> Result<Found, Stopped> {
        let mut records = 0;
        while records < AT_ONCE {
            let next = self
                .stream
                .ring
                .next(|record| self.decoder.decode(record, &mut self.events));
            let Some(outcome) = next else { break };
            records += 1;
            if let Err(error) = outcome {
                self.outlet.undecodable(&error);
            }
            for event in self.events.drain(..) {
                self.outlet.send(event)?;
            }
        }
        Ok(Found::of(records))
    }

    fn check(&mut self) -> Result<(), Stopped> {
        self.outlet.report_losses(&mut self.stream.lost)
    }
}
