//! The runtime's own time: traces begin with the request to the runtime and end with its response, held against the runtime's own log.
//!
//! Used by `end_to_end.rs`. containerd logs both ends of `RunPodSandbox`, with nanoseconds, in the function itself
//! (`internal/cri/instrument/instrumented_service.go`), so that its figure lacks what its threads waited for a processor before and after.
//! Skipped, by name, where the agent cannot read the CRI socket (Linux before 6.3).

use sandglass::config::Period;
use sandglass_demo::networks::Network;
use sandglass_demo::pods::{CallRecord, Pod};
use sandglass_demo::rig::RigOptions;
use sandglass_demo::verify;
use sandglass_model::phases::human;
use sandglass_model::time::{MILLISECOND, SECOND};
use sandglass_model::trace::{Detail, RuntimePart};
use sandglass_model::{Span, Timestamp, Trace};

use crate::rig::{Agent, Node, assert_passed};
use crate::runtimes::containerd_2;

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_covers_what_containerd_does_for_a_sandbox() {
    let test = "a_trace_covers_what_containerd_does_for_a_sandbox";
    covers(test, RigOptions::default()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_covers_what_containerd_2_does_for_a_sandbox() {
    let test = "a_trace_covers_what_containerd_2_does_for_a_sandbox";
    let Some(containerd) = containerd_2(test) else { return };
    let options = RigOptions {
        containerd: Some(containerd),
        ..RigOptions::default()
    };
    covers(test, options).await;
}

/// One that fails lasts until the runtime has cleaned up, as for its caller.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_failed_is_traced_until_its_response() {
    let test = "a_request_that_failed_is_traced_until_its_response";
    let Some(node) = Node::start(test).await else { return };
    // What plugins wait for is not asked here; what the runtime's daemon does is measured.
    let mut config = node.config();
    config.waits.after = Period::from_secs(60);
    let Some(mut agent) = Agent::of(&node, &config, test).await else {
        return;
    };
    if !reads_cri(&agent) {
        eprintln!("SKIPPED {test}: this kernel does not let the agent read the CRI socket");
        return;
    }
    let records = node
        .make(vec![
            Pod::new("cart-0", 1, Network::Plain),
            Pod::new("billing-0", 2, Network::Failing),
        ])
        .await;
    assert!(records[0].outcome.is_ok() && records[1].outcome.is_err());
    assert_passed(&agent.settle(&records).await);
    let traces = agent.traces_of(&node);
    for record in &records {
        assert_is_whole(verify::creation(&traces, record).unwrap());
    }
    let failed = verify::creation(&traces, &records[1]).unwrap();
    let dels = traces.iter().filter(|trace| trace.sandbox == failed.sandbox);
    let dels: Vec<_> = dels
        .filter(|trace| trace.root().detail.as_operation().is_some())
        .collect();
    assert!(!dels.is_empty() && failed.root().status.is_error());
    for del in dels {
        assert!(del.root().end <= create(failed).end, "a DEL ends after the response");
    }
    agent.stop().await;
    node.stop().await;
}

/// Twenty pods one after the other, then twenty at once.
async fn covers(test: &str, options: RigOptions) {
    let Some(node) = Node::with(test, options).await else {
        return;
    };
    // As on a node: the agent knows the list of the pods' network, so that a plugin that is executed late belongs to it.
    let mut config = node.config();
    config.cni.conf_dir = Some(node.rig.conf_dir(Network::Plain));
    let Some(mut agent) = Agent::of(&node, &config, test).await else {
        return;
    };
    if !reads_cri(&agent) {
        eprintln!("SKIPPED {test}: this kernel does not let the agent read the CRI socket");
        return;
    }
    let pod = |number: u32| Pod::new(&format!("cart-{number}"), number, Network::Plain);
    let mut alone = Vec::new();
    for number in 0..20 {
        alone.extend(node.make(vec![pod(number)]).await);
    }
    let crowd = node.make((20..40).map(pod).collect()).await;
    let all: Vec<CallRecord> = alone.iter().chain(&crowd).cloned().collect();
    assert_passed(&agent.settle(&all).await);
    let log = node.rig.log();
    let traces = agent.traces_of(&node);
    for (what, records) in [("one_at_a_time", &alone), ("twenty_at_once", &crowd)] {
        let compared: Vec<Compared> = records
            .iter()
            .map(|record| {
                let trace = verify::creation(&traces, record).unwrap();
                assert_eq!(trace.check(), Ok(()));
                assert_is_whole(trace);
                Compared::of(trace, record, &log)
            })
            .collect();
        judge(test, what, &compared);
    }
    agent.stop().await;
    node.stop().await;
}

pub fn reads_cri(agent: &Agent) -> bool {
    agent
        .probes()
        .iter()
        .any(|probe| probe.probe == "cri" && probe.attached)
}

/// It begins and ends with the request, and what lies before and after everything else is a span of its own.
pub fn assert_is_whole(trace: &Trace) {
    let text = sandglass_model::text::tree(trace, Timestamp(0));
    let create = create(trace);
    let Detail::SandboxCreate(detail) = &create.detail else {
        panic!("{text}");
    };
    assert!(detail.request_seen && detail.response_seen, "{text}");
    let part = |wanted| {
        let is_part = |span: &&Span| matches!(&span.detail, Detail::RuntimeWork(work) if work.part == wanted);
        trace.spans.iter().find(is_part).unwrap_or_else(|| panic!("{text}"))
    };
    assert_eq!(part(RuntimePart::Prepare).start, create.start, "{text}");
    assert_eq!(part(RuntimePart::Finish).end, create.end, "{text}");
}

fn create(trace: &Trace) -> &Span {
    let is_create = |span: &&Span| matches!(span.detail, Detail::SandboxCreate(_));
    trace.spans.iter().find(is_create).unwrap()
}

/// A sandbox's creation, as the trace and as the runtime has it.
struct Compared {
    pod: String,
    /// Nanoseconds.
    ours: u64,
    theirs: u64,
    /// Of theirs, what ours covers.
    covered: u64,
    /// What tasks of the node waited meanwhile.
    pressure_ns: u64,
}

impl Compared {
    fn of(trace: &Trace, record: &CallRecord, log: &str) -> Compared {
        let span = create(trace);
        let unix = |at: Timestamp| trace.anchor.unix_ns(at);
        let (start, end) = (unix(span.start), unix(span.end.unwrap()));
        let (begin, done) = logged(log, &record.pod.identity.uid).unwrap_or_else(|| panic!("not in the log:\n{log}"));
        Compared {
            pod: record.pod.identity.name.clone(),
            ours: end - start,
            theirs: done - begin,
            covered: end.min(done).saturating_sub(start.max(begin)),
            pressure_ns: record.run.pressure_ns,
        }
    }

    fn difference(&self) -> u64 {
        self.ours.abs_diff(self.theirs)
    }

    fn share(&self) -> f64 {
        self.covered as f64 / self.theirs as f64
    }
}

/// At least 95 % of the runtime's time are covered at the median; of those made alone nine of ten agree within 2 ms.
fn judge(test: &str, what: &str, compared: &[Compared]) {
    let mut shares: Vec<f64> = compared.iter().map(Compared::share).collect();
    shares.sort_unstable_by(f64::total_cmp);
    let mut differences: Vec<u64> = compared.iter().map(Compared::difference).collect();
    differences.sort_unstable();
    let (median, least) = (shares[shares.len() / 2], shares[0]);
    let agreeing = differences.iter().filter(|ns| **ns <= 2 * MILLISECOND).count();
    println!(
        "{what}: {:.2} % of the runtime's own time are covered at the median, {:.2} % at least; the durations differ by {} at the \
         median, {} at most; {agreeing} of {} within 2 ms",
        median * 100.0,
        least * 100.0,
        human(differences[differences.len() / 2]),
        human(differences[differences.len() - 1]),
        compared.len()
    );
    let detail = || {
        let line = |one: &Compared| format!("{}: {} of {}", one.pod, human(one.ours), human(one.theirs));
        compared.iter().map(line).collect::<Vec<_>>().join("\n")
    };
    // The clock of the log is the wall clock, which runs with ours within a run of this length.
    assert!(median >= 0.95, "{what}: {}", detail());
    if what != "one_at_a_time" || agreeing * 10 >= compared.len() * 9 {
        return;
    }
    let explained = |one: &&Compared| one.difference() <= (2 * MILLISECOND).max(one.pressure_ns);
    let excused = compared.iter().filter(explained).count();
    assert!(excused * 10 >= compared.len() * 9, "{what}: {}", detail());
    eprintln!(
        "NOT JUDGED {test}::agrees_within_2_ms: {agreeing} of {} agree, and tasks waited for processors for as long as the others differ",
        compared.len()
    );
}

/// When `RunPodSandbox` of a pod began and returned, by containerd's log, nanoseconds since 1970.
fn logged(log: &str, uid: &str) -> Option<(u64, u64)> {
    let of_pod = |line: &&str| line.contains("msg=\"RunPodSandbox for ") && line.contains(uid);
    let mut lines = log.lines().filter(of_pod);
    let begin = time_of(lines.next()?)?;
    let returned = lines.find(|line| line.contains(" returns sandbox id "))?;
    Some((begin, time_of(returned)?))
}

/// The time of a line of logrus' text format. All lines are of one month, so that days are counted from its begin: only differences
/// matter, and the begin is found by the caller's clock.
fn time_of(line: &str) -> Option<u64> {
    let text = line.split_once("time=\"")?.1.split_once('"')?.0;
    rfc3339_ns(text)
}

/// Nanoseconds since 1970 of a time in UTC, such as `2026-01-31T10:00:00.5Z` (RFC 3339).
fn rfc3339_ns(text: &str) -> Option<u64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.split('-').map(str::parse::<u64>);
    let (year, month, day) = (date.next()?.ok()?, date.next()?.ok()?, date.next()?.ok()?);
    let (time, fraction) = time.split_once('.').unwrap_or((time, ""));
    let mut time = time.split(':').map(str::parse::<u64>);
    let (hour, minute, second) = (time.next()?.ok()?, time.next()?.ok()?, time.next()?.ok()?);
    // Days before the month in a year that begins in March, so that a leap day is its last.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 719_469;
    let fraction = format!("{fraction:0<9}").get(..9)?.parse::<u64>().ok()?;
    Some((((days * 24 + hour) * 60 + minute) * 60 + second) * SECOND + fraction)
}

#[test]
fn the_log_is_read() {
    assert_eq!(rfc3339_ns("1970-01-01T00:00:01.5Z"), Some(1_500_000_000));
    assert_eq!(rfc3339_ns("2024-02-29T00:00:00Z"), Some(1_709_164_800 * SECOND));
    let log = "time=\"1970-01-01T00:00:01Z\" level=info msg=\"RunPodSandbox for &PodSandboxMetadata{Name:a,Uid:u1,}\"\n\
               time=\"1970-01-01T00:00:02.25Z\" level=info msg=\"RunPodSandbox for &PodSandboxMetadata{Name:a,Uid:u1,} returns sandbox id \\\"f\\\"\"\n";
    assert_eq!(logged(log, "u1"), Some((SECOND, 2_250_000_000)));
    assert_eq!(logged(log, "u2"), None);
}
