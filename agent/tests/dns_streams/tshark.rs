//! tshark as a reader of the schedules' packets that knows nothing of this project.
//!
//! Does not: capture; the packets are written to a file with the times that the decoder is given.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;

use super::schedule::{CLIENT_ISN, Packet, SERVER_ISN, Schedule};

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

/// Writes the packets of all schedules to a file in the format pcap, with times in nanoseconds and bare IP packets.
pub fn write(path: &Path, schedules: &[Schedule]) {
    let mut file = Vec::new();
    file.extend(0xa1b2_3c4d_u32.to_le_bytes());
    file.extend([2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 101, 0, 0, 0]);
    let mut all: Vec<(u64, Vec<u8>)> = Vec::new();
    for schedule in schedules {
        if schedule.tcp {
            let begin = schedule.packets.first().map_or(0, |packet| packet.at_ns) - 1_000_000;
            all.push((begin, tcp(schedule.port, true, CLIENT_ISN, 0, 2, &[])));
            all.push((
                begin + 1,
                tcp(schedule.port, false, SERVER_ISN, CLIENT_ISN.wrapping_add(1), 0x12, &[]),
            ));
        }
        all.extend(
            schedule
                .packets
                .iter()
                .map(|packet| (packet.at_ns, ip_packet(schedule, packet))),
        );
    }
    all.sort_by_key(|(at, _)| *at);
    for (at, packet) in all {
        let len = u32::try_from(packet.len()).unwrap().to_le_bytes();
        file.extend(u32::try_from(at / 1_000_000_000).unwrap().to_le_bytes());
        file.extend(u32::try_from(at % 1_000_000_000).unwrap().to_le_bytes());
        file.extend(len);
        file.extend(len);
        file.extend(packet);
    }
    std::fs::write(path, file).unwrap();
}

fn ip_packet(schedule: &Schedule, packet: &Packet) -> Vec<u8> {
    if schedule.tcp {
        let flags = 0x10 | u8::from(packet.fin);
        // What the sender of this packet has received.
        let acknowledged = if packet.out {
            packet.received
        } else {
            packet.acknowledged
        };
        return tcp(
            schedule.port,
            packet.out,
            packet.seq,
            acknowledged,
            flags,
            &packet.payload,
        );
    }
    let mut header = ports(schedule.port, packet.out);
    header.extend(u16::try_from(8 + packet.payload.len()).unwrap().to_be_bytes());
    header.extend([0, 0]);
    ip(packet.out, 17, &header, &packet.payload)
}

fn ports(client: u16, out: bool) -> Vec<u8> {
    let ports = if out { [client, 53] } else { [53, client] };
    ports.into_iter().flat_map(u16::to_be_bytes).collect()
}

fn tcp(client: u16, out: bool, seq: u32, acknowledged: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut header = ports(client, out);
    header.extend(seq.to_be_bytes());
    header.extend(acknowledged.to_be_bytes());
    header.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    ip(out, 6, &header, payload)
}

fn ip(out: bool, protocol: u8, header: &[u8], payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(20 + header.len() + payload.len()).unwrap();
    let mut packet = vec![0x45, 0];
    packet.extend(len.to_be_bytes());
    packet.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
    let (client, server) = ([10, 0, 0, 2], [10, 0, 0, 53]);
    packet.extend(if out { [client, server] } else { [server, client] }.as_flattened());
    packet.extend(header);
    packet.extend(payload);
    packet
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
