//! What the tests of traffic stand on: network namespaces of their own, joined by links, and a source that watches.
//!
//! Used by `connect_probe.rs` and `conntrack.rs`. Everything is named after the process and removed when dropped.
//! Does not: touch a namespace it did not make.
#![allow(dead_code, reason = "each test file uses its part")]

#[path = "../collected/mod.rs"]
mod collected;

use std::os::unix::fs::MetadataExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use prometheus_client::metrics::gauge::Gauge;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use sandglass::health::{Health, ProbeLabel, ProbeStatus};
use sandglass::sources;
use sandglass::sources::linux::{LinuxSource, Options, ProgramTime};
use sandglass_model::network::{ConnectStep, ConntrackCounts, Flow};
use sandglass_model::{Body, Event, Timestamp};

use collected::{Collected, started};

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A network namespace of the test's own.
pub struct Namespace {
    pub name: String,
    pub inode: u64,
}

impl Namespace {
    /// A new one with its loopback up; `None`, with a `SKIPPED` line, where this machine does not allow it.
    pub fn make(test: &str) -> Option<Namespace> {
        let name = format!("sg{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        for tool in ["ip", "nft"] {
            if let Err(error) = Command::new(tool).arg("--version").output() {
                eprintln!("SKIPPED {test}: {tool}: {error}");
                return None;
            }
        }
        let made = Command::new("ip").args(["netns", "add", &name]).output().unwrap();
        if !made.status.success() {
            let why = String::from_utf8_lossy(&made.stderr);
            eprintln!("SKIPPED {test}: cannot make a network namespace: {}", why.trim());
            return None;
        }
        let inode = std::fs::metadata(format!("/run/netns/{name}")).unwrap().ino();
        let namespace = Namespace { name, inode };
        namespace.run("ip link set lo up");
        // No delay for duplicate address detection.
        namespace.run("sysctl -q -w net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0");
        Some(namespace)
    }

    /// Where it is bound.
    pub fn path(&self) -> String {
        format!("/run/netns/{}", self.name)
    }

    /// Runs a shell command in it; it must succeed.
    pub fn run(&self, command: &str) -> String {
        let output = Command::new("ip")
            .args(["netns", "exec", &self.name, "sh", "-ec", command])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// A shell command in it that runs on.
    pub fn command(&self, command: &str) -> Command {
        let mut ip = Command::new("ip");
        // No `exec`: some of what is started is a pipeline.
        ip.args(["netns", "exec", &self.name, "sh", "-ec", command]);
        ip
    }

    /// Runs `work` on a thread of its own that is in the namespace, and so are the threads it starts.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        sandglass_lab::netns::within(self.path().as_ref(), work).unwrap()
    }

    /// A link to another namespace: `name` at both ends, addresses `10.77.net.1` and `.2` (and `fd77:net::1`, `::2`).
    pub fn link(&self, other: &Namespace, net: u8) {
        let (device, peer) = (format!("v{net}a"), format!("v{net}b"));
        self.run(&format!(
            "ip link add {device} type veth peer name {peer} netns {}",
            other.name
        ));
        for (namespace, device, host) in [(self, &device, 1), (other, &peer, 2)] {
            namespace.run(&format!(
                "ip addr add 10.77.{net}.{host}/24 dev {device}; \
                 ip addr add fd77:{net}::{host}/64 dev {device} nodad; ip link set {device} up"
            ));
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

/// A running source and everything it has sent.
pub struct Watch {
    source: Option<LinuxSource>,
    events: Collected,
    pub health: Health,
}

impl Watch {
    /// Starts the source in a namespace; prints `SKIPPED` and returns `None` where that is not possible.
    pub fn start(test: &str, node: &Namespace, options: Options) -> Option<Watch> {
        Watch::without(CapabilitySet::empty(), test, node, options)
    }

    /// As above, lacking some capabilities.
    pub fn without(lacking: CapabilitySet, test: &str, node: &Namespace, options: Options) -> Option<Watch> {
        let health = Health::default();
        let began = Instant::now();
        let (sender, receiver) = sources::channel(64, Gauge::default());
        let outcome = node.within(|| {
            // Capabilities are a thread's own, and those of the threads it starts.
            let mut sets = capabilities(None).unwrap();
            sets.effective -= lacking;
            sets.permitted -= lacking;
            set_capabilities(None, sets).unwrap();
            sources::linux::start(options, sender, health.clone())
        });
        let source = started(test, outcome)?;
        eprintln!("{test}: attached in {:?}", began.elapsed());
        Some(Watch {
            source: Some(source),
            events: Collected::from(receiver),
            health,
        })
    }

    /// Waits until `find` finds something among the events.
    pub fn wait<T>(&self, what: &str, find: impl Fn(&[Event]) -> Option<T>) -> T {
        self.events.wait(what, find)
    }

    /// What came so far.
    pub fn events(&self) -> Vec<Event> {
        self.events.all()
    }

    /// How a probe is attached.
    pub fn probe(&self, name: &str) -> ProbeStatus {
        let mut probes = self.health.probes().into_iter();
        probes.find(|probe| probe.probe == name).unwrap()
    }

    /// How much a probe has lost.
    pub fn lost(&self, probe: &str) -> u64 {
        let label = ProbeLabel {
            probe: probe.to_owned(),
        };
        self.health.lost.get_or_create(&label).get()
    }

    /// Kernel time of each program.
    pub fn run_time(&self) -> Vec<ProgramTime> {
        self.source.as_ref().unwrap().traffic_run_time()
    }

    /// Stops the source and returns all it sent.
    pub fn finish(mut self) -> Vec<Event> {
        self.source.take().unwrap().stop();
        self.events()
    }
}

/// Steps of connections of a namespace.
pub fn steps(events: &[Event], netns: u64) -> Vec<(Timestamp, ConnectStep)> {
    let steps = events.iter().filter_map(|event| match &event.body {
        Body::ConnectSeen(step) if step.netns == netns => Some((event.at, ConnectStep::clone(step))),
        _ => None,
    });
    steps.collect()
}

/// Flows.
pub fn flows(events: &[Event]) -> Vec<(Timestamp, Flow)> {
    let flows = events.iter().filter_map(|event| match &event.body {
        Body::FlowSeen(flow) => Some((event.at, Flow::clone(flow))),
        _ => None,
    });
    flows.collect()
}

/// Counts of a namespace.
pub fn counts(events: &[Event], netns: u64) -> Vec<ConntrackCounts> {
    let counts = events.iter().filter_map(|event| match &event.body {
        Body::ConntrackCounted(counts) if counts.netns == netns => Some(**counts),
        _ => None,
    });
    counts.collect()
}
