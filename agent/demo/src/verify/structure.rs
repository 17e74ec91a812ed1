//! Whether a trace is of the right pod, and has the expected attachments and processes.

use sandglass_model::cni::CniCommand;
use sandglass_model::trace::{Detail, Relation, Trace};

use super::expected::{self, Attachment, Tree};
use super::network::Seen;
use super::{chain, operations, plugins};
use crate::pods::CallRecord;

/// The runtime has no labels of a sandbox that it failed to make.
pub(super) fn same_pod(trace: &Trace, record: &CallRecord) -> Result<String, String> {
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

pub(super) fn attempt(trace: &Trace, record: &CallRecord) -> Result<String, String> {
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

/// Exactly the expected ADDs, each with exactly the expected chain; one that succeeded has an address, and each has its
/// network's name, where the agent reads what plugins read and write.
pub(super) fn attachments(trace: &Trace, record: &CallRecord, seen: Seen) -> Result<String, String> {
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
    let wanted = expected::attachments(record);
    let same = found.len() == wanted.len()
        && found.iter().zip(&wanted).all(|(found, wanted)| {
            // The network's name is in the plugin's input.
            let named = found.network == wanted.network || (!seen.stdio && found.network.is_empty());
            named && found.ifname == wanted.ifname && found.plugins == wanted.plugins
        });
    if let Some(silent) = without_address(trace).filter(|_| seen.stdio) {
        return Err(format!("the ADD of {silent} succeeded and has no address"));
    }
    let text = |list: &[Attachment]| list.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    if same {
        Ok(text(&found))
    } else {
        Err(format!("found [{}], not [{}]", text(&found), text(&wanted)))
    }
}

/// The interface of an ADD that succeeded and has no address.
fn without_address(trace: &Trace) -> Option<&str> {
    let adds = operations(trace).filter(|(index, operation)| {
        let succeeded = !trace.spans[*index].status.is_error();
        // Plugins of before 2020 report none for the loopback interface.
        operation.command == CniCommand::Add && succeeded && operation.ifname != "lo"
    });
    let mut silent = adds.filter(|(_, operation)| operation.addresses.is_empty());
    silent.next().map(|(_, operation)| operation.ifname.as_str())
}

/// Every expected process below the right one; others may be there too.
pub(super) fn processes(trace: &Trace, record: &CallRecord) -> Result<String, String> {
    let mut seen = Vec::new();
    for tree in expected::trees(record) {
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
