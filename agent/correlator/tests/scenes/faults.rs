//! What goes wrong on a node and in the observation of it: each has a defined outcome.

use sandglass_model::event::{ExitStatus, PluginIo};
use sandglass_model::time::{MILLISECOND, SECOND};
use sandglass_model::{Body, ProcessKey, Timestamp};

use crate::scene::{Scene, add, assert_text, del};

#[test]
fn a_plugin_that_never_exits_is_shown_as_running_and_given_up_at_the_deadline() {
    let mut scene = Scene::new();
    let plugin = scene.at(0).plugin("slow", &add("sb", "eth0"));
    let sleep = scene.at(5).command(plugin, "/bin/sleep", &["inf"]);
    scene.at(299_999).tick();
    let played = scene.play();
    assert_text(
        &played.text(),
        "
open:
sandbox             +0 ns    300 s+ [sb, containerd, running]
  sandbox.create    +0 ns    300 s+ [running]
    cni ADD         +0 ns    300 s+ [eth0, running]
      plugin slow   +0 ns    300 s+ [running]
        command sleep +5.00 ms 300 s+ [inf, running]
",
    );
    assert_eq!(played.correlator.next_deadline(), Some(Timestamp(300 * SECOND)));
    // The tick comes late, the end is the deadline's all the same. Later exits change nothing.
    scene
        .at(305_000)
        .tick()
        .at(306_000)
        .exit(sleep, 0)
        .at(307_000)
        .exit(plugin, 0);
    let played = scene.play().finish();
    assert_text(
        &played.text(),
        "
sandbox             +0 ns    300 s [sb, containerd, error sandbox_failed: cni ADD eth0: still running after 300 s]
  sandbox.create    +0 ns    300 s [error sandbox_failed: cni ADD eth0: still running after 300 s]
    cni ADD         +0 ns    300 s [eth0, error deadline: still running after 300 s]
      plugin slow   +0 ns    300 s [error deadline: still running after 300 s]
        command sleep +5.00 ms 300 s [inf, error deadline: still running after 300 s]
",
    );
    assert_eq!(played.only().spans[0].end, Some(Timestamp(300 * SECOND)));
    assert_eq!(played.counters().orphan, 0);
}

/// The node is suspended for an hour while a plugin runs: the boot clock goes on meanwhile (`CLOCK_BOOTTIME`, clock_gettime(2)), so that the first
/// tick afterwards is an hour later. What ran over its deadline is given up there, whatever comes next; a sandbox made after that is whole.
#[test]
fn a_suspend_ends_what_was_open_at_its_deadline_and_nothing_else() {
    const HOUR: u64 = 3_600_000;
    let mut scene = Scene::by_runtime("cnitool");
    let before = scene.at(0).plugin("bridge", &add("a", "eth0"));
    scene.at(10).tick();
    scene.at(HOUR).tick();
    scene.at(HOUR + 20).exit(before, 0);
    let after = scene.at(HOUR + 100).plugin("bridge", &add("b", "eth0"));
    scene.at(HOUR + 150).exit(after, 0);
    scene.at(HOUR + 1_000).tick();
    let played = scene.play().finish();
    assert_eq!(played.closed.len(), 2, "{}", played.text());
    let [a, b] = [&played.closed[0], &played.closed[1]];
    assert_eq!(a.root().end, Some(Timestamp(300 * SECOND)));
    assert!(
        a.root().status.is_error() && !b.root().status.is_error(),
        "{}",
        played.text()
    );
    assert_eq!(b.root().end.map(|end| end.since(b.start())), Some(50 * MILLISECOND));
    assert_eq!(played.counters().orphan, 0);
}

/// Two threads of a process that end within the same nanoseconds may both report its end (`take_role()` in `probes/bpf/process.h`).
#[test]
fn an_end_that_is_reported_twice_is_one_end() {
    let text = |reports: usize| {
        let mut scene = Scene::by_runtime("cnitool");
        let plugin = scene.at(0).plugin("bridge", &add("sb", "eth0"));
        let ip = scene.at(5).command(plugin, "/sbin/ip", &["link"]);
        for report in 0..reports {
            scene.at(10 + report as u64).exit(ip, 1);
        }
        for report in 0..reports {
            let io = PluginIo {
                process: plugin,
                netconf: None,
                error: None,
                addresses: vec!["10.0.0.7".to_owned()],
            };
            scene.at(20 + report as u64).plugin_io(io).exit(plugin, 0);
        }
        let played = scene.play().finish();
        assert_eq!(played.closed.len(), 1);
        assert_eq!(played.counters().orphan, 0);
        played.text()
    };
    assert_eq!(text(2), text(1));
}

