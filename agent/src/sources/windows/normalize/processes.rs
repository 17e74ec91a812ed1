//! Processes with their command lines (kernel logger), and silos (Microsoft-Windows-Kernel-Process).
//!
//! Only the kernel logger's class has command lines (<https://learn.microsoft.com/windows/win32/etw/process-typegroup1>); no
//! version of Microsoft-Windows-Kernel-Process has. Environments are in no event, so that on Windows a plugin is recognized
//! by its path and its descent alone. Does not: recognize plugins (the correlator does).

use std::collections::BTreeMap;

use sandglass_etw::EtwEvent;
use sandglass_model::event::{Exec, Exit, ExitStatus};
use sandglass_model::windows::{SiloChange, SiloStep};
use sandglass_model::{Body, ProcessKey, SmolStr, TextList};

use super::text::{bounded, guid_text};

/// Running processes, by id.
#[derive(Debug, Default)]
pub(super) struct ProcessTable {
    /// At most [`MAX_RUNNING`].
    running: BTreeMap<u32, RunningProcess>,
}

/// What is kept of a process for its children and its end.
#[derive(Debug)]
struct RunningProcess {
    /// Its id with the time of its start event: Windows reuses an id soon after its process has ended.
    key: ProcessKey,
    /// Name of the image in lower case, without its folder.
    name: SmolStr,
}

impl ProcessTable {
    /// A process that started, ended, or ran already when the session began (rundown). The end of a process whose start was not
    /// seen makes no event: nothing refers to it.
    pub(super) fn logged(&mut self, event: &EtwEvent) -> Option<Body> {
        let pid = event.u32("ProcessId")?;
        match event.opcode {
            START | RUNDOWN_START => Some(self.started(pid, event)),
            END => {
                let key = match self.running.remove(&pid) {
                    Some(running) => running.key,
                    None => return None,
                };
                let code = event.code("ExitStatus").unwrap_or(0);
                Some(Body::ProcessExited(Exit {
                    process: key,
                    // An exit code may be an NTSTATUS, such as 0xc000013a (STATUS_CONTROL_C_EXIT): the bits are kept.
                    how: ExitStatus::Code(code as i32),
                }))
            }
            _ => None,
        }
    }

    /// A process that started. Its parent is looked up now: Windows reuses the id as soon as the parent is gone. The parent
    /// of a process from before the session is known by id only.
    fn started(&mut self, pid: u32, event: &EtwEvent) -> Body {
        let key = ProcessKey::new(pid, event.at_ns);
        let parent = event.u32("ParentId").unwrap_or(0);
        let (parent, parent_comm) = match self.running.get(&parent) {
            Some(running) => (running.key, running.name.clone()),
            None => (ProcessKey::new(parent, 0), SmolStr::default()),
        };
        // Empty for a process of the kernel, such as System and Registry.
        let command_line = event.text("CommandLine").unwrap_or_default();
        let (args, truncated) = split_command_line(command_line);
        let image = event.text("ImageFileName").unwrap_or_default();
        // Paths get forward slashes, so that one rule for the last component serves both systems.
        let path = match args.first() {
            // The first argument has the whole path, the image name only its last component.
            Some(first) if first.contains(['\\', '/']) => first.clone(),
            _ => image.to_owned(),
        };
        if self.running.len() >= MAX_RUNNING {
            // Events of ends were lost. Evicts the smallest id, which is likely an early process.
            self.running.pop_first();
        }
        self.running.insert(
            pid,
            RunningProcess {
                key,
                name: bounded(image).to_lowercase().into(),
            },
        );
        Body::ProcessExecuted(Box::new(Exec {
            process: key,
            parent,
            parent_comm,
            path: bounded(&path).replace('\\', "/").into(),
            args: args.iter().map(String::as_str).collect::<TextList>(),
            args_truncated: truncated,
            env: Default::default(),
            cgroup: String::new(),
            netns: 0,
            counted: None,
            running: event.opcode == RUNDOWN_START,
        }))
    }
}

