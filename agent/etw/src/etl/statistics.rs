//! What a file held, what was read of it, and what not.

/// Counts over one file. Every record of a readable buffer is in exactly one of `records`, `kernel_other`, `filtered`,
/// `wpp`, `unknown_headers`, `bad_records`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EtlStatistics {
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Bytes of records after decompression, as far as buffers have been opened.
    pub record_bytes: u64,
    /// Most bytes that open buffers have taken at one time.
    pub peak_open_bytes: u64,
    /// Buffers found.
    pub buffers: u64,
    /// Of these, compressed ones.
    pub compressed_buffers: u64,
    /// Buffers of which nothing or only a first part could be read: bad compression, a bad record inside.
    pub damaged_buffers: u64,
    /// Bytes passed over in search of the next buffer.
    pub skipped_bytes: u64,
    /// The file ended inside a buffer.
    pub cut_off: bool,
    /// Buffers beyond what the index can hold.
    pub unindexed_buffers: u64,
    /// Records given out.
    pub records: u64,
    /// Of these, records older than one given out before.
    pub late: u64,
    /// Kernel logger records of classes that were not asked for.
    pub kernel_other: u64,
    /// Records of providers that were not asked for.
    pub filtered: u64,
    /// WPP messages.
    pub wpp: u64,
    /// Records with a header we do not know.
    pub unknown_headers: u64,
    /// Records whose inner structure is malformed.
    pub bad_records: u64,
    /// Events the session lost, as its header says.
    pub events_lost: u64,
    /// Buffers the session lost, as its header says.
    pub buffers_lost: u64,
    /// Buffers marked: events were lost before them.
    pub buffers_after_lost_events: u64,
    /// Buffers marked: a buffer was lost before them.
    pub buffers_after_lost_buffers: u64,
    /// Times could not be placed: the file has no readable header.
    pub clock_unknown: bool,
}

impl EtlStatistics {
    /// True when anything is missing: lost by the session or unreadable for us.
    pub const fn incomplete(&self) -> bool {
        self.events_lost > 0
            || self.buffers_lost > 0
            || self.buffers_after_lost_events > 0
            || self.buffers_after_lost_buffers > 0
            || self.damaged_buffers > 0
            || self.unindexed_buffers > 0
            || self.bad_records > 0
            || self.cut_off
    }
}
