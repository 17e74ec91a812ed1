use super::*;

const OUT: Direction = Direction::Out;
const IN: Direction = Direction::In;

/// A query for `NUMBER.test` or its answer, with its length prefix.
fn message(number: u16, answer: bool) -> Vec<u8> {
    let name = format!("{number:05}");
    let mut message = number.to_be_bytes().to_vec();
    message.extend([if answer { 0x81 } else { 1 }, 0, 0, 1, 0, u8::from(answer), 0, 0, 0, 0]);
    message.push(5);
    message.extend(name.as_bytes());
    message.extend(b"\x04test\0\0\x01\0\x01");
    if answer {
        message.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 192, 0, 2, 1]);
    }
    framed(&message)
}

fn framed(message: &[u8]) -> Vec<u8> {
    let len = u16::try_from(message.len()).unwrap();
    [&len.to_be_bytes()[..], message].concat()
}

fn segment(direction: Direction, seq: u32, bytes: &[u8]) -> Segment<'_, ()> {
    Segment {
        at_ns: 1,
        socket: 1,
        direction,
        seq,
        wire_len: u32::try_from(bytes.len()).unwrap(),
        bytes,
        flags: Flags::default(),
        progress: None,
        sender: Sender::default(),
        owner: 1,
        context: (),
    }
}

