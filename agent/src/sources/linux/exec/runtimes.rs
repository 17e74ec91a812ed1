//! Which processes of a container runtime are reported: those that begin or end a container's life.
//!
//! Used by the feed of the process probe. The kernel side reports every process of a known runtime; the kubelet's exec
//! probes run `runc exec` all the time, and none of them concerns a sandbox's life.
//! The exit of a process is reported if its exec or fork was. Does not: know sandboxes.

use std::collections::HashSet;

use sandglass_model::ProcessKey;
use sandglass_model::event::{Exec, Fork};

use super::decode::ProcessRole;

/// The filter.
#[derive(Debug, Default)]
pub struct Runtimes {
    /// Running processes whose exec was not reported: their exit is not reported either. At most [`IGNORED_MAX`].
    ignored: HashSet<ProcessKey>,
    /// Running steps, and what they forked, until it executes a container's program: forks of these are reported, since a step
    /// waits for them. At most [`IGNORED_MAX`].
    below_steps: HashSet<ProcessKey>,
}

impl Runtimes {
    /// Whether the exec of a runtime's process is to be reported.
    pub fn on_exec(&mut self, exec: &Exec) -> bool {
        if is_step(exec) {
            self.add_below_step(exec.process);
        }
        let reported = concerns_life(exec);
        // The fork of `runc init` was reported.
        if !reported && !self.below_steps.contains(&exec.process) {
            // Full only when exits were lost. Then a few exits without their exec are reported, which harms nothing.
            if self.ignored.len() >= IGNORED_MAX {
                self.ignored.clear();
            }
            self.ignored.insert(exec.process);
        }
        reported
    }

    /// Whether the fork by a runtime's process is to be reported.
    pub fn on_fork(&mut self, fork: &Fork) -> bool {
        let reported = self.below_steps.contains(&fork.parent);
        if reported {
            self.add_below_step(fork.process);
        }
        reported
    }

    /// Whether it is to be reported that what a runtime forked executes a container's program.
    pub fn on_container_exec(&mut self, process: ProcessKey) -> bool {
        self.below_steps.remove(&process)
    }

    /// Whether the exit of a process is to be reported: unless its exec or fork was seen here and was not.
    pub fn on_exit(&mut self, process: ProcessKey, role: ProcessRole) -> bool {
        let was_below = self.below_steps.remove(&process);
        match role {
            ProcessRole::RuntimeFork => was_below,
            ProcessRole::Tracked | ProcessRole::Runtime => !self.ignored.remove(&process),
        }
    }

    fn add_below_step(&mut self, process: ProcessKey) {
        // Full only when exits were lost.
        if self.below_steps.len() >= IGNORED_MAX {
            self.below_steps.clear();
        }
        self.below_steps.insert(process);
    }
}

/// The shims and conmon concern a sandbox's life. Of the OCI command lines (runc(8) and its like) only some verbs do.
fn concerns_life(exec: &Exec) -> bool {
    if !matches!(exec.file_name(), "runc" | "crun" | "runsc" | "youki") {
        return true;
    }
    // `runc init` is the container's first process before its exec: it begins nothing that `create` has not begun.
    let verb = exec.args.iter().skip(1).find(|argument| OCI_VERBS.contains(argument));
    verb.is_some_and(|verb| OCI_LIFE_VERBS.contains(&verb))
}

/// Whether the process makes a container, or a shim for one, and ends then: a step of the runtime, as the correlator has it.
pub fn is_step(exec: &Exec) -> bool {
    let has = |verbs: &[&str]| exec.args.iter().skip(1).any(|argument| verbs.contains(&argument));
    match exec.file_name() {
        "runc" | "crun" | "runsc" | "youki" => has(&["create", "start"]),
        name => name.starts_with("containerd-shim") && has(&["start"]),
    }
}

/// Processes of `runc exec` and the like that may run at once; above a hundred only on a node that loses exits.
const IGNORED_MAX: usize = 4096;
/// Verbs that begin or end a container's life (OCI runtime specification, runtime.md, "Operations"; `run` is runc's own).
const OCI_LIFE_VERBS: [&str; 5] = ["create", "start", "run", "delete", "kill"];
/// All verbs of runc 1.3, crun and youki: the first argument that is one of them is the verb, since options with values stand
/// before it.
const OCI_VERBS: [&str; 19] = [
    "create",
    "start",
    "run",
    "delete",
    "kill",
    "exec",
    "state",
    "ps",
    "events",
    "pause",
    "resume",
    "update",
    "list",
    "spec",
    "checkpoint",
    "restore",
    "features",
    "init",
    "--version",
];

