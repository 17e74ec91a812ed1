//! Durations of traces against clocks that are not the agent's: the caller's, the script plugins', the runtime's.
//!
//! Two durations agree when they differ by no more than 10 ms or 5 %, whichever is more. A trace sees less than the
//! caller does: where the agent does not see requests to the runtime, its work before it makes the namespace and after the pause
//! process runs (a few milliseconds) leaves no evidence. So a trace must also lie *within* its call, exactly: all stamps are of one clock; only a begin by
//! the namespace's age is as coarse as inodes are. A call that failed answers only when the runtime has cleaned up, so its
//! trace is held against the caller's begin and the end that the failing plugin read on its own clock; that of a plugin
//! that was killed against the caller's deadline.

use std::sync::Arc;

use sandglass_model::cni::CniCommand;
use sandglass_model::phases::human;
use sandglass_model::time::{MILLISECOND, Timestamp};
use sandglass_model::trace::{CreateDetail, Detail, Span, Trace};

use super::{Check, Wrong};
use crate::networks::{FAILING_PLUGIN, HANGING_PLUGIN, LOCKED_COMMAND, Network, SHIM_PLUGIN, SLOW_COMMAND};
use crate::pods::{CallRecord, Runtime};
use crate::timing::PluginClock;

/// Whether two durations agree; `extra_ns` is the resolution of the coarser clock.
/// `pressure_ns` is how long tasks of this node waited meanwhile: a difference of no more than that is not judged.
pub(super) fn agree(
    what: &str,
    found_ns: u64,
    wanted_ns: u64,
    extra_ns: u64,
    pressure_ns: u64,
) -> Result<String, Wrong> {
    let allowed = (wanted_ns / 20).max(10 * MILLISECOND) + extra_ns;
    let difference = found_ns.abs_diff(wanted_ns);
    let text = format!("{what} {} against {}", human(found_ns), human(wanted_ns));
    if difference <= allowed {
        return Ok(format!("{text}, {} apart", human(difference)));
    }
    let text = format!("{text}: {} apart, more than {}", human(difference), human(allowed));
    if difference <= pressure_ns {
        let pressure = human(pressure_ns);
        return Err(Wrong::Busy(format!(
            "{text}; tasks waited {pressure} for processors and disks"
        )));
    }
    Err(Wrong::Duration(text))
}

/// The creation lies within the caller's `RunPodSandbox`.
pub(super) fn order(trace: &Trace, dels: &[&Arc<Trace>], record: &CallRecord) -> Result<String, String> {
    let run = record.run;
    let (start, end) = made(trace);
    if start < earliest(trace, run.begin) {
        return Err(format!("begins {} before the call", human(run.begin.since(start))));
    }
    if record.pod.network == Network::Hanging {
        // The caller gave up at its deadline; the runtime's clean-up goes on behind its back.
        return Ok("not before the call".to_owned());
    }
    if end > run.end {
        return Err(format!("ends {} after the call", human(end.since(run.end))));
    }
    if record.outcome.is_ok() {
        return Ok("within the call".to_owned());
    }
    // A failed call answers when the runtime has cleaned up: its DELs are part of the call. What comes after the last
    // of them (the namespace goes) leaves no evidence and waits for the kernel.
    match dels.iter().filter_map(|del| del.root().end).find(|end| *end > run.end) {
        Some(late) => Err(format!("a DEL ends {} after the call", human(late.since(run.end)))),
        None => Ok("within the call, with its DELs".to_owned()),
    }
}

/// How long the creation took against the caller's `RunPodSandbox`.
pub(super) fn call(trace: &Trace, record: &CallRecord) -> Result<String, Wrong> {
    let run = record.run;
    let (start, end) = made(trace);
    if record.pod.network == Network::Hanging {
        let killed = plugin(trace, HANGING_PLUGIN).and_then(|plugin| plugin.end);
        let killed = killed.ok_or("the plugin that hangs has no end")?;
        let deadline = given_up(record).since(run.begin);
        let killed = agree("killed after", killed.since(run.begin), deadline, 0, run.pressure_ns)?;
        return agree("trace", end.since(start), deadline, 0, run.pressure_ns)
            .map(|trace| format!("{killed}; {trace}"));
    }
    if create_detail(trace).is_some_and(|create| create.response_seen) {
        // From the request to the response, clean-up included.
        let (before, after) = (human(start.since(run.begin)), human(run.end.since(end)));
        let what = format!("trace ({before} after the call began, {after} before it ended)");
        return agree(&what, end.since(start), run.duration_ns(), 0, run.pressure_ns);
    }
    if record.outcome.is_ok() && record.runtime == Runtime::Crio {
        // It makes the sandbox's storage before the namespace, and mounts it after the last plugin: on a disk, without evidence.
        let (took, of) = (human(end.since(start)), human(run.duration_ns()));
        return Ok(format!("{took} of the call's {of}"));
    }
    if record.outcome.is_ok() {
        let (before, after) = (human(start.since(run.begin)), human(run.end.since(end)));
        let what = format!("trace ({before} after the call began, {after} before it ended)");
        return agree(&what, end.since(start), run.duration_ns(), 0, run.pressure_ns);
    }
    let refused = record.plugin_clock.and_then(|clock| clock.end);
    let refused = refused.ok_or("the plugin that refuses left no note")?;
    let wanted = refused.since(match record.runtime {
        Runtime::Containerd => run.begin,
        Runtime::Crio => start,
    });
    agree("trace", end.since(start), wanted, PluginClock::TICK_NS, run.pressure_ns)
}

