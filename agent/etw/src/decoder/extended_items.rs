//! What a record's extended items hold, by kind (`EVENT_HEADER_EXTENDED_DATA_ITEM`, evntcons.h).
//!
//! Used by the decoder. Does not: keep items of other kinds (security ids, stacks); nothing here uses them.

use crate::guid::Guid;
use crate::raw::{RecordView, extended};

/// The content of a record's extended items.
#[derive(Default)]
pub(super) struct Extended<'a> {
    /// The activity that caused this one.
    pub(super) related_activity: Option<Guid>,
    /// The silo that the event comes from; only where the session enabled it.
    pub(super) container_id: Option<Guid>,
    /// Identifies the logging process until the next boot, unlike its id.
    pub(super) process_start_key: Option<u64>,
    /// Identifies the event.
    pub(super) event_key: Option<u64>,
    /// The schema of a TraceLogging event.
    pub(super) metadata: Option<&'a [u8]>,
    /// The name of a TraceLogging provider, and more.
    pub(super) traits: Option<&'a [u8]>,
}

impl<'a> Extended<'a> {
    /// The items of a record; of two items of one kind the last counts.
    pub(super) fn of(record: &RecordView<'a>) -> Self {
        let mut found = Self::default();
        let number = |data: &[u8]| data.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes));
        for (kind, data) in record.extended.iter() {
            match kind {
                extended::RELATED_ACTIVITY => found.related_activity = Guid::read(data),
                extended::CONTAINER_ID => found.container_id = container_id(data),
                extended::PROCESS_START_KEY => found.process_start_key = number(data),
                extended::EVENT_KEY => found.event_key = number(data),
                extended::EVENT_SCHEMA => found.metadata = Some(data),
                extended::PROVIDER_TRAITS => found.traits = Some(data),
                _ => {}
            }
        }
        found
    }
}

/// A GUID as text, with or without braces and a zero byte, or as 16 bytes. evntcons.h documents the item as text of 36
/// characters; the other forms cost nothing to accept.
pub(super) fn container_id(data: &[u8]) -> Option<Guid> {
    let text = str::from_utf8(data).ok().map(|text| text.trim_end_matches('\0').trim());
    let parsed = text.and_then(|text| text.parse().ok());
    parsed.or_else(|| (data.len() == 16).then(|| Guid::read(data)).flatten())
}
