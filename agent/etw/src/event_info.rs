//! Parses a `TRACE_EVENT_INFO` (tdh.h; learn.microsoft.com): the schema of one manifest or MOF event.
//!
//! Used by the decoder, for the schema records of merged files (classic provider `bbccf6c1-..`, type 32) and for the answers
//! of TDH in a live session. Offsets and indexes that lead nowhere give `None`, never a panic. Does not: parse schemas of
//! TraceLogging or WPP events.

use std::sync::Arc;

use crate::bytes::{array_at, u16_at, u32_at};
use crate::guid::Guid;
use crate::payload::utf16_at;
use crate::schema::{Count, FieldSpec, Kind, Length, MOST_FIELDS, Out, Schema};

/// The event that a schema is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SchemaKey {
    /// A manifest event.
    Manifest {
        /// Its provider.
        provider: Guid,
        /// Its id.
        id: u16,
        /// Its version.
        version: u8,
    },
    /// A classic event.
    Classic {
        /// GUID of its class.
        class: Guid,
        /// Event type.
        opcode: u8,
        /// Its version.
        version: u8,
    },
}

/// The schema in a `TRACE_EVENT_INFO`; `None` when it is malformed, or not of a manifest or MOF event.
pub fn schema(info: &[u8]) -> Option<(SchemaKey, Schema)> {
    let guid_at = |at| Guid::read(info.get(at..)?);
    // `TRACE_EVENT_INFO` (tdh.h): ProviderGuid at 0, EventGuid at 16, EventDescriptor at 32, DecodingSource at 48,
    // ProviderNameOffset at 52, TaskNameOffset at 68, OpcodeNameOffset at 72, PropertyCount at 100, TopLevelPropertyCount at
    // 104.
    let [id_low, id_high, version, _, _, opcode] = array_at(info, 32)?;
    let key = match u32_at(info, 48)? {
        SOURCE_XML => SchemaKey::Manifest {
            provider: guid_at(0)?,
            id: u16::from_le_bytes([id_low, id_high]),
            version,
        },
        SOURCE_WBEM => SchemaKey::Classic {
            class: guid_at(16)?,
            opcode,
            version,
        },
        _ => return None,
    };
    let count = usize::try_from(u32_at(info, 100)?).ok()?;
    let top_level = usize::try_from(u32_at(info, 104)?).ok()?;
    let properties = info.get(PROPERTIES_AT..PROPERTIES_AT.checked_add(count.checked_mul(PROPERTY_SIZE)?)?)?;
    let mut tree = PropertyTree {
        info,
        properties,
        slots: vec![None; count],
        used: 0,
        left: MOST_FIELDS,
    };
    tree.find_references()?;
    let fields = tree.fields(0, top_level, DEEPEST)?;
    let schema = Schema {
        name: event_name(info),
        provider_name: name_at(info, 52),
        fields,
        slots: tree.used,
    };
    Some((key, schema))
}

/// Whether it is a schema of a TraceLogging event, which carries its own, or of a WPP message, which is not decoded.
pub(crate) fn is_needless(info: &[u8]) -> bool {
    matches!(u32_at(info, 48), Some(SOURCE_WPP | SOURCE_TRACELOGGING))
}

/// `Task/Opcode`, or the one of the two that is there. Windows' standard opcodes are called `win:..`; those other than start
/// and stop are left out.
fn event_name(info: &[u8]) -> Option<Arc<str>> {
    let opcode = name_at(info, 72).filter(|opcode| &**opcode != "win:Info");
    match (name_at(info, 68), opcode) {
        (Some(task), Some(opcode)) if *task != *opcode => {
            let opcode = opcode.strip_prefix("win:").unwrap_or(&opcode);
            Some(format!("{task}/{opcode}").into())
        }
        (task, opcode) => task.or(opcode),
    }
}

/// The UTF-16 text at the offset that stands at `at`; 0 means none.
fn name_at(info: &[u8], at: usize) -> Option<Arc<str>> {
    let offset = usize::try_from(u32_at(info, at)?).ok()?;
    if offset == 0 {
        return None;
    }
    let bytes = info.get(offset..)?;
    let name = utf16_at(bytes.get(..LONGEST_NAME).unwrap_or(bytes));
    let name = name.trim();
    (!name.is_empty()).then(|| name.into())
}

