//! Memory per event and per open sandbox, by counting allocations.
//!
//! Does not: count the allocator's own overhead, which is in the resident memory that the footprint part measures.

use anyhow::{Result, ensure};
use sandglass::health::Health;
use sandglass::pipeline::Pipeline;
use sandglass::sources::linux::exec::decode::decode;
use sandglass_correlator::Correlator;

use crate::Effort;
use crate::alloc::counts;
use crate::history::{History, Records, TRACES_PER_SANDBOX};
use crate::report::{Figure, Outcome, Unit};
use crate::throughput::{Found, PIECE, REORDER_NS, config, feed};

/// Measures.
pub fn run(effort: Effort) -> Result<Outcome> {
    let (decoding, all) = allocations(effort.pick(4_000, 1_000))?;
    Ok(Outcome::Figures(vec![
        Figure::new("allocations per event, decode", decoding, Unit::Count),
        Figure::new("allocations per event, all stages", all, Unit::Count),
        Figure::new(
            "bytes per open sandbox",
            open_sandbox(effort.pick(2_000, 500))?,
            Unit::Bytes,
        )
        .at_most(OPEN_SANDBOX_BYTES)
        .remark("12 spans of 8 processes, 1 of them a command that runs"),
        Figure::new(
            "bytes kept per ended sandbox",
            remembered(effort.pick(4_000, 1_000))?,
            Unit::Bytes,
        )
        .remark("in the correlator, for links and attempt numbers; 8,192 at most"),
    ]))
}

/// Allocations per event: in decode alone, and in all stages.
fn allocations(sandboxes: u64) -> Result<(f64, f64)> {
    let mut pipeline = Pipeline::new(config(), REORDER_NS, Health::default());
    let mut history = History::new(sandboxes, 100);
    let (mut records, mut found) = (Records::default(), Found::default());
    let (mut decoding, mut all, mut events) = (0, 0, 0);
    loop {
        history.fill(&mut records, PIECE);
        if records.len() == 0 {
            break;
        }
        events += records.len();
        for record in records.iter() {
            let begin = counts().allocations;
            let decoded = decode(record)?;
            decoding += counts().allocations - begin;
            feed(&mut pipeline, decoded.event, &mut found);
            all += counts().allocations - begin;
        }
    }
    let each = |count: u64| count as f64 / events as f64;
    Ok((each(decoding), each(all)))
}

/// Bytes that the correlator holds for each sandbox whose last `iptables` still runs.
fn open_sandbox(sandboxes: u64) -> Result<f64> {
    let before = counts().live_bytes;
    let mut correlator = Correlator::new(config());
    play(
        &mut correlator,
        History::opening(sandboxes),
        OPENING_RECORDS * sandboxes,
    )?;
    let held = counts().live_bytes - before;
    ensure!(
        correlator.open().count() as u64 == sandboxes,
        "{} sandboxes are open instead of {sandboxes}",
        correlator.open().count()
    );
    Ok(held as f64 / sandboxes as f64)
}

/// Bytes that the correlator still holds for each ended sandbox.
fn remembered(sandboxes: u64) -> Result<f64> {
    let before = counts().live_bytes;
    let mut correlator = Correlator::new(config());
    let closed = play(&mut correlator, History::new(sandboxes, 100), u64::MAX)?;
    correlator.finish();
    let closed = closed + correlator.drain().len() as u64;
    let held = counts().live_bytes - before;
    ensure!(closed >= sandboxes * TRACES_PER_SANDBOX, "only {closed} outputs");
    ensure!(correlator.open().count() == 0, "something is open at the end");
    Ok(held as f64 / sandboxes as f64)
}

/// Feeds the first `most` records of `history`; returns how many outputs there were.
fn play(correlator: &mut Correlator, mut history: History, most: u64) -> Result<u64> {
    let (mut records, mut fed, mut outputs) = (Records::default(), 0, 0);
    while fed < most {
        history.fill(&mut records, PIECE.min(usize::try_from(most - fed).unwrap_or(PIECE)));
        if records.len() == 0 {
            break;
        }
        fed += records.len() as u64;
        for record in records.iter() {
            correlator.handle(decode(record)?.event);
            outputs += correlator.drain().len() as u64;
        }
        correlator.take_changed();
    }
    Ok(outputs)
}

/// Records of one sandbox until its last `iptables` has begun: two plugins that ended (2 each), `host-local` (3),
/// `portmap` that runs (1), three `iptables` that ended (3 each) and one that runs (2).
const OPENING_RECORDS: u64 = 19;
/// The kubelet's 110 pods all at once, in 2 MB.
const OPEN_SANDBOX_BYTES: f64 = 16_000.0;
