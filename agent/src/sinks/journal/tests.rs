use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::mpsc;

use proptest::prelude::*;
use sandglass_model::{ClockAnchor, CniCommand, Detail, TraceId};
use tempfile::TempDir;

use super::*;
use crate::samples;
use crate::samples::Scene;
use crate::sinks::disk::format::{checksum, file_header};

mod killed;

const JOURNAL_FILES: [&str; 4] = JOURNAL.files;

fn options(directory: &Path) -> JournalOptions {
    JournalOptions {
        directory: directory.join("spool"),
        // Later than everything in the samples.
        clock: || ClockAnchor {
            boot_ns: u64::MAX / 4,
            unix_ns: u64::MAX / 4,
        },
    }
}

/// A journal's thread that is driven by hand, and what it delivers.
struct Rig {
    writer: Writer,
    delivered: mpsc::Receiver<Arc<Trace>>,
}

impl Rig {
    fn open(directory: &Path) -> Rig {
        Rig::open_with(directory, Duration::ZERO)
    }

    fn open_with(directory: &Path, patience: Duration) -> Rig {
        let (sender, delivered) = mpsc::channel();
        let deliver: Deliver = Box::new(move |trace| sender.send(trace).unwrap());
        let mut writer = Journal::new(Keeper::Export).writer(&options(directory), patience, deliver);
        writer.open_files();
        Rig { writer, delivered }
    }

    fn put(&mut self, trace: &Trace) {
        let change = Change::Put(Arc::new(trace.clone()));
        self.writer.pending.insert(trace.root_id(), change);
        self.writer.write(Instant::now(), false);
    }

    fn gone(&mut self, root: RootId) {
        self.writer.pending.insert(root, Change::Gone);
        self.writer.write(Instant::now(), false);
    }

    /// Delivers what is due; it stays in the journal.
    fn found(&mut self) -> Vec<Arc<Trace>> {
        self.writer.deliver_found(Instant::now());
        self.delivered.try_iter().collect()
    }

    fn metrics(&self) -> &JournalMetrics {
        &self.writer.journal.0.metrics
    }
}

/// Ends a thread that was driven by hand as a kill does: what it holds is gone, the files are as they are.
fn kill(rig: Rig) {
    drop(rig);
}

fn content(directory: &Path) -> Vec<Vec<u8>> {
    let read = |name: &&str| fs::read(directory.join("spool").join(name)).unwrap_or_default();
    JOURNAL_FILES.iter().map(read).collect()
}

fn roots<'a>(traces: impl IntoIterator<Item = &'a Arc<Trace>>) -> Vec<RootId> {
    let mut roots: Vec<RootId> = traces.into_iter().map(|trace| trace.root_id()).collect();
    roots.sort_unstable();
    roots
}

/// A sandbox whose plugin runs.
fn running(number: u32) -> Trace {
    let mut scene = Scene::sandbox("shop", "cart", number, 0);
    let operation = scene.cni(Some(1), 2, CniCommand::Add, "eth0", "podnet", &["bridge"]);
    scene.plugin(operation, 3, "bridge", false, CniCommand::Add);
    scene.snapshot()
}

/// A sandbox that was created and waits for its first traffic.
fn waiting(number: u32) -> Trace {
    let mut trace = samples::usual("shop", "cart", number, 0);
    trace.closed = false;
    trace.spans[0].end = None;
    trace
}

