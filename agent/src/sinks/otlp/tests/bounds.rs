//! Bounds: what is evicted, shed, left at the stop or too large is counted exactly; metrics and status agree.

use super::*;

#[tokio::test]
async fn evicted_spans_are_the_oldest_and_counted_exactly() {
    let gone = Collector::http(Vec::new()).await;
    let mut config = one_by_one(http(&gone));
    config.tuning.queue_requests = 3;
    let address = gone.go_away().await;
    let sink = start(config);
    // 6 spans per trace, one span per request.
    for number in 1..=5 {
        sink.offer(&full_trace(number));
    }
    until("evictions", || sink.status().evicted >= 26).await;
    let back = Collector::start(&address.to_string(), Vec::new(), false, None).await;
    until_sent("all", &sink).await;
    let end = sink.status();
    let got = back.spans();
    assert_eq!(end.delivered + end.evicted, 30);
    assert_eq!(end.delivered, got.len() as u64);
    assert!(
        (3..=4).contains(&got.len()),
        "the queue, and perhaps the one under way: {}",
        got.len()
    );
    let last: Vec<_> = (3..6)
        .map(|index| fixture::span_id(5, index).0.to_be_bytes().to_vec())
        .collect();
    let ids: Vec<_> = got.iter().map(|span| span.span_id.clone()).collect();
    assert!(ids.ends_with(&last), "the newest are kept");
    assert_eq!(sink.stop(LONG).await, 0);
}

#[tokio::test]
async fn shed_traces_and_their_spans_are_counted_exactly() {
    let collector = Collector::http(Vec::new()).await;
    let mut config = http(&collector);
    config.tuning.queue_traces = 4;
    let health = Health::default();
    let sink = OtlpSink::start(config, node(), health.clone()).unwrap();
    // Nothing else runs on this runtime while this loop does.
    for number in 1..=10 {
        sink.offer(&full_trace(number));
    }
    assert_eq!(sink.status().shed, 36);
    assert_eq!(health.shed.get_or_create(&SinkLabel { sink: "otlp" }).get(), 6);
    assert_eq!(sink.stop(LONG).await, 0);
    assert_eq!(collector.spans().len(), 24);
    sink.offer(&full_trace(11));
    assert_eq!(sink.status().shed, 42, "a stopped sink sheds");
    assert_eq!(sink.status().waiting, 0);
}

#[tokio::test]
async fn stop_sends_what_waits_and_counts_what_is_left() {
    let collector = Collector::http(Vec::new()).await;
    let mut patient = http(&collector);
    patient.tuning.batch_delay = Duration::from_secs(60);
    let sink = start(patient);
    sink.offer(&full_trace(1));
    assert_eq!(sink.stop(LONG).await, 0, "the batch is not waited for");
    assert_eq!(collector.spans().len(), 6);

    let gone = Collector::http(Vec::new()).await;
    let mut config = http(&gone);
    config.tuning.backoff_initial = Duration::from_secs(60);
    config.tuning.backoff_max = Duration::from_secs(60);
    let address = gone.go_away().await;
    let sink = start(config.clone());
    sink.offer(&full_trace(1));
    until("a failure", || sink.status().failing).await;
    let begin = Instant::now();
    assert_eq!(sink.stop(SHORT).await, 6);
    assert!(begin.elapsed() < LONG);
    assert_eq!(sink.stop(SHORT).await, 6, "a second call only answers");

    let sink = start(config);
    sink.offer(&full_trace(1));
    until("a failure", || sink.status().failing).await;
    let back = Collector::start(&address.to_string(), Vec::new(), false, None).await;
    assert_eq!(sink.stop(LONG).await, 0, "the wait of a minute is cut short");
    assert_eq!(back.spans().len(), 6);
}

