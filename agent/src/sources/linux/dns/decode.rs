//! Decodes the DNS probe's records into events: datagrams as they are, TCP segments by way of their stream.
//!
//! Used by the feed of the probe. Every message is either reported as [`Body::DnsSeen`] or counted by a
//! [`Body::DnsUnreported`] with the reason: sent = reported + counted.
//! Any bytes give events or an error, never a panic. Memory is bounded by the streams' bounds.
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

use super::message::{self, Memory, Parsed};
use super::stream::{Direction, Flags, Found, Progress, Segment, Sender, Streams};
use crate::sources::linux::feed::decoded::Decoder;
use crate::sources::linux::record::{DecodeError, text};
use crate::sources::queue::Spent;

/// The decoder and its streams.
#[derive(Debug, Default)]
pub struct DnsDecoder {
    /// Connections with unread bytes. Each carries its newest record, for the ends and the network namespace of its messages.
    streams: Streams<DnsRecord>,
    sorter: Sorter,
}

impl DnsDecoder {
    /// Appends the events of one record to `events`: none, one, or several where a TCP segment completes several messages.
    ///
    /// # Errors
    /// When there are fewer bytes than the head of the record states. The streams are unchanged then.
    pub fn read(&mut self, record: &[u8], events: &mut Vec<Event>) -> Result<(), DecodeError> {
        let short = DecodeError::Short {
            kind: 0,
            bytes: record.len(),
        };
        let (head, rest) = DnsRecord::read(record).ok_or(short)?;
        let bytes = rest.get(..head.captured as usize).ok_or(short)?;
        // `wire_len` is the length in the packet, `captured` what the kernel side had room for (DNS_ROOM_LARGE).
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

    /// Appends the events that follow from time alone: bytes behind a hole are not kept waiting for ever. To be called about
    /// once a second.
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
        self.sorter.release();
    }

    fn spare_messages(&mut self) -> Option<&mut Spent> {
        Some(&mut self.sorter.spare.messages)
    }
}

/// The segment, or the piece of one, that a record describes.
fn segment<'s>(head: &DnsRecord, bytes: &'s [u8]) -> Segment<'s, DnsRecord> {
    // Both numbers are zero when the kernel side had no full socket to read them from. A socket whose numbers really are zero
    // (one in 2^64) is treated likewise, and its streams begin with their first segment.
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
        owner: head.netns,
        context: *head,
    }
}

/// Decides what becomes of a message: an event of its own, or a count with a reason.
#[derive(Debug, Default)]
struct Sorter {
    /// Queries without a question that are not answered yet: socket, protocol, id. Their answers are counted as they were, so
    /// that neither side of a lookup is missing. At most [`NO_QUESTION_MAX`], the oldest first.
    without_question: VecDeque<(u64, u8, u16)>,
    memory: Memory,
    spare: Spare,
}

/// Messages that the pipeline has handled, to be filled again.
#[derive(Debug, Default)]
struct Spare {
    messages: Spent,
    /// One of them was used since the last sweep.
    is_used: bool,
}

impl Sorter {
    /// Appends the events of one finding. A message with a defect that does not hide its questions makes two: itself, and the
    /// count of the defect.
    fn take(&mut self, head: &DnsRecord, direction: Direction, found: Found<'_>, events: &mut Vec<Event>) {
        let counted = |at_ns, reason, count| unreported(head, direction, at_ns, reason, count);
        match found {
            Found::Message {
                bytes,
                complete,
                at_ns,
                nth,
                sender,
            } => match message::parse(bytes, complete, self.memory()) {
                Ok(parsed) => {
                    if parsed.malformed {
                        events.push(counted(at_ns, Unreported::Records, 1));
                    }
                    if parsed.more_questions > 0 {
                        events.push(counted(at_ns, Unreported::Questions, parsed.more_questions.into()));
                    }
                    events.push(match self.reason(head, direction, &parsed) {
                        Some(reason) => counted(at_ns, reason, 1),
                        None => self.reported(head, at_ns, nth, sender, parsed),
                    });
                }
                Err(_) if complete => events.push(counted(at_ns, Unreported::Malformed, 1)),
                // What was captured of it does not reach to the end of its questions: the loss is the agent's, so it is counted
                // in bytes like a gap.
                Err(_) => events.push(counted(at_ns, Unreported::Unseen, bytes.len() as u64)),
            },
            Found::Cut { at_ns } => events.push(counted(at_ns, Unreported::Cut, 1)),
            Found::Gap { at_ns, bytes } => events.push(counted(at_ns, Unreported::Unseen, bytes)),
            // No answer can lie in a hole of the client's stream.
            Found::Hole { at_ns } if direction == Direction::In => {
                events.push(counted(at_ns, Unreported::Unseen, 0));
            }
            Found::Hole { .. } => {}
        }
    }

