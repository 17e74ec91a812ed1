//! Whole files: real ones against what independent readers found in them, synthetic ones against what was put into
//! them, damaged ones against nothing but our own promises.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod hostile;
mod independent;
mod samples;
mod scenes;
mod story;

use std::io::Cursor;
use std::sync::{Arc, LazyLock};

use sandglass_etw::{Decoder, EtlEvents, EtwEvent, Filter, ReadOptions, Tables};

/// Read once: most tests make many decoders.
static TABLES: LazyLock<Arc<Tables>> = LazyLock::new(|| Arc::new(Tables::built_in()));

fn decoder() -> Decoder {
    Decoder::new(TABLES.clone())
}

/// Opens a file that lies in memory.
fn open(file: Vec<u8>) -> EtlEvents<Cursor<Vec<u8>>> {
    EtlEvents::new(Cursor::new(file), ReadOptions::default(), decoder()).unwrap()
}

/// As `open`, with every kernel logger class.
fn open_all(file: Vec<u8>) -> EtlEvents<Cursor<Vec<u8>>> {
    let options = ReadOptions {
        filter: Filter::everything(),
        ..ReadOptions::default()
    };
    EtlEvents::new(Cursor::new(file), options, decoder()).unwrap()
}

/// All events of a file.
fn events(file: Vec<u8>) -> Vec<EtwEvent> {
    open(file).map(Result::unwrap).collect()
}
