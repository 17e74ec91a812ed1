//! A process that appends and sends is killed (SIGKILL) at random points; what it acknowledged is compared with what is left.

use std::io::Write;

use super::*;
use crate::test_processes;

/// Runs of the child. Each ends somewhere else: after a number of lines, wherever the child is by then.
const RUNS: u32 = 40;
const DIRECTORY: &str = "SANDGLASS_TEST_SPOOL";
const FIRST: &str = "SANDGLASS_TEST_FIRST";

/// By itself not a test, but the process that `acknowledged_requests_survive_a_kill` kills. It writes a line after each completed step.
#[test]
fn child() {
    let Ok(directory) = std::env::var(DIRECTORY) else {
        return;
    };
    let mut segments = Segments::open(
        Path::new(&directory),
        SegmentBounds {
            segment_bytes: 2_000,
            bytes: 1 << 30,
            requests: 1 << 20,
            ..bounds()
        },
        BOOT,
        TestClock::default().clock(),
    )
    .unwrap();
    let mut out = std::io::stdout();
    let mut next: u32 = std::env::var(FIRST).unwrap().parse().unwrap();
    loop {
        let worth = if next.is_multiple_of(3) {
            Worth::Good
        } else {
            Worth::Bad
        };
        append(&mut segments, next, worth);
        writeln!(out, "made {next}").unwrap();
        if next.is_multiple_of(2) {
            let taken = segments.take().unwrap();
            // As a collector would have it: before the mark.
            writeln!(out, "sent {}", number(&taken)).unwrap();
            segments.done(&taken);
            writeln!(out, "done {}", number(&taken)).unwrap();
        }
        next += 1;
    }
}

#[test]
fn acknowledged_requests_survive_a_kill() {
    let directory = TempDir::new().unwrap();
    let (mut made, mut sent, mut done) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut again = 0;
    for run in 0..RUNS {
        let (mut child, mut lines) = test_processes::start(
            "sinks::otlp::spool::tests::killed::child",
            (DIRECTORY, directory.path()),
            &[(FIRST, (run * 1_000_000 + 1).to_string())],
        );
        let mut record = |line: String| {
            let (what, number) = line.split_once(' ').unwrap_or_default();
            let Ok(number) = number.parse::<u32>() else { return };
            let news = match what {
                "made" => made.insert(number),
                "sent" => {
                    let first = sent.insert(number);
                    again += u32::from(!first);
                    assert!(first || !done.contains(&number), "{number} was done and came again");
                    true
                }
                "done" => done.insert(number),
                _ => true,
            };
            assert!(news, "{line} twice");
        };
        for line in lines.by_ref().take(7 + run as usize * 13 % 60) {
            record(line.unwrap());
        }
        child.kill().unwrap();
        // What it had written until then.
        for line in lines.map_while(Result::ok) {
            record(line);
        }
        child.wait().unwrap();
    }
    let mut segments = open_with(
        directory.path(),
        SegmentBounds {
            bytes: 1 << 30,
            requests: 1 << 20,
            ..bounds()
        },
        BOOT,
        &TestClock::default(),
    );
    let drops = segments.drops();
    assert_eq!((drops.evicted, drops.expired), (0, 0));
    let left: BTreeSet<u32> = drain(&mut segments).into_iter().collect();
    for number in &made {
        assert!(sent.contains(number) || left.contains(number), "{number} is lost");
    }
    assert!(left.is_disjoint(&done), "done and sent again");
    assert!(again <= RUNS, "one request for each kill at most");
    assert!(made.len() > RUNS as usize, "{}", made.len());
    assert_eq!(files(directory.path()), Vec::<String>::new());
}
