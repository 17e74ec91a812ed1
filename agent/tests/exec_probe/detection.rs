//! A plugin that waits for IPv6 duplicate address detection: the CNI project's `ptp`, between two namespaces of the test, recorded by the real
//! agent. How long the address was tentative is compared with what the kernel says of it meanwhile.

use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sandglass_lab::netns::Namespace;
use sandglass_lab::pressure::Pressure;
use sandglass_lab::skip::skipped;
use sandglass_model::phases;
use sandglass_model::text::tree;
use sandglass_model::trace::Confidence;
use sandglass_model::waits::{TimeReason, TimeSpent, WaitGroup};

use crate::recorder::Recorder;
use crate::waits::{ns_of, time_of, trace_of};

#[test]
fn duplicate_address_detection_is_what_ptp_waits_for() {
    const TEST: &str = "duplicate_address_detection_is_what_ptp_waits_for";
    if !Path::new("/usr/lib/cni/ptp").exists() {
        skipped(TEST, "no CNI plugins in /usr/lib/cni");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let Some(recorder) = Recorder::start(TEST, directory.path(), &[]) else {
        return;
    };
    let (Some(node), Some(pod)) = (Namespace::make(TEST), Namespace::make(TEST)) else {
        return;
    };
    // As a namespace that a runtime made.
    pod.run("echo 1 > /proc/sys/net/ipv6/conf/default/accept_dad");
    let config = format!(
        r#"{{"cniVersion":"0.4.0","name":"pods","type":"ptp","ipam":{{"type":"host-local","dataDir":"{}/networks","ranges":[[{{"subnet":"fd00::/120","rangeStart":"fd00::5"}}]]}}}}"#,
        directory.path().display()
    );
    std::fs::write(directory.path().join("pods.conf"), config).unwrap();
    // The shell is the runtime: it stays in the namespace that stands for the node's.
    let call = format!(
        "CNI_COMMAND=ADD CNI_CONTAINERID=detection CNI_NETNS={} CNI_IFNAME=eth0 CNI_PATH=/usr/lib/cni \
         CNI_ARGS='IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0' /usr/lib/cni/ptp < {}/pods.conf; exit $?",
        pod.path(),
        directory.path().display()
    );
    let pressure = Pressure::now();
    let done = AtomicBool::new(false);
    let (output, tentative) = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| pod.within(|| tentative_for(&done)));
        let output = node.command(&call).stderr(Stdio::inherit()).output().unwrap();
        done.store(true, Ordering::Relaxed);
        (output, watcher.join().unwrap())
    });
    let answer = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && answer.contains("fd00::5/120"), "{answer}");
    let pressed = pressure.ns_since();
    let trace = trace_of(recorder.finish("detection"), "detection");
    let now = trace.root().end.unwrap();
    let verdict = phases::verdict(&trace, now);
    eprintln!("{TEST}: tentative for {tentative:?}\n{verdict}\n{}", tree(&trace, now));
    for name in ["plugin ptp", "cni ADD"] {
        let time = time_of(&trace, name);
        let found = detected(time);
        assert_eq!(
            (found.reason, found.who.as_str(), found.confidence),
            (TimeReason::KernelWork, "ptp", Some(Confidence::Likely)),
            "{time:?}"
        );
        // The interface's own address may be tentative for longer, and is then named too.
        assert!(
            found.what.starts_with("duplicate address detection of fd00::5") && found.what.ends_with(" on eth0"),
            "{time:?}"
        );
    }
    let time = time_of(&trace, "cni ADD");
    if ns_of(time, TimeReason::RunQueue) >= detected(time).ns {
        // It blames the processors then.
        eprintln!("NOT JUDGED {TEST}::headline: tasks waited for {pressed} ns");
        return;
    }
    assert!(
        verdict.contains(" of it was duplicate address detection of fd00::5") && verdict.ends_with(" on eth0 (likely)"),
        "{verdict}"
    );
    let waits = trace.spans.iter().filter_map(|span| span.detail.as_wait());
    let inferred: Vec<_> = waits.filter(|wait| wait.confidence.is_some()).collect();
    assert!(!inferred.is_empty() && inferred.iter().all(|wait| wait.reason == TimeReason::KernelWork));
    judge_duration(TEST, detected(time).ns, tentative, pressed);
}

/// The wait whose reason is inferred.
fn detected(time: &TimeSpent) -> &WaitGroup {
    let found = time.waits.iter().find(|wait| wait.confidence.is_some());
    assert!(found.is_some(), "{time:?}");
    found.unwrap()
}

/// What is attributed is what the kernel says, but for the first sleep, in which nobody read the addresses, the last one, and the time of
/// readings.
fn judge_duration(test: &str, attributed: u64, tentative: Duration, pressed: u64) {
    const TOLERANCE_NS: u64 = 150_000_000;
    let tentative = u64::try_from(tentative.as_nanos()).unwrap();
    let apart = attributed.abs_diff(tentative);
    if apart > TOLERANCE_NS {
        assert!(
            apart <= TOLERANCE_NS + pressed,
            "{attributed} ns, tentative for {tentative} ns"
        );
        eprintln!("NOT JUDGED {test}::duration: {apart} ns apart, tasks waited for {pressed} ns");
    }
}

/// How long the kernel had an address of `eth0` that other machines can reach as tentative, read every 5 ms.
fn tentative_for(done: &AtomicBool) -> Duration {
    let mut sum = Duration::ZERO;
    let mut before: Option<Instant> = None;
    while !done.load(Ordering::Relaxed) {
        let lines = std::fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap();
        let is_tentative = |line: &str| {
            let flags = line.split_ascii_whitespace().nth(4).unwrap();
            line.ends_with("eth0") && u32::from_str_radix(flags, 16).unwrap() & 0x40 != 0
        };
        let now = Instant::now();
        if let Some(before) = before {
            sum += now - before;
        }
        before = lines.lines().any(is_tentative).then_some(now);
        std::thread::sleep(Duration::from_millis(5));
    }
    sum
}
