//! What containerd, kubelet and Jaeger say of the same sandboxes: counts, durations, the joined trace.
//!
//! containerd's metrics and spans are clocks of their own. Does not: trust the agent's API for anything it checks here.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use sandglass_lab::pressure::Pressure;

use super::node::{CONTAINERD, JAEGER, http, try_http, wait_for};

/// containerd's own count of CNI operations, the time they took, and how long tasks of the node can have waited meanwhile.
pub struct CniCounts {
    set_up: u64,
    failed: u64,
    seconds: f64,
    pressure: Pressure,
    waited_seconds: f64,
}

impl CniCounts {
    /// As it stands.
    pub fn read() -> CniCounts {
        let text = try_http(CONTAINERD, "/v1/metrics").unwrap();
        let sum = |name: &str| -> f64 {
            let lines = text
                .lines()
                .filter(|line| line.starts_with(name) && line.contains("\"set_up_pod\""));
            lines
                .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
                .sum()
        };
        CniCounts {
            set_up: sum("containerd_cri_network_plugin_operations_total") as u64,
            failed: sum("containerd_cri_network_plugin_operations_errors_total") as u64,
            seconds: sum("containerd_cri_network_plugin_operations_duration_seconds_seconds_sum"),
            pressure: Pressure::now(),
            waited_seconds: 0.0,
        }
    }

    /// What came since then.
    pub fn since(&self) -> CniCounts {
        let now = CniCounts::read();
        CniCounts {
            set_up: now.set_up - self.set_up,
            failed: now.failed - self.failed,
            seconds: now.seconds - self.seconds,
            pressure: now.pressure,
            waited_seconds: self.pressure.ns_since() as f64 / 1e9,
        }
    }

    /// containerd set as many networks up as there are traces, and as many failed.
    pub fn assert_same_count(&self, traces: &[Value]) {
        let failed = traces.iter().filter(|trace| trace["result"] == "failed").count() as u64;
        assert_eq!(
            (self.set_up, self.failed),
            (traces.len() as u64, failed),
            "(set up, failed) by containerd's metrics, and by our traces"
        );
        println!(
            "containerd counts {} set-ups, {failed} failed: as many as traces",
            traces.len()
        );
    }
}

/// Setting the networks of these sandboxes up, from the first ADD's begin to the last one's end, took as long as containerd's
/// metric says, which was read around each of them: never longer, and as long but for 5 ms or 5 % at the median. A median
/// that is further apart is not judged where tasks of the node waited for as long meanwhile.
pub fn assert_same_duration(test: &str, alone: &[CniCounts], traces: &[&Value]) {
    assert_eq!(alone.len(), traces.len());
    let mut both = Vec::new();
    for (counts, trace) in alone.iter().zip(traces) {
        assert_eq!((counts.set_up, counts.failed), (1, 0), "{}", trace["pod"]);
        let ours = set_up_seconds(trace);
        assert!(
            ours <= counts.seconds,
            "{}: {ours} s, by containerd's metric {} s",
            trace["pod"],
            counts.seconds
        );
        both.push((ours, counts.seconds, counts.waited_seconds));
    }
    both.sort_by(|one, other| (one.1 - one.0).total_cmp(&(other.1 - other.0)));
    let (ours, theirs, waited) = both[both.len() / 2];
    println!(
        "the set-up of one pod at a time: {:.1} ms, {:.1} ms by containerd's metric, in the median of {}",
        ours * 1e3,
        theirs * 1e3,
        both.len()
    );
    if theirs - ours <= (theirs / 20.0).max(0.005) {
        return;
    }
    assert!(theirs - ours <= waited, "{both:?}");
    eprintln!(
        "NOT JUDGED {test}::containerds_metric: {:.1} ms apart at the median, tasks waited {:.1} ms for processors and disks",
        (theirs - ours) * 1e3,
        waited * 1e3
    );
}

fn set_up_seconds(trace: &Value) -> f64 {
    let spans = trace["timeline"].as_array().unwrap();
    let adds = || spans.iter().filter(|span| span["name"] == "cni ADD");
    let begin = |span: &Value| span["offset_ns"].as_u64().unwrap();
    let end = |span: &Value| begin(span) + span["duration_ns"].as_u64().unwrap();
    let (first, last) = (adds().map(begin).min().unwrap(), adds().map(end).max().unwrap());
    (last - first) as f64 / 1e9
}

