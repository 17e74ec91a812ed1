//! The bytes of a record in a file, by the header that records of its kind have.
//!
//! Used by [`super::file`]. Written from the layouts that the reader was checked against ([`crate::etl`]). Does not: choose
//! buffers.

use super::record::PROCESS;
use crate::raw::{RawRecord, flags};

/// The bytes of a record in a file.
pub(super) fn lay_out(record: &RawRecord, ticks: i64) -> Vec<u8> {
    let header = &record.header;
    if header.flags & flags::TRACE_MESSAGE != 0 {
        return message(record);
    }
    if header.flags & flags::CLASSIC_HEADER == 0 {
        return event(record, ticks);
    }
    if header.provider == PROCESS {
        kernel(record, ticks)
    } else {
        classic(record, ticks)
    }
}

/// `EVENT_HEADER` (evntcons.h) with the header type of its pointer size, then extended items, then the payload.
fn event(record: &RawRecord, ticks: i64) -> Vec<u8> {
    let header = &record.header;
    let header_type = if header.pointer_bytes() == 4 { 0x12 } else { 0x13 };
    let mut bytes = vec![0, 0, header_type, 0xc0];
    bytes.extend(header.flags.to_le_bytes());
    bytes.extend([0; 2]);
    bytes.extend(header.tid.to_le_bytes());
    bytes.extend(header.pid.to_le_bytes());
    bytes.extend(ticks.to_le_bytes());
    bytes.extend(header.provider.to_bytes_le());
    bytes.extend(header.id.to_le_bytes());
    bytes.extend([header.version, header.channel, header.level, header.opcode]);
    bytes.extend(header.task.to_le_bytes());
    bytes.extend(header.keyword.to_le_bytes());
    bytes.extend([0; 8]);
    bytes.extend(header.activity.to_bytes_le());
    // Items are aligned to 8 bytes, and all but the last have bit 0 of their third number set (`Linkage`).
    let last = record.extended.len().wrapping_sub(1);
    for (index, item) in record.extended.iter().enumerate() {
        let size = (item.data.len() + 8).next_multiple_of(8);
        bytes.extend((size as u16).to_le_bytes());
        bytes.extend(item.kind.to_le_bytes());
        bytes.extend(u16::from(index != last).to_le_bytes());
        bytes.extend((item.data.len() as u16).to_le_bytes());
        bytes.extend(&item.data);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    bytes.extend(&record.user_data);
    sized(bytes, 0)
}

/// A kernel logger record. Starts and ends come with the long header (`SYSTEM_TRACE_HEADER`), what runs at the session's
/// start and end with the short one (`PERFINFO_TRACE_HEADER`); ntwmi.h of the phnt headers.
fn kernel(record: &RawRecord, ticks: i64) -> Vec<u8> {
    let header = &record.header;
    let long = matches!(header.opcode, 1 | 2 | 11);
    let header_type = if long { 0x02 } else { 0x11 };
    let mut bytes = vec![header.version, 0, header_type, 0xc0, 0, 0, header.opcode, 0x03];
    if long {
        bytes.extend(header.tid.to_le_bytes());
        bytes.extend(header.pid.to_le_bytes());
    }
    bytes.extend(ticks.to_le_bytes());
    if long {
        bytes.extend([0; 8]);
    }
    bytes.extend(&record.user_data);
    sized(bytes, 4)
}

/// `EVENT_TRACE_HEADER` (evntrace.h), of classic providers.
fn classic(record: &RawRecord, ticks: i64) -> Vec<u8> {
    let header = &record.header;
    let mut bytes = vec![0, 0, 0x14, 0xc0, header.opcode, header.level, header.version, 0];
    bytes.extend(header.tid.to_le_bytes());
    bytes.extend(header.pid.to_le_bytes());
    bytes.extend(ticks.to_le_bytes());
    bytes.extend(header.provider.to_bytes_le());
    bytes.extend([0; 8]);
    bytes.extend(&record.user_data);
    sized(bytes, 0)
}

/// `MESSAGE_TRACE_HEADER` (evntrace.h), of WPP.
fn message(record: &RawRecord) -> Vec<u8> {
    let mut bytes = vec![0, 0, 0x0f, 0x90, 10, 0, 0, 0];
    bytes.extend(&record.user_data);
    sized(bytes, 0)
}

/// Puts the size where its layout wants it: 16 bits, so that a longer record cannot be written.
fn sized(mut bytes: Vec<u8>, at: usize) -> Vec<u8> {
    let size = (bytes.len() as u16).to_le_bytes();
    bytes[at..at + 2].copy_from_slice(&size);
    bytes
}