#[test]
fn what_was_open_comes_back_once_with_its_ids() {
    let directory = TempDir::new().unwrap();
    let mut rig = Rig::open(directory.path());
    let open = [running(1), running(2), waiting(3)];
    open.iter().for_each(|trace| rig.put(trace));
    let closed = samples::failed("shop", "cart", 4, 0, None);
    rig.put(&running(4));
    rig.put(&closed);
    rig.gone(open[1].root_id());
    kill(rig);

    let mut rig = Rig::open(directory.path());
    let found = rig.found();
    let mut expected = [open[0].root_id(), open[2].root_id(), closed.root_id()];
    expected.sort_unstable();
    assert_eq!(roots(&found), expected);
    assert_eq!((rig.metrics().interrupted.get(), rig.metrics().unsent.get()), (2, 1));
    for trace in &found {
        trace.check().unwrap();
        let of = open
            .iter()
            .chain([&closed])
            .find(|of| of.root_id() == trace.root_id())
            .unwrap();
        let ids = |trace: &Trace| trace.spans.iter().map(|span| span.id).collect::<Vec<_>>();
        assert_eq!((ids(trace), trace.id, &trace.identity), (ids(of), of.id, &of.identity));
        assert!(trace.closed);
    }
    assert!(rig.found().is_empty(), "once");
    // Killed again before it was sent: it comes again, as long as no request holds it.
    kill(rig);
    let mut rig = Rig::open(directory.path());
    let again = rig.found();
    assert_eq!(roots(&again), expected);
    again.iter().for_each(|trace| rig.gone(trace.root_id()));
    kill(rig);
    let mut rig = Rig::open(directory.path());
    assert!(rig.found().is_empty());
}

#[test]
fn only_what_nobody_knows_has_failed() {
    let seen = Timestamp(u64::MAX / 8);
    let unknown = interrupted::close(running(1), seen, false).unwrap();
    let root = unknown.root();
    assert!(
        root.status.is_error() && unknown.incomplete && root.end == Some(seen),
        "{root:?}"
    );
    assert!(matches!(&root.status, sandglass_model::trace::Status::Error { class, .. } if class == "interrupted"));
    let others_failed = unknown.spans.iter().skip(1).any(|span| span.status.is_error());
    assert!(!others_failed, "the plugin that was running may have succeeded");
    // The runtime has it.
    let known = interrupted::close(running(1), seen, true).unwrap();
    assert!(!known.root().status.is_error() && known.incomplete);
    // It was created, and its network's readiness was pending.
    let created = interrupted::close(waiting(2), seen, false).unwrap();
    assert!(!created.root().status.is_error() && created.incomplete);
    assert!(created.root().end.unwrap() < seen, "it ends where it was ready");
    // An operation by itself is not known to the runtime.
    let mut del = Scene::operation(CniCommand::Del, "shop", "cart", 3, 0);
    del.plugin(0, 2, "bridge", false, CniCommand::Del);
    let del = interrupted::close(del.snapshot(), seen, true).unwrap();
    assert!(del.root().status.is_error());
    // A failure that was seen stays.
    let mut failed = running(4);
    failed.spans[0].status = sandglass_model::trace::Status::Error {
        class: "sandbox_failed".to_owned(),
        message: "it failed".to_owned(),
    };
    let failed = interrupted::close(failed, seen, true).unwrap();
    assert!(
        matches!(&failed.root().status, sandglass_model::trace::Status::Error { class, .. } if class == "sandbox_failed")
    );
    let mut empty = running(5);
    empty.spans.clear();
    assert!(interrupted::close(empty, seen, false).is_err());
}

#[test]
fn what_waits_for_the_runtime_is_counted_from_the_start() {
    let directory = TempDir::new().unwrap();
    let mut rig = Rig::open(directory.path());
    rig.put(&running(1));
    kill(rig);
    let rig = Rig::open_with(directory.path(), Duration::from_secs(3_600));
    let status = rig.writer.journal.status();
    assert!(status.traces == 1 && status.bytes > 0, "{status:?}");
}

