//! Faults: no answer, half an answer, a slow one, a collector that goes away and comes back, any script of these.

use super::*;

#[tokio::test]
async fn no_whole_answer_means_again() {
    for act in [Act::Reset, Act::Close, Act::Truncate(200), Act::Truncate(503)] {
        let collector = Collector::http(vec![act.clone(), act.clone()]).await;
        let config = http(&collector);
        let (end, seen) = exchange(collector, config).await;
        assert_eq!((end.delivered, end.rejected), (1, 0), "{act:?}");
        assert_eq!(seen.len(), 3, "{act:?}");
        assert!(seen.iter().all(|one| one.raw == seen[0].raw), "{act:?}");
    }
    for act in [Act::Reset, Act::Truncate(200)] {
        let collector = Collector::grpc(vec![act.clone()]).await;
        let config = grpc(&collector);
        let (end, seen) = exchange(collector, config).await;
        assert_eq!((end.delivered, end.rejected), (1, 0), "{act:?}");
        assert!(seen.len() >= 2, "{act:?}");
    }
}

#[tokio::test]
async fn a_slow_answer_is_given_up_at_the_timeout() {
    for over_grpc in [false, true] {
        let hang = vec![Act::Hang(Duration::from_secs(60))];
        let (collector, mut config) = if over_grpc {
            let collector = Collector::grpc(hang).await;
            let config = grpc(&collector);
            (collector, config)
        } else {
            let collector = Collector::http(hang).await;
            let config = http(&collector);
            (collector, config)
        };
        config.connection.timeout = SHORT;
        let (end, seen) = exchange(collector, config).await;
        assert_eq!((end.delivered, seen.len()), (1, 2));
        assert!(end.last_error.unwrap().contains("within 300 ms"));
        assert_ne!(
            seen[0].connection, seen[1].connection,
            "a stuck connection is not used again"
        );
        assert!(seen[1].at - seen[0].at < LONG);
    }
}

#[tokio::test]
async fn a_status_counts_even_if_its_body_never_comes() {
    for (act, delivered, requests) in [
        (Act::HeadOnly(400), 0, 1),
        (Act::Truncate(400), 0, 1),
        (Act::HeadOnly(503), 1, 2),
        (Act::HeadOnly(200), 1, 2),
    ] {
        let collector = Collector::http(vec![act.clone()]).await;
        let mut config = http(&collector);
        config.connection.timeout = SHORT;
        let (end, seen) = exchange(collector, config).await;
        assert_eq!(
            (end.delivered, end.rejected, seen.len()),
            (delivered, 1 - delivered, requests),
            "{act:?}"
        );
    }
}

#[tokio::test]
async fn the_connection_is_kept_and_replaced_when_the_server_closed_it() {
    for over_grpc in [false, true] {
        let collector = if over_grpc {
            Collector::grpc(Vec::new()).await
        } else {
            Collector::http(Vec::new()).await
        };
        let sink = start(one_by_one(if over_grpc { grpc(&collector) } else { http(&collector) }));
        for number in 1..=20 {
            sink.offer(&small(number));
        }
        until("20 requests", || collector.seen().len() == 20).await;
        assert!(collector.seen().iter().all(|seen| seen.connection == 0));
        assert_eq!(sink.stop(LONG).await, 0);
    }
    let collector = Collector::http(vec![Act::OkThenClose, Act::OkThenClose]).await;
    let sink = start(one_by_one(http(&collector)));
    for number in 1..=3 {
        sink.offer(&small(number));
    }
    assert_eq!(sink.stop(LONG).await, 0);
    let numbers: Vec<_> = collector.seen().iter().map(|seen| seen.connection).collect();
    assert_eq!(numbers, [0, 1, 2]);
    assert_eq!(sink.metrics.retries.get(), 0);
    assert_eq!(sink.status().last_error, None);
    // The server closes just when the second request comes: it is sent again at once.
    let collector = Collector::http(vec![Act::status(200), Act::Close]).await;
    let sink = start(one_by_one(http(&collector)));
    sink.offer(&small(1));
    sink.offer(&small(2));
    assert_eq!(sink.stop(LONG).await, 0);
    let numbers: Vec<_> = collector.seen().iter().map(|seen| seen.connection).collect();
    assert_eq!(numbers, [0, 0, 1]);
    assert_eq!(sink.metrics.retries.get(), 0);
    assert_eq!(sink.status().last_error, None);
}

