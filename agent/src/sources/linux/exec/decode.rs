//! Decodes the records of the process probe into events. Pure; any bytes give a record or an error, never a panic.
//!
//! Used by the feed of the process probe, by tests and by the benchmarks. Of the environment only `CNI_*`, `TRACEPARENT`
//! and `TRACESTATE` become part of an event.
//! Does not: look up a cgroup's path, or leave out processes of runtimes (the feed does).

use sandglass_model::event::{Exec, Exit, ExitStatus, Fork, NetlinkRemark, PluginIo};
use sandglass_model::waits::{SchedulerCount, ThreadKey};
use sandglass_model::{Body, Event, ProcessKey, TextList, TextPairs, Texts, Timestamp};
use sandglass_probes::Record as _;
use sandglass_probes::wire::cri::{
    KIND_SANDBOX_REQUEST, KIND_SANDBOX_RESPONSE, SandboxRequestRecord, SandboxResponseRecord,
};
use sandglass_probes::wire::daemons::MessageRecord;
use sandglass_probes::wire::extack::{ExtackRecord, KIND_EXTACK};
use sandglass_probes::wire::locks::{ContentionRecord, FileLockRecord, KIND_CONTENTION, KIND_FILE_LOCK};
use sandglass_probes::wire::waits::{RunRecord, WakeRecord};
use sandglass_probes::wire::{
    COMM_LEN, ExecRecord, ExitRecord, FLAG_ARGS_CUT, ForkRecord, GoroutineWords, KIND_EXEC, KIND_EXIT, KIND_FORK,
    KIND_MESSAGE, KIND_RUN, KIND_WAKE, ROLE_RUNTIME, ROLE_RUNTIME_FORK, ROLE_TRACKED, RecordHeader,
};

use super::stdio;
use crate::sources::linux::record::{DecodeError, text};

/// A decoded record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedProcess {
    /// What happened. The cgroup path of an exec is still empty.
    pub event: Event,
    /// Of an exit, what the plugin read and wrote before.
    pub io: Option<Box<PluginIo>>,
    /// Id of the cgroup (v2) of an exec, else 0.
    pub cgroup_id: u64,
    /// Whose the process is.
    pub role: ProcessRole,
    /// Bytes that waited in the ring buffer when the record was written.
    pub ring_bytes: u64,
    /// The goroutine that forked, of a fork of a daemon in Go.
    pub goroutine: GoroutineWords,
}

/// Whose a process is, as far as the kernel side distinguishes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessRole {
    /// A plugin, or below one or a daemon.
    Tracked,
    /// A known runtime's own.
    Runtime,
    /// A runtime's process forked it, and it has executed nothing of a runtime.
    RuntimeFork,
}

/// A record of the process probe, or of the programs that follow waits, which need names of the kernel's functions, or requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodedRecord {
    /// An event of a process.
    Process(DecodedProcess),
    /// A thread was woken.
    Wake(Box<WakeRecord>),
    /// A thread began to run.
    Run(RunRecord),
    /// A thread tried to lock a file.
    FileLock(Box<FileLockRecord>),
    /// A thread has waited for a lock of the kernel.
    Contention(Box<ContentionRecord>),
    /// A message between a tracked process and a daemon.
    Message(MessageRecord),
    /// The runtime received a request to make a sandbox.
    SandboxRequest(Box<SandboxRequestRecord>),
    /// The runtime responded to it.
    SandboxResponse(Box<SandboxResponseRecord>),
}

