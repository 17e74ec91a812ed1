//! What operations that still run wait for now, and what those that were cut off waited for.

use sandglass_model::event::ExitStatus;
use sandglass_model::network::{ConnectStep, Initiator, Step};
use sandglass_model::time::{MILLISECOND, SECOND};
use sandglass_model::waits::{
    LockBlocked, SocketSeen, ThreadSeen, ThreadState, ThreadTimes, ThreadWake, ThreadsSeen, TimeReason, Waiting, Waker,
};
use sandglass_model::{Body, ProcessKey, Timestamp, Trace, phases, registry};

use crate::scene::{Played, Scene, add};

fn ms(ms: u64) -> Timestamp {
    Timestamp(ms * MILLISECOND)
}

fn begin(process: ProcessKey) -> Timestamp {
    Timestamp(process.start_ticks * 10 * MILLISECOND)
}

/// The first thread of `process` sleeps since then, in `stack`.
fn asleep(process: ProcessKey, since: u64, stack: &[&str]) -> ThreadSeen {
    ThreadSeen {
        process,
        thread: process.pid,
        begin: begin(process),
        state: ThreadState::Asleep,
        since: ms(since),
        stack: stack.iter().collect(),
    }
}

fn unix(process: ProcessKey, path: &str, listener_name: &str) -> SocketSeen {
    SocketSeen {
        process,
        remote: None,
        udp: false,
        path: path.to_owned(),
        listener: 50,
        listener_name: listener_name.into(),
    }
}

fn tcp(process: ProcessKey, remote: &str) -> SocketSeen {
    SocketSeen {
        remote: Some(remote.parse().expect("an address")),
        listener: 0,
        ..unix(process, "", "")
    }
}

impl Scene {
    fn looked(&mut self, threads: Vec<ThreadSeen>, unchanged: &[u32], sockets: Vec<SocketSeen>) -> &mut Scene {
        let unchanged = unchanged.to_vec();
        self.event(Body::ThreadsSeen(Box::new(ThreadsSeen {
            threads,
            unchanged,
            sockets,
        })))
    }

    fn plugin_connects(&mut self, process: ProcessKey, remote: &str) -> &mut Scene {
        self.event(Body::ConnectSeen(Box::new(ConnectStep {
            netns: 1,
            socket: 9,
            local: "10.0.0.2:40000".parse().expect("an address"),
            remote: remote.parse().expect("an address"),
            initiator: Some(Initiator {
                process,
                comm: "plugin".into(),
            }),
            step: Step::Started,
            retransmits: 0,
        })))
    }

    /// `process` slept from `from` until now and was woken by something else.
    fn woken_by(&mut self, process: ProcessKey, from: u64, stack: &[&str], waker: &str, woke: &[&str]) -> &mut Scene {
        self.event(Body::ThreadWoken(Box::new(ThreadWake {
            times: ThreadTimes {
                process,
                thread: process.pid,
                begin: begin(process),
                processor_ns: ms(from).0,
                run_delay_ns: 0,
            },
            slept_from: ms(from),
            recovered: false,
            stack: stack.iter().collect(),
            goroutine: None,
            waker: Waker {
                process: ProcessKey {
                    pid: 77,
                    start_ticks: 0,
                },
                thread: 77,
                begin: Timestamp(0),
                name: waker.into(),
                cgroup: String::new(),
                stack: woke.iter().collect(),
            },
        })))
    }
}

fn waiting<'t>(trace: &'t Trace, name: &str) -> Option<&'t Waiting> {
    let span = trace.spans.iter().find(|span| registry::name(span) == name);
    registry::waiting_of(trace, span.expect("a span of this name"))
}

fn open(played: &Played) -> &Trace {
    played.correlator.open().next().expect("an open trace")
}

/// `portmap` waits for its `iptables`, which waits for the lock that kube-proxy holds; a look found both, the last event is
/// at 2,000 ms.
fn locked() -> (Scene, ProcessKey, ProcessKey) {
    let mut scene = Scene::new();
    scene.at(0).event(Body::WaitsRecorded { on: true });
    let plugin = scene.at(100).plugin("portmap", &add("sb", "eth0"));
    let command = scene.at(110).command(plugin, "/usr/sbin/iptables", &["-t", "nat"]);
    scene.at(200).event(Body::LockBlocked(Box::new(LockBlocked {
        pid: command.pid,
        path: "/run/xtables.lock".to_owned(),
        holder: 5,
        holder_name: "kube-proxy".into(),
    })));
    scene.at(1_200).looked(
        vec![
            asleep(plugin, 111, &["do_wait", "kernel_wait4"]),
            asleep(command, 114, &["locks_lock_inode_wait", "__do_sys_flock"]),
        ],
        &[],
        Vec::new(),
    );
    scene.at(2_000).tick();
    (scene, plugin, command)
}

