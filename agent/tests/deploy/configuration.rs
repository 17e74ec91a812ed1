//! The chart's schema against the agent: of every key of the configuration, what one refuses the other refuses.
//!
//! A value that only the agent refused would be a pod that ends again and again; one that only Helm refused, a setting
//! that nobody can use. Candidates for each key are typed as the key is: YAML has other notations of the same value (a
//! number in quotes), which the schema does not take. Does not: check files that a path names.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Command, Stdio};

use sandglass::app::settings;
use sandglass::config::Layers;
use sandglass::sinks::otlp::config::{self as otlp, Settings};
use serde_json::{Value, json};

use super::helm::{Helm, chart, root};
use super::validators;

/// Keys that the chart sets from its other values, and a secret.
const OF_THE_CHART: [&str; 14] = [
    "http.address",
    "otlp.ca_file",
    "otlp.client_certificate_file",
    "otlp.client_key_file",
    "otlp.endpoint",
    "otlp.headers",
    "otlp.protocol",
    "otlp.resource",
    "otlp.spool_directory",
    "page.address",
    "page.certificate_file",
    "page.client_ca_file",
    "page.key_file",
    "page.token_file",
];

fn schema() -> Value {
    serde_json::from_slice(&std::fs::read(chart().join("values.schema.json")).unwrap()).unwrap()
}

/// Every key of the agent with its default.
fn keys() -> Vec<(String, Value)> {
    let keys = Layers::default().keys().into_iter();
    keys.map(|(key, value, _)| (key, serde_json::from_str(&value).unwrap()))
        .collect()
}

/// The schema of a key, with its reference resolved.
fn schema_of<'a>(schema: &'a Value, key: &str) -> Option<&'a Value> {
    let config = &schema["properties"]["config"];
    let place = key
        .split('.')
        .try_fold(config, |place, part| place["properties"].get(part))?;
    match place["$ref"].as_str() {
        Some(name) => schema["$defs"].get(name.trim_start_matches("#/$defs/")),
        None => Some(place),
    }
}

#[test]
fn the_schema_has_every_key_of_the_agent_with_its_type() {
    let schema = schema();
    for (key, _) in keys() {
        let found = schema_of(&schema, &key);
        assert_eq!(
            found.is_none(),
            OF_THE_CHART.contains(&key.as_str()),
            "{key} in values.schema.json"
        );
        assert!(found.is_none_or(|found| found["type"].is_string()), "{key} has no type");
    }
    let mut listed = BTreeSet::new();
    leaves("", &schema["properties"]["config"], &mut listed);
    let known: BTreeSet<String> = keys().into_iter().map(|(key, _)| key).collect();
    assert_eq!(listed.difference(&known).count(), 0, "{listed:?}");
}

fn leaves(path: &str, schema: &Value, found: &mut BTreeSet<String>) {
    match schema["properties"].as_object() {
        Some(properties) => {
            for (name, inner) in properties {
                leaves(format!("{path}.{name}").trim_start_matches('.'), inner, found);
            }
        }
        None => {
            found.insert(path.to_owned());
        }
    }
}

#[test]
fn schema_and_agent_refuse_the_same_values_of_every_key() {
    let test = "schema_and_agent_refuse_the_same_values_of_every_key";
    let Some((python, _)) = validators(test) else { return };
    let schema = schema();
    let mut candidates: Vec<Value> = Vec::new();
    for (key, _) in keys() {
        let Some(of_key) = schema_of(&schema, &key) else {
            continue;
        };
        candidates.extend(typed(of_key).into_iter().map(|value| values(&key, value)));
        // Of another type, and no notation of the key's own.
        candidates.push(values(&key, json!({"a": {"b": "c"}})));
    }
    assert!(candidates.len() > 600, "{}", candidates.len());
    let by_schema = judged_by_schema(&python.join("python"), &schema, &candidates);
    let mut accepted = 0;
    for (values, by_schema) in candidates.iter().zip(by_schema) {
        let by_agent = judged_by_agent(&values["config"]);
        // Of two keys that contradict each other, see the test below.
        let contradicts = by_agent
            .as_ref()
            .is_err_and(|problem| problem.contains("must be longer than"));
        assert_eq!(
            by_schema,
            by_agent.is_ok() || contradicts,
            "{values}: schema (left), agent (right): {by_agent:?}"
        );
        accepted += u32::from(by_schema);
    }
    assert!(
        accepted > 100 && candidates.len() > 2 * accepted as usize,
        "{accepted} accepted"
    );
}

