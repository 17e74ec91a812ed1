//! What the threads of a daemon do while it has a request, and whether that is for the request.

use sandglass_model::daemons::{DaemonProcess, Goroutine, RequestPoint, RequestStep, RequestTransport};
use sandglass_model::event::Fork;
use sandglass_model::locks::{KernelLockKind, KernelLockWait, LockHolder};
use sandglass_model::trace::{Attribution, Confidence, ThreadsAttribution};
use sandglass_model::waits::{ThreadKey, ThreadTimes, ThreadWake, TimeReason};
use sandglass_model::{Body, Event, ProcessKey, Span, Timestamp, Trace, phases, registry};

use crate::scene::{Played, Scene, add};
use crate::waits::{TIMER, ms, parts, stranger, time_of, waker};

const DAEMON: ProcessKey = ProcessKey {
    pid: 50,
    start_ticks: 1,
};
const RECEIVER: u32 = 51;
const WORKER: u32 = 52;
const OTHER_WORKER: u32 = 53;
const FLOCK: &[&str] = &["locks_lock_inode_wait", "__do_sys_flock"];
const UNLOCK: &[&str] = &["try_to_wake_up", "__locks_wake_up_blocks", "locks_unlink_lock_ctx"];
const FUTEX: &[&str] = &["futex_wait_queue", "futex_wait"];
const RTNL: &[&str] = &["rtnl_lock", "rtnetlink_rcv_msg"];

fn begin(thread: u32) -> Timestamp {
    Timestamp(u64::from(thread))
}

impl Scene {
    fn says(
        &mut self,
        connection: u64,
        client: ProcessKey,
        point: RequestPoint,
        thread: u32,
        followed: bool,
    ) -> &mut Scene {
        let at_daemon = matches!(point, RequestPoint::Arrived | RequestPoint::Replied);
        self.event(Body::RequestSeen(Box::new(RequestStep {
            connection,
            client,
            point,
            bytes: 300,
            transport: RequestTransport::Unix,
            daemon: at_daemon.then(|| DaemonProcess {
                process: DAEMON,
                thread,
                thread_begin: begin(thread),
                followed,
                goroutines: false,
                goroutine: None,
                name: "policy-daemon".into(),
                cgroup: String::new(),
            }),
        })))
    }

    fn sends(&mut self, connection: u64, client: ProcessKey, thread: u32) -> &mut Scene {
        self.says(connection, client, RequestPoint::Sent, 0, false).says(
            connection,
            client,
            RequestPoint::Arrived,
            thread,
            true,
        )
    }

    /// The thread answers. The client slept for it since `from`.
    fn answers_by(&mut self, connection: u64, client: ProcessKey, thread: u32, from: u64) -> &mut Scene {
        let of_daemon = waker(DAEMON, "policy-daemon", &["try_to_wake_up", "unix_stream_sendmsg"]);
        self.woken(client, from, &["unix_stream_read_generic"], of_daemon)
            .says(connection, client, RequestPoint::Replied, thread, true)
            .says(connection, client, RequestPoint::Returned, 0, false)
    }

    /// A thread of the daemon slept until now. It has run all the time before.
    fn slept(&mut self, thread: u32, from: u64, stack: &[&str], waker: sandglass_model::waits::Waker) -> &mut Scene {
        self.slept_having_run(thread, (from, from), stack, waker)
    }

    /// The same, having run for so many milliseconds since its creation.
    fn slept_having_run(
        &mut self,
        thread: u32,
        (from, ran): (u64, u64),
        stack: &[&str],
        waker: sandglass_model::waits::Waker,
    ) -> &mut Scene {
        self.event(Body::ThreadWoken(Box::new(ThreadWake {
            times: ThreadTimes {
                process: DAEMON,
                thread,
                begin: begin(thread),
                processor_ns: ms(ran).0,
                run_delay_ns: 0,
            },
            slept_from: ms(from),
            recovered: false,
            stack: stack.iter().collect(),
            goroutine: None,
            waker,
        })))
    }
}

