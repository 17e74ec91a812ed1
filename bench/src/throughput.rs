//! Throughput of one core from wire record to span: decode, reorder, correlate.
//!
//! The agent's own [`Pipeline`] with sinks that only count. Time is the thread's processor time, which other work on the
//! machine does not lengthen. Other users of caches and memory slow a pass by up to a half, and nothing speeds one up: so the
//! fastest of many short passes counts, with the median in the remark. All records exist before a pass begins: generating
//! them in between would evict the pipeline's data from the caches, which costs a fifth. Every pass also checks its output
//! against the history, since losing sandboxes would be fast too.
//! Does not: include the kernel, the channel between threads, or the sinks.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use rustix::time::{ClockId, clock_gettime};
use sandglass::health::Health;
use sandglass::pipeline::{Outputs, Pipeline};
use sandglass::sources::linux::exec::decode::decode;
use sandglass_correlator::{CorrelatorConfig, Finding, Output, Reorder};
use sandglass_model::event::SandboxDescription;
use sandglass_model::{Body, Event, PodIdentity, SandboxId, Trace, TraceId};

use crate::Effort;
use crate::conversations::{self, Conversations};
use crate::history::{History, RECORDS_PER_SANDBOX, Records, TRACES_PER_SANDBOX};
use crate::processor::stay_on_one_processor;
use crate::report::{Figure, Outcome, Unit, median, quantile};

/// Measures on a pinned thread: a migration would start with cold caches.
pub fn run(effort: Effort) -> Result<Outcome> {
    let measured = std::thread::spawn(move || {
        stay_on_one_processor();
        measure(effort)
    });
    measured
        .join()
        .unwrap_or_else(|_| Err(anyhow!("the measuring thread panicked")))
}

fn measure(effort: Effort) -> Result<Outcome> {
    let sandboxes = effort.pick(11_000, 2_000);
    let passes = effort.pick(40, 2);
    let mut figures = Vec::new();
    for (parallel, budget) in [(NODE, true), (CROWD, false)] {
        let records = records(sandboxes, parallel);
        pass(&records, sandboxes)?;
        let speeds: Vec<f64> = (0..passes).map(|_| pass(&records, sandboxes)).collect::<Result<_>>()?;
        let remark = format!(
            "fastest of {passes} passes of {} events; median {:.0}, slowest {:.0} thousand/s",
            sandboxes * RECORDS_PER_SANDBOX,
            median(&speeds) / 1e3,
            quantile(&speeds, 0.0) / 1e3
        );
        let figure = Figure::new(
            format!("events/s, {parallel} sandboxes in creation at once"),
            quantile(&speeds, 1.0),
            Unit::PerSecond,
        )
        .remark(remark);
        figures.push(if budget {
            figure.at_least(EVENTS_PER_SECOND)
        } else {
            figure
        });
    }
    let (decoding, ordering) = stages(sandboxes)?;
    figures.push(Figure::new("decode alone, per event", decoding, Unit::Nanoseconds));
    figures.push(Figure::new("reorder alone, per event", ordering, Unit::Nanoseconds));
    figures.push(lookups(effort)?);
    Ok(Outcome::Figures(figures))
}

/// Lookups, each with a connect, through reorder and correlator, per second of processor time.
fn lookups(effort: Effort) -> Result<Figure> {
    let count = effort.pick(200_000, 20_000);
    let passes = effort.pick(5, 2);
    let speeds: Vec<f64> = (0..passes).map(|_| converse(count)).collect::<Result<_>>()?;
    let remark = format!(
        "{LOOKUPS_PER_SECOND} a second in their own time, {} events each, {passes} passes {:.0} to {:.0} thousand/s",
        conversations::EVENTS,
        quantile(&speeds, 0.0) / 1e3,
        quantile(&speeds, 1.0) / 1e3
    );
    let figure = Figure::new("lookups/s, each with a connection", median(&speeds), Unit::PerSecond);
    Ok(figure.remark(remark).at_least(LOOKUPS_PER_SECOND as f64))
}

fn converse(count: u64) -> Result<f64> {
    let health = Health::default();
    let mut pipeline = Pipeline::new(config(), REORDER_NS, health.clone());
    let mut conversations = Conversations::new(count, LOOKUPS_PER_SECOND, NODE);
    let mut found = Found::default();
    let mut events = conversations.pods();
    let mut busy = Duration::ZERO;
    while !events.is_empty() {
        let begin = thread_time();
        for event in events.drain(..) {
            pipeline.feed(event, &mut found);
        }
        busy += thread_time().saturating_sub(begin);
        conversations.fill(&mut events, PIECE as u64 / conversations::EVENTS);
    }
    let begin = thread_time();
    pipeline.finish(&mut found);
    busy += thread_time().saturating_sub(begin);
    ensure!(
        found.lookups == count && found.connects == count && found.closed == 0,
        "{count} conversations gave {} lookups, {} connections and {} journeys",
        found.lookups,
        found.connects,
        found.closed
    );
    Ok(count as f64 / busy.as_secs_f64())
}

/// All records of a history, some 200 MB of them in a full run.
fn records(sandboxes: u64, parallel: u64) -> Records {
    let mut records = Records::default();
    History::new(sandboxes, parallel).fill(&mut records, usize::MAX);
    records
}