fn fresh(mut segment: Segment<'_, ()>, received: u32, acknowledged: u32) -> Segment<'_, ()> {
    segment.progress = Some(Progress {
        received,
        acknowledged,
        nothing_received: true,
        nothing_acknowledged: true,
    });
    segment
}

fn known(segment: Segment<'_, ()>, received: u32, acknowledged: u32) -> Segment<'_, ()> {
    let mut segment = fresh(segment, received, acknowledged);
    let progress = segment.progress.as_mut().unwrap();
    (progress.nothing_received, progress.nothing_acknowledged) = (false, false);
    segment
}

/// What came out: messages by their bytes, cut ones, and bytes in gaps.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    messages: Vec<(Vec<u8>, bool)>,
    times: Vec<(u64, u32)>,
    cut: usize,
    gaps: Vec<(u64, u64)>,
    holes: Vec<u64>,
}

impl Seen {
    fn take(&mut self, found: Found<'_>) {
        match found {
            Found::Message {
                bytes,
                complete,
                at_ns,
                nth,
                ..
            } => {
                self.messages.push((framed(bytes), complete));
                self.times.push((at_ns, nth));
            }
            Found::Cut { .. } => self.cut += 1,
            Found::Gap { at_ns, bytes } => self.gaps.push((at_ns, bytes)),
            Found::Hole { at_ns } => self.holes.push(at_ns),
        }
    }

    fn lost(&self) -> u64 {
        self.gaps.iter().map(|(_, bytes)| bytes).sum()
    }
}

fn seen(segments: &[Segment<'_, ()>]) -> Seen {
    let (mut streams, mut seen) = (Streams::default(), Seen::default());
    for segment in segments {
        streams.take(segment, &mut |(), _, found| seen.take(found));
    }
    seen
}

fn whole(messages: &[Vec<u8>]) -> Vec<(Vec<u8>, bool)> {
    messages.iter().map(|message| (message.clone(), true)).collect()
}

fn queries(numbers: impl IntoIterator<Item = u16>) -> Vec<Vec<u8>> {
    numbers.into_iter().map(|number| message(number, false)).collect()
}

fn answers(numbers: impl IntoIterator<Item = u16>) -> Vec<Vec<u8>> {
    numbers.into_iter().map(|number| message(number, true)).collect()
}

#[test]
fn several_messages_of_one_segment_come_out_with_their_positions() {
    let all = queries(1..=3);
    let seen = seen(&[fresh(segment(OUT, 10, &all.concat()), 0, 10)]);
    assert_eq!(seen.messages, whole(&all));
    assert_eq!(seen.times, [(1, 0), (1, 1), (1, 2)]);
}

#[test]
fn a_message_cut_anywhere_is_put_together() {
    let all = queries(1..=2);
    let stream = all.concat();
    // Around the end of the sequence numbers too.
    for start in [0_u32, 0xffff_fffa] {
        for cut in 1..stream.len() {
            let (front, back) = stream.split_at(cut);
            let next = start.wrapping_add(u32::try_from(cut).unwrap());
            let cut = seen(&[fresh(segment(OUT, start, front), 0, start), segment(OUT, next, back)]);
            assert_eq!(cut.messages, whole(&all));
        }
        let bytes: Vec<Segment<'_, ()>> = stream
            .chunks(1)
            .zip(0_u32..)
            .map(|(byte, n)| fresh(segment(OUT, start.wrapping_add(n), byte), 0, start))
            .collect();
        assert_eq!(seen(&bytes).messages, whole(&all));
    }
}

#[test]
fn repeated_and_overlapping_segments_count_once() {
    let all = queries(1..=2);
    let stream = all.concat();
    let seen = seen(&[
        fresh(segment(OUT, 0, &stream[..4]), 0, 0),
        segment(OUT, 0, &stream[..4]),
        segment(OUT, 2, &stream[2..9]),
        segment(OUT, 20, &stream[20..30]),
        segment(OUT, 18, &stream[18..32]),
        segment(OUT, 0, &stream),
        segment(OUT, 3, &stream[3..]),
    ]);
    assert_eq!((seen.messages, seen.gaps), (whole(&all), vec![]));
}

#[test]
fn many_segments_wait_for_the_one_that_is_missing() {
    let all = answers(0..40);
    let stream = all.concat();
    let len = all[0].len();
    let mut segments: Vec<Segment<'_, ()>> = all
        .iter()
        .enumerate()
        .skip(1)
        .map(|(n, bytes)| known(segment(IN, u32::try_from(n * len).unwrap(), bytes), 0, 9))
        .collect();
    segments[0].progress.as_mut().unwrap().nothing_received = true;
    let mut first = segment(IN, 0, &stream[..len]);
    first.at_ns = 7;
    segments.push(first);
    let seen = seen(&segments);
    assert_eq!((seen.messages, seen.gaps), (whole(&all), vec![]));
    // The client could read none of them before.
    assert!(seen.times.iter().all(|(at, _)| *at == 7));
}

/// The client has what was never seen: the kernel's buffer was full. Nothing waits for it.
#[test]
fn what_the_client_has_and_nobody_saw_is_a_gap() {
    let all = answers(0..5);
    let len = u32::try_from(all[0].len()).unwrap();
    let seen = seen(&[
        fresh(segment(IN, 0, &all[0]), 0, 9),
        known(segment(IN, 2 * len, &all[2]), 2 * len, 9),
        known(segment(IN, 3 * len, &all[3]), 3 * len, 9),
        // What the client sends says so too.
        known(segment(OUT, 9, &message(7, false)), 5 * len, 9),
    ]);
    let mut expected = [&all[0], &all[2], &all[3]].map(Vec::clone).to_vec();
    expected.push(message(7, false));
    assert_eq!(seen.messages, whole(&expected));
    assert_eq!(seen.lost(), u64::from(2 * len));
}

/// The next message is found whatever the segments' borders are, also when the first one behind the hole is cut.
#[test]
fn behind_a_hole_the_next_message_is_found() {
    let all = answers(0..30);
    let stream = all.concat();
    let len = all[0].len();
    for hole in 1..3 * len {
        for begin in [len - 1, len, len + 1, len + 13] {
            let behind = begin + hole;
            let seen = seen(&[
                fresh(segment(IN, 0, &stream[..begin]), 0, 9),
                known(
                    segment(IN, u32::try_from(behind).unwrap(), &stream[behind..behind + 40]),
                    u32::try_from(behind).unwrap(),
                    9,
                ),
                segment(IN, u32::try_from(behind + 40).unwrap(), &stream[behind + 40..]),
            ]);
            let next = behind.div_ceil(len);
            let complete: Vec<&Vec<u8>> = seen
                .messages
                .iter()
                .filter(|(_, all)| *all)
                .map(|(bytes, _)| bytes)
                .collect();
            let expected: Vec<&Vec<u8>> = all[..begin / len].iter().chain(&all[next..]).collect();
            assert_eq!(complete, expected, "hole of {hole} at {begin}");
            let incomplete = seen.messages.iter().filter(|(_, all)| !all).count();
            assert!(seen.lost() > 0 || incomplete > 0);
        }
    }
}

#[test]
fn a_hole_within_a_message_costs_nothing_else() {
    let long = framed(&[&message(1, true)[2..], &[0; 3000]].concat());
    let next = message(2, true);
    let stream = [long.clone(), next.clone()].concat();
    let (front, back) = (&stream[..1000], &stream[2500..]);
    let seen = seen(&[
        fresh(segment(IN, 0, front), 0, 9),
        known(segment(IN, 2500, back), 2500, 9),
    ]);
    assert_eq!(seen.messages.len(), 2);
    assert_eq!(seen.messages[0].0[2..], long[2..1000]);
    assert_eq!((seen.messages[0].1, &seen.messages[1]), (false, &(next, true)));
    assert_eq!(seen.gaps, []);
}

#[test]
fn a_tail_that_was_not_captured_leaves_the_message_incomplete() {
    let long = framed(&[&message(1, true)[2..], &[0; 100]].concat());
    let mut cut = fresh(segment(IN, 0, &long[..50]), 0, 9);
    cut.wire_len = u32::try_from(long.len()).unwrap();
    let next = message(2, true);
    let seen = seen(&[cut, segment(IN, cut.wire_len, &next)]);
    assert_eq!((seen.messages[0].0.len(), seen.messages[0].1), (50, false));
    assert_eq!((&seen.messages[1], seen.gaps), (&(next, true), vec![]));
}

#[test]
fn what_waits_for_too_long_goes_on() {
    let all = answers(0..3);
    let len = u32::try_from(all[0].len()).unwrap();
    let (mut streams, mut seen) = (Streams::default(), Seen::default());
    streams.take(&fresh(segment(IN, 0, &all[0]), 0, 9), &mut |(), _, found| {
        seen.take(found)
    });
    let mut behind = known(segment(IN, 2 * len, &all[2]), len, 9);
    behind.at_ns = 5_000;
    streams.take(&behind, &mut |(), _, found| seen.take(found));
    streams.sweep(4_000_000_000, &mut |(), _, found| seen.take(found));
    assert_eq!((seen.messages.len(), &seen.gaps[..]), (1, &[][..]));
    streams.sweep(6_000_000_000, &mut |(), _, found| seen.take(found));
    assert_eq!(seen.messages, whole(&[all[0].clone(), all[2].clone()]));
    assert_eq!(
        (&seen.gaps[..], seen.times[1].0),
        (&[(5_000, u64::from(len))][..], 5_000)
    );
    assert_eq!(streams.waiting, 0);
    assert_eq!(seen.holes, [5_000]);
}

#[test]
fn a_hole_is_reported_when_it_begins_and_again_when_the_next_one_is_the_first() {
    let all = answers(0..5);
    let len = u32::try_from(all[0].len()).unwrap();
    let piece = |number: u32| {
        let mut piece = known(segment(IN, number * len, &all[number as usize]), 0, 9);
        piece.at_ns = 10 + u64::from(number);
        piece
    };
    let (mut streams, mut seen) = (Streams::default(), Seen::default());
    let mut take = |segment: Segment<'_, ()>| streams.take(&segment, &mut |(), _, found| seen.take(found));
    take(fresh(segment(IN, 0, &all[0]), 0, 9));
    take(piece(4));
    take(piece(2));
    let mut filling = piece(1);
    filling.at_ns = 20;
    take(filling);
    // Sent again, and known already.
    take(piece(1));
    take(piece(3));
    assert_eq!((seen.holes, seen.gaps), (vec![14, 20], vec![]));
    assert_eq!(seen.messages.len(), 5);
}

#[test]
fn a_stream_from_before_the_agent_begins_with_the_next_message() {
    let all = answers(0..3);
    let stream = all.concat();
    for begin in 1..all[0].len() {
        let start = u32::try_from(begin).unwrap();
        let seen = seen(&[known(segment(IN, start, &stream[begin..]), start, 9)]);
        assert_eq!(seen.messages, whole(&all[1..]));
        assert_eq!(seen.lost(), (all[0].len() - begin) as u64);
    }
    let seen = seen(&[known(segment(OUT, 77, &message(1, false)), 5, 40)]);
    assert_eq!((seen.messages, seen.gaps), (whole(&queries([1])), vec![]));
}

#[test]
fn a_close_ends_a_message_that_is_not_all_there() {
    let one = message(1, false);
    let mut last = fresh(segment(OUT, 0, &one[..20]), 0, 0);
    last.flags.fin = true;
    let seen_of = seen(&[last]);
    assert_eq!((seen_of.messages.len(), seen_of.cut, seen_of.gaps), (0, 1, vec![]));
    let mut end = segment(OUT, u32::try_from(one.len()).unwrap(), &[]);
    end.flags.fin = true;
    let seen_of = seen(&[fresh(segment(OUT, 0, &one), 0, 0), end]);
    assert_eq!((seen_of.messages.len(), seen_of.cut, seen_of.gaps), (1, 0, vec![]));
    let mut reset = segment(OUT, 3, &[]);
    reset.flags.rst = true;
    let answer = message(1, true);
    let seen_of = seen(&[
        fresh(segment(OUT, 0, &one[..3]), 0, 0),
        fresh(segment(IN, 0, &answer[..9]), 0, 0),
        reset,
    ]);
    assert_eq!((seen_of.messages.len(), seen_of.cut), (0, 2));
}

#[test]
fn a_socket_that_connects_again_has_another_stream() {
    let query = message(2, false);
    let mut again = segment(OUT, 5000, &query);
    again.flags.syn = true;
    let seen = seen(&[fresh(segment(OUT, 0, &message(1, false)), 0, 0), again]);
    assert_eq!((seen.messages, seen.gaps), (whole(&queries(1..=2)), vec![]));
}

/// A server that has no acknowledgement of its last segment sends it again.
#[test]
fn what_comes_again_after_the_close_is_no_other_stream() {
    let (query, answer) = (message(1, false), message(1, true));
    let flagged = |mut segment: Segment<'static, ()>, flags: Flags| {
        segment.flags = flags;
        segment
    };
    let fin = Flags {
        fin: true,
        ..Flags::default()
    };
    let (query, answer): (&'static [u8], &'static [u8]) = (query.leak(), answer.leak());
    let [query_len, answer_len] = [query, answer].map(|bytes| u32::try_from(bytes.len()).unwrap());
    let mut segments = vec![
        fresh(segment(OUT, 100, query), 500, 100),
        flagged(segment(OUT, 100 + query_len, &[]), fin),
        fresh(segment(IN, 500, answer), 500, 100 + query_len),
        flagged(segment(IN, 500 + answer_len, &[]), fin),
        flagged(segment(IN, 500, answer), fin),
        segment(OUT, 100, query),
    ];
    let both = [query, answer].map(<[u8]>::to_vec);
    assert_eq!((seen(&segments).messages, seen(&segments).lost()), (whole(&both), 0));
    // The socket connects again, and its streams count.
    let syn = Flags {
        syn: true,
        ..Flags::default()
    };
    segments.push(flagged(segment(OUT, 899, &[]), syn));
    segments.push(segment(OUT, 900, query));
    assert_eq!(seen(&segments).messages.len(), 3);
}

#[test]
fn an_empty_message_and_the_longest_one_are_handed_on() {
    let long = framed(&vec![3; 65_535]);
    let stream = [framed(b""), long].concat();
    let seen = seen(&[fresh(segment(IN, 0, &stream), 0, 9)]);
    assert_eq!(seen.messages[0], (vec![0, 0], true));
    assert_eq!((seen.messages[1].0.len(), seen.messages[1].1), (4096, false));
}

#[test]
fn streams_and_what_waits_in_them_are_bounded() {
    let mut streams = Streams::default();
    let mut lost = 0;
    for socket in 0..2 * CONNECTIONS_MAX as u64 {
        let mut segment = fresh(segment(OUT, 0, b"\0\x09x"), 0, 0);
        (segment.at_ns, segment.socket) = (socket, socket);
        streams.take(&segment, &mut |(), _, found| {
            lost += u64::from(matches!(found, Found::Gap { bytes: 3, .. }));
        });
    }
    assert_eq!(
        (streams.connections.len(), lost),
        (CONNECTIONS_MAX, CONNECTIONS_MAX as u64)
    );
    let newest = 2 * CONNECTIONS_MAX as u64 - 1;
    assert!(streams.connections.contains_key(&newest), "the oldest go");
    let bytes = vec![0; 2048];
    for socket in 0..100 {
        for place in 1..200 {
            let mut segment = fresh(segment(IN, place * 4096, &bytes), 0, 0);
            segment.socket = socket;
            streams.take(&segment, &mut |(), _, _| {});
            assert!(streams.waiting <= WAITING_MAX);
        }
    }
    let waits: usize = streams.connections.values().map(StreamPair::waiting).sum();
    assert_eq!(streams.waiting, waits);
    streams.sweep(10 * IDLE_NS, &mut |(), _, _| {});
    assert_eq!((streams.connections.len(), streams.waiting), (0, 0));
}

/// A pod that opens connections without end does not cut off another one's answer.
#[test]
fn an_owner_with_many_connections_gives_its_own_up() {
    let mut streams = Streams::default();
    let mut first = fresh(segment(OUT, 0, b"\0\x09x"), 0, 0);
    (first.socket, first.owner) = (u64::MAX, 2);
    streams.take(&first, &mut |(), _, _| {});
    for socket in 0..2 * CONNECTIONS_MAX as u64 {
        let mut segment = fresh(segment(OUT, 0, b"\0\x09x"), 0, 0);
        (segment.at_ns, segment.socket) = (1 + socket, socket);
        streams.take(&segment, &mut |(), _, _| {});
    }
    assert!(streams.connections.contains_key(&u64::MAX));
    let counts = [1, 2].map(|owner| streams.owners.get(&owner).copied());
    assert_eq!(counts, [Some(CONNECTIONS_MAX - 1), Some(1)]);
    streams.sweep(10 * IDLE_NS, &mut |(), _, _| {});
    assert!(streams.owners.is_empty());
}

proptest::proptest! {
    #[test]
    fn any_segments_are_survived(
        segments in proptest::collection::vec(
            (0_u32..200, 0_u32..80, proptest::collection::vec(0_u8..4, 0..40), 0_u8..16, 0_u32..250, 0_u32..250), 0..60)
    ) {
        let mut streams = Streams::default();
        for (seq, extra, bytes, flags, received, acknowledged) in &segments {
            let direction = if flags & 1 == 0 { IN } else { OUT };
            let mut segment = segment(direction, *seq, bytes);
            segment.wire_len += extra;
            segment.at_ns = u64::from(*seq) * 100_000_000;
            segment.flags = Flags { syn: flags & 14 == 2, fin: flags & 14 == 4, rst: flags & 14 == 6 };
            segment.progress = Some(Progress {
                received: *received,
                acknowledged: *acknowledged,
                nothing_received: flags & 8 == 0,
                nothing_acknowledged: flags & 4 == 0,
            });
            streams.take(&segment, &mut |(), _, _| {});
            let waits: usize = streams.connections.values().map(StreamPair::waiting).sum();
            assert_eq!(streams.waiting, waits);
        }
    }

    /// In any order and with any repetition, a stream without loss gives every message once and in order.
    #[test]
    fn any_order_gives_every_message(
        cuts in proptest::collection::vec(1_usize..60, 20), order in proptest::collection::vec(0_usize..1000, 20), twice: u32
    ) {
        let all = answers(0..15);
        let stream = all.concat();
        let (mut at, mut pieces) = (0, Vec::new());
        for cut in cuts {
            let end = (at + cut).min(stream.len());
            pieces.push((at, end));
            at = end;
        }
        pieces.push((at, stream.len()));
        let mut mixed: Vec<(usize, (usize, usize))> = order.iter().copied().zip(pieces.clone()).collect();
        mixed.extend(pieces.last().map(|last| (500, *last)));
        mixed.extend(pieces.iter().enumerate().filter(|(n, _)| twice >> (n % 32) & 1 == 1).map(|(n, piece)| (n * 50, *piece)));
        mixed.sort_by_key(|(order, _)| *order);
        let segments: Vec<Segment<'_, ()>> = mixed.iter().map(|(_, (begin, end))| {
            fresh(segment(IN, u32::try_from(*begin).unwrap(), &stream[*begin..*end]), 0, 9)
        }).collect();
        let seen = seen(&segments);
        assert_eq!((seen.messages, seen.gaps), (whole(&all), vec![]));
    }
}
