//! Holds the traces of the demo against what its caller knows: what was asked, what came of it, how long it took.
//!
//! Used by `sandglass demo --once` and the end-to-end tests. Pure: traces and call records in, a list of checks out.
//! What must be found stands in [`expected`], which durations must agree in [`clock`]. A check that cannot be made on
//! this node (a plugin's output that the kernel does not let us read) passes and says so; nothing else is excused.

pub mod clock;
mod expected;
pub mod network;

use std::sync::Arc;

use sandglass_model::cni::CniCommand;
use sandglass_model::event::ExitStatus;
use sandglass_model::trace::{Detail, OperationDetail, PluginDetail, Relation, Span, Trace};

use super::networks::{FAILING_CODE, FAILING_MESSAGE, FAILING_PLUGIN, HANGING_PLUGIN, Network};
use super::scenarios::CallRecord;
use expected::{Attachment, Tree};
use network::{Looked, Seen};

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What.
    pub what: &'static str,
    /// What was found: a remark, or what is wrong.
    pub result: Result<String, String>,
}

impl Check {
    /// It compares durations: a busy machine can fail it.
    #[must_use]
    pub fn is_clock(&self) -> bool {
        self.what.ends_with("clock")
    }
}

/// Everything that was looked at for one call of the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// `namespace/pod`, with the attempt when it is a retry.
    pub pod: String,
    /// The sandbox, as the trace names it; empty when there is none.
    pub sandbox: String,
    /// The checks, in reading order.
    pub checks: Vec<Check>,
}

impl Report {
    /// All checks passed.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.checks.iter().all(|check| check.result.is_ok())
    }

    /// As text: one line when all is well, else one more per failed check; with `all` one more per check.
    #[must_use]
    pub fn text(&self, all: bool) -> String {
        let verdict = if self.passed() { "ok" } else { "FAILED" };
        let short = self.sandbox.get(..12).unwrap_or(&self.sandbox);
        let mut text = format!(
            "{verdict:<6} {:<22} {short:<12} {} checks\n",
            self.pod,
            self.checks.len()
        );
        for check in &self.checks {
            match &check.result {
                Err(wrong) => text.push_str(&format!("       FAILED {}: {wrong}\n", check.what)),
                Ok(remark) if all => text.push_str(&format!("       ok     {}: {remark}\n", check.what)),
                Ok(_) => {}
            }
        }
        text
    }
}

/// The trace of the sandbox's creation that `record` led to, if there is exactly one.
///
/// A call that failed gave no sandbox id: its trace is that of the pod which began while the call was under way.
pub fn creation<'t>(traces: &'t [Arc<Trace>], record: &CallRecord) -> Result<&'t Arc<Trace>, String> {
    let mut found = traces.iter().filter(|trace| {
        matches!(trace.root().detail, Detail::Sandbox(_))
            && match &record.outcome {
                Ok(id) => trace.sandbox.as_ref() == Some(id),
                Err(_) => {
                    trace.identity.uid == record.pod.identity.uid
                        && (record.run.begin.minus(clock::INODE_TICK_NS)..=record.run.end).contains(&trace.start())
                }
            }
    });
    match (found.next(), found.next()) {
        (Some(trace), None) => Ok(trace),
        (None, _) => Err("no trace".to_owned()),
        (Some(_), Some(_)) => Err("more than one trace".to_owned()),
    }
}

/// Checks every record, as far as the agent sees traffic here.
#[must_use]
pub fn verify(traces: &[Arc<Trace>], records: &[CallRecord], seen: Seen) -> Vec<Report> {
    records.iter().map(|record| report(traces, record, seen)).collect()
}

/// How many of `traces` are not the creation, or an operation, of a sandbox of `records`: other work on the node, or
/// something mixed up.
#[must_use]
pub fn strangers(traces: &[Arc<Trace>], records: &[CallRecord]) -> usize {
    let known: Vec<_> = records
        .iter()
        .filter_map(|record| creation(traces, record).ok()?.sandbox.as_ref())
        .collect();
    let is_known = |trace: &&Arc<Trace>| trace.sandbox.as_ref().is_some_and(|id| known.contains(&id));
    traces.len() - traces.iter().filter(is_known).count()
}

