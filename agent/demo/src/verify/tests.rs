//! A faultless history passes every check; each fault is found by the check that is meant to find it.

mod requesting;
mod waiting;

use sandglass_model::cni::{CniCommand, CniError};
use sandglass_model::event::ExitStatus;
use sandglass_model::id::{SandboxId, SpanId, TraceId};
use sandglass_model::time::{ClockAnchor, MILLISECOND, Timestamp};
use sandglass_model::trace::{
    CommandDetail, CreateDetail, Link, OperationDetail, ProcessDetail, Relation, SandboxDetail, Status,
};

use super::*;
use crate::networks::{FAILING_CODE, FAILING_MESSAGE, HANGING_PLUGIN, Network};
use crate::pods::{Pod, Runtime};
use crate::timing::{CallTimes, PluginClock};

const ALL_SEEN: Seen = Seen {
    dns: true,
    connect: true,
    conntrack: true,
    drops: true,
    stdio: true,
    waits: true,
    requests: true,
};

fn ms(ms: u64) -> Timestamp {
    Timestamp(1_000 * MILLISECOND + ms * MILLISECOND)
}

fn span(parent: Option<usize>, from: u64, to: u64, detail: Detail) -> Span {
    Span {
        id: SpanId(1),
        parent,
        start: ms(from),
        end: Some(ms(to)),
        status: Status::Unset,
        detail,
        events: Vec::new(),
        links: Vec::new(),
    }
}

fn noted(begin: u64, end: u64) -> Option<PluginClock> {
    Some(PluginClock {
        begin: ms(begin),
        end: Some(ms(end)),
    })
}

fn exited(code: i32) -> ProcessDetail {
    ProcessDetail {
        exit: Some(ExitStatus::Code(code)),
        ..ProcessDetail::default()
    }
}

fn plugin(name: &str, command: CniCommand, delegate: bool) -> Detail {
    Detail::Plugin(Box::new(PluginDetail {
        plugin: name.into(),
        command,
        delegate,
        spec_version: "1.0.0".to_owned(),
        error: None,
        process: exited(0),
    }))
}

fn command(name: &str) -> Detail {
    Detail::Command(Box::new(CommandDetail {
        name: name.into(),
        plugin: "slow-policy".into(),
        process: exited(0),
    }))
}

fn operation(command: CniCommand, ifname: &str, network: &str, attempt: u32) -> Detail {
    Detail::Operation(Box::new(OperationDetail {
        command,
        ifname: ifname.to_owned(),
        network: network.to_owned(),
        netns: String::new(),
        attempt,
        plugins: Vec::new(),
        addresses: vec!["10.213.71.2/24".to_owned()],
        time: None,
    }))
}

fn trace(id: u128, pod: &Pod, spans: Vec<Span>) -> Trace {
    Trace {
        id: TraceId(id),
        sandbox: Some(SandboxId("b0".repeat(32))),
        identity: pod.identity.clone(),
        anchor: ClockAnchor::default(),
        incomplete: false,
        closed: true,
        remote_parent: None,
        caller: None,
        spans,
    }
}

fn root() -> Detail {
    Detail::Sandbox(Box::new(SandboxDetail {
        attempt: 1,
        runtime: "containerd".to_owned(),
        ..SandboxDetail::default()
    }))
}

fn created() -> Detail {
    Detail::SandboxCreate(CreateDetail {
        netns_seen: true,
        runtime_seen: true,
        ..CreateDetail::default()
    })
}

fn del(id: u128, pod: &Pod, ifname: &str, attempt: u32, from: u64) -> Trace {
    let mut del = trace(
        id,
        pod,
        vec![
            span(None, from, from + 5, operation(CniCommand::Del, ifname, "n", attempt)),
            span(Some(0), from, from + 5, plugin("bridge", CniCommand::Del, false)),
        ],
    );
    del.spans[0].links.push(Link {
        trace: TraceId(1),
        span: SpanId(1),
        relation: Relation::Sandbox,
    });
    del
}

