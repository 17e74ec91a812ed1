//! Gives way to what is observed: threads that wake without interrupting anybody.
//!
//! Called by the threads that work because a plugin runs, and often on the plugin's own processor: there they would take
//! time out of the very span they measure. Does not: lower anyone's share of a busy machine, or concern other threads.
//! Those that read traffic must not wait: at full speed their rings fill within a tenth of a second.

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

#[cfg(all(test, target_os = "linux"))]
mod tests {
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
}