/// Another thread of the daemon, which hands something over.
fn handing(thread: u32) -> sandglass_model::waits::Waker {
    sandglass_model::waits::Waker {
        process: DAEMON,
        thread,
        begin: begin(thread),
        name: "policy-daemon".into(),
        cgroup: String::new(),
        stack: ["try_to_wake_up", "futex_wake"].into_iter().collect(),
    }
}

fn requests(trace: &Trace) -> Vec<&Span> {
    let spans = trace.spans.iter();
    spans.filter(|span| span.detail.as_daemon().is_some()).collect()
}

fn threads_of(trace: &Trace) -> Option<ThreadsAttribution> {
    requests(trace)[0].detail.as_daemon().and_then(|daemon| daemon.threads)
}

/// A plugin sends a request, which one thread of the daemon receives and another one answers, after a wait for a lock on a file.
fn handed_over() -> (Scene, ProcessKey) {
    let mut scene = Scene::new();
    scene.at(0).recorded(true).event(Body::RequestsFollowed { on: true });
    let plugin = scene.at(100).plugin("shim-policy", &add("sb", "eth0"));
    scene.at(110).sends(1, plugin, RECEIVER);
    scene.at(120).slept(WORKER, 30, FUTEX, handing(RECEIVER));
    scene.at(4_050).slept(WORKER, 150, FLOCK, stranger("ip", UNLOCK));
    (scene, plugin)
}

fn ended(mut scene: Scene, plugin: ProcessKey) -> Played {
    scene.at(4_820).answers_by(1, plugin, WORKER, 111);
    scene.at(4_830).exit(plugin, 0);
    scene.at(60_000).tick();
    scene.play()
}

#[test]
fn a_lock_behind_a_thread_of_a_daemon_is_the_verdict() {
    let (scene, plugin) = handed_over();
    let played = ended(scene, plugin);
    let trace = &played.closed[0];
    assert_eq!(
        parts(trace, "daemon policy-daemon"),
        [("processor", 810), ("file_lock", 3_900)]
    );
    // A millisecond of the request lies before the plugin sleeps for it: of the rest it has every reason in proportion.
    assert_eq!(
        parts(trace, "plugin shim-policy"),
        [("processor", 830), ("file_lock", 3_899)]
    );
    assert_eq!(threads_of(trace), Some(ThreadsAttribution::OnlyRequest));
    let wait = &time_of(trace, "daemon policy-daemon").expect("a time").waits[0];
    assert_eq!(
        (wait.reason, wait.confidence),
        (TimeReason::FileLock, Some(Confidence::Likely))
    );
    assert_eq!((wait.who.as_str(), wait.by.as_str()), ("policy-daemon", "ip"));
    assert_eq!(
        phases::verdict(trace, ms(60_000)),
        "plugin shim-policy waited 4.71 s of 4.73 s (99 %) for policy-daemon, which waited 3.90 s for a lock on a file (held by ip, likely)"
    );
    // The wait is a span below the request.
    let shown = trace.spans.iter().find(|span| registry::name(span) == "wait file_lock");
    let parent = shown.and_then(|span| span.parent).expect("a wait");
    assert_eq!(registry::name(&trace.spans[parent]), "daemon policy-daemon");
}

/// Who sends an answer has woken its client before that is reported, and the client may have received it, and ended, by then.
#[test]
fn the_answer_is_that_of_the_thread_that_woke_the_client() {
    let (mut scene, plugin) = handed_over();
    let of_worker = sandglass_model::waits::Waker {
        stack: ["try_to_wake_up", "unix_stream_sendmsg"].into_iter().collect(),
        ..handing(WORKER)
    };
    scene
        .at(4_820)
        .woken(plugin, 111, &["unix_stream_read_generic"], of_worker);
    scene.says(1, plugin, RequestPoint::Returned, 0, false);
    scene.at(4_821).says(1, plugin, RequestPoint::Replied, WORKER, true);
    scene.at(4_830).exit(plugin, 0);
    scene.at(60_000).tick();
    let played = scene.play();
    let trace = &played.closed[0];
    assert_eq!(
        parts(trace, "daemon policy-daemon"),
        [("processor", 810), ("file_lock", 3_900)]
    );
    assert_eq!(threads_of(trace), Some(ThreadsAttribution::OnlyRequest));
}

