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

#[cfg(test)]
mod tests {
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
}
