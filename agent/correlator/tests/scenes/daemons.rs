//! Requests of plugins to daemons, and what daemons run for them (`daemons/commands.rs`).

mod commands;

use sandglass_model::daemons::{DaemonProcess, Goroutine, RequestPoint, RequestStep, RequestTransport};
use sandglass_model::event::Fork;
use sandglass_model::time::MILLISECOND;
use sandglass_model::trace::{Attribution, Confidence, DaemonDetail, RequestBegin};
use sandglass_model::waits::{LockBlocked, ThreadKey, ThreadTimes, ThreadWake, Waker};
use sandglass_model::{Body, ProcessKey, Span, Timestamp, Trace, phases, registry};

use crate::scene::{Scene, add, with};

const AGENT: ProcessKey = ProcessKey {
    pid: 50,
    start_ticks: 1,
};
const POD: &str =
    "/kubepods.slice/kubepods-pod0b3c6a52_4f0f_4d39_a2f6_9c62d1e4b001.slice/cri-containerd-0123abcd.scope";

fn ms(ms: u64) -> Timestamp {
    Timestamp(ms * MILLISECOND)
}

fn agent(thread: u32) -> Option<DaemonProcess> {
    Some(DaemonProcess {
        process: AGENT,
        thread,
        thread_begin: Timestamp(0),
        followed: false,
        goroutines: false,
        goroutine: None,
        name: "cilium-agent".into(),
        cgroup: POD.to_owned(),
    })
}

impl Scene {
    fn follow(&mut self, on: bool) -> &mut Scene {
        self.event(Body::RequestsFollowed { on })
    }

    fn message(
        &mut self,
        connection: u64,
        client: ProcessKey,
        point: RequestPoint,
        bytes: u32,
        thread: u32,
    ) -> &mut Scene {
        let at_daemon = matches!(point, RequestPoint::Arrived | RequestPoint::Replied);
        self.event(Body::RequestSeen(Box::new(RequestStep {
            connection,
            client,
            point,
            bytes,
            transport: RequestTransport::Unix,
            daemon: agent(thread).filter(|_| at_daemon),
        })))
    }

    /// A request is sent now and arrives at a thread of the agent.
    fn asks(&mut self, connection: u64, client: ProcessKey, thread: u32) -> &mut Scene {
        self.message(connection, client, RequestPoint::Sent, 400, 0).message(
            connection,
            client,
            RequestPoint::Arrived,
            400,
            thread,
        )
    }

    /// Its answer is sent and arrives now.
    fn answers(&mut self, connection: u64, client: ProcessKey) -> &mut Scene {
        self.message(connection, client, RequestPoint::Replied, 200, 8).message(
            connection,
            client,
            RequestPoint::Returned,
            200,
            0,
        )
    }

    /// A thread of the agent forks, and the child executes `args`.
    fn agent_runs(&mut self, thread: u32, args: &[&str], env: &crate::scene::Env, netns: u64) -> ProcessKey {
        self.goroutine_runs(None, thread, args, env, netns)
    }

    /// The same, and this goroutine does it.
    fn goroutine_runs(
        &mut self,
        goroutine: Option<Goroutine>,
        thread: u32,
        args: &[&str],
        env: &crate::scene::Env,
        netns: u64,
    ) -> ProcessKey {
        let process = self.new_process();
        self.event(Body::ProcessForked(Fork {
            process,
            parent: AGENT,
            thread: Some(ThreadKey {
                id: thread,
                begin: ms(1),
            }),
            goroutine,
        }));
        let path = format!("/usr/sbin/{}", args[0]);
        let mut exec = self.exec_event(process, AGENT, &path, &args[1..], env);
        exec.netns = netns;
        self.event(Body::ProcessExecuted(Box::new(exec)));
        process
    }
}

fn named<'t>(trace: &'t Trace, name: &str) -> Vec<&'t Span> {
    trace.spans.iter().filter(|span| registry::name(span) == name).collect()
}

