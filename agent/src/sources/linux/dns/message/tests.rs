use super::*;

fn parse(bytes: &[u8], complete: bool) -> Result<Parsed, Malformed> {
    super::parse(bytes, complete, &mut Memory::default())
}

#[test]
fn one_name_is_one_text_and_others_are_distinguished() {
    let mut memory = Memory::default();
    let mut name_of = |label: &[u8]| {
        let mut question = vec![label.len() as u8];
        question.extend(label);
        question.extend(*b"\x07service\x05local\0\0\x01\0\x01");
        let message = [header(7, 0x0100, [1, 0, 0, 0]), question].concat();
        let mut parsed = super::parse(&message, true, &mut memory).unwrap();
        parsed.questions.remove(0).name
    };
    let long = name_of(b"a-name-of-some-length");
    assert_eq!(long, "a-name-of-some-length.service.local");
    assert_eq!(long.as_ptr(), name_of(b"A-name-of-some-length").as_ptr());
    // More than are remembered.
    for number in 0..2 * RECENT_NAMES {
        let label = format!("a-name-of-some-length-{number}");
        assert_eq!(name_of(label.as_bytes()), format!("{label}.service.local"));
    }
    assert_eq!(name_of(b"a\\b\x01C"), "a\\\\b\\001c.service.local");
}

/// A message's header: id, flags, counts of its four sections.
fn header(id: u16, flags: u16, counts: [u16; 4]) -> Vec<u8> {
    let words = [id, flags].into_iter().chain(counts);
    words.flat_map(u16::to_be_bytes).collect()
}

fn name(labels: &[&[u8]]) -> Vec<u8> {
    let mut name = Vec::new();
    for label in labels {
        name.push(u8::try_from(label.len()).unwrap());
        name.extend_from_slice(label);
    }
    name.push(0);
    name
}

fn question(labels: &[&[u8]], kind: u16) -> Vec<u8> {
    let mut question = name(labels);
    question.extend(kind.to_be_bytes());
    question.extend([0, 1]);
    question
}

/// A record owned by the question's name, which lies at offset 12.
fn record(kind: u16, ttl: u32, data: &[u8]) -> Vec<u8> {
    let mut record = vec![0xc0, 12];
    record.extend(kind.to_be_bytes());
    record.extend([0, 1]);
    record.extend(ttl.to_be_bytes());
    record.extend(u16::try_from(data.len()).unwrap().to_be_bytes());
    record.extend_from_slice(data);
    record
}

fn web_question() -> Vec<u8> {
    question(&[b"Web", b"example", b"ORG"], 1)
}

#[test]
fn a_query_gives_its_question() {
    let parsed = parse(&[header(7, 0x0100, [1, 0, 0, 0]), web_question()].concat(), true).unwrap();
    assert_eq!(parsed.id, 7);
    assert!(parsed.is_lookup && parsed.answer.is_none() && !parsed.malformed);
    let question = Question {
        name: "web.example.org".into(),
        kind: 1,
    };
    assert_eq!(parsed.questions, [question]);
}

#[test]
fn an_answer_gives_code_and_addresses() {
    let message = [
        header(7, 0x8180, [1, 3, 0, 1]),
        web_question(),
        record(5, 60, &name(&[b"other"])),
        record(1, 60, &[192, 0, 2, 1]),
        record(28, 60, &[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]),
        // OPT: owner is the root, extended code 1 in the upper bits of what is the time to live elsewhere.
        [&[0, 0, 41, 4, 208, 1, 0, 0, 0, 0, 0][..]].concat(),
    ]
    .concat();
    let parsed = parse(&message, true).unwrap();
    assert!(!parsed.malformed);
    let answer = parsed.answer.unwrap();
    assert_eq!((answer.rcode, answer.records, answer.truncated), (16, 3, false));
    assert_eq!(
        answer.addresses,
        ["192.0.2.1".parse::<IpAddr>().unwrap(), "2001:db8::9".parse().unwrap()]
    );
}

#[test]
fn codes_and_truncation_are_read_from_the_header() {
    let parsed = parse(&[header(1, 0x8383, [1, 0, 0, 0]), web_question()].concat(), true).unwrap();
    let answer = parsed.answer.unwrap();
    assert_eq!((answer.rcode, answer.truncated, answer.records), (3, true, 0));
    // A server that did not understand repeats no question.
    let parsed = parse(&header(1, 0x8001, [0, 0, 0, 0]), true).unwrap();
    assert_eq!((parsed.questions.len(), parsed.answer.unwrap().rcode), (0, 1));
}

