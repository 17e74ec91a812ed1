//! Random conversations over DNS, and the packets that a client's socket sends and receives of them.
//!
//! Messages of every kind that RFCs allow; TCP streams in segments of any length, lost and sent again, late, twice, in any
//! order. The simulated client knows at each packet how far both streams have come, as a kernel does.
//! Does not: read messages; the decoder and tshark do.

use std::collections::BTreeMap;

use super::exchange::{Exchange, Fate};
use super::random::Random;

/// What happens on the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    None,
    /// Loss, delay and repetition.
    Path,
    /// And segments are sent again with other borders, which tshark does not read always.
    OtherBorders,
}

/// A packet as the client's socket sees it.
#[derive(Clone, Debug)]
pub struct Packet {
    pub at_ns: u64,
    pub out: bool,
    /// Sequence number of the payload's first byte (TCP).
    pub seq: u32,
    pub payload: Vec<u8>,
    pub fin: bool,
    /// Before this packet: what the client has received and what the server has acknowledged.
    pub received: u32,
    pub acknowledged: u32,
    pub nothing_received: bool,
    pub nothing_acknowledged: bool,
}

/// A conversation.
pub struct Schedule {
    pub tcp: bool,
    pub port: u16,
    pub packets: Vec<Packet>,
    /// Fates of all messages of this conversation.
    pub fates: BTreeMap<Fate, u64>,
    /// Messages that a close cut.
    pub cut: u64,
    /// Questions beyond a message's eighth.
    pub more_questions: u64,
    /// Names that nobody answers.
    pub silent: Vec<String>,
    /// Names that are answered.
    pub answered: Vec<String>,
}

const BASE_NS: u64 = 1_000_000_000_000;
const MS: u64 = 1_000_000;
/// Initial sequence numbers: of the client one close to the end of the numbers.
pub const CLIENT_ISN: u32 = 0xffff_f000;
pub const SERVER_ISN: u32 = 70_000;

/// A stream of one direction: its bytes, and from when on each message may be on its way.
#[derive(Default)]
struct Bytes {
    bytes: Vec<u8>,
    /// End of each message, and the time from when on it can be sent.
    ends: Vec<(usize, u64)>,
}

impl Bytes {
    fn push(&mut self, message: &[u8], from_ns: u64) {
        self.bytes.extend(u16::try_from(message.len()).unwrap().to_be_bytes());
        self.bytes.extend(message);
        self.ends.push((self.bytes.len(), from_ns));
    }

    /// Segments with the time of their first sight, by that time. Later ones may come first, and some come twice.
    fn segments(&self, random: &mut Random, trouble: Trouble) -> Vec<(u64, usize, usize)> {
        let (mut at, mut segments, mut now) = (0, Vec::new(), BASE_NS);
        let longest = [1, 30, 300, 1448, 9000, 60_000][usize::try_from(random.below(6)).unwrap()];
        let least = self.bytes.len() as u64 / 120;
        while at < self.bytes.len() {
            let len = 1 + least + random.below(longest);
            let end = (at + usize::try_from(len).unwrap()).min(self.bytes.len());
            // All of it has to be there before it is sent.
            let ready = self
                .ends
                .iter()
                .find(|(last, _)| *last >= end)
                .map_or(0, |(_, from)| *from);
            now = now.max(ready) + random.below(3 * MS) + 1;
            let late = match random.below(100) {
                0..8 if trouble != Trouble::None => 200 * MS + random.below(MS),
                8..16 if trouble != Trouble::None => random.below(20 * MS),
                _ => 0,
            };
            segments.push((now + late, at, end));
            if trouble != Trouble::None && random.percent(6) {
                // Sent again, with other borders.
                let before = usize::try_from(random.below(40)).unwrap();
                let begin = at.saturating_sub(if trouble == Trouble::OtherBorders { before } else { 0 });
                segments.push((now + late + random.below(300 * MS), begin, end));
            }
            at = end;
        }
        segments.sort_unstable();
        segments
    }
}

impl Schedule {
    /// The schedule of this number; `trouble` is what happens on the path.
    pub fn random(number: u64, trouble: Trouble) -> Schedule {
        let random = &mut Random::new(number);
        let tcp = !random.percent(20);
        let mut schedule = Schedule {
            tcp,
            port: u16::try_from(2000 + number).unwrap(),
            packets: Vec::new(),
            fates: BTreeMap::new(),
            cut: 0,
            more_questions: 0,
            silent: Vec::new(),
            answered: Vec::new(),
        };
        let mut exchanges = Vec::new();
        for place in 0..1 + random.below(40) {
            let id = u16::try_from(number * 53 % 60_000 + place * 7).unwrap();
            exchanges.push(Exchange::random(random, id, format!("n{place}.c{number}.Test")));
        }
        for exchange in &exchanges {
            let messages = u64::from(exchange.query.is_some()) + u64::from(exchange.answer.is_some());
            *schedule.fates.entry(exchange.fate).or_default() += messages;
            schedule.more_questions += messages * exchange.more_questions;
            let names = exchange.names.iter().map(|name| name.to_ascii_lowercase());
            match (&exchange.query, &exchange.answer) {
                (Some(_), None) => schedule.silent.extend(names),
                _ => schedule.answered.extend(names),
            }
        }
        if tcp {
            schedule.over_tcp(random, &exchanges, trouble);
        } else {
            schedule.over_udp(random, &exchanges);
        }
        schedule
    }

