//! Builds records one by one: self-describing ones, and those of the tables.
//!
//! Used by tests, by the demo and by the bench. A record is what a session would have delivered or written; nothing checks that
//! Windows would log it. Does not: place records in a file ([`super::file`]).

use std::sync::Arc;

use super::encode::encode;
use super::tracelogging::{Description, traits};
use crate::event::{Field, FileTime, OPCODE_START, Value};
use crate::guid::Guid;
use crate::raw::{ExtendedItem, RawRecord, RecordHeader, extended, flags};
use crate::schema::Schema;
use crate::tables::Tables;

/// A record under construction.
#[derive(Debug, Clone)]
pub struct Record {
    pub(super) header: RecordHeader,
    /// In the order of the file.
    extended: Vec<ExtendedItem>,
    body: Body,
}

/// What becomes the payload.
#[derive(Debug, Clone)]
enum Body {
    /// A TraceLogging event: fields describe themselves as they are added.
    Described(Description),
    /// An event of the tables: values are encoded by its schema at the end.
    Known { schema: Arc<Schema>, values: Vec<Field> },
    /// Finished bytes.
    Bytes(Vec<u8>),
}

impl Record {
    /// A TraceLogging event.
    pub fn tracelogging(provider: Guid, provider_name: &str, name: &str) -> Self {
        let mut record = Self::of(provider, Body::Described(Description::new(name)));
        record.header.channel = 11;
        record.item(extended::PROVIDER_TRAITS, traits(provider_name))
    }

    /// A manifest event of the tables; `None` when they do not have it.
    pub fn manifest(tables: &Tables, provider: &str, id: u16, version: u8) -> Option<Self> {
        let guid = tables.provider_named(provider)?.guid;
        let schema = tables.event(guid, id, version)?.clone();
        let values = Vec::new();
        let mut record = Self::of(guid, Body::Known { schema, values });
        (record.header.id, record.header.version) = (id, version);
        Some(record)
    }

    /// A kernel logger or other classic event of the tables; `None` when they do not have it.
    pub fn class(tables: &Tables, class: Guid, opcode: u8, version: u8) -> Option<Self> {
        let schema = tables.class(class, opcode, version)?.clone();
        let values = Vec::new();
        let mut record = Self::of(class, Body::Known { schema, values });
        record.header.flags = flags::CLASSIC_HEADER;
        (record.header.opcode, record.header.version, record.header.level) = (opcode, version, 0);
        Some(record)
    }

    /// A kernel logger Process event, version 4: opcode 1 start, 2 end, 3 running at start, 4 running at end.
    pub fn process(
        tables: &Tables,
        opcode: u8,
        pid: u32,
        parent: u32,
        image: &str,
        command_line: &str,
    ) -> Option<Self> {
        let record = Self::class(tables, PROCESS, opcode, 4)?
            .u64("UniqueProcessKey", 0xffff_8000_0000_0000 | u64::from(pid) << 8)
            .u32("ProcessId", pid)
            .u32("ParentId", parent)
            .text("ImageFileName", image)
            .text("CommandLine", command_line)
            .value("UserSID", Value::Sid("S-1-5-18".into()));
        // A start is logged by the parent, an end by the process itself.
        Some(record.process_id(if opcode == OPCODE_START { parent } else { pid }))
    }

    /// A classic event of any payload.
    pub fn classic(class: Guid, opcode: u8, version: u8, payload: &[u8]) -> Self {
        let mut record = Self::of(class, Body::Bytes(payload.into()));
        record.header.flags = flags::CLASSIC_HEADER;
        (record.header.opcode, record.header.version) = (opcode, version);
        record
    }

    /// A WPP message, which cannot be decoded.
    pub fn wpp(provider: Guid, payload: &[u8]) -> Self {
        let mut record = Self::of(provider, Body::Bytes(payload.into()));
        record.header.flags = flags::TRACE_MESSAGE;
        record
    }

