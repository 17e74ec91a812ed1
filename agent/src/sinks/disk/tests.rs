//! The bytes of a log: total for any input, one bad byte costs one record, a trace is read as it was written.

use proptest::prelude::*;
use sandglass_model::{Detail, RootId, SpanId, Timestamp, TraceId};

use super::content::{Encoder, decode};
use super::format::{Record, file_header, read_file};
use crate::samples;

const MAGIC: [u8; 8] = *b"SGTESTS\n";

fn root(number: u64) -> RootId {
    RootId {
        trace: TraceId(number.into()),
        span: SpanId(number),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), cut in 0_usize..400) {
        let _ = read_file(MAGIC, &bytes);
        let mut behind = file_header(MAGIC, 3);
        Record::Trace(root(1), &bytes).encode(&mut behind);
        behind.extend_from_slice(&bytes);
        let content = read_file(MAGIC, &behind);
        prop_assert_eq!(content.records.first(), Some(&Record::Trace(root(1), &bytes)));
        let cut = read_file(MAGIC, &behind[..cut.min(behind.len())]).lost_bytes;
        prop_assert!(cut <= behind.len() as u64);
        let _ = decode(&bytes);
    }

    /// One byte that is wrong costs one record at most.
    #[test]
    fn a_bad_byte_costs_one_record(at in 0_usize..10_000, xor in 1_u8..=255) {
        let mut bytes = file_header(MAGIC, 1);
        for number in 0..20 {
            Record::Trace(root(number), &[7; 40]).encode(&mut bytes);
        }
        let at = at % bytes.len();
        bytes[at] ^= xor;
        let content = read_file(MAGIC, &bytes);
        prop_assert!(content.newer || content.records.len() >= 19, "{content:?}");
    }
}

#[test]
fn a_trace_is_read_as_it_was_written() {
    let mut encoder = Encoder::new();
    for trace in [
        samples::stuck("n", "p", 1, 0),
        samples::network_ready("n", "p", 2, 0),
        samples::failed("n", "p", 3, 0, None),
        samples::hostile(4, 0),
    ] {
        let content = encoder.encode(&trace, Timestamp(5)).unwrap();
        assert_eq!(decode(content), Some((Timestamp(5), trace.clone())));
        let is_small = content.len() < 2_048 || matches!(trace.root().detail, Detail::Sandbox(_));
        assert!(is_small, "{}", content.len());
    }
}