/// The properties: an array in which structs point at ranges, and lengths and counts at other elements.
struct PropertyTree<'a> {
    /// All bytes: names lie behind the properties.
    info: &'a [u8],
    properties: &'a [u8],
    /// Per property the slot that keeps its number, when another one refers to it.
    slots: Vec<Option<u16>>,
    /// Slots so far.
    used: u16,
    /// How many more properties may be read, so that a struct that contains itself ends.
    left: u32,
}

impl PropertyTree<'_> {
    /// The bytes of one EVENT_PROPERTY_INFO.
    fn property(&self, index: usize) -> Option<&[u8]> {
        let at = index.checked_mul(PROPERTY_SIZE)?;
        self.properties.get(at..at.checked_add(PROPERTY_SIZE)?)
    }

    /// Assigns a slot to every property that is a count or a length.
    fn find_references(&mut self) -> Option<()> {
        for index in 0..self.slots.len() {
            let property = self.property(index)?;
            let flags = u32_at(property, 0)?;
            let count = (flags & PARAM_COUNT != 0).then(|| u16_at(property, 16)).flatten();
            let length = (flags & PARAM_LENGTH != 0).then(|| u16_at(property, 18)).flatten();
            for target in [count, length].into_iter().flatten() {
                let slot = self.slots.get_mut(usize::from(target))?;
                if slot.is_none() {
                    *slot = Some(self.used);
                    self.used = self.used.checked_add(1)?;
                }
            }
        }
        Some(())
    }

    /// The fields of a range of properties: those of the event, or of a struct that points at them.
    fn fields(&mut self, start: usize, count: usize, depth: u8) -> Option<Box<[FieldSpec]>> {
        let end = start.checked_add(count)?;
        if end > self.slots.len() {
            return None;
        }
        (start..end).map(|index| self.field(index, depth)).collect()
    }

    /// One field; `None` when it refers to a property that is not there, or lies too deep.
    fn field(&mut self, index: usize, depth: u8) -> Option<FieldSpec> {
        self.left = self.left.checked_sub(1)?;
        let property = self.property(index)?;
        let flags = u32_at(property, 0)?;
        // `EVENT_PROPERTY_INFO` (tdh.h): Flags at 0, NameOffset at 4, InType or StructStartIndex at 8, OutType or
        // NumOfStructMembers at 10, count or countPropertyIndex at 16, length or lengthPropertyIndex at 18.
        let [first, second, count, length] = [8, 10, 16, 18].map(|at| u16_at(property, at).unwrap_or_default());
        let name = name_at(self.info, PROPERTIES_AT + index * PROPERTY_SIZE + 4).unwrap_or_else(|| "".into());
        let slot_of = |target: u16| *self.slots.get(usize::from(target)).unwrap_or(&None);
        let count = match (flags & PARAM_COUNT != 0, count) {
            (true, target) => Count::Slot(slot_of(target)?),
            (false, 0 | 1) if flags & PARAM_FIXED_COUNT == 0 => Count::One,
            (false, count) => Count::Fixed(count),
        };
        let length = match (flags & PARAM_LENGTH != 0, length) {
            (true, target) => Length::Slot(slot_of(target)?),
            (false, 0) => Length::Natural,
            (false, length) => Length::Fixed(length),
        };
        let slot = *self.slots.get(index)?;
        let (kind, out, length) = if flags & STRUCT != 0 {
            let members = self.fields(usize::from(first), usize::from(second), depth.checked_sub(1)?)?;
            (Kind::Struct(members), Out::Plain, Length::Natural)
        } else {
            let kind = kind(first)?;
            let length = if kind_takes_length(&kind) {
                length
            } else {
                Length::Natural
            };
            let (kind, out) = meaning(kind, first, second);
            // An IPv6 address is declared as binary without a length.
            let length = match (&kind, out, length) {
                (Kind::Binary, Out::Ipv6, Length::Natural) => Length::Fixed(16),
                (_, _, length) => length,
            };
            (kind, out, length)
        };
        Some(FieldSpec {
            name,
            kind,
            out,
            count,
            length,
            slot,
        })
    }
}