/// The chart's own values of export, as the agent receives them.
#[test]
fn endpoints_of_the_chart_are_those_of_the_agent() {
    let test = "endpoints_of_the_chart_are_those_of_the_agent";
    let Some((python, _)) = validators(test) else { return };
    let mut candidates = Vec::new();
    for protocol in ["grpc", "http/protobuf", "http/json"] {
        for endpoint in [
            "http://c:4317",
            "https://c",
            "http://c/",
            "http://c:4318/v1",
            "http://c/v1/traces",
            "http://[::1]:4317",
            "http://c:0",
            "http://c:65535",
            "http://c:65536",
            "http://c:",
            "http://user@c",
            "http://c?x=1",
            "http://",
            "ftp://c",
            "http://c d",
            "http:///x",
        ] {
            candidates.push(json!({"otlp": {"endpoint": endpoint, "protocol": protocol}}));
        }
    }
    let by_schema = judged_by_schema(&python.join("python"), &schema(), &candidates);
    for (values, by_schema) in candidates.iter().zip(by_schema) {
        let by_agent = judged_by_agent(values);
        assert_eq!(
            by_schema,
            by_agent.is_ok(),
            "{values}: schema (left), agent (right): {by_agent:?}"
        );
    }
}

/// Numbers of a values file reach the agent as they were written: Go prints a floating-point number of a million as 1e+06, which is
/// no integer.
#[test]
fn large_numbers_of_a_values_file_reach_the_agent() {
    let Some(helm) = Helm::find("large_numbers_of_a_values_file_reach_the_agent") else {
        return;
    };
    let schema = schema();
    let mut config = json!({});
    let mut largest = Vec::new();
    for (key, _) in keys() {
        let of_key = schema_of(&schema, &key).filter(|of_key| of_key["type"] == "integer");
        if let Some(maximum) = of_key.and_then(|of_key| of_key["maximum"].as_u64()) {
            let (section, name) = key.split_once('.').unwrap();
            config[section][name] = maximum.into();
            largest.push((key, maximum));
        }
    }
    assert!(
        largest.iter().filter(|(_, maximum)| *maximum >= 1_000_000).count() >= 5,
        "{largest:?}"
    );
    let values = json!({
        "config": config,
        "linux": {"terminationGracePeriodSeconds": 1_000_000},
        "windows": {"enabled": true, "terminationGracePeriodSeconds": 1_000_000},
    });
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(values.to_string().as_bytes()).unwrap();
    let text = helm.template_of_file(file.path()).unwrap();
    let mut checked = 0;
    for document in super::rules::documents(&text) {
        match document["kind"].as_str().unwrap() {
            "ConfigMap" => {
                let mut read = tempfile::NamedTempFile::new().unwrap();
                read.write_all(document["data"]["config.yaml"].as_str().unwrap().as_bytes())
                    .unwrap();
                let mut layers = Layers::default();
                layers.file(read.path()).unwrap();
                layers.resolve().unwrap();
                for (key, maximum) in &largest {
                    let (_, value, _) = layers.keys().into_iter().find(|(known, _, _)| known == key).unwrap();
                    assert_eq!(value, maximum.to_string(), "{key}");
                }
                checked += 1;
            }
            "DaemonSet" => {
                let grace = &document["spec"]["template"]["spec"]["terminationGracePeriodSeconds"];
                assert!(grace.is_u64(), "{grace}");
                checked += 1;
            }
            _ => {}
        }
    }
    assert_eq!(checked, 4, "a ConfigMap and a DaemonSet for each system");
}

/// What a schema cannot say, the chart's templates do.
#[test]
fn lengths_of_time_that_contradict_each_other_are_refused_by_both() {
    let test = "lengths_of_time_that_contradict_each_other_are_refused_by_both";
    let Some(helm) = Helm::find(test) else { return };
    for (long, short) in [
        ("correlation.deadline", "correlation.settle"),
        ("traffic.ready_deadline", "traffic.ready_grace"),
        ("traffic.lookup_deadline", "traffic.search_gap"),
    ] {
        let default = |key: &str| keys().into_iter().find(|(known, _)| known == key).unwrap().1;
        let (of_long, of_short) = (default(long), default(short));
        for pairs in [
            vec![(long, of_short.clone())],
            vec![(short, of_long.clone())],
            vec![(long, json!("2s")), (short, json!("1999ms"))],
            vec![(long, json!("2s")), (short, json!("2000ms"))],
            vec![(long, json!("1h")), (short, json!("60m"))],
            vec![(long, json!("0061m")), (short, json!("1h"))],
        ] {
            let mut config = json!({});
            let mut arguments = Vec::new();
            for (key, value) in &pairs {
                let (section, name) = key.split_once('.').unwrap();
                config[section][name] = value.clone();
                arguments.push(format!("config.{key}={}", value.as_str().unwrap()));
            }
            let by_chart = helm.template(&arguments, "1.36.0", &[]);
            assert_eq!(
                by_chart.is_ok(),
                judged_by_agent(&config).is_ok(),
                "{pairs:?}: {by_chart:?}"
            );
            assert!(
                by_chart.is_ok() || by_chart.unwrap_err().contains("must be longer than"),
                "{pairs:?}"
            );
        }
    }
}

/// `key` alone, below `config`.
fn values(key: &str, value: Value) -> Value {
    let nested = key.rsplit('.').fold(value, |inner, part| json!({part: inner}));
    json!({"config": nested})
}

