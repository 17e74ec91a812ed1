//! Histories of a daemon whose receiving threads hand requests to workers, each of which has one at a time: what is said of a request to
//! be likely is right, and every time adds up.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use sandglass_model::daemons::{DaemonProcess, Goroutine, RequestPoint, RequestStep, RequestTransport};
use sandglass_model::event::{Exit, ExitStatus};
use sandglass_model::locks::{FileLockTry, LockOutcome};
use sandglass_model::time::MILLISECOND;
use sandglass_model::trace::{Confidence, ThreadsAttribution};
use sandglass_model::waits::{ThreadTimes, ThreadWake, TimeReason, Waker};
use sandglass_model::{Body, Event, ProcessKey, Timestamp};

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
    /// The threads that receive it and answer it, of a few each.
    receiver: u32,
    worker: u32,
    /// For how long the worker waits for a lock.
    locked_ms: u64,
    /// The record of the worker's wake-up is there.
    is_recorded: bool,
}

fn call() -> impl Strategy<Value = Call> {
    (0u64..300, 0u32..2, 0u32..4, 2u64..200, 0u8..8).prop_map(|(begin_ms, receiver, worker, locked_ms, recorded)| {
        Call {
            begin_ms,
            receiver: 1_001 + receiver,
            worker: 2_001 + worker,
            locked_ms,
            is_recorded: recorded > 0,
        }
    })
}

fn sandbox(number: usize) -> String {
    format!("{number:x}f{:0>30}", 2)
}

fn path(number: usize) -> String {
    format!("/run/lock-{number}")
}

/// The goroutine that receives a request, and the one that it creates to handle it.
fn receiving(number: usize) -> Goroutine {
    Goroutine {
        id: 100 + number as u64,
        creator: 1,
    }
}

fn handling(number: usize) -> Goroutine {
    Goroutine {
        id: 200 + number as u64,
        creator: 100 + number as u64,
    }
}

fn message(number: usize, client: ProcessKey, point: RequestPoint, thread: u32, in_go: bool) -> Body {
    let at_daemon = matches!(point, RequestPoint::Arrived | RequestPoint::Replied);
    Body::RequestSeen(Box::new(RequestStep {
        connection: number as u64,
        client,
        point,
        bytes: 300,
        transport: RequestTransport::Unix,
        daemon: at_daemon.then(|| DaemonProcess {
            process: DAEMON,
            thread,
            thread_begin: Timestamp(u64::from(thread)),
            followed: true,
            goroutines: in_go,
            goroutine: in_go.then(|| receiving(number)),
            name: "agent".into(),
            cgroup: String::new(),
        }),
    }))
}

fn woken(process: ProcessKey, thread: u32, from: Timestamp, stack: &str, by: (ProcessKey, u32, &str)) -> Body {
    let begin = |of: ProcessKey, thread: u32| match of == DAEMON {
        true => Timestamp(u64::from(thread)),
        false => Timestamp(of.start_ticks * 10 * MILLISECOND),
    };
    Body::ThreadWoken(Box::new(ThreadWake {
        times: ThreadTimes {
            process,
            thread,
            begin: begin(process, thread),
            processor_ns: from.0,
            run_delay_ns: 0,
        },
        slept_from: from,
        recovered: false,
        stack: std::iter::once(stack).collect(),
        goroutine: None,
        waker: Waker {
            process: by.0,
            thread: by.1,
            begin: begin(by.0, by.1),
            name: "waker".into(),
            cgroup: String::new(),
            stack: ["try_to_wake_up", by.2].into_iter().collect(),
        },
    }))
}