#[tokio::test]
async fn a_collector_that_goes_and_comes_back_gets_every_span_once_and_in_order() {
    for over_grpc in [false, true] {
        let first = Collector::start("127.0.0.1:0", Vec::new(), over_grpc, None).await;
        let sink = start(one_by_one(if over_grpc { grpc(&first) } else { http(&first) }));
        for number in 0..10 {
            sink.offer(&small(number));
        }
        until("the first ten", || sink.status().delivered == 10).await;
        let mut got = first.spans();
        let address = first.go_away().await;
        for number in 10..60 {
            sink.offer(&small(number));
        }
        until("three failures", || sink.delivery.failure().streak >= 3).await;
        let away = sink.status();
        assert_eq!((away.delivered, away.waiting, away.failing), (10, 50, true));
        let second = Collector::start(&address.to_string(), Vec::new(), over_grpc, None).await;
        for number in 60..70 {
            sink.offer(&small(number));
        }
        until_sent("all", &sink).await;
        assert_eq!(sink.stop(LONG).await, 0);
        got.extend(second.spans());
        let expected: Vec<_> = (0..70)
            .map(|number| fixture::span_id(number, 0).0.to_be_bytes().to_vec())
            .collect();
        assert_eq!(
            got.iter().map(|span| span.span_id.clone()).collect::<Vec<_>>(),
            expected
        );
        let end = sink.status();
        assert_eq!((end.delivered, end.rejected, end.evicted, end.shed), (70, 0, 0, 0));
        assert!(!end.failing);
    }
}

#[tokio::test]
async fn a_sink_dropped_without_stop_does_not_spin() {
    let gone = Collector::http(Vec::new()).await;
    let mut config = http(&gone);
    config.tuning.backoff_initial = SHORT;
    config.tuning.backoff_max = SHORT;
    gone.go_away().await;
    let sink = start(config);
    sink.offer(&small(1));
    until("a failure", || sink.status().failing).await;
    let delivery = Arc::clone(&sink.delivery);
    drop(sink);
    // The drop may cut one wait short.
    tokio::time::sleep(SHORT * 2).await;
    assert!(delivery.failure().streak <= 6, "{}", delivery.failure().streak);
}

#[tokio::test]
async fn the_wrong_protocol_is_a_failure_that_keeps_the_spans() {
    for over_grpc in [false, true] {
        let collector = Collector::start("127.0.0.1:0", Vec::new(), over_grpc, None).await;
        let mut config = if over_grpc { http(&collector) } else { grpc(&collector) };
        config.connection.timeout = SHORT;
        let sink = start(config);
        sink.offer(&small(1));
        until("two failures", || sink.delivery.failure().streak >= 2).await;
        assert_eq!(sink.stop(Duration::from_millis(20)).await, 1);
    }
}

/// What an act means for the request.
#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    Again,
    Final,
}

fn any_act() -> impl Strategy<Value = (Act, Fault)> {
    proptest::prop_oneof![
        3 => Just((Act::status(200), Fault::None)),
        1 => Just((Act::OkThenClose, Fault::None)),
        1 => Just((Act::status(503), Fault::Again)),
        1 => Just((Act::status(429), Fault::Again)),
        1 => Just((Act::Reset, Fault::Again)),
        1 => Just((Act::Close, Fault::Again)),
        1 => Just((Act::Truncate(200), Fault::Again)),
        1 => Just((Act::status(400), Fault::Final)),
        1 => Just((Act::status(500), Fault::Final)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever the collector does, every span ends in one place, in order, and none is forgotten.
    #[test]
    fn any_script_adds_up(script in proptest::collection::vec(any_act(), 0..24)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let collector = Collector::http(script.iter().map(|(act, _)| act.clone()).collect()).await;
            let mut config = one_by_one(http(&collector));
            config.tuning.backoff_initial = Duration::from_millis(1);
            config.tuning.backoff_max = Duration::from_millis(2);
            let sink = start(config);
            for number in 0..12 {
                sink.offer(&small(number));
            }
            assert_eq!(sink.stop(LONG).await, 0);
            let end = sink.status();
            assert_eq!(end.delivered + end.rejected, 12);
            let seen = collector.seen();
            let sent: Vec<_> = seen.iter().map(|seen| seen.spans()[0].span_id.clone()).collect();
            assert!(sent.is_sorted(), "newer ones wait behind older ones");
            let mut once = sent.clone();
            once.dedup();
            assert_eq!(once.len(), 12, "each was sent");
            let final_answers = script
                .iter()
                .take(seen.len())
                .filter(|(_, fault)| matches!(fault, Fault::Final))
                .count();
            assert_eq!(end.rejected, final_answers as u64);
            let again = script
                .iter()
                .take(seen.len())
                .filter(|(_, fault)| matches!(fault, Fault::Again))
                .count();
            assert_eq!(seen.len(), 12 + again, "nothing is sent more often than needed");
        });
    }
}
