//! Product metrics: durations, failures and retries of sandboxes, operations, plugins, commands and runtime steps.
//!
//! The pipeline passes every output of the correlator; each span counts once, when it has ended. Does not: count traffic
//! ([`super::traffic`]) or activities of Windows services ([`super::windows`]).

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use sandglass_correlator::{EndedKind, EndedSpan, Output};
use sandglass_model::phases::{Breakdown, Phase};
use sandglass_model::trace::{OperationDetail, PluginDetail, Span};
use sandglass_model::{CniCommand, Detail, Status, Trace, registry};

use super::bounded::{BoundedLabel, BoundedSets, OTHER};
use super::durations::{Buckets, DurationFamily, durations, observe};
use super::readiness::ReadinessMetrics;
use super::traffic::TrafficMetrics;
use super::windows::WindowsMetrics;
use crate::platform;
use crate::registration::register;
use crate::sinks::creation;
use crate::sinks::sampling::{Policy, Sampling};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SandboxLabels {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabels {
    phase: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabels {
    operation: &'static str,
    network: String,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VerbLabels {
    operation: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrorLabels {
    operation: &'static str,
    plugin: String,
    error: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PluginLabels {
    operation: &'static str,
    plugin: String,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TimeLabels {
    operation: &'static str,
    plugin: String,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RuntimeTimeLabels {
    step: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CommandLabels {
    plugin: String,
    command: String,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StepLabels {
    step: &'static str,
    result: &'static str,
}

/// All product metrics.
#[derive(Debug)]
pub struct ProductMetrics {
    sandboxes: DurationFamily<SandboxLabels>,
    phases: DurationFamily<PhaseLabels>,
    sandbox_retries: Counter,
    incomplete: Counter,
    operations: DurationFamily<OperationLabels>,
    operation_errors: Family<ErrorLabels, Counter>,
    operation_retries: Family<VerbLabels, Counter>,
    plugins: DurationFamily<PluginLabels>,
    time: Family<TimeLabels, Counter<f64, AtomicU64>>,
    runtime_time: Family<RuntimeTimeLabels, Counter<f64, AtomicU64>>,
    commands: DurationFamily<CommandLabels>,
    steps: DurationFamily<StepLabels>,
    plugin_label: BoundedLabel,
    command_label: BoundedLabel,
    network_label: BoundedLabel,
    operation_sets: BoundedSets<OperationLabels>,
    error_sets: BoundedSets<ErrorLabels>,
    plugin_sets: BoundedSets<PluginLabels>,
    time_sets: BoundedSets<TimeLabels>,
    command_sets: BoundedSets<CommandLabels>,
    readiness: ReadinessMetrics,
    traffic: TrafficMetrics,
    windows: WindowsMetrics,
    sampling: Sampling,
}

impl ProductMetrics {
    /// Metrics whose labels from outside have at most `max_label_values` values each, and make at most four times as many
    /// label sets in a family. Series of closed label sets start at 0.
    #[must_use]
    pub fn new(max_label_values: usize) -> ProductMetrics {
        ProductMetrics::with_buckets(max_label_values, Buckets::Classic)
    }

    /// The same, whose histograms record these buckets.
    #[must_use]
    pub fn with_buckets(max_label_values: usize, buckets: Buckets) -> ProductMetrics {
        let metrics = ProductMetrics {
            sandboxes: durations(buckets),
            phases: durations(buckets),
            sandbox_retries: Counter::default(),
            incomplete: Counter::default(),
            operations: durations(buckets),
            operation_errors: Family::default(),
            operation_retries: Family::default(),
            plugins: durations(buckets),
            time: Family::default(),
            runtime_time: Family::default(),
            commands: durations(buckets),
            steps: durations(buckets),
            plugin_label: BoundedLabel::new(max_label_values),
            command_label: BoundedLabel::new(max_label_values),
            network_label: BoundedLabel::new(max_label_values),
            operation_sets: BoundedSets::new(max_label_values),
            error_sets: BoundedSets::new(max_label_values),
            plugin_sets: BoundedSets::new(max_label_values),
            time_sets: BoundedSets::new(max_label_values),
            command_sets: BoundedSets::new(max_label_values),
            readiness: ReadinessMetrics::new(buckets),
            traffic: TrafficMetrics::new(max_label_values, buckets),
            windows: WindowsMetrics::new(max_label_values, buckets),
            sampling: Sampling::new(Policy::All),
        };
        for result in ["success", "error"] {
            drop(metrics.sandboxes.get_or_create(&SandboxLabels { result }));
        }
        for phase in set_up_phases() {
            drop(metrics.phases.get_or_create(&PhaseLabels { phase: phase.as_str() }));
        }
        for command in CniCommand::ALL {
            drop(metrics.operation_retries.get_or_create(&VerbLabels {
                operation: command.as_str(),
            }));
        }
        metrics
    }

    /// Exemplars lead only to traces that `sampling` sends; without this, to any.
    #[must_use]
    pub fn with_sampling(mut self, sampling: &Sampling) -> ProductMetrics {
        self.sampling = sampling.clone();
        self.readiness.sampling = sampling.clone();
        self.traffic.sampling = sampling.clone();
        self.windows.sampling = sampling.clone();
        self
    }

    /// Registers all of them; the registry adds the prefix `sandglass`.
    pub fn register(&self, registry: &mut Registry) {
        register! { registry,
            "sandbox_setup_duration_seconds": self.sandboxes, "Creation of a sandbox, from its first evidence until the runtime had started it or it had failed";
            "sandbox_phase_duration_seconds": self.phases, "Time of each phase of a sandbox's creation; the phases of a sandbox add up to its creation";
            "sandbox_retries": self.sandbox_retries, "Sandboxes created after an earlier attempt for the same pod";
            "traces_incomplete": self.incomplete, "Closed traces with lost records or an unobserved begin";
        }
        register! { registry,
            "cni_operation_duration_seconds": self.operations, "CNI operations of one attachment, from the start of the first plugin to the end of the last";
            "cni_operation_errors": self.operation_errors, "Failed CNI operations, by failed plugin and class of error";
            "cni_operation_retries": self.operation_retries, "CNI operations that repeat an earlier one of the same attachment";
            "cni_plugin_duration_seconds": self.plugins, "CNI plugin invocations";
            "cni_time_seconds": self.time, "What the time of slow CNI plugins went to, by reason; recorded for those that run longer than waits.after";
            "cni_command_duration_seconds": self.commands, "Commands started by CNI plugins";
            "runtime_step_duration_seconds": self.steps, "Steps of the runtime during the creation of a sandbox";
            "runtime_time_seconds": self.runtime_time, "What the time of slow creations of sandboxes went to, by reason: all of it (step all), and that of each step of the runtime that was recorded";
        }
        self.readiness.register(registry);
        self.traffic.register(registry);
        self.windows.register(registry);
    }

    /// Counts one output of the correlator.
    pub fn record(&mut self, output: &Output) {
        match output {
            Output::Ended(ended) => self.span(ended),
            Output::Created(trace) => {
                self.operations(trace);
                self.sandbox(trace);
            }
            Output::Closed(trace) => {
                if trace.incomplete {
                    self.incomplete.inc();
                }
                // Those of a creation were counted when it ended.
                if !matches!(trace.root().detail, Detail::Sandbox(_)) {
                    self.operations(trace);
                }
            }
            Output::LabelsNeeded(_) | Output::Preexisting { .. } | Output::Finding(_) => {}
        }
        self.readiness.record(output);
        self.traffic.record(output);
        self.windows.record(output);
    }

    fn operations(&mut self, trace: &Trace) {
        let operations = trace
            .spans
            .iter()
            .enumerate()
            .filter_map(|(index, span)| match &span.detail {
                Detail::Operation(operation) => Some((index, span, operation)),
                _ => None,
            });
        for plugin in trace.spans.iter().filter_map(|span| span.detail.as_plugin()) {
            self.time(plugin);
        }
        for (index, span, operation) in operations {
            self.operation(trace, span, operation);
            if let Status::Error { class, .. } = &span.status {
                let labels = ErrorLabels {
                    operation: operation.command.as_str(),
                    plugin: self.plugin_label.admit(failed_plugin(trace, index)),
                    error: class.clone(),
                };
                let labels = self.error_sets.admit(labels, |labels| ErrorLabels {
                    plugin: OTHER.to_owned(),
                    ..labels
                });
                self.operation_errors.get_or_create(&labels).inc();
            }
        }
    }

    /// Counts the time of a plugin that a runtime executed: that of a delegate is part of its caller's.
    fn time(&mut self, plugin: &PluginDetail) {
        let Some(time) = plugin.process.time.as_deref().filter(|_| !plugin.delegate) else {
            return;
        };
        for (reason, ns) in &time.parts {
            let labels = TimeLabels {
                operation: plugin.command.as_str(),
                plugin: self.plugin_label.admit(&plugin.plugin),
                reason: reason.as_str(),
            };
            let labels = self.time_sets.admit(labels, |labels| TimeLabels {
                plugin: OTHER.to_owned(),
                ..labels
            });
            self.time.get_or_create(&labels).inc_by(*ns as f64 / 1e9);
        }
    }

    /// Counts what the time of a creation and of the runtime's steps in it went to.
    fn runtime_time(&mut self, trace: &Trace) {
        for span in &trace.spans {
            let (step, time) = match &span.detail {
                Detail::SandboxCreate(create) => (ALL_STEPS, create.time.as_deref()),
                Detail::RuntimeStep(step) => (registry::step_name(step.step), step.process.time.as_deref()),
                Detail::RuntimeWork(work) => (registry::part_name(work.part), work.time.as_deref()),
                _ => continue,
            };
            for (reason, ns) in time.iter().flat_map(|time| &time.parts) {
                let reason = reason.as_str();
                let labels = RuntimeTimeLabels { step, reason };
                self.runtime_time.get_or_create(&labels).inc_by(*ns as f64 / 1e9);
            }
        }
    }

    /// Counts a creation, without the traffic after it.
    fn sandbox(&mut self, trace: &Trace) {
        let root = trace.root();
        let (Detail::Sandbox(sandbox), Some(created)) = (&root.detail, creation::created(trace)) else {
            return;
        };
        let exemplar = self.sampling.exemplar(trace);
        let labels = SandboxLabels {
            result: result(root.status.is_error()),
        };
        observe(&self.sandboxes, &labels, created.since(root.start), exemplar);
        self.runtime_time(trace);
        if sandbox.attempt > 1 {
            self.sandbox_retries.inc();
        }
        for (phase, ns) in Breakdown::of(&creation::set_up(trace, created), created).phases {
            observe(&self.phases, &PhaseLabels { phase: phase.as_str() }, ns, exemplar);
        }
    }

    fn operation(&mut self, trace: &Trace, span: &Span, operation: &OperationDetail) {
        let labels = OperationLabels {
            operation: operation.command.as_str(),
            // Multus lets a namespace define networks of its own.
            network: self
                .network_label
                .admit_of(&trace.identity.namespace, &operation.network),
            result: result(span.status.is_error()),
        };
        let labels = self.operation_sets.admit(labels, |labels| OperationLabels {
            network: OTHER.to_owned(),
            ..labels
        });
        observe(&self.operations, &labels, duration(span), self.sampling.exemplar(trace));
        if operation.attempt > 1 {
            self.operation_retries
                .get_or_create(&VerbLabels {
                    operation: operation.command.as_str(),
                })
                .inc();
        }
    }

    fn span(&mut self, ended: &EndedSpan) {
        let result = result(ended.failed);
        let ns = ended.end.since(ended.start);
        let exemplar = self.sampling.exemplar_of_span(ended);
        match &ended.what {
            EndedKind::Plugin { plugin, command } => {
                let labels = PluginLabels {
                    operation: command.as_str(),
                    plugin: self.plugin_label.admit(plugin),
                    result,
                };
                let labels = self.plugin_sets.admit(labels, |labels| PluginLabels {
                    plugin: OTHER.to_owned(),
                    ..labels
                });
                observe(&self.plugins, &labels, ns, exemplar);
            }
            EndedKind::Command { name, plugin } => {
                let labels = CommandLabels {
                    plugin: self.plugin_label.admit(plugin),
                    command: self.command_label.admit(name),
                    result,
                };
                let labels = self.command_sets.admit(labels, |labels| CommandLabels {
                    plugin: OTHER.to_owned(),
                    command: OTHER.to_owned(),
                    ..labels
                });
                observe(&self.commands, &labels, ns, exemplar);
            }
            EndedKind::RuntimeStep(step) => {
                let labels = StepLabels {
                    step: registry::step_name(*step),
                    result,
                };
                observe(&self.steps, &labels, ns, exemplar);
            }
            // Counted when the trace is complete: the failed plugin and the network's name are known then.
            EndedKind::Other => {}
        }
    }
}

/// The label of a creation as a whole among the steps.
const ALL_STEPS: &str = "all";

/// The plugin directly below operation `index` that failed last.
fn failed_plugin(trace: &Trace, index: usize) -> &str {
    let failed = trace
        .spans
        .iter()
        .rev()
        .find(|span| span.parent == Some(index) && span.status.is_error());
    match failed.map(|span| &span.detail) {
        Some(Detail::Plugin(plugin)) => &plugin.plugin,
        _ => "",
    }
}

fn result(failed: bool) -> &'static str {
    if failed { "error" } else { "success" }
}

fn duration(span: &Span) -> u64 {
    span.duration_ns(span.start)
}

/// The phases of a creation on this operating system, whose series start at 0; a recording may add others.
fn set_up_phases() -> impl Iterator<Item = Phase> {
    Phase::ALL.into_iter().filter(|phase| match phase {
        // Few nodes have plugins that are shims.
        Phase::Application | Phase::Lookup | Phase::Connect | Phase::Daemon => false,
        Phase::Hns | Phase::Hcs | Phase::VnicWait => platform::HAS_HNS,
        Phase::Runtime | Phase::BetweenPlugins | Phase::Plugin | Phase::Delegate | Phase::Command => true,
    })
}
