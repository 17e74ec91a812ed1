//! Locks: which waits were for one, for which, and who held it.

use sandglass_model::locks::{FileLockTry, KernelLockKind, KernelLockWait, LockHolder, LockOutcome};
use sandglass_model::waits::{TimeReason, WaitGroup};
use sandglass_model::{Body, ProcessKey, Timestamp, Trace, registry};

use crate::scene::{Scene, add};
use crate::waits::{TIMER, ms, parts, stranger, time_of, waker};

const FLOCK: &[&str] = &["locks_lock_inode_wait", "__do_sys_flock"];
const UNLOCK: &[&str] = &["try_to_wake_up", "__locks_wake_up_blocks", "locks_unlink_lock_ctx"];
const SELECT: &[&str] = &["poll_schedule_timeout.constprop.0", "do_select"];
const RTNL_RELEASE: &[&str] = &[
    "try_to_wake_up",
    "wake_up_q",
    "__mutex_unlock_slowpath.isra.0",
    "__rtnl_unlock",
];

impl Scene {
    /// `process` tried to lock the file with this inode.
    fn tried(&mut self, process: ProcessKey, inode: u64, outcome: LockOutcome, holder: (u32, &str)) -> &mut Scene {
        self.event(Body::FileLockTried(Box::new(FileLockTry {
            process,
            thread: process.pid,
            outcome,
            device: 25,
            inode,
            path: format!("/run/lock-{inode}"),
            holder: holder.0,
            holder_name: holder.1.into(),
        })))
    }

    /// `process` waited since `from` for the lock with this number, which one that has this stack wanted.
    fn contended(&mut self, process: ProcessKey, from: u64, (lock, stack): (u32, &[&str]), holder: &str) -> &mut Scene {
        self.event(Body::KernelLockWaited(Box::new(KernelLockWait {
            process,
            thread: process.pid,
            begin: Timestamp(process.start_ticks * 10_000_000),
            from: ms(from),
            kind: KernelLockKind::Mutex,
            lock,
            symbol: "".into(),
            stack: stack.iter().collect(),
            holder: (!holder.is_empty()).then(|| LockHolder {
                process: ProcessKey {
                    pid: 90,
                    start_ticks: 1,
                },
                thread: 90,
                name: holder.into(),
            }),
        })))
    }
}

/// A scene with waits recorded from the begin, and a plugin in it.
fn begun() -> (Scene, ProcessKey) {
    let mut scene = Scene::new();
    scene.at(0).recorded(false);
    scene.at(0).networks(&[("net", &["portmap"])]);
    scene.at(50).recorded(true);
    let plugin = scene.at(100).plugin("portmap", &add("sb", "eth0"));
    (scene, plugin)
}

fn longest(trace: &Trace, name: &str) -> WaitGroup {
    time_of(trace, name).expect("a time").waits[0].clone()
}

/// The kernel reported neither the wake-up nor that the thread ran again.
#[test]
fn a_pause_whose_end_was_not_seen_is_a_wait_for_the_lock_between_two_tries_only() {
    let (mut scene, plugin) = begun();
    let command = scene.at(110).command(plugin, "/usr/sbin/iptables", &["-w", "5"]);
    scene.at(120).tried(command, 7, LockOutcome::Busy, (5, "kube-proxy"));
    scene.at(220).woken(command, 120, &[], stranger("", &[]));
    scene.at(220).tried(command, 7, LockOutcome::Taken, (0, ""));
    scene.at(300).woken(command, 240, &[], stranger("", &[]));
    scene.at(310).exit(command, 0);
    scene.at(320).exit(plugin, 0);
    scene.at(60_000).tick();
    let played = scene.play();
    assert_eq!(
        parts(&played.closed[0], "command iptables"),
        [("processor", 40), ("file_lock", 100), ("unknown", 60)]
    );
}

