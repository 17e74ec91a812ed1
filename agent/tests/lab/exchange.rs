//! DNS exchanges of every kind that RFCs allow: lookups, other opcodes, no question, messages that go the wrong way.
//!
//! Used by `dns_streams` and `dns_path`. Does not: send them, or read what a probe reports of them.

use super::random::Random;

/// What has to become of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    Reported,
    Opcode,
    NoQuestion,
    Direction,
}

/// An exchange: the query, its answer, and what has to become of them.
pub struct Exchange {
    pub query: Option<Vec<u8>>,
    pub answer: Option<Vec<u8>>,
    pub fate: Fate,
    /// Questions beyond the eighth of each of its messages.
    pub more_questions: u64,
    pub names: Vec<String>,
}

pub fn header(id: u16, flags: u16, counts: [u16; 4]) -> Vec<u8> {
    let words = [id, flags].into_iter().chain(counts);
    words.flat_map(u16::to_be_bytes).collect()
}

pub fn question(name: &str, kind: u16) -> Vec<u8> {
    let mut question = Vec::new();
    for label in name.split('.') {
        question.push(u8::try_from(label.len()).unwrap());
        question.extend(label.as_bytes());
    }
    question.push(0);
    question.extend(kind.to_be_bytes());
    question.extend([0, 1]);
    question
}

fn records(kind: u16, count: u16) -> Vec<u8> {
    let mut records = Vec::new();
    for number in 0..count {
        records.extend([0xc0, 12]);
        records.extend(kind.to_be_bytes());
        records.extend([0, 1, 0, 0, 0, 60]);
        let [high, low] = number.to_be_bytes();
        match kind {
            1 => records.extend([0, 4, 10, 9, high, low]),
            _ => records.extend([0, 16, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, high, low]),
        }
    }
    records
}

const COOKIE: [u8; 23] = [0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 12, 0, 10, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8];
const KEEPALIVE: [u8; 12] = [0, 1, 0, 8, 0, 0, 58, 152, 0, 0, 58, 152];

impl Exchange {
    pub fn random(random: &mut Random, id: u16, name: String) -> Exchange {
        let both = |flags: u16, counts: [u16; 4], rest: &[u8], fate| Exchange {
            query: Some([&header(id, flags, counts)[..], rest].concat()),
            answer: Some([&header(id, flags | 0x8000, counts)[..], rest].concat()),
            fate,
            more_questions: 0,
            names: Vec::new(),
        };
        match random.below(100) {
            0..4 => both(4 << 11, [1, 0, 0, 0], &question(&name, 6), Fate::Opcode),
            4..7 => both(5 << 11, [1, 0, 0, 0], &question(&name, 6), Fate::Opcode),
            7..9 => both(
                1 << 11,
                [0, 1, 0, 0],
                &[0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 10, 9, 0, 1],
                Fate::Opcode,
            ),
            9..12 => both(6 << 11, [0; 4], &KEEPALIVE, Fate::Opcode),
            12..16 => both(0, [0, 0, 0, 1], &COOKIE, Fate::NoQuestion),
            16..19 => {
                let wrong = both(0, [1, 0, 0, 0], &question(&name, 1), Fate::Direction);
                // Each of both goes the other's way.
                Exchange {
                    query: wrong.answer.filter(|_| random.percent(70)),
                    answer: wrong.query.filter(|_| random.percent(50)),
                    ..wrong
                }
            }
            19..23 => {
                let names: Vec<String> = (0..8 + random.below(5)).map(|part| format!("q{part}.{name}")).collect();
                let questions: Vec<u8> = names.iter().flat_map(|name| question(name, 1)).collect();
                let count = u16::try_from(names.len()).unwrap();
                Exchange {
                    more_questions: u64::from(count - 8),
                    names: names[..8].to_vec(),
                    ..both(0x0100, [count, 0, 0, 0], &questions, Fate::Reported)
                }
            }
            _ => Exchange::lookup(random, id, name),
        }
    }

    fn lookup(random: &mut Random, id: u16, name: String) -> Exchange {
        let kind = if random.percent(50) { 1 } else { 28 };
        let question = question(&name, kind);
        let (code, count) = match random.below(20) {
            0..3 => (3, 0),
            3 => (2, 0),
            4 => (0, 100 + random.below(200)),
            _ => (0, random.below(7)),
        };
        let count = u16::try_from(count).unwrap();
        let answer = [
            header(id, 0x8180 | code, [1, count, 0, 0]),
            question.clone(),
            records(kind, count),
        ];
        Exchange {
            query: Some([header(id, 0x0100, [1, 0, 0, 0]), question].concat()),
            answer: (!random.percent(8)).then(|| answer.concat()),
            fate: Fate::Reported,
            more_questions: 0,
            names: vec![name],
        }
    }
}
