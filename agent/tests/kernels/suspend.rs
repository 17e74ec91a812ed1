//! Judges the trace of a plugin that was running while the machine was suspended, and that of the next one.
//!
//! The times that the machine prints are those of its own clocks, read between the things that happen (`suspending` of `kernels/init`): what
//! is asserted is an order, which no load changes. Does not: know how long a suspend must be, but for the alarm's second.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::console::{lines, part};

const SECOND: u64 = 1_000_000_000;

/// The trace lies in wall time where the plugin ran, covers the suspend, and is whole; what came after the suspend lies after it.
pub fn judge(printed: &str) -> Result<()> {
    let slept = lines(printed, "suspended for: ").next().context("no suspend")?;
    let slept: u64 = slept.trim_end_matches(" ms").parse().context("suspended for")?;
    ensure!(slept >= 1_000, "suspended for {slept} ms only");
    let times = lines(printed, "suspending: ")
        .next()
        .context("no times of the suspend")?;
    let times = times.split(' ').map(str::parse::<u64>);
    let times: Vec<u64> = times.collect::<Result<_, _>>().context("times of the suspend")?;
    let [before, began, woken, ended, after] = times[..] else {
        anyhow::bail!("other times of the suspend: {times:?}")
    };
    let traces = part(printed, "trace")?;
    let trace = trace_of(traces, "suspended")?;
    let (begin, end) = bounds(&trace)?;
    within("the plugin's begin", begin, before, began)?;
    within("the plugin's end", end, woken, ended)?;
    ensure!(
        end - begin >= slept * 1_000_000,
        "a trace of {} ns over a suspend of {slept} ms",
        end - begin
    );
    // A frozen thread is not runnable. Unknown is what passed before waits were recorded, which takes long on a busy machine.
    let attributes = &plugin(&trace)?["attributes"];
    let time = |reason: &str| attributes[format!("sandglass.time.{reason}")].as_u64().unwrap_or(0);
    ensure!(
        time("other") + time("unknown") >= slept * 1_000_000,
        "the suspend is no wait in the kernel: {attributes}"
    );
    let (begin, end) = bounds(&trace_of(traces, "resumed")?)?;
    within("the next plugin's begin", begin, ended, after)?;
    within("the next plugin's end", end, ended, after)
}

/// The trace of this pod, which is whole and did not fail.
fn trace_of(traces: &str, pod: &str) -> Result<Value> {
    let mut parsed = traces
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let trace = parsed.find(|trace| trace["pod"] == pod);
    let trace = trace.with_context(|| format!("no trace of {pod}"))?;
    ensure!(trace["incomplete"] == false, "the trace of {pod} is incomplete");
    let verdict = trace["verdict"].as_str().context("no verdict")?;
    ensure!(!verdict.contains("failed"), "{pod}: {verdict}");
    Ok(trace)
}

/// The plugin's span.
fn plugin(trace: &Value) -> Result<&Value> {
    let spans = trace["timeline"].as_array().context("no timeline")?;
    let plugin = spans.iter().find(|span| span["name"] == "plugin dozes");
    plugin.context("no plugin in the trace")
}

/// The begin and the end of the plugin, as wall-clock time (ns).
fn bounds(trace: &Value) -> Result<(u64, u64)> {
    let plugin = plugin(trace)?;
    let time = |field: &str| -> Result<u64> { Ok(plugin[field].as_str().context("a plugin without time")?.parse()?) };
    Ok((time("start_unix_ns")?, time("end_unix_ns")?))
}

/// Whether a time (ns) lies between two that were read in seconds.
fn within(what: &str, time_ns: u64, from: u64, to: u64) -> Result<()> {
    ensure!(
        (from * SECOND..(to + 1) * SECOND).contains(&time_ns),
        "{what} is {time_ns}, not between {from} and {to}"
    );
    Ok(())
}
