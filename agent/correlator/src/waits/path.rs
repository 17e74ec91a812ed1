//! The critical path of an interval: backwards from its end along wake-ups, through threads and processes, to its begin.
//!
//! Used by the room of waits when an operation or a process ends. The method is that of Giraldeau and Dagenais, "Wait
//! analysis of distributed systems using kernel tracing" (IEEE TPDS 27(8), 2016): a thread that was woken by another
//! thread waited for what that one did meanwhile, so the path goes on there, and comes back where the sleep began.
//! The result is a partition of the interval: its segments adjoin, and their sum is the interval's length.
//! Does not: interpret a sleep (`reasons.rs`), or know spans. A stretch for which records were lost is `Unknown`, never
//! guessed.

use std::collections::BTreeMap;

use sandglass_model::{ProcessKey, Timestamp};

/// A thread's id in the initial pid namespace. Unique among the threads of an open trace, within which ids are hardly
/// reused: a new thread of the same id replaces the one that ended.
pub(crate) type ThreadId = u32;

/// A thread and when it did not run.
#[derive(Clone, Debug)]
pub(crate) struct Thread {
    /// Its process.
    pub(crate) process: ProcessKey,
    /// When it was created, as far as known.
    pub(crate) begin: Timestamp,
    /// The thread that created it.
    pub(crate) parent: Option<ThreadId>,
    /// In order of time, without overlap.
    pub(crate) waits: Vec<Wait>,
}

/// A time in which a thread did not run: it slept until it was woken, then it waited for a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    /// It left the processor.
    pub(crate) out: Timestamp,
    /// It became runnable; the same as `out` when the scheduler took the processor away.
    pub(crate) woken: Timestamp,
    /// It ran again.
    pub(crate) ran: Timestamp,
    /// The thread that woke it; `None` when an interrupt did, or nobody had to.
    pub(crate) waker: Option<ThreadId>,
    /// Index of the sleep's evidence in the room's table.
    pub(crate) evidence: usize,
    /// Part of the time from `woken` to `ran` in which its group was throttled.
    pub(crate) throttled_ns: u64,
}

/// What a thread on the path did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    /// It ran, or waited for less than a record is made of.
    Running,
    /// It was runnable and had no processor.
    Runnable,
    /// As `Runnable`, because its group had used up its quota.
    Throttled,
    /// It slept, and no thread that is followed was the cause. Holds the evidence's index.
    Asleep(usize),
    /// Nothing is known of this time.
    Unknown,
}

/// A part of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Begin.
    pub(crate) from: Timestamp,
    /// End, later than `from`.
    pub(crate) to: Timestamp,
    /// The thread on the path; 0 where none is known.
    pub(crate) thread: ThreadId,
    /// What it did.
    pub(crate) state: State,
}

/// A chain of processes that wait for one another is a few long: shell, plugin, delegate, command. Beyond it a sleep is
/// a segment by itself.
const DEPTH_MAX: usize = 32;

/// The path of the interval `from` to `to`, at whose end `last` ran. In order of time; no gaps.
pub(crate) fn critical_path(
    threads: &BTreeMap<ThreadId, Thread>,
    last: ThreadId,
    from: Timestamp,
    to: Timestamp,
) -> Vec<Segment> {
    let mut walk = Walk {
        threads,
        on_path: Vec::new(),
        segments: Vec::new(),
    };
    walk.follow(last, from, to);
    walk.segments.reverse();
    walk.segments
}

/// One computation. Segments are found from the end to the begin.
struct Walk<'a> {
    threads: &'a BTreeMap<ThreadId, Thread>,
    /// Threads whose sleeps enclose what is being followed: each of them sleeps, so none can be the cause.
    on_path: Vec<ThreadId>,
    segments: Vec<Segment>,
}

