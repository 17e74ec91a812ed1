//! Precedence, every variable, and every malformed value.

use proptest::prelude::{prop_assert, proptest};

use super::*;

fn lookup(variables: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> {
    let variables: Vec<(String, String)> = variables
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    move |name| {
        let found = variables.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.clone())
    }
}

fn from_env(variables: &[(&str, &str)]) -> Result<Resolution, SettingError> {
    resolve(&Settings::default(), &lookup(variables), &Settings::default())
}

fn on(variables: &[(&str, &str)]) -> Resolved {
    match from_env(variables) {
        Ok(Resolution::On(resolved)) => *resolved,
        other => panic!("{variables:?}: {other:?}"),
    }
}

fn endpoint(text: &str) -> Settings {
    Settings {
        endpoint: Some(text.to_owned()),
        ..Settings::default()
    }
}

const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318");

/// A user may write the policy before the endpoint.
#[test]
fn a_wrong_value_is_an_error_without_an_endpoint() {
    let sampling = |text: &str| Settings {
        sampling: Some(text.to_owned()),
        ..Settings::default()
    };
    let resolved = |file: &Settings| resolve(&Settings::default(), &|_| None, file);
    assert!(matches!(resolved(&sampling("bad")), Ok(Resolution::Off(_))));
    let error = resolved(&sampling("best")).unwrap_err();
    assert_eq!(error.to_string(), r#"cannot use otlp.sampling: "best" is no policy"#);
}

#[test]
fn off_without_endpoint_or_when_configured_so() {
    for (variables, says) in [
        (vec![], "no endpoint"),
        (vec![("OTEL_EXPORTER_OTLP_ENDPOINT", "  ")], "no endpoint"),
        (vec![ENDPOINT, ("OTEL_SDK_DISABLED", "TRUE")], "OTEL_SDK_DISABLED"),
        (vec![ENDPOINT, ("OTEL_TRACES_EXPORTER", "none")], "OTEL_TRACES_EXPORTER"),
        (vec![ENDPOINT, ("OTEL_TRACES_EXPORTER", "console")], "console"),
    ] {
        match from_env(&variables) {
            Ok(Resolution::Off(reason)) => assert!(reason.contains(says), "{reason}"),
            other => panic!("{variables:?}: {other:?}"),
        }
    }
    on(&[
        ENDPOINT,
        ("OTEL_SDK_DISABLED", "false"),
        ("OTEL_TRACES_EXPORTER", "console, otlp"),
    ]);
}

#[test]
fn defaults_are_those_documented() {
    let resolved = on(&[ENDPOINT]);
    assert_eq!(resolved.connection.protocol, OtlpProtocol::Http);
    assert!(resolved.connection.gzip);
    assert_eq!(resolved.connection.timeout, Duration::from_secs(10));
    assert_eq!(resolved.connection.tls, TlsFiles::default());
    assert!(resolved.connection.headers.is_empty());
    let defaults = Tuning {
        queue_traces: 2_048,
        batch_spans: 512,
        batch_bytes: 1 << 20,
        batch_delay: Duration::from_secs(1),
        queue_requests: 4_096,
        queue_bytes: 16 << 20,
        backoff_initial: Duration::from_millis(500),
        backoff_max: Duration::from_secs(30),
        seed: None,
    };
    assert_eq!(resolved.tuning, defaults);
    assert_eq!((resolved.service, resolved.resource), (None, Vec::new()));
}

#[test]
fn endpoints_over_http() {
    for (variable, value, shown) in [
        ("ENDPOINT", "http://c:4318", "http://c:4318/v1/traces"),
        ("ENDPOINT", "http://c:4318/", "http://c:4318/v1/traces"),
        ("ENDPOINT", "http://c:4318/base/", "http://c:4318/base/v1/traces"),
        ("ENDPOINT", "http://c/v1/traces", "http://c/v1/traces/v1/traces"),
        ("ENDPOINT", "https://c", "https://c/v1/traces"),
        ("ENDPOINT", "http://[::1]:4318", "http://[::1]:4318/v1/traces"),
        ("TRACES_ENDPOINT", "http://c:4318", "http://c:4318/"),
        ("TRACES_ENDPOINT", "http://c:4318/v1/traces", "http://c:4318/v1/traces"),
        ("TRACES_ENDPOINT", "https://c:443/in?key=secret", "https://c/in"),
    ] {
        let target = on(&[(&format!("OTEL_EXPORTER_OTLP_{variable}"), value)])
            .connection
            .target;
        assert_eq!(target.to_string(), shown, "{value}");
    }
    let target = on(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://c/in?key=secret")])
        .connection
        .target;
    assert_eq!(target.path, "/in?key=secret", "sent, though not shown");
    assert_eq!(
        on(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://[::1]:4318")])
            .connection
            .target
            .host,
        "::1"
    );
}

#[test]
fn endpoints_over_grpc() {
    for (value, insecure, shown) in [
        ("http://c:4317", "false", "http://c:4317"),
        ("https://c:4317", "true", "https://c:4317"),
        ("c:4317", "true", "http://c:4317"),
        ("c:4317", "false", "https://c:4317"),
        ("http://c:4317/", "", "http://c:4317"),
    ] {
        let resolved = on(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", value),
            ("OTEL_EXPORTER_OTLP_INSECURE", insecure),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc"),
        ]);
        assert_eq!(resolved.connection.target.to_string(), shown, "{value} {insecure}");
        assert_eq!(resolved.connection.protocol, OtlpProtocol::Grpc);
    }
}

#[test]
fn flags_go_before_environment_before_file() {
    let none = Settings::default();
    let target = |flags: &Settings, variables: &[(&str, &str)], file: &Settings| match resolve(
        flags,
        &lookup(variables),
        file,
    ) {
        Ok(Resolution::On(resolved)) => resolved.connection.target.to_string(),
        other => panic!("{other:?}"),
    };
    let (flags, file) = (endpoint("http://flag"), endpoint("http://file"));
    let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces/x");
    assert_eq!(target(&flags, &[ENDPOINT, traces], &file), "http://flag/v1/traces");
    assert_eq!(target(&none, &[ENDPOINT, traces], &file), "http://traces/x");
    assert_eq!(target(&none, &[ENDPOINT], &file), "http://collector:4318/v1/traces");
    assert_eq!(target(&none, &[], &file), "http://file/v1/traces");
    assert_eq!(
        target(&none, &[], &endpoint("http://file/x/v1/traces")),
        "http://file/x/v1/traces",
        "our own key takes both forms"
    );
}

#[test]
fn headers_are_decoded_whole_and_never_shown() {
    let resolved = on(&[
        ENDPOINT,
        ("OTEL_EXPORTER_OTLP_HEADERS", "general=1"),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", " Api-Key = a%2Cb%20c , x=y=z ,"),
    ]);
    let mut pairs: Vec<_> = resolved
        .connection
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
        .collect();
    pairs.sort_unstable();
    assert_eq!(pairs, [("api-key", "a,b c"), ("x", "y=z")]);
    assert!(!format!("{resolved:?}").contains("a,b c"));

    let mut file = endpoint("http://c");
    file.headers = Some([("token".to_owned(), Secret("hush".to_owned()))].into());
    assert!(!format!("{file:?}").contains("hush"));
    assert!(!serde_json::to_string(&file).unwrap().contains("hush"));
    let Ok(Resolution::On(resolved)) = resolve(&Settings::default(), &lookup(&[]), &file) else {
        panic!()
    };
    assert_eq!(resolved.connection.headers["token"], "hush");
    let variables = [("OTEL_EXPORTER_OTLP_HEADERS", "other=1")];
    let Ok(Resolution::On(resolved)) = resolve(&Settings::default(), &lookup(&variables), &file) else {
        panic!()
    };
    assert!(
        !resolved.connection.headers.contains_key("token"),
        "a list is taken whole"
    );
}

#[test]
fn resource_attributes_never_name_the_agents_own_pod() {
    let resolved = on(&[
        ENDPOINT,
        (
            "OTEL_RESOURCE_ATTRIBUTES",
            "deployment.environment=prod%2Ceu, k8s.pod.name=agent,k8s.namespace.name=x,service.name=listed,k8s.cluster.name=c",
        ),
    ]);
    assert_eq!(resolved.service.as_deref(), Some("listed"));
    let expected = [("deployment.environment", "prod,eu"), ("k8s.cluster.name", "c")];
    assert_eq!(
        resolved.resource,
        expected.map(|(key, value)| (key.to_owned(), value.to_owned()))
    );
    let resolved = on(&[
        ENDPOINT,
        ("OTEL_RESOURCE_ATTRIBUTES", "service.name=listed"),
        ("OTEL_SERVICE_NAME", "own"),
    ]);
    assert_eq!(resolved.service.as_deref(), Some("own"));
}

#[test]
fn malformed_values_are_refused_with_key_and_hint() {
    for (name, value, says) in [
        ("ENDPOINT", "collector:4318", "no scheme"),
        ("ENDPOINT", "ftp://c", "scheme is neither"),
        ("ENDPOINT", "http://", "URL"),
        ("ENDPOINT", "http://c:99999", "port"),
        ("ENDPOINT", "http://c:0", "port"),
        ("ENDPOINT", "http://user:pass@c", "user name"),
        ("ENDPOINT", "http://c/?a=b", "query"),
        ("PROTOCOL", "http/json", "http/json is not supported"),
        ("PROTOCOL", "thrift", "not an OTLP protocol"),
        ("COMPRESSION", "zstd", "not supported"),
        ("TIMEOUT", "10s", "milliseconds"),
        ("TIMEOUT", "0", "milliseconds"),
        ("TIMEOUT", "-1", "milliseconds"),
        ("INSECURE", "maybe", "neither true nor false"),
        ("HEADERS", "secret", "no '='"),
        ("HEADERS", "a b=secret", "not a header name"),
        ("HEADERS", "a=secret%0A", "characters"),
        ("HEADERS", "content-type=secret", "set by the exporter"),
        ("HEADERS", "grpc-timeout=secret", "set by the exporter"),
    ] {
        let name = format!("OTEL_EXPORTER_OTLP_{name}");
        let mut variables = vec![(name.as_str(), value)];
        if !name.ends_with("ENDPOINT") {
            variables.push(ENDPOINT);
        }
        let error = from_env(&variables).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&name) && text.contains(says), "{value}: {text}");
        assert!(!error.hint().is_empty());
        assert!(!text.contains("secret") && !text.contains("pass"), "{text}");
    }
    let grpc_path = from_env(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317/v1/traces"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
    ]);
    assert!(grpc_path.unwrap_err().to_string().contains("no path"));
    let bad_attribute = from_env(&[ENDPOINT, ("OTEL_RESOURCE_ATTRIBUTES", "a=b,c")]);
    assert!(bad_attribute.unwrap_err().to_string().contains("\"c\""));
}

