//! Segments on a real file system: order, bounds, recovery, damage at every byte, clock steps, faults of the directory.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::{ProptestConfig, Strategy, any, proptest};
use tempfile::TempDir;

use super::format::{RECORD_HEADER, RecordHeader, SEGMENT_HEADER, VERSION, read_segment, segment_header};
use super::*;

mod killed;
#[cfg(target_os = "linux")]
mod linux;

const HOUR_NS: u64 = 3_600_000_000_000;
const BOOT: u64 = 7;

/// Two clocks that tests set.
#[derive(Clone, Default)]
struct TestClock(Arc<(AtomicU64, AtomicU64)>);

impl TestClock {
    fn set(&self, boot_ns: u64, unix_ns: u64) {
        self.0.0.store(boot_ns, Ordering::Relaxed);
        self.0.1.store(unix_ns, Ordering::Relaxed);
    }

    fn clock(&self) -> Clock {
        let clocks = Arc::clone(&self.0);
        Arc::new(move || Moment {
            boot_ns: clocks.0.load(Ordering::Relaxed),
            unix_ns: clocks.1.load(Ordering::Relaxed),
        })
    }
}

fn bounds() -> SegmentBounds {
    SegmentBounds {
        bytes: 1 << 20,
        requests: 1_000,
        segment_bytes: 64 << 10,
        age: Duration::from_secs(24 * 3_600),
    }
}

fn open(directory: &Path) -> Segments {
    open_with(directory, bounds(), BOOT, &TestClock::default())
}

fn open_with(directory: &Path, bounds: SegmentBounds, boot: u64, clock: &TestClock) -> Segments {
    Segments::open(directory, bounds, boot, clock.clock()).unwrap()
}

/// The body of a request whose number can be read back.
fn body(number: u32) -> Vec<u8> {
    format!("request {number} {}", "x".repeat(number as usize % 50)).into_bytes()
}

fn number(taken: &TakenRecord) -> u32 {
    let text = std::str::from_utf8(&taken.body).unwrap();
    text.split(' ').nth(1).unwrap().parse().unwrap()
}

fn append(segments: &mut Segments, number: u32, worth: Worth) {
    append_bytes(segments, &body(number), number, worth);
}

fn append_bytes(segments: &mut Segments, body: &[u8], spans: u32, worth: Worth) {
    let record = NewRecord {
        body,
        gzip: spans.is_multiple_of(2),
        spans,
        worth,
    };
    segments.append(&record).unwrap();
}

/// Takes and finishes everything; returns the numbers in order.
fn drain(segments: &mut Segments) -> Vec<u32> {
    let mut numbers = Vec::new();
    while let Some(taken) = segments.take() {
        assert_eq!(
            (taken.spans(), taken.gzip()),
            (u64::from(number(&taken)), number(&taken).is_multiple_of(2))
        );
        segments.done(&taken);
        numbers.push(number(&taken));
    }
    numbers
}

