//! An estimate of the memory that a trace takes in the store.
//!
//! Used to hold the store within its bound in bytes. A test compares the estimate with the resident memory of the process.
//! Does not: query the allocator; counting real allocations would cost more than the estimate's error.

use sandglass_model::network::Initiator;
use sandglass_model::trace::{Cause, SpanEvent};
use sandglass_model::waits::TimeSpent;
use sandglass_model::{Detail, Span, Status, Trace};

use super::index::TraceIndex;

/// Estimated bytes of a trace that is kept as it is: its structures, their texts, the rounding of the allocator, and the
/// store's own entries.
pub(super) fn of_plain(trace: &Trace) -> usize {
    let labels: usize = trace
        .identity
        .labels
        .iter()
        .map(|(key, value)| text_bytes(key) + text_bytes(value))
        .sum();
    size_of_val(trace) + BESIDE + labels + trace.spans.iter().map(span_bytes).sum::<usize>()
}

/// The same of one that is packed.
pub(super) fn of_packed(packed: &[u8], index: &TraceIndex) -> usize {
    packed.len() + index.text.len() + BESIDE
}

/// Usual bytes of list row and index entries, and of the searched text of a trace without labels.
const BESIDE: usize = 2_048;

/// Paths of programs and cgroups are left out: traces share them.
fn span_bytes(span: &Span) -> usize {
    let time = span.detail.time();
    // The structure of a kind with a process is mostly that process.
    let structure = match span.process() {
        Some(process) => 2 * size_of_val(process) + process.args.bytes() + process.netlink.len() + 16,
        None => span.detail.struct_bytes(),
    };
    let texts = match &span.detail {
        Detail::Operation(operation) => {
            text_bytes(&operation.network)
                + text_bytes(&operation.netns)
                + texts_bytes(&operation.plugins)
                + texts_bytes(&operation.addresses)
        }
        Detail::Plugin(plugin) => plugin
            .error
            .as_ref()
            .map_or(0, |error| text_bytes(&error.msg) + text_bytes(&error.details)),
        Detail::Lookup(lookup) => {
            text_bytes(&lookup.name)
                + texts_bytes(&lookup.types)
                + size_of_val(lookup.servers.as_slice())
                + size_of_val(lookup.addresses.as_slice())
                + traffic_bytes(lookup.initiator.as_ref(), lookup.cause.as_ref())
        }
        Detail::Connect(connect) => {
            text_bytes(&connect.name) + traffic_bytes(connect.initiator.as_ref(), connect.cause.as_ref())
        }
        Detail::Activity(activity) => texts_bytes(&activity.objects),
        Detail::VnicWait(wait) => text_bytes(&wait.endpoint),
        Detail::Wait(wait) => text_bytes(&wait.what),
        Detail::Daemon(daemon) => daemon.name.len() + daemon.cgroup.len(),
        Detail::Journey(journey) => text_bytes(&journey.target),
        Detail::Sandbox(sandbox) => text_bytes(&sandbox.runtime),
        _ => 0,
    };
    let status = match &span.status {
        Status::Error { class, message } => text_bytes(class) + text_bytes(message),
        Status::Unset => 0,
    };
    let event_bytes = |event: &SpanEvent| {
        let attributes = event
            .attributes
            .iter()
            .map(|(key, value)| text_bytes(key) + text_bytes(value));
        size_of_val(event) + text_bytes(&event.name) + attributes.sum::<usize>()
    };
    let events: usize = span.events.iter().map(event_bytes).sum();
    size_of_val(span)
        + structure
        + texts
        + status
        + events
        + time.map_or(0, time_bytes)
        + waiting_bytes(span)
        + size_of_val(span.links.as_slice())
}

/// Names of processes are short, and lie within the structure.
fn time_bytes(time: &TimeSpent) -> usize {
    let what: usize = time.waits.iter().map(|wait| text_bytes(&wait.what)).sum();
    size_of_val(time) + size_of_val(time.parts.as_slice()) + size_of_val(time.waits.as_slice()) + what
}

fn waiting_bytes(span: &Span) -> usize {
    let waiting = span.process().and_then(|process| process.waiting.as_deref());
    waiting.map_or(0, |waiting| size_of_val(waiting) + text_bytes(&waiting.what))
}

fn traffic_bytes(initiator: Option<&Initiator>, cause: Option<&Cause>) -> usize {
    let cause = cause.map_or(0, |cause| text_bytes(&cause.cause) + texts_bytes(&cause.evidence));
    initiator.map_or(0, |initiator| text_bytes(&initiator.comm)) + cause
}

fn texts_bytes(list: &[impl AsRef<str>]) -> usize {
    list.iter().map(|text| text_bytes(text.as_ref())).sum()
}

/// A text's own bytes, its `String`, and the allocator's rounding.
fn text_bytes(text: &str) -> usize {
    text.len() + size_of::<String>() + 16
}
