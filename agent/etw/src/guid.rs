//! GUIDs: the ids of providers, activities, containers, namespaces and ports on Windows.
//!
//! Used by every module of this crate and by the Windows source. Held in the order of the text form, so that order and text
//! agree; only this module knows the mixed-endian bytes of records. Does not: make GUIDs.

use std::fmt;
use std::str::FromStr;

/// A GUID, in the order of its text form.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Guid(pub u128);

impl Guid {
    /// All zero: no activity, no provider.
    pub const ZERO: Self = Self(0);

    /// From the 16 bytes in a record: the first three groups are little-endian (guiddef.h).
    pub const fn from_bytes_le(bytes: [u8; 16]) -> Self {
        let mut ordered = bytes;
        let mut at = 0;
        while at < 8 {
            ordered[at] = bytes[RECORD_ORDER[at]];
            at += 1;
        }
        Self(u128::from_be_bytes(ordered))
    }

    /// The 16 bytes of a record.
    pub const fn to_bytes_le(self) -> [u8; 16] {
        Self::from_bytes_le(self.0.to_be_bytes()).0.to_be_bytes()
    }

    /// From the first 16 bytes of `bytes`; `None` when there are fewer.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        bytes.first_chunk::<16>().map(|chunk| Self::from_bytes_le(*chunk))
    }

    /// From text, with or without braces and hyphens. For constants: anything else than 32 hex digits gives zero.
    pub const fn literal(text: &str) -> Self {
        match Self::parse(text.as_bytes()) {
            Some(guid) => guid,
            None => Self::ZERO,
        }
    }

    /// True for the GUID of zeros.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// 32 hex digits in either case; hyphens and braces are passed over wherever they stand, since tools write GUIDs in
    /// several forms.
    const fn parse(text: &[u8]) -> Option<Self> {
        let (mut value, mut digits, mut at) = (0_u128, 0, 0);
        while at < text.len() {
            let digit = match text[at] {
                byte @ b'0'..=b'9' => byte - b'0',
                byte @ b'a'..=b'f' => byte - b'a' + 10,
                byte @ b'A'..=b'F' => byte - b'A' + 10,
                b'-' | b'{' | b'}' => {
                    at += 1;
                    continue;
                }
                _ => return None,
            };
            value = (value << 4) | digit as u128;
            digits += 1;
            at += 1;
        }
        if digits == 32 { Some(Self(value)) } else { None }
    }
}

impl FromStr for Guid {
    type Err = NotAGuid;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // With braces and hyphens: whatever is longer is no GUID and need not be read.
        if text.len() > 38 {
            return Err(NotAGuid);
        }
        Self::parse(text.as_bytes()).ok_or(NotAGuid)
    }
}

/// The text is not 32 hex digits in the form of a GUID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a GUID")]
pub struct NotAGuid;

impl fmt::Display for Guid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.0;
        write!(
            formatter,
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            value >> 96,
            (value >> 80) & 0xffff,
            (value >> 64) & 0xffff,
            (value >> 48) & 0xffff,
            value & 0xffff_ffff_ffff
        )
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{self}")
    }
}

/// Index in a record of byte n of the text form, for the first eight bytes.
const RECORD_ORDER: [usize; 8] = [3, 2, 1, 0, 5, 4, 7, 6];

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes are those that Windows writes for the provider of HNS.
    #[test]
    fn text_and_bytes_go_both_ways() {
        let hns: Guid = "0c885e0d-6eb6-476c-a048-2457eed3a5c1".parse().unwrap();
        assert_eq!(hns, Guid::literal("{0C885E0D-6EB6-476C-A048-2457EED3A5C1}"));
        assert_eq!(hns.to_string(), "0c885e0d-6eb6-476c-a048-2457eed3a5c1");
        let bytes = hns.to_bytes_le();
        assert_eq!(bytes[..8], [0x0d, 0x5e, 0x88, 0x0c, 0xb6, 0x6e, 0x6c, 0x47]);
        assert_eq!(Guid::from_bytes_le(bytes), hns);
        assert_eq!(Guid::read(&bytes[..15]), None);
    }

    #[test]
    fn other_text_is_refused() {
        for text in [
            "",
            "0c885e0d",
            "zc885e0d-6eb6-476c-a048-2457eed3a5c1",
            "0c885e0d-6eb6-476c-a048-2457eed3a5c1ff",
        ] {
            assert_eq!(text.parse::<Guid>(), Err(NotAGuid), "{text}");
        }
        assert!(Guid::literal("nonsense").is_zero());
    }
}
