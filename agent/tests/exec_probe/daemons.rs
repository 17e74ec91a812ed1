//! Requests of plugins to daemons, as this machine's kernel shows them: plugins that only send a request, and a daemon that runs
//! commands for it and logs what it does. What comes out is compared with that log.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use sandglass::app::settings::default_source;
use sandglass::health::RefusedLabel;
use sandglass::sources::linux::LinuxOptions;
use sandglass_correlator::{Correlator, CorrelatorConfig, Output};
use sandglass_lab::built;
use sandglass_lab::pressure::Pressure;
use sandglass_model::text::tree;
use sandglass_model::trace::{Confidence, DaemonDetail, RequestBegin, ThreadsAttribution};
use sandglass_model::{Body, Event, Span, Trace, phases};
use serde_json::Value;

use crate::trust::{nobody, works};
use crate::watch::{Watch, plugin, wait_for};

/// A source that follows requests; `None` where this machine cannot.
pub fn watch(test: &str) -> Option<Watch> {
    watch_after(test, default_source().unwrap().waits_after)
}

/// The same, where a plugin counts as slow after this time.
pub fn watch_after(test: &str, waits_after: Option<Duration>) -> Option<Watch> {
    let options = LinuxOptions {
        waits_after,
        ..default_source().unwrap()
    };
    let watch = Watch::with(test, options)?;
    let status = watch.health.probes().into_iter().find(|probe| probe.probe == "daemons");
    let status = status.unwrap();
    if !status.attached {
        eprintln!("SKIPPED {test}: {}", status.consequence);
        return None;
    }
    if !Path::new(PYTHON).exists() {
        eprintln!("SKIPPED {test}: no {PYTHON}");
        return None;
    }
    Some(watch)
}

const PYTHON: &str = "/usr/bin/python3";

/// A daemon of its own process.
pub struct Daemon {
    child: Child,
    /// Where it listens: the path of a unix socket, or a port.
    place: String,
    log: PathBuf,
    /// Its shim, a command of a shell that takes the place and the steps.
    shim: String,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/exec_probe/daemons")
        .join(name)
}

impl Daemon {
    pub fn start(directory: &Path, unix: bool) -> Daemon {
        Daemon::start_below(&[], directory, unix)
    }

    /// Executed by `wrapper`, a program with its arguments; by nothing if that is empty.
    fn start_below(wrapper: &[&str], directory: &Path, unix: bool) -> Daemon {
        let program = source("daemon.py").display().to_string();
        let shim = format!("{PYTHON} -B {}", source("shim.py").display());
        Daemon::execute(&[wrapper, &[PYTHON, "-B", &program]].concat(), shim, directory, unix)
    }

    /// The same in Go, a program of `scripts/peer.sh godaemon`.
    pub fn start_go(program: &Path, directory: &Path, unix: bool) -> Daemon {
        let program = program.display().to_string();
        Daemon::execute(&[&program, "daemon"], format!("{program} shim"), directory, unix)
    }

