//! Decodes raw records into events: chooses the schema and reads the payload.
//!
//! Used for live records and for files alike. Keeps the schemas that it has met, within limits, so that an event of a known
//! schema costs its values only. Learns from schema records in the stream.
//! Does not: decode WPP messages (only their vendor can), query Windows for schemas, or drop a record without counting it.

mod extended_items;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::event::{EtwEvent, Field, Value};
use crate::event_info::{self, SchemaKey};
use crate::guid::Guid;
use crate::payload;
use crate::raw::{RawRecord, RecordHeader, RecordView, flags};
use crate::schema::Schema;
use crate::tables::Tables;
use crate::tracelogging;
use extended_items::Extended;

/// The result of decoding a record.
#[expect(clippy::large_enum_variant, reason = "nearly all are events, and none is kept")]
#[derive(Debug, Clone, PartialEq)]
pub enum Decoded {
    /// An event.
    Event(EtwEvent),
    /// A schema record: later events of its kind can be decoded.
    Learned,
    /// A WPP message: counted only.
    Wpp,
    /// Not decodable.
    Undecodable(Undecodable),
}

/// Why a record gives no event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Undecodable {
    /// A manifest or classic event of which neither the stream nor the tables hold the schema.
    NoSchema,
    /// TraceLogging metadata or a schema record that is malformed.
    BadSchema,
}

/// Counts of the records that a decoder was passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DecodeCounts {
    /// Events.
    pub events: u64,
    /// Of these, events whose payload was shorter than their schema.
    pub truncated: u64,
    /// Schema records.
    pub learned: u64,
    /// WPP messages.
    pub wpp: u64,
    /// Records without a known schema.
    pub no_schema: u64,
    /// Records with a malformed schema.
    pub bad_schema: u64,
}

/// Decodes records.
#[derive(Debug)]
pub struct Decoder {
    tables: Arc<Tables>,
    /// Schemas out of the stream or from TDH.
    learned: HashMap<SchemaKey, Arc<Schema>>,
    /// Memory of them, at most [`MOST_BYTES`]: above that none is learned.
    learned_bytes: usize,
    /// Schemas of TraceLogging events, by hash of provider and metadata.
    tracelogging: HashMap<u64, KnownMetadata>,
    /// Memory of them, at most [`MOST_BYTES`]: above that all are forgotten, since every event brings its own again.
    tracelogging_bytes: usize,
    /// Names that providers have in their traits or the tables.
    provider_names: HashMap<Guid, Arc<str>>,
    counts: DecodeCounts,
    /// For [`Decoder::without_schema`].
    without_schema: BTreeMap<Guid, u64>,
}

/// Metadata met before, in full: a hash alone may collide.
#[derive(Debug)]
struct KnownMetadata {
    provider: Guid,
    metadata: Box<[u8]>,
    schema: Option<Arc<Schema>>,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new(Arc::new(Tables::built_in()))
    }
}

impl Decoder {
    /// A decoder with these tables.
    pub fn new(tables: Arc<Tables>) -> Self {
        Self {
            tables,
            learned: HashMap::new(),
            learned_bytes: 0,
            tracelogging: HashMap::new(),
            tracelogging_bytes: 0,
            provider_names: HashMap::new(),
            counts: DecodeCounts::default(),
            without_schema: BTreeMap::new(),
        }
    }

    /// The tables.
    pub const fn tables(&self) -> &Arc<Tables> {
        &self.tables
    }

    /// The counts so far.
    pub const fn counts(&self) -> DecodeCounts {
        self.counts
    }

    /// How many records of each provider or class had no known schema, for the first thousand providers: a table or a merged
    /// file would make them decodable.
    pub const fn without_schema(&self) -> &BTreeMap<Guid, u64> {
        &self.without_schema
    }

    /// Decodes an owned record.
    pub fn decode(&mut self, record: &RawRecord) -> Decoded {
        self.decode_view(&record.view())
    }

