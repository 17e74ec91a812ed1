//! A pod whose plugin waits for its daemon.

use sandglass_model::daemons::RequestTransport;
use sandglass_model::trace::{Attribution, DaemonDetail, RequestBegin};

use super::*;
use crate::networks::{DAEMON, SERVED_COMMAND, SHIM_PLUGIN};

/// Index of the longest request, of what the daemon ran for it, and of what that one ran.
const REQUEST: usize = 5;
const COMMAND: usize = 6;
const SLEEP: usize = 7;

fn request(name: &str) -> Detail {
    Detail::Daemon(Box::new(DaemonDetail {
        name: name.into(),
        pid: 8,
        cgroup: "/sandglass-demo-1/node".into(),
        transport: RequestTransport::Unix,
        begin: RequestBegin::Sent,
        unanswered: false,
        time: None,
        threads: None,
    }))
}

/// As the agent reports it where it records no waits.
fn served() -> (Trace, CallRecord) {
    let pod = Pod::new("returns-0", 11, Network::Served);
    let add = CniCommand::Add;
    let mut spans = vec![
        span(None, 5, 1_700, root()),
        span(Some(0), 5, 1_700, created()),
        span(Some(1), 100, 1_600, operation(add, "eth0", "pods-served", 1)),
        span(Some(2), 110, 1_600, plugin(SHIM_PLUGIN, add, false)),
        span(Some(3), 120, 370, request(DAEMON)),
        span(Some(3), 380, 1_590, request(DAEMON)),
        span(Some(REQUEST), 381, 1_589, command(SERVED_COMMAND)),
        span(Some(COMMAND), 382, 1_588, command("sleep")),
    ];
    if let Detail::Command(command) = &mut spans[COMMAND].detail {
        command.process.attribution = Some(Attribution::ContainerId);
    }
    let (_, record) = slow();
    (trace(1, &pod, spans), CallRecord { pod, ..record })
}

const WITHOUT_WAITS: Seen = Seen {
    waits: false,
    ..ALL_SEEN
};

/// What the check says of a history with this change.
fn wrong(change: impl FnOnce(&mut Trace)) -> Option<Wrong> {
    let (mut trace, record) = served();
    change(&mut trace);
    requests::requests(&trace, &record, WITHOUT_WAITS).err()
}

#[test]
fn a_request_is_found_with_what_the_daemon_ran_for_it() {
    assert_eq!(wrong(|_| {}), None);
    let of_request = |change: fn(&mut DaemonDetail)| {
        wrong(|trace| match &mut trace.spans[REQUEST].detail {
            Detail::Daemon(request) => change(request),
            _ => unreachable!(),
        })
    };
    for (fault, wrong) in [
        (
            "to another daemon",
            of_request(|request| request.name = "cilium-agent".into()),
        ),
        (
            "over TCP",
            of_request(|request| request.transport = RequestTransport::Tcp),
        ),
        ("without an answer", of_request(|request| request.unanswered = true)),
        (
            "of which the begin was not seen",
            of_request(|request| request.begin = RequestBegin::Recovered),
        ),
        ("for which nothing ran", wrong(|trace| trace.spans.truncate(COMMAND))),
        ("whose command ran nothing", wrong(|trace| trace.spans.truncate(SLEEP))),
        (
            "whose command is beside it",
            wrong(|trace| trace.spans[COMMAND].parent = Some(3)),
        ),
        (
            "that another plugin sent",
            wrong(|trace| trace.spans[3].detail = plugin("cilium-cni", CniCommand::Add, false)),
        ),
        (
            "whose command may be another's",
            wrong(|trace| {
                if let Detail::Command(command) = &mut trace.spans[COMMAND].detail {
                    command.process.attribution = Some(Attribution::OnlyRequest);
                }
            }),
        ),
        (
            "that is not what took long",
            wrong(|trace| trace.spans[..2].iter_mut().for_each(|span| span.end = Some(ms(9_000)))),
        ),
    ] {
        assert!(matches!(wrong, Some(Wrong::Fact(_))), "a request {fault}: {wrong:?}");
    }
}

#[test]
fn only_a_busy_node_or_an_old_kernel_excuses() {
    let (mut trace, mut record) = served();
    if let Detail::Daemon(request) = &mut trace.spans[REQUEST].detail {
        request.begin = RequestBegin::Followed;
    }
    record.run.pressure_ns = 200 * MILLISECOND;
    let late = requests::requests(&trace, &record, WITHOUT_WAITS);
    assert!(matches!(late, Err(Wrong::Busy(_))), "{late:?}");
    let blind = Seen {
        requests: false,
        ..ALL_SEEN
    };
    trace.spans.truncate(4);
    let remark = requests::requests(&trace, &record, blind).unwrap();
    assert!(remark.contains("cannot be followed"), "{remark}");
}
