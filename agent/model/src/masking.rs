//! Masks secrets in what a source reads: arguments, messages, labels and names with values.
//!
//! Used by the queue between sources and pipeline and by the replay of files, so that no event behind them holds a secret;
//! and by decoders that shorten a text, which mask it first. Pure: the same text gives the same masked text.
//! A secret is found by the name before it (`names`), by its place in a URL or header (`text`), or by its looks (`random`).
//! Does not: find a short secret that has neither name nor place, such as a password that is an argument by itself.

mod arguments;
mod names;
mod random;
mod text;
mod values;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::cni::PodIdentity;
use crate::event::{Body, Exec, PluginIo};
use crate::text_list::{TextList, TextPairs, split, split_once};
use crate::windows::{ActivityChange, ActivityStep, RuntimeReport};

pub use self::arguments::arguments;
pub use self::text::text;

/// What stands in the place of a secret.
pub const MASK: &str = "***";

/// How arguments of processes become part of events: the setting `commands.arguments`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arguments {
    /// Secrets in them are masked.
    #[default]
    Masked,
    /// As they are.
    Full,
    /// Left out, except the first one and those of a container runtime's own programs, which carry the steps of a sandbox.
    /// The latter are masked.
    None,
}

impl Arguments {
    /// Name in the configuration and in a recording's header.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Arguments::Masked => "masked",
            Arguments::Full => "full",
            Arguments::None => "none",
        }
    }
}

/// Masks an event in place. Everything but arguments is masked whatever `setting` is.
pub fn event(body: &mut Body, setting: Arguments) {
    match body {
        Body::ProcessExecuted(exec) => exec_in_place(exec, setting),
        Body::PluginIoRead(io) => plugin_io(io),
        Body::SandboxDescribed(description) => labels(&mut description.identity),
        Body::ActivitySeen(step) => activity(step),
        Body::RuntimeReported(line) => runtime_line(line),
        Body::NetworksConfigured { networks } => {
            for list in networks {
                in_place(&mut list.network);
                list.plugins.iter_mut().for_each(in_place);
            }
        }
        Body::CniConfigJudged { problems } => problems.iter_mut().for_each(|problem| in_place(&mut problem.text)),
        Body::LockBlocked(blocked) => in_place(&mut blocked.path),
        Body::ThreadsSeen(seen) => seen.sockets.iter_mut().for_each(|socket| in_place(&mut socket.path)),
        Body::FileLockTried(tried) => in_place(&mut tried.path),
        // Numbers, addresses, DNS names, names of pods, UUIDs, names of drivers, and texts of the kernel.
        Body::ProcessForked(_)
        | Body::ProcessExited(_)
        | Body::NetnsObserved(_)
        | Body::NetnsNamed { .. }
        | Body::TrafficWatched { .. }
        | Body::DnsSeen(_)
        | Body::DnsUnreported(_)
        | Body::ConnectSeen(_)
        | Body::FlowSeen(_)
        | Body::ConntrackCounted(_)
        | Body::PacketDropped(_)
        | Body::SiloSeen(_)
        | Body::InterfaceSeen(_)
        | Body::ThreadWoken(_)
        | Body::ThreadRan(_)
        | Body::ThreadEnded(_)
        | Body::TentativeSeen(_)
        | Body::ApiServerKnown { .. }
        | Body::KernelLockWaited(_)
        | Body::NetlinkRemarked(_)
        | Body::RuntimeMeasured(_)
        | Body::WaitsRecorded { .. }
        | Body::RequestSeen(_)
        | Body::SandboxRequested(_)
        | Body::SandboxResponded(_)
        | Body::RequestsFollowed { .. }
        | Body::LookupSeen(_)
        | Body::ClockAnchored { .. }
        | Body::Lost { .. }
        | Body::Limited { .. }
        | Body::Tick => {}
    }
}

/// The value of a pair, masked as a whole when its name is a secret's, else as a text.
#[must_use]
pub fn value_of(name: &str, value: &str) -> String {
    if names::is_secret(name) && !value.is_empty() {
        return MASK.to_owned();
    }
    text(value).into_owned()
}

/// Masks the arguments as configured, and the environment in any case.
fn exec_in_place(exec: &mut Exec, setting: Arguments) {
    match setting {
        Arguments::Full => {}
        Arguments::None if !is_runtime(exec.file_name()) => {
            let first: TextList = exec.args.iter().take(1).collect();
            exec.args = arguments(&first).unwrap_or(first);
        }
        Arguments::Masked | Arguments::None => {
            if let Some(masked) = arguments(&exec.args) {
                exec.args = masked;
            }
        }
    }
    if let Some(masked) = environment(&exec.env) {
        exec.env = masked;
    }
}

/// The programs whose arguments carry steps of a sandbox (`RuntimeExec` in the correlator).
fn is_runtime(name: &str) -> bool {
    name.starts_with("containerd-shim") || matches!(name, "conmon" | "runc" | "crun" | "youki" | "runsc")
}