/// A span as Jaeger returns it.
#[derive(Debug)]
pub struct Peer<'a> {
    /// Who sent it.
    pub service: &'a str,
    span: &'a Value,
}

impl Peer<'_> {
    /// Its name.
    pub fn name(&self) -> &str {
        self.span["operationName"].as_str().unwrap()
    }

    /// Whether it is of this service and has this name.
    pub fn is(&self, (service, name): Named) -> bool {
        self.service == service && self.name() == name
    }

    /// The value of an attribute; null where there is none.
    pub fn tag(&self, key: &str) -> Value {
        let tags = self.span["tags"].as_array().unwrap();
        tags.iter()
            .find(|tag| tag["key"] == key)
            .map_or(Value::Null, |tag| tag["value"].clone())
    }

    /// Trace and span of each reference of this kind.
    fn references(&self, kind: &str) -> Vec<(String, String)> {
        let all = self.span["references"].as_array().unwrap().iter();
        let text = |reference: &Value, key: &str| reference[key].as_str().unwrap().to_owned();
        let mut found: Vec<_> = all
            .filter(|reference| reference["refType"] == kind)
            .map(|reference| (text(reference, "traceID"), text(reference, "spanID")))
            .collect();
        found.sort();
        found
    }

    /// Its begin, microseconds since 1970.
    pub fn start_us(&self) -> u64 {
        self.span["startTime"].as_u64().unwrap()
    }

    /// Its duration, microseconds.
    pub fn duration_us(&self) -> u64 {
        self.span["duration"].as_u64().unwrap()
    }
}

/// All spans of a trace.
pub fn peers(trace: &Value) -> Vec<Peer<'_>> {
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

/// The trace of this id with `ours` spans of the agent and those of these names of the others: each of them sends in
/// batches of its own.
pub fn from_jaeger(id: &str, ours: usize, theirs: &[Named]) -> Value {
    wait_for(&format!("trace {id} in Jaeger"), 60, || {
        let answer = try_http(JAEGER, &format!("/api/traces/{id}"))?;
        let answer: Value = serde_json::from_str(&answer).map_err(|error| error.to_string())?;
        let trace = answer["data"][0].clone();
        if trace.is_null() {
            return Err("not there".to_owned());
        }
        let peers = peers(&trace);
        let sandglass = peers.iter().filter(|peer| peer.service == "sandglass").count();
        let missing = theirs.iter().filter(|named| !peers.iter().any(|peer| peer.is(**named)));
        let missing: Vec<_> = missing.collect();
        if sandglass >= ours && missing.is_empty() {
            Ok(trace.clone())
        } else {
            Err(format!("{sandglass} of {ours} spans, without {missing:?}"))
        }
    })
}

