//! An allocator that counts what is held, and the most that ever was.
#![allow(unsafe_code, reason = "an allocator that counts has to be one; it only passes on")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(held, Relaxed);
        // SAFETY: the caller's promises are those that the system's allocator asks for.
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

/// Bytes asked for and not given back.
pub(crate) fn held() -> usize {
    HELD.load(Relaxed)
}

/// The most that was held since the last call of [`start_peak`].
pub(crate) fn peak() -> usize {
    PEAK.load(Relaxed)
}

/// From here on the peak counts.
pub(crate) fn start_peak() {
    PEAK.store(held(), Relaxed);
}