/// The plugin did not end with the agent: the next one finds it running, in a trace of its own.
#[test]
fn what_goes_on_in_another_trace_has_not_failed() {
    let directory = TempDir::new().unwrap();
    let mut rig = Rig::open(directory.path());
    rig.put(&running(1));
    rig.put(&running(2));
    kill(rig);
    let mut rig = Rig::open_with(directory.path(), Duration::from_secs(3_600));
    let mut goes_on = running(1);
    goes_on.id = TraceId(77);
    for span in &mut goes_on.spans {
        if let Some(process) = span.process_mut() {
            process.found_running = true;
        }
    }
    rig.writer.journal.put(&Arc::new(goes_on));
    let found = rig.found();
    assert_eq!(roots(&found), [running(1).root_id()], "the other one waits");
    assert!(found[0].closed && found[0].incomplete);
    assert!(
        found[0].spans.iter().all(|span| !span.status.is_error()),
        "{:?}",
        found[0]
    );
}

#[test]
fn a_sandbox_waits_for_the_runtime_and_no_longer() {
    let directory = TempDir::new().unwrap();
    let mut rig = Rig::open(directory.path());
    let (listed, unlisted) = (running(1), running(2));
    rig.put(&listed);
    rig.put(&unlisted);
    kill(rig);
    let mut rig = Rig::open_with(directory.path(), Duration::from_secs(3_600));
    assert!(rig.found().is_empty(), "the runtime has not answered");
    rig.writer.journal.exists(listed.sandbox.as_ref().unwrap());
    let found = rig.found();
    assert_eq!(roots(&found), [listed.root_id()]);
    assert!(!found[0].root().status.is_error());
    rig.writer.deliver_found(Instant::now() + Duration::from_secs(7_200));
    let found: Vec<_> = rig.delivered.try_iter().collect();
    assert_eq!(roots(&found), [unlisted.root_id()]);
    assert!(found[0].root().status.is_error());
}

#[test]
fn nothing_is_written_where_nothing_changed() {
    let directory = TempDir::new().unwrap();
    let mut rig = Rig::open(directory.path());
    rig.put(&running(1));
    let before = content(directory.path());
    for _ in 0..10 {
        rig.writer.rests.clear();
        rig.put(&running(1));
        rig.writer.write(Instant::now(), false);
    }
    assert_eq!(content(directory.path()), before);
    // A change within a second of the last write waits for its turn.
    let mut later = running(1);
    later.incomplete = true;
    rig.put(&later);
    assert_eq!(content(directory.path()), before);
    assert!(rig.writer.next_due().is_some());
    rig.writer.write(Instant::now() + PAUSE, false);
    assert_ne!(content(directory.path()), before);
    assert!(rig.writer.next_due().is_none());
}

#[test]
fn a_large_trace_rests_longer_between_two_writes() {
    let directory = TempDir::new().unwrap();
    let mut rig = Rig::open(directory.path());
    let mut large = running(2);
    for span in &mut large.spans {
        if let Detail::Operation(operation) = &mut span.detail {
            // Half of it can be compressed away: hexadecimal digits.
            let mut random = 1_u64;
            operation.network = (0..6 * LARGE / 16)
                .map(|_| {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    format!("{random:016x}")
                })
                .collect();
        }
    }
    rig.put(&running(1));
    rig.put(&large);
    let now = Instant::now();
    let rest = |trace: &Trace| rig.writer.rests[&trace.root_id()].saturating_duration_since(now);
    assert!(rest(&running(1)) <= PAUSE);
    assert!(
        rest(&large) > 2 * PAUSE && rest(&large) <= PAUSE * MAX_PAUSES,
        "{:?}",
        rest(&large)
    );
    // Its end is not put off.
    large.closed = true;
    let before = rig.writer.files.as_ref().unwrap().bytes();
    rig.put(&large);
    assert!(rig.writer.files.as_ref().unwrap().bytes() > before);
}

