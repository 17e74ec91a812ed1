//! Windows nodes: calls of plugins inferred from what the runtime says, activities given to sandboxes by their objects.

use sandglass_correlator::{Output, Traffic};
use sandglass_model::event::Exec;
use sandglass_model::network::{Asker, ConnectStep, Step};
use sandglass_model::trace::Detail;
use sandglass_model::windows::{
    ActivityChange, ActivityStep, InterfaceStep, LookupChange, LookupStep, ObjectKey, RuntimeSaid, Service, SiloChange,
    SiloStep,
};
use sandglass_model::{Body, PodIdentity, ProcessKey, SandboxId, Timestamp, Trace, text};

use crate::scene::{Played, Scene, assert_text};

fn windows() -> Scene {
    let mut scene = Scene::asked_by("containerd.exe");
    scene.config.windows = true;
    scene
}

fn pod(name: &str) -> PodIdentity {
    PodIdentity {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        labels: Vec::new(),
    }
}

fn said(scene: &mut Scene, ms: u64, said: RuntimeSaid) {
    scene.at(ms).event(Body::RuntimeSaid(Box::new(said)));
}

fn began(scene: &mut Scene, ms: u64, name: &str) {
    said(
        scene,
        ms,
        RuntimeSaid::RunBegan {
            identity: pod(name),
            attempt: 0,
        },
    );
}

fn returned(scene: &mut Scene, ms: u64, name: &str, id: &str) {
    let sandbox = SandboxId(id.to_owned());
    said(
        scene,
        ms,
        RuntimeSaid::RunReturned {
            identity: pod(name),
            sandbox,
        },
    );
}

/// The runtime runs a program.
fn runs(scene: &mut Scene, ms: u64, name: &str) -> ProcessKey {
    scene.at(ms).runtime(&format!("C:/cni/{name}.exe"), &[])
}

fn below(scene: &mut Scene, ms: u64, parent: ProcessKey, path: &str) -> ProcessKey {
    let process = scene.at(ms).new_process();
    scene.exec(process, parent, path, &[], &Vec::new());
    process
}

/// A service that is not below the runtime runs a command.
fn agent_runs(scene: &mut Scene, ms: u64, path: &str, args: &[&str]) -> ProcessKey {
    let process = scene.at(ms).new_process();
    let agent = ProcessKey {
        pid: 55,
        start_ticks: 1,
    };
    let exec = Exec {
        parent_comm: "antrea-agent.exe".into(),
        ..scene.exec_event(process, agent, path, args, &Vec::new())
    };
    scene.event(Body::ProcessExecuted(Box::new(exec)));
    process
}

fn step(name: &str, activity: &str, change: ActivityChange, keys: &[ObjectKey]) -> Body {
    Body::ActivitySeen(Box::new(ActivityStep {
        service: Service::Hns,
        name: name.to_owned(),
        activity: activity.to_owned(),
        related: String::new(),
        pid: 900,
        tid: 7,
        step: change,
        keys: keys.to_vec(),
        fields: Default::default(),
    }))
}

fn stopped(result: u32) -> ActivityChange {
    ActivityChange::Stopped {
        result: Some(result),
        message: String::new(),
    }
}

fn hns(scene: &mut Scene, from: u64, to: u64, name: &str, activity: &str, keys: &[ObjectKey]) {
    scene
        .at(from)
        .event(step(name, activity, ActivityChange::Started, keys));
    scene.at(to).event(step(name, activity, stopped(0), &[]));
}

fn endpoint(id: &str) -> ObjectKey {
    ObjectKey::Endpoint(id.to_owned())
}

fn sandbox_traces(played: &Played) -> Vec<&Trace> {
    let of_sandbox = |trace: &&Trace| matches!(trace.root().detail, Detail::Sandbox(_));
    played.closed.iter().filter(of_sandbox).collect()
}

