//! Decodes the DNS probe's records into events: datagrams as they are, TCP segments by way of their stream.
//!
//! Used by the feed of the probe. Every message is either reported as [`Body::DnsSeen`] or counted by a
//! [`Body::DnsUnreported`] that says why not: sent = reported + counted.
//! Total: any bytes give events or an error, never a panic. Memory is bounded by the streams' bounds.
//! Does not: join anything but the pieces of one TCP stream.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use sandglass_model::network::{DnsMessage, DnsUnreported, Initiator, Transport, Unreported};
use sandglass_model::{Body, Event, ProcessKey, SmolStr, Timestamp};
use sandglass_probes::Record as _;
use sandglass_probes::wire::dns::{
    DNS_IN, DNS_NOTHING_ACKNOWLEDGED, DNS_NOTHING_RECEIVED, DnsRecord, FAMILY_V4, PROTOCOL_TCP, TCP_FIN, TCP_RST,
    TCP_SYN,
};

use super::message::{self, NameCache, Parsed};
use super::stream::{Direction, Flags, Found, Progress, Segment, Sender, Streams};
use crate::sources::linux::feed::decoded::Decoder;
use crate::sources::linux::record::{DecodeError, text};

/// The decoder and its streams.
#[derive(Debug, Default)]
pub struct DnsDecoder {
    streams: Streams<DnsRecord>,
    sorter: Sorter,
}

impl DnsDecoder {
    /// Adds what a record says to `events`.
    ///
    /// # Errors
    /// When the bytes are fewer than the record says.
    pub fn read(&mut self, record: &[u8], events: &mut Vec<Event>) -> Result<(), DecodeError> {
        let short = DecodeError::Short {
            kind: 0,
            bytes: record.len(),
        };
        let (head, rest) = DnsRecord::read(record).ok_or(short)?;
        let bytes = rest.get(..head.captured as usize).ok_or(short)?;
        if head.protocol == PROTOCOL_TCP {
            let sorter = &mut self.sorter;
            let mut found = |head: DnsRecord, direction, found: Found<'_>| sorter.take(&head, direction, found, events);
            self.streams.take(&segment(&head, bytes), &mut found);
        } else {
            let message = Found::Message {
                bytes,
                complete: head.captured == head.wire_len,
                at_ns: head.at_ns,
                nth: 0,
                sender: sender(&head),
            };
            self.sorter.take(&head, direction(&head), message, events);
        }
        Ok(())
    }

    /// Adds what follows from time alone to `events`: nothing waits for ever.
    pub fn sweep(&mut self, now: Timestamp, events: &mut Vec<Event>) {
        let sorter = &mut self.sorter;
        let mut found = |head: DnsRecord, direction, found: Found<'_>| sorter.take(&head, direction, found, events);
        self.streams.sweep(now.0, &mut found);
    }
}

impl Decoder for DnsDecoder {
    fn decode(&mut self, record: &[u8], events: &mut Vec<Event>) -> Result<(), DecodeError> {
        self.read(record, events)
    }

    fn sweep(&mut self, now: Timestamp, events: &mut Vec<Event>) {
        DnsDecoder::sweep(self, now, events);
    }
}

fn segment<'s>(head: &DnsRecord, bytes: &'s [u8]) -> Segment<'s, DnsRecord> {
    // Both are zero when the kernel could not say.
    let progress = (head.tcp_received | head.tcp_acknowledged != 0).then_some(Progress {
        received: head.tcp_received,
        acknowledged: head.tcp_acknowledged,
        nothing_received: head.tcp_fresh & DNS_NOTHING_RECEIVED != 0,
        nothing_acknowledged: head.tcp_fresh & DNS_NOTHING_ACKNOWLEDGED != 0,
    });
    Segment {
        at_ns: head.at_ns,
        socket: head.socket,
        direction: direction(head),
        seq: head.tcp_seq,
        wire_len: head.wire_len,
        bytes,
        flags: Flags {
            syn: head.tcp_flags & TCP_SYN != 0,
            fin: head.tcp_flags & TCP_FIN != 0,
            rst: head.tcp_flags & TCP_RST != 0,
        },
        progress,
        sender: sender(head),
        context: *head,
    }
}

/// Decides what becomes of a message.
#[derive(Debug, Default)]
struct Sorter {
    /// Queries that were counted because they ask nothing: socket, protocol, id. Their answers are counted likewise.
    asked_nothing: VecDeque<(u64, u8, u16)>,
    names: NameCache,
}

