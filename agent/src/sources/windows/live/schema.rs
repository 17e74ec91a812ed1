//! Queries TDH for the layout of events that no table has: builds of Windows differ in the versions of their events.
//!
//! Once for each event, and for a bounded number of them: a query takes up to milliseconds.
//! Does not: read fields through TDH; the decoder learns the layout and reads them.

use std::collections::HashSet;

use sandglass_etw::Guid;
use sandglass_etw::RecordHeader;
use windows::Win32::System::Diagnostics::Etw::{EVENT_RECORD, TRACE_EVENT_INFO, TdhGetEventInformation};
use windows::core::GUID;

/// The events that were queried.
#[derive(Debug, Default)]
pub(super) struct Schemas {
    /// Provider, id, version and opcode of those that were queried, whatever TDH returned; at most [`MAX_QUERIED`].
    queried: HashSet<(Guid, u16, u8, u8)>,
}

impl Schemas {
    /// The event's `TRACE_EVENT_INFO`; `None` if TDH has none, or was queried for it before.
    pub(super) fn query(&mut self, header: &RecordHeader) -> Option<Vec<u8>> {
        let event = (header.provider, header.id, header.version, header.opcode);
        if self.queried.len() >= MAX_QUERIED || !self.queried.insert(event) {
            return None;
        }
        // TDH looks a layout up by provider, descriptor and flags of the header (documentation of TdhGetEventInformation).
        let mut record = EVENT_RECORD::default();
        record.EventHeader.Flags = header.flags;
        record.EventHeader.ProviderId = GUID::from_u128(header.provider.0);
        let descriptor = &mut record.EventHeader.EventDescriptor;
        descriptor.Id = header.id;
        descriptor.Version = header.version;
        descriptor.Channel = header.channel;
        descriptor.Level = header.level;
        descriptor.Opcode = header.opcode;
        descriptor.Task = header.task;
        descriptor.Keyword = header.keyword;
        let mut size = 0;
        // SAFETY: the record outlives the call; without a buffer only the size is written.
        let status = unsafe { TdhGetEventInformation(&record, None, None, &mut size) };
        if status != INSUFFICIENT_BUFFER || size > MAX_BYTES {
            return None;
        }
        // A vector of u64: TRACE_EVENT_INFO is aligned to 8 bytes.
        let mut buffer = vec![0_u64; (size as usize).div_ceil(size_of::<u64>())];
        let info = buffer.as_mut_ptr().cast::<TRACE_EVENT_INFO>();
        // SAFETY: the buffer has at least `size` bytes, and the record outlives the call.
        let status = unsafe { TdhGetEventInformation(&record, None, Some(info), &mut size) };
        let bytes = buffer.into_iter().flat_map(u64::to_le_bytes).take(size as usize);
        (status == 0).then(|| bytes.collect())
    }
}

/// ERROR_INSUFFICIENT_BUFFER (winerror.h).
const INSUFFICIENT_BUFFER: u32 = 122;
/// Bound on queried events.
const MAX_QUERIED: usize = 4_096;
/// Larger layouts are ignored.
const MAX_BYTES: u32 = 1 << 20;
