//! Synthetic sessions: every clock, compressed buffers, losses, order over processors, and the fields of a pod start.

use std::io::Cursor;
use std::sync::Arc;

use proptest::prelude::*;
use sandglass_etw::etl::{ClockKind, learn_schemas};
use sandglass_etw::event::Value;
use sandglass_etw::schema::{Count, FieldSpec, Kind, Out};
use sandglass_etw::writer::{EtlWriter, Record, Session, event_info};
use sandglass_etw::{Decoded, Decoder, EtlEvents, EtwEvent, FileTime, Filter, Guid, ReadOptions, Tables};

use crate::story::{self, CONTAINERD, ENDPOINT, HNS, REQUEST, SILO, START};
use crate::{TABLES, decoder, events, open, open_all};

fn small(compressed: bool) -> Session {
    Session {
        buffer_bytes: 2048,
        compressed,
        ..Session::default()
    }
}

/// What the file must give: the story as the decoder sees it live.
fn live() -> Vec<EtwEvent> {
    let tables = TABLES.clone();
    let mut decoder = Decoder::new(tables.clone());
    let decoded = story::records(&tables)
        .into_iter()
        .map(|record| decoder.decode(&record));
    decoded
        .filter_map(|decoded| match decoded {
            Decoded::Event(event) => Some(event),
            _ => None,
        })
        .collect()
}

#[test]
fn a_file_gives_what_the_session_gave_live() {
    let expected = live();
    assert_eq!(expected.len(), 14);
    for compressed in [false, true] {
        assert_eq!(
            events(story::file(small(compressed), false)),
            expected,
            "compressed: {compressed}"
        );
    }
}

#[test]
fn schema_records_say_the_same_as_the_tables() {
    let file = story::file(small(true), true);
    let options = ReadOptions::default();
    let mut bare = EtlEvents::new(Cursor::new(file), options, Decoder::new(Arc::new(Tables::empty()))).unwrap();
    let mut manifest = 0;
    let expected = live();
    while let Some(event) = bare.next_event().unwrap() {
        let twin = expected.iter().find(|one| one.at_ns == event.at_ns).unwrap();
        assert_eq!(event.fields, twin.fields);
        assert_eq!(event.name, twin.name);
        manifest += u32::from(event.id != 0);
    }
    assert_eq!(manifest, 5);
    assert_eq!(bare.counts().learned, 5);
    // The kernel logger has no schema records: without tables its two process events stay closed.
    assert_eq!(bare.counts().no_schema, 2);
}

#[test]
fn fields_of_the_story() {
    let events = events(story::file(small(false), false));
    let named = |name: &str| {
        events
            .iter()
            .filter(|event| event.name.as_deref() == Some(name))
            .collect::<Vec<_>>()
    };
    let process = named("Process/Start")[0];
    assert_eq!(process.text("CommandLine"), Some(r"C:\cni\sdnbridge.exe"));
    assert_eq!(process.text("ImageFileName"), Some("sdnbridge.exe"));
    assert_eq!(process.text("UserSID"), Some("S-1-5-18"));
    assert_eq!(
        (process.u32("ProcessId"), process.u32("ParentId"), process.pid),
        (Some(4242), Some(1000), 1000)
    );

    let request = named("RequestHandler");
    assert!(request[0].is_start() && request[1].is_stop());
    assert_eq!(request[0].text("method"), Some("POST"));
    assert_eq!(request[0].provider, HNS);
    assert_eq!(request[0].provider_name.as_deref(), Some("Microsoft.Windows.HNS"));
    assert_eq!((request[0].activity, request[1].code("hresult")), (REQUEST, Some(0)));

    let endpoint = named("EndpointActivity")[0];
    assert_eq!(
        (endpoint.activity, endpoint.related_activity),
        (ENDPOINT, Some(REQUEST))
    );
    assert_eq!(endpoint.guid("endpointId"), Some(ENDPOINT));
    assert_eq!(endpoint.u64("threadId"), Some(7));

    let failed = named("EndpointAttachShared")[1];
    assert_eq!(failed.code("hresult"), Some(story::failure().hresult));
    assert_eq!(failed.text("callContext"), Some(story::failure().call_context));
    assert_eq!(failed.text("message"), Some("wrong state ⚠"));
    assert_eq!(failed.get("wilActivity").unwrap().fields().unwrap().len(), 14);

    let containerd = events.iter().find(|event| event.provider == CONTAINERD).unwrap();
    assert!(containerd.text("Message").unwrap().starts_with("RunPodSandbox for"));
    assert_eq!((containerd.at_ns, containerd.pid), (START + 1_000_000, 1000));
}