impl Sorter {
    fn take(&mut self, head: &DnsRecord, direction: Direction, found: Found<'_>, events: &mut Vec<Event>) {
        let counted = |at_ns, reason, count| unreported(head, direction, at_ns, reason, count);
        match found {
            Found::Message {
                bytes,
                complete,
                at_ns,
                nth,
                sender,
            } => match message::parse(bytes, complete, &mut self.names) {
                Ok(parsed) => {
                    if parsed.malformed {
                        events.push(counted(at_ns, Unreported::Records, 1));
                    }
                    if parsed.more_questions > 0 {
                        events.push(counted(at_ns, Unreported::Questions, parsed.more_questions.into()));
                    }
                    events.push(match self.reason(head, direction, &parsed) {
                        Some(reason) => counted(at_ns, reason, 1),
                        None => reported(head, at_ns, nth, sender, parsed),
                    });
                }
                Err(_) if complete => events.push(counted(at_ns, Unreported::Malformed, 1)),
                Err(_) => events.push(counted(at_ns, Unreported::Unseen, bytes.len() as u64)),
            },
            Found::Cut { at_ns } => events.push(counted(at_ns, Unreported::Cut, 1)),
            Found::Gap { at_ns, bytes } => events.push(counted(at_ns, Unreported::Unseen, bytes)),
        }
    }

    /// Why a message is counted only.
    fn reason(&mut self, head: &DnsRecord, direction: Direction, parsed: &Parsed) -> Option<Unreported> {
        let key = (head.socket, head.protocol, parsed.id);
        if !parsed.is_lookup {
            return Some(Unreported::Opcode);
        }
        if parsed.answer.is_some() != (direction == Direction::In) {
            return Some(Unreported::Direction);
        }
        if !parsed.questions.is_empty() {
            return None;
        }
        if parsed.answer.is_none() {
            if self.asked_nothing.len() == ASKED_NOTHING_MAX {
                self.asked_nothing.pop_front();
            }
            self.asked_nothing.push_back(key);
            return Some(Unreported::NoQuestion);
        }
        // A server that did not understand a query may answer without its question: that answer is the query's.
        let place = self.asked_nothing.iter().position(|asked| *asked == key)?;
        self.asked_nothing.remove(place);
        Some(Unreported::NoQuestion)
    }
}

fn reported(head: &DnsRecord, at_ns: u64, nth: u32, sender: Sender, parsed: Parsed) -> Event {
    let initiator = (sender.pid != 0 && parsed.answer.is_none()).then(|| Initiator {
        process: ProcessKey::new(sender.pid, sender.start_ns),
        comm: comm(&sender.comm),
    });
    let (client, server) = ends(head);
    Event {
        at: Timestamp(at_ns),
        body: Body::DnsSeen(Box::new(DnsMessage {
            netns: u64::from(head.netns),
            socket: head.socket,
            transport: transport(head),
            client,
            server,
            initiator,
            id: parsed.id,
            nth,
            questions: parsed.questions,
            answer: parsed.answer,
        })),
    }
}

fn unreported(head: &DnsRecord, direction: Direction, at_ns: u64, reason: Unreported, count: u64) -> Event {
    let (client, server) = ends(head);
    Event {
        at: Timestamp(at_ns),
        body: Body::DnsUnreported(Box::new(DnsUnreported {
            netns: u64::from(head.netns),
            socket: head.socket,
            transport: transport(head),
            client,
            server,
            inbound: direction == Direction::In,
            reason,
            count,
        })),
    }
}

fn direction(head: &DnsRecord) -> Direction {
    match head.direction {
        DNS_IN => Direction::In,
        _ => Direction::Out,
    }
}

fn transport(head: &DnsRecord) -> Transport {
    match head.protocol {
        PROTOCOL_TCP => Transport::Tcp,
        _ => Transport::Udp,
    }
}

fn ends(head: &DnsRecord) -> (SocketAddr, SocketAddr) {
    (
        SocketAddr::new(address(head.family, &head.local), head.local_port),
        SocketAddr::new(address(head.family, &head.remote), head.remote_port),
    )
}

fn sender(head: &DnsRecord) -> Sender {
    Sender {
        pid: head.pid,
        start_ns: head.start_ns,
        comm: head.comm,
    }
}

/// An address as the kernel side writes it.
#[must_use]
pub fn address(family: u8, bytes: &[u8; 16]) -> IpAddr {
    match family {
        FAMILY_V4 => IpAddr::V4(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3])),
        _ => IpAddr::V6(Ipv6Addr::from(*bytes)),
    }
}

fn comm(bytes: &[u8; 16]) -> SmolStr {
    let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    text(&bytes[..len]).into()
}

/// So many unanswered queries without a question are remembered.
const ASKED_NOTHING_MAX: usize = 256;

#[cfg(test)]
mod tests;
