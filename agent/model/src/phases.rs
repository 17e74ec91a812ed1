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
            Detail::Command(_) => Phase::Command,
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

        // Between two edges no span begins or ends, so each slice has one owner. Quadratic in the number of spans, which is bounded
        // (512 by default, `max_spans` of the correlator).
        let mut own_ns = vec![0; trace.spans.len()];
        for slice in edges.windows(2) {
            let owner = (0..trace.spans.len())
                .filter(|&index| {
                    let (start, end) = clip(&trace.spans[index]);
                    start <= slice[0] && end >= slice[1]
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
        Detail::Plugin(_) | Detail::RuntimeStep(_) | Detail::Activity(_) | Detail::VnicWait(_) => String::new(),
    };
    let own = human(breakdown.own_ns[index]);
    let why = because(span);
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
mod tests {
    use super::*;
    use crate::cni::PodIdentity;
    use crate::id::{SpanId, TraceId};
    use crate::network::Transport;
    use crate::time::ClockAnchor;
    use crate::trace::{
        Cause, CommandDetail, Confidence, CreateDetail, JourneyDetail, JourneyReason, LookupDetail, LookupResult,
        ProcessDetail,
    };

    fn span(parent: Option<usize>, start: u64, end: Option<u64>, detail: Detail) -> Span {
        Span {
            id: SpanId(1),
            parent,
            start: Timestamp(start),
            end: end.map(Timestamp),
            status: Status::Unset,
            detail,
            events: Vec::new(),
            links: Vec::new(),
        }
    }

    fn command(name: &str) -> Detail {
        Detail::Command(Box::new(CommandDetail {
            name: name.into(),
            plugin: "slow".into(),
            process: ProcessDetail::default(),
        }))
    }

    fn trace(spans: Vec<Span>) -> Trace {
        Trace {
            id: TraceId(1),
            sandbox: None,
            identity: PodIdentity::default(),
            anchor: ClockAnchor::default(),
            incomplete: false,
            closed: true,
            remote_parent: None,
            spans,
        }
    }

    #[test]
    fn every_nanosecond_has_one_owner_and_the_longest_parallel_span_wins() {
        let trace = trace(vec![
            span(None, 0, Some(100), Detail::Sandbox(Box::default())),
            span(Some(0), 10, Some(90), Detail::SandboxCreate(CreateDetail::default())),
            span(Some(1), 20, Some(40), command("short")),
            span(Some(1), 20, Some(80), command("long")),
        ]);
        let breakdown = Breakdown::of(&trace, Timestamp(100));
        assert_eq!(breakdown.own_ns, vec![20, 20, 0, 60]);
        assert_eq!(breakdown.phases.values().sum::<u64>(), breakdown.total_ns);
        assert_eq!(
            verdict(&trace, Timestamp(100)),
            "command long of plugin slow took 60 ns of 100 ns (60 %)"
        );
    }

    fn failed(mut span: Span, class: &str, message: &str) -> Span {
        span.status = Status::Error {
            class: class.into(),
            message: message.into(),
        };
        span
    }

    fn plugin(error: Option<crate::cni::CniError>) -> Detail {
        Detail::Plugin(Box::new(crate::trace::PluginDetail {
            plugin: "bridge".into(),
            command: crate::cni::CniCommand::Add,
            delegate: false,
            spec_version: String::new(),
            error,
            process: ProcessDetail::default(),
        }))
    }

    /// Plugins try commands and go on where they fail: a failure inside a successful plugin explains nothing.
    #[test]
    fn a_failed_command_is_the_culprit_only_when_its_failure_was_passed_on() {
        let reported = crate::cni::CniError {
            code: 100,
            msg: "no addresses".into(),
            details: String::new(),
        };
        let root = || span(None, 0, Some(100), Detail::Sandbox(Box::default()));
        let create = || span(Some(0), 0, Some(100), Detail::SandboxCreate(CreateDetail::default()));
        let check = || {
            failed(
                span(Some(2), 20, Some(30), command("iptables")),
                "exit_code",
                "command iptables exited with code 1",
            )
        };

        let succeeded = trace(vec![
            root(),
            create(),
            span(Some(1), 0, Some(90), plugin(None)),
            check(),
        ]);
        assert_eq!(succeeded.culprit(), None);
        assert!(verdict(&succeeded, Timestamp(100)).starts_with("plugin bridge took"));

        for (error, expected) in [
            (None, "command iptables exited with code 1"),
            (Some(reported), "plugin bridge failed: no addresses"),
        ] {
            let failure = trace(vec![
                failed(root(), "sandbox_failed", "cni ADD eth0: .."),
                failed(create(), "sandbox_failed", "cni ADD eth0: .."),
                failed(span(Some(1), 0, Some(90), plugin(error)), "exit_code", "no addresses"),
                check(),
            ]);
            assert_eq!(verdict(&failure, Timestamp(100)), expected);
        }
    }

    fn lookup(result: LookupResult, cause: &str) -> Detail {
        Detail::Lookup(Box::new(LookupDetail {
            name: "api.shop.svc".into(),
            types: vec!["A".into(), "AAAA".into()],
            servers: Vec::new(),
            transport: Transport::Udp,
            result: Some(result),
            queries: 3,
            retransmissions: 1,
            unanswered: 0,
            search_names: 0,
            truncated: false,
            addresses: Vec::new(),
            backend: None,
            initiator: None,
            cause: Some(Cause {
                cause: cause.into(),
                confidence: Confidence::Likely,
                evidence: Vec::new(),
            }),
        }))
    }

    #[test]
    fn the_verdict_of_a_bad_lookup_has_its_cause() {
        let root = || {
            let detail = JourneyDetail {
                reason: JourneyReason::Retried,
                target: "api.shop.svc".into(),
                node: false,
            };
            span(None, 0, Some(5_000_000_000), Detail::Journey(Box::new(detail)))
        };
        let stalled = lookup(LookupResult::Rcode(0), "conntrack_race");
        let journey = trace(vec![root(), span(Some(0), 0, Some(5_000_000_000), stalled.clone())]);
        assert_eq!(
            verdict(&journey, Timestamp(0)),
            "lookup of api.shop.svc took 5.00 s: conntrack dropped one of two parallel queries (likely)"
        );
        let message = "lookup of api.shop.svc: no answer";
        let silent = lookup(LookupResult::Unanswered, "dns_server_silent");
        let failure = trace(vec![
            failed(root(), "dns_timeout", message),
            failed(span(Some(0), 0, Some(5_000_000_000), silent), "dns_timeout", message),
        ]);
        assert_eq!(
            verdict(&failure, Timestamp(0)),
            "lookup of api.shop.svc: no answer: the DNS server, or the way to it, was silent (likely)"
        );
        let sandbox = trace(vec![
            span(None, 0, Some(8_000_000_000), Detail::Sandbox(Box::default())),
            span(Some(0), 1_000_000_000, Some(6_000_000_000), stalled),
        ]);
        assert_eq!(
            verdict(&sandbox, Timestamp(0)),
            "lookup of api.shop.svc took 5.00 s of 8.00 s (62 %): conntrack dropped one of two parallel queries (likely)"
        );
    }

    #[test]
    fn open_spans_end_now_and_an_empty_trace_is_nothing() {
        let open = trace(vec![span(None, 0, None, Detail::Sandbox(Box::default()))]);
        assert_eq!(Breakdown::of(&open, Timestamp(7)).total_ns, 7);
        assert_eq!(Breakdown::of(&trace(Vec::new()), Timestamp(7)), Breakdown::default());
    }

    #[test]
    fn durations_for_people() {
        assert_eq!(human(999), "999 ns");
        assert_eq!(human(1_500), "1.50 us");
        assert_eq!(human(12_340_000), "12.3 ms");
        assert_eq!(human(4_200_000_000), "4.20 s");
    }
}
