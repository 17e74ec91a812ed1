//! A trace as indented text: one line per span, for terminals and golden tests.
//!
//! `sandglass replay --print tree`, `demo` and `watch` print it. Names come from the registry. Everything that a
//! process of the node could have chosen (arguments, messages, names) is escaped: it must not steer the terminal.
//! Does not: colour, draw bars, or know how wide the terminal is.

use crate::event::ExitStatus;
use crate::phases::human;
use crate::registry;
use crate::time::Timestamp;
use crate::trace::{
    Cause, CgroupOwner, CommandDetail, ConnectDetail, DaemonDetail, Detail, LookupDetail, PluginDetail, RequestBegin,
    SandboxDetail, Span, Status, ThreadsAttribution, Trace,
};
use crate::waits::TimeSpent;

/// Longest single text shown in a line, in characters.
const MAX_TEXT: usize = 120;

/// The trace as text: for each span its name (indented by depth), its begin after the root's, its duration, and in
/// brackets what distinguishes it from others of its name. Spans that are open are shown as running until `now`. Every
/// line ends with a line feed.
#[must_use]
pub fn tree(trace: &Trace, now: Timestamp) -> String {
    let rows: Vec<[String; 4]> = trace
        .in_tree_order()
        .into_iter()
        .map(|(index, depth)| {
            let span = &trace.spans[index];
            let running = if span.end.is_none() { "+" } else { "" };
            [
                format!("{}{}", "  ".repeat(depth), clean(&registry::name(span))),
                format!("+{}", human(span.start.since(trace.start()))),
                format!("{}{running}", human(span.duration_ns(now))),
                notes(trace, span).join(", "),
            ]
        })
        .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let (name, start, duration) = (width(0), width(1), width(2));
    let mut text = String::new();
    for [title, begin, took, notes] in &rows {
        let line = format!("{title:name$}  {begin:>start$}  {took:>duration$}");
        text.push_str(&line);
        if !notes.is_empty() {
            text.push_str("  [");
            text.push_str(notes);
            text.push(']');
        }
        text.push('\n');
    }
    text
}

/// What stands in a span's brackets.
fn notes(trace: &Trace, span: &Span) -> Vec<String> {
    let mut notes = match &span.detail {
        Detail::Sandbox(sandbox) => of_sandbox(trace, sandbox),
        Detail::SandboxCreate(create) => {
            let made = span.events.iter().find(|event| event.name == registry::EVENT_NETNS);
            // With the request seen the span begins before the namespace.
            let from_namespace = create.netns_seen && !create.request_seen;
            let took = made.map(|event| event.at.since(span.start));
            let took = took.filter(|ns| from_namespace && *ns > 0);
            [
                (create.request_seen, "from request".to_owned()),
                (from_namespace, "from namespace".to_owned()),
                (took.is_some(), format!("made in {}", human(took.unwrap_or_default()))),
                (create.response_seen, "to response".to_owned()),
                (
                    create.runtime_seen && !create.response_seen,
                    "to runtime start".to_owned(),
                ),
            ]
            .into_iter()
            .filter_map(|(seen, text)| seen.then_some(text))
            .collect()
        }
        Detail::Operation(operation) => {
            let mut notes = if span.parent.is_none() {
                of_root(trace)
            } else {
                Vec::new()
            };
            notes.extend([&operation.ifname, &operation.network].map(|text| clean(text)));
            notes.extend(attempt(operation.attempt));
            notes.extend(operation.addresses.iter().map(|address| clean(address)));
            notes
        }
        Detail::Plugin(plugin) => of_plugin(plugin),
        Detail::Command(command) => of_command(command),
        Detail::Journey(journey) => {
            let mut notes = of_root(trace);
            notes.push(journey.reason.as_str().to_owned());
            notes
        }
        Detail::Lookup(lookup) => of_lookup(lookup),
        Detail::Connect(connect) => of_connect(connect),
        Detail::Activity(activity) => {
            let mut notes: Vec<String> = activity.objects.iter().map(|object| of_object(object)).collect();
            notes.extend(activity.ambiguous.then(|| "ambiguous".to_owned()));
            notes
        }
        Detail::VnicWait(wait) => [&wait.endpoint, &wait.evidence].map(|text| clean(text)).into(),
        Detail::Wait(wait) => {
            let mut notes: Vec<String> = Vec::new();
            notes.extend((!wait.what.is_empty()).then(|| clean(&wait.what)));
            notes.extend(registry::wait_by(wait.reason, &wait.by).map(|by| clean(&by)));
            notes.extend(wait.confidence.map(|confidence| confidence.as_str().to_owned()));
            notes
        }
        Detail::Daemon(daemon) => of_daemon(daemon),
        _ => Vec::new(),
    };
    if let Some(process) = span.process() {
        if process.found_running {
            notes.push("found running".to_owned());
        }
        if process.outlived_parent {
            notes.push("ran on".to_owned());
        }
        if process.ambiguous {
            notes.push("ambiguous".to_owned());
        }
        if let Some(attribution) = process.attribution {
            notes.push(format!(
                "by {} ({})",
                attribution.as_str().replace('_', " "),
                attribution.confidence().as_str()
            ));
        }
        // Of a failure the error says it.
        if let Some(ExitStatus::Code(code)) = process.exit.filter(|_| !span.status.is_error())
            && code != 0
        {
            notes.push(format!("exit code {code}"));
        }
        if span.end.is_some() && process.exit == Some(ExitStatus::Unknown) {
            notes.push("end not seen".to_owned());
        }
    }
    if let Some(process) = span.process().filter(|process| !process.netlink.is_empty()) {
        notes.push(format!("the kernel: {}", clean(&process.netlink)));
    }
    notes.extend(span.detail.time().into_iter().flat_map(of_time));
    notes.extend(registry::waiting_of(trace, span).map(|waiting| {
        let ended = span.end.is_some();
        clean(&registry::waiting_text(waiting, ended))
    }));
    // What stands in the notes already.
    let usual = [registry::EVENT_QUERY, registry::EVENT_ANSWER, registry::EVENT_NETNS];
    let unusual = |name: &str| !usual.contains(&name);
    for event in span.events.iter().filter(|event| unusual(&event.name)) {
        let values: Vec<_> = event.attributes.iter().map(|(_, value)| clean(value)).collect();
        notes.push(format!("{} {}", event.name, values.join(" ")).trim_end().to_owned());
    }
    if span.end.is_none() {
        notes.push("running".to_owned());
    }
    if let Status::Error { class, message } = &span.status {
        notes.push(format!("error {class}: {}", clean(message)));
    }
    notes.retain(|note| !note.is_empty());
    notes
}

