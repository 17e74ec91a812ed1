//! Real files, against what independent readers found in them (`samples/README.md`).

use std::collections::BTreeMap;
use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandglass_etw::event::Value;
use sandglass_etw::{Decoded, Decoder, EtlReader, EtwEvent, FileTime, Filter, Guid, ReadOptions, Tables};

use crate::{events, open};

pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("samples")
}

pub fn sample(name: &str) -> Vec<u8> {
    let bytes = std::fs::read(directory().join(name)).unwrap();
    if !name.ends_with(".gz") {
        return bytes;
    }
    let mut whole = Vec::new();
    flate2::read::GzDecoder::new(&bytes[..])
        .read_to_end(&mut whole)
        .unwrap();
    whole
}

pub const NAMES: [&str; 8] = [
    "airbus_AMSITrace.etl.gz",
    "airbus_ShutdownPerfDiagLogger.etl.gz",
    "krabsetw_powershell.etl.gz",
    "perfview_SelfDescribingSingleEvent.etl",
    "perfview_net.4.5.2.x64.reduced.etl",
    "perfview_primitive-types.etl",
    "s4_WindowsUpdate.20251008.etl",
    "etwanalyzer_TraceLoggingTester.reduced.etl.gz",
];

fn by_name(events: &[EtwEvent]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for event in events {
        *counts.entry(event.name.as_deref().unwrap_or_default()).or_default() += 1;
    }
    counts
}

#[test]
fn amsi_trace() {
    let mut reader = open(sample("airbus_AMSITrace.etl.gz"));
    let events: Vec<EtwEvent> = reader.by_ref().map(Result::unwrap).collect();
    assert_eq!(by_name(&events), BTreeMap::from([("AmsiScript", 19)]));
    assert!(
        events
            .iter()
            .all(|event| event.provider == Guid::literal("8e805eb3-6a8f-4a1e-90fa-a831d94e54a1"))
    );
    assert_eq!(events[0].provider_name.as_deref(), Some("AmsiTrace"));
    assert_eq!(reader.statistics().buffers, 6);
    assert_eq!(reader.statistics().events_lost, 3);
    assert_eq!(reader.session().name.as_ref(), "AMSITraceSession");
    assert_eq!((reader.session().os_build, reader.session().processors), (18362, 8));
    // 2020-02-17, 13:48 to 13:50 UTC, over four processors.
    assert!(events.is_sorted_by_key(|event| event.at_ns));
    let (started, ended) = (reader.session().started_ns, reader.session().ended_ns);
    assert!(events.iter().all(|event| (started..=ended).contains(&event.at_ns)));
    assert_eq!(started / 1_000_000_000, 1_581_943_710);
}

#[test]
fn kernel_logger_with_command_lines() {
    let mut reader = open(sample("airbus_ShutdownPerfDiagLogger.etl.gz"));
    let events: Vec<EtwEvent> = reader.by_ref().map(Result::unwrap).collect();
    let expected = [
        ("Process/DCEnd", 37),
        ("Process/DCStart", 94),
        ("Process/Defunct", 5),
        ("Process/End", 60),
        ("Process/Terminate", 60),
    ];
    assert_eq!(by_name(&events), BTreeMap::from(expected));
    let svchost = events
        .iter()
        .find(|event| event.text("ImageFileName") == Some("svchost.exe"))
        .unwrap();
    assert!(
        svchost.text("CommandLine").unwrap().contains("svchost.exe -k"),
        "{svchost:?}"
    );
    assert!(svchost.text("UserSID").unwrap().starts_with("S-1-5-"));
    assert!(events.iter().all(|event| !event.truncated));
    assert_eq!(reader.statistics().kernel_other, 16_750);
    let defunct = events.iter().find(|event| event.opcode == 39).unwrap();
    let exited = defunct.get("ExitTime").and_then(Value::unix_ns).unwrap();
    // Ended before the rundown that reports it, and after the boot.
    assert!(
        (reader.session().booted_ns..=defunct.at_ns).contains(&exited),
        "{defunct:?}"
    );
}

