//! The pipeline: events in order through the correlator, outputs to the sinks.
//!
//! One thread, used alike by `run`, `replay` and `bench`. It turns silence into ticks, so that deadlines fire and the
//! reorder stage lets go; it never waits for a sink. Every event, ticks included, is recorded before it is ordered.
//!
//! The first event of a burst wakes it; after that it looks by the clock, every [`BUSY`]. A source that wakes it for each
//! batch does so from the processor where the source runs, and the kernel then moves this thread to another: a plugin's.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use sandglass_correlator::{Config, Correlator, Counters, Output, Reorder};
use sandglass_model::{Body, Event, RootId, Timestamp, Trace, TraceId};

use crate::health::{Health, TableLabel};
use crate::sources::{EventReceiver, Stopped};

/// What receives the correlator's findings.
pub trait Outputs {
    /// An event arrived, before it is ordered: recordings are made of these.
    fn arrived(&mut self, event: &Event);
    /// The correlator found something.
    fn output(&mut self, output: &Output);
    /// Open traces changed; called at most a few times a second, with all that are open and the ids of the changed: of
    /// several with one id, one at least has.
    fn changed(&mut self, open: &mut dyn Iterator<Item = &Trace>, changed: &BTreeSet<TraceId>);
}

/// Reorder stage, correlator, and the account of both.
#[derive(Debug)]
pub struct Pipeline {
    reorder: Reorder,
    correlator: Correlator,
    health: Health,
    counted: Counters,
    /// Open traces as they were shown last with what HNS and HCS did for them.
    running: BTreeMap<RootId, Trace>,
    /// What HNS and HCS do has changed since.
    running_changed: bool,
    /// Events in the reorder stage that are no ticks: a tick that waits there waits for nothing.
    held: usize,
    /// Empty but for while it is drained; keeps its room.
    outputs: Vec<Output>,
    newest: Timestamp,
    refreshed: Instant,
}

/// A tick says "nothing older than this will come any more": events that wait in the kernel's buffer or the channel
/// while the machine is busy must not come late because of one.
const TICK_SLACK_NS: u64 = 250_000_000;
/// How often open traces are shown to the sinks.
const REFRESH: Duration = Duration::from_millis(200);
/// Longest silence without a tick; the heartbeat of `/healthz`.
const IDLE: Duration = Duration::from_secs(5);
/// While something is held or due soon.
const BUSY: Duration = Duration::from_millis(50);

impl Pipeline {
    /// A pipeline that has seen nothing.
    #[must_use]
    pub fn new(config: Config, reorder_ns: u64, health: Health) -> Pipeline {
        Pipeline {
            reorder: Reorder::new(reorder_ns),
            correlator: Correlator::new(config),
            health,
            counted: Counters::default(),
            running: BTreeMap::new(),
            running_changed: false,
            held: 0,
            outputs: Vec::new(),
            newest: Timestamp(0),
            refreshed: Instant::now(),
        }
    }

    /// Runs until every source is gone, then ends what is open. `clock` is the boot clock; `heartbeat` is called at
    /// least every few seconds.
    pub fn run(
        mut self,
        events: &EventReceiver,
        clock: fn() -> Timestamp,
        outputs: &mut impl Outputs,
        mut heartbeat: impl FnMut(),
    ) {
        let mut taken = 0;
        loop {
            let mut patience = self.patience(clock());
            // Sources must not come to wait for this thread while it rests.
            if patience == BUSY && taken <= events.capacity() / 8 {
                std::thread::sleep(BUSY);
                patience = Duration::ZERO;
            }
            match events.receive(patience) {
                Ok(Some(event)) => {
                    self.feed(event, outputs);
                    taken = 1 + events.waiting().map(|event| self.feed(event, outputs)).count();
                }
                Ok(None) => {
                    let at = clock().minus(TICK_SLACK_NS).max(self.newest);
                    self.feed(Event { at, body: Body::Tick }, outputs);
                    taken = 0;
                }
                Err(Stopped) => break,
            }
            self.refresh(outputs);
            heartbeat();
        }
        self.finish(outputs);
    }

    /// Takes one event.
    pub fn feed(&mut self, event: Event, outputs: &mut impl Outputs) {
        self.health.events.inc();
        outputs.arrived(&event);
        self.newest = self.newest.max(event.at);
        self.held += usize::from(event.body != Body::Tick);
        self.reorder.push(event);
        while let Some(ordered) = self.reorder.pop() {
            self.held -= usize::from(ordered.event.body != Body::Tick);
            if ordered.late {
                self.health.late.inc();
            }
            self.running_changed |= matches!(&ordered.event.body, Body::ActivitySeen(_) | Body::SiloSeen(_));
            self.correlator.handle(ordered.event);
        }
        self.drain(outputs);
    }

