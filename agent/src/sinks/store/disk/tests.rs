//! What the page showed is there after a restart or a kill; files are bounded, private, and never written in vain.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Instant;

use proptest::prelude::*;
use sandglass_model::{RootId, Trace};
use tempfile::TempDir;

use super::*;
use crate::node::NodeInfo;
use crate::samples;
use crate::sinks::disk::format::{checksum, file_header};
use crate::sinks::store::StoreOptions;

mod killed;
#[cfg(target_os = "linux")]
mod linux;

fn store(max_traces: usize) -> Store<()> {
    Store::new(StoreOptions::live(max_traces), NodeInfo::default())
}

/// The thread's work, done by hand.
struct Rig {
    store: Store<()>,
    writer: Writer<()>,
    disk: StoreDisk,
}

impl Rig {
    fn open(directory: &Path, max_traces: usize) -> Rig {
        let (store, disk) = (store(max_traces), StoreDisk::new(&directory.join("spool"), None));
        let mut writer = Writer::new(store.clone(), disk.clone());
        writer.open();
        Rig { store, writer, disk }
    }

    fn put(&mut self, trace: Trace) {
        self.store.update(trace);
        self.writer.write();
    }

    fn roots(&self) -> Vec<RootId> {
        roots(&self.store)
    }
}

fn roots(store: &Store<()>) -> Vec<RootId> {
    store.closed().iter().map(|kept| kept.index.root).collect()
}

fn content(directory: &Path) -> Vec<Vec<u8>> {
    let read = |name: &&str| fs::read(directory.join("spool").join(name)).unwrap_or_default();
    FILES.iter().map(read).collect()
}

fn bytes(directory: &Path) -> usize {
    content(directory).iter().map(Vec::len).sum()
}

/// The file in use.
fn in_use(directory: &Path) -> (PathBuf, Vec<u8>) {
    let files = content(directory);
    let index = files.iter().position(|file| !file.is_empty()).unwrap();
    (directory.join("spool").join(FILES[index]), files[index].clone())
}

fn usual(number: u32) -> Trace {
    samples::usual(
        "shop",
        &format!("cart-{number}"),
        number,
        u64::from(number) * 1_000_000_000,
    )
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(20), "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn what_the_page_showed_is_there_after_a_restart() {
    let directory = TempDir::new().unwrap();
    let spool = directory.path().join("spool");
    let before = store(1_000);
    before.keep_on_disk(&spool, None);
    let failed = samples::failed("shop", "cart", 7, 5_000_000_000, None);
    // In another order than that of their roots.
    for trace in [
        usual(9),
        usual(3),
        failed.clone(),
        samples::stalled("shop", "api", 4, 0),
    ] {
        before.update(trace);
    }
    before.update(samples::stuck("shop", "open", 5, 0));
    before.stop();
    assert_eq!(before.disk().unwrap().traces, 4);

    let after = store(1_000);
    after.keep_on_disk(&spool, None);
    until("all is restored", || after.size().earlier == 4);
    let traces = |store: &Store<()>| {
        store
            .closed()
            .iter()
            .map(|kept| Trace::clone(&kept.trace().unwrap()))
            .collect::<Vec<_>>()
    };
    let by_end = |mut traces: Vec<Trace>| {
        traces.sort_by_key(|trace| trace.anchor.unix_ns(trace.root().end.unwrap()));
        traces
    };
    assert_eq!(
        traces(&after),
        by_end(traces(&before)),
        "every byte of them, in the order of their ends"
    );
    let status = after.disk().unwrap();
    assert_eq!((status.restored, status.lost, status.problem), (4, 0, None));
    // A newer state of one of them is no second one.
    after.update(failed);
    after.update(usual(11));
    assert_eq!((after.size().traces, after.size().earlier), (5, 4));
    after.stop();
    let third = store(1_000);
    third.keep_on_disk(&spool, None);
    until("all is restored", || third.size().earlier == 5);
    third.stop();
}

#[test]
fn nothing_is_written_where_nothing_changed() {
    let directory = TempDir::new().unwrap();
    let store = store(1_000);
    store.keep_on_disk(&directory.path().join("spool"), None);
    store.update(usual(1));
    until("it is written", || store.disk().unwrap().traces == 1);
    let before = in_use(directory.path());
    let modified = || fs::metadata(&before.0).unwrap().modified().unwrap();
    let at = modified();
    for _ in 0..5 {
        // Open ones are the journal's.
        store.update(samples::stuck("shop", "open", 5, 0));
        std::thread::sleep(PAUSE);
    }
    assert_eq!((in_use(directory.path()), modified()), (before.clone(), at));
    store.stop();
    assert_eq!(in_use(directory.path()), before, "not at the end either");
}

