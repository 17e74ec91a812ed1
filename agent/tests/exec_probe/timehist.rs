//! Sleeps and waits for a processor of a plugin's threads, held against `perf sched timehist` on the same run.
//!
//! perf follows the same tracepoints by a file of its own, and computes each wait by itself. Does not: explain the few waits
//! that perf puts together wrongly, since it is not given every switch either (`probes/bpf/waits.h`, on_out).

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use sandglass_model::{Body, Event, ProcessKey};

use crate::waits::watch;
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

fn of_perf(text: &str) -> Waits {
    let mut waits = Waits::new();
    let mut left: BTreeMap<u32, char> = BTreeMap::new();
    for slice in text.lines().filter_map(slice) {
        let before = left.insert(slice.thread, slice.state);
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
    waits
}

fn of_events(events: &[Event]) -> Waits {
    let mut waits = Waits::new();
    for event in events {
        match &event.body {
            Body::ThreadWoken(wake) => waits.entry(wake.times.thread).or_default().0.push(Wait {
                from: wake.slept_from.0,
                to: event.at.0,
            }),
            Body::ThreadRan(run) => waits.entry(run.times.thread).or_default().1.push(Wait {
                from: run.runnable_from.0,
                to: event.at.0,
            }),
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
                i=0\nwhile [ $i -lt 100000 ]; do i=$((i+1)); done";
    let script = watch.script("mixed", body);
    let recorded = watch.directory.path().join("perf.data");
    // It records while `cat` waits for its input to end.
    let mut perf = Command::new("perf")
        .args(["sched", "record", "-B", "-k", "CLOCK_MONOTONIC", "-o"])
        .arg(&recorded)
        .args(["--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    watch.wait("perf to record", |_| {
        Path::new(&recorded)
            .metadata()
            .is_ok_and(|file| file.len() > 0)
            .then_some(())
    });
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let processors = std::thread::available_parallelism().unwrap().get();
        for _ in 0..processors {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        wait_for(plugin(&script, "mixed").spawn().unwrap());
        stop.store(true, Ordering::Relaxed);
    });
    drop(perf.stdin.take());
    assert!(perf.wait().unwrap().success());
    let printed = Command::new("perf")
        .args(["sched", "timehist", "--state", "-i"])
        .arg(&recorded)
        .output()
        .unwrap();
    let perfs = of_perf(&String::from_utf8_lossy(&printed.stdout));
    let suspended = suspended_ns();
    let events = watch.finish();
    let mut ours = of_events(&events);
    // Of the plugin and of what it executed: each has one thread. Other tests have plugins too.
    let mut processes: Vec<ProcessKey> = Vec::new();
    for (_, exec) in execs(&events) {
        let is_plugin = exec.env("CNI_CONTAINERID") == Some("mixed");
        if is_plugin || processes.contains(&exec.parent) {
            processes.push(exec.process);
        }
    }
    ours.retain(|thread, _| processes.iter().any(|process| process.pid == *thread));
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