/// iptables before 1.8.9 with a limit (`-w 5`) tries the lock, sleeps in select(2), and tries again; its last sleep has no try behind it.
#[test]
fn a_program_that_tries_again_and_again_waits_for_the_lock() {
    let (mut scene, plugin) = begun();
    let command = scene.at(110).command(plugin, "/usr/sbin/iptables", &["-w", "5"]);
    scene.at(120).tried(command, 7, LockOutcome::Busy, (5, "kube-proxy"));
    scene.at(220).woken(command, 120, SELECT, stranger("swapper", TIMER));
    // Another file in between, which is free: nothing to do with it.
    scene.at(220).tried(command, 8, LockOutcome::Taken, (0, ""));
    scene
        .at(221)
        .tried(command, 7, LockOutcome::Busy, (6, "iptables-resto"));
    // The kernel did not report this wake-up.
    scene.at(321).woken(command, 221, SELECT, stranger("", &[]));
    scene.at(322).tried(command, 7, LockOutcome::Taken, (0, ""));
    // Asleep for a reason of its own.
    scene.at(380).woken(command, 340, SELECT, stranger("swapper", TIMER));
    scene.at(390).tried(command, 7, LockOutcome::Busy, (5, "kube-proxy"));
    scene.at(400).woken(command, 390, SELECT, stranger("swapper", TIMER));
    scene.at(410).exit(command, 4);
    scene.at(420).exit(plugin, 1);
    scene.at(60_000).tick();
    let played = scene.play();
    let trace = &played.closed[0];
    assert_eq!(
        parts(trace, "command iptables"),
        [("processor", 50), ("file_lock", 200), ("timer", 50)]
    );
    let waits = &time_of(trace, "command iptables").unwrap().waits;
    let locks: Vec<_> = waits
        .iter()
        .filter(|wait| wait.reason == TimeReason::FileLock)
        .collect();
    assert_eq!(locks.len(), 2, "{waits:?}");
    for (lock, by) in locks.iter().zip(["kube-proxy", "iptables-resto"]) {
        assert_eq!((lock.what.as_str(), lock.by.as_str()), ("/run/lock-7", by));
    }
}

/// The one who had the lock when the wait began has passed it on: the last holder is named, which released it.
#[test]
fn the_last_holder_of_a_file_is_named() {
    let (mut scene, plugin) = begun();
    scene.at(119).tried(plugin, 7, LockOutcome::Blocked, (5, "kube-proxy"));
    scene
        .at(300)
        .woken(plugin, 120, FLOCK, stranger("iptables-resto", UNLOCK));
    // Woken by a signal: who had it then is all that is known.
    scene.at(309).tried(plugin, 7, LockOutcome::Blocked, (5, "kube-proxy"));
    scene.at(400).woken(
        plugin,
        310,
        FLOCK,
        stranger("killer", &["try_to_wake_up", "signal_wake_up_state"]),
    );
    scene.at(420).exit(plugin, 0);
    scene.at(60_000).tick();
    let played = scene.play();
    let time = time_of(&played.closed[0], "plugin portmap").unwrap();
    let named: Vec<_> = time
        .waits
        .iter()
        .map(|wait| (wait.ns / 1_000_000, wait.by.as_str()))
        .collect();
    assert_eq!(named, [(180, "iptables-resto"), (90, "kube-proxy")]);
    assert!(time.waits.iter().all(|wait| wait.what == "/run/lock-7"));
}

/// Two operations, one plugin each, and one lock: what the other did meanwhile is in its own trace.
#[test]
fn a_holder_in_another_operation_is_named_and_not_followed() {
    let mut scene = Scene::new();
    scene.at(0).recorded(false);
    scene.at(0).networks(&[("net", &["host-local"])]);
    scene.at(50).recorded(true);
    let first = scene.at(100).plugin("host-local", &add("a", "eth0"));
    let second = scene.at(101).plugin("host-local", &add("b", "eth0"));
    scene
        .at(110)
        .tried(second, 7, LockOutcome::Blocked, (first.pid, "host-local"));
    // The holder waits for a disk.
    scene.at(180).woken(
        first,
        120,
        &["folio_wait_writeback", "do_fsync"],
        stranger("kworker", TIMER),
    );
    scene
        .at(200)
        .woken(second, 111, FLOCK, waker(first, "host-local", UNLOCK));
    // And here for the RTNL, without a report of the lock itself.
    scene
        .at(240)
        .woken(second, 210, &["rtnl_newlink"], waker(first, "host-local", RTNL_RELEASE));
    scene.at(250).exit(first, 0);
    scene.at(260).exit(second, 0);
    scene.at(60_000).tick();
    let played = scene.play();
    let trace_of = |id: &str| {
        let is_it = |trace: &&Trace| trace.sandbox.as_ref().is_some_and(|sandbox| sandbox.0 == id);
        played.closed.iter().find(is_it).unwrap()
    };
    assert_eq!(
        parts(trace_of("b"), "plugin host-local"),
        [("processor", 40), ("file_lock", 89), ("kernel_lock", 30)]
    );
    let wait = longest(trace_of("b"), "plugin host-local");
    assert_eq!((wait.what.as_str(), wait.by.as_str()), ("/run/lock-7", "host-local"));
    assert_eq!(
        parts(trace_of("a"), "plugin host-local"),
        [("processor", 90), ("disk", 60)]
    );
}

