//! What the time of operations, plugins and commands went to.

use sandglass_model::phases::Breakdown;
use sandglass_model::time::MILLISECOND;
use sandglass_model::waits::{
    LockBlocked, RuntimeTimes, ThreadRun, ThreadTimes, ThreadWake, TimeReason, TimeSpent, Waker,
};
use sandglass_model::{Body, ProcessKey, Timestamp, Trace, phases, registry};

use crate::scene::{Scene, add};

pub const TIMER: &[&str] = &[
    "try_to_wake_up",
    "hrtimer_wakeup",
    "hrtimer_interrupt",
    "asm_sysvec_apic_timer_interrupt",
];

pub fn ms(ms: u64) -> Timestamp {
    Timestamp(ms * MILLISECOND)
}

/// Times of the first thread, which left the processor at `out`: it has run all the time, so that no time is unseen.
pub fn times(process: ProcessKey, out: Timestamp) -> ThreadTimes {
    ThreadTimes {
        process,
        thread: process.pid,
        begin: Timestamp(process.start_ticks * 10 * MILLISECOND),
        processor_ns: out.0,
        run_delay_ns: 0,
    }
}

impl Scene {
    pub fn recorded(&mut self, on: bool) -> &mut Scene {
        self.event(Body::WaitsRecorded { on })
    }

    /// `process` slept from `from` until now, in `stack`.
    pub fn woken(&mut self, process: ProcessKey, from: u64, stack: &[&str], waker: Waker) -> &mut Scene {
        self.event(Body::ThreadWoken(Box::new(ThreadWake {
            times: times(process, ms(from)),
            slept_from: ms(from),
            recovered: false,
            stack: stack.iter().collect(),
            goroutine: None,
            waker,
        })))
    }

    /// `process` waited for a processor from `from` until now.
    pub fn queued(&mut self, process: ProcessKey, from: u64, throttled_ms: u64) -> &mut Scene {
        self.event(Body::ThreadRan(Box::new(ThreadRun {
            times: times(process, ms(from)),
            runnable_from: ms(from),
            preempted: true,
            throttled_ns: throttled_ms * MILLISECOND,
        })))
    }
}

pub fn waker(process: ProcessKey, name: &str, stack: &[&str]) -> Waker {
    Waker {
        process,
        thread: process.pid,
        begin: Timestamp(0),
        name: name.into(),
        cgroup: String::new(),
        stack: stack.iter().collect(),
    }
}

pub fn stranger(name: &str, stack: &[&str]) -> Waker {
    let process = ProcessKey {
        pid: 77,
        start_ticks: 0,
    };
    waker(process, name, stack)
}

pub fn time_of<'t>(trace: &'t Trace, name: &str) -> Option<&'t TimeSpent> {
    let span = trace
        .spans
        .iter()
        .find(|span| registry::name(span) == name)
        .expect("a span of this name");
    let time = span.detail.time();
    if let Some(time) = time {
        assert_eq!(time.total_ns(), span.duration_ns(span.start), "{name}");
    }
    time
}

pub fn parts(trace: &Trace, name: &str) -> Vec<(&'static str, u64)> {
    let parts = &time_of(trace, name).expect("a time").parts;
    parts
        .iter()
        .map(|(reason, ns)| (reason.as_str(), ns / MILLISECOND))
        .collect()
}

