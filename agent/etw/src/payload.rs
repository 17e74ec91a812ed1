//! Reads a payload by its schema: bytes to named values.
//!
//! Used by the decoder for every kind of event. A payload that is shorter than its schema gives the fields that are there and
//! is marked; the work for one event is bounded, whatever counts it states. Does not: choose the schema.

use crate::bytes::Cursor;
use crate::event::{Field, FileTime, Value};
use crate::guid::Guid;
use crate::schema::{Count, FieldSpec, Kind, Length, Out, Schema};

mod address;
mod text;

/// UTF-16 up to its zero, or to the end of `bytes`.
pub(crate) fn utf16_at(bytes: &[u8]) -> Box<str> {
    text::utf16(text::to_wide_nul(bytes))
}

/// The fields of a payload.
#[derive(Debug, Clone, PartialEq)]
pub struct Payload {
    /// What could be read, in its order.
    pub fields: Vec<Field>,
    /// The payload ended before its schema did, or held more values than an event may.
    pub truncated: bool,
}

/// Reads `data`, logged by a process with pointers of `pointer_bytes`.
pub fn read(schema: &Schema, data: &[u8], pointer_bytes: usize) -> Payload {
    let mut reader = Reader {
        cursor: Cursor::new(data),
        pointer_bytes,
        slots: vec![0; usize::from(schema.slots)],
        budget: MOST_VALUES,
    };
    let mut fields = Vec::with_capacity(schema.fields.len());
    let complete = reader.fields(&schema.fields, &mut fields).is_some();
    Payload {
        fields,
        truncated: !complete,
    }
}

/// State of reading one payload.
struct Reader<'a> {
    cursor: Cursor<'a>,
    /// 4 or 8.
    pointer_bytes: usize,
    /// Numbers that later fields refer to.
    slots: Vec<u64>,
    /// Values that may still be made.
    budget: u32,
}

impl Reader<'_> {
    /// Appends to `fields`; `None` when the payload ended early (what was read stays).
    fn fields(&mut self, specs: &[FieldSpec], fields: &mut Vec<Field>) -> Option<()> {
        for spec in specs {
            let value = self.field(spec)?;
            fields.push(Field {
                name: spec.name.clone(),
                value,
            });
        }
        Some(())
    }

    /// One field, an array included. Its number is kept where later fields refer to it.
    fn field(&mut self, spec: &FieldSpec) -> Option<Value> {
        let count = match spec.count {
            Count::One => {
                let value = self.value(spec)?;
                if let (Some(slot), Some(number)) = (spec.slot, value.u64()) {
                    *self.slots.get_mut(usize::from(slot))? = number;
                }
                return Some(value);
            }
            Count::Fixed(count) => u64::from(count),
            Count::Prefixed => u64::from(self.cursor.u16()?),
            Count::Slot(slot) => *self.slots.get(usize::from(slot))?,
        };
        self.array(spec, usize::try_from(count).ok()?)
    }

    /// Arrays of bytes are bytes and arrays of characters are text; the rest are lists.
    fn array(&mut self, spec: &FieldSpec, count: usize) -> Option<Value> {
        match (&spec.kind, spec.out) {
            (Kind::Int(1) | Kind::UInt(1), Out::Text) => {
                return Some(Value::Text(text::ansi(text::to_nul(self.cursor.take(count)?))));
            }
            (Kind::Int(2) | Kind::UInt(2), Out::Text) => {
                let bytes = self.cursor.take(count.checked_mul(2)?)?;
                return Some(Value::Text(text::utf16(text::to_wide_nul(bytes))));
            }
            (Kind::UInt(1), Out::Plain | Out::Unsigned) => {
                return Some(Value::Bytes(self.cursor.take(count)?.into()));
            }
            _ => {}
        }
        let mut values = Vec::with_capacity(count.min(self.cursor.rest().len()));
        for _ in 0..count {
            values.push(self.value(spec)?);
        }
        Some(Value::List(values))
    }

    /// One value by its kind; `None` when the payload ends within it, or the budget is used up.
    fn value(&mut self, spec: &FieldSpec) -> Option<Value> {
        self.budget = self.budget.checked_sub(1)?;
        let length = match spec.length {
            Length::Natural => None,
            Length::Fixed(length) => Some(usize::from(length)),
            Length::Slot(slot) => Some(usize::try_from(*self.slots.get(usize::from(slot))?).ok()?),
        };
        let cursor = &mut self.cursor;
        Some(match &spec.kind {
            Kind::Nothing => Value::Bytes(Box::default()),
            Kind::Int(size) => integer(cursor.take(usize::from(*size))?, true, spec.out),
            Kind::UInt(size) => integer(cursor.take(usize::from(*size))?, false, spec.out),
            Kind::Pointer => integer(cursor.take(self.pointer_bytes)?, false, spec.out),
            Kind::F32 => Value::F64(f64::from(f32::from_le_bytes(cursor.array()?))),
            Kind::F64 => Value::F64(f64::from_le_bytes(cursor.array()?)),
            Kind::Bool32 => Value::Bool(cursor.u32()? != 0),
            Kind::Guid => Value::Guid(Guid::from_bytes_le(cursor.array()?)),
            Kind::FileTime => Value::FileTime(FileTime(i64::from_le_bytes(cursor.array()?))),
            Kind::SystemTime => text::system_time(cursor.array()?),
            Kind::Utf16 | Kind::Utf16Rest => Value::Text(text::take_utf16(cursor, &spec.kind, length)?),
            Kind::Ansi | Kind::AnsiRest => Value::Text(text::take_ansi(cursor, &spec.kind, length)?),
            Kind::CountedUtf16 => Value::Text(text::utf16(counted(cursor, u16::from_le_bytes)?)),
            Kind::ReversedCountedUtf16 => Value::Text(text::utf16(counted(cursor, u16::from_be_bytes)?)),
            Kind::CountedAnsi => Value::Text(text::ansi(counted(cursor, u16::from_le_bytes)?)),
            Kind::ReversedCountedAnsi => Value::Text(text::ansi(counted(cursor, u16::from_be_bytes)?)),
            Kind::Binary => bytes(cursor.take(length.unwrap_or(cursor.rest().len()))?, spec.out),
            Kind::CountedBinary => bytes(counted(cursor, u16::from_le_bytes)?, spec.out),
            Kind::HexDump => {
                let length = usize::try_from(cursor.u32()?).ok()?;
                bytes(cursor.take(length)?, spec.out)
            }
            Kind::Sid => {
                let length = length.map_or_else(|| address::sid_length(cursor.rest()), Some)?;
                bytes_of_sid(cursor.take(length)?)
            }
            Kind::WbemSid => self.wbem_sid()?,
            Kind::Struct(specs) => {
                let mut fields = Vec::with_capacity(specs.len());
                self.fields(specs, &mut fields)?;
                Value::Struct(fields)
            }
        })
    }

    /// A SID behind a TOKEN_USER of two pointers (TDH_INTYPE_WBEMSID); four zero bytes where there is none.
    fn wbem_sid(&mut self) -> Option<Value> {
        let mut ahead = self.cursor;
        if ahead.u32()? == 0 {
            self.cursor = ahead;
            return Some(Value::Sid(Box::default()));
        }
        self.cursor.take(self.pointer_bytes * 2)?;
        let length = address::sid_length(self.cursor.rest())?;
        Some(bytes_of_sid(self.cursor.take(length)?))
    }
}