/// What the call waits for: it ends with the pause process. Later evidence of the root (traffic) is not the call's.
fn made(trace: &Trace) -> (Timestamp, Timestamp) {
    let span = create(trace).unwrap_or_else(|| trace.root());
    (span.start, span.end.unwrap_or(span.start))
}

/// How early the trace of a call that began at `begin` may begin.
fn earliest(trace: &Trace, begin: Timestamp) -> Timestamp {
    let by_inode = create_detail(trace).is_some_and(|create| create.netns_seen && !create.request_seen);
    if by_inode { begin.minus(INODE_TICK_NS) } else { begin }
}

/// When the caller gave up, or would have.
fn given_up(record: &CallRecord) -> Timestamp {
    let deadline = u64::try_from(record.pod.deadline.as_nanos()).unwrap_or(u64::MAX);
    record.run.begin.plus(deadline)
}

/// The first DEL of each attachment lies within the caller's `StopPodSandbox`, which also waits for the pause process.
pub(super) fn deletion_order(dels: &[&Arc<Trace>], record: &CallRecord) -> Result<String, String> {
    let Some(stop) = record.stop else {
        return Ok("not deleted".to_owned());
    };
    let first =
        |del: &&&Arc<Trace>| matches!(&del.root().detail, Detail::Operation(operation) if operation.attempt == 1);
    let roots = || dels.iter().filter(first).map(|del| del.root());
    let start = roots().map(|span| span.start).min().ok_or("no DEL")?;
    let end = roots().filter_map(|span| span.end).max().ok_or("no DEL has an end")?;
    if start < stop.begin || end > stop.end {
        return Err("the DELs do not lie within the call".to_owned());
    }
    Ok(format!(
        "DELs {} within {}",
        human(end.since(start)),
        human(stop.duration_ns())
    ))
}

/// The network's script plugin against what it read on its own clock: of the slow one the command that it waits for,
/// of one that was killed from its own begin to the caller's deadline.
pub(super) fn script(trace: &Trace, record: &CallRecord) -> Result<String, Wrong> {
    let (name, span) = match record.pod.network {
        Network::Plain | Network::Two | Network::Crowded => return Ok("none kept".to_owned()),
        Network::Locked => (LOCKED_COMMAND, command(trace, LOCKED_COMMAND)),
        Network::Slow => (SLOW_COMMAND, command(trace, SLOW_COMMAND)),
        Network::Failing => (FAILING_PLUGIN, plugin(trace, FAILING_PLUGIN)),
        Network::Served => (SHIM_PLUGIN, plugin(trace, SHIM_PLUGIN)),
        Network::Hanging => (HANGING_PLUGIN, plugin(trace, HANGING_PLUGIN)),
    };
    let span = span.ok_or_else(|| format!("no {name}"))?;
    let clock = record.plugin_clock.ok_or("the plugin left no note")?;
    let end = match record.pod.network {
        Network::Hanging => given_up(record),
        _ => clock.end.ok_or("the plugin did not note its end")?,
    };
    agree(
        name,
        span.duration_ns(Timestamp(0)),
        end.since(clock.begin),
        PluginClock::TICK_NS,
        record.run.pressure_ns,
    )
}