/// Our ADD of each attachment against containerd's span of the same one. Each lies within it: containerd's span also
/// holds the fork and exec of the plugins, and the reading and keeping of their result, which is a millisecond or two
/// where nothing else wants the processor. So they are also as long but for 5 ms or 5 %: eight of ten that were made one at
/// a time (`alone`), three of ten of those that were made thirty at once. The rest is containerd waiting for a processor
/// before it forks and after a plugin ended. Fewer are not judged where tasks of the node waited for a processor or a disk
/// more than half of the time (`waited`, of the whole test); otherwise the test fails.
pub fn assert_durations_agree(test: &str, traces: &[Value], waited: f64, alone: impl Fn(&Value) -> bool) {
    let (mut quiet, mut crowded) = (Vec::new(), Vec::new());
    for trace in traces.iter().filter(|trace| trace["result"] == "ok") {
        let spans = trace["timeline"].as_array().unwrap();
        let jaeger = from_jaeger(trace["trace_id"].as_str().unwrap(), spans.len(), &[RUN]);
        for peer in peers(&jaeger).iter().filter(|peer| peer.name() == "cni.asynchAttach") {
            let ifname = peer.tag("cni.ifname");
            let ours = spans
                .iter()
                .find(|span| span["name"] == "cni ADD" && span["attributes"]["cni.ifname"] == ifname);
            let ours = ours.unwrap_or_else(|| panic!("no ADD of {ifname} in {}", trace["trace_id"]));
            let begin_us = ours["start_unix_ns"].as_str().unwrap().parse::<u64>().unwrap() / 1000;
            let (ours_us, theirs_us) = (ours["duration_ns"].as_u64().unwrap() / 1000, peer.duration_us());
            let before = begin_us.checked_signed_diff(peer.start_us()).unwrap();
            let after = theirs_us.checked_signed_diff(ours_us).unwrap() - before;
            // Two clocks: ours is the boot clock with one anchor.
            assert!(
                before >= -500 && after >= -500,
                "ADD of {ifname} in {} is not within containerd's: {before} us before it, {after} us after it",
                trace["pod"]
            );
            let difference = theirs_us.saturating_sub(ours_us);
            let of = if alone(trace) { &mut quiet } else { &mut crowded };
            of.push((difference, before, after, theirs_us));
        }
    }
    for (what, differences, of_ten) in [("one_at_a_time", &mut quiet, 8), ("many_at_once", &mut crowded, 3)] {
        assert!(differences.len() >= 20, "only {} attachments {what}", differences.len());
        differences.sort_unstable();
        let (difference, before, after, _) = differences[differences.len() / 2];
        let agree = |(difference, _, _, whole): &&(u64, i64, i64, u64)| *difference <= 5_000.max(whole / 20);
        let agreeing = differences.iter().filter(agree).count();
        println!(
            "{agreeing} of {} ADDs, {what}, agree with containerd's spans within 5 ms or 5 %; the median differs by \
             {difference} us: {before} before the first exec, {after} after the last exit",
            differences.len()
        );
        if agreeing * 10 >= differences.len() * of_ten {
            continue;
        }
        // What containerd's threads wait for a processor is in its spans and not in ours: a test of its own takes it out (own_time.rs).
        assert!(
            waited > 0.25,
            "{what}, tasks waited {waited:.2} of the time: {differences:?}"
        );
        eprintln!(
            "NOT JUDGED {test}::containerds_spans_{what}: {agreeing} of {} agree, tasks waited {:.0} % of the time",
            differences.len(),
            waited * 100.0
        );
    }
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
    let operations = http(JAEGER, "/api/services/sandglass/operations");
    for span in traces.iter().flat_map(|trace| trace["timeline"].as_array().unwrap()) {
        assert!(
            operations["data"].as_array().unwrap().contains(&span["name"]),
            "{operations}: {}",
            span["name"]
        );
    }
    let mut joined = 0;
    for trace in traces {
        let id = trace["trace_id"].as_str().unwrap();
        let jaeger = from_jaeger(id, trace["timeline"].as_array().unwrap().len(), &[RUN, SYNC]);
        let all = peers(&jaeger);
        let ours: Vec<&Peer> = all.iter().filter(|peer| peer.service == "sandglass").collect();
        assert_same_spans(trace, &ours);
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
            .find(|peer| peer.is(RUN) && peer.tag("sandbox.id") == trace["sandbox"]);
        assert!(
            run.is_some(),
            "{id}: no span of containerd for sandbox {}",
            trace["sandbox"]
        );
        let root = ours.iter().find(|peer| peer.name() == "sandbox").unwrap();
        let parent = root.references("CHILD_OF");
        assert_eq!(parent.len(), 1, "{id}: {parent:?}");
        let parent = all.iter().find(|peer| peer.span["spanID"] == parent[0].1.as_str());
        assert_eq!(
            parent.map(|parent| parent.service),
            Some("containerd"),
            "{id}: parent of the root"
        );
        joined += usize::from(all.iter().any(|peer| peer.is(SYNC)));
    }
    assert_eq!(joined, traces.len(), "traces in which the kubelet's own span is");
    println!(
        "{joined} traces in Jaeger hold the spans of kubelet, containerd and sandglass, ours as the agent's API has them"
    );
}

