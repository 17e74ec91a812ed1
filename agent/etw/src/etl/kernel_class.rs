//! The event classes of the kernel logger, by the group number in the header of its records.
//!
//! Classes and GUIDs: learn.microsoft.com, "NT Kernel Logger Constants"; group numbers: EVENT_TRACE_GROUP_ in ntwmi.h of
//! the phnt headers (winsiderss/systeminformer). Used by `record` and `filter`. Does not: name the event types of a class.

use crate::guid::Guid;

/// The GUID of the class of a group. A group without a known class gets zeros and the group's number.
pub fn class_of_group(group: u8) -> Guid {
    let known = CLASSES.iter().find(|(number, _)| *number == group);
    known.map_or(Guid(u128::from(group)), |(_, class)| *class)
}

/// Group of the Process class.
pub const PROCESS_GROUP: u8 = 0x03;
/// Group of the file's own header.
pub const TRACE_GROUP: u8 = 0x00;

const CLASSES: [(u8, Guid); 13] = [
    (TRACE_GROUP, Guid::literal("68fdd900-4a3e-11d1-84f4-0000f80464e3")),
    (0x01, Guid::literal("3d6fa8d4-fe05-11d0-9dda-00c04fd7ba7c")),
    (0x02, Guid::literal("3d6fa8d3-fe05-11d0-9dda-00c04fd7ba7c")),
    (PROCESS_GROUP, Guid::literal("3d6fa8d0-fe05-11d0-9dda-00c04fd7ba7c")),
    (0x04, Guid::literal("90cbdc39-4a3e-11d1-84f4-0000f80464e3")),
    (0x05, Guid::literal("3d6fa8d1-fe05-11d0-9dda-00c04fd7ba7c")),
    (0x06, Guid::literal("9a280ac0-c8e0-11d1-84e2-00c04fb998a2")),
    (0x08, Guid::literal("bf3a50c5-a9c9-4988-a005-2df0b7c80f80")),
    (0x09, Guid::literal("ae53722e-c863-11d2-8659-00c04fa321a1")),
    (0x0b, Guid::literal("01853a65-418f-4f36-aefc-dc0f1d2fd235")),
    (0x0f, Guid::literal("ce1dbfb4-137e-4da6-87b0-3f59aa102cbc")),
    (0x14, Guid::literal("2cb15d1d-5fc1-11d2-abe1-00a0c911f518")),
    (0x1a, Guid::literal("45d8cccd-539f-4b72-a8b7-5c683142609a")),
];
