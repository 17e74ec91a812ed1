//! The schedules' packets in a file of the format pcap, with the times that the decoder is given.
//!
//! Does not: read it; tshark does.

use std::path::Path;

use super::schedule::{CLIENT_ISN, Packet, SERVER_ISN, Schedule};

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