/// What the agent's API has of a trace is what Jaeger has: names, times, errors, parents, links, attributes and events.
fn assert_same_spans(trace: &Value, ours: &[&Peer<'_>]) {
    let id = trace["trace_id"].as_str().unwrap();
    let own = trace["timeline"].as_array().unwrap();
    let shown: BTreeMap<&str, &Peer> = ours
        .iter()
        .map(|peer| (peer.span["spanID"].as_str().unwrap(), *peer))
        .collect();
    // More can be there: operations that containerd requests in the same trace are traces of their own in the API.
    for span in own {
        let what = format!("{} of {id}", span["name"]);
        let peer = shown
            .get(span["id"].as_str().unwrap())
            .unwrap_or_else(|| panic!("{what} is not in Jaeger"));
        assert_eq!(peer.name(), span["name"].as_str().unwrap(), "{what}");
        assert_eq!(
            peer.duration_us(),
            span["duration_ns"].as_u64().unwrap() / 1000,
            "{what}"
        );
        let start_ns: u64 = span["start_unix_ns"].as_str().unwrap().parse().unwrap();
        assert_eq!(peer.start_us(), start_ns / 1000, "{what}");
        assert_eq!(peer.tag("error") == true, span["status"] == "error", "{what}");
        if let Some(parent) = span["parent_id"].as_str() {
            assert_eq!(
                peer.references("CHILD_OF"),
                [(id.to_owned(), parent.to_owned())],
                "{what}"
            );
        }
        assert_eq!(peer.references("FOLLOWS_FROM"), links(span), "links of {what}");
        for (key, value) in span["attributes"].as_object().unwrap() {
            let tag = peer.tag(key);
            // Jaeger shows a list as text.
            let list = value.is_array() && tag.as_str() == Some(value.to_string().as_str());
            assert!(tag == *value || list, "{key} of {what}: {value} here, {tag} in Jaeger");
        }
        let logs = peer.span["logs"].as_array().unwrap();
        assert_eq!(logs.len(), span["events"].as_array().unwrap().len(), "events of {what}");
    }
}

/// Trace and span of each link that the agent's API has.
fn links(span: &Value) -> Vec<(String, String)> {
    let links = span["links"].as_array().unwrap().iter();
    let text = |link: &Value, key: &str| link[key].as_str().unwrap().to_owned();
    let mut links: Vec<_> = links
        .map(|link| (text(link, "trace_id"), text(link, "span_id")))
        .collect();
    links.sort();
    links
}

/// DELs are traces of their own, and repeated sandboxes too: in Jaeger each leads to the trace it belongs to, as in the API.
/// But for those of sandboxes that are older than the agent, which have none.
pub fn assert_links_lead_on(sandboxes: &[Value], operations: &[Value]) {
    let known: BTreeSet<&str> = sandboxes
        .iter()
        .map(|trace| trace["trace_id"].as_str().unwrap())
        .collect();
    let created: BTreeSet<&str> = sandboxes.iter().filter_map(|trace| trace["sandbox"].as_str()).collect();
    let of_ours = |trace: &&Value| {
        trace["sandbox"]
            .as_str()
            .is_some_and(|sandbox| created.contains(sandbox))
    };
    let mut followed = 0;
    for trace in sandboxes.iter().chain(operations.iter().filter(of_ours)) {
        let own = trace["timeline"].as_array().unwrap();
        let jaeger = from_jaeger(trace["trace_id"].as_str().unwrap(), own.len(), &[]);
        let all = peers(&jaeger);
        let ours: Vec<&Peer> = all.iter().filter(|peer| peer.service == "sandglass").collect();
        assert_same_spans(trace, &ours);
        let root = ours.iter().find(|peer| peer.span["spanID"] == own[0]["id"]).unwrap();
        let linked = root.references("FOLLOWS_FROM");
        let leads = linked.iter().any(|(trace, _)| known.contains(trace.as_str()));
        let must = trace["kind"] != "sandbox" || trace["attempt"].as_u64().unwrap() > 1;
        assert!(
            leads || !must,
            "{} {} leads nowhere: {linked:?}",
            own[0]["name"],
            trace["trace_id"]
        );
        for (id, span) in linked.iter().filter(|(id, _)| known.contains(id.as_str())) {
            let other = from_jaeger(id, 1, &[]);
            let there = peers(&other).iter().any(|peer| peer.span["spanID"] == span.as_str());
            assert!(there, "span {span} of {id} is not in Jaeger");
            followed += 1;
        }
    }
    println!("{followed} links of sandboxes and operations lead on in Jaeger, as in the agent's API");
}

/// Spans of a service with this name.
pub type Named = (&'static str, &'static str);

/// containerd's span of a sandbox's creation.
const RUN: Named = ("containerd", "cri.sandbox.run");
/// The kubelet's span around it.
const SYNC: Named = ("kubelet", "syncPod");