#[test]
fn a_pod_start_is_inferred_and_its_ids_do_not_hang_on_the_sandboxs() {
    let play = |id: &str| {
        let mut scene = windows();
        began(&mut scene, 100, "web");
        let plugin = runs(&mut scene, 120, "win-bridge");
        let ipam = below(&mut scene, 125, plugin, "C:/CNI/host-local.exe");
        scene.at(130).exit(ipam, 0);
        let shell = below(&mut scene, 131, plugin, "C:/Windows/System32/netsh.exe");
        below(&mut scene, 132, shell, "C:/Windows/System32/conhost.exe");
        scene.at(133).exit(shell, 1);
        scene.at(200).exit(plugin, 0);
        let shim = scene
            .at(210)
            .runtime("C:/c/containerd-shim-runhcs-v1.exe", &["-id", id, "start"]);
        scene.at(260).exit(shim, 0);
        scene.at(300).event(Body::InterfaceSeen(InterfaceStep {
            compartment: 3,
            index: 9,
            added: true,
        }));
        returned(&mut scene, 400, "web", id);
        scene.at(60_000).tick();
        scene.play().finish()
    };
    let played = play("abcdef0123456789");
    assert_text(
        &played.text(),
        "sandbox +0 ns 300 ms [shop/web, abcdef0123456, containerd]
          sandbox.create +0 ns 300 ms [to runtime start]
            cni ADD +20.0 ms 80.0 ms [eth0]
              plugin win-bridge +20.0 ms 80.0 ms
                plugin host-local +25.0 ms 5.00 ms [delegate]
                command netsh +31.0 ms 2.00 ms [error exit_code: command netsh exited with code 1]
            wait for vnic +100 ms 100 ms [interface added]
            runtime shim +110 ms 50.0 ms"
            .replace("\n        ", "\n")
            .as_str(),
    );
    assert_eq!(played.counters().orphan, 0);
    let other = play("another");
    assert_eq!(played.only().id, other.only().id);
    let ids = |trace: &Trace| trace.spans.iter().map(|span| span.id).collect::<Vec<_>>();
    assert_eq!(ids(played.only()), ids(other.only()));
}

#[test]
fn what_hns_and_hcs_do_now_is_shown_where_it_will_likely_be() {
    let mut scene = windows();
    began(&mut scene, 100, "web");
    let plugin = runs(&mut scene, 120, "win-bridge");
    scene
        .at(130)
        .event(step("RequestHandler", "a1", ActivityChange::Started, &[]));
    hns(&mut scene, 131, 132, "AddingLayer", "a2", &[]);
    scene.at(133).event(step(
        "EndpointActivity",
        "a3",
        ActivityChange::Started,
        &[endpoint("e1")],
    ));
    let played = scene.play();
    let shown = |played: &Played| -> Vec<String> {
        let traces = played.correlator.with_running();
        traces
            .iter()
            .map(|trace| text::tree(trace, Timestamp(60_000_000_000)))
            .collect()
    };
    assert_text(
        &shown(&played).join(""),
        "sandbox +0 ns 59.9 s+ [shop/web, unnamed:shop/, containerd, running]
  sandbox.create +0 ns 59.9 s+ [running]
    cni ADD +20.0 ms 59.9 s+ [eth0, running]
      plugin win-bridge +20.0 ms 59.9 s+ [running]
        hns RequestHandler +30.0 ms 59.9 s+ [running]
          hns AddingLayer +31.0 ms 1.00 ms
          hns EndpointActivity +33.0 ms 59.9 s+ [endpoint=e1, running]",
    );
    // What is open itself has no part of it, and what ended is where it belongs.
    assert!(!played.text().contains("hns"), "{}", played.text());
    scene.at(140).event(step("EndpointActivity", "a3", stopped(0), &[]));
    scene.at(141).event(step("RequestHandler", "a1", stopped(0), &[]));
    scene.at(150).exit(plugin, 0);
    let mut create = step("HcsCreateComputeSystem", "b1", ActivityChange::Started, &[]);
    if let Body::ActivitySeen(step) = &mut create {
        (step.service, step.tid) = (Service::Hcs, 8);
    }
    scene.at(160).event(create);
    let played = scene.play();
    let text = shown(&played).join("");
    assert!(text.contains("\n    hcs HcsCreateComputeSystem"), "{text}");
    assert_eq!(text.matches("hns ").count(), 3, "{text}");
    assert!(played.finish().correlator.with_running().is_empty());
}

