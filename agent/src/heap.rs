//! Keeps the agent's resident memory small: it counts once for every node of a fleet.
//!
//! Used at start, and by the composition root while the agent runs. Does something with glibc only; musl and Windows give
//! memory back, or do not, by themselves. Does not: allocate.

/// One arena for all threads: they allocate little at once, and glibc's arena for each keeps what the others freed.
/// To be called before any other thread exists.
pub fn keep_small() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: sets a number in the allocator before any other thread exists.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Gives memory back that was freed: after the kernel's type information was read, or a burst of sandboxes is over.
pub fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim has no preconditions.
    unsafe {
        libc::malloc_trim(0);
    }
}
