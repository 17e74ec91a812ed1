//! The thread that decodes and normalizes the records of the queue.
//!
//! Layouts come from the agent's tables; TDH is queried only for events that no table has. One thread, because the normalizer's
//! state (processes, operations) depends on the order of the records. Does not: read fields through TDH.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::Receiver;

use sandglass_etw::{Decoded, Decoder, RawRecord, Undecodable};
use sandglass_model::Event;

use super::schema;
use super::status::label;
use crate::health::Health;
use crate::sources::queue::{EventSender, Stopped};
use crate::sources::windows::normalize::{self, Normalizer};

/// State of the thread.
pub(super) struct Decoding {
    pub(super) decoder: Decoder,
    pub(super) schemas: schema::Schemas,
    pub(super) normalizer: Normalizer,
    pub(super) sender: EventSender,
    pub(super) health: Health,
}

impl Decoding {
    /// Runs until the sessions or the pipeline have ended; sends `watched` first.
    pub(super) fn run(mut self, watched: Event, queue: &Receiver<RawRecord>) {
        if self.sender.send(watched) == Err(Stopped) {
            return;
        }
        let mut facts = Vec::new();
        while let Ok(record) = queue.recv() {
            // A record that panics the decoder must not end the source. The normalizer may have applied a part of it.
            if catch_unwind(AssertUnwindSafe(|| self.decode(&record, &mut facts))).is_err() {
                self.undecodable();
            }
            for fact in facts.drain(..) {
                if self.sender.send(fact) == Err(Stopped) {
                    return;
                }
            }
        }
    }

    /// Appends the events of one record. A record without a schema is decoded again once TDH has supplied its layout.
    fn decode(&mut self, record: &RawRecord, facts: &mut Vec<Event>) {
        // The table's layouts of this provider are inferred: those of Windows take precedence.
        if record.header.provider == normalize::HYPER_V_COMPUTE
            && let Some(info) = self.schemas.query(&record.header)
        {
            self.decoder.learn(&info);
        }
        let mut decoded = self.decoder.decode(record);
        if let Decoded::Undecodable(Undecodable::NoSchema) = decoded
            && let Some(info) = self.schemas.query(&record.header)
            && self.decoder.learn(&info)
        {
            decoded = self.decoder.decode(record);
        }
        match decoded {
            Decoded::Event(event) => self.normalizer.facts(&event, facts),
            Decoded::Learned | Decoded::Wpp => {}
            Decoded::Undecodable(_) => self.undecodable(),
        }
    }

    /// Counts a record that makes no event because its layout is unknown or does not fit.
    fn undecodable(&self) {
        self.health.undecodable.get_or_create(&label()).inc();
    }
}