fn requests(trace: &Trace) -> Vec<(u64, u64, &DaemonDetail)> {
    let shown = |span: &Span| {
        let parent = &trace.spans[span.parent.expect("a request lies below its plugin")];
        assert!(parent.detail.as_plugin().is_some());
    };
    let spans = named(trace, "daemon cilium-agent");
    spans.iter().for_each(|span| shown(span));
    spans
        .iter()
        .map(|span| {
            let detail = span.detail.as_daemon().expect("a request");
            (span.start.0 / 1_000, span.end.expect("an end").0 / 1_000, detail)
        })
        .collect()
}

#[test]
fn a_request_is_a_span_from_its_sending_to_its_answer() {
    let mut scene = Scene::new();
    scene.at(0).follow(true);
    let plugin = scene.at(100).plugin("cilium-cni", &add("sb", "eth0"));
    scene.at(110).asks(1, plugin, 7);
    scene.at(4_820).answers(1, plugin);
    scene.at(4_830).exit(plugin, 0);
    scene.at(60_000).tick();
    let played = scene.play();
    let trace = &played.closed[0];
    let [(begin, end, detail)] = requests(trace)[..] else {
        unreachable!("{}", played.text())
    };
    assert_eq!((begin, end), (110_000, 4_820_000));
    assert_eq!(
        (&*detail.name, detail.pid, detail.begin),
        ("cilium-agent", 50, RequestBegin::Sent)
    );
    assert!(!detail.unanswered);
    assert_eq!(
        phases::verdict(trace, ms(60_000)),
        "plugin cilium-cni waited 4.71 s of 4.73 s (99 %) for cilium-agent (pod 0b3c6a52-4f0f-4d39-a2f6-9c62d1e4b001)"
    );
}

/// A request in flight is a span before its answer: an operation that is stuck shows it.
#[test]
fn a_request_in_flight_is_shown_after_a_millisecond() {
    let mut scene = Scene::new();
    scene.at(0).follow(true);
    let plugin = scene.at(100).plugin("cilium-cni", &add("sb", "eth0"));
    scene.at(110).asks(1, plugin, 7);
    scene.at(111).tick();
    assert!(scene.play().text().contains("daemon cilium-agent"));
    // At the end of the input it ends with its trace, and no timer is left.
    let played = scene.play().finish();
    assert_eq!(requests(&played.closed[0]).len(), 1);
    scene.at(500).exit(plugin, 1);
    scene.at(60_000).tick();
    let played = scene.play();
    let [(_, end, detail)] = requests(&played.closed[0])[..] else {
        unreachable!("{}", played.text())
    };
    assert!(detail.unanswered && end == 500_000, "{}", played.text());
}

/// The daemon may have received, and the client its answer, before the sending is reported. Short requests have no span.
#[test]
fn requests_of_less_than_a_millisecond_have_no_span() {
    let mut scene = Scene::new();
    scene.at(0).follow(true);
    let plugin = scene.at(100).plugin("cilium-cni", &add("sb", "eth0"));
    for number in 0..4_u64 {
        let at = (110 + number) * MILLISECOND;
        scene.set_now(at).message(1, plugin, RequestPoint::Arrived, 400, 7);
        scene
            .set_now(at + 10_000)
            .message(1, plugin, RequestPoint::Sent, 400, 0);
        scene.set_now(at + 500_000).answers(1, plugin);
    }
    // The last one is long, over the same connection.
    scene.at(120).message(1, plugin, RequestPoint::Arrived, 400, 7);
    scene
        .set_now(120 * MILLISECOND + 10_000)
        .message(1, plugin, RequestPoint::Sent, 400, 0);
    scene.at(130).answers(1, plugin);
    scene.at(200).exit(plugin, 0);
    scene.at(60_000).tick();
    let played = scene.play();
    let [(begin, end, _)] = requests(&played.closed[0])[..] else {
        unreachable!("{}", played.text())
    };
    assert_eq!((begin, end), (120_000, 130_000));
}

