//! The text of `/metrics` as a set of series, and the exposition of an agent that has seen every Linux recording.
//!
//! Used by the part `series`. A series is a name with its labels, as Prometheus stores it: each bucket is one. Does not: read
//! values but to compare them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Result, bail};
use sandglass::health::Health;
use sandglass::node::NodeInfo;
use sandglass::pipeline::{Outputs, Pipeline};
use sandglass::sinks::otlp::OtlpSink;
use sandglass::sinks::otlp::config::{Resolution, Settings, resolve};
use sandglass::sinks::prometheus::{Metrics, ProductMetrics};
use sandglass::sources::replay::Recording;
use sandglass_correlator::{CorrelatorConfig, Output};
use sandglass_model::{Event, Trace, TraceId};

use crate::fleet::stories::recordings;
use crate::throughput::REORDER_NS;

/// The default of `metrics.max_label_values`.
pub const LABEL_VALUES: usize = sandglass::config::defaults::LABEL_VALUES;

/// The families of an exposition.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exposition(Vec<Family>);

#[derive(Clone, Debug, Default, PartialEq)]
struct Family {
    name: String,
    /// Comments: help, type, unit.
    head: Vec<String>,
    samples: Vec<String>,
}

impl Exposition {
    /// The families of a text in the format of OpenMetrics.
    pub fn of(text: impl AsRef<str>) -> Exposition {
        let mut families: Vec<Family> = Vec::new();
        for line in text.as_ref().lines() {
            let mut words = line.split(' ');
            match (words.next(), words.next(), words.next()) {
                (Some("#"), Some("EOF"), _) => {}
                (Some("#"), Some(_), Some(name)) => match families.last_mut() {
                    Some(family) if family.name == name => family.head.push(line.to_owned()),
                    _ => families.push(Family {
                        name: name.to_owned(),
                        head: vec![line.to_owned()],
                        samples: Vec::new(),
                    }),
                },
                _ => {
                    if let Some(family) = families.last_mut() {
                        family.samples.push(line.to_owned());
                    }
                }
            }
        }
        Exposition(families)
    }

    /// Number of series.
    #[must_use]
    pub fn series(&self) -> usize {
        self.0.iter().map(|family| family.samples.len()).sum()
    }

    /// The series of both; the values of this one where both have a series.
    #[must_use]
    pub fn joined(&self, other: &Exposition) -> Exposition {
        let mut joined = self.clone();
        for more in &other.0 {
            match joined.0.iter_mut().find(|family| family.name == more.name) {
                Some(family) => {
                    let known: BTreeSet<String> = family.samples.iter().map(|line| series(line).to_owned()).collect();
                    let new = more.samples.iter().filter(|line| !known.contains(series(line)));
                    family.samples.extend(new.cloned());
                }
                None => joined.0.push(more.clone()),
            }
        }
        joined
    }

    /// As text, of which every family stands together.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        for line in self
            .0
            .iter()
            .flat_map(|family| family.head.iter().chain(&family.samples))
        {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{line}");
        }
        text.push_str("# EOF\n");
        text
    }

    /// Series with another value in `other`, or in one of both only. Those of the process itself are left out.
    #[must_use]
    pub fn differing_values(&self, other: &Exposition) -> usize {
        let (own, others) = (self.values(), other.values());
        let names: BTreeSet<&&str> = own.keys().chain(others.keys()).collect();
        names
            .into_iter()
            .filter(|name| own.get(**name) != others.get(**name))
            .count()
    }

    fn values(&self) -> BTreeMap<&str, &str> {
        let families = self.0.iter().filter(|family| !family.name.contains("_process_"));
        let samples = families.flat_map(|family| &family.samples);
        samples.map(|line| (series(line), value(line))).collect()
    }

    /// The families with the most series.
    #[must_use]
    pub fn largest(&self, number: usize) -> String {
        let mut families: Vec<(usize, &str)> = self
            .0
            .iter()
            .map(|family| (family.samples.len(), family.name.as_str()))
            .collect();
        families.sort_unstable_by(|one, other| other.cmp(one));
        let named: Vec<String> = families
            .iter()
            .take(number)
            .map(|(series, name)| format!("{series} {name}"))
            .collect();
        named.join(", ")
    }
}

/// A sample without its value and exemplar.
fn series(line: &str) -> &str {
    sample(line).rsplit_once(' ').map_or(line, |(series, _)| series)
}

