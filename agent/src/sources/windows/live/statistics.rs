//! What the sessions lost, asked of ETW every few seconds: ferrisetw has no way to ask.

use std::collections::BTreeMap;
use std::mem::size_of;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use windows::Win32::System::Diagnostics::Etw::{
    CONTROLTRACE_HANDLE, ControlTraceW, EVENT_TRACE_CONTROL_QUERY, EVENT_TRACE_PROPERTIES,
};
use windows::core::PCWSTR;

use super::{EVENTS, PROCESSES, flows, label, lost};
use crate::health::{Health, SessionLabel};
use crate::sources::EventSender;

/// Until told to stop (then once more), or the pipeline has. Flows of the virtual switch, where they are taken, end in time.
pub(super) fn run(stopped: &Receiver<()>, sender: &EventSender, health: &Health, mut flows_until: Option<Instant>) {
    let mut known = BTreeMap::new();
    for session in [EVENTS, PROCESSES] {
        // From here on the series exist, at 0.
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
            let before = known.insert(session, total).unwrap_or(0);
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

/// Events that a session lost since it began, in buffers that were given up included; `None` when it is not there.
fn lost_by(session: &str) -> Option<u64> {
    let properties = Answer::of(session)?.properties;
    Some(u64::from(properties.EventsLost) + u64::from(properties.RealTimeBuffersLost))
}

/// What ETW says of a session: its properties and, behind them, the names that it writes.
#[repr(C)]
pub(super) struct Answer {
    properties: EVENT_TRACE_PROPERTIES,
    names: [u16; 2 * NAME_CHARACTERS],
}

impl Answer {
    /// Of the session of that name; `None` when it is not there.
    pub(super) fn of(session: &str) -> Option<Answer> {
        let name: Vec<u16> = session.encode_utf16().chain([0]).collect();
        let mut answer = Answer::default();
        answer.properties.Wnode.BufferSize = u32::try_from(size_of::<Answer>()).unwrap_or(u32::MAX);
        answer.properties.LoggerNameOffset = u32::try_from(size_of::<EVENT_TRACE_PROPERTIES>()).unwrap_or(u32::MAX);
        answer.properties.LogFileNameOffset = answer.properties.LoggerNameOffset + 2 * NAME_CHARACTERS as u32;
        // SAFETY: the properties stand at the begin of a block as long as it says, with room for both names at the offsets
        // it says; the name ends with zero. Both outlive the call.
        let status = unsafe {
            ControlTraceW(
                CONTROLTRACE_HANDLE::default(),
                PCWSTR(name.as_ptr()),
                &mut answer.properties,
                EVENT_TRACE_CONTROL_QUERY,
            )
        };
        status.is_ok().then_some(answer)
    }

    /// The session's handle: ETW puts it where events have their history (EVENT_TRACE_PROPERTIES, Wnode).
    pub(super) fn handle(&self) -> CONTROLTRACE_HANDLE {
        // SAFETY: both views of the union are plain integers; a query has filled this one.
        let handle = unsafe { self.properties.Wnode.Anonymous1.HistoricalContext };
        CONTROLTRACE_HANDLE { Value: handle }
    }
}

impl Default for Answer {
    fn default() -> Answer {
        Answer {
            properties: EVENT_TRACE_PROPERTIES::default(),
            names: [0; 2 * NAME_CHARACTERS],
        }
    }
}

const NAME_CHARACTERS: usize = 1_024;
const PERIOD: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 5_000 });
