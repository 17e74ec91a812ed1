//! Paths of threads and waits that are made up; any of them is a partition.

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
