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
        caller: None,
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

/// Of many commands of one name none takes long, and together they are what took the time.
#[test]
fn commands_of_one_name_are_one_finding() {
    let mut spans = vec![
        span(None, 0, Some(100), Detail::Sandbox(Box::default())),
        span(Some(0), 0, Some(30), plugin(None)),
        span(Some(0), 30, Some(100), plugin(None)),
    ];
    for at in 0..12 {
        spans.push(span(Some(2), 32 + at * 5, Some(36 + at * 5), command("iptables")));
    }
    spans.push(span(Some(1), 10, Some(20), command("iptables")));
    let trace = trace(spans);
    assert_eq!(
        verdict(&trace, Timestamp(100)),
        "12 commands iptables of plugin slow took 48 ns of 100 ns (48 %)",
        "those of another plugin are not among them"
    );
}
