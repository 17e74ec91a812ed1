//! The Linux source with everything it sends, and what the tests look for in it.
//!
//! `RECORD_INTO=DIR` makes each watch write a recording of what happened in its lab; ticks are added as the pipeline adds
//! them. Does not: see other namespaces of the machine: they are left out.

use std::collections::HashSet;
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use sandglass::app::settings::default_source;
use sandglass::health::Health;
use sandglass::sources::linux::{LinuxOptions, LinuxSource};
use sandglass::sources::{self, clock};
use sandglass_model::network::{DnsMessage, PacketDrop, Unreported};
use sandglass_model::{Body, Event, Timestamp};

use super::{Lab, recorded};
use crate::collected::{Collected, started};

/// A running source and everything it has sent.
pub struct Watch {
    source: Option<LinuxSource>,
    events: Collected,
    pub health: Health,
    test: String,
    namespaces: Vec<u64>,
    pod: u64,
}

impl Watch {
    /// Starts the source; prints `SKIPPED` and returns `None` where that, or its DNS probe, is not possible.
    pub fn start(test: &str, lab: &Lab) -> Option<Watch> {
        // The lab's node is the node, so that its conntrack is read.
        let options = LinuxOptions {
            node_netns: Some(format!("/run/netns/{}", lab.node()).into()),
            ..default_source().unwrap()
        };
        Watch::with(test, lab, options)
    }

    pub fn with(test: &str, lab: &Lab, options: LinuxOptions) -> Option<Watch> {
        let health = Health::default();
        let (sender, receiver) = sources::channel(4096, Gauge::default());
        let source = started(test, sources::linux::start(options, sender, health.clone()))?;
        let dns = health.probes().into_iter().find(|probe| probe.probe == "dns")?;
        if !dns.attached {
            let not_here = dns.consequence.contains("os error 1)") || dns.consequence.contains("os error 2)");
            assert!(not_here, "{}", dns.consequence);
            eprintln!("SKIPPED {test}: {}", dns.consequence);
            return None;
        }
        Some(Watch {
            source: Some(source),
            events: Collected::with_ticks(receiver, TICK, tick),
            health,
            test: test.to_owned(),
            namespaces: [lab.pod(), lab.node(), lab.server()]
                .map(|name| lab.inode(&name))
                .to_vec(),
            pod: lab.inode(&lab.pod()),
        })
    }

    /// Waits until `find` finds something among the events.
    pub fn wait<T>(&self, what: &str, find: impl Fn(&[Event]) -> Option<T>) -> T {
        self.events
            .wait_showing(what, find, |events| shown(events, &self.namespaces))
    }

    /// Waits until `find` finds something among the events, for so long at most.
    pub fn wait_for<T>(&self, longest: Duration, find: impl Fn(&[Event]) -> Option<T>) -> Option<T> {
        self.events.wait_for(longest, find)
    }

    /// Waits until the pod's messages are so many, and returns them.
    pub fn messages(&self, count: usize) -> Vec<Seen> {
        self.wait(&format!("{count} messages"), |events| {
            let seen = seen_by(events, self.pod);
            (seen.len() >= count).then_some(seen)
        })
    }

    /// The pod's messages once nothing more comes.
    pub fn settled(&self) -> Vec<Seen> {
        // Longer than the reader's delay.
        std::thread::sleep(Duration::from_millis(200));
        self.events.look(|events| seen_by(events, self.pod))
    }

    /// Waits until so many packets of the lab were dropped, and returns them.
    pub fn dropped(&self, count: usize) -> Vec<(Timestamp, PacketDrop)> {
        self.wait(&format!("{count} drops"), |events| {
            let drops = drops_in(events, &self.namespaces);
            (drops.len() >= count).then_some(drops)
        })
    }

    /// Drops in the lab so far.
    pub fn drops(&self) -> Vec<(Timestamp, PacketDrop)> {
        self.events.look(|events| drops_in(events, &self.namespaces))
    }

    /// How much of the lab's DNS traffic was counted instead of reported, for this reason.
    pub fn counted(&self, reason: Unreported) -> u64 {
        let events = self.events.all();
        let counts = events.iter().map(|event| match &event.body {
            Body::DnsUnreported(unreported)
                if unreported.reason == reason && self.namespaces.contains(&unreported.netns) =>
            {
                unreported.count
            }
            _ => 0,
        });
        counts.sum()
    }

    pub fn all(&self) -> Vec<Event> {
        self.events.all()
    }

    /// The events of the lab, as a recording holds them.
    pub fn of_lab(&self) -> Vec<Event> {
        let events = self.events.all();
        let mut own = HashSet::new();
        let ours = events.iter().filter(|event| belongs(event, &self.namespaces, &mut own));
        ours.cloned().collect()
    }

    /// Records of DNS that found no room in the ring buffer so far, those of others on this machine included.
    pub fn lost(&self) -> u64 {
        let events = self.events.all();
        let counts = events.iter().map(|event| match &event.body {
            Body::Lost { probe, count } if probe == "dns" => *count,
            _ => 0,
        });
        counts.sum()
    }

    pub fn source(&self) -> &LinuxSource {
        self.source.as_ref().unwrap()
    }

