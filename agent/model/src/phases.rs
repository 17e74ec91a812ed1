//! Phases: where the time of a trace went. Every nanosecond of the root belongs to exactly one span, summed by phase.
//!
//! Used by the view, the terminal and metrics. At each instant the time belongs to the deepest span that is open; where
//! several of one depth run in parallel (a runtime attaches `lo` and `eth0` at once), to the one that ends last, since
//! the caller waits for that one. So the phases of a trace add up to its root's duration, and the largest one answers
//! "why so slow?".

mod groups;

use std::collections::BTreeMap;

use self::groups::Group;
use serde::{Deserialize, Serialize};

use crate::registry;
use crate::time::Timestamp;
use crate::trace::{CgroupOwner, Detail, Span, Status, Trace};
use crate::waits::{TimeReason, TimeSpent, WaitGroup};
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
    /// A daemon that a plugin had sent a request to.
    Daemon,
    /// ADD had returned, and the interface was not there yet (Windows).
    VnicWait,
}

impl Phase {
    /// All phases.
    pub const ALL: [Phase; 12] = [
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
        Phase::Daemon,
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
            Phase::Daemon => "daemon",
            Phase::VnicWait => "vnic_wait",
        }
    }

    /// The phase that a span's own time belongs to.
    #[must_use]
    pub fn of(span: &Span) -> Phase {
        match &span.detail {
            // The root begins with `sandbox.create`: what is its own comes after that.
            Detail::Sandbox(_) | Detail::Journey(_) => Phase::Application,
            Detail::SandboxCreate(_) | Detail::RuntimeStep(_) | Detail::RuntimeWork(_) => Phase::Runtime,
            Detail::Lookup(_) => Phase::Lookup,
            Detail::Connect(_) => Phase::Connect,
            Detail::Activity(activity) if activity.service == Service::Hns => Phase::Hns,
            Detail::Activity(_) => Phase::Hcs,
            Detail::VnicWait(_) => Phase::VnicWait,
            Detail::Daemon(_) => Phase::Daemon,
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
        return failure + &because(culprit) + &cut_off(trace, culprit) + &remarked(trace, culprit);
    }
    let breakdown = Breakdown::of(trace, now);
    let Some(group) = Group::largest(trace, &breakdown) else {
        return "no time was spent".to_owned();
    };
    let index = group.index;
    if let Some(sentence) = crowded(trace, &breakdown).or_else(|| behind_daemon(trace, &breakdown, index, now)) {
        return sentence;
    }
    let percent = u128::from(group.own_ns) * 100 / u128::from(breakdown.total_ns.max(1));
    let span = &trace.spans[index];
    // What the span's name does not show: names are the same for all spans of a kind.
    let subject = match &span.detail {
        Detail::Command(command) => format!(" of plugin {}", command.plugin),
        Detail::SandboxCreate(_) | Detail::RuntimeWork(_) => " (the runtime itself)".to_owned(),
        Detail::Sandbox(_) => " (the pod itself, before it used its network)".to_owned(),
        Detail::Journey(_) => " (the program itself)".to_owned(),
        Detail::Lookup(lookup) => format!(" of {}", lookup.name),
        Detail::Connect(connect) if connect.name.is_empty() => format!(" to {}", connect.remote),
        Detail::Connect(connect) => format!(" to {} ({})", connect.remote, connect.name),
        Detail::Operation(_) => " (the runtime between plugins)".to_owned(),
        Detail::Plugin(_)
        | Detail::RuntimeStep(_)
        | Detail::Activity(_)
        | Detail::VnicWait(_)
        | Detail::Wait(_)
        | Detail::Daemon(_) => String::new(),
    };
    let own = human(group.own_ns);
    let why = match because(span) {
        why if why.is_empty() => waited(trace, &breakdown, index),
        why => why,
    };
    // A journey consists of little else, so its verdict is about the cause.
    if !why.is_empty() && trace.root().detail.as_journey().is_some() {
        return format!("{}{subject} took {own}{why}", group.name(trace));
    }
    let total = human(breakdown.total_ns);
    format!(
        "{}{subject} took {own} of {total} ({percent} %){why}",
        group.name(trace)
    )
}

