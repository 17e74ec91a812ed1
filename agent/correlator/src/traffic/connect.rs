//! One connect: a TCP connection's establishment, from the first SYN to the end of the handshake or of the attempt.
//!
//! Held in the table of connects. This file holds what is known of one connect, its span's detail and its status;
//! `tcp.rs` finds the connect that a record belongs to, `causes.rs` explains what went badly.
//! Does not: follow an established connection.

use std::net::SocketAddr;

use sandglass_model::network::{ConnectFailure, ConnectStep, Initiator};
use sandglass_model::time::MILLISECOND;
use sandglass_model::trace::{ConnectDetail, Status};
use sandglass_model::{SmolStr, Timestamp};

use crate::keys::TraceKey;
use crate::notes::Note;
use crate::owner::Owner;
use crate::traffic::packet::Dropped;
use crate::traffic::table::Owned;

/// An open connect, or one that ended a moment ago and waits for conntrack's records.
#[derive(Debug)]
pub(crate) struct Connect {
    /// The owner of the socket; it may change while the connect is open.
    pub(crate) owner: Owner,
    /// The process that called connect(2), if the first step was seen.
    pub(crate) initiator: Option<Initiator>,
    /// When the socket left the closed state, just before its first SYN.
    pub(crate) start: Timestamp,
    /// Socket cookie, unique until reboot (`sock_gen_cookie`, include/linux/sock_diag.h); 0 where the system has none.
    pub(crate) socket: u64,
    /// The connecting end. Port 0 while it is not known: the kernel chooses the port after the socket has left the
    /// closed state (`tcp_v4_connect`, net/ipv4/tcp_ipv4.c).
    pub(crate) local: SocketAddr,
    /// The other end as the client addresses it: a service address, not the backend behind it.
    pub(crate) remote: SocketAddr,
    /// SYNs that were sent again. The first wait is 1 s (RFC 6298, section 2; `TCP_TIMEOUT_INIT`, include/net/tcp.h) and
    /// doubles each time; since Linux 6.5 the first four waits are equal (`tcp_syn_linear_timeouts`,
    /// Documentation/networking/ip-sysctl.rst).
    pub(crate) retransmits: u32,
    /// When it ended, and why it failed if it did. `None` while it is open.
    pub(crate) outcome: Option<(Timestamp, Option<ConnectFailure>)>,
    /// Serial number and name of the lookup that resolved the address.
    pub(crate) lookup: Option<(u64, SmolStr)>,
    /// The other end after destination translation; `None` where conntrack translated nothing.
    pub(crate) backend: Option<SocketAddr>,
    /// Kernel ids of the conntrack entries that were joined.
    pub(crate) flows: Vec<u32>,
    /// Its packets that the kernel dropped, bounded by [`Dropped::add_to`].
    pub(crate) drops: Vec<Dropped>,
    /// Its instants, for span events.
    pub(crate) notes: Vec<Note>,
    /// The trace of its sandbox's creation, before its network is ready.
    pub(crate) home: Option<TraceKey>,
    /// Records were lost while it was open.
    pub(crate) lost: bool,
}

/// How long an ended connect waits for further records of it: conntrack's come through another socket.
pub(crate) const LINGER_NS: u64 = 100 * MILLISECOND;

impl Owned for Connect {
    fn share(&self) -> u64 {
        self.owner.share().key()
    }
}

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

    /// Takes over what a record adds.
    pub(crate) fn update(&mut self, step: &ConnectStep) {
        self.retransmits = self.retransmits.max(step.retransmits);
        // The first step has no port; later ones do.
        if step.local.port() != 0 {
            self.local = step.local;
        }
        if self.initiator.is_none() {
            self.initiator.clone_from(&step.initiator);
        }
    }

    /// The kernel dropped a packet of it.
    pub(crate) fn drop_packet(&mut self, dropped: Dropped) {
        dropped.add_to(&mut self.drops, &mut self.notes);
    }

    /// `None` if it succeeded or is open.
    pub(crate) fn failure(&self) -> Option<ConnectFailure> {
        self.outcome.and_then(|(_, failure)| failure)
    }

    /// The detail of its span, without the cause.
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

/// The status of its span: an error class of the registry, and a sentence.
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
