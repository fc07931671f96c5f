//! What the encodings of a resource's events take, and how long they stay ([`Encodings`]).
//!
//! An encoding is kept beside its event, where every watcher of the event finds it. Here stands
//! only which events carry some, oldest first, and how many bytes that is: when it is too much, the
//! ones that were made first are given back.

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
    /// Events that carry encodings, by when those were made. One may stand here several times.
    carriers: Mutex<VecDeque<Weak<SharedEvent>>>,
}

impl Encodings {
    /// None yet, and room for `bytes_max`.
    pub(crate) fn new(bytes_max: usize, counters: Arc<Counters>) -> Arc<Self> {
        Arc::new(Encodings { counters, bytes_max, carriers: Mutex::default() })
    }

    /// An encoding of so many bytes was made; it counts from now on, until
    /// [`Encodings::handle_forgotten`].
    pub(crate) fn handle_made(&self, bytes: usize) {
        self.counters.encodes.fetch_add(1, Relaxed);
        self.counters.encodings_bytes.fetch_add(bytes, Relaxed);
    }

    /// An encoding was put beside this event: makes room for it.
    ///
    /// The oldest ones go first; the newest always stays, so that an encoding larger than the bound
    /// is shared too.
    pub(crate) fn handle_kept(&self, event: &Arc<SharedEvent>) {
        // This may be the last owner of an event: it is freed behind the lock.
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

    /// Encodings of so many bytes are gone.
    pub(crate) fn handle_forgotten(&self, bytes: usize) {
        self.counters.encodings_bytes.fetch_sub(bytes, Relaxed);
    }
}

#[cfg(test)]
impl Encodings {
    /// How many places are kept.
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
