//! Reads what an exec says by itself: the CNI parameters of a plugin's environment, a step of a container runtime, or
//! neither.
//!
//! Used by the rooms of plugins and of Windows. Pure functions over one event; whether the exec is the runtime's or
//! another plugin's doing is decided in `plugins/exec.rs`. A pod cannot influence these events, but a plugin and its
//! children can: nothing here trusts lengths, order or encoding. Does not: keep the environment.

use std::ops::Deref;

use memchr::memrchr;
use sandglass_model::event::{Exec, ExitStatus};
use sandglass_model::sampling::CallerSampling;
use sandglass_model::trace::{OperationDetail, ProcessDetail, RuntimeStep};
use sandglass_model::{CniCommand, SmolStr, Span, SpanId, TextList, TextPairs, TraceId, registry};

use crate::collections::mix::mix;
use crate::names::NameCache;

/// The image of an exec: the event without its environment, which is parsed and dropped. Moved from step to step, never
/// copied: it has the arguments in it.
#[derive(Debug)]
pub(crate) struct Image {
    exec: Box<Exec>,
    /// It is a Windows program: `.exe` and drive letters are not part of names.
    pub(crate) windows: bool,
}

impl Deref for Image {
    type Target = Exec;

    fn deref(&self) -> &Exec {
        &self.exec
    }
}

impl Image {
    /// Separates the environment from the rest of the event.
    pub(crate) fn split(mut exec: Box<Exec>) -> (Image, TextPairs) {
        let env = std::mem::take(&mut exec.env);
        (Image { exec, windows: false }, env)
    }

    /// Takes the arguments out; none are left.
    pub(crate) fn take_args(&mut self) -> TextList {
        std::mem::take(&mut self.exec.args)
    }

    /// Last component of the path; of a Windows program without `.exe`, as a configuration names it.
    pub(crate) fn file_name(&self) -> &str {
        let begin = memrchr(b'/', self.path.as_bytes()).map_or(0, |slash| slash + 1);
        let name = &self.path[begin..];
        if self.windows { without_exe(name) } else { name }
    }

    /// The directory of the path, without a drive's letter; `None` for a bare name.
    pub(crate) fn directory(&self) -> Option<&str> {
        let directory = &self.path[..memrchr(b'/', self.path.as_bytes())?];
        Some(without_drive(directory.trim_end_matches('/')))
    }

    /// The process as its span shows it. Paths and cgroup are shared texts.
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
            netlink: SmolStr::default(),
            attribution: None,
            time: None,
            waiting: None,
        }
    }
}

/// The CNI parameters of a plugin's environment (CNI spec 1.1.0, section 2, "Parameters").
#[derive(Clone, Copy, Debug)]
pub(crate) struct Invocation<'a> {
    /// `CNI_COMMAND`: the verb.
    pub(crate) command: CniCommand,
    /// `CNI_CONTAINERID`; empty for verbs without an attachment.
    pub(crate) container: &'a str,
    /// `CNI_IFNAME`; empty for verbs without an attachment.
    pub(crate) ifname: &'a str,
    /// `CNI_NETNS`: path of the network namespace, on Windows the id of the HCN namespace.
    pub(crate) netns: &'a str,
    /// `CNI_ARGS`: pairs of the runtime, among them the pod's name (`K8S_POD_NAME`).
    pub(crate) args: &'a str,
    /// `CNI_PATH`: directories in which plugins are looked up, separated by `:`.
    pub(crate) path: &'a str,
    /// The caller's span from `TRACEPARENT`, where a runtime that is traced itself passes it on.
    pub(crate) caller: Option<CallerSpan>,
    /// Sum of hashes over the `CNI_*` variables, whatever their order: distinguishes an inherited environment from one
    /// of the process's own without keeping either. Collisions can be made on purpose, which gains nothing: it turns a
    /// delegate of the maker's own plugin into a command.
    pub(crate) fingerprint: u64,
}