/// Network set-up and deletion of all of `records` against containerd's own metrics: as many, set-ups as long in sum, and
/// deletions no longer (containerd's own work around the plugins, some 10 ms each, is in its figure). The durations of set-ups
/// are compared from `first` on, less containerd's metrics `before` them: one disturbance of containerd (a disk that stalls for a
/// second) must not fail every later round.
#[must_use]
pub fn containerd(
    traces: &[Arc<Trace>],
    records: &[CallRecord],
    metrics: &str,
    first: usize,
    before: &str,
) -> Vec<Check> {
    let creation = |record| super::creation(traces, record).ok();
    let took = |record| creation(record).and_then(|trace| set_up_ns(trace));
    let count = records.iter().filter_map(took).count() as u64;
    let set_ups: Vec<u64> = records[first..].iter().filter_map(took).collect();
    let mut deletions = (0, 0);
    for creation in records.iter().filter_map(creation) {
        let dels = super::dels(traces, creation);
        // Each deletion begins with the interface that every sandbox has.
        deletions.0 += dels.iter().filter(|del| is_of(del, "lo")).count() as u64;
        deletions.1 += covered_ns(&dels);
    }
    let check = |what, result| Check { what, result };
    let set_up = metric(metrics, "set_up_pod");
    let tear_down = metric(metrics, "tear_down_pod");
    let set_ups_ns = set_up.1.saturating_sub(metric(before, "set_up_pod").1);
    let pressure_ns = records[first..].iter().map(|record| record.run.pressure_ns).sum();
    let count_of_set_ups = same_count(count, set_up).map_err(Wrong::Fact);
    let count_of_deletions = same_count(deletions.0, tear_down).map_err(Wrong::Fact);
    let clock_of_set_ups = same_sum(set_ups.len() as u64, set_ups.iter().sum(), set_ups_ns, pressure_ns);
    vec![
        check("containerd's count of set-ups", count_of_set_ups),
        check("containerd's set-up clock", clock_of_set_ups),
        check("containerd's count of deletions", count_of_deletions),
        check(
            "containerd's deletions",
            within(deletions.1, tear_down).map_err(Wrong::Fact),
        ),
    ]
}

/// The set-up of the last sandbox against CRI-O's own metrics, which keep the newest duration only: that of the ADD, and with the
/// CHECK that follows it.
#[must_use]
pub fn crio(trace: &Trace, record: &CallRecord, metrics: &str) -> Vec<Check> {
    let ends = |command| {
        let of_command =
            |span: &&Span| matches!(&span.detail, Detail::Operation(operation) if operation.command == command);
        trace.spans.iter().filter(of_command).filter_map(|span| span.end).max()
    };
    let begin = set_up_ns(trace).and_then(|took| Some(ends(CniCommand::Add)?.minus(took)));
    let check = |what, name: &str, command| {
        let line = format!("container_runtime_crio_operations_latency_seconds{{operation=\"{name}\"}} ");
        let seconds = metrics
            .lines()
            .find_map(|text| text.strip_prefix(&line)?.trim().parse::<f64>().ok());
        let result = match (begin, ends(command), seconds) {
            (Some(begin), Some(end), Some(seconds)) => {
                let wanted_ns = (seconds * 1e9) as u64;
                agree(what, end.since(begin), wanted_ns, 0, record.run.pressure_ns)
            }
            (_, None, _) | (None, _, _) => Err(Wrong::Fact(format!("no {}", command.as_str()))),
            (_, _, None) => Err(Wrong::Fact(format!("CRI-O has no metric of {name}"))),
        };
        Check { what, result }
    };
    vec![
        check("CRI-O's set-up clock", "network_setup_pod", CniCommand::Add),
        check(
            "CRI-O's clock with its check",
            "network_setup_overall",
            CniCommand::Check,
        ),
    ]
}

fn same_count(found: u64, (count, _): (u64, u64)) -> Result<String, String> {
    if found == count {
        Ok(format!("{found}, as traced"))
    } else {
        Err(format!("{found} traced, containerd counts {count}"))
    }
}

/// Each of them may be off by what a single one may.
fn same_sum(count: u64, found_ns: u64, sum_ns: u64, pressure_ns: u64) -> Result<String, Wrong> {
    let extra_ns = count.saturating_sub(1) * 10 * MILLISECOND;
    agree("together", found_ns, sum_ns, extra_ns, pressure_ns)
}

fn within(found_ns: u64, (_, sum_ns): (u64, u64)) -> Result<String, String> {
    let text = format!("together {} within {}", human(found_ns), human(sum_ns));
    if found_ns <= sum_ns {
        Ok(text)
    } else {
        Err(format!("{text}: longer than the whole"))
    }
}

fn is_of(del: &Trace, name: &str) -> bool {
    matches!(&del.root().detail, Detail::Operation(operation) if operation.ifname == name)
}

/// How long at least one of `dels` was under way: whether a runtime deletes one after the other or all at once.
fn covered_ns(dels: &[&Arc<Trace>]) -> u64 {
    let spans = dels.iter().map(|del| del.root());
    let mut spans: Vec<(Timestamp, Timestamp)> = spans.filter_map(|span| Some((span.start, span.end?))).collect();
    spans.sort_unstable();
    let mut covered = 0;
    let mut until = Timestamp(0);
    for (start, end) in spans {
        covered += end.since(start.max(until));
        until = until.max(end);
    }
    covered
}

