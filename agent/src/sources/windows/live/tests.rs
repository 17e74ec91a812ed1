//! The source as it is, ferrisetw included, on a stage in place of ETW.

mod run;

use std::fs::File;
use std::io::{Cursor, Read};
use std::path::Path;
use std::time::Instant;

use ferrisetw::GUID;
use ferrisetw::provider::Provider as EtwProvider;
use flate2::read::GzDecoder;
use sandglass_etw::etl::{EtlReader, ReadOptions};
use sandglass_etw::schema::Schema;
use sandglass_etw::writer::{Record, event_info};
use sandglass_etw::{Decoded, Guid, RawRecord};
use sandglass_fake_etw::{ACCESS_DENIED, FakeEtw, NO_SYSTEM_RESOURCES};
use sandglass_model::Timestamp;
use sandglass_model::windows::{ActivityChange, Service};

use run::{begin, options, running};

use super::intake::guarded;
use super::status::label;
use super::*;
use crate::failure::ExitReason;
use crate::health::SessionLabel;
use crate::sources::windows::file::EtlFile;
use crate::sources::windows::normalize;

const AT: u64 = 1_700_000_000_000_000_000;
const ACTIVITY: Guid = Guid(7);

fn hns(name: &str, opcode: u8, at: u64) -> RawRecord {
    let record = Record::tracelogging(normalize::HNS, "Microsoft.Windows.HostNetworkService", name)
        .at(at)
        .opcode(opcode)
        .activity(ACTIVITY)
        .process_id(900)
        .thread_id(7);
    match opcode {
        1 => record.wil_start().build(),
        _ => record.wil_stop(0).build(),
    }
}

/// What is made of records without any session.
fn facts_of(records: &[RawRecord]) -> Vec<Event> {
    let mut decoder = Decoder::default();
    let mut normalizer = Normalizer::new(ActivityNames::default());
    let mut facts = Vec::new();
    for record in records {
        if let Decoded::Event(event) = decoder.decode(record) {
            normalizer.facts(&event, &mut facts);
        }
    }
    facts
}

/// Session clocks of live records count 100 ns.
fn rounded(mut record: RawRecord) -> RawRecord {
    record.header.at_ns -= record.header.at_ns % 100;
    record
}

#[test]
fn synthetic_records_of_both_sessions_become_facts() {
    let etw = FakeEtw::new();
    let run = running(options(), 64);
    assert_eq!(etw.sessions(), [EVENTS, PROCESSES]);
    let tables = Tables::built_in();
    let start = Record::process(
        &tables,
        1,
        4242,
        900,
        "calico.exe",
        r#""C:\opt\cni\bin\calico.exe" ADD"#,
    )
    .unwrap();
    let start = start.at(AT).build();
    assert!(etw.log(PROCESSES, start.clone()));
    let [started] = &run.take(1)[..] else { panic!() };
    assert_eq!(started.at.0, AT);
    assert_eq!(vec![started.clone()], facts_of(&[start]));

    let attach = [
        hns("EndpointAttachShared", 1, AT + 100),
        hns("EndpointAttachShared", 2, AT + 5_000),
    ];
    for record in &attach {
        etw.log(EVENTS, record.clone());
    }
    let facts = run.take(2);
    assert_eq!(facts, facts_of(&attach));
    assert!(
        facts
            .iter()
            .all(|fact| matches!(&fact.body, Body::ActivitySeen(activity) if activity.service == Service::Hns)),
        "{facts:?}"
    );
    assert_eq!(run.undecodable(), 0);
    run.stop();
}