    fn over_udp(&mut self, random: &mut Random, exchanges: &[Exchange]) {
        let mut now = BASE_NS;
        for exchange in exchanges {
            now += random.below(5 * MS) + 1;
            let mut datagram = |at_ns, out, payload: &Option<Vec<u8>>| {
                self.packets.extend(payload.clone().map(|payload| Packet {
                    at_ns,
                    out,
                    seq: 0,
                    payload,
                    fin: false,
                    received: 0,
                    acknowledged: 0,
                    nothing_received: false,
                    nothing_acknowledged: false,
                }));
            };
            datagram(now, true, &exchange.query);
            datagram(now + 1 + random.below(30 * MS), false, &exchange.answer);
        }
        self.packets.sort_by_key(|packet| packet.at_ns);
    }

    fn over_tcp(&mut self, random: &mut Random, exchanges: &[Exchange], trouble: Trouble) {
        let (mut out, mut back) = (Bytes::default(), Bytes::default());
        let mut now = BASE_NS;
        for exchange in exchanges {
            // Many at once, or one after the other.
            now += if random.percent(50) { 0 } else { random.below(10 * MS) };
            if let Some(query) = &exchange.query {
                out.push(query, now);
            }
        }
        if random.percent(20) {
            // The last message says that it is longer than it is.
            out.bytes.extend([1, 0, 7, 7, 1]);
            out.ends.push((out.bytes.len(), now));
            self.cut += 1;
        }
        let sent = out.segments(random, trouble);
        // When the server has all bytes up to each place.
        let mut whole: Vec<(usize, u64)> = Vec::new();
        for end in out.ends.iter().map(|(end, _)| *end) {
            let first = |byte: usize| {
                let of_byte = sent.iter().filter(|(_, begin, end)| (*begin..*end).contains(&byte));
                of_byte.map(|(at, ..)| *at).min().unwrap()
            };
            let before = whole.last().map_or((0, 0), |last| *last);
            let at = (before.0..end).map(first).max().unwrap_or(0).max(before.1);
            whole.push((end, at));
        }
        let mut place = 0;
        for exchange in exchanges {
            let query_at = exchange.query.as_ref().map(|_| {
                place += 1;
                whole[place - 1].1
            });
            if let Some(answer) = &exchange.answer {
                let query_at = query_at
                    .unwrap_or(BASE_NS)
                    .max(back.ends.last().map_or(0, |(_, at)| *at));
                back.push(answer, query_at + MS);
            }
        }
        let came = back.segments(random, trouble);
        self.merge(random, (&out, sent), (&back, came));
    }

    /// Both directions in the order of time, with what the client knows at each packet.
    fn merge(&mut self, random: &mut Random, out: (&Bytes, Segments), back: (&Bytes, Segments)) {
        let end_ns = out.1.iter().chain(&back.1).map(|(at, ..)| *at).max().unwrap_or(BASE_NS) + 400 * MS;
        let mut all: Vec<(u64, bool, usize, usize)> = Vec::new();
        all.extend(out.1.iter().map(|(at, begin, end)| (*at, true, *begin, *end)));
        all.extend(back.1.iter().map(|(at, begin, end)| (*at, false, *begin, *end)));
        all.push((end_ns, true, out.0.bytes.len(), out.0.bytes.len()));
        all.push((end_ns + 1, false, back.0.bytes.len(), back.0.bytes.len()));
        all.sort_unstable();
        let (mut received, mut acknowledged, mut has) = (0_usize, 0_usize, [vec![], vec![]]);
        for (at_ns, is_out, begin, end) in all {
            let bytes = if is_out { &out.0.bytes } else { &back.0.bytes };
            let isn = if is_out { CLIENT_ISN } else { SERVER_ISN };
            self.packets.push(Packet {
                at_ns,
                out: is_out,
                seq: isn.wrapping_add(1 + u32::try_from(begin).unwrap()),
                payload: bytes[begin..end].to_vec(),
                fin: begin == bytes.len(),
                received: SERVER_ISN.wrapping_add(1 + u32::try_from(received).unwrap()),
                acknowledged: CLIENT_ISN.wrapping_add(1 + u32::try_from(acknowledged).unwrap()),
                nothing_received: received == 0,
                nothing_acknowledged: acknowledged == 0,
            });
            let ranges = &mut has[usize::from(is_out)];
            ranges.push((begin, end));
            ranges.sort_unstable();
            let contiguous = ranges
                .iter()
                .fold(0, |known: usize, (begin, end)| match *begin <= known {
                    true => known.max(*end),
                    false => known,
                });
            match is_out {
                true if random.percent(50) => acknowledged = contiguous,
                true => {}
                false => received = contiguous,
            }
        }
    }
}

type Segments = Vec<(u64, usize, usize)>;
