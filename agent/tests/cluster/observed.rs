//! Numbers and alerts of the agent in the cluster: a real Prometheus with the shipped rules, a real Alertmanager, a receiver.
//!
//! What is scraped is what the pod's annotations say; windows and waits of the rules are seconds, thresholds are theirs.
//! Does not: repeat what `tests/dashboards` holds with recordings.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::dashboards::documents::{self, Query};
use super::dashboards::questions::{answered, every_rule_is_evaluated, questions, shortened};
use super::dashboards::receiver::Receiver;
use super::node::{METRICS, Node};
use super::workloads;
use sandglass_lab::peers::{self, Peer, Target};

/// What has no data on this node, and why: part of a query's metrics.
const NOTHING_HERE: &[(&str, &str)] = &[
    ("sandglass_hns_", "of Windows nodes"),
    ("sandglass_hcs_", "of Windows nodes"),
    ("sandglass_vnic_", "of Windows nodes"),
    ("sandglass_etw_", "of Windows nodes"),
    ("sandglass_sandboxes{", "of Windows nodes"),
    ("{loss=\"lost in ETW\"}", "of Windows nodes"),
    (
        "- (sandglass_export_queue_oldest",
        "nothing waits: Jaeger takes every request at once",
    ),
    (
        "sandglass_config_needs_restart",
        "nobody changes the file of a running agent",
    ),
];

/// What has data only if the kernel happens to drop such a packet meanwhile.
const BY_CHANCE: &str = "sandglass_packet_drops_total";

/// How many of the queries with the least data are printed.
const RARE: usize = 15;

/// Prometheus, Alertmanager and the person on call, watching the agent that is installed.
pub struct Observed {
    prometheus: Peer,
    _alertmanager: Peer,
    receiver: Receiver,
    _rules: tempfile::TempDir,
}

impl Observed {
    /// Starts them; `None` and `SKIPPED` where they are not installed.
    pub fn start(test: &str, node: &Node) -> Option<Observed> {
        if !sandglass_lab::skip::has(test, "prometheus") || !sandglass_lab::skip::has(test, "prometheus-alertmanager") {
            return None;
        }
        let receiver = Receiver::start();
        let alertmanager = peers::alertmanager(receiver.address);
        let rules = tempfile::tempdir().unwrap();
        let prometheus = peers::prometheus(&targets(node), &shortened(rules.path()), Some(alertmanager.address));
        Some(Observed {
            prometheus,
            _alertmanager: alertmanager,
            receiver,
            _rules: rules,
        })
    }

    /// Pods come and go through a chain with a slow plugin until an alert fires, then through the same chain with the
    /// plugin fast until the alert is resolved.
    pub fn slow_plugin_wakes(&self, node: &Node, namespace: &str) {
        let name = "SandglassCniAddSlow";
        let slow = |status: &str| {
            let fits = |alert: &Value| {
                let labels = &alert["labels"];
                labels["alertname"] == name && labels["network"] == "cni-slow" && alert["status"] == status
            };
            self.receiver.all().into_iter().rev().find(fits)
        };
        let pause = node.path("slow-seconds");
        let mut round = 0;
        let mut until = |status: &str| loop {
            round += 1;
            assert!(round < 20, "{name} is not {status}: {:?}", self.receiver.all());
            workloads::slow_job(node, namespace, &format!("slow-{round}"), 6);
            if let Some(alert) = slow(status) {
                break alert;
            }
        };
        let alert = until("firing");
        std::fs::write(&pause, "0.01\n").unwrap();
        let resolved = until("resolved");
        std::fs::write(&pause, "2\n").unwrap();
        assert_eq!(resolved["labels"], alert["labels"]);
        assert_eq!(alert["labels"]["severity"], "warning");
        assert_eq!(alert["labels"]["node"], "n1");
        let annotation = |key: &str| alert["annotations"][key].as_str().unwrap();
        // 2 s and what the machine adds; a quantile lies somewhere in its bucket.
        let takes_seconds = |key: &str, before: &str| -> bool {
            let after = annotation(key).split(before).nth(1).unwrap_or_default();
            let number = after.split('s').next().unwrap_or_default();
            number.parse::<f64>().is_ok_and(|seconds| seconds >= 2.0)
        };
        assert!(takes_seconds("summary", "CNI ADD on n1 takes "), "{alert}");
        assert!(
            takes_seconds("description", "The slowest plugin is slow-policy: "),
            "{alert}"
        );
        assert!(annotation("traces").contains("k8s.node.name=n1"), "{alert}");
        let runbook = annotation("runbook_url")
            .split("/blob/main/dashboards/")
            .nth(1)
            .unwrap();
        assert!(documents::folder().join(runbook).is_file(), "{runbook}");
        println!(
            "fired {}, resolved {}: {}",
            alert["startsAt"],
            resolved["endsAt"],
            annotation("description")
        );
    }

