//! Metrics of the journal, in traces: what is in it, what it could not keep, what it brought back.
//!
//! Their spans enter the OTLP sink's own numbers when they are delivered to it. Does not: count an interrupted operation as a failed one:
//! nobody knows whether it failed, so the metrics of plugins and operations leave it out.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::registration::register;

/// The metrics.
#[derive(Clone, Debug, Default)]
pub(super) struct JournalMetrics {
    pub(super) interrupted: Counter,
    pub(super) unsent: Counter,
    pub(super) corrupt: Counter,
    pub(super) unwritten: Counter,
    pub(super) cut_bytes: Counter,
    pub(super) traces: Gauge,
    pub(super) bytes: Gauge,
    pub(super) skipped: Gauge,
    pub(super) failing: Gauge,
}

impl JournalMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        register! { registry,
            "journal_interrupted_traces": self.interrupted, "Traces that were open when an earlier run of the agent was killed, and were reported as far as they were seen";
            "journal_unsent_traces": self.unsent, "Traces that an earlier run of the agent had closed, and that were neither in a request nor in the store's files";
            "journal_corrupt_traces": self.corrupt, "Traces of the journal that could not be used";
            "journal_unwritten_traces": self.unwritten, "Writes of a trace for which the journal of open traces had no room";
            "journal_cut_bytes": self.cut_bytes, "Bytes of unreadable records that were cut off the journal of open traces";
            "journal_traces": self.traces, "Traces in the journal of open traces";
            "journal_bytes": self.bytes, "Bytes of the file of the journal of open traces";
            "journal_skipped_files": self.skipped, "Files of the journal in a newer format or not readable, which are left alone";
            "journal_failing": self.failing, "1 while the journal of open traces cannot be written";
        }
    }
}
