//! The pipeline: events in order through the correlator, outputs to the sinks.
//!
//! One thread, the same in `run`, `replay` and `bench`. It turns silence into ticks, so that deadlines fire and the reorder
//! stage releases events; it never waits for a sink. Every event, ticks included, is recorded before it is ordered.
//!
//! The first event of a burst wakes the thread; after that it polls the queue every [`BUSY`], or earlier when an eighth of the queue is
//! full. Fewer and larger batches take less of a processor for the same events, and to wake this thread for each
//! batch of a source would move it to other processors, often to the one that a plugin runs on.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use sandglass_correlator::{Correlator, CorrelatorConfig, Counters, Output, Reorder, Snapshots};
use sandglass_model::{Body, Event, Timestamp, Trace, TraceId};

use crate::health::{Health, TableLabel};
use crate::sources::{EventReceiver, Stopped};

/// Receives what the pipeline emits.
pub trait Outputs {
    /// An event arrived, before it is ordered: recordings are made of these.
    fn arrived(&mut self, event: &Event);
    /// The correlator emitted an output.
    fn output(&mut self, output: &Output);
    /// Open traces changed; called at most seven times a second. `open` yields all open traces; `changed` holds the ids of
    /// those that changed. When several open traces have one id, at least one of them changed.
    fn changed(&mut self, open: &mut dyn Iterator<Item = &Trace>, changed: &BTreeSet<TraceId>);
}

/// Reorder stage and correlator, and their counters.
#[derive(Debug)]
pub struct Pipeline {
    reorder: Reorder,
    correlator: Correlator,
    health: Health,
    counted: Counters,
    snapshots: Snapshots,
    /// Events in the reorder stage, ticks left out: nothing depends on a tick that is held.
    held: usize,
    /// Empty except while it is drained; kept for its capacity.
    outputs: Vec<Output>,
    newest: Timestamp,
    refreshed: Instant,
}

/// A tick means that nothing older will come. It lags by this much, so that events that wait in the kernel's buffer or in
/// the channel while the node is busy are not late because of it.
const TICK_SLACK_NS: u64 = 250_000_000;
/// How often the sinks receive open traces at most: below [`BUSY`], so that each poll may.
const REFRESH: Duration = Duration::from_millis(150);
/// Longest silence without a tick, and without a heartbeat for `/healthz`.
const IDLE: Duration = Duration::from_secs(5);
/// Longest wait while an event is held or a deadline is near.
const BUSY: Duration = Duration::from_millis(200);

impl Pipeline {
    /// A pipeline that has seen nothing.
    #[must_use]
    pub fn new(config: CorrelatorConfig, reorder_ns: u64, health: Health) -> Pipeline {
        Pipeline {
            reorder: Reorder::new(reorder_ns),
            correlator: Correlator::new(config),
            health,
            counted: Counters::default(),
            snapshots: Snapshots::default(),
            held: 0,
            outputs: Vec::new(),
            newest: Timestamp(0),
            refreshed: Instant::now(),
        }
    }

    /// Runs until every source has gone, then closes open traces. `clock` is the boot clock; `heartbeat` is called at
    /// least every few seconds.
    pub fn run(
        mut self,
        events: &EventReceiver,
        clock: fn() -> Timestamp,
        outputs: &mut impl Outputs,
        mut heartbeat: impl FnMut(),
    ) {
        let mut batch = VecDeque::new();
        loop {
            let mut patience = self.patience(clock());
            if patience == BUSY {
                events.wait_for_batch(BUSY);
                patience = Duration::ZERO;
            }
            // Read before the queue is emptied: all that was sent until then is in the queue.
            self.reorder.wait_for(events.watermark(clock()));
            match events.receive_all(patience, &mut batch) {
                Ok(()) if batch.is_empty() => {
                    let at = clock().minus(TICK_SLACK_NS).max(self.newest);
                    self.feed(Event { at, body: Body::Tick }, outputs);
                }
                Ok(()) => {}
                Err(Stopped) => break,
            }
            for event in batch.drain(..) {
                self.feed(event, outputs);
            }
            events.give_back(self.correlator.spent_messages());
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
            self.snapshots.observe(&ordered.event.body);
            self.correlator.handle(ordered.event);
        }
        self.drain(outputs);
    }

