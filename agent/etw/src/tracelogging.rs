//! Parses TraceLogging metadata, which each event carries, into a schema.
//!
//! Used by the decoder, which caches the schemas. The layout is that of `TraceLoggingProvider.h` (Windows SDK): a size, tags,
//! the event's name, then for each field a name, an in-type with array flags, an out-type and tags.
//! Does not: read payloads.

use std::sync::Arc;

use crate::bytes::Cursor;
use crate::schema::{Count, FieldSpec, Kind, Length, MOST_FIELDS, Out, Schema};

/// The schema in an event's metadata (extended item 11); `None` when it is malformed.
pub fn schema(metadata: &[u8]) -> Option<Schema> {
    let mut cursor = Cursor::new(metadata);
    let size = usize::from(cursor.u16()?);
    let mut cursor = Cursor::new(cursor.take(size.checked_sub(2)?)?);
    skip_tags(&mut cursor)?;
    let name = text(cursor.until_nul()?);
    let mut fields = Vec::new();
    let mut left = MOST_FIELDS;
    while !cursor.is_empty() {
        fields.push(field(&mut cursor, DEEPEST, &mut left)?);
    }
    Some(Schema {
        name: Some(name),
        provider_name: None,
        fields: fields.into(),
        slots: 0,
    })
}

/// The provider's name in its traits (extended item 12).
pub fn provider_name(traits: &[u8]) -> Option<Arc<str>> {
    let mut cursor = Cursor::new(traits);
    cursor.u16()?;
    let name = cursor.until_nul()?;
    (!name.is_empty()).then(|| text(name))
}

/// One field. `depth` is how many structs may still be entered, `left` how many fields may still be read: metadata is chosen by
/// whoever logs the event.
fn field(cursor: &mut Cursor<'_>, depth: u8, left: &mut u32) -> Option<FieldSpec> {
    *left = left.checked_sub(1)?;
    let name = text(cursor.until_nul()?);
    let in_byte = cursor.u8()?;
    let out_byte = if in_byte & CHAIN != 0 { cursor.u8()? } else { 0 };
    if out_byte & CHAIN != 0 {
        skip_tags(cursor)?;
    }
    let (in_type, out_type) = (in_byte & TYPE_BITS, out_byte & !CHAIN);
    let count = match in_byte & COUNT_BITS {
        FIXED_COUNT => Count::Fixed(cursor.u16()?),
        VARIABLE_COUNT => Count::Prefixed,
        COUNT_BITS => {
            // A custom encoding: its own schema stands here, its value is counted bytes.
            let length = usize::from(cursor.u16()?);
            cursor.take(length)?;
            return Some(FieldSpec::new(name, Kind::CountedBinary, Out::Plain));
        }
        _ => Count::One,
    };
    let (kind, out) = if in_type == STRUCT {
        let depth = depth.checked_sub(1)?;
        let members = (0..out_type)
            .map(|_| field(cursor, depth, left))
            .collect::<Option<Vec<_>>>()?;
        (Kind::Struct(members.into()), Out::Plain)
    } else {
        let (kind, usual) = kind(in_type)?;
        let out = out(out_type, &kind).unwrap_or(usual);
        (kind, out)
    };
    Some(FieldSpec {
        name,
        kind,
        out,
        count,
        length: Length::Natural,
        slot: None,
    })
}

/// Tags are bytes of seven bits; the high bit is set when another one follows.
fn skip_tags(cursor: &mut Cursor<'_>) -> Option<()> {
    while cursor.u8()? & CHAIN != 0 {}
    Some(())
}

/// A name, in UTF-8.
fn text(bytes: &[u8]) -> Arc<str> {
    String::from_utf8_lossy(bytes).into()
}

/// The in-types, with their meaning without an out-type.
fn kind(in_type: u8) -> Option<(Kind, Out)> {
    Some(match in_type {
        0 => (Kind::Nothing, Out::Plain),
        1 => (Kind::Utf16, Out::Plain),
        2 => (Kind::Ansi, Out::Plain),
        3 => (Kind::Int(1), Out::Plain),
        4 => (Kind::UInt(1), Out::Plain),
        5 => (Kind::Int(2), Out::Plain),
        6 => (Kind::UInt(2), Out::Plain),
        7 => (Kind::Int(4), Out::Plain),
        8 => (Kind::UInt(4), Out::Plain),
        9 => (Kind::Int(8), Out::Plain),
        10 => (Kind::UInt(8), Out::Plain),
        11 => (Kind::F32, Out::Plain),
        12 => (Kind::F64, Out::Plain),
        13 => (Kind::Bool32, Out::Plain),
        14 | 25 => (Kind::CountedBinary, Out::Plain),
        15 => (Kind::Guid, Out::Plain),
        16 => (Kind::Pointer, Out::Plain),
        17 => (Kind::FileTime, Out::Plain),
        18 => (Kind::SystemTime, Out::Plain),
        19 => (Kind::Sid, Out::Plain),
        20 => (Kind::Int(4), Out::Unsigned),
        21 => (Kind::Int(8), Out::Unsigned),
        22 => (Kind::CountedUtf16, Out::Plain),
        23 => (Kind::CountedAnsi, Out::Plain),
        _ => return None,
    })
}

/// The out-types that change a value; the others only define how it is printed.
fn out(out_type: u8, kind: &Kind) -> Option<Out> {
    let binary = matches!(kind, Kind::CountedBinary);
    Some(match out_type {
        2 | 11 | 12 | 35 => Out::Text,
        3 => Out::Bool,
        4..=6 if !binary => Out::Unsigned,
        7 => Out::Port,
        8 => Out::Ipv4,
        9 => Out::Ipv6,
        10 => Out::Address,
        13..=15 => Out::Code,
        16 | 38 => Out::FileTime,
        17 => Out::Signed,
        18 => Out::Unsigned,
        _ => return None,
    })
}

/// More follows: an out-type after an in-type, tags after an out-type, a tag byte after a tag byte.
const CHAIN: u8 = 0x80;
/// Where the type is in an in-type.
const TYPE_BITS: u8 = 0x1f;
/// Where the array flags are in an in-type; both: a custom encoding.
const COUNT_BITS: u8 = FIXED_COUNT | VARIABLE_COUNT;
const FIXED_COUNT: u8 = 0x20;
const VARIABLE_COUNT: u8 = 0x40;
/// The in-type of a struct; its out-type is the number of its members.
const STRUCT: u8 = 24;
/// Structs within structs that are followed; Windows' own macros cannot nest deeper.
const DEEPEST: u8 = 16;

#[cfg(test)]
mod tests;
