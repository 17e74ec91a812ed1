//! The most series that an agent can have: every verb, result, class and reason, with ever new plugins, commands and networks.
//!
//! Used by the part `series`. Does not: count what only a running agent's other parts expose, which have closed label sets.

use std::sync::Arc;

use anyhow::{Context, Result};
use sandglass::health::Health;
use sandglass::node::NodeInfo;
use sandglass::sinks::prometheus::{Metrics, ProductMetrics};
use sandglass_correlator::{EndedKind, EndedSpan, Output};
use sandglass_model::waits::{TimeReason, TimeSpent};
use sandglass_model::{CniCommand, Detail, Status, Trace, registry};

use super::exposition::{Exposition, LABEL_VALUES};
use crate::fleet::stories::{Original, recordings};

/// Different names of each kind: more than a label has values.
pub const NAMES: usize = LABEL_VALUES + 10;

/// The exposition after all of them, each with each.
pub fn flooded() -> Result<Exposition> {
    let metrics = Metrics::new(&NodeInfo::default(), &Health::default());
    let mut product = ProductMetrics::new(LABEL_VALUES);
    metrics.register(|registry| product.register(registry));
    let traces = Original::read(&recordings().join("demo-scenarios/events.jsonl"))?.replay(1.0)?;
    let deletion = traces.iter().find(|trace| {
        trace.root().detail.as_operation().is_some() && trace.spans.iter().any(|span| span.detail.as_plugin().is_some())
    });
    let deletion = deletion.context("no operation of its own in the recording")?;
    for plugin in 0..NAMES {
        for command in CniCommand::ALL {
            for failed in [false, true] {
                let what = EndedKind::Plugin {
                    plugin: name("plugin", plugin),
                    command,
                };
                product.record(&ended(deletion, failed, what));
            }
            for class in registry::ERROR_TYPES {
                product.record(&Output::Closed(Arc::new(operation(
                    deletion,
                    plugin,
                    command,
                    Some(class),
                ))));
            }
            product.record(&Output::Closed(Arc::new(operation(deletion, plugin, command, None))));
        }
        for command in 0..NAMES {
            for failed in [false, true] {
                let what = EndedKind::Command {
                    name: name("command", command),
                    plugin: name("plugin", plugin),
                };
                product.record(&ended(deletion, failed, what));
            }
        }
    }
    Ok(Exposition::of(metrics.encode()?))
}

fn name(kind: &str, number: usize) -> Arc<str> {
    format!("{kind}-{number}").into()
}

fn ended(trace: &Trace, failed: bool, what: EndedKind) -> Output {
    let of = EndedSpan::of(trace, trace.root());
    Output::Ended(EndedSpan { failed, what, ..of })
}

/// The trace of one operation, of a network and a plugin of its own, whose time went to everything.
fn operation(trace: &Trace, number: usize, command: CniCommand, error: Option<&str>) -> Trace {
    let mut trace = trace.clone();
    // Names that a namespace invents share what is left: the administrator's get all.
    trace.identity.namespace.clear();
    for span in &mut trace.spans {
        if let Some(class) = error {
            span.status = Status::Error {
                class: class.to_owned(),
                message: String::new(),
            };
        }
        match &mut span.detail {
            Detail::Operation(operation) => {
                operation.command = command;
                operation.network = format!("network-{number}");
            }
            Detail::Plugin(plugin) => {
                plugin.command = command;
                plugin.plugin = name("plugin", number);
                plugin.process.time = Some(Box::new(TimeSpent {
                    parts: TimeReason::ALL.iter().map(|reason| (*reason, 1)).collect(),
                    ..TimeSpent::default()
                }));
            }
            _ => {}
        }
    }
    trace
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_names_make_no_more_series() {
        let exposition = flooded().unwrap();
        let text = exposition.text();
        assert!(text.contains("plugin=\"other\""), "the bound was not reached");
        assert!(!text.contains(&format!("\"plugin-{}\"", NAMES - 1)));
        assert!(
            exposition.series() < 20_000,
            "{}: {}",
            exposition.series(),
            exposition.largest(5)
        );
    }
}
