//! One connection's set-up, from its first SYN to the end of the handshake or of the attempt.
//!
//! Here is what is known of it and what it comes to; which record belongs to which connection is found in
//! `tcp.rs`. Does not: follow a connection that stands.

use std::net::SocketAddr;
use std::sync::Arc;

use sandglass_model::Timestamp;
use sandglass_model::network::{ConnectFailure, ConnectStep, Initiator};
use sandglass_model::trace::{ConnectDetail, Status};

use crate::keys::TraceKey;
use crate::notes::{self, Note, NoteKind};
use crate::owner::Owner;
use crate::traffic::lookup::Dropped;

/// A connection being set up, or one that was a moment ago.
#[derive(Debug)]
pub(crate) struct Connect {
    pub(crate) owner: Owner,
    pub(crate) initiator: Option<Initiator>,
    pub(crate) start: Timestamp,
    pub(crate) socket: u64,
    /// Without a port while none is known: the kernel chooses it after the socket has begun to connect.
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) retransmits: u32,
    /// When it ended, and why it came to nothing if it did.
    pub(crate) outcome: Option<(Timestamp, Option<ConnectFailure>)>,
    /// The lookup that gave the address, and the name it was for.
    pub(crate) lookup: Option<(u64, Arc<str>)>,
    pub(crate) backend: Option<SocketAddr>,
    pub(crate) flows: Vec<u32>,
    pub(crate) drops: Vec<Dropped>,
    pub(crate) notes: Vec<Note>,
    /// The trace of its sandbox's creation, before its network is ready.
    pub(crate) home: Option<TraceKey>,
    /// Records were lost while it was open.
    pub(crate) lost: bool,
}

const MAX_DROPS: usize = 8;

impl Connect {
    pub(crate) fn new(at: Timestamp, owner: Owner, step: &ConnectStep) -> Connect {
        Connect {
            owner,
            initiator: step.initiator.clone(),
            start: at,
            socket: step.socket,
            local: step.local,
            remote: step.remote,
            retransmits: step.retransmits,
            outcome: None,
            lookup: None,
            backend: None,
            flows: Vec::new(),
            drops: Vec::new(),
            notes: Vec::new(),
            home: None,
            lost: false,
        }
    }

    /// Takes what a record says of the socket.
    pub(crate) fn update(&mut self, step: &ConnectStep) {
        self.retransmits = self.retransmits.max(step.retransmits);
        if step.local.port() != 0 {
            self.local = step.local;
        }
        if self.initiator.is_none() {
            self.initiator.clone_from(&step.initiator);
        }
    }

    /// The kernel dropped a packet of it.
    pub(crate) fn drop_packet(&mut self, dropped: Dropped) {
        if self.drops.len() == MAX_DROPS || self.drops.iter().any(|known| known.at == dropped.at) {
            return;
        }
        let note = NoteKind::Drop {
            reason: Arc::clone(&dropped.reason),
            function: Arc::clone(&dropped.function),
        };
        notes::add(&mut self.notes, dropped.at, note);
        self.drops.push(dropped);
    }

    pub(crate) fn failure(&self) -> Option<ConnectFailure> {
        self.outcome.and_then(|(_, failure)| failure)
    }

    /// The connection as a span shows it.
    pub(crate) fn detail(&self) -> ConnectDetail {
        ConnectDetail {
            local: self.local,
            remote: self.remote,
            backend: self.backend,
            name: self
                .lookup
                .as_ref()
                .map_or_else(String::new, |(_, name)| name.to_string()),
            retransmits: self.retransmits,
            failure: self.failure(),
            initiator: self.initiator.clone(),
            cause: None,
        }
    }
}

/// Success or failure of a connection.
pub(crate) fn status(detail: &ConnectDetail) -> Status {
    let Some(failure) = detail.failure else {
        return Status::Unset;
    };
    let (class, text) = match failure {
        ConnectFailure::Refused => ("connect_refused", "refused"),
        ConnectFailure::TimedOut => ("connect_timeout", "no answer"),
        ConnectFailure::Unreachable => ("connect_unreachable", "unreachable"),
        ConnectFailure::Reset => ("connect_reset", "reset"),
        ConnectFailure::Abandoned => ("connect_abandoned", "the program gave up"),
        ConnectFailure::Other => ("connect_other", "failed"),
    };
    let name = match detail.name.as_str() {
        "" => String::new(),
        name => format!(" ({name})"),
    };
    Status::Error {
        class: class.to_owned(),
        message: format!("connect to {}{name}: {text}", detail.remote),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_has_a_class_of_the_registry() {
        let failures = [
            ConnectFailure::Refused,
            ConnectFailure::TimedOut,
            ConnectFailure::Unreachable,
            ConnectFailure::Reset,
            ConnectFailure::Abandoned,
            ConnectFailure::Other,
        ];
        for failure in failures {
            let detail = ConnectDetail {
                local: SocketAddr::from(([10, 0, 0, 1], 4_000)),
                remote: SocketAddr::from(([10, 0, 0, 2], 80)),
                backend: None,
                name: "api".to_owned(),
                retransmits: 0,
                failure: Some(failure),
                initiator: None,
                cause: None,
            };
            let Status::Error { class, message } = status(&detail) else {
                panic!("{failure:?} is a failure");
            };
            assert_eq!(class, format!("connect_{}", failure.as_str()));
            assert!(sandglass_model::registry::ERROR_TYPES.contains(&class.as_str()));
            assert!(message.starts_with("connect to 10.0.0.2:80 (api): "), "{message}");
        }
    }
}