/// A lock of the kernel that another program has.
#[test]
fn a_lock_of_the_kernel_behind_a_daemon_has_its_holder() {
    let (mut scene, plugin) = handed_over();
    scene.at(4_700).slept(
        WORKER,
        4_100,
        &["rtnl_lock"],
        stranger("ip", &["try_to_wake_up", "__mutex_unlock_slowpath", "rtnl_unlock"]),
    );
    scene.event(Body::KernelLockWaited(Box::new(KernelLockWait {
        process: DAEMON,
        thread: WORKER,
        begin: begin(WORKER),
        from: ms(4_090),
        kind: KernelLockKind::Mutex,
        lock: 1,
        symbol: "rtnl_mutex".into(),
        stack: RTNL.iter().collect(),
        holder: Some(LockHolder {
            process: ProcessKey { pid: 9, start_ticks: 1 },
            thread: 9,
            name: "ip".into(),
        }),
    })));
    let played = ended(scene, plugin);
    let trace = &played.closed[0];
    assert_eq!(
        parts(trace, "daemon policy-daemon"),
        [("processor", 200), ("file_lock", 3_900), ("kernel_lock", 610)]
    );
    let waits = &time_of(trace, "daemon policy-daemon").expect("a time").waits;
    let lock = waits
        .iter()
        .find(|wait| wait.reason == TimeReason::KernelLock)
        .expect("a lock");
    assert_eq!((lock.what.as_str(), lock.by.as_str()), ("rtnl", "ip"));
}

/// Of what the daemon executed the spans say what it waited for; the rest is the threads'.
#[test]
fn what_a_daemon_executes_lies_within_what_its_threads_do() {
    let mut scene = Scene::new();
    scene.at(0).recorded(true).event(Body::RequestsFollowed { on: true });
    let plugin = scene.at(100).plugin("shim-policy", &add("sb", "eth0"));
    scene.at(110).sends(1, plugin, RECEIVER);
    scene.at(400).slept(RECEIVER, 200, FLOCK, stranger("ip", UNLOCK));
    let child = scene.at(500).new_process();
    scene.event(Body::ProcessForked(Fork {
        process: child,
        parent: DAEMON,
        thread: Some(ThreadKey {
            id: RECEIVER,
            begin: begin(RECEIVER),
        }),
        goroutine: None,
    }));
    scene.exec(child, DAEMON, "/usr/sbin/nft", &["-f", "-"], &Vec::new());
    scene
        .at(900)
        .woken(child, 600, &["hrtimer_nanosleep"], stranger("swapper", TIMER));
    let of_child = waker(child, "nft", &["try_to_wake_up", "do_notify_parent"]);
    scene.at(1_000).slept(RECEIVER, 501, &["do_wait"], of_child);
    scene.exit(child, 0);
    scene.at(1_100).answers_by(1, plugin, RECEIVER, 111);
    scene.at(1_110).exit(plugin, 0);
    scene.at(60_000).tick();
    let played = scene.play();
    let trace = &played.closed[0];
    // 110 to 200, 400 to 500, 1000 to 1100; and of the child 500 to 600 and 900 to 1000.
    assert_eq!(
        parts(trace, "daemon policy-daemon"),
        [("processor", 490), ("file_lock", 200), ("timer", 300)]
    );
    assert!(
        !trace.spans.iter().any(|span| registry::name(span) == "wait child"),
        "the command's span says it"
    );
}

/// A worker runs a command: its request is the one that its receiving thread handed to it. The workers of a daemon in Go are no workers:
/// of it both the command and what its threads did are ambiguous.
#[test]
fn a_command_of_a_worker_is_attributed_by_wake_ups() {
    let scene = command_of_a_worker();
    assert_eq!(nft_commands(&scene), [("one".to_owned(), Some(Attribution::WakeUps))]);
    let of_go = with_goroutines(scene);
    assert_eq!(nft_commands(&of_go), [("two".to_owned(), Some(Attribution::Newest))]);
}

/// The same events of a daemon that is written in Go.
fn with_goroutines(mut scene: Scene) -> Scene {
    for event in &mut scene.events {
        if let Body::RequestSeen(step) = &mut event.body
            && let Some(daemon) = &mut step.daemon
        {
            daemon.goroutines = true;
        }
    }
    scene
}