    /// Decodes a borrowed record.
    pub fn decode_view(&mut self, record: &RecordView<'_>) -> Decoded {
        let decoded = self.decoded(record);
        let counter = match &decoded {
            Decoded::Event(event) => {
                self.counts.truncated += u64::from(event.truncated);
                &mut self.counts.events
            }
            Decoded::Learned => &mut self.counts.learned,
            Decoded::Wpp => &mut self.counts.wpp,
            Decoded::Undecodable(Undecodable::NoSchema) => {
                let provider = record.header.provider;
                if self.without_schema.len() < MOST_UNKNOWN || self.without_schema.contains_key(&provider) {
                    *self.without_schema.entry(provider).or_default() += 1;
                }
                &mut self.counts.no_schema
            }
            Decoded::Undecodable(Undecodable::BadSchema) => &mut self.counts.bad_schema,
        };
        *counter += 1;
        decoded
    }

    /// Learns a schema from a `TRACE_EVENT_INFO`, out of a file's schema record or from TDH. False when it cannot be used.
    pub fn learn(&mut self, info: &[u8]) -> bool {
        let Some((key, mut schema)) = event_info::schema(info) else {
            return false;
        };
        let cost = schema.cost();
        if self.learned_bytes + cost > MOST_BYTES {
            return false;
        }
        // The names in the tables are the same for all builds and languages of Windows.
        if let Some(known) = self.in_tables(key) {
            schema.name = known.name.clone().or(schema.name);
        }
        self.learned_bytes += cost;
        if let Some(before) = self.learned.insert(key, Arc::new(schema)) {
            self.learned_bytes = self.learned_bytes.saturating_sub(before.cost());
        }
        true
    }

    /// Chooses the kind of record by its header flags and extended items (evntcons.h). An event with metadata of its own comes
    /// first: its id is 0 and matches no table.
    fn decoded(&mut self, record: &RecordView<'_>) -> Decoded {
        let header = &record.header;
        if header.flags & flags::TRACE_MESSAGE != 0 {
            return Decoded::Wpp;
        }
        let extended = Extended::of(record);
        if let Some(metadata) = extended.metadata {
            return match self.tracelogging_schema(header.provider, metadata, extended.traits) {
                Some(schema) => Decoded::Event(event(record, &extended, Some(&schema))),
                None => Decoded::Undecodable(Undecodable::BadSchema),
            };
        }
        if header.flags & flags::CLASSIC_HEADER != 0 && header.provider == SCHEMA_RECORDS {
            return self.schema_record(record);
        }
        if header.flags & flags::STRING_ONLY != 0 {
            return Decoded::Event(event(record, &extended, None));
        }
        let schema = self.schema(header);
        match schema {
            Some(schema) => Decoded::Event(event(record, &extended, Some(&schema))),
            None => Decoded::Undecodable(Undecodable::NoSchema),
        }
    }

    /// Learns from a schema record of a merged file.
    fn schema_record(&mut self, record: &RecordView<'_>) -> Decoded {
        match record.header.opcode {
            SCHEMA_OPCODE if self.learn(record.user_data) => Decoded::Learned,
            SCHEMA_OPCODE if !event_info::is_needless(record.user_data) => Decoded::Undecodable(Undecodable::BadSchema),
            // Other kinds hold names of enumerated values, which are not used, and schemas of events that carry their own.
            _ => Decoded::Learned,
        }
    }

    /// A schema of the stream takes precedence: it is of the build that logged the event.
    fn schema(&self, header: &RecordHeader) -> Option<Arc<Schema>> {
        let key = key(header);
        self.learned.get(&key).or_else(|| self.in_tables(key)).cloned()
    }

    /// The schema that the agent's own tables have for a key.
    fn in_tables(&self, key: SchemaKey) -> Option<&Arc<Schema>> {
        match key {
            SchemaKey::Manifest { provider, id, version } => self.tables.event(provider, id, version),
            SchemaKey::Classic { class, opcode, version } => self.tables.class(class, opcode, version),
        }
    }