#[tokio::test]
async fn metrics_start_at_zero_and_say_what_happened() {
    let collector = Collector::http(vec![Act::status(503), Act::status(200), Act::status(400)]).await;
    let sink = start(http(&collector));
    let mut registry = Registry::with_prefix("sandglass");
    sink.register(&mut registry);
    let text = || {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    };
    for outcome in [
        "delivered",
        "rejected",
        "evicted",
        "expired",
        "corrupt",
        "partial_rejected",
        "shed",
    ] {
        let line = format!("sandglass_export_spans_total{{outcome=\"{outcome}\"}} 0\n");
        assert!(text().contains(&line), "{line}{}", text());
    }
    sink.offer(&full_trace(1));
    until("delivery", || sink.status().delivered == 6).await;
    sink.offer(&full_trace(2));
    until("rejection", || sink.status().rejected == 6).await;
    assert_eq!(sink.stop(LONG).await, 0);
    for line in [
        "sandglass_export_spans_total{outcome=\"delivered\"} 6\n",
        "sandglass_export_spans_total{outcome=\"rejected\"} 6\n",
        "sandglass_export_retries_total 1\n",
        "sandglass_export_queue_spans 0\n",
        "sandglass_export_queue_bytes 0\n",
        "sandglass_export_queue_oldest_timestamp_seconds 0\n",
        "sandglass_export_request_duration_seconds_count 3\n",
    ] {
        assert!(text().contains(line), "{line}{}", text());
    }
}

#[tokio::test]
async fn a_request_over_the_limit_is_counted_and_not_sent() {
    let metrics = Arc::new(ExportMetrics::new(crate::sinks::prometheus::Buckets::Classic));
    let delivery = Delivery::new(true, RequestQueue::new(10, 1 << 30), None, Arc::clone(&metrics));
    let body = Bytes::from(vec![0; (64 << 20) + 1]);
    let request = Request::post("http://localhost/").body(body).unwrap();
    delivery.send_bytes(request).await.unwrap();
    delivery.seal(17, spool::Worth::Bad).await;
    assert_eq!(metrics.total(ExportOutcome::rejected), 17);
    assert!(delivery.failure().last.unwrap().contains("64 MiB"));
}

#[test]
fn the_sink_needs_a_runtime_and_says_so() {
    let config = config(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")]);
    assert_eq!(config.tuning.queue_traces, defaults::QUEUE_TRACES);
    let error = OtlpSink::start(config, node(), Health::default()).unwrap_err();
    assert!(matches!(error, OtlpError::NoRuntime(_)));
}

/// A collector that is away for ten minutes costs no span: here one of them, at 33 sandboxes (200 spans) per second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_minutes_of_a_busy_node_fit_the_default_queue() {
    const TRACES: u64 = 2_000;
    let gone = Collector::http(Vec::new()).await;
    let mut config = http(&gone);
    // The spans of a second, with the delay of a second.
    config.tuning.batch_delay = defaults::BATCH_DELAY;
    config.tuning.batch_spans = 200;
    config.tuning.queue_traces = TRACES as usize;
    config.tuning.backoff_initial = SHORT;
    config.tuning.backoff_max = SHORT;
    let address = gone.go_away().await;
    let sink = start(config);
    for number in 0..TRACES {
        sink.offer(&incompressible(number));
    }
    until("all is encoded", || {
        sink.delivery.waiting().spans + 400 > sink.status().waiting && sink.status().waiting == TRACES * 6
    })
    .await;
    let waiting = sink.delivery.waiting();
    assert!(waiting.bytes * 10 < defaults::QUEUE_BYTES * 3 / 4, "{waiting:?}");
    assert!(waiting.requests * 10 < defaults::QUEUE_REQUESTS * 3 / 4, "{waiting:?}");
    let back = Collector::start(&address.to_string(), Vec::new(), false, None).await;
    until_sent("delivery", &sink).await;
    let end = sink.status();
    assert_eq!(
        (end.delivered, end.evicted, end.shed, end.rejected),
        (TRACES * 6, 0, 0, 0)
    );
    assert_eq!(back.spans().len() as u64, TRACES * 6);
    assert_eq!(sink.stop(LONG).await, 0);
}

/// A full trace with ids that do not compress.
pub fn incompressible(number: u64) -> Arc<Trace> {
    let mut trace = Trace::clone(&full_trace(number));
    let bytes = number.to_le_bytes();
    trace.id = sandglass_model::TraceId::of(&[&bytes]);
    let container = sandglass_model::TraceId::of(&[&bytes, b"container"]);
    trace.sandbox = Some(sandglass_model::SandboxId(format!("{}{container}", trace.id)));
    for (index, span) in trace.spans.iter_mut().enumerate() {
        span.id = SpanId::of(&[&bytes, &index.to_le_bytes()]);
    }
    Arc::new(trace)
}