/// `endpoint=ee010101-1111`: enough of an id to distinguish it from others. Thirteen characters are the first two groups of a
/// GUID.
fn of_object(object: &str) -> String {
    const SHOWN: usize = 13;
    match object.split_once('=') {
        Some((kind, id)) => format!("{}={}", clean(kind), clean(id).chars().take(SHOWN).collect::<String>()),
        None => clean(object),
    }
}

/// Notes of a sandbox: pod, runtime, attempts, and whether it used its network at all.
fn of_sandbox(trace: &Trace, sandbox: &SandboxDetail) -> Vec<String> {
    let mut notes = of_root(trace);
    notes.push(clean(&sandbox.runtime));
    notes.extend(attempt(sandbox.attempt));
    if sandbox.silent {
        notes.push("sent nothing".to_owned());
    }
    if sandbox.attempts_left_out > 0 {
        notes.push(format!("{} attempts not shown", sandbox.attempts_left_out));
    }
    notes
}

/// Notes of a lookup: name and types, the server, the outcome, what went wrong on the way.
fn of_lookup(lookup: &LookupDetail) -> Vec<String> {
    let mut notes = vec![clean(&lookup.name), lookup.types.join("+")];
    notes.extend(lookup.servers.first().map(|server| format!("at {server}")));
    notes.extend(lookup.backend.map(|backend| format!("behind it {backend}")));
    notes.extend(lookup.result.map(|result| result.as_str().to_owned()));
    for (count, label) in [
        (lookup.retransmissions, "sent again"),
        (lookup.unanswered, "unanswered"),
        (lookup.search_names, "search names"),
    ] {
        if count > 0 {
            notes.push(format!("{count} {label}"));
        }
    }
    if lookup.truncated {
        notes.push("truncated".to_owned());
    }
    notes.extend(lookup.cause.as_ref().map(of_cause));
    notes
}

/// Notes of a connect: where to, behind which address of a service, what went wrong on the way.
fn of_connect(connect: &ConnectDetail) -> Vec<String> {
    let mut notes = vec![format!("to {}", connect.remote)];
    notes.extend(connect.backend.map(|backend| format!("behind it {backend}")));
    notes.push(clean(&connect.name));
    if connect.retransmits > 0 {
        notes.push(format!("{} SYNs sent again", connect.retransmits));
    }
    notes.extend(connect.cause.as_ref().map(of_cause));
    notes
}

/// What its time went to, the largest parts first, and the longest wait.
fn of_time(time: &TimeSpent) -> Vec<String> {
    let total = u128::from(time.total_ns().max(1));
    let mut parts = time.parts.clone();
    parts.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    // What is less than a fiftieth explains nothing.
    parts.retain(|(_, ns)| u128::from(*ns) * 50 >= total);
    let mut notes = Vec::new();
    for (reason, ns) in parts {
        notes.push(format!("{} {}", reason.as_str(), human(ns)));
    }
    notes.extend(time.waits.first().map(|wait| clean(&registry::wait_text(wait))));
    notes
}

/// A cause with how sure it is.
fn of_cause(cause: &Cause) -> String {
    format!("cause {} ({})", cause.cause, cause.confidence.as_str())
}