#[test]
fn addresses_and_ids_of_the_story() {
    let events = events(story::file(small(false), false));
    let of = |id: u16| events.iter().find(|event| event.id == id).unwrap();
    let query = of(3006);
    assert_eq!(query.provider_name.as_deref(), Some("Microsoft-Windows-DNS-Client"));
    assert_eq!((query.container_id, query.process_start_key), (Some(SILO), Some(77)));
    assert_eq!(of(3008).u32("QueryStatus"), Some(9003));
    let address = |event: &EtwEvent, name: &str| event.get(name).and_then(Value::socket_addr).unwrap().to_string();
    assert_eq!(address(of(1001), "InternalSrcAddr"), "172.20.1.5:50000");
    assert_eq!(address(of(1001), "ExternalDstAddr"), "10.96.0.1:443");
    assert_eq!(
        (of(1001).u32("InternalAddrLen"), of(1001).u32("InternalCompartmentId")),
        (Some(16), Some(3))
    );
    assert_eq!(address(of(1033), "RemoteAddress"), "[fd00::1]:443");
    assert_eq!(of(1033).u64("Tcb"), Some(0xffff_9000_1234_5678));
    assert_eq!(of(13).guid("ContainerID"), Some(SILO));
}

#[test]
fn every_clock_gives_the_same_times() {
    let expected: Vec<u64> = live().iter().map(|event| event.at_ns).collect();
    for (clock, frequency) in [
        (ClockKind::PerformanceCounter, 10_000_000),
        (ClockKind::PerformanceCounter, 3_000_000_000),
        (ClockKind::SystemTime, 10_000_000),
        (ClockKind::CpuCycles, 2_400_000_000),
    ] {
        let session = Session {
            clock,
            frequency,
            ..small(false)
        };
        let mut reader = open(story::file(session, false));
        let times: Vec<u64> = reader.by_ref().map(|event| event.unwrap().at_ns).collect();
        assert_eq!(times, expected, "{clock:?} {frequency}");
        assert_eq!((reader.session().clock, reader.session().frequency), (clock, frequency));
        assert_eq!(reader.session().started_ns, START);
    }
}

fn numbered(session: Session, count: u64, cpus: u64) -> EtlWriter {
    let mut writer = EtlWriter::new(session);
    for number in 0..count {
        // Busy processors fill buffers while slow ones hold one open for long.
        let cpu = (0..cpus).find(|cpu| number % (7 << cpu) != 0).unwrap_or_default() as u16;
        let record = Record::tracelogging(HNS, "HNS", "Tick").u64("number", number).cpu(cpu);
        writer.push(record.at(START + number * 1000).build());
    }
    writer
}

#[test]
fn processors_are_merged_in_time_order() {
    for compressed in [false, true] {
        let mut reader = open(numbered(small(compressed), 3000, 6).finish());
        let numbers: Vec<u64> = reader
            .by_ref()
            .map(|event| event.unwrap().u64("number").unwrap())
            .collect();
        assert_eq!(numbers, (0..3000).collect::<Vec<_>>());
        assert_eq!(reader.statistics().late, 0);
        assert!(reader.statistics().buffers > 100, "{:?}", reader.statistics());
        assert!(!reader.statistics().incomplete());
    }
}

#[test]
fn memory_is_that_of_what_overlaps_in_time() {
    let file = numbered(small(false), 20_000, 4).finish();
    let mut reader = open(file.clone());
    assert_eq!(reader.by_ref().count(), 20_000);
    let peak = reader.statistics().peak_open_bytes as usize;
    assert!(peak < file.len() / 20, "{peak} of {}", file.len());
}

/// As `with_schemas`, but each schema comes behind its events.
#[test]
fn schemas_behind_their_events_can_be_learned_first() {
    let mut writer = EtlWriter::new(small(false));
    let (mut info, mut events) = (Vec::new(), 0);
    for record in story::records(&TABLES)
        .into_iter()
        .filter(|record| record.header.id != 0)
    {
        let header = record.header;
        let schema = TABLES.event(header.provider, header.id, header.version).unwrap();
        info.push(event_info(header.provider, header.id, header.version, schema));
        writer.push(record);
        events += 1;
    }
    for info in info {
        let class = "bbccf6c1-6cd1-48c4-80ff-839482e37671".parse().unwrap();
        writer.push(Record::classic(class, 32, 0, &info).at(START + 999_000_000).build());
    }
    let file = writer.finish();
    let empty = || Decoder::new(Arc::new(Tables::empty()));
    let count = |decoder| {
        let events = EtlEvents::new(Cursor::new(&file), ReadOptions::default(), decoder).unwrap();
        events.map(Result::unwrap).count()
    };
    assert_eq!(count(empty()), 0);
    assert_eq!(count(learn_schemas(Cursor::new(&file), empty()).unwrap()), events);
}

