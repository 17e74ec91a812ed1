//! Histories of plugins whose requests a daemon serves at the same time, and what it runs for each, with more or less evidence: what
//! is reported as certain is right, and nothing is lost.

use proptest::collection::vec;
use proptest::prelude::*;
use sandglass_correlator::CorrelatorConfig;
use sandglass_model::daemons::{DaemonProcess, Goroutine, RequestPoint, RequestStep, RequestTransport};
use sandglass_model::event::{Exit, ExitStatus, Fork, Netns};
use sandglass_model::time::MILLISECOND;
use sandglass_model::trace::{Attribution, Confidence};
use sandglass_model::waits::ThreadKey;
use sandglass_model::{Body, Event, ProcessKey, SandboxId, Timestamp};

use crate::bodies::{RUNTIME, exec};
use crate::play::{config, play};

const DAEMON: ProcessKey = ProcessKey {
    pid: 900,
    start_ticks: 9,
};

/// One plugin with its request, as numbers to make it from.
#[derive(Clone, Debug)]
struct Call {
    begin_ms: u64,
    /// Until the answer.
    lasts_ms: u64,
    /// The daemon's thread, of a few.
    thread: u32,
    interface: u8,
    /// What the daemon runs: when (of a hundred parts of the request's time), and with which evidence.
    runs: Vec<(u64, u8)>,
}

fn call() -> impl Strategy<Value = Call> {
    (0u64..400, 2u64..500, 1u32..4, 0u8..3, vec((1u64..99, 0u8..8), 0..5)).prop_map(
        |(begin_ms, lasts_ms, thread, interface, runs)| Call {
            begin_ms,
            lasts_ms,
            thread,
            interface,
            runs,
        },
    )
}

fn sandbox(number: usize) -> String {
    format!("{number:x}f{:0>30}", 1)
}