/// A plugin's `iptables` waits for a lock that kube-proxy holds, below a plugin that waits for `iptables`; then comes the
/// next plugin of the chain, which the processors keep waiting.
fn locked() -> Scene {
    let mut scene = Scene::new();
    scene.at(0).recorded(false);
    scene.at(0).networks(&[("net", &["portmap", "tuning"])]);
    let plugin = scene.at(100).plugin("portmap", &add("sb", "eth0"));
    let command = scene.at(110).command(plugin, "/usr/sbin/iptables", &["-t", "nat"]);
    scene.at(150).recorded(true);
    scene.at(155).event(Body::LockBlocked(Box::new(LockBlocked {
        pid: command.pid,
        path: "/run/xtables.lock".to_owned(),
        holder: 5,
        holder_name: "kube-proxy".into(),
    })));
    scene.at(512).woken(
        command,
        114,
        &["locks_lock_inode_wait", "__do_sys_flock"],
        stranger(
            "kube-proxy",
            &["try_to_wake_up", "__locks_wake_up_blocks", "locks_remove_flock"],
        ),
    );
    scene.at(515).woken(
        plugin,
        111,
        &["do_wait", "kernel_wait4"],
        waker(command, "iptables", &["do_notify_parent"]),
    );
    scene.at(515).exit(command, 0);
    scene.at(520).exit(plugin, 0);
    let next = scene.at(530).plugin("tuning", &add("sb", "eth0"));
    scene.at(560).queued(next, 535, 0);
    scene.at(570).exit(next, 0);
    scene.at(571).recorded(false);
    scene.at(60_000).tick();
    scene
}

#[test]
fn a_lock_below_a_command_below_a_plugin_explains_the_operation() {
    let played = locked().play();
    let trace = &played.closed[0];
    assert_eq!(parts(trace, "command iptables"), [("processor", 7), ("file_lock", 398)]);
    assert_eq!(parts(trace, "plugin portmap"), [("processor", 22), ("file_lock", 398)]);
    assert_eq!(parts(trace, "plugin tuning"), [("processor", 15), ("run_queue", 25)]);
    // Recorded from 150 on, 50 after the plugin's begin. Of the time before only sums are known.
    let recorded_after = |name| time_of(trace, name).unwrap().recorded_after_ns / MILLISECOND;
    let names = ["cni ADD", "plugin portmap", "command iptables", "plugin tuning"];
    assert_eq!(names.map(recorded_after), [50, 50, 40, 0]);
    assert_eq!(
        parts(trace, "cni ADD"),
        [
            ("processor", 37),
            ("run_queue", 25),
            ("file_lock", 398),
            ("runtime", 10)
        ]
    );
    let verdict = phases::verdict(trace, ms(60_000));
    assert!(
        verdict.ends_with("iptables waited 398 ms for a lock on a file (/run/xtables.lock, held by kube-proxy)"),
        "{verdict}"
    );
}

/// Who wakes writes its record on another processor than the one that runs the thread. Where both come too late to be put in order,
/// the sleep is the same.
#[test]
fn a_wake_up_behind_the_run_that_it_led_to_is_still_the_end_of_a_sleep() {
    for swapped in [false, true] {
        let mut scene = Scene::new();
        scene.at(0).recorded(true);
        scene.at(0).networks(&[("net", &["portmap"])]);
        let plugin = scene.at(100).plugin("portmap", &add("sb", "eth0"));
        let woken = |scene: &mut Scene, from: u64, until: u64| {
            scene
                .at(until)
                .woken(plugin, from, &["hrtimer_nanosleep"], stranger("swapper", TIMER));
        };
        let ran = |scene: &mut Scene, from: u64, until: u64| {
            scene.at(until).event(Body::ThreadRan(Box::new(ThreadRun {
                times: times(plugin, ms(from)),
                runnable_from: ms(from),
                preempted: false,
                throttled_ns: 0,
            })));
        };
        woken(&mut scene, 110, 310);
        ran(&mut scene, 310, 320);
        if swapped {
            ran(&mut scene, 530, 540);
            woken(&mut scene, 330, 530);
        } else {
            woken(&mut scene, 330, 530);
            ran(&mut scene, 530, 540);
        }
        scene.at(560).queued(plugin, 550, 0);
        scene.at(570).exit(plugin, 0);
        scene.at(60_000).tick();
        assert_eq!(
            parts(&scene.play().closed[0], "plugin portmap"),
            [("processor", 40), ("run_queue", 30), ("timer", 400)],
            "swapped: {swapped}"
        );
    }
}