/// The verdict on a creation that waited for processors: everything in it did, so no plugin and no step is to blame. `None` where
/// that explains less than a third of it, or less than something else does.
fn crowded(trace: &Trace, breakdown: &Breakdown) -> Option<String> {
    let span = trace.spans.iter().find(|span| span.detail.as_create().is_some())?;
    let time = span.detail.as_create()?.time.as_deref()?;
    if time.total_ns() * 2 < breakdown.total_ns {
        return None;
    }
    let why = without_processor(time)?;
    Some(format!("{} took {}{why}", registry::name(span), human(time.total_ns())))
}

/// The verdict where most of the time was a daemon's, or what a daemon ran: who waited for which daemon, and for what that one
/// did. `index` is the span with the most own time. `None` where it lies below no request that takes half of the trace or more.
fn behind_daemon(trace: &Trace, breakdown: &Breakdown, index: usize, now: Timestamp) -> Option<String> {
    let ancestors = std::iter::successors(Some(index), |&index| trace.spans.get(index)?.parent);
    let requests = ancestors.filter(|&index| trace.spans[index].detail.as_daemon().is_some());
    let outermost = requests.last()?;
    let request = &trace.spans[outermost];
    let daemon = request.detail.as_daemon()?;
    let waited = request.duration_ns(now);
    if waited.saturating_mul(2) < breakdown.total_ns {
        return None;
    }
    let percent = u128::from(waited) * 100 / u128::from(breakdown.total_ns.max(1));
    let client = registry::name(&trace.spans[request.parent?]);
    let owner = CgroupOwner::of(&daemon.cgroup);
    let whose = match (owner.pod_uid(), owner.unit) {
        (uid, _) if !uid.is_empty() => format!(" (pod {uid})"),
        (_, "") => String::new(),
        (_, unit) => format!(" ({unit})"),
    };
    let known = daemon.time.as_deref().and_then(longest_of_daemon);
    let largest = &trace.spans[index];
    let why = match known {
        Some(wait) if u128::from(wait.ns) * 100 >= u128::from(waited) * EXPLAINS_PERCENT => {
            match wait.who.as_str() == &*daemon.name {
                true => format!(", which {}", registry::wait_clause(wait)),
                false => format!(", whose {}", registry::wait_text(wait)),
            }
        }
        _ if index != outermost => {
            let name = registry::name(largest);
            format!(", whose {name} took {}", human(breakdown.own_ns[index]))
        }
        _ => String::new(),
    };
    Some(format!(
        "{client} waited {} of {} ({percent} %) for {}{whose}{why}",
        human(waited),
        human(breakdown.total_ns),
        registry::daemon_name(daemon)
    ))
}

/// The longest wait of a daemon, or of what it ran, of which more is known than that it was the daemon's.
fn longest_of_daemon(time: &TimeSpent) -> Option<&WaitGroup> {
    longest_wait(time).filter(|wait| wait.reason != TimeReason::Daemon || !wait.what.is_empty())
}

/// What explains most of an operation or a runtime's step that takes half of the trace or more, as the end of a sentence; empty
/// where waits were not recorded, or where nothing explains a third of it.
fn waited(trace: &Trace, breakdown: &Breakdown, index: usize) -> String {
    let ancestors = std::iter::successors(Some(index), |&index| trace.spans.get(index)?.parent);
    let operation = ancestors
        .filter_map(|index| trace.spans[index].detail.as_operation())
        .last()
        .and_then(|operation| operation.time.as_deref());
    let step = trace.spans[index].detail.as_step();
    let time = operation.or_else(|| step.and_then(|step| step.process.time.as_deref()));
    let Some(time) = time.filter(|time| time.total_ns() * 2 >= breakdown.total_ns) else {
        return String::new();
    };
    if let Some(why) = without_processor(time) {
        return why;
    }
    match longest_wait(time) {
        Some(wait) if percent(wait.ns, time) >= EXPLAINS_PERCENT => match inferred(wait) {
            Some(what) => format!(": {} of it was {what}", human(wait.ns)),
            None => format!(": {}", registry::wait_text(wait)),
        },
        Some(_) | None => String::new(),
    }
}

