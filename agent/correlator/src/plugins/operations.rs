//! CNI operations: which plugin invocations are one chain, and when the chain is over.
//!
//! The runtime runs the plugins of a chain one after another, with the same verb, container and interface. Nothing in
//! the environment says that a plugin is the last: an operation is over when the configuration says so, when the
//! runtime is seen to go on, or when no next plugin came for a while. Its end is its last plugin's end in every case.

use std::sync::Arc;

use sandglass_model::cni::NetworkList;
use sandglass_model::trace::{Detail, OperationDetail, Status};
use sandglass_model::{CniCommand, ProcessKey, Timestamp};

use crate::collections::by_text::ByText;
use crate::correlator::Correlator;
use crate::open::{Cut, OpenTrace, TraceKey};
use crate::plugins::invocation::Invocation;
use crate::timers::Timer;

/// An operation of an open trace; what is shown of it stands in its span.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) span: usize,
    pub(crate) command: CniCommand,
    pub(crate) container: String,
    pub(crate) ifname: String,
    pub(crate) caller: Caller,
    /// Plugins of the chain that run now.
    pub(crate) running: u32,
    pub(crate) failed: bool,
    /// The network's name came from a plugin's own configuration.
    pub(crate) network_told: bool,
    pub(crate) closed: bool,
    /// It failed, and was then tried again.
    pub(crate) retried: bool,
}

/// Who asked for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// The runtime's process.
    Runtime(ProcessKey),
    /// A plugin's span of the same trace: another attachment of the same sandbox (Multus).
    Plugin(usize),
}

/// Names an operation of an open trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OperationRef {
    pub(crate) trace: TraceKey,
    pub(crate) operation: usize,
}

impl Operation {
    pub(crate) fn new(span: usize, call: &Invocation<'_>, caller: Caller) -> Operation {
        Operation {
            span,
            command: call.command,
            container: call.container.to_owned(),
            ifname: call.ifname.to_owned(),
            caller,
            running: 0,
            failed: false,
            network_told: false,
            closed: false,
            retried: false,
        }
    }

    pub(crate) fn is_for(&self, call: &Invocation<'_>, caller: Caller) -> bool {
        self.caller == caller
            && self.command == call.command
            && self.ifname == call.ifname
            && self.container == call.container
    }

    pub(crate) fn is_idle(&self) -> bool {
        !self.closed && self.running == 0
    }
}

/// The operation as a span shows it, before its first plugin.
pub(crate) fn operation_detail(call: &Invocation<'_>, attempt: u32) -> OperationDetail {
    OperationDetail {
        command: call.command,
        ifname: call.ifname.to_owned(),
        network: String::new(),
        netns: call.netns.to_owned(),
        attempt,
        plugins: Vec::with_capacity(2),
        addresses: Vec::new(),
    }
}

impl OpenTrace {
    pub(crate) fn operation_detail(&self, operation: usize) -> Option<&OperationDetail> {
        match &self.trace.spans.get(self.operations.get(operation)?.span)?.detail {
            Detail::Operation(detail) => Some(detail),
            Detail::Sandbox(_)
            | Detail::SandboxCreate(_)
            | Detail::Plugin(_)
            | Detail::Command(_)
            | Detail::RuntimeStep(_)
            | Detail::Journey(_)
            | Detail::Lookup(_)
            | Detail::Connect(_)
            | Detail::Activity(_)
            | Detail::VnicWait(_) => None,
        }
    }

    pub(crate) fn operation_detail_mut(&mut self, operation: usize) -> Option<&mut OperationDetail> {
        match &mut self.trace.spans.get_mut(self.operations.get(operation)?.span)?.detail {
            Detail::Operation(detail) => Some(detail),
            Detail::Sandbox(_)
            | Detail::SandboxCreate(_)
            | Detail::Plugin(_)
            | Detail::Command(_)
            | Detail::RuntimeStep(_)
            | Detail::Journey(_)
            | Detail::Lookup(_)
            | Detail::Connect(_)
            | Detail::Activity(_)
            | Detail::VnicWait(_) => None,
        }
    }

    /// Whether `plugin` can be the next of the operation's chain.
    pub(crate) fn can_join(&self, operation: usize, plugin: &str, networks: &[NetworkList]) -> bool {
        let (Some(state), Some(detail)) = (self.operations.get(operation), self.operation_detail(operation)) else {
            return false;
        };
        if !state.is_idle() || state.failed {
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

    /// Enters the chain's next plugin, and the network if the chain gives it away.
    pub(crate) fn chain(&mut self, operation: usize, plugin: Arc<str>, networks: &[NetworkList]) {
        let told = self.operations.get(operation).is_some_and(|state| state.network_told);
        if let Some(state) = self.operations.get_mut(operation) {
            state.running += 1;
        }
        if let Some(detail) = self.operation_detail_mut(operation) {
            detail.plugins.push(plugin);
            if !told {
                detail.network = match only_match(networks, detail) {
                    Some(list) => list.network.clone(),
                    None => String::new(),
                };
            }
        }
    }

    /// Every plugin of the network's list has run.
    fn is_complete(&self, operation: usize, networks: &[NetworkList]) -> bool {
        self.operation_detail(operation).is_some_and(|detail| {
            list_of(networks, detail).is_some_and(|list| {
                !list.plugins.is_empty() && in_order(list, detail.command).eq(detail.plugins.iter().map(AsRef::as_ref))
            })
        })
    }
}

/// The plugins of a list in the order in which the verb runs them.
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

/// The list whose beginning the chain is, if there is only one.
fn only_match<'a>(networks: &'a [NetworkList], detail: &OperationDetail) -> Option<&'a NetworkList> {
    // A version is asked of a plugin, not of a network.
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

/// The list of the operation's network.
fn list_of<'a>(networks: &'a [NetworkList], detail: &OperationDetail) -> Option<&'a NetworkList> {
    if detail.network.is_empty() {
        return None;
    }
    networks.iter().find(|list| list.network == detail.network)
}

