//! For which request a daemon runs something: by what the command carries, its namespace, the goroutine, the thread.

use super::*;

const IDS: [&str; 4] = [
    "0123456789abcdef01",
    "1123456789abcdef01",
    "2123456789abcdef01",
    "3123456789abcdef01",
];

/// Of what a daemon runs for several requests at once, each at the one that the strongest evidence speaks for.
#[test]
fn what_a_daemon_runs_lies_below_the_request_that_it_is_for() {
    let mut scene = Scene::new();
    scene.at(0).follow(true);
    let plugins: Vec<ProcessKey> = IDS
        .iter()
        .enumerate()
        .map(|(number, id)| {
            let ifname = if number == 2 { "net1" } else { "eth0" };
            let env = with(add(id, ifname), "CNI_NETNS", &format!("/run/netns/cni-{number}"));
            scene.at(100).plugin("cilium-cni", &env)
        })
        .collect();
    for (number, plugin) in plugins.iter().enumerate() {
        // Two requests arrive at one thread.
        let thread = [70, 71, 71, 72][number];
        scene.at(110 + number as u64).asks(number as u64, *plugin, thread);
    }
    scene
        .at(115)
        .event(Body::NetnsObserved(Box::new(sandglass_model::event::Netns {
            sandbox: sandglass_model::SandboxId(IDS[3].to_owned()),
            path: "/run/netns/cni-3".to_owned(),
            inode: 4_711,
            created: None,
            there: None,
        })));
    let none = Vec::new();
    let delegate = with(add(IDS[1], "eth0"), "CNI_ARGS", "x=1");
    let stranger = add("ffff456789abcdef01", "eth0");
    for (name, thread, args, env, netns) in [
        ("id", 1, &["--container-id=1123456789abcdef01"][..], &none, 1),
        ("short", 1, &["lxc-2123456789abx"][..], &none, 1),
        ("path", 1, &["/var/run/netns/cni-0"][..], &none, 1),
        ("inside", 1, &["-A"][..], &none, 4_711),
        ("interface", 1, &["-i", "net1"][..], &none, 1),
        ("by-thread", 70, &["-A"][..], &none, 1),
        // The thread received another one since.
        ("by-second-thread", 71, &["-A"][..], &none, 1),
        ("delegate", 1, &[][..], &delegate, 1),
        ("newest", 1, &["-A"][..], &none, 1),
        ("of-nobody", 70, &[][..], &stranger, 1),
    ] {
        let all: Vec<&str> = std::iter::once(name).chain(args.iter().copied()).collect();
        let process = scene.at(200).agent_runs(thread, &all, env, netns);
        scene.at(210).exit(process, 0);
    }
    for (number, plugin) in plugins.iter().enumerate() {
        scene.at(300).answers(number as u64, *plugin);
    }
    // No request is in flight: the daemon's own business.
    let own = scene.at(310).agent_runs(70, &["own"], &none, 1);
    scene.at(320).exit(own, 0);
    for plugin in &plugins {
        scene.at(330).exit(*plugin, 0);
    }
    scene.at(60_000).tick();
    let played = scene.play();
    let mut found = Vec::new();
    for trace in &played.closed {
        let sandbox = &trace.sandbox.as_ref().expect("a sandbox").0;
        let number = IDS.iter().position(|id| id == sandbox).expect("one of ours");
        for span in &trace.spans {
            let Some(attribution) = span.process().and_then(|process| process.attribution) else {
                continue;
            };
            let parent = &trace.spans[span.parent.expect("a parent")];
            assert!(parent.detail.as_daemon().is_some(), "{}", played.text());
            let ambiguous = span.process().is_some_and(|process| process.ambiguous);
            assert_eq!(ambiguous, attribution == Attribution::Newest);
            found.push((
                registry::name(span),
                number,
                attribution.as_str(),
                attribution.confidence(),
            ));
        }
    }
    found.sort_by(|left, right| left.0.cmp(&right.0));
    let found: Vec<(&str, usize, &str, Confidence)> = found
        .iter()
        .map(|(name, number, why, how)| (name.as_str(), *number, *why, *how))
        .collect();
    assert_eq!(
        found,
        [
            ("command by-second-thread", 2, "thread", Confidence::Likely),
            ("command by-thread", 0, "thread", Confidence::Likely),
            ("command id", 1, "container_id", Confidence::Certain),
            ("command inside", 3, "in_namespace", Confidence::Certain),
            ("command interface", 2, "interface", Confidence::Likely),
            ("command newest", 3, "newest", Confidence::Possible),
            ("command path", 0, "namespace", Confidence::Certain),
            ("command short", 2, "container_id", Confidence::Certain),
            ("plugin delegate", 1, "container_id", Confidence::Certain),
        ]
    );
    assert_eq!(
        played.counters().orphan,
        0,
        "what a daemon runs for itself is no orphan"
    );
}

/// Messages are followed too late for a request of another sandbox: it may be in flight at the same daemon until that plugin ends.
#[test]
fn a_request_beside_one_that_may_have_been_missed_is_not_the_only_one() {
    let mut scene = Scene::new();
    let other = scene.at(90).plugin("cilium-cni", &add(IDS[1], "eth0"));
    scene.at(100).follow(true);
    let plugin = scene.at(105).plugin("cilium-cni", &add(IDS[0], "eth0"));
    let none = Vec::new();
    for (number, at, name) in [(0, 110, "beside"), (1, 250, "alone")] {
        scene.at(at).asks(number, plugin, 70);
        let process = scene.at(at + 10).agent_runs(1, &[name], &none, 1);
        scene.at(at + 20).exit(process, 0);
        scene.at(at + 30).answers(number, plugin);
        if number == 0 {
            scene.at(200).exit(other, 0);
        }
    }
    scene.at(300).exit(plugin, 0);
    scene.at(60_000).tick();
    let played = scene.play();
    let spans = played.closed.iter().flat_map(|trace| &trace.spans);
    let found: Vec<(String, &str, bool)> = spans
        .filter_map(|span| {
            let process = span.process()?;
            Some((registry::name(span), process.attribution?.as_str(), process.ambiguous))
        })
        .collect();
    let found: Vec<(&str, &str, bool)> = found.iter().map(|(name, why, is)| (name.as_str(), *why, *is)).collect();
    assert_eq!(
        found,
        [
            ("command beside", "newest", true),
            ("command alone", "only_request", false),
        ]
    );
}

