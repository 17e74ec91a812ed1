use super::*;
use crate::event::Value;
use crate::payload;
use crate::tables::Tables;
use crate::writer::event_info;

#[test]
fn every_table_survives_the_way_through_windows_form() {
    let tables = Tables::built_in();
    let mut count = 0;
    for (provider, id, version, expected) in tables.events() {
        let (key, found) = schema(&event_info(provider, id, version, expected)).unwrap();
        assert_eq!(key, SchemaKey::Manifest { provider, id, version });
        assert_eq!(found.name, expected.name);
        assert_eq!(found.provider_name, expected.provider_name);
        assert_eq!(found.fields, expected.fields, "{provider} {id} v{version}");
        count += 1;
    }
    assert!(count > 200, "{count}");
}

fn field(name: &str, kind: Kind) -> FieldSpec {
    FieldSpec::new(name, kind, Out::Plain)
}

/// Structs, arrays and lengths in one schema, which no table has.
fn rich() -> Schema {
    let members = vec![field("x", Kind::UInt(1)), field("name", Kind::Ansi)];
    let mut count = field("count", Kind::UInt(2));
    count.slot = Some(0);
    let mut length = field("length", Kind::UInt(2));
    length.slot = Some(1);
    let mut structs = field("items", Kind::Struct(members.into()));
    structs.count = Count::Slot(0);
    let mut text = field("text", Kind::Utf16);
    text.length = Length::Slot(1);
    let mut fixed = field("fixed", Kind::UInt(2));
    fixed.count = Count::Fixed(2);
    Schema {
        name: Some("Rich".into()),
        provider_name: Some("Provider".into()),
        fields: vec![count, length, structs, text, fixed].into(),
        slots: 2,
    }
}

#[test]
fn structs_counts_and_lengths() {
    let info = event_info(Guid(7), 9, 1, &rich());
    let (_, found) = schema(&info).unwrap();
    assert_eq!(found, rich());
    let mut data = vec![2, 0, 3, 0];
    data.extend(b"\x05ab\0\x06c\0");
    data.extend(b"h\0i\0\0\0");
    data.extend([1, 0, 2, 0]);
    let payload = payload::read(&found, &data, 8);
    assert!(!payload.truncated);
    let items = payload.fields[2].value.list().unwrap();
    assert_eq!(items[0].get("name"), Some(&Value::Text("ab".into())));
    assert_eq!(items[1].get("x"), Some(&Value::U64(6)));
    assert_eq!(payload.fields[3].value, Value::Text("hi".into()));
    assert_eq!(payload.fields[4].value, Value::List(vec![Value::U64(1), Value::U64(2)]));
}

#[test]
fn names_join_task_and_opcode() {
    let mut info = event_info(Guid(7), 9, 1, &rich());
    let at = info.len() as u32;
    for (place, text) in [(72_usize, "win:Start"), (68, "Query ")] {
        let offset = info.len() as u32;
        info[place..place + 4].copy_from_slice(&offset.to_le_bytes());
        info.extend(text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes));
    }
    assert_eq!(schema(&info).unwrap().1.name.as_deref(), Some("Query/Start"));
    let opcode = "win:Info".encode_utf16().chain([0]).flat_map(u16::to_le_bytes);
    let offset = info.len() as u32;
    info.extend(opcode);
    info[72..76].copy_from_slice(&offset.to_le_bytes());
    assert_eq!(schema(&info).unwrap().1.name.as_deref(), Some("Query"));
    info[68..72].copy_from_slice(&at.to_le_bytes());
    assert_eq!(schema(&info).unwrap().1.name.as_deref(), Some("win:Start"));
}

#[test]
fn mof_schemas_are_keyed_by_class_and_type() {
    let mut info = event_info(Guid(7), 9, 3, &rich());
    info[16..32].copy_from_slice(&Guid(8).to_bytes_le());
    info[37] = 35;
    info[48] = 1;
    let key = schema(&info).unwrap().0;
    let class = Guid(8);
    assert_eq!(
        key,
        SchemaKey::Classic {
            class,
            opcode: 35,
            version: 3
        }
    );
    // WPP and TraceLogging are not described this way.
    for source in [2, 3, 9] {
        info[48] = source;
        assert!(schema(&info).is_none());
    }
}

#[test]
fn references_that_lead_nowhere_are_refused() {
    let info = event_info(Guid(7), 9, 1, &rich());
    let row = |index: usize| PROPERTIES_AT + index * PROPERTY_SIZE;
    let patched = |at: usize, value: u16| {
        let mut info = info.clone();
        info[at..at + 2].copy_from_slice(&value.to_le_bytes());
        schema(&info)
    };
    // A count of a property that does not exist; a struct that contains itself; more properties than there are.
    assert!(patched(row(2) + 16, 99).is_none());
    assert!(patched(row(2) + 8, 2).is_none());
    assert!(patched(row(2) + 10, 9).is_none());
    assert!(patched(100, u16::MAX).is_none());
    assert!(patched(104, 99).is_none());
    // An unknown in-type.
    assert!(patched(row(3) + 8, 77).is_none());
    // A name beyond the end is no name, and no reason to lose the event.
    assert_eq!(&*patched(row(3) + 4, u16::MAX).unwrap().1.fields[3].name, "");
    for length in 0..PROPERTIES_AT {
        assert!(schema(&info[..length]).is_none());
    }
}