/// The events in order, and the processes that the daemon ran for each call.
fn history(calls: &[Call]) -> (Vec<Event>, Vec<Vec<u32>>) {
    let mut events = vec![Event {
        at: Timestamp(1),
        body: Body::RequestsFollowed { on: true },
    }];
    let mut ran = Vec::new();
    let mut pids = 1_000;
    for (number, call) in calls.iter().enumerate() {
        // A time of its own for each: events of one time keep their order.
        let ms = |ms: u64| Timestamp(ms * MILLISECOND + number as u64);
        let (id, ifname) = (sandbox(number), format!("net{}", call.interface));
        let netns = format!("/run/netns/cni-{id}");
        let begin = 1_000 + call.begin_ms;
        let sent = begin + 2;
        let client = ProcessKey::new(100 + number as u32, begin * MILLISECOND);
        let env = [
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", id.as_str()),
            ("CNI_IFNAME", ifname.as_str()),
            ("CNI_NETNS", netns.as_str()),
            ("CNI_PATH", "/opt/cni/bin"),
        ];
        let mut push = |at: Timestamp, body: Body| events.push(Event { at, body });
        push(ms(begin), exec(client, RUNTIME, "/opt/cni/bin/shim", &[], &env));
        let inode = 5_000 + number as u64;
        push(
            ms(begin + 1),
            Body::NetnsObserved(Box::new(Netns {
                sandbox: SandboxId(id.clone()),
                path: netns.clone(),
                inode,
                created: None,
                there: None,
            })),
        );
        let receiver = Goroutine {
            id: 100 + number as u64,
            creator: 1,
        };
        let message = |point: RequestPoint| {
            let at_daemon = matches!(point, RequestPoint::Arrived | RequestPoint::Replied);
            Body::RequestSeen(Box::new(RequestStep {
                connection: number as u64,
                client,
                point,
                bytes: 300,
                transport: RequestTransport::Unix,
                daemon: at_daemon.then(|| DaemonProcess {
                    process: DAEMON,
                    thread: call.thread,
                    thread_begin: Timestamp(0),
                    followed: false,
                    goroutines: false,
                    goroutine: Some(receiver),
                    name: "agent".into(),
                    cgroup: String::new(),
                }),
            }))
        };
        push(ms(sent), message(RequestPoint::Sent));
        push(ms(sent), message(RequestPoint::Arrived));
        let answered = sent + call.lasts_ms;
        let mut processes = Vec::new();
        for (part, evidence) in &call.runs {
            pids += 1;
            // Between arrival and answer, in microseconds.
            let at =
                |us: u64| Timestamp(sent * MILLISECOND + call.lasts_ms * part * 9_000 + us * 1_000 + number as u64);
            let child = ProcessKey::new(pids, at(1).0);
            processes.push(pids);
            let thread = ThreadKey {
                id: call.thread,
                begin: Timestamp(1),
            };
            push(
                at(1),
                Body::ProcessForked(Fork {
                    process: child,
                    parent: DAEMON,
                    thread: Some(thread).filter(|_| *evidence != 5),
                    goroutine: match evidence {
                        6 => Some(receiver),
                        7 => Some(Goroutine {
                            id: 1_000 + u64::from(pids),
                            creator: receiver.id,
                        }),
                        _ => None,
                    },
                }),
            );
            let argument = match evidence {
                0 => format!("--id={id}"),
                1 => format!("cni-{id}"),
                2 => ifname.clone(),
                _ => "-A".to_owned(),
            };
            let mut body = exec(child, DAEMON, "/usr/sbin/iptables", &[argument.as_str()], &[]);
            if let Body::ProcessExecuted(exec) = &mut body {
                exec.netns = if *evidence == 3 { inode } else { 1 };
            }
            push(at(2), body);
            push(
                at(3),
                Body::ProcessExited(Exit {
                    process: child,
                    how: ExitStatus::Code(0),
                }),
            );
        }
        push(ms(answered), message(RequestPoint::Replied));
        push(ms(answered), message(RequestPoint::Returned));
        push(
            ms(answered + 2),
            Body::ProcessExited(Exit {
                process: client,
                how: ExitStatus::Code(0),
            }),
        );
        ran.push(processes);
    }
    events.sort_by_key(|event| event.at);
    let last = events.last().map_or(0, |event| event.at.0);
    events.push(Event {
        at: Timestamp(last + 400_000 * MILLISECOND),
        body: Body::Tick,
    });
    (events, ran)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_certain_of_a_daemon_is_right(calls in vec(call(), 1..9)) {
        let (events, ran) = history(&calls);
        // What is attributed wrongly must find room too.
        let config = CorrelatorConfig { max_spans: 512, ..config() };
        let played = play(&config, &events);
        let mut seen = 0;
        for trace in &played.closed {
            let id = &trace.sandbox.as_ref().expect("a sandbox").0;
            let number = (0..calls.len()).find(|number| sandbox(*number) == *id).expect("one of ours");
            let requests: Vec<_> = trace.spans.iter().filter(|span| span.detail.as_daemon().is_some()).collect();
            prop_assert_eq!(requests.len(), 1, "each lasts for 2 ms or more");
            prop_assert_eq!(requests[0].duration_ns(requests[0].start), calls[number].lasts_ms * MILLISECOND);
            for span in &trace.spans {
                let Some(process) = span.process() else { continue };
                let Some(attribution) = process.attribution else { continue };
                seen += 1;
                let parent = &trace.spans[span.parent.expect("a command lies below its request")];
                prop_assert!(parent.detail.as_daemon().is_some());
                // Each request has goroutines of its own here.
                if attribution.confidence() == Confidence::Certain || attribution == Attribution::Goroutine {
                    prop_assert!(ran[number].contains(&process.pid), "{:?} {:?}", process, attribution);
                }
                // Alone nothing can be wrong.
                if calls.len() == 1 {
                    prop_assert!(ran[number].contains(&process.pid) && !process.ambiguous);
                }
            }
        }
        // All of them ran while their request was in flight.
        prop_assert_eq!(seen, ran.iter().map(Vec::len).sum::<usize>());
    }
}
