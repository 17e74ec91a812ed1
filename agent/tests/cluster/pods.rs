//! Pods as the API server saw them, against traces as the agent saw them.
//!
//! A watch that runs from before the first pod is the list of what must be there: pods of a Deployment that was scaled
//! down are no longer in the API server when the test looks.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

use super::node::{AGENT, Node, http, wait_for};

/// Follows the pods of one namespace. The API server ends a watch whose reader falls behind, as on a busy machine: it is
/// begun again then, with a list of what is there.
pub struct PodWatch {
    thread: Option<JoinHandle<u32>>,
    done: Arc<AtomicBool>,
    // A pipe without a reader would stop it.
    reported: tempfile::NamedTempFile,
    namespace: String,
}

/// A pod of the API server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pod {
    /// `metadata.uid`
    pub uid: String,
    /// `metadata.name`
    pub name: String,
    /// `metadata.namespace`
    pub namespace: String,
}

/// Also when the test fails: a child that has the test's standard error keeps whoever reads that waiting.
impl Drop for PodWatch {
    fn drop(&mut self) {
        self.end();
    }
}

impl PodWatch {
    /// Begins to follow.
    pub fn start(node: &Node, namespace: &str) -> PodWatch {
        let reported = tempfile::NamedTempFile::new().unwrap();
        let output = reported.reopen().unwrap();
        let mut command = node.endless("kubectl");
        command.args(["get", "pods", "--namespace", namespace, "--watch", "--output=json"]);
        let done = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&done);
        let follow = move || {
            let mut watches = 0;
            while !stop.load(Ordering::Relaxed) {
                let watch = command.stdout(output.try_clone().unwrap()).spawn().unwrap();
                watches += 1;
                until_ended(watch, &stop);
            }
            watches
        };
        PodWatch {
            thread: Some(std::thread::spawn(follow)),
            done,
            reported,
            namespace: namespace.to_owned(),
        }
    }

    /// Ends the watch; how many it took.
    fn end(&mut self) -> u32 {
        self.done.store(true, Ordering::Relaxed);
        // A second time there is none.
        self.thread.take().map_or(0, |thread| thread.join().unwrap_or_default())
    }

    /// Every pod that was assigned to the node and has a network of its own.
    pub fn finish(mut self) -> BTreeSet<Pod> {
        let watches = self.end();
        if watches > 1 {
            println!("the API server ended the watch {} times", watches - 1);
        }
        let text = std::fs::read_to_string(self.reported.path()).unwrap();
        let mut seen = BTreeSet::new();
        for value in serde_json::Deserializer::from_str(&text).into_iter::<Value>() {
            // The last one may be cut.
            let Ok(value) = value else { break };
            let items = value["items"].as_array().cloned().unwrap_or_else(|| vec![value]);
            for pod in items {
                if pod["spec"]["nodeName"].is_string() && pod["spec"]["hostNetwork"] != true {
                    let text = |key: &str| pod["metadata"][key].as_str().unwrap().to_owned();
                    seen.insert(Pod {
                        uid: text("uid"),
                        name: text("name"),
                        namespace: text("namespace"),
                    });
                }
            }
        }
        assert!(seen.iter().all(|pod| pod.namespace == self.namespace));
        seen
    }
}

/// Waits until a watch ends by itself, or ends it.
fn until_ended(mut watch: Child, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        if watch.try_wait().unwrap().is_some() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    // Ended already is as good.
    let _ = watch.kill();
    let _ = watch.wait();
}

/// Closed traces of sandboxes in a namespace, oldest first, each in full. Waits until none of them
/// runs: one whose pod sends nothing ends after `traffic.ready_deadline`.
pub fn sandbox_traces(namespace: &str) -> Vec<Value> {
    traces("sandbox", namespace)
}

/// Closed traces of operations (DEL and others) in a namespace.
pub fn operation_traces(namespace: &str) -> Vec<Value> {
    traces("operation", namespace)
}

fn traces(kind: &str, namespace: &str) -> Vec<Value> {
    let rows = wait_for("the end of all traces", 120, || {
        let list = http(
            AGENT,
            &format!("/api/v1/sandboxes?kind={kind}&limit=1000&q={namespace}"),
        );
        let rows = list["rows"].as_array().unwrap().clone();
        let ours: Vec<Value> = rows.into_iter().filter(|row| row["namespace"] == namespace).collect();
        let open = |row: &&Value| row["running"] == true || row["result"] == "waiting";
        match ours.iter().filter(open).count() {
            // The agent shows a trace half a second after it began; a pod can be ready before that.
            0 if ours.is_empty() => Err("none is there".to_owned()),
            0 => Ok(ours),
            open => Err(format!("{open} are open")),
        }
    });
    // The trace's id is the runtime's: operations that it requests within one of its traces share it.
    let path = |row: &Value| {
        let [trace, root] = ["trace_id", "root_span_id"].map(|key| row[key].as_str().unwrap());
        format!("/api/v1/traces/{trace}/{root}")
    };
    let mut traces: Vec<Value> = rows.iter().map(|row| http(AGENT, &path(row))).collect();
    traces.sort_by_key(|trace| trace["start_unix_ns"].as_str().unwrap().parse::<u64>().unwrap());
    traces
}