/// The spans of waits: name, name of the parent, milliseconds of begin and duration.
fn shown(trace: &Trace) -> Vec<(String, String, u64, u64)> {
    let waits = trace.spans.iter().filter(|span| span.detail.as_wait().is_some());
    waits
        .map(|span| {
            let parent = &trace.spans[span.parent.expect("a parent")];
            assert!(parent.start <= span.start && span.end <= parent.end, "{span:?}");
            let (start, duration) = (span.start.0 / MILLISECOND, span.duration_ns(span.start) / MILLISECOND);
            (registry::name(span), registry::name(parent), start, duration)
        })
        .collect()
}

/// A wait is a span below the process that waited, not below those that waited for that one; it takes no time from it.
#[test]
fn long_waits_are_spans_below_who_waited() {
    let played = locked().play();
    let trace = &played.closed[0];
    let wanted = [
        ("wait file_lock", "command iptables", 114, 398),
        ("wait run_queue", "plugin tuning", 535, 25),
    ];
    let wanted = wanted.map(|(name, parent, start, duration)| (name.to_owned(), parent.to_owned(), start, duration));
    assert_eq!(shown(trace), wanted);
    let lock = trace.spans.iter().find_map(|span| span.detail.as_wait()).unwrap();
    assert_eq!(
        (lock.what.as_str(), lock.by.as_str()),
        ("/run/xtables.lock", "kube-proxy")
    );
    let breakdown = Breakdown::of(trace, ms(60_000));
    let own = breakdown.own_ns.iter().zip(&trace.spans);
    for (own, _) in own.filter(|(_, span)| span.detail.as_wait().is_some()) {
        assert_eq!(*own, 0);
    }
    let sum: u64 = breakdown.phases.values().sum();
    assert_eq!(sum, breakdown.total_ns);
}

/// Of many waits the eight longest have spans, and a short one has none.
#[test]
fn only_the_longest_waits_of_a_process_are_spans() {
    let mut scene = Scene::new();
    scene.at(0).recorded(true);
    let plugin = scene.at(1_000).plugin("bridge", &add("sb", "eth0"));
    let mut at = 1_000;
    // 30 ms each, of about a second; the first ten are longer by one each.
    for wait in 0..20 {
        at += 45;
        let slept = if wait < 10 { 31 + wait } else { 30 };
        scene
            .at(at)
            .woken(plugin, at - slept, &["do_nanosleep"], stranger("swapper/0", TIMER));
    }
    // Below a fiftieth.
    scene
        .at(at + 20)
        .woken(plugin, at + 5, &["do_nanosleep"], stranger("swapper/0", TIMER));
    scene.at(at + 30).exit(plugin, 0);
    scene.at(60_000).tick();
    let played = scene.play();
    let durations: Vec<u64> = shown(&played.closed[0]).iter().map(|wait| wait.3).collect();
    assert_eq!(durations, [33, 34, 35, 36, 37, 38, 39, 40]);
}

/// The kernel's clean-up of nftables, done by one of its workers and then by another.
#[test]
fn waits_for_workers_of_the_kernel_are_one() {
    const CLEANED: &[&str] = &["__flush_work", "nft_rcv_nl_event", "netlink_release"];
    const DONE: &[&str] = &["complete_all", "process_one_work", "worker_thread"];
    let mut scene = Scene::new();
    scene.at(0).recorded(true);
    let plugin = scene.at(1_000).plugin("portmap", &add("sb", "eth0"));
    for (end, worker) in [(1_020, "kworker/0:1"), (1_040, "kworker/u8:12")] {
        scene.at(end).woken(plugin, end - 15, CLEANED, stranger(worker, DONE));
    }
    scene.at(1_042).exit(plugin, 0);
    scene.at(60_000).tick();
    let played = scene.play();
    let verdict = phases::verdict(&played.closed[0], ms(60_000));
    assert!(
        verdict.ends_with("portmap waited 2 times 30.0 ms for the kernel's own work (nftables, woken by kworker)"),
        "{verdict}"
    );
}

