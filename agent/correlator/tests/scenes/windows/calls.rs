//! Calls of plugins, inferred from what the runtime reports: the sandbox of each, and that a guess is marked as one.

use sandglass_correlator::Output;
use sandglass_model::event::Exec;
use sandglass_model::trace::Detail;
use sandglass_model::windows::{InterfaceStep, ObjectKey, RuntimeReport};
use sandglass_model::{Body, ProcessKey, SandboxId, Trace};

use super::{began, hns, pod, report, returned, runs, sandbox_traces, windows};
use crate::scene::{Scene, assert_text};

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

/// Found by fuzzing: a file whose clock stands still reports a pod's attempts at one and the same time.
#[test]
fn a_request_reported_twice_makes_one_trace_also_when_it_has_returned_meanwhile() {
    let mut scene = windows();
    for id in ["abcdef0123456789", "fedcba9876543210"] {
        began(&mut scene, 100, "web");
        returned(&mut scene, 100, "web", id);
    }
    scene.at(60_000).tick();
    let played = scene.play().finish();
    let id = SandboxId("abcdef0123456789".to_owned());
    assert_eq!(played.only().sandbox, Some(id.clone()));
    let asked = played
        .outputs
        .iter()
        .filter(|output| matches!(output, Output::LabelsNeeded(_)));
    assert_eq!(
        asked.collect::<Vec<_>>(),
        [&Output::LabelsNeeded(id)],
        "once, by the id it has at last"
    );
}

#[test]
fn two_pods_at_once_are_distinguished_by_order_and_marked() {
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
    report(
        &mut scene,
        180,
        RuntimeReport::RunFailed {
            identity: pod("web"),
            message,
        },
    );
    began(&mut scene, 10_000, "web");
    let again = runs(&mut scene, 10_010, "win-bridge");
    scene.at(10_050).exit(again, 0);
    returned(&mut scene, 10_100, "web", "cafe");
    report(
        &mut scene,
        20_000,
        RuntimeReport::StopBegan {
            sandbox: SandboxId("cafe".into()),
        },
    );
    let gone = runs(&mut scene, 20_010, "win-bridge");
    scene.at(20_020).exit(gone, 0);
    let (sandbox, message) = (SandboxId("cafe".into()), String::new());
    report(&mut scene, 20_030, RuntimeReport::StopReturned { sandbox, message });
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
fn a_program_without_a_possible_caller_is_an_orphan() {
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
fn a_sandbox_whose_beginning_was_not_seen_is_known_when_it_goes() {
    let mut scene = windows();
    returned(&mut scene, 100, "web", "cafe");
    let sandbox = SandboxId("cafe".into());
    report(&mut scene, 1_000, RuntimeReport::StopBegan { sandbox });
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
