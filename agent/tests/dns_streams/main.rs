//! The DNS decoder with a thousand random conversations: every message is reported or counted, as tshark reads them, and
//! where records are lost nobody is blamed.
//!
//! The conversations go to the decoder as the kernel side would write them, and to tshark as packets of a file. Needs
//! neither root nor BPF; without tshark the comparison says `SKIPPED`. What the kernel does is `dns_path`'s and
//! `dns_probe`'s to show.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test")]

#[path = "../lab/exchange.rs"]
mod exchange;
mod pcap;
#[path = "../lab/random.rs"]
mod random;
#[path = "../lab/results.rs"]
mod results;
mod schedule;
#[path = "../lab/tshark.rs"]
mod tshark;

use std::collections::{BTreeMap, BTreeSet};

use exchange::Fate;
use random::Random;
use results::results;
use sandglass::sources::linux::dns::decode::DnsDecoder;
use sandglass_model::network::{DnsMessage, Unreported};
use sandglass_model::trace::LookupResult;
use sandglass_model::{Body, Event, Timestamp};
use sandglass_probes::Record as _;
use sandglass_probes::wire::dns::{
    DNS_IN, DNS_NOTHING_ACKNOWLEDGED, DNS_NOTHING_RECEIVED, DNS_OUT, DNS_PIECES_MAX, DNS_ROOM_LARGE, DnsRecord,
    FAMILY_V4, PROTOCOL_TCP, PROTOCOL_UDP, TCP_FIN,
};
use schedule::{Packet, Schedule, Trouble};
use tshark::Read;

const SCHEDULES: u64 = 1000;

/// The records that the kernel side makes of a packet.
fn records(schedule: &Schedule, packet: &Packet) -> Vec<Vec<u8>> {
    let mut head = DnsRecord {
        at_ns: packet.at_ns,
        start_ns: 20_000_000,
        socket: u64::from(schedule.port),
        ring_bytes: 0,
        pid: if packet.out { 7 } else { 0 },
        netns: 1,
        wire_len: 0,
        captured: 0,
        tcp_seq: packet.seq,
        local_port: schedule.port,
        remote_port: 53,
        family: FAMILY_V4,
        protocol: if schedule.tcp { PROTOCOL_TCP } else { PROTOCOL_UDP },
        direction: if packet.out { DNS_OUT } else { DNS_IN },
        tcp_flags: 0,
        tcp_fresh: (u8::from(packet.nothing_received) * DNS_NOTHING_RECEIVED)
            | (u8::from(packet.nothing_acknowledged) * DNS_NOTHING_ACKNOWLEDGED),
        unused: [0; 3],
        local: [0; 16],
        remote: [0; 16],
        comm: *b"resolver\0\0\0\0\0\0\0\0",
        tcp_received: packet.received,
        tcp_acknowledged: packet.acknowledged,
    };
    head.local[..4].copy_from_slice(&[10, 0, 0, 2]);
    head.remote[..4].copy_from_slice(&[10, 0, 0, 53]);
    let room = DNS_ROOM_LARGE as usize;
    let mut pieces: Vec<&[u8]> = match schedule.tcp {
        true => packet.payload.chunks(room).collect(),
        false => vec![&packet.payload[..packet.payload.len().min(room)]],
    };
    assert!(pieces.len() <= DNS_PIECES_MAX as usize);
    if pieces.is_empty() {
        pieces.push(&[]);
    }
    let last = pieces.len() - 1;
    let records = pieces.iter().enumerate().map(|(place, piece)| {
        head.captured = u32::try_from(piece.len()).unwrap();
        head.wire_len = match schedule.tcp {
            true => head.captured,
            false => u32::try_from(packet.payload.len()).unwrap(),
        };
        head.tcp_flags = if packet.fin && place == last { TCP_FIN } else { 0 };
        let record = [head.bytes(), piece].concat();
        head.tcp_seq = head.tcp_seq.wrapping_add(head.captured);
        record
    });
    records.collect()
}

