//! Ends a rig's processes when its owner dies without running a destructor.
//!
//! Used by [`super::Rig`]. A shell waits for the end of a pipe whose other end only the owner holds; the kernel closes it
//! however the owner dies. Not PR_SET_PDEATHSIG (prctl(2)): it fires when the *thread* that started the child ends, and rigs are
//! started on threads of a pool. Does not: unmount or remove files (the next start does that, see [`super::directory`]).

use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::programs::SEARCH;

/// The waiting shell. It is in no cgroup of the rig.
#[derive(Debug)]
pub(super) struct Guard(Child);

impl Guard {
    /// Starts to wait; at the end it kills what is in `cgroups` and below, where they exist.
    ///
    /// # Errors
    /// When no shell can be started.
    pub(super) fn start(cgroups: impl Iterator<Item = PathBuf>) -> io::Result<Guard> {
        // `cgroup.kill` exists in version 2 since Linux 5.14 (Documentation/admin-guide/cgroup-v2.rst).
        const SCRIPT: &str = r#"read -r _
for group in "$@"; do
    [ -d "$group" ] || continue
    echo 1 > "$group/cgroup.kill" && continue
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        pids=$(find "$group" -name cgroup.procs -exec cat {} +)
        [ -n "$pids" ] || break
        kill -KILL $pids
        sleep 0.1
    done
done"#;
        let shell = Command::new("sh")
            .args(["-c", SCRIPT, "sh"])
            .args(cgroups)
            .env_clear()
            .env("PATH", SEARCH)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A Ctrl-C on the terminal must not end it before the owner.
            .process_group(0)
            .spawn()?;
        Ok(Guard(shell))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // `wait` closes the pipe, so the shell looks at the cgroups once more and ends.
        let _ = self.0.wait();
    }
}
