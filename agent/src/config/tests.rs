use std::io::Write;

use super::*;

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
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
    let error = load("correlation:\n  setle: 2s\n").unwrap_err().to_string();
    assert!(error.contains("\"correlation.setle\""), "{error}");
    assert!(error.contains("did you mean \"correlation.settle\"?"), "{error}");
    assert!(
        load("zzzzzzzzzz: 1\n")
            .unwrap_err()
            .to_string()
            .contains("print-config")
    );
}

#[test]
fn bad_syntax_and_bad_values_say_where() {
    for (text, part) in [
        ("correlation: [", "line"),
        ("correlation:\n  settle: fast\n", "fast"),
        ("- a\n- b\n", "mapping"),
        ("http:\n  address: nowhere\n", "line"),
        ("store:\n  max_traces: 0\n", "at least 1"),
        ("correlation:\n  max_spans: 2\n", "at least 8"),
        ("correlation:\n  deadline: 1ms\n", "longer than"),
        ("probes:\n  ring_buffer_bytes: 1\n", "64 KiB"),
        ("store:\n  max_traces: -5\n", "line"),
    ] {
        let error = load(text).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains("hint:"), "{text:?}: {error}");
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
    assert!(
        layers
            .file(std::path::Path::new("/nonexistent/sandglass.yaml"))
            .unwrap_err()
            .to_string()
            .contains("hint:")
    );
    layers.flag("--set", "store.max_traces", "many").unwrap();
    assert!(layers.resolve().unwrap_err().to_string().contains("store.max_traces"));
    assert!(Layers::default().flag("--set", "nope", "1").is_err());
}