fn command_of_a_worker() -> Scene {
    let mut scene = Scene::new();
    scene.at(0).recorded(true).event(Body::RequestsFollowed { on: true });
    let plugins: Vec<ProcessKey> = ["one", "two"]
        .iter()
        .map(|id| scene.at(100).plugin("shim-policy", &add(id, "eth0")))
        .collect();
    for (number, worker) in [(0, WORKER), (1, OTHER_WORKER)] {
        let at = 110 + 10 * number as u64;
        scene.at(at).sends(number as u64, plugins[number], RECEIVER);
        scene.at(at + 1).slept(worker, 30, FUTEX, handing(RECEIVER));
    }
    let child = scene.at(200).new_process();
    scene.event(Body::ProcessForked(Fork {
        process: child,
        parent: DAEMON,
        thread: Some(ThreadKey {
            id: WORKER,
            begin: begin(WORKER),
        }),
        goroutine: None,
    }));
    scene.exec(child, DAEMON, "/usr/sbin/nft", &["-f", "-"], &Vec::new());
    scene.at(300).exit(child, 0);
    for (number, worker) in [(0, WORKER), (1, OTHER_WORKER)] {
        scene
            .at(400 + number as u64)
            .answers_by(number as u64, plugins[number], worker, 131)
            .exit(plugins[number], 0);
    }
    scene.at(60_000).tick();
    scene
}

/// Sandboxes of the commands `nft`, and why they are there.
fn nft_commands(scene: &Scene) -> Vec<(String, Option<Attribution>)> {
    let played = scene.play();
    let found = played.closed.iter().flat_map(|trace| {
        let id = &trace.sandbox.as_ref().expect("a sandbox").0;
        let commands = trace.spans.iter().filter(|span| registry::name(span) == "command nft");
        commands.map(move |span| (id.clone(), span.process().and_then(|process| process.attribution)))
    });
    found.collect()
}

/// The threads of a daemon that is refused are not followed: it is a whole, although it has threads that sleep.
#[test]
fn a_daemon_that_is_not_followed_is_a_whole() {
    let mut scene = Scene::new();
    scene.at(0).recorded(true).event(Body::RequestsFollowed { on: true });
    let plugin = scene.at(100).plugin("shim-policy", &add("sb", "eth0"));
    scene
        .at(110)
        .says(1, plugin, RequestPoint::Sent, 0, false)
        .says(1, plugin, RequestPoint::Arrived, RECEIVER, false);
    scene.at(4_050).slept(RECEIVER, 150, FLOCK, stranger("ip", UNLOCK));
    let played = ended(scene, plugin);
    let trace = &played.closed[0];
    assert_eq!(
        (time_of(trace, "daemon policy-daemon"), threads_of(trace)),
        (None, None)
    );
    assert_eq!(
        phases::verdict(trace, ms(60_000)),
        "plugin shim-policy waited 4.71 s of 4.73 s (99 %) for policy-daemon"
    );
}

/// Before waits were recorded, and where records were left out, that a thread ran is not known: it is the daemon's time. The scheduler's count
/// of a thread that is older than the request does not say when it ran.
#[test]
fn what_is_not_recorded_of_a_daemon_is_its_time_as_a_whole() {
    for limited in [false, true] {
        let mut scene = Scene::new();
        scene.at(0).recorded(false).event(Body::RequestsFollowed { on: true });
        let plugin = scene.at(100).plugin("shim-policy", &add("sb", "eth0"));
        scene.at(110).sends(1, plugin, RECEIVER);
        scene.at(130).recorded(true);
        scene
            .at(4_050)
            .slept_having_run(RECEIVER, (120, 60), FLOCK, stranger("ip", UNLOCK));
        scene.at(4_250).answers_by(1, plugin, RECEIVER, 111);
        scene.at(4_260).exit(plugin, 0);
        if limited {
            scene.at(4_300).event(Body::Limited {
                probe: "daemon_threads".to_owned(),
                netns: 0,
                source: None,
            });
        }
        scene.at(60_000).tick();
        let played = scene.play();
        let trace = &played.closed[0];
        let expected = match limited {
            false => vec![("processor", 200), ("file_lock", 3_930), ("daemon", 10)],
            true => vec![("file_lock", 3_930), ("daemon", 210)],
        };
        assert_eq!(parts(trace, "daemon policy-daemon"), expected);
        let of_plugin = parts(trace, "plugin shim-policy");
        assert_eq!(
            of_plugin.iter().any(|(reason, _)| *reason == "processor"),
            !limited,
            "{of_plugin:?}"
        );
    }
}