/// The span that requested a plugin, in the trace of a runtime that is traced itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallerSpan {
    pub(crate) trace: TraceId,
    pub(crate) span: SpanId,
    /// What the runtime decided about its trace.
    pub(crate) sampling: CallerSampling,
}

/// The first value of each variable of interest, while the environment is read. `None` and an empty value differ: only the
/// absence of `CNI_COMMAND` makes a process no plugin.
#[derive(Default)]
struct Parameters<'a> {
    command: Option<&'a str>,
    container: Option<&'a str>,
    ifname: Option<&'a str>,
    netns: Option<&'a str>,
    args: Option<&'a str>,
    path: Option<&'a str>,
    caller: Option<&'a str>,
    tracestate: Option<&'a str>,
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
            // Names are compared one by one: with this few that costs less than to look for the end of the name.
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
            } else if let Some(value) = named("TRACESTATE=") {
                (&mut read.tracestate, value)
            } else {
                continue;
            };
            // The first of several values counts, as with getenv(3).
            parameter.get_or_insert(value);
        }
        let command: CniCommand = read.command?.parse().ok()?;
        // libcni passes placeholders for commands that have no attachment.
        let attached = |value: Option<&'a str>| value.filter(|_| has_attachment(command)).unwrap_or_default();
        Some(Invocation {
            command,
            container: attached(read.container),
            ifname: attached(read.ifname),
            netns: attached(read.netns),
            args: attached(read.args),
            path: read.path.unwrap_or_default(),
            caller: read
                .caller
                .and_then(|text| traceparent(text, read.tracestate.unwrap_or_default())),
            fingerprint,
        })
    }

    /// The executable lies in a directory of `CNI_PATH`. Compared as text: a symbolic link in between makes it a
    /// command.
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
    /// The detail of the operation's span, before its first plugin.
    pub(crate) fn to_operation(self, attempt: u32) -> OperationDetail {
        OperationDetail {
            command: self.command,
            ifname: self.ifname.to_owned(),
            network: String::new(),
            netns: self.netns.to_owned(),
            attempt,
            plugins: Vec::with_capacity(2),
            addresses: Vec::new(),
            time: None,
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

/// The command is about one interface of one sandbox (CNI spec 1.1.0, section 2). Of the others GC and STATUS are about a
/// network, VERSION about a plugin.
pub(crate) fn has_attachment(command: CniCommand) -> bool {
    match command {
        CniCommand::Add | CniCommand::Del | CniCommand::Check => true,
        CniCommand::Gc | CniCommand::Status | CniCommand::Version => false,
    }
}

/// Parses W3C Trace Context, `traceparent` (<https://www.w3.org/TR/trace-context/#traceparent-header>). Versions above
/// 00 may append fields; version ff and zero ids are invalid.
fn traceparent(text: &str, tracestate: &str) -> Option<CallerSpan> {
    let mut parts = text.split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_hex2 = |text: &str| text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_hex2(version) || version == "ff" || !is_hex2(flags) || (version == "00" && parts.next().is_some()) {
        return None;
    }
    let (trace, span): (TraceId, SpanId) = (trace.parse().ok()?, span.parse().ok()?);
    let flags = u8::from_str_radix(flags, 16).ok()?;
    (trace.0 != 0 && span.0 != 0).then(|| CallerSpan {
        trace,
        span,
        sampling: CallerSampling::parse(flags, tracestate),
    })
}

/// What an exec of a runtime's helper does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuntimeExec<'a> {
    /// It is a step of the container with this id.
    Step(RuntimeStep, &'a str),
    /// It does something else: the shim's daemon, `runc state`, `runc delete`.
    Other,
}

impl<'a> RuntimeExec<'a> {
    /// Recognises containerd's shims, CRI-O's conmon, and OCI runtimes by name and arguments (`runc [options]
    /// create|start ID`). `None` if the file is no known runtime's. `runc init` is one too: runc executes a copy of
    /// itself from a memory file (CVE-2019-5736), so its name says nothing.
    pub(crate) fn of(image: &'a Image) -> Option<RuntimeExec<'a>> {
        RuntimeExec::parse(image.file_name(), &image.args)
    }

    /// As [`RuntimeExec::of`], by the executable's file name.
    pub(crate) fn parse(name: &str, args: &'a TextList) -> Option<RuntimeExec<'a>> {
        let mut args = args.iter();
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
            // `-c` and `--cid` of conmon(8), the container's id.
            value_of(&["-c", "--cid"]).map(|id| (RuntimeStep::Shim, id))
        } else if RUNTIMES.contains(&name) {
            // The id is the last argument of both verbs; options may stand before and behind the verb (runc-create(8)).
            let mut options = args.clone();
            options.next_back().and_then(|id| {
                let step = options.find_map(|arg| match arg {
                    "create" => Some(RuntimeStep::Create),
                    "start" => Some(RuntimeStep::Start),
                    _ => None,
                })?;
                Some((step, id))
            })
        } else if first.is_some_and(|first| RUNTIMES.contains(&first.rsplit('/').next().unwrap_or(first))) {
            // `runc init`, and any verb of crun: they execute a copy of themselves from a file descriptor (CVE-2019-5736). The first
            // argument is what the caller executed: containerd's is a name, CRI-O's a path.
            None
        } else {
            return None;
        };
        Some(step.map_or(RuntimeExec::Other, |(step, id)| RuntimeExec::Step(step, id)))
    }
}

/// OCI runtimes, by the names of their programs.
const RUNTIMES: [&str; 4] = ["runc", "crun", "youki", "runsc"];

/// The name of the runtime by the `comm` of the plugin's parent (proc_pid_comm(5); at most 15 bytes, TASK_COMM_LEN of
/// include/linux/sched.h). Any other caller is shown by its own name.
pub(crate) fn runtime_name(comm: &str) -> &str {
    match comm {
        "crio" => "cri-o",
        "containerd.exe" => "containerd",
        other => other,
    }
}

/// The runtime executes the steps that `RuntimeExec` recognises, so that they can be waited for. podman and cnitool do
/// not.
pub(crate) fn has_known_steps(runtime: &str) -> bool {
    matches!(runtime, "containerd" | "cri-o")
}

/// The runtime may start no process for a sandbox: CRI-O does so only where the pod's containers share their process ids
/// (`drop_infra_ctr`, which is on unless configured; `NeedsInfra` of internal/lib/sandbox/sandbox_linux.go).
pub(crate) fn may_start_nothing(runtime: &str) -> bool {
    runtime == "cri-o"
}

/// Error class and message of a failed exit. `None` for success, and for an exit that was not seen: its trace is marked
/// incomplete instead.
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

/// A command of iptables that answers by its exit code: 1 where a rule or chain does not exist (`-C`, `-S`, `-L`) or a
/// chain exists already (`-N`); see iptables(8). Plugins ask so before they change anything. Other failures of these commands
/// may have the same code: the plugin knows the text, and reports its own error.
pub(crate) fn is_answer(span: &Span, how: ExitStatus) -> bool {
    const PROGRAMS: [&str; 2] = ["iptables", "ip6tables"];
    const QUESTIONS: [&str; 8] = [
        "-C",
        "--check",
        "-S",
        "--list-rules",
        "-L",
        "--list",
        "-N",
        "--new-chain",
    ];
    let Some(command) = span.detail.as_command().filter(|_| how == ExitStatus::Code(1)) else {
        return false;
    };
    // Distributions add `-nft` or `-legacy`.
    let program = command.name.trim_end_matches("-nft").trim_end_matches("-legacy");
    let mut options = command.process.args.iter().skip(1);
    PROGRAMS.contains(&program) && options.any(|option| QUESTIONS.contains(&option))
}

/// Names of signals that usually end processes, by Linux numbers (signal(7)).
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
