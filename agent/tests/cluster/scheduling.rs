//! When threads ran and when they waited for a processor, by the kernel's own scheduling events: an oracle that shares nothing
//! with the agent's programs.
//!
//! Used by `own_time.rs` and `crowd.rs`. Times are nanoseconds of the boot clock, of which the trace shows microseconds.
//! Does not: know why a thread slept.

use std::collections::BTreeMap;

use crate::tracefs::Line;

/// From, to.
pub type Interval = (u64, u64);

/// What the events say.
#[derive(Default)]
pub struct Scheduling {
    threads: BTreeMap<u32, Thread>,
}

#[derive(Default)]
struct Thread {
    /// Who made it.
    parent: Option<u32>,
    ran: Vec<Interval>,
    waited: Vec<Interval>,
    running_from: Option<u64>,
    runnable_from: Option<u64>,
    /// When its end was reported. The kernel goes on with it for a little (`do_exit`).
    ended: Option<u64>,
    /// A wake-up of it was not reported, or a switch to it: some kernels trace nothing in the time of process 1
    /// (`Tracefs::connects_of_init`). How long it waited then is not known.
    has_unreported: bool,
}

/// The times of some threads together, in order and apart from each other.
pub struct Together {
    /// At least one of them ran.
    pub ran: Vec<Interval>,
    /// At least one of them was runnable and did not run.
    pub waited: Vec<Interval>,
    /// The same of those whose end had been reported.
    pub waited_ended: Vec<Interval>,
}

impl Scheduling {
    /// Reads the events of threads of these names. Of others the kernel reported only switches with one of these.
    pub fn of(lines: &[Line], names: &[&str]) -> Scheduling {
        let mut all = Scheduling::default();
        for line in lines {
            let at = line.at.0;
            match line.event.as_str() {
                "sched_wakeup" | "sched_wakeup_new" => {
                    if let Some(thread) = all.thread(&line.rest, "", names) {
                        // One that has not left its processor yet goes on.
                        if thread.running_from.is_none() {
                            thread.runnable_from.get_or_insert(at);
                        }
                    }
                }
                "sched_switch" => {
                    let (prev, next) = line.rest.split_once(" ==> ").unwrap();
                    if let Some(thread) = all.thread(prev, "prev_", names) {
                        let running_from = thread.running_from.take();
                        thread.has_unreported |= running_from.is_none();
                        if let Some(from) = running_from {
                            thread.ran.push((from, at));
                        } else if let Some(from) = thread.runnable_from {
                            // It ran at some time since.
                            thread.waited.push((from, at));
                            thread.ran.push((from, at));
                        }
                        // Taken away: it is runnable. `R+` is preempted (kernel/sched/core.c, trace_sched_switch).
                        let is_runnable = prev
                            .rsplit_once("prev_state=")
                            .is_some_and(|(_, state)| state.starts_with('R'));
                        thread.runnable_from = is_runnable.then_some(at);
                    }
                    if let Some(thread) = all.thread(next, "next_", names) {
                        let runnable_from = thread.runnable_from.take();
                        thread.has_unreported |= runnable_from.is_none();
                        thread.waited.extend(runnable_from.map(|from| (from, at)));
                        thread.running_from = Some(at);
                    }
                }
                "sched_process_exit" => {
                    if let Some(thread) = all.thread(&line.rest, "", names) {
                        thread.ended = Some(at);
                    }
                }
                "sched_process_fork" => {
                    let parent = number(&line.rest, " pid=");
                    let child = number(&line.rest, "child_pid=");
                    if let (Some(parent), Some(child)) = (parent, child) {
                        all.threads.entry(child).or_default().parent = Some(parent);
                    }
                }
                _ => {}
            }
        }
        all
    }

    /// The thread of fields such as `prev_comm=bridge prev_pid=12`, if it has one of the names.
    fn thread(&mut self, fields: &str, prefix: &str, names: &[&str]) -> Option<&mut Thread> {
        let rest = fields.split_once(&format!("{prefix}comm="))?.1;
        let (name, rest) = rest.split_once(&format!(" {prefix}pid="))?;
        let id = rest.split(' ').next()?.parse().ok()?;
        names.contains(&name).then(|| self.threads.entry(id).or_default())
    }

    /// All threads within a time.
    pub fn all(&self, within: Interval) -> Together {
        together(self.threads.values(), within)
    }

    /// A thread, those that it made, those that these made, and so on, within a time.
    pub fn below(&self, root: u32, within: Interval) -> Together {
        let is_below = |id: u32| {
            let mut at = Some(id);
            // A number that is used twice could be its own parent.
            for _ in 0..DEPTH_MAX {
                match at {
                    Some(id) if id == root => return true,
                    Some(id) => at = self.threads.get(&id).and_then(|thread| thread.parent),
                    None => return false,
                }
            }
            false
        };
        let below = self.threads.iter().filter(|(id, _)| is_below(**id));
        together(below.map(|(_, thread)| thread), within)
    }

    /// How long one thread waited for a processor until then, nanoseconds.
    pub fn waited_ns(&self, id: u32, until: u64) -> u64 {
        self.threads
            .get(&id)
            .map_or(0, |thread| length(&clipped(&thread.waited, (0, until))))
    }

