//! Activities of HNS and HCS: attributed to sandboxes by their objects, nested, counted, and ended with their service.

use sandglass_correlator::{Finding, Output};
use sandglass_model::trace::Detail;
use sandglass_model::windows::{ActivityChange, ObjectKey, RuntimeReport, Service};
use sandglass_model::{Body, SandboxId, Timestamp, Trace, text};

use super::{began, endpoint, hns, pod, report, returned, runs, sandbox_traces, step, stopped, windows};
use crate::scene::{Played, Scene, assert_text};

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
    report(&mut scene, 250, RuntimeReport::NamespaceOf { sandbox, namespace });
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
            Output::Finding(Finding::Endpoints { endpoints, .. }) => Some(*endpoints),
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
    // Only its own events show that it is another process: no end was reported.
    scene.at(700).event(of("OnStart", 910, ActivityChange::Started));
    scene.at(710).event(of("OnStart", 910, stopped(0)));
    // The first is over: its stop ends nothing, and that it logs makes no third.
    scene.at(720).event(of("EndpointActivity", 900, stopped(0)));
    scene.at(900).exit(plugin, 1);
    scene.at(1_000);
    let identity = pod("web");
    let message = "no network".to_owned();
    report(&mut scene, 1_000, RuntimeReport::RunFailed { identity, message });
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
        .filter(|output| matches!(output, Output::Finding(Finding::HnsRestarted)));
    assert_eq!(restarts.count(), 1);
    // What was interrupted made no endpoint.
    assert!(
        played.outputs.iter().all(|output| {
            !matches!(output, Output::Finding(Finding::Endpoints { endpoints, .. }) if *endpoints > 0)
        })
    );
}