/// gRPC: settings are exchanged first, and pings and window updates pass while the request is in flight and after it.
#[test]
fn acknowledgements_of_http2_are_no_answer() {
    // Servers have as many settings as they like.
    for settings in [15, 54] {
        acknowledged(settings);
    }
}

fn acknowledged(settings: u32) {
    let mut scene = Scene::new();
    scene.at(0).follow(true);
    let plugin = scene.at(100).plugin("aws-cni", &add("sb", "eth0"));
    let mut step = |us: u64, point, bytes| {
        scene.set_now(us * 1_000).message(1, plugin, point, bytes, 7);
    };
    // Preface and settings; the server's settings; the acknowledgement and the request.
    step(110_000, RequestPoint::Sent, 60);
    step(110_100, RequestPoint::Arrived, 60);
    step(110_200, RequestPoint::Replied, settings);
    step(110_300, RequestPoint::Returned, settings);
    step(110_400, RequestPoint::Sent, 300);
    step(110_500, RequestPoint::Arrived, 300);
    step(110_600, RequestPoint::Replied, 30);
    step(110_700, RequestPoint::Returned, 30);
    step(110_800, RequestPoint::Sent, 17);
    step(110_900, RequestPoint::Arrived, 17);
    step(310_000, RequestPoint::Replied, 90);
    step(310_100, RequestPoint::Returned, 90);
    step(310_200, RequestPoint::Sent, 26);
    step(310_300, RequestPoint::Arrived, 26);
    scene.at(320).exit(plugin, 0);
    scene.at(60_000).tick();
    let played = scene.play();
    let [(begin, end, detail)] = requests(&played.closed[0])[..] else {
        unreachable!("{}", played.text())
    };
    assert_eq!((begin, end, detail.unanswered), (110_400, 310_100, false));
}

/// It was sent before messages were followed. The client slept since then; without that, what is known is when messages were
/// followed from.
#[test]
fn a_request_that_was_not_seen_begins_where_its_client_fell_asleep() {
    for recovered in [true, false] {
        let mut scene = Scene::new();
        scene.at(0).event(Body::WaitsRecorded { on: false }).follow(false);
        let plugin = scene.at(100).plugin("unheard-of", &add("sb", "eth0"));
        scene.at(131).event(Body::WaitsRecorded { on: true }).follow(true);
        scene.at(500);
        if recovered {
            scene.event(wake(plugin, 108, &["unix_stream_read_generic"], AGENT, "cilium-agent"));
        }
        scene.answers(1, plugin);
        scene.at(510).exit(plugin, 0);
        scene.at(60_000).tick();
        let played = scene.play();
        let [(begin, end, detail)] = requests(&played.closed[0])[..] else {
            unreachable!("{}", played.text())
        };
        let expected = match recovered {
            true => (108_000, RequestBegin::Recovered),
            false => (131_000, RequestBegin::Followed),
        };
        assert_eq!(((begin, detail.begin), end), (expected, 500_000));
    }
}

fn wake(process: ProcessKey, from: u64, stack: &[&str], by: ProcessKey, name: &str) -> Body {
    Body::ThreadWoken(Box::new(ThreadWake {
        times: ThreadTimes {
            process,
            thread: process.pid,
            begin: Timestamp(process.start_ticks * 10 * MILLISECOND),
            processor_ns: ms(from).0,
            run_delay_ns: 0,
        },
        slept_from: ms(from),
        recovered: true,
        stack: stack.iter().collect(),
        goroutine: None,
        waker: Waker {
            process: by,
            thread: by.pid,
            begin: Timestamp(0),
            name: name.into(),
            cgroup: String::new(),
            stack: ["try_to_wake_up", "unix_stream_sendmsg"].into_iter().collect(),
        },
    }))
}

