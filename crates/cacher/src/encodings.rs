//! Bounds the memory of the cached encodings of a resource's events ([`Encodings`]).
//!
//! An encoding is cached with its event, where every watcher of the event finds it. This module
//! tracks which events have encodings, oldest first, and their bytes. Above the bound it drops the
//! oldest encodings.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::delivery::SharedEvent;
use crate::stats::Counters;

/// The encodings of one resource's events.
pub(crate) struct Encodings {
    counters: Arc<Counters>,
    bytes_max: usize,
    /// Events with encodings, in the order in which these were made. An event may occur several
    /// times.
    carriers: Mutex<VecDeque<Weak<SharedEvent>>>,
}

impl Encodings {
    /// Creates an empty set with room for `bytes_max` bytes.
    pub(crate) fn new(bytes_max: usize, counters: Arc<Counters>) -> Arc<Self> {
        Arc::new(Encodings { counters, bytes_max, carriers: Mutex::default() })
    }

    /// Accounts a new encoding of `bytes` bytes, until [`Encodings::handle_forgotten`].
    pub(crate) fn handle_made(&self, bytes: usize) {
        self.counters.encodes.fetch_add(1, Relaxed);
        self.counters.encodings_bytes.fetch_add(bytes, Relaxed);
    }

    /// Records that an encoding was cached with this event. Above the bound, drops old encodings.
    ///
    /// The oldest encodings are dropped first. The newest encoding always stays, so that watchers
    /// also share an encoding larger than the bound.
    pub(crate) fn handle_kept(&self, event: &Arc<SharedEvent>) {
        // The last reference to an event may be dropped here, so events are freed after the lock.
        let mut done = Vec::new();
        let mut carriers = self.carriers.lock();
        while let Some(oldest) = carriers.front() {
            if let Some(oldest) = oldest.upgrade() {
                let over = self.counters.encodings_bytes.load(Relaxed) > self.bytes_max;
                if over && !Arc::ptr_eq(&oldest, event) {
                    oldest.forget_encodings();
                }
                let carries = oldest.has_encodings();
                done.push(oldest);
                if carries {
                    break;
                }
            }
            carriers.pop_front();
        }
        carriers.push_back(Arc::downgrade(event));
        drop(carriers);
    }

    /// Accounts that encodings of `bytes` bytes were dropped.
    pub(crate) fn handle_forgotten(&self, bytes: usize) {
        self.counters.encodings_bytes.fetch_sub(bytes, Relaxed);
    }
}

#[cfg(test)]
impl Encodings {
    /// The number of events with cached encodings.
    pub(crate) fn carriers(&self) -> usize {
        self.carriers.lock().len()
    }
}

#[cfg(test)]
impl Default for Encodings {
    fn default() -> Self {
        Encodings { counters: Arc::default(), bytes_max: usize::MAX, carriers: Mutex::default() }
    }
}