/// One pass through all stages: events per second of processor time.
fn pass(records: &Records, sandboxes: u64) -> Result<f64> {
    let health = Health::default();
    let mut pipeline = Pipeline::new(config(), REORDER_NS, health.clone());
    let mut found = Found::default();
    let begin = thread_time();
    for record in records.iter() {
        feed(&mut pipeline, decode(record)?.event, &mut found);
    }
    pipeline.finish(&mut found);
    let busy = thread_time().saturating_sub(begin);
    ensure!(
        found.closed == sandboxes * TRACES_PER_SANDBOX && found.wrong == 0,
        "{sandboxes} sandboxes made {} traces, {} of them failed or incomplete",
        found.closed,
        found.wrong
    );
    ensure!(health.late.get() == 0, "{} events came late", health.late.get());
    Ok(records.len() as f64 / busy.as_secs_f64())
}

/// Decode and reorder by themselves, nanoseconds per event; dropping the event is part of decode.
fn stages(sandboxes: u64) -> Result<(f64, f64)> {
    let mut history = History::new(sandboxes, CROWD);
    let mut reorder = Reorder::new(REORDER_NS);
    let mut records = Records::default();
    let (mut decoding, mut ordering, mut events) = (Duration::ZERO, Duration::ZERO, 0_u64);
    let mut decoded: Vec<Event> = Vec::with_capacity(PIECE);
    let mut released: Vec<Event> = Vec::with_capacity(2 * PIECE);
    loop {
        history.fill(&mut records, PIECE);
        if records.len() == 0 {
            break;
        }
        let begin = thread_time();
        for record in records.iter() {
            drop(std::hint::black_box(decode(record)?));
        }
        decoding += thread_time().saturating_sub(begin);
        for record in records.iter() {
            decoded.push(decode(record)?.event);
        }
        let begin = thread_time();
        for event in decoded.drain(..) {
            reorder.push(event);
            while let Some(ordered) = reorder.pop() {
                released.push(ordered.event);
            }
        }
        ordering += thread_time().saturating_sub(begin);
        events += records.len() as u64;
        released.clear();
    }
    let each = |time: Duration| time.as_nanos() as f64 / events as f64;
    Ok((each(decoding), each(ordering)))
}

/// The correlator as the agent runs it.
pub fn config() -> CorrelatorConfig {
    CorrelatorConfig {
        boot_id: "8f6c2a52-0000-4000-8000-000000000000".to_owned(),
        ..CorrelatorConfig::default()
    }
}

/// Feeds one event. A query for a sandbox's labels is answered at once.
pub fn feed(pipeline: &mut Pipeline, event: Event, found: &mut Found) {
    let at = event.at;
    pipeline.feed(event, found);
    while let Some(sandbox) = found.requested.pop() {
        let description = SandboxDescription {
            identity: PodIdentity {
                labels: vec![("app".to_owned(), "cart".to_owned())],
                ..PodIdentity::default()
            },
            sandbox,
            created_unix_ns: 0,
            ready: true,
            preexisting: false,
        };
        let body = Body::SandboxDescribed(Box::new(description));
        pipeline.feed(Event { at, body }, found);
    }
}

/// Sinks that count.
#[derive(Debug, Default)]
pub struct Found {
    /// Sandboxes whose labels were queried.
    requested: Vec<SandboxId>,
    /// Traces closed.
    pub closed: u64,
    /// Of them incomplete, failed, or breaking an invariant.
    pub wrong: u64,
    /// Lookups that came to a good end, with the server behind the service address.
    pub lookups: u64,
    /// Connections likewise.
    pub connects: u64,
}

impl Outputs for Found {
    fn arrived(&mut self, _: &Event) {}

    fn output(&mut self, output: &Output) {
        match output {
            Output::Closed(trace) => {
                self.closed += 1;
                self.wrong += u64::from(trace.incomplete || trace.root().status.is_error());
            }
            Output::LabelsNeeded(sandbox) => self.requested.push(sandbox.clone()),
            Output::Finding(Finding::Lookup(ended)) => {
                self.lookups += u64::from(ended.detail.queries == 2 && ended.detail.backend.is_some());
            }
            Output::Finding(Finding::Connect(ended)) => {
                self.connects += u64::from(!ended.detail.name.is_empty() && ended.detail.backend.is_some());
            }
            _ => {}
        }
    }

    fn changed(&mut self, _: &mut dyn Iterator<Item = &Trace>, _: &BTreeSet<TraceId>) {}
}

/// Processor time of the calling thread.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

const EVENTS_PER_SECOND: f64 = 1e6;
/// The target for the whole agent on two cores; this stage must not limit it.
const LOOKUPS_PER_SECOND: u64 = 20_000;
/// The kubelet's default of pods per node: all of them at once, as after a reboot.
const NODE: u64 = 110;
/// With the DELs beside them about as many traces are open as the correlator keeps by default.
const CROWD: u64 = 500;
/// The default of `correlation.reorder`.
pub const REORDER_NS: u64 = 100_000_000;
/// Records generated and processed at a time: about the capacity of the kernel's ring buffer.
pub const PIECE: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_conversation_gives_a_lookup_and_a_connection_with_their_backends() {
        assert!(converse(3_000).unwrap() > 0.0);
    }
}
