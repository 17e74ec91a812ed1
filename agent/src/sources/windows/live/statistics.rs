//! Polls how many events the sessions lost; ferrisetw has no call for it. Also ends the flows of the virtual switch in time.
//!
//! One thread of [`super::Source`]. Does not: count records lost after ETW delivered them; there are none, the queue blocks.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::properties::SessionProperties;
use super::status::{label, lost};
use super::{EVENTS, PROCESSES, flows};
use crate::health::{Health, SessionLabel};
use crate::sources::queue::EventSender;

/// Runs until `stopped` is disconnected, with a last query then, or until the pipeline has ended. At `flows_until` it disables
/// the provider of flows.
pub(super) fn run(stopped: &Receiver<()>, sender: &EventSender, health: &Health, mut flows_until: Option<Instant>) {
    let mut reported = BTreeMap::new();
    for session in [EVENTS, PROCESSES] {
        // The series start at 0.
        drop(health.etw_lost.get_or_create(&SessionLabel::new(session)));
    }
    loop {
        let now = Instant::now();
        let wait = flows_until.map_or(PERIOD, |until| PERIOD.min(until.saturating_duration_since(now)));
        let last = stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout);
        if flows_until.is_some_and(|until| until <= Instant::now()) {
            flows_until = None;
            flows::end();
        }
        for session in [EVENTS, PROCESSES] {
            let Some(total) = lost_by(session) else {
                continue;
            };
            let before = reported.insert(session, total).unwrap_or(0);
            let count = total.saturating_sub(before);
            if count > 0 {
                health.lost.get_or_create(&label()).inc_by(count);
                health.etw_lost.get_or_create(&SessionLabel::new(session)).inc_by(count);
                if sender.send(lost(count)).is_err() {
                    return;
                }
            }
        }
        if last {
            return;
        }
    }
}

/// Events and real-time buffers that a session has lost since it began; `None` if it does not exist. How many events a lost
/// buffer held is unknown, so the sum is a lower bound (documentation of EVENT_TRACE_PROPERTIES, `RealTimeBuffersLost`).
fn lost_by(session: &str) -> Option<u64> {
    let properties = SessionProperties::of(session)?.properties;
    Some(u64::from(properties.EventsLost) + u64::from(properties.RealTimeBuffersLost))
}

/// Time between two queries. Losses reach traces as late as this; a query is one call for each session.
const PERIOD: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 5_000 });
