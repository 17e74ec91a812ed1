use std::io::Write;

use super::*;
use crate::failure::Failure;

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

/// The error as the user of a command sees it.
fn read_by_users<T: std::fmt::Debug>(refused: Result<T, ConfigError>) -> String {
    Failure::from(refused.unwrap_err()).to_string()
}

fn load(text: &str) -> Result<Config, ConfigError> {
    let mut layers = Layers::default();
    layers.file(file(text).path())?;
    layers.resolve()
}

#[test]
fn defaults_resolve_and_an_empty_file_changes_nothing() {
    assert_eq!(Layers::default().resolve().unwrap(), Config::default());
    assert_eq!(load("# nothing\n\n").unwrap(), Config::default());
}

#[test]
fn a_flag_beats_the_file_and_the_file_beats_the_default() {
    let file = file("http:\n  address: 127.0.0.1:1000\ncorrelation:\n  settle: 2s\n");
    let mut layers = Layers::default();
    layers.file(file.path()).unwrap();
    layers.flag("--listen", "http.address", "127.0.0.1:2000").unwrap();
    let config = layers.resolve().unwrap();
    assert_eq!(config.http.address.port(), 2000);
    assert_eq!(config.correlation.settle, Period::from_secs(2));
    let keys = layers.keys();
    let origin = |key: &str| {
        keys.iter()
            .find(|entry| entry.0 == key)
            .map(|entry| entry.2.to_string())
            .unwrap()
    };
    assert_eq!(origin("http.address"), "flag --listen");
    assert!(origin("correlation.settle").starts_with("file "));
    assert_eq!(origin("correlation.deadline"), "default");
}

#[test]
fn an_unknown_key_names_the_nearest_one() {
    let error = read_by_users(load("correlation:\n  setle: 2s\n"));
    assert!(error.contains("\"correlation.setle\""), "{error}");
    assert!(error.contains("did you mean \"correlation.settle\"?"), "{error}");
    assert!(read_by_users(load("zzzzzzzzzz: 1\n")).contains("print-config"));
}

#[test]
fn traffic_keys_have_the_correlators_defaults_and_reach_it() {
    use sandglass_correlator::TrafficBounds;
    assert_eq!(Config::default().traffic.bounds(), TrafficBounds::default());
    let config = load(
        "dns:\n  ports: [53, 5353]\nprobes:\n  conntrack: false\ntraffic:\n  slow_lookup: 250ms\n  max_flows: 7\n",
    )
    .unwrap();
    assert_eq!(config.dns.ports, [53, 5353]);
    assert!(!config.probes.conntrack && config.probes.dns && config.probes.connect && config.probes.drops);
    let bounds = config.traffic.bounds();
    assert_eq!((bounds.slow_lookup_ns, bounds.max_flows), (250_000_000, 7));
    let error = read_by_users(load("traffic:\n  slow_lokup: 1s\n"));
    assert!(error.contains("did you mean \"traffic.slow_lookup\"?"), "{error}");
}

#[test]
fn bad_syntax_and_bad_values_say_where() {
    for (text, part) in [
        ("correlation: [", "line"),
        ("correlation:\n  settle: fast\n", "fast"),
        ("- a\n- b\n", "mapping"),
        ("http:\n  address: nowhere\n", "line"),
        ("store:\n  max_traces: 0\n", "at least 1"),
        ("store:\n  max_traces: 16777217\n", "at most 16777216"),
        ("correlation:\n  max_spans: 2\n", "at least 8"),
        ("correlation:\n  deadline: 1ms\n", "longer than"),
        ("probes:\n  ring_buffer_bytes: 1\n", "64 KiB"),
        ("store:\n  max_traces: -5\n", "line"),
        ("dns:\n  ports: []\n", "at least one port"),
        ("dns:\n  ports: [0]\n", "no port"),
        ("dns:\n  ports: [70000]\n", "line"),
        ("traffic:\n  max_flows: 0\n", "at least 1"),
        ("traffic:\n  ready_deadline: 1s\n", "longer than traffic.ready_grace"),
        ("traffic:\n  search_gap: 1m\n", "longer than traffic.search_gap"),
        ("traffic:\n  slow_lookup: soon\n", "soon"),
    ] {
        let error = read_by_users(load(text));
        assert!(error.contains(part) && error.contains("hint:"), "{text:?}: {error}");
    }
}

#[test]
fn a_key_that_stands_twice_is_named_with_file_and_line() {
    for (text, key, line) in [
        (
            "store:\n  max_traces: 5\n  # the same again\n  max_traces: 6\n",
            "max_traces",
            4,
        ),
        (
            "store:\n  max_traces: 5\nhttp: {}\nstore:\n  max_traces: 5\n",
            "store",
            4,
        ),
        ("nope: 1\nnope: 1\n", "nope", 2),
        ("otlp:\n  headers: {a: b, a: c}\n", "a", 2),
    ] {
        let file = file(text);
        let error = read_by_users(Layers::default().file(file.path()));
        let expected = format!(
            "configuration {}: the key {key:?} stands a second time in its section, at line {line}\n\
             hint: keep one of the two: a section names each of its keys once",
            file.path().display()
        );
        assert_eq!(error, expected, "{text:?}");
    }
}

