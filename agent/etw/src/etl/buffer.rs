//! The header before every trace buffer (WMI_BUFFER_HEADER; ntwmi.h of the phnt headers).
//!
//! Used by `index` and `block`. Does not: read the buffer itself.

use crate::bytes::{array_at, u16_at, u32_at};

/// A buffer's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferHeader {
    /// Bytes in the file, this header included.
    pub size: u32,
    /// Bytes filled, this header included, before compression.
    pub filled: u32,
    /// Processor it belongs to.
    pub cpu: u16,
    /// Number of the session.
    pub logger: u16,
    /// Bits of the constants below.
    pub flags: u16,
    /// 4: holds the file's header.
    pub kind: u16,
}

impl BufferHeader {
    /// Reads a header; `None` when the bytes are too few, or no header.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let header: [u8; HEADER_SIZE] = array_at(bytes, 0)?;
        let size = u32_at(&header, 0x00)?;
        let saved = u32_at(&header, 0x04)?;
        let offset = u32_at(&header, 0x30)?;
        let kind = u16_at(&header, 0x36)?;
        if !(HEADER_SIZE as u32..=LARGEST as u32).contains(&size) || kind > LAST_KIND {
            return None;
        }
        Some(Self {
            size,
            filled: if offset == 0 { saved } else { offset },
            cpu: u16_at(&header, 0x28)?,
            logger: u16_at(&header, 0x2a)?,
            flags: u16_at(&header, 0x34)?,
            kind,
        })
    }

    /// A stricter test, for bytes at any place: whether this is likely to be a buffer of the same session.
    pub fn plausible(&self, logger: u16) -> bool {
        self.logger == logger
            && self.flags & !KNOWN_FLAGS == 0
            && (HEADER_SIZE as u32..=LARGEST as u32).contains(&self.filled)
            && (self.flags & COMPRESSED != 0 || self.filled <= self.size)
            && self.cpu < 4096
    }

    /// True for compressed buffers.
    pub const fn compressed(&self) -> bool {
        self.flags & COMPRESSED != 0
    }
}

/// Bytes of a buffer's header.
pub const HEADER_SIZE: usize = 0x48;
/// Largest size that Windows allows (EVENT_TRACE_PROPERTIES, BufferSize).
pub const LARGEST: usize = 16 * 1024 * 1024;
/// Events were lost before this buffer.
pub const EVENTS_LOST: u16 = 0x02;
/// A buffer was lost before this one.
pub const BUFFER_LOST: u16 = 0x04;
/// The bytes after the header are compressed (`lz77`).
pub const COMPRESSED: u16 = 0x40;
const KNOWN_FLAGS: u16 = 0x7f;
/// Windows 11 has kinds up to 8.
const LAST_KIND: u16 = 32;
