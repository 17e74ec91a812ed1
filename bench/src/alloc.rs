//! The system's allocator with counters for each thread.
//!
//! Used by the memory part. Counters are per thread, so that counting costs about a nanosecond and the throughput part
//! can run in the same program. Does not: change how memory is allocated.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, counted.
pub struct Counting;

/// Allocations of the calling thread since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Allocations, reallocations included.
    pub allocations: u64,
    /// Bytes allocated and not freed. Negative if the thread freed memory of other threads.
    pub live_bytes: i64,
}

thread_local! {
    static COUNTS: Cell<Counts> = const { Cell::new(Counts { allocations: 0, live_bytes: 0 }) };
}

/// The calling thread's counts.
pub fn counts() -> Counts {
    COUNTS.with(Cell::get)
}

fn count(allocations: u64, bytes: i64) {
    // A thread that is ending has no counters any more: its last deallocations are not counted.
    let _ = COUNTS.try_with(|counts| {
        let mut now = counts.get();
        now.allocations += allocations;
        now.live_bytes += bytes;
        counts.set(now);
    });
}

/// No layout is larger than `isize::MAX` bytes (`Layout`'s contract), so the cast keeps the value.
fn bytes(layout: Layout) -> i64 {
    layout.size() as i64
}

// SAFETY: every call is forwarded unchanged to the system's allocator; counting allocates nothing (const thread local).
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, bytes(layout));
        // SAFETY: the caller's promise is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(1, bytes(layout));
        // SAFETY: the caller's promise is the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count(0, -bytes(layout));
        // SAFETY: the caller's promise is the same.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(1, new_size as i64 - bytes(layout));
        // SAFETY: the caller's promise is the same.
        unsafe { System.realloc(place, layout, new_size) }
    }
}