    /// Of a 64-bit process, at level 4 (information).
    fn of(provider: Guid, body: Body) -> Self {
        Self {
            header: RecordHeader {
                provider,
                level: 4,
                flags: flags::HEADER_64_BIT,
                pointer_size: 8,
                ..RecordHeader::default()
            },
            extended: Vec::new(),
            body,
        }
    }

    /// When, in nanoseconds since 1970.
    #[must_use]
    pub const fn at(mut self, at_ns: u64) -> Self {
        self.header.at_ns = at_ns;
        self
    }

    /// Logging process.
    #[must_use]
    pub const fn process_id(mut self, pid: u32) -> Self {
        self.header.pid = pid;
        self
    }

    /// Logging thread.
    #[must_use]
    pub const fn thread_id(mut self, tid: u32) -> Self {
        self.header.tid = tid;
        self
    }

    /// Processor.
    #[must_use]
    pub const fn cpu(mut self, cpu: u16) -> Self {
        self.header.cpu = cpu;
        self
    }

    /// Opcode.
    #[must_use]
    pub const fn opcode(mut self, opcode: u8) -> Self {
        self.header.opcode = opcode;
        self
    }

    /// Level.
    #[must_use]
    pub const fn level(mut self, level: u8) -> Self {
        self.header.level = level;
        self
    }

    /// Keyword bits.
    #[must_use]
    pub const fn keyword(mut self, keyword: u64) -> Self {
        self.header.keyword = keyword;
        self
    }

    /// Activity id.
    #[must_use]
    pub const fn activity(mut self, activity: Guid) -> Self {
        self.header.activity = activity;
        self
    }

    /// The activity that caused it.
    #[must_use]
    pub fn related(self, activity: Guid) -> Self {
        self.item(extended::RELATED_ACTIVITY, activity.to_bytes_le().into())
    }

    /// The container (silo) it comes from.
    #[must_use]
    pub fn container(self, container: Guid) -> Self {
        self.item(extended::CONTAINER_ID, container.to_string().into_bytes())
    }

    /// Start key of the logging process.
    #[must_use]
    pub fn start_key(self, key: u64) -> Self {
        self.item(extended::PROCESS_START_KEY, key.to_le_bytes().into())
    }

    /// Any extended item.
    #[must_use]
    pub fn item(mut self, kind: u16, data: Vec<u8>) -> Self {
        self.extended.push(ExtendedItem {
            kind,
            data: data.into(),
        });
        self
    }

    /// A field by value; self-describing events use the widest type for it.
    #[must_use]
    pub fn value(mut self, name: &str, value: Value) -> Self {
        match &mut self.body {
            Body::Known { values, .. } => values.push(Field {
                name: name.into(),
                value,
            }),
            Body::Described(description) => describe(description, name, &value),
            Body::Bytes(_) => {}
        }
        self
    }

    /// Text; UTF-16 in self-describing events.
    #[must_use]
    pub fn text(self, name: &str, text: &str) -> Self {
        self.value(name, Value::Text(text.into()))
    }

    /// Text in bytes.
    #[must_use]
    pub fn ansi(self, name: &str, text: &str) -> Self {
        let bytes: Vec<u8> = text.bytes().chain([0]).collect();
        self.typed(name, 2, 0, &bytes, Value::Text(text.into()))
    }

    /// A 32-bit number.
    #[must_use]
    pub fn u32(self, name: &str, number: u32) -> Self {
        self.typed(name, 8, 0, &number.to_le_bytes(), Value::U64(u64::from(number)))
    }

    /// A 64-bit number.
    #[must_use]
    pub fn u64(self, name: &str, number: u64) -> Self {
        self.value(name, Value::U64(number))
    }

    /// A signed 32-bit number.
    #[must_use]
    pub fn i32(self, name: &str, number: i32) -> Self {
        self.typed(name, 7, 0, &number.to_le_bytes(), Value::I64(i64::from(number)))
    }

    /// An HRESULT.
    #[must_use]
    pub fn hresult(self, name: &str, code: u32) -> Self {
        self.typed(name, 7, 15, &code.to_le_bytes(), Value::U64(u64::from(code)))
    }