/// Two requests at once: each is handed to a worker of its own, or both wait for one.
fn two_at_once(second: u32) -> Scene {
    let mut scene = Scene::new();
    scene.at(0).recorded(true).event(Body::RequestsFollowed { on: true });
    let plugins: Vec<ProcessKey> = ["one", "two"]
        .iter()
        .map(|id| scene.at(100).plugin("shim-policy", &add(id, "eth0")))
        .collect();
    scene.at(110).sends(1, plugins[0], RECEIVER);
    scene.at(111).slept(WORKER, 30, FUTEX, handing(RECEIVER));
    scene.at(120).sends(2, plugins[1], RECEIVER);
    if second != WORKER {
        scene.at(121).slept(second, 30, FUTEX, handing(RECEIVER));
        scene.at(800).slept(second, 125, FLOCK, stranger("of-two", UNLOCK));
    }
    scene.at(500).slept(WORKER, 115, FLOCK, stranger("of-one", UNLOCK));
    scene.at(510).answers_by(1, plugins[0], WORKER, 111);
    scene.at(520).exit(plugins[0], 0);
    if second == WORKER {
        scene.at(800).slept(WORKER, 530, FLOCK, stranger("of-two", UNLOCK));
    }
    scene.at(810).answers_by(2, plugins[1], second, 121);
    scene.at(820).exit(plugins[1], 0);
    scene.at(60_000).tick();
    scene.events.sort_by_key(|event| event.at);
    scene
}

#[test]
fn requests_at_once_are_told_apart_by_wake_ups() {
    let played = two_at_once(OTHER_WORKER).play();
    for (trace, holder, locked) in [(&played.closed[0], "of-one", 385), (&played.closed[1], "of-two", 675)] {
        assert_eq!(
            threads_of(trace),
            Some(ThreadsAttribution::WakeUps),
            "{}",
            played.text()
        );
        let time = time_of(trace, "daemon policy-daemon").expect("a time");
        let lock = &time.waits[0];
        assert_eq!((lock.by.as_str(), lock.ns / 1_000_000), (holder, locked));
        assert_eq!(lock.confidence, Some(Confidence::Likely));
    }
    let of_go = with_goroutines(two_at_once(OTHER_WORKER)).play();
    for trace in &of_go.closed {
        assert_eq!(
            threads_of(trace),
            Some(ThreadsAttribution::Ambiguous),
            "{}",
            of_go.text()
        );
    }
    assert_eq!(of_go.closed.len(), 2);
}

/// A worker that had another request first: what it did is said to be possible, and the span is ambiguous.
#[test]
fn a_thread_that_had_several_requests_is_ambiguous() {
    let played = two_at_once(WORKER).play();
    let trace = &played.closed[1];
    assert_eq!(
        threads_of(trace),
        Some(ThreadsAttribution::Ambiguous),
        "{}",
        played.text()
    );
    let time = time_of(trace, "daemon policy-daemon").expect("a time");
    assert!(
        time.waits
            .iter()
            .all(|wait| wait.confidence != Some(Confidence::Likely)),
        "{time:?}"
    );
    let attributes = registry::attributes(trace, requests(trace)[0]);
    assert!(
        attributes.iter().any(|(key, _)| *key == registry::AMBIGUOUS),
        "{attributes:?}"
    );
    // The first one was alone at its thread until its answer.
    assert_eq!(threads_of(&played.closed[0]), Some(ThreadsAttribution::WakeUps));
}