#[test]
fn every_hostile_file_is_an_error_and_never_a_panic() {
    for text in [
        "\u{0}",
        "a: &a [*a]",
        "{",
        "?",
        "'",
        "http: 5",
        "http:\n  address: [1,2]",
        "node_name: {a: b}",
    ] {
        assert!(load(text).is_err(), "{text:?}");
    }
    let mut layers = Layers::default();
    assert!(read_by_users(layers.file(std::path::Path::new("/nonexistent/sandglass.yaml"))).contains("hint:"));
    let refused = read_by_users(layers.flag("--set", "store.max_traces", "many"));
    assert!(refused.contains("store.max_traces (flag --set)"), "{refused}");
    assert!(Layers::default().flag("--set", "nope", "1").is_err());
}

#[test]
fn what_is_of_the_wrong_kind_is_named_by_place_and_kind() {
    for (text, expected) in [
        ("http: 5", "line 1 column 7: a mapping of keys is expected here"),
        ("dns: {ports: x}", "line 1 column 14: a list is expected here"),
        (
            "dns:\n  ports: [53, 99999]",
            "line 2 column 15: a whole number up to 65535 is expected here",
        ),
        (
            "store: {max_traces: -1}",
            "line 1 column 21: a whole number is expected here",
        ),
        (
            "store: {max_traces: [1]}",
            "line 1 column 21: a single value is expected here",
        ),
        (
            "probes: {dns: maybe}",
            "line 1 column 15: true or false is expected here",
        ),
        (": [", "line 1 column 1: null is not allowed here"),
        ("http: [1", "line 1 column 7: unclosed bracket '['"),
    ] {
        let refused = read_by_users(load(text));
        assert!(refused.contains(expected), "{text:?}: {refused}");
    }
}

#[test]
fn a_flag_can_set_every_kind_of_key_and_its_error_names_that_key() {
    let mut layers = Layers::default();
    for (key, value) in [
        ("node_name", "5"),
        ("otlp.batch_spans", "5"),
        ("otlp.insecure", "true"),
        ("otlp.headers", "{a: b}"),
        ("cni.bin_dirs", "/opt/one"),
        ("http.hosts", "[a, b]"),
        ("cni.conf_dir", "7"),
    ] {
        layers.flag("--set", key, value).unwrap();
    }
    let config = layers.resolve().unwrap();
    assert_eq!(config.node_name, "5");
    assert_eq!(config.otlp.batch_spans, Some(5));
    assert_eq!(config.otlp.insecure, Some(true));
    assert_eq!(config.otlp.headers.unwrap()["a"].0, "b");
    assert_eq!(config.cni.bin_dirs, [PathBuf::from("/opt/one")]);
    assert_eq!(config.http.hosts, ["a", "b"]);

    let mut layers = Layers::default();
    let refused = read_by_users(layers.flag("--set", "correlation.settle", "abc"));
    assert!(refused.contains("correlation.settle (flag --set)"), "{refused}");
    let refused = read_by_users(layers.flag("--set", "correlation", "{}"));
    assert!(refused.contains("it is a section"), "{refused}");
}

#[test]
fn what_yaml_writes_as_a_number_or_as_nothing_is_taken_as_the_key_wants_it() {
    let config = load("node_name: 5\nstore:\n  max_traces: 7\ncni:\notlp:\n  headers:\n    a: b\n").unwrap();
    assert_eq!((config.node_name.as_str(), config.store.max_traces), ("5", 7));
    assert_eq!(config.otlp.headers.unwrap()["a"].0, "b");
    let refused = read_by_users(load("otlp:\n  headers:\n    a: 5\n"));
    assert!(refused.contains("otlp.headers must be texts"), "{refused}");
}

#[test]
fn secrets_are_kept_and_not_shown() {
    let file = file("otlp:\n  headers:\n    authorization: Bearer s3cret\n");
    let mut layers = Layers::default();
    layers.file(file.path()).unwrap();
    assert_eq!(
        layers.resolve().unwrap().otlp.headers.unwrap()["authorization"].0,
        "Bearer s3cret"
    );
    let keys = layers.keys();
    let headers = keys.iter().find(|(key, ..)| key == "otlp.headers").unwrap();
    assert_eq!(headers.1, r#"{"authorization":"***"}"#);
    assert!(headers.2.to_string().starts_with("file "));
}

#[test]
fn a_file_without_an_end_is_refused() {
    let endless = std::path::Path::new("/dev/zero");
    if !endless.exists() {
        eprintln!("SKIPPED a_file_without_an_end_is_refused: no /dev/zero");
        return;
    }
    let refused = read_by_users(Layers::default().file(endless));
    assert!(
        refused.contains("no configuration") && refused.contains("hint:"),
        "{refused}"
    );
}

#[test]
fn flows_of_the_virtual_switch_are_off_and_never_for_long() {
    assert_eq!(Config::default().windows.vfp, Period::from_secs(0));
    assert_eq!(
        load("windows:\n  vfp: 90s\n").unwrap().windows.vfp,
        Period::from_secs(90)
    );
    let error = read_by_users(load("windows:\n  vfp: 11m\n"));
    assert!(error.contains("windows.vfp") && error.contains("10m"), "{error}");
}
