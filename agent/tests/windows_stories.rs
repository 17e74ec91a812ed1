//! The stories of `recordings/windows-*`: writes their `.etl` files, and holds the committed ones against that.
//!
//! `BLESS=1 cargo test -p sandglass --test windows_stories` rewrites them; what they replay to is golden
//! (`tests/golden.rs`). All of it is made up: no Windows node was at hand.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

#[path = "../fuzz/src/replay.rs"]
mod replay;

#[path = "windows_stories/node.rs"]
mod node;
#[path = "windows_stories/stories.rs"]
mod stories;

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use proptest::prelude::*;
use sandglass::sources::windows::file::EtlFile;
use sandglass::sources::windows::normalize::ActivityNames;
use sandglass_correlator::{Config, Correlator, Output, Reorder};
use sandglass_model::{Detail, Trace, phases};

#[test]
fn committed_files_are_what_the_stories_write() {
    for (name, write) in stories::ALL {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("recordings").join(name);
        let path = folder.join("events.etl");
        let bytes = write();
        assert!(bytes.len() < 64 * 1024, "{name}: {} bytes", bytes.len());
        assert_eq!(bytes, write(), "{name}: two writings differ");
        if std::env::var_os("BLESS").is_some() {
            fs::create_dir_all(&folder).unwrap();
            fs::write(&path, &bytes).unwrap();
            continue;
        }
        let committed = fs::read(&path).unwrap_or_default();
        assert!(
            committed == bytes,
            "{}: differs from its story; BLESS=1 rewrites it",
            path.display()
        );
    }
}

/// What is made of a file: its closed traces.
fn traces(bytes: Vec<u8>) -> Option<Vec<Trace>> {
    let mut file = EtlFile::from_bytes("story", bytes, ActivityNames::default()).ok()?;
    let config = Config {
        boot_id: file.header.boot_id.clone(),
        anchor: file.header.clock,
        windows: true,
        ..Config::default()
    };
    let (mut reorder, mut correlator) = (Reorder::new(200_000_000), Correlator::new(config));
    let mut closed = Vec::new();
    let mut take = |correlator: &mut Correlator| {
        for output in correlator.drain() {
            if let Output::Closed(trace) = output {
                assert_eq!(trace.check(), Ok(()));
                closed.push(Trace::clone(&trace));
            }
        }
    };
    while let Ok(Some(event)) = file.next_event() {
        reorder.push(event);
        while let Some(next) = reorder.pop() {
            correlator.handle(next.event);
            take(&mut correlator);
        }
    }
    while let Some(next) = reorder.flush() {
        correlator.handle(next.event);
    }
    correlator.finish();
    take(&mut correlator);
    Some(closed)
}

#[test]
fn verdicts_tell_the_stories() {
    for ((name, write), expected) in stories::ALL.into_iter().zip(VERDICTS) {
        let traces = traces(write()).unwrap();
        let of_sandbox = |trace: &&Trace| matches!(trace.root().detail, Detail::Sandbox(_));
        let trace = traces.iter().find(of_sandbox).unwrap();
        let verdict = phases::verdict(trace, trace.root().end.unwrap());
        assert!(verdict.starts_with(expected), "{name}: {verdict}");
    }
}

const VERDICTS: [&str; 7] = [
    "sandbox (the pod itself, before it used its network) took",
    "command powershell of plugin antrea took 4.64 s of 6.21 s (74 %)",
    "wait for vnic took 3.",
    "hns EndpointAttachShared failed: endpoint in invalid state (0x803b0017)",
    "wait for vnic took 425 ms of 1.02 s",
    "lookup of db.shop.svc.cluster.local took 2.00 s",
    "hns RequestHandler failed: did not end while its caller waited",
];

/// Each story in a file without compressed buffers: what is in there can be damaged one by one.
fn plain_stories() -> Vec<(&'static str, Vec<u8>)> {
    let write = |(name, write): (&'static str, stories::Story)| (name, node::without_compression(write));
    stories::ALL.into_iter().map(write).collect()
}

/// With SANDGLASS_SEEDS these become the seeds of the fuzz target `etl_replay`.
#[test]
fn seeds_of_the_fuzz_target_tell_the_stories() {
    for ((name, plain), (_, write)) in plain_stories().into_iter().zip(stories::ALL) {
        let replayed = replay::replay(&plain).unwrap();
        assert_eq!(Some(&replayed), replay::replay(&write()).as_ref(), "{name}");
        assert!(!replayed.traces.is_empty() && replayed.events > 20, "{name}");
        if let Some(folder) = std::env::var_os("SANDGLASS_SEEDS") {
            fs::create_dir_all(&folder).unwrap();
            fs::write(Path::new(&folder).join(name), plain).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Bytes overwritten, parts of one story in another, an end cut off.
    #[test]
    fn no_file_breaks_a_replay_and_each_replays_to_the_same(
        which in any::<(prop::sample::Index, prop::sample::Index)>(),
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..40),
        moved in proptest::option::of(any::<(prop::sample::Index, prop::sample::Index, u16)>()),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let stories = PLAIN.get_or_init(plain_stories);
        let mut file = which.0.get(stories).1.clone();
        let other = &which.1.get(stories).1;
        if let Some((from, to, length)) = moved {
            let (from, to) = (from.index(other.len()), to.index(file.len()));
            let length = usize::from(length).min(other.len() - from).min(file.len() - to);
            file[to..to + length].copy_from_slice(&other[from..from + length]);
        }
        for (place, byte) in edits {
            let at = place.index(file.len());
            file[at] = byte;
        }
        if let Some(cut) = cut {
            file.truncate(cut.index(file.len()));
        }
        let replayed = replay::replay(&file);
        prop_assert_eq!(&replayed, &replay::replay(&file));
    }
}

static PLAIN: OnceLock<Vec<(&str, Vec<u8>)>> = OnceLock::new();

#[test]
fn damaged_files_break_nothing() {
    for compressed in [true, false] {
        let whole = stories::start_and_end(node::Node::with(compressed));
        let mut replayed = 0;
        // Every step hits another byte, in headers as in records.
        for round in 0..400_usize {
            let mut bytes = whole.clone();
            for hit in 0..=round % 5 {
                let place = (round * 7_919 + hit * 104_729) % bytes.len();
                bytes[place] ^= 1 << (round % 8);
            }
            if round % 7 == 0 {
                bytes.truncate(round * 131 % whole.len());
            }
            replayed += usize::from(traces(bytes).is_some());
        }
        assert!(replayed > 200, "{replayed}");
        assert_eq!(traces(whole).map(|traces| traces.len()), Some(2));
    }
}