    /// A GUID.
    #[must_use]
    pub fn guid(self, name: &str, guid: Guid) -> Self {
        self.value(name, Value::Guid(guid))
    }

    /// An array of a self-describing event, of elements of any in-type.
    #[must_use]
    pub fn array(mut self, name: &str, in_type: u8, out_type: u8, fixed: bool, elements: &[Vec<u8>]) -> Self {
        if let Body::Described(description) = &mut self.body {
            description.array(name, in_type, out_type, fixed, elements);
        }
        self
    }

    /// A field of a self-describing event, of any in-type.
    #[must_use]
    pub fn typed_bytes(mut self, name: &str, in_type: u8, out_type: u8, bytes: &[u8]) -> Self {
        if let Body::Described(description) = &mut self.body {
            description.field(name, in_type, out_type, bytes);
        }
        self
    }

    /// A struct of a self-describing event; the next `members` fields are in it.
    #[must_use]
    pub fn structure(mut self, name: &str, members: u8) -> Self {
        if let Body::Described(description) = &mut self.body {
            description.structure(name, members);
        }
        self
    }

    fn typed(mut self, name: &str, in_type: u8, out_type: u8, bytes: &[u8], value: Value) -> Self {
        if let Body::Described(description) = &mut self.body {
            description.field(name, in_type, out_type, bytes);
            return self;
        }
        self.value(name, value)
    }

    /// The record, as a live callback receives it.
    pub fn build(mut self) -> RawRecord {
        let user_data = match self.body {
            Body::Described(description) => {
                let data = description.metadata().into();
                let kind = extended::EVENT_SCHEMA;
                self.extended.push(ExtendedItem { kind, data });
                description.payload
            }
            Body::Known { schema, values } => encode(&schema, &values, self.header.pointer_bytes()),
            Body::Bytes(bytes) => bytes,
        };
        if !self.extended.is_empty() {
            self.header.flags |= flags::EXTENDED_INFO;
        }
        RawRecord {
            header: self.header,
            extended: self.extended,
            user_data: user_data.into(),
        }
    }
}

/// Adds a field with the in-type that fits its value: the numbers are those of `TDH_IN_TYPE` and `TDH_OUT_TYPE` (tdh.h), which
/// TraceLogging shares (`TlgIn_t`, TraceLoggingProvider.h).
fn describe(description: &mut Description, name: &str, value: &Value) {
    let wide = |text: &str| {
        text.encode_utf16()
            .chain([0])
            .flat_map(u16::to_le_bytes)
            .collect::<Vec<u8>>()
    };
    match value {
        Value::U64(number) => description.field(name, 10, 0, &number.to_le_bytes()),
        Value::I64(number) => description.field(name, 9, 0, &number.to_le_bytes()),
        Value::F64(number) => description.field(name, 12, 0, &number.to_le_bytes()),
        Value::Bool(bit) => description.field(name, 13, 3, &u32::from(*bit).to_le_bytes()),
        Value::Guid(guid) => description.field(name, 15, 0, &guid.to_bytes_le()),
        Value::FileTime(FileTime(time)) => description.field(name, 17, 0, &time.to_le_bytes()),
        Value::Text(text) | Value::Sid(text) => description.field(name, 1, 0, &wide(text)),
        Value::Bytes(bytes) => {
            let mut counted = (bytes.len() as u16).to_le_bytes().to_vec();
            counted.extend(bytes);
            description.field(name, 14, 0, &counted);
        }
        Value::Ip(ip) => description.field(name, 1, 0, &wide(&ip.to_string())),
        Value::SocketAddr(address) => description.field(name, 1, 0, &wide(&address.to_string())),
        Value::List(_) | Value::Struct(_) => {}
    }
}

/// Class of the kernel logger's process events.
pub(super) const PROCESS: Guid = Guid::literal("3d6fa8d0-fe05-11d0-9dda-00c04fd7ba7c");