    /// Every wake-up of a thread, and every switch, was reported.
    pub fn is_whole(&self, id: u32) -> bool {
        self.threads.get(&id).is_some_and(|thread| !thread.has_unreported)
    }
}

/// Deeper than any command of a plugin.
const DEPTH_MAX: usize = 16;

fn number(fields: &str, name: &str) -> Option<u32> {
    let rest = fields.split_once(name)?.1;
    rest.split(' ').next()?.parse().ok()
}

fn together<'a>(threads: impl Iterator<Item = &'a Thread>, within: Interval) -> Together {
    let (mut ran, mut waited, mut waited_ended) = (Vec::new(), Vec::new(), Vec::new());
    for thread in threads {
        let waits = clipped(&thread.waited, within);
        ran.extend(clipped(&thread.ran, within));
        waited_ended.extend(clipped(&waits, (thread.ended.unwrap_or(u64::MAX), u64::MAX)));
        waited.extend(waits);
    }
    Together {
        ran: united(ran),
        waited: united(waited),
        waited_ended: united(waited_ended),
    }
}

/// The parts within a time.
pub fn clipped(intervals: &[Interval], within: Interval) -> Vec<Interval> {
    let clip = |(from, to): &Interval| (*from.max(&within.0), *to.min(&within.1));
    intervals.iter().map(clip).filter(|(from, to)| from < to).collect()
}

/// In order, and those that meet joined.
pub fn united(mut intervals: Vec<Interval>) -> Vec<Interval> {
    intervals.sort_unstable();
    let mut united: Vec<Interval> = Vec::new();
    for (from, to) in intervals {
        match united.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => united.push((from, to)),
        }
    }
    united
}

/// What lies between intervals that are in order, within a time.
pub fn between(intervals: &[Interval], within: Interval) -> Vec<Interval> {
    let ends = intervals.iter().copied().chain([(within.1, within.1)]);
    let mut from = within.0;
    let mut between = Vec::new();
    for (next, to) in ends {
        between.push((from, next));
        from = to;
    }
    clipped(&between, within)
}

/// Nanoseconds of intervals that are apart from each other.
pub fn length(intervals: &[Interval]) -> u64 {
    intervals.iter().map(|(from, to)| to - from).sum()
}

#[test]
fn waits_are_those_of_the_events() {
    let line = |at: u64, event: &str, rest: &str| Line {
        tid: 0,
        at: sandglass_model::Timestamp(at),
        event: event.to_owned(),
        rest: rest.to_owned(),
    };
    let lines = [
        line(
            10,
            "sched_process_fork",
            "comm=bridge pid=1 child_comm=bridge child_pid=2",
        ),
        line(10, "sched_wakeup_new", "comm=bridge pid=2 prio=120 target_cpu=001"),
        line(
            30,
            "sched_switch",
            "prev_comm=a b prev_pid=7 prev_prio=120 prev_state=R ==> next_comm=bridge next_pid=2 next_prio=120",
        ),
        line(
            40,
            "sched_switch",
            "prev_comm=bridge prev_pid=2 prev_prio=120 prev_state=R+ ==> next_comm=a b next_pid=7 next_prio=120",
        ),
        line(
            45,
            "sched_switch",
            "prev_comm=a b prev_pid=7 prev_prio=120 prev_state=S ==> next_comm=bridge next_pid=2 next_prio=120",
        ),
        line(46, "sched_wakeup", "comm=bridge pid=2 prio=120 target_cpu=001"),
        line(
            50,
            "sched_switch",
            "prev_comm=bridge prev_pid=2 prev_prio=120 prev_state=R ==> next_comm=swapper/1 next_pid=0 next_prio=120",
        ),
        // It slept, and nobody reports who woke it.
        line(52, "sched_wakeup_new", "comm=bridge pid=3 prio=120 target_cpu=001"),
        line(
            53,
            "sched_switch",
            "prev_comm=a b prev_pid=7 prev_prio=120 prev_state=S ==> next_comm=bridge next_pid=3 next_prio=120",
        ),
        line(
            54,
            "sched_switch",
            "prev_comm=bridge prev_pid=3 prev_prio=120 prev_state=S ==> next_comm=a b next_pid=7 next_prio=120",
        ),
        line(
            58,
            "sched_switch",
            "prev_comm=a b prev_pid=7 prev_prio=120 prev_state=S ==> next_comm=bridge next_pid=3 next_prio=120",
        ),
    ];
    let seen = Scheduling::of(&lines, &["bridge"]);
    let below = seen.below(1, (15, 100));
    assert_eq!(
        (below.ran.as_slice(), below.waited.as_slice()),
        (&[(30, 40), (45, 50)][..], &[(15, 30), (40, 45)][..])
    );
    assert_eq!((seen.waited_ns(2, 42), seen.waited_ns(7, 100)), (22, 0));
    assert_eq!(
        (seen.waited_ns(3, 100), seen.is_whole(2), seen.is_whole(3)),
        (1, true, false)
    );
    assert_eq!(between(&below.ran, (0, 60)), [(0, 30), (40, 45), (50, 60)]);
    assert_eq!(united(vec![(5, 7), (0, 2), (2, 3), (6, 9)]), [(0, 3), (5, 9)]);
    assert!(seen.below(9, (0, 100)).ran.is_empty());
}
