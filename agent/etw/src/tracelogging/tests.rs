use super::*;
use crate::event::{Field, FileTime, Value};
use crate::guid::Guid;
use crate::payload::{self, Payload};
use crate::writer::Record;

/// Builds an event's fields and reads them back.
fn read(build: impl FnOnce(Record) -> Record) -> Payload {
    let record = build(Record::tracelogging(Guid::ZERO, "Provider", "Name")).build();
    let metadata = record.extended.iter().find(|item| item.kind == 11).unwrap();
    let schema = schema(&metadata.data).unwrap();
    assert_eq!(schema.name.as_deref(), Some("Name"));
    payload::read(&schema, &record.user_data, 8)
}

fn one(in_type: u8, out_type: u8, bytes: &[u8]) -> Value {
    let payload = read(|record| record.typed_bytes("field", in_type, out_type, bytes));
    assert!(!payload.truncated, "in {in_type} out {out_type}");
    assert_eq!(payload.fields.len(), 1);
    payload.fields[0].value.clone()
}

fn text(text: &str) -> Value {
    Value::Text(text.into())
}

#[test]
fn every_in_type() {
    let guid = Guid::literal("0c885e0d-6eb6-476c-a048-2457eed3a5c1");
    let system_time = [0xe9, 7, 10, 0, 4, 0, 9, 0, 8, 0, 53, 0, 20, 0, 7, 0];
    let sid = [1, 2, 0, 0, 0, 0, 0, 5, 32, 0, 0, 0, 0x20, 2, 0, 0];
    let cases: [(u8, &[u8], Value); 25] = [
        (0, &[], Value::Bytes(Box::default())),
        (1, b"h\0\xe9\0\0\0", text("h\u{e9}")),
        (2, b"h\xc3\xa9\0", text("h\u{e9}")),
        (3, &[0xfe], Value::I64(-2)),
        (4, &[0xfe], Value::U64(254)),
        (5, &[0xfe, 0xff], Value::I64(-2)),
        (6, &[0xfe, 0xff], Value::U64(65_534)),
        (7, &[0xfe, 0xff, 0xff, 0xff], Value::I64(-2)),
        (8, &[0xfe, 0xff, 0xff, 0xff], Value::U64(u64::from(u32::MAX) - 1)),
        (9, &(-2_i64).to_le_bytes(), Value::I64(-2)),
        (10, &u64::MAX.to_le_bytes(), Value::U64(u64::MAX)),
        (11, &1.5_f32.to_le_bytes(), Value::F64(1.5)),
        (12, &(-2.25_f64).to_le_bytes(), Value::F64(-2.25)),
        (13, &[1, 0, 0, 0], Value::Bool(true)),
        (14, &[2, 0, 7, 8], Value::Bytes([7, 8].into())),
        (15, &guid.to_bytes_le(), Value::Guid(guid)),
        (16, &7_u64.to_le_bytes(), Value::U64(7)),
        (17, &5_i64.to_le_bytes(), Value::FileTime(FileTime(5))),
        (18, &system_time, Value::FileTime(FileTime(134_044_736_000_070_000))),
        (19, &sid, Value::Sid("S-1-5-32-544".into())),
        (20, &[0xff; 4], Value::U64(u64::from(u32::MAX))),
        (21, &[0xff; 8], Value::U64(u64::MAX)),
        (22, b"\x04\0h\0i\0", text("hi")),
        (23, b"\x02\0hi", text("hi")),
        (25, &[1, 0, 9], Value::Bytes([9].into())),
    ];
    for (in_type, bytes, expected) in cases {
        assert_eq!(one(in_type, 0, bytes), expected, "in-type {in_type}");
    }
}

