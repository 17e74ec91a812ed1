//! What is sent: field by field what the registry says, grouped by pod, cut to size, with the right headers.

use super::*;
use crate::sinks::sampling::Policy;
use sandglass_model::sampling::CallerSampling;

#[tokio::test]
async fn http_sends_what_the_registry_says() {
    for compression in ["gzip", "none"] {
        let collector = Collector::http(Vec::new()).await;
        let sink = start(config(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("{}/base/", collector.url())),
            ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20secret,x-tenant=t1"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", compression),
            ("OTEL_RESOURCE_ATTRIBUTES", "k8s.node.name=wrong,k8s.pod.name=agent-7"),
        ]));
        let trace = full_trace(1);
        sink.offer(&trace);
        assert_eq!(sink.stop(LONG).await, 0);
        let [seen] = collector.seen().try_into().unwrap();
        assert_eq!(seen.path, "/base/v1/traces");
        assert_eq!(seen.header("content-type"), "application/x-protobuf");
        assert_eq!(
            seen.header("content-encoding"),
            if compression == "gzip" { "gzip" } else { "" }
        );
        assert_eq!(seen.header("api-key"), "a secret");
        assert_eq!(seen.header("x-tenant"), "t1");
        assert_eq!(seen.header("host"), collector.address.to_string());
        assert_eq!(
            seen.header("user-agent"),
            "OTel-OTLP-Exporter-Rust/0.33.1 sandglass/9.8.7"
        );
        let request = seen.decode();
        let [resource] = request.resource_spans.as_slice() else {
            panic!("{request:?}")
        };
        assert_eq!(resource.schema_url, "https://opentelemetry.io/schemas/1.44.0");
        let expected: BTreeMap<_, _> = registry::resource(&trace, "node-1", "sandglass", "9.8.7")
            .iter()
            .map(|(key, value)| ((*key).to_owned(), registry_text(value)))
            .collect();
        assert_eq!(expected[registry::POD_NAME], "cart-1");
        assert_eq!(attributes(&resource.resource.as_ref().unwrap().attributes), expected);
        assert_sent(&trace, &seen.spans());
        assert_eq!(sink.status().delivered, trace.spans.len() as u64);
    }
}

#[tokio::test]
async fn grpc_sends_what_the_registry_says() {
    for compression in ["gzip", "none"] {
        let collector = Collector::grpc(Vec::new()).await;
        let sink = start(config(&[
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &collector.address.to_string()),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_INSECURE", "true"),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "api-key=secret"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", compression),
        ]));
        let trace = full_trace(1);
        sink.offer(&trace);
        assert_eq!(sink.stop(LONG).await, 0);
        let [seen] = collector.seen().try_into().unwrap();
        assert_eq!(
            seen.path,
            format!(
                "http://{}/opentelemetry.proto.collector.trace.v1.TraceService/Export",
                collector.address
            )
        );
        assert_eq!(seen.header("content-type"), "application/grpc");
        assert_eq!(seen.header("te"), "trailers");
        assert_eq!(
            seen.header("grpc-encoding"),
            if compression == "gzip" { "gzip" } else { "" }
        );
        assert!(seen.header("grpc-timeout").ends_with('m'));
        assert_eq!(seen.header("api-key"), "secret");
        assert_eq!(
            seen.header("user-agent"),
            "OTel-OTLP-Exporter-Rust/0.33.1 sandglass/9.8.7"
        );
        assert_sent(&trace, &seen.spans());
    }
}

#[tokio::test]
async fn pods_share_a_request_and_each_has_its_resource() {
    let collector = Collector::http(Vec::new()).await;
    let sink = start(http(&collector));
    let mut again = small_trace(7);
    again.identity = small_trace(1).identity;
    for trace in [small(1), small(2), Arc::new(again)] {
        sink.offer(&trace);
    }
    assert_eq!(sink.stop(LONG).await, 0);
    let [seen] = collector.seen().try_into().unwrap();
    let pods: Vec<_> = seen
        .decode()
        .resource_spans
        .iter()
        .map(|resource| {
            let attributes = attributes(&resource.resource.as_ref().unwrap().attributes);
            (
                attributes[registry::POD_UID].clone(),
                resource.scope_spans[0].spans.len(),
            )
        })
        .collect();
    assert_eq!(pods, [("uid-1".to_owned(), 2), ("uid-2".to_owned(), 1)]);
}

#[tokio::test]
async fn big_batches_are_cut_by_spans_and_by_bytes() {
    let collector = Collector::http(Vec::new()).await;
    let mut by_spans = http(&collector);
    by_spans.tuning.batch_spans = 4;
    let sink = start(by_spans);
    for number in 1..=3 {
        sink.offer(&full_trace(number));
    }
    assert_eq!(sink.stop(LONG).await, 0);
    let sizes: Vec<_> = collector.seen().iter().map(|seen| seen.spans().len()).collect();
    assert_eq!(sizes.iter().sum::<usize>(), 18);
    assert!(sizes.iter().all(|size| *size <= 4), "{sizes:?}");

    let collector = Collector::http(Vec::new()).await;
    let mut whole = http(&collector);
    whole.tuning.batch_spans = 14;
    let sink = start(whole);
    for number in 1..=4 {
        sink.offer(&full_trace(number));
    }
    assert_eq!(sink.stop(LONG).await, 0);
    let sizes: Vec<_> = collector.seen().iter().map(|seen| seen.spans().len()).collect();
    assert_eq!(sizes, [12, 12], "a trace that fits a request is not cut");

    let collector = Collector::http(Vec::new()).await;
    let mut by_bytes = http(&collector);
    by_bytes.tuning.batch_bytes = 2_000;
    by_bytes.connection.gzip = false;
    let sink = start(by_bytes);
    for number in 1..=5 {
        sink.offer(&full_trace(number));
    }
    assert_eq!(sink.stop(LONG).await, 0);
    let seen = collector.seen();
    assert_eq!(collector.spans().len(), 30);
    assert!(
        seen.len() > 3 && seen.iter().all(|seen| seen.raw.len() < 3_000),
        "{}",
        seen.len()
    );
}

