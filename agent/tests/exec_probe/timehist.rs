//! Sleeps and waits for a processor of a plugin's threads, held against `perf sched timehist` on the same run.
//!
//! perf follows the same tracepoints by a file of its own, and computes each wait by itself, when the thread leaves the processor
//! again. Where the kernel did not report that switch to it (`probes/bpf/waits.h`, on_out) and there is no later one, the sleep is taken from perf's
//! record of the wake-up. Does not: explain the few waits that perf puts together wrongly for the same reason.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

use sandglass_model::{Body, Event, ProcessKey};

use crate::waits::{beside_busy_threads, watch};
use crate::watch::{execs, plugin, wait_for};

/// A line of `perf sched timehist --state`: a thread left a processor. Nanoseconds of the monotonic clock.
#[derive(Clone, Debug)]
struct Slice {
    thread: u32,
    /// When it left the processor.
    out: u64,
    /// How long it had not run before.
    waited: u64,
    /// The last part of that, in which it was awake.
    delayed: u64,
    ran: u64,
    /// As what it left: `R` where the scheduler took the processor away; `W` is what perf 6.1 makes of the kernel's mark for
    /// that (`TASK_REPORT_MAX` of include/linux/sched.h).
    state: char,
}

/// `   14847.253044 [0001]  sleep[22434/22432]    30.101      0.012      0.345      S`, the numbers in seconds and milliseconds.
fn slice(line: &str) -> Option<Slice> {
    let (time, rest) = line.trim().split_once(" [")?;
    let (_, rest) = rest.split_once(']')?;
    let (name, rest) = rest.rsplit_once(']')?;
    let ids = name.rsplit_once('[')?.1;
    let mut fields = rest.split_ascii_whitespace();
    let mut ms = || Some((fields.next()?.parse::<f64>().ok()? * 1e6).round() as u64);
    Some(Slice {
        thread: ids.split('/').next()?.parse().ok()?,
        out: (time.parse::<f64>().ok()? * 1e9).round() as u64,
        waited: ms()?,
        delayed: ms()?,
        ran: ms()?,
        state: fields.next()?.chars().next()?,
    })
}

/// `   43022.511819 [0000]  swapper      awakened: sleep[18546]`: the thread that was woken, and when.
fn wake_up(line: &str) -> Option<(u32, u64)> {
    let (time, rest) = line.trim().split_once(" [")?;
    let (_, woken) = rest.split_once("awakened: ")?;
    let thread = woken.rsplit_once('[')?.1.split([']', '/']).next()?.parse().ok()?;
    Some((thread, (time.parse::<f64>().ok()? * 1e9).round() as u64))
}

/// A time in which a thread slept, or waited for a processor.
#[derive(Clone, Copy, Debug)]
struct Wait {
    from: u64,
    to: u64,
}

impl Wait {
    fn ns(self) -> u64 {
        self.to - self.from
    }

    /// Within 2 %, or 0.2 ms.
    fn is_like(self, other: Wait) -> bool {
        let near = |one: u64, two: u64| one.abs_diff(two) <= (other.ns() / 50).max(200_000);
        near(self.from, other.from) && near(self.to, other.to) && near(self.ns(), other.ns())
    }
}

/// By thread: its sleeps, and its waits for a processor.
type Waits = BTreeMap<u32, (Vec<Wait>, Vec<Wait>)>;

/// Waits of the threads in `begins`, which has the begin of each. Others had the same ids before: a busy machine comes round to an id
/// within seconds.
fn of_perf(text: &str, begins: &BTreeMap<u32, u64>) -> Waits {
    let is_of = |thread: u32, at: u64| begins.get(&thread).is_some_and(|begin| *begin <= at);
    let mut waits = Waits::new();
    // As what and when a thread left the processor last, and the sleep since then once it was woken.
    let mut left: BTreeMap<u32, (char, u64)> = BTreeMap::new();
    let mut slept: BTreeMap<u32, Wait> = BTreeMap::new();
    for line in text.lines() {
        if let Some((thread, to)) = wake_up(line) {
            if is_of(thread, to)
                && let Some(&(state, from)) = left.get(&thread)
                && !matches!(state, 'R' | 'W')
            {
                slept.entry(thread).or_insert(Wait { from, to });
            }
            continue;
        }
        let Some(slice) = slice(line).filter(|slice| is_of(slice.thread, slice.out)) else {
            continue;
        };
        slept.remove(&slice.thread);
        let before = left
            .insert(slice.thread, (slice.state, slice.out))
            .map(|(state, _)| state);
        let ran_at = slice.out.saturating_sub(slice.ran);
        let from = ran_at.saturating_sub(slice.waited);
        let of = waits.entry(slice.thread).or_default();
        match before {
            Some('R' | 'W') => of.1.push(Wait { from, to: ran_at }),
            Some(_) => {
                let woken = ran_at - slice.delayed.min(slice.waited);
                of.0.push(Wait { from, to: woken });
                of.1.push(Wait {
                    from: woken,
                    to: ran_at,
                });
            }
            // A new thread is runnable from its creation on.
            None if slice.delayed > 0 => of.1.push(Wait {
                from: ran_at.saturating_sub(slice.delayed),
                to: ran_at,
            }),
            None => {}
        }
    }
    for (thread, sleep) in slept {
        waits.entry(thread).or_default().0.push(sleep);
    }
    waits
}

