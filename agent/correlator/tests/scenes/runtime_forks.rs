//! What a runtime's step forks: `runc create` waits for processes that become the container.

use crate::scene::{Scene, add};
use crate::waits::{parts, waker};

/// `runc init`, which `runc create` executes, forks the container's first process; that one tells the step over a socket that it is set
/// up, and executes the container's program when `runc start`, which waits for that, lets it.
#[test]
fn a_step_that_waits_for_its_fork_waits_for_what_the_fork_waits_for() {
    let mut scene = Scene::new();
    scene.at(0).recorded(true);
    scene.ran("bridge", &add("sb", "eth0"), 100, 200);
    let create = scene.at(400).runtime("/usr/bin/runc", &["create", "sb"]);
    let init = scene.at(410).fork(create);
    let container = scene.at(420).fork(init);
    scene.at(425).exit(init, 0);
    scene.at(480).queued(container, 422, 0);
    let by_container = waker(
        container,
        "runc:[2:INIT]",
        &["try_to_wake_up", "sock_def_readable", "unix_stream_sendmsg"],
    );
    scene
        .at(490)
        .woken(create, 412, &["unix_stream_read_generic"], by_container);
    scene.at(500).exit(create, 0);
    let start = scene.at(510).runtime("/usr/bin/runc", &["start", "sb"]);
    // It opens the fifo for which the other one waits, and then waits for its answer.
    scene.at(520).woken(
        container,
        492,
        &["wait_for_partner"],
        waker(start, "runc", &["fifo_open"]),
    );
    scene.at(540).queued(container, 520, 0);
    scene.at(545).woken(
        start,
        521,
        &["pipe_read"],
        waker(container, "runc:[2:INIT]", &["pipe_write"]),
    );
    let caller = scene.caller();
    scene.at(546).exec(container, caller, "/pause", &[], &Vec::new());
    scene.at(550).exit(start, 0);
    scene.at(60_000).tick();
    let played = scene.play();
    let trace = &played.closed[0];
    // Without the fork it was 78 ms for a child.
    assert_eq!(parts(trace, "runtime create"), [("processor", 42), ("run_queue", 58)]);
    assert_eq!(parts(trace, "runtime start"), [("processor", 21), ("run_queue", 19)]);
    assert_eq!(played.counters().orphan, 0);
    assert!(
        trace.spans.iter().all(|span| span.detail.as_command().is_none()),
        "what the container executes is no command"
    );
}