#[test]
fn a_plugin_killed_by_a_signal_says_which() {
    let mut scene = Scene::by_runtime("cnitool");
    let plugin = scene.at(0).plugin("slow", &add("sb", "eth0"));
    let sleep = scene.at(1).command(plugin, "/bin/sleep", &["9"]);
    scene
        .at(100)
        .ended(plugin, ExitStatus::Signal(9))
        .at(101)
        .ended(sleep, ExitStatus::Signal(15));
    scene.at(1_000).tick();
    assert_text(
        &scene.play().finish().text(),
        "
sandbox             +0 ns    100 ms [sb, cnitool, error sandbox_failed: cni ADD eth0: plugin slow was killed by signal 9 (SIGKILL)]
  sandbox.create    +0 ns    100 ms [error sandbox_failed: cni ADD eth0: plugin slow was killed by signal 9 (SIGKILL)]
    cni ADD         +0 ns    100 ms [eth0, error signal: plugin slow was killed by signal 9 (SIGKILL)]
      plugin slow   +0 ns    100 ms [error signal: plugin slow was killed by signal 9 (SIGKILL)]
        command sleep +1.00 ms 99.0 ms [9, ran on]
",
    );
}

#[test]
fn a_pid_that_is_used_again_ends_who_had_it() {
    let mut scene = Scene::by_runtime("cnitool");
    let plugin = scene.at(0).plugin("bridge", &add("a", "eth0"));
    let command = scene.at(1).command(plugin, "/bin/ip", &[]);
    let again = ProcessKey {
        pid: command.pid,
        start_ticks: command.start_ticks + 5,
    };
    let other = scene.at(50).plugin("bridge", &add("b", "eth0"));
    scene.at(60).event(Body::ProcessForked(sandglass_model::event::Fork {
        process: again,
        parent: other,
        thread: None,
        goroutine: None,
    }));
    // The old process cannot come back.
    let caller = scene.caller();
    scene.at(61).exec(command, caller, "/bin/late", &[], &Vec::new());
    scene
        .at(70)
        .exit(again, 0)
        .exit(plugin, 0)
        .exit(other, 0)
        .at(2_000)
        .tick();
    let played = scene.play().finish();
    assert_text(
        &played.text(),
        "
sandbox             +0 ns    70.0 ms [a, incomplete, cnitool]
  sandbox.create    +0 ns    70.0 ms
    cni ADD         +0 ns    70.0 ms [eth0]
      plugin bridge +0 ns    70.0 ms
        command ip  +1.00 ms 59.0 ms [end not seen]
sandbox             +0 ns    20.0 ms [b, cnitool]
  sandbox.create    +0 ns    20.0 ms
    cni ADD         +0 ns    20.0 ms [eth0]
      plugin bridge +0 ns    20.0 ms
",
    );
    assert_eq!(played.counters().orphan, 1);
}

#[test]
fn an_exit_that_nobody_saw_is_no_failure_but_incomplete() {
    let mut scene = Scene::by_runtime("cnitool");
    let plugin = scene.at(0).plugin("bridge", &add("sb", "eth0"));
    scene.at(10).ended(plugin, ExitStatus::Unknown).at(1_000).tick();
    assert_text(
        &scene.play().finish().text(),
        "
sandbox             +0 ns    10.0 ms [sb, incomplete, cnitool]
  sandbox.create    +0 ns    10.0 ms
    cni ADD         +0 ns    10.0 ms [eth0]
      plugin bridge +0 ns    10.0 ms [end not seen]
",
    );
}

#[test]
fn a_lost_exit_ends_with_the_parent_or_at_the_deadline() {
    let mut scene = Scene::by_runtime("cnitool");
    let plugin = scene.at(0).plugin("bridge", &add("sb", "eth0"));
    scene.at(1).command(plugin, "/bin/ip", &[]);
    scene.at(9).lost(1).at(10).exit(plugin, 0).at(1_000).tick();
    scene.at(1_100).plugin("bridge", &del("sb", "eth0"));
    scene.at(302_000).tick();
    assert_text(
        &scene.play().finish().text(),
        "
sandbox             +0 ns    10.0 ms [sb, incomplete, cnitool, records lost exec 1]
  sandbox.create    +0 ns    10.0 ms
    cni ADD         +0 ns    10.0 ms [eth0]
      plugin bridge +0 ns    10.0 ms
        command ip  +1.00 ms 9.00 ms [ran on]
cni DEL             +0 ns    300 s   [sb, eth0, error deadline: still running after 300 s]
  plugin bridge     +0 ns    300 s   [error deadline: still running after 300 s]
",
    );
}

