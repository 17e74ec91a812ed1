use super::*;

/// A message with its prefix.
fn framed(message: &[u8]) -> Vec<u8> {
    let len = u16::try_from(message.len()).unwrap();
    [&len.to_be_bytes()[..], message].concat()
}

fn segment(seq: u32, bytes: &[u8]) -> Segment<'_> {
    Segment {
        at_ns: 1,
        seq,
        wire_len: u32::try_from(bytes.len()).unwrap(),
        bytes,
    }
}

/// What comes out of these segments of one stream.
fn messages(segments: &[Segment<'_>]) -> Vec<(Vec<u8>, bool)> {
    let mut streams = Streams::default();
    let mut seen = Vec::new();
    for segment in segments {
        streams.take((1, 0), *segment, &mut |bytes, complete| {
            seen.push((bytes.to_vec(), complete))
        });
    }
    seen
}

fn whole(messages: &[&[u8]]) -> Vec<(Vec<u8>, bool)> {
    messages.iter().map(|message| (message.to_vec(), true)).collect()
}

#[test]
fn several_messages_of_one_segment_come_out() {
    let stream = [framed(b"one"), framed(b"two"), framed(b"three")].concat();
    assert_eq!(messages(&[segment(10, &stream)]), whole(&[b"one", b"two", b"three"]));
}

#[test]
fn a_message_cut_anywhere_is_put_together() {
    let stream = [framed(b"first"), framed(b"second")].concat();
    // Around the end of the sequence numbers too.
    for start in [0_u32, 0xffff_fffa] {
        for cut in 1..stream.len() {
            let (front, back) = stream.split_at(cut);
            let next = start.wrapping_add(u32::try_from(cut).unwrap());
            let cut = messages(&[segment(start, front), segment(next, back)]);
            assert_eq!(cut, whole(&[b"first", b"second"]));
        }
        let bytes: Vec<Segment<'_>> = stream
            .chunks(1)
            .zip(0_u32..)
            .map(|(byte, n)| segment(start.wrapping_add(n), byte))
            .collect();
        assert_eq!(messages(&bytes), whole(&[b"first", b"second"]));
    }
}

#[test]
fn repeated_and_overlapping_segments_count_once() {
    let stream = [framed(b"first"), framed(b"second")].concat();
    let seen = messages(&[
        segment(0, &stream[..4]),
        segment(0, &stream[..4]),
        segment(2, &stream[2..9]),
        segment(0, &stream),
        segment(3, &stream[3..]),
    ]);
    assert_eq!(seen, whole(&[b"first", b"second"]));
}

#[test]
fn segments_out_of_order_wait() {
    let stream = [framed(b"first"), framed(b"second"), framed(b"third")].concat();
    let seen = messages(&[
        segment(0, &stream[..3]),
        segment(12, &stream[12..]),
        segment(7, &stream[7..12]),
        segment(3, &stream[3..7]),
    ]);
    assert_eq!(seen, whole(&[b"first", b"second", b"third"]));
}

#[test]
fn a_tail_that_was_not_captured_leaves_the_message_incomplete() {
    let long = framed(&[7; 100]);
    let mut cut = segment(0, &long[..50]);
    cut.wire_len = 102;
    let seen = messages(&[cut, segment(102, &framed(b"next"))]);
    assert_eq!(seen, [(vec![7; 48], false), (b"next".to_vec(), true)]);
}

#[test]
fn a_stream_whose_place_is_lost_is_silent() {
    let mut blind = segment(0, &[0]);
    blind.wire_len = 40;
    assert_eq!(messages(&[blind, segment(40, &framed(b"next"))]), []);
    let gap: Vec<Segment<'_>> = (0..20).map(|n| segment(100 + n, b"x")).collect();
    let first = [segment(0, b"\0\x05")];
    assert_eq!(messages(&[&first[..], &gap].concat()), []);
}

#[test]
fn an_empty_message_and_the_longest_one_are_passed_on() {
    let long = framed(&vec![3; 65_535]);
    let stream = [framed(b""), long].concat();
    let seen = messages(&[segment(0, &stream)]);
    assert_eq!(seen[0], (Vec::new(), true));
    assert_eq!((seen[1].0.len(), seen[1].1), (MESSAGE_MAX - PREFIX, false));
}

#[test]
fn streams_are_bounded_and_idle_ones_go() {
    let mut streams = Streams::default();
    for socket in 0..2 * STREAMS_MAX as u64 {
        let mut segment = segment(0, b"\0\x09x");
        segment.at_ns = socket;
        streams.take((socket, 0), segment, &mut |_, _| {});
    }
    assert_eq!(streams.streams.len(), STREAMS_MAX);
    assert!(
        streams.streams.contains_key(&(2 * STREAMS_MAX as u64 - 1, 0)),
        "the oldest go"
    );
    let mut late = segment(0, b"\0\x09x");
    late.at_ns = 10 * IDLE_NS;
    streams.take((9_999_999, 0), late, &mut |_, _| {});
    assert_eq!(streams.streams.len(), 1);
}

proptest::proptest! {
    #[test]
    fn any_segments_are_survived(
        segments in proptest::collection::vec(
            (0_u32..50, 0_u32..80, proptest::collection::vec(0_u8..4, 0..40)), 0..40)
    ) {
        let mut streams = Streams::default();
        for (seq, extra, bytes) in &segments {
            let mut segment = segment(*seq, bytes);
            segment.wire_len += extra;
            streams.take((1, 0), segment, &mut |bytes, _| assert!(bytes.len() <= MESSAGE_MAX));
        }
    }
}