#[test]
fn sessions_ask_for_what_the_facts_need() {
    let etw = FakeEtw::new();
    let run = running(options(), 64);
    let enabled = etw.enabled(EVENTS);
    assert_eq!(enabled.len(), WANTED.len());
    for (provider, wanted) in enabled.iter().zip(WANTED) {
        assert_eq!(
            (provider.provider, provider.level, provider.keywords),
            (wanted.provider, wanted.level, wanted.keywords)
        );
        // Start keys of all, silos and container ids of those that log inside containers.
        let silos = if wanted.of_containers { 0xc00 } else { 0 };
        assert_eq!(provider.property, 0x80 | silos, "{}", provider.provider);
    }
    // And `doctor` says what it means when one of them is missing.
    for wanted in WANTED.iter().chain([&FLOWS]) {
        let mut judged = crate::doctor::providers::PROVIDERS.iter();
        assert!(judged.any(|known| known.guid == wanted.provider), "{}", wanted.provider);
    }
    assert!(
        enabled
            .iter()
            .any(|provider| provider.provider == normalize::DNS_CLIENT && provider.property == 0xc80)
    );
    // EVENT_TRACE_FLAG_PROCESS
    assert_eq!(etw.kernel_flags(PROCESSES), 1);
    assert_eq!(etw.enabled(PROCESSES), []);
    run.stop();
}

/// The value of an attribute in a line of XML.
fn attribute<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(&format!(" {name}=\""))?;
    rest.split('"').next()
}

#[test]
fn the_profile_for_wpr_takes_what_the_sessions_take() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let text = std::fs::read_to_string(docs.join("sandglass.wprp")).unwrap();
    let (mut ids, mut providers, mut profiles) = (Vec::new(), Vec::new(), Vec::new());
    for line in text.lines().map(str::trim) {
        if line.starts_with("<EventProvider ") {
            ids.push(attribute(line, "Id").unwrap());
            let guid: Guid = attribute(line, "Name").unwrap().parse().unwrap();
            let level: u8 = attribute(line, "Level").unwrap().parse().unwrap();
            // Without keywords all are taken, as with 0.
            providers.push((guid, level, 0));
        } else if let Some(keywords) = attribute(line, "Value").and_then(|value| value.strip_prefix("0x")) {
            providers.last_mut().unwrap().2 = u64::from_str_radix(keywords, 16).unwrap();
        } else if line.starts_with("<Profile ") {
            profiles.push(Vec::new());
        } else if line.starts_with("<EventProviderId ") {
            profiles.last_mut().unwrap().push(attribute(line, "Value").unwrap());
        }
    }
    let wanted = WANTED.iter().chain([&FLOWS]);
    let wanted: Vec<_> = wanted
        .map(|wanted| (wanted.provider, wanted.level, wanted.keywords))
        .collect();
    assert_eq!(providers, wanted);
    assert_eq!(profiles, [&ids[..ids.len() - 1], &ids[..]]);
    // The commands of the page beside it leave none out.
    let page = std::fs::read_to_string(docs.join("windows.md")).unwrap();
    for wanted in WANTED.iter().chain([&FLOWS]) {
        assert!(
            page.contains(&format!("-p \"{{{}}}\"", wanted.provider)),
            "{}",
            wanted.provider
        );
    }
}

#[test]
fn real_records_become_the_same_facts_as_from_their_file() {
    let etw = FakeEtw::new();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("etw/samples/airbus_ShutdownPerfDiagLogger.etl.gz");
    let mut bytes = Vec::new();
    GzDecoder::new(File::open(file).unwrap())
        .read_to_end(&mut bytes)
        .unwrap();
    let mut reader = EtlReader::new(Cursor::new(bytes), ReadOptions::default()).unwrap();
    let mut records = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        records.push(rounded(record.to_raw()));
    }
    let expected: Vec<_> = records
        .iter()
        .filter(|record| record.header.provider == normalize::KERNEL_LOGGER_PROCESS)
        .cloned()
        .collect();
    let expected = facts_of(&expected);
    assert!(expected.len() > 20, "{} facts in the sample", expected.len());
    let run = running(options(), 64);
    // All of them: ferrisetw has no callback for what was not enabled.
    etw.buffers(records.len());
    for record in &records {
        assert!(etw.log(PROCESSES, record.clone()));
    }
    assert_eq!(run.take(expected.len()), expected);
    assert_eq!(run.stop(), []);
}

