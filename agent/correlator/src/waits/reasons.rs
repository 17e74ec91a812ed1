//! Why a thread slept, from the kernel functions it slept in and those that woke it. The table is data.
//!
//! Used by the room of waits for each sleep on a critical path. Names of functions come without what a compiler appends
//! (`.constprop.0`). The scheduler's own functions (section `.sched.text`: `schedule`, `io_schedule`, `__mutex_lock`,
//! `wait_for_completion`) are in no stack of a sleeping task (kernel/stacktrace.c, `stack_trace_consume_entry_nosched`),
//! so a sleep on a mutex shows the function that wanted it; the function that released it names the lock.
//! Does not: know threads or processes. What no entry matches is `Other` with the innermost function's name.

use sandglass_model::text_list::split_once;
use sandglass_model::waits::TimeReason;

/// A reason with what is known beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Classified {
    pub(crate) reason: TimeReason,
    /// What of that kind: the lock, the work; empty where the reason says all.
    pub(crate) what: &'static str,
    /// The kernel function that decided, or the innermost one.
    pub(crate) function: String,
}

/// Where in a stack a function decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Anywhere: it sleeps for this reason only.
    Any,
    /// Innermost, and where no other function of the stack decides: it sleeps for several reasons, and by itself for
    /// this one.
    Innermost,
}

