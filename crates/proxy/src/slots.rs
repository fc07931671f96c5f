//! [`Slots`]: counts connections, in total and for each backend, so that one backend cannot use up the total.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Limits the number of connections, in total and per backend, and counts the connections in use.
pub(crate) struct Slots {
    max: usize,
    per_backend_max: usize,
    used: Mutex<Used>,
}

#[derive(Default)]
struct Used {
    total: usize,
    /// Only backends with a slot in use.
    by_backend: HashMap<String, usize>,
}

/// The limit at which no slot is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotLimit {
    /// The limit of all backends.
    Total(usize),
    /// The limit of this backend.
    Backend(usize),
}

impl Slots {
    pub(crate) fn new(max: usize, per_backend_max: usize) -> Arc<Self> {
        Arc::new(Slots { max, per_backend_max, used: Mutex::default() })
    }

    /// Takes a slot for a backend, given as `host:port`.
    pub(crate) fn take(self: &Arc<Self>, backend: &str) -> Result<Slot, SlotLimit> {
        let mut used = self.used.lock();
        let of_backend = used.by_backend.get(backend).copied().unwrap_or_default();
        if of_backend >= self.per_backend_max {
            return Err(SlotLimit::Backend(self.per_backend_max));
        }
        if used.total >= self.max {
            return Err(SlotLimit::Total(self.max));
        }
        used.total += 1;
        used.by_backend.insert(backend.to_owned(), of_backend + 1);
        Ok(Slot { slots: Arc::clone(self), backend: backend.to_owned() })
    }
}

/// A slot, which is freed when it is dropped.
pub(crate) struct Slot {
    slots: Arc<Slots>,
    backend: String,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut used = self.slots.used.lock();
        used.total -= 1;
        if let Some(of_backend) = used.by_backend.get_mut(&self.backend) {
            *of_backend -= 1;
            if *of_backend == 0 {
                used.by_backend.remove(&self.backend);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_backend_cannot_take_all_slots() {
        let slots = Slots::new(3, 2);
        let (first, second) = (slots.take("a:1").ok(), slots.take("a:1").ok());
        assert!(first.is_some() && second.is_some());
        assert_eq!(slots.take("a:1").err(), Some(SlotLimit::Backend(2)));
        let third = slots.take("b:1").ok();
        assert!(third.is_some(), "another backend has no slot");
        assert_eq!(slots.take("c:1").err(), Some(SlotLimit::Total(3)));
        drop((first, second, third));
        assert!(slots.used.lock().by_backend.is_empty(), "freed backends are remembered");
        assert!(slots.take("a:1").is_ok());
    }
}