/// Found by fuzzing: a file whose clock stands still tells of a pod's attempts at one and the same time.
#[test]
fn a_request_told_twice_makes_one_trace_also_when_it_was_answered_meanwhile() {
    let mut scene = windows();
    for id in ["abcdef0123456789", "fedcba9876543210"] {
        began(&mut scene, 100, "web");
        returned(&mut scene, 100, "web", id);
    }
    scene.at(60_000).tick();
    let played = scene.play().finish();
    assert_eq!(played.only().sandbox, Some(SandboxId("abcdef0123456789".to_owned())));
}

#[test]
fn who_of_two_waits_for_hns_is_a_guess_and_marked() {
    let mut scene = windows();
    began(&mut scene, 100, "a");
    began(&mut scene, 101, "b");
    runs(&mut scene, 120, "win-bridge");
    runs(&mut scene, 130, "win-bridge");
    scene
        .at(140)
        .event(step("RequestHandler", "a1", ActivityChange::Started, &[]));
    let traces = scene.play().correlator.with_running();
    assert_eq!(traces.len(), 1);
    assert_eq!(traces[0].identity.name, "b", "whose plugin began last");
    let ambiguous = |trace: &Trace| {
        let mut details = trace.spans.iter().map(|span| &span.detail);
        details.any(|detail| matches!(detail, Detail::Activity(activity) if activity.ambiguous))
    };
    assert!(ambiguous(&traces[0]));
}

#[test]
fn two_pods_at_once_are_told_apart_by_order_and_marked() {
    let mut scene = windows();
    began(&mut scene, 100, "a");
    began(&mut scene, 101, "b");
    let first = runs(&mut scene, 110, "win-bridge");
    let second = runs(&mut scene, 111, "win-bridge");
    scene.at(200).exit(first, 0);
    scene.at(210).exit(second, 0);
    returned(&mut scene, 300, "b", "bbbb");
    returned(&mut scene, 301, "a", "aaaa");
    scene.at(60_000).tick();
    let played = scene.play().finish();
    let traces = sandbox_traces(&played);
    let found: Vec<_> = traces
        .iter()
        .map(|trace| {
            let plugin = trace.spans.iter().find_map(sandglass_model::Span::process).unwrap();
            let id = trace.sandbox.as_ref().unwrap().0.as_str();
            (
                id,
                trace.identity.name.as_str(),
                plugin.pid == first.pid,
                plugin.ambiguous,
            )
        })
        .collect();
    // Of the second nothing else was left to be meant: the first was busy.
    assert_eq!(found, [("bbbb", "b", false, false), ("aaaa", "a", true, true)]);
}

#[test]
fn after_a_failed_add_the_runtime_cleans_up() {
    let mut scene = windows();
    began(&mut scene, 100, "web");
    let add = runs(&mut scene, 110, "win-bridge");
    scene.at(150).exit(add, 1);
    let del = runs(&mut scene, 160, "win-bridge");
    scene.at(170).exit(del, 0);
    let message = "the plugin's words".to_owned();
    said(
        &mut scene,
        180,
        RuntimeSaid::RunFailed {
            identity: pod("web"),
            message,
        },
    );
    began(&mut scene, 10_000, "web");
    let again = runs(&mut scene, 10_010, "win-bridge");
    scene.at(10_050).exit(again, 0);
    returned(&mut scene, 10_100, "web", "cafe");
    said(
        &mut scene,
        20_000,
        RuntimeSaid::StopBegan {
            sandbox: SandboxId("cafe".into()),
        },
    );
    let gone = runs(&mut scene, 20_010, "win-bridge");
    scene.at(20_020).exit(gone, 0);
    let (sandbox, message) = (SandboxId("cafe".into()), String::new());
    said(&mut scene, 20_030, RuntimeSaid::StopReturned { sandbox, message });
    scene.at(60_000).tick();
    let played = scene.play().finish();
    let names: Vec<String> = played
        .closed
        .iter()
        .map(|trace| {
            let name = sandglass_model::registry::name(trace.root());
            let id = trace.sandbox.as_ref().map_or("-", |id| id.0.as_str());
            let failed = if trace.root().status.is_error() { " failed" } else { "" };
            format!("{name} {id}{failed}")
        })
        .collect();
    assert_eq!(names, ["cni DEL -", "sandbox - failed", "sandbox cafe", "cni DEL cafe"]);
    let retry = sandbox_traces(&played)[1];
    assert_eq!(retry.root().links.len(), 1, "linked to the attempt that failed");
}