/// One function of the table: its name, where it decides, the reason, what of that kind, and the kernel's source file.
type Entry = (&'static str, At, TimeReason, &'static str, &'static str);

/// Functions that a thread sleeps in. The innermost that stands here decides. Sources as in Linux 6.12 unless noted.
#[rustfmt::skip]
const SLEEPS: &[Entry] = &[
    ("do_wait", At::Any, TimeReason::Child, "", "kernel/exit.c"),
    ("kernel_wait4", At::Any, TimeReason::Child, "", "kernel/exit.c"),
    ("kernel_waitid", At::Any, TimeReason::Child, "", "kernel/exit.c"),
    ("wait_for_vfork_done", At::Any, TimeReason::Child, "exec", "kernel/fork.c"),
    ("kernel_clone", At::Innermost, TimeReason::Child, "exec", "kernel/fork.c"),
    ("futex_do_wait", At::Any, TimeReason::Thread, "", "kernel/futex/waitwake.c (6.13)"),
    ("futex_wait_queue", At::Any, TimeReason::Thread, "", "kernel/futex/waitwake.c"),
    ("futex_wait_queue_me", At::Any, TimeReason::Thread, "", "kernel/futex/core.c (5.10)"),
    ("anon_pipe_read", At::Any, TimeReason::Pipe, "", "fs/pipe.c (6.15)"),
    ("anon_pipe_write", At::Any, TimeReason::Pipe, "", "fs/pipe.c (6.15)"),
    ("pipe_read", At::Any, TimeReason::Pipe, "", "fs/pipe.c"),
    ("pipe_write", At::Any, TimeReason::Pipe, "", "fs/pipe.c"),
    ("wait_for_partner", At::Any, TimeReason::Pipe, "", "fs/pipe.c"),
    ("locks_lock_inode_wait", At::Any, TimeReason::FileLock, "", "fs/locks.c"),
    ("flock_lock_inode_wait", At::Any, TimeReason::FileLock, "", "fs/locks.c"),
    ("posix_lock_inode_wait", At::Any, TimeReason::FileLock, "", "fs/locks.c"),
    ("do_lock_file_wait", At::Any, TimeReason::FileLock, "", "fs/locks.c"),
    ("fcntl_setlk", At::Any, TimeReason::FileLock, "", "fs/locks.c"),
    ("rcu_barrier", At::Any, TimeReason::KernelWork, "rcu", "kernel/rcu/tree.c"),
    ("__wait_rcu_gp", At::Any, TimeReason::KernelWork, "rcu", "kernel/rcu/update.c"),
    ("synchronize_rcu_normal", At::Any, TimeReason::KernelWork, "rcu", "kernel/rcu/tree.c"),
    ("synchronize_rcu", At::Any, TimeReason::KernelWork, "rcu", "kernel/rcu/tree.c"),
    ("synchronize_rcu_expedited", At::Any, TimeReason::KernelWork, "rcu", "kernel/rcu/tree_exp.h"),
    ("exp_funnel_lock", At::Any, TimeReason::KernelWork, "rcu", "kernel/rcu/tree_exp.h"),
    ("__synchronize_srcu", At::Any, TimeReason::KernelWork, "rcu", "kernel/rcu/srcutree.c"),
    ("nft_rcv_nl_event", At::Any, TimeReason::KernelWork, "nftables", "net/netfilter/nf_tables_api.c"),
    ("nf_tables_trans_destroy_flush_work", At::Any, TimeReason::KernelWork, "nftables", "net/netfilter/nf_tables_api.c"),
    ("netdev_run_todo", At::Any, TimeReason::KernelWork, "interfaces", "net/core/dev.c"),
    ("netdev_wait_allrefs_any", At::Any, TimeReason::KernelWork, "interfaces", "net/core/dev.c"),
    ("cleanup_net", At::Any, TimeReason::KernelWork, "network namespaces", "net/core/net_namespace.c"),
    ("flush_work", At::Any, TimeReason::KernelWork, "queue", "kernel/workqueue.c"),
    ("__flush_workqueue", At::Any, TimeReason::KernelWork, "queue", "kernel/workqueue.c"),
    ("__flush_work", At::Innermost, TimeReason::KernelWork, "queue", "kernel/workqueue.c"),
    ("rtnl_lock", At::Innermost, TimeReason::KernelLock, "rtnl", "net/core/rtnetlink.c"),
    ("rtnl_newlink", At::Innermost, TimeReason::KernelLock, "rtnl", "net/core/rtnetlink.c (6.13)"),
    ("rtnl_dellink", At::Innermost, TimeReason::KernelLock, "rtnl", "net/core/rtnetlink.c (6.13)"),
    ("rtnl_setlink", At::Innermost, TimeReason::KernelLock, "rtnl", "net/core/rtnetlink.c (6.13)"),
    ("rtnetlink_rcv_msg", At::Innermost, TimeReason::KernelLock, "rtnl", "net/core/rtnetlink.c"),
    ("rtnl_dumpit", At::Innermost, TimeReason::KernelLock, "rtnl", "net/core/rtnetlink.c"),
    ("register_nexthop_notifier", At::Innermost, TimeReason::KernelLock, "rtnl", "net/ipv4/nexthop.c"),
    ("inet_rtm_newaddr", At::Innermost, TimeReason::KernelLock, "rtnl", "net/ipv4/devinet.c (6.14)"),
    ("devinet_ioctl", At::Innermost, TimeReason::KernelLock, "rtnl", "net/ipv4/devinet.c"),
    ("dev_ioctl", At::Innermost, TimeReason::KernelLock, "rtnl", "net/core/dev_ioctl.c"),
    ("copy_net_ns", At::Innermost, TimeReason::KernelLock, "network namespaces", "net/core/net_namespace.c"),
    ("setup_net", At::Innermost, TimeReason::KernelLock, "network namespaces", "net/core/net_namespace.c"),
    ("nf_tables_valid_genid", At::Innermost, TimeReason::KernelLock, "nftables", "net/netfilter/nf_tables_api.c"),
    ("nfnetlink_rcv_batch", At::Innermost, TimeReason::KernelLock, "nftables", "net/netfilter/nfnetlink.c"),
    ("nfnl_lock", At::Innermost, TimeReason::KernelLock, "nftables", "net/netfilter/nfnetlink.c"),
    ("try_to_free_pages", At::Any, TimeReason::Memory, "reclaim", "mm/vmscan.c"),
    ("try_to_free_mem_cgroup_pages", At::Any, TimeReason::Memory, "reclaim of the cgroup", "mm/vmscan.c"),
    ("mem_cgroup_handle_over_high", At::Any, TimeReason::Memory, "reclaim of the cgroup", "mm/memcontrol.c"),
    ("do_swap_page", At::Any, TimeReason::Memory, "swap", "mm/memory.c"),
    ("throttle_direct_reclaim", At::Any, TimeReason::Memory, "reclaim", "mm/vmscan.c"),
    ("filemap_fault", At::Any, TimeReason::Disk, "page of a file", "mm/filemap.c"),
    ("filemap_get_pages", At::Any, TimeReason::Disk, "read", "mm/filemap.c"),
    ("folio_wait_writeback", At::Any, TimeReason::Disk, "write", "mm/page-writeback.c"),
    ("wait_on_page_writeback", At::Any, TimeReason::Disk, "write", "mm/page-writeback.c (5.10)"),
    ("folio_wait_bit_common", At::Innermost, TimeReason::Disk, "page", "mm/filemap.c"),
    ("wait_on_page_bit_common", At::Innermost, TimeReason::Disk, "page", "mm/filemap.c (5.10)"),
    ("wb_wait_for_completion", At::Any, TimeReason::Disk, "write", "fs/fs-writeback.c"),
    ("rq_qos_wait", At::Any, TimeReason::Disk, "queue", "block/blk-rq-qos.c"),
    ("blk_mq_get_tag", At::Any, TimeReason::Disk, "queue", "block/blk-mq-tag.c"),
    ("submit_bio_wait", At::Any, TimeReason::Disk, "flush", "block/bio.c"),
    ("blkdev_issue_flush", At::Any, TimeReason::Disk, "flush", "block/blk-flush.c"),
    ("jbd2_log_wait_commit", At::Any, TimeReason::Disk, "journal", "fs/jbd2/journal.c"),
    ("bit_wait_io", At::Any, TimeReason::Disk, "metadata", "kernel/sched/wait_bit.c"),
    ("__wait_on_buffer", At::Any, TimeReason::Disk, "metadata", "fs/buffer.c"),
    ("__ext4_find_entry", At::Any, TimeReason::Disk, "metadata", "fs/ext4/namei.c"),
    ("unix_stream_read_generic", At::Any, TimeReason::Daemon, "unix socket", "net/unix/af_unix.c"),
    ("unix_stream_connect", At::Any, TimeReason::Daemon, "unix socket", "net/unix/af_unix.c"),
    ("unix_wait_for_peer", At::Any, TimeReason::Daemon, "unix socket", "net/unix/af_unix.c"),
    ("unix_dgram_recvmsg", At::Any, TimeReason::Daemon, "unix socket", "net/unix/af_unix.c"),
    ("sk_wait_data", At::Any, TimeReason::Network, "", "net/core/sock.c"),
    ("inet_wait_for_connect", At::Any, TimeReason::Network, "connection", "net/ipv4/af_inet.c"),
    ("__inet_stream_connect", At::Any, TimeReason::Network, "connection", "net/ipv4/af_inet.c"),
    ("inet_csk_accept", At::Any, TimeReason::Network, "connection", "net/ipv4/inet_connection_sock.c"),
    ("sk_stream_wait_memory", At::Any, TimeReason::Network, "", "net/core/stream.c"),
    ("__skb_wait_for_more_packets", At::Any, TimeReason::Network, "", "net/core/datagram.c"),
    ("hrtimer_nanosleep", At::Any, TimeReason::Timer, "", "kernel/time/hrtimer.c"),
    ("do_nanosleep", At::Any, TimeReason::Timer, "", "kernel/time/hrtimer.c"),
    ("msleep", At::Any, TimeReason::Timer, "", "kernel/time/sleep_timeout.c"),
];

/// Functions of a sleep that waits for one of several things: what woke it decides.
const POLLS: &[&str] = &[
    "do_epoll_wait",
    "ep_poll",
    "poll_schedule_timeout",
    "do_select",
    "do_poll",
    "do_sys_poll",
    "sigsuspend",
    "do_sigtimedwait",
];

/// Functions of a wake-up, and what a poll that they end waited for. The first that stands here decides, from the
/// function nearest to the wake-up on.
#[rustfmt::skip]
const WAKES: &[Entry] = &[
    ("hrtimer_wakeup", At::Any, TimeReason::Timer, "", "kernel/time/hrtimer.c"),
    ("process_timeout", At::Any, TimeReason::Timer, "", "kernel/time/sleep_timeout.c"),
    ("do_notify_parent", At::Any, TimeReason::Child, "", "kernel/signal.c"),
    ("anon_pipe_write", At::Any, TimeReason::Pipe, "", "fs/pipe.c (6.15)"),
    ("pipe_write", At::Any, TimeReason::Pipe, "", "fs/pipe.c"),
    ("pipe_release", At::Any, TimeReason::Pipe, "", "fs/pipe.c"),
    ("unix_stream_sendmsg", At::Any, TimeReason::Daemon, "unix socket", "net/unix/af_unix.c"),
    ("unix_dgram_sendmsg", At::Any, TimeReason::Daemon, "unix socket", "net/unix/af_unix.c"),
    ("unix_release_sock", At::Any, TimeReason::Daemon, "unix socket", "net/unix/af_unix.c"),
    ("netlink_broadcast", At::Any, TimeReason::KernelWork, "netlink", "net/netlink/af_netlink.c"),
    ("netlink_unicast", At::Any, TimeReason::KernelWork, "netlink", "net/netlink/af_netlink.c"),
    ("tcp_v4_rcv", At::Any, TimeReason::Network, "", "net/ipv4/tcp_ipv4.c"),
    ("tcp_v6_rcv", At::Any, TimeReason::Network, "", "net/ipv6/tcp_ipv6.c"),
    ("udp_queue_rcv_one_skb", At::Any, TimeReason::Network, "", "net/ipv4/udp.c"),
    ("udpv6_queue_rcv_one_skb", At::Any, TimeReason::Network, "", "net/ipv6/udp.c"),
    ("futex_wake", At::Any, TimeReason::Thread, "", "kernel/futex/waitwake.c"),
    ("eventfd_write", At::Any, TimeReason::Thread, "", "fs/eventfd.c"),
];

/// Functions of the locks of a kernel with PREEMPT_RT (kernel/sched/core.c, kernel/locking/rtmutex.c), which stand where others have only
/// functions of the scheduler: what wanted the lock is behind them.
const LOCKING: &[&str] = &[
    "rt_mutex_schedule",
    "__rt_mutex_slowlock_locked",
    "__rt_mutex_slowlock",
    "rt_mutex_slowlock",
];

/// Functions that release a lock inside the kernel; what calls them names the lock.
const RELEASES: &[&str] = &[
    "__mutex_unlock_slowpath",
    "mutex_unlock",
    "rt_mutex_unlock",
    "rwsem_wake",
    "up_write",
    "up_read",
    "__percpu_up_read",
];

/// Names of locks by the functions that release them.
#[rustfmt::skip]
const LOCKS: &[(&str, &str, &str)] = &[
    ("__rtnl_unlock", "rtnl", "net/core/rtnetlink.c"),
    ("rtnl_unlock", "rtnl", "net/core/rtnetlink.c"),
    ("netdev_run_todo", "rtnl", "net/core/dev.c"),
    ("copy_net_ns", "network namespaces", "net/core/net_namespace.c"),
    ("cleanup_net", "network namespaces", "net/core/net_namespace.c"),
    ("nf_tables_commit", "nftables", "net/netfilter/nf_tables_api.c"),
    ("nf_tables_abort", "nftables", "net/netfilter/nf_tables_api.c"),
    ("nfnl_unlock", "nftables", "net/netfilter/nfnetlink.c"),
];

/// Names of locks by their symbols, where the kernel names variables (CONFIG_KALLSYMS_ALL).
#[rustfmt::skip]
const SYMBOLS: &[(&str, &str, &str)] = &[
    ("rtnl_mutex", "rtnl", "net/core/rtnetlink.c"),
    ("pernet_ops_rwsem", "network namespaces", "net/core/net_namespace.c"),
    ("net_rwsem", "network namespaces", "net/core/rtnetlink.c"),
];

/// Names of locks by the function that wants them, beside those of [`SLEEPS`] that wait for a lock of the kernel.
#[rustfmt::skip]
const CALLERS: &[(&str, &str, &str)] = &[
    ("rtnl_lock_killable", "rtnl", "net/core/rtnetlink.c"),
    ("rtnl_lock_interruptible", "rtnl", "net/core/rtnetlink.c (6.13)"),
    ("default_device_exit_batch", "rtnl", "net/core/dev.c"),
    ("nft_rcv_nl_event", "nftables", "net/netfilter/nf_tables_api.c"),
];

/// Functions through which a thread takes a lock that it may sleep on: the one above them wants it (kernel/locking). Where the compiler
/// has put one into its caller it is not there.
const TAKES: &[&str] = &[
    "__mutex_lock",
    "__mutex_lock_slowpath",
    "__mutex_lock_killable_slowpath",
    "__mutex_lock_interruptible_slowpath",
    "mutex_lock",
    "mutex_lock_killable",
    "mutex_lock_interruptible",
    "__ww_mutex_lock",
    "rwsem_down_read_slowpath",
    "rwsem_down_write_slowpath",
    "__down_read_common",
    "__down_write_common",
    "down_read",
    "down_read_killable",
    "down_read_interruptible",
    "down_write",
    "down_write_killable",
    "percpu_rwsem_wait",
    "__percpu_down_read",
    "percpu_down_write",
];

/// The table of functions that wake those who wait for a lock on a file (fs/locks.c).
const FILE_RELEASES: &[&str] = &["__locks_wake_up_blocks", "locks_wake_up_blocks"];

/// Functions that an interrupt runs through: a wake-up from there has no thread as its cause.
const INTERRUPTS: &[&str] = &[
    // arch/x86/entry/entry_64.S, arch/x86/kernel/irq.c, kernel/softirq.c
    "asm_common_interrupt",
    "asm_sysvec_apic_timer_interrupt",
    "asm_sysvec_call_function_single",
    "asm_sysvec_reschedule_ipi",
    "asm_sysvec_hyperv_callback",
    "asm_sysvec_xen_hvm_callback",
    "common_interrupt",
    "sysvec_apic_timer_interrupt",
    "__irq_exit_rcu",
    "irq_exit_rcu",
    // arch/arm64/kernel/entry-common.c
    "el1_interrupt",
    "el0_interrupt",
    "el1h_64_irq",
    "el0t_64_irq",
    "run_ksoftirqd",
];

/// The wake-up came from an interrupt, or from the thread that runs deferred ones: who ran there is not the cause.
pub(crate) fn is_interrupt<'a>(waker: impl IntoIterator<Item = &'a str>) -> bool {
    waker.into_iter().any(|function| INTERRUPTS.contains(&bare(function)))
}