    /// An ADD that runs for so long that several scrapes see what it waits for: a running operation is looked at once a second, so
    /// of one of 2 s that is between two scrapes for a moment only.
    pub fn long_add(node: &Node, namespace: &str) {
        let pause = node.path("slow-seconds");
        std::fs::write(&pause, "5\n").unwrap();
        workloads::slow_job(node, namespace, "long", 1);
        std::fs::write(&pause, "2\n").unwrap();
    }

    /// DELs that fail, and are repeated, until the cause goes away.
    pub fn failing_del(&self, node: &Node, namespace: &str) {
        let cause = Undo::of(|| {
            // It may have ended already.
            let _ = std::fs::remove_file(node.path("fail-del"));
        });
        std::fs::write(node.path("fail-del"), "").unwrap();
        workloads::start_slow_job(node, namespace, "undeletable", 2);
        // By the number of failures: in windows of seconds the repetitions that containerd always makes look like many.
        let errors = "sum(sandglass_cni_operation_errors_total{operation=\"DEL\"})";
        let count = || self.prometheus.query(errors).ok()?.first().map(|(_, count)| *count);
        peers::until("DELs that fail, again and again", 120, || {
            count().filter(|count| *count > 5.0)
        });
        let name = "SandglassCniDeletionLoop";
        let alert = peers::until("the alert about DELs that fail", 120, || {
            self.receiver.newest(name, "firing")
        });
        drop(cause);
        workloads::end_job(node, namespace, "undeletable");
        assert_eq!(alert["labels"]["node"], "n1");
        println!(
            "{name} fired {}: {}",
            alert["startsAt"], alert["annotations"]["description"]
        );
    }

    /// A lookup whose server is silent for a while: the agents name that cause.
    pub fn silent_server(&self, node: &Node, namespace: &str) {
        let pid = std::fs::read_to_string(node.path("run/coredns.pid")).unwrap();
        let signal = |name: &str| std::process::Command::new("kill").args([name, pid.trim()]).status();
        assert!(signal("-STOP").unwrap().success(), "kill -STOP of CoreDNS");
        let silence = Undo::of(|| {
            // Where it is gone, the next lookup shows it.
            let _ = signal("-CONT");
        });
        let causes = "sum(sandglass_root_causes_total)";
        let named = || -> f64 {
            let samples = self.prometheus.query(causes).unwrap_or_default();
            samples.first().map_or(0.0, |(_, count)| *count)
        };
        let before = named();
        let begin = Instant::now();
        workloads::start_lookup(node, namespace, "stalled");
        // The program retries for a minute; the first name that it gives up is reported at once or when it is answered.
        while begin.elapsed() < Duration::from_secs(20) && named() <= before {
            std::thread::sleep(Duration::from_millis(500));
        }
        drop(silence);
        println!("CoreDNS was silent for {:.1} s", begin.elapsed().as_secs_f64());
        workloads::end_job(node, namespace, "stalled");
    }

