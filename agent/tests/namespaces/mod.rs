//! A source that watches in a network namespace of a test's own, and what the tests of traffic look for among its events.
//!
//! Used by `connect_probe.rs` and `conntrack.rs`. The namespaces are those of `sandglass_lab`.
//! Does not: judge.
#![allow(dead_code, reason = "each test file uses its part")]

use std::time::{Duration, Instant};

use prometheus_client::metrics::gauge::Gauge;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use sandglass::health::{Health, ProbeLabel, ProbeStatus};
use sandglass::sources;
use sandglass::sources::linux::{LinuxOptions, LinuxSource, ProgramTime};
use sandglass_model::network::{ConnectStep, ConntrackCounts, Flow};
use sandglass_model::{Body, Event, Timestamp};

use crate::collected::{Collected, started};

pub use sandglass_lab::netns::Namespace;

/// A running source and everything it has sent.
pub struct Watch {
    source: Option<LinuxSource>,
    events: Collected,
    pub health: Health,
}

impl Watch {
    /// Starts the source in a namespace; prints `SKIPPED` and returns `None` where that is not possible.
    pub fn start(test: &str, node: &Namespace, options: LinuxOptions) -> Option<Watch> {
        Watch::without(CapabilitySet::empty(), test, node, options)
    }

    /// As above, lacking some capabilities.
    pub fn without(lacking: CapabilitySet, test: &str, node: &Namespace, options: LinuxOptions) -> Option<Watch> {
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

    /// Waits until `find` finds something among the events. A failure shows how many there are.
    pub fn wait<T>(&self, what: &str, find: impl Fn(&[Event]) -> Option<T>) -> T {
        self.wait_showing(what, find, |events| format!("{} events", events.len()))
    }

    /// The same; a failure shows what `show` makes of the events, and each probe that is not attached as it should be or that
    /// lost something.
    pub fn wait_showing<T>(
        &self,
        what: &str,
        find: impl Fn(&[Event]) -> Option<T>,
        show: impl Fn(&[Event]) -> String,
    ) -> T {
        self.events.wait_showing(what, find, |events| {
            let probes = self.health.probes().into_iter().filter_map(|status| {
                let lost = self.lost(&status.probe);
                let is_well = status.attached && status.consequence.is_empty() && lost == 0;
                (!is_well).then(|| format!("; {status:?}, lost {lost}"))
            });
            show(events) + &probes.collect::<String>()
        })
    }

    /// Waits until `find` finds something among the events, for so long at most.
    pub fn wait_for<T>(&self, longest: Duration, find: impl Fn(&[Event]) -> Option<T>) -> Option<T> {
        self.events.wait_for(longest, find)
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
