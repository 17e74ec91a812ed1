//! Holds docs/reference.md and the README against the agent: commands, configuration keys, metrics, spans.
//!
//! Nothing in a table that does not exist, nothing left out. Does not: check what a table says of an entry's meaning.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sandglass_model::registry;

fn path(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read(file: &str) -> String {
    fs::read_to_string(path(file)).unwrap()
}

/// Rows of the table below a heading of docs/reference.md, cut into cells.
fn rows(heading: &str) -> Vec<Vec<String>> {
    let reference = read("../docs/reference.md");
    let section = reference.split(&format!("\n## {heading}\n")).nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let lines = section.lines().filter_map(|line| line.strip_prefix("| `"));
    lines
        .map(|line| {
            let cells = line.trim_end_matches(" |").split(" | ");
            cells.map(|cell| cell.trim_matches([' ', '|']).to_owned()).collect()
        })
        .collect()
}

/// The words in backticks of a first cell, of which the first backtick is gone.
fn names(cell: &str) -> Vec<String> {
    let words = cell.split('`').step_by(2);
    words.map(str::to_owned).filter(|name| !name.is_empty()).collect()
}

fn sandglass(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_sandglass"))
        .args(arguments)
        .env_clear()
        .output()
        .unwrap();
    assert!(output.status.success(), "sandglass {arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The source files of the agent.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap().path();
        if entry.is_dir() {
            sources(&entry, found);
        } else if entry.extension().is_some_and(|end| end == "rs") {
            found.push(entry);
        }
    }
}

/// String literals that stand where a metric is registered or described.
fn registered() -> BTreeSet<String> {
    let mut files = Vec::new();
    sources(&path("src"), &mut files);
    let mut names = BTreeSet::new();
    for file in files {
        let source = fs::read_to_string(file).unwrap();
        let places = source
            .split(".register(")
            .skip(1)
            .chain(source.split("encode_descriptor(").skip(1));
        // In a block of `register!` each metric has a line, which begins with its name.
        let blocks = source.split("register! {").skip(1);
        let lines = blocks.flat_map(|block| block.lines().skip(1).take_while(|line| line.trim() != "}"));
        let places = places.chain(lines);
        names
            .extend(places.filter_map(|rest| Some(rest.trim_start().strip_prefix('"')?.split('"').next()?.to_owned())));
    }
    names
}

/// Label names of each metric, as the recordings' expected metrics have them.
fn labels() -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for recording in fs::read_dir(path("recordings")).unwrap() {
        let metrics = fs::read_to_string(recording.unwrap().path().join("metrics.prom")).unwrap_or_default();
        for series in metrics.lines().filter_map(|line| line.strip_prefix("sandglass_")) {
            let (name, labels) = series.split_once([' ', '{']).unwrap();
            let name = ["_bucket", "_count", "_sum"]
                .iter()
                .find_map(|suffix| name.strip_suffix(suffix))
                .unwrap_or(name);
            let labels = labels.split("=\"").filter_map(|part| part.rsplit(['{', ',']).next());
            let labels =
                labels.filter(|label| label.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_'));
            let labels = labels.filter(|label| *label != "le" && !label.is_empty());
            found
                .entry(name.to_owned())
                .or_default()
                .extend(labels.map(str::to_owned));
        }
    }
    found
}

#[test]
fn every_metric_is_in_the_reference_and_no_other() {
    // A gauge may have a unit or none; a counter's suffix is added when it is written.
    let bare = |name: &str| name.trim_end_matches("_total").trim_end_matches("_info").to_owned();
    let documented: BTreeSet<String> = rows("Metrics").iter().flat_map(|row| names(&row[0])).collect();
    assert!(documented.len() >= 60, "{documented:?}");
    let documented: BTreeSet<String> = documented.iter().map(|name| bare(name)).collect();
    let known: BTreeSet<String> = registered().iter().map(|name| bare(name)).collect();
    let only = |a: &BTreeSet<String>, b: &BTreeSet<String>| a.difference(b).cloned().collect::<Vec<_>>();
    assert_eq!(only(&documented, &known), Vec::<String>::new(), "in the reference only");
    assert_eq!(only(&known, &documented), Vec::<String>::new(), "not in the reference");
}

#[test]
fn the_labels_in_the_reference_are_those_of_the_recordings() {
    let labels = labels();
    let mut seen = 0;
    for row in rows("Metrics") {
        let documented: BTreeSet<String> = row[1]
            .split(", ")
            .filter(|label| !label.is_empty())
            .map(str::to_owned)
            .collect();
        for name in names(&row[0]) {
            let Some(recorded) = labels.get(&name) else {
                continue;
            };
            seen += 1;
            assert!(
                recorded.is_empty() || *recorded == documented,
                "{name}: {documented:?} documented, {recorded:?} recorded"
            );
        }
    }
    assert!(seen > 30, "{seen}");
}

#[test]
fn every_configuration_key_is_in_the_reference_with_its_default() {
    let documented: BTreeMap<String, String> = rows("Configuration")
        .iter()
        .map(|row| (names(&row[0])[0].clone(), row[1].trim_matches('`').to_owned()))
        .collect();
    let printed: BTreeMap<String, String> = sandglass(&["print-config"])
        .lines()
        .map(|line| {
            let (key, value) = line.split('#').next().unwrap().split_once(": ").unwrap();
            (key.to_owned(), value.trim().to_owned())
        })
        .collect();
    assert_eq!(documented, printed);
}

#[test]
fn every_command_is_in_the_reference() {
    let documented: BTreeSet<String> = rows("Commands")
        .iter()
        .map(|row| names(&row[0])[0].split(' ').nth(1).unwrap().to_owned())
        .collect();
    let help = sandglass(&["--help"]);
    let commands = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let commands: BTreeSet<String> = commands
        .lines()
        .filter_map(|line| line.strip_prefix("  "))
        .filter(|line| !line.starts_with(' '))
        .map(|line| line.split(' ').next().unwrap().to_owned())
        .filter(|command| command != "help")
        .collect();
    assert_eq!(documented, commands);
}

#[test]
fn every_span_name_is_in_the_reference() {
    let documented: BTreeSet<String> = rows("Spans").iter().flat_map(|row| names(&row[0])).collect();
    let documented: BTreeSet<&str> = documented.iter().map(|name| name.trim_matches([',', ' '])).collect();
    let known: BTreeSet<&str> = registry::SPAN_NAMES.iter().copied().collect();
    assert_eq!(documented, known);
}

/// Commands of the README's code blocks: targets of make exist, as do commands of sandglass and each of their flags.
#[test]
fn what_the_readme_runs_exists() {
    let readme = read("../README.md");
    let makefile = read("../Makefile");
    let blocks = readme.split("```sh\n").skip(1);
    let lines = blocks.flat_map(|block| block.split("```").next().unwrap().lines());
    let mut seen = 0;
    for line in lines {
        let command = line.split(" #").next().unwrap();
        let words: Vec<&str> = command
            .split_whitespace()
            .skip_while(|word| *word == "sudo" || word.contains('='))
            .collect();
        let [program, name, rest @ ..] = words.as_slice() else {
            continue;
        };
        match *program {
            "make" => assert!(makefile.contains(&format!("\n{name}:")), "{line}"),
            "sandglass" => {
                let help = sandglass(&[name, "--help"]);
                for flag in rest.iter().filter(|word| word.starts_with("--")) {
                    assert!(help.contains(flag.split('=').next().unwrap()), "{line}");
                }
            }
            _ => continue,
        }
        seen += 1;
    }
    assert!(seen >= 8, "{seen}");
}

#[test]
fn readme_and_chart_repeat_the_defaults() {
    let config = sandglass::config::Config::default();
    let address = config.http.address;
    let page = config.page.listen(address);
    assert_eq!(page, sandglass::config::defaults::PAGE_ADDRESS);
    assert!(read("../README.md").contains(&format!("page and API on {page}, metrics on {address}")));
    let values: serde_json::Value = serde_saphyr::from_str(&read("../deploy/helm/sandglass/values.yaml")).unwrap();
    assert_eq!(values["http"]["port"], address.port());
    assert_eq!(values["page"]["port"], page.port());
    // The chart leaves all other keys to the agent.
    assert_eq!(values["config"], serde_json::json!({}));
}
