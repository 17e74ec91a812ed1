//! A record as ETW hands it to a callback: pointers into memory that lives for the call.

use sandglass_etw::{RawRecord, time};
use windows::Win32::System::Diagnostics::Etw::{EVENT_HEADER_EXTENDED_DATA_ITEM, EVENT_RECORD, PEVENT_RECORD_CALLBACK};
use windows::core::GUID;

/// Calls the callback with the record.
pub(crate) fn deliver(record: &RawRecord, callback: PEVENT_RECORD_CALLBACK, context: usize) {
    let items = record.extended.iter().map(|item| EVENT_HEADER_EXTENDED_DATA_ITEM {
        ExtType: item.kind,
        DataSize: u16::try_from(item.data.len()).unwrap_or(u16::MAX),
        DataPtr: item.data.as_ptr() as u64,
        ..Default::default()
    });
    let mut items: Vec<_> = items.collect();
    let header = &record.header;
    let mut event_record = EVENT_RECORD::default();
    event_record.EventHeader.Flags = header.flags;
    event_record.EventHeader.ThreadId = header.tid;
    event_record.EventHeader.ProcessId = header.pid;
    event_record.EventHeader.TimeStamp = time::filetime_of_unix_ns(header.at_ns);
    event_record.EventHeader.ProviderId = GUID::from_u128(header.provider.0);
    event_record.EventHeader.ActivityId = GUID::from_u128(header.activity.0);
    let descriptor = &mut event_record.EventHeader.EventDescriptor;
    descriptor.Id = header.id;
    descriptor.Version = header.version;
    descriptor.Channel = header.channel;
    descriptor.Level = header.level;
    descriptor.Opcode = header.opcode;
    descriptor.Task = header.task;
    descriptor.Keyword = header.keyword;
    event_record.BufferContext.Anonymous.ProcessorIndex = header.cpu;
    event_record.ExtendedDataCount = u16::try_from(items.len()).unwrap_or(u16::MAX);
    event_record.ExtendedData = items.as_mut_ptr();
    event_record.UserDataLength = u16::try_from(record.user_data.len()).unwrap_or(u16::MAX);
    event_record.UserData = record.user_data.as_ptr().cast_mut().cast();
    event_record.UserContext = context as *mut _;
    if let Some(callback) = callback {
        // SAFETY: everything the record points to outlives the call; the callback came in through `OpenTraceW`, whose
        // caller keeps the context until `CloseTrace`.
        unsafe { callback(&mut event_record) };
    }
}
