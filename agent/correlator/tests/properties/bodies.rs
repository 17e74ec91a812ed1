//! Facts in short: what a process does, and what one end of a conversation sends.
//!
//! Used by histories and by soup. Does not: put them in any order.

use std::net::{IpAddr, SocketAddr};

use sandglass_model::cni::{CniError, NetConf};
use sandglass_model::event::{Exec, PluginIo};
use sandglass_model::network::{
    Answer, ConnectStep, ConntrackCounts, DnsMessage, DroppedPacket, Flow, FlowChange, Initiator, PacketDrop, Question,
    Step, Transport,
};
use sandglass_model::{Body, ProcessKey};

pub const RUNTIME: ProcessKey = ProcessKey { pid: 1, start_ticks: 1 };

/// The node's own network namespace.
pub const NODE: u64 = 900;

/// One end of a conversation.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    pub netns: u64,
    pub client: SocketAddr,
    pub server: SocketAddr,
    pub transport: Transport,
}

pub fn line(netns: u64, port: u16, server: ([u8; 4], u16), transport: Transport) -> Line {
    Line {
        netns,
        client: SocketAddr::from(([10, 0, 0, netns as u8], port)),
        server: SocketAddr::from(server),
        transport,
    }
}

fn initiator() -> Option<Initiator> {
    Some(Initiator {
        process: ProcessKey { pid: 7, start_ticks: 7 },
        comm: "app".into(),
    })
}

pub fn dns(line: Line, id: u16, name: &str, kind: u16, answer: Option<Answer>) -> Body {
    Body::DnsSeen(Box::new(DnsMessage {
        netns: line.netns,
        socket: u64::from(line.client.port()),
        transport: line.transport,
        client: line.client,
        server: line.server,
        initiator: initiator().filter(|_| answer.is_none()),
        id,
        nth: 0,
        questions: vec![Question {
            name: name.into(),
            kind,
        }],
        answer,
    }))
}

pub fn answer_with(rcode: u16, which: u8) -> Option<Answer> {
    let addresses: Vec<IpAddr> = vec![IpAddr::from([10, 1, 0, which])];
    Some(Answer {
        rcode,
        truncated: false,
        records: u16::from(rcode == 0),
        addresses: if rcode == 0 { addresses } else { Vec::new() },
    })
}

pub fn step(line: Line, step: Step) -> Body {
    Body::ConnectSeen(Box::new(ConnectStep {
        netns: line.netns,
        socket: u64::from(line.client.port()),
        local: line.client,
        remote: line.server,
        initiator: initiator().filter(|_| step == Step::Started),
        step,
        retransmits: 0,
    }))
}

pub fn flow(line: Line, change: FlowChange) -> Body {
    Body::FlowSeen(Box::new(Flow {
        netns: NODE,
        id: u32::from(line.client.port()),
        change,
        protocol: if line.transport == Transport::Udp { 17 } else { 6 },
        source: line.client,
        destination: line.server,
        reply_source: SocketAddr::from(([10, 2, 0, 1], 53)),
        reply_destination: line.client,
        replied: false,
    }))
}

pub fn dropped(line: Line, packet: DroppedPacket, id: Option<u16>) -> Body {
    Body::PacketDropped(Box::new(PacketDrop {
        netns: NODE,
        packet,
        source: line.client,
        destination: SocketAddr::from(([10, 2, 0, 2], 53)),
        dns_id: id,
        reason: "NETFILTER_DROP".to_owned(),
        function: String::new(),
    }))
}

pub fn counted(entries: u64, insert_failed: u64) -> Body {
    Body::ConntrackCounted(Box::new(ConntrackCounts {
        netns: NODE,
        entries,
        limit: 1_000,
        insert_failed,
        ..ConntrackCounts::default()
    }))
}

pub fn exec(process: ProcessKey, parent: ProcessKey, path: &str, args: &[&str], env: &[(&str, &str)]) -> Body {
    Body::ProcessExecuted(Box::new(Exec {
        process,
        parent,
        parent_comm: if parent == RUNTIME { "containerd" } else { "" }.into(),
        path: path.into(),
        args: std::iter::once(path).chain(args.iter().copied()).collect(),
        args_truncated: false,
        env: env.iter().copied().collect(),
        cgroup: String::new(),
        netns: 0,
        counted: None,
        running: false,
    }))
}

pub fn plugin_io(process: ProcessKey, fails: bool) -> Body {
    Body::PluginIoRead(Box::new(PluginIo {
        process,
        netconf: Some(NetConf {
            network: "pods".to_owned(),
            ..NetConf::default()
        }),
        error: fails.then(|| CniError {
            code: 11,
            msg: "later".to_owned(),
            details: String::new(),
        }),
        addresses: Vec::new(),
    }))
}