/// Candidates of the type that the schema of a key has.
fn typed(schema: &Value) -> Vec<Value> {
    match schema["type"].as_str().unwrap() {
        "boolean" => vec![json!(true), json!(false), json!(1), json!("maybe"), json!([true])],
        "integer" => numbers(),
        "string" => texts(),
        "array" => {
            let items = typed(&schema["items"]);
            let mut lists: Vec<Value> = items.iter().map(|item| json!([item])).collect();
            lists.extend([0, 1, 8, 9, 16, 17].map(|count| json!(vec![items[3].clone(); count])));
            lists.push(items[3].clone());
            lists
        }
        other => panic!("candidates of {other}"),
    }
}

fn numbers() -> Vec<Value> {
    let edges = [
        0_i64,
        1,
        7,
        8,
        511,
        512,
        8_192,
        8_193,
        60_000,
        60_001,
        65_535,
        65_536,
        600_000,
        600_001,
        1_000_000,
        1_000_001,
        1 << 20,
        (1 << 20) - 1,
        1 << 24,
        (1 << 24) + 1,
        1 << 30,
        (1 << 30) + 1,
        1 << 32,
        (1 << 32) - 1,
        (1 << 32) + 1,
        -1,
        i64::MIN,
    ];
    let mut all: Vec<Value> = edges.into_iter().map(Value::from).collect();
    all.extend([json!(1.5), json!("many"), json!([1])]);
    // In the place that lists repeat.
    all.swap(3, 1);
    all
}

fn texts() -> Vec<Value> {
    let periods = [
        "0s",
        "1ms",
        "250ms",
        "1s",
        "10s",
        "59m",
        "10m",
        "11m",
        "600s",
        "601s",
        "600000ms",
        "600001ms",
        "000600s",
        "0h",
        "1h",
        "24h",
        "999999999999ms",
        "9999999999999ms",
        "000000000000h",
        "0000000000000h",
        "10",
        "s",
        "",
        "1.5s",
        "-1s",
        "+1s",
        "1 s",
        "1S",
        "1d",
        "1us",
        "fast",
    ];
    let others = [
        "auto",
        "masked",
        "full",
        "none",
        "Auto",
        "gzip",
        "GZip",
        "deflate",
        "delta",
        "LowMemory",
        "/run/x.sock",
        "/",
        "run/x.sock",
        "unix:///run/x.sock",
        "unix:/run/x.sock",
        "unix://run",
        "/run://x",
        "tcp://127.0.0.1:1",
        "tcp://h:65535",
        "tcp://h:65536",
        "tcp://h:0",
        "tcp://h",
        "tcp://:5",
        "tcp://a/b:5",
        "ftp://x",
        "node-1",
        "/system.slice/podman.service",
        "/a/../b",
        "/..",
        "/a..b",
    ];
    let long = [format!("/{}", "x".repeat(106)), format!("/{}", "x".repeat(107))];
    let all = periods.into_iter().chain(others).map(Value::from);
    all.chain(long.into_iter().map(Value::from))
        .chain([json!([]), json!({})])
        .collect()
}

/// As `run` does before it attaches anything, with an endpoint, so that export is configured.
fn judged_by_agent(config: &Value) -> Result<(), String> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(config.to_string().as_bytes()).unwrap();
    let mut layers = Layers::default();
    layers.file(file.path()).map_err(|error| error.to_string())?;
    let config = layers.resolve().map_err(|error| error.to_string())?;
    settings::runtime_choice(&config).map_err(|failure| failure.to_string())?;
    let endpoint = Settings {
        endpoint: config
            .otlp
            .endpoint
            .is_none()
            .then(|| "http://collector:4318".to_owned()),
        ..Settings::default()
    };
    otlp::resolve(&endpoint, &|_| None, &config.otlp).map_err(|error| error.to_string())?;
    otlp::resolve_push(&endpoint, &|_| None, &config.otlp).map_err(|error| error.to_string())?;
    Ok(())
}

fn judged_by_schema(python: &std::path::Path, schema: &Value, candidates: &[Value]) -> Vec<bool> {
    const JUDGE: &str = "import json, sys, jsonschema\n\
        given = json.load(sys.stdin)\n\
        judge = jsonschema.Draft202012Validator(given['schema'])\n\
        print(json.dumps([judge.is_valid(one) for one in given['candidates']]))";
    let mut judge = Command::new(python)
        .args(["-c", JUDGE])
        .current_dir(root("."))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let given = json!({"schema": schema, "candidates": candidates});
    judge
        .stdin
        .take()
        .unwrap()
        .write_all(given.to_string().as_bytes())
        .unwrap();
    let judged = judge.wait_with_output().unwrap();
    assert!(judged.status.success());
    let judged: Vec<bool> = serde_json::from_slice(&judged.stdout).unwrap();
    assert_eq!(judged.len(), candidates.len());
    judged
}