#[tokio::test]
async fn open_traces_are_not_sent() {
    let collector = Collector::http(Vec::new()).await;
    let sink = start(http(&collector));
    let mut open = small_trace(1);
    open.closed = false;
    sink.offer(&Arc::new(open));
    assert_eq!(sink.stop(LONG).await, 0);
    assert!(collector.seen().is_empty(), "an empty request is not sent either");
    assert_eq!(sink.status().delivered, 0);
}

/// The exporter compresses when the process environment says so; the delivery takes that as well.
#[tokio::test]
async fn bodies_that_come_compressed_are_joined_plain() {
    use std::io::Write;
    let delivery = Delivery::new(
        false,
        RequestQueue::new(1, 100),
        None,
        Arc::new(ExportMetrics::new(crate::sinks::prometheus::Buckets::Classic)),
    );
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(b"one").unwrap();
    let compressed = Request::post("http://localhost/")
        .header("content-encoding", "gzip")
        .body(Bytes::from(encoder.finish().unwrap()))
        .unwrap();
    delivery.send_bytes(compressed).await.unwrap();
    let plain = Request::post("http://localhost/").body(Bytes::from("two")).unwrap();
    delivery.send_bytes(plain).await.unwrap();
    assert_eq!(delivery.open_bytes(), 6);
}

/// The user agent names the version of a crate that has no constant for it.
#[tokio::test]
async fn the_user_agent_names_the_exporters_version() {
    #[derive(Debug, Default)]
    struct Peek(Mutex<String>);

    #[async_trait::async_trait]
    impl HttpClient for Peek {
        async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
            *self.0.lock().unwrap() = request.headers()["user-agent"].to_str().unwrap().to_owned();
            Ok(Response::new(Bytes::new()))
        }
    }

    use opentelemetry_otlp::{WithExportConfig, WithHttpConfig};
    use opentelemetry_sdk::trace::SpanExporter as _;
    let peek = Arc::new(Peek::default());
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_http()
        .with_shared_http_client(Arc::clone(&peek) as Arc<dyn HttpClient>)
        .with_endpoint("http://localhost/")
        .build()
        .unwrap();
    let spans = convert::spans(&chosen(&small(1)), &convert::scope("1"));
    exporter.export(spans).await.unwrap();
    let agent = peek.0.lock().unwrap().clone();
    assert_eq!(
        agent,
        format!("OTel-OTLP-Exporter-Rust/{}", transport::EXPORTER_VERSION)
    );
}

#[tokio::test]
async fn the_size_of_a_span_is_estimated_well_enough_to_cut_by() {
    let collector = Collector::http(Vec::new()).await;
    let mut config = http(&collector);
    config.connection.gzip = false;
    let sink = start(config);
    let trace = full_trace(1);
    sink.offer(&trace);
    assert_eq!(sink.stop(LONG).await, 0);
    let real = collector.seen()[0].raw.len();
    let spans = convert::spans(&chosen(&trace), &convert::scope("1"));
    let estimated: usize = spans.iter().map(convert::encoded_size).sum();
    assert!(
        estimated > real * 3 / 4 && estimated < real * 5 / 4,
        "{estimated} for {real}"
    );
}

fn chosen(trace: &Arc<Trace>) -> Chosen {
    Sampling::new(Policy::All).choose(trace).unwrap()
}

#[tokio::test]
async fn with_sampling_bad_ones_are_sent_with_their_contexts_and_good_ones_counted() {
    let collector = Collector::http(Vec::new()).await;
    let mut config = http(&collector);
    config.sampling = Policy::Bad {
        good_per_thousand: 0,
        slow_ns: 3_600_000_000_000,
    };
    let sink = start(config);
    // `full_trace` failed; `small` is good.
    let (bad, good) = (full_trace(1), small(2));
    assert!(bad.root().status.is_error() && !good.root().status.is_error());
    let caller = CallerSampling::parse(1, "ot=th:8;rv:0123456789abcd");
    let within = Arc::new(Trace {
        caller: Some(caller),
        ..Trace::clone(&small(3))
    });
    for trace in [&bad, &good, &within] {
        sink.offer(trace);
    }
    assert_eq!(sink.stop(LONG).await, 0);
    let end = sink.status();
    let spans = |trace: &Trace| trace.spans.len() as u64;
    assert_eq!(
        (end.delivered, end.sampled_out),
        (spans(&bad) + spans(&within), spans(&good))
    );
    assert_eq!((end.waiting, end.rejected, end.evicted, end.shed), (0, 0, 0, 0));
    assert_eq!(end.sampling, "bad, 0 of 1000 good, slow from 3600000 ms");
    for sent in collector.spans() {
        let (state, flags) = if sent.trace_id == bad.id.0.to_be_bytes() {
            ("ot=th:0", if bad.caller.is_some() { 1 } else { 3 })
        } else {
            assert_eq!(sent.trace_id, within.id.0.to_be_bytes());
            ("ot=th:8;rv:0123456789abcd", 1)
        };
        assert_eq!(
            (sent.trace_state.as_str(), sent.flags & 0xff),
            (state, flags),
            "{sent:?}"
        );
    }
}