/// A signal ended the sleep, and it is not that of a child's end (kernel/signal.c).
pub(crate) fn is_signal<'a>(waker: impl IntoIterator<Item = &'a str>) -> bool {
    let mut sends = false;
    for function in waker {
        match bare(function) {
            "do_notify_parent" => return false,
            "signal_wake_up_state"
            | "complete_signal"
            | "__send_signal_locked"
            | "send_signal_locked"
            | "__send_signal"
            | "send_signal"
            | "zap_other_threads" => sends = true,
            _ => {}
        }
    }
    sends
}

/// The sleep is for one of several things.
pub(crate) fn is_poll<'a>(stack: impl IntoIterator<Item = &'a str>) -> bool {
    stack.into_iter().any(|function| POLLS.contains(&bare(function)))
}

/// The name of a lock in the tables, not just the function that wanted it.
pub(crate) fn is_name(what: &str) -> bool {
    LOCKS.iter().any(|lock| lock.1 == what)
}

/// The wake-up released a lock on a file.
pub(crate) fn releases_file<'a>(waker: impl IntoIterator<Item = &'a str>) -> bool {
    waker
        .into_iter()
        .any(|function| FILE_RELEASES.contains(&bare(function)))
}

/// The function that wanted a lock of the kernel: the one above those that take it.
pub(crate) fn wanted_by<'a>(stack: &[&'a str]) -> Option<&'a str> {
    let takes = stack.iter().position(|function| TAKES.contains(&bare(function)))?;
    let above = stack[takes..].iter().find(|function| !TAKES.contains(&bare(function)));
    above.map(|function| bare(function))
}