#[test]
fn the_deepest_sleep_is_what_all_above_it_wait_for() {
    let (mut scene, plugin, command) = locked();
    let played = scene.play();
    let trace = open(&played);
    for name in ["command iptables", "plugin portmap", "cni ADD"] {
        let found = waiting(trace, name).expect("it waits");
        assert_eq!(found.since, ms(114), "{name}");
        assert_eq!(
            registry::waiting_text(found, false),
            "iptables waits for a lock on a file (/run/xtables.lock, held by kube-proxy), in locks_lock_inode_wait",
            "{name}"
        );
    }
    // What ends by itself waits for nothing any more.
    scene.at(2_100).woken_by(
        command,
        114,
        &["locks_lock_inode_wait"],
        "kube-proxy",
        &["__locks_wake_up_blocks"],
    );
    scene.at(2_110).exit(command, 0);
    scene.at(2_120).exit(plugin, 0);
    scene.at(60_000).tick();
    let played = scene.play();
    let trace = played.only();
    assert!(
        trace
            .spans
            .iter()
            .all(|span| registry::waiting_of(trace, span).is_none()),
        "{trace:?}"
    );
}

/// A look that does not have the threads any more, or has other sleeps.
#[test]
fn a_look_replaces_the_one_before() {
    let (mut scene, plugin, command) = locked();
    scene.at(2_100).looked(
        vec![asleep(command, 2_000, &["do_nanosleep"])],
        &[plugin.pid],
        Vec::new(),
    );
    let played = scene.play();
    let found = waiting(open(&played), "cni ADD").expect("it waits");
    assert_eq!((found.reason, found.since), (TimeReason::Timer, ms(2_000)));
    scene.at(3_100).looked(Vec::new(), &[], Vec::new());
    let played = scene.play();
    assert_eq!(waiting(open(&played), "cni ADD"), None);
    assert_eq!(waiting(open(&played), "command iptables"), None);
}

/// The span that the timeout ends has the time until then, and what it still waits for.
#[test]
fn a_plugin_that_its_timeout_cuts_off_says_what_it_waited_for() {
    let (mut scene, ..) = locked();
    scene.at(600_000).tick();
    let played = scene.play();
    let trace = played.only();
    let text = "iptables waited for a lock on a file (/run/xtables.lock, held by kube-proxy), in locks_lock_inode_wait";
    for name in ["command iptables", "plugin portmap", "cni ADD"] {
        let found = waiting(trace, name).expect("it waited");
        assert_eq!(registry::waiting_text(found, true), text, "{name}");
    }
    let plugin = trace
        .spans
        .iter()
        .find(|span| registry::name(span) == "plugin portmap")
        .expect("the plugin");
    let time = plugin.detail.time().expect("a time");
    assert_eq!(time.total_ns(), plugin.duration_ns(plugin.start));
    assert_eq!(
        time.parts.last().map(|part| part.0),
        Some(TimeReason::FileLock),
        "{time:?}"
    );
    assert!(time.parts.last().is_some_and(|part| part.1 > 299 * SECOND), "{time:?}");
    let verdict = phases::verdict(trace, ms(600_000));
    assert!(verdict.ends_with(text), "{verdict}");
}

/// The runtime kills the plugin; its command runs on. Who sent the signal is not what was waited for.
#[test]
fn a_plugin_that_was_killed_says_what_its_command_waited_for() {
    let (mut scene, plugin, command) = locked();
    let kill = [
        "try_to_wake_up",
        "signal_wake_up_state",
        "complete_signal",
        "__send_signal_locked",
        "kill_pid_info",
    ];
    scene
        .at(2_500)
        .woken_by(plugin, 111, &["do_wait", "kernel_wait4"], "containerd", &kill);
    scene.at(2_501).ended(plugin, ExitStatus::Signal(9));
    scene.at(60_000).exit(command, 0);
    scene.at(120_000).tick();
    let played = scene.play();
    let trace = played.only();
    let found = waiting(trace, "plugin portmap").expect("it waited");
    assert_eq!(
        (found.reason, found.what.as_str(), found.by.as_str()),
        (TimeReason::FileLock, "/run/xtables.lock", "kube-proxy")
    );
    assert!(waiting(trace, "cni ADD").is_some());
    let plugin = trace
        .spans
        .iter()
        .find(|span| registry::name(span) == "plugin portmap")
        .expect("the plugin");
    let time = plugin.detail.time().expect("a time");
    let parts: Vec<_> = time
        .parts
        .iter()
        .map(|(reason, ns)| (reason.as_str(), ns / MILLISECOND))
        .collect();
    assert_eq!(parts, [("processor", 15), ("file_lock", 2_386)]);
    assert!(time.waits.iter().all(|wait| wait.by != "containerd"), "{time:?}");
}