    fn record(&self) {
        recorded::record(&self.test, &self.of_lab());
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if recorded::wanted() {
            // What follows the last packet is a part of the recording: that nothing more came.
            std::thread::sleep(Duration::from_secs(3));
        }
        drop(self.source.take());
        if recorded::wanted() {
            self.record();
        }
    }
}

/// One message with its time.
#[derive(Clone, Debug)]
pub struct Seen {
    pub at: Timestamp,
    pub message: DnsMessage,
}

impl Seen {
    pub fn is_answer(&self) -> bool {
        self.message.answer.is_some()
    }

    pub fn name(&self) -> &str {
        self.message.questions.first().map_or("", |question| &question.name)
    }

    pub fn kind(&self) -> u16 {
        self.message.questions.first().map_or(0, |question| question.kind)
    }
}

/// How many of the events stand for a DNS message of this namespace: one that is reported, or counted only.
pub fn dns_events(events: &[Event], netns: u64) -> usize {
    let of_it = events.iter().filter(|event| match &event.body {
        Body::DnsSeen(message) => message.netns == netns,
        Body::DnsUnreported(unreported) => {
            let is_hole = unreported.count == 0;
            let is_message = !matches!(unreported.reason, Unreported::Questions | Unreported::Records);
            unreported.netns == netns && is_message && !is_hole
        }
        _ => false,
    });
    of_it.count()
}

fn seen_by(events: &[Event], netns: u64) -> Vec<Seen> {
    let mut seen: Vec<Seen> = events
        .iter()
        .filter_map(|event| match &event.body {
            Body::DnsSeen(message) if message.netns == netns => Some(Seen {
                at: event.at,
                message: (**message).clone(),
            }),
            _ => None,
        })
        .collect();
    seen.sort_by_key(|seen| seen.at);
    seen
}

fn drops_in(events: &[Event], namespaces: &[u64]) -> Vec<(Timestamp, PacketDrop)> {
    let drops = events.iter().filter_map(|event| match &event.body {
        Body::PacketDropped(drop) if namespaces.contains(&drop.netns) => Some((event.at, (**drop).clone())),
        _ => None,
    });
    drops.collect()
}

/// Whether an event is about the lab: its namespaces, and the plugin that stands for its runtime. `own` are processes.
fn belongs(event: &Event, namespaces: &[u64], own: &mut HashSet<u32>) -> bool {
    match &event.body {
        Body::DnsSeen(message) => namespaces.contains(&message.netns),
        Body::Limited { netns, .. } => namespaces.contains(netns),
        Body::DnsUnreported(unreported) => namespaces.contains(&unreported.netns),
        Body::PacketDropped(drop) => namespaces.contains(&drop.netns),
        Body::ConnectSeen(step) => namespaces.contains(&step.netns),
        Body::FlowSeen(flow) => namespaces.contains(&flow.netns),
        Body::ConntrackCounted(counts) => namespaces.contains(&counts.netns),
        Body::NetnsObserved(netns) => namespaces.contains(&netns.inode),
        Body::ProcessExecuted(exec) => {
            let ours = exec.env("CNI_CONTAINERID").is_some_and(|id| id.starts_with(SANDBOX));
            if ours {
                own.insert(exec.process.pid);
            }
            ours
        }
        Body::ProcessForked(fork) => {
            let ours = own.contains(&fork.parent.pid);
            if ours {
                own.insert(fork.process.pid);
            }
            ours
        }
        Body::ProcessExited(exit) => own.remove(&exit.process.pid),
        Body::PluginIoRead(spoken) => own.contains(&spoken.process.pid),
        Body::TrafficWatched { .. } | Body::ClockAnchored { .. } | Body::Lost { .. } | Body::Tick => true,
        // What plugins wait for is no traffic.
        Body::ThreadWoken(_)
        | Body::ThreadRan(_)
        | Body::ThreadEnded(_)
        | Body::RuntimeMeasured(_)
        | Body::WaitsRecorded { .. }
        | Body::RequestSeen(_)
        | Body::SandboxRequested(_)
        | Body::SandboxResponded(_)
        | Body::RequestsFollowed { .. }
        | Body::LockBlocked(_)
        | Body::ThreadsSeen(_)
        | Body::TentativeSeen(_)
        | Body::ApiServerKnown { .. }
        | Body::FileLockTried(_)
        | Body::KernelLockWaited(_)
        | Body::NetlinkRemarked(_)
        | Body::SandboxDescribed(_)
        | Body::NetnsNamed { .. }
        | Body::NetworksConfigured { .. }
        | Body::CniConfigJudged { .. }
        | Body::ActivitySeen(_)
        | Body::RuntimeReported(_)
        | Body::SiloSeen(_)
        | Body::InterfaceSeen(_)
        | Body::LookupSeen(_) => false,
    }
}

fn shown(events: &[Event], namespaces: &[u64]) -> String {
    let mut own = HashSet::new();
    let ours = events
        .iter()
        .filter(|event| !matches!(event.body, Body::Tick) && belongs(event, namespaces, &mut own));
    ours.map(|event| format!("\n{event:?}")).collect()
}

fn tick() -> Event {
    Event {
        at: Timestamp(clock::now().0.saturating_sub(TICK.as_nanos() as u64)),
        body: Body::Tick,
    }
}

/// Sandbox id of the lab's pod, by which its plugin is known.
pub const SANDBOX: &str = "5a9d";
const TICK: Duration = Duration::from_millis(250);
