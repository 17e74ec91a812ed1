//! What an exec says by itself: a call of a CNI plugin, a step of a container runtime, or neither.
//!
//! Used by the state machine. Pure reading of one event; whether the exec is the runtime's or another plugin's
//! doing is not decided here. Everything in the event is hostile input.

use std::ops::Deref;

use memchr::memrchr;
use sandglass_model::event::{Exec, ExitStatus};
use sandglass_model::trace::{OperationDetail, ProcessDetail, RuntimeStep};
use sandglass_model::{CniCommand, Span, SpanId, TextList, TextPairs, TraceId, registry};

use crate::collections::mix::mix;
use crate::names::NameCache;

/// What an exec brings into a span: the event without its environment, which is read and dropped. Handed on as it came:
/// it is too large to be copied from step to step.
#[derive(Debug)]
pub(crate) struct Image {
    exec: Box<Exec>,
    /// It is a Windows program.
    pub(crate) windows: bool,
}

impl Deref for Image {
    type Target = Exec;

    fn deref(&self) -> &Exec {
        &self.exec
    }
}

impl Image {
    /// Takes the environment out of the event.
    pub(crate) fn split(mut exec: Box<Exec>) -> (Image, TextPairs) {
        let env = std::mem::take(&mut exec.env);
        (Image { exec, windows: false }, env)
    }

    /// The arguments, which are then gone from here.
    pub(crate) fn take_args(&mut self) -> TextList {
        std::mem::take(&mut self.exec.args)
    }

    /// Last component of the path; of a Windows program without `.exe`, as a configuration names it.
    pub(crate) fn file_name(&self) -> &str {
        let begin = memrchr(b'/', self.path.as_bytes()).map_or(0, |slash| slash + 1);
        let name = &self.path[begin..];
        if self.windows { without_exe(name) } else { name }
    }

    /// The directory of the path, without a drive's letter.
    pub(crate) fn directory(&self) -> Option<&str> {
        let directory = &self.path[..memrchr(b'/', self.path.as_bytes())?];
        Some(without_drive(directory.trim_end_matches('/')))
    }

    /// The process as a span shows it.
    pub(crate) fn into_detail(mut self, names: &mut NameCache) -> ProcessDetail {
        ProcessDetail {
            pid: self.process.pid,
            parent_pid: self.parent.pid,
            path: names.get(&self.path),
            args: self.take_args(),
            cgroup: names.get(&self.cgroup),
            netns: self.netns,
            exit: None,
            found_running: self.running,
            outlived_parent: false,
            ambiguous: false,
        }
    }
}

/// The CNI parameters of a plugin's environment (CNI spec 1.1.0, section 2, "Parameters").
#[derive(Clone, Copy, Debug)]
pub(crate) struct Invocation<'a> {
    pub(crate) command: CniCommand,
    /// `CNI_CONTAINERID`; empty for verbs without an attachment.
    pub(crate) container: &'a str,
    /// `CNI_IFNAME`; empty for verbs without an attachment.
    pub(crate) ifname: &'a str,
    pub(crate) netns: &'a str,
    pub(crate) args: &'a str,
    pub(crate) path: &'a str,
    pub(crate) caller: Option<(TraceId, SpanId)>,
    /// Sum over the `CNI_*` variables of the environment, whatever their order: tells an inherited environment from one of
    /// a process's own without keeping either. Not made against collisions on purpose: who makes one turns a delegate of
    /// their own plugin into a command.
    pub(crate) fingerprint: u64,
}

/// Of each variable of interest the first.
#[derive(Default)]
struct Parameters<'a> {
    command: Option<&'a str>,
    container: Option<&'a str>,
    ifname: Option<&'a str>,
    netns: Option<&'a str>,
    args: Option<&'a str>,
    path: Option<&'a str>,
    caller: Option<&'a str>,
}

impl<'a> Invocation<'a> {
    /// `None` when the environment has no valid `CNI_COMMAND`.
    pub(crate) fn of(env: &'a TextPairs) -> Option<Invocation<'a>> {
        let mut read = Parameters::default();
        let mut fingerprint = 0_u64;
        for variable in env.texts() {
            if variable.starts_with("CNI_") {
                fingerprint = fingerprint.wrapping_add(mix(0, variable.as_bytes()));
            }
            // Each name by itself: comparing with so few that are known is less than to look for where it ends.
            let named = |name: &str| variable.strip_prefix(name);
            let (parameter, value) = if let Some(value) = named("CNI_CONTAINERID=") {
                (&mut read.container, value)
            } else if let Some(value) = named("CNI_NETNS=") {
                (&mut read.netns, value)
            } else if let Some(value) = named("CNI_ARGS=") {
                (&mut read.args, value)
            } else if let Some(value) = named("CNI_COMMAND=") {
                (&mut read.command, value)
            } else if let Some(value) = named("CNI_IFNAME=") {
                (&mut read.ifname, value)
            } else if let Some(value) = named("CNI_PATH=") {
                (&mut read.path, value)
            } else if let Some(value) = named("TRACEPARENT=") {
                (&mut read.caller, value)
            } else {
                continue;
            };
            // As getenv(3): the first one counts.
            parameter.get_or_insert(value);
        }
        let command: CniCommand = read.command?.parse().ok()?;
        // libcni fills these with placeholders for the verbs that have no attachment.
        let attached = |value: Option<&'a str>| value.filter(|_| has_attachment(command)).unwrap_or_default();
        Some(Invocation {
            command,
            container: attached(read.container),
            ifname: attached(read.ifname),
            netns: attached(read.netns),
            args: attached(read.args),
            path: read.path.unwrap_or_default(),
            caller: read.caller.and_then(traceparent),
            fingerprint,
        })
    }

    /// The executable lies in one of the directories where the runtime looks for plugins.
    pub(crate) fn is_in_plugin_path(&self, image: &Image) -> bool {
        let Some(directory) = image.directory() else {
            return false;
        };
        self.path
            .split(':')
            .any(|entry| !entry.is_empty() && entry.trim_end_matches('/') == directory)
    }
}

impl Invocation<'_> {
    /// The operation as its span shows it, before its first plugin.
    pub(crate) fn to_operation(self, attempt: u32) -> OperationDetail {
        OperationDetail {
            command: self.command,
            ifname: self.ifname.to_owned(),
            network: String::new(),
            netns: self.netns.to_owned(),
            attempt,
            plugins: Vec::with_capacity(2),
            addresses: Vec::new(),
        }
    }
}