/// Names of the files in the directory that are not empty.
fn files(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(Result::unwrap)
        .filter(|entry| {
            let metadata = entry.metadata().unwrap();
            metadata.is_file() && metadata.len() > 0
        })
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn requests_come_back_oldest_first_also_from_an_earlier_run() {
    let directory = TempDir::new().unwrap();
    let mut segments = open(directory.path());
    for (number, worth) in [(1, Worth::Good), (2, Worth::Bad), (3, Worth::Bad), (4, Worth::Good)] {
        append(&mut segments, number, worth);
    }
    assert_eq!(segments.depth().spans, 10);
    let taken = segments.take().unwrap();
    assert_eq!((number(&taken), segments.depth().spans), (1, 9));
    segments.give_back(&taken);
    let taken = segments.take().unwrap();
    assert_eq!(number(&taken), 1, "it is the oldest again");
    segments.done(&taken);
    drop(segments);

    let mut segments = open(directory.path());
    assert_eq!(
        segments.drops(),
        SpoolDrops {
            recovered: 9,
            ..SpoolDrops::default()
        }
    );
    append(&mut segments, 5, Worth::Bad);
    append(&mut segments, 6, Worth::Good);
    assert_eq!(
        drain(&mut segments),
        [2, 3, 4, 5, 6],
        "1 is done and does not come again"
    );
    assert_eq!(files(directory.path()), Vec::<String>::new(), "nothing stays on disk");
    assert_eq!(segments.depth(), SpoolDepth::default());
}

#[test]
fn a_kill_between_answer_and_mark_sends_one_request_again() {
    let directory = TempDir::new().unwrap();
    let mut segments = open(directory.path());
    for number in 1..=3 {
        append(&mut segments, number, Worth::Bad);
    }
    let first = segments.take().unwrap();
    segments.done(&first);
    assert_eq!(number(&segments.take().unwrap()), 2);
    drop(segments);
    assert_eq!(drain(&mut open(directory.path())), [2, 3]);
}

#[test]
fn good_ones_go_before_bad_ones_and_older_ones_before_newer_ones() {
    let directory = TempDir::new().unwrap();
    let tight = SegmentBounds {
        bytes: 8 << 10,
        // A segment for each request.
        segment_bytes: 1,
        ..bounds()
    };
    let mut segments = open_with(directory.path(), tight, BOOT, &TestClock::default());
    let kilobyte = |number: u32| format!("request {number} {}", "y".repeat(1_000)).into_bytes();
    let mut made = 0;
    let mut evicted = 0;
    let mut add = |segments: &mut Segments, number: u32, worth| {
        append_bytes(segments, &kilobyte(number), number, worth);
        made += number;
        evicted += segments.drops().evicted;
        assert_eq!(segments.depth().spans + evicted, u64::from(made));
        assert!(segments.depth().bytes <= 8 << 10);
    };
    for number in 1..=4 {
        add(&mut segments, number, Worth::Good);
    }
    for number in 5..=9 {
        add(&mut segments, number, Worth::Bad);
    }
    // 7 requests of 1.1 KB fit: 1 and 2, both good, went. Now 3, 4 and 10 go, then 5, a bad one.
    add(&mut segments, 10, Worth::Good);
    for number in 11..=13 {
        add(&mut segments, number, Worth::Bad);
    }
    // Only bad ones are left: a good one evicts none of them.
    add(&mut segments, 14, Worth::Good);
    assert_eq!(drain(&mut segments), [6, 7, 8, 9, 11, 12, 13]);
    append_bytes(&mut segments, &vec![0; 9 << 10], 99, Worth::Bad);
    assert_eq!(segments.drops().evicted, 99, "it never fits, and evicts nothing else");
}

#[test]
fn a_request_whose_segment_was_evicted_under_way_is_counted_once() {
    let directory = TempDir::new().unwrap();
    let few = SegmentBounds {
        requests: 2,
        ..bounds()
    };
    for delivered in [false, true] {
        let mut segments = open_with(directory.path(), few.clone(), BOOT, &TestClock::default());
        append(&mut segments, 1, Worth::Good);
        let taken = segments.take().unwrap();
        for number in 2..=4 {
            append(&mut segments, number, Worth::Bad);
        }
        match delivered {
            true => segments.done(&taken),
            false => segments.give_back(&taken),
        }
        let evicted = segments.drops().evicted;
        let sent = u64::from(delivered);
        let waiting: u32 = drain(&mut segments).iter().sum();
        assert_eq!(sent + u64::from(waiting) + evicted, 10, "{delivered}");
    }
}

#[test]
fn age_counts_on_the_boot_clock_and_across_boots_on_the_wall_clock() {
    let directory = TempDir::new().unwrap();
    let clock = TestClock::default();
    clock.set(HOUR_NS, 100 * HOUR_NS);
    let mut segments = open_with(directory.path(), bounds(), BOOT, &clock);
    append(&mut segments, 1, Worth::Bad);
    // The wall clock steps a year ahead, and back before the request.
    for unix_hours in [9_000, 1] {
        clock.set(2 * HOUR_NS, unix_hours * HOUR_NS);
        let taken = segments.take().unwrap();
        segments.give_back(&taken);
        drop(segments);
        segments = open_with(directory.path(), bounds(), BOOT, &clock);
    }
    assert_eq!(
        segments.drops(),
        SpoolDrops {
            recovered: 1,
            ..SpoolDrops::default()
        }
    );
    // After a reboot the wall clock decides; one before the request makes it new.
    for unix_hours in [1, 123] {
        drop(segments);
        clock.set(0, unix_hours * HOUR_NS);
        segments = open_with(directory.path(), bounds(), BOOT + 1, &clock);
        assert_eq!(segments.depth().spans, 1, "{unix_hours}");
    }
    append(&mut segments, 2, Worth::Bad);
    clock.set(2 * HOUR_NS, 125 * HOUR_NS);
    assert_eq!(drain(&mut segments), [2]);
    assert_eq!(
        segments.drops(),
        SpoolDrops {
            recovered: 1,
            expired: 1,
            ..SpoolDrops::default()
        }
    );
    assert_eq!(files(directory.path()), Vec::<String>::new());
}

/// A small segment as an earlier run left it: three requests with 1, 2 and 3 spans; the first is done if `done`.
fn sample(directory: &Path, done: bool) -> Vec<u8> {
    let mut segments = open(directory);
    for number in 1..=3 {
        append(&mut segments, number, Worth::Bad);
    }
    if done {
        let taken = segments.take().unwrap();
        segments.done(&taken);
    }
    drop(segments);
    let names = files(directory);
    assert_eq!(names, ["0000000000000001.bad"]);
    let bytes = fs::read(directory.join(&names[0])).unwrap();
    fs::remove_file(directory.join(&names[0])).unwrap();
    bytes
}

/// Opens a directory with this one segment, twice; returns the requests and what was dropped.
fn reopen(bytes: &[u8]) -> (Vec<u32>, SpoolDrops) {
    let directory = TempDir::new().unwrap();
    fs::write(directory.path().join("0000000000000001.bad"), bytes).unwrap();
    let mut segments = open(directory.path());
    let drops = segments.drops();
    assert_eq!(segments.depth().spans + drops.corrupt, drops.recovered);
    if segments.depth().newer > 0 {
        assert_eq!(fs::read(directory.path().join("0000000000000001.bad")).unwrap(), bytes);
        return (Vec::new(), drops);
    }
    let depth = segments.depth();
    drop(segments);
    let mut segments = open(directory.path());
    let again = segments.drops();
    assert_eq!((again.corrupt, again.cut_bytes), (0, 0), "a loss is counted once");
    assert_eq!(segments.depth().spans, depth.spans);
    (drain(&mut segments), drops)
}

#[test]
fn a_segment_cut_at_every_byte_gives_its_whole_records_and_counts_the_rest() {
    let directory = TempDir::new().unwrap();
    for done in [false, true] {
        let bytes = sample(directory.path(), done);
        let ends: Vec<usize> = (1..=3)
            .scan(SEGMENT_HEADER, |end, number| {
                *end += RECORD_HEADER + body(number).len();
                Some(*end)
            })
            .collect();
        assert_eq!(ends[2], bytes.len());
        for length in 0..=bytes.len() {
            let whole = ends.iter().filter(|end| **end <= length).count() as u32;
            let (numbers, drops) = reopen(&bytes[..length]);
            let expected: Vec<u32> = (1 + u32::from(done)..=whole).collect();
            assert_eq!(numbers, expected, "cut at {length}");
            let tail = length - if whole == 0 { 0 } else { ends[whole as usize - 1] };
            let rest = match whole {
                0 if length >= SEGMENT_HEADER => tail - SEGMENT_HEADER,
                _ => tail,
            };
            // The marks of the first record are gone with its header.
            assert_eq!(
                drops.cut_bytes,
                if done && whole == 0 && drops.cut_bytes == 0 {
                    0
                } else {
                    rest as u64
                },
                "cut at {length}"
            );
            let spans: u64 = numbers.iter().map(|number| u64::from(*number)).sum();
            assert_eq!(spans + drops.corrupt, drops.recovered);
            assert!(drops.corrupt <= u64::from(whole + 1));
        }
    }
}

#[test]
fn any_bad_byte_costs_at_most_its_own_record_and_never_alters_one() {
    let directory = TempDir::new().unwrap();
    let bytes = sample(directory.path(), true);
    for position in 0..bytes.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut damaged = bytes.clone();
            damaged[position] ^= flip;
            // `drain` compares spans and flags with the body.
            let (numbers, drops) = reopen(&damaged);
            let numbers: BTreeSet<u32> = numbers.into_iter().collect();
            assert!(numbers.iter().all(|number| (1..=3).contains(number)));
            let missing = [2, 3].into_iter().filter(|number| !numbers.contains(number)).count();
            assert!(missing <= 1, "byte {position}: {numbers:?}");
            assert!(missing == 0 || drops.cut_bytes > 0, "byte {position}: {drops:?}");
            assert!(numbers.contains(&2) || drops.corrupt >= 2, "byte {position}: {drops:?}");
        }
    }
}