/// Events of a schedule, when each record is lost with a chance of so many percent.
fn events(schedule: &Schedule, random: &mut Random, lost: u64) -> (Vec<Event>, u64) {
    let (mut decoder, mut events, mut losses) = (DnsDecoder::default(), Vec::new(), 0);
    for packet in &schedule.packets {
        for record in records(schedule, packet) {
            if lost > 0 && random.percent(lost) {
                losses += 1;
            } else {
                decoder.read(&record, &mut events).unwrap();
            }
        }
    }
    let end = schedule.packets.last().map_or(0, |packet| packet.at_ns);
    decoder.sweep(Timestamp(end + 10_000_000_000), &mut events);
    if losses > 0 {
        // The agent looks once a second how many records found no room.
        let (probe, count) = ("dns".to_owned(), losses);
        events.push(Event {
            at: Timestamp(end + 1_000_000_000),
            body: Body::Lost { probe, count },
        });
    }
    (events, losses)
}

fn counted(events: &[Event]) -> BTreeMap<Unreported, u64> {
    let mut counts = BTreeMap::new();
    for event in events {
        if let Body::DnsUnreported(unreported) = &event.body {
            // None: bytes are missing that may still come.
            if unreported.count > 0 {
                *counts.entry(unreported.reason).or_default() += unreported.count;
            }
        }
    }
    counts
}

fn messages(events: &[Event]) -> impl Iterator<Item = (Timestamp, &DnsMessage)> {
    events.iter().filter_map(|event| match &event.body {
        Body::DnsSeen(message) => Some((event.at, &**message)),
        _ => None,
    })
}

/// Sent = reported + counted, each kind by itself, over a path with loss, delay and repetition.
#[test]
fn every_message_is_reported_or_counted() {
    let (mut sent, mut reported) = (0, 0);
    for number in 0..SCHEDULES {
        let schedule = Schedule::random(number, Trouble::OtherBorders);
        let (events, _) = events(&schedule, &mut Random::new(number), 0);
        let of = |fate| schedule.fates.get(&fate).copied().unwrap_or(0);
        let expected = [
            (Unreported::Opcode, of(Fate::Opcode)),
            (Unreported::NoQuestion, of(Fate::NoQuestion)),
            (Unreported::Direction, of(Fate::Direction)),
            (Unreported::Questions, schedule.more_questions),
            (Unreported::Cut, schedule.cut),
        ];
        let expected: BTreeMap<Unreported, u64> = expected.into_iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted(&events), expected, "schedule {number}");
        assert_eq!(
            messages(&events).count() as u64,
            of(Fate::Reported),
            "schedule {number}"
        );
        sent += schedule.fates.values().sum::<u64>() + schedule.cut;
        reported += of(Fate::Reported);
    }
    eprintln!("{SCHEDULES} schedules: {sent} messages, {reported} reported, the others counted");
}

/// The same fields of the same messages at the same times.
#[test]
fn tshark_reads_the_same() {
    let test = "tshark_reads_the_same";
    if std::process::Command::new("tshark").arg("--version").output().is_err() {
        eprintln!("SKIPPED {test}: tshark is not installed");
        return;
    }
    let schedules: Vec<Schedule> = (0..SCHEDULES)
        .map(|number| Schedule::random(number, Trouble::Path))
        .collect();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("schedules.pcap");
    pcap::write(&file, &schedules);
    let read = tshark::read(&file);
    let all = read.len();
    let mut not_reported: BTreeMap<u16, BTreeMap<Unreported, u64>> = BTreeMap::new();
    for (reason, count, port) in read.iter().filter_map(counted_by_tshark) {
        *not_reported.entry(port).or_default().entry(reason).or_default() += count;
    }
    let mut theirs: BTreeMap<u16, Vec<Read>> = BTreeMap::new();
    for one in tshark::reported(read) {
        theirs.entry(one.port).or_default().push(one);
    }
    let (mut compared, mut kinds) = (0, BTreeSet::new());
    for schedule in &schedules {
        let (events, _) = events(schedule, &mut Random::new(0), 0);
        let mut ours: Vec<Read> = messages(&events).map(|(at, message)| Read::of(at, message)).collect();
        let mut theirs = theirs.remove(&schedule.port).unwrap_or_default();
        ours.sort();
        theirs.sort();
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert_eq!(ours, theirs, "schedule {}", schedule.port - 2000);
        }
        assert_eq!(ours.len(), theirs.len(), "schedule {}", schedule.port - 2000);
        compared += ours.len();
        // tshark has no word for a message that a close cut.
        let mut counted = counted(&events);
        counted.remove(&Unreported::Cut);
        let theirs = not_reported.remove(&schedule.port).unwrap_or_default();
        assert_eq!(counted, theirs, "schedule {}", schedule.port - 2000);
        kinds.extend(counted.into_keys());
    }
    let all_kinds = [
        Unreported::Opcode,
        Unreported::NoQuestion,
        Unreported::Direction,
        Unreported::Questions,
    ];
    assert_eq!(kinds, BTreeSet::from(all_kinds));
    eprintln!("{compared} messages compared with tshark, which read {all}");
}

