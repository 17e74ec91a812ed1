//! Phases: where the time of a trace went. Every nanosecond of the root belongs to exactly one span, summed by phase.
//!
//! Used by the view, the terminal and metrics. At each instant the time belongs to the deepest span that is open; where
//! several of one depth run in parallel (a runtime attaches `lo` and `eth0` at once), to the one that ends last, since
//! the caller waits for that one. So the phases of a trace add up to its root's duration, and the largest one answers
//! "why so slow?".

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::registry;
use crate::time::Timestamp;
use crate::trace::{Detail, Span, Status, Trace};
use crate::waits::TimeReason;
use crate::windows::Service;

/// A class of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The runtime: before the first plugin, between operations, and its own steps.
    Runtime,
    /// Inside an operation, but in no plugin: the runtime between the plugins of a chain.
    BetweenPlugins,
    /// A plugin itself.
    Plugin,
    /// A plugin that another plugin called (IPAM included).
    Delegate,
    /// A command that a plugin spawned.
    Command,
    /// The sandbox was ready, and its programs had not used the network yet, or did something else in between.
    Application,
    /// Lookups until the first was answered.
    Lookup,
    /// Connects until the first was established.
    Connect,
    /// The Host Network Service (Windows).
    Hns,
    /// The Host Compute Service and silos (Windows).
    Hcs,
    /// ADD had returned, and the interface was not there yet (Windows).
    VnicWait,
}

impl Phase {
    /// All phases.
    pub const ALL: [Phase; 11] = [
        Phase::Runtime,
        Phase::BetweenPlugins,
        Phase::Plugin,
        Phase::Delegate,
        Phase::Command,
        Phase::Application,
        Phase::Lookup,
        Phase::Connect,
        Phase::Hns,
        Phase::Hcs,
        Phase::VnicWait,
    ];

    /// Name in metrics, JSON and text.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Runtime => "runtime",
            Phase::BetweenPlugins => "between_plugins",
            Phase::Plugin => "plugin",
            Phase::Delegate => "delegate",
            Phase::Command => "command",
            Phase::Application => "application",
            Phase::Lookup => "lookup",
            Phase::Connect => "connect",
            Phase::Hns => "hns",
            Phase::Hcs => "hcs",
            Phase::VnicWait => "vnic_wait",
        }
    }

    /// The phase that a span's own time belongs to.
    #[must_use]
    pub fn of(span: &Span) -> Phase {
        match &span.detail {
            // The root begins with `sandbox.create`: what is its own comes after that.
            Detail::Sandbox(_) | Detail::Journey(_) => Phase::Application,
            Detail::SandboxCreate(_) | Detail::RuntimeStep(_) => Phase::Runtime,
            Detail::Lookup(_) => Phase::Lookup,
            Detail::Connect(_) => Phase::Connect,
            Detail::Activity(activity) if activity.service == Service::Hns => Phase::Hns,
            Detail::Activity(_) => Phase::Hcs,
            Detail::VnicWait(_) => Phase::VnicWait,
            Detail::Operation(_) => Phase::BetweenPlugins,
            Detail::Plugin(plugin) if plugin.delegate => Phase::Delegate,
            Detail::Plugin(_) => Phase::Plugin,
            // It has no time of its own: its time belongs to the process above it.
            Detail::Command(_) | Detail::Wait(_) => Phase::Command,
        }
    }
}

/// The breakdown of one trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Breakdown {
    /// Own time of each span, nanoseconds, by index in [`Trace::spans`].
    pub own_ns: Vec<u64>,
    /// Own time summed by phase; phases without time are absent.
    pub phases: BTreeMap<Phase, u64>,
    /// Duration of the root.
    pub total_ns: u64,
}

impl Breakdown {
    /// Breaks down `trace`; open spans are taken to end at `now`.
    #[must_use]
    pub fn of(trace: &Trace, now: Timestamp) -> Breakdown {
        let Some(root) = trace.spans.first() else {
            return Breakdown::default();
        };
        let (from, to) = (root.start, root.end.unwrap_or(now));
        let clip = |span: &Span| (span.start.clamp(from, to), span.end.unwrap_or(now).clamp(from, to));

        let mut edges: Vec<Timestamp> = trace.spans.iter().flat_map(|span| <[_; 2]>::from(clip(span))).collect();
        edges.sort_unstable();
        edges.dedup();
        // Parents stand before their children, so one pass gives the depths.
        let mut depths = vec![0usize; trace.spans.len()];
        for (index, span) in trace.spans.iter().enumerate() {
            depths[index] = span
                .parent
                .and_then(|parent| depths.get(parent))
                .map_or(0, |depth| depth + 1);
        }

        // Between two edges no span begins or ends, so each slice has one owner. Quadratic in the number of spans, which is
        // bounded (512 by default, `max_spans` of the correlator).
        let mut own_ns = vec![0; trace.spans.len()];
        for slice in edges.windows(2) {
            let owner = (0..trace.spans.len())
                .filter(|&index| {
                    let (start, end) = clip(&trace.spans[index]);
                    start <= slice[0] && end >= slice[1] && trace.spans[index].detail.as_wait().is_none()
                })
                .max_by_key(|&index| (depths[index], clip(&trace.spans[index]).1));
            if let Some(owner) = owner {
                own_ns[owner] += slice[1].since(slice[0]);
            }
        }
        let mut phases = BTreeMap::new();
        for (span, own) in trace.spans.iter().zip(&own_ns).filter(|(_, own)| **own > 0) {
            *phases.entry(Phase::of(span)).or_insert(0) += own;
        }
        Breakdown {
            own_ns,
            phases,
            total_ns: to.since(from),
        }
    }