/// What a lock of the kernel is called, by its symbol or else by the function that wanted it, and whether who waits for it waits for
/// the lock or for the kernel's own work, which the lock only puts in order. `None` when neither is known.
pub(crate) fn lock_of(symbol: &str, stack: &[&str]) -> Option<(TimeReason, &'static str)> {
    if let Some(known) = SYMBOLS.iter().find(|known| known.0 == symbol) {
        return Some((TimeReason::KernelLock, known.1));
    }
    let wanted = wanted_by(stack)?;
    if let Some(known) = CALLERS.iter().find(|known| known.0 == wanted) {
        return Some((TimeReason::KernelLock, known.1));
    }
    let is_known =
        |entry: &&Entry| entry.0 == wanted && matches!(entry.2, TimeReason::KernelLock | TimeReason::KernelWork);
    SLEEPS.iter().find(is_known).map(|entry| (entry.2, entry.3))
}

/// Why a thread slept. Both stacks have the innermost function first.
pub(crate) fn classify<'f>(stack: &[&'f str], waker: &[&'f str]) -> Classified {
    let locking = stack.iter().take_while(|function| LOCKING.contains(&bare(function)));
    let innermost = stack.get(locking.count()).or(stack.first());
    let innermost = innermost.map_or("", |function| bare(function));
    let find = |function: &'f str, at: At| {
        let entry = SLEEPS.iter().find(|entry| entry.0 == function && entry.1 == at)?;
        Some((entry.2, entry.3, function))
    };
    let found = stack.iter().find_map(|function| find(bare(function), At::Any));
    let found = found.or_else(|| find(innermost, At::Innermost));
    let polls = is_poll(stack.iter().copied());
    let (reason, what, function) = match found {
        Some(found) => found,
        None if polls => by_waker(waker).unwrap_or((TimeReason::Other, "", innermost)),
        // A mutex leaves no function of its own in the stack: the one that released it shows that it was one.
        None => match released(waker) {
            Some(lock) => (TimeReason::KernelLock, lock, innermost),
            // That it slept is all that is known.
            None if stack.is_empty() => (TimeReason::Unknown, "", innermost),
            None => (TimeReason::Other, "", innermost),
        },
    };
    Classified {
        reason,
        what,
        function: function.to_owned(),
    }
}

