//! Decodes the DNS probe's records into events: datagrams as they are, TCP segments by way of their stream.
//!
//! Total: any bytes give events, a count or an error, never a panic. Memory is bounded by the streams' bounds.
//! Does not: join anything but the pieces of one TCP stream.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use prometheus_client::metrics::counter::Counter;
use sandglass_model::network::{Asker, DnsMessage, Transport};
use sandglass_model::{Body, Event, ProcessKey, Timestamp};
use sandglass_probes::Record as _;
use sandglass_probes::wire::dns::{DNS_IN, DNS_OUT, DnsRecord, FAMILY_V4, PROTOCOL_TCP};

use super::message::{self, Parsed};
use super::stream::{Segment, Streams};
use crate::sources::linux::feed::decoded::Decoder;
use crate::sources::linux::record::{DecodeError, text};

/// The decoder and its streams.
#[derive(Debug)]
pub struct DnsDecoder {
    streams: Streams,
    malformed: Counter,
}

impl DnsDecoder {
    /// `malformed` counts messages that could not be parsed.
    #[must_use]
    pub fn new(malformed: Counter) -> DnsDecoder {
        DnsDecoder {
            streams: Streams::default(),
            malformed,
        }
    }
}

impl Decoder for DnsDecoder {
    fn decode(&mut self, record: &[u8], events: &mut Vec<Event>) -> Result<(), DecodeError> {
        let short = DecodeError::Short {
            kind: 0,
            bytes: record.len(),
        };
        let (head, rest) = DnsRecord::read(record).ok_or(short)?;
        let bytes = rest.get(..head.captured as usize).ok_or(short)?;
        let mut seen = |bytes: &[u8], complete: bool| match message::parse(bytes, complete) {
            Ok(parsed) => {
                if parsed.malformed {
                    self.malformed.inc();
                }
                events.extend(event(&head, parsed));
            }
            Err(_) => {
                self.malformed.inc();
            }
        };
        if head.protocol == PROTOCOL_TCP {
            let segment = Segment {
                at_ns: head.at_ns,
                seq: head.tcp_seq,
                wire_len: head.wire_len,
                bytes,
            };
            self.streams.take((head.socket, head.direction), segment, &mut seen);
        } else {
            seen(bytes, head.captured == head.wire_len);
        }
        Ok(())
    }
}

/// `None` for what is no query on its way out and no answer on its way in: a server's side of something else.
fn event(head: &DnsRecord, parsed: Parsed) -> Option<Event> {
    let expected = match head.direction {
        DNS_OUT => parsed.answer.is_none(),
        DNS_IN => parsed.answer.is_some(),
        _ => false,
    };
    if !expected || !parsed.is_lookup {
        return None;
    }
    let asker = (head.pid != 0 && head.direction == DNS_OUT).then(|| Asker {
        process: ProcessKey::new(head.pid, head.start_ns),
        comm: comm(&head.comm),
    });
    Some(Event {
        at: Timestamp(head.at_ns),
        body: Body::DnsSeen(Box::new(DnsMessage {
            netns: u64::from(head.netns),
            socket: head.socket,
            transport: match head.protocol {
                PROTOCOL_TCP => Transport::Tcp,
                _ => Transport::Udp,
            },
            client: SocketAddr::new(address(head.family, &head.local), head.local_port),
            server: SocketAddr::new(address(head.family, &head.remote), head.remote_port),
            asker,
            id: parsed.id,
            questions: parsed.questions,
            answer: parsed.answer,
        })),
    })
}

/// An address as the kernel side writes it.
#[must_use]
pub fn address(family: u8, bytes: &[u8; 16]) -> IpAddr {
    match family {
        FAMILY_V4 => IpAddr::V4(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3])),
        _ => IpAddr::V6(Ipv6Addr::from(*bytes)),
    }
}

fn comm(bytes: &[u8; 16]) -> String {
    let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    text(&bytes[..len]).into_owned()
}

#[cfg(test)]
mod tests;
