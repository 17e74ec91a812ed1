//! A second opinion on processes: the kernel's process connector, which shares nothing with BPF.
//!
//! It reports exec and exit with a kernel time stamp, for every process of the node (`CONFIG_PROC_EVENTS`; see
//! linux/cn_proc.h). Does not: know arguments or environments; the tests join on pid.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::netlink::{CONNECTOR, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_recv_buffer_size, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with};
use rustix::time::{ClockId, clock_gettime};

/// What is known of one pid. Pids are not reused within a test: there are 32768 of them at least.
#[derive(Clone, Copy, Debug, Default)]
pub struct Life {
    /// Last exec, nanoseconds since boot.
    pub exec_ns: u64,
    /// Exit of the thread group leader.
    pub exit_ns: Option<u64>,
    /// Wait status, as wait(2) gives it.
    pub status: u32,
}

/// Listens until dropped.
pub struct Witness {
    lives: Arc<Mutex<BTreeMap<u32, Life>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Witness {
    /// `None` where the kernel has no process connector.
    pub fn start() -> Option<Witness> {
        let socket = subscribe().ok()?;
        let lives = Arc::new(Mutex::new(BTreeMap::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let (seen, stopped) = (Arc::clone(&lives), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let offset = boot_offset();
            let mut buffer = [0u8; 4096];
            while !stopped.load(Ordering::Relaxed) {
                // An error is the timeout, or ENOBUFS: then a test that misses an event fails.
                if let Ok((length, _)) = recv(&socket, &mut buffer, RecvFlags::empty()) {
                    note(&buffer[..length.min(4096)], offset, &seen);
                }
            }
        });
        Some(Witness {
            lives,
            stop,
            thread: Some(thread),
        })
    }

    /// Everything seen so far, by pid.
    pub fn lives(&self) -> BTreeMap<u32, Life> {
        self.lives.lock().unwrap().clone()
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Joins the multicast group and asks for events (`PROC_CN_MCAST_LISTEN`).
fn subscribe() -> rustix::io::Result<OwnedFd> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(CONNECTOR),
    )?;
    set_socket_recv_buffer_size(&socket, 8 << 20)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_millis(100)))?;
    bind(&socket, &SocketAddrNetlink::new(0, 1))?;
    let mut request = Vec::new();
    // struct nlmsghdr: length, NLMSG_DONE, flags, sequence, port.
    request.extend(40u32.to_ne_bytes());
    request.extend(3u16.to_ne_bytes());
    request.extend([0u8; 10]);
    // struct cn_msg: CN_IDX_PROC, CN_VAL_PROC, sequence, acknowledgement, length, flags.
    request.extend(1u32.to_ne_bytes());
    request.extend(1u32.to_ne_bytes());
    request.extend([0u8; 8]);
    request.extend(4u16.to_ne_bytes());
    request.extend(0u16.to_ne_bytes());
    request.extend(1u32.to_ne_bytes());
    send(&socket, &request, SendFlags::empty())?;
    Ok(socket)
}

/// `struct proc_event` stands behind both headers: what, processor, time, then pid and thread group of the task.
fn note(message: &[u8], offset: u64, lives: &Mutex<BTreeMap<u32, Life>>) {
    const EXEC: u32 = 0x0000_0002;
    const EXIT: u32 = 0x8000_0000;
    let word = |at: usize| {
        message
            .get(at..at + 4)
            .map(|bytes| u32::from_ne_bytes(bytes.try_into().unwrap()))
    };
    let (Some(what), Some(low), Some(high)) = (word(36), word(44), word(48)) else {
        return;
    };
    let (Some(pid), Some(group), status) = (word(52), word(56), word(60)) else {
        return;
    };
    // Only leaders: a thread's end is not its process's.
    if pid != group {
        return;
    }
    let at = (u64::from(high) << 32 | u64::from(low)) + offset;
    let mut lives = lives.lock().unwrap();
    if what == EXEC {
        lives.entry(pid).or_default().exec_ns = at;
    } else if what == EXIT {
        let life = lives.entry(pid).or_default();
        life.exit_ns = Some(at);
        life.status = status.unwrap_or_default();
    }
}

/// The connector stamps with the monotonic clock, which stands still while the machine is suspended.
fn boot_offset() -> u64 {
    let ns = |clock| {
        let time = clock_gettime(clock);
        time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
    };
    ns(ClockId::Boottime).saturating_sub(ns(ClockId::Monotonic))
}
