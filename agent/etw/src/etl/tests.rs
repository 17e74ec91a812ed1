use std::io::{self, Cursor, Read, Seek};
use std::path::Path;

use super::session::SessionHeader;
use super::*;
use crate::decoder::Decoder;
use crate::writer::{EtlWriter, Record, Session};
use crate::{Guid, Tables};

fn file(buffer_bytes: u32, count: u64) -> Vec<u8> {
    let mut writer = EtlWriter::new(Session {
        buffer_bytes,
        name: "HNS trace".to_owned(),
        ..Session::default()
    });
    for number in 0..count {
        let record = Record::tracelogging(Guid(1), "P", "E").u64("number", number);
        writer.push(record.at(Session::default().started_ns + number).build());
    }
    writer.finish()
}

#[test]
fn session_of_a_file() {
    let events = EtlEvents::new(Cursor::new(file(1024, 20)), ReadOptions::default(), Decoder::default()).unwrap();
    let session = events.session();
    assert_eq!(
        (session.os_version, session.os_build, session.pointer_size),
        ((10, 0), 20_348, 8)
    );
    assert_eq!(&*session.name, "HNS trace");
    assert_eq!(
        (session.started_ns, session.buffer_bytes),
        (Session::default().started_ns, 1024)
    );
    assert!(session.booted_ns < session.started_ns && session.started_ns < session.ended_ns);
    assert_eq!(
        events.decoder().tables().providers().count(),
        Tables::built_in().providers().count()
    );
}

/// The header of a 32-bit machine: pointers of four bytes move everything behind them.
#[test]
fn session_of_a_32_bit_machine() {
    let mut payload = vec![0_u8; 280];
    let mut put = |at: usize, bytes: &[u8]| payload[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &4096_u32.to_le_bytes());
    put(44, &4_u32.to_le_bytes());
    put(48, &3_u32.to_le_bytes());
    put(248, &2_000_000_i64.to_le_bytes());
    put(256, &134_043_985_650_000_000_i64.to_le_bytes());
    put(264, &1_u32.to_le_bytes());
    put(268, &5_u32.to_le_bytes());
    put(272, b"s\0\0\0");
    let (session, clock) = SessionHeader::read(&payload, 1000).unwrap();
    assert_eq!((session.pointer_size, session.frequency), (4, 2_000_000));
    assert_eq!((session.events_lost, session.buffers_lost, &*session.name), (3, 5, "s"));
    assert_eq!(clock.unix_ns(3000), 1_759_924_965_001_000_000);
    assert!(SessionHeader::read(&payload[..200], 0).is_none());
}

/// Sessions of old Windows do not state their clock.
#[test]
fn an_unstated_clock_is_inferred_from_the_first_time() {
    let mut payload = vec![0_u8; 300];
    let start = 134_043_985_650_000_000_i64;
    payload[44] = 8;
    payload[256..264].copy_from_slice(&10_000_000_i64.to_le_bytes());
    payload[264..272].copy_from_slice(&start.to_le_bytes());
    let kind = |ticks| SessionHeader::read(&payload, ticks).unwrap().0.clock;
    assert_eq!(kind(start + 10), ClockKind::SystemTime);
    assert_eq!(kind(123_456), ClockKind::PerformanceCounter);
}

/// A disk that fails at one place.
#[derive(Debug)]
struct Failing {
    file: Cursor<Vec<u8>>,
    bad: std::ops::Range<u64>,
}

impl Read for Failing {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.bad.contains(&self.file.position()) {
            return Err(io::Error::other("bad sector"));
        }
        let before_bad = self.bad.start.saturating_sub(self.file.position()) as usize;
        let room = if before_bad == 0 {
            into.len()
        } else {
            into.len().min(before_bad)
        };
        self.file.read(&mut into[..room])
    }
}

impl Seek for Failing {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

#[test]
fn an_unreadable_buffer_is_an_error_and_the_rest_comes() {
    let input = |bad| Failing {
        file: Cursor::new(file(16_384, 400)),
        bad,
    };
    let mut events = EtlEvents::new(input(20_000..20_100), ReadOptions::default(), Decoder::default()).unwrap();
    let (good, bad): (Vec<_>, Vec<_>) = events.by_ref().partition(Result::is_ok);
    assert_eq!(bad.len(), 1);
    assert_eq!(
        bad[0].as_ref().unwrap_err().to_string(),
        "cannot read the .etl file at byte 16384"
    );
    let numbers: Vec<u64> = good
        .into_iter()
        .map(|event| event.unwrap().u64("number").unwrap())
        .collect();
    assert!(
        (200..400).contains(&numbers.len()) && numbers.is_sorted(),
        "{numbers:?}"
    );

    // Where a buffer begins nothing is known of the rest.
    let error = EtlEvents::new(input(16_384..16_400), ReadOptions::default(), Decoder::default()).unwrap_err();
    assert_eq!(error.to_string(), "cannot read the .etl file at byte 16384");
}

#[test]
fn an_absent_file_and_a_foreign_one() {
    let absent = EtlEvents::open(Path::new("/nowhere/x.etl"), ReadOptions::default(), Decoder::default());
    assert!(matches!(absent.unwrap_err(), EtlError::Read { offset: 0, .. }));
    let foreign = EtlReader::new(Cursor::new(b"{\"not\": \"etl\"}".repeat(100)), ReadOptions::default());
    let text = foreign.unwrap_err().to_string();
    assert_eq!(text, "not an .etl file: no trace buffer in its 1400 bytes");
}