/// What the correlator makes of events, in order of time.
fn traces(events: Vec<Event>, config: sandglass_correlator::CorrelatorConfig) -> Vec<String> {
    let mut reorder = sandglass_correlator::Reorder::new(60 * 1_000_000_000);
    let mut correlator = sandglass_correlator::Correlator::new(config);
    events.into_iter().for_each(|event| reorder.push(event));
    while let Some(next) = reorder.flush() {
        correlator.handle(next.event);
    }
    correlator.finish();
    let closed = correlator.drain().into_iter().filter_map(|output| match output {
        sandglass_correlator::Output::Closed(trace) => Some(format!("{trace:#?}")),
        _ => None,
    });
    closed.collect()
}

#[test]
fn a_story_seen_live_is_the_story_of_its_file() {
    let etw = FakeEtw::new();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("recordings/windows-l2bridge/events.etl");
    let bytes = std::fs::read(&path).unwrap();
    let mut file = EtlFile::from_bytes("story", bytes.clone(), ActivityNames::default()).unwrap();
    let config = sandglass_correlator::CorrelatorConfig {
        boot_id: file.header.boot_id.clone(),
        anchor: file.header.clock,
        windows: true,
        ..sandglass_correlator::CorrelatorConfig::default()
    };
    let mut replayed = Vec::new();
    while let Some(event) = file.next_event().unwrap() {
        replayed.push(event);
    }
    // Sent by the live source when it starts; the tick that ends a file comes from the pipeline of a node.
    let end = replayed.pop().unwrap();
    assert_eq!(end.body, Body::Tick);
    let run = running(options(), 4_096);
    let mut reader = EtlReader::new(Cursor::new(bytes), ReadOptions::default()).unwrap();
    while let Some(record) = reader.next_record().unwrap() {
        let record = rounded(record.to_raw());
        let session = match record.header.provider {
            normalize::KERNEL_LOGGER_PROCESS => PROCESSES,
            _ => EVENTS,
        };
        assert!(etw.log(session, record));
    }
    let watched = replayed.len() - 1;
    let mut live = vec![Event {
        at: Timestamp(file.header.clock.unix_ns),
        body: Body::TrafficWatched { node_netns: 1 },
    }];
    live.extend(run.take(watched));
    assert_eq!(run.stop(), []);
    live.push(end.clone());
    replayed.push(end);
    let (live, replayed) = (traces(live, config.clone()), traces(replayed, config));
    assert!(live.iter().any(|trace| trace.contains("name: \"network ready\"")));
    assert_eq!(live, replayed);
}

#[test]
fn what_etw_lost_is_reported_and_counted_once() {
    let etw = FakeEtw::new();
    let run = running(options(), 64);
    let of_session = |session: &str| run.health.etw_lost.get_or_create(&SessionLabel::new(session)).get();
    etw.lose(EVENTS, 5, 0);
    let lost = |event: &Event| match &event.body {
        Body::Lost { probe, count } if probe == "etw" => *count,
        other => panic!("{other:?}"),
    };
    assert_eq!(run.take(1).iter().map(lost).sum::<u64>(), 5);
    etw.lose(PROCESSES, 1, 2);
    assert_eq!(run.take(1).iter().map(lost).sum::<u64>(), 3);
    assert_eq!((of_session(EVENTS), of_session(PROCESSES)), (5, 3));
    // Between the last look and the end.
    etw.lose(EVENTS, 7, 0);
    let counted = run.health.lost.get_or_create(&label());
    assert_eq!(run.stop().iter().map(lost).sum::<u64>(), 7);
    assert_eq!(counted.get(), 15);
}