/// A slow pod, made within 2200 ms and deleted at 3000 ms, twice for one interface.
fn slow() -> (Vec<Trace>, CallRecord) {
    let pod = Pod::new("reports-0", 1, Network::Slow);
    let add = CniCommand::Add;
    let creation = trace(
        1,
        &pod,
        vec![
            span(None, 5, 2_190, root()),
            span(Some(0), 5, 2_190, created()),
            span(Some(1), 10, 20, operation(add, "lo", "cni-loopback", 1)),
            span(Some(2), 10, 20, plugin("loopback", add, false)),
            span(Some(1), 10, 2_100, operation(add, "eth0", "pods-slow", 1)),
            span(Some(4), 10, 50, plugin("bridge", add, false)),
            span(Some(5), 20, 40, plugin("host-local", add, true)),
            span(Some(4), 50, 2_100, plugin("slow-policy", add, false)),
            span(Some(7), 60, 2_070, command("wait-for-policy")),
            span(Some(8), 62, 2_065, command("sleep")),
        ],
    );
    let traces = vec![
        creation,
        del(2, &pod, "lo", 1, 3_005),
        del(3, &pod, "eth0", 1, 3_006),
        del(4, &pod, "eth0", 2, 3_050),
    ];
    let record = CallRecord {
        pod,
        runtime: Runtime::default(),
        run: CallTimes {
            begin: ms(0),
            end: ms(2_200),
            pressure_ns: 0,
            disks_ns: 0,
        },
        outcome: Ok(SandboxId("b0".repeat(32))),
        stop: Some(CallTimes {
            begin: ms(3_000),
            end: ms(3_040),
            pressure_ns: 0,
            disks_ns: 0,
        }),
        plugin_clock: noted(50, 2_070),
        talked: None,
    };
    (traces, record)
}

/// A pod whose plugin refuses after 40 ms; the runtime cleans up and answers after 70 ms.
fn failing() -> (Vec<Trace>, CallRecord) {
    let pod = Pod::new("billing-0", 2, Network::Failing);
    let add = CniCommand::Add;
    let mut creation = trace(
        1,
        &pod,
        vec![
            span(None, 5, 40, root()),
            span(Some(0), 10, 20, operation(add, "lo", "cni-loopback", 1)),
            span(Some(1), 10, 20, plugin("loopback", add, false)),
            span(Some(0), 10, 40, operation(add, "eth0", "pods-failing", 1)),
            span(Some(3), 10, 30, plugin("bridge", add, false)),
            span(Some(4), 20, 30, plugin("host-local", add, true)),
            span(Some(3), 30, 40, plugin("strict-policy", add, false)),
        ],
    );
    for index in [0, 3, 6] {
        creation.spans[index].status = Status::Error {
            class: "cni_plugin_specific".to_owned(),
            message: FAILING_MESSAGE.to_owned(),
        };
    }
    let Detail::Plugin(plugin) = &mut creation.spans[6].detail else {
        unreachable!()
    };
    plugin.process.exit = Some(ExitStatus::Code(1));
    plugin.error = Some(CniError {
        code: FAILING_CODE,
        msg: FAILING_MESSAGE.to_owned(),
        details: String::new(),
    });
    let traces = vec![creation, del(2, &pod, "lo", 1, 50), del(3, &pod, "eth0", 1, 60)];
    let record = CallRecord {
        pod,
        runtime: Runtime::default(),
        run: CallTimes {
            begin: ms(0),
            end: ms(70),
            pressure_ns: 0,
            disks_ns: 0,
        },
        outcome: Err("no policy".to_owned()),
        stop: None,
        plugin_clock: noted(30, 40),
        talked: None,
    };
    (traces, record)
}

/// Names of the checks that failed.
fn failed(traces: Vec<Trace>, record: CallRecord) -> Vec<&'static str> {
    let traces: Vec<Arc<Trace>> = traces.into_iter().map(Arc::new).collect();
    let reports = verify(&traces, &[record], ALL_SEEN);
    assert_eq!(reports.len(), 1);
    let failed = reports[0].checks.iter().filter(|check| check.result.is_err());
    failed.map(|check| check.what).collect()
}