/// What a wait was for whose reason is inferred, with how sure that is: the kernel's functions show a timer. Of a daemon's wait it is
/// inferred for whom it was.
fn inferred(wait: &WaitGroup) -> Option<String> {
    let confidence = wait.confidence.filter(|_| wait.what.starts_with(registry::DETECTION))?;
    Some(format!("{} ({})", wait.what, confidence.as_str()))
}

/// The end of a sentence about a time of which waiting for a processor explains most, because they were busy or because of a quota.
/// Processes of several names wait for processors: their sum counts, and nobody's name is in it.
fn without_processor(time: &TimeSpent) -> Option<String> {
    let of = |reason: TimeReason| time.parts.iter().find(|part| part.0 == reason).map_or(0, |part| part.1);
    let (queued, throttled) = (of(TimeReason::RunQueue), of(TimeReason::Throttled));
    let most = longest_wait(time).map_or(0, |wait| wait.ns);
    if queued >= most.max(throttled) && percent(queued, time) >= EXPLAINS_PERCENT {
        return Some(format!(
            ": the node's processors were busy, {} % of it was waiting for one",
            percent(queued, time)
        ));
    }
    if throttled >= most && percent(throttled, time) >= EXPLAINS_PERCENT {
        let part = percent(throttled, time);
        return Some(format!(": its cgroup had used up its quota for {part} % of it"));
    }
    None
}

/// The longest wait that is no wait for a processor.
fn longest_wait(time: &TimeSpent) -> Option<&WaitGroup> {
    time.waits.iter().find(|wait| {
        !matches!(
            wait.reason,
            TimeReason::RunQueue | TimeReason::Throttled | TimeReason::Runtime
        )
    })
}

fn percent(ns: u64, time: &TimeSpent) -> u128 {
    u128::from(ns) * 100 / u128::from(time.total_ns().max(1))
}

/// A wait that is named explains at least this part of its operation.
const EXPLAINS_PERCENT: u128 = 33;

/// What a process that was killed or cut off by its timeout waited for then, as the end of a sentence.
fn cut_off(trace: &Trace, span: &Span) -> String {
    let waiting = registry::waiting_of(trace, span).filter(|_| span.end.is_some());
    waiting.map_or_else(String::new, |waiting| {
        format!(": {}", registry::waiting_text(waiting, true))
    })
}

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

/// The kernel's message about a netlink request of the process that failed, or else of what failed last below it, as the end of
/// a sentence. A message of a process that succeeded explains nothing, and one that the failure repeats adds nothing.
fn remarked(trace: &Trace, culprit: &Span) -> String {
    let message = |span: &Span| {
        span.process()
            .map(|process| process.netlink.clone())
            .unwrap_or_default()
    };
    let Some(index) = trace.spans.iter().position(|span| std::ptr::eq(span, culprit)) else {
        return String::new();
    };
    let is_below = |at: usize| std::iter::successors(Some(at), |&at| trace.spans[at].parent).any(|at| at == index);
    let failed = |span: &Span| {
        let exit = span.process().and_then(|process| process.exit);
        exit.is_some_and(|exit| !exit.is_success())
    };
    let candidates = (index..trace.spans.len()).filter(|&at| is_below(at) && failed(&trace.spans[at]));
    let remarks = candidates.filter(|&at| !message(&trace.spans[at]).is_empty());
    let found = remarks.max_by_key(|&at| (at == index, trace.spans[at].end));
    let Some(found) = found.map(|at| message(&trace.spans[at])) else {
        return String::new();
    };
    match &culprit.status {
        Status::Error { message, .. } if message.contains(found.as_str()) => String::new(),
        Status::Error { .. } | Status::Unset => format!(" (the kernel: {found})"),
    }
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