#[test]
fn what_was_evicted_does_not_come_back_and_files_are_bounded() {
    let directory = TempDir::new().unwrap();
    let mut rig = Rig::open(directory.path(), 20);
    let mut largest = 0;
    for number in 0..600 {
        rig.put(usual(number));
        largest = largest.max(bytes(directory.path()));
        let live = rig.disk.status().bytes;
        let bound = SPARE_BYTES + 4 * LIVE_BYTES as u64;
        assert!(u64::try_from(live).unwrap() < bound, "{live}");
    }
    // Twenty traces of about 2 KiB each, twice, and what is spare.
    assert!(largest < SPARE_BYTES as usize + 200_000, "{largest}");
    let kept = rig.roots();
    assert!(kept.len() <= 20 && rig.store.size().evicted >= 580);
    drop(rig);
    let rig = Rig::open(directory.path(), 20);
    assert_eq!(rig.roots(), kept);
    assert_eq!(rig.store.size().evicted, 0);
    // A smaller bound at the next start evicts, and counts it.
    drop(rig);
    let rig = Rig::open(directory.path(), 10);
    let size = rig.store.size();
    assert_eq!(size.earlier as u64 + size.evicted, kept.len() as u64);
}

#[test]
fn what_has_no_room_is_counted_once_and_not_restored() {
    let directory = TempDir::new().unwrap();
    let mut rig = Rig::open(directory.path(), 10_000);
    let mut number = 0;
    while rig.disk.status().lost == 0 {
        number += 1;
        rig.put(usual(number));
        assert!(number < 1_000, "{:?}", rig.disk.status());
    }
    rig.writer.write();
    rig.writer.write();
    let status = rig.disk.status();
    assert_eq!((status.lost, status.traces), (1, i64::from(number) - 1));
    drop(rig);
    assert_eq!(Rig::open(directory.path(), 10_000).roots().len(), number as usize - 1);
}

#[test]
fn a_torn_tail_is_cut_and_counted() {
    let directory = TempDir::new().unwrap();
    let mut rig = Rig::open(directory.path(), 100);
    rig.put(usual(1));
    let one = bytes(directory.path());
    rig.put(usual(2));
    drop(rig);
    let (path, whole) = in_use(directory.path());
    for length in (one..whole.len()).step_by(7) {
        for name in FILES {
            let _ = fs::remove_file(directory.path().join("spool").join(name));
        }
        fs::write(&path, &whole[..length]).unwrap();
        let rig = Rig::open(directory.path(), 100);
        assert_eq!(rig.roots(), [usual(1).root_id()], "{length}");
        assert_eq!(rig.disk.0.metrics.cut_bytes.get(), (length - one) as u64);
        drop(rig);
        // It was cut: the next run does not count it again.
        let rig = Rig::open(directory.path(), 100);
        assert_eq!(rig.disk.0.metrics.cut_bytes.get(), 0);
    }
}

#[test]
fn a_newer_file_is_left_alone_and_reported() {
    let directory = TempDir::new().unwrap();
    let spool = directory.path().join("spool");
    fs::create_dir(&spool).unwrap();
    let mut newer = file_header(STORE.magic, 7);
    newer[8] = 2;
    let crc = checksum(&newer[..20]);
    newer[20..].copy_from_slice(&crc.to_le_bytes());
    newer.extend_from_slice(b"of another kind");
    for name in &FILES[..2] {
        fs::write(spool.join(name), &newer).unwrap();
    }
    let mut rig = Rig::open(directory.path(), 100);
    assert_eq!((rig.disk.status().left_alone, rig.disk.status().problem), (2, None));
    rig.put(usual(1));
    drop(rig);
    assert_eq!(Rig::open(directory.path(), 100).roots(), [usual(1).root_id()]);
    fs::write(spool.join(FILES[2]), &newer).unwrap();
    let rig = Rig::open(directory.path(), 100);
    assert!(rig.disk.status().problem.unwrap().contains("newer version"));
    for name in &FILES[..3] {
        assert_eq!(fs::read(spool.join(name)).unwrap(), newer);
    }
}