/// The pod, sandbox or node that the trace is about.
fn of_root(trace: &Trace) -> Vec<String> {
    let mut notes = Vec::with_capacity(3);
    let identity = &trace.identity;
    if identity.namespace.is_empty() {
        // podman names a container where a pod's name stands.
        notes.push(clean(&identity.name));
    } else if !identity.name.is_empty() {
        notes.push(clean(&format!("{}/{}", identity.namespace, identity.name)));
    }
    if let Some(sandbox) = &trace.sandbox {
        // As runtimes' own tools shorten it.
        notes.push(clean(&sandbox.0.chars().take(13).collect::<String>()));
    }
    if trace.incomplete {
        notes.push("incomplete".to_owned());
    }
    notes
}

fn of_plugin(plugin: &PluginDetail) -> Vec<String> {
    let delegate = if plugin.delegate { "delegate" } else { "" };
    vec![delegate.to_owned()]
}

fn of_daemon(daemon: &DaemonDetail) -> Vec<String> {
    let owner = CgroupOwner::of(&daemon.cgroup);
    let pod = owner.pod_uid();
    let mut notes = vec![daemon.transport.as_str().to_owned()];
    notes.extend((!pod.is_empty()).then(|| format!("pod {}", clean(&pod))));
    notes.extend((!owner.unit.is_empty()).then(|| clean(owner.unit)));
    match daemon.begin {
        RequestBegin::Sent => {}
        RequestBegin::Recovered => notes.push("begin recovered".to_owned()),
        RequestBegin::Followed => notes.push("begin not seen".to_owned()),
    }
    notes.extend(daemon.unanswered.then(|| "no answer".to_owned()));
    match daemon.threads {
        Some(ThreadsAttribution::Ambiguous) => notes.push("ambiguous".to_owned()),
        Some(threads) => notes.push(format!(
            "its threads by {} ({})",
            threads.as_str().replace('_', " "),
            threads.confidence().as_str()
        )),
        None => {}
    }
    notes
}

fn of_command(command: &CommandDetail) -> Vec<String> {
    vec![clean(&command.process.args.join_rest())]
}

/// The number of an attempt, from the second on.
fn attempt(number: u32) -> Option<String> {
    (number > 1).then(|| format!("attempt {number}"))
}

/// Bounded, on one line, without anything a terminal would obey.
fn clean(text: &str) -> String {
    let mut cleaned = String::with_capacity(text.len().min(MAX_TEXT));
    for (place, character) in text.chars().enumerate() {
        if place == MAX_TEXT {
            cleaned.push_str("...");
            break;
        }
        // Format characters can turn the direction of the text around them.
        let steers = character.is_control()
            || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
        if steers {
            cleaned.extend(character.escape_default());
        } else {
            cleaned.push(character);
        }
    }
    cleaned
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cni::{CniCommand, PodIdentity};
    use crate::id::{SandboxId, SpanId, TraceId};
    use crate::time::{ClockAnchor, MILLISECOND};
    use crate::trace::{OperationDetail, ProcessDetail};

    fn span(parent: Option<usize>, from_ms: u64, to_ms: Option<u64>, detail: Detail) -> Span {
        Span {
            id: SpanId(1),
            parent,
            start: Timestamp(from_ms * MILLISECOND),
            end: to_ms.map(|ms| Timestamp(ms * MILLISECOND)),
            status: Status::Unset,
            detail,
            events: Vec::new(),
            links: Vec::new(),
        }
    }

    fn command(args: &[&str]) -> Detail {
        Detail::Command(Box::new(CommandDetail {
            name: args[0].into(),
            plugin: "slow".into(),
            process: ProcessDetail {
                args: args.iter().collect(),
                ..ProcessDetail::default()
            },
        }))
    }

    /// The arguments hold a sequence that clears the screen, a line feed, and a character that turns the direction of the text.
    #[test]
    fn lines_are_indented_aligned_and_harmless() {
        let trace = Trace {
            id: TraceId(1),
            sandbox: Some(SandboxId("0123456789abcdef".to_owned())),
            identity: PodIdentity::default(),
            anchor: ClockAnchor::default(),
            incomplete: false,
            closed: false,
            remote_parent: None,
            caller: None,
            spans: vec![
                span(
                    None,
                    10,
                    None,
                    Detail::Operation(Box::new(OperationDetail {
                        command: CniCommand::Del,
                        ifname: "eth0".to_owned(),
                        network: String::new(),
                        netns: String::new(),
                        attempt: 2,
                        plugins: Vec::new(),
                        addresses: Vec::new(),
                        time: None,
                    })),
                ),
                span(Some(0), 12, Some(13), command(&["sh", "-c", "\u{1b}[2J\n\u{202e}x"])),
                span(Some(0), 11, Some(14), command(&["ip", "link"])),
                span(Some(1), 12, Some(13), command(&["true"])),
            ],
        };
        assert_eq!(
            tree(&trace, Timestamp(20 * MILLISECOND)),
            "\
cni DEL              +0 ns  10.0 ms+  [0123456789abc, eth0, attempt 2, running]
  command ip      +1.00 ms   3.00 ms  [link]
  command sh      +2.00 ms   1.00 ms  [-c \\u{1b}[2J\\n\\u{202e}x]
    command true  +2.00 ms   1.00 ms
"
        );
    }
}