/// The wait for the daemon becomes what the daemon's command waited for, up to the verdict.
#[test]
fn a_lock_behind_a_daemon_is_the_verdict() {
    let mut scene = Scene::new();
    scene.at(0).event(Body::WaitsRecorded { on: true }).follow(true);
    let plugin = scene.at(100).plugin("cilium-cni", &add("sb", "eth0"));
    scene.at(110).asks(1, plugin, 7);
    let command = scene.at(300).agent_runs(7, &["iptables-restore", "-w"], &Vec::new(), 1);
    scene.at(310).event(Body::LockBlocked(Box::new(LockBlocked {
        pid: command.pid,
        path: "/run/xtables.lock".to_owned(),
        holder: 5,
        holder_name: "kube-proxy".into(),
    })));
    let holder = ProcessKey { pid: 5, start_ticks: 0 };
    scene
        .at(4_205)
        .event(wake(command, 305, &["locks_lock_inode_wait"], holder, "kube-proxy"));
    // That it belongs here is only likely: its exit code is no failure of the pod.
    scene.at(4_210).exit(command, 3);
    scene
        .at(4_820)
        .event(wake(plugin, 110, &["unix_stream_read_generic"], AGENT, "cilium-agent"));
    scene.answers(1, plugin);
    scene.at(4_830).exit(plugin, 0);
    scene.at(60_000).tick();
    let played = scene.play();
    let trace = &played.closed[0];
    let parts = |name: &str| -> Vec<(&'static str, u64)> {
        let span = named(trace, name)[0];
        let time = span.detail.time().expect("a time");
        assert_eq!(time.total_ns(), span.duration_ns(span.start), "{name}");
        let part = |part: &(sandglass_model::waits::TimeReason, u64)| (part.0.as_str(), part.1 / MILLISECOND);
        time.parts.iter().map(part).collect()
    };
    assert_eq!(
        parts("daemon cilium-agent"),
        [("processor", 10), ("file_lock", 3_900), ("daemon", 800)]
    );
    let whole = [("processor", 30), ("file_lock", 3_900), ("daemon", 800)];
    assert_eq!(parts("plugin cilium-cni"), whole);
    assert_eq!(parts("cni ADD"), whole);
    let below = named(trace, "command iptables-restore")[0];
    assert_eq!(
        registry::name(&trace.spans[below.parent.expect("a parent")]),
        "daemon cilium-agent"
    );
    assert_eq!(
        below.process().and_then(|process| process.attribution),
        Some(Attribution::OnlyRequest)
    );
    assert!(!below.status.is_error(), "{}", played.text());
    assert_eq!(named(trace, "wait daemon").len(), 0, "the request's span says it");
    assert_eq!(
        phases::verdict(trace, ms(60_000)),
        "plugin cilium-cni waited 4.71 s of 4.73 s (99 %) for cilium-agent (pod 0b3c6a52-4f0f-4d39-a2f6-9c62d1e4b001), whose \
         iptables-restore waited 3.90 s for a lock on a file (/run/xtables.lock, held by kube-proxy)"
    );
}

/// A client of grpc-go says so when it closes the connection, some milliseconds before it ends. That is no request without an answer, and a
/// request that comes nevertheless begins with itself.
#[test]
fn the_end_of_a_connection_is_no_request() {
    for goes_on in [false, true] {
        let mut scene = Scene::new();
        scene.at(0).follow(true);
        let plugin = scene.at(100).plugin("aws-cni", &add("sb", "eth0"));
        scene.at(110).asks(1, plugin, 7);
        scene.at(310).answers(1, plugin);
        scene
            .at(311)
            .message(1, plugin, RequestPoint::Sent, 42, 0)
            .message(1, plugin, RequestPoint::Arrived, 42, 7);
        if goes_on {
            scene.at(330).asks(1, plugin, 7);
            scene.at(350).answers(1, plugin);
        }
        scene.at(360).exit(plugin, 0);
        scene.at(60_000).tick();
        let played = scene.play();
        let found: Vec<(u64, u64, bool)> = requests(&played.closed[0])
            .into_iter()
            .map(|(start, end, detail)| (start, end, detail.unanswered))
            .collect();
        let expected = [(110_000, 310_000, false), (330_000, 350_000, false)];
        assert_eq!(found, expected[..1 + usize::from(goes_on)]);
    }
}
