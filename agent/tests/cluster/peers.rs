//! What containerd, kubelet and Jaeger say of the same sandboxes: counts, durations, the joined trace.
//!
//! containerd's metrics and spans are clocks of their own. Does not: trust the agent's API for anything it checks here.

use std::collections::BTreeMap;

use serde_json::Value;

use super::node::{CONTAINERD, JAEGER, http, try_http, wait_for};

/// containerd's own count of CNI operations.
pub struct CniCounts {
    set_up: u64,
    failed: u64,
}

impl CniCounts {
    /// As it stands.
    pub fn read() -> CniCounts {
        let text = try_http(CONTAINERD, "/v1/metrics").unwrap();
        let count = |name: &str| {
            let lines = text
                .lines()
                .filter(|line| line.starts_with(name) && line.contains("\"set_up_pod\""));
            let values = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
            values.sum::<f64>() as u64
        };
        CniCounts {
            set_up: count("containerd_cri_network_plugin_operations_total"),
            failed: count("containerd_cri_network_plugin_operations_errors_total"),
        }
    }

    /// Since then containerd set as many networks up as there are traces, and as many failed.
    pub fn assert_same_count(&self, traces: &[Value]) {
        let now = CniCounts::read();
        let failed = traces.iter().filter(|trace| trace["result"] == "failed").count() as u64;
        assert_eq!(
            (now.set_up - self.set_up, now.failed - self.failed),
            (traces.len() as u64, failed),
            "(set up, failed) by containerd's metrics, and by our traces"
        );
        println!(
            "containerd counts {} set-ups, {failed} failed: as many as traces",
            traces.len()
        );
    }
}

/// A span as Jaeger gives it.
#[derive(Debug)]
struct Peer<'a> {
    service: &'a str,
    span: &'a Value,
}

impl Peer<'_> {
    fn name(&self) -> &str {
        self.span["operationName"].as_str().unwrap()
    }

    fn tag(&self, key: &str) -> Value {
        let tags = self.span["tags"].as_array().unwrap();
        tags.iter()
            .find(|tag| tag["key"] == key)
            .map_or(Value::Null, |tag| tag["value"].clone())
    }

    fn duration_us(&self) -> u64 {
        self.span["duration"].as_u64().unwrap()
    }
}

fn peers(trace: &Value) -> Vec<Peer<'_>> {
    let spans = trace["spans"].as_array().unwrap().iter();
    spans
        .map(|span| Peer {
            service: trace["processes"][span["processID"].as_str().unwrap()]["serviceName"]
                .as_str()
                .unwrap(),
            span,
        })
        .collect()
}

/// The trace of this id with `ours` spans of the agent and the end of containerd's own, which come in batches.
fn from_jaeger(id: &str, ours: usize) -> Value {
    wait_for(&format!("trace {id} in Jaeger"), 30, || {
        let answer = try_http(JAEGER, &format!("/api/traces/{id}"))?;
        let answer: Value = serde_json::from_str(&answer).map_err(|error| error.to_string())?;
        let trace = answer["data"][0].clone();
        if trace.is_null() {
            return Err("not there".to_owned());
        }
        let peers = peers(&trace);
        let sandglass = peers.iter().filter(|peer| peer.service == "sandglass").count();
        let whole = peers.iter().any(|peer| peer.name() == "cri.sandbox.run");
        if sandglass >= ours && whole {
            Ok(trace.clone())
        } else {
            Err(format!("{sandglass} of {ours} spans, whole: {whole}"))
        }
    })
}