fn value(line: &str) -> &str {
    sample(line).rsplit_once(' ').map_or("", |(_, value)| value)
}

fn sample(line: &str) -> &str {
    line.split(" # {").next().unwrap_or(line)
}

/// What an agent exposes that has seen all Linux recordings, with export on and `sampling`; without the gauges of a running
/// agent's other parts.
pub fn replayed(sampling: &str) -> Result<Exposition> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let _guard = runtime.enter();
    let node = NodeInfo {
        name: "node".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..NodeInfo::default()
    };
    let health = Health::default();
    let metrics = Metrics::new(&node, &health);
    let sink = OtlpSink::start(unreached(sampling)?, node.clone(), health.clone())?;
    metrics.register(|registry| sink.register(registry));
    let product = ProductMetrics::new(LABEL_VALUES).with_sampling(sink.sampling());
    metrics.register(|registry| product.register(registry));
    let mut counted = Counted { product, sink };
    let mut played = 0;
    let mut folders: Vec<_> = std::fs::read_dir(recordings())?.collect::<Result<_, _>>()?;
    folders.sort_by_key(std::fs::DirEntry::file_name);
    for folder in folders {
        let events = folder.path().join("events.jsonl");
        if !events.is_file() {
            continue;
        }
        let mut recording = Recording::open(&events)?;
        let config = CorrelatorConfig {
            boot_id: recording.header.boot_id.clone(),
            anchor: recording.header.clock,
            ..CorrelatorConfig::default()
        };
        let mut pipeline = Pipeline::new(config, REORDER_NS, health.clone());
        while let Some(event) = recording.next_event()? {
            pipeline.feed(event, &mut counted);
        }
        pipeline.finish(&mut counted);
        played += 1;
    }
    if played < 20 {
        bail!("only {played} recordings below {}", recordings().display());
    }
    Ok(Exposition::of(metrics.encode()?))
}

/// Settings of a sink whose collector nobody runs: nothing is offered to it.
fn unreached(sampling: &str) -> Result<sandglass::sinks::otlp::config::Resolved> {
    let settings = Settings {
        endpoint: Some("http://127.0.0.1:1".to_owned()),
        sampling: Some(sampling.to_owned()),
        ..Settings::default()
    };
    match resolve(&settings, &|_| None, &Settings::default())? {
        Resolution::On(resolved) => Ok(*resolved),
        Resolution::Off(reason) => bail!("the sink is off: {reason}"),
    }
}

struct Counted {
    product: ProductMetrics,
    sink: OtlpSink,
}

impl Outputs for Counted {
    fn arrived(&mut self, _: &Event) {}

    fn output(&mut self, output: &Output) {
        self.product.record(output);
        if let Output::Closed(trace) = output {
            // The policy learns from every trace, whether or not it is sent.
            drop(self.sink.sampling().choose(trace));
        }
    }

    fn changed(&mut self, _: &mut dyn Iterator<Item = &Trace>, _: &BTreeSet<TraceId>) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# HELP a x y\n# TYPE a counter\na_total{p=\"1\"} 3 # {trace_id=\"7\"} 1.0\na_total{p=\"2\"} 4\n# TYPE b gauge\nb 1\n# EOF\n";

    #[test]
    fn a_text_is_its_families_again() {
        let exposition = Exposition::of(TEXT);
        assert_eq!(exposition.series(), 3);
        assert_eq!(exposition.text(), TEXT);
        assert_eq!(exposition.largest(1), "2 a");
    }

    #[test]
    fn joined_series_count_once_and_differences_are_seen() {
        let one = Exposition::of(TEXT);
        let other =
            Exposition::of("# TYPE a counter\na_total{p=\"2\"} 5\na_total{p=\"3\"} 1\n# TYPE c gauge\nc 0\n# EOF\n");
        let joined = one.joined(&other);
        assert_eq!(joined.series(), 5);
        assert!(joined.text().contains("a_total{p=\"2\"} 4"));
        // a 1, a 2, a 3, b and c.
        assert_eq!(one.differing_values(&other), 5);
        let without = Exposition::of(TEXT.replace(" # {trace_id=\"7\"} 1.0", ""));
        assert_eq!(one.differing_values(&without), 0);
    }

    #[test]
    fn sampling_changes_no_number_of_a_node() {
        let (all, bad) = (replayed("all").unwrap(), replayed("bad").unwrap());
        assert!(all.series() > 500, "{}", all.series());
        assert_eq!(all.differing_values(&bad), 0);
    }
}