    /// At the end of the input: releases held events and closes open traces.
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
            self.correlator.reuse(output);
        }
    }

    /// Passes open traces to the sinks and updates the counters, at most every [`REFRESH`].
    fn refresh(&mut self, outputs: &mut impl Outputs) {
        if self.refreshed.elapsed() < REFRESH {
            return;
        }
        self.refreshed = Instant::now();
        self.show(outputs);
        self.account();
    }

    fn show(&mut self, outputs: &mut impl Outputs) {
        let (changed, mut open) = self.snapshots.take(&mut self.correlator);
        outputs.changed(&mut open, &changed);
    }

    fn account(&mut self) {
        let now = self.correlator.counters();
        let before = std::mem::replace(&mut self.counted, now);
        self.health.orphan.inc_by(now.orphan - before.orphan);
        for (table, now, before) in [
            ("traces", now.evicted_traces, before.evicted_traces),
            ("processes", now.evicted_processes, before.evicted_processes),
            ("remembered", now.evicted_remembered, before.evicted_remembered),
            ("owners", now.evicted_owners, before.evicted_owners),
            ("lookups", now.evicted_lookups, before.evicted_lookups),
            ("connects", now.evicted_connects, before.evicted_connects),
            ("flows", now.evicted_flows, before.evicted_flows),
        ] {
            self.count_evicted(table, "sandbox", now.sandbox - before.sandbox);
            self.count_evicted(table, "node", now.node - before.node);
            self.count_evicted(table, "noisy", now.noisy - before.noisy);
        }
        self.count_evicted("spans", "sandbox", now.evicted_spans - before.evicted_spans);
        // Only Windows nodes fill this table; elsewhere its series would always be 0.
        if now.evicted_windows > 0 {
            self.count_evicted("windows", "node", now.evicted_windows - before.evicted_windows);
        }
        self.health
            .open_traces
            .set(i64::try_from(self.correlator.open().count()).unwrap_or(i64::MAX));
    }

    /// The series exists from the first call on, at 0: an alert on a rate needs a first sample.
    fn count_evicted(&self, table: &'static str, owner: &'static str, count: u64) {
        let label = TableLabel { table, owner };
        self.health.evicted.get_or_create(&label).inc_by(count);
    }

    /// How long to wait for the next event.
    fn patience(&self, now: Timestamp) -> Duration {
        if self.held > 0 || self.snapshots.is_stale(&self.correlator) {
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

    use super::*;
    use crate::sources::channel;

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
        let pipeline = Pipeline::new(CorrelatorConfig::default(), 0, Health::default());
        pipeline.run(&receiver, || Timestamp(1_000), &mut arrived, || {});
        source.join().unwrap();
        assert_eq!(arrived.0, (1..=1_000).collect::<Vec<_>>());
    }

    #[test]
    fn what_a_feed_sends_after_a_long_wait_for_a_processor_is_not_late() {
        let at = |ms: u64| Event {
            at: Timestamp(ms * 1_000_000),
            body: Body::ClockAnchored { unix_ns: ms },
        };
        let (sender, receiver) = channel(16, Gauge::default());
        let [slow, fast] = [sender.add_feed(|| true), sender.add_feed(|| true)];
        let source = std::thread::spawn(move || {
            sender.send(at(500)).unwrap();
            fast.advance(at(500).at);
            // The pipeline takes that event, and would pass the time of the next.
            std::thread::sleep(4 * BUSY);
            sender.send(at(100)).unwrap();
            slow.advance(at(500).at);
        });
        let health = Health::default();
        let pipeline = Pipeline::new(CorrelatorConfig::default(), 100_000_000, health.clone());
        pipeline.run(&receiver, || Timestamp(500_000_000), &mut Arrived::default(), || {});
        source.join().unwrap();
        assert_eq!((health.events.get() > 1, health.late.get()), (true, 0));
    }
}