/// Our ADD of each attachment against containerd's span of the same one: within it, and as long but for 5 ms or 5 %.
pub fn assert_durations_agree(traces: &[Value]) {
    let mut differences = Vec::new();
    for trace in traces.iter().filter(|trace| trace["result"] == "ok") {
        let spans = trace["timeline"].as_array().unwrap();
        let jaeger = from_jaeger(trace["trace_id"].as_str().unwrap(), spans.len());
        for peer in peers(&jaeger).iter().filter(|peer| peer.name() == "cni.asynchAttach") {
            let ifname = peer.tag("cni.ifname");
            let ours = spans
                .iter()
                .find(|span| span["name"] == "cni ADD" && span["attributes"]["cni.ifname"] == ifname);
            let ours = ours.unwrap_or_else(|| panic!("no ADD of {ifname} in {}", trace["trace_id"]));
            let ours_us = ours["duration_ns"].as_u64().unwrap() / 1000;
            let theirs_us = peer.duration_us();
            assert!(
                ours_us <= theirs_us + 1000,
                "ADD of {ifname} in {}: {ours_us} us, containerd {theirs_us} us",
                trace["pod"]
            );
            differences.push((theirs_us.saturating_sub(ours_us), theirs_us));
        }
    }
    assert!(
        differences.len() >= 40,
        "only {} attachments in containerd's spans",
        differences.len()
    );
    let agree = |(difference, whole): &&(u64, u64)| *difference <= 5_000.max(whole / 20);
    let agreeing = differences.iter().filter(agree).count();
    differences.sort_unstable();
    let median = differences[differences.len() / 2].0;
    println!(
        "{agreeing} of {} ADDs agree with containerd's spans within 5 ms or 5 %; median difference {median} us",
        differences.len()
    );
    // containerd's span also holds the fork and exec of the plugin, which wait for a processor where thirty pods begin at
    // once, and longer where others want it too.
    let load = std::fs::read_to_string("/proc/loadavg").unwrap();
    let load: f64 = load.split(' ').next().unwrap().parse().unwrap();
    let processors = std::thread::available_parallelism().unwrap().get() as f64;
    let wanted = if load > 3.0 * processors {
        differences.len() / 3
    } else {
        differences.len() / 2
    };
    assert!(agreeing >= wanted, "load {load}: {differences:?}");
}

/// Jaeger shows what the agent's API shows, in the one trace in which kubelet and containerd have their spans too.
pub fn assert_jaeger_shows(traces: &[Value]) {
    let services = http(JAEGER, "/api/services");
    for service in ["sandglass", "containerd", "kubelet"] {
        assert!(
            services["data"].as_array().unwrap().contains(&service.into()),
            "{services}"
        );
    }
    let mut joined = 0;
    for trace in traces {
        let id = trace["trace_id"].as_str().unwrap();
        let own = trace["timeline"].as_array().unwrap();
        let jaeger = from_jaeger(id, own.len());
        let all = peers(&jaeger);
        let ours: Vec<&Peer> = all.iter().filter(|peer| peer.service == "sandglass").collect();
        let shown: BTreeMap<String, &&Peer> = ours
            .iter()
            .map(|peer| (peer.span["spanID"].as_str().unwrap().to_owned(), peer))
            .collect();
        for span in own {
            let peer = shown
                .get(span["id"].as_str().unwrap())
                .unwrap_or_else(|| panic!("{} of {id} is not in Jaeger", span["name"]));
            assert_eq!(peer.name(), span["name"].as_str().unwrap(), "{id}");
            assert_eq!(
                peer.duration_us(),
                span["duration_ns"].as_u64().unwrap() / 1000,
                "{} of {id}",
                span["name"]
            );
            assert_eq!(
                peer.tag("error") == true,
                span["status"] == "error",
                "{} of {id}",
                span["name"]
            );
        }
        let resource = &jaeger["processes"][ours[0].span["processID"].as_str().unwrap()]["tags"];
        let resource = |key: &str| {
            let tags = resource.as_array().unwrap();
            tags.iter()
                .find(|tag| tag["key"] == key)
                .map_or(Value::Null, |tag| tag["value"].clone())
        };
        assert_eq!(resource("k8s.pod.uid"), trace["identity"]["uid"], "{id}");
        assert_eq!(resource("k8s.pod.name"), trace["pod"], "{id}");
        assert_eq!(resource("k8s.namespace.name"), trace["namespace"], "{id}");
        assert_eq!(resource("k8s.node.name"), "n1", "{id}");
        // containerd gives its context to the plugins, and its span names the same sandbox.
        let run = all
            .iter()
            .find(|peer| peer.name() == "cri.sandbox.run" && peer.tag("sandbox.id") == trace["sandbox"]);
        assert!(
            run.is_some(),
            "{id}: no span of containerd for sandbox {}",
            trace["sandbox"]
        );
        let root = ours.iter().find(|peer| peer.name() == "sandbox").unwrap();
        let parent = root.span["references"]
            .as_array()
            .unwrap()
            .iter()
            .find(|link| link["refType"] == "CHILD_OF");
        let parent = parent.and_then(|parent| all.iter().find(|peer| peer.span["spanID"] == parent["spanID"]));
        assert_eq!(
            parent.map(|parent| parent.service),
            Some("containerd"),
            "{id}: parent of the root"
        );
        joined += usize::from(
            all.iter()
                .any(|peer| peer.service == "kubelet" && peer.name() == "syncPod"),
        );
    }
    assert_eq!(joined, traces.len(), "traces in which the kubelet's own span is");
    println!(
        "{joined} traces in Jaeger hold the spans of kubelet, containerd and sandglass, ours as the agent's API has them"
    );
}
