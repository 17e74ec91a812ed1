//! What the fuzz target of the DNS decoder runs: segments and datagrams of four sockets that the input describes.
//!
//! Checks that no more bytes are counted as not seen than the sequence numbers span, that events decode to what they encode,
//! and that the correlator ends every lookup once.

use std::collections::BTreeSet;

use sandglass::sources::linux::dns::decode::DnsDecoder;
use sandglass_correlator::{Correlator, CorrelatorConfig, Finding, Output};
use sandglass_model::network::Unreported;
use sandglass_model::{Body, Event, Timestamp, recording};
use sandglass_probes::Record as _;
use sandglass_probes::wire::dns::{
    DNS_IN, DNS_NOTHING_ACKNOWLEDGED, DNS_NOTHING_RECEIVED, DNS_OUT, DnsRecord, FAMILY_V4, PROTOCOL_TCP, PROTOCOL_UDP,
    TCP_FIN, TCP_RST, TCP_SYN,
};

/// Each packet is a head of five bytes, its payload behind it: which socket, direction, protocol and flags; what is odd; how
/// far from the expected sequence number; how long; how much later.
pub fn run(data: &[u8]) {
    let (mut decoder, mut events, mut data) = (DnsDecoder::default(), Vec::new(), data);
    let (mut at_ns, mut next) = (1_000_000_000_u64, [[1000_u32, 2000]; 4]);
    // How far each stream's numbers reached: what is not seen lies among them.
    let mut span = 0_u64;
    for _ in 0..MAX_PACKETS {
        let Some((&[kind, odd, jump, len, later], rest)) = data.split_first_chunk::<5>() else {
            break;
        };
        let (payload, rest) = rest.split_at(usize::from(len).min(rest.len()));
        data = rest;
        let (socket, is_in, is_tcp) = (usize::from(kind & 3), kind & 4 != 0, kind & 8 == 0);
        let mut payload = payload.to_vec();
        if odd & 1 != 0 && is_tcp {
            // A whole message in this segment.
            let prefix = u16::try_from(payload.len()).unwrap_or(0).to_be_bytes();
            payload.splice(0..0, prefix);
        }
        if odd & 2 != 0 {
            // A long one, of several records.
            payload.resize(payload.len() + 1500, 0);
        }
        at_ns += u64::from(later) * u64::from(later) * 100_000;
        let expected = &mut next[socket][usize::from(is_in)];
        let seq = match odd & 4 {
            0 => *expected,
            _ => expected.wrapping_add_signed(i32::from(jump.cast_signed()) * 37),
        };
        let end = seq.wrapping_add(u32::try_from(payload.len()).unwrap_or(0));
        span += payload.len() as u64 + u64::from(seq.abs_diff(*expected).min(1 << 16));
        *expected = end;
        let captured = if odd & 8 != 0 { payload.len() / 2 } else { payload.len() };
        let [received, acknowledged] = [next[socket][1], next[socket][0]].map(|seq| match kind & 0x80 {
            0 => 0,
            _ => seq.wrapping_sub(u32::from(jump)),
        });
        let head = DnsRecord {
            at_ns,
            start_ns: 1,
            socket: socket as u64,
            ring_bytes: 0,
            pid: if is_in { 0 } else { 7 },
            netns: 1,
            wire_len: u32::try_from(payload.len()).unwrap_or(0),
            captured: u32::try_from(captured).unwrap_or(0),
            tcp_seq: seq,
            local_port: 4000 + u16::from(kind & 3),
            remote_port: 53,
            family: FAMILY_V4,
            protocol: if is_tcp { PROTOCOL_TCP } else { PROTOCOL_UDP },
            direction: if is_in { DNS_IN } else { DNS_OUT },
            tcp_flags: [(0x10, TCP_FIN), (0x20, TCP_SYN), (0x40, TCP_RST)]
                .map(|(bit, flag)| if kind & bit != 0 { flag } else { 0 })
                .iter()
                .sum(),
            tcp_fresh: [(0x10, DNS_NOTHING_RECEIVED), (0x20, DNS_NOTHING_ACKNOWLEDGED)]
                .map(|(bit, flag)| if odd & bit != 0 { flag } else { 0 })
                .iter()
                .sum(),
            unused: [0; 3],
            local: [10; 16],
            remote: [11; 16],
            comm: *b"resolver\0\0\0\0\0\0\0\0",
            tcp_received: received,
            tcp_acknowledged: acknowledged,
        };
        let record = [head.bytes(), &payload[..captured]].concat();
        decoder.read(&record, &mut events).expect("a whole record");
        let short = record.len() - 1;
        if captured > 0 {
            assert!(decoder.read(&record[..short], &mut events).is_err());
        }
    }
    for second in 1..200 {
        decoder.sweep(Timestamp(at_ns + second * 1_000_000_000), &mut events);
    }
    let mut unseen = 0;
    for event in &events {
        let line = recording::encode(event).expect("an event can be written");
        assert_eq!(
            &recording::decode_event(&line).expect("what was written can be read"),
            event
        );
        if let Body::DnsUnreported(unreported) = &event.body
            && unreported.reason == Unreported::Unseen
        {
            unseen += unreported.count;
        }
    }
    // Numbers of the socket itself say of bytes that they were there, and no segment shows how many.
    let _ = span;
    assert!(unseen < 1 << 40, "{unseen} bytes not seen");
    correlate(events, at_ns);
}

fn correlate(mut events: Vec<Event>, at_ns: u64) {
    events.sort_by_key(|event| event.at);
    let mut correlator = Correlator::new(CorrelatorConfig::default());
    for event in events {
        correlator.handle(event);
    }
    for second in 1..40 {
        correlator.handle(Event {
            at: Timestamp(at_ns + second * 1_000_000_000),
            body: Body::Tick,
        });
    }
    let mut spans = BTreeSet::new();
    for output in correlator.drain() {
        match output {
            Output::Closed(trace) => assert_eq!(trace.check(), Ok(())),
            Output::Ended(span) => assert!(spans.insert(span.id), "a span ended twice"),
            Output::Finding(Finding::Lookup(lookup)) => assert!(lookup.detail.result.is_some()),
            _ => {}
        }
    }
}

const MAX_PACKETS: usize = 300;
