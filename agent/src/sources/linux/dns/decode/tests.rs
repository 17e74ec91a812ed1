use sandglass_probes::wire::dns::{DNS_OUT, FAMILY_V6, PROTOCOL_UDP};

use super::*;

fn head(protocol: u8, direction: u8, bytes: &[u8]) -> DnsRecord {
    let mut head = DnsRecord {
        at_ns: 5_000,
        start_ns: 20_000_000,
        socket: 42,
        ring_bytes: 100,
        pid: 0,
        netns: 4_026_531_840,
        wire_len: u32::try_from(bytes.len()).unwrap(),
        captured: u32::try_from(bytes.len()).unwrap(),
        tcp_seq: 1,
        local_port: 40_000,
        remote_port: 53,
        family: FAMILY_V4,
        protocol,
        direction,
        tcp_flags: 0,
        tcp_fresh: DNS_NOTHING_RECEIVED | DNS_NOTHING_ACKNOWLEDGED,
        unused: [0; 3],
        local: [0; 16],
        remote: [0; 16],
        comm: [0; 16],
        tcp_received: 1,
        tcp_acknowledged: 1,
    };
    head.local[..4].copy_from_slice(&[10, 0, 0, 2]);
    head.remote[..4].copy_from_slice(&[10, 96, 0, 10]);
    if direction == DNS_OUT {
        head.pid = 77;
        head.comm[..4].copy_from_slice(b"curl");
    }
    head
}

/// `web.` of type A, as query or as answer that names nothing.
fn message(answer: bool) -> Vec<u8> {
    let flags = if answer { 0x83 } else { 1 };
    [
        &[0, 9, flags, 3 * u8::from(answer), 0, 1, 0, 0, 0, 0, 0, 0][..],
        b"\x03WEB\0\0\x01\0\x01",
    ]
    .concat()
}

/// Events of these records: messages, and what was only counted.
fn decoded(records: &[(DnsRecord, &[u8])]) -> (Vec<DnsMessage>, Vec<(Unreported, u64)>) {
    let mut decoder = DnsDecoder::default();
    let mut events = Vec::new();
    for (head, bytes) in records {
        let record = [head.bytes(), bytes, &[0xaa; 30]].concat();
        assert_eq!(decoder.decode(&record, &mut events), Ok(()));
    }
    let (mut messages, mut counted) = (Vec::new(), Vec::new());
    for event in events {
        match event.body {
            Body::DnsSeen(message) => messages.push(*message),
            Body::DnsUnreported(unreported) => counted.push((unreported.reason, unreported.count)),
            other => panic!("{other:?}"),
        }
    }
    (messages, counted)
}

#[test]
fn a_query_names_its_process_and_an_answer_does_not() {
    let (query, answer) = (message(false), message(true));
    let (messages, counted) = decoded(&[
        (head(PROTOCOL_UDP, DNS_OUT, &query), &query),
        (head(PROTOCOL_UDP, DNS_IN, &answer), &answer),
    ]);
    assert_eq!(counted, []);
    let [query, answer] = &messages[..] else {
        panic!("{messages:?}")
    };
    let initiator = query.initiator.as_ref().unwrap();
    assert_eq!(
        (
            initiator.process.pid,
            initiator.process.start_ticks,
            initiator.comm.as_str()
        ),
        (77, 2, "curl")
    );
    assert_eq!(
        (query.client.to_string(), query.server.to_string()),
        ("10.0.0.2:40000".into(), "10.96.0.10:53".into())
    );
    assert_eq!((query.netns, query.socket, query.id), (4_026_531_840, 42, 9));
    assert_eq!(query.questions[0].name, "web");
    assert_eq!(query.answer, None);
    assert_eq!(answer.initiator, None);
    assert_eq!(answer.answer.as_ref().unwrap().rcode, 3);
}

#[test]
fn the_other_side_of_a_talk_is_counted() {
    let (query, answer) = (message(false), message(true));
    let (messages, counted) = decoded(&[
        (head(PROTOCOL_UDP, DNS_IN, &query), &query),
        (head(PROTOCOL_UDP, DNS_OUT, &answer), &answer),
    ]);
    let wrong = (Unreported::Direction, 1);
    assert_eq!((messages.len(), counted), (0, vec![wrong, wrong]));
}

