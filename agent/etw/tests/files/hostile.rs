//! Damaged and hostile input: nothing panics, nothing hangs, and what is readable comes out. The fuzz
//! targets run the same bodies (`agent/fuzz`).

use std::io::Cursor;

use proptest::prelude::*;
use sandglass_etw::writer::Session;
use sandglass_etw::{EtlEvents, ReadOptions};

use bodies::etl as read;

use crate::samples::{NAMES, sample};
use crate::story;

#[path = "../../../fuzz/src/bodies.rs"]
mod bodies;
use crate::{TABLES, decoder};

fn tiny(compressed: bool) -> Vec<u8> {
    let session = Session {
        buffer_bytes: 1024,
        compressed,
        ..Session::default()
    };
    story::file(session, true)
}

#[test]
fn cut_off_at_every_length() {
    for compressed in [false, true] {
        let file = tiny(compressed);
        let whole = read(&file);
        assert_eq!(whole, 14);
        let mut before = 0;
        for length in 0..file.len() {
            let events = read(&file[..length]);
            assert!(events <= whole);
            // A cut takes at most what one processor had open.
            assert!(events + 12 >= before, "{length}: {events} after {before}");
            before = before.max(events);
        }
    }
}

#[test]
fn damage_costs_the_buffer_it_is_in() {
    let file = tiny(false);
    let mut lost = 0;
    for buffer in 1..file.len() / 1024 {
        let mut damaged = file.clone();
        damaged[buffer * 1024..buffer * 1024 + 0x48].fill(0xee);
        lost += 14 - read(&damaged);
    }
    assert_eq!(lost, 14);
}

#[test]
fn compressed_buffers_behind_damage_are_found_again() {
    let file = tiny(true);
    let mut starts = vec![0];
    while let Some(&start) = starts.last().filter(|&&start| start < file.len()) {
        starts.push(start + u32::from_le_bytes(file[start..start + 4].try_into().unwrap()) as usize);
    }
    let mut lost = 0;
    for start in &starts[1..starts.len() - 1] {
        let mut damaged = file.clone();
        damaged[*start..start + 4].fill(0xff);
        lost += 14 - read(&damaged);
    }
    assert_eq!(lost, 14);
}

#[test]
fn tiny_buffers_that_claim_much_do_not_take_it() {
    let mut file = tiny(true);
    let head = file[..512].to_vec();
    // A match of four GiB, many times.
    let mut bomb = vec![0_u8; 0x48];
    bomb.extend([
        0xff, 0xff, 0xff, 0x7f, b'a', 0x07, 0, 0xff, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff,
    ]);
    let size = (bomb.len() as u32).to_le_bytes();
    bomb[..4].copy_from_slice(&size);
    bomb[0x30..0x34].copy_from_slice(&0x7fff_ffff_u32.to_le_bytes());
    bomb[0x34] = 0x60;
    file.truncate(0);
    file.extend(head);
    for _ in 0..50 {
        file.extend(&bomb);
    }
    assert_eq!(read(&file), 0);
}

#[test]
fn what_is_no_file_is_refused() {
    for file in [&b""[..], b"MZ", &[0; 4096], &[0xff; 200_000]] {
        let opened = EtlEvents::new(Cursor::new(file), ReadOptions::default(), decoder());
        assert!(opened.is_err());
    }
}

#[test]
fn every_sample_survives_cuts() {
    for name in NAMES {
        let file = sample(name);
        let cuts = if file.len() > 100_000 { 12 } else { 60 };
        for cut in 0..cuts {
            read(&file[..file.len() * cut / cuts]);
        }
    }
}

fn small_samples() -> Vec<Vec<u8>> {
    let mut files: Vec<Vec<u8>> = [3, 5, 6].iter().map(|&index: &usize| sample(NAMES[index])).collect();
    files.extend([tiny(false), tiny(true)]);
    files
}

proptest! {
    #[test]
    fn mutated_files(
        which in 0..5_usize,
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let mut file = small_samples().swap_remove(which);
        for (place, byte) in edits {
            let at = place.index(file.len());
            file[at] = byte;
        }
        if let Some(cut) = cut {
            file.truncate(cut.index(file.len()));
        }
        read(&file);
    }

    #[test]
    fn random_bytes_behind_a_good_header(bytes in proptest::collection::vec(any::<u8>(), 0..4096)) {
        let mut file = tiny(false);
        file.truncate(1024);
        file.extend(&bytes);
        read(&file);
        read(&bytes);
    }

    #[test]
    fn random_records(bytes in proptest::collection::vec(any::<u8>(), 0..500)) {
        bodies::record(&bytes);
    }

    #[test]
    fn random_schemas(bytes in proptest::collection::vec(any::<u8>(), 0..500)) {
        bodies::schema(&bytes);
    }

    #[test]
    fn any_payload_for_every_schema(
        data in proptest::collection::vec(any::<u8>(), 0..200),
        pointer in prop::sample::select(vec![4_usize, 8]),
    ) {
        let tables = &TABLES;
        for (_, _, _, schema) in tables.events() {
            let payload = sandglass_etw::payload::read(schema, &data, pointer);
            prop_assert!(payload.fields.len() <= schema.fields.len());
            prop_assert!(payload.truncated || payload.fields.len() == schema.fields.len());
        }
    }

    #[test]
    fn mutated_schema_records(
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        which in any::<prop::sample::Index>(),
        data in proptest::collection::vec(any::<u8>(), 0..120),
    ) {
        let tables = TABLES.clone();
        let all: Vec<_> = tables.events().collect();
        let (provider, id, version, schema) = all[which.index(all.len())];
        let mut info = sandglass_etw::writer::event_info(provider, id, version, schema);
        for (place, byte) in edits {
            let at = place.index(info.len());
            info[at] = byte;
        }
        if let Some((_, schema)) = sandglass_etw::event_info::schema(&info) {
            sandglass_etw::payload::read(&schema, &data, 8);
        }
    }

    #[test]
    fn any_metadata(
        metadata in proptest::collection::vec(any::<u8>(), 0..200),
        data in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut sized = ((metadata.len() + 2) as u16).to_le_bytes().to_vec();
        sized.extend(&metadata);
        for bytes in [&metadata, &sized] {
            if let Some(schema) = sandglass_etw::tracelogging::schema(bytes) {
                sandglass_etw::payload::read(&schema, &data, 8);
            }
        }
    }
}