#[test]
fn the_file_is_begun_anew_and_bounded() {
    let directory = TempDir::new().unwrap();
    let mut rig = Rig::open(directory.path());
    let mut largest = 0;
    for number in 0..2_000 {
        rig.put(&running(number));
        if number >= 20 {
            rig.gone(running(number - 20).root_id());
        }
        let files = content(directory.path());
        largest = largest.max(files.iter().map(Vec::len).sum());
        assert!(files.iter().filter(|file| !file.is_empty()).count() <= 1);
    }
    let bound = SPARE_BYTES + 3 * rig.writer.live_bytes as u64 + 4_096;
    assert!((largest as u64) < bound, "{largest} bytes");
    kill(rig);
    let mut rig = Rig::open(directory.path());
    let expected: Vec<Arc<Trace>> = (1_980..2_000).map(|number| Arc::new(running(number))).collect();
    assert_eq!(roots(&rig.found()), roots(&expected));
}

#[test]
fn what_has_no_room_is_counted() {
    let directory = TempDir::new().unwrap();
    let mut rig = Rig::open(directory.path());
    rig.writer.live_bytes = LIVE_BYTES;
    rig.put(&running(1));
    assert_eq!(rig.metrics().unwritten.get(), 1);
    assert!(rig.writer.live.is_empty());
}

#[test]
fn a_torn_tail_is_cut_and_counted() {
    let directory = TempDir::new().unwrap();
    let mut rig = Rig::open(directory.path());
    rig.put(&running(1));
    let one = content(directory.path()).concat().len();
    rig.put(&running(2));
    kill(rig);
    let files = content(directory.path());
    let index = files.iter().position(|file| !file.is_empty()).unwrap();
    let path = directory.path().join("spool").join(JOURNAL_FILES[index]);
    let whole = files[index].clone();
    for length in one..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        for other in JOURNAL_FILES.iter().filter(|name| **name != JOURNAL_FILES[index]) {
            let _ = fs::remove_file(directory.path().join("spool").join(other));
        }
        let mut rig = Rig::open(directory.path());
        assert_eq!(roots(&rig.found()), [running(1).root_id()], "{length}");
        assert_eq!(rig.metrics().cut_bytes.get(), (length - one) as u64);
    }
}

#[test]
fn a_newer_file_is_left_alone_and_the_journal_goes_on() {
    let directory = TempDir::new().unwrap();
    let spool = directory.path().join("spool");
    fs::create_dir(&spool).unwrap();
    let mut newer = file_header(JOURNAL.magic, 7);
    newer[8] = 2;
    let crc = checksum(&newer[..20]);
    newer[20..].copy_from_slice(&crc.to_le_bytes());
    newer.extend_from_slice(b"of another kind");
    fs::write(spool.join(JOURNAL_FILES[0]), &newer).unwrap();
    fs::write(spool.join(JOURNAL_FILES[1]), &newer).unwrap();
    let mut rig = Rig::open(directory.path());
    assert_eq!(
        (rig.metrics().skipped.get(), rig.writer.journal.status().problem),
        (2, None)
    );
    rig.put(&running(1));
    kill(rig);
    let mut rig = Rig::open(directory.path());
    assert_eq!(roots(&rig.found()), [running(1).root_id()]);
    drop(rig);
    fs::write(spool.join(JOURNAL_FILES[2]), &newer).unwrap();
    let rig = Rig::open(directory.path());
    assert!(rig.writer.journal.status().problem.unwrap().contains("newer version"));
    for name in &JOURNAL_FILES[..3] {
        assert_eq!(fs::read(spool.join(name)).unwrap(), newer);
    }
}

#[test]
fn a_directory_that_cannot_be_used_is_tried_again() {
    let directory = TempDir::new().unwrap();
    fs::write(directory.path().join("spool"), "a file").unwrap();
    let mut rig = Rig::open(directory.path());
    assert!(rig.writer.journal.status().problem.unwrap().contains("cannot write"));
    assert_eq!(rig.metrics().failing.get(), 1);
    rig.put(&running(1));
    fs::remove_file(directory.path().join("spool")).unwrap();
    assert!(rig.writer.next_due().is_some());
    rig.writer.open_files();
    assert_eq!(
        (rig.writer.journal.status().problem, rig.metrics().failing.get()),
        (None, 0)
    );
    kill(rig);
    let mut rig = Rig::open(directory.path());
    assert_eq!(roots(&rig.found()), [running(1).root_id()]);
}

