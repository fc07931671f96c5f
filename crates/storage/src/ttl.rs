//! When keys remove themselves: a queue of deadlines. Pure; time is a number of milliseconds on
//! whatever clock the caller reads.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use listwatch_meta::{Key, Revision};

/// Milliseconds on the caller's clock.
pub(crate) type Millis = u64;

/// The deadlines of the keys that have one. A deadline belongs to the revision that set it, so a
/// key that was written again is never removed by its former deadline.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    by_time: BTreeMap<(Millis, Revision), Key>,
    by_revision: HashMap<Revision, Millis>,
}

impl Deadlines {
    /// The key written at `revision` removes itself at `deadline`.
    pub(crate) fn set(&mut self, key: Key, revision: Revision, deadline: Millis) {
        self.by_revision.insert(revision, deadline);
        self.by_time.insert((deadline, revision), key);
    }

    /// The state written at `revision` is no longer the key's newest.
    pub(crate) fn forget(&mut self, revision: Revision) {
        if self.by_revision.is_empty() {
            return;
        }
        if let Some(deadline) = self.by_revision.remove(&revision) {
            self.by_time.remove(&(deadline, revision));
        }
    }

    /// The next deadline, if any.
    pub(crate) fn next(&self) -> Option<Millis> {
        self.by_time.first_key_value().map(|((deadline, _), _)| *deadline)
    }

    /// The earliest deadline that has passed at `now`, with its key and the revision it is about.
    /// It stays until [`Deadlines::forget`].
    pub(crate) fn due(&self, now: Millis) -> Option<(Key, Revision)> {
        let ((deadline, revision), key) = self.by_time.first_key_value()?;
        (*deadline <= now).then(|| (key.clone(), *revision))
    }

    /// Up to `limit` deadlines that have passed at `now`, earliest first. They stay until
    /// [`Deadlines::forget`].
    #[cfg_attr(not(feature = "embedded"), expect(dead_code, reason = "the embedded store removes in batches"))]
    pub(crate) fn all_due(&self, now: Millis, limit: usize) -> Vec<(Key, Revision)> {
        let passed = self.by_time.range(..=(now, Revision::new(u64::MAX)));
        passed.take(limit).map(|((_, revision), key)| (key.clone(), *revision)).collect()
    }

    /// The deadline of the state written at `revision`.
    pub(crate) fn of(&self, revision: Revision) -> Option<Millis> {
        self.by_revision.get(&revision).copied()
    }
}

/// The deadline of a TTL that begins at `now`; never earlier than asked for.
pub(crate) fn deadline(now: Millis, ttl: Duration) -> Millis {
    // Round up: a key never goes early.
    let millis = ttl.as_nanos().div_ceil(1_000_000);
    now.saturating_add(u64::try_from(millis).unwrap_or(u64::MAX))
}
