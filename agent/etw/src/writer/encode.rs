//! Encodes values into a payload by a schema: the reverse of `payload`.
//!
//! Used by the writer's records. A value of another kind than the field's becomes zero or empty: tests state what they mean,
//! and the reader is what they test. Does not: check values.

use std::net::{IpAddr, SocketAddr};

use crate::event::{Field, Value};
use crate::schema::{Count, FieldSpec, Kind, Length, Out, Schema};

/// The payload of an event of that schema. Fields without a value are zero or empty; lengths and counts without one are
/// those of what they count.
pub fn encode(schema: &Schema, values: &[Field], pointer_bytes: usize) -> Vec<u8> {
    fields(&schema.fields, values, pointer_bytes)
}

/// The fields of an event or of a struct, in the order of the schema; values are found by name.
fn fields(specs: &[FieldSpec], values: &[Field], pointer_bytes: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for spec in specs {
        let explicit = values
            .iter()
            .find(|field| field.name == spec.name)
            .map(|field| &field.value);
        let counted = spec
            .slot
            .and_then(|slot| extent(slot, specs, values, pointer_bytes))
            .map(Value::U64);
        let value = explicit.or(counted.as_ref());
        array(spec, value, pointer_bytes, &mut bytes);
    }
    bytes
}

/// The length or count of the first field that refers to this slot.
fn extent(slot: u16, specs: &[FieldSpec], values: &[Field], pointer_bytes: usize) -> Option<u64> {
    specs.iter().find_map(|spec| {
        let value = values
            .iter()
            .find(|field| field.name == spec.name)
            .map(|field| &field.value);
        if spec.count == Count::Slot(slot) {
            return Some(value.and_then(Value::list).map_or(0, <[Value]>::len) as u64);
        }
        if spec.length == Length::Slot(slot) {
            let mut bytes = Vec::new();
            one(spec, value, pointer_bytes, &mut bytes);
            let unit = if matches!(spec.kind, Kind::Utf16) { 2 } else { 1 };
            return Some((bytes.len() / unit) as u64);
        }
        None
    })
}

/// A field with its elements: as many as the schema states, or as the value has.
fn array(spec: &FieldSpec, value: Option<&Value>, pointer_bytes: usize, bytes: &mut Vec<u8>) {
    let list = value.and_then(Value::list).unwrap_or_default();
    let count = match spec.count {
        Count::One => return one(spec, value, pointer_bytes, bytes),
        Count::Fixed(count) => usize::from(count),
        Count::Prefixed => {
            bytes.extend((list.len() as u16).to_le_bytes());
            list.len()
        }
        Count::Slot(_) => list.len(),
    };
    for index in 0..count {
        one(spec, list.get(index), pointer_bytes, bytes);
    }
}

/// One value by its kind (in-types of TDH_IN_TYPE, tdh.h).
fn one(spec: &FieldSpec, value: Option<&Value>, pointer_bytes: usize, bytes: &mut Vec<u8>) {
    let text = value.and_then(Value::text).unwrap_or_default();
    match &spec.kind {
        Kind::Nothing => {}
        Kind::Int(size) | Kind::UInt(size) => integer(value, spec.out, usize::from(*size), bytes),
        Kind::Pointer => integer(value, spec.out, pointer_bytes, bytes),
        Kind::Bool32 => integer(value, spec.out, 4, bytes),
        Kind::FileTime => integer(value, spec.out, 8, bytes),
        Kind::F32 => bytes.extend((float(value) as f32).to_le_bytes()),
        Kind::F64 => bytes.extend(float(value).to_le_bytes()),
        Kind::Guid => bytes.extend(value.and_then(Value::guid).unwrap_or_default().to_bytes_le()),
        Kind::SystemTime => bytes.extend([0; 16]),
        Kind::Utf16 | Kind::Utf16Rest => {
            bytes.extend(text.encode_utf16().flat_map(u16::to_le_bytes));
            if spec.kind == Kind::Utf16 && spec.length == Length::Natural {
                bytes.extend([0; 2]);
            }
        }
        Kind::Ansi | Kind::AnsiRest => {
            bytes.extend(text.bytes());
            if spec.kind == Kind::Ansi && spec.length == Length::Natural {
                bytes.push(0);
            }
        }
        Kind::CountedUtf16 | Kind::ReversedCountedUtf16 => {
            let units: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
            counted(&units, spec.kind == Kind::CountedUtf16, bytes);
        }
        Kind::CountedAnsi | Kind::ReversedCountedAnsi => {
            counted(text.as_bytes(), spec.kind == Kind::CountedAnsi, bytes);
        }
        Kind::Binary => {
            let mut content = binary(value);
            if let Length::Fixed(length) = spec.length {
                content.resize(usize::from(length), 0);
            }
            bytes.extend(content);
        }
        Kind::CountedBinary => counted(&binary(value), true, bytes),
        Kind::HexDump => {
            let content = binary(value);
            bytes.extend((content.len() as u32).to_le_bytes());
            bytes.extend(content);
        }
        Kind::Sid => bytes.extend(sid(text)),
        Kind::WbemSid if text.is_empty() => bytes.extend([0; 4]),
        Kind::WbemSid => {
            bytes.extend(vec![0xff; pointer_bytes * 2]);
            bytes.extend(sid(text));
        }
        Kind::Struct(specs) => {
            let values = value.and_then(Value::fields).unwrap_or_default();
            bytes.extend(fields(specs, values, pointer_bytes));
        }
    }
}

