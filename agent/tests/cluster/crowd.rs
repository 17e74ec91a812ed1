//! 95 pods at once: what the agent says of their plugins' time on and before processors, held against the kernel's own figures.
//!
//! Four of them, none of which the agent's programs have a part in: scheduling events of the plugins' threads (tracefs), what one of
//! the plugins reads of itself (`/proc/PID/schedstat`), the node's pressure (`/proc/pressure/cpu`), and idle time (`/proc/stat`).
//! What is asserted follows from what each figure means, so that it holds however busy the node is. Does not: judge a plugin that
//! waits for anything else.

use std::time::Instant;

use sandglass::sources::clock;
use sandglass_lab::pressure::some_us;
use serde_json::Value;

use super::node::{METRICS, Node, try_http};
use super::own_time::{Compared, NAMES, Waits, install, print_compared, shares};
use super::pods::sandbox_traces;
use super::scheduling::{Interval, Scheduling, between, length, united};
use super::tracefs::Tracefs;
use super::{processors, workloads};

/// Of the 110 that a kubelet allows by default, most.
const PODS: u32 = 95;
/// 16 MiB, of which waits may fill a sixteenth.
const RING: &str = "--set=config.probes.ring_buffer_bytes=16777216";
const SECOND: f64 = 1e9;
/// A wait shorter than this makes no record (`sandglass.time.processor` in docs/reference.md), and is time on a processor there.
const RECORDED_NS: u64 = 200_000;

/// The test of 95 pods at once, which has the name `test` in `cluster.rs`.
pub fn the_run_queue_is_that_of_the_kernel(test: &str) {
    let Some(node) = Node::find(test) else { return };
    node.wait_to_be_alone();
    node.namespace();
    // All waits are recorded, and the ring has room for them, so that no part of the time is unknown.
    let all = ["--set=config.waits.after=0s", RING];
    if !install(test, &node, &all) {
        return;
    }
    let folder = node.path("waited");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(node.path("slow-seconds"), "0\n").unwrap();
    let namespace = "work";
    node.kubectl(&["create", "namespace", namespace]);
    workloads::slow_deployment(&node, namespace, "crowd");
    let tracefs = Tracefs::of_threads_named(test, &NAMES);
    let (from, begin, before) = (clock::now().0, Instant::now(), Load::now());
    workloads::scale(&node, namespace, "crowd", PODS, 300);
    let (within, after) = ((from, clock::now().0), Load::now());
    println!(
        "{PODS} pods run {:.1} s after they were wanted",
        begin.elapsed().as_secs_f64()
    );
    let lines = tracefs.map(|tracefs| (tracefs.lost(), tracefs.lines()));
    let traces = sandbox_traces(namespace);
    assert_eq!(traces.len(), PODS as usize);
    let metrics = try_http(METRICS, "/metrics").unwrap();
    let plugins: Vec<Plugin> = traces.iter().flat_map(plugins).collect();
    assert_metric(&metrics, &plugins);
    for line in metrics.lines() {
        if line.starts_with("sandglass_events_limited_total{probe=\"waits\"}") {
            println!("{line}");
        }
    }
    if let Some((lost, lines)) = lines {
        println!("{} scheduling events", lines.len());
        let scheduling = Scheduling::of(&lines, &NAMES);
        if lost > 0 {
            eprintln!("NOT RUN {test}::scheduling_events: the kernel lost {lost}");
        } else {
            assert_adds_up(test, &plugins, &scheduling);
            assert_shim_agrees(&folder, &plugins, &scheduling);
            assert_pressure(&plugins, &scheduling, within, &before, &after);
        }
        let compared = Compared::all(&traces, Some(&Waits::of(&lines)));
        print_compared("run_pod_sandbox of 95 at once", &compared.requests);
        print_compared("add of 95 at once", &compared.adds);
        let shares = shares(&compared.requests);
        assert!(shares[shares.len() / 2] >= 0.95, "{:?}", compared.requests);
    }
    std::fs::remove_dir_all(folder).unwrap();
    workloads::scale(&node, namespace, "crowd", 0, 300);
    node.kubectl(&["delete", "namespace", namespace]);
    node.uninstall();
}

/// What the kernel counts of the whole node.
struct Load {
    /// Time in which some task waited, the mean over processors, each weighted by how busy it was (`kernel/sched/psi.c`,
    /// `collect_percpu_times`). Nanoseconds.
    pressure_ns: u64,
    /// Of all processors. Nanoseconds.
    idle_ns: u64,
}

impl Load {
    fn now() -> Load {
        let stat = std::fs::read_to_string("/proc/stat").unwrap();
        // Ticks of 10 ms (USER_HZ): user, nice, system, idle, iowait (proc_stat(5)).
        let fields: Vec<u64> = stat
            .lines()
            .next()
            .unwrap()
            .split_whitespace()
            .skip(1)
            .map(|field| field.parse().unwrap())
            .collect();
        Load {
            pressure_ns: some_us("cpu") * 1000,
            idle_ns: (fields[3] + fields[4]) * 10_000_000,
        }
    }
}

