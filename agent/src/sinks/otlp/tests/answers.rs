//! Answers of the collector: every status class over both protocols, throttling, partial success, oversize.

use super::*;

#[tokio::test]
async fn http_statuses_are_retried_or_final_as_the_specification_says() {
    for status in [429, 502, 503, 504] {
        let collector = Collector::http(vec![Act::status(status), Act::status(status)]).await;
        let config = http(&collector);
        let (end, seen) = exchange(collector, config).await;
        assert_eq!((end.delivered, end.rejected, seen.len()), (1, 0, 3), "{status}");
        assert!(
            seen.iter().all(|one| one.raw == seen[0].raw),
            "{status}: the same bytes"
        );
        assert!(!end.failing);
        assert!(end.last_error.unwrap().contains(&status.to_string()));
    }
    for status in [
        301, 307, 400, 401, 403, 404, 405, 408, 413, 415, 422, 431, 500, 501, 505, 507,
    ] {
        let collector = Collector::http(vec![Act::status(status)]).await;
        let config = http(&collector);
        let (end, seen) = exchange(collector, config).await;
        assert_eq!((end.delivered, end.rejected, seen.len()), (0, 1, 1), "{status}");
    }
    for status in [200, 202, 204] {
        let collector = Collector::http(vec![Act::status(status)]).await;
        let config = http(&collector);
        let (end, seen) = exchange(collector, config).await;
        assert_eq!((end.delivered, end.rejected, seen.len()), (1, 0, 1), "{status}");
    }
}

#[tokio::test]
async fn grpc_codes_are_retried_or_final_as_the_specification_says() {
    for code in [1, 4, 10, 11, 14, 15] {
        let collector = Collector::grpc(vec![Act::grpc(code), Act::grpc(code)]).await;
        let config = grpc(&collector);
        let (end, seen) = exchange(collector, config).await;
        assert_eq!((end.delivered, end.rejected, seen.len()), (1, 0, 3), "{code}");
        assert!(end.last_error.unwrap().contains("as scripted"));
    }
    for code in [2, 3, 5, 6, 7, 8, 9, 12, 13, 16, 99] {
        let collector = Collector::grpc(vec![Act::grpc(code)]).await;
        let config = grpc(&collector);
        let (end, seen) = exchange(collector, config).await;
        assert_eq!((end.delivered, end.rejected, seen.len()), (0, 1, 1), "{code}");
    }
    for (status, delivered) in [(503, 1), (429, 1), (404, 0), (500, 0)] {
        let collector = Collector::grpc(vec![Act::status(status)]).await;
        let config = grpc(&collector);
        let (end, _) = exchange(collector, config).await;
        assert_eq!(
            (end.delivered, end.rejected),
            (delivered, 1 - delivered),
            "HTTP {status}"
        );
    }
}

#[tokio::test]
async fn a_throttling_collector_is_given_the_time_it_asks() {
    // RESOURCE_EXHAUSTED is retried only because of the RetryInfo; UNAVAILABLE in any case.
    for code in [8, 14] {
        let details = response::tests::retry_info(Some((0, 400_000_000)));
        let collector = Collector::grpc(vec![Act::Grpc(code, details, Vec::new())]).await;
        let config = grpc(&collector);
        let (end, seen) = exchange(collector, config).await;
        assert_eq!((end.delivered, seen.len()), (1, 2), "{code}");
        assert_pause(&seen, 400);
    }
    for seconds in [true, false] {
        let (header, least) = if seconds {
            ("1".to_owned(), 1_000)
        } else {
            // The date has no fractions of a second.
            let date = SystemTime::now() + Duration::from_secs(2);
            (httpdate::fmt_http_date(date), 900)
        };
        let throttle = Act::Answer(503, vec![("retry-after", header.clone())], Vec::new());
        let collector = Collector::http(vec![throttle]).await;
        let config = http(&collector);
        let (end, seen) = exchange(collector, config).await;
        assert_eq!((end.delivered, seen.len()), (1, 2), "{header}");
        assert_pause(&seen, least);
    }
}

fn assert_pause(seen: &[collector::Seen], least_ms: u64) {
    let pause = seen[1].at - seen[0].at;
    let least = Duration::from_millis(least_ms);
    assert!(pause >= least && pause < LONG, "{pause:?}");
}

#[tokio::test]
async fn partial_success_is_counted_and_never_retried() {
    // ExportTraceServiceResponse { partial_success { rejected_spans: 4, error_message: "too old" } }
    let partial = b"\x0a\x0b\x08\x04\x12\x07too old".to_vec();
    // The same with 0 spans: a warning.
    let warning = b"\x0a\x09\x12\x07too old".to_vec();
    for over_grpc in [false, true] {
        for (answer, delivered, rejected) in [(&partial, 2, 4), (&warning, 6, 0)] {
            let (collector, config) = if over_grpc {
                let collector = Collector::grpc(vec![Act::Grpc(0, String::new(), answer.clone())]).await;
                let config = grpc(&collector);
                (collector, config)
            } else {
                let collector = Collector::http(vec![Act::Answer(200, Vec::new(), answer.clone())]).await;
                let config = http(&collector);
                (collector, config)
            };
            let sink = start(config);
            sink.offer(&full_trace(1));
            assert_eq!(sink.stop(LONG).await, 0);
            let status = sink.status();
            assert_eq!((status.delivered, status.rejected), (delivered, rejected));
            assert!(status.last_error.unwrap().contains("too old"));
            assert_eq!(collector.seen().len(), 1);
        }
    }
}

#[tokio::test]
async fn an_answer_over_the_limit_is_final() {
    let huge = vec![b'x'; (4 << 20) + 1];
    for status in [200, 503] {
        let collector = Collector::http(vec![Act::Answer(status, Vec::new(), huge.clone())]).await;
        let config = http(&collector);
        let (end, seen) = exchange(collector, config).await;
        assert_eq!((end.delivered, end.rejected, seen.len()), (0, 1, 1), "{status}");
        assert!(end.last_error.unwrap().contains("4 MiB"));
    }
    let collector = Collector::grpc(vec![Act::Grpc(0, String::new(), huge)]).await;
    let config = grpc(&collector);
    let (end, seen) = exchange(collector, config).await;
    assert_eq!((end.delivered, end.rejected, seen.len()), (0, 1, 1));
}

#[tokio::test]
async fn a_success_that_is_not_otlp_is_delivered_and_reported() {
    let page = Act::Answer(200, vec![("content-type", "text/html".to_owned())], b"<html>".to_vec());
    let collector = Collector::http(vec![page]).await;
    let config = http(&collector);
    let (end, seen) = exchange(collector, config).await;
    assert_eq!((end.delivered, seen.len()), (1, 1));
    assert!(end.last_error.unwrap().contains("not OTLP"));
}