fn report(traces: &[Arc<Trace>], record: &CallRecord, seen: Seen) -> Report {
    let identity = &record.pod.identity;
    let mut pod = format!("{}/{}", identity.namespace, identity.name);
    if record.pod.attempt > 0 {
        pod.push_str(&format!(" (attempt {})", record.pod.attempt + 1));
    }
    let trace = match creation(traces, record) {
        Ok(trace) => trace,
        Err(wrong) => {
            return Report {
                pod,
                sandbox: String::new(),
                checks: vec![Check {
                    what: "trace",
                    result: Err(wrong),
                }],
            };
        }
    };
    let dels = dels(traces, trace);
    let looked = Looked { trace, record, seen };
    let checks = [
        ("trace", complete(trace)),
        ("pod", same_pod(trace, record)),
        ("attempt", attempt(trace, record)),
        ("attachments", attachments(trace, record)),
        ("processes", processes(trace, record)),
        ("outcome", outcome(trace, record)),
        ("runtime", runtime(trace, record)),
        ("deletion", deletion(trace, &dels, record)),
        ("clock", clock::call(trace, &dels, record)),
        ("deletion's clock", clock::stop(&dels, record)),
        ("plugin's clock", clock::script(trace, record)),
        ("network", looked.network()),
        ("backends", looked.backends()),
        ("stall", looked.stall()),
        ("lookup's clock", looked.lookup_clock()),
        ("connection's clock", looked.connect_clock()),
        ("network's clock", looked.ready_clock()),
    ];
    Report {
        pod,
        sandbox: trace.sandbox.as_ref().map_or_else(String::new, ToString::to_string),
        checks: checks
            .into_iter()
            .map(|(what, result)| Check { what, result })
            .collect(),
    }
}

fn complete(trace: &Trace) -> Result<String, String> {
    if !trace.closed {
        return Err("is not closed".to_owned());
    }
    if trace.incomplete {
        return Err("is marked incomplete".to_owned());
    }
    trace.check()?;
    Ok(format!("complete, {} spans", trace.spans.len()))
}

/// Of a sandbox that did not come into being, the runtime has no labels to tell.
fn same_pod(trace: &Trace, record: &CallRecord) -> Result<String, String> {
    let (found, wanted) = (&trace.identity, &record.pod.identity);
    if (&found.namespace, &found.name, &found.uid) != (&wanted.namespace, &wanted.name, &wanted.uid) {
        return Err(format!("is that of {}/{} ({})", found.namespace, found.name, found.uid));
    }
    if record.outcome.is_ok() && found.labels != wanted.labels {
        return Err(format!("has the labels {:?}, not {:?}", found.labels, wanted.labels));
    }
    let labels = found.labels.iter().map(|(key, value)| format!(", {key}={value}"));
    Ok(format!(
        "{}/{}{}",
        found.namespace,
        found.name,
        labels.collect::<String>()
    ))
}

fn attempt(trace: &Trace, record: &CallRecord) -> Result<String, String> {
    let Detail::Sandbox(sandbox) = &trace.root().detail else {
        return Err("the root is not a sandbox".to_owned());
    };
    let wanted = record.pod.attempt + 1;
    if sandbox.attempt != wanted {
        return Err(format!("is numbered {}, not {wanted}", sandbox.attempt));
    }
    let linked = trace
        .root()
        .links
        .iter()
        .any(|link| link.relation == Relation::PreviousAttempt);
    if linked == (wanted > 1) {
        Ok(format!("number {wanted}"))
    } else {
        Err("is not linked to the previous attempt".to_owned())
    }
}

/// Exactly the expected ADDs, each with exactly the expected chain.
fn attachments(trace: &Trace, record: &CallRecord) -> Result<String, String> {
    let mut found: Vec<Attachment> = operations(trace)
        .filter(|(_, operation)| operation.command == CniCommand::Add)
        .map(|(index, operation)| Attachment {
            ifname: operation.ifname.clone(),
            network: operation.network.clone(),
            plugins: chain(trace, index)
                .map(|(_, plugin)| plugin.plugin.to_string())
                .collect(),
        })
        .collect();
    found.sort();
    let wanted = expected::attachments(record.pod.network);
    let same = found.len() == wanted.len()
        && found.iter().zip(&wanted).all(|(found, wanted)| {
            // The network's name is in the plugin's input, which cannot be read on every kernel.
            let named = found.network.is_empty() || found.network == wanted.network;
            named && found.ifname == wanted.ifname && found.plugins == wanted.plugins
        });
    let text = |list: &[Attachment]| list.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    if same {
        Ok(text(&found))
    } else {
        Err(format!("found [{}], not [{}]", text(&found), text(&wanted)))
    }
}

