//! Traces made by hand, and the sink's configuration, for tests.

use std::sync::Arc;
use std::time::Duration;

use sandglass_model::event::ExitStatus;
use sandglass_model::trace::{
    CommandDetail, CreateDetail, Link, OperationDetail, PluginDetail, ProcessDetail, Relation, RuntimeStep,
    RuntimeStepDetail, SandboxDetail, SpanEvent,
};
use sandglass_model::waits::{TimeReason, TimeSpent, WaitGroup, Waiting};
use sandglass_model::{
    ClockAnchor, CniCommand, CniError, Detail, PodIdentity, SandboxId, Span, SpanId, Status, Timestamp, Trace, TraceId,
    registry,
};

use super::super::config::{Resolution, Resolved, Settings, resolve};
use crate::node::NodeInfo;

pub const BOOT_NS: u64 = 5_000_000_000;
pub const UNIX_NS: u64 = 1_790_000_000_123_456_789;

/// A sandbox whose chain failed, with every kind of span, an event and three links.
pub fn full_trace(number: u64) -> Arc<Trace> {
    let process = |pid, path: &str, exit| ProcessDetail {
        pid,
        parent_pid: pid - 1,
        path: path.into(),
        args: [path, "--wait=5"].into_iter().collect(),
        cgroup: "/system.slice/containerd.service".into(),
        netns: 4_026_531_840,
        exit: Some(exit),
        found_running: pid == 11,
        outlived_parent: pid == 12,
        ambiguous: false,
        waiting: Some(Box::new(Waiting {
            reason: TimeReason::FileLock,
            what: "/run/xtables.lock".to_owned(),
            who: "iptables".into(),
            by: "kube-proxy".into(),
            confidence: None,
            function: "locks_lock_inode_wait".into(),
            since: Timestamp(BOOT_NS),
        })),
        netlink: "Device does not exist".into(),
        attribution: None,
        time: Some(Box::new(TimeSpent {
            parts: TimeReason::ALL.iter().map(|reason| (*reason, 1_000_000)).collect(),
            waits: vec![WaitGroup {
                reason: TimeReason::FileLock,
                ns: 1_000_000,
                count: 2,
                what: "/run/xtables.lock".to_owned(),
                who: "iptables".into(),
                by: "kube-proxy".into(),
                confidence: None,
            }],
            recorded_after_ns: 1_000_000,
        })),
    };
    let failed = |class: &str, message: &str| Status::Error {
        class: class.to_owned(),
        message: message.to_owned(),
    };
    let details = [
        (
            None,
            Detail::Sandbox(Box::new(SandboxDetail {
                attempt: 2,
                runtime: "containerd".to_owned(),
                ..SandboxDetail::default()
            })),
            failed("sandbox_failed", "plugin bridge failed"),
        ),
        (
            Some(0),
            Detail::SandboxCreate(CreateDetail {
                netns_seen: true,
                runtime_seen: false,
                ..CreateDetail::default()
            }),
            Status::Unset,
        ),
        (
            Some(1),
            Detail::Operation(Box::new(OperationDetail {
                command: CniCommand::Add,
                ifname: "eth0".to_owned(),
                network: "pods".to_owned(),
                netns: "/var/run/netns/cni-1".to_owned(),
                attempt: 1,
                plugins: vec!["bridge".into(), "portmap".into()],
                addresses: vec!["10.1.0.7/24".to_owned()],
                time: None,
            })),
            failed("cni_try_again_later", "no address is free"),
        ),
        (
            Some(2),
            Detail::Plugin(Box::new(PluginDetail {
                plugin: "bridge".into(),
                command: CniCommand::Add,
                delegate: false,
                spec_version: "1.0.0".to_owned(),
                error: Some(CniError {
                    code: 11,
                    msg: "no address is free".to_owned(),
                    details: "range 10.1.0.0/24".to_owned(),
                }),
                process: process(11, "/opt/cni/bin/bridge", ExitStatus::Code(1)),
            })),
            failed("cni_try_again_later", "no address is free"),
        ),
        (
            Some(3),
            Detail::Command(Box::new(CommandDetail {
                name: "iptables".into(),
                plugin: "bridge".into(),
                process: process(12, "/usr/sbin/iptables", ExitStatus::Signal(9)),
            })),
            failed("signal", "killed by signal 9"),
        ),
        (
            Some(1),
            Detail::RuntimeStep(Box::new(RuntimeStepDetail {
                step: RuntimeStep::Create,
                process: process(13, "/usr/bin/runc", ExitStatus::Code(0)),
            })),
            Status::Unset,
        ),
    ];
    let mut trace = small_trace(number);
    trace.remote_parent = Some(SpanId(0xfeed_0000_0000_0001));
    trace.incomplete = true;
    trace.spans = details
        .into_iter()
        .enumerate()
        .map(|(index, (parent, detail, status))| Span {
            id: span_id(number, index as u64),
            parent,
            start: Timestamp(BOOT_NS + index as u64 * 1_000_001),
            end: Some(Timestamp(BOOT_NS + 900_000_003 - index as u64 * 1_000_001)),
            status,
            detail,
            events: Vec::new(),
            links: Vec::new(),
        })
        .collect();
    trace.spans[3].events.push(SpanEvent {
        at: Timestamp(BOOT_NS + 5_000_000),
        name: registry::EVENT_EXEC.to_owned(),
        attributes: vec![(registry::PROCESS_PATH.to_owned(), "/bin/sh".to_owned())],
    });
    trace.spans[0].links = [Relation::PreviousAttempt, Relation::Sandbox, Relation::Caller]
        .into_iter()
        .enumerate()
        .map(|(index, relation)| Link {
            trace: TraceId(0xabc0 + index as u128),
            span: SpanId(0xdef0 + index as u64),
            relation,
        })
        .collect();
    assert_eq!(trace.check(), Ok(()));
    Arc::new(trace)
}