/// A wait for the RTNL: it spins, sleeps twice, waits for a processor in between. Then the same lock is wanted by a function without a name.
#[test]
fn a_lock_of_the_kernel_has_a_name_and_its_last_holder() {
    let (mut scene, plugin) = begun();
    let taking: &[&str] = &[
        "bpf_trace_run2",
        "__mutex_lock.constprop.0",
        "rtnl_newlink",
        "rtnetlink_rcv_msg",
    ];
    // 110 to 120 it spins; 120 to 200 it sleeps and the waker is known; 200 to 230 it waits for a processor; to 240 it spins.
    scene
        .at(200)
        .woken(plugin, 120, &["rtnl_newlink"], stranger("ip", RTNL_RELEASE));
    scene.at(230).queued(plugin, 200, 0);
    scene.at(240).contended(plugin, 110, (1, taking), "dhcpcd");
    let other: &[&str] = &["__mutex_lock.constprop.0", "something_new"];
    // A timer interrupt that wakes it is no cause.
    scene
        .at(290)
        .woken(plugin, 250, &["something_new"], stranger("swapper", TIMER));
    scene.at(290).contended(plugin, 250, (1, other), "dhcpcd");
    scene
        .at(310)
        .woken(plugin, 300, &["something_new"], stranger("swapper", TIMER));
    scene.at(310).contended(plugin, 300, (2, other), "");
    scene.at(320).exit(plugin, 0);
    scene.at(60_000).tick();
    let played = scene.play();
    let trace = &played.closed[0];
    assert_eq!(
        parts(trace, "plugin portmap"),
        [("processor", 40), ("run_queue", 30), ("kernel_lock", 150)]
    );
    let waits = &time_of(trace, "plugin portmap").unwrap().waits;
    let locks = waits.iter().filter(|wait| wait.reason == TimeReason::KernelLock);
    let locks: Vec<_> = locks
        .map(|wait| (wait.ns / 1_000_000, wait.count, wait.what.as_str(), wait.by.as_str()))
        .collect();
    assert_eq!(
        locks,
        [
            (80, 1, "rtnl", "ip"),
            (60, 3, "rtnl", "dhcpcd"),
            (10, 1, "something_new", "")
        ]
    );
    assert!(
        registry::wait_text(&waits[0]).ends_with("(rtnl, held by ip)"),
        "{waits:?}"
    );
}

/// A mutex that only puts the callers of RCU in order is no lock to blame.
#[test]
fn a_lock_of_the_kernels_own_work_is_that_work() {
    let (mut scene, plugin) = begun();
    let taking: &[&str] = &[
        "__mutex_lock.constprop.0",
        "exp_funnel_lock",
        "synchronize_rcu_expedited",
    ];
    scene
        .at(200)
        .woken(plugin, 110, &["exp_funnel_lock"], stranger("ip", RTNL_RELEASE));
    scene.at(200).contended(plugin, 110, (9, taking), "ip");
    scene.at(210).exit(plugin, 0);
    scene.at(60_000).tick();
    let played = scene.play();
    assert_eq!(
        parts(&played.closed[0], "plugin portmap"),
        [("processor", 20), ("kernel_work", 90)]
    );
}
