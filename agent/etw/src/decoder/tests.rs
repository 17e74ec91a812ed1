use super::extended_items::container_id;
use super::*;
use crate::raw::{ExtendedItem, extended};
use crate::schema::{FieldSpec, Kind, Out};
use crate::writer::{Record, event_info};

const PROVIDER: Guid = Guid::literal("0c885e0d-6eb6-476c-a048-2457eed3a5c1");

fn decode(record: Record) -> Decoded {
    Decoder::default().decode(&record.build())
}

fn event_of(decoded: Decoded) -> EtwEvent {
    match decoded {
        Decoded::Event(event) => event,
        other => panic!("{other:?}"),
    }
}

#[test]
fn extended_items_are_taken_out() {
    let (related, container) = (Guid(3), Guid(4));
    let record = Record::tracelogging(PROVIDER, "HNS", "Entity")
        .related(related)
        .container(container)
        .start_key(5)
        .item(extended::EVENT_KEY, 6_u64.to_le_bytes().into())
        .item(extended::STACK_64, vec![0; 24])
        .activity(Guid(9))
        .keyword(0x30000)
        .opcode(1);
    let event = event_of(decode(record));
    assert_eq!(
        (event.related_activity, event.container_id),
        (Some(related), Some(container))
    );
    assert_eq!((event.process_start_key, event.event_key), (Some(5), Some(6)));
    assert_eq!((event.activity, event.keyword, event.opcode), (Guid(9), 0x30000, 1));
    assert_eq!(event.provider_name.as_deref(), Some("HNS"));
}

#[test]
fn container_ids_come_in_several_forms() {
    let guid = Guid::literal("11112222-3333-4444-5555-666677778888");
    assert_eq!(container_id(b"11112222-3333-4444-5555-666677778888"), Some(guid));
    assert_eq!(container_id(b"{11112222-3333-4444-5555-666677778888}\0"), Some(guid));
    assert_eq!(container_id(&guid.to_bytes_le()), Some(guid));
    assert_eq!(container_id(b"not a GUID"), None);
}

#[test]
fn provider_names_come_from_traits_else_from_the_tables() {
    let mut raw = Record::tracelogging(PROVIDER, "FromTraits", "Entity").build();
    raw.extended.retain(|item| item.kind != extended::PROVIDER_TRAITS);
    let event = event_of(Decoder::default().decode(&raw));
    assert_eq!(
        event.provider_name.as_deref(),
        Some("Microsoft-Windows-Host-Network-Service")
    );
}

#[test]
fn one_schema_for_all_events_of_a_kind_and_none_mixed_up() {
    let mut decoder = Decoder::default();
    for number in 0..100_u32 {
        for name in ["One", "Two"] {
            let record = Record::tracelogging(PROVIDER, "HNS", name)
                .u32("number", number)
                .build();
            let event = event_of(decoder.decode(&record));
            assert_eq!((event.name.as_deref(), event.u32("number")), (Some(name), Some(number)));
        }
    }
    assert_eq!(decoder.tracelogging.len(), 2);
    assert_eq!(decoder.counts().events, 200);
}

#[test]
fn what_is_learned_is_bounded() {
    let mut decoder = Decoder::default();
    // Two thousand fields whose names are one text, long and shared.
    let fields: Vec<_> = (0..2000)
        .map(|_| FieldSpec::new("", Kind::UInt(1), Out::Plain))
        .collect();
    let schema = Schema {
        fields: fields.into(),
        ..Schema::default()
    };
    let mut info = event_info(PROVIDER, 0, 0, &schema);
    let names_at = info.len() as u32;
    info.extend(b"x\0".repeat(7000));
    for row in 0..2000 {
        let at = 112 + row * 24 + 4;
        info[at..at + 4].copy_from_slice(&names_at.to_le_bytes());
    }
    let mut taken = 0;
    for id in 0..60_u16 {
        info[32..34].copy_from_slice(&id.to_le_bytes());
        taken += u32::from(decoder.learn(&info));
    }
    assert!((10..60).contains(&taken), "{taken}");
    assert!(decoder.learned_bytes <= MOST_BYTES);
}

#[test]
fn a_schema_learned_again_replaces_the_first() {
    let mut decoder = Decoder::default();
    let info = event_info(PROVIDER, 0, 0, &Schema::default());
    assert!(decoder.learn(&info));
    let before = decoder.learned_bytes;
    assert!(decoder.learn(&info));
    assert_eq!((decoder.learned_bytes, decoder.learned.len()), (before, 1));
}

#[test]
fn tracelogging_schemas_are_bounded() {
    let mut decoder = Decoder::default();
    for number in 0..350 {
        let mut record = Record::tracelogging(PROVIDER, "HNS", &format!("Event{number}"));
        for field in 0..1000 {
            record = record.typed_bytes(&format!("field{field}"), 4, 0, &[]);
        }
        decoder.decode(&record.build());
        assert!(decoder.tracelogging_bytes <= MOST_BYTES);
    }
    assert!(
        (10..300).contains(&decoder.tracelogging.len()),
        "{}",
        decoder.tracelogging.len()
    );
    let mut record = Record::tracelogging(PROVIDER, "HNS", "TooMany");
    for _ in 0..5000 {
        record = record.typed_bytes("", 4, 0, &[]);
    }
    assert_eq!(
        decoder.decode(&record.build()),
        Decoded::Undecodable(Undecodable::BadSchema)
    );
}