/// A closed trace with one span; `number` makes its ids and its pod.
pub fn small_trace(number: u64) -> Trace {
    Trace {
        id: TraceId(0x1000_0000_0000_0000_0000_0000_0000_0000 + u128::from(number)),
        sandbox: Some(SandboxId(format!("sandbox-{number}"))),
        identity: PodIdentity {
            namespace: "shop".to_owned(),
            name: format!("cart-{number}"),
            uid: format!("uid-{number}"),
            labels: vec![("app".to_owned(), "cart".to_owned())],
        },
        anchor: ClockAnchor {
            boot_ns: BOOT_NS,
            unix_ns: UNIX_NS,
        },
        incomplete: false,
        closed: true,
        remote_parent: None,
        caller: None,
        spans: vec![Span {
            id: span_id(number, 0),
            parent: None,
            start: Timestamp(BOOT_NS),
            end: Some(Timestamp(BOOT_NS + 1_000_000)),
            status: Status::Unset,
            detail: Detail::Sandbox(Box::new(SandboxDetail {
                attempt: 1,
                runtime: "containerd".to_owned(),
                ..SandboxDetail::default()
            })),
            events: Vec::new(),
            links: Vec::new(),
        }],
    }
}

/// A closed trace with one span.
pub fn small(number: u64) -> Arc<Trace> {
    Arc::new(small_trace(number))
}

pub fn span_id(trace: u64, index: u64) -> SpanId {
    SpanId(0x5000_0000_0000_0000 + (trace << 16) + index)
}

pub fn node() -> NodeInfo {
    NodeInfo {
        name: "node-1".to_owned(),
        service: "sandglass".to_owned(),
        version: "9.8.7".to_owned(),
        boot_id: "boot".to_owned(),
        ..NodeInfo::default()
    }
}

/// What the variables resolve to, with short waits.
pub fn config(variables: &[(&str, &str)]) -> Resolved {
    let env = |name: &str| {
        variables
            .iter()
            .find(|(key, _)| key == &name)
            .map(|(_, value)| (*value).to_owned())
    };
    let Resolution::On(mut resolved) = resolve(&Settings::default(), &env, &Settings::default()).unwrap() else {
        panic!("off: {variables:?}");
    };
    resolved.connection.timeout = Duration::from_secs(5);
    let tuning = &mut resolved.tuning;
    tuning.batch_delay = Duration::from_millis(5);
    tuning.backoff_initial = Duration::from_millis(10);
    tuning.backoff_max = Duration::from_millis(40);
    *resolved
}