#[test]
fn too_little_memory_costs_order_but_no_event() {
    let options = ReadOptions {
        memory_bytes: 1,
        ..ReadOptions::default()
    };
    let file = Cursor::new(numbered(small(false), 3000, 6).finish());
    let mut reader = EtlEvents::new(file, options, decoder()).unwrap();
    let mut numbers: Vec<u64> = reader
        .by_ref()
        .map(|event| event.unwrap().u64("number").unwrap())
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..3000).collect::<Vec<_>>());
    assert!(reader.statistics().late > 0);
}

#[test]
fn losses_are_counted_from_header_and_marks() {
    let mut writer = numbered(small(false), 300, 2);
    writer.lose(START + 100_000, 0, 41, 0);
    writer.lose(START + 200_000, 1, 0, 3);
    let mut reader = open(writer.finish());
    assert_eq!(reader.by_ref().count(), 300);
    let statistics = reader.statistics();
    assert_eq!((statistics.events_lost, statistics.buffers_lost), (41, 3));
    assert_eq!(
        (
            statistics.buffers_after_lost_events,
            statistics.buffers_after_lost_buffers
        ),
        (1, 1)
    );
    assert!(statistics.incomplete());
}

#[test]
fn only_wanted_providers_are_decoded() {
    let options = ReadOptions {
        filter: Filter::default().only([CONTAINERD]),
        ..ReadOptions::default()
    };
    let mut reader = EtlEvents::new(Cursor::new(story::file(small(false), true)), options, decoder()).unwrap();
    let providers: Vec<Guid> = reader.by_ref().map(|event| event.unwrap().provider).collect();
    // Kernel logger events are chosen by class.
    assert_eq!(providers.iter().filter(|provider| **provider == CONTAINERD).count(), 1);
    assert_eq!(providers.len(), 3);
    assert_eq!(reader.statistics().filtered, 11);
    assert_eq!(reader.counts().learned, 5);
    assert_eq!(reader.statistics().wpp, 1);
}

/// Header layouts that no sample has: compact, 32-bit, instance, and one that is unknown.
#[test]
fn rare_header_layouts() {
    let mut writer = EtlWriter::new(small(false));
    let class = Guid::literal("12345678-0000-0000-0000-000000000001").to_bytes_le();
    let mut put = |header: &[u8], class: &[u8], rest: &[u8], size_at: usize, time_at: usize, at: u64| {
        let mut bytes = header.to_vec();
        bytes.resize(0x18, 0x11);
        bytes.extend(class);
        bytes.extend(rest);
        let size = (bytes.len() as u16).to_le_bytes();
        bytes[size_at..size_at + 2].copy_from_slice(&size);
        writer.push_bytes(START + at, 0, bytes, time_at);
    };
    // Process/Terminate, compact: the payload is the process id.
    put(
        &[2, 0, 0x04, 0xc0, 0, 0, 11, 3],
        &[],
        &77_u32.to_le_bytes(),
        4,
        0x10,
        1000,
    );
    // Process/Start of 32-bit Windows.
    let mut old = vec![0x22; 4];
    for number in [5_u32, 6, 1, 259, 0] {
        old.extend(number.to_le_bytes());
    }
    old.extend(b"old.exe\0");
    old.extend("o ld".encode_utf16().chain([0]).flat_map(u16::to_le_bytes));
    put(&[2, 0, 0x01, 0xc0, 0, 0, 1, 3], &[0; 8], &old, 4, 0x10, 2000);
    put(&[0, 0, 0x0b, 0xc0, 9, 4, 1, 0], &class, &[0; 0x28], 0, 0x10, 3000);
    put(&[0, 0, 0x0d, 0xc0], &class, &[0; 8], 0, 0x10, 4000);
    put(&[0, 0, 0x12, 0xc0, 0x24, 0], &class, &[0; 0x28], 0, 0x10, 5000);
    let mut reader = open_all(writer.finish());
    let found: Vec<EtwEvent> = reader.by_ref().map(Result::unwrap).collect();
    assert_eq!(found.len(), 3);
    assert_eq!((found[0].u64("ProcessId"), found[0].at_ns), (Some(77), START + 1000));
    assert_eq!(
        (found[1].text("ImageFileName"), found[1].text("CommandLine")),
        (Some("old.exe"), Some("o ld"))
    );
    assert_eq!(
        (found[1].u64("UniqueProcessKey"), found[1].text("UserSID")),
        (Some(0x2222_2222), Some(""))
    );
    assert_eq!(found[2].text("Message"), Some(""));
    // The instance event has no schema; the file's header neither.
    assert_eq!(reader.counts().no_schema, 2);
    assert_eq!(reader.statistics().unknown_headers, 1);
}

