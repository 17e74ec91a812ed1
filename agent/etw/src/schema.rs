//! The layout of a payload, as TraceLogging metadata, a file's schema records and the tables all give it.
//!
//! Made by `tracelogging`, `event_info` and `tables`; interpreted by `payload`, and in reverse by the writer. Kinds are the
//! in-types and out-types of TDH (tdh.h, TDH_INTYPE_ and TDH_OUTTYPE_). Does not: read bytes.

use std::sync::Arc;

/// The layout and names of one event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Schema {
    /// Name of the event.
    pub name: Option<Arc<str>>,
    /// Name of its provider.
    pub provider_name: Option<Arc<str>>,
    /// Its fields, in their order.
    pub fields: Box<[FieldSpec]>,
    /// How many numbers of the payload are lengths or counts of other fields.
    pub slots: u16,
}

impl Schema {
    /// About how many bytes it takes in memory: what is learned from a stream is kept within limits.
    pub(crate) fn cost(&self) -> usize {
        size_of::<Self>() + fields_cost(&self.fields)
    }
}

fn fields_cost(fields: &[FieldSpec]) -> usize {
    let inner = |field: &FieldSpec| match &field.kind {
        Kind::Struct(members) => fields_cost(members),
        _ => 0,
    };
    let one = |field: &FieldSpec| size_of::<FieldSpec>() + ARC_OVERHEAD + field.name.len() + inner(field);
    fields.iter().map(one).sum()
}

/// Two counters, and what an allocator adds.
const ARC_OVERHEAD: usize = 32;
/// Fields that a schema from a stream may have, those of its structs included.
pub(crate) const MOST_FIELDS: u32 = 4096;

/// One field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldSpec {
    /// Its name.
    pub name: Arc<str>,
    /// How its bytes are read.
    pub kind: Kind,
    /// What they mean.
    pub out: Out,
    /// One value or an array.
    pub count: Count,
    /// Where the length of a string or of bytes comes from.
    pub length: Length,
    /// Keep this number here: another field's length or count refers to it.
    pub slot: Option<u16>,
}

impl FieldSpec {
    /// A field that stands alone.
    pub fn new(name: impl Into<Arc<str>>, kind: Kind, out: Out) -> Self {
        Self {
            name: name.into(),
            kind,
            out,
            count: Count::One,
            length: Length::Natural,
            slot: None,
        }
    }
}

/// How bytes are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// No bytes at all.
    Nothing,
    /// UTF-16, to a zero or to the end; with a length: that many characters.
    Utf16,
    /// Bytes of text, to a zero or to the end; with a length: that many bytes.
    Ansi,
    /// A signed integer of that many bytes.
    Int(u8),
    /// An unsigned integer of that many bytes.
    UInt(u8),
    /// 32-bit floating point.
    F32,
    /// 64-bit floating point.
    F64,
    /// A boolean of four bytes.
    Bool32,
    /// Bytes; without a length: the rest.
    Binary,
    /// Bytes after their 16-bit length.
    CountedBinary,
    /// Bytes after their 32-bit length.
    HexDump,
    /// A GUID.
    Guid,
    /// An unsigned integer of the logging process's pointer size.
    Pointer,
    /// FILETIME.
    FileTime,
    /// SYSTEMTIME.
    SystemTime,
    /// A security id.
    Sid,
    /// A `TOKEN_USER` (two pointers) and its security id; four zero bytes when there is none.
    WbemSid,
    /// UTF-16 after its length in bytes (16 bits).
    CountedUtf16,
    /// Bytes of text after their length (16 bits).
    CountedAnsi,
    /// As `CountedUtf16`, length big-endian.
    ReversedCountedUtf16,
    /// As `CountedAnsi`, length big-endian.
    ReversedCountedAnsi,
    /// UTF-16 to the end.
    Utf16Rest,
    /// Bytes of text to the end.
    AnsiRest,
    /// Fields of its own.
    Struct(Box<[FieldSpec]>),
}

/// What a value means, where that differs from how it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Out {
    /// As read.
    Plain,
    /// Not zero is true.
    Bool,
    /// Text: a character, or bytes that hold text.
    Text,
    /// A port, big-endian.
    Port,
    /// An IPv4 address in network order.
    Ipv4,
    /// An IPv6 address.
    Ipv6,
    /// A socket address or, by its length, an IP address.
    Address,
    /// A result code: 32 bits without sign.
    Code,
    /// A FILETIME in an integer.
    FileTime,
    /// An integer to be read as signed.
    Signed,
    /// An integer to be read as unsigned.
    Unsigned,
}

/// How many values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// One.
    One,
    /// An array of that many.
    Fixed(u16),
    /// An array, its 16-bit count in front of it.
    Prefixed,
    /// An array, its count in an earlier number.
    Slot(u16),
}

/// How long a string or bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// By its kind.
    Natural,
    /// That long.
    Fixed(u16),
    /// The value of an earlier number.
    Slot(u16),
}