#[test]
fn a_client_certificate_needs_its_key() {
    for name in ["CLIENT_CERTIFICATE", "CLIENT_KEY"] {
        let name = format!("OTEL_EXPORTER_OTLP_{name}");
        let error = from_env(&[ENDPOINT, (&name, "/x.pem")]).unwrap_err();
        assert!(matches!(error, SettingError::HalfClient { .. }));
    }
    let tls = on(&[
        ENDPOINT,
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/general.pem"),
        ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "/ca.pem"),
        ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "/c.pem"),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/k.pem"),
    ])
    .connection
    .tls;
    assert_eq!(tls.ca, Some("/ca.pem".into()));
    assert_eq!(tls.client, Some(("/c.pem".into(), "/k.pem".into())));
}

#[test]
fn sizes_are_bounded() {
    let mut file = endpoint("http://c");
    file.batch_spans = Some(64);
    file.batch_delay_ms = Some(0);
    file.queue_bytes = Some(1 << 20);
    file.queue_traces = Some(10);
    let flags = Settings {
        batch_spans: Some(32),
        ..Settings::default()
    };
    let Ok(Resolution::On(resolved)) = resolve(&flags, &lookup(&[]), &file) else {
        panic!()
    };
    let tuning = &resolved.tuning;
    assert_eq!(
        (tuning.batch_spans, tuning.queue_bytes, tuning.queue_traces),
        (32, 1 << 20, 10)
    );
    file.queue_bytes = Some(5);
    let error = resolve(&flags, &lookup(&[]), &file).unwrap_err();
    assert!(error.to_string().contains("otlp.queue_bytes"), "{error}");
}

