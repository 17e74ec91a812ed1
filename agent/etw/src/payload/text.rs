//! Texts and times in payloads: UTF-16, unknown code pages, SYSTEMTIME.
//!
//! Used by `payload`. Does not: know code pages.

use crate::bytes::Cursor;
use crate::event::{FileTime, Value};
use crate::schema::Kind;

/// UTF-16 up to its zero (also read), of `length` characters, or to the end.
pub fn take_utf16(cursor: &mut Cursor<'_>, kind: &Kind, length: Option<usize>) -> Option<Box<str>> {
    if let Some(length) = length {
        return Some(utf16(to_wide_nul(cursor.take(length.checked_mul(2)?)?)));
    }
    let rest = cursor.rest();
    // A text that ends with its zero takes at least the zero; one that goes to the end may be empty.
    if matches!(kind, Kind::Utf16) && rest.is_empty() {
        return None;
    }
    let text = if matches!(kind, Kind::Utf16) {
        to_wide_nul(rest)
    } else {
        rest
    };
    let ended = text.len() + 2 <= rest.len() && matches!(kind, Kind::Utf16);
    cursor.take(if ended { text.len() + 2 } else { rest.len() })?;
    Some(utf16(text))
}

/// Text of bytes up to its zero (also read), of `length` bytes, or to the end.
pub fn take_ansi(cursor: &mut Cursor<'_>, kind: &Kind, length: Option<usize>) -> Option<Box<str>> {
    if let Some(length) = length {
        return Some(ansi(to_nul(cursor.take(length)?)));
    }
    let rest = cursor.rest();
    if matches!(kind, Kind::Ansi) {
        if rest.is_empty() {
            return None;
        }
        if let Some(text) = cursor.until_nul() {
            return Some(ansi(text));
        }
    }
    cursor.take(rest.len())?;
    Some(ansi(rest))
}

/// The bytes before the first zero byte.
pub fn to_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or(bytes)
}

/// The bytes before the first zero character of two bytes.
pub fn to_wide_nul(bytes: &[u8]) -> &[u8] {
    let end = bytes.as_chunks::<2>().0.iter().position(|pair| *pair == [0, 0]);
    end.and_then(|end| bytes.get(..end * 2)).unwrap_or(bytes)
}

/// UTF-16, little-endian; unpaired surrogates become U+FFFD, an odd last byte is left out.
pub fn utf16(bytes: &[u8]) -> Box<str> {
    let pairs = bytes.as_chunks::<2>().0;
    let mut text = String::with_capacity(pairs.len());
    // Names and paths are ASCII nearly always.
    if pairs.iter().all(|[low, high]| *high == 0 && low.is_ascii()) {
        text.extend(pairs.iter().map(|[low, _]| char::from(*low)));
    } else {
        let units = pairs.iter().map(|pair| u16::from_le_bytes(*pair));
        text.extend(char::decode_utf16(units).map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER)));
    }
    text.into_boxed_str()
}

/// Bytes of an unknown code page: UTF-8 if they are, else each byte the character of that number.
pub fn ansi(bytes: &[u8]) -> Box<str> {
    match str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => bytes.iter().map(|&byte| char::from(byte)).collect::<String>().into(),
    }
}

/// A single character of one or two bytes.
pub fn character(unit: u64, size: usize) -> Value {
    let unit = (unit as u16).to_le_bytes();
    Value::Text(if size == 1 { ansi(&unit[..1]) } else { utf16(&unit) })
}

/// SYSTEMTIME (minwinbase.h: year, month, day of the week, day, hour, minute, second, millisecond), or its bytes when they are
/// no date. The day of the week is not checked.
pub fn system_time(bytes: [u8; 16]) -> Value {
    let part = |at: usize| i64::from(u16::from_le_bytes([bytes[at * 2], bytes[at * 2 + 1]]));
    let (year, month, day) = (part(0), part(1), part(3));
    let (hour, minute, second, milli) = (part(4), part(5), part(6), part(7));
    let valid = (1601..=30_827).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60
        && milli < 1000;
    if !valid {
        return Value::Bytes(bytes.into());
    }
    let seconds = (days_since_1601(year, month, day) * 24 + hour) * 3600 + minute * 60 + second;
    Value::FileTime(FileTime((seconds * 1000 + milli) * 10_000))
}

/// Days of the Gregorian calendar; the year is counted from March so that a leap day is its last.
const fn days_since_1601(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month_from_march = (month + 9) % 12;
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month_from_march * 153 + 2) / 5 + day - 1;
    days - DAYS_TO_1601
}

/// Days from March 1 of the year 0 to January 1, 1601.
const DAYS_TO_1601: i64 = 1600 * 365 + 400 - 16 + 4 + 306;