/// The in-types of TDH: `_TDH_IN_TYPE` (tdh.h). Those from 300 on are of MOF classes only. The sizes are those of
/// learn.microsoft.com, `EVENT_PROPERTY_INFO`.
fn kind(in_type: u16) -> Option<Kind> {
    Some(match in_type {
        0 => Kind::Nothing,
        1 => Kind::Utf16,
        2 => Kind::Ansi,
        3 => Kind::Int(1),
        4 => Kind::UInt(1),
        5 => Kind::Int(2),
        6 => Kind::UInt(2),
        7 => Kind::Int(4),
        8 | 20 => Kind::UInt(4),
        9 => Kind::Int(8),
        10 | 21 => Kind::UInt(8),
        11 => Kind::F32,
        12 => Kind::F64,
        13 => Kind::Bool32,
        14 => Kind::Binary,
        15 => Kind::Guid,
        16 | 308 => Kind::Pointer,
        17 => Kind::FileTime,
        18 => Kind::SystemTime,
        19 => Kind::Sid,
        22 | 300 => Kind::CountedUtf16,
        23 | 301 => Kind::CountedAnsi,
        25 => Kind::CountedBinary,
        302 => Kind::ReversedCountedUtf16,
        303 => Kind::ReversedCountedAnsi,
        304 => Kind::Utf16Rest,
        305 => Kind::AnsiRest,
        306 => Kind::UInt(2),
        307 => Kind::UInt(1),
        309 => Kind::HexDump,
        310 => Kind::WbemSid,
        _ => return None,
    })
}

/// Other in-types have a size of their own, whatever length the property states.
const fn kind_takes_length(kind: &Kind) -> bool {
    matches!(kind, Kind::Utf16 | Kind::Ansi | Kind::Binary | Kind::Sid)
}

/// The out-types of TDH that change a value (`_TDH_OUT_TYPE`, tdh.h); the others concern how it is printed: a number in
/// hexadecimal stays a number here.
fn meaning(kind: Kind, in_type: u16, out_type: u16) -> (Kind, Out) {
    let integer = matches!(kind, Kind::Int(_) | Kind::UInt(_) | Kind::Pointer);
    let out = match out_type {
        _ if matches!(in_type, 306 | 307) => Out::Text,
        1 | 28 | 34 | 35 | 300 if !integer || out_type == 1 => Out::Text,
        2 | 38 if integer => Out::FileTime,
        13 => Out::Bool,
        16..=21 if integer => Out::Unsigned,
        22 => Out::Port,
        23 => Out::Ipv4,
        24 => Out::Ipv6,
        25 => Out::Address,
        29..=32 => Out::Code,
        _ => Out::Plain,
    };
    (kind, out)
}

/// `DecodingSource` of manifest events.
const SOURCE_XML: u32 = 0;
/// `DecodingSource` of MOF events.
const SOURCE_WBEM: u32 = 1;
/// `DecodingSource` of WPP messages.
const SOURCE_WPP: u32 = 2;
/// `DecodingSource` of TraceLogging events (`DecodingSourceTlg`).
const SOURCE_TRACELOGGING: u32 = 3;
/// Where `EventPropertyInfoArray` starts.
const PROPERTIES_AT: usize = 112;
/// Bytes of an `EVENT_PROPERTY_INFO`.
const PROPERTY_SIZE: usize = 24;
/// `PROPERTY_FLAGS` (tdh.h): `PropertyStruct`.
const STRUCT: u32 = 0x01;
/// `PropertyParamLength`: the length is the value of another property.
const PARAM_LENGTH: u32 = 0x02;
/// `PropertyParamCount`: the count is the value of another property.
const PARAM_COUNT: u32 = 0x04;
/// `PropertyParamFixedCount`: an array, also where the count is 1.
const PARAM_FIXED_COUNT: u32 = 0x20;
/// Structs within structs that are followed.
const DEEPEST: u8 = 16;
/// Bytes of a name at most. All names of a schema may be at the same place, so that a small schema could have many long ones.
const LONGEST_NAME: usize = 1024;

#[cfg(test)]
mod tests;