#[test]
fn a_panic_in_a_callback_is_one_record() {
    let etw = FakeEtw::new();
    let health = Health::default();
    let (sent, seen) = channel();
    let callback = guarded(health.clone(), move |record| {
        assert_ne!(record.process_id(), 1, "the bad record of this test");
        sent.send(record.process_id()).unwrap();
    });
    let provider = EtwProvider::by_guid(GUID::from_u128(normalize::HNS.0))
        .add_callback(callback)
        .build();
    let (trace, handle) = UserTrace::new()
        .named("panics".to_owned())
        .enable(provider)
        .start()
        .unwrap();
    let consumer = std::thread::spawn(move || UserTrace::process_from_handle(handle));
    for pid in [1, 2, 1, 3] {
        let record = Record::tracelogging(normalize::HNS, "hns", "Any")
            .process_id(pid)
            .build();
        assert!(etw.log("panics", record));
    }
    let wait = Duration::from_secs(10);
    assert_eq!((seen.recv_timeout(wait), seen.recv_timeout(wait)), (Ok(2), Ok(3)));
    assert_eq!(health.undecodable.get_or_create(&label()).get(), 2);
    trace.stop().unwrap();
    // ERROR_CANCELLED: the callback requests the end.
    let _ = consumer.join().unwrap();
}

#[test]
fn a_full_queue_holds_etw_back_and_loses_nothing_itself() {
    let etw = FakeEtw::new();
    etw.buffers(100);
    let run = running(
        EtwOptions {
            queue_records: 4,
            ..options()
        },
        2,
    );
    // Nobody takes events. Two wait for the pipeline, one in the decoder's hands, four in the queue, one in the callback's.
    let log = |count: u64, from: u64| {
        for number in from..from + count {
            assert!(etw.log(EVENTS, hns("Endpoint", 1, AT + number * 100)));
        }
    };
    log(100, 0);
    assert!(
        etw.until(|| etw.waiting_and_lost(EVENTS).0 == 92),
        "{:?}",
        etw.waiting_and_lost(EVENTS)
    );
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(etw.waiting_and_lost(EVENTS), (92, 0));
    // ETW's buffers are what overflows, and ETW counts it.
    log(11, 100);
    assert_eq!(etw.waiting_and_lost(EVENTS), (100, 3));
    let mut times = Vec::new();
    let mut lost = 0;
    for event in run.take(109) {
        match event.body {
            Body::Lost { count, .. } => lost += count,
            _ => times.push((event.at.0 - AT) / 100),
        }
    }
    assert_eq!(lost, 3);
    assert_eq!(times, (0..108).collect::<Vec<_>>());
    run.stop();
}

#[test]
fn sessions_left_behind_are_stopped_first() {
    let etw = FakeEtw::new();
    etw.leave_behind(EVENTS);
    etw.leave_behind(PROCESSES);
    etw.leave_behind("of-somebody-else");
    let run = running(options(), 64);
    assert_eq!(etw.enabled(EVENTS).len(), WANTED.len());
    run.stop();
    assert_eq!(etw.sessions(), ["of-somebody-else"]);
}

#[test]
fn without_the_kernel_logger_it_runs_on_and_reports_it() {
    let etw = FakeEtw::new();
    etw.refuse(PROCESSES, ACCESS_DENIED);
    let run = running(options(), 64);
    assert!(run.probe("etw").attached);
    let exec = run.probe("exec");
    assert!(
        !exec.attached && exec.consequence.contains("no command lines"),
        "{exec:?}"
    );
    assert!(
        exec.consequence.contains("0x80070005") && exec.hint.contains("SYSTEM"),
        "{exec:?}"
    );
    etw.log(EVENTS, hns("Endpoint", 1, AT));
    assert_eq!(run.take(1).len(), 1);
    run.stop();
}

#[test]
fn a_refused_session_is_an_error_with_code_and_hint() {
    for (refusal, code, hint) in [
        (ACCESS_DENIED, 77, "administrator"),
        (NO_SYSTEM_RESOURCES, 69, "64 sessions"),
    ] {
        let etw = FakeEtw::new();
        etw.refuse(EVENTS, refusal);
        let (error, health) = *begin(options(), 64).err().unwrap();
        assert_eq!(error.exit().code(), code, "{error}");
        assert!(error.hint().contains(hint), "{error}");
        assert!(error.to_string().contains("sandglass-events"), "{error}");
        assert!(
            health
                .probes()
                .iter()
                .any(|probe| probe.probe == "etw" && !probe.attached)
        );
        assert_eq!((etw.sessions(), etw.consumers()), (vec![], 0));
    }
    // Started, but it cannot have a provider: nothing of it stays.
    let etw = FakeEtw::new();
    etw.refuse_provider(normalize::DNS_CLIENT, ACCESS_DENIED);
    let (error, _) = *begin(options(), 64).err().unwrap();
    assert_eq!(error.exit(), ExitReason::NoPermission);
    assert_eq!(etw.sessions(), Vec::<String>::new());
}

