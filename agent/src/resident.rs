//! Keeps the agent's own memory small: it counts once for every node of a fleet.
//!
//! Used when the agent starts and while it runs. Concerns glibc's allocator only: those of musl and Windows have no such
//! settings. Does not: replace the allocator, or unmap pages of files. The kernel drops the program's code from memory by
//! itself when it needs the room; to unmap it earlier lowers the resident set and frees nothing.

#[cfg_attr(all(target_os = "linux", target_env = "gnu"), path = "resident/glibc.rs")]
#[cfg_attr(not(all(target_os = "linux", target_env = "gnu")), path = "resident/other.rs")]
mod imp;

/// Makes all threads share one arena of the allocator: they allocate little at once, and an arena for each keeps what the
/// other threads freed. To be called before any other thread exists.
pub fn keep_small() {
    imp::keep_small();
}

/// Returns freed memory to the kernel: after the kernel's type information was read, or when a burst of sandboxes is over.
pub fn trim() {
    imp::trim();
}
