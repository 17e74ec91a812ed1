//! Duplicate address detection: which sleeps were waits for the end of it, and how sure that is.

use sandglass_model::trace::Confidence;
use sandglass_model::waits::{TentativeAddress, TentativeSeen, ThreadSeen, ThreadState, ThreadsSeen, TimeReason};
use sandglass_model::{Body, ProcessKey, Trace, phases, registry};

use crate::scene::{Scene, add};
use crate::waits::{TIMER, ms, parts, stranger, time_of, times};

const NANOSLEEP: &[&str] = &["hrtimer_nanosleep", "__x64_sys_nanosleep"];
/// How Go sleeps when it has nothing else to do.
const EPOLL: &[&str] = &["do_epoll_wait", "__x64_sys_epoll_pwait"];
const LINK_LOCAL: &str = "fe80::1";

impl Scene {
    /// In the namespace in which `process` works these addresses are tentative from now on, one with `!` as a duplicate.
    fn tentative(&mut self, process: ProcessKey, addresses: &[&str]) -> &mut Scene {
        let address = |text: &&str| TentativeAddress {
            address: text.trim_end_matches('!').parse().expect("an address"),
            interface: "eth0".into(),
            duplicate: text.ends_with('!'),
        };
        self.event(Body::TentativeSeen(Box::new(TentativeSeen {
            process,
            netns: 5,
            addresses: addresses.iter().map(address).collect(),
        })))
    }

    /// `process` sleeps 50 ms each time, from `from` until `to`.
    fn polls(&mut self, process: ProcessKey, from: u64, to: u64) -> &mut Scene {
        for begin in (from..to).step_by(50) {
            self.at(begin + 50)
                .woken(process, begin, EPOLL, stranger("swapper", TIMER));
        }
        self
    }
}

/// A scene with waits recorded from the begin, and a plugin in it.
fn begun() -> (Scene, ProcessKey) {
    let mut scene = Scene::new();
    scene.at(0).recorded(false);
    scene.at(0).networks(&[("net", &["ptp"])]);
    scene.at(50).recorded(true);
    let plugin = scene.at(100).plugin("ptp", &add("sb", "eth0"));
    (scene, plugin)
}

/// The scene's trace, once the plugin has ended.
fn ended(scene: &mut Scene, plugin: ProcessKey, at: u64) -> Trace {
    scene.at(at).exit(plugin, 0);
    scene.at(60_000).tick();
    scene.clone().play().closed[0].clone()
}

/// What the plugin waited for: reason, milliseconds, what, how sure.
fn waits(trace: &Trace) -> Vec<(TimeReason, u64, &str, Option<Confidence>)> {
    let time = time_of(trace, "plugin ptp").expect("a time");
    let waits = time.waits.iter();
    waits
        .map(|wait| (wait.reason, wait.ns / 1_000_000, wait.what.as_str(), wait.confidence))
        .collect()
}

const DETECTION: &str = "duplicate address detection of fd00::5 on eth0";

#[test]
fn a_plugin_that_polls_while_an_address_is_tentative_waits_for_the_detection() {
    let (mut scene, plugin) = begun();
    scene.polls(plugin, 150, 200);
    scene.at(210).tentative(plugin, &["fd00::5", LINK_LOCAL]);
    scene.polls(plugin, 200, 2_200);
    scene.at(2_210).tentative(plugin, &[]);
    let trace = ended(&mut scene, plugin, 2_240);
    // Of the first sleep nobody knows whether an address was tentative.
    assert_eq!(
        waits(&trace),
        [
            (TimeReason::KernelWork, 2_000, DETECTION, Some(Confidence::Likely)),
            (TimeReason::Timer, 50, "", None)
        ]
    );
    assert_eq!(
        parts(&trace, "cni ADD"),
        [("processor", 90), ("kernel_work", 2_000), ("timer", 50)]
    );
    let verdict = phases::verdict(&trace, ms(60_000));
    assert_eq!(
        verdict,
        "plugin ptp took 2.14 s of 2.14 s (100 %): 2.00 s of it was duplicate address detection of fd00::5 on eth0 (likely)"
    );
    // One poll is one span, whatever number of sleeps it has.
    let spans = trace.spans.iter().filter(|span| span.detail.as_wait().is_some());
    let spans: Vec<_> = spans
        .map(|span| (span.start, span.end, span.detail.as_wait().unwrap().confidence))
        .collect();
    let wanted = [
        (ms(150), Some(ms(200)), None),
        (ms(200), Some(ms(2_200)), Some(Confidence::Likely)),
    ];
    assert_eq!(spans, wanted);
}

