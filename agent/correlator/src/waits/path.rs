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
        let counted = |count| CountedAt {
            at,
            count: Some(count),
            is_running: true,
        };
        count.map_or_else(|| CountedAt::creation(at), counted)
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
mod tests;
