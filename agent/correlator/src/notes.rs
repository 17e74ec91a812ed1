//! Notes: instants of a lookup or a connect, in a small form while it is open, and as span events where a span is made
//! of it.
//!
//! Used by the rooms of traffic and of Windows. Most exchanges go well and become no span, so rendering a note waits
//! until one does. Bounded to 48 for each exchange. Imports no room.
//!
//! Names of span events and of their attributes are those of the registry (`agent/model/src/registry.rs`), which a test
//! compares with what is emitted. Times are those of the records; a note that is older than its span is shown at the span's
//! begin, since a span event outside of its span is not valid for every back end.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;

use sandglass_model::network::Transport;
use sandglass_model::trace::{LookupResult, SpanEvent};
use sandglass_model::{SmolStr, Timestamp, registry};

use crate::finding::Nat;

/// An instant. Equal notes of one time are one: the same record came twice, or came from two probes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) at: Timestamp,
    pub(crate) kind: NoteKind,
}

/// What happened at the instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoteKind {
    /// A query was sent.
    Query {
        /// Name of the question; one of several along a search path.
        name: SmolStr,
        /// Record type (RFC 1035 3.2.2).
        kind: u16,
        /// Message id (RFC 1035 4.1.1); 0 where the system reports none.
        id: u16,
        /// The server as the client addresses it.
        server: SocketAddr,
        transport: Transport,
        /// It repeats a question because no answer came.
        again: bool,
    },
    /// An answer came.
    Answer {
        /// Record type of the question that it answers.
        kind: u16,
        /// Message id; 0 where the system reports none.
        id: u16,
        /// Response code, extended where the answer has EDNS (RFC 6891 6.1.3).
        rcode: u16,
        /// The TC bit (RFC 1035 4.1.1).
        truncated: bool,
        /// The question had its answer.
        late: bool,
    },
    /// An answer that no query of the exchange fits: it has another id, or came from another address.
    Stray {
        /// Message id of the answer.
        id: u16,
        /// Where it came from.
        from: SocketAddr,
    },
    /// A conntrack entry of the exchange was confirmed.
    Flow {
        /// The kernel's id of the entry (`CTA_ID`, include/uapi/linux/netfilter/nfnetlink_conntrack.h).
        id: u32,
        /// What was translated; `None` for nothing.
        nat: Option<Nat>,
        /// The other end after destination translation.
        backend: Option<SocketAddr>,
    },
    /// The kernel dropped a packet of the exchange.
    Drop {
        /// The kernel's drop reason without its prefix (`enum skb_drop_reason`, include/net/dropreason-core.h).
        reason: Arc<str>,
        /// Kernel function that dropped it; empty when not known.
        function: Arc<str>,
    },
}

/// Bound on notes of one exchange: more than a usual failure has (glibc sends up to 12 queries of one name to three servers), and
/// little enough for thousands that fail at once.
const MAX_NOTES: usize = 48;

/// Adds a note in order of time, if there is room. Returns `false` if the same note is there: its record came twice.
pub(crate) fn add(notes: &mut Vec<Note>, at: Timestamp, kind: NoteKind) -> bool {
    // Feeds of different probes are ordered by the reorder stage only as far as its window reaches.
    let place = notes.partition_point(|note| note.at <= at);
    let same = notes[..place].iter().rev().take_while(|note| note.at == at);
    if same.into_iter().any(|note| note.kind == kind) {
        return false;
    }
    if notes.len() < MAX_NOTES {
        notes.insert(place, Note { at, kind });
    }
    true
}

/// The notes up to `to` as span events, none before `from`.
pub(crate) fn events(notes: &[Note], from: Timestamp, to: Option<Timestamp>) -> Vec<SpanEvent> {
    let within = notes.iter().filter(|note| to.is_none_or(|to| note.at <= to));
    within.map(|note| event(note, from)).collect()
}