/// Decodes one record: one of a process as [`decode`] does, or one of a wait or a message.
///
/// # Errors
/// When the bytes are no record.
pub fn decode_any(bytes: &[u8]) -> Result<DecodedRecord, DecodeError> {
    let short = |kind| DecodeError::Short {
        kind,
        bytes: bytes.len(),
    };
    let (header, _) = RecordHeader::read(bytes).ok_or(short(0))?;
    Ok(match header.kind {
        KIND_WAKE => {
            let (record, _) = WakeRecord::read(bytes).ok_or(short(KIND_WAKE))?;
            DecodedRecord::Wake(Box::new(record))
        }
        KIND_RUN => {
            let (record, _) = RunRecord::read(bytes).ok_or(short(KIND_RUN))?;
            DecodedRecord::Run(record)
        }
        KIND_FILE_LOCK => {
            let (record, _) = FileLockRecord::read(bytes).ok_or(short(KIND_FILE_LOCK))?;
            DecodedRecord::FileLock(Box::new(record))
        }
        KIND_CONTENTION => {
            let (record, _) = ContentionRecord::read(bytes).ok_or(short(KIND_CONTENTION))?;
            DecodedRecord::Contention(Box::new(record))
        }
        KIND_MESSAGE => {
            let (record, _) = MessageRecord::read(bytes).ok_or(short(KIND_MESSAGE))?;
            DecodedRecord::Message(record)
        }
        KIND_SANDBOX_REQUEST => {
            let (record, _) = SandboxRequestRecord::read(bytes).ok_or(short(KIND_SANDBOX_REQUEST))?;
            DecodedRecord::SandboxRequest(Box::new(record))
        }
        KIND_SANDBOX_RESPONSE => {
            let (record, _) = SandboxResponseRecord::read(bytes).ok_or(short(KIND_SANDBOX_RESPONSE))?;
            DecodedRecord::SandboxResponse(Box::new(record))
        }
        _ => DecodedRecord::Process(decode(bytes)?),
    })
}

/// Decodes one record of a process.
///
/// # Errors
/// When the bytes are no record.
pub fn decode(bytes: &[u8]) -> Result<DecodedProcess, DecodeError> {
    let short = |kind| DecodeError::Short {
        kind,
        bytes: bytes.len(),
    };
    let (header, _) = RecordHeader::read(bytes).ok_or(short(0))?;
    let (mut cgroup_id, mut io) = (0, None);
    let mut role = ROLE_TRACKED;
    let mut goroutine = GoroutineWords::default();
    let body = match header.kind {
        KIND_FORK => {
            let (record, _) = ForkRecord::read(bytes).ok_or(short(KIND_FORK))?;
            (role, goroutine) = (record.role, record.goroutine);
            Body::ProcessForked(Fork {
                process: key(&header),
                parent: ProcessKey::new(record.parent_pid, record.parent_start_ns),
                thread: (record.parent_tid != 0).then_some(ThreadKey {
                    id: record.parent_tid,
                    begin: Timestamp(record.parent_thread_start_ns),
                }),
                goroutine: None,
            })
        }
        KIND_EXEC => {
            let (record, rest) = ExecRecord::read(bytes).ok_or(short(KIND_EXEC))?;
            (cgroup_id, role) = (record.cgroup_id, record.role);
            let exec = exec(&record, rest).ok_or(short(KIND_EXEC))?;
            Body::ProcessExecuted(Box::new(exec))
        }
        KIND_EXIT => {
            let (record, rest) = ExitRecord::read(bytes).ok_or(short(KIND_EXIT))?;
            role = record.role;
            io = plugin_io(&record, rest).ok_or(short(KIND_EXIT))?;
            Body::ProcessExited(Exit {
                process: key(&header),
                how: exit_status(record.status),
            })
        }
        KIND_EXTACK => {
            let (record, _) = ExtackRecord::read(bytes).ok_or(short(KIND_EXTACK))?;
            let len = record.message.iter().position(|byte| *byte == 0);
            Body::NetlinkRemarked(Box::new(NetlinkRemark {
                process: key(&header),
                message: text(&record.message[..len.unwrap_or(record.message.len())]).into(),
            }))
        }
        kind => return Err(DecodeError::UnknownKind(kind)),
    };
    let at = Timestamp(header.at_ns);
    Ok(DecodedProcess {
        event: Event { at, body },
        io,
        cgroup_id,
        role: match role {
            ROLE_RUNTIME => ProcessRole::Runtime,
            ROLE_RUNTIME_FORK => ProcessRole::RuntimeFork,
            _ => ProcessRole::Tracked,
        },
        ring_bytes: header.ring_bytes,
        goroutine,
    })
}