#[test]
fn a_newer_format_is_left_alone_and_reported() {
    let directory = TempDir::new().unwrap();
    let mut bytes = segment_header(3);
    bytes[8..12].copy_from_slice(&(VERSION + 1).to_le_bytes());
    let crc = format::checksum(&bytes[..20]);
    bytes[20..].copy_from_slice(&crc.to_le_bytes());
    bytes.extend_from_slice(b"whatever a later version writes");
    let newer = directory.path().join("00000000000000aa.good");
    fs::write(&newer, &bytes).unwrap();
    let mut segments = open(directory.path());
    assert_eq!((segments.depth().newer, segments.depth().spans), (1, 0));
    append(&mut segments, 1, Worth::Good);
    assert_eq!(
        files(directory.path())[1],
        "00000000000000ab.good",
        "its number is not used again"
    );
    assert_eq!(drain(&mut segments), [1]);
    assert_eq!(fs::read(newer).unwrap(), bytes);
    assert_eq!(segments.drops(), SpoolDrops::default());
}

/// Segments of format 1 must remain readable: these bytes were written by its first release.
#[test]
fn format_1_stays_readable() {
    let header = RecordHeader {
        length: 4,
        spans: 2,
        gzip: true,
        sequence: 5,
        made: Moment { boot_ns: 6, unix_ns: 7 },
        spans_before: 0,
        body_crc: format::checksum(b"body"),
    };
    let mut bytes = segment_header(9);
    bytes.extend_from_slice(&header.encode());
    bytes.extend_from_slice(b"body");
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(text, FORMAT_1);
    let content = read_segment(&bytes);
    assert_eq!((content.boot, content.records.len(), content.lost_bytes), (9, 1, 0));
    assert_eq!(content.records[0].header, header);
}