/// Records may have been lost between the last report and this one: what looks like time on a processor may have been a wait.
#[test]
fn a_loss_makes_the_time_around_it_unknown() {
    let lost = Body::Lost {
        probe: "exec".to_owned(),
        count: 3,
    };
    assert!(with_unknown_time(lost), "a record of a process may be missing too");
}

/// Waits that the kernel side left out on purpose take nothing from the trace but reasons.
#[test]
fn waits_that_were_left_out_make_the_time_around_them_unknown() {
    let limited = Body::Limited {
        probe: "waits".to_owned(),
        netns: 0,
        source: None,
    };
    assert!(!with_unknown_time(limited));
}

/// Plays a plugin whose wait is recorded, and `report` after its end. Returns whether its trace is incomplete.
fn with_unknown_time(report: Body) -> bool {
    let mut scene = Scene::new();
    scene.at(0).recorded(true);
    let plugin = scene.at(10_000).plugin("bridge", &add("sb", "eth0"));
    scene
        .at(10_400)
        .woken(plugin, 10_100, &["hrtimer_nanosleep"], stranger("swapper/0", TIMER));
    scene.at(10_500).exit(plugin, 0);
    // Reported after the plugin has ended, before its trace is closed.
    scene.at(10_600).event(report);
    let later = scene.at(20_000).plugin("bridge", &add("other", "eth0"));
    scene.at(20_100).exit(later, 0);
    scene.at(90_000).tick();
    let played = scene.play();
    let [of_plugin, of_later] = &played.closed[..] else {
        unreachable!("{:#?}", played.closed)
    };
    assert_eq!(parts(of_plugin, "plugin bridge"), [("timer", 300), ("unknown", 200)]);
    assert_eq!(parts(of_plugin, "cni ADD"), [("timer", 300), ("unknown", 200)]);
    assert_eq!(parts(of_later, "plugin bridge"), [("processor", 100)]);
    of_plugin.incomplete
}

#[test]
fn busy_processors_and_a_quota_are_told_apart() {
    for (throttled, reason, sentence) in [
        (
            0,
            "run_queue",
            ": the node's processors were busy, 80 % of it was waiting for one",
        ),
        (80, "throttled", ": its cgroup had used up its quota for 80 % of it"),
    ] {
        let mut scene = Scene::new();
        scene.at(0).recorded(true);
        let plugin = scene.at(100).plugin("bridge", &add("sb", "eth0"));
        scene.at(190).queued(plugin, 110, throttled);
        scene.at(200).exit(plugin, 0);
        scene.at(60_000).tick();
        let played = scene.play();
        assert_eq!(
            parts(&played.closed[0], "plugin bridge"),
            [("processor", 20), (reason, 80)]
        );
        let verdict = phases::verdict(&played.closed[0], ms(60_000));
        assert!(verdict.ends_with(sentence), "{verdict}");
    }
}

/// In an interrupt, who ran there is not the cause: a command that was merely interrupted is not what the plugin waited for.
#[test]
fn who_was_interrupted_is_no_cause() {
    let mut scene = Scene::new();
    scene.at(0).recorded(true);
    let plugin = scene.at(100).plugin("bridge", &add("sb", "eth0"));
    let command = scene.at(105).command(plugin, "/bin/busy", &[]);
    scene
        .at(180)
        .woken(plugin, 110, &["hrtimer_nanosleep"], waker(command, "busy", TIMER));
    scene.at(190).exit(command, 0);
    scene.at(200).exit(plugin, 0);
    scene.at(60_000).tick();
    let played = scene.play();
    assert_eq!(
        parts(&played.closed[0], "plugin bridge"),
        [("processor", 30), ("timer", 70)]
    );
    let wait = &time_of(&played.closed[0], "plugin bridge").unwrap().waits[0];
    assert_eq!((wait.reason, wait.by.as_str()), (TimeReason::Timer, ""));
}