#[test]
fn a_trace_that_cannot_be_read_is_counted_and_the_others_are_shown() {
    use crate::sinks::disk::format::Record;

    let directory = TempDir::new().unwrap();
    let mut rig = Rig::open(directory.path(), 100);
    rig.put(usual(1));
    drop(rig);
    let (path, mut whole) = in_use(directory.path());
    let root = usual(2).root_id();
    // Whole records: one of bytes that are no trace, one of an open trace.
    Record::Trace(root, b"twelve bytes").encode(&mut whole);
    let open = samples::stuck("shop", "open", 5, 0);
    let mut encoder = crate::sinks::disk::content::Encoder::new();
    let bytes = encoder.encode(&open, sandglass_model::Timestamp(0)).unwrap();
    Record::Trace(open.root_id(), bytes).encode(&mut whole);
    fs::write(path, whole).unwrap();
    let rig = Rig::open(directory.path(), 100);
    assert_eq!(rig.roots(), [usual(1).root_id()]);
    assert_eq!((rig.disk.status().lost, rig.disk.status().restored), (2, 1));
}

#[test]
fn a_directory_that_cannot_be_used_is_tried_again_with_all_that_came_meanwhile() {
    let directory = TempDir::new().unwrap();
    let spool = directory.path().join("spool");
    fs::write(&spool, "a file").unwrap();
    let store = store(100);
    store.keep_on_disk(&spool, None);
    for number in 0..10 {
        store.update(usual(number));
    }
    until("it is reported", || store.disk().unwrap().problem.is_some());
    fs::remove_file(&spool).unwrap();
    until("all is written", || store.disk().unwrap().traces == 10);
    assert_eq!(store.disk().unwrap().problem, None);
    store.stop();
    assert_eq!(Rig::open(directory.path(), 100).roots().len(), 10);
}

#[test]
fn two_agents_do_not_share_the_files() {
    let directory = TempDir::new().unwrap();
    let mut first = Rig::open(directory.path(), 100);
    first.put(usual(1));
    let mut second = Rig::open(directory.path(), 100);
    assert!(second.disk.status().problem.unwrap().contains("another agent"));
    second.put(usual(2));
    drop(first);
    second.writer.open();
    assert_eq!(second.disk.status().problem, None);
    let mut roots = second.roots();
    roots.sort_unstable();
    let mut both = vec![usual(1).root_id(), usual(2).root_id()];
    both.sort_unstable();
    assert_eq!(roots, both, "what the first one left is shown beside its own");
}

#[test]
fn what_is_written_leaves_the_journal() {
    use crate::sinks::journal::{Journal, Keeper};
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::new(Keeper::Store);
    let store = store(10);
    store.keep_on_disk(&directory.path().join("spool"), Some(journal.clone()));
    let trace = Arc::new(samples::failed("shop", "cart", 1, 0, None));
    store.update(Arc::clone(&trace));
    journal.close(&trace);
    until("it left the journal", || journal.closed().is_empty());
    assert_eq!(store.disk().unwrap().traces, 1, "only once it was written");
    // As an earlier run's journal has what the files have too.
    store.restore(Arc::clone(&trace));
    journal.close(&trace);
    until("it left the journal again", || journal.closed().is_empty());
    store.stop();
}

#[test]
fn what_must_not_be_on_disk_is_emptied() {
    let directory = TempDir::new().unwrap();
    let spool = directory.path().join("spool");
    forget(&spool).unwrap();
    assert!(!spool.exists(), "nothing is made where nothing is left");
    let mut rig = Rig::open(directory.path(), 100);
    rig.put(usual(1));
    assert!(forget(&spool).unwrap_err().to_string().contains("another agent"));
    drop(rig);
    forget(&spool).unwrap();
    assert_eq!(
        bytes(directory.path()) as u64,
        crate::sinks::disk::format::FILE_HEADER as u64
    );
    assert_eq!(Rig::open(directory.path(), 100).roots(), []);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever comes, is evicted, and however often the agent ends: what the store had at the last write comes back.
    #[test]
    fn what_the_store_has_comes_back(steps in proptest::collection::vec((0_u32..30, 0_u8..10), 1..80)) {
        let directory = TempDir::new().unwrap();
        let mut rig = Rig::open(directory.path(), 12);
        for (number, what) in steps {
            match what {
                0..6 => rig.put(usual(number)),
                6..8 => rig.put(samples::failed("shop", "cart", number, 0, None)),
                8 => rig.store.update(samples::stuck("shop", "open", number, 0)),
                _ => {
                    rig.writer.write();
                    let kept: BTreeSet<RootId> = rig.roots().into_iter().collect();
                    drop(rig);
                    rig = Rig::open(directory.path(), 12);
                    prop_assert_eq!(rig.roots().into_iter().collect::<BTreeSet<_>>(), kept);
                    prop_assert_eq!(rig.disk.status().lost, 0);
                }
            }
        }
    }
}