#[test]
fn a_program_that_nobody_can_have_asked_for_is_an_orphan() {
    let mut scene = windows();
    runs(&mut scene, 100, "win-bridge");
    runs(&mut scene, 110, "ctr");
    assert_eq!(scene.play().finish().counters().orphan, 1);
}

#[test]
fn commands_of_an_agent_belong_to_the_plugin_that_waits_for_it() {
    for (args, others, expected) in [
        (&["Get-NetAdapter"][..], false, (1, false)),
        (&["Get-NetAdapter"][..], true, (2, true)),
        (&["Get-NetAdapter", "web-0-uplink"][..], true, (1, false)),
    ] {
        let mut scene = windows();
        began(&mut scene, 100, "web-0-uplink");
        let first = runs(&mut scene, 110, "antrea");
        if others {
            began(&mut scene, 120, "other-pod");
            runs(&mut scene, 130, "antrea");
        }
        let shell = agent_runs(&mut scene, 140, "powershell.exe", args);
        scene.at(190).exit(shell, 0);
        scene.at(200).exit(first, 0);
        let played = scene.play().finish();
        let mut found = None;
        for (index, trace) in played.closed.iter().enumerate() {
            for span in &trace.spans {
                if let Detail::Command(command) = &span.detail {
                    let first = trace.identity.name == "web-0-uplink";
                    found = Some((if first { 1 } else { 2 }, command.process.ambiguous));
                    assert_eq!(command.plugin.as_ref(), "antrea", "{index}");
                }
            }
        }
        assert_eq!(found, Some(expected), "{args:?}\n{}", played.text());
    }
}

#[test]
fn activities_without_ids_are_paired_in_order_and_nested_by_thread() {
    let mut scene = windows();
    began(&mut scene, 100, "web");
    let plugin = runs(&mut scene, 110, "win-bridge");
    scene
        .at(120)
        .event(step("RequestHandler", "", ActivityChange::Started, &[]));
    hns(&mut scene, 121, 125, "AddingLayer", "", &[]);
    hns(&mut scene, 126, 129, "AddingLayer", "", &[endpoint("e-1")]);
    scene
        .at(130)
        .event(step("RequestHandler", "", stopped(0x803b_0017), &[]));
    scene.at(131).event(step("RequestHandler", "", stopped(0), &[]));
    scene.at(140).exit(plugin, 0);
    returned(&mut scene, 200, "web", "cafe");
    let played = scene.play().finish();
    assert_text(
        &played.text(),
        "sandbox +0 ns 100 ms [shop/web, cafe, containerd]
          sandbox.create +0 ns 100 ms [to runtime start]
            cni ADD +10.0 ms 30.0 ms [eth0]
              plugin win-bridge +10.0 ms 30.0 ms
                hns RequestHandler +20.0 ms 10.0 ms [error windows_result: endpoint in invalid state (0x803b0017)]
                  hns AddingLayer +21.0 ms 4.00 ms
                  hns AddingLayer +26.0 ms 3.00 ms [endpoint=e-1]"
            .replace("\n        ", "\n")
            .as_str(),
    );
    // A stop that nothing began.
    assert_eq!(played.counters().orphan, 1);
}