/// Traces by the uid of their pod.
pub fn by_uid(traces: &[Value]) -> BTreeMap<String, Vec<&Value>> {
    let mut found: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
    for trace in traces {
        found
            .entry(trace["identity"]["uid"].as_str().unwrap().to_owned())
            .or_default()
            .push(trace);
    }
    found
}

/// None missing, none doubled, none that the API server does not know; every one complete and with the pod's real names.
/// Pods whose name `fails` accepts are attempted again and again, and each attempt fails.
pub fn assert_same(pods: &BTreeSet<Pod>, traces: &[Value], fails: impl Fn(&str) -> bool) {
    let found = by_uid(traces);
    let known: BTreeSet<&String> = pods.iter().map(|pod| &pod.uid).collect();
    let strangers: Vec<_> = found.keys().filter(|uid| !known.contains(uid)).collect();
    assert!(
        strangers.is_empty(),
        "traces of pods that the API server does not know: {strangers:?}"
    );
    for pod in pods {
        let traces = found.get(&pod.uid).unwrap_or_else(|| panic!("no trace of {pod:?}"));
        for trace in traces {
            assert_eq!(trace["identity"]["name"], pod.name.as_str(), "{pod:?}");
            assert_eq!(trace["identity"]["namespace"], pod.namespace.as_str(), "{pod:?}");
            assert_whole(trace);
        }
        if fails(&pod.name) {
            assert!(traces.iter().all(|trace| trace["result"] == "failed"), "{pod:?}");
            let attempts: Vec<u64> = traces.iter().map(|trace| trace["attempt"].as_u64().unwrap()).collect();
            assert_eq!(attempts, (1..=traces.len() as u64).collect::<Vec<_>>(), "{pod:?}");
        } else {
            assert_eq!(traces.len(), 1, "{pod:?} has {} traces", traces.len());
            assert_complete(traces[0]);
        }
    }
    println!(
        "{} pods of the API server, {} traces, each of one of them",
        pods.len(),
        traces.len()
    );
}

/// The trace is not marked incomplete, or for a reason that is true: records of the machine's traffic were lost while it was open,
/// because something else on the machine flooded it with lookups or connections. The pods here cannot: their traffic is
/// a handful of packets. Of processes nothing may be lost.
pub fn assert_whole(trace: &Value) {
    if trace["incomplete"] == false {
        return;
    }
    let events = trace["timeline"][0]["events"].as_array().unwrap();
    let lost: Vec<&Value> = events.iter().filter(|event| event["name"] == "records lost").collect();
    let of_traffic = |event: &&Value| {
        let attributes = event["attributes"].as_array().unwrap();
        let probe = attributes.iter().find(|pair| pair[0] == "sandglass.probe").unwrap();
        ["dns", "connect", "conntrack", "drops"].contains(&probe[1].as_str().unwrap())
    };
    let health = http(AGENT, "/api/v1/health");
    let counted = |probe: &str| health["lost"]["by"][probe].as_u64().unwrap();
    let flooded = counted("dns") + counted("connect") + counted("conntrack") + counted("drops") > 0;
    assert!(
        !lost.is_empty() && lost.iter().all(of_traffic) && flooded,
        "incomplete: {trace} {health}"
    );
    println!(
        "{} is incomplete: traffic of others on this machine was lost: {lost:?}",
        trace["pod"]
    );
}

/// What a sandbox of this node's network must show: both attachments, the chain, its delegate, the runtime's last step.
fn assert_complete(trace: &Value) {
    let spans = trace["timeline"].as_array().unwrap();
    let what = format!("{} of {}", trace["trace_id"], trace["pod"]);
    assert_eq!(trace["result"], "ok", "{what}");
    let named = |name: &str| spans.iter().filter(|span| span["name"] == name).count();
    for (name, count) in [
        ("sandbox", 1),
        ("sandbox.create", 1),
        ("cni ADD", 2),
        ("plugin bridge", 1),
        ("plugin host-local", 1),
        ("plugin loopback", 1),
    ] {
        assert_eq!(named(name), count, "{what}: {name} in {:?}", names(trace));
    }
    assert!(
        spans.iter().all(|span| span["end_unix_ns"].is_string()),
        "{what}: a span has no end"
    );
    assert_eq!(spans[1]["attributes"]["sandglass.netns_seen"], true, "{what}: begin");
}

/// Names of all spans.
pub fn names(trace: &Value) -> Vec<&str> {
    let spans = trace["timeline"].as_array().unwrap();
    spans.iter().filter_map(|span| span["name"].as_str()).collect()
}