    /// The end of the input: releases what is held and ends what is open.
    pub fn finish(&mut self, outputs: &mut impl Outputs) {
        while let Some(ordered) = self.reorder.flush() {
            self.correlator.handle(ordered.event);
        }
        self.correlator.finish();
        self.drain(outputs);
        self.account();
    }

    fn drain(&mut self, outputs: &mut impl Outputs) {
        self.correlator.drain_into(&mut self.outputs);
        for output in self.outputs.drain(..) {
            outputs.output(&output);
        }
    }

    /// Shows open traces to the sinks and brings the account up to date, a few times a second.
    fn refresh(&mut self, outputs: &mut impl Outputs) {
        if self.refreshed.elapsed() < REFRESH {
            return;
        }
        self.refreshed = Instant::now();
        self.show(outputs);
        self.running_changed = false;
        self.account();
    }

    fn show(&mut self, outputs: &mut impl Outputs) {
        let mut changed = self.correlator.take_changed();
        let running = self.correlator.with_running();
        let running: BTreeMap<RootId, Trace> = running.into_iter().map(|trace| (trace.root_id(), trace)).collect();
        let before = std::mem::replace(&mut self.running, running);
        let differs = |(root, trace): &(&RootId, &Trace)| self.running.get(root) != Some(trace);
        let ended = before.iter().filter(differs).map(|(root, _)| root);
        let began = self.running.keys().filter(|root| !before.contains_key(root));
        changed.extend(ended.chain(began).map(|root| root.trace));
        let open = self.correlator.open();
        let mut shown = open.map(|trace| self.running.get(&trace.root_id()).unwrap_or(trace));
        outputs.changed(&mut shown, &changed);
    }

    fn account(&mut self) {
        let now = self.correlator.counters();
        let before = std::mem::replace(&mut self.counted, now);
        self.health.orphan.inc_by(now.orphan - before.orphan);
        for (table, now, before) in [
            ("traces", now.evicted_traces, before.evicted_traces),
            ("processes", now.evicted_processes, before.evicted_processes),
            ("spans", now.evicted_spans, before.evicted_spans),
            ("remembered", now.evicted_remembered, before.evicted_remembered),
            ("lookups", now.evicted_lookups, before.evicted_lookups),
            ("connects", now.evicted_connects, before.evicted_connects),
            ("flows", now.evicted_flows, before.evicted_flows),
            ("windows", now.evicted_windows, before.evicted_windows),
        ] {
            // Other systems have no such table.
            if table == "windows" && now == 0 {
                continue;
            }
            self.health
                .evicted
                .get_or_create(&TableLabel { table })
                .inc_by(now - before);
        }
        self.health
            .open_traces
            .set(i64::try_from(self.correlator.open().count()).unwrap_or(i64::MAX));
    }