    /// A burst has passed: its memory goes back.
    fn release(&mut self) {
        if !std::mem::take(&mut self.spare.is_used) {
            self.spare.messages = Vec::new();
            self.memory.release();
        }
    }

    /// With the lists of the message that is filled next.
    fn memory(&mut self) -> &mut Memory {
        if let Some(spare) = self.spare.messages.last_mut() {
            if self.memory.questions.capacity() == 0 {
                self.memory.questions = std::mem::take(&mut spare.questions);
                self.memory.questions.clear();
            }
            if let Some(mut answer) = spare.answer.take() {
                answer.addresses.clear();
                self.memory.addresses.push(answer.addresses);
            }
        }
        &mut self.memory
    }

    /// The event of a message. Only a query has an initiator: an answer arrives in the context of whatever the softirq
    /// interrupted.
    fn reported(&mut self, head: &DnsRecord, at_ns: u64, nth: u32, sender: Sender, parsed: Parsed) -> Event {
        let initiator = (sender.pid != 0 && parsed.answer.is_none()).then(|| Initiator {
            process: ProcessKey::new(sender.pid, sender.start_ns),
            comm: comm(&sender.comm),
        });
        let (client, server) = ends(head);
        let message = DnsMessage {
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
        };
        let message = match self.spare.messages.pop() {
            Some(mut spare) => {
                self.spare.is_used = true;
                *spare = message;
                spare
            }
            None => Box::new(message),
        };
        Event {
            at: Timestamp(at_ns),
            body: Body::DnsSeen(message),
        }
    }

    /// Why a message is counted only; `None` for one that is reported.
    fn reason(&mut self, head: &DnsRecord, direction: Direction, parsed: &Parsed) -> Option<Unreported> {
        let key = (head.socket, head.protocol, parsed.id);
        if !parsed.is_lookup {
            return Some(Unreported::Opcode);
        }
        // A response that leaves a client, or a query that reaches one: a DNS server that itself queries from its port.
        if parsed.answer.is_some() != (direction == Direction::In) {
            return Some(Unreported::Direction);
        }
        if !parsed.questions.is_empty() {
            return None;
        }
        if parsed.answer.is_none() {
            if self.without_question.len() == NO_QUESTION_MAX {
                self.without_question.pop_front();
            }
            self.without_question.push_back(key);
            return Some(Unreported::NoQuestion);
        }
        // A server that cannot parse a query may answer FORMERR without its question (RFC 1035 4.1.1). Such an
        // answer is reported unless its query had none either: the correlator joins the two by socket and id.
        let place = self.without_question.iter().position(|query| *query == key)?;
        self.without_question.remove(place);
        Some(Unreported::NoQuestion)
    }
}

/// The event of a count: messages, questions or bytes, as the reason defines.
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

/// Which way the message went, from the client's side.
fn direction(head: &DnsRecord) -> Direction {
    match head.direction {
        DNS_IN => Direction::In,
        _ => Direction::Out,
    }
}

/// Its transport; the kernel side reports no other than UDP and TCP.
fn transport(head: &DnsRecord) -> Transport {
    match head.protocol {
        PROTOCOL_TCP => Transport::Tcp,
        _ => Transport::Udp,
    }
}

/// Client and server, whichever of them sent the message.
fn ends(head: &DnsRecord) -> (SocketAddr, SocketAddr) {
    (
        SocketAddr::new(address(head.family, &head.local), head.local_port),
        SocketAddr::new(address(head.family, &head.remote), head.remote_port),
    )
}

/// The process that sent it; all zero where the kernel side did not know it.
fn sender(head: &DnsRecord) -> Sender {
    Sender {
        pid: head.pid,
        start_ns: head.start_ns,
        comm: head.comm,
    }
}

/// An address as the kernel side writes it: of IPv4 the first four bytes, both in network order.
#[must_use]
pub fn address(family: u8, bytes: &[u8; 16]) -> IpAddr {
    match family {
        FAMILY_V4 => IpAddr::V4(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3])),
        _ => IpAddr::V6(Ipv6Addr::from(*bytes)),
    }
}

/// The name of a process; padded with zeros, and without any where it is 16 bytes long (include/linux/sched.h, TASK_COMM_LEN).
fn comm(bytes: &[u8; 16]) -> SmolStr {
    let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    text(&bytes[..len]).into()
}

/// Unanswered queries without a question that are remembered. No resolver sends any; scanners and broken programs do.
const NO_QUESTION_MAX: usize = 256;

#[cfg(test)]
mod tests;
