//! An alert from a slow plugin to the person on call, and back to sleep: agent text, Prometheus, Alertmanager, receiver.
//!
//! Windows and waits are seconds here; thresholds are those of the rules. The slow plugin is a real one, of a recording.

use super::documents::folder;
use super::exposition::Exposition;
use super::node::{self, Again, Replayed};
use super::questions::shortened;
use super::receiver::Receiver;
use sandglass_lab::peers::{self, Target};

/// What the agent serves of a recording.
fn exposition(recording: &str) -> Exposition {
    let all = node::recordings();
    let (name, file) = all.iter().find(|(name, _)| name == recording).unwrap();
    Replayed::start(name, file).exposition()
}

#[test]
fn a_slow_plugin_wakes_the_person_on_call_who_sleeps_again_when_it_is_fast() {
    let test = "a_slow_plugin_wakes_the_person_on_call_who_sleeps_again_when_it_is_fast";
    if !sandglass_lab::skip::has(test, "prometheus") || !sandglass_lab::skip::has(test, "prometheus-alertmanager") {
        return;
    }
    // On one node the demo's chain with a plugin that waits two seconds; on the other nothing out of the ordinary.
    let (slow, fast) = (exposition("demo-scenarios"), exposition("two-networks"));
    let (worker, other) = (Again::serve(slow), Again::serve(fast.clone()));
    let receiver = Receiver::start();
    let alertmanager = peers::alertmanager(receiver.address);
    let folder = tempfile::tempdir().unwrap();
    let target = |node: &str, again: &Again| Target {
        job: "sandglass",
        node: node.to_owned(),
        cluster: Some("c1"),
        address: again.address,
    };
    let targets = [target("worker-1", &worker), target("worker-2", &other)];
    let _prometheus = peers::prometheus(&targets, &shortened(folder.path()), Some(alertmanager.address));

    let name = "SandglassCniAddSlow";
    let alert = peers::until("the alert is delivered", 60, || receiver.newest(name, "firing"));
    assert_eq!(alert["labels"]["severity"], "warning");
    assert_eq!(alert["labels"]["node"], "worker-1");
    assert_eq!(alert["labels"]["cluster"], "c1");
    assert_eq!(alert["labels"]["network"], "pods-slow");
    let annotation = |key: &str| alert["annotations"][key].as_str().unwrap().to_owned();
    assert!(
        annotation("summary").starts_with("CNI ADD on worker-1 takes 2."),
        "{alert}"
    );
    // The recording has two plugins that take between 2 and 3 s; one of them hangs, on another network.
    let description = annotation("description");
    let names = |plugin: &&str| description.contains(&format!("The slowest plugin is {plugin}: 2."));
    assert!(["slow-policy", "remote-policy"].iter().any(names), "{alert}");
    assert!(annotation("traces").contains("k8s.node.name=worker-1"), "{alert}");
    let runbook = annotation("runbook_url");
    let file = runbook.split("/blob/main/dashboards/").nth(1).unwrap();
    assert!(folder_has(file), "{runbook}");
    // The recording has failing and hanging plugins too: other alerts may come, but none of the other node.
    let received = receiver.all();
    assert!(
        received.iter().all(|alert| alert["labels"]["node"] == "worker-1"),
        "{received:?}"
    );

    worker.turn_to(fast);
    let resolved = peers::until("the alert is resolved", 60, || receiver.newest(name, "resolved"));
    assert_eq!(resolved["labels"], alert["labels"]);
    println!("fired {}, resolved {}", alert["startsAt"], resolved["endsAt"]);
}

fn folder_has(file: &str) -> bool {
    folder().join(file).is_file()
}