/// Bytes behind their 16-bit length, which the reversed in-types store big-endian.
fn counted<'a>(cursor: &mut Cursor<'a>, order: fn([u8; 2]) -> u16) -> Option<&'a [u8]> {
    let length = order(cursor.array()?);
    cursor.take(usize::from(length))
}

/// One to eight bytes as the number they mean.
fn integer(bytes: &[u8], signed: bool, out: Out) -> Value {
    let mut wide = [0; 8];
    for (to, from) in wide.iter_mut().zip(bytes) {
        *to = *from;
    }
    let unsigned = u64::from_le_bytes(wide);
    let unused_bits = 64_u32.saturating_sub(bytes.len() as u32 * 8).min(63);
    let with_sign = ((unsigned << unused_bits) as i64) >> unused_bits;
    match out {
        Out::Bool => Value::Bool(unsigned != 0),
        Out::Port => Value::U64(u64::from((unsigned as u16).swap_bytes())),
        Out::Ipv4 => Value::Ip((unsigned as u32).to_le_bytes().into()),
        Out::Code => Value::U64(u64::from(unsigned as u32)),
        Out::FileTime => Value::FileTime(FileTime(with_sign)),
        Out::Text => text::character(unsigned, bytes.len()),
        Out::Signed => Value::I64(with_sign),
        Out::Unsigned => Value::U64(unsigned),
        Out::Plain | Out::Ipv6 | Out::Address => {
            if signed {
                Value::I64(with_sign)
            } else {
                Value::U64(unsigned)
            }
        }
    }
}

/// Bytes as what their out-type makes of them; what does not fit stays bytes.
fn bytes(bytes: &[u8], out: Out) -> Value {
    let known = match out {
        Out::Text => Some(Value::Text(text::ansi(bytes))),
        Out::Ipv4 | Out::Ipv6 | Out::Address => address::read(bytes),
        _ => None,
    };
    known.unwrap_or_else(|| Value::Bytes(bytes.into()))
}

fn bytes_of_sid(bytes: &[u8]) -> Value {
    address::sid(bytes).map_or_else(|| Value::Bytes(bytes.into()), Value::Sid)
}

/// Values of one event at most. An event has at most 64 KiB (EVENT_RECORD), which no real event fills with more values.
const MOST_VALUES: u32 = 65_536;

#[cfg(test)]
mod tests;