/// Why a message that tshark reads is counted instead of reported, or how many of its questions are.
fn counted_by_tshark(read: &Read) -> Option<(Unreported, u64, u16)> {
    let (reason, count) = match read.questions.len() {
        _ if read.flags >> 11 & 15 != 0 => (Unreported::Opcode, 1),
        _ if read.out != (read.flags & 0x8000 == 0) => (Unreported::Direction, 1),
        0 => (Unreported::NoQuestion, 1),
        9.. => (Unreported::Questions, read.questions.len() as u64 - 8),
        _ => return None,
    };
    Some((reason, count, read.port))
}

/// Records are lost between the kernel and the agent: whatever is missing lies in a gap, and no lookup is called unanswered
/// that was answered. Without loss every lookup's result is known.
#[test]
fn nobody_is_blamed_for_what_was_not_seen() {
    let (mut losses, mut unknown, mut timeouts, mut answered, mut missing, mut in_gaps) = (0, 0, 0, 0, 0, 0);
    for number in 0..SCHEDULES {
        let trouble = [Trouble::None, Trouble::OtherBorders][usize::from(number % 2 == 0)];
        let schedule = Schedule::random(number, trouble);
        if !schedule.tcp {
            continue;
        }
        let share = if number % 4 == 3 { 0 } else { 5 };
        let (events, lost) = events(&schedule, &mut Random::new(number), share);
        losses += lost;
        let expected = schedule.fates.values().sum::<u64>() + schedule.cut;
        let counts = counted(&events);
        let other = [Unreported::Unseen, Unreported::Questions, Unreported::Records];
        let counted: u64 = counts
            .iter()
            .filter(|(reason, _)| !other.contains(reason))
            .map(|(_, count)| count)
            .sum();
        let seen = messages(&events).count() as u64 + counted;
        assert!(seen <= expected, "schedule {number}: {seen} of {expected}");
        missing += expected - seen;
        // A loss at the very end of a connection shows in the count of lost records only.
        assert!(seen == expected || lost > 0, "schedule {number}: {seen} of {expected}");
        in_gaps += counts.get(&Unreported::Unseen).copied().unwrap_or(0);
        for (name, result) in results(&events) {
            match result {
                LookupResult::Unanswered => {
                    assert!(
                        schedule.silent.contains(&name),
                        "schedule {number}: {name} was answered"
                    );
                    timeouts += 1;
                }
                LookupResult::Unknown => {
                    assert!(lost > 0, "schedule {number}: nothing was lost");
                    unknown += 1;
                }
                _ => {
                    assert!(
                        schedule.answered.contains(&name),
                        "schedule {number}: {name} was not answered"
                    );
                    answered += 1;
                }
            }
        }
    }
    eprintln!(
        "{losses} records lost, {missing} messages not seen, {in_gaps} bytes in gaps: {answered} lookups answered, {timeouts} unanswered, {unknown} unknown"
    );
    assert!(unknown > 0 && timeouts > 0 && answered > 0);
}

const SECOND: u64 = 1_000_000_000;