impl Walk<'_> {
    /// Covers the time from `low` to `high`, at whose end `thread` ran.
    fn follow(&mut self, thread: ThreadId, low: Timestamp, high: Timestamp) {
        let mut current = thread;
        let mut at = high;
        while at > low {
            let Some(known) = self.threads.get(&current) else {
                self.push(low, at, current, State::Unknown);
                return;
            };
            if at <= known.begin {
                // Before it existed, the path is with the thread that created it.
                match known.parent {
                    Some(parent) if self.existed_before(parent, known.begin) && !self.on_path.contains(&parent) => {
                        current = parent;
                        continue;
                    }
                    _ => {
                        self.push(low, at, current, State::Unknown);
                        return;
                    }
                }
            }
            let floor = low.max(known.begin);
            let before = known.waits.partition_point(|wait| wait.out < at);
            let Some(wait) = before.checked_sub(1).map(|index| known.waits[index]) else {
                self.push(floor, at, current, State::Running);
                at = floor;
                continue;
            };
            at = self.stop_at(wait.ran.max(floor), at, current, State::Running);
            at = self.runnable(&wait, floor, at, current);
            if at > floor {
                let begin = wait.out.max(floor);
                self.asleep(&wait, begin, at, current);
                at = begin;
            }
        }
    }

    fn existed_before(&self, thread: ThreadId, at: Timestamp) -> bool {
        self.threads.get(&thread).is_some_and(|thread| thread.begin < at)
    }

    /// The time for which the thread waited for a processor; of it, the throttled part first.
    fn runnable(&mut self, wait: &Wait, floor: Timestamp, at: Timestamp, thread: ThreadId) -> Timestamp {
        let woken = wait.woken.max(floor).min(at);
        let throttled = woken.plus(wait.throttled_ns).min(at);
        let at = self.stop_at(throttled, at, thread, State::Runnable);
        self.stop_at(woken, at, thread, State::Throttled)
    }

    /// A sleep: what the thread that ended it did meanwhile, or the sleep itself.
    fn asleep(&mut self, wait: &Wait, low: Timestamp, high: Timestamp, thread: ThreadId) {
        let waker = wait.waker.filter(|waker| {
            *waker != thread
                && self.threads.contains_key(waker)
                && !self.on_path.contains(waker)
                && self.on_path.len() < DEPTH_MAX
        });
        let Some(waker) = waker else {
            self.push(low, high, thread, State::Asleep(wait.evidence));
            return;
        };
        self.on_path.push(thread);
        self.follow(waker, low, high);
        self.on_path.pop();
    }

    /// Adds what lies from `from` to `at` if anything does, and returns where it begins.
    fn stop_at(&mut self, from: Timestamp, at: Timestamp, thread: ThreadId, state: State) -> Timestamp {
        self.push(from, at, thread, state);
        from.min(at)
    }

    fn push(&mut self, from: Timestamp, to: Timestamp, thread: ThreadId, state: State) {
        if from < to {
            self.segments.push(Segment {
                from,
                to,
                thread,
                state,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(pid: u32, begin: u64, parent: Option<u32>, waits: &[Wait]) -> Thread {
        Thread {
            process: ProcessKey { pid, start_ticks: 1 },
            begin: Timestamp(begin),
            parent,
            waits: waits.to_vec(),
        }
    }

    fn wait(out: u64, woken: u64, ran: u64, waker: Option<u32>) -> Wait {
        Wait {
            out: Timestamp(out),
            woken: Timestamp(woken),
            ran: Timestamp(ran),
            waker,
            evidence: 7,
            throttled_ns: 0,
        }
    }

    fn path(threads: &BTreeMap<u32, Thread>, last: u32, from: u64, to: u64) -> Vec<(u64, u64, u32, State)> {
        critical_path(threads, last, Timestamp(from), Timestamp(to))
            .into_iter()
            .map(|segment| (segment.from.0, segment.to.0, segment.thread, segment.state))
            .collect()
    }

    /// A shell that runs `sleep` and waits for it: the time is that of the child's timer.
    #[test]
    fn a_child_is_followed_while_its_parent_waits_for_it() {
        let threads = BTreeMap::from([
            (1, thread(1, 0, None, &[wait(12, 90, 95, Some(2))])),
            (2, thread(2, 10, Some(1), &[wait(20, 80, 85, None)])),
        ]);
        assert_eq!(
            path(&threads, 1, 0, 100),
            [
                (0, 12, 1, State::Running),
                (12, 20, 2, State::Running),
                (20, 80, 2, State::Asleep(7)),
                (80, 85, 2, State::Runnable),
                (85, 90, 2, State::Running),
                (90, 95, 1, State::Runnable),
                (95, 100, 1, State::Running),
            ]
        );
    }

    /// The child was created while another thread already slept for it: before that, the path is with its creator.
    #[test]
    fn before_its_begin_a_thread_is_followed_at_its_creator() {
        let threads = BTreeMap::from([
            (1, thread(1, 0, None, &[wait(10, 90, 90, Some(3))])),
            (2, thread(1, 0, None, &[wait(5, 30, 30, None)])),
            (3, thread(3, 40, Some(2), &[])),
        ]);
        assert_eq!(
            path(&threads, 1, 0, 100),
            [
                (0, 10, 1, State::Running),
                (10, 30, 2, State::Asleep(7)),
                (30, 40, 2, State::Running),
                (40, 90, 3, State::Running),
                (90, 100, 1, State::Running),
            ]
        );
    }

    #[test]
    fn throttled_time_is_apart_from_the_run_queue() {
        let mut throttled = wait(10, 10, 50, None);
        throttled.throttled_ns = 30;
        let threads = BTreeMap::from([(1, thread(1, 0, None, &[throttled]))]);
        assert_eq!(
            path(&threads, 1, 0, 60),
            [
                (0, 10, 1, State::Running),
                (10, 40, 1, State::Throttled),
                (40, 50, 1, State::Runnable),
                (50, 60, 1, State::Running),
            ]
        );
    }

    /// Impossible records (two threads that woke each other out of one sleep) end, with a sleep by itself.
    #[test]
    fn threads_that_wake_each_other_are_no_endless_path() {
        let threads = BTreeMap::from([
            (1, thread(1, 0, None, &[wait(0, 100, 100, Some(2))])),
            (2, thread(2, 0, None, &[wait(20, 80, 80, Some(1))])),
        ]);
        assert_eq!(
            path(&threads, 1, 0, 100),
            [
                (0, 20, 2, State::Running),
                (20, 80, 2, State::Asleep(7)),
                (80, 100, 2, State::Running)
            ]
        );
        assert_eq!(path(&threads, 9, 0, 5), [(0, 5, 9, State::Unknown)]);
        assert_eq!(path(&threads, 1, 5, 5), []);
    }

    /// Any records give a partition: segments adjoin, and cover the interval.
    #[test]
    fn every_path_is_a_partition() {
        let mut seed = 1_u64;
        let mut random = move |below: u64| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for _ in 0..20_000 {
            let count = 1 + random(6) as u32;
            let mut threads = BTreeMap::new();
            for id in 1..=count {
                let begin = random(400);
                let mut at = begin;
                let mut waits = Vec::new();
                for _ in 0..random(8) {
                    let out = at + random(60);
                    let woken = out + random(100);
                    let ran = woken + random(40);
                    let waker = (random(3) > 0).then(|| 1 + random(u64::from(count) + 1) as u32);
                    let mut new = wait(out, woken, ran, waker);
                    new.throttled_ns = random(50);
                    waits.push(new);
                    at = ran + 1;
                }
                let parent = (random(2) > 0).then(|| 1 + random(u64::from(count)) as u32);
                threads.insert(id, thread(id, begin, parent, &waits));
            }
            let from = random(500);
            let to = from + random(700);
            let found = path(&threads, 1 + random(u64::from(count)) as u32, from, to);
            let mut at = from;
            for (begin, end, ..) in &found {
                assert!(*begin == at && end > begin, "{found:?} of {threads:?}");
                at = *end;
            }
            assert_eq!(at, to, "{found:?} of {threads:?}");
        }
    }
}
