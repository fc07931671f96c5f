//! The deadlines of expiring keys. Pure; time is a number of milliseconds on the caller's clock.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use listwatch_meta::{Key, Revision};

/// Milliseconds on the caller's clock.
pub(crate) type Millis = u64;

/// The deadlines of keys with a TTL. A deadline belongs to the revision that set it, so a rewritten
/// key is never removed by its former deadline.
///
/// A deadline has two times. The key expires at the time on a steady clock. The stored time is that of the wall clock,
/// which may be changed meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    by_time: BTreeMap<(Millis, Revision), Key>,
    by_revision: HashMap<Revision, Deadline>,
}

/// The deadline of a key on both clocks of [`Deadlines`].
#[derive(Clone, Copy, Debug)]
struct Deadline {
    due: Millis,
    stored: Millis,
}

impl Deadlines {
    /// Sets the deadline of the key written at `revision` to `due`, which is stored as `stored`.
    pub(crate) fn set(&mut self, key: Key, revision: Revision, due: Millis, stored: Millis) {
        self.by_revision.insert(revision, Deadline { due, stored });
        self.by_time.insert((due, revision), key);
    }

    /// Drops the deadline of a state that is no longer the key's newest.
    pub(crate) fn forget(&mut self, revision: Revision) {
        if self.by_revision.is_empty() {
            return;
        }
        if let Some(deadline) = self.by_revision.remove(&revision) {
            self.by_time.remove(&(deadline.due, revision));
        }
    }

    /// The next deadline, if any.
    pub(crate) fn next(&self) -> Option<Millis> {
        self.by_time.first_key_value().map(|((deadline, _), _)| *deadline)
    }

    /// The earliest deadline that has passed at `now`, with its key and revision. The deadline stays until
    /// [`Deadlines::forget`].
    pub(crate) fn due(&self, now: Millis) -> Option<(Key, Revision)> {
        let ((deadline, revision), key) = self.by_time.first_key_value()?;
        (*deadline <= now).then(|| (key.clone(), *revision))
    }

    /// Up to `limit` deadlines that have passed at `now`, earliest first. The deadlines stay until
    /// [`Deadlines::forget`].
    #[cfg_attr(not(feature = "embedded"), expect(dead_code, reason = "the embedded store removes in batches"))]
    pub(crate) fn all_due(&self, now: Millis, limit: usize) -> Vec<(Key, Revision)> {
        let passed = self.by_time.range(..=(now, Revision::new(u64::MAX)));
        passed.take(limit).map(|((_, revision), key)| (key.clone(), *revision)).collect()
    }

    /// All stored deadlines, by the revision that set them.
    pub(crate) fn all(&self) -> HashMap<Revision, Millis> {
        self.by_revision.iter().map(|(revision, deadline)| (*revision, deadline.stored)).collect()
    }

    /// The stored deadline of the state written at `revision`.
    pub(crate) fn of(&self, revision: Revision) -> Option<Millis> {
        self.by_revision.get(&revision).map(|deadline| deadline.stored)
    }
}

/// The deadline of a TTL that begins at `now`. If `now` is rounded up, the deadline is never early on a clock that is read
/// in whole milliseconds.
pub(crate) fn deadline(now: Millis, ttl: Duration) -> Millis {
    now.saturating_add(millis_rounded_up(ttl))
}

/// The smallest number of milliseconds that is not shorter than `time`.
pub(crate) fn millis_rounded_up(time: Duration) -> Millis {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(Millis::MAX)
}

/// The whole milliseconds of `time`.
pub(crate) fn millis_rounded_down(time: Duration) -> Millis {
    u64::try_from(time.as_millis()).unwrap_or(Millis::MAX)
}
