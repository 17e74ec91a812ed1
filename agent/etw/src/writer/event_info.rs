//! Encodes a schema as `TRACE_EVENT_INFO` (tdh.h), as merging puts it into a file and TDH returns it.
//!
//! Used by the writer's files, by `sandglass-fake-etw` and by tests. The structure, then one EVENT_PROPERTY_INFO for each
//! field, then the names that both refer to by offset. Does not: encode maps.

use crate::guid::Guid;
use crate::schema::{Count, FieldSpec, Kind, Length, Out, Schema};

/// The bytes of a `TRACE_EVENT_INFO` for a manifest event.
pub fn event_info(provider: Guid, id: u16, version: u8, schema: &Schema) -> Vec<u8> {
    let mut tree = PropertyRows::default();
    tree.add(&schema.fields);
    let names_at = PROPERTIES_AT + tree.rows.len() * PROPERTY_SIZE;
    let mut names = Vec::new();
    let mut name = |text: &str| {
        let at = names_at + names.len();
        names.extend(text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes));
        at as u32
    };
    let mut info = provider.to_bytes_le().to_vec();
    info.extend([0; 16]);
    info.extend(id.to_le_bytes());
    // EVENT_DESCRIPTOR behind its id: version, channel, level, opcode, task; then 8 bytes of keyword.
    info.extend([version, 0, 4, 0, 0, 0]);
    info.extend([0; 8]);
    // The 32-bit members from DecodingSource on: 1 is ProviderNameOffset, 5 TaskNameOffset, 13 PropertyCount, 14
    // TopLevelPropertyCount.
    let mut numbers = [0_u32; 16];
    numbers[1] = schema.provider_name.as_deref().map_or(0, &mut name);
    numbers[5] = schema.name.as_deref().map_or(0, &mut name);
    numbers[13] = tree.rows.len() as u32;
    numbers[14] = schema.fields.len() as u32;
    info.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    for row in &tree.rows {
        info.extend(row.flags.to_le_bytes());
        info.extend(name(&row.name).to_le_bytes());
        info.extend(row.types.iter().flat_map(|part| part.to_le_bytes()));
        info.extend([0; 4]);
        info.extend(row.count.to_le_bytes());
        info.extend(row.length.to_le_bytes());
        info.extend([0; 4]);
    }
    info.extend(names);
    info
}

/// The properties in the order of the array.
#[derive(Default)]
struct PropertyRows {
    rows: Vec<PropertyRow>,
    /// Slot and the row that fills it: lengths and counts refer to rows.
    slots: Vec<(u16, u16)>,
}

/// One EVENT_PROPERTY_INFO.
struct PropertyRow {
    /// PROPERTY_FLAGS: 1 struct, 2 length and 4 count in another property, 0x10 fixed length, 0x20 fixed count.
    flags: u32,
    name: String,
    /// In-type and out-type; of a struct its first member and their number.
    types: [u16; 2],
    /// A number, or the row that has it.
    count: u16,
    /// Likewise, in bytes or characters.
    length: u16,
}

impl PropertyRows {
    /// One row a field; members of structs after all of them.
    fn add(&mut self, fields: &[FieldSpec]) {
        let first = self.rows.len();
        for (index, field) in fields.iter().enumerate() {
            if let Some(slot) = field.slot {
                self.slots.push((slot, (first + index) as u16));
            }
            let row = self.row(field);
            self.rows.push(row);
        }
        for (index, field) in fields.iter().enumerate() {
            if let Kind::Struct(members) = &field.kind {
                let start = self.rows.len();
                self.add(members);
                self.rows[first + index].types = [start as u16, members.len() as u16];
            }
        }
    }

    /// The row of a field. The fields that it refers to stand before it, so their rows are known.
    fn row(&self, field: &FieldSpec) -> PropertyRow {
        let row_of = |slot: u16| {
            self.slots
                .iter()
                .find(|(known, _)| *known == slot)
                .map_or(0, |(_, row)| *row)
        };
        let (mut flags, mut count, mut length) = (0, 1, 0);
        match field.count {
            Count::Slot(slot) => (flags, count) = (flags | 0x04, row_of(slot)),
            Count::Fixed(fixed) => (flags, count) = (flags | 0x20, fixed),
            Count::One | Count::Prefixed => {}
        }
        match field.length {
            Length::Slot(slot) => (flags, length) = (flags | 0x02, row_of(slot)),
            Length::Fixed(fixed) => (flags, length) = (flags | 0x10, fixed),
            Length::Natural => {}
        }
        if matches!(field.kind, Kind::Struct(_)) {
            flags |= 0x01;
        }
        PropertyRow {
            flags,
            name: field.name.to_string(),
            types: [in_type(&field.kind), out_type(field.out)],
            count,
            length,
        }
    }
}

/// TDH_IN_TYPE (tdh.h).
const fn in_type(kind: &Kind) -> u16 {
    match kind {
        Kind::Nothing | Kind::Struct(_) => 0,
        Kind::Utf16 => 1,
        Kind::Ansi => 2,
        Kind::Int(1) => 3,
        Kind::UInt(1) => 4,
        Kind::Int(2) => 5,
        Kind::UInt(2) => 6,
        Kind::Int(4) => 7,
        Kind::UInt(4) => 8,
        Kind::Int(_) => 9,
        Kind::UInt(_) => 10,
        Kind::F32 => 11,
        Kind::F64 => 12,
        Kind::Bool32 => 13,
        Kind::Binary => 14,
        Kind::Guid => 15,
        Kind::Pointer => 16,
        Kind::FileTime => 17,
        Kind::SystemTime => 18,
        Kind::Sid => 19,
        Kind::CountedUtf16 => 22,
        Kind::CountedAnsi => 23,
        Kind::CountedBinary => 25,
        Kind::ReversedCountedUtf16 => 302,
        Kind::ReversedCountedAnsi => 303,
        Kind::Utf16Rest => 304,
        Kind::AnsiRest => 305,
        Kind::HexDump => 309,
        Kind::WbemSid => 310,
    }
}

/// TDH_OUT_TYPE (tdh.h); 0 for the usual one of the in-type.
const fn out_type(out: Out) -> u16 {
    match out {
        Out::Plain | Out::Signed | Out::Unsigned => 0,
        Out::Text => 1,
        Out::FileTime => 2,
        Out::Bool => 13,
        Out::Port => 22,
        Out::Ipv4 => 23,
        Out::Ipv6 => 24,
        Out::Address => 25,
        Out::Code => 32,
    }
}

/// Bytes before the properties: `TRACE_EVENT_INFO` without its array.
const PROPERTIES_AT: usize = 112;
/// Bytes of an EVENT_PROPERTY_INFO.
const PROPERTY_SIZE: usize = 24;
