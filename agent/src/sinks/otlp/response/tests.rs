//! Answers, hostile ones included, to verdicts.

use proptest::prelude::{any as arbitrary, prop_assert_eq, proptest};

use super::*;

/// `grpc-status-details-bin` with a `RetryInfo`, without padding.
pub fn retry_info(delay: Option<(i64, i32)>) -> String {
    let info = RetryInfo {
        retry_delay: delay.map(|(seconds, nanos)| ProtoDuration { seconds, nanos }),
    };
    details(vec![
        any("type.googleapis.com/google.rpc.DebugInfo", vec![0xff]),
        any("type.googleapis.com/google.rpc.RetryInfo", info.encode_to_vec()),
    ])
}

fn any(type_url: &str, value: Vec<u8>) -> Any {
    Any {
        type_url: type_url.to_owned(),
        value,
    }
}

fn details(details: Vec<Any>) -> String {
    let status = RpcStatus {
        code: 8,
        message: "slow".to_owned(),
        details,
    };
    BASE64.encode(status.encode_to_vec()).trim_end_matches('=').to_owned()
}

fn grpc(code: u32, details: &str) -> AttemptResult {
    of_grpc(Err(CallError::Status {
        code,
        message: "slow".to_owned(),
        details: details.to_owned(),
    }))
}

fn http(status: u16, retry_after: Option<&str>, body: &[u8]) -> AttemptResult {
    let mut headers = HeaderMap::new();
    if let Some(value) = retry_after {
        headers.insert(RETRY_AFTER, value.parse().unwrap());
    }
    // 2026-01-01T00:00:00Z
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600);
    of_http(StatusCode::from_u16(status).unwrap(), &headers, body, now)
}

fn after(result: &AttemptResult) -> Option<Duration> {
    match result {
        AttemptResult::Later { after, .. } => *after,
        other => panic!("{other:?}"),
    }
}

#[test]
fn retry_after_is_seconds_or_a_date() {
    for (value, seconds) in [
        ("120", Some(120)),
        (" 7 ", Some(7)),
        ("0", Some(0)),
        ("Thu, 01 Jan 2026 00:01:30 GMT", Some(90)),
        ("Thursday, 01-Jan-26 00:01:30 GMT", Some(90)),
        ("Thu Jan  1 00:01:30 2026", Some(90)),
        ("Wed, 31 Dec 2025 00:00:00 GMT", Some(0)),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
        ("99999999999999999999999999", None),
    ] {
        let result = http(503, Some(value), b"");
        assert_eq!(after(&result), seconds.map(Duration::from_secs), "{value}");
    }
    assert!(matches!(http(400, Some("1"), b""), AttemptResult::Rejected { .. }));
}

#[test]
fn resource_exhausted_is_retried_only_with_retry_info() {
    assert_eq!(
        after(&grpc(8, &retry_info(Some((2, 500_000_000))))),
        Some(Duration::from_millis(2_500))
    );
    assert_eq!(after(&grpc(8, &retry_info(None))), None);
    for malformed in [Some((-1, 0)), Some((0, -1)), Some((0, 1_000_000_000))] {
        assert_eq!(after(&grpc(8, &retry_info(malformed))), None, "{malformed:?}");
    }
    let other = details(vec![any("type.googleapis.com/google.rpc.QuotaFailure", Vec::new())]);
    for without in ["", "!!!", "AAAA", other.as_str()] {
        assert!(matches!(grpc(8, without), AttemptResult::Rejected { .. }), "{without}");
    }
    assert_eq!(
        after(&grpc(14, &retry_info(Some((9, 0))))),
        Some(Duration::from_secs(9)),
        "UNAVAILABLE that throttles"
    );
    assert!(matches!(
        grpc(3, &retry_info(Some((9, 0)))),
        AttemptResult::Rejected { .. }
    ));
}

#[test]
fn what_the_collector_says_is_shown_short_and_on_one_line() {
    let status = RpcStatus {
        code: 3,
        message: "bad\nspan\u{7}".to_owned(),
        details: Vec::new(),
    };
    let AttemptResult::Rejected { why } = http(400, None, &status.encode_to_vec()) else {
        panic!()
    };
    assert_eq!(why, "the collector responded with HTTP 400 Bad Request: bad span");
    let AttemptResult::Rejected { why } = http(404, None, b"no such page") else {
        panic!()
    };
    assert_eq!(why, "the collector responded with HTTP 404 Not Found: no such page");
    let AttemptResult::Rejected { why } = http(500, None, "ü".repeat(5_000).as_bytes()) else {
        panic!()
    };
    assert!(why.chars().count() < 400 && why.ends_with("ü…"), "{why}");
}

#[test]
fn rejected_spans_of_a_partial_success_are_read_and_nonsense_is_none() {
    let answer = |rejected_spans| {
        let partial = ExportTracePartialSuccess {
            rejected_spans,
            error_message: String::new(),
        };
        let response = ExportTraceServiceResponse {
            partial_success: Some(partial),
        };
        match http(200, None, &response.encode_to_vec()) {
            AttemptResult::Delivered { refused, .. } => refused,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(answer(5), 5);
    assert_eq!(answer(-5), 0);
}

proptest! {
    #[test]
    fn no_answer_panics(
        status in 100_u16..1000,
        body in proptest::collection::vec(arbitrary::<u8>(), 0..200),
        retry_after in "[ -~]{0,40}",
        code in arbitrary::<u32>(),
        details in "[A-Za-z0-9+/=]{0,80}",
    ) {
        let success = (200..300).contains(&status);
        let result = http(status, Some(&retry_after), &body);
        prop_assert_eq!(success, matches!(result, AttemptResult::Delivered { .. }));
        grpc(code, &details);
        let _ = of_grpc(Ok(Bytes::from(body)));
    }
}
