//! What the room of plugins keeps beside an open trace: its operations, and the plugins and commands in it.
//!
//! Used by the files of this room. A span carries what is exported; what only decides where the next process belongs is
//! here. Spans are named by their index in the open trace, which never changes while it is open. Bounded by the spans
//! of a trace (`max_spans`).

use sandglass_model::{CniCommand, ProcessKey, Timestamp};

use crate::invocation::Invocation;
use crate::open_trace::OpenTrace;

/// State beside one trace.
#[derive(Debug, Default)]
pub(crate) struct TraceState {
    /// All operations, nested ones included, in order of begin.
    operations: Vec<Operation>,
    /// Plugins and commands, in order of begin, which is ascending by span: `process` searches by halves.
    processes: Vec<ProcessState>,
}

/// State beside the span of an operation. Whether it is open, idle or failed is in the span.
#[derive(Debug)]
pub(crate) struct Operation {
    /// Index of its span.
    pub(crate) span: usize,
    /// Who requested it: part of what the next plugin of its chain must match.
    pub(crate) caller: Caller,
    /// The container it is for, where that is not the trace's sandbox (a plugin may request one for any container).
    container: Option<Box<str>>,
    /// The network's name came from a plugin's own configuration.
    pub(crate) network_reported: bool,
}

/// Who requested an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// The runtime's process.
    Runtime(ProcessKey),
    /// The span of a plugin of the same trace: another attachment of the same sandbox (Multus).
    Plugin(usize),
}

/// State beside the span of a plugin or a command.
#[derive(Debug)]
pub(crate) struct ProcessState {
    span: usize,
    /// Span of the operation that a plugin belongs to.
    pub(crate) operation: Option<usize>,
    /// The plugin is a member of its operation's chain, not called by another member.
    pub(crate) in_chain: bool,
    /// Fingerprint of a plugin's CNI parameters: [`Invocation::fingerprint`].
    pub(crate) environment: u64,
    /// When it last executed an image.
    pub(crate) executed: Timestamp,
}

impl Operation {
    pub(crate) fn new(span: usize, call: &Invocation<'_>, caller: Caller, open: &OpenTrace) -> Operation {
        let other = call.container != open.sandbox();
        Operation {
            span,
            caller,
            container: other.then(|| call.container.into()),
            network_reported: false,
        }
    }

    /// The container id that the operation is for.
    pub(crate) fn container<'a>(&'a self, open: &'a OpenTrace) -> &'a str {
        self.container.as_deref().unwrap_or_else(|| open.sandbox())
    }

    /// It was requested with these parameters by this caller: the next plugin of its chain, or its next attempt, looks
    /// like this.
    pub(crate) fn is_for(&self, open: &OpenTrace, call: &Invocation<'_>, caller: Caller) -> bool {
        self.caller == caller
            && open
                .operation(self.span)
                .is_some_and(|detail| detail.command == call.command && detail.ifname == call.ifname)
            && self.container(open) == call.container
    }

    /// It is idle, and the call is for the same interface. A DEL supersedes operations on any interface: the runtime
    /// removes the whole sandbox.
    pub(crate) fn is_superseded_by(&self, open: &OpenTrace, call: &Invocation<'_>) -> bool {
        let same = |ifname: &str| ifname == call.ifname;
        let detail = open.operation(self.span);
        open.is_idle(self.span)
            && (call.command == CniCommand::Del || detail.is_some_and(|detail| same(&detail.ifname)))
    }
}

impl TraceState {
    pub(crate) fn add_operation(&mut self, operation: Operation) {
        self.operations.push(operation);
    }

    pub(crate) fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// The state of the operation at this span. A trace has few operations, so a search is short.
    pub(crate) fn operation(&self, span: usize) -> Option<&Operation> {
        self.operations.iter().find(|operation| operation.span == span)
    }

    pub(crate) fn operation_mut(&mut self, span: usize) -> Option<&mut Operation> {
        self.operations.iter_mut().find(|operation| operation.span == span)
    }

    /// A plugin or command began at `span`, with an exec at this time. Spans only grow, so the order stays.
    pub(crate) fn add_process(&mut self, span: usize, executed: Timestamp) {
        self.processes.push(ProcessState {
            span,
            operation: None,
            in_chain: false,
            environment: 0,
            executed,
        });
    }

    /// The state of the plugin or command at this span.
    pub(crate) fn process(&self, span: usize) -> Option<&ProcessState> {
        let index = self.processes.binary_search_by_key(&span, |process| process.span);
        self.processes.get(index.ok()?)
    }

    pub(crate) fn process_mut(&mut self, span: usize) -> Option<&mut ProcessState> {
        let index = self.processes.binary_search_by_key(&span, |process| process.span);
        self.processes.get_mut(index.ok()?)
    }

    /// Empties it for reuse; the capacity stays.
    pub(crate) fn clear(&mut self) {
        self.operations.clear();
        self.processes.clear();
    }
}