/// Who waits for an address waits for all of the interface, and names the one that held it up.
#[test]
fn a_link_local_address_that_outlasts_the_others_is_named() {
    let (mut scene, plugin) = begun();
    scene.at(190).tentative(plugin, &["fd00::5", LINK_LOCAL]);
    scene.polls(plugin, 200, 1_200);
    scene.at(1_210).tentative(plugin, &[LINK_LOCAL]);
    scene.polls(plugin, 1_200, 1_500);
    let exit = 1_510;
    scene.at(exit).tentative(plugin, &[]);
    let trace = ended(&mut scene, plugin, exit);
    let what = "duplicate address detection of fd00::5 and fe80::1 on eth0";
    assert_eq!(
        waits(&trace),
        [(TimeReason::KernelWork, 1_300, what, Some(Confidence::Likely))]
    );
}

/// Every interface has a link-local address, also that of a pod without IPv6.
#[test]
fn a_link_local_address_alone_is_no_evidence() {
    let (mut scene, plugin) = begun();
    scene.at(190).tentative(plugin, &[LINK_LOCAL]);
    scene.polls(plugin, 200, 1_200);
    scene.at(1_210).tentative(plugin, &[]);
    let trace = ended(&mut scene, plugin, 1_240);
    assert_eq!(waits(&trace), [(TimeReason::Timer, 1_000, "", None)]);
}

/// It slept for something else too, or not again and again, or was given up before the address was there.
#[test]
fn less_evidence_makes_it_possible_only() {
    let confidence = |tentative_until: Option<u64>, slept_until: u64| {
        let (mut scene, plugin) = begun();
        scene.at(190).tentative(plugin, &["fd00::5"]);
        if let Some(until) = tentative_until {
            scene.at(until).tentative(plugin, &[]);
        }
        scene.polls(plugin, 200, slept_until);
        scene.events.sort_by_key(|event| event.at);
        let trace = ended(&mut scene, plugin, slept_until + 20);
        waits(&trace).iter().find_map(|wait| wait.3)
    };
    assert_eq!(confidence(Some(1_190), 1_200), Some(Confidence::Likely));
    assert_eq!(confidence(Some(790), 1_200), Some(Confidence::Possible), "goes on");
    assert_eq!(confidence(Some(290), 300), Some(Confidence::Possible), "two sleeps");
    assert_eq!(confidence(None, 1_200), Some(Confidence::Possible), "never ended");
    assert_eq!(confidence(Some(195), 1_200), None, "no sleep");
}

/// A sleep that is longer than a poll's, and other reasons, are what they are.
#[test]
fn other_sleeps_are_no_detection() {
    let (mut scene, plugin) = begun();
    scene.at(190).tentative(plugin, &["fd00::5"]);
    scene
        .at(1_200)
        .woken(plugin, 200, NANOSLEEP, stranger("swapper", TIMER));
    scene.at(1_300).woken(
        plugin,
        1_210,
        &["do_wait", "kernel_wait4"],
        stranger("swapper", &["do_notify_parent"]),
    );
    scene.at(1_310).tentative(plugin, &[]);
    let trace = ended(&mut scene, plugin, 1_320);
    assert_eq!(
        waits(&trace),
        [(TimeReason::Timer, 1_000, "", None), (TimeReason::Child, 90, "", None)]
    );
}

/// The detection found that another machine has the address, which then stays tentative: the plugin gives up.
#[test]
fn a_duplicate_is_called_one() {
    let (mut scene, plugin) = begun();
    scene.at(190).tentative(plugin, &["fd00::5"]);
    scene.polls(plugin, 200, 600);
    scene.at(610).tentative(plugin, &["fd00::5!"]);
    scene.polls(plugin, 600, 1_200);
    let trace = ended(&mut scene, plugin, 1_240);
    let what = "duplicate address detection of fd00::5 (a duplicate) on eth0";
    assert_eq!(
        waits(&trace),
        [(TimeReason::KernelWork, 1_000, what, Some(Confidence::Possible))]
    );
}

/// While it lasts nothing shows yet that the plugin goes on afterwards.
#[test]
fn an_operation_that_runs_possibly_waits_for_it() {
    let (mut scene, plugin) = begun();
    scene.at(190).tentative(plugin, &["fd00::5"]);
    scene.polls(plugin, 200, 1_000);
    let asleep = ThreadSeen {
        process: plugin,
        thread: plugin.pid,
        begin: times(plugin, ms(0)).begin,
        state: ThreadState::Asleep,
        since: ms(1_000),
        stack: EPOLL.iter().collect(),
    };
    let look = |threads| {
        Body::ThreadsSeen(Box::new(ThreadsSeen {
            threads,
            ..ThreadsSeen::default()
        }))
    };
    scene.at(1_010).event(look(vec![asleep]));
    scene.at(1_020).tick();
    let played = scene.play();
    let trace = played.correlator.open().next().expect("an open trace");
    let span = trace.spans.iter().find(|span| span.detail.as_plugin().is_some());
    let waiting = registry::waiting_of(trace, span.expect("a plugin")).expect("what it waits for");
    assert_eq!((waiting.reason, waiting.since), (TimeReason::KernelWork, ms(1_000)));
    assert_eq!(
        registry::waiting_text(waiting, false),
        "ptp waits for the kernel's own work (duplicate address detection of fd00::5 on eth0, possible), in do_epoll_wait"
    );
}
