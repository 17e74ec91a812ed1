//! tshark as a reader of captured DNS that knows nothing of this project.
//!
//! Used by `dns_streams` and `dns_path`. Does not: capture.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;

use sandglass_model::Timestamp;
use sandglass_model::network::DnsMessage;

/// A message as tshark reads it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Read {
    pub port: u16,
    pub out: bool,
    pub at_ns: u64,
    pub id: u16,
    pub flags: u16,
    pub questions: Vec<(String, u16)>,
    pub records: u16,
    pub addresses: Vec<IpAddr>,
}

impl Read {
    /// A message of the probe, as tshark would read it.
    pub fn of(at: Timestamp, message: &DnsMessage) -> Read {
        let answer = message.answer.clone().unwrap_or_default();
        let flags = match message.answer {
            Some(_) => 0x8000 | u16::from(answer.truncated) << 9 | answer.rcode,
            None => 0,
        };
        let questions = message.questions.iter();
        Read {
            port: message.client.port(),
            out: message.answer.is_none(),
            at_ns: at.0,
            id: message.id,
            flags,
            questions: questions
                .map(|question| (question.name.to_string(), question.kind))
                .collect(),
            records: answer.records,
            addresses: answer.addresses,
        }
    }
}

/// Those messages that the probe reports, as far as it keeps them. Only counted are other opcodes, messages without a
/// question, and those that go the wrong way.
pub fn reported(read: Vec<Read>) -> impl Iterator<Item = Read> {
    let is_reported = |read: &Read| {
        read.flags >> 11 & 15 == 0 && !read.questions.is_empty() && read.out == (read.flags & 0x8000 == 0)
    };
    read.into_iter().filter(is_reported).map(|mut one| {
        // QR, TC and RCODE are what is kept.
        one.flags &= 0x820f;
        one.questions.truncate(8);
        one.addresses.truncate(8);
        one
    })
}

/// All messages of a file.
pub fn read(path: &Path) -> Vec<Read> {
    let mut command = Command::new("tshark");
    command
        .arg("-r")
        .arg(path)
        .args(["-Y", "dns", "-T", "fields", "-E", "separator=|", "-E", "occurrence=a"]);
    for option in [
        "tcp.reassemble_out_of_order:TRUE",
        "ip.check_checksum:FALSE",
        "tcp.check_checksum:FALSE",
    ] {
        command.args(["-o", option]);
    }
    for field in FIELDS {
        command.args(["-e", field]);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .flat_map(messages)
        .collect()
}

const FIELDS: [&str; 17] = [
    "frame.time_epoch",
    "tcp.srcport",
    "tcp.dstport",
    "udp.srcport",
    "udp.dstport",
    "dns.id",
    "dns.flags",
    "dns.count.queries",
    "dns.count.answers",
    "dns.count.auth_rr",
    "dns.count.add_rr",
    "dns.qry.name",
    "dns.qry.type",
    "dns.resp.type",
    "dns.a",
    "dns.aaaa",
    "dns.count.zones",
];

/// The messages of one line: a segment may hold several.
fn messages(line: &str) -> Vec<Read> {
    let mut fields: Vec<VecDeque<&str>> = line
        .split('|')
        .map(|field| field.split(',').filter(|value| !value.is_empty()).collect())
        .collect();
    let (seconds, fraction) = fields[0][0].split_once('.').unwrap();
    let at_ns =
        seconds.parse::<u64>().unwrap() * 1_000_000_000 + format!("{fraction:0<9}")[..9].parse::<u64>().unwrap();
    let port = |field: &VecDeque<&str>| field.front().and_then(|port| port.parse::<u16>().ok());
    let from = port(&fields[1]).or(port(&fields[3])).unwrap();
    let to = port(&fields[2]).or(port(&fields[4])).unwrap();
    let hex = |text: &str| u16::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
    let mut messages = Vec::new();
    while let Some(id) = fields[5].pop_front() {
        let flags = hex(fields[6].pop_front().unwrap());
        // An update counts zones, prerequisites and updates in their place (RFC 2136 2).
        let is_update = flags >> 11 & 15 == 5;
        let mut count = |field: usize| -> u16 { fields[field].pop_front().unwrap().parse().unwrap() };
        let [questions, records, authority, additional] = match is_update {
            true => [count(16), 0, 0, count(10)],
            false => [count(7), count(8), count(9), count(10)],
        };
        let questions = (0..questions)
            .map(|_| {
                let name = fields[11].pop_front().unwrap().to_ascii_lowercase();
                (name, fields[12].pop_front().unwrap().parse().unwrap())
            })
            .collect();
        let mut addresses = Vec::new();
        for _ in 0..records + authority + additional {
            let of = match fields[13].pop_front().unwrap() {
                "1" => 14,
                "28" => 15,
                _ => continue,
            };
            addresses.push(fields[of].pop_front().unwrap().parse().unwrap());
        }
        messages.push(Read {
            port: if to == 53 { from } else { to },
            out: to == 53,
            at_ns,
            id: hex(id),
            flags,
            questions,
            records,
            addresses,
        });
    }
    messages
}