/// A Windows program's name without `.exe`.
pub(crate) fn without_exe(name: &str) -> &str {
    match name.len().checked_sub(4).and_then(|at| name.split_at_checked(at)) {
        Some((stem, extension)) if !stem.is_empty() && extension.eq_ignore_ascii_case(".exe") => stem,
        _ => name,
    }
}

/// A directory without `C:`, which the colons of `CNI_PATH` would cut.
fn without_drive(directory: &str) -> &str {
    match directory.as_bytes() {
        [letter, b':', ..] if letter.is_ascii_alphabetic() => directory.get(2..).unwrap_or_default(),
        _ => directory,
    }
}

/// The verb is about one interface of one sandbox.
pub(crate) fn has_attachment(command: CniCommand) -> bool {
    match command {
        CniCommand::Add | CniCommand::Del | CniCommand::Check => true,
        CniCommand::Gc | CniCommand::Status | CniCommand::Version => false,
    }
}

/// W3C Trace Context, `traceparent` (<https://www.w3.org/TR/trace-context/#traceparent-header>). Versions above 00 may
/// append fields.
fn traceparent(text: &str) -> Option<(TraceId, SpanId)> {
    let mut parts = text.split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_hex2 = |text: &str| text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_hex2(version) || version == "ff" || !is_hex2(flags) || (version == "00" && parts.next().is_some()) {
        return None;
    }
    let (trace, span): (TraceId, SpanId) = (trace.parse().ok()?, span.parse().ok()?);
    (trace.0 != 0 && span.0 != 0).then_some((trace, span))
}

/// What an exec of a runtime's helper says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuntimeExec<'a> {
    /// A step of creating the container with this id.
    Step(RuntimeStep, &'a str),
    /// A runtime's program at other work: the shim's daemon, `runc state`, `runc delete`.
    Other,
}

impl<'a> RuntimeExec<'a> {
    /// `None` when the file is no known runtime's.
    pub(crate) fn of(image: &'a Image) -> Option<RuntimeExec<'a>> {
        let name = image.file_name();
        let mut args = image.args.iter();
        let first = args.next();
        let value_of = |names: &[&str]| {
            let mut rest = args.clone();
            while let Some(arg) = rest.next() {
                if names.contains(&arg) {
                    return rest.next();
                }
                if let Some((_, value)) = arg.split_once('=').filter(|(key, _)| names.contains(key)) {
                    return Some(value);
                }
            }
            None
        };
        let step = if name.starts_with("containerd-shim") {
            // The short-lived `start` brings the daemon up; the daemon itself has no subcommand.
            let starts = args.clone().any(|arg| arg == "start");
            value_of(&["-id", "--id"])
                .filter(|_| starts)
                .map(|id| (RuntimeStep::Shim, id))
        } else if name == "conmon" {
            value_of(&["-c", "--cid"]).map(|id| (RuntimeStep::Shim, id))
        } else if matches!(name, "runc" | "crun" | "youki" | "runsc") {
            let mut options = args.clone();
            options.next_back().and_then(|id| {
                let step = options.find_map(|arg| match arg {
                    "create" => Some(RuntimeStep::Create),
                    "start" => Some(RuntimeStep::Start),
                    _ => None,
                })?;
                Some((step, id))
            })
        } else if first == Some("runc") {
            // `runc init`: runc executes a copy of itself from a file descriptor (CVE-2019-5736).
            None
        } else {
            return None;
        };
        Some(step.map_or(RuntimeExec::Other, |(step, id)| RuntimeExec::Step(step, id)))
    }
}

/// Name of the runtime whose process has this `comm`.
pub(crate) fn runtime_name(comm: &str) -> &str {
    match comm {
        "crio" => "cri-o",
        "containerd.exe" => "containerd",
        other => other,
    }
}

/// Whether the steps of the runtime are known, so that they can be waited for.
pub(crate) fn has_known_steps(runtime: &str) -> bool {
    matches!(runtime, "containerd" | "cri-o")
}

/// Error class and message of an exit, `None` for success and for an exit that nobody saw.
pub(crate) fn failure_of(span: &Span, how: ExitStatus) -> Option<(&'static str, String)> {
    let name = || registry::name(span);
    match how {
        ExitStatus::Code(0) | ExitStatus::Unknown => None,
        ExitStatus::Code(code) => Some(("exit_code", format!("{} exited with code {code}", name()))),
        ExitStatus::Signal(signal) => Some((
            "signal",
            format!("{} was killed by signal {signal}{}", name(), signal_name(signal)),
        )),
    }
}

/// Signals by which processes usually die, Linux numbers.
fn signal_name(signal: i32) -> &'static str {
    match signal {
        1 => " (SIGHUP)",
        2 => " (SIGINT)",
        3 => " (SIGQUIT)",
        4 => " (SIGILL)",
        6 => " (SIGABRT)",
        7 => " (SIGBUS)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        13 => " (SIGPIPE)",
        14 => " (SIGALRM)",
        15 => " (SIGTERM)",
        31 => " (SIGSYS)",
        _ => "",
    }
}
