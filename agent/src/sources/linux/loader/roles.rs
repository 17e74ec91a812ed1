//! The kernel side's table of roles.
//!
//! Used by the thread of the process probe: it tracks processes that run already, and releases daemons. One byte for each process id,
//! which the kernel side writes at forks, execs and exits (`roles` in `probes/bpf/process.h`). Writing the map by a system call would
//! write 4,096 bytes at once, and undo what the kernel side wrote meanwhile. So the page with a byte is mapped into memory for as long as it
//! is changed; all of the table would be 4 MB of the agent's resident memory (the kernel maps it at once, kernel/bpf/arraymap.c,
//! array_map_mmap). A change takes some microseconds, and comes with a process that runs already or a daemon's last request.
//! Does not: know which process has an id now.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::param::page_size;
use sandglass_probes::wire::{PIDS_MAX, ROLE_DAEMON, ROLE_TRACKED};

/// The table, of [`PIDS_MAX`] bytes.
#[derive(Debug)]
pub struct Roles {
    table: OwnedFd,
}

/// One page of the table in memory. Unmapped when it is dropped.
struct Page {
    /// Of as many bytes as a page has.
    first: NonNull<AtomicU8>,
}

impl Roles {
    /// The roles in this map.
    ///
    /// # Errors
    /// When the kernel refuses to map it into memory.
    pub(super) fn new(table: impl AsFd) -> io::Result<Roles> {
        let table = table.as_fd().try_clone_to_owned()?;
        drop(Page::map(&table, 0)?);
        Ok(Roles { table })
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

    /// False when the process has another role than `from`, or no process has such an id. Where the kernel has no memory for the
    /// mapping nothing is changed either.
    fn change(&self, pid: u32, from: u32, to: u32) -> bool {
        let (from, to) = (from as u8, to as u8);
        let (number, place) = (pid as usize / page_size(), pid as usize % page_size());
        let page = (pid < PIDS_MAX).then(|| Page::map(&self.table, number));
        page.and_then(Result::ok).is_some_and(|page| {
            let role = page.byte(place);
            role.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
        })
    }
}

impl Page {
    /// Maps a page by its number. The table has only whole pages.
    fn map(table: &OwnedFd, number: usize) -> io::Result<Page> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let offset = (number * page_size()) as u64;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let address = unsafe { mmap(null_mut(), page_size(), access, MapFlags::SHARED, table, offset) }?;
        let first = NonNull::new(address.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Page { first })
    }

    /// A byte of it. `place` is below the size of a page.
    fn byte(&self, place: usize) -> &AtomicU8 {
        // SAFETY: within the mapping, which lives as long as `self` and is written by atomic operations only, the kernel side's single
        // bytes included.
        unsafe { self.first.add(place).as_ref() }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length, and nothing refers to it any more. A failure leaves the mapping behind.
        let _ = unsafe { munmap(self.first.as_ptr().cast(), page_size()) };
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
        Roles::new(&file as &File).unwrap()
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