#[test]
fn a_file_without_its_header_keeps_order_and_durations() {
    let file = story::file(small(false), false);
    let mut reader = open(file[2048..].to_vec());
    let times: Vec<u64> = reader.by_ref().map(|event| event.unwrap().at_ns).collect();
    let expected: Vec<u64> = live().iter().map(|event| event.at_ns - START).collect();
    let first = times[0];
    assert_eq!(
        times.iter().map(|time| time - first).collect::<Vec<_>>(),
        expected.iter().map(|time| time - expected[0]).collect::<Vec<_>>()
    );
    assert!(reader.statistics().clock_unknown);
}

/// A value for a field, from a seed; texts and bytes that share a length get the same.
fn value(spec: &FieldSpec, seed: u64) -> Value {
    let bits = |bytes: u8| seed & (u64::MAX >> (64 - 8 * u32::from(bytes)));
    match (&spec.kind, spec.out) {
        (Kind::UInt(4), Out::Ipv4) => Value::Ip((seed as u32).to_be_bytes().into()),
        (Kind::UInt(bytes), _) => Value::U64(bits(*bytes)),
        (Kind::Int(_), _) => Value::I64(i64::from(seed as i32)),
        (Kind::Pointer, _) => Value::U64(seed),
        (Kind::Bool32, _) => Value::Bool(seed % 2 == 1),
        (Kind::Guid, _) => Value::Guid(Guid(u128::from(seed) << 17)),
        (Kind::FileTime, _) => Value::FileTime(FileTime(seed as i64)),
        (Kind::Utf16 | Kind::Ansi, _) => Value::Text(format!("text {seed} \u{e9}").into()),
        (Kind::Sid | Kind::WbemSid, _) => Value::Sid(format!("S-1-5-21-{}", seed as u32).into()),
        (Kind::Binary, Out::Ipv6) => Value::Ip(std::net::Ipv6Addr::from_bits(u128::from(seed)).into()),
        (Kind::Binary, Out::Address) => Value::SocketAddr(((seed as u32).to_be_bytes(), seed as u16).into()),
        (Kind::Binary, _) => Value::Bytes(vec![seed as u8; 9].into()),
        (other, _) => unreachable!("no table has {other:?}"),
    }
}

proptest! {
    /// Every event of the tables, with any values, through a file and back.
    #[test]
    fn what_is_written_is_read(seed: u64, which: prop::sample::Index, compressed: bool) {
        let all: Vec<_> = TABLES.events().collect();
        let (provider, id, version, schema) = all[which.index(all.len())];
        let name = &TABLES.provider(provider).unwrap().name;
        let mut record = Record::manifest(&TABLES, name, id, version).unwrap();
        let mut expected = Vec::new();
        for (index, spec) in schema.fields.iter().enumerate().filter(|(_, spec)| spec.slot.is_none()) {
            let one = value(spec, seed.rotate_left(index as u32));
            let value = if spec.count == Count::One { one } else { Value::List(vec![one; 3]) };
            record = record.value(&spec.name, value.clone());
            expected.push((spec.name.clone(), value));
        }
        let mut writer = EtlWriter::new(small(compressed));
        writer.push(record.at(START + seed % 1_000_000_000 * 100).build());
        let event = events(writer.finish()).pop().unwrap();
        prop_assert!(!event.truncated);
        prop_assert_eq!(event.at_ns, START + seed % 1_000_000_000 * 100);
        for (name, value) in expected {
            prop_assert_eq!(event.get(&name), Some(&value), "{} of {} {} v{}", name, event.provider, id, version);
        }
    }
}