#[test]
fn the_file_refuses_unknown_keys() {
    let text = r#"{"endpoint": "http://c", "headers": {"a": "b"}, "timeout_ms": 5}"#;
    let settings: Settings = serde_json::from_str(text).unwrap();
    assert_eq!(settings.timeout_ms, Some(5));
    assert!(serde_json::from_str::<Settings>(r#"{"endpont": "x"}"#).is_err());
}

proptest! {
    #[test]
    fn no_endpoint_or_header_panics(value in "[ -~]{0,40}", grpc in proptest::bool::ANY) {
        let protocol = if grpc { "grpc" } else { "http/protobuf" };
        for name in ["ENDPOINT", "TRACES_ENDPOINT", "HEADERS"] {
            let name = format!("OTEL_EXPORTER_OTLP_{name}");
            let variables = [(name.as_str(), value.as_str()), ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)];
            if let Ok(Resolution::On(resolved)) = from_env(&variables) {
                prop_assert!(!resolved.connection.target.host.is_empty() && resolved.connection.target.port > 0);
            }
        }
    }
}

#[test]
fn a_spool_has_a_directory_of_its_own_and_bounds() {
    let spool = |directory: Option<&str>, bytes, hours| {
        let file = Settings {
            endpoint: Some("http://c:4318".to_owned()),
            spool_directory: directory.map(Into::into),
            spool_bytes: bytes,
            spool_hours: hours,
            ..Settings::default()
        };
        match resolve(&Settings::default(), &|_| None, &file) {
            Ok(Resolution::On(resolved)) => Ok(resolved.spool),
            Ok(Resolution::Off(reason)) => panic!("{reason}"),
            Err(error) => Err(error.to_string()),
        }
    };
    assert!(spool(None, None, None).unwrap().is_none());
    assert!(spool(Some(""), Some(1 << 20), None).unwrap().is_none());
    let found = spool(Some("/var/spool"), None, Some(2)).unwrap().unwrap();
    assert_eq!(found.directory.to_str(), Some("/var/spool"));
    assert_eq!(
        (found.bytes, found.age),
        (defaults::SPOOL_BYTES, Duration::from_secs(7_200))
    );
    let refused = spool(Some("spool"), None, None).unwrap_err();
    assert!(
        refused.contains("otlp.spool_directory") && refused.contains("absolute"),
        "{refused}"
    );
    // As the chart's schema does, with a directory or without.
    for directory in [None, Some("/var/spool")] {
        assert!(
            spool(directory, Some((1 << 20) - 1), None)
                .unwrap_err()
                .contains("otlp.spool_bytes")
        );
        assert!(
            spool(directory, None, Some(721))
                .unwrap_err()
                .contains("otlp.spool_hours")
        );
    }
}

fn push(variables: &[(&str, &str)], file: &Settings) -> Result<Resolution<PushOptions>, SettingError> {
    resolve_push(&Settings::default(), &lookup(variables), file)
}

#[test]
fn metrics_are_pushed_only_where_somebody_wants_them() {
    let metrics = |metrics| Settings {
        metrics,
        ..endpoint("http://c:4318/v1/traces")
    };
    let reason = |variables: &[(&str, &str)], file: &Settings| match push(variables, file).unwrap() {
        Resolution::Off(reason) => reason,
        Resolution::On(options) => options.connection.target.to_string(),
    };
    let otlp = ("OTEL_METRICS_EXPORTER", "otlp");
    for (variables, file, expected) in [
        (vec![ENDPOINT], metrics(None), "otlp.metrics is not set"),
        (vec![], metrics(Some(false)), "otlp.metrics is false"),
        (vec![], metrics(Some(true)), "http://c:4318/v1/metrics"),
        (vec![otlp], metrics(Some(false)), "http://c:4318/v1/metrics"),
        (vec![otlp], Settings::default(), NO_ENDPOINT),
        (
            vec![otlp, ENDPOINT],
            Settings::default(),
            "http://collector:4318/v1/metrics",
        ),
        (
            vec![otlp, ("OTEL_SDK_DISABLED", "true")],
            metrics(Some(true)),
            "OTEL_SDK_DISABLED is true",
        ),
        (
            vec![("OTEL_METRICS_EXPORTER", "prometheus")],
            metrics(Some(true)),
            "OTEL_METRICS_EXPORTER is \"prometheus\", not otlp",
        ),
        (
            vec![ENDPOINT, ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://m/in")],
            Settings::default(),
            "http://m/in",
        ),
    ] {
        assert_eq!(reason(&variables, &file), expected, "{variables:?}");
    }
}

#[test]
fn the_push_has_the_variables_of_metrics() {
    let variables = [
        ("OTEL_METRICS_EXPORTER", "otlp"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "token=hush"),
        ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "1500"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "15000"),
        ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "LowMemory"),
    ];
    let Ok(Resolution::On(options)) = push(&variables, &Settings::default()) else {
        panic!("not on")
    };
    let connection = &options.connection;
    assert_eq!(
        (connection.signal, connection.protocol),
        (Signal::Metrics, OtlpProtocol::Grpc)
    );
    assert_eq!(connection.headers["token"], "hush");
    assert_eq!(connection.timeout, Duration::from_millis(1_500));
    assert_eq!(
        (options.interval, options.temporality),
        (Duration::from_secs(15), Temporality::LowMemory)
    );
    for (name, value) in [
        ("OTEL_METRIC_EXPORT_INTERVAL", "0"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "often"),
        ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "sometimes"),
    ] {
        let error = push(&[(name, value)], &Settings::default()).unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot use {name}: \"{value}\"")), "{error}");
    }
}