#[test]
fn out_types_that_change_a_value() {
    let socket = [2, 0, 0x01, 0xbb, 10, 96, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut counted_socket = vec![16, 0];
    counted_socket.extend(socket);
    let mut counted_ip = vec![16, 0];
    counted_ip.extend(std::net::Ipv6Addr::LOCALHOST.octets());
    assert_eq!(one(4, 3, &[2]), Value::Bool(true));
    assert_eq!(one(6, 2, b"M\0"), text("M"));
    assert_eq!(one(4, 2, b"M"), text("M"));
    assert_eq!(one(7, 4, &[0xff; 4]), Value::U64(u64::from(u32::MAX)));
    assert_eq!(one(8, 5, &[4, 0, 0, 0]), Value::U64(4));
    assert_eq!(one(6, 7, &[0x01, 0xbb]), Value::U64(443));
    assert_eq!(one(8, 8, &[10, 0, 0, 1]), Value::Ip([10, 0, 0, 1].into()));
    assert_eq!(one(14, 9, &counted_ip), Value::Ip(std::net::Ipv6Addr::LOCALHOST.into()));
    assert_eq!(
        one(14, 10, &counted_socket),
        Value::SocketAddr(([10, 96, 0, 1], 443).into())
    );
    for out_type in 13..=15 {
        assert_eq!(
            one(7, out_type, &0x803b_0017_u32.to_le_bytes()),
            Value::U64(0x803b_0017)
        );
    }
    assert_eq!(one(10, 16, &9_u64.to_le_bytes()), Value::FileTime(FileTime(9)));
    assert_eq!(one(8, 17, &[0xff; 4]), Value::I64(-1));
    assert_eq!(one(7, 18, &[0xff; 4]), Value::U64(u64::from(u32::MAX)));
    assert_eq!(one(2, 35, b"\xe2\x9a\xa0\0"), text("\u{26a0}"));
    assert_eq!(one(2, 12, b"{}\0"), text("{}"));
}

#[test]
fn arrays_of_fixed_and_written_count() {
    let elements = [[1, 0, 0, 0].to_vec(), [2, 0, 0, 0].to_vec()];
    for fixed in [true, false] {
        let payload = read(|record| record.array("list", 8, 0, fixed, &elements).u32("after", 7));
        let list = Value::List(vec![Value::U64(1), Value::U64(2)]);
        assert_eq!(payload.fields[0].value, list);
        assert_eq!(payload.fields[1].value, Value::U64(7));
    }
    let texts = [b"a\0".to_vec(), b"\0".to_vec(), b"bc\0".to_vec()];
    let payload = read(|record| record.array("texts", 2, 0, false, &texts));
    assert_eq!(
        payload.fields[0].value,
        Value::List(vec![text("a"), text(""), text("bc")])
    );
    // Bytes are bytes, characters are text.
    let bytes = [vec![1], vec![2]];
    assert_eq!(
        read(|record| record.array("b", 4, 0, true, &bytes)).fields[0].value,
        Value::Bytes([1, 2].into())
    );
    let letters = [b"h".to_vec(), b"i".to_vec(), b"\0".to_vec()];
    assert_eq!(
        read(|record| record.array("b", 4, 2, true, &letters)).fields[0].value,
        text("hi")
    );
}

#[test]
fn structs_nest_and_come_in_arrays() {
    let payload = read(|record| {
        record
            .structure("outer", 2)
            .u32("first", 1)
            .structure("inner", 1)
            .u32("second", 2)
            .u32("beside", 3)
    });
    let field = |name: &str, value| Field {
        name: name.into(),
        value,
    };
    let inner = Value::Struct(vec![field("second", Value::U64(2))]);
    let outer = Value::Struct(vec![field("first", Value::U64(1)), field("inner", inner)]);
    assert_eq!(payload.fields, [field("outer", outer), field("beside", Value::U64(3))]);

    // An array of two structs of one byte each: name, struct with written count, one member.
    let mut metadata = vec![0, 0, 0, b'N', 0, b's', 0, 24 | 0x40 | 0x80, 1, b'x', 0, 4];
    metadata[0] = metadata.len() as u8;
    let payload = payload::read(&schema(&metadata).unwrap(), &[2, 0, 5, 6], 8);
    let member = |number| Value::Struct(vec![field("x", Value::U64(number))]);
    assert_eq!(payload.fields[0].value, Value::List(vec![member(5), member(6)]));
}

#[test]
fn tags_and_custom_encodings_are_passed_over() {
    // Two bytes of tags before the name; a field with tags behind its out-type; a custom field with its own schema.
    let mut metadata = vec![0, 0, 0x81, 0x02, b'N', 0];
    metadata.extend([b'a', 0, 0x88, 0x84, 0x81, 0x01]);
    metadata.extend([b'c', 0, 0x60 | 14, 3, 0, 9, 9, 9]);
    metadata.extend([b'z', 0, 4]);
    metadata[0] = metadata.len() as u8;
    let payload = payload::read(&schema(&metadata).unwrap(), &[1, 0, 0, 0, 2, 0, 7, 7, 5], 8);
    let values: Vec<&Value> = payload.fields.iter().map(|field| &field.value).collect();
    assert_eq!(values, [&Value::U64(1), &Value::Bytes([7, 7].into()), &Value::U64(5)]);
}

#[test]
fn a_short_payload_gives_the_fields_that_are_there() {
    let record = Record::tracelogging(Guid::ZERO, "P", "N")
        .u32("a", 1)
        .text("b", "xy")
        .u32("c", 2)
        .build();
    let metadata = record.extended.iter().find(|item| item.kind == 11).unwrap();
    let schema = schema(&metadata.data).unwrap();
    let counts: Vec<usize> = (0..=record.user_data.len())
        .map(|length| {
            let payload = payload::read(&schema, &record.user_data[..length], 8);
            assert_eq!(payload.truncated, length < record.user_data.len());
            payload.fields.len()
        })
        .collect();
    // A text without its end is taken as far as it goes.
    assert_eq!(counts, [0, 0, 0, 0, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3]);
}

#[test]
fn malformed_metadata_is_refused() {
    let good = [11, 0, 0, b'N', 0, b'a', 0, 8, b'b', 0, 4];
    assert!(schema(&good).is_some());
    for length in 0..good.len() {
        assert!(schema(&good[..length]).is_none(), "{length}");
    }
    let mut unknown = good;
    unknown[7] = 26;
    assert!(schema(&unknown).is_none());
    // Structs without end.
    let mut deep = vec![0, 0, 0, b'N', 0];
    for _ in 0..40 {
        deep.extend([b's', 0, 24 | 0x80, 1]);
    }
    deep.extend([b'x', 0, 4]);
    deep[0] = deep.len() as u8;
    assert!(schema(&deep).is_none());
    assert_eq!(provider_name(&[5, 0, b'P', 0]).as_deref(), Some("P"));
    assert_eq!(provider_name(&[5, 0, b'P']), None);
}

#[test]
fn counts_cannot_ask_for_more_than_an_event_may_hold() {
    // An array of 65535 structs, each an array of 65535 values without bytes.
    let mut metadata = vec![
        0,
        0,
        0,
        b'N',
        0,
        b's',
        0,
        24 | 0x20 | 0x80,
        1,
        0xff,
        0xff,
        b'x',
        0,
        0x20,
        0xff,
        0xff,
    ];
    metadata[0] = metadata.len() as u8;
    let payload = payload::read(&schema(&metadata).unwrap(), &[], 8);
    assert!(payload.truncated);
    assert!(payload.fields.is_empty());
}
