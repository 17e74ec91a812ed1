//! Who goes before whom: threads that wake without interrupting anybody, and processes that go before others.
//!
//! The first is for the threads that work because a plugin runs, and often on the plugin's own processor: there they would
//! take time out of the very span they measure. Those that read traffic must not wait: at full speed their rings fill within
//! a tenth of a second. The rest is for the demo. Does not: lower anyone's share of a busy machine.

/// The calling thread does not preempt others when it wakes, and runs when they wait or have had their turn (`SCHED_BATCH`,
/// sched(7)). Where that is refused it goes on as before.
pub fn give_way() {
    #[cfg(target_os = "linux")]
    {
        // The kernel's struct sched_param is this one number. The system call itself, since musl's function refuses.
        let priority: libc::c_int = 0;
        // SAFETY: `priority` can be read for as long as the call lasts.
        unsafe {
            libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_BATCH, &raw const priority);
        }
    }
}

/// This process goes before the machine's other work: the threads that it has, and what they start. Where that is refused
/// all stays as it was.
#[cfg(target_os = "linux")]
pub fn go_before_other_work() {
    for thread in threads_of(std::process::id()) {
        let _ = rustix::process::setpriority_process(rustix::process::Pid::from_raw(thread), -10);
    }
}

/// What the process starts from now on has the usual priority, however high its own is (`SCHED_RESET_ON_FORK`, sched(7)).
/// Concerns the threads that it has; where that is refused all stays as it was.
#[cfg(target_os = "linux")]
pub fn keep_priority_from_children(pid: u32) {
    const POLICY: libc::c_int = libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK;
    for thread in threads_of(pid) {
        let priority: libc::c_int = 0;
        // SAFETY: `priority` can be read for as long as the call lasts.
        unsafe {
            libc::syscall(libc::SYS_sched_setscheduler, thread, POLICY, &raw const priority);
        }
    }
}

#[cfg(target_os = "linux")]
fn threads_of(pid: u32) -> impl Iterator<Item = libc::pid_t> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task"));
    let entries = entries.into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn only_the_thread_itself_gives_way() {
        // SAFETY: asks for a number.
        let policy = || unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) };
        let before = policy();
        let of_thread = std::thread::spawn(move || {
            give_way();
            policy()
        });
        assert_eq!(of_thread.join().unwrap(), i64::from(libc::SCHED_BATCH));
        assert_eq!(policy(), before);
    }

    #[test]
    fn what_a_process_starts_has_the_usual_priority() {
        // A shell that runs what it is told; `nice` by itself prints the priority that it was started with.
        let mut shell = Command::new("nice")
            .args(["-n", "-5", "sh"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut orders = shell.stdin.take().unwrap();
        let mut answers = BufReader::new(shell.stdout.take().unwrap());
        let mut child = || {
            orders.write_all(b"nice\n").unwrap();
            let mut answer = String::new();
            answers.read_line(&mut answer).unwrap();
            answer
        };
        let before = child();
        keep_priority_from_children(shell.id());
        let after = child();
        drop(orders);
        shell.wait().unwrap();
        if before == "-5\n" {
            assert_eq!(after, "0\n");
        } else {
            eprintln!("SKIPPED what_a_process_starts_has_the_usual_priority: may not raise a priority");
        }
    }
}
