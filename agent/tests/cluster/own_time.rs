//! The runtime's own time: traces and ADDs held against containerd's spans of the same pods, less what its threads waited for
//! a processor in between.
//!
//! containerd's span of `RunPodSandbox` is that of its gRPC server; its span of an ADD holds the fork of each plugin and the
//! reading of its result too. When its threads waited is what the kernel's scheduling events say (`scheduling.rs`).
//! Does not: trust the agent for anything it is held against.

use std::time::Instant;

use sandglass::sources::clock;
use sandglass_lab::pressure::Pressure;
use serde_json::Value;

use super::node::{AGENT, NAMESPACE, Node, http};
use super::peers::{Named, Peer, from_jaeger, peers};
use super::pods::sandbox_traces;
use super::scheduling::{Interval, Scheduling, length};
use super::tracefs::Tracefs;
use super::{OTLP, ROOMY, assert_attached, processors, workloads};

/// What the threads of the runtime's daemon are called, and plugins until they are executed.
pub const DAEMON: &str = "containerd";
/// Pods made one at a time.
const PODS: u32 = 20;
const MILLISECOND: u64 = 1_000_000;

#[test]
fn h_a_trace_covers_what_containerd_does_for_a_pod() {
    let test = "h_a_trace_covers_what_containerd_does_for_a_pod";
    let Some(node) = Node::find(test) else { return };
    node.namespace();
    if !install(test, &node, &[]) {
        return;
    }
    let namespace = "work";
    node.kubectl(&["create", "namespace", namespace]);
    let tracefs = Tracefs::of_threads_named(test, &[DAEMON]);
    let (pressure, begin) = (Pressure::now(), Instant::now());
    for number in 1..=PODS {
        workloads::pod(&node, namespace, &format!("alone-{number}"), "pause", None);
    }
    let traces = sandbox_traces(namespace);
    let waited = pressure.ns_since() as f64 / begin.elapsed().as_nanos() as f64 / processors();
    println!("tasks of the node waited {:.0} % of the time", waited * 100.0);
    let scheduling = tracefs.map(|tracefs| {
        assert_eq!(tracefs.lost(), 0, "scheduling events");
        Scheduling::of(&tracefs.lines(), &[DAEMON])
    });
    assert_eq!(traces.len(), PODS as usize);
    let compared = Compared::all(&traces, scheduling.as_ref());
    let shares = shares(&compared.requests);
    assert!(shares[shares.len() / 2] >= 0.95, "{:?}", compared.requests);
    let whats = [("run_pod_sandbox", &compared.requests), ("add", &compared.adds)];
    for (what, compared) in whats {
        let agreeing = print_compared(what, compared);
        if scheduling.is_none() || agreeing * 10 >= compared.len() * 9 {
            continue;
        }
        assert!(
            waited > 0.5,
            "{what}, tasks waited {waited:.2} of the time: {compared:?}"
        );
        eprintln!(
            "NOT JUDGED {test}::{what}_within_2_ms: {agreeing} of {} agree, tasks waited {:.0} % of the time",
            compared.len(),
            waited * 100.0
        );
    }
    node.kubectl(&["delete", "namespace", namespace]);
    node.uninstall();
    node.kubectl(&["delete", "namespace", NAMESPACE]);
}

/// Installs an agent that sends to Jaeger and knows the runtime's socket. Returns whether it can read requests on it; prints
/// `SKIPPED` where it cannot, and takes the agent away.
pub fn install(test: &str, node: &Node, more: &[&str]) -> bool {
    let socket = format!("--set=linux.cri.socket={}", node.path("run/containerd.sock").display());
    node.install(&[&[ROOMY, OTLP, "--set=linux.cri.enabled=true", &socket], more].concat());
    assert_attached(&["exec", "netns"]);
    let health = http(AGENT, "/api/v1/health");
    let mut probes = health["probes"].as_array().unwrap().iter();
    let reads = probes.any(|probe| probe["probe"] == "cri" && probe["attached"] == true);
    if !reads {
        eprintln!("SKIPPED {test}: this kernel does not let the agent read the CRI socket");
        node.uninstall();
        node.kubectl(&["delete", "namespace", NAMESPACE]);
    }
    reads
}

/// One duration, as the agent and as containerd have it. Nanoseconds since boot.
#[derive(Debug)]
pub struct One {
    pod: String,
    ours: Interval,
    theirs: Interval,
    /// Of what one has and the other has not: how long some thread of the runtime's daemon waited for a processor.
    waited: u64,
}

/// All pods'.
pub struct Compared {
    /// `RunPodSandbox`.
    pub requests: Vec<One>,
    /// Each ADD of each interface.
    pub adds: Vec<One>,
}

