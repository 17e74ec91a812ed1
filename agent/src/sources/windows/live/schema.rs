//! Asks TDH how an event is laid out that no table knows: builds of Windows differ in the versions of their events.
//!
//! Once for each event that is met, and for a bounded number of them: an answer takes TDH up to milliseconds.
//! Does not: read fields through TDH; the decoder learns the layout and does that.

use std::collections::HashSet;

use sandglass_etw::Guid;
use sandglass_etw::RecordHeader;
use windows::Win32::System::Diagnostics::Etw::{EVENT_RECORD, TRACE_EVENT_INFO, TdhGetEventInformation};
use windows::core::GUID;

/// Which events were asked for.
#[derive(Debug, Default)]
pub(super) struct Schemas {
    asked: HashSet<(Guid, u16, u8, u8)>,
}

impl Schemas {
    /// The event's `TRACE_EVENT_INFO`; `None` when TDH has none, or was asked before.
    pub(super) fn ask(&mut self, header: &RecordHeader) -> Option<Vec<u8>> {
        let event = (header.provider, header.id, header.version, header.opcode);
        if self.asked.len() >= MOST_ASKED || !self.asked.insert(event) {
            return None;
        }
        // TDH finds a layout by provider, descriptor and kind of header.
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
        if status != INSUFFICIENT_BUFFER || size > MOST_BYTES {
            return None;
        }
        // Of u64, as TRACE_EVENT_INFO must be aligned.
        let mut buffer = vec![0_u64; (size as usize).div_ceil(size_of::<u64>())];
        let info = buffer.as_mut_ptr().cast::<TRACE_EVENT_INFO>();
        // SAFETY: the buffer has the bytes that `size` says, and the record outlives the call.
        let status = unsafe { TdhGetEventInformation(&record, None, Some(info), &mut size) };
        let bytes = buffer.into_iter().flat_map(u64::to_le_bytes).take(size as usize);
        (status == 0).then(|| bytes.collect())
    }
}

const INSUFFICIENT_BUFFER: u32 = 122;
/// Events that are asked for, most.
const MOST_ASKED: usize = 4_096;
/// Layouts that are larger are no use.
const MOST_BYTES: u32 = 1 << 20;
