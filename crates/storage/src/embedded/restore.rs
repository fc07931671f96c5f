//! Fills a new store with the keys of another store, including their revisions: [`Restore`].
//!
//! ```text
//!   <dir>/store.redb.restoring   grows in batches; EmbeddedStorage::open rejects the directory
//!        └── finish ──▶ <dir>/store.redb   renamed when it is whole and synced
//! ```
//!
//! A store holds one change per revision. So two restored keys may not have the same revision, and
//! there is no history: the oldest readable revision is the last one.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;
use std::time::SystemTime;

use listwatch_meta::{Key, Revision};

use super::commit::millis_of;
use super::dir::{FileDisk, StoreDir};
use super::engine::{Change, Engine, EngineError};
use super::plan::Record;
use super::record::{Header, Put};
use super::{EmbeddedOptions, OpenError};
use crate::mvcc::FIRST_REVISION;
use crate::types::{KeyValue, VALUE_BYTES_MAX};

/// Approximate bytes of the values in one batch.
const BATCH_BYTES: usize = 8 << 20;

/// The number of keys in one batch.
const BATCH_KEYS: usize = 16 << 10;

/// The error of restoring a key, or of completing the store.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// Two keys were written at one revision, as transactions of etcd do. This store cannot
    /// represent that: write the keys again (with new revisions) instead of restoring them.
    #[error("{key} has revision {revision}, which another key has too; import the keys under new revisions instead")]
    RevisionTaken {
        /// The second key of the revision.
        key: Key,
        /// The revision.
        revision: Revision,
    },
    /// The key was restored before.
    #[error("{0} comes twice")]
    KeyTwice(Key),
    /// The key's revisions are invalid: created after modified, zero, or after the store's
    /// revision.
    #[error("{key} is of revision {created} to {modified}, which cannot be in a store at revision {revision}")]
    Revisions {
        /// The key.
        key: Key,
        /// The revision of its creation.
        created: Revision,
        /// The revision of its last change.
        modified: Revision,
        /// The store's last revision, if known.
        revision: Revision,
    },
    /// The value is larger than [`VALUE_BYTES_MAX`].
    #[error("the value of {key} has {bytes} bytes, the limit is {VALUE_BYTES_MAX}")]
    TooLarge {
        /// The key.
        key: Key,
        /// The length of the key's value in bytes.
        bytes: usize,
    },
    /// The new store cannot be written.
    #[error(transparent)]
    Store(#[from] OpenError),
}

/// A new store that is being filled; see
/// [`EmbeddedStorage::restore`](super::EmbeddedStorage::restore). All methods block on the disk.
/// Dropping the value before completion removes the written files.
pub struct Restore {
    dir: StoreDir,
    disk: FileDisk,
    engine: Option<Engine>,
    batch: Vec<Record>,
    batch_bytes: usize,
    keys: HashSet<Key>,
    revisions: HashSet<Revision>,
    newest: Option<(Key, Revision, Revision)>,
}

impl fmt::Debug for Restore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Restore({} keys)", self.keys.len())
    }
}

impl Restore {
    pub(super) fn begin(path: &Path, options: EmbeddedOptions) -> Result<Self, OpenError> {
        let dir = StoreDir::prepare_new(path)?;
        let disk = dir.unfinished().map_err(|error| dir.failed(error.into()))?;
        let engine = Engine::create(&disk, options.cache_bytes).map_err(|error| dir.failed(error))?;
        Ok(Restore {
            dir,
            disk,
            engine: Some(engine),
            batch: Vec::new(),
            batch_bytes: 0,
            keys: HashSet::new(),
            revisions: HashSet::new(),
            newest: None,
        })
    }

    /// Adds a key in its latest state, with its revisions of creation and change, and its expiry.
    /// Keys may come in any order; ascending revisions of change are fastest. Keys that expire
    /// meanwhile are removed when the store is opened.
    ///
    /// # Errors
    /// See [`RestoreError`]. After [`RestoreError::Store`] no key can be added. After any other
    /// error the key is skipped and the restore can continue.
    pub fn put(&mut self, item: KeyValue, expires: Option<SystemTime>) -> Result<(), RestoreError> {
        let KeyValue { key, value, created, modified, .. } = item;
        if created.is_zero() || created > modified {
            return Err(RestoreError::Revisions { key, created, modified, revision: modified });
        }
        let length = match u32::try_from(value.len()) {
            Ok(length) if value.len() <= VALUE_BYTES_MAX => length,
            _ => return Err(RestoreError::TooLarge { key, bytes: value.len() }),
        };
        if self.keys.contains(&key) {
            return Err(RestoreError::KeyTwice(key));
        }
        if !self.revisions.insert(modified) {
            return Err(RestoreError::RevisionTaken { key, revision: modified });
        }
        self.keys.insert(key.clone());
        if self.newest.as_ref().is_none_or(|(.., newest)| modified > *newest) {
            self.newest = Some((key.clone(), created, modified));
        }
        let put = Put { created, deadline: expires.map_or(0, millis_of), length };
        self.batch_bytes += value.len();
        self.batch.push((modified, Header { key, put: Some(put), previous: Revision::ZERO }, Some(value)));
        if self.batch_bytes >= BATCH_BYTES || self.batch.len() >= BATCH_KEYS {
            self.write(None)?;
        }
        Ok(())
    }