#[test]
fn a_loss_marks_what_is_open_and_what_begins_soon_after() {
    let mut scene = Scene::by_runtime("cnitool");
    scene.ran("bridge", &add("before", "eth0"), 0, 10);
    let open = scene.at(2_000).plugin("bridge", &add("open", "eth0"));
    scene.at(2_010).lost(3).at(2_020).exit(open, 0);
    scene.ran("bridge", &add("soon", "eth0"), 3_000, 3_010);
    scene.ran("bridge", &add("later", "eth0"), 3_100, 3_110);
    scene.at(9_000).tick();
    let played = scene.play().finish();
    let incomplete: Vec<_> = played.closed.iter().map(|trace| trace.incomplete).collect();
    assert_eq!(incomplete, [false, true, true, false]);
    assert_eq!(played.closed[1].root().events.len(), 1);
}

#[test]
fn an_agent_started_in_the_middle_goes_on_from_what_runs() {
    let mut scene = Scene::by_runtime("cnitool");
    let env = add("sb", "eth0");
    let caller = scene.caller();
    let plugin = scene.new_process();
    let mut found = scene.exec_event(plugin, caller, "/opt/cni/bin/slow", &["x"], &env);
    found.running = true;
    scene.event(Body::ProcessExecuted(Box::new(found.clone())));
    // A subshell looks like its parent; a command does not.
    found.process = scene.new_process();
    found.parent = plugin;
    let subshell = found.process;
    scene.event(Body::ProcessExecuted(Box::new(found)));
    let sleep = scene.at(3).new_process();
    let mut found = scene.exec_event(sleep, subshell, "/bin/sleep", &["9"], &env);
    found.running = true;
    scene.event(Body::ProcessExecuted(Box::new(found)));
    scene
        .at(40)
        .exit(sleep, 0)
        .at(41)
        .exit(subshell, 0)
        .at(50)
        .exit(plugin, 0);
    scene
        .at(51)
        .exit(ProcessKey { pid: 5, start_ticks: 1 }, 0)
        .at(1_000)
        .tick();
    let played = scene.play().finish();
    assert_text(
        &played.text(),
        "
sandbox             +0 ns    50.0 ms [sb, incomplete, cnitool]
  sandbox.create    +0 ns    50.0 ms
    cni ADD         +0 ns    50.0 ms [eth0]
      plugin slow   +0 ns    50.0 ms [found running]
        command sleep +3.00 ms 37.0 ms [9, found running]
",
    );
    assert_eq!(played.counters().orphan, 1, "the exit of a process not reported");
}

#[test]
fn what_both_the_kernel_and_the_search_saw_is_one() {
    for kernel_first in [true, false] {
        let mut scene = Scene::by_runtime("cnitool");
        let env = add("sb", "eth0");
        let caller = scene.caller();
        let plugin = scene.new_process();
        let seen = scene.exec_event(plugin, caller, "/opt/cni/bin/bridge", &[], &env);
        let mut found = seen.clone();
        found.running = true;
        let (first, second) = if kernel_first { (seen, found) } else { (found, seen) };
        scene.at(3).event(Body::ProcessExecuted(Box::new(first)));
        scene.at(5).event(Body::ProcessExecuted(Box::new(second)));
        scene.at(9).exit(plugin, 0).exit(plugin, 0).at(1_000).tick();
        let played = scene.play().finish();
        let trace = played.only();
        assert_eq!(trace.spans.len(), 4);
        assert_eq!(trace.incomplete, !kernel_first);
        assert_eq!(trace.spans[3].events, []);
        assert_eq!(played.counters().orphan, 0);
    }
}

#[test]
fn events_of_nobody_are_orphans() {
    let mut scene = Scene::new();
    let nobody = ProcessKey { pid: 7, start_ticks: 7 };
    scene.at(1).exit(nobody, 0);
    let other = ProcessKey { pid: 8, start_ticks: 7 };
    let child = scene.fork(other);
    scene.plugin_io(PluginIo {
        process: child,
        netconf: None,
        error: None,
        addresses: Vec::new(),
    });
    scene.exec(child, other, "/bin/sh", &[], &Vec::new());
    assert_eq!(scene.play().counters().orphan, 4);
}

#[test]
fn too_many_traces_give_up_the_oldest() {
    let mut scene = Scene::by_runtime("cnitool");
    scene.config.max_traces = 2;
    let first = scene.at(0).plugin("bridge", &add("a", "eth0"));
    scene.at(1).plugin("bridge", &add("b", "eth0"));
    scene.at(2).plugin("bridge", &add("c", "eth0"));
    scene.at(3).exit(first, 0);
    let played = scene.play();
    assert_eq!(played.counters().evicted_traces.total(), 1);
    assert_eq!(played.counters().orphan, 0);
    assert_eq!(played.correlator.sizes().traces, 2);
    assert_text(
        &sandglass_model::text::tree(played.only(), Timestamp(0)),
        "
sandbox             +0 ns    2.00 ms [a, incomplete, cnitool]
  sandbox.create    +0 ns    2.00 ms
    cni ADD         +0 ns    2.00 ms [eth0]
      plugin bridge +0 ns    2.00 ms [end not seen]
",
    );
}