/// Answers that lie in or behind a hole of the stream when their lookups' deadline passes, ten seconds after the query: the
/// hole is filled a moment later, or never. More lookups than one look-up under a key visits.
#[test]
fn a_hole_at_the_deadline_blames_nobody() {
    const LOOKUPS: usize = 40;
    let names: Vec<String> = (0..LOOKUPS).map(|number| format!("h{number}.test")).collect();
    for filled in [true, false] {
        let (queries, answers) = pipelined(&names);
        let half = answers.len() / 2;
        let mut packets = vec![
            packet(0, (true, 0), queries, 0),
            packet(9 * SECOND + SECOND / 2, (false, half), answers[half..].to_vec(), 0),
        ];
        if filled {
            packets.push(packet(12 * SECOND, (false, 0), answers[..half].to_vec(), 0));
        }
        let results = results(&of_packets(packets));
        assert_eq!(results.len(), LOOKUPS);
        // What lies behind a hole that is never filled came before the deadline, and counts as the client's answer.
        let behind = results.iter().filter(|(_, result)| *result == LookupResult::Rcode(0));
        assert!(behind.count() < LOOKUPS / 2, "{results:?}");
        for (name, result) in results {
            let is_known = !filled && result == LookupResult::Rcode(0);
            assert!(
                is_known || result == LookupResult::Unknown,
                "{name}: {result:?}, filled: {filled}"
            );
        }
    }
}

/// A hole that was filled long before the deadline excuses nobody: what was not answered then was not answered.
#[test]
fn a_hole_that_was_filled_hides_no_silence() {
    let names = ["a.test", "b.test", "silent.test"].map(str::to_owned);
    let (queries, _) = pipelined(&names);
    let (_, answers) = pipelined(&names[..2]);
    let half = answers.len() / 2;
    let packets = vec![
        packet(0, (true, 0), queries, 0),
        packet(SECOND, (false, half), answers[half..].to_vec(), 0),
        packet(2 * SECOND, (false, 0), answers[..half].to_vec(), 0),
        packet(9 * SECOND, (false, answers.len()), Vec::new(), answers.len()),
    ];
    let results: BTreeMap<String, LookupResult> = results(&of_packets(packets)).into_iter().collect();
    assert_eq!(results["silent.test"], LookupResult::Unanswered);
    for answered in &names[..2] {
        assert_eq!(results[answered], LookupResult::Rcode(0), "{answered}");
    }
}

/// The bytes of both streams: a query for each name, and all answers.
fn pipelined(names: &[String]) -> (Vec<u8>, Vec<u8>) {
    let stream = |flags: u16| {
        let messages = names.iter().enumerate().map(|(id, name)| {
            let header = exchange::header(u16::try_from(id).unwrap(), flags, [1, 0, 0, 0]);
            let message = [header, exchange::question(name, 1)].concat();
            [&u16::try_from(message.len()).unwrap().to_be_bytes()[..], &message].concat()
        });
        messages.collect::<Vec<_>>().concat()
    };
    (stream(0x0100), stream(0x8180))
}

/// A packet of one direction at a place of its stream, while the client has received so many bytes.
fn packet(after_ns: u64, (out, place): (bool, usize), payload: Vec<u8>, received: usize) -> Packet {
    let number = |isn: u32, place: usize| isn.wrapping_add(1 + u32::try_from(place).unwrap());
    Packet {
        at_ns: 1_000 * SECOND + after_ns,
        out,
        seq: number(
            if out {
                schedule::CLIENT_ISN
            } else {
                schedule::SERVER_ISN
            },
            place,
        ),
        payload,
        fin: false,
        received: number(schedule::SERVER_ISN, received),
        acknowledged: number(schedule::CLIENT_ISN, 0),
        nothing_received: received == 0,
        nothing_acknowledged: true,
    }
}

/// The events of a TCP connection's packets, with the decoder's look at the time once a second.
fn of_packets(packets: Vec<Packet>) -> Vec<Event> {
    let schedule = Schedule {
        tcp: true,
        port: 4_000,
        packets,
        fates: BTreeMap::new(),
        cut: 0,
        more_questions: 0,
        silent: Vec::new(),
        answered: Vec::new(),
    };
    let (mut decoder, mut events) = (DnsDecoder::default(), Vec::new());
    let mut packets = schedule.packets.iter().peekable();
    for second in 0..30 {
        let now = (1_000 + second) * SECOND;
        while let Some(packet) = packets.next_if(|packet| packet.at_ns <= now) {
            for record in records(&schedule, packet) {
                decoder.read(&record, &mut events).unwrap();
            }
        }
        decoder.sweep(Timestamp(now), &mut events);
    }
    events
}
