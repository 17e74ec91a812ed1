//! Which thread of a daemon received or sent something, and when: threads that had to do with several requests.
//!
//! Used by the room of daemons. Bounded: [`HANDLED_MAX`] messages. Does not: keep requests.

use std::collections::VecDeque;

use sandglass_model::daemons::RequestStep;
use sandglass_model::{ProcessKey, Timestamp};

use crate::daemon_path::DaemonPath;
use crate::daemons::request::is_control;

/// What threads of daemons received and sent, the newest last.
#[derive(Debug, Default)]
pub(super) struct Handled(VecDeque<Message>);

#[derive(Debug)]
struct Message {
    daemon: ProcessKey,
    connection: u64,
    thread: u32,
    at: Timestamp,
}

/// Messages of [`Handled`]: two of each request, of some hundreds.
const HANDLED_MAX: usize = 1_024;

impl Handled {
    pub(super) fn add(&mut self, at: Timestamp, step: &RequestStep) {
        let Some(daemon) = step.daemon.as_ref().filter(|daemon| daemon.thread != 0) else {
            return;
        };
        if is_control(step.bytes) {
            return;
        }
        if self.0.len() >= HANDLED_MAX {
            self.0.pop_front();
        }
        self.0.push_back(Message {
            daemon: daemon.process,
            connection: step.connection,
            thread: daemon.thread,
            at,
        });
    }

    /// A thread had to do with another request while the path was with it.
    pub(super) fn crosses(&self, daemon: ProcessKey, connection: u64, path: &DaemonPath) -> bool {
        self.0.iter().any(|message| {
            message.daemon == daemon && message.connection != connection && path.has(message.thread, message.at)
        })
    }
}