#[test]
fn a_stop_ends_sessions_and_threads() {
    let etw = FakeEtw::new();
    let run = running(options(), 64);
    assert!(etw.until(|| etw.consumers() == 2));
    let began = Instant::now();
    run.stop();
    assert!(began.elapsed() < Duration::from_secs(20));
    assert_eq!((etw.sessions(), etw.consumers()), (vec![], 0));
}

#[test]
fn a_session_stopped_by_somebody_else_is_no_longer_attached() {
    let etw = FakeEtw::new();
    let run = running(options(), 64);
    stop_trace_by_name(EVENTS).unwrap();
    assert!(etw.until(|| !run.probe("etw").attached));
    assert!(run.probe("etw").consequence.contains("stopped from outside"));
    assert!(run.probe("exec").attached);
    run.stop();
}

#[test]
fn a_layout_that_no_table_has_is_queried_once() {
    let etw = FakeEtw::new();
    let tables = Tables::built_in();
    // Of a newer Windows, laid out as one that is known.
    let schema: Arc<Schema> = tables.event(normalize::DNS_CLIENT, 3_008, 0).unwrap().clone();
    let (described, unknown) = (60_008, 60_009);
    assert!(tables.event(normalize::DNS_CLIENT, described, 0).is_none());
    let info = event_info(normalize::DNS_CLIENT, described, 0, &schema);
    etw.describe(normalize::DNS_CLIENT, described, 0, info);
    let record = |id| {
        let mut record = Record::manifest(&tables, "Microsoft-Windows-DNS-Client", 3_008, 0)
            .unwrap()
            .text("QueryName", "a.example")
            .build();
        record.header.id = id;
        record
    };
    let run = running(options(), 64);
    for _ in 0..3 {
        etw.log(EVENTS, record(described));
    }
    etw.log(EVENTS, hns("Endpoint", 1, AT));
    assert_eq!(run.take(1).len(), 1);
    // Its length, then all of it, for the first of them.
    assert_eq!((etw.questions(), run.undecodable()), (2, 0));
    // What TDH does not know either is counted, and not queried again.
    for _ in 0..3 {
        etw.log(EVENTS, record(unknown));
    }
    assert!(etw.until(|| run.undecodable() == 3));
    assert_eq!(etw.questions(), 3);
    run.stop();
}

#[test]
fn windows_is_queried_before_a_layout_that_is_inferred() {
    let etw = FakeEtw::new();
    let mut elsewhere = Tables::built_in();
    let row =
        "Microsoft-Windows-Hyper-V-Compute\t2003\t0\tx\tUInt64 Serial, UnicodeString SystemId, UInt32 Result:code";
    elsewhere
        .extend("newer", &format!("provider\tevent_id\tversion\tname\tfields\n{row}"))
        .unwrap();
    let schema = elsewhere.event(normalize::HYPER_V_COMPUTE, 2_003, 0).unwrap().clone();
    let info = event_info(normalize::HYPER_V_COMPUTE, 2_003, 0, &schema);
    etw.describe(normalize::HYPER_V_COMPUTE, 2_003, 0, info);
    let record = |tables: &Tables, id| {
        let record = Record::manifest(tables, "Microsoft-Windows-Hyper-V-Compute", id, 0).unwrap();
        record.text("SystemId", "abc").u32("Result", 0x8037_0110).at(AT).build()
    };
    let run = running(options(), 64);
    etw.log(EVENTS, record(&elsewhere, 2_003));
    // One that Windows does not describe either is read by our table.
    etw.log(EVENTS, record(&Tables::built_in(), 2_000));
    for fact in run.take(4).iter().skip(1).step_by(2) {
        let Body::ActivitySeen(step) = &fact.body else { panic!() };
        let stopped = ActivityChange::Stopped {
            result: Some(0x8037_0110),
            message: String::new(),
        };
        assert_eq!((&step.step, step.activity.as_str()), (&stopped, "abc"));
    }
    run.stop();
}