    /// Completes the store at `revision`; the first write takes the next revision. The store can be
    /// opened afterwards.
    ///
    /// # Errors
    /// [`RestoreError::Revisions`] when a key is newer than `revision`; [`RestoreError::Store`]
    /// when the disk fails. In both cases no store is created.
    pub fn finish(mut self, revision: Revision) -> Result<(), RestoreError> {
        let revision = revision.max(FIRST_REVISION);
        if let Some((key, created, modified)) = self.newest.take()
            && modified > revision
        {
            return Err(RestoreError::Revisions { key, created, modified, revision });
        }
        self.write(Some(revision))?;
        if let Some(engine) = self.engine.take() {
            engine.close();
        }
        self.dir.finish(&self.disk).map_err(|error| self.dir.failed(error.into()))?;
        self.dir.mark()?;
        Ok(())
    }

    fn write(&mut self, oldest: Option<Revision>) -> Result<(), RestoreError> {
        self.batch.sort_unstable_by_key(|(revision, ..)| *revision);
        let change = Change { records: &self.batch, dead: &[], oldest, quick_repair: oldest.is_some() };
        let gone = || EngineError::Io("the restore failed before".to_owned());
        let written = self.engine.as_ref().ok_or_else(gone).and_then(|engine| engine.commit(&change));
        if let Err(error) = written {
            // redb's handle fails every call after a failed commit.
            if let Some(engine) = self.engine.take() {
                engine.close();
            }
            return Err(self.dir.failed(error).into());
        }
        self.batch.clear();
        self.batch_bytes = 0;
        Ok(())
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        if let Some(engine) = self.engine.take() {
            engine.close();
        }
        self.dir.discard_unfinished();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(n: u64, modified: u64, bytes: usize) -> KeyValue {
        let key = Key::new("pods", Some("ns"), &format!("k{n}")).unwrap();
        let (created, modified) = (Revision::new(2), Revision::new(modified));
        KeyValue { key, value: vec![0; bytes].into(), created, modified, stale: false }
    }

    fn restore(root: &tempfile::TempDir) -> Restore {
        Restore::begin(&root.path().join("store"), EmbeddedOptions::default()).unwrap()
    }

    #[test]
    fn batch_is_written_at_its_bound_in_bytes_or_keys() {
        let root = tempfile::tempdir().unwrap();
        let mut restore = restore(&root);
        let mut revision = 10;
        let mut waiting_after = |count: usize, bytes: usize| {
            for _ in 0..count {
                revision += 1;
                restore.put(item(revision, revision, bytes), None).unwrap();
            }
            restore.batch.len()
        };
        assert_eq!(waiting_after(7, 1 << 20), 7, "below the bytes of a batch");
        assert_eq!(waiting_after(1, 1 << 20), 0, "at the bytes of a batch");
        assert_eq!(waiting_after(7, 1 << 20), 7, "the next batch begins empty");
        assert_eq!(waiting_after(BATCH_KEYS - 8, 0), BATCH_KEYS - 1, "below the keys of a batch");
        assert_eq!(waiting_after(1, 0), 0, "at the keys of a batch");
    }

    #[test]
    fn revision_of_the_store_must_reach_the_newest_key_in_any_order() {
        let check = |revisions: [u64; 3], finish: u64, fits: bool| {
            let root = tempfile::tempdir().unwrap();
            let mut restore = restore(&root);
            for (n, revision) in (0..).zip(revisions) {
                restore.put(item(n, revision, 1), None).unwrap();
            }
            match restore.finish(Revision::new(finish)) {
                Ok(()) => assert!(fits, "{revisions:?} in a store at {finish}"),
                Err(RestoreError::Revisions { modified, revision, .. }) => {
                    assert!(!fits, "{revisions:?} in a store at {finish}");
                    assert_eq!((modified.get(), revision.get()), (9, finish), "the newest key is named");
                }
                Err(error) => panic!("{error}"),
            }
        };
        for revisions in [[4, 6, 9], [9, 6, 4], [6, 9, 4]] {
            check(revisions, 8, false);
            check(revisions, 9, true);
        }
    }
}
