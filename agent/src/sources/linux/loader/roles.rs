//! The kernel side's table of roles, mapped into memory.
//!
//! Used by the thread of the process probe: it tracks processes that run already, and releases daemons. One byte for each process id,
//! which the kernel side writes at forks, execs and exits (`roles` in `probes/bpf/process.h`). Writing the map by a system call would
//! write 4,096 bytes at once, and undo what the kernel side wrote meanwhile.
//! Does not: know which process has an id now.

use std::io;
use std::os::fd::AsFd;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use sandglass_probes::wire::{PIDS_MAX, ROLE_DAEMON, ROLE_TRACKED};

/// The table. Unmapped when it is dropped.
#[derive(Debug)]
pub struct Roles {
    /// Of [`PIDS_MAX`] bytes.
    first: NonNull<AtomicU8>,
}

// SAFETY: the mapping belongs to this value alone, and its bytes are atomics.
unsafe impl Send for Roles {}

impl Roles {
    /// Maps the table.
    ///
    /// # Errors
    /// When the kernel refuses the mapping.
    pub(super) fn map(table: impl AsFd) -> io::Result<Roles> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let address = unsafe { mmap(null_mut(), PIDS_MAX as usize, access, MapFlags::SHARED, table, 0) }?;
        let first = NonNull::new(address.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Roles { first })
    }

    /// Tracks a process and what it forks. False when it has a role already.
    pub fn track(&mut self, pid: u32) -> bool {
        self.change(pid, 0, ROLE_TRACKED)
    }

    /// Ends the tracking of a process. False when it was not tracked: its exit has been reported.
    pub fn untrack(&mut self, pid: u32) -> bool {
        self.change(pid, ROLE_TRACKED, 0)
    }

    /// Follows a daemon again that was just released. The kernel side may have done so already.
    pub fn keep_daemon(&mut self, pid: u32) {
        self.change(pid, 0, ROLE_DAEMON);
    }

    /// Ends the following of a daemon. A process that has another role by now keeps it.
    pub fn release_daemon(&mut self, pid: u32) {
        self.change(pid, ROLE_DAEMON, 0);
    }

    /// False when the process has another role than `from`, or no process has such an id.
    fn change(&self, pid: u32, from: u32, to: u32) -> bool {
        let (from, to) = (from as u8, to as u8);
        self.place(pid).is_some_and(|role| {
            role.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
        })
    }

    fn place(&self, pid: u32) -> Option<&AtomicU8> {
        // SAFETY: within the mapping, which lives as long as `self` and is written by atomic operations only, the kernel side's single
        // bytes included.
        (pid < PIDS_MAX).then(|| unsafe { self.first.add(pid as usize).as_ref() })
    }
}

impl Drop for Roles {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length, and nothing refers to it any more. A failure leaves the mapping behind.
        let _ = unsafe { munmap(self.first.as_ptr().cast(), PIDS_MAX as usize) };
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    /// As the map of the object, in a file of its size.
    fn roles() -> Roles {
        let file = tempfile::tempfile().unwrap();
        file.set_len(u64::from(PIDS_MAX)).unwrap();
        Roles::map(&file as &File).unwrap()
    }

    #[test]
    fn a_process_keeps_the_role_that_it_has() {
        let mut roles = roles();
        let last = PIDS_MAX - 1;
        assert!(roles.track(last) && !roles.track(last), "tracked once");
        roles.keep_daemon(last);
        roles.release_daemon(last);
        assert!(roles.untrack(last) && !roles.untrack(last), "untracked once");
        roles.keep_daemon(last);
        assert!(!roles.untrack(last) && !roles.track(last), "a daemon is not tracked");
        roles.release_daemon(last);
        assert!(
            roles.track(last) && roles.track(last - 1),
            "each id has a place of its own"
        );
    }

    #[test]
    fn an_id_that_no_process_has_has_no_role() {
        let mut roles = roles();
        assert!(!roles.track(PIDS_MAX) && !roles.track(u32::MAX));
        assert!(!roles.untrack(u32::MAX));
    }
}