fn by_waker<'a>(waker: &[&'a str]) -> Option<(TimeReason, &'static str, &'a str)> {
    waker.iter().find_map(|function| {
        let function = bare(function);
        let entry = WAKES.iter().find(|entry| entry.0 == function)?;
        Some((entry.2, entry.3, function))
    })
}

/// The lock that a wake-up released; empty when it has no name here, `None` when it released none.
fn released(waker: &[&str]) -> Option<&'static str> {
    let at = waker.iter().position(|function| RELEASES.contains(&bare(function)))?;
    let by = waker[at + 1..].iter().map(|function| bare(function)).take(2);
    let named = by
        .filter_map(|by| LOCKS.iter().find(|lock| lock.0 == by))
        .map(|lock| lock.1);
    Some(named.into_iter().next().unwrap_or_default())
}

/// A function's name as its source has it: without `.constprop.0`, `.isra.0`, `.part.0`.
fn bare(function: &str) -> &str {
    split_once(function, b'.').map_or(function, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(stack: &str, waker: &str) -> (TimeReason, &'static str) {
        let (stack, waker): (Vec<&str>, Vec<&str>) = (stack.split(' ').collect(), waker.split(' ').collect());
        let found = classify(&stack, &waker);
        (found.reason, found.what)
    }

    /// Stacks as Linux 6.18 gave them.
    #[test]
    fn stacks_of_a_real_kernel_have_their_reasons() {
        let timer =
            "try_to_wake_up hrtimer_wakeup __hrtimer_run_queues hrtimer_interrupt asm_sysvec_apic_timer_interrupt";
        let exit = "try_to_wake_up __wake_up_common __wake_up_sync_key do_notify_parent do_exit";
        let rtnl = "try_to_wake_up wake_up_q __mutex_unlock_slowpath.isra.0 __rtnl_unlock netdev_run_todo";
        for (stack, waker, expected) in [
            (
                "hrtimer_nanosleep common_nsleep __x64_sys_clock_nanosleep",
                timer,
                (TimeReason::Timer, ""),
            ),
            ("do_wait kernel_wait4 do_syscall_64", exit, (TimeReason::Child, "")),
            (
                "kernel_clone __x64_sys_vfork",
                "try_to_wake_up complete mm_release begin_new_exec",
                (TimeReason::Child, "exec"),
            ),
            (
                "rtnl_newlink netlink_rcv_skb netlink_unicast",
                rtnl,
                (TimeReason::KernelLock, "rtnl"),
            ),
            (
                "register_nexthop_notifier ops_init setup_net copy_net_ns",
                rtnl,
                (TimeReason::KernelLock, "rtnl"),
            ),
            ("ops_init setup_net copy_net_ns", rtnl, (TimeReason::KernelLock, "rtnl")),
            // Linux 6.12 with PREEMPT_RT.
            (
                "rt_mutex_schedule __rt_mutex_slowlock_locked.constprop.0 dev_ioctl sock_do_ioctl",
                "try_to_wake_up wake_up_q rt_mutex_unlock __rtnl_unlock netdev_run_todo rtnetlink_rcv_msg",
                (TimeReason::KernelLock, "rtnl"),
            ),
            (
                "rt_mutex_schedule __rt_mutex_slowlock_locked.constprop.0 ops_init setup_net copy_net_ns",
                "try_to_wake_up wake_up_q rt_mutex_unlock __rtnl_unlock netdev_run_todo rtnetlink_rcv_msg",
                (TimeReason::KernelLock, "rtnl"),
            ),
            (
                "rcu_barrier netdev_run_todo rtnl_dellink",
                "try_to_wake_up complete rcu_do_batch",
                (TimeReason::KernelWork, "rcu"),
            ),
            (
                "exp_funnel_lock synchronize_rcu_expedited netif_set_real_num_tx_queues veth_newlink rtnl_newlink",
                "try_to_wake_up wake_up_q __mutex_unlock_slowpath.isra.0 synchronize_rcu_expedited",
                (TimeReason::KernelWork, "rcu"),
            ),
            (
                "__flush_work nft_rcv_nl_event notifier_call_chain netlink_release",
                "try_to_wake_up complete process_one_work worker_thread",
                (TimeReason::KernelWork, "nftables"),
            ),
            (
                "folio_wait_bit_common filemap_fault __do_fault",
                "try_to_wake_up wake_page_function",
                (TimeReason::Disk, "page of a file"),
            ),
            (
                "folio_wait_bit folio_wait_writeback file_write_and_wait_range do_fsync",
                "try_to_wake_up wake_page_function",
                (TimeReason::Disk, "write"),
            ),
            (
                "unix_stream_read_generic unix_stream_recvmsg",
                "try_to_wake_up sock_def_readable",
                (TimeReason::Daemon, "unix socket"),
            ),
            (
                "wait_woken sk_wait_data tcp_recvmsg_locked",
                "try_to_wake_up tcp_v4_rcv",
                (TimeReason::Network, ""),
            ),
            (
                "poll_schedule_timeout.constprop.0 do_select",
                timer,
                (TimeReason::Timer, ""),
            ),
            (
                "do_epoll_wait __x64_sys_epoll_wait",
                "try_to_wake_up ep_poll_callback sock_def_readable unix_stream_sendmsg",
                (TimeReason::Daemon, "unix socket"),
            ),
            (
                "futex_do_wait __futex_wait futex_wait",
                "try_to_wake_up wake_up_q futex_wake",
                (TimeReason::Thread, ""),
            ),
            (
                "anon_pipe_read vfs_read ksys_read",
                "try_to_wake_up anon_pipe_write",
                (TimeReason::Pipe, ""),
            ),
            (
                "something_new vfs_other",
                "try_to_wake_up whatever",
                (TimeReason::Other, ""),
            ),
            (
                "something_new vfs_other",
                "wake_up_q __mutex_unlock_slowpath some_caller",
                (TimeReason::KernelLock, ""),
            ),
        ] {
            assert_eq!(reason(stack, waker), expected, "{stack}");
        }
        assert_eq!(classify(&[], &[]).reason, TimeReason::Unknown);
    }

    #[test]
    fn an_interrupt_is_no_waker() {
        assert!(is_interrupt([
            "try_to_wake_up",
            "hrtimer_wakeup",
            "asm_sysvec_apic_timer_interrupt"
        ]));
        assert!(!is_interrupt([
            "try_to_wake_up",
            "tcp_v4_rcv",
            "do_softirq.part.0",
            "tcp_sendmsg"
        ]));
    }

    #[test]
    fn no_function_stands_twice() {
        for table in [SLEEPS, WAKES] {
            let mut names: Vec<&str> = table.iter().map(|entry| entry.0).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), table.len());
        }
    }
}