/// Splits a command line as `CommandLineToArgvW` does: quotes group, backslashes escape only before quotes
/// (<https://learn.microsoft.com/windows/win32/api/shellapi/nf-shellapi-commandlinetoargvw>). Returns the arguments, and
/// whether some were cut.
fn split_command_line(line: &str) -> (Vec<String>, bool) {
    let (mut args, mut arg, mut backslashes) = (Vec::new(), String::new(), 0_usize);
    let (mut quoted, mut begun, mut bytes) = (false, false, 0_usize);
    // `backslashes` are those that were read and not written yet: how many become text depends on what follows them. `begun` is
    // whether an argument has begun, since an empty one in quotes counts.
    for character in line.chars() {
        if args.len() >= MAX_ARGS || bytes >= MAX_ARG_BYTES {
            return (args, true);
        }
        bytes += character.len_utf8();
        match character {
            '\\' => {
                backslashes += 1;
                begun = true;
                continue;
            }
            '"' => {
                // Before a quote two backslashes are one, and an odd one makes the quote a character of the argument.
                arg.extend(std::iter::repeat_n('\\', backslashes / 2));
                if backslashes % 2 == 1 {
                    arg.push('"');
                } else {
                    quoted = !quoted;
                }
                begun = true;
            }
            ' ' | '\t' if !quoted => {
                arg.extend(std::iter::repeat_n('\\', backslashes));
                if begun {
                    args.push(std::mem::take(&mut arg));
                    begun = false;
                }
            }
            _ => {
                arg.extend(std::iter::repeat_n('\\', backslashes));
                arg.push(character);
                begun = true;
            }
        }
        backslashes = 0;
    }
    arg.extend(std::iter::repeat_n('\\', backslashes));
    if begun {
        args.push(arg);
    }
    (args, false)
}

/// A step of a silo. Matched by event id: names changed between Windows builds, ids and fields did not (manifests:
/// repnz/etw-providers-docs).
pub(super) fn silo(event: &EtwEvent) -> Option<Body> {
    let monitor = || bounded(event.text("MonitorName").unwrap_or_default());
    // Drivers receive callbacks for a silo's creation and for its end.
    let of_end = || format!("{} (end)", monitor());
    let step = match event.id {
        13 => SiloChange::Started,
        14 => SiloChange::Terminated,
        22 => SiloChange::State(event.u32("State").and_then(|state| state.try_into().ok()).unwrap_or(0)),
        23 => SiloChange::CallbackStarted { monitor: monitor() },
        24 => SiloChange::CallbackStopped {
            monitor: monitor(),
            status: event.code("Status").unwrap_or(0),
        },
        25 => SiloChange::CallbackStarted { monitor: of_end() },
        26 => SiloChange::CallbackStopped {
            monitor: of_end(),
            status: 0,
        },
        _ => return None,
    };
    Some(Body::SiloSeen(Box::new(SiloStep {
        silo: event.guid("ContainerID").map(guid_text).unwrap_or_default(),
        job: event.u32("JobID").unwrap_or(0),
        step,
    })))
}

// Event types of the kernel logger's Process class: start, end, and rundown (DCStart) for what runs when the session begins.
// The rundown at its end (DCEnd, 4) reports nothing new.
const START: u8 = 1;
const END: u8 = 2;
const RUNDOWN_START: u8 = 3;

/// Bound on running processes; above that the end of the evicted ones is not reported.
const MAX_RUNNING: usize = 16_384;
/// Arguments that are kept of a command line.
const MAX_ARGS: usize = 64;
/// Bytes of a command line that are split; Windows allows 32,767 characters (documentation of CreateProcessW).
const MAX_ARG_BYTES: usize = 4_096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_split_as_windows_splits_them() {
        for (line, expected) in [
            (
                r#""C:\Program Files\cni\win-bridge.exe""#,
                vec![r"C:\Program Files\cni\win-bridge.exe"],
            ),
            (
                r#"powershell.exe -NoProfile -Command "Get-NetAdapter -Name \"vEthernet (eth0)\"""#,
                vec![
                    "powershell.exe",
                    "-NoProfile",
                    "-Command",
                    r#"Get-NetAdapter -Name "vEthernet (eth0)""#,
                ],
            ),
            (r#"a\\b d"e f"g h"#, vec![r"a\\b", "de fg", "h"]),
            (r#"a\\\"b c d"#, vec![r#"a\"b"#, "c", "d"]),
            (r#"a "" b"#, vec!["a", "", "b"]),
            (r"trailing\ ", vec![r"trailing\"]),
            ("", vec![]),
        ] {
            assert_eq!(split_command_line(line).0, expected, "{line}");
        }
        let (args, truncated) = split_command_line(&"x ".repeat(5_000));
        assert!(truncated && args.len() == MAX_ARGS);
    }
}