#[cfg(test)]
mod tests {
    use sandglass_model::TextPairs;

    use super::*;

    fn runtime(path: &str, args: &[&str]) -> Exec {
        let nobody = ProcessKey { pid: 1, start_ticks: 0 };
        Exec {
            process: nobody,
            parent: nobody,
            parent_comm: Default::default(),
            path: path.into(),
            args: args.iter().collect(),
            args_truncated: false,
            env: TextPairs::default(),
            cgroup: String::new(),
            netns: 0,
            counted: None,
            running: false,
        }
    }

    /// `runc create` forks `runc init`, which forks twice before it executes the container's program (libcontainer/nsenter/nsexec.c).
    #[test]
    fn forks_below_steps_are_reported_until_the_containers_program() {
        let key = |pid| ProcessKey { pid, start_ticks: 0 };
        let exec = |pid, args: &[&str]| Exec {
            process: key(pid),
            ..runtime("/usr/sbin/runc", args)
        };
        let fork = |parent, process| Fork {
            process: key(process),
            parent: key(parent),
            thread: None,
            goroutine: None,
        };
        let mut runtimes = Runtimes::default();
        assert!(runtimes.on_exec(&exec(10, &["runc", "create", "id"])));
        assert!(runtimes.on_fork(&fork(10, 11)));
        assert!(!runtimes.on_exec(&exec(11, &["runc", "init"])));
        assert!(runtimes.on_fork(&fork(11, 12)) && runtimes.on_fork(&fork(12, 13)));
        assert!(runtimes.on_exit(key(11), ProcessRole::Runtime));
        assert!(runtimes.on_exit(key(12), ProcessRole::RuntimeFork));
        assert!(runtimes.on_exit(key(10), ProcessRole::Runtime));
        assert!(runtimes.on_container_exec(key(13)));
        assert!(!runtimes.on_fork(&fork(13, 14)));
        // Of an exec probe nothing is.
        assert!(!runtimes.on_exec(&exec(20, &["runc", "exec", "id", "true"])));
        assert!(!runtimes.on_fork(&fork(20, 21)));
        assert!(!runtimes.on_exec(&exec(21, &["runc", "init"])));
        assert!(!runtimes.on_fork(&fork(21, 22)));
        assert!(!runtimes.on_exit(key(21), ProcessRole::Runtime));
        assert!(!runtimes.on_container_exec(key(22)));
        assert!(!runtimes.on_exit(key(22), ProcessRole::RuntimeFork));
        assert!(!runtimes.on_exit(key(20), ProcessRole::Runtime));
        assert!(runtimes.below_steps.is_empty() && runtimes.ignored.is_empty());
    }

    /// Options with values stand before the verb, and a container may be called like one: the first word that is a verb
    /// decides.
    #[test]
    fn only_the_life_of_a_container_is_reported() {
        for (path, args, wanted) in [
            (
                "/usr/sbin/runc",
                &[
                    "runc", "--root", "/run/x", "--log", "/y", "create", "--bundle", "b", "id",
                ][..],
                true,
            ),
            ("/usr/sbin/runc", &["runc", "--root", "/run/x", "start", "id"], true),
            ("/usr/bin/crun", &["crun", "delete", "--force", "id"], true),
            (
                "/usr/sbin/runc",
                &["runc", "--root", "/r", "exec", "--process", "p", "id", "start"],
                false,
            ),
            ("/usr/sbin/runc", &["runc", "init"], false),
            ("/usr/sbin/runc", &["runc", "--version"], false),
            ("/usr/sbin/runc", &["runc"], false),
            (
                "/usr/bin/containerd-shim-runc-v2",
                &["containerd-shim-runc-v2", "-id", "x", "start"],
                true,
            ),
            ("/usr/bin/conmon", &["conmon"], true),
        ] {
            assert_eq!(concerns_life(&runtime(path, args)), wanted, "{args:?}");
        }
    }
}
