//! What the fuzz targets run. The tests of the etw crate run the same on damaged samples and random bytes, on stable
//! Rust, so that these compile and hold everywhere.

use std::io::Cursor;
use std::sync::{Arc, LazyLock};

use sandglass_etw::{
    Decoder, EtlEvents, ExtendedItem, Filter, Guid, RawRecord, ReadOptions, RecordHeader, Tables, event_info, payload,
    tracelogging,
};

static TABLES: LazyLock<Arc<Tables>> = LazyLock::new(|| Arc::new(Tables::built_in()));

/// Reads a file to its end; returns the number of events. Every record is accounted for.
pub fn etl(file: &[u8]) -> u64 {
    let options = ReadOptions {
        filter: Filter::everything(),
        memory_bytes: 4 * 1024 * 1024,
    };
    let decoder = Decoder::new(TABLES.clone());
    let Ok(mut reader) = EtlEvents::new(Cursor::new(file), options, decoder) else {
        return 0;
    };
    let mut events = 0;
    while let Some(event) = reader.next_event().expect("memory can be read") {
        assert!(event.fields.len() <= 65_536);
        events += 1;
    }
    let (statistics, counts) = (reader.statistics(), reader.counts());
    assert_eq!(counts.events, events);
    assert_eq!(
        statistics.records,
        counts.events + counts.learned + counts.wpp + counts.no_schema + counts.bad_schema
    );
    assert!(statistics.skipped_bytes <= statistics.file_bytes);
    events
}

/// Decodes a record made of these bytes, twice: the second time by what was kept of the first.
pub fn record(data: &[u8]) {
    let mut data = data.iter().copied();
    let mut byte = || data.next().unwrap_or_default();
    let providers = [
        Guid::literal("3d6fa8d0-fe05-11d0-9dda-00c04fd7ba7c"),
        Guid::literal("bbccf6c1-6cd1-48c4-80ff-839482e37671"),
        Guid::literal("1c95126e-7eea-49a9-a3fe-a378b03ddb4d"),
        Guid::literal("66c07ecd-6667-43fc-93f8-05cf07f446ec"),
    ];
    let header = RecordHeader {
        provider: providers[usize::from(byte() % 4)],
        id: u16::from_le_bytes([byte(), byte()]),
        version: byte(),
        opcode: byte(),
        flags: u16::from_le_bytes([byte(), byte()]),
        pointer_size: byte(),
        ..RecordHeader::default()
    };
    let extended = (0..byte() % 4)
        .map(|_| {
            let kind = u16::from(byte() % 20);
            let length = byte();
            let data = (0..length).map(|_| byte()).collect();
            ExtendedItem { kind, data }
        })
        .collect();
    let raw = RawRecord {
        header,
        extended,
        user_data: data.collect(),
    };
    let mut decoder = Decoder::new(TABLES.clone());
    decoder.decode(&raw);
    decoder.decode(&raw);
    assert!(decoder.counts().events <= 2);
}

/// Takes the first part as a schema of every kind, and reads the rest by it.
pub fn schema(data: &[u8]) {
    let (length, rest) = data.split_first_chunk::<2>().unwrap_or((&[0, 0], data));
    let at = usize::from(u16::from_le_bytes(*length)).min(rest.len());
    let (schema, data) = rest.split_at(at);
    let learned = event_info::schema(schema).map(|(_, schema)| schema);
    for schema in [learned, tracelogging::schema(schema)].into_iter().flatten() {
        for pointer in [4, 8] {
            let payload = payload::read(&schema, data, pointer);
            assert!(payload.truncated || payload.fields.len() == schema.fields.len());
        }
    }
    if let Ok(text) = str::from_utf8(schema) {
        let _ = Tables::empty().extend("fuzz", text);
    }
    if let Some((_, _, _, schema)) = TABLES.events().nth(at % 256) {
        payload::read(schema, data, 8);
    }
}