/// Every expected process below the right one; others may be there too.
fn processes(trace: &Trace, record: &CallRecord) -> Result<String, String> {
    let mut seen = Vec::new();
    for tree in expected::trees(record.pod.network, record.pod.host_port.is_some()) {
        let tops = plugins(trace).filter(|(_, plugin)| *plugin.plugin == *tree.name && !plugin.delegate);
        let mut tops = tops.map(|(index, _)| index).peekable();
        if tops.peek().is_none() {
            return Err(format!("no plugin {}", tree.name));
        }
        if !tops.any(|top| has_below(trace, top, &tree.below)) {
            return Err(format!("not found: {tree}"));
        }
        seen.push(tree.to_string());
    }
    Ok(seen.join("; "))
}

fn has_below(trace: &Trace, parent: usize, trees: &[Tree]) -> bool {
    trees.iter().all(|tree| {
        trace.spans.iter().enumerate().any(|(index, span)| {
            let name = match &span.detail {
                Detail::Plugin(plugin) if plugin.delegate => &*plugin.plugin,
                Detail::Command(command) => &*command.name,
                _ => return false,
            };
            // iptables is often a link to the program that it is (xtables-nft-multi): the name it was called by counts.
            span.parent == Some(parent) && name == tree.name && has_below(trace, index, &tree.below)
        })
    })
}

fn outcome(trace: &Trace, record: &CallRecord) -> Result<String, String> {
    let culprit = match record.pod.network {
        Network::Failing => Some((FAILING_PLUGIN, ExitStatus::Code(1))),
        Network::Hanging => Some((HANGING_PLUGIN, ExitStatus::Signal(9))),
        Network::Plain | Network::Slow | Network::Two => None,
    };
    let failed: Vec<&PluginDetail> = trace
        .spans
        .iter()
        .filter(|span| span.status.is_error())
        .filter_map(|span| match &span.detail {
            Detail::Plugin(plugin) => Some(&**plugin),
            _ => None,
        })
        .collect();
    match (&record.outcome, culprit, trace.root().status.is_error()) {
        (Ok(_), None, false) if failed.is_empty() => Ok("ready".to_owned()),
        (Err(_), Some((name, exit)), true) => {
            let plugin = failed.iter().find(|plugin| *plugin.plugin == *name);
            let plugin = plugin.ok_or_else(|| format!("plugin {name} is not marked failed"))?;
            if plugin.process.exit != Some(exit) {
                return Err(format!(
                    "plugin {name} ended with {:?}, not {exit:?}",
                    plugin.process.exit
                ));
            }
            message(plugin).map(|message| format!("{name}: {exit:?}{message}"))
        }
        (Ok(_), None, _) => Err(format!(
            "the sandbox is ready, but {} plugins are marked failed",
            failed.len()
        )),
        (Err(error), Some(_), false) => Err(format!("the root is not marked failed; the runtime says: {error}")),
        (Err(error), None, _) => Err(format!("the runtime failed: {error}")),
        (Ok(_), Some((name, _)), _) => Err(format!("the runtime made a sandbox although {name} fails")),
    }
}

/// The failing plugin's own words, where they can be had.
fn message(plugin: &PluginDetail) -> Result<String, String> {
    match &plugin.error {
        None if *plugin.plugin == *FAILING_PLUGIN => Ok(", its message cannot be read on this node".to_owned()),
        None => Ok(String::new()),
        Some(error) if (error.code, error.msg.as_str()) == (FAILING_CODE, FAILING_MESSAGE) => {
            Ok(format!(", {}", error.msg))
        }
        Some(error) => Err(format!("the plugin's error is read as {} {:?}", error.code, error.msg)),
    }
}

