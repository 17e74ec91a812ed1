//! The values of an event's fields, and conversions that lose nothing.
//!
//! Made by [`crate::payload`], read by the Windows source through [`crate::event`]. Does not: know which provider logged a
//! value.

use std::fmt::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::guid::Guid;
use crate::time::unix_ns_of_filetime;

/// A named value.
#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    /// The name in the schema.
    pub name: Arc<str>,
    /// The logged value.
    pub value: Value,
}

/// A value of a field.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Unsigned and hexadecimal integers, pointers, ports (in host order), result codes (their 32 bits).
    U64(u64),
    /// Signed integers.
    I64(i64),
    /// Floating point numbers.
    F64(f64),
    /// Booleans.
    Bool(bool),
    /// Text; unpaired surrogates are U+FFFD, and bytes that are no UTF-8 are read as Latin-1.
    Text(Box<str>),
    /// Bytes without a meaning in the schema.
    Bytes(Box<[u8]>),
    /// A GUID.
    Guid(Guid),
    /// A point in time.
    FileTime(FileTime),
    /// An IP address.
    Ip(IpAddr),
    /// An address with its port.
    SocketAddr(SocketAddr),
    /// A security id in its text form, `S-1-5-18`.
    Sid(Box<str>),
    /// An array.
    List(Vec<Value>),
    /// A struct: fields of its own.
    Struct(Vec<Field>),
}

/// 100 ns steps since 1601 UTC: `FILETIME` (minwinbase.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileTime(pub i64);

impl FileTime {
    /// Nanoseconds since 1970 UTC; 0 for anything before.
    pub const fn unix_ns(self) -> u64 {
        unix_ns_of_filetime(self.0)
    }
}

impl Value {
    /// The text of text fields and SIDs.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Sid(text) => Some(text),
            _ => None,
        }
    }

    /// The number of unsigned, non-negative signed and boolean fields.
    pub fn u64(&self) -> Option<u64> {
        match self {
            Self::U64(number) => Some(*number),
            Self::I64(number) => (*number).try_into().ok(),
            Self::Bool(bit) => Some(u64::from(*bit)),
            _ => None,
        }
    }

    /// The number of signed fields and of unsigned ones that fit.
    pub fn i64(&self) -> Option<i64> {
        match self {
            Self::U64(number) => (*number).try_into().ok(),
            Self::I64(number) => Some(*number),
            Self::Bool(bit) => Some(i64::from(*bit)),
            _ => None,
        }
    }

    /// The low 32 bits of a number: a result code whatever its declared sign.
    pub const fn code(&self) -> Option<u32> {
        match self {
            Self::U64(number) => Some(*number as u32),
            Self::I64(number) => Some(*number as u32),
            _ => None,
        }
    }

    /// The GUID of GUID fields and of text that is one.
    pub fn guid(&self) -> Option<Guid> {
        match self {
            Self::Guid(guid) => Some(*guid),
            Self::Text(text) => text.parse().ok(),
            _ => None,
        }
    }

    /// The address of IP and socket address fields, and of text that is one.
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Ip(ip) => Some(*ip),
            Self::SocketAddr(address) => Some(address.ip()),
            Self::Text(text) => text.parse().ok(),
            _ => None,
        }
    }

    /// The address with port of socket address fields, and of text that is one.
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::SocketAddr(address) => Some(*address),
            Self::Text(text) => text.parse().ok(),
            _ => None,
        }
    }

    /// The nanoseconds since 1970 of time fields.
    pub const fn unix_ns(&self) -> Option<u64> {
        match self {
            Self::FileTime(time) => Some(time.unix_ns()),
            _ => None,
        }
    }

    /// The fields of a struct.
    pub fn fields(&self) -> Option<&[Field]> {
        match self {
            Self::Struct(fields) => Some(fields),
            _ => None,
        }
    }

    /// The elements of an array.
    pub fn list(&self) -> Option<&[Value]> {
        match self {
            Self::List(values) => Some(values),
            _ => None,
        }
    }

    /// The field of that name in a struct, or deeper.
    pub fn get(&self, name: &str) -> Option<&Value> {
        find(self.fields()?, name)
    }
}