/// A source that records no waits leaves no trace of them, and one that records none of an operation neither.
#[test]
fn what_was_not_recorded_has_no_time() {
    let mut scene = Scene::new();
    scene.at(100).ran("bridge", &add("sb", "eth0"), 100, 200);
    scene.at(300).recorded(true);
    scene.at(400).recorded(false);
    scene.ran("bridge", &add("other", "eth0"), 500, 600);
    scene.at(60_000).tick();
    for trace in &scene.play().closed {
        assert_eq!(time_of(trace, "plugin bridge"), None);
        assert_eq!(time_of(trace, "cni ADD"), None);
    }
}

/// Of two sleeps of the plugin the first was not seen. The scheduler has counted 20 ms on a processor of the 310 that seem to be run.
#[test]
fn a_sleep_that_was_not_seen_is_not_called_processor_time() {
    let mut scene = Scene::new();
    scene.at(0).recorded(true);
    let plugin = scene.at(100).plugin("bridge", &add("sb", "eth0"));
    scene.at(120).queued(plugin, 110, 0);
    scene.at(440).event(Body::ThreadWoken(Box::new(ThreadWake {
        times: ThreadTimes {
            processor_ns: times(plugin, ms(110)).processor_ns + 20 * MILLISECOND,
            ..times(plugin, ms(430))
        },
        slept_from: ms(430),
        recovered: false,
        stack: ["hrtimer_nanosleep"].into_iter().collect(),
        goroutine: None,
        waker: stranger("swapper/0", TIMER),
    })));
    scene.at(450).exit(plugin, 0);
    let played = scene.at(60_000).tick().play();
    assert_eq!(
        parts(&played.closed[0], "plugin bridge"),
        [("processor", 40), ("run_queue", 10), ("timer", 10), ("unknown", 290)]
    );
}

/// No wait of a plugin and of its command was seen. The counts at their ends divide their time.
#[test]
fn a_process_whose_waits_were_not_seen_ran_for_as_long_as_was_counted_by_its_end() {
    let mut scene = Scene::new();
    scene.at(0).recorded(true);
    let plugin = scene.at(100).plugin("bridge", &add("sb", "eth0"));
    let command = scene.at(110).command(plugin, "/bin/cat", &[]);
    let ended = |process: ProcessKey, ms: u64, run_delay_ms: u64| {
        Body::ThreadEnded(Box::new(ThreadTimes {
            processor_ns: ms * MILLISECOND,
            run_delay_ns: run_delay_ms * MILLISECOND,
            ..times(process, Timestamp(0))
        }))
    };
    scene.at(6_110).event(ended(command, 10, 5)).exit(command, 0);
    scene.at(6_200).event(ended(plugin, 40, 0)).exit(plugin, 0);
    let played = scene.at(60_000).tick().play();
    let closed = &played.closed[0];
    assert_eq!(
        parts(closed, "command cat"),
        [("processor", 10), ("run_queue", 5), ("unknown", 5_985)]
    );
    assert_eq!(parts(closed, "plugin bridge"), [("processor", 40), ("unknown", 6_060)]);
}

/// A storm of switches: above the bound the time is unknown, and memory stays. The next operation is recorded again.
#[test]
fn a_storm_of_waits_is_bounded_and_unknown_from_then_on() {
    let mut scene = Scene::new();
    scene.at(0).recorded(true);
    let plugin = scene.at(100).plugin("bridge", &add("sb", "eth0"));
    for at in 0..40_000 {
        scene
            .at(101 + at * 2)
            .woken(plugin, 100 + at * 2, &["do_wait"], stranger("x", &["futex_wake"]));
    }
    scene.at(100_000).exit(plugin, 0);
    scene.at(100_001).ran("bridge", &add("other", "eth0"), 100_001, 100_101);
    scene.at(160_000).tick();
    let played = scene.play();
    let storm = played
        .closed
        .iter()
        .find(|trace| trace.sandbox.as_ref().unwrap().0 == "sb")
        .unwrap();
    let unknown = time_of(storm, "plugin bridge").unwrap().parts.last().unwrap();
    assert_eq!(unknown.0, TimeReason::Unknown);
    assert!(unknown.1 > 30_000 * MILLISECOND, "{unknown:?}");
    let next = played
        .closed
        .iter()
        .find(|trace| trace.sandbox.as_ref().unwrap().0 == "other")
        .unwrap();
    assert_eq!(parts(next, "plugin bridge"), [("processor", 100)]);
}