#[test]
fn too_many_processes_forget_the_oldest_that_have_no_span() {
    let mut scene = Scene::by_runtime("cnitool");
    scene.config.max_processes = 10;
    let plugin = scene.at(0).plugin("fork-bomb", &add("sb", "eth0"));
    for ms in 1..100 {
        scene.at(ms).fork(plugin);
    }
    scene.at(100).exit(plugin, 0).at(1_000).tick();
    let played = scene.play();
    assert_eq!(played.correlator.sizes().processes, 10);
    assert_eq!(played.counters().evicted_processes.total(), 90);
    assert_eq!(played.counters().orphan, 0, "the plugin itself was kept");
    assert!(!played.only().incomplete);
}

#[test]
fn too_many_processes_with_spans_end_the_oldest() {
    let mut scene = Scene::by_runtime("cnitool");
    scene.config.max_processes = 2;
    let plugin = scene.at(0).plugin("bridge", &add("sb", "eth0"));
    scene.at(1).command(plugin, "/bin/a", &[]);
    scene.at(2).command(plugin, "/bin/b", &[]);
    let played = scene.play();
    assert_eq!(played.counters().evicted_processes.total(), 1);
    let text = played.text();
    assert!(
        text.contains("plugin bridge") && text.contains("end not seen"),
        "{text}"
    );
}

#[test]
fn a_full_trace_refuses_commands_before_plugins() {
    let mut scene = Scene::by_runtime("cnitool");
    scene.config.max_spans = 16;
    let plugin = scene.at(0).plugin("portmap", &add("sb", "eth0"));
    for ms in 1..100 {
        let command = scene.at(ms).command(plugin, "/sbin/iptables", &[]);
        scene.exit(command, 0);
    }
    scene.at(100).exit(plugin, 0);
    scene.ran("firewall", &add("sb", "eth0"), 101, 110);
    scene.at(1_000).tick();
    let played = scene.play().finish();
    let trace = played.only();
    assert_eq!(trace.spans.len(), 15);
    assert_eq!(played.counters().evicted_spans, 89);
    assert!(trace.incomplete);
    assert_eq!(trace.root().end, Some(Timestamp(110 * MILLISECOND)));
    assert_eq!(played.counters().orphan, 0);
}

#[test]
fn a_trace_full_of_plugins_still_ends() {
    let mut scene = Scene::by_runtime("cnitool");
    scene.config.max_spans = 8;
    for index in 0..20 {
        scene.ran(
            &format!("p{index}"),
            &add("sb", &format!("eth{index}")),
            index * 10,
            index * 10 + 5,
        );
    }
    scene.at(10_000).tick();
    let played = scene.play().finish();
    assert!(played.closed[0].incomplete);
    assert_eq!(played.closed[0].spans.len(), 8);
}

#[test]
fn late_records_find_their_place() {
    let mut scene = Scene::by_runtime("cnitool");
    let plugin = scene.at(0).plugin("bridge", &add("sb", "eth0"));
    let second = scene.at(6).command(plugin, "/bin/second", &[]);
    // Came after the reorder stage had passed their time.
    let first = scene.at(4).command(plugin, "/bin/first", &[]);
    scene.at(5).exit(first, 0);
    scene.at(8).exit(second, 0);
    // The plugin's end lies before what was seen to end in it.
    scene.at(7).exit(plugin, 0).at(1_000).tick();
    assert_text(
        &scene.play().finish().text(),
        "
sandbox             +0 ns    8.00 ms [sb, cnitool]
  sandbox.create    +0 ns    8.00 ms
    cni ADD         +0 ns    8.00 ms [eth0]
      plugin bridge +0 ns    8.00 ms
        command first +4.00 ms 1.00 ms
        command second +6.00 ms 2.00 ms
",
    );
}

#[test]
fn a_clean_stop_ends_what_is_open() {
    let mut scene = Scene::new();
    scene.ran("bridge", &add("waiting", "eth0"), 0, 10);
    scene.at(20).plugin("bridge", &add("running", "eth0"));
    scene.at(30).tick();
    assert_text(
        &scene.play().finish().text(),
        "
sandbox             +0 ns    10.0 ms [waiting, containerd]
  sandbox.create    +0 ns    10.0 ms
    cni ADD         +0 ns    10.0 ms [eth0]
      plugin bridge +0 ns    10.0 ms
sandbox             +0 ns    10.0 ms [running, incomplete, containerd]
  sandbox.create    +0 ns    10.0 ms
    cni ADD         +0 ns    10.0 ms [eth0]
      plugin bridge +0 ns    10.0 ms [end not seen]
",
    );
}