/// For display and attributes: text as it is, lists in brackets, structs in braces, bytes in hex.
impl fmt::Display for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::U64(number) => write!(formatter, "{number}"),
            Self::I64(number) => write!(formatter, "{number}"),
            Self::F64(number) => write!(formatter, "{number}"),
            Self::Bool(bit) => write!(formatter, "{bit}"),
            Self::Text(text) | Self::Sid(text) => formatter.write_str(text),
            Self::Bytes(bytes) => bytes.iter().try_for_each(|byte| write!(formatter, "{byte:02x}")),
            Self::Guid(guid) => write!(formatter, "{guid}"),
            Self::FileTime(time) => write!(formatter, "{}", time.unix_ns()),
            Self::Ip(ip) => write!(formatter, "{ip}"),
            Self::SocketAddr(address) => write!(formatter, "{address}"),
            Self::List(values) => {
                let parts = values.iter().map(|value| ("", value));
                joined(formatter, '[', parts, ']')
            }
            Self::Struct(fields) => {
                let parts = fields.iter().map(|field| (&*field.name, &field.value));
                joined(formatter, '{', parts, '}')
            }
        }
    }
}

fn joined<'a>(
    formatter: &mut fmt::Formatter<'_>,
    open: char,
    parts: impl Iterator<Item = (&'a str, &'a Value)>,
    close: char,
) -> fmt::Result {
    formatter.write_char(open)?;
    for (index, (name, value)) in parts.enumerate() {
        let comma = if index > 0 { ", " } else { "" };
        let equals = if name.is_empty() { "" } else { "=" };
        write!(formatter, "{comma}{name}{equals}{value}")?;
    }
    formatter.write_char(close)
}

/// Top first, then depth: an event's own field wins over one of a struct.
pub(crate) fn find<'a>(fields: &'a [Field], name: &str) -> Option<&'a Value> {
    let own = fields.iter().find(|field| &*field.name == name);
    match own {
        Some(field) => Some(&field.value),
        None => fields.iter().find_map(|field| field.value.get(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(name: &str, value: Value) -> Field {
        Field {
            name: name.into(),
            value,
        }
    }

    #[test]
    fn fields_are_found_at_the_top_before_inside_structs() {
        let inner = vec![
            field("hresult", Value::U64(0x803b_0017)),
            field("threadId", Value::U64(7)),
        ];
        let fields = vec![
            field("wilActivity", Value::Struct(inner)),
            field("threadId", Value::U64(9)),
        ];
        assert_eq!(find(&fields, "threadId").and_then(Value::u64), Some(9));
        assert_eq!(find(&fields, "hresult").and_then(Value::code), Some(0x803b_0017));
        assert_eq!(
            find(&fields, "wilActivity")
                .and_then(|value| value.get("threadId"))
                .and_then(Value::u64),
            Some(7)
        );
        assert_eq!(find(&fields, "absent"), None);
    }

    #[test]
    fn values_convert_only_where_nothing_is_lost() {
        assert_eq!(Value::I64(-1).u64(), None);
        assert_eq!(Value::I64(-2_143_617_001).code(), Some(0x803b_0017));
        assert_eq!(Value::U64(u64::MAX).i64(), None);
        assert_eq!(
            Value::Text("{0c885e0d-6eb6-476c-a048-2457eed3a5c1}".into())
                .guid()
                .map(Guid::is_zero),
            Some(false)
        );
        assert_eq!(Value::Text("10.0.0.1".into()).ip(), Some(IpAddr::from([10, 0, 0, 1])));
        assert_eq!(Value::FileTime(FileTime(0)).unix_ns(), Some(0));
    }

    #[test]
    fn values_as_text() {
        let inner = Value::Struct(vec![field("hresult", Value::U64(5)), field("ok", Value::Bool(true))]);
        let list = Value::List(vec![Value::Text("a b".into()), Value::Bytes([1, 0xab].into()), inner]);
        assert_eq!(list.to_string(), "[a b, 01ab, {hresult=5, ok=true}]");
        assert_eq!(
            Value::SocketAddr(([10, 0, 0, 1], 443).into()).to_string(),
            "10.0.0.1:443"
        );
    }
}