#[test]
fn activities_of_two_pods_wait_until_their_objects_are_known() {
    let mut scene = windows();
    began(&mut scene, 100, "a");
    began(&mut scene, 101, "b");
    let first = runs(&mut scene, 110, "win-bridge");
    let second = runs(&mut scene, 111, "win-bridge");
    hns(
        &mut scene,
        120,
        130,
        "EndpointActivity",
        "1",
        &[endpoint("of-b"), ObjectKey::Namespace("n-b".into())],
    );
    hns(&mut scene, 122, 132, "EndpointActivity", "2", &[endpoint("of-nobody")]);
    scene.at(200).exit(first, 0);
    scene.at(210).exit(second, 0);
    let (sandbox, namespace) = (SandboxId("bbbb".into()), "n-b".to_owned());
    said(&mut scene, 250, RuntimeSaid::NamespaceOf { sandbox, namespace });
    returned(&mut scene, 300, "b", "bbbb");
    returned(&mut scene, 301, "a", "aaaa");
    let played = scene.play().finish();
    let activities = |trace: &Trace| -> Vec<(String, bool)> {
        let found = trace.spans.iter().filter_map(|span| match &span.detail {
            Detail::Activity(activity) => Some((activity.objects[0].clone(), activity.ambiguous)),
            _ => None,
        });
        found.collect()
    };
    let traces = sandbox_traces(&played);
    let all: Vec<_> = traces
        .iter()
        .map(|trace| (trace.identity.name.clone(), activities(trace)))
        .collect();
    let of_b = &all.iter().find(|(name, _)| name == "b").unwrap().1;
    assert!(of_b.contains(&("endpoint=of-b".to_owned(), false)), "{all:?}");
    let ambiguous: Vec<_> = all
        .iter()
        .flat_map(|(_, found)| found)
        .filter(|(_, ambiguous)| *ambiguous)
        .collect();
    assert_eq!(ambiguous, [&("endpoint=of-nobody".to_owned(), true)], "{all:?}");
}

/// A pod that is there at 400 ms, and its silo.
fn pod_with_silo(scene: &mut Scene) {
    scene.event(Body::TrafficWatched { node_netns: 1 });
    began(scene, 100, "web");
    let plugin = runs(scene, 110, "win-bridge");
    scene.at(200).exit(plugin, 0);
    let step = SiloStep {
        silo: "51-10".to_owned(),
        job: 4,
        step: SiloChange::Started,
    };
    scene.at(250).event(Body::SiloSeen(Box::new(step)));
    returned(scene, 400, "web", "cafe");
}

fn asks(scene: &mut Scene, ms: u64, kind: u16, step: LookupChange) {
    asks_in(scene, ms, "51-10", kind, step);
}

fn asks_in(scene: &mut Scene, ms: u64, silo: &str, kind: u16, step: LookupChange) {
    let step = LookupStep {
        silo: silo.to_owned(),
        process: ProcessKey {
            pid: 77,
            start_ticks: 0,
        },
        name: "db.shop".to_owned(),
        kind,
        step,
    };
    scene.at(ms).event(Body::LookupSeen(Box::new(step)));
}

fn finished(status: u32) -> LookupChange {
    LookupChange::Finished {
        status,
        addresses: if status == 0 {
            vec![[10, 96, 0, 7].into()]
        } else {
            Vec::new()
        },
    }
}