/// From the first ADD's begin to the last ADD's end: the runtime attaches all networks at once and waits for all.
fn set_up_ns(trace: &Trace) -> Option<u64> {
    let adds = || {
        trace.spans.iter().filter(|span| match &span.detail {
            Detail::Operation(operation) => operation.command == CniCommand::Add,
            _ => false,
        })
    };
    let first = adds().map(|span| span.start).min()?;
    let last = adds().filter_map(|span| span.end).max()?;
    Some(last.since(first))
}

/// Count and sum (nanoseconds) of network operations of one type; none yet, none in the metrics. containerd 1.6 says the
/// unit twice in the metric's name.
fn metric(metrics: &str, operation: &str) -> (u64, u64) {
    let label = format!("{{operation_type=\"{operation}\"}} ");
    let value = |suffix: &str| {
        let mut values = metrics.lines().filter_map(|line| {
            let rest = line.strip_prefix("containerd_cri_network_plugin_operations_duration_seconds_")?;
            let rest = rest.strip_prefix("seconds_").unwrap_or(rest).strip_prefix(suffix)?;
            rest.strip_prefix(&label)?.trim().parse::<f64>().ok()
        });
        values.next().unwrap_or_default()
    };
    (value("count") as u64, (value("sum") * 1e9) as u64)
}

/// A namespace's age is its inode's, whose time is the last tick of the kernel before it: 10 ms at `CONFIG_HZ=100`.
pub(super) const INODE_TICK_NS: u64 = 10 * MILLISECOND;

fn create(trace: &Trace) -> Option<&Span> {
    trace
        .spans
        .iter()
        .find(|span| matches!(span.detail, Detail::SandboxCreate(_)))
}

fn create_detail(trace: &Trace) -> Option<&CreateDetail> {
    create(trace)?.detail.as_create()
}

fn plugin<'t>(trace: &'t Trace, name: &str) -> Option<&'t Span> {
    let of_name = |span: &&Span| matches!(&span.detail, Detail::Plugin(plugin) if *plugin.plugin == *name);
    trace.spans.iter().find(of_name)
}

fn command<'t>(trace: &'t Trace, name: &str) -> Option<&'t Span> {
    let of_name = |span: &&Span| matches!(&span.detail, Detail::Command(command) if *command.name == *name);
    trace.spans.iter().find(of_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_agree_within_ten_milliseconds_or_five_percent() {
        let ms = MILLISECOND;
        assert!(agree("x", 100 * ms, 110 * ms, 0, 0).is_ok());
        assert!(agree("x", 100 * ms, 111 * ms, 0, 0).is_err());
        assert!(agree("x", 2_000 * ms, 2_100 * ms, 0, 0).is_ok());
        assert!(agree("x", 2_000 * ms, 2_106 * ms, 0, 0).is_err());
        assert!(agree("x", 100 * ms, 120 * ms, 10 * ms, 0).is_ok());
    }

    #[test]
    fn what_waiting_explains_is_not_judged_and_what_it_does_not_is_wrong() {
        let ms = MILLISECOND;
        assert!(agree("x", 100 * ms, 110 * ms, 0, 50 * ms).is_ok());
        assert!(matches!(
            agree("x", 100 * ms, 140 * ms, 0, 40 * ms),
            Err(Wrong::Busy(_))
        ));
        assert!(matches!(
            agree("x", 100 * ms, 141 * ms, 0, 40 * ms),
            Err(Wrong::Duration(_))
        ));
    }

    #[test]
    fn containerds_metrics_are_read_under_both_names() {
        for name in ["seconds_seconds", "seconds"] {
            let metrics = format!(
                "containerd_cri_network_plugin_operations_duration_{name}_bucket{{operation_type=\"set_up_pod\",le=\"1\"}} 9\n\
                 containerd_cri_network_plugin_operations_duration_{name}_sum{{operation_type=\"tear_down_pod\"}} 7\n\
                 containerd_cri_network_plugin_operations_duration_{name}_sum{{operation_type=\"set_up_pod\"}} 1.5\n\
                 containerd_cri_network_plugin_operations_duration_{name}_count{{operation_type=\"set_up_pod\"}} 8\n"
            );
            assert_eq!(metric(&metrics, "set_up_pod"), (8, 1_500_000_000));
        }
        assert_eq!(metric("", "set_up_pod"), (0, 0));
    }
}