/// As goroutines do: what names one request is started by the thread that received another one. From then on no thread of that daemon
/// speaks for a request: what it starts next lies at the request whose command ended last, and is ambiguous.
#[test]
fn a_daemon_that_moves_work_between_threads_is_not_judged_by_them() {
    let mut scene = Scene::new();
    scene.at(0).follow(true);
    let plugins: Vec<ProcessKey> = (0..2)
        .map(|number| scene.at(100).plugin("cilium-cni", &add(IDS[number], "eth0")))
        .collect();
    for (number, plugin) in plugins.iter().enumerate() {
        scene
            .at(110 + number as u64)
            .asks(number as u64, *plugin, [70, 71][number]);
    }
    let none = Vec::new();
    for (at, args) in [
        (200, &["before"][..]),
        (210, &["named", "--container-id=1123456789abcdef01"][..]),
        (220, &["behind"][..]),
    ] {
        let process = scene.at(at).agent_runs(70, args, &none, 1);
        scene.at(at + 5).exit(process, 0);
    }
    for (number, plugin) in plugins.iter().enumerate() {
        scene.at(300).answers(number as u64, *plugin);
        scene.at(330).exit(*plugin, 0);
    }
    assert_eq!(
        commands(&mut scene),
        [
            "command before, 0, thread, ambiguous false",
            "command behind, 1, newest, ambiguous true",
            "command named, 1, container_id, ambiguous false",
        ]
    );
}

/// Plays a scene to its end. Of each command of a daemon, the number of the sandbox that it lies at, and why.
fn commands(scene: &mut Scene) -> Vec<String> {
    scene.at(60_000).tick();
    let mut found = Vec::new();
    for trace in &scene.play().closed {
        let sandbox = &trace.sandbox.as_ref().expect("a sandbox").0;
        let number = IDS.iter().position(|id| id == sandbox).expect("one of the two");
        let with_process = |span| Some((registry::name(span), span.process()?));
        for (name, process) in trace.spans.iter().filter_map(with_process) {
            if let Some(attribution) = process.attribution {
                let (why, ambiguous) = (attribution.as_str(), process.ambiguous);
                found.push(format!("{name}, {number}, {why}, ambiguous {ambiguous}"));
            }
        }
    }
    found.sort();
    found
}

/// As net/http serves: the goroutine that receives a request handles it. As grpc-go serves: it creates the one that handles it, which may
/// create others. Which threads they are on says nothing.
#[test]
fn a_goroutine_works_for_the_request_that_it_or_its_creator_received() {
    let mut scene = Scene::new();
    scene.at(0).follow(true);
    let plugins: Vec<ProcessKey> = (0..2)
        .map(|number| scene.at(100).plugin("cilium-cni", &add(IDS[number], "eth0")))
        .collect();
    for (number, plugin) in (0..).zip(&plugins) {
        let goroutine = Some(Goroutine {
            id: 20 + number,
            creator: 1,
        });
        scene.at(110 + number);
        scene.message(number, *plugin, RequestPoint::Sent, 400, 0);
        let daemon = agent(70).map(|daemon| DaemonProcess {
            goroutines: true,
            goroutine,
            ..daemon
        });
        scene.event(Body::RequestSeen(Box::new(RequestStep {
            connection: number,
            client: *plugin,
            point: RequestPoint::Arrived,
            bytes: 400,
            transport: RequestTransport::Unix,
            daemon,
        })));
    }
    let none = Vec::new();
    for (at, name, id, creator) in [
        (200, "a-received", 20, 1),
        (210, "b-created", 31, 21),
        (220, "c-created", 30, 20),
        (230, "d-by-created", 41, 31),
        // Nobody knows which request these are for: their creator served none, or the runtime created them.
        (240, "e-elsewhere", 50, 1),
        (250, "f-of-the-runtime", 51, 0),
    ] {
        let goroutine = Some(Goroutine { id, creator });
        let process = scene.at(at).goroutine_runs(goroutine, 70, &[name], &none, 1);
        scene.at(at + 5).exit(process, 0);
    }
    // It speaks against its goroutine, which counts less.
    let named = ["g-named", "--container-id=1123456789abcdef01"];
    let goroutine = Some(Goroutine { id: 20, creator: 1 });
    let process = scene.at(260).goroutine_runs(goroutine, 70, &named, &none, 1);
    scene.at(265).exit(process, 0);
    for (number, plugin) in (0..).zip(&plugins) {
        scene.at(300).answers(number, *plugin);
        scene.at(330).exit(*plugin, 0);
    }
    assert_eq!(
        commands(&mut scene),
        [
            "command a-received, 0, goroutine, ambiguous false",
            "command b-created, 1, goroutine, ambiguous false",
            "command c-created, 0, goroutine, ambiguous false",
            "command d-by-created, 1, goroutine, ambiguous false",
            "command e-elsewhere, 1, newest, ambiguous true",
            "command f-of-the-runtime, 1, newest, ambiguous true",
            "command g-named, 1, container_id, ambiguous false",
        ]
    );
}
