//! Reads little-endian numbers out of bytes and never past their end.
//!
//! Used by every module that reads a record or a buffer. A read that does not fit is `None`. Does not: panic.

/// Bytes of which a front part has been read.
#[derive(Debug, Clone, Copy)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
}

impl<'a> Cursor<'a> {
    /// At the start of `bytes`.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// What has not been read yet.
    pub const fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    /// True when everything has been read.
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The next `count` bytes.
    pub const fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        match self.bytes.split_at_checked(count) {
            Some((taken, rest)) => {
                self.bytes = rest;
                Some(taken)
            }
            None => None,
        }
    }

    /// The next `N` bytes.
    pub const fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        match self.bytes.split_first_chunk::<N>() {
            Some((taken, rest)) => {
                self.bytes = rest;
                Some(*taken)
            }
            None => None,
        }
    }

    /// The next byte.
    pub fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// The next 16 bits.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// The next 32 bits.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// The bytes up to the next zero byte, which is read too. Without one: `None`, and nothing is read.
    pub fn until_nul(&mut self) -> Option<&'a [u8]> {
        let end = self.bytes.iter().position(|&byte| byte == 0)?;
        let text = self.take(end)?;
        self.take(1)?;
        Some(text)
    }
}

/// The 16 bits at `at`.
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    array_at(bytes, at).map(u16::from_le_bytes)
}

/// The 32 bits at `at`.
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array_at(bytes, at).map(u32::from_le_bytes)
}

/// The `N` bytes at `at`.
pub fn array_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk::<N>().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_past_the_end_reads_nothing() {
        let mut cursor = Cursor::new(&[1, 0, 2, 0, 0]);
        assert_eq!(cursor.u16(), Some(1));
        assert_eq!(cursor.u32(), None);
        assert_eq!(cursor.rest().len(), 3);
        assert_eq!(cursor.until_nul(), Some(&[2][..]));
        assert_eq!(cursor.take(2), None);
        assert_eq!(cursor.u8(), Some(0));
        assert!(cursor.is_empty());
        assert_eq!(u32_at(&[1, 2, 3], usize::MAX), None);
    }
}
