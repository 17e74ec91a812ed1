//! Holds the README's table of metrics against the code: none that does not exist, no product metric left out.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// Names in backticks in the first column of the README's metrics table, without `_total`.
fn documented() -> BTreeSet<String> {
    let readme = read("../README.md");
    let section = readme
        .split("## Metrics")
        .nth(1)
        .unwrap()
        .split("\n## ")
        .next()
        .unwrap();
    let first_column = section
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
    first_column
        .flat_map(|cell| cell.split('`'))
        .map(|name| name.trim_matches([',', ' ']))
        .filter(|name| name.contains('_') && !name.ends_with('*'))
        .map(|name| name.trim_end_matches("_total").to_owned())
        .collect()
}

/// String literals that stand where a name is registered or described.
fn registered(path: &str) -> BTreeSet<String> {
    let source = read(path);
    let places = source
        .split(".register(")
        .chain(source.split("encode_descriptor("))
        .skip(1);
    places
        .filter_map(|rest| Some(rest.trim_start().strip_prefix('"')?.split('"').next()?.to_owned()))
        .collect()
}

#[test]
fn the_readme_names_the_metrics_that_exist() {
    let mut product = registered("src/sinks/prometheus/product.rs");
    for file in ["conntrack", "readiness", "traffic"] {
        product.extend(registered(&format!("src/sinks/prometheus/{file}.rs")));
    }
    let others = [
        "src/sinks/prometheus/in_flight.rs",
        "src/sinks/prometheus/windows.rs",
        "src/sinks/otlp/metrics.rs",
        "src/health.rs",
    ];
    let known: BTreeSet<String> = others.into_iter().flat_map(registered).chain(product.clone()).collect();
    let documented = documented();
    assert!(documented.len() >= 15, "{documented:?}");
    assert_eq!(
        documented.difference(&known).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "in the README only"
    );
    let missing = product.into_iter().filter(|name| !documented.contains(name));
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<String>::new(), "not in the README");
}
