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
use std::sync::{Arc, OnceLock};

use proptest::prelude::*;
use sandglass::sources::windows::file::EtlFile;
use sandglass::sources::windows::normalize::ActivityNames;
use sandglass_correlator::{Correlator, CorrelatorConfig, Output, Reorder};
use sandglass_etw::Tables;
use sandglass_etw::event::Value;
use sandglass_etw::writer::{EtlWriter, Record, Session};
use sandglass_model::network::FlowChange;
use sandglass_model::{Body, Detail, Trace, phases};

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
    let config = CorrelatorConfig {
        boot_id: file.header.boot_id.clone(),
        anchor: file.header.clock,
        windows: true,
        ..CorrelatorConfig::default()
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
    "hcs ClientLib_BeginOperation took 255 ms of 1.42 s",
    "command powershell of plugin antrea took 4.64 s of 6.21 s (74 %)",
    "wait for vnic took 3.",
    "hns EndpointAttachShared failed: endpoint in invalid state (0x803b0017)",
    "wait for vnic took 425 ms of 1.02 s",
    "lookup of db.shop.svc.cluster.local took 2.00 s",
    "hns RequestHandler failed: interrupted: HNS went down",
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

/// A capture of VFP's flows with their layout, as merging puts it into a file, in which a session lost something.
fn flows_with_their_layout() -> Vec<u8> {
    let mut tables = Tables::built_in();
    let fields = "UInt32 IsMain, UInt32 IpProtocol, UInt32 SrcIpv4Addr:ipv4, UInt32 DstIpv4Addr:ipv4, UInt16 SrcPort:port, \
                  UInt16 DstPort:port, UnicodeString Transposition, Pointer UnifiedFlow";
    let rows: String = [600, 608]
        .iter()
        .map(|id| format!("Microsoft-Windows-Hyper-V-VfpExt\t{id}\t0\t\t{fields}\n"))
        .collect();
    tables
        .extend("vfp", &format!("provider\tevent_id\tversion\tname\tfields\n{rows}"))
        .unwrap();
    let start = 1_767_225_600_000_000_000;
    let session = Session {
        started_ns: start,
        ..Session::default()
    };
    let tables = Arc::new(tables);
    let mut writer = EtlWriter::new(session).with_schemas(Arc::clone(&tables));
    for (id, after) in [(600, 5), (608, 90)] {
        let record = Record::manifest(&tables, "Microsoft-Windows-Hyper-V-VfpExt", id, 0).unwrap();
        let record = record
            .u32("IsMain", 1)
            .u32("IpProtocol", 6)
            .value("SrcIpv4Addr", Value::Ip([10, 244, 1, 11].into()))
            .value("DstIpv4Addr", Value::Ip([10, 96, 0, 1].into()))
            .u32("SrcPort", 49_001)
            .u32("DstPort", 443)
            .text("Transposition", "IpHeaderAction=Modify (DstIp=10.244.1.9)");
        writer.push(record.at(start + after * 1_000_000).build());
    }
    writer.lose(start + 1_000_000, 0, 41, 0);
    writer.finish()
}

#[test]
fn flows_of_a_file_are_taken_when_it_brings_their_layout() {
    let mut file = EtlFile::from_bytes("flows", flows_with_their_layout(), ActivityNames::default()).unwrap();
    let mut flows = Vec::new();
    while let Some(event) = file.next_event().unwrap() {
        if let Body::FlowSeen(flow) = event.body {
            flows.push((flow.change, flow.source.to_string(), flow.reply_source.to_string()));
        }
    }
    let flow = |change| (change, "10.244.1.11:49001".to_owned(), "10.244.1.9:443".to_owned());
    assert_eq!(flows, [flow(FlowChange::New), flow(FlowChange::Destroyed)]);
    assert_eq!((file.unused().undecodable, file.unused().lost), (0, 41));
}

#[test]
fn a_loss_is_counted_by_the_marks_of_a_file_that_was_not_ended_in_order() {
    let mut bytes = flows_with_their_layout();
    // The header's count: behind the headers of buffer and record, `TRACE_LOGFILE_HEADER.EventsLost`.
    let count = 0x48 + 0x20 + 48;
    assert_eq!(bytes[count..count + 4], 41_u32.to_le_bytes());
    bytes[count..count + 4].fill(0);
    let mut file = EtlFile::from_bytes("cut", bytes, ActivityNames::default()).unwrap();
    let mut reported = 0;
    while let Some(event) = file.next_event().unwrap() {
        reported += usize::from(matches!(event.body, Body::Lost { count: 1, .. }));
    }
    assert_eq!((reported > 0, file.unused().lost), (true, 1));
}

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
