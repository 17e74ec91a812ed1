//! The critical path of an interval: backwards from its end along wake-ups, through threads and processes, to its begin.
//!
//! Used by the room of waits when an operation or a process ends. The method is that of Giraldeau and Dagenais, "Wait
//! analysis of distributed systems using kernel tracing" (IEEE TPDS 27(8), 2016): a thread that was woken by another
//! thread waited for what that one did meanwhile, so the path goes on there, and comes back where the sleep began.
//! The result is a partition of the interval: its segments adjoin, and their sum is the interval's length.
//! The scheduler counts how long each thread was on a processor and waited for one, and each record has its counts: they divide the time between
//! two records of a thread, whether waits were recorded then or not.
//! Does not: interpret a sleep (`reasons.rs`), or know spans. A stretch for which records were lost is `Unknown`, never
//! guessed.

use std::collections::BTreeMap;

use sandglass_model::daemons::Goroutine;
use sandglass_model::waits::{SchedulerCount, ThreadTimes};
use sandglass_model::{ProcessKey, Timestamp};

/// A thread's id in the initial pid namespace. Unique among the threads of an open trace, within which ids are hardly
/// reused: a new thread of the same id replaces the one that ended.
pub(crate) type ThreadId = u32;

/// A thread and when it did not run.
#[derive(Clone, Debug)]
pub(crate) struct Thread {
    /// Its process.
    pub(crate) process: ProcessKey,
    /// When it was created, as far as known; of a process that a runtime executed, its exec.
    pub(crate) begin: Timestamp,
    /// Before its first wait: at its creation, or at the exec of a process that a runtime executed.
    pub(crate) first_count: CountedAt,
    /// The thread that created it.
    pub(crate) parent: Option<ThreadId>,
    /// In order of time, without overlap.
    pub(crate) waits: Vec<Wait>,
    /// Its end; known of a process's first and last thread.
    pub(crate) ended: Option<Timestamp>,
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
    /// What the scheduler had counted of the thread when it left the processor; `None` where no record has it.
    pub(crate) counted: Option<SchedulerCount>,
    /// The goroutine in whose system call it slept, of a daemon in Go.
    pub(crate) goroutine: Option<Goroutine>,
}

/// What the scheduler had counted of a thread at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CountedAt {
    /// When.
    pub(crate) at: Timestamp,
    /// The counts; `None` where no record has them.
    pub(crate) count: Option<SchedulerCount>,
    /// The thread ran: its time on a processor is counted up to the last tick (kernel/sched/fair.c, `update_curr`), its waits are exact.
    pub(crate) is_running: bool,
}

impl CountedAt {
    /// A thread is created.
    pub(crate) fn creation(at: Timestamp) -> CountedAt {
        CountedAt {
            at,
            count: Some(SchedulerCount::default()),
            is_running: false,
        }
    }

    /// A process executes an image; without counts it is as if it were created then.
    pub(crate) fn exec(at: Timestamp, count: Option<SchedulerCount>) -> CountedAt {
        CountedAt {
            is_running: count.is_some(),
            count: count.or(Some(SchedulerCount::default())),
            at,
        }
    }
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
    /// A part of the time between two waits, as long as the scheduler counted, at a place that is not known: also where waits were not
    /// recorded.
    Counted(CountedAs),
    /// Nothing is known of this time.
    Unknown,
}

/// What the scheduler counts of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CountedAs {
    /// It was on a processor, or its waits were too short for a record.
    Processor,
    /// It waited for a processor.
    RunQueue,
    /// Neither, and no record says why: a sleep whose begin and end were not seen, or many that were each too short for a record.
    Neither,
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

/// Time in which a thread neither ran nor waited for a processor counts as such only if it is as long as this, and a tenth of the time that
/// the counts divide. Shorter, it is waits without a record, where waits are recorded.
const NEITHER_MIN_NS: u64 = 1_000_000;
const NEITHER_PART: u64 = 10;
/// Shorter waits have no record (probes/bpf, `WAIT_MIN_NS`), and shorter times beside the path do not count.
const RECORDED_NS: u64 = 200_000;

/// A chain of processes that wait for one another is a few long: shell, plugin, delegate, command. Beyond it a sleep is
/// a segment by itself.
const DEPTH_MAX: usize = 32;