#[test]
fn faultless_histories_pass() {
    for (traces, record) in [slow(), failing()] {
        assert_eq!(failed(traces, record), Vec::<&str>::new());
    }
}

#[test]
fn each_fault_of_a_slow_pod_is_found() {
    type Fault = fn(&mut Vec<Trace>, &mut CallRecord);
    let faults: Vec<(&str, &str, Fault)> = vec![
        ("lost trace", "trace", |traces, _| drop(traces.remove(0))),
        ("twice", "trace", |traces, _| traces.push(traces[0].clone())),
        ("still open", "trace", |traces, _| traces[0].closed = false),
        ("loss", "trace", |traces, _| traces[0].incomplete = true),
        ("another pod", "pod", |traces, _| {
            traces[0].identity.name = "x".to_owned()
        }),
        ("not requested in time", "pod", |traces, _| {
            traces[0].identity.labels.clear()
        }),
        ("wrong number", "attempt", |_, record| record.pod.attempt = 1),
        ("second ADD", "attachments", |traces, _| {
            let again = traces[0].spans[2].clone();
            traces[0].spans.push(again);
        }),
        ("no address", "attachments", |traces, _| {
            let Detail::Operation(operation) = &mut traces[0].spans[4].detail else {
                unreachable!()
            };
            operation.addresses.clear();
        }),
        ("no network's name", "attachments", |traces, _| {
            let Detail::Operation(operation) = &mut traces[0].spans[4].detail else {
                unreachable!()
            };
            operation.network.clear();
        }),
        ("chain cut", "attachments", |traces, _| {
            traces[0].spans[7].parent = Some(1)
        }),
        ("no delegate", "processes", |traces, _| {
            traces[0].spans[6].detail = command("host-local-2");
        }),
        ("sleep beside its command", "processes", |traces, _| {
            traces[0].spans[9].parent = Some(7)
        }),
        ("marked failed", "outcome", |traces, _| {
            traces[0].spans[0].status = Status::Error {
                class: "sandbox_failed".to_owned(),
                message: String::new(),
            };
        }),
        ("start not seen", "runtime", |traces, _| {
            traces[0].spans[1].detail = Detail::SandboxCreate(CreateDetail::default());
        }),
        ("DEL lost", "deletion", |traces, _| drop(traces.remove(1))),
        ("DEL not linked", "deletion", |traces, _| {
            traces[2].spans[0].links.clear()
        }),
        ("DEL not numbered", "deletion", |traces, _| {
            traces[3].spans[0].detail = operation(CniCommand::Del, "eth0", "n", 1);
        }),
        ("DEL of nothing", "deletion", |_, record| record.stop = None),
        ("begins before the call", "order", |_, record| record.run.begin = ms(16)),
        ("begins before the call, by no inode", "order", |traces, record| {
            record.run.begin = ms(6);
            traces[0].spans[1].detail = Detail::SandboxCreate(CreateDetail {
                netns_seen: false,
                runtime_seen: true,
                ..CreateDetail::default()
            });
        }),
        ("ends after the call", "order", |_, record| record.run.end = ms(2_189)),
        ("too short", "clock", |_, record| record.run.end = ms(2_320)),
        ("DEL after the stop", "deletion's order", |_, record| {
            record.stop = Some(CallTimes {
                begin: ms(3_000),
                end: ms(3_010),
                pressure_ns: 0,
                disks_ns: 0,
            });
        }),
        ("command too short", "plugin's clock", |_, record| {
            record.plugin_clock = noted(0, 2_200);
        }),
        ("no note", "plugin's clock", |_, record| record.plugin_clock = None),
    ];
    for (fault, check, make) in faults {
        let (mut traces, mut record) = slow();
        make(&mut traces, &mut record);
        assert!(failed(traces, record).contains(&check), "{fault}");
    }
}