const FORMAT_1: &str = "534753504f4f4c0a0100000009000000000000001ac9d5ad\
    5347524304000000020000000100000005000000000000000600000000000000070000000000000000000000b20ba8db42ce33d300000000\
    626f6479";

#[test]
fn foreign_files_do_no_harm() {
    let directory = TempDir::new().unwrap();
    drop(open(directory.path()));
    fs::write(directory.path().join("notes.txt"), "mine").unwrap();
    fs::create_dir(directory.path().join("0000000000000002.bad")).unwrap();
    fs::write(directory.path().join("0000000000000003.good"), "").unwrap();
    let mut segments = open(directory.path());
    assert_eq!(segments.depth().unreadable, 1);
    append(&mut segments, 1, Worth::Bad);
    assert_eq!(drain(&mut segments), [1]);
    assert_eq!(files(directory.path()), ["notes.txt"]);
    // The length of a directory differs between systems.
    assert!(directory.path().join("0000000000000002.bad").is_dir());
}

#[test]
fn a_process_that_ended_within_a_rewrite_left_records_twice_and_they_count_once() {
    let directory = TempDir::new().unwrap();
    let mut bytes = sample(directory.path(), false);
    fs::write(directory.path().join("0000000000000007.bad"), &bytes).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(directory.path().join("0000000000000003.bad"), &bytes).unwrap();
    let mut segments = open(directory.path());
    assert_eq!(segments.depth().spans, 6);
    assert_eq!(drain(&mut segments), [1, 2, 3]);
}