/// A sandbox that came up was started by the runtime: the trace says when.
fn runtime(trace: &Trace, record: &CallRecord) -> Result<String, String> {
    let Detail::Sandbox(sandbox) = &trace.root().detail else {
        return Err("the root is not a sandbox".to_owned());
    };
    if sandbox.runtime != "containerd" {
        return Err(format!("is named {:?}", sandbox.runtime));
    }
    let create = trace.spans.iter().find_map(|span| match &span.detail {
        Detail::SandboxCreate(create) => Some(create),
        _ => None,
    });
    match (create, &record.outcome) {
        (Some(create), Ok(_)) if !create.runtime_seen => Err("the start of the pause process was not seen".to_owned()),
        (None, Ok(_)) => Err("there is no sandbox.create".to_owned()),
        (Some(create), _) if create.netns_seen => Ok("containerd, from namespace creation".to_owned()),
        _ => Ok("containerd, from the first plugin".to_owned()),
    }
}

/// Each attachment of a sandbox that is gone was deleted, in traces linked to its own and numbered from 1.
fn deletion(trace: &Trace, dels: &[&Arc<Trace>], record: &CallRecord) -> Result<String, String> {
    let gone = record.outcome.is_err() || record.stop.is_some();
    if !gone {
        return if dels.is_empty() {
            Ok("none asked, none seen".to_owned())
        } else {
            Err(format!("none was asked, {} were seen", dels.len()))
        };
    }
    let mut seen = 0;
    for wanted in expected::attachments(record.pod.network) {
        let mut numbers: Vec<u32> = Vec::new();
        for del in dels {
            let Some((_, operation)) = operations(del).next() else {
                continue;
            };
            if operation.ifname != wanted.ifname {
                continue;
            }
            complete(del).map_err(|wrong| format!("the trace of DEL {} {wrong}", wanted.ifname))?;
            let linked = del
                .root()
                .links
                .iter()
                .any(|link| (link.to(), link.relation) == (trace.root_id(), Relation::Sandbox));
            if !linked {
                return Err(format!("DEL {} is not linked to the sandbox", wanted.ifname));
            }
            numbers.push(operation.attempt);
        }
        numbers.sort_unstable();
        if numbers.is_empty() {
            return Err(format!("no DEL of {}", wanted.ifname));
        }
        if !numbers
            .iter()
            .copied()
            .eq(1..=u32::try_from(numbers.len()).unwrap_or(u32::MAX))
        {
            return Err(format!("the DELs of {} are numbered {numbers:?}", wanted.ifname));
        }
        seen += numbers.len();
    }
    if seen != dels.len() {
        return Err(format!("{} DELs of other interfaces", dels.len() - seen));
    }
    Ok(format!("{seen} DELs, linked and numbered"))
}

fn dels<'t>(traces: &'t [Arc<Trace>], of: &Trace) -> Vec<&'t Arc<Trace>> {
    traces
        .iter()
        .filter(|trace| {
            let root = &trace.root().detail;
            let is_del = matches!(root, Detail::Operation(operation) if operation.command == CniCommand::Del);
            is_del && trace.sandbox.is_some() && trace.sandbox == of.sandbox
        })
        .collect()
}

fn operations(trace: &Trace) -> impl Iterator<Item = (usize, &OperationDetail)> {
    trace
        .spans
        .iter()
        .enumerate()
        .filter_map(|(index, span)| match &span.detail {
            Detail::Operation(operation) => Some((index, &**operation)),
            _ => None,
        })
}

fn plugins(trace: &Trace) -> impl Iterator<Item = (usize, &PluginDetail)> {
    trace
        .spans
        .iter()
        .enumerate()
        .filter_map(|(index, span)| match &span.detail {
            Detail::Plugin(plugin) => Some((index, &**plugin)),
            _ => None,
        })
}

/// The plugins that the runtime called for `operation`, in time order.
fn chain(trace: &Trace, operation: usize) -> impl Iterator<Item = (&Span, &PluginDetail)> {
    let mut chain: Vec<(&Span, &PluginDetail)> = plugins(trace)
        .filter(|(index, _)| trace.spans[*index].parent == Some(operation))
        .map(|(index, plugin)| (&trace.spans[index], plugin))
        .collect();
    chain.sort_by_key(|(span, _)| span.start);
    chain.into_iter()
}

#[cfg(test)]
mod tests;
