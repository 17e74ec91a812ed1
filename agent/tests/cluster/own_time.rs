//! The runtime's own time: traces and ADDs held against containerd's spans of the same pods, less what its threads, and plugins
//! whose end had been reported, waited for a processor in between.
//!
//! containerd's span of `RunPodSandbox` is that of its gRPC server; its span of an ADD holds the fork of each plugin, the rest of
//! its exit and the reading of its result too. When threads waited is what the kernel's scheduling events say (`scheduling.rs`).
//! Does not: trust the agent for anything it is held against.

use std::fmt;
use std::time::Instant;

use sandglass::sources::clock;
use sandglass_lab::pressure::Pressure;
use serde_json::Value;

use super::node::{AGENT, Node, http};
use super::peers::{Named, Peer, from_jaeger, peers};
use super::pods::sandbox_traces;
use super::scheduling::{Interval, Scheduling, length, united};
use super::tracefs::{Line, Tracefs};
use super::{OTLP, ROOMY, assert_attached, processors, workloads};

/// What the threads of the runtime's daemon are called, and plugins until they are executed.
pub const DAEMON: &str = "containerd";
/// The same of the node's plugins, what they execute, and the daemon.
pub const NAMES: [&str; 8] = [
    "bridge",
    "host-local",
    "loopback",
    "slow-policy",
    "dirname",
    "sleep",
    "sed",
    DAEMON,
];
/// Pods made one at a time.
const PODS: u32 = 20;
const MILLISECOND: u64 = 1_000_000;

/// The test of pods made one at a time, which has the name `test` in `cluster.rs`.
pub fn a_trace_covers_what_containerd_does(test: &str) {
    let Some(node) = Node::find(test) else { return };
    node.wait_to_be_alone();
    node.namespace();
    if !install(test, &node, &[]) {
        return;
    }
    let namespace = "work";
    node.kubectl(&["create", "namespace", namespace]);
    let tracefs = Tracefs::of_threads_named(test, &NAMES);
    let (pressure, begin) = (Pressure::now(), Instant::now());
    for number in 1..=PODS {
        workloads::pod(&node, namespace, &format!("alone-{number}"), "pause", None);
    }
    let traces = sandbox_traces(namespace);
    let waited = pressure.ns_since() as f64 / begin.elapsed().as_nanos() as f64 / processors();
    println!("tasks of the node waited {:.0} % of the time", waited * 100.0);
    let waits = tracefs.map(|tracefs| {
        assert_eq!(tracefs.lost(), 0, "scheduling events");
        Waits::of(&tracefs.lines())
    });
    assert_eq!(traces.len(), PODS as usize);
    let compared = Compared::all(&traces, waits.as_ref());
    let shares = shares(&compared.requests);
    assert!(shares[shares.len() / 2] >= 0.95, "{:?}", compared.requests);
    let whats = [("run_pod_sandbox", &compared.requests), ("add", &compared.adds)];
    for (what, compared) in whats {
        let agreeing = print_compared(what, compared);
        if waits.is_none() || agreeing * 10 >= compared.len() * 9 {
            continue;
        }
        let others: Vec<String> = compared
            .iter()
            .filter(|one| !one.agrees())
            .map(One::to_string)
            .collect();
        assert!(
            waited > 0.5,
            "{what}, tasks waited {waited:.2} of the time, {agreeing} of {} agree:\n{}",
            compared.len(),
            others.join("\n")
        );
        eprintln!(
            "NOT JUDGED {test}::{what}_within_2_ms: {agreeing} of {} agree, tasks waited {:.0} % of the time",
            compared.len(),
            waited * 100.0
        );
    }
    node.kubectl(&["delete", "namespace", namespace]);
    node.uninstall();
}

/// Installs an agent that sends to Jaeger and knows the runtime's socket. Returns whether it can read requests on it; prints
/// `SKIPPED` where it cannot, and takes the agent away.
pub fn install(test: &str, node: &Node, more: &[&str]) -> bool {
    let socket = format!("--set=linux.cri.socket={}", node.path("run/containerd.sock").display());
    // Pods that send nothing are not waited for long.
    let ready = "--set=config.traffic.ready_deadline=8s";
    node.install(&[&[ROOMY, OTLP, ready, "--set=linux.cri.enabled=true", &socket], more].concat());
    assert_attached(&["exec", "netns"]);
    let health = http(AGENT, "/api/v1/health");
    let mut probes = health["probes"].as_array().unwrap().iter();
    let reads = probes.any(|probe| probe["probe"] == "cri" && probe["attached"] == true);
    if !reads {
        eprintln!("SKIPPED {test}: this kernel does not let the agent read the CRI socket");
        node.uninstall();
    }
    reads
}