impl Scene {
    /// The runtime's daemon has run and waited for processors for so many milliseconds by now.
    pub fn measured(&mut self, processor_ms: u64, run_delay_ms: u64) -> &mut Scene {
        let process = self.caller();
        self.event(Body::RuntimeMeasured(RuntimeTimes {
            process,
            processor_ns: processor_ms * MILLISECOND,
            run_delay_ns: run_delay_ms * MILLISECOND,
        }))
    }
}

/// On a busy node everything waits for processors: the plugin, the runtime's steps, and the runtime between them. None of them is
/// to blame.
#[test]
fn a_creation_on_a_busy_node_blames_the_processors() {
    let mut scene = Scene::new();
    scene.at(0).recorded(true);
    scene.at(90).measured(1_000, 2_000);
    let plugin = scene.at(100).plugin("bridge", &add("sb", "eth0"));
    scene.at(190).queued(plugin, 120, 0);
    scene.at(200).exit(plugin, 0);
    scene.at(200).measured(1_010, 2_050);
    // 200 ms for which the daemon's threads could run three times: one ran, two waited.
    scene.at(400).measured(1_210, 2_450);
    let create = scene.at(400).runtime("/usr/bin/runc", &["create", "sb"]);
    scene.at(480).queued(create, 420, 0);
    let init = stranger(
        "runc:[2:INIT]",
        &["try_to_wake_up", "sock_def_readable", "unix_stream_sendmsg"],
    );
    scene.at(490).woken(create, 482, &["unix_stream_read_generic"], init);
    scene.at(500).exit(create, 0);
    scene.at(500).measured(1_220, 2_460);
    let start = scene.at(520).runtime("/usr/bin/runc", &["start", "sb"]);
    scene.at(560).exit(start, 0);
    scene.at(60_000).tick();
    let played = scene.play();
    let trace = &played.closed[0];
    assert_eq!(
        parts(trace, "runtime create"),
        [("processor", 32), ("run_queue", 60), ("child", 8)]
    );
    assert_eq!(parts(trace, "runtime start"), [("processor", 40)]);
    assert_eq!(
        parts(trace, "sandbox.create"),
        [
            ("processor", 30 + 66 + 32 + 40),
            ("run_queue", 70 + 133 + 60),
            ("child", 8),
            // Nothing was measured behind `runc create`.
            ("unknown", 20)
        ]
    );
    let create = trace.spans.iter().find(|span| registry::name(span) == "runtime create");
    let wait = trace.spans.iter().find(|span| {
        let parent = span.parent.map(|parent| registry::name(&trace.spans[parent]));
        span.detail.as_wait().is_some() && parent.as_deref() == Some("runtime create")
    });
    assert!(create.is_some() && wait.is_some(), "a step's long wait has a span");
    assert_eq!(
        phases::verdict(trace, ms(60_000)),
        "sandbox.create took 460 ms: the node's processors were busy, 57 % of it was waiting for one"
    );
}

/// Of a step that nothing was recorded of, and of a daemon that was not measured, nothing is known.
#[test]
fn a_creation_of_which_nothing_was_recorded_has_no_time() {
    let mut scene = Scene::new();
    scene.at(0).recorded(false);
    scene.ran("bridge", &add("sb", "eth0"), 100, 200);
    scene.containerd_starts("sb", 210);
    scene.at(60_000).tick();
    let played = scene.play();
    assert!(played.closed[0].spans.iter().all(|span| span.detail.time().is_none()));
}
