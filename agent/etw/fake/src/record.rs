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
    let mut given = EVENT_RECORD::default();
    given.EventHeader.Flags = header.flags;
    given.EventHeader.ThreadId = header.tid;
    given.EventHeader.ProcessId = header.pid;
    given.EventHeader.TimeStamp = time::filetime_of_unix_ns(header.at_ns);
    given.EventHeader.ProviderId = GUID::from_u128(header.provider.0);
    given.EventHeader.ActivityId = GUID::from_u128(header.activity.0);
    let descriptor = &mut given.EventHeader.EventDescriptor;
    descriptor.Id = header.id;
    descriptor.Version = header.version;
    descriptor.Channel = header.channel;
    descriptor.Level = header.level;
    descriptor.Opcode = header.opcode;
    descriptor.Task = header.task;
    descriptor.Keyword = header.keyword;
    given.BufferContext.Anonymous.ProcessorIndex = header.cpu;
    given.ExtendedDataCount = u16::try_from(items.len()).unwrap_or(u16::MAX);
    given.ExtendedData = items.as_mut_ptr();
    given.UserDataLength = u16::try_from(record.user_data.len()).unwrap_or(u16::MAX);
    given.UserData = record.user_data.as_ptr().cast_mut().cast();
    given.UserContext = context as *mut _;
    if let Some(callback) = callback {
        // SAFETY: everything the record points to outlives the call; the callback came in through `OpenTraceW`, whose
        // caller keeps the context until `CloseTrace`.
        unsafe { callback(&mut given) };
    }
}