#[test]
fn messages_over_tcp_come_from_their_stream() {
    let query = message(false);
    let framed = [&[0, u8::try_from(query.len()).unwrap()][..], &query].concat();
    let (front, back) = framed.split_at(7);
    let first = head(PROTOCOL_TCP, DNS_OUT, front);
    let mut second = head(PROTOCOL_TCP, DNS_OUT, back);
    second.tcp_seq = 8;
    let (messages, counted) = decoded(&[(first, front), (second, back)]);
    assert_eq!((messages.len(), counted), (1, vec![]));
    assert_eq!(messages[0].transport, Transport::Tcp);
    assert!(messages[0].initiator.is_some());
}

#[test]
fn garbage_is_counted() {
    let (messages, counted) = decoded(&[(head(PROTOCOL_UDP, DNS_IN, b"garbage"), b"garbage")]);
    assert_eq!((messages.len(), counted), (0, vec![(Unreported::Malformed, 1)]));
    let (messages, counted) = decoded(&[(head(PROTOCOL_UDP, DNS_OUT, b""), b"")]);
    assert_eq!((messages.len(), counted), (0, vec![(Unreported::Malformed, 1)]));
}

#[test]
fn addresses_of_both_families_are_read() {
    let query = message(false);
    let mut record = head(PROTOCOL_UDP, DNS_OUT, &query);
    record.family = FAMILY_V6;
    record.remote = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let (messages, _) = decoded(&[(record, &query)]);
    assert_eq!(messages[0].server.to_string(), "[2001:db8::1]:53");
}

#[test]
fn a_record_that_claims_more_than_it_has_is_an_error() {
    let mut decoder = DnsDecoder::default();
    let mut events = Vec::new();
    let mut record = head(PROTOCOL_UDP, DNS_OUT, b"");
    record.captured = 1;
    assert!(decoder.decode(record.bytes(), &mut events).is_err());
    assert!(decoder.decode(&record.bytes()[..20], &mut events).is_err());
    assert!(events.is_empty());
}

/// Every message of these is counted once: other opcodes, queries without a question and their answers.
#[test]
fn messages_that_are_no_lookups_are_counted() {
    let cookie = |flags: u8| {
        let mut message = vec![0, 9, flags, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        message.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 12, 0, 10, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8]);
        message
    };
    let (query, answer) = (cookie(0), cookie(0x80));
    let keepalive = [
        0, 0, 0x30, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 8, 0, 0, 58, 152, 0, 0, 58, 152,
    ];
    let (messages, counted) = decoded(&[
        (head(PROTOCOL_UDP, DNS_OUT, &query), &query),
        (head(PROTOCOL_UDP, DNS_IN, &answer), &answer),
        // No query has this id: it may answer one that was not understood.
        (head(PROTOCOL_UDP, DNS_IN, &answer), &answer),
        (head(PROTOCOL_UDP, DNS_OUT, &keepalive), &keepalive),
    ]);
    let expected = [Unreported::NoQuestion, Unreported::NoQuestion, Unreported::Opcode];
    assert_eq!(
        (messages.len(), counted),
        (1, expected.map(|reason| (reason, 1)).to_vec())
    );
}

/// Issue 23: pieces of one segment of 3,790 bytes with 40 messages.
#[test]
fn pieces_of_a_long_segment_are_one_stream() {
    let query = message(false);
    let framed = [&[0, u8::try_from(query.len()).unwrap()][..], &query].concat();
    let stream = framed.repeat(200);
    let pieces = stream.chunks(2048).zip(0_u32..);
    let records: Vec<(DnsRecord, &[u8])> = pieces
        .map(|(piece, n)| {
            let mut head = head(PROTOCOL_TCP, DNS_OUT, piece);
            head.tcp_seq = 1 + 2048 * n;
            (head, piece)
        })
        .collect();
    let (messages, counted) = decoded(&records);
    assert_eq!((messages.len(), counted), (200, vec![]));
    let places: Vec<u32> = messages.iter().map(|message| message.nth).collect();
    assert_eq!(places, (0..200).collect::<Vec<u32>>());
}