/// The operation is no longer one that a next plugin could join.
pub(crate) fn forget_attached(attached: &mut ByText<Vec<OperationRef>>, container: &str, reference: OperationRef) {
    if let Some(open) = attached.get_mut(container) {
        open.retain(|other| *other != reference);
        if open.is_empty() {
            attached.remove(container);
        }
    }
}

impl Correlator {
    /// The open operation of the runtime whose chain `plugin` goes on with.
    pub(crate) fn joinable(&self, call: &Invocation<'_>, caller: ProcessKey, plugin: &str) -> Option<OperationRef> {
        let ended = |reference: &OperationRef| {
            self.traces.get(reference.trace).map(|open| {
                let span = open.operations[reference.operation].span;
                open.states[span].latest
            })
        };
        self.attached
            .get(call.container)?
            .iter()
            .filter(|reference| {
                self.traces.get(reference.trace).is_some_and(|open| {
                    open.operations[reference.operation].is_for(call, Caller::Runtime(caller))
                        && open.can_join(reference.operation, plugin, &self.networks)
                })
            })
            // Of several that run at once, the one whose plugin ended last is the one whose next plugin comes now.
            .max_by_key(|reference| ended(reference))
            .copied()
    }

    /// Another operation for the same attachment begins: those that were waiting for a next plugin are over. A DEL
    /// says so of all operations for the sandbox.
    pub(crate) fn supersede(&mut self, call: &Invocation<'_>) {
        let over: Vec<OperationRef> = self
            .attached
            .get(call.container)
            .into_iter()
            .flatten()
            .filter(|reference| {
                self.traces.get(reference.trace).is_some_and(|open| {
                    let operation = &open.operations[reference.operation];
                    operation.is_idle() && (operation.ifname == call.ifname || call.command == CniCommand::Del)
                })
            })
            .copied()
            .collect();
        for reference in over {
            self.close_operation(reference);
        }
    }

    /// A plugin of the chain ended at `at`.
    pub(crate) fn plugin_left(&mut self, reference: OperationRef, at: Timestamp, failure: Option<(String, String)>) {
        let Some(open) = self.traces.get_mut(reference.trace) else {
            return;
        };
        let failed = failure.is_some();
        let operation = &mut open.operations[reference.operation];
        operation.running = operation.running.saturating_sub(1);
        let (span, idle) = (operation.span, operation.is_idle());
        if let Some((class, message)) = failure {
            operation.failed = true;
            open.trace.spans[span].status = Status::Error { class, message };
        }
        if !idle {
            return;
        }
        if failed || open.is_complete(reference.operation, &self.networks) {
            self.close_operation(reference);
        } else {
            let settled = open.states[span].latest.max(at).plus(self.config.settle_ns);
            self.effects
                .timers
                .set(Timer::Settle(reference.trace, reference.operation), settled);
        }
    }

    /// No more plugins will come.
    pub(crate) fn close_operation(&mut self, reference: OperationRef) {
        let Some(open) = self.traces.get_mut(reference.trace) else {
            return;
        };
        let operation = &mut open.operations[reference.operation];
        if operation.closed {
            return;
        }
        operation.closed = true;
        let (span, caller, failed) = (operation.span, operation.caller, operation.failed);
        self.effects
            .timers
            .clear(Timer::Settle(reference.trace, reference.operation));
        // It ends with its last plugin, not now.
        let start = open.trace.spans[span].start;
        open.end(span, start, Cut::Outlived, &mut self.effects);
        if let Caller::Plugin(_) = caller {
            return;
        }
        forget_attached(
            &mut self.attached,
            &open.operations[reference.operation].container,
            reference,
        );
        if !failed {
            self.remember_attachment(reference);
        }
        self.review(reference.trace);
    }

    fn remember_attachment(&mut self, reference: OperationRef) {
        let Some(open) = self.traces.get(reference.trace) else {
            return;
        };
        let operation = &open.operations[reference.operation];
        if let Some(sandbox) = self.memory.sandboxes.get_mut(&operation.container) {
            match operation.command {
                CniCommand::Add => sandbox.attach(&operation.ifname),
                CniCommand::Del => {
                    sandbox.detach(&operation.ifname);
                    if sandbox.attached.is_empty() {
                        self.watch.owners.disown(&operation.container);
                    }
                }
                CniCommand::Check | CniCommand::Gc | CniCommand::Status | CniCommand::Version => {}
            }
        }
    }
}