    fn execute(words: &[&str], shim: String, directory: &Path, unix: bool) -> Daemon {
        let log = directory.join("daemon.log");
        let place = match unix {
            true => directory.join("daemon.sock").display().to_string(),
            false => "0".to_owned(),
        };
        let mut child = Command::new(words[0])
            .args(&words[1..])
            .args([&place, &log.display().to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        Daemon {
            child,
            place: line.trim().to_owned(),
            log,
            shim,
        }
    }

    /// A plugin of this name that has `steps` done for it.
    pub fn shim(&self, watch: &Watch, name: &str, steps: &Value) -> PathBuf {
        watch.script(name, &format!("exec {} '{}' '{steps}'", self.shim, self.place))
    }

    /// What it has logged of so many requests: it logs an answer after it has sent it.
    pub fn logged(&self, requests: usize) -> Vec<Value> {
        let lines = || std::fs::read_to_string(&self.log).unwrap().lines().count();
        for _ in 0..200 {
            if lines() >= requests {
                break;
            }
            std::thread::sleep(Duration::from_millis(25));
        }
        let log = std::fs::read_to_string(&self.log).unwrap();
        log.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

pub fn traces_of(mut events: Vec<Event>) -> Vec<Trace> {
    events.sort_by_key(|event| event.at);
    let mut correlator = Correlator::new(CorrelatorConfig::default());
    for event in events {
        assert!(
            !matches!(&event.body, Body::Lost { probe, .. } if probe == "exec"),
            "{event:?}"
        );
        correlator.handle(event);
    }
    correlator.finish();
    let closed = correlator.drain().into_iter().filter_map(|output| match output {
        Output::Closed(trace) => Some(Trace::clone(&trace)),
        _ => None,
    });
    closed.collect()
}

pub fn trace_of<'t>(traces: &'t [Trace], sandbox: &str) -> &'t Trace {
    let of = |trace: &&Trace| trace.sandbox.as_ref().is_some_and(|id| id.0 == sandbox);
    traces.iter().find(of).unwrap()
}

/// The longest request: beside it there is gRPC's exchange of settings, and what the interpreter may look up.
pub fn request(trace: &Trace) -> (&Span, &DaemonDetail) {
    let spans = trace.spans.iter();
    let requests = spans.filter_map(|span| Some((span, span.detail.as_daemon()?)));
    let longest = requests.max_by_key(|(span, _)| span.duration_ns(span.start));
    assert!(longest.is_some(), "{}", tree(trace, trace.root().end.unwrap()));
    longest.unwrap()
}

/// Holds begin and end of a request against the daemon's log, unless tasks of this node waited for that long.
fn check_times(test: &str, span: &Span, line: &Value, pressure: &Pressure) {
    let waited = pressure.ns_since();
    let end = span.end.unwrap().0;
    for (what, seen, logged) in [
        ("received", span.start.0, &line["received"]),
        ("answered", end, &line["answered"]),
    ] {
        let difference = seen.abs_diff(logged.as_u64().unwrap());
        eprintln!("{test}: {what} within {} us", difference / 1_000);
        if difference < 1_000_000 {
            continue;
        }
        assert!(
            difference <= 1_000_000 + waited,
            "{what}: {difference} ns, tasks waited {waited} ns"
        );
        eprintln!("NOT JUDGED {test}::{what}: {difference} ns between both clocks, tasks waited for {waited} ns");
    }
}

/// The request was seen from its begin. On a node so busy that the agent could not attach its programs before, nothing can be held
/// against it.
pub fn is_seen(test: &str, detail: &DaemonDetail, pressure: &Pressure) -> bool {
    if detail.begin == RequestBegin::Sent {
        return true;
    }
    let waited = pressure.ns_since();
    assert!(waited > 100_000_000, "{detail:?}, tasks waited {waited} ns");
    eprintln!("NOT JUDGED {test}::begin: the programs were attached late, tasks waited for {waited} ns");
    false
}

/// All traces, once the plugin of this sandbox has ended well.
pub fn ended(watch: &Watch, sandbox: &str) -> Vec<Trace> {
    watch.wait("the end of the plugin", |events| {
        let traces = traces_of(events.to_vec());
        let of = |trace: &&Trace| trace.sandbox.as_ref().is_some_and(|id| id.0 == sandbox);
        let trace = traces.iter().find(of)?;
        let plugin = trace.spans.iter().find_map(|span| span.detail.as_plugin())?;
        plugin.process.exit.filter(|exit| exit.is_success())?;
        Some(traces.clone())
    })
}

pub fn id(number: usize) -> String {
    format!("{number}c{:0>62}", 5)
}

/// One request after another, over both kinds of connections, with what a daemon runs for it.
#[test]
fn a_request_lasts_as_long_as_the_daemon_logs() {
    const TEST: &str = "a_request_lasts_as_long_as_the_daemon_logs";
    let Some(watch) = watch(TEST) else { return };
    for (name, unix) in [("cilium-cni", true), ("aws-cni", false)] {
        let directory = watch.directory.path().join(name).with_extension("d");
        std::fs::create_dir(&directory).unwrap();
        let daemon = Daemon::start(&directory, unix);
        let steps = serde_json::json!([0.5, ["/bin/sleep", "0.4"], 0.3]);
        let shim = daemon.shim(&watch, name, &steps);
        let pressure = Pressure::now();
        wait_for(plugin(&shim, name).spawn().unwrap());
        watch.wait("the end of the plugin", |events| {
            let traces = traces_of(events.to_vec());
            let closed = traces
                .iter()
                .find(|trace| trace.sandbox.as_ref().is_some_and(|id| id.0 == name))?;
            let ended = closed.spans.iter().find_map(|span| span.detail.as_plugin())?;
            ended.process.exit.filter(|exit| exit.is_success())
        });
        let traces = watch.wait("the events", |events| Some(traces_of(events.to_vec())));
        let trace = trace_of(&traces, name);
        let (span, detail) = request(trace);
        assert_eq!((&*detail.name, detail.pid), ("python3", daemon.child.id()));
        assert_eq!(detail.transport.as_str(), if unix { "unix" } else { "tcp" });
        if !is_seen(TEST, detail, &pressure) {
            continue;
        }
        assert!(!detail.unanswered);
        let line = &daemon.logged(1)[0];
        check_times(TEST, span, line, &pressure);
        let below: Vec<&Span> = trace.spans.iter().filter(|child| child.process().is_some()).collect();
        let sleep = below
            .iter()
            .find(|child| child.process().unwrap().path.ends_with("/sleep"))
            .unwrap();
        assert_eq!(trace.spans[sleep.parent.unwrap()].id, span.id);
        // On a node as busy as that the processors are to blame, or the disk that the interpreter was read from.
        let verdict = phases::verdict(trace, trace.root().end.unwrap());
        let disks_ns = pressure.disks_ns_since();
        let is_slow_disk = verdict.contains("for a disk") && disks_ns * 2 >= span.duration_ns(span.start);
        if verdict.contains("processors were busy") || is_slow_disk {
            eprintln!("NOT JUDGED {TEST}::verdict: {verdict}; tasks waited for disks for {disks_ns} ns");
            continue;
        }
        assert!(
            verdict.starts_with(&format!("plugin {name} waited")) && verdict.contains("for python3"),
            "{verdict}"
        );
    }
}

/// Commands that a daemon ran for requests that were in flight at once.
#[derive(Debug, Default)]
pub struct Commands {
    pub total: usize,
    /// Those that lie below their request.
    pub right: usize,
    /// Those that lie below another one, and are not marked as ambiguous.
    pub wrong_and_likely: usize,
    /// Requests whose daemon's threads count as theirs although others were in flight.
    pub told_by_wake_ups: usize,
    /// Those that name their sandbox or its interface, and lie below their request.
    pub right_by_content: usize,
    /// Requests that were seen from their begin.
    pub requests: usize,
}

/// Has eight requests with different waits and commands done at once, five commands each, by shims of this name in `folder`. Holds
/// each request's times against the daemon's log, and no command may be at the wrong request and certain.
pub fn eight_requests(test: &str, watch: &Watch, daemon: &Daemon, name: &str, folder: &str, first: usize) -> Commands {
    let pressure = Pressure::now();
    let sandbox = |number: usize| id(first + number);
    let shims: Vec<Child> = (0..8)
        .map(|number| {
            let wait = 0.03 * f64::from(u8::try_from(number).unwrap());
            let steps = serde_json::json!([
                wait,
                ["/bin/sleep", "0.05"],
                ["/bin/true", format!("--container={}", sandbox(number))],
                ["/bin/sleep", format!("0.0{}", number + 1)],
                ["/bin/true", "-i", format!("net{number}")],
                ["/bin/sh", "-c", "/bin/true; /bin/sleep 0.02"],
                0.3 - wait,
            ]);
            // One file each, of the same name.
            let own = format!("{folder}/{number}");
            std::fs::create_dir(watch.directory.path().join(&own)).unwrap();
            let shim = daemon.shim(watch, &format!("{own}/{name}"), &steps);
            let mut call = plugin(&shim, &sandbox(number));
            call.env("CNI_IFNAME", format!("net{number}")).spawn().unwrap()
        })
        .collect();
    shims.into_iter().for_each(wait_for);
    let lines = daemon.logged(8);
    assert_eq!(lines.len(), 8);
    let all = |events: &[Event]| {
        let ended = |event: &&Event| matches!(&event.body, Body::ProcessExited(_));
        let traces = traces_of(events.to_vec());
        let done = (0..8).all(|number| {
            let of = |trace: &&Trace| trace.sandbox.as_ref().is_some_and(|id| id.0 == sandbox(number));
            let trace = traces.iter().find(of);
            let plugin = trace.and_then(|trace| trace.spans.iter().find_map(|span| span.detail.as_plugin()));
            plugin.is_some_and(|plugin| plugin.process.exit.is_some_and(|exit| exit.is_success()))
        });
        (done && events.iter().any(|event| ended(&event))).then_some(traces)
    };
    let traces = watch.wait("the ends of all plugins", all);
    let mut commands = Commands::default();
    for number in 0..8 {
        let trace = trace_of(&traces, &sandbox(number));
        let line = lines
            .iter()
            .find(|line| line["id"] == sandbox(number).as_str())
            .unwrap();
        let (span, detail) = request(trace);
        if !is_seen(test, detail, &pressure) {
            continue;
        }
        commands.requests += 1;
        commands.told_by_wake_ups += usize::from(detail.threads == Some(ThreadsAttribution::WakeUps));
        check_times(test, span, line, &pressure);
        let pids: Vec<u64> = line["pids"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_u64)
            .collect();
        commands.total += pids.len();
        for process in trace.spans.iter().filter_map(Span::process) {
            let Some(attribution) = process.attribution else {
                continue;
            };
            let is_right = pids.contains(&u64::from(process.pid));
            commands.right += usize::from(is_right);
            commands.right_by_content += usize::from(is_right && attribution.is_by_content());
            eprintln!("{test}: {} {attribution:?} {is_right}", process.path);
            assert!(
                is_right || attribution.confidence() != Confidence::Certain,
                "{process:?}"
            );
            assert!(
                is_right || process.ambiguous || attribution.confidence() == Confidence::Likely,
                "{process:?}"
            );
            commands.wrong_and_likely += usize::from(!is_right && !process.ambiguous);
        }
    }
    eprintln!("{test}: {commands:?}");
    assert_eq!(commands.total, commands.requests * 5);
    commands
}

/// Eight requests at once, with different waits and commands: at least 95 of 100 commands lie below the right request, and none of
/// the others is reported as certain.
#[test]
fn what_a_daemon_runs_for_eight_requests_lies_below_the_right_ones() {
    const TEST: &str = "what_a_daemon_runs_for_eight_requests_lies_below_the_right_ones";
    let Some(watch) = watch(TEST) else { return };
    for (name, unix) in [("multus-shim", true), ("aws-cni", false)] {
        let folder = format!("{name}.d");
        let directory = watch.directory.path().join(&folder);
        std::fs::create_dir(&directory).unwrap();
        let daemon = Daemon::start(&directory, unix);
        let first = if unix { 0 } else { 8 };
        let commands = eight_requests(TEST, &watch, &daemon, name, &folder, first);
        assert!(commands.right * 100 >= commands.total * 95, "{commands:?}");
    }
}

/// The same of a daemon in Go, whose threads say nothing and whose goroutines do: with net/http one receives a request and handles it, with
/// grpc-go it creates the one that handles it.
#[test]
fn what_a_daemon_in_go_runs_for_eight_requests_lies_below_the_right_ones() {
    const TEST: &str = "what_a_daemon_in_go_runs_for_eight_requests_lies_below_the_right_ones";
    let Some(program) = built::peer("SANDGLASS_GO_DAEMON", "godaemon") else {
        eprintln!("SKIPPED {TEST}: scripts/peer.sh godaemon builds it");
        return;
    };
    let Some(watch) = watch(TEST) else { return };
    for (name, unix) in [("multus-shim", true), ("aws-cni", false)] {
        let folder = format!("{name}.d");
        let directory = watch.directory.path().join(&folder);
        std::fs::create_dir(&directory).unwrap();
        let daemon = Daemon::start_go(&program, &directory, unix);
        let first = if unix { 0 } else { 8 };
        let commands = eight_requests(TEST, &watch, &daemon, name, &folder, first);
        assert!(commands.right_by_content >= commands.requests * 2, "{commands:?}");
        assert!(commands.right * 100 >= commands.total * 95, "{commands:?}");
        assert_eq!(
            (commands.wrong_and_likely, commands.told_by_wake_ups),
            (0, 0),
            "{commands:?}"
        );
    }
}

/// A shim that is not known by its name: of its first request the begin is recovered, the next ones are seen.
#[test]
fn a_plugin_that_waited_for_a_daemon_is_known_as_a_shim() {
    const TEST: &str = "a_plugin_that_waited_for_a_daemon_is_known_as_a_shim";
    // Longer than the shim's interpreter takes to send its request.
    let after = Duration::from_millis(300);
    let Some(watch) = watch_after(TEST, Some(after)) else {
        return;
    };
    let daemon = Daemon::start(watch.directory.path(), true);
    let shim = daemon.shim(&watch, "unheard-of", &serde_json::json!([1.0]));
    let mut begins = Vec::new();
    let began = Pressure::now();
    for number in 0..2 {
        let pressure = Pressure::now();
        let sandbox = id(number);
        wait_for(plugin(&shim, &sandbox).spawn().unwrap());
        let traces = ended(&watch, &sandbox);
        let (span, detail) = request(trace_of(&traces, &sandbox));
        assert_eq!(&*detail.name, "python3");
        begins.push(detail.begin);
        let line = &daemon.logged(number + 1)[number];
        // Where the programs were attached late, the begin is theirs and no clock's.
        if detail.begin != RequestBegin::Followed {
            check_times(TEST, span, line, &pressure);
        }
    }
    eprintln!("{TEST}: {begins:?}");
    if begins[1] != RequestBegin::Sent {
        let waited = began.ns_since();
        assert!(waited > 100_000_000, "{begins:?}, tasks waited {waited} ns");
        eprintln!("NOT JUDGED {TEST}::begin: the programs were attached late, tasks waited for {waited} ns");
    }
    if begins[0] == RequestBegin::Sent {
        let waited = began.ns_since();
        assert!(u128::from(waited) > after.as_nanos(), "tasks waited {waited} ns");
        eprintln!("NOT JUDGED {TEST}::recovered: the interpreter took as long, tasks waited for {waited} ns");
    }
}

/// A process without privileges that serves the plugin's socket: the request to it is a span, and what it runs is not followed. The
/// same daemon of root beside it is followed, also in a pid namespace of its own, as in a pod. A refused daemon is counted once.
#[test]
fn what_an_untrusted_daemon_runs_is_not_followed() {
    const TEST: &str = "what_an_untrusted_daemon_runs_is_not_followed";
    let container = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let kinds = [("nobody", nobody()), ("container", container.to_vec())];
    if kinds.iter().any(|(_, wrapper)| !works(TEST, wrapper)) {
        return;
    }
    let Some(watch) = watch(TEST) else { return };
    let sleeps = |trace: &Trace| {
        let below = trace.spans.iter().filter_map(Span::process);
        below.filter(|process| process.path.ends_with("/sleep")).count()
    };
    for (kind, wrapper) in kinds {
        let directory = watch.directory.path().join(kind);
        std::fs::create_dir(&directory).unwrap();
        // The one without privileges makes its socket and its log here.
        for place in [watch.directory.path(), &directory] {
            let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
            std::fs::set_permissions(place, all).unwrap();
        }
        let daemon = Daemon::start_below(&wrapper, &directory, true);
        let steps = serde_json::json!([0.2, ["/bin/sleep", "0.2"], 0.2]);
        let shim = daemon.shim(&watch, "cilium-cni", &steps);
        for number in 0..2 {
            let pressure = Pressure::now();
            let sandbox = format!("{kind}-{number}");
            wait_for(plugin(&shim, &sandbox).spawn().unwrap());
            let traces = ended(&watch, &sandbox);
            let trace = trace_of(&traces, &sandbox);
            let (_, detail) = request(trace);
            assert_eq!(&*detail.name, "python3");
            if is_seen(TEST, detail, &pressure) {
                assert_eq!(sleeps(trace), usize::from(kind == "container"), "{sandbox}");
            }
        }
    }
    let refused = || {
        let list = watch.health.refused.newest_first();
        list.into_iter()
            .filter(|refused| refused.claim == "daemon")
            .collect::<Vec<_>>()
    };
    let list = watch.wait("the refused daemon", |_| {
        Some(refused()).filter(|list| !list.is_empty())
    });
    assert_eq!(list.len(), 1, "{list:?}");
    assert_eq!(
        (&*list[0].path, &*list[0].reason, list[0].uid),
        ("python3", "capabilities", 65_534)
    );
    let label = RefusedLabel::all().find(|label| label.claim == "daemon" && label.reason == "capabilities");
    assert_eq!(watch.health.untrusted.get_or_create(&label.unwrap()).get(), 1);
}