fn of_events(events: &[Event], processes: &[ProcessKey]) -> Waits {
    let mut waits = Waits::new();
    let is_of = |process| processes.contains(process);
    for event in events {
        match &event.body {
            Body::ThreadWoken(wake) if is_of(&wake.times.process) => {
                waits.entry(wake.times.thread).or_default().0.push(Wait {
                    from: wake.slept_from.0,
                    to: event.at.0,
                })
            }
            Body::ThreadRan(run) if is_of(&run.times.process) => {
                waits.entry(run.times.thread).or_default().1.push(Wait {
                    from: run.runnable_from.0,
                    to: event.at.0,
                })
            }
            _ => {}
        }
    }
    waits
}

/// The boot clock minus the monotonic one, nanoseconds: the time for which the machine was suspended.
fn suspended_ns() -> u64 {
    let ns = |clock| {
        let time = rustix::time::clock_gettime(clock);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    };
    ns(rustix::time::ClockId::Boottime).saturating_sub(ns(rustix::time::ClockId::Monotonic))
}

#[test]
fn sleeps_and_waits_for_a_processor_are_those_of_perf() {
    let test = "sleeps_and_waits_for_a_processor_are_those_of_perf";
    if Command::new("perf").arg("version").output().is_err() {
        eprintln!("SKIPPED {test}: there is no perf (package linux-perf)");
        return;
    }
    let Some(watch) = watch(test, 0) else { return };
    watch.wait("waits to be recorded", |events| {
        events
            .iter()
            .find(|event| event.body == Body::WaitsRecorded { on: true })
            .map(|_| ())
    });
    let body = "i=0\nwhile [ $i -lt 25 ]; do sleep 0.02; i=$((i+1)); done\n(sleep 0.1; echo done) | cat >/dev/null\n\
                i=0\nwhile [ $i -lt 400000 ]; do i=$((i+1)); done";
    let script = watch.script("mixed", body);
    let recorded = watch.directory.path().join("perf.data");
    // It records from the exec of `cat` until that one's input ends.
    let mut perf = Command::new("perf")
        .args(["sched", "record", "-B", "-k", "CLOCK_MONOTONIC", "-o"])
        .arg(&recorded)
        .args(["--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut echoed = [0];
    perf.stdin.as_mut().unwrap().write_all(b"x").unwrap();
    perf.stdout.as_mut().unwrap().read_exact(&mut echoed).unwrap();
    beside_busy_threads(1, || wait_for(plugin(&script, "mixed").spawn().unwrap()));
    drop(perf.stdin.take());
    assert!(perf.wait().unwrap().success());
    let printed = Command::new("perf")
        .args(["sched", "timehist", "--state", "--wakeups", "-i"])
        .arg(&recorded)
        .output()
        .unwrap();
    let suspended = suspended_ns();
    let events = watch.finish();
    // Of the plugin and of what it executed: each has one thread. Other tests have plugins too.
    let mut processes: Vec<ProcessKey> = Vec::new();
    for (_, exec) in execs(&events) {
        let is_plugin = exec.env("CNI_CONTAINERID") == Some("mixed");
        if is_plugin || processes.contains(&exec.parent) {
            processes.push(exec.process);
        }
    }
    let begins = processes
        .iter()
        .map(|process| (process.pid, process.start_ticks * 10_000_000 - suspended))
        .collect();
    let perfs = of_perf(&String::from_utf8_lossy(&printed.stdout), &begins);
    let ours = of_events(&events, &processes);
    let of_clock = |wait: Wait| Wait {
        from: wait.from - suspended,
        to: wait.to - suspended,
    };
    let (mut sums, mut only_ours, mut only_perf) = ([(0_u64, 0_u64); 2], 0, 0);
    for (thread, ours) in &ours {
        let nothing = (Vec::new(), Vec::new());
        let perfs = perfs.get(thread).unwrap_or(&nothing);
        for (which, (ours, perfs)) in [(&ours.0, &perfs.0), (&ours.1, &perfs.1)].into_iter().enumerate() {
            for wait in ours.iter().map(|wait| of_clock(*wait)) {
                match perfs.iter().find(|perf| wait.is_like(**perf)) {
                    Some(perf) => sums[which] = (sums[which].0 + wait.ns(), sums[which].1 + perf.ns()),
                    None => {
                        eprintln!("only recorded: {} {thread} {wait:?}", ["asleep", "runnable"][which]);
                        only_ours += 1;
                    }
                }
            }
            // Of less than 0.2 ms there is no record.
            for perf in perfs.iter().filter(|perf| perf.ns() > 2 * 200_000) {
                if !ours.iter().any(|wait| of_clock(*wait).is_like(*perf)) {
                    eprintln!("only perf: {} {thread} {perf:?}", ["asleep", "runnable"][which]);
                    only_perf += 1;
                }
            }
        }
    }
    let compared = ours.values().map(|waits| waits.0.len() + waits.1.len()).sum::<usize>();
    println!(
        "asleep and runnable, recorded and by perf, ns: {sums:?}; {only_ours} only recorded, {only_perf} only by perf"
    );
    let warnings = String::from_utf8_lossy(&printed.stderr);
    if warnings.contains("lost") || warnings.contains("LOST") {
        eprintln!("NOT JUDGED {test}::perf: it lost events: {}", warnings.trim());
        return;
    }
    assert!(sums.iter().all(|(recorded, _)| *recorded > 100_000_000), "{sums:?}");
    for (recorded, perf) in sums {
        assert!(
            recorded.abs_diff(perf) <= (perf / 50).max(200_000),
            "{recorded} and {perf}"
        );
    }
    // Where a switch was not reported perf puts two waits together, and a sleep of a wake-up right then begins or ends later.
    assert!(
        20 * (only_ours + only_perf) <= compared,
        "{only_ours} and {only_perf} of {compared} differ by more than 2 % and 0.2 ms"
    );
}