#[test]
fn each_fault_of_a_failing_pod_is_found() {
    type Fault = fn(&mut PluginDetail);
    let faults: Vec<(&str, Fault)> = vec![
        ("exit", |plugin| plugin.process.exit = Some(ExitStatus::Code(0))),
        ("lost exit", |plugin| plugin.process.exit = Some(ExitStatus::Unknown)),
        ("another error", |plugin| plugin.error = Some(CniError::default())),
    ];
    for (fault, make) in faults {
        let (mut traces, record) = failing();
        let Detail::Plugin(plugin) = &mut traces[0].spans[6].detail else {
            unreachable!()
        };
        make(plugin);
        assert_eq!(failed(traces, record), vec!["outcome"], "{fault}");
    }
}

#[test]
fn a_wrong_duration_of_a_failing_pod_is_found() {
    type Fault = fn(&mut Vec<Trace>, &mut CallRecord);
    let faults: Vec<(&str, &[&str], Fault)> = vec![
        ("begins too late", &["clock"], |_, record| {
            record.run.begin = ms(0).minus(30 * MILLISECOND);
        }),
        ("ends too early", &["clock"], |_, record| {
            record.run.end = ms(200);
            record.plugin_clock = noted(60, 70);
        }),
        ("ends too late", &["clock"], |traces, _| {
            traces[0].spans[0].end = Some(ms(66));
        }),
        ("plugin too long", &["plugin's clock"], |traces, _| {
            for index in [0, 3, 6] {
                traces[0].spans[index].end = Some(ms(61));
            }
        }),
        ("plugin too short", &["plugin's clock"], |_, record| {
            record.plugin_clock = noted(0, 40);
        }),
        ("DEL after the call", &["order"], |_, record| record.run.end = ms(64)),
        ("no note", &["clock", "plugin's clock"], |_, record| {
            record.plugin_clock = None
        }),
    ];
    for (fault, checks, make) in faults {
        let (mut traces, mut record) = failing();
        make(&mut traces, &mut record);
        assert_eq!(failed(traces, record), checks, "{fault}");
    }
}

#[test]
fn a_begin_by_the_namespaces_age_is_as_coarse_as_inodes_are() {
    let (traces, mut record) = slow();
    record.run.begin = ms(15);
    assert_eq!(failed(traces, record), Vec::<&str>::new());
}

#[test]
fn an_unreadable_message_is_a_remark_only_where_messages_cannot_be_read() {
    let (mut traces, record) = failing();
    let Detail::Plugin(plugin) = &mut traces[0].spans[6].detail else {
        unreachable!()
    };
    plugin.error = None;
    let traces: Vec<Arc<Trace>> = traces.into_iter().map(Arc::new).collect();
    let blind = Seen {
        stdio: false,
        ..ALL_SEEN
    };
    let reports = verify(&traces, std::slice::from_ref(&record), blind);
    assert!(reports[0].passed());
    assert!(reports[0].text(true).contains("cannot be read on this node"));
    let reports = verify(&traces, &[record], ALL_SEEN);
    assert!(
        reports[0]
            .text(false)
            .contains("FAILED outcome: the plugin's error was not read")
    );
}

/// A pod whose plugin hangs until the caller gives up after 40 ms.
fn hanging() -> (Vec<Trace>, CallRecord) {
    let (mut traces, mut record) = failing();
    record.pod.network = Network::Hanging;
    record.pod.deadline = std::time::Duration::from_millis(40);
    record.plugin_clock = noted(30, 40).map(|clock| PluginClock { end: None, ..clock });
    traces[0].spans[3].detail = operation(CniCommand::Add, "eth0", "pods-hanging", 1);
    let Detail::Plugin(plugin) = &mut traces[0].spans[6].detail else {
        unreachable!()
    };
    plugin.plugin = HANGING_PLUGIN.into();
    plugin.error = None;
    plugin.process.exit = Some(ExitStatus::Signal(9));
    (traces, record)
}