/// The process of a record: pid and start, since the kernel reuses pids.
fn key(header: &RecordHeader) -> ProcessKey {
    ProcessKey::new(header.pid, header.start_ns)
}

/// The exec of a record; `None` when the texts behind it are shorter than their lengths. Texts may hold any bytes but zeros, so
/// that each becomes UTF-8 with escapes.
fn exec(record: &ExecRecord, rest: &[u8]) -> Option<Exec> {
    let (path, rest) = rest.split_at_checked(record.path_len as usize)?;
    let (args, rest) = rest.split_at_checked(record.args_len as usize)?;
    let (env, _) = rest.split_at_checked(record.env_len as usize)?;
    let comm_len = record.parent_comm.iter().position(|byte| *byte == 0);
    Some(Exec {
        process: key(&record.header),
        parent: ProcessKey::new(record.parent_pid, record.parent_start_ns),
        parent_comm: text(&record.parent_comm[..comm_len.unwrap_or(COMM_LEN)]).into(),
        path: text(path).into(),
        // An invalid sequence of UTF-8 ends before a zero byte, so all arguments can be escaped at once.
        args: TextList::from_terminated(text(args)),
        args_truncated: record.flags & FLAG_ARGS_CUT != 0,
        env: kept_environment(env),
        cgroup: String::new(),
        netns: u64::from(record.netns),
        counted: Some(SchedulerCount {
            processor_ns: record.processor_ns,
            run_delay_ns: record.run_delay_ns,
        }),
        running: false,
    })
}

/// What the plugin of an exit read and wrote; `None` when the texts behind the record are shorter than their lengths, `Some(None)` when
/// there is no JSON in them.
fn plugin_io(record: &ExitRecord, rest: &[u8]) -> Option<Option<Box<PluginIo>>> {
    let (stdin, rest) = rest.split_at_checked(record.stdin_len as usize)?;
    let stdout = rest.get(..record.stdout_len as usize)?;
    Some(stdio::parse(key(&record.header), stdin, stdout).map(Box::new))
}

/// How a process ended, from a status as wait(2) returns it: the signal in bits 0 to 6, bit 7 for a core dump, the code in bits
/// 8 to 15. Whether it dumped core is not kept.
fn exit_status(status: u32) -> ExitStatus {
    match status & 0x7f {
        0 => ExitStatus::Code(i32::from((status >> 8) as u8)),
        signal => ExitStatus::Signal(i32::from(signal as u8)),
    }
}

/// The variables that become part of an event, in their order. `bytes` is an environment as in `/proc/PID/environ`. Everything
/// else is left out because environments hold credentials. `TRACEPARENT` and `TRACESTATE` carry the caller's trace (W3C Trace
/// Context, sections 3.2 and 3.3, in the names that OpenTelemetry uses for environment variables).
#[must_use]
pub fn kept_environment(bytes: &[u8]) -> TextPairs {
    let is_kept = |variable: &str| {
        // Names are short: a loop over their bytes is faster than memchr here (bench: throughput).
        let is_cni = variable
            .strip_prefix("CNI_")
            .is_some_and(|rest| rest.bytes().any(|byte| byte == b'='));
        is_cni || variable.starts_with("TRACEPARENT=") || variable.starts_with("TRACESTATE=")
    };
    let variables = text(bytes);
    // The usual case: the kernel side leaves out nearly all others.
    if Texts::of_terminated(&variables).all(is_kept) {
        return TextPairs::from_terminated(variables);
    }
    let kept: Vec<&str> = Texts::of_terminated(&variables)
        .filter(|variable| is_kept(variable))
        .collect();
    TextPairs::from_terminated(kept.join("\0"))
}

#[cfg(test)]
mod tests;
