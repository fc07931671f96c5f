//! An allocator that counts the allocated bytes and their peak.
#![allow(unsafe_code, reason = "an allocator that counts has to be one; it only passes on")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(held, Relaxed);
        // SAFETY: the caller fulfills the same requirements as for the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The number of allocated bytes.
pub(crate) fn held() -> usize {
    HELD.load(Relaxed)
}

/// The peak of the allocated bytes since the last call of [`start_peak`].
pub(crate) fn peak() -> usize {
    PEAK.load(Relaxed)
}

/// Resets the peak.
pub(crate) fn start_peak() {
    PEAK.store(held(), Relaxed);
}