#[test]
fn what_was_not_captured_is_not_malformed() {
    let whole = [
        header(7, 0x8180, [1, 2, 0, 0]),
        web_question(),
        record(1, 60, &[192, 0, 2, 1]),
        record(1, 60, &[192, 0, 2, 2]),
    ]
    .concat();
    let begin = &whole[..whole.len() - 3];
    let cut = parse(begin, false).unwrap();
    assert!(!cut.malformed);
    assert_eq!(cut.answer.as_ref().unwrap().addresses.len(), 1);
    assert_eq!(cut.answer.unwrap().records, 2);
    assert!(parse(begin, true).unwrap().malformed);
}

#[test]
fn names_are_escaped() {
    for (labels, text) in [
        (&[&b"a.b"[..], b"c\\d"][..], "a\\.b.c\\\\d"),
        (&[b" x\xff\0", b"Y"], "\\032x\\255\\000.y"),
        (&[], ""),
    ] {
        let message = [header(1, 0, [1, 0, 0, 0]), question(labels, 1)].concat();
        assert_eq!(parse(&message, true).unwrap().questions[0].name, text);
    }
}

#[test]
fn what_is_no_message_is_an_error() {
    let loops = [header(1, 0, [1, 0, 0, 0]), vec![0xc0, 12, 0, 1, 0, 1]].concat();
    for (bytes, what) in [
        (&b""[..], "nothing"),
        (b"GET / HTTP/1.1", "another protocol"),
        (&header(1, 0, [1, 0, 0, 0]), "a question that is not there"),
        (&loops, "a name that points at itself"),
    ] {
        assert!(parse(bytes, true).is_err(), "{what}");
    }
}

#[test]
fn much_is_bounded() {
    let many: Vec<u8> = (0..100).flat_map(|_| record(1, 0, &[1, 2, 3, 4])).collect();
    let questions: Vec<u8> = (0..20).flat_map(|_| web_question()).collect();
    let message = [header(1, 0x8000, [20, 100, 0, 0]), questions, many].concat();
    let parsed = parse(&message, true).unwrap();
    assert_eq!((parsed.questions.len(), parsed.more_questions), (QUESTIONS_MAX, 12));
    let answer = parsed.answer.unwrap();
    assert_eq!((answer.addresses.len(), answer.records), (ADDRESSES_MAX, 100));
}

/// Notices (RFC 1996), updates (RFC 2136), inverse queries (RFC 1035 6.4) and stateful operations (RFC 8490).
#[test]
fn other_opcodes_are_no_lookups() {
    for (flags, counts, rest) in [
        (0x2000, [1, 0, 0, 0], web_question()),
        (0x2800, [1, 0, 1, 0], vec![0, 0, 6, 0, 1, 1]),
        (0x0800, [0, 1, 0, 0], record(1, 0, &[192, 0, 2, 1])),
        (0x3000, [0; 4], vec![0, 1, 0, 8, 0, 0, 58, 152, 0, 0, 58, 152]),
    ] {
        for answer in [0, 0x8000] {
            let parsed = parse(&[header(1, flags | answer, counts), rest.clone()].concat(), true).unwrap();
            assert!(!parsed.is_lookup && !parsed.malformed);
            assert_eq!(parsed.answer.is_some(), answer != 0);
        }
    }
}

/// RFC 7873 5.4: a query without a question requests a server cookie.
#[test]
fn a_query_without_a_question_is_no_malformed_one() {
    let cookie = [0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 12, 0, 10, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8];
    for flags in [0, 0x8000] {
        let parsed = parse(&[&header(9, flags, [0, 0, 0, 1])[..], &cookie].concat(), true).unwrap();
        assert!(parsed.is_lookup && parsed.questions.is_empty() && !parsed.malformed);
    }
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..600), complete: bool) {
        if let Ok(parsed) = parse(&bytes, complete) {
            assert!(parsed.questions.len() <= QUESTIONS_MAX);
            assert!(parsed.answer.is_none_or(|answer| answer.addresses.len() <= ADDRESSES_MAX));
        }
    }
}