/// The events in order. `in_go`: the daemon has goroutines, and which thread one runs on says nothing.
fn history(calls: &[Call], in_go: bool) -> Vec<Event> {
    let mut events = vec![
        Event {
            at: Timestamp(1),
            body: Body::WaitsRecorded { on: true },
        },
        Event {
            at: Timestamp(1),
            body: Body::RequestsFollowed { on: true },
        },
    ];
    // By worker, when it has answered its last request.
    let mut free: BTreeMap<u32, Timestamp> = BTreeMap::new();
    for (number, call) in calls.iter().enumerate() {
        let mut push = |at: Timestamp, body: Body| events.push(Event { at, body });
        // A time of its own for each: events of one time keep their order.
        let sent = Timestamp((1_000 + call.begin_ms) * MILLISECOND + number as u64 * 10_000);
        let client = ProcessKey::new(100 + number as u32, sent.0 - 5 * MILLISECOND);
        let id = sandbox(number);
        let env = [
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", id.as_str()),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", "/opt/cni/bin"),
        ];
        let began = Timestamp(sent.0 - 5 * MILLISECOND);
        push(began, exec(client, RUNTIME, "/opt/cni/bin/shim", &[], &env));
        push(sent, message(number, client, RequestPoint::Sent, 0, in_go));
        push(
            sent,
            message(number, client, RequestPoint::Arrived, call.receiver, in_go),
        );
        let idle_from = free.get(&call.worker).copied().unwrap_or(Timestamp(5 * MILLISECOND));
        let handed = sent.plus(100_000);
        let start = handed.max(idle_from);
        if idle_from < handed && call.is_recorded {
            let by = (DAEMON, call.receiver, "futex_wake");
            push(handed, woken(DAEMON, call.worker, idle_from, "futex_wait_queue", by));
        }
        let (locked, unlocked) = (start.plus(300_000), start.plus(300_000 + call.locked_ms * MILLISECOND));
        push(
            locked,
            Body::FileLockTried(Box::new(FileLockTry {
                process: DAEMON,
                thread: call.worker,
                outcome: LockOutcome::Blocked,
                device: 1,
                inode: 10 + number as u64,
                path: path(number),
                holder: 7,
                holder_name: "holder".into(),
            })),
        );
        let holder = ProcessKey { pid: 7, start_ticks: 1 };
        let by = (holder, 7, "locks_wake_up_blocks");
        let mut lock = woken(DAEMON, call.worker, locked, "locks_lock_inode_wait", by);
        if let Body::ThreadWoken(wake) = &mut lock {
            wake.goroutine = in_go.then(|| handling(number));
        }
        push(unlocked, lock);
        let replied = unlocked.plus(400_000);
        let by = (DAEMON, call.worker, "unix_stream_sendmsg");
        push(
            replied,
            woken(client, client.pid, sent.plus(50_000), "unix_stream_read_generic", by),
        );
        push(
            replied,
            message(number, client, RequestPoint::Replied, call.worker, in_go),
        );
        push(
            replied.plus(1_000),
            message(number, client, RequestPoint::Returned, 0, in_go),
        );
        push(
            replied.plus(MILLISECOND),
            Body::ProcessExited(Exit {
                process: client,
                how: ExitStatus::Code(0),
            }),
        );
        free.insert(call.worker, replied.plus(2_000));
    }
    events.sort_by_key(|event| event.at);
    let last = events.last().map_or(0, |event| event.at.0);
    events.push(Event {
        at: Timestamp(last + 400_000 * MILLISECOND),
        body: Body::Tick,
    });
    events
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_likely_of_a_daemons_threads_is_right(mut calls in vec(call(), 1..9), in_go in any::<bool>()) {
        calls.sort_by_key(|call| call.begin_ms);
        // That every time adds up is checked of every trace.
        let played = play(&config(), &history(&calls, in_go));
        let mut seen = 0;
        for trace in &played.closed {
            let id = &trace.sandbox.as_ref().expect("a sandbox").0;
            let number = (0..calls.len()).find(|number| sandbox(*number) == *id).expect("one of ours");
            let daemon = trace.spans.iter().find_map(|span| span.detail.as_daemon()).expect("a request");
            let attribution = daemon.threads.expect("its threads are followed");
            let waits = &daemon.time.as_ref().expect("a time").waits;
            prop_assert!(waits.iter().all(|wait| wait.confidence != Some(Confidence::Certain)));
            seen += 1;
            let locks = waits.iter().filter(|wait| wait.reason == TimeReason::FileLock);
            let named: Vec<&str> = locks.map(|wait| wait.what.as_str()).collect();
            if attribution != ThreadsAttribution::Ambiguous {
                prop_assert_eq!(named, [path(number)], "{:?}", daemon);
            }
            if in_go {
                prop_assert!(matches!(attribution, ThreadsAttribution::OnlyRequest | ThreadsAttribution::Goroutines));
            }
            if calls.len() == 1 {
                prop_assert_eq!(attribution, ThreadsAttribution::OnlyRequest);
            }
        }
        prop_assert_eq!(seen, calls.len());
    }
}