/// The lowest `size` bytes of a number. IPv4 addresses and ports stand in network order, which a little-endian number reverses.
fn integer(value: Option<&Value>, out: Out, size: usize, bytes: &mut Vec<u8>) {
    let number = match (value, out) {
        (Some(Value::Ip(IpAddr::V4(ip))), _) => u64::from(u32::from_le_bytes(ip.octets())),
        (Some(value), Out::Port) => u64::from((value.u64().unwrap_or_default() as u16).swap_bytes()),
        (Some(Value::FileTime(time)), _) => time.0 as u64,
        (Some(Value::I64(number)), _) => *number as u64,
        (Some(value), _) => value.u64().unwrap_or_default(),
        (None, _) => 0,
    };
    bytes.extend(number.to_le_bytes().iter().take(size));
}

const fn float(value: Option<&Value>) -> f64 {
    match value {
        Some(Value::F64(number)) => *number,
        _ => 0.0,
    }
}

/// Bytes behind their 16-bit length.
fn counted(content: &[u8], little_endian: bool, bytes: &mut Vec<u8>) {
    let length = content.len() as u16;
    bytes.extend(if little_endian {
        length.to_le_bytes()
    } else {
        length.to_be_bytes()
    });
    bytes.extend(content);
}

/// The bytes of a value: of bytes themselves, a text, or an address.
fn binary(value: Option<&Value>) -> Vec<u8> {
    match value {
        Some(Value::Bytes(bytes)) => bytes.to_vec(),
        Some(Value::Text(text)) => text.as_bytes().to_vec(),
        Some(Value::SocketAddr(address)) => socket_address(*address),
        Some(Value::Ip(IpAddr::V4(ip))) => ip.octets().to_vec(),
        Some(Value::Ip(IpAddr::V6(ip))) => ip.octets().to_vec(),
        _ => Vec::new(),
    }
}

/// SOCKADDR_IN or SOCKADDR_IN6 (ws2def.h, ws2ipdef.h): family, port, then the address; AF_INET is 2, AF_INET6 is 23.
fn socket_address(address: SocketAddr) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(28);
    match address {
        SocketAddr::V4(address) => {
            bytes.extend(2_u16.to_le_bytes());
            bytes.extend(address.port().to_be_bytes());
            bytes.extend(address.ip().octets());
            bytes.extend([0; 8]);
        }
        SocketAddr::V6(address) => {
            bytes.extend(23_u16.to_le_bytes());
            bytes.extend(address.port().to_be_bytes());
            bytes.extend(address.flowinfo().to_le_bytes());
            bytes.extend(address.ip().octets());
            bytes.extend(address.scope_id().to_le_bytes());
        }
    }
    bytes
}

/// `S-1-5-18` as bytes; any other text becomes S-1-0-0, the null SID.
fn sid(text: &str) -> Vec<u8> {
    let mut parts = text.split('-').skip(2).filter_map(|part| part.parse::<u64>().ok());
    let authority = parts.next().unwrap_or_default();
    let sub_authorities: Vec<u32> = parts.map(|part| part as u32).take(15).collect();
    let mut bytes = vec![1, sub_authorities.len() as u8];
    bytes.extend(&authority.to_be_bytes()[2..]);
    bytes.extend(sub_authorities.iter().flat_map(|part| part.to_le_bytes()));
    bytes
}