#[test]
fn flows_of_the_virtual_switch_come_when_configured_and_end_in_time() {
    let etw = FakeEtw::new();
    let flows = |etw: &FakeEtw| {
        let enabled = etw.enabled(EVENTS);
        enabled.into_iter().find(|provider| provider.provider == normalize::VFP)
    };
    let run = running(options(), 64);
    assert_eq!(flows(&etw), None);
    run.stop();

    let mut known = Tables::built_in();
    let fields = "UInt32 IsMain, UInt32 IpProtocol, UInt32 SrcIpv4Addr:ipv4, UInt32 DstIpv4Addr:ipv4, UInt16 SrcPort:port, \
                  UInt16 DstPort:port, Pointer UnifiedFlow";
    let row = format!("Microsoft-Windows-Hyper-V-VfpExt\t600\t0\t\t{fields}");
    known
        .extend("vfp", &format!("provider\tevent_id\tversion\tname\tfields\n{row}"))
        .unwrap();
    let schema = known.event(normalize::VFP, 600, 0).unwrap().clone();
    etw.describe(normalize::VFP, 600, 0, event_info(normalize::VFP, 600, 0, &schema));
    let record = || {
        let record = Record::manifest(&known, "Microsoft-Windows-Hyper-V-VfpExt", 600, 0).unwrap();
        let ip = |last: u8| sandglass_etw::Value::Ip([10, 0, 0, last].into());
        let record = record.u32("IsMain", 1).u32("IpProtocol", 17).u64("UnifiedFlow", 9);
        let record = record.value("SrcIpv4Addr", ip(1)).value("DstIpv4Addr", ip(2));
        record.u32("SrcPort", 1_024).u32("DstPort", 53).at(AT).build()
    };
    let options = EtwOptions {
        vfp: Duration::from_secs(2),
        ..options()
    };
    let run = running(options, 64);
    let provider = flows(&etw).unwrap();
    assert_eq!((provider.level, provider.keywords), (4, 0x00c8_0000));
    etw.log(EVENTS, record());
    let Body::FlowSeen(flow) = &run.take(1)[0].body else {
        panic!()
    };
    assert_eq!(
        (flow.source.to_string(), flow.destination.port()),
        ("10.0.0.1:1024".to_owned(), 53)
    );
    assert!(etw.until(|| flows(&etw).is_none()));
    // The rest goes on.
    assert_eq!(etw.enabled(EVENTS).len(), WANTED.len());
    etw.log(EVENTS, hns("Endpoint", 1, AT));
    assert_eq!(run.take(1).len(), 1);
    assert!(run.probe("etw").attached);
    run.stop();
}

#[test]
fn a_file_is_written_by_one_session_with_all_providers() {
    let etw = FakeEtw::new();
    etw.leave_behind("sandglass-record");
    let file = file::record(Path::new("/tmp/node.etl"), defaults::ETW_BUFFER_KIB).unwrap();
    assert_eq!(etw.file("sandglass-record").as_deref(), Some("/tmp/node.etl"));
    assert_eq!(etw.enabled("sandglass-record").len(), WANTED.len());
    assert_eq!(etw.kernel_flags("sandglass-record"), 1);
    etw.lose("sandglass-record", 2, 0);
    assert_eq!(file.stop(), 2);
    assert_eq!(etw.sessions(), Vec::<String>::new());
    etw.refuse("sandglass-record", ACCESS_DENIED);
    let error = file::record(Path::new("node.etl"), defaults::ETW_BUFFER_KIB)
        .err()
        .unwrap();
    assert_eq!(error.exit(), ExitReason::NoPermission, "{error}");
}