/// The same, with the goroutines of a daemon in Go: `received` has those that receive the requests. The first one creates another one, which
/// awaits the next message and creates the one that waits for the lock; the second one waits by itself.
fn of_goroutines(received: [u64; 2]) -> Played {
    let mut scene = with_goroutines(two_at_once(WORKER));
    let goroutine = |id, creator| Some(Goroutine { id, creator });
    for event in &mut scene.events {
        match &mut event.body {
            Body::RequestSeen(step) if step.point == RequestPoint::Arrived => {
                let id = received[if step.connection == 1 { 0 } else { 1 }];
                step.daemon.as_mut().expect("a daemon").goroutine = goroutine(id, 1);
            }
            Body::ThreadWoken(wake) if wake.waker.name == "of-one" => wake.goroutine = goroutine(21, 31),
            Body::ThreadWoken(wake) if wake.waker.name == "of-two" => wake.goroutine = goroutine(received[1], 1),
            _ => {}
        }
    }
    // grpc-go sends its settings before it has received anything, and is not followed by then.
    let mut events = Vec::new();
    for event in std::mem::take(&mut scene.events) {
        let at = event.at;
        let mut push = |body| events.push(Event { at, body });
        let Body::RequestSeen(step) = event.body else {
            push(event.body);
            continue;
        };
        if step.point == RequestPoint::Arrived {
            let mut settings = step.clone();
            (settings.point, settings.bytes) = (RequestPoint::Replied, 15);
            let daemon = settings.daemon.as_mut().expect("a daemon");
            (daemon.followed, daemon.goroutines, daemon.goroutine) = (false, false, None);
            push(Body::RequestSeen(settings));
        }
        push(Body::RequestSeen(step.clone()));
        if step.point == RequestPoint::Arrived && step.connection == 1 {
            let mut awaited = step;
            (awaited.point, awaited.bytes) = (RequestPoint::Awaited, 0);
            awaited.daemon.as_mut().expect("a daemon").goroutine = goroutine(31, received[0]);
            push(Body::RequestSeen(awaited));
        }
    }
    scene.events = events;
    scene.play()
}

#[test]
fn requests_at_once_are_told_apart_by_goroutines() {
    let played = of_goroutines([11, 12]);
    for (trace, holder, expected) in [
        (&played.closed[0], "of-one", [("file_lock", 385), ("daemon", 15)]),
        (&played.closed[1], "of-two", [("file_lock", 270), ("daemon", 420)]),
    ] {
        assert_eq!(
            threads_of(trace),
            Some(ThreadsAttribution::Goroutines),
            "{}",
            played.text()
        );
        assert_eq!(parts(trace, "daemon policy-daemon"), expected);
        let time = time_of(trace, "daemon policy-daemon").expect("a time");
        let lock = time
            .waits
            .iter()
            .find(|wait| wait.reason == TimeReason::FileLock)
            .expect("a lock");
        assert_eq!((lock.by.as_str(), lock.confidence), (holder, Some(Confidence::Likely)));
    }
    // One that receives for both says nothing about either.
    let played = of_goroutines([11, 11]);
    for trace in &played.closed {
        assert_eq!(
            threads_of(trace),
            Some(ThreadsAttribution::Ambiguous),
            "{}",
            played.text()
        );
    }
    assert_eq!(played.closed.len(), 2);
}

/// Its threads are followed only while it has a request, and nothing of them stays behind.
#[test]
fn a_daemon_without_a_request_is_nobody() {
    let (mut scene, plugin) = handed_over();
    scene.at(4_100).answers_by(1, plugin, WORKER, 111);
    // Of what comes now nothing is kept: it is a wait of nobody.
    scene.at(4_500).slept(WORKER, 4_110, FLOCK, stranger("ip", UNLOCK));
    scene.at(4_510).sends(1, plugin, WORKER);
    scene.at(4_700).answers_by(1, plugin, WORKER, 4_511);
    scene.at(4_710).exit(plugin, 0);
    scene.at(60_000).tick();
    let played = scene.play();
    let trace = &played.closed[0];
    let times: Vec<Vec<(&str, u64)>> = requests(trace)
        .iter()
        .map(|span| {
            let time = span.detail.time().expect("a time");
            time.parts
                .iter()
                .map(|(reason, ns)| (reason.as_str(), ns / 1_000_000))
                .collect()
        })
        .collect();
    assert_eq!(
        times,
        [vec![("processor", 90), ("file_lock", 3_900)], vec![("processor", 190)]]
    );
}
