//! Counts of what a file holds, of what was read and of what was not.
//!
//! Used by replay and by tests. Does not: count events (the decoder does).

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
    /// Bytes skipped in search of the next buffer.
    pub skipped_bytes: u64,
    /// The file ended inside a buffer.
    pub cut_off: bool,
    /// Buffers beyond what the index can hold.
    pub unindexed_buffers: u64,
    /// Records returned.
    pub records: u64,
    /// Of these, records older than one before them.
    pub late: u64,
    /// Kernel logger records of classes that the filter leaves out.
    pub kernel_other: u64,
    /// Records of providers that the filter leaves out.
    pub filtered: u64,
    /// WPP messages.
    pub wpp: u64,
    /// Records with an unknown header.
    pub unknown_headers: u64,
    /// Records whose inner structure is malformed.
    pub bad_records: u64,
    /// Events lost, by the header of the session.
    pub events_lost: u64,
    /// Buffers lost, by the header of the session.
    pub buffers_lost: u64,
    /// Buffers with the mark that events were lost before them.
    pub buffers_after_lost_events: u64,
    /// Buffers with the mark that a buffer was lost before them.
    pub buffers_after_lost_buffers: u64,
    /// The file has no readable header, so its clock is a guess.
    pub clock_unknown: bool,
}

impl EtlStatistics {
    /// Whether anything is missing: lost by the session or unreadable.
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
