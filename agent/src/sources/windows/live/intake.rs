//! Where records enter: the callbacks of the sessions and the bounded queue that they fill.
//!
//! A callback copies a record and blocks while the queue is full, which pushes back to ETW's own buffers. Does not: decode.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;

use ferrisetw::{EventRecord, SchemaLocator};
use sandglass_etw::RawRecord;

use super::copy;
use super::status::{label, unattached};
use crate::health::Health;

/// State that the callbacks and the threads of the sessions share.
pub(super) struct Intake {
    /// The queue to the decoder's thread, of [`super::EtwOptions::queue_records`] records.
    pub(super) records: SyncSender<RawRecord>,
    pub(super) health: Health,
    /// The sessions end because the source is being stopped.
    pub(super) stopping: Arc<AtomicBool>,
}

impl Intake {
    /// A callback that copies the record into the queue, and blocks while that is full.
    pub(super) fn callback(&self) -> impl FnMut(&EventRecord, &SchemaLocator) + Send + Sync + 'static {
        let records = self.records.clone();
        guarded(self.health.clone(), move |record| {
            // Fails only while the source is being stopped: the decoder's end is closed.
            let _ = records.send(copy::record(record));
        })
    }

    /// Reports the end of a session, unless the source is being stopped.
    pub(super) fn ended(
        &self,
        probe: &'static str,
        consequence: &'static str,
        session: &'static str,
    ) -> impl FnOnce() + Send + 'static {
        let (health, stopping) = (self.health.clone(), Arc::clone(&self.stopping));
        move || {
            if !stopping.load(Ordering::Relaxed) {
                let what = format!("the ETW session '{session}' was stopped from outside");
                health.set_probe(unattached(probe, consequence, &what, "restart the agent"));
                tracing::warn!(session, "the ETW session was stopped from outside: {consequence}");
            }
        }
    }
}

/// Counts a panic as one undecodable record. It must not reach ferrisetw, which aborts the process.
pub(super) fn guarded(
    health: Health,
    mut take: impl FnMut(&EventRecord) + Send + Sync + 'static,
) -> impl FnMut(&EventRecord, &SchemaLocator) + Send + Sync + 'static {
    move |record, _| {
        if catch_unwind(AssertUnwindSafe(|| take(record))).is_err() {
            health.undecodable.get_or_create(&label()).inc();
        }
    }
}