#[test]
fn what_cannot_be_decoded_is_counted_by_reason() {
    let mut decoder = Decoder::default();
    let wpp = Record::wpp(PROVIDER, &[1, 2, 3]).build();
    assert_eq!(decoder.decode(&wpp), Decoded::Wpp);
    let unknown = Record::classic(PROVIDER, 5, 0, &[]).build();
    assert_eq!(decoder.decode(&unknown), Decoded::Undecodable(Undecodable::NoSchema));
    let mut bad = RawRecord::default();
    bad.extended.push(ExtendedItem {
        kind: extended::EVENT_SCHEMA,
        data: [9, 0, 1].into(),
    });
    assert_eq!(decoder.decode(&bad), Decoded::Undecodable(Undecodable::BadSchema));
    let not_a_schema = Record::classic(SCHEMA_RECORDS, SCHEMA_OPCODE, 0, &[1, 2, 3]).build();
    assert_eq!(
        decoder.decode(&not_a_schema),
        Decoded::Undecodable(Undecodable::BadSchema)
    );
    let map = Record::classic(SCHEMA_RECORDS, 33, 0, &[1, 2, 3]).build();
    assert_eq!(decoder.decode(&map), Decoded::Learned);
    let mut tracelogging = vec![0; 112];
    tracelogging[48] = 3;
    let needless = Record::classic(SCHEMA_RECORDS, SCHEMA_OPCODE, 0, &tracelogging).build();
    assert_eq!(decoder.decode(&needless), Decoded::Learned);
    let expected = DecodeCounts {
        learned: 2,
        wpp: 1,
        no_schema: 1,
        bad_schema: 2,
        ..DecodeCounts::default()
    };
    assert_eq!(decoder.counts(), expected);
    assert_eq!(decoder.without_schema(), &BTreeMap::from([(PROVIDER, 1)]));
    for number in 0..2000 {
        decoder.decode(&Record::classic(Guid(number), 5, 0, &[]).build());
    }
    assert_eq!(decoder.without_schema().len(), MOST_UNKNOWN);
}

#[test]
fn a_live_source_can_teach_what_windows_knows() {
    let tables = Tables::built_in();
    let mut mine = Tables::built_in();
    mine.extend(
        "m",
        "provider\tevent_id\tversion\tname\tfields\nMicrosoft-Windows-Hyper-V-Compute\t2012\t0\tStarted\tGUID SiloId\n",
    )
    .unwrap();
    let silo = Guid(77);
    let raw = Record::manifest(&mine, "Microsoft-Windows-Hyper-V-Compute", 2012, 0)
        .unwrap()
        .guid("SiloId", silo)
        .build();
    let mut decoder = Decoder::new(Arc::new(tables));
    assert_eq!(decoder.decode(&raw), Decoded::Undecodable(Undecodable::NoSchema));
    let provider = raw.header.provider;
    assert!(decoder.learn(&event_info(provider, 2012, 0, mine.event(provider, 2012, 0).unwrap())));
    let event = event_of(decoder.decode(&raw));
    assert_eq!(
        (event.guid("SiloId"), event.name.as_deref()),
        (Some(silo), Some("Started"))
    );
    assert!(!decoder.learn(&[0; 20]));
}

#[test]
fn events_that_are_one_string() {
    let mut raw = Record::classic(PROVIDER, 0, 0, b"h\0i\0\0\0").build();
    raw.header.flags = flags::STRING_ONLY;
    let event = event_of(Decoder::default().decode(&raw));
    assert_eq!(event.text("Message"), Some("hi"));
}

#[test]
fn kernel_logger_processes_of_every_version() {
    let tables = Tables::built_in();
    let process = Guid::literal("3d6fa8d0-fe05-11d0-9dda-00c04fd7ba7c");
    for version in 0..=4 {
        for opcode in 1..=4 {
            let record = Record::class(&tables, process, opcode, version).unwrap();
            let record = record
                .u32("ProcessId", 42)
                .u32("ParentId", 4)
                .text("ImageFileName", "a.exe");
            let record = record
                .text("CommandLine", "a.exe /x")
                .value("UserSID", Value::Sid("S-1-5-18".into()));
            let event = event_of(decode(record));
            assert!(!event.truncated);
            assert_eq!((event.u64("ProcessId"), event.u64("ParentId")), (Some(42), Some(4)));
            assert_eq!(event.text("ImageFileName"), Some("a.exe"));
            assert_eq!(event.text("UserSID"), Some("S-1-5-18"));
            assert_eq!(event.text("CommandLine"), (version >= 2).then_some("a.exe /x"));
        }
    }
    // A version of tomorrow: what is known of it, and the rest is left alone.
    let mut tomorrow = Record::process(&tables, 1, 42, 4, "a.exe", "a.exe /x").unwrap().build();
    tomorrow.header.version = 9;
    tomorrow.user_data = [&tomorrow.user_data[..], &[1, 2, 3, 4]].concat().into();
    let event = event_of(Decoder::default().decode(&tomorrow));
    assert_eq!((event.text("CommandLine"), event.truncated), (Some("a.exe /x"), false));
}

#[test]
fn pointers_of_32_bit_processes_are_short() {
    let tables = Tables::built_in();
    let mut raw = Record::manifest(&tables, "Microsoft-Windows-TCPIP", 1004, 0)
        .unwrap()
        .build();
    raw.header.flags = flags::HEADER_32_BIT;
    raw.user_data = [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4].into();
    let event = event_of(Decoder::default().decode(&raw));
    assert_eq!(
        (event.u64("Tcb"), event.u64("ISN"), event.u64("RcvWndScale")),
        (Some(1), Some(2), Some(4))
    );
    assert!(!event.truncated);
}