impl Compared {
    /// Of these traces, which Jaeger has too.
    pub fn all(traces: &[Value], scheduling: Option<&Scheduling>) -> Compared {
        let anchor = clock::anchor();
        let boot = |unix_ns: u64| anchor.boot(unix_ns).0;
        let (mut requests, mut adds) = (Vec::new(), Vec::new());
        for trace in traces {
            let spans = trace["timeline"].as_array().unwrap();
            let jaeger = from_jaeger(trace["trace_id"].as_str().unwrap(), spans.len(), &[REQUEST, ATTACH]);
            let one = |ours: &Value, theirs: &Peer| {
                let ns = |key: &str| ours[key].as_str().unwrap().parse::<u64>().unwrap();
                let ours = (boot(ns("start_unix_ns")), boot(ns("end_unix_ns")));
                let begin = boot(theirs.start_us() * 1000);
                One::of(
                    &trace["pod"],
                    ours,
                    (begin, begin + theirs.duration_us() * 1000),
                    scheduling,
                )
            };
            let create = spans.iter().find(|span| span["name"] == "sandbox.create").unwrap();
            let all = peers(&jaeger);
            requests.push(one(create, all.iter().find(|peer| peer.is(REQUEST)).unwrap()));
            for theirs in all.iter().filter(|peer| peer.is(ATTACH)) {
                let ifname = theirs.tag("cni.ifname");
                let is_same = |span: &&Value| span["name"] == "cni ADD" && span["attributes"]["cni.ifname"] == ifname;
                adds.push(one(spans.iter().find(is_same).unwrap(), theirs));
            }
        }
        Compared { requests, adds }
    }
}

impl One {
    fn of(pod: &Value, ours: Interval, theirs: Interval, scheduling: Option<&Scheduling>) -> One {
        let mut one = One {
            pod: pod.as_str().unwrap().to_owned(),
            ours,
            theirs,
            waited: 0,
        };
        if let Some(scheduling) = scheduling {
            let of_edge = |edge: &Interval| length(&scheduling.all(*edge).waited);
            one.waited = one.edges().iter().map(of_edge).sum();
        }
        one
    }

    /// What lies between the two begins, and between the two ends.
    fn edges(&self) -> [Interval; 2] {
        let edge = |one: u64, other: u64| (one.min(other), one.max(other));
        [edge(self.ours.0, self.theirs.0), edge(self.ours.1, self.theirs.1)]
    }

    /// By how much begin and end are apart.
    fn apart(&self) -> u64 {
        length(&self.edges())
    }

    /// The same without the daemon's waits for a processor.
    fn unexplained(&self) -> u64 {
        self.apart() - self.waited
    }

    /// Of theirs, what ours covers.
    fn share(&self) -> f64 {
        let covered = self
            .ours
            .1
            .min(self.theirs.1)
            .saturating_sub(self.ours.0.max(self.theirs.0));
        covered as f64 / (self.theirs.1 - self.theirs.0) as f64
    }
}

/// The shares of containerd's time that are covered, the least first.
pub fn shares(compared: &[One]) -> Vec<f64> {
    let mut shares: Vec<f64> = compared.iter().map(One::share).collect();
    shares.sort_unstable_by(f64::total_cmp);
    shares
}

/// Prints how durations compare. Returns how many agree within 2 ms without the waits of the daemon's threads.
pub fn print_compared(what: &str, compared: &[One]) -> usize {
    let sorted = |of: fn(&One) -> u64| {
        let mut all: Vec<u64> = compared.iter().map(of).collect();
        all.sort_unstable();
        all
    };
    let figures = |ns: &[u64]| {
        let within = ns.iter().filter(|ns| **ns <= 2 * MILLISECOND).count();
        let ms = |ns: u64| ns as f64 / MILLISECOND as f64;
        let (median, most) = (ms(ns[ns.len() / 2]), ms(ns[ns.len() - 1]));
        (
            within,
            format!(
                "{median:.2} ms at the median, {most:.2} at most, {within} of {} within 2 ms",
                ns.len()
            ),
        )
    };
    let shares = shares(compared);
    let furthest = compared.iter().max_by_key(|one| one.unexplained()).unwrap();
    let (_, apart) = figures(&sorted(One::apart));
    let (agreeing, unexplained) = figures(&sorted(One::unexplained));
    println!(
        "{what}: {:.2} % of containerd's own are covered at the median, {:.2} % at least; apart by {apart}; without what its threads \
         waited for a processor {unexplained}, the furthest {}",
        shares[shares.len() / 2] * 100.0,
        shares[0] * 100.0,
        furthest.pod,
    );
    agreeing
}

/// containerd's gRPC server's span of a request.
const REQUEST: Named = (DAEMON, "runtime.v1.RuntimeService/RunPodSandbox");
/// containerd's span of one interface's ADD.
const ATTACH: Named = (DAEMON, "cni.asynchAttach");
