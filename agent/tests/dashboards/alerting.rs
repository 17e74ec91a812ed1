//! An alert from a slow plugin to the person on call, and back to sleep: agent text, Prometheus, Alertmanager, receiver.
//!
//! Windows and waits are seconds here; thresholds are those of the rules. The slow plugin is a real one, of a recording.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use super::documents::folder;
use super::exposition::Exposition;
use super::node::{self, Again, Replayed};
use super::peers::{self, Target};
use super::queries::shortened;

/// Takes what Alertmanager sends.
pub struct Receiver {
    pub address: SocketAddr,
    received: Arc<Mutex<Vec<Value>>>,
}

impl Receiver {
    pub fn start() -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let received = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&received);
        // Ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut request = Vec::new();
                let body = loop {
                    let mut chunk = [0; 8192];
                    let read = stream.read(&mut chunk).unwrap();
                    request.extend_from_slice(&chunk[..read]);
                    let text = String::from_utf8_lossy(&request).into_owned();
                    let Some((head, body)) = text.split_once("\r\n\r\n") else {
                        continue;
                    };
                    let length = head.to_ascii_lowercase();
                    let length: usize = length
                        .split("content-length: ")
                        .nth(1)
                        .unwrap()
                        .lines()
                        .next()
                        .unwrap()
                        .parse()
                        .unwrap();
                    if body.len() >= length {
                        break body.to_owned();
                    }
                };
                let message: Value = serde_json::from_str(&body).unwrap();
                shared
                    .lock()
                    .unwrap()
                    .extend(message["alerts"].as_array().unwrap().iter().cloned());
                stream
                    .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                    .unwrap();
            }
        });
        Receiver { address, received }
    }

    /// The newest message about an alert in a state.
    pub fn newest(&self, name: &str, status: &str) -> Option<Value> {
        let received = self.received.lock().unwrap();
        let fits = |alert: &&Value| alert["labels"]["alertname"] == name && alert["status"] == status;
        received.iter().rev().find(fits).cloned()
    }
}

/// What the agent serves of a recording.
fn exposition(recording: &str) -> Exposition {
    let all = node::recordings();
    let (name, file) = all.iter().find(|(name, _)| name == recording).unwrap();
    Replayed::start(name, file).exposition()
}

#[test]
fn a_slow_plugin_wakes_the_person_on_call_who_sleeps_again_when_it_is_fast() {
    let test = "a_slow_plugin_wakes_the_person_on_call_who_sleeps_again_when_it_is_fast";
    if !peers::has(test, "prometheus") || !peers::has(test, "prometheus-alertmanager") {
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
    let received = receiver.received.lock().unwrap().clone();
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