/// A plugin that the runtime executed, by the agent.
struct Plugin {
    name: String,
    sandbox: String,
    pid: u32,
    /// Nanoseconds since boot.
    whole: Interval,
    /// `sandglass.time.*`, nanoseconds: itself, its delegates and commands.
    processor: u64,
    run_queue: u64,
    unknown: u64,
    /// All others: it slept.
    asleep: u64,
}

/// The plugins of a trace's ADDs, without their delegates.
fn plugins(trace: &Value) -> Vec<Plugin> {
    let anchor = clock::anchor();
    let spans = trace["timeline"].as_array().unwrap();
    let adds: Vec<&Value> = spans
        .iter()
        .filter(|span| span["name"] == "cni ADD")
        .map(|span| &span["id"])
        .collect();
    let executed = spans.iter().filter(|span| adds.contains(&&span["parent_id"]));
    let executed = executed.filter(|span| span["name"].as_str().unwrap().starts_with("plugin "));
    executed
        .map(|span| {
            let ns = |key: &str| anchor.boot(span[key].as_str().unwrap().parse().unwrap()).0;
            let attributes = span["attributes"].as_object().unwrap();
            let time = |reason: &str| {
                attributes
                    .get(&format!("sandglass.time.{reason}"))
                    .and_then(Value::as_u64)
                    .unwrap_or(0)
            };
            let whole = (ns("start_unix_ns"), ns("end_unix_ns"));
            let [processor, run_queue, unknown] = ["processor", "run_queue", "unknown"].map(time);
            Plugin {
                name: span["name"].as_str().unwrap().trim_start_matches("plugin ").to_owned(),
                sandbox: trace["sandbox"].as_str().unwrap().to_owned(),
                pid: attributes["process.pid"].as_u64().unwrap() as u32,
                whole,
                processor,
                run_queue,
                unknown,
                asleep: (whole.1 - whole.0).saturating_sub(processor + run_queue + unknown),
            }
        })
        .collect()
}

/// The metric is the sum of the traces, and of those of other runtimes on this machine.
fn assert_metric(metrics: &str, plugins: &[Plugin]) {
    let of_adds = metrics
        .lines()
        .filter(|line| line.starts_with("sandglass_cni_time_seconds_total{") && line.contains("operation=\"ADD\""));
    let of_run_queue = of_adds.filter(|line| line.contains("reason=\"run_queue\""));
    let counted: f64 = of_run_queue
        .map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap())
        .sum();
    let traced = plugins.iter().map(|plugin| plugin.run_queue).sum::<u64>() as f64 / SECOND;
    println!("run queue: {counted:.3} s by the metric, {traced:.3} s in the traces of {PODS} pods");
    assert!(traced <= counted + 0.001);
}

/// The agent divides each plugin's time along a path through its threads, on which one at a time counts. So its time before a
/// processor is no more than that in which some thread waited for one. Its time on a processor is no more than that in which some
/// thread ran, those parts of the other time that are too short for a record, and what threads waited whose end had been reported.
fn assert_adds_up(test: &str, plugins: &[Plugin], scheduling: &Scheduling) {
    let mut kernel = Kernel::default();
    let (mut more_run_queue, mut more_processor) = (0, 0);
    for plugin in plugins {
        let of_plugin = Kernel::of(plugin, scheduling);
        let is_more = |ours: u64, theirs: u64| ours > theirs + (theirs / 50).max(RECORDED_NS);
        more_run_queue += usize::from(is_more(plugin.run_queue, of_plugin.waited));
        more_processor += usize::from(is_more(plugin.processor, of_plugin.processor_at_most()));
        kernel.add(&of_plugin);
    }
    let sum = |of: fn(&Plugin) -> u64| plugins.iter().map(of).sum::<u64>();
    let whole = sum(|plugin| plugin.whole.1 - plugin.whole.0);
    let (processor, run_queue) = (sum(|plugin| plugin.processor), sum(|plugin| plugin.run_queue));
    let (unknown, asleep) = (sum(|plugin| plugin.unknown), sum(|plugin| plugin.asleep));
    let least = whole.saturating_sub(kernel.processor_at_most() + unknown + asleep);
    println!(
        "{} plugins took {}: on a processor {}, before one {} ({:.0} %), asleep {}, unknown {}; by the kernel's events some thread \
         ran {}, some waited {}, of it {} after its end was reported, so that before a processor were {} to {}; {more_run_queue} and \
         {more_processor} of them have more before and on a processor than these allow, by 2 % or 0.2 ms",
        plugins.len(),
        seconds(whole),
        seconds(processor),
        seconds(run_queue),
        100.0 * run_queue as f64 / whole as f64,
        seconds(asleep),
        seconds(unknown),
        seconds(kernel.ran),
        seconds(kernel.waited),
        seconds(kernel.waited_ended),
        seconds(least),
        seconds(kernel.waited),
    );
    let some = whole / 50;
    if unknown > some {
        eprintln!(
            "NOT JUDGED {test}::all_is_known: of {} are {} unknown",
            seconds(whole),
            seconds(unknown)
        );
    }
    assert!(
        run_queue <= kernel.waited + some && run_queue + some >= least,
        "run queue"
    );
    assert!(processor <= kernel.processor_at_most() + some, "processor");
    assert!(
        (more_run_queue + more_processor) * 10 <= plugins.len(),
        "single plugins"
    );
}

