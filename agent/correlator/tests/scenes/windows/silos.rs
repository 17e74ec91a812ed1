//! Lookups and connects of a silo's processes: they make a sandbox ready.

use sandglass_model::network::{ConnectStep, Initiator, Step};
use sandglass_model::trace::Detail;
use sandglass_model::windows::{
    ActivityChange, LookupChange, LookupStep, ObjectKey, RuntimeReport, Service, SiloChange, SiloStep,
};
use sandglass_model::{Body, ProcessKey, SandboxId, Timestamp};

use super::{began, report, returned, runs, sandbox_traces, step, stopped, windows};
use crate::scene::{Scene, assert_text};

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

fn lookup_step(scene: &mut Scene, ms: u64, kind: u16, step: LookupChange) {
    lookup_step_in(scene, ms, "51-10", kind, step);
}

fn lookup_step_in(scene: &mut Scene, ms: u64, silo: &str, kind: u16, step: LookupChange) {
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
        lookup_step(&mut scene, 500, kind, LookupChange::Started);
        lookup_step(&mut scene, 501, kind, LookupChange::Sent { server: server() });
    }
    lookup_step(&mut scene, 1_500, 1, LookupChange::TimedOut { server: server() });
    lookup_step(&mut scene, 1_501, 1, LookupChange::Sent { server: server() });
    lookup_step(&mut scene, 1_510, 1, finished(0));
    lookup_step(&mut scene, 1_511, 28, finished(9_501));
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
            initiator: Some(Initiator {
                process,
                comm: Default::default(),
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
    // The silo of the pause process resolves nothing.
    pod_with_silo(&mut scene);
    let (sandbox, container) = (SandboxId("cafe".to_owned()), "d1e2".to_owned());
    report(&mut scene, 450, RuntimeReport::ContainerOf { sandbox, container });
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
    lookup_step_in(&mut scene, 600, "51-20", 1, LookupChange::Started);
    let server = "10.96.0.10".to_owned();
    lookup_step_in(&mut scene, 601, "51-20", 1, LookupChange::Sent { server });
    lookup_step_in(&mut scene, 610, "51-20", 1, finished(0));
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
    lookup_step(&mut scene, 450, 0, LookupChange::Called);
    lookup_step(&mut scene, 451, 0, returned(0));
    lookup_step(&mut scene, 490, 0, LookupChange::Called);
    lookup_step(&mut scene, 491, 0, LookupChange::Called);
    lookup_step(&mut scene, 500, 1, LookupChange::Started);
    let server = "10.96.0.10".to_owned();
    lookup_step(&mut scene, 501, 1, LookupChange::Sent { server });
    lookup_step(&mut scene, 510, 1, finished(0));
    lookup_step(&mut scene, 514, 0, returned(0));
    // The service's own end was lost.
    lookup_step(&mut scene, 30_000, 1, LookupChange::Started);
    lookup_step(&mut scene, 30_020, 0, returned(11_002));
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
