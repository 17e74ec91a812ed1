//! Stories: what happens to one pod, as traces that the agent's own pipeline makes of recordings.
//!
//! Used by the fleet. A recording is played at [`VARIANTS`] speeds: its events are moved apart or together, since on a fleet
//! no two creations take the same time, and a node judges its slowest of a hundred as bad. Traces of one pod belong together,
//! so that the links among them lead somewhere. Does not: give them to a node (`copies.rs`).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use sandglass::health::Health;
use sandglass::pipeline::{Outputs, Pipeline};
use sandglass::sinks::worth::{SLOW_NS, lasting};
use sandglass_correlator::{CorrelatorConfig, Output};
use sandglass_model::recording::{self, Header};
use sandglass_model::{CniCommand, Event, Trace, TraceId};
use serde_json::Value;

use crate::throughput::REORDER_NS;

/// One trace of a story.
#[derive(Clone, Debug)]
pub struct Scene {
    /// As the recording's node made it.
    pub trace: Trace,
    /// The agent must send it, whatever the sampling policy.
    pub bad: bool,
    /// It has a failed span: a gateway keeps it by itself.
    pub failed: bool,
}

/// What happens to one pod.
#[derive(Clone, Debug, Default)]
pub struct Story {
    /// Its sandboxes (several where the runtime tries again), and what is done to them.
    pub begin: Vec<Scene>,
    /// Its deletions.
    pub end: Vec<Scene>,
}

/// The stories of a fleet, each with its share.
#[derive(Debug, Default)]
pub struct Mix {
    stories: Vec<Story>,
    /// Where the share of each story ends; ascending.
    ends: Vec<u64>,
}

/// A recording's header and its events in their own time.
pub struct Original {
    header: Header,
    lines: Vec<Value>,
}

impl Mix {
    /// The healthy mix that sampling is judged by (`agent/tests/sampling.rs`): fifteen nodes on which all goes well, and one with
    /// every failure of the demo.
    pub fn healthy() -> Result<Mix> {
        let mut mix = Mix::default();
        let nodes = [
            ("containerd-2", 15),
            ("two-networks", 15),
            ("podman", 15),
            ("cnitool", 15),
            ("demo-scenarios", 1),
        ];
        for (name, nodes) in nodes {
            let original = Original::read(&recordings().join(name).join("events.jsonl"))?;
            for variant in 0..VARIANTS {
                let traces = original.replay(stretch(variant))?;
                mix.add(stories_of(traces), nodes);
            }
        }
        Ok(mix)
    }

    fn add(&mut self, stories: Vec<Story>, share: u64) {
        for story in stories {
            let before = self.ends.last().copied().unwrap_or(0);
            self.ends.push(before + share);
            self.stories.push(story);
        }
    }

    /// The story for a random number.
    #[must_use]
    pub fn pick(&self, random: u64) -> &Story {
        let all = self.ends.last().copied().unwrap_or(1);
        let place = random % all;
        let index = self.ends.partition_point(|end| *end <= place);
        &self.stories[index.min(self.stories.len() - 1)]
    }

    /// Mean number of sandboxes in a story.
    #[must_use]
    pub fn sandboxes_per_story(&self) -> f64 {
        let all = self.ends.last().copied().unwrap_or(1);
        let mut begin = 0;
        let weighted = self.stories.iter().zip(&self.ends).map(|(story, end)| {
            let share = end - std::mem::replace(&mut begin, *end);
            share * story.sandboxes()
        });
        weighted.sum::<u64>() as f64 / all as f64
    }

    /// All stories.
    #[cfg(test)]
    pub fn stories(&self) -> &[Story] {
        &self.stories
    }
}

impl Story {
    /// Number of its sandboxes.
    #[must_use]
    pub fn sandboxes(&self) -> u64 {
        let roots = self.begin.iter().map(|scene| scene.trace.root());
        roots.filter(|root| root.detail.as_sandbox().is_some()).count() as u64
    }
}

impl Original {
    /// Reads a recording.
    pub fn read(path: &Path) -> Result<Original> {
        let text = std::fs::read_to_string(path).with_context(|| {
            format!(
                "cannot read {}\nhint: run it in a copy of the repository",
                path.display()
            )
        })?;
        let mut lines = text.lines();
        let header = recording::decode_header(lines.next().unwrap_or_default())?;
        let lines = lines.map(serde_json::from_str).collect::<Result<_, _>>()?;
        Ok(Original { header, lines })
    }

    /// Its traces, where everything takes `factor` times as long.
    pub fn replay(&self, factor: f64) -> Result<Vec<Trace>> {
        let config = CorrelatorConfig {
            boot_id: self.header.boot_id.clone(),
            anchor: self.header.clock,
            ..CorrelatorConfig::default()
        };
        let mut pipeline = Pipeline::new(config, REORDER_NS, Health::default());
        let mut closed = Closed::default();
        for line in &self.lines {
            let mut line = line.clone();
            retime(&mut line, self.header.clock.boot_ns, factor);
            let event: Event = serde_json::from_value(line)?;
            pipeline.feed(event, &mut closed);
        }
        pipeline.finish(&mut closed);
        ensure!(!closed.0.is_empty(), "a recording without a trace");
        Ok(closed.0)
    }
}

/// Where the recordings are.
#[must_use]
pub fn recordings() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../agent/recordings")
}