#[test]
fn manifest_events_without_a_schema_are_counted() {
    let mut reader = open(sample("krabsetw_powershell.etl.gz"));
    assert_eq!(reader.by_ref().count(), 0);
    assert_eq!(reader.counts().no_schema, 112);
    let powershell = Guid::literal("a0c1853b-5c40-4b15-8766-3cf1c58f985a");
    assert_eq!(reader.decoder().without_schema(), &BTreeMap::from([(powershell, 112)]));
    assert_eq!(reader.statistics().buffers, 26);
    assert_eq!(reader.session().processors, 32);
}

#[test]
fn compressed_and_merged() {
    let mut reader = open(sample("perfview_SelfDescribingSingleEvent.etl"));
    let events: Vec<EtwEvent> = reader.by_ref().map(Result::unwrap).collect();
    assert_eq!(by_name(&events), BTreeMap::from([("TestEvent", 1)]));
    assert_eq!(
        events[0].provider,
        Guid::literal("a61ea624-4944-55fc-c2a8-37838829438d")
    );
    let statistics = reader.statistics();
    assert_eq!((statistics.buffers, statistics.compressed_buffers), (3, 2));
    // Eighteen classic events of the merge step.
    assert_eq!((statistics.records, reader.counts().no_schema), (19, 18));
}

#[test]
fn windows_update() {
    let mut reader = open(sample("s4_WindowsUpdate.20251008.etl"));
    let events: Vec<EtwEvent> = reader.by_ref().map(Result::unwrap).collect();
    let expected = [
        ("Agent", 27),
        ("ComApi", 22),
        ("Deployment", 14),
        ("DownloadManager", 1),
        ("IdleTimer", 2),
        ("Misc", 12),
        ("Shared", 2),
    ];
    assert_eq!(by_name(&events), BTreeMap::from(expected));
    assert!(events.iter().all(|event| !event.truncated && !event.fields.is_empty()));
    assert_eq!(reader.statistics().events_lost, 41);
}

#[test]
fn every_primitive_type() {
    let events = events(sample("perfview_primitive-types.etl"));
    assert_eq!(events.len(), 5);
    let mercury = &events[0];
    assert_eq!(mercury.text("string_type"), Some("Mercury"));
    assert_eq!(mercury.get("boolean_type"), Some(&Value::Bool(false)));
    assert_eq!(mercury.text("char_type"), Some("M"));
    assert_eq!(mercury.get("int16_type"), Some(&Value::I64(-51)));
    assert_eq!(mercury.get("int32_type"), Some(&Value::I64(-102)));
    assert_eq!(mercury.u64("uint16_type"), Some(51));
    assert_eq!(mercury.u64("uint32_type"), Some(102));
    // The program that wrote it declared it unsigned.
    assert_eq!(mercury.u64("int64_type"), Some(-204_i64 as u64));
    assert_eq!(mercury.u64("uint64_type"), Some(204));
    assert_eq!(
        mercury.guid("guid_type").unwrap().to_string(),
        "0ad614c4-0ef4-4225-8013-f44f37cb0397"
    );
    assert_eq!(
        mercury.get("file_time_type"),
        Some(&Value::FileTime(FileTime(132_756_731_757_990_000)))
    );
    assert_eq!(
        mercury.get("system_time_type"),
        Some(&Value::FileTime(FileTime(132_756_731_757_990_000)))
    );
    assert_eq!(events[1].get("boolean_type"), Some(&Value::Bool(true)));
}

