//! Chains of plugins against the node's CNI configuration: whether a plugin can be the next of a chain, and whether a
//! chain is complete.
//!
//! A runtime runs the plugins of a network's list one after another, for DEL in reverse order (CNI spec 1.1.0, section
//! 3, "Execution of Network Configurations"). Used by the rooms of plugins and of Windows. Pure functions over open
//! traces and the configuration. The configuration may be older or newer than what the runtime has loaded, so nothing
//! here ends an operation that the runtime goes on with: it only shortens or lengthens the wait for the next plugin.

use sandglass_model::CniCommand;
use sandglass_model::cni::NetworkList;
use sandglass_model::trace::OperationDetail;

use crate::open_trace::OpenTrace;

/// Whether `plugin` can be the next of the chain of the operation at `span`. Not while a plugin of it runs, and not
/// after a failure, where the runtime stops.
pub(crate) fn can_join(open: &OpenTrace, span: usize, plugin: &str, networks: &[NetworkList]) -> bool {
    let Some(detail) = open.operation(span) else {
        return false;
    };
    if !open.is_idle(span) || open.has_failed(span) {
        return false;
    }
    if !detail.plugins.iter().any(|ran| **ran == *plugin) {
        return true;
    }
    // The same type again is the same operation repeated, unless the list has it twice.
    list_of(networks, detail).is_some_and(|list| {
        in_order(list, detail.command)
            .nth(detail.plugins.len())
            .is_some_and(|next| next == plugin)
    })
}

/// Every plugin of the network's list has run, in the order of the verb. `false` when the network is not known.
pub(crate) fn is_complete(open: &OpenTrace, span: usize, networks: &[NetworkList]) -> bool {
    open.operation(span).is_some_and(|detail| {
        list_of(networks, detail).is_some_and(|list| {
            !list.plugins.is_empty() && in_order(list, detail.command).eq(detail.plugins.iter().map(AsRef::as_ref))
        })
    })
}

/// The network's list names a plugin to run after those that ran. `false` when the network is not known, or its list is
/// not the one that runs.
pub(crate) fn has_next(open: &OpenTrace, span: usize, networks: &[NetworkList]) -> bool {
    open.operation(span).is_some_and(|detail| {
        list_of(networks, detail).is_some_and(|list| {
            let mut listed = in_order(list, detail.command);
            let as_listed = detail.plugins.iter().all(|ran| listed.next() == Some(&**ran));
            as_listed && listed.next().is_some()
        })
    })
}

/// The plugins of a list in the order in which the verb runs them. CHECK and GC run forward like ADD (CNI spec 1.1.0,
/// section 3).
fn in_order(list: &NetworkList, command: CniCommand) -> impl Iterator<Item = &str> {
    let (forward, backward) = match command {
        CniCommand::Del => (None, Some(list.plugins.iter().rev())),
        CniCommand::Add | CniCommand::Check | CniCommand::Gc | CniCommand::Status | CniCommand::Version => {
            (Some(list.plugins.iter()), None)
        }
    };
    forward
        .into_iter()
        .flatten()
        .chain(backward.into_iter().flatten())
        .map(String::as_str)
}

/// The list whose first plugins are the chain so far, if exactly one list is like that.
pub(crate) fn only_match<'a>(networks: &'a [NetworkList], detail: &OperationDetail) -> Option<&'a NetworkList> {
    // VERSION is of a plugin, not of a network. libcni requests the version of each binary once, whatever list it is
    // in.
    if detail.command == CniCommand::Version {
        return None;
    }
    let mut matching = networks.iter().filter(|list| {
        list.plugins.len() >= detail.plugins.len()
            && in_order(list, detail.command)
                .zip(&detail.plugins)
                .all(|(listed, ran)| *listed == **ran)
    });
    matching.next().filter(|_| matching.next().is_none())
}

/// The configured list of the operation's network.
fn list_of<'a>(networks: &'a [NetworkList], detail: &OperationDetail) -> Option<&'a NetworkList> {
    if detail.network.is_empty() {
        return None;
    }
    networks.iter().find(|list| list.network == detail.network)
}