#[test]
fn lookups_of_a_silo_and_what_its_process_connects_to_make_a_sandbox_ready() {
    let mut scene = windows();
    pod_with_silo(&mut scene);
    let server = || "10.96.0.10".to_owned();
    for kind in [1, 28] {
        asks(&mut scene, 500, kind, LookupChange::Started);
        asks(&mut scene, 501, kind, LookupChange::Sent { server: server() });
    }
    asks(&mut scene, 1_500, 1, LookupChange::TimedOut { server: server() });
    asks(&mut scene, 1_501, 1, LookupChange::Sent { server: server() });
    asks(&mut scene, 1_510, 1, finished(0));
    asks(&mut scene, 1_511, 28, finished(9_501));
    for (ms, step) in [(1_520, Step::Started), (1_525, Step::Established)] {
        let process = ProcessKey {
            pid: 77,
            start_ticks: 0,
        };
        let step = ConnectStep {
            netns: 6,
            socket: 9,
            local: ([10, 1, 0, 5], 50_000).into(),
            remote: ([10, 96, 0, 7], 5_432).into(),
            asker: Some(Asker {
                process,
                comm: String::new(),
            }),
            step,
            retransmits: 0,
        };
        scene.at(ms).event(Body::ConnectSeen(Box::new(step)));
    }
    scene.at(60_000).tick();
    let played = scene.play().finish();
    assert_text(
        &played.text(),
        "sandbox +0 ns 1.43 s [shop/web, cafe, containerd, network ready]
          sandbox.create +0 ns 300 ms [to runtime start]
            cni ADD +10.0 ms 90.0 ms [eth0]
              plugin win-bridge +10.0 ms 90.0 ms
          lookup +400 ms 1.01 s [db.shop, A+AAAA, at 10.96.0.10:53, noerror, 1 sent again, 1 unanswered, cause dns_server_silent (likely), retransmission db.shop A 10.96.0.10 0]
          connect +1.42 s 5.00 ms [to 10.96.0.7:5432]"
            .replace("\n        ", "\n")
            .as_str(),
    );
}

#[test]
fn a_containers_own_silo_is_its_sandboxs() {
    let mut scene = windows();
    // The silo of the pause process asks for nothing.
    pod_with_silo(&mut scene);
    let (sandbox, container) = (SandboxId("cafe".to_owned()), "d1e2".to_owned());
    said(&mut scene, 450, RuntimeSaid::ContainerOf { sandbox, container });
    // HCS starts it, and names the silo it became.
    let keys = [
        ObjectKey::Container("d1e2".to_owned()),
        ObjectKey::Silo("51-20".to_owned()),
    ];
    for (ms, change) in [(460, ActivityChange::Started), (560, stopped(0))] {
        let Body::ActivitySeen(mut step) = step("start compute system", "d1e2", change, &keys) else {
            panic!()
        };
        (step.service, step.pid, step.tid) = (Service::Hcs, 0, 0);
        scene.at(ms).event(Body::ActivitySeen(step));
    }
    asks_in(&mut scene, 600, "51-20", 1, LookupChange::Started);
    let server = "10.96.0.10".to_owned();
    asks_in(&mut scene, 601, "51-20", 1, LookupChange::Sent { server });
    asks_in(&mut scene, 610, "51-20", 1, finished(0));
    scene.at(60_000).tick();
    let played = scene.play().finish();
    assert_text(
        &played.text(),
        "sandbox +0 ns 510 ms [shop/web, cafe, containerd, network ready]
          sandbox.create +0 ns 300 ms [to runtime start]
            cni ADD +10.0 ms 90.0 ms [eth0]
              plugin win-bridge +10.0 ms 90.0 ms
          hcs start compute system +360 ms 100 ms [container=d1e2, silo=51-20]
          lookup +500 ms 10.0 ms [db.shop, A, at 10.96.0.10:53, noerror]"
            .replace("\n        ", "\n")
            .as_str(),
    );
}