    /// The schema of an event's metadata, parsed once. Malformed metadata is remembered too, so that it costs its hash only.
    fn tracelogging_schema(&mut self, provider: Guid, metadata: &[u8], traits: Option<&[u8]>) -> Option<Arc<Schema>> {
        let hash = xxh3_64_with_seed(metadata, (provider.0 ^ (provider.0 >> 64)) as u64);
        if let Some(known) = self.tracelogging.get(&hash)
            && known.provider == provider
            && *known.metadata == *metadata
        {
            return known.schema.clone();
        }
        let provider_name = self.provider_name(provider, traits);
        let schema = tracelogging::schema(metadata).map(|schema| {
            Arc::new(Schema {
                provider_name,
                ..schema
            })
        });
        let cost = size_of::<KnownMetadata>() + metadata.len() + schema.as_ref().map_or(0, |schema| schema.cost());
        if self.tracelogging_bytes + cost > MOST_BYTES {
            self.tracelogging.clear();
            self.tracelogging_bytes = 0;
        }
        self.tracelogging_bytes += cost;
        self.tracelogging.insert(
            hash,
            KnownMetadata {
                provider,
                metadata: metadata.into(),
                schema: schema.clone(),
            },
        );
        schema
    }

    /// The name of a provider: that of its first event's traits, else that of the tables.
    fn provider_name(&mut self, provider: Guid, traits: Option<&[u8]>) -> Option<Arc<str>> {
        if let Some(name) = self.provider_names.get(&provider) {
            return Some(name.clone());
        }
        let named = traits.and_then(tracelogging::provider_name);
        let name = named.or_else(|| self.tables.provider(provider).map(|provider| provider.name.clone()))?;
        if self.provider_names.len() < MOST_NAMES {
            self.provider_names.insert(provider, name.clone());
        }
        Some(name)
    }
}

/// What identifies a record's schema: events of a manifest have an id, those of a class an opcode.
const fn key(header: &RecordHeader) -> SchemaKey {
    if header.flags & flags::CLASSIC_HEADER != 0 {
        SchemaKey::Classic {
            class: header.provider,
            opcode: header.opcode,
            version: header.version,
        }
    } else {
        SchemaKey::Manifest {
            provider: header.provider,
            id: header.id,
            version: header.version,
        }
    }
}

/// The event of a record, with the values of its payload.
fn event(record: &RecordView<'_>, extended: &Extended<'_>, schema: Option<&Schema>) -> EtwEvent {
    let header = &record.header;
    let payload = match schema {
        Some(schema) => payload::read(schema, record.user_data, header.pointer_bytes()),
        None => message(record.user_data),
    };
    EtwEvent {
        provider: header.provider,
        provider_name: schema.and_then(|schema| schema.provider_name.clone()),
        id: header.id,
        version: header.version,
        channel: header.channel,
        level: header.level,
        opcode: header.opcode,
        task: header.task,
        keyword: header.keyword,
        name: schema.and_then(|schema| schema.name.clone()),
        pid: header.pid,
        tid: header.tid,
        cpu: header.cpu,
        at_ns: header.at_ns,
        activity: header.activity,
        related_activity: extended.related_activity,
        container_id: extended.container_id,
        process_start_key: extended.process_start_key,
        event_key: extended.event_key,
        fields: payload.fields,
        truncated: payload.truncated,
    }
}

/// The payload of an event that is one string.
fn message(data: &[u8]) -> payload::Payload {
    let value = Value::Text(payload::utf16_at(data));
    payload::Payload {
        fields: vec![Field {
            name: "Message".into(),
            value,
        }],
        truncated: false,
    }
}

/// Provider of the schema records that merging puts into a file.
pub const SCHEMA_RECORDS: Guid = Guid::literal("bbccf6c1-6cd1-48c4-80ff-839482e37671");
/// Type of a schema record that holds a `TRACE_EVENT_INFO`.
pub const SCHEMA_OPCODE: u8 = 32;
/// Memory for the schemas of the stream, and for those of TraceLogging events. Real sessions need a hundredth of it.
const MOST_BYTES: usize = 32 * 1024 * 1024;
/// Providers without a schema that are counted separately.
const MOST_UNKNOWN: usize = 1000;
/// Providers whose names are kept.
const MOST_NAMES: usize = 65_536;

#[cfg(test)]
mod tests;