/// A program of many threads: the one that sleeps in a system call counts, not those that wait for it.
#[test]
fn the_most_telling_thread_of_a_process_counts() {
    let mut scene = Scene::new();
    scene.at(0).event(Body::WaitsRecorded { on: true });
    let plugin = scene.at(100).plugin("cilium-cni", &add("sb", "eth0"));
    let thread = |id, since, stack: &[&str]| ThreadSeen {
        thread: plugin.pid + id,
        ..asleep(plugin, since, stack)
    };
    let mut threads = vec![
        thread(0, 110, &["futex_do_wait", "__futex_wait"]),
        thread(1, 120, &["do_epoll_wait", "ep_poll"]),
        thread(2, 130, &["futex_do_wait"]),
    ];
    scene.at(1_200).looked(threads.clone(), &[], Vec::new());
    let played = scene.play();
    let found = waiting(open(&played), "plugin cilium-cni").expect("it waits");
    assert_eq!(
        (found.reason, found.what.as_str()),
        (TimeReason::Other, "do_epoll_wait"),
        "nothing says for what"
    );
    // Of a program that polls the sockets say it.
    let sockets = vec![unix(plugin, "/var/run/cilium/cilium.sock", "cilium-agent")];
    scene
        .at(2_200)
        .looked(Vec::new(), &[0, 1, 2].map(|id| plugin.pid + id), sockets.clone());
    let played = scene.play();
    let found = waiting(open(&played), "plugin cilium-cni").expect("it waits");
    assert_eq!(
        registry::waiting_text(found, false),
        "cilium-cni waits for another process (/var/run/cilium/cilium.sock, behind it cilium-agent), in do_epoll_wait"
    );
    // Two daemons: which of them is not known.
    let two = vec![sockets[0].clone(), unix(plugin, "/run/other.sock", "other")];
    scene
        .at(3_200)
        .looked(Vec::new(), &[0, 1, 2].map(|id| plugin.pid + id), two);
    let played = scene.play();
    assert_eq!(
        waiting(open(&played), "plugin cilium-cni").expect("it waits").reason,
        TimeReason::Other
    );
    // A thread that runs: it is the program that takes the time.
    threads[2].state = ThreadState::Running;
    scene.at(4_200).looked(threads, &[], sockets);
    let played = scene.play();
    let found = waiting(open(&played), "plugin cilium-cni").expect("it runs");
    assert_eq!(registry::waiting_text(found, false), "cilium-cni runs on a processor");
}

/// A network wait has the address that the process connected to, and the API server's name; while it lasts, and after it.
#[test]
fn waits_for_the_network_have_an_address() {
    let mut scene = Scene::new();
    scene.at(0).event(Body::ApiServerKnown {
        address: "10.96.0.1:443".parse().expect("an address"),
    });
    scene.at(0).event(Body::WaitsRecorded { on: true });
    let plugin = scene.at(100).plugin("calico", &add("sb", "eth0"));
    scene.at(110).plugin_connects(plugin, "10.96.0.1:443");
    scene.at(1_200).looked(
        vec![asleep(plugin, 111, &["do_epoll_wait"])],
        &[],
        vec![tcp(plugin, "10.96.0.1:443")],
    );
    let played = scene.play();
    assert_eq!(
        registry::waiting_text(waiting(open(&played), "cni ADD").expect("it waits"), false),
        "calico waits for the network (10.96.0.1:443, the API server), in do_epoll_wait"
    );
    let woke = ["try_to_wake_up", "sock_def_readable", "tcp_v4_rcv", "__irq_exit_rcu"];
    scene
        .at(1_300)
        .woken_by(plugin, 111, &["do_epoll_wait"], "swapper/0", &woke);
    scene.at(1_310).exit(plugin, 0);
    scene.at(60_000).tick();
    let played = scene.play();
    let time = played
        .only()
        .spans
        .iter()
        .find_map(|span| span.process()?.time.as_deref())
        .expect("a time");
    let longest = &time.waits[0];
    assert_eq!(
        (longest.reason, longest.what.as_str()),
        (TimeReason::Network, "10.96.0.1:443, the API server")
    );
}

/// With several connections the one that connect(2) sleeps for is known, and the one of an answer is not.
#[test]
fn of_several_connections_none_is_named_for_an_answer() {
    let mut scene = Scene::new();
    scene.at(0).event(Body::WaitsRecorded { on: true });
    let plugin = scene.at(100).plugin("calico", &add("sb", "eth0"));
    scene.at(110).plugin_connects(plugin, "10.0.0.1:2379");
    scene.at(200).plugin_connects(plugin, "10.0.0.2:2379");
    scene.at(1_000).woken_by(
        plugin,
        200,
        &["inet_wait_for_connect"],
        "swapper/0",
        &["tcp_v4_rcv", "__irq_exit_rcu"],
    );
    scene.at(2_000).woken_by(
        plugin,
        1_100,
        &["sk_wait_data"],
        "swapper/0",
        &["tcp_v4_rcv", "__irq_exit_rcu"],
    );
    scene.at(2_010).exit(plugin, 0);
    scene.at(60_000).tick();
    let played = scene.play();
    let time = played
        .only()
        .spans
        .iter()
        .find_map(|span| span.process()?.time.as_deref())
        .expect("a time");
    let whats: Vec<&str> = time.waits.iter().map(|wait| wait.what.as_str()).collect();
    assert_eq!(whats, ["", "connection to 10.0.0.2:2379"]);
}