#[test]
fn a_lookup_lasts_as_long_as_its_programs_call() {
    let mut scene = windows();
    pod_with_silo(&mut scene);
    let returned = |status| LookupChange::Returned {
        status,
        addresses: vec![[10, 96, 0, 7].into()],
    };
    // In the hosts file: nothing went over the network, which is not ready by that.
    asks(&mut scene, 450, 0, LookupChange::Called);
    asks(&mut scene, 451, 0, returned(0));
    asks(&mut scene, 490, 0, LookupChange::Called);
    asks(&mut scene, 491, 0, LookupChange::Called);
    asks(&mut scene, 500, 1, LookupChange::Started);
    let server = "10.96.0.10".to_owned();
    asks(&mut scene, 501, 1, LookupChange::Sent { server });
    asks(&mut scene, 510, 1, finished(0));
    asks(&mut scene, 514, 0, returned(0));
    // The service's own end was lost.
    asks(&mut scene, 30_000, 1, LookupChange::Started);
    asks(&mut scene, 30_020, 0, returned(11_002));
    scene.at(60_000).tick();
    let played = scene.play().finish();
    let [trace] = sandbox_traces(&played)[..] else { panic!() };
    let mut lookups = trace.spans.iter().filter_map(|span| match &span.detail {
        Detail::Lookup(lookup) => Some((span, lookup)),
        _ => None,
    });
    let (span, lookup) = lookups.next().unwrap();
    let ms = |at: Timestamp| at.since(trace.start()) / 1_000_000 + 100;
    assert_eq!((ms(span.start), ms(span.end.unwrap())), (490, 514));
    assert_eq!((lookup.queries, lookup.types.join("+")), (1, "A".to_owned()));
    assert_eq!(lookups.count(), 0);
    let sandbox = trace.id;
    let failed: Vec<&str> = played
        .closed
        .iter()
        .filter_map(|trace| match &trace.spans.last()?.detail {
            Detail::Lookup(lookup) if trace.id != sandbox => Some(lookup.result?.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(failed, ["timeout"], "{}", played.text());
}

#[test]
fn without_an_interface_the_endpoints_attachment_ends_the_wait() {
    let mut scene = windows();
    began(&mut scene, 100, "web");
    let plugin = runs(&mut scene, 110, "win-bridge");
    hns(&mut scene, 120, 130, "EndpointActivity", "1", &[endpoint("e-1")]);
    scene.at(200).exit(plugin, 0);
    hns(&mut scene, 300, 350, "EndpointAttachShared", "2", &[endpoint("e-1")]);
    returned(&mut scene, 400, "web", "cafe");
    let played = scene.play().finish();
    let wait = played.only().spans.iter().find_map(|span| match &span.detail {
        Detail::VnicWait(wait) => Some((span.duration_ns(span.start) / 1_000_000, wait.evidence.as_str())),
        _ => None,
    });
    assert_eq!(wait, Some((150, "endpoint attached")), "{}", played.text());
}

#[test]
fn a_shim_of_another_container_does_not_name_a_sandbox_for_good() {
    let mut scene = windows();
    began(&mut scene, 100, "web");
    let plugin = runs(&mut scene, 110, "win-bridge");
    scene.at(200).exit(plugin, 0);
    // A container of a pod that is older than the session.
    let shim = scene
        .at(210)
        .runtime("C:/c/containerd-shim-runhcs-v1.exe", &["-id", "else", "start"]);
    scene.at(220).exit(shim, 0);
    returned(&mut scene, 400, "web", "cafe");
    hns(
        &mut scene,
        410,
        420,
        "Entity",
        "1",
        &[ObjectKey::Container("else".into())],
    );
    let played = scene.play().finish();
    assert_eq!(played.only().sandbox, Some(SandboxId("cafe".into())));
    assert!(
        !played
            .only()
            .spans
            .iter()
            .any(|span| matches!(span.detail, Detail::Activity(_)))
    );
}

#[test]
fn tables_of_a_windows_node_are_bounded() {
    let mut scene = windows();
    scene.config.max_remembered = 8;
    for number in 0..100_u64 {
        began(&mut scene, 100 + number, &format!("pod-{number}"));
        hns(
            &mut scene,
            100 + number,
            101 + number,
            "Entity",
            "",
            &[endpoint(&format!("e-{number}"))],
        );
        scene
            .at(101 + number)
            .event(step("Entity", "", ActivityChange::Started, &[]));
    }
    let played = scene.play();
    assert!(played.counters().evicted_windows > 50, "{:?}", played.counters());
    assert!(played.correlator.sizes().windows <= 5 * 8 + 6_144);
    played.finish();
}

#[test]
fn a_sandbox_whose_beginning_was_not_seen_is_known_when_it_goes() {
    let mut scene = windows();
    returned(&mut scene, 100, "web", "cafe");
    let sandbox = SandboxId("cafe".into());
    said(&mut scene, 1_000, RuntimeSaid::StopBegan { sandbox });
    let plugin = runs(&mut scene, 1_010, "win-bridge");
    scene.at(1_050).exit(plugin, 0);
    let played = scene.play().finish();
    assert_text(
        &played.text(),
        "cni DEL +0 ns 40.0 ms [shop/web, cafe, eth0]
          plugin win-bridge +0 ns 40.0 ms"
            .replace("\n        ", "\n")
            .as_str(),
    );
}

#[test]
fn endpoints_are_counted_by_what_requests_did_to_them() {
    let mut scene = windows();
    let request = |scene: &mut Scene, ms: u64, method: &str, id: &str, result: u32| {
        let mut begin = step("RequestHandler", id, ActivityChange::Started, &[]);
        if let Body::ActivitySeen(step) = &mut begin {
            step.fields = [("method", method)].into_iter().collect();
        }
        scene.at(ms).event(begin);
        hns(scene, ms + 1, ms + 2, "EndpointActivity", "inner", &[endpoint(id)]);
        scene.at(ms + 3).event(step("RequestHandler", id, stopped(result), &[]));
    };
    request(&mut scene, 100, "POST", "e-1", 0);
    request(&mut scene, 110, "POST", "e-2", 0);
    request(&mut scene, 120, "POST", "e-3", 0x803b_0014);
    request(&mut scene, 130, "GET", "e-4", 0);
    request(&mut scene, 140, "DELETE", "e-1", 0);
    let played = scene.play().finish();
    let counts: Vec<u64> = played
        .outputs
        .iter()
        .filter_map(|output| match output {
            Output::Traffic(Traffic::Endpoints { endpoints, .. }) => Some(*endpoints),
            _ => None,
        })
        .collect();
    assert_eq!(counts, [1, 2, 1]);
}

#[test]
fn another_process_in_the_place_of_hns_ends_what_the_first_was_at() {
    let mut scene = windows();
    began(&mut scene, 0, "web");
    let plugin = runs(&mut scene, 20, "sdnbridge");
    let of = |name: &str, pid: u32, change: ActivityChange| {
        let Body::ActivitySeen(mut step) = step(name, "a1", change, &[endpoint("e1")]) else {
            panic!()
        };
        step.pid = pid;
        if name == "EndpointActivity" {
            step.activity = "a2".to_owned();
            step.related = "a1".to_owned();
        }
        Body::ActivitySeen(step)
    };
    scene.at(30).event(of("RequestHandler", 900, ActivityChange::Started));
    scene.at(35).event(of("EndpointActivity", 900, ActivityChange::Started));
    // Only its own events tell that it is another: no end of a process was seen.
    scene.at(700).event(of("OnStart", 910, ActivityChange::Started));
    scene.at(710).event(of("OnStart", 910, stopped(0)));
    // The first is over: its stop ends nothing, and that it logs makes no third.
    scene.at(720).event(of("EndpointActivity", 900, stopped(0)));
    scene.at(900).exit(plugin, 1);
    scene.at(1_000);
    let identity = pod("web");
    let message = "no network".to_owned();
    said(&mut scene, 1_000, RuntimeSaid::RunFailed { identity, message });
    let played = scene.play();
    let [trace] = sandbox_traces(&played)[..] else {
        panic!("{:?}", played.closed)
    };
    let activities: Vec<String> = trace
        .spans
        .iter()
        .filter_map(|span| match &span.detail {
            Detail::Activity(activity) => {
                let took = span.end.unwrap().since(span.start) / 1_000_000;
                Some(format!("{} {took} {:?}", activity.name, span.status))
            }
            _ => None,
        })
        .collect();
    let cut = "Error { class: \"windows_result\", message: \"interrupted: HNS went down\" }";
    assert_eq!(
        activities,
        [
            format!("RequestHandler 670 {cut}"),
            format!("EndpointActivity 665 {cut}"),
            "OnStart 10 Unset".to_owned(),
        ]
    );
    let restarts = played
        .outputs
        .iter()
        .filter(|output| matches!(output, Output::Traffic(Traffic::HnsRestarted)));
    assert_eq!(restarts.count(), 1);
    // What was interrupted made no endpoint.
    assert!(
        played.outputs.iter().all(|output| {
            !matches!(output, Output::Traffic(Traffic::Endpoints { endpoints, .. }) if *endpoints > 0)
        })
    );
}
