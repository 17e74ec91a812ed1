//! A process that writes a store is killed (SIGKILL) at random points; what it acknowledged is compared with what comes back.

use std::io::Write;

use super::*;
use crate::test_processes;

/// Runs of the child. Each ends somewhere else: after a number of lines, wherever the child is by then.
const RUNS: u32 = 40;
const DIRECTORY: &str = "SANDGLASS_TEST_STORE";
const FIRST: &str = "SANDGLASS_TEST_FIRST";
const MAX_TRACES: usize = 60;
/// Of the traces that came last, so many are kept for certain: an eighth of the room is not for sandboxes.
const KEPT: usize = 50;

/// By itself not a test, but the process that `what_was_written_comes_back_after_a_kill` kills. It writes a line once a trace is on disk.
#[test]
fn child() {
    let Ok(directory) = std::env::var(DIRECTORY) else {
        return;
    };
    let mut rig = Rig::open(Path::new(&directory), MAX_TRACES);
    let first: u32 = std::env::var(FIRST).unwrap().parse().unwrap();
    let mut out = std::io::stdout();
    for number in first.. {
        rig.put(usual(number));
        writeln!(out, "kept {number}").unwrap();
    }
}

#[test]
fn what_was_written_comes_back_after_a_kill() {
    let directory = TempDir::new().unwrap();
    let (mut read, mut cut) = (0, 0);
    for run in 0..RUNS {
        let (mut child, mut lines) = test_processes::start(
            "sinks::store::disk::tests::killed::child",
            (DIRECTORY, directory.path()),
            &[(FIRST, (run * 10_000 + 1).to_string())],
        );
        let mut kept = Vec::new();
        let mut record = |line: String| {
            let number = line.strip_prefix("kept ").and_then(|number| number.parse::<u32>().ok());
            kept.extend(number);
        };
        for line in lines.by_ref().take(7 + run as usize * 37 % 300) {
            record(line.unwrap());
        }
        child.kill().unwrap();
        // What it had written until then.
        lines.map_while(Result::ok).for_each(&mut record);
        child.wait().unwrap();

        let rig = Rig::open(directory.path(), MAX_TRACES);
        let status = rig.disk.status();
        assert_eq!((status.lost, status.problem), (0, None));
        let found: BTreeSet<RootId> = rig.roots().into_iter().collect();
        assert!(found.len() <= MAX_TRACES);
        for number in kept.iter().rev().take(KEPT) {
            assert!(found.contains(&usual(*number).root_id()), "{number} is lost");
        }
        read += kept.len();
        cut += rig.disk.0.metrics.cut_bytes.get();
    }
    eprintln!("{read} traces were acknowledged, {cut} bytes were cut off");
    assert!(read >= RUNS as usize * 20, "{read}");
}