#[test]
fn schemas_that_travel_in_the_file() {
    let mut reader = open(sample("perfview_net.4.5.2.x64.reduced.etl"));
    let events: Vec<EtwEvent> = reader.by_ref().map(Result::unwrap).collect();
    assert_eq!((reader.counts().learned, reader.counts().truncated), (18, 0));
    assert_eq!(reader.statistics().compressed_buffers, 6);
    let dns: Vec<&EtwEvent> = events.iter().filter(|event| event.id == 1001).collect();
    assert_eq!(dns.len(), 4);
    assert_eq!(dns[0].name.as_deref(), Some("DnsServerForInterface"));
    assert!(
        dns[0].get("Address").and_then(Value::socket_addr).is_some(),
        "{:?}",
        dns[0]
    );
    let start = events
        .iter()
        .find(|event| event.name.as_deref() == Some("Process/Start"))
        .unwrap();
    assert_eq!(
        (start.u64("ProcessId"), start.u64("ParentId")),
        (Some(3676), Some(3508))
    );
    assert_eq!(start.text("CommandLine"), Some("Test.x64.exe"));
    // The manifest event of the same start holds its time in system time: our reckoning from the counter agrees.
    let twin = events
        .iter()
        .find(|event| event.name.as_deref() == Some("ProcessStart"))
        .unwrap();
    let created = twin.get("CreateTime").and_then(Value::unix_ns).unwrap();
    assert!(created.abs_diff(twin.at_ns) < 20_000_000, "{created} {}", twin.at_ns);
}

/// Kernel-Process events of a real machine, once by the schema that Windows put into the file and once by our tables.
#[test]
fn tables_agree_with_windows_own_schema() {
    let file = sample("perfview_net.4.5.2.x64.reduced.etl");
    let provider = Guid::literal("22fb2cd6-0e7b-422b-a0c7-2fad1fd0e716");
    let options = ReadOptions {
        filter: Filter::default().only([provider]),
        ..ReadOptions::default()
    };
    let mut reader = EtlReader::new(Cursor::new(file), options).unwrap();
    let mut by_windows = Decoder::new(Arc::new(Tables::empty()));
    let mut by_tables = Decoder::default();
    let mut compared = 0;
    while let Some(record) = reader.next_record().unwrap() {
        let windows = by_windows.decode_view(&record);
        if record.header.provider != provider {
            continue;
        }
        let (Decoded::Event(windows), Decoded::Event(tables)) = (windows, by_tables.decode_view(&record)) else {
            panic!("not decoded");
        };
        assert_eq!(windows.fields, tables.fields);
        compared += 1;
    }
    assert_eq!(compared, 2);
}

/// Windows build 26100, that of Server 2025.
#[test]
fn tracelogging_of_dotnet_with_arrays_and_processes_of_a_new_build() {
    let mut reader = open(sample("etwanalyzer_TraceLoggingTester.reduced.etl.gz"));
    let events: Vec<EtwEvent> = reader.by_ref().map(Result::unwrap).collect();
    assert_eq!(
        (reader.session().os_build, reader.session().buffer_bytes),
        (26_100, 1_048_576)
    );
    assert!(events.iter().all(|event| !event.truncated));
    let all = "MarkBoolByteCharDoubleInt16Int32Int64SByteUInt16UInt32UInt64";
    let expected = [
        ("MarkString", 10),
        ("MarkStringInteger", 10),
        (all, 10),
        ("Process/DCEnd", 35),
        ("Process/Start", 1),
        ("WriteDateTime", 10),
        ("WriteGuid", 10),
        ("WriteIntList", 10),
        ("WriteTimeSpan", 10),
    ];
    assert_eq!(by_name(&events), BTreeMap::from(expected));
    let named = |name: &str| events.iter().find(|event| event.name.as_deref() == Some(name)).unwrap();
    let list = [0, 2, 3, 4].map(Value::I64).to_vec();
    assert_eq!(named("WriteIntList").get("numbers"), Some(&Value::List(list)));
    assert_eq!(named("WriteGuid").guid("guid"), Some(Guid(1)));
    assert_eq!(named(all).get("d").map(Value::to_string).as_deref(), Some("3.14"));
    assert_eq!(named(all).get("i64"), Some(&Value::I64(i64::MAX)));
    assert_eq!(named(all).text("c"), Some("A"));
    let start = named("Process/Start");
    assert!(start.text("CommandLine").unwrap().contains("wpr"), "{start:?}");
    assert!(start.at_ns >= reader.session().started_ns && start.at_ns <= reader.session().ended_ns);
}
