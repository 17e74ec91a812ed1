//! What the decoders of the kernel side's records share: their error, and text out of bytes that should be UTF-8.
//!
//! Used by the decoders of all feeds, and by `exec::running`, which reads the same texts from `/proc`.
//! Does not: know any record.

use std::borrow::Cow;
use std::ffi::CStr;
use std::fmt::Write as _;

/// Bytes that are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The record ends before the length that its kind or its own length fields require.
    #[error("a record of kind {kind} ends after {bytes} bytes")]
    Short {
        /// One of the `KIND_` constants; 0 where the record has no kind or ends before it.
        kind: u32,
        /// Length of the record.
        bytes: usize,
    },
    /// A kind this agent does not know.
    #[error("no record has kind {0}")]
    UnknownKind(u32),
}

/// Splits `bytes` into strings that end with a zero byte each; the last one may lack it.
pub fn strings(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        // memchr searches by words; a split at each byte was most of the time of decoding (bench: throughput).
        let string = CStr::from_bytes_until_nul(rest).map_or(rest, CStr::to_bytes);
        rest = rest.get(string.len() + 1..).unwrap_or_default();
        Some(string)
    })
}

/// Text of bytes that should be UTF-8. Each byte of an invalid sequence becomes `\xNN`.
#[must_use]
pub fn text(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = str::from_utf8(bytes) {
        return Cow::Borrowed(text);
    }
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            // Writing to a String cannot fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    Cow::Owned(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An empty string between two zero bytes is one; behind the last zero byte there is none.
    #[test]
    fn strings_end_with_a_zero_byte_or_the_bytes() {
        for (bytes, expected) in [
            (&b""[..], &[][..]),
            (b"\0", &[&b""[..]]),
            (b"a", &[b"a"]),
            (b"a\0", &[b"a"]),
            (b"a\0\0", &[b"a", b""]),
            (b"\0a\0b", &[b"", b"a", b"b"]),
        ] {
            assert_eq!(strings(bytes).collect::<Vec<_>>(), expected, "{bytes:?}");
        }
    }
}
