//! The independent witness: `conntrack -E`, and how it and the source are compared.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use sandglass_model::Timestamp;
use sandglass_model::network::{Flow, FlowChange};

use crate::namespaces::Namespace;

/// `conntrack -E`, which writes the kernel's events to a pipe.
pub struct Witness(Child);

impl Witness {
    pub fn start(node: &Namespace) -> Witness {
        let mut command = node.command("exec conntrack -E -e NEW,DESTROY -o timestamp,id -b 8388608 2>/dev/null");
        let child = command.stdout(Stdio::piped()).spawn().unwrap();
        let witness = Witness(child);
        // Subscribed when the kernel shows a second listener.
        for _ in 0..200 {
            let table = node.run("cat /proc/net/netlink");
            let listeners = table.lines().filter(|line| {
                let mut columns = line.split_whitespace().skip(1);
                columns.next() == Some("12") && columns.nth(1).is_some_and(|groups| groups == "00000005")
            });
            if listeners.count() >= 2 {
                return witness;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("conntrack -E did not subscribe");
    }

    /// Its lines so far, read to the end after it was stopped.
    pub fn finish(mut self) -> Vec<Seen> {
        let pid = Pid::from_raw(self.0.id().cast_signed()).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        kill_process(pid, Signal::INT).unwrap();
        let lines = BufReader::new(self.0.stdout.take().unwrap()).lines();
        let seen = lines.map(|line| Seen::read(&line.unwrap())).collect();
        self.0.wait().unwrap();
        seen
    }
}

/// A line of it: `[1731.1\t] [NEW] udp 17 30 src=.. dst=.. sport=.. dport=.. [UNREPLIED] src=.. .. id=7`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    pub new: bool,
    pub id: u32,
    pub ends: [String; 4],
}

impl Seen {
    pub fn read(line: &str) -> Seen {
        let values = |name: &str| -> Vec<String> {
            let prefix = format!("{name}=");
            let words = line.split_whitespace();
            words
                .filter_map(|word| word.strip_prefix(&prefix).map(str::to_owned))
                .collect()
        };
        let (sources, destinations) = (values("src"), values("dst"));
        let (from, to) = (values("sport"), values("dport"));
        let end = |addresses: &[String], ports: &[String], way: usize| {
            SocketAddr::new(addresses[way].parse().unwrap(), ports[way].parse().unwrap()).to_string()
        };
        Seen {
            new: line.contains("[NEW]"),
            id: values("id")[0].parse().unwrap(),
            ends: [
                end(&sources, &from, 0),
                end(&destinations, &to, 0),
                end(&sources, &from, 1),
                end(&destinations, &to, 1),
            ],
        }
    }

    pub fn of(flow: &Flow) -> Seen {
        let ends = [flow.source, flow.destination, flow.reply_source, flow.reply_destination];
        Seen {
            new: flow.change == FlowChange::New,
            id: flow.id,
            ends: ends.map(|end| end.to_string()),
        }
    }
}

/// The witness and the source report the same flows.
pub fn agree(mut seen: Vec<Seen>, reported: &[(Timestamp, Flow)]) {
    let mut reported: Vec<Seen> = reported.iter().map(|(_, flow)| Seen::of(flow)).collect();
    seen.sort();
    reported.sort();
    assert!(!seen.is_empty());
    assert_eq!(seen, reported);
}
