//! The settings of glibc's allocator (mallopt(3), malloc_trim(3)).
//!
//! Used by `resident`. Does not: decide when.

pub fn keep_small() {
    // SAFETY: sets a number in the allocator before any other thread exists.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

pub fn trim() {
    // SAFETY: malloc_trim has no preconditions.
    unsafe {
        libc::malloc_trim(0);
    }
}