#[test]
fn a_killed_plugin_must_end_at_the_deadline() {
    type Fault = fn(&mut Vec<Trace>, &mut CallRecord);
    let (traces, record) = hanging();
    assert_eq!(failed(traces, record), Vec::<&str>::new());
    let faults: Vec<(&str, &str, Fault)> = vec![
        ("killed too late", "clock", |_, record| {
            record.pod.deadline = std::time::Duration::from_millis(20);
        }),
        ("begins too late", "clock", |_, record| {
            record.run.begin = ms(0).minus(30 * MILLISECOND);
            record.pod.deadline = std::time::Duration::from_millis(70);
        }),
        ("ends too late", "clock", |traces, _| {
            traces[0].spans[0].end = Some(ms(56));
        }),
        ("plugin too short", "plugin's clock", |_, record| {
            record.plugin_clock = noted(5, 40);
        }),
        ("no note", "plugin's clock", |_, record| record.plugin_clock = None),
    ];
    for (fault, check, make) in faults {
        let (mut traces, mut record) = hanging();
        make(&mut traces, &mut record);
        assert_eq!(failed(traces, record), vec![check], "{fault}");
    }
}

#[test]
fn traces_of_other_work_are_counted() {
    let (mut traces, record) = slow();
    let mut other = traces[1].clone();
    other.sandbox = None;
    traces.push(other);
    let traces: Vec<Arc<Trace>> = traces.into_iter().map(Arc::new).collect();
    assert_eq!(strangers(&traces, &[record]), 1);
}

#[test]
fn containerds_metrics_must_count_and_last_as_long_as_what_was_traced() {
    let (traces, record) = slow();
    let traces: Vec<Arc<Trace>> = traces.into_iter().map(Arc::new).collect();
    let values = |operation, values: &str| {
        let (count, sum) = values.split_once(' ').unwrap();
        let name = "containerd_cri_network_plugin_operations_duration_seconds";
        format!(
            "{name}_count{{operation_type=\"{operation}\"}} {count}\n\
             {name}_sum{{operation_type=\"{operation}\"}} {sum}\n"
        )
    };
    let failed = |set_up: &str, tear_down: &str, before: &str| {
        let metrics = values("set_up_pod", set_up) + &values("tear_down_pod", tear_down);
        let checks = clock::containerd(&traces, std::slice::from_ref(&record), &metrics, 0, before);
        let failed = checks.iter().filter(|check| check.result.is_err());
        let durations = |check: &Check| check.result.as_ref().is_err_and(Wrong::is_of_durations);
        failed.map(|check| (check.what, durations(check))).collect::<Vec<_>>()
    };
    // ADDs from 10 to 2100 ms; DELs from 3005 to 3011 and from 3050 to 3055, some at the same time.
    assert_eq!(failed("1 2.09", "1 0.011", ""), []);
    assert_eq!(
        failed("2 2.09", "1 0.011", ""),
        [("containerd's count of set-ups", false)]
    );
    assert_eq!(failed("1 2.21", "1 0.011", ""), [("containerd's set-up clock", true)]);
    assert_eq!(
        failed("1 2.09", "2 0.011", ""),
        [("containerd's count of deletions", false)]
    );
    assert_eq!(failed("1 2.09", "1 0.0109", ""), [("containerd's deletions", false)]);
    // A round is held against what it added.
    let before = values("set_up_pod", "0 3.4");
    assert_eq!(failed("1 5.49", "1 0.011", &before), []);
    assert_eq!(
        failed("1 5.61", "1 0.011", &before),
        [("containerd's set-up clock", true)]
    );
}

#[test]
fn a_report_names_what_failed_and_only_that() {
    let (mut traces, record) = slow();
    traces[0].incomplete = true;
    let traces: Vec<Arc<Trace>> = traces.into_iter().map(Arc::new).collect();
    let text = verify(&traces, &[record], ALL_SEEN)[0].text(false);
    assert!(text.starts_with("FAILED shop/reports-0 "), "{text}");
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.contains("FAILED trace: is marked incomplete"), "{text}");
}
