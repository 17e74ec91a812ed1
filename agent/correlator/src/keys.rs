//! Keys of open traces and of their spans: what rooms hold and pass on in place of references.
//!
//! Used by every room, by facts and by timers. A key stays valid to hold after its trace has closed: it then finds
//! nothing, since no second trace ever gets the same one. Imports no room.

/// Key of an open trace. Keys sort in the order in which the traces were opened. Trace ids do not serve as keys: a
/// runtime can choose them (`TRACEPARENT`), and then several open traces may share one.
///
/// The upper 40 bits are a serial number, the lower 24 the slot in [`crate::traces::OpenTraces`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TraceKey(u64);

impl TraceKey {
    /// Sorts before every other key.
    pub(crate) const FIRST: TraceKey = TraceKey(0);
    /// Bound on open traces that keys can address, 16,777,215; one slot is left for the trace that is being opened.
    pub(crate) const MAX_OPEN: usize = (1 << Self::SLOT_BITS) - 1;
    /// The 40 bits above count a thousand traces a second for thirty years.
    const SLOT_BITS: u32 = 24;

    pub(crate) fn new(serial: u64, slot: u32) -> TraceKey {
        TraceKey(serial << Self::SLOT_BITS | u64::from(slot))
    }

    /// The number of traces that were opened before it.
    pub(crate) fn serial(self) -> u64 {
        self.0 >> Self::SLOT_BITS
    }

    /// The index of the trace in the table of open traces.
    pub(crate) fn slot(self) -> usize {
        self.0 as usize & Self::MAX_OPEN
    }
}

/// Key of a span of an open trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SpanRef {
    pub(crate) trace: TraceKey,
    /// Index in the trace's spans as long as the trace is open.
    pub(crate) span: usize,
}