/// What the kernel's events say of plugins' time. Nanoseconds.
#[derive(Default)]
struct Kernel {
    /// Some thread ran.
    ran: u64,
    /// Some thread waited for a processor.
    waited: u64,
    /// Of that, threads whose end had been reported.
    waited_ended: u64,
    /// None ran, for too short for a record.
    short: u64,
}

impl Kernel {
    fn of(plugin: &Plugin, scheduling: &Scheduling) -> Kernel {
        let together = scheduling.below(plugin.pid, plugin.whole);
        let stretches = between(&together.ran, plugin.whole);
        Kernel {
            ran: length(&together.ran),
            waited: length(&together.waited),
            waited_ended: length(&together.waited_ended),
            short: stretches.iter().map(|(from, to)| (to - from).min(RECORDED_NS)).sum(),
        }
    }

    fn add(&mut self, other: &Kernel) {
        self.ran += other.ran;
        self.waited += other.waited;
        self.waited_ended += other.waited_ended;
        self.short += other.short;
    }

    fn processor_at_most(&self) -> u64 {
        self.ran + self.short + self.waited_ended
    }
}

fn seconds(ns: u64) -> String {
    format!("{:.2} s", ns as f64 / SECOND)
}

/// What a shim of one thread read of itself before its end is what the kernel's events say of that thread, or less: what it waits
/// for between the reading and its end is in the events alone. Shims of which the events are not whole are left out, a third of all at
/// most.
fn assert_shim_agrees(folder: &std::path::Path, plugins: &[Plugin], scheduling: &Scheduling) {
    let (mut own, mut events, mut less, mut more, mut unreported) = (0, 0, 0, 0, 0);
    let shims: Vec<&Plugin> = plugins.iter().filter(|plugin| plugin.name == "slow-policy").collect();
    for shim in &shims {
        let text = std::fs::read_to_string(folder.join(&shim.sandbox)).unwrap();
        let schedstat: u64 = text.trim().parse().unwrap();
        let traced = scheduling.waited_ns(shim.pid, shim.whole.1);
        let tolerated = (schedstat / 50).max(RECORDED_NS);
        if !scheduling.is_whole(shim.pid) {
            unreported += 1;
            continue;
        }
        less += usize::from(schedstat + tolerated < traced);
        more += usize::from(traced + tolerated < schedstat);
        own += schedstat;
        events += traced;
    }
    println!(
        "{} shims, of {unreported} of which an event is missing: the others waited {:.3} s by their schedstat, {:.3} by the kernel's events; by more than 2 % or 0.2 ms {less} read less and {more} more",
        shims.len(),
        own as f64 / SECOND,
        events as f64 / SECOND
    );
    assert_eq!(shims.len(), PODS as usize);
    assert!(
        own <= events + events / 50 + RECORDED_NS
            && events <= own + own / 20 + RECORDED_NS
            && more * 10 <= shims.len()
            && unreported * 3 <= shims.len(),
        "schedstat"
    );
}

/// The time in which some thread of any plugin waited is no more than the pressure of all processors together, and their idle
/// time: a processor whose time was short of the whole weighs less in the kernel's mean, by as much at most.
fn assert_pressure(plugins: &[Plugin], scheduling: &Scheduling, within: Interval, before: &Load, after: &Load) {
    let waits = plugins
        .iter()
        .flat_map(|plugin| scheduling.below(plugin.pid, plugin.whole).waited);
    let waited = length(&united(waits.collect())) as f64;
    let pressure = (after.pressure_ns - before.pressure_ns) as f64;
    let idle = (after.idle_ns - before.idle_ns) as f64;
    let whole = (within.1 - within.0) as f64;
    println!(
        "of {:.2} s some plugin's thread waited for a processor {:.2} s ({:.0} %), by the kernel's pressure some task {:.2} s ({:.0} %); \
         processors were idle {:.2} s",
        whole / SECOND,
        waited / SECOND,
        100.0 * waited / whole,
        pressure / SECOND,
        100.0 * pressure / whole,
        idle / SECOND
    );
    assert!(waited <= pressure * processors() + idle + whole / 50.0, "pressure");
}
