//! The system's allocator, counting what each thread asks of it.
//!
//! Used by the memory part. Counters are per thread, so that counting costs about a nanosecond and the throughput part
//! can run in the same program. Does not: change how memory is handed out.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, counted.
pub struct Counting;

/// What the calling thread has asked for since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Allocations, growing ones of existing memory included.
    pub allocations: u64,
    /// Bytes asked for and not given back. Negative when the thread freed what others had allocated.
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
    // A thread that is being taken down has no counters any more; what it still frees is not counted.
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

// SAFETY: every call is passed on unchanged to the system's allocator; counting allocates nothing (const thread local).
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