/// When threads of the runtime's daemon, and plugins, waited for a processor.
pub struct Waits {
    daemon: Scheduling,
    all: Scheduling,
}

impl Waits {
    /// By the events of threads of [`NAMES`].
    pub fn of(lines: &[Line]) -> Waits {
        Waits {
            daemon: Scheduling::of(lines, &[DAEMON]),
            all: Scheduling::of(lines, &NAMES),
        }
    }

    /// Nanoseconds in which some thread of the daemon waited, or one whose end had been reported: only when the kernel is done with
    /// a plugin (`do_exit`) does the daemon read of its end.
    fn within(&self, edge: Interval) -> u64 {
        let mut waited = self.daemon.all(edge).waited;
        waited.extend(self.all.all(edge).waited_ended);
        length(&united(waited))
    }
}

/// One duration, as the agent and as containerd have it. Nanoseconds since boot.
#[derive(Debug)]
pub struct One {
    pod: String,
    ours: Interval,
    theirs: Interval,
    /// Of what one has and the other has not, at the begin and at the end, what is explained ([`Waits`]).
    waited: [u64; 2],
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
    pub fn all(traces: &[Value], waits: Option<&Waits>) -> Compared {
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
                One::of(&trace["pod"], ours, (begin, begin + theirs.duration_us() * 1000), waits)
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
    fn of(pod: &Value, ours: Interval, theirs: Interval, waits: Option<&Waits>) -> One {
        let mut one = One {
            pod: pod.as_str().unwrap().to_owned(),
            ours,
            theirs,
            waited: [0; 2],
        };
        if let Some(waits) = waits {
            one.waited = one.edges().map(|edge| waits.within(edge));
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

    /// The same without waits for a processor.
    fn unexplained(&self) -> u64 {
        self.apart() - self.waited.iter().sum::<u64>()
    }

    fn agrees(&self) -> bool {
        self.unexplained() <= 2 * MILLISECOND
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

impl fmt::Display for One {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |ns: u64| ns as f64 / MILLISECOND as f64;
        let [begin, end] = self.edges().map(|edge| ms(length(&[edge])));
        let [at_begin, at_end] = self.waited.map(ms);
        write!(
            f,
            "{}: begins {begin:.2} ms apart, {at_begin:.2} of it waits; ends {end:.2} ms apart, {at_end:.2} of it waits",
            self.pod
        )
    }
}

/// The shares of containerd's time that are covered, the least first.
pub fn shares(compared: &[One]) -> Vec<f64> {
    let mut shares: Vec<f64> = compared.iter().map(One::share).collect();
    shares.sort_unstable_by(f64::total_cmp);
    shares
}

/// Prints how durations compare. Returns how many agree within 2 ms without waits for a processor.
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
        format!(
            "{median:.2} ms at the median, {most:.2} at most, {within} of {} within 2 ms",
            ns.len()
        )
    };
    let shares = shares(compared);
    let furthest = compared.iter().max_by_key(|one| one.unexplained()).unwrap();
    let apart = figures(&sorted(One::apart));
    let unexplained = figures(&sorted(One::unexplained));
    println!(
        "{what}: {:.2} % of containerd's own are covered at the median, {:.2} % at least; apart by {apart}; without waits for \
         a processor {unexplained}, the furthest {}",
        shares[shares.len() / 2] * 100.0,
        shares[0] * 100.0,
        furthest.pod,
    );
    compared.iter().filter(|one| one.agrees()).count()
}

/// containerd's gRPC server's span of a request.
const REQUEST: Named = (DAEMON, "runtime.v1.RuntimeService/RunPodSandbox");
/// containerd's span of one interface's ADD.
const ATTACH: Named = (DAEMON, "cni.asynchAttach");