    /// How long to wait for the next event.
    fn patience(&self, now: Timestamp) -> Duration {
        if self.held > 0 || self.running_changed || self.correlator.has_changed() {
            return BUSY;
        }
        let due = self
            .correlator
            .next_deadline()
            .map(|due| due.plus(TICK_SLACK_NS).since(now));
        due.map_or(IDLE, |ns| Duration::from_nanos(ns).clamp(BUSY, IDLE))
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::gauge::Gauge;
    use sandglass_model::event::Exec;
    use sandglass_model::windows::{ActivityChange, ActivityStep, RuntimeSaid, Service};
    use sandglass_model::{PodIdentity, ProcessKey, text};

    use super::*;
    use crate::sources::channel;

    /// What was shown of open traces that had changed.
    #[derive(Default)]
    struct Shown(Vec<String>);

    impl Outputs for Shown {
        fn arrived(&mut self, _: &Event) {}
        fn output(&mut self, _: &Output) {}
        fn changed(&mut self, open: &mut dyn Iterator<Item = &Trace>, changed: &BTreeSet<TraceId>) {
            let told = open.filter(|trace| changed.contains(&trace.id));
            self.0.extend(told.map(|trace| text::tree(trace, Timestamp(0))));
        }
    }

    /// The runtime runs a plugin to take an interface away.
    fn del(pid: u32, ifname: &str, traceparent: &str) -> Body {
        let env = [
            ("CNI_COMMAND", "DEL"),
            ("CNI_CONTAINERID", "sb"),
            ("CNI_IFNAME", ifname),
            ("TRACEPARENT", traceparent),
        ];
        Body::ProcessExecuted(Box::new(Exec {
            process: ProcessKey::new(pid, 0),
            parent: ProcessKey::new(1, 0),
            parent_comm: "containerd".into(),
            path: "/opt/cni/bin/bridge".into(),
            args: Default::default(),
            args_truncated: false,
            env: env.into_iter().collect(),
            cgroup: String::new(),
            netns: 0,
            running: false,
        }))
    }

    fn hns_begins() -> Body {
        Body::ActivitySeen(Box::new(ActivityStep {
            service: Service::Hns,
            name: "Delete".into(),
            activity: "a".into(),
            related: String::new(),
            pid: 1,
            tid: 2,
            step: ActivityChange::Started,
            keys: Vec::new(),
            fields: Default::default(),
        }))
    }

    /// When what arrived had happened; ticks are left out.
    #[derive(Default)]
    struct Arrived(Vec<u64>);

    impl Outputs for Arrived {
        fn arrived(&mut self, event: &Event) {
            self.0.extend((event.body != Body::Tick).then_some(event.at.0));
        }
        fn output(&mut self, _: &Output) {}
        fn changed(&mut self, _: &mut dyn Iterator<Item = &Trace>, _: &BTreeSet<TraceId>) {}
    }

    #[test]
    fn all_that_was_sent_arrives_in_its_order_before_the_end() {
        // So small that the source has to wait for the pipeline again and again.
        let (sender, receiver) = channel(16, Gauge::default());
        let source = std::thread::spawn(move || {
            for at in 1..=1_000 {
                let unix_ns = at;
                let body = Body::ClockAnchored { unix_ns };
                sender
                    .send(Event {
                        at: Timestamp(at),
                        body,
                    })
                    .unwrap();
                if at % 300 == 0 {
                    // The pipeline comes to rest.
                    std::thread::sleep(2 * BUSY);
                }
            }
        });
        let mut arrived = Arrived::default();
        let pipeline = Pipeline::new(Config::default(), 0, Health::default());
        pipeline.run(&receiver, || Timestamp(1_000), &mut arrived, || {});
        source.join().unwrap();
        assert_eq!(arrived.0, (1..=1_000).collect::<Vec<_>>());
    }

    #[test]
    fn open_operations_of_one_trace_are_shown_each() {
        let mut pipeline = Pipeline::new(Config::default(), 0, Health::default());
        let caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let bodies = [del(10, "lo", caller), del(11, "eth0", caller), hns_begins(), Body::Tick];
        let mut shown = Shown::default();
        for (at, body) in bodies.into_iter().enumerate() {
            let at = Timestamp(1_000_000 * (at as u64 + 1));
            pipeline.feed(Event { at, body }, &mut shown);
        }
        pipeline.refreshed = Instant::now().checked_sub(REFRESH).unwrap();
        pipeline.refresh(&mut shown);
        let all = shown.0.join("");
        assert_eq!(shown.0.len(), 2, "{all}");
        // What HNS does for one of them does not hide the other.
        for part in ["[sb, lo,", "[sb, eth0,", "hns Delete"] {
            assert_eq!(all.matches(part).count(), 1, "{part}: {all}");
        }
    }

    #[test]
    fn what_hcs_does_is_shown_when_it_begins_and_when_it_ends() {
        let config = Config {
            windows: true,
            ..Config::default()
        };
        let mut pipeline = Pipeline::new(config, 0, Health::default());
        let mut at = 0;
        let mut after = |body: Body| {
            at += 1_000_000;
            let mut shown = Shown::default();
            pipeline.feed(
                Event {
                    at: Timestamp(at),
                    body,
                },
                &mut shown,
            );
            pipeline.feed(
                Event {
                    at: Timestamp(at + 1),
                    body: Body::Tick,
                },
                &mut shown,
            );
            pipeline.refreshed = Instant::now().checked_sub(REFRESH).unwrap();
            pipeline.refresh(&mut shown);
            shown.0.join("")
        };
        let identity = PodIdentity {
            name: "web".into(),
            ..PodIdentity::default()
        };
        let created = after(Body::RuntimeSaid(Box::new(RuntimeSaid::RunBegan {
            identity,
            attempt: 0,
        })));
        assert!(
            created.contains("sandbox.create") && !created.contains("hcs"),
            "{created}"
        );
        let step = |step| {
            Body::ActivitySeen(Box::new(ActivityStep {
                service: Service::Hcs,
                name: "Create".into(),
                activity: "a".into(),
                related: String::new(),
                pid: 1,
                tid: 2,
                step,
                keys: Vec::new(),
                fields: Default::default(),
            }))
        };
        let begun = after(step(ActivityChange::Started));
        assert!(begun.contains("hcs Create"), "{begun}");
        assert_eq!(after(Body::Tick), "", "nothing has changed");
        let (result, message) = (Some(0), String::new());
        let ended = after(step(ActivityChange::Stopped { result, message }));
        assert_eq!(ended.matches("hcs Create").count(), 1, "{ended}");
        assert_eq!(after(Body::Tick), "");
        assert!(pipeline.running.is_empty());
    }
}
