//! A process that writes a journal is killed (SIGKILL) at random points; what it acknowledged is compared with what comes back.

use std::io::Write;

use super::*;
use crate::test_processes;

/// Runs of the child. Each ends somewhere else: after a number of lines, wherever the child is by then.
const RUNS: u32 = 40;
const DIRECTORY: &str = "SANDGLASS_TEST_JOURNAL";
const FIRST: &str = "SANDGLASS_TEST_FIRST";

/// By itself not a test, but the process that `every_open_trace_is_reported_once_after_a_kill` kills. It writes a line around each step.
#[test]
fn child() {
    let Ok(directory) = std::env::var(DIRECTORY) else {
        return;
    };
    let mut rig = Rig::open(Path::new(&directory));
    let mut out = std::io::stdout();
    let first: u32 = std::env::var(FIRST).unwrap().parse().unwrap();
    for number in first.. {
        rig.put(&running(number));
        writeln!(out, "open {number}").unwrap();
        if number.is_multiple_of(3) {
            rig.put(&samples::failed("shop", "cart", number, 0, None));
            writeln!(out, "closed {number}").unwrap();
        }
        if number >= first + 5 {
            let number = number - 5;
            writeln!(out, "going {number}").unwrap();
            let ended = match number.is_multiple_of(3) {
                true => samples::failed("shop", "cart", number, 0, None),
                false => running(number),
            };
            rig.gone(ended.root_id());
            writeln!(out, "gone {number}").unwrap();
        }
    }
}

#[test]
fn every_open_trace_is_reported_once_after_a_kill() {
    let directory = TempDir::new().unwrap();
    let mut reported = 0;
    for run in 0..RUNS {
        let first = run * 100_000 + 1;
        let (mut child, mut lines) = test_processes::start(
            "sinks::journal::tests::killed::child",
            (DIRECTORY, directory.path()),
            &[(FIRST, first.to_string())],
        );
        let (mut open, mut going, mut gone) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let mut record = |line: String| {
            let (what, number) = line.split_once(' ').unwrap_or_default();
            let Ok(number) = number.parse::<u32>() else { return };
            match what {
                "open" => open.insert(number),
                "going" => going.insert(number),
                "gone" => gone.insert(number),
                _ => true,
            };
        };
        for line in lines.by_ref().take(11 + run as usize * 37 % 400) {
            record(line.unwrap());
        }
        child.kill().unwrap();
        // What it had written until then.
        lines.map_while(Result::ok).for_each(record);
        child.wait().unwrap();

        let mut rig = Rig::open(directory.path());
        let found = rig.found();
        let ids = roots(&found);
        let distinct: BTreeSet<RootId> = ids.iter().copied().collect();
        assert_eq!(ids.len(), distinct.len(), "each once");
        let of = |number: u32| running(number).root_id();
        for number in open.difference(&going) {
            assert!(distinct.contains(&of(*number)), "{number} is lost");
        }
        for number in &gone {
            assert!(!distinct.contains(&of(*number)), "{number} was gone");
        }
        // One whose line was not written yet may be there too.
        assert!(ids.len() <= open.len() - gone.len() + 1);
        reported += ids.len();
        ids.into_iter().for_each(|root| rig.gone(root));
        assert!(rig.writer.live.is_empty());
    }
    assert!(reported >= RUNS as usize * 5, "{reported}");
}
