//! Policies and priorities of Linux's scheduler.
//!
//! Used through `scheduling`. Does not: report that the system refused.

/// Keeps the calling thread from preempting others when it wakes: it runs when they wait or have used up their slice
/// (`SCHED_BATCH`, sched(7); kernel/sched/fair.c, check_preempt_wakeup_fair).
pub fn give_way() {
    // The kernel's struct sched_param is this one number. The system call itself, since musl's function always fails.
    let priority: libc::c_int = 0;
    // SAFETY: `priority` can be read for as long as the call lasts.
    unsafe {
        libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_BATCH, &raw const priority);
    }
}

/// Raises the priority of this process's present threads, and of what they start, above the machine's other work.
pub fn go_before_other_work() {
    for thread in threads_of(std::process::id()) {
        let _ = rustix::process::setpriority_process(rustix::process::Pid::from_raw(thread), -10);
    }
}

/// Gives what the process's present threads start the default priority, however high their own is (`SCHED_RESET_ON_FORK`,
/// sched(7)).
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

fn threads_of(pid: u32) -> impl Iterator<Item = libc::pid_t> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task"));
    let entries = entries.into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn only_the_calling_thread_gives_way() {
        // SAFETY: reads a number.
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
    fn what_a_process_starts_has_the_default_priority() {
        // `nice` without arguments prints the priority that it was started with.
        let mut shell = Command::new("nice")
            .args(["-n", "-5", "sh"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut input = shell.stdin.take().unwrap();
        let mut output = BufReader::new(shell.stdout.take().unwrap());
        let mut child = || {
            input.write_all(b"nice\n").unwrap();
            let mut line = String::new();
            output.read_line(&mut line).unwrap();
            line
        };
        let before = child();
        keep_priority_from_children(shell.id());
        let after = child();
        drop(input);
        shell.wait().unwrap();
        if before == "-5\n" {
            assert_eq!(after, "0\n");
        } else {
            eprintln!("SKIPPED what_a_process_starts_has_the_default_priority: may not raise a priority");
        }
    }
}