#[test]
fn one_agent_at_a_time_uses_a_directory() {
    let directory = TempDir::new().unwrap();
    let first = open(directory.path());
    let error = Segments::open(directory.path(), bounds(), BOOT, TestClock::default().clock())
        .err()
        .unwrap();
    assert!(error.to_string().contains("another agent"), "{error}");
    drop(first);
    open(directory.path());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is done, and however often the process ends: sent + waiting + dropped = made.
    #[test]
    fn nothing_is_unaccounted_for(steps in proptest::collection::vec(any_step(), 1..60)) {
        let directory = TempDir::new().unwrap();
        let clock = TestClock::default();
        let tight = SegmentBounds { bytes: 4 << 10, requests: 12, segment_bytes: 700, age: Duration::from_secs(3_600) };
        let open = || open_with(directory.path(), tight.clone(), BOOT, &clock);
        let mut segments = open();
        let (mut made, mut sent, mut dropped, mut hours) = (0, 0, 0, 0);
        for step in steps {
            match step {
                Step::Append(spans, worth) => {
                    append(&mut segments, spans, worth);
                    made += u64::from(spans);
                }
                Step::Send => if let Some(taken) = segments.take() {
                    segments.done(&taken);
                    sent += taken.spans();
                },
                Step::Fail => if let Some(taken) = segments.take() {
                    segments.give_back(&taken);
                },
                Step::EndUnderWay => {
                    let _ = segments.take();
                    drop_counted(&mut segments, &mut dropped);
                    drop(segments);
                    segments = open();
                    let recovered = segments.drops();
                    dropped += recovered.evicted + recovered.expired + recovered.corrupt;
                }
                Step::Wait => {
                    hours += 1;
                    clock.set(hours * HOUR_NS / 2, 0);
                }
            }
            drop_counted(&mut segments, &mut dropped);
            let depth = segments.depth();
            assert_eq!(sent + depth.spans + dropped, made, "{step:?}");
            assert!(depth.bytes <= 4 << 10);
            let on_disk: u64 = files(directory.path()).iter().map(|name| fs::metadata(directory.path().join(name)).unwrap().len()).sum();
            assert_eq!(on_disk, depth.bytes);
        }
    }

    /// Any bytes at all are read without a panic, and give no more than they hold.
    #[test]
    fn any_bytes_are_a_segment(bytes in proptest::collection::vec(any::<u8>(), 0..400), with_header in any::<bool>()) {
        let mut whole = if with_header { segment_header(1) } else { Vec::new() };
        whole.extend_from_slice(&bytes);
        let content = read_segment(&whole);
        assert!(content.records.is_empty());
        assert!(content.lost_bytes <= whole.len() as u64);
    }
}

fn drop_counted(segments: &mut Segments, dropped: &mut u64) {
    let drops = segments.drops();
    *dropped += drops.evicted + drops.expired + drops.corrupt;
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Append(u32, Worth),
    Send,
    Fail,
    /// The process ends with a request under way.
    EndUnderWay,
    /// Half an hour passes.
    Wait,
}

fn any_step() -> impl Strategy<Value = Step> {
    proptest::prop_oneof![
        6 => (1_u32..40, any::<bool>()).prop_map(|(spans, bad)| Step::Append(spans, if bad { Worth::Bad } else { Worth::Good })),
        3 => proptest::prelude::Just(Step::Send),
        1 => proptest::prelude::Just(Step::Fail),
        1 => proptest::prelude::Just(Step::EndUnderWay),
        1 => proptest::prelude::Just(Step::Wait),
    ]
}