    /// Index of the span with the most own time.
    #[must_use]
    pub fn largest(&self) -> Option<usize> {
        (0..self.own_ns.len())
            .filter(|&index| self.own_ns[index] > 0)
            .max_by_key(|&index| (self.own_ns[index], std::cmp::Reverse(index)))
    }
}

/// One sentence that answers "what took the time, or what failed?", with the cause where one is known.
#[must_use]
pub fn verdict(trace: &Trace, now: Timestamp) -> String {
    if let Some(culprit) = trace.culprit()
        && let Status::Error { class, message } = &culprit.status
    {
        let name = registry::name(culprit);
        let failure = if message.is_empty() {
            format!("{name} failed ({class})")
        } else if message.starts_with(&name) {
            message.clone()
        } else {
            format!("{name} failed: {message}")
        };
        return failure + &because(culprit);
    }
    let breakdown = Breakdown::of(trace, now);
    let Some(index) = breakdown.largest() else {
        return "no time was spent".to_owned();
    };
    let percent = u128::from(breakdown.own_ns[index]) * 100 / u128::from(breakdown.total_ns.max(1));
    let span = &trace.spans[index];
    // What the span's name does not show: names are the same for all spans of a kind.
    let subject = match &span.detail {
        Detail::Command(command) => format!(" of plugin {}", command.plugin),
        Detail::SandboxCreate(_) => " (the runtime itself)".to_owned(),
        Detail::Sandbox(_) => " (the pod itself, before it used its network)".to_owned(),
        Detail::Journey(_) => " (the program itself)".to_owned(),
        Detail::Lookup(lookup) => format!(" of {}", lookup.name),
        Detail::Connect(connect) if connect.name.is_empty() => format!(" to {}", connect.remote),
        Detail::Connect(connect) => format!(" to {} ({})", connect.remote, connect.name),
        Detail::Operation(_) => " (the runtime between plugins)".to_owned(),
        Detail::Plugin(_) | Detail::RuntimeStep(_) | Detail::Activity(_) | Detail::VnicWait(_) | Detail::Wait(_) => {
            String::new()
        }
    };
    let own = human(breakdown.own_ns[index]);
    let why = match because(span) {
        why if why.is_empty() => waited(trace, &breakdown, index),
        why => why,
    };
    // A journey consists of little else, so its verdict is about the cause.
    if !why.is_empty() && trace.root().detail.as_journey().is_some() {
        return format!("{}{subject} took {own}{why}", registry::name(span));
    }
    let total = human(breakdown.total_ns);
    format!(
        "{}{subject} took {own} of {total} ({percent} %){why}",
        registry::name(span)
    )
}

/// What explains most of an operation that takes half of the trace or more, as the end of a sentence; empty where waits were not
/// recorded, or where nothing explains a third of it.
fn waited(trace: &Trace, breakdown: &Breakdown, index: usize) -> String {
    let ancestors = std::iter::successors(Some(index), |&index| trace.spans.get(index)?.parent);
    let operation = ancestors
        .filter_map(|index| trace.spans[index].detail.as_operation())
        .last();
    let time = operation.and_then(|operation| operation.time.as_deref());
    let Some(time) = time.filter(|time| time.total_ns() * 2 >= breakdown.total_ns) else {
        return String::new();
    };
    let total = time.total_ns().max(1);
    let percent = |ns: u64| u128::from(ns) * 100 / u128::from(total);
    let of = |reason: TimeReason| time.parts.iter().find(|part| part.0 == reason).map_or(0, |part| part.1);
    // Processes of several names wait for processors: their sum counts, and nobody's name is in it.
    let (queued, throttled) = (of(TimeReason::RunQueue), of(TimeReason::Throttled));
    let longest = time.waits.iter().find(|wait| {
        !matches!(
            wait.reason,
            TimeReason::RunQueue | TimeReason::Throttled | TimeReason::Runtime
        )
    });
    let most = longest.map_or(0, |wait| wait.ns);
    if queued >= most.max(throttled) && percent(queued) >= EXPLAINS_PERCENT {
        return format!(
            ": the node's processors were busy, {} % of it was waiting for one",
            percent(queued)
        );
    }
    if throttled >= most && percent(throttled) >= EXPLAINS_PERCENT {
        return format!(": its cgroup had used up its quota for {} % of it", percent(throttled));
    }
    match longest {
        Some(wait) if percent(most) >= EXPLAINS_PERCENT => format!(": {}", registry::wait_text(wait)),
        Some(_) | None => String::new(),
    }
}

/// A wait that is named explains at least this part of its operation.
const EXPLAINS_PERCENT: u128 = 33;

/// The cause of a lookup or a connection that went badly, with how sure it is, as the end of a sentence.
fn because(span: &Span) -> String {
    span.detail.cause().map_or_else(String::new, |cause| {
        format!(
            ": {} ({})",
            registry::cause_text(&cause.cause),
            cause.confidence.as_str()
        )
    })
}

/// A duration for people: three digits and a unit.
#[must_use]
pub fn human(ns: u64) -> String {
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    let decimals = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.decimals$} {unit}")
}

#[cfg(test)]
mod tests;