/// A note as a span event, with names from the registry.
fn event(note: &Note, from: Timestamp) -> SpanEvent {
    let (name, attributes): (&str, Vec<(&str, String)>) = match &note.kind {
        NoteKind::Query {
            name,
            kind,
            id,
            server,
            transport,
            again,
        } => {
            let mut attributes = vec![
                (registry::DNS_NAME, name.to_string()),
                (registry::DNS_TYPE, type_name(*kind).into_owned()),
                (registry::PEER_ADDRESS, server.ip().to_string()),
                (registry::DNS_ID, id.to_string()),
            ];
            // UDP is the usual case and is left out.
            if *transport == Transport::Tcp {
                attributes.push((registry::NETWORK_TRANSPORT, transport.as_str().to_owned()));
            }
            let name = match again {
                true => registry::EVENT_RETRANSMISSION,
                false => registry::EVENT_QUERY,
            };
            (name, attributes)
        }
        NoteKind::Answer {
            kind,
            id,
            rcode,
            truncated,
            late,
        } => {
            let mut attributes = vec![
                (registry::DNS_TYPE, type_name(*kind).into_owned()),
                (registry::DNS_RCODE, LookupResult::Rcode(*rcode).as_str().to_owned()),
                (registry::DNS_ID, id.to_string()),
            ];
            // Attributes that would be false are left out, as in the whole registry.
            if *truncated {
                attributes.push((registry::DNS_TRUNCATED, "true".to_owned()));
            }
            let name = match late {
                true => registry::EVENT_LATE_ANSWER,
                false => registry::EVENT_ANSWER,
            };
            (name, attributes)
        }
        NoteKind::Stray { id, from } => (
            registry::EVENT_STRAY_ANSWER,
            vec![
                (registry::PEER_ADDRESS, from.ip().to_string()),
                (registry::DNS_ID, id.to_string()),
            ],
        ),
        NoteKind::Flow { id, nat, backend } => {
            let mut attributes = vec![(registry::FLOW_ID, id.to_string())];
            attributes.extend(nat.map(|nat| (registry::NAT, nat.as_str().to_owned())));
            attributes.extend(backend.map(|backend| (registry::BACKEND, backend.to_string())));
            (registry::EVENT_FLOW, attributes)
        }
        NoteKind::Drop { reason, function } => {
            let mut attributes = vec![(registry::DROP_REASON, reason.to_string())];
            if !function.is_empty() {
                attributes.push((registry::DROP_FUNCTION, function.to_string()));
            }
            (registry::EVENT_DROP, attributes)
        }
    };
    SpanEvent {
        at: note.at.max(from),
        name: name.to_owned(),
        attributes: attributes
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect(),
    }
}

/// The name of a record type; one without a name here is written as in RFC 3597, section 5.
pub(crate) fn type_name(kind: u16) -> Cow<'static, str> {
    Cow::Borrowed(match kind {
        1 => "A",
        2 => "NS",
        5 => "CNAME",
        6 => "SOA",
        12 => "PTR",
        15 => "MX",
        16 => "TXT",
        28 => "AAAA",
        33 => "SRV",
        other => return Cow::Owned(format!("TYPE{other}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_in_time_order_and_bounded() {
        let mut notes = Vec::new();
        let stray = |id| NoteKind::Stray {
            id,
            from: SocketAddr::from(([10, 0, 0, 1], 53)),
        };
        for at in (0..100).rev() {
            assert!(add(&mut notes, Timestamp(at), stray(0)));
        }
        assert_eq!(notes.len(), MAX_NOTES);
        assert!(notes.is_sorted_by_key(|note| note.at));
        assert!(!add(&mut notes, Timestamp(99), stray(0)));
        let shown = events(&notes, Timestamp(60), Some(Timestamp(70)));
        assert!(shown.iter().all(|event| event.at >= Timestamp(60)));
        assert_eq!(shown.len(), 19);
        assert_eq!(shown[0].name, registry::EVENT_STRAY_ANSWER);
    }

    #[test]
    fn types_without_a_name_are_numbers() {
        assert_eq!([1, 28, 65].map(type_name), ["A", "AAAA", "TYPE65"]);
    }
}