/// `None` when nothing changes. Variables with a form that the CNI specification or W3C Trace Context defines have no room
/// for a secret, except `CNI_ARGS`.
fn environment(pairs: &TextPairs) -> Option<TextPairs> {
    let mut changed = false;
    let mask = |(name, value): (&str, &str)| {
        let masked = match name {
            "CNI_COMMAND" | "CNI_CONTAINERID" | "CNI_NETNS" | "CNI_IFNAME" | "CNI_PATH" | "TRACEPARENT" => None,
            "CNI_ARGS" => cni_args(value),
            _ => Some(value_of(name, value)),
        };
        (name.to_owned(), masked.unwrap_or_else(|| value.to_owned()))
    };
    // Nearly all environments hold only names that need no look.
    let fixed = |(name, value): (&str, &str)| match name {
        "CNI_COMMAND" | "CNI_CONTAINERID" | "CNI_NETNS" | "CNI_IFNAME" | "CNI_PATH" | "TRACEPARENT" => true,
        "CNI_ARGS" => cni_args(value).is_none(),
        _ => false,
    };
    if pairs.iter().all(fixed) {
        return None;
    }
    let masked: TextPairs = pairs
        .iter()
        .map(|pair| {
            let masked = mask(pair);
            changed |= masked.1 != pair.1;
            masked
        })
        .collect();
    changed.then_some(masked)
}

/// `K=V;K=V` (CNI conventions, `CNI_ARGS`). The pod's identity stays: the names of containerd and CRI-O.
fn cni_args(args: &str) -> Option<String> {
    let mut changed = false;
    let mut masked = String::with_capacity(args.len());
    for (index, pair) in split(args, b';').enumerate() {
        if index > 0 {
            masked.push(';');
        }
        let (name, value) = split_once(pair, b'=').unwrap_or((pair, ""));
        if name.starts_with("K8S_POD_") || name == "IgnoreUnknown" {
            masked.push_str(pair);
            continue;
        }
        let shown = if pair.contains('=') {
            format!("{name}={}", value_of(name, value))
        } else {
            text(pair).into_owned()
        };
        changed |= shown != pair;
        masked.push_str(&shown);
    }
    changed.then_some(masked)
}

/// Masks what a plugin read and wrote. Names come from a configuration file and messages from a program: both may hold
/// anything.
fn plugin_io(io: &mut PluginIo) {
    if let Some(netconf) = &mut io.netconf {
        for field in [&mut netconf.network, &mut netconf.plugin, &mut netconf.version] {
            in_place(field);
        }
    }
    if let Some(error) = &mut io.error {
        in_place(&mut error.msg);
        in_place(&mut error.details);
    }
    // A result's addresses; what has another form may be anything.
    io.addresses.retain(|address| is_address(address));
}

/// `ADDRESS` or `ADDRESS/PREFIX`.
fn is_address(text: &str) -> bool {
    let (address, prefix) = text.split_once('/').unwrap_or((text, "0"));
    address.parse::<std::net::IpAddr>().is_ok() && prefix.parse::<u8>().is_ok()
}

/// Masks the values of a pod's labels. Operators choose them, and a name may show that one is a secret.
fn labels(identity: &mut PodIdentity) {
    for (name, value) in &mut identity.labels {
        let masked = value_of(name, value);
        if masked != *value {
            *value = masked;
        }
    }
}

/// Masks messages and fields of an activity; its ids stay, since everything is joined by them.
fn activity(step: &mut ActivityStep) {
    match &mut step.step {
        ActivityChange::Started => {}
        ActivityChange::Stopped { message, .. } | ActivityChange::Noted { message, .. } => in_place(message),
    }
    if !step.fields.is_empty() {
        step.fields = step
            .fields
            .iter()
            .map(|(name, value)| (name.to_owned(), value_of(name, value)))
            .collect();
    }
}

/// Masks the messages that a runtime's log lines hold.
fn runtime_line(line: &mut RuntimeReport) {
    match line {
        RuntimeReport::RunFailed { message, .. } | RuntimeReport::StopReturned { message, .. } => in_place(message),
        RuntimeReport::Span(span) => in_place(&mut span.message),
        RuntimeReport::RunBegan { .. }
        | RuntimeReport::RunReturned { .. }
        | RuntimeReport::StopBegan { .. }
        | RuntimeReport::ContainerOf { .. }
        | RuntimeReport::NamespaceOf { .. }
        | RuntimeReport::EndpointOf { .. }
        | RuntimeReport::ShimLaunched { .. } => {}
    }
}

/// Masks a text where it stands; without a secret it keeps its allocation.
fn in_place(field: &mut String) {
    let masked = match text(field) {
        Cow::Owned(masked) => masked,
        Cow::Borrowed(_) => return,
    };
    *field = masked;
}

#[cfg(test)]
mod tests;
