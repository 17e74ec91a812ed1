//! Copies an ETW record out of a callback: header, extended data and payload.
//!
//! The only place that accesses the EVENT_RECORD behind ferrisetw's `EventRecord`, which hides payload and unknown extended
//! data. Does not: interpret anything.

use ferrisetw::EventRecord;
use sandglass_etw::{ExtendedItem, Guid, RawRecord, RecordHeader};
use windows::Win32::System::Diagnostics::Etw::{EVENT_HEADER_EXTENDED_DATA_ITEM, EVENT_RECORD};

/// A copy of the record. Pointers in it are valid during the callback only (documentation of EVENT_RECORD), so that
/// everything is copied.
pub(super) fn record(record: &EventRecord) -> RawRecord {
    // SAFETY: `EventRecord` is a transparent wrapper around this very type (ferrisetw 1.2.0,
    // src/native/etw_types/event_record.rs), and the reference is valid for the callback.
    let record: &EVENT_RECORD = unsafe { &*std::ptr::from_ref(record).cast() };
    let header = &record.EventHeader;
    let descriptor = &header.EventDescriptor;
    RawRecord {
        header: RecordHeader {
            provider: Guid(header.ProviderId.to_u128()),
            id: descriptor.Id,
            version: descriptor.Version,
            channel: descriptor.Channel,
            level: descriptor.Level,
            opcode: descriptor.Opcode,
            task: descriptor.Task,
            keyword: descriptor.Keyword,
            flags: header.Flags,
            pid: header.ProcessId,
            tid: header.ThreadId,
            cpu: processor(record),
            // Real-time records carry system time (100 ns since 1601), since PROCESS_TRACE_MODE_RAW_TIMESTAMP is not set.
            at_ns: sandglass_etw::time::unix_ns_of_filetime(header.TimeStamp),
            activity: Guid(header.ActivityId.to_u128()),
            // 0: the decoder takes the size from the flags of the header. Only a file has one for the whole session.
            pointer_size: 0,
        },
        extended: extended(record),
        user_data: bytes(record.UserData.cast(), usize::from(record.UserDataLength)).into(),
    }
}

/// The processor that logged it (ETW_BUFFER_CONTEXT, evntrace.h).
fn processor(record: &EVENT_RECORD) -> u16 {
    // SAFETY: both views of the union are plain integers that ETW always fills.
    unsafe { record.BufferContext.Anonymous.ProcessorIndex }
}

/// Copies of the extended items, whatever their types: the decoder knows which it needs.
fn extended(record: &EVENT_RECORD) -> Vec<ExtendedItem> {
    if record.ExtendedData.is_null() {
        return Vec::new();
    }
    // SAFETY: ETW passes `ExtendedDataCount` items, valid for the callback.
    let items: &[EVENT_HEADER_EXTENDED_DATA_ITEM] =
        unsafe { std::slice::from_raw_parts(record.ExtendedData, usize::from(record.ExtendedDataCount)) };
    let copied = items.iter().map(|item| ExtendedItem {
        kind: item.ExtType,
        data: bytes(item.DataPtr as *const u8, usize::from(item.DataSize)).into(),
    });
    copied.collect()
}

/// The bytes of one block of ETW's; none for a null pointer, which an empty block may have.
fn bytes<'a>(data: *const u8, length: usize) -> &'a [u8] {
    if data.is_null() || length == 0 {
        return &[];
    }
    // SAFETY: ETW's pointer and length of one block, valid for the callback; the caller copies at once.
    unsafe { std::slice::from_raw_parts(data, length) }
}
