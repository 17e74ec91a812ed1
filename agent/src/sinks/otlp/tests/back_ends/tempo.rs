//! The configuration of `tempo.yaml`, held against the keys that Tempo 2.9 has.
//!
//! Tempo refuses a key that it does not know (`cmd/tempo/main.go`, `yaml.UnmarshalStrict`). It is not started: its module cannot be had.
//! The keys are those of its list of all options (`docs/sources/tempo/configuration/manifest.md`, tag v2.9.0) as far as the example
//! uses them; below `distributor.receivers` stands the Collector's own configuration of receivers, which the gateway's test starts.

use std::collections::BTreeSet;

use super::*;

const KEYS: [&str; 6] = [
    "server.http_listen_port",
    "compactor.compaction.block_retention",
    "storage.trace.backend",
    "storage.trace.wal.path",
    "storage.trace.local.path",
    "usage_report.reporting_enabled",
];
const RECEIVERS: &str = "distributor.receivers";

/// Paths of all values.
fn paths(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value.as_object() {
        Some(fields) if path != RECEIVERS => {
            for (name, field) in fields {
                let dot = if path.is_empty() { "" } else { "." };
                paths(field, &format!("{path}{dot}{name}"), found);
            }
        }
        _ => {
            found.insert(path.to_owned());
        }
    }
}

#[test]
fn tempo_knows_every_key_of_its_example() {
    let config = configuration("tempo.yaml", "tempo.yaml");
    let mut found = BTreeSet::new();
    paths(&config, "", &mut found);
    let known = KEYS.into_iter().chain([RECEIVERS]).map(str::to_owned).collect();
    assert_eq!(found, known);
    // What the agents' port leads to, and what the gateway of the other example listens with.
    let gateway = configuration("collector-gateway.yaml", "collector.yaml");
    assert_eq!(config["distributor"]["receivers"], gateway["receivers"]);
    let image = documents("tempo.yaml")
        .into_iter()
        .find(|document| document["kind"] == "Deployment")
        .unwrap();
    let image = image["spec"]["template"]["spec"]["containers"][0]["image"].clone();
    assert_eq!(image, "grafana/tempo:2.9.0", "the keys are those of another version");
}