/// The path of the interval `from` to `to` of a process. When its first thread has ended, it lasts as long as its last one.
pub(crate) fn path_of_process(
    threads: &BTreeMap<ThreadId, Thread>,
    process: ProcessKey,
    from: Timestamp,
    to: Timestamp,
) -> Vec<Segment> {
    let first = process.pid;
    let end_of = |thread: &Thread| thread.ended.filter(|_| thread.process == process);
    let is_before = |ended: &Timestamp| *ended > from && to.since(*ended) >= RECORDED_NS;
    let first_ended = threads.get(&first).and_then(end_of).filter(is_before);
    let ends = first_ended.and_then(|first_ended| {
        let ends = threads.iter().filter_map(|(id, thread)| Some((end_of(thread)?, *id)));
        let (last_ended, last) = ends.max()?;
        (last_ended > first_ended).then_some((first_ended, last))
    });
    let Some((first_ended, last)) = ends else {
        return critical_path(threads, first, from, to);
    };
    let mut path = critical_path(threads, first, from, first_ended);
    path.extend(critical_path(threads, last, first_ended, to));
    path
}

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
            let next = known.waits.get(before);
            let Some(wait) = before.checked_sub(1).map(|index| known.waits[index]) else {
                let first = CountedAt {
                    at: known.first_count.at.min(known.begin),
                    ..known.first_count
                };
                at = self.ran(first, next, floor, at, current);
                continue;
            };
            at = self.ran(wait.counted_after(), next, floor, at, current);
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

    /// The time since a wait, or since the thread's begin, with the scheduler's counts then, until the next wait. The counts say how much of
    /// it the thread was on a processor, and not when: what it was not is put first, where a sleep that nobody saw would mostly lie. If a part
    /// of that time is not on the path, only what is more than that part is on the path for sure; the rest counts as time on a
    /// processor where waits would have been recorded.
    fn ran(
        &mut self,
        before: CountedAt,
        next: Option<&Wait>,
        floor: Timestamp,
        at: Timestamp,
        thread: ThreadId,
    ) -> Timestamp {
        let since = before.at;
        let begin = since.max(floor);
        let divided = next.and_then(|next| Some((next, divide(next, before)?)));
        let Some((next, divided)) = divided else {
            return self.stop_at(begin, at, thread, State::Running);
        };
        let off_path = begin.since(since) + next.out.since(at);
        let (off_path, end) = match off_path < RECORDED_NS {
            true => (0, next.out),
            false => (off_path, at),
        };
        let [on_processor, queued, neither] = divided.map(|ns| ns.saturating_sub(off_path));
        let queued = if queued < RECORDED_NS { 0 } else { queued };
        let is_little = neither < NEITHER_MIN_NS.max(next.out.since(since) / NEITHER_PART);
        let neither = if is_little { 0 } else { neither };
        let before_end = |ns: u64| Timestamp(end.0.saturating_sub(ns)).max(begin);
        let ran_from = before_end(on_processor);
        let queued_from = before_end(on_processor.saturating_add(queued));
        let at = self.stop_at(ran_from, at, thread, State::Counted(CountedAs::Processor));
        let at = self.stop_at(queued_from, at, thread, State::Counted(CountedAs::RunQueue));
        let at = self.stop_at(begin.plus(neither), at, thread, State::Running);
        self.stop_at(begin, at, thread, State::Counted(CountedAs::Neither))
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

/// Nanoseconds from `before` until a wait for which the thread was on a processor by the scheduler's counts, for which it waited for one, and
/// of which no record says why it did neither. `None` where there is no count.
fn divide(next: &Wait, before: CountedAt) -> Option<[u64; 3]> {
    let (first, last) = (before.count?, next.counted?);
    let between = next.out.since(before.at);
    let queued = last.run_delay_ns.saturating_sub(first.run_delay_ns).min(between);
    let on_processor = last.processor_ns.saturating_sub(first.processor_ns).min(between);
    let (on_processor, queued) = match before.is_running {
        true => (on_processor.min(between - queued), queued),
        false => (on_processor, queued.min(between - on_processor)),
    };
    Some([on_processor, queued, between - on_processor - queued])
}

impl Wait {
    /// A time from `from` to `to` in which a thread was runnable and did not sleep before.
    pub(crate) fn for_processor(from: Timestamp, to: Timestamp, throttled_ns: u64, times: &ThreadTimes) -> Wait {
        Wait {
            out: from,
            woken: from,
            ran: to,
            waker: None,
            evidence: 0,
            throttled_ns,
            counted: Some(times.counted()),
            goroutine: None,
        }
    }

    /// The counts when the thread ran again. The scheduler adds a wait for a processor to its count when the thread gets one
    /// (kernel/sched/stats.h, `sched_info_arrive`), behind the tracepoint of the switch.
    fn counted_after(&self) -> CountedAt {
        let count = self.counted.map(|counted| SchedulerCount {
            run_delay_ns: counted.run_delay_ns.saturating_add(self.ran.since(self.woken)),
            ..counted
        });
        CountedAt {
            at: self.ran,
            count,
            is_running: false,
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
            first_count: CountedAt::creation(Timestamp(begin)),
            parent,
            waits: waits.to_vec(),
            ended: None,
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
            counted: None,
            goroutine: None,
        }
    }

    fn path(threads: &BTreeMap<u32, Thread>, last: u32, from: u64, to: u64) -> Vec<(u64, u64, u32, State)> {
        critical_path(threads, last, Timestamp(from), Timestamp(to))
            .into_iter()
            .map(|segment| (segment.from.0, segment.to.0, segment.thread, segment.state))
            .collect()
    }

    /// The first thread of a Go program ends the process; another one waits for a processor until it can end too.
    #[test]
    fn a_process_lasts_until_its_last_thread_has_ended() {
        const MS: u64 = 1_000_000;
        let ms = |at: u64| at * MS;
        let end = |at: u64| wait(ms(at), ms(at), ms(at), None);
        let ended = |thread: Thread, at: u64| Thread {
            ended: Some(Timestamp(ms(at))),
            ..thread
        };
        let first = ended(thread(1, 0, None, &[end(40)]), 40);
        let killed = Wait {
            waker: Some(1),
            ..wait(ms(10), ms(39), ms(60), None)
        };
        let other = ended(thread(1, ms(2), Some(1), &[killed, end(61)]), 61);
        let threads = BTreeMap::from([(1, first), (2, other)]);
        let process = ProcessKey { pid: 1, start_ticks: 1 };
        let path = path_of_process(&threads, process, Timestamp(0), Timestamp(ms(61)));
        let path: Vec<_> = path
            .iter()
            .map(|part| (part.from.0 / MS, part.to.0 / MS, part.thread, part.state))
            .collect();
        assert_eq!(
            path,
            [
                (0, 40, 1, State::Running),
                (40, 60, 2, State::Runnable),
                (60, 61, 2, State::Running)
            ]
        );
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

    /// Between two waits the thread was on a processor for 2 of 12 ms by the scheduler's counts, and waited for one for 3 more than was seen;
    /// since its begin it was on one for 1 of 5.
    #[test]
    fn counts_divide_the_time_between_two_records() {
        const ON_PROCESSOR: State = State::Counted(CountedAs::Processor);
        const NEITHER: State = State::Counted(CountedAs::Neither);
        let ms = |ms: u64| ms * 1_000_000;
        let counted = |processor_ns, run_delay_ns| {
            Some(SchedulerCount {
                processor_ns,
                run_delay_ns,
            })
        };
        let waits = [
            Wait {
                counted: counted(ms(1), 0),
                ..wait(ms(5), ms(7), ms(8), None)
            },
            Wait {
                counted: counted(ms(3), ms(4)),
                ..wait(ms(20), ms(30), ms(31), None)
            },
        ];
        let mut threads = BTreeMap::from([(1, thread(1, 0, None, &waits))]);
        let whole = [
            (0, ms(4), 1, NEITHER),
            (ms(4), ms(5), 1, ON_PROCESSOR),
            (ms(5), ms(7), 1, State::Asleep(7)),
            (ms(7), ms(8), 1, State::Runnable),
            (ms(8), ms(15), 1, NEITHER),
            (ms(15), ms(18), 1, State::Counted(CountedAs::RunQueue)),
            (ms(18), ms(20), 1, ON_PROCESSOR),
            (ms(20), ms(30), 1, State::Asleep(7)),
            (ms(30), ms(31), 1, State::Runnable),
            // No count ends this time.
            (ms(31), ms(60), 1, State::Running),
        ];
        assert_eq!(path(&threads, 1, 0, ms(60)), whole);
        // Of a part of that time only what is more than the rest is sure.
        for within in [(10, 12), (15, 18), (19, 20)] {
            let (from, to) = (ms(within.0), ms(within.1));
            assert_eq!(path(&threads, 1, from, to), [(from, to, 1, State::Running)]);
        }
        let most = [
            (ms(10), ms(15), 1, NEITHER),
            (ms(15), ms(19), 1, State::Running),
            (ms(19), ms(20), 1, State::Counted(CountedAs::RunQueue)),
        ];
        assert_eq!(path(&threads, 1, ms(10), ms(20)), most);
        // Less than a millisecond, less than a tenth, or no count: too little to say so.
        for (counted, first) in [
            (counted(ms(1) + 11_000_001, 0), State::Running),
            (counted(ms(1) + 10_800_001, 0), State::Running),
            (counted(ms(1) + 10_800_000, 0), NEITHER),
            (None, State::Running),
        ] {
            threads.get_mut(&1).unwrap().waits[1].counted = counted;
            let found = path(&threads, 1, ms(8), ms(20));
            assert_eq!(found[0].3, first, "{counted:?}: {found:?}");
        }
    }

    /// A process that waited for a processor for 30 ms between its fork and its exec, and for 10 of 50 ms since: the counts at its exec say so,
    /// and are up to a tick behind for the time on a processor.
    #[test]
    fn counts_at_an_exec_leave_out_what_was_before_it() {
        let ms = |ms: u64| ms * 1_000_000;
        let counted = |processor, delay| SchedulerCount {
            processor_ns: ms(processor),
            run_delay_ns: ms(delay),
        };
        let first = Wait {
            counted: Some(counted(42, 40)),
            ..wait(ms(82), ms(90), ms(90), None)
        };
        let mut thread = thread(1, ms(32), None, &[first]);
        // Created at 0 and executed at 32 ms, it had run for 2 ms.
        for processor in [2, 0] {
            thread.first_count = CountedAt::exec(Timestamp(ms(32)), Some(counted(processor, 30)));
            let found = path(&BTreeMap::from([(1, thread.clone())]), 1, ms(32), ms(82));
            let expected = [
                (ms(32), ms(42), 1, State::Counted(CountedAs::RunQueue)),
                (ms(42), ms(82), 1, State::Counted(CountedAs::Processor)),
            ];
            assert_eq!(found, expected, "{processor}");
        }
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
        // Times long enough for the counts to divide them.
        let unit = 50_000;
        for _ in 0..20_000 {
            let count = 1 + random(6) as u32;
            let mut threads = BTreeMap::new();
            for id in 1..=count {
                let begin = random(400) * unit;
                let mut at = begin;
                let mut waits = Vec::new();
                for _ in 0..random(8) {
                    let out = at + random(60) * unit;
                    let woken = out + random(100) * unit;
                    let ran = woken + random(40) * unit;
                    let waker = (random(3) > 0).then(|| 1 + random(u64::from(count) + 1) as u32);
                    let mut new = wait(out, woken, ran, waker);
                    new.throttled_ns = random(50) * unit;
                    new.counted = (random(2) > 0).then(|| SchedulerCount {
                        processor_ns: random(400) * unit,
                        run_delay_ns: random(200) * unit,
                    });
                    waits.push(new);
                    at = ran + 1;
                }
                let parent = (random(2) > 0).then(|| 1 + random(u64::from(count)) as u32);
                let mut new = thread(id, begin, parent, &waits);
                let first = (random(2) > 0).then(|| SchedulerCount {
                    processor_ns: random(200) * unit,
                    run_delay_ns: random(100) * unit,
                });
                new.first_count = CountedAt::exec(Timestamp(random(400) * unit), first);
                threads.insert(id, new);
            }
            let from = random(500) * unit;
            let to = from + random(700) * unit;
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