    /// While `work` is done, every query of every panel, rule and alert gives data at some time, but for those that cannot here.
    pub fn every_query_has_data(&self, work: impl FnOnce()) {
        let excuse = |query: &Query| NOTHING_HERE.iter().find(|(part, _)| query.text.contains(part));
        let (excused, expected): (Vec<Query>, Vec<Query>) =
            questions().into_iter().partition(|query| excuse(query).is_some());
        let open = Mutex::new(expected.clone());
        let done = AtomicBool::new(false);
        let begin = SystemTime::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    open.lock().unwrap().retain(|query| !answered(&self.prometheus, query));
                    std::thread::sleep(Duration::from_secs(1));
                }
            });
            // Also when the work fails: the scope waits for its thread.
            let _end = Undo::of(|| done.store(true, Ordering::Relaxed));
            work();
        });
        let mut open = open.into_inner().unwrap();
        // To ask them all takes seconds, in which the data of some came and went.
        open.retain(|query| seconds_with_data(&self.prometheus, query, begin) == 0 && !query.text.contains(BY_CHANCE));
        println!(
            "{} of {} queries returned data; {} cannot here:",
            expected.len() - open.len(),
            expected.len(),
            excused.len()
        );
        for (part, reason) in NOTHING_HERE {
            let queries = excused.iter().filter(|query| query.text.contains(part)).count();
            println!("  {queries} about {part}: {reason}");
        }
        // Those that a slower or faster machine might leave without any.
        let mut rare: Vec<(usize, &Query)> = expected
            .iter()
            .map(|query| (seconds_with_data(&self.prometheus, query, begin), query))
            .collect();
        rare.sort_by_key(|(seconds, _)| *seconds);
        for (seconds, query) in rare.iter().take(RARE) {
            println!("  for {seconds} s only: {}: {}", query.place, query.text);
        }
        let with_data: Vec<&Query> = excused
            .iter()
            .filter(|query| answered(&self.prometheus, query))
            .collect();
        assert!(with_data.is_empty(), "have data, though excused: {with_data:#?}");
        assert!(open.is_empty(), "no data: {open:#?}");
        every_rule_is_evaluated(&self.prometheus);
    }
}

/// Does something when it goes, also with a test that fails.
struct Undo<F: Fn()>(F);

impl<F: Fn()> Undo<F> {
    fn of(undo: F) -> Undo<F> {
        Undo(undo)
    }
}

impl<F: Fn()> Drop for Undo<F> {
    fn drop(&mut self) {
        self.0();
    }
}

/// The agent as `targets.sh` found it by its annotations.
fn targets(node: &Node) -> Vec<Target> {
    node.find_targets();
    let found: Value = serde_json::from_slice(&std::fs::read(node.path("targets.json")).unwrap()).unwrap();
    let target = |found: &Value| {
        assert_eq!(found["labels"]["__metrics_path__"], "/metrics");
        Target {
            job: "sandglass",
            node: found["labels"]["node"].as_str().unwrap().to_owned(),
            cluster: Some("c1"),
            address: found["targets"][0].as_str().unwrap().parse::<SocketAddr>().unwrap(),
        }
    };
    let targets: Vec<Target> = found.as_array().unwrap().iter().map(target).collect();
    assert_eq!(targets.len(), 1, "{found}");
    assert_eq!(targets[0].address.to_string(), METRICS);
    targets
}

/// Seconds from `begin` on at which there was data: steps of the tests' scrape interval.
fn seconds_with_data(prometheus: &Peer, query: &Query, begin: SystemTime) -> usize {
    let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap().as_secs();
    let (from, to) = (seconds(begin), seconds(SystemTime::now()));
    let path = format!(
        "query_range?query={}&start={from}&end={to}&step=1s",
        peers::encode(&query.text)
    );
    let Some(data) = prometheus.api(&path) else {
        return 0;
    };
    let series = data["result"].as_array().into_iter().flatten();
    let samples = series.flat_map(|series| series["values"].as_array().into_iter().flatten());
    let with_data = samples.filter(|sample| sample[1] != "NaN");
    with_data
        .map(|sample| sample[0].to_string())
        .collect::<BTreeSet<_>>()
        .len()
}
