//! How a sandbox came up or failed, and how it went, against what the runtime answered.

use std::sync::Arc;

use sandglass_model::cni::CniCommand;
use sandglass_model::event::ExitStatus;
use sandglass_model::trace::{Detail, PluginDetail, Relation, Trace};

use super::network::Seen;
use super::{complete, expected, operations};
use crate::networks::{FAILING_CODE, FAILING_MESSAGE, FAILING_PLUGIN, HANGING_PLUGIN, Network};
use crate::pods::{CallRecord, Runtime};

pub(super) fn outcome(trace: &Trace, record: &CallRecord, seen: Seen) -> Result<String, String> {
    let culprit = match record.pod.network {
        Network::Failing => Some((FAILING_PLUGIN, ExitStatus::Code(1))),
        Network::Hanging => Some((HANGING_PLUGIN, ExitStatus::Signal(9))),
        Network::Plain | Network::Slow | Network::Locked | Network::Crowded | Network::Served | Network::Two => None,
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
            message(plugin, seen).map(|message| format!("{name}: {exit:?}{message}"))
        }
        (Ok(_), None, _) => Err(format!(
            "the sandbox is ready, but {} plugins are marked failed",
            failed.len()
        )),
        (Err(error), Some(_), false) => Err(format!("the root is not marked failed; the runtime's error: {error}")),
        (Err(error), None, _) => Err(format!("the runtime failed: {error}")),
        (Ok(_), Some((name, _)), _) => Err(format!("the runtime made a sandbox although {name} fails")),
    }
}

/// The failing plugin's error message, where the agent reads what plugins write.
fn message(plugin: &PluginDetail, seen: Seen) -> Result<String, String> {
    match &plugin.error {
        None if *plugin.plugin == *FAILING_PLUGIN && seen.stdio => Err("the plugin's error was not read".to_owned()),
        None if *plugin.plugin == *FAILING_PLUGIN => Ok(", its message cannot be read on this node".to_owned()),
        None => Ok(String::new()),
        Some(error) if (error.code, error.msg.as_str()) == (FAILING_CODE, FAILING_MESSAGE) => {
            Ok(format!(", {}", error.msg))
        }
        Some(error) => Err(format!("the plugin's error is read as {} {:?}", error.code, error.msg)),
    }
}

/// A sandbox that came up was started by the runtime: the trace has the time.
pub(super) fn runtime(trace: &Trace, record: &CallRecord) -> Result<String, String> {
    let Detail::Sandbox(sandbox) = &trace.root().detail else {
        return Err("the root is not a sandbox".to_owned());
    };
    let name = record.runtime.name();
    if sandbox.runtime != name {
        return Err(format!("is named {:?}", sandbox.runtime));
    }
    let create = trace.spans.iter().find_map(|span| match &span.detail {
        Detail::SandboxCreate(create) => Some(create),
        _ => None,
    });
    match (create, &record.outcome) {
        (Some(create), Ok(_)) if create.runtime_seen != has_process(record) => Err(format!(
            "the start of a pause process was seen: {}, although it {}",
            create.runtime_seen,
            if has_process(record) { "has one" } else { "has none" }
        )),
        (None, Ok(_)) => Err("there is no sandbox.create".to_owned()),
        (Some(create), _) if create.request_seen && create.response_seen => {
            Ok(format!("{name}, from request to response"))
        }
        (Some(create), _) if create.netns_seen => Ok(format!("{name}, from namespace creation")),
        _ => Ok(format!("{name}, from the first plugin")),
    }
}

/// CRI-O starts a process for a sandbox only where its containers share their process ids (`drop_infra_ctr`).
fn has_process(record: &CallRecord) -> bool {
    record.runtime == Runtime::Containerd || !record.pod.apart
}

/// Each attachment of a sandbox that is gone was deleted, in traces linked to its own and numbered from 1.
pub(super) fn deletion(trace: &Trace, dels: &[&Arc<Trace>], record: &CallRecord) -> Result<String, String> {
    let gone = record.outcome.is_err() || record.stop.is_some();
    if !gone {
        return if dels.is_empty() {
            Ok("not deleted, no DEL seen".to_owned())
        } else {
            Err(format!("not deleted, but {} DELs were seen", dels.len()))
        };
    }
    let mut seen = 0;
    for wanted in expected::attachments(record) {
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

pub(super) fn dels<'t>(traces: &'t [Arc<Trace>], of: &Trace) -> Vec<&'t Arc<Trace>> {
    traces
        .iter()
        .filter(|trace| {
            let root = &trace.root().detail;
            let is_del = matches!(root, Detail::Operation(operation) if operation.command == CniCommand::Del);
            is_del && trace.sandbox.is_some() && trace.sandbox == of.sandbox
        })
        .collect()
}