/// The same with its thread.
#[test]
fn the_thread_writes_what_it_is_told_and_ends() {
    let directory = TempDir::new().unwrap();
    let journal = Journal::new(Keeper::Export);
    journal.start(&options(directory.path()), Duration::ZERO, Box::new(|_| {}));
    for number in 0..10 {
        journal.put(&Arc::new(running(number)));
    }
    journal.gone(running(3).root_id());
    journal.stop();
    let (sender, delivered) = mpsc::channel();
    let journal = Journal::new(Keeper::Export);
    let deliver = Box::new(move |trace: Arc<Trace>| sender.send(trace.root_id()).unwrap());
    journal.start(&options(directory.path()), Duration::ZERO, deliver);
    let mut found: Vec<RootId> = delivered.iter().take(9).collect();
    found.sort_unstable();
    let expected: Vec<_> = (0..10)
        .filter(|number| *number != 3)
        .map(|number| Arc::new(running(number)))
        .collect();
    assert_eq!(found, roots(&expected));
    found.into_iter().for_each(|root| journal.gone(root));
    journal.stop();
    let left: usize = content(directory.path()).iter().map(Vec::len).sum();
    assert_eq!(left, FILE_HEADER, "nothing is at rest of an agent that has stopped");
}

/// Without a collector: until the store has it, and no longer.
#[test]
fn a_closed_trace_stays_until_the_store_has_written_it() {
    let journal = Journal::new(Keeper::Store);
    let closed = Arc::new(samples::failed("shop", "cart", 4, 0, None));
    journal.close(&closed);
    let seen = journal.closed();
    assert_eq!(seen, [closed.root_id()]);
    let later = Arc::new(samples::failed("shop", "cart", 5, 0, None));
    journal.close(&later);
    journal.kept(seen);
    assert_eq!(journal.closed(), [later.root_id()], "the store had not seen this one");
    let of = std::mem::take(&mut lock(&journal.0.state).of);
    assert!(matches!(of[&closed.root_id()], Change::Gone));
    assert!(matches!(of[&later.root_id()], Change::Put(_)));
    let journal = Journal::new(Keeper::Export);
    journal.close(&closed);
    assert!(journal.closed().is_empty() && lock(&journal.0.state).of.is_empty());
}

#[test]
fn what_nobody_would_keep_is_emptied() {
    let directory = TempDir::new().unwrap();
    let spool = directory.path().join("spool");
    forget(&spool).unwrap();
    assert!(!spool.exists(), "nothing is made where nothing is left");
    let mut rig = Rig::open(directory.path());
    rig.put(&running(1));
    kill(rig);
    forget(&spool).unwrap();
    assert_eq!(content(directory.path()).concat().len(), FILE_HEADER);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Random changes, a restart after each few: what is live comes back, and nothing else.
    #[test]
    fn what_is_live_comes_back(steps in proptest::collection::vec((0_u32..12, 0_u8..8), 1..60)) {
        let directory = TempDir::new().unwrap();
        let mut rig = Rig::open(directory.path());
        let mut live = BTreeSet::new();
        for (number, what) in steps {
            let trace = running(number);
            match what {
                0..4 => {
                    rig.put(&trace);
                    live.insert(trace.root_id());
                }
                4..7 => {
                    rig.gone(trace.root_id());
                    live.remove(&trace.root_id());
                }
                _ => {
                    kill(rig);
                    rig = Rig::open(directory.path());
                    let found = roots(&rig.found());
                    prop_assert_eq!(&found, &live.iter().copied().collect::<Vec<_>>());
                }
            }
        }
    }
}