/// Moves every instant of an event `factor` times as far from `origin`.
fn retime(value: &mut Value, origin: u64, factor: f64) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match field.as_u64() {
                    Some(at) if INSTANTS.contains(&name.as_str()) => {
                        let since = at.saturating_sub(origin) as f64 * factor;
                        *field = Value::from(origin.min(at) + since as u64);
                    }
                    _ => retime(field, origin, factor),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| retime(item, origin, factor)),
        _ => {}
    }
}

/// How much longer than its recording a variant takes: the log-logistic distribution with shape 5, whose median is 1 and
/// whose 99th percentile is 2.5.
fn stretch(variant: u32) -> f64 {
    let below = (f64::from(variant) + 0.5) / f64::from(VARIANTS);
    (below / (1.0 - below)).powf(0.2)
}

/// The traces of each pod together; of each sandbox where the pod is not known.
fn stories_of(traces: Vec<Trace>) -> Vec<Story> {
    let mut stories: Vec<(String, Story)> = Vec::new();
    for trace in traces {
        let name = name_of(&trace);
        let story = match stories.iter_mut().find(|(known, _)| *known == name) {
            Some((_, story)) => story,
            None => {
                stories.push((name, Story::default()));
                let Some((_, story)) = stories.last_mut() else { continue };
                story
            }
        };
        let operation = trace.root().detail.as_operation();
        let part = match operation.is_some_and(|operation| operation.command == CniCommand::Del) {
            true => &mut story.end,
            false => &mut story.begin,
        };
        let bad = trace.root().status.is_error() || lasting(&trace, SLOW_NS).is_some();
        let failed = trace.spans.iter().any(|span| span.status.is_error());
        part.push(Scene { trace, bad, failed });
    }
    stories.into_iter().map(|(_, story)| story).collect()
}

fn name_of(trace: &Trace) -> String {
    let pod = &trace.identity;
    match (&trace.sandbox, pod.name.is_empty()) {
        (_, false) => format!("{}/{}", pod.namespace, pod.name),
        (Some(sandbox), true) => sandbox.0.clone(),
        (None, true) => trace.id.to_string(),
    }
}

/// Closed traces, in their order.
#[derive(Default)]
struct Closed(Vec<Trace>);

impl Outputs for Closed {
    fn arrived(&mut self, _: &Event) {}

    fn output(&mut self, output: &Output) {
        if let Output::Closed(trace) = output {
            self.0.push((**trace).clone());
        }
    }

    fn changed(&mut self, _: &mut dyn Iterator<Item = &Trace>, _: &BTreeSet<TraceId>) {}
}

/// Speeds of each recording.
const VARIANTS: u32 = 32;
/// Fields of events that are instants of the boot clock.
const INSTANTS: [&str; 6] = ["at", "begin", "created", "runnable_from", "slept_from", "there"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_trace_of_the_mix_is_valid_and_most_are_good() {
        let mix = Mix::healthy().unwrap();
        let scenes: Vec<&Scene> = mix
            .stories()
            .iter()
            .flat_map(|story| story.begin.iter().chain(&story.end))
            .collect();
        for scene in &scenes {
            assert_eq!(scene.trace.check(), Ok(()));
            assert!(scene.trace.closed);
        }
        let bad = scenes.iter().filter(|scene| scene.bad).count();
        assert!(bad > 0 && bad * 2 < scenes.len(), "{bad} of {}", scenes.len());
        assert!(
            (0.5..2.0).contains(&mix.sandboxes_per_story()),
            "{}",
            mix.sandboxes_per_story()
        );
    }

    #[test]
    fn a_slower_play_has_the_same_tree_and_longer_spans() {
        let original = Original::read(&recordings().join("containerd-2/events.jsonl")).unwrap();
        let (one, two) = (original.replay(1.0).unwrap(), original.replay(2.0).unwrap());
        assert_eq!(one.len(), two.len());
        for (one, two) in one.iter().zip(&two) {
            assert_eq!(one.spans.len(), two.spans.len());
            let length = |trace: &Trace| trace.root().duration_ns(trace.start()) as f64;
            assert!(
                (length(two) / length(one) - 2.0).abs() < 0.01,
                "{} and {}",
                length(one),
                length(two)
            );
        }
    }

    #[test]
    fn a_recording_at_its_own_speed_gives_its_golden_ids() {
        let folder = recordings().join("demo-scenarios");
        let traces = Original::read(&folder.join("events.jsonl"))
            .unwrap()
            .replay(1.0)
            .unwrap();
        let golden = std::fs::read_to_string(folder.join("spans.jsonl")).unwrap();
        assert_eq!(traces.len(), golden.lines().count());
        for trace in traces {
            assert!(golden.contains(&trace.id.to_string()), "{}", trace.id);
        }
    }

    #[test]
    fn stories_come_by_their_shares() {
        let mut mix = Mix::default();
        mix.add(vec![Story::default()], 3);
        let failing = Story {
            begin: vec![Scene {
                trace: Original::read(&recordings().join("cnitool/events.jsonl"))
                    .unwrap()
                    .replay(1.0)
                    .unwrap()[0]
                    .clone(),
                bad: true,
                failed: true,
            }],
            end: Vec::new(),
        };
        mix.add(vec![failing], 1);
        let failing = (0..400).filter(|random| !mix.pick(*random).begin.is_empty()).count();
        assert_eq!(failing, 100);
    }

    #[test]
    fn speeds_have_a_median_of_one_and_a_tail() {
        let speeds: Vec<f64> = (0..VARIANTS).map(stretch).collect();
        assert!(speeds.is_sorted());
        assert!(speeds[15] < 1.0 && speeds[16] > 1.0);
        assert!(speeds[31] > 2.0 && speeds[31] < 3.0, "{}", speeds[31]);
    }
}
