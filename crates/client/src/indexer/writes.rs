//! Overlays the store with this process's own writes until their events arrive: [`OwnWrites`].
//!
//! A controller that writes an object and then reads its cache finds the state before the write,
//! and repeats its work. With this type it records the server's response, and reads through the
//! record until the store shows the write.

use std::collections::HashMap;

use crate::indexer::{Snapshot, Store};
use crate::object::{Object, ObjectKey, compare_versions};
use crate::stored::Stored;

/// The maximum number of recorded writes that the store does not show yet. Above the limit a write
/// is not recorded, and the caller receives [`RecordError::Full`]: it should wait for the store
/// instead.
pub const OWN_WRITES_MAX: usize = 10_000;

/// An overlay of the store with writes of this process that the store may not show yet.
///
/// A write is dropped as soon as the store has reached its version, or shows the object in that or
/// a newer version. From then on the store is authoritative. A late response therefore does not
/// bring back a deleted object.
///
/// # Example
/// ```
/// use bytes::Bytes;
/// use listwatch_client::{Indexer, Object, ObjectKey, OwnWrites, RawObject, Typed, Stored};
///
/// let indexer = Indexer::<Typed<u32>>::new();
/// let mut writes = OwnWrites::new(indexer.reader());
/// let answer = br#"{"metadata":{"name":"web","uid":"u","resourceVersion":"7"}}"#;
/// let answer = RawObject::new(Bytes::from_static(answer)).unwrap();
/// writes.record_write(Typed::new(&answer, 3)).unwrap();
/// assert_eq!(*writes.get("web").unwrap(), 3);
/// writes.record_deletion(&ObjectKey::new("", "web"), "u", Some("8")).unwrap();
/// assert!(writes.get("web").is_none());
/// ```
#[derive(Debug)]
pub struct OwnWrites<S: Stored = Object> {
    store: Store<S>,
    written: HashMap<ObjectKey, Write<S>>,
}

#[derive(Clone, Debug)]
enum Write<S> {
    Object(S),
    /// The object was deleted, at this version if the server returned one.
    Deleted {
        uid: Box<str>,
        version: Option<Box<str>>,
        /// The version of an earlier own write that the store did not show. A store without that
        /// write has not seen the deletion.
        behind: Option<Box<str>>,
    },
}

/// A write was not recorded. The store will show it later, and [`Store::wait_for_version`] waits
/// for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// [`OWN_WRITES_MAX`] recorded writes are not in the store yet.
    #[error("{OWN_WRITES_MAX} writes are waiting to be seen in the store")]
    Full,
    /// The version is not a number, so it cannot be compared with the store's.
    #[error("version {version:?} is no number, so it cannot be waited for")]
    Incomparable {
        /// The version.
        version: String,
    },
}

impl<S: Stored> OwnWrites<S> {
    /// An overlay without writes.
    pub fn new(store: Store<S>) -> Self {
        OwnWrites { store, written: HashMap::new() }
    }

    /// Records the server's response to a create, an update or a patch. A response older than a
    /// recorded one has no effect.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn record_write(&mut self, object: S) -> Result<(), RecordError> {
        let version = object.resource_version().into_owned();
        let key = object.key().clone();
        if self.written.get(&key).is_some_and(|write| write.is_newer_than(&version)) {
            return Ok(());
        }
        self.record(key, &version, Write::Object(object))
    }

    /// Records that the server has deleted an object. `version` is the version of the deletion, if
    /// the server returned one. Without it the object is hidden until the store drops or replaces
    /// it. A deletion older than a recorded write has no effect. A deletion that waits for
    /// finalizers is a write: pass its response to [`OwnWrites::record_write`].
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn record_deletion(&mut self, key: &ObjectKey, uid: &str, version: Option<&str>) -> Result<(), RecordError> {
        if let (Some(write), Some(version)) = (self.written.get(key), version)
            && write.is_newer_than(version)
        {
            return Ok(());
        }
        let behind = match self.written.get(key) {
            Some(Write::Object(object)) if object.uid() == uid => Some(object.resource_version().into()),
            _ => None,
        };
        let write = Write::Deleted { uid: uid.into(), version: version.map(Into::into), behind };
        self.record(key.clone(), version.unwrap_or("0"), write)
    }

    fn record(&mut self, key: ObjectKey, version: &str, write: Write<S>) -> Result<(), RecordError> {
        if compare_versions(version, version).is_none() {
            return Err(RecordError::Incomparable { version: version.to_owned() });
        }
        if self.written.len() >= OWN_WRITES_MAX && !self.written.contains_key(&key) {
            self.forget_seen();
            if self.written.len() >= OWN_WRITES_MAX {
                return Err(RecordError::Full);
            }
        }
        self.written.insert(key, write);
        Ok(())
    }

    /// The object of the last own write or of the store, whichever is newer.
    pub fn get(&mut self, key: &str) -> Option<S> {
        let snapshot = self.store.snapshot();
        match self.written.get(key) {
            None => snapshot.get(key).cloned(),
            Some(write) if write.is_seen(key, &snapshot) => {
                self.written.remove(key);
                snapshot.get(key).cloned()
            }
            Some(Write::Object(object)) => Some(object.clone()),
            Some(Write::Deleted { .. }) => None,
        }
    }

    /// All objects of the store with these writes applied, in key order, including objects that the
    /// store does not show yet.
    pub fn list(&mut self) -> Vec<S> {
        let snapshot = self.store.snapshot();
        self.forget_seen_in(&snapshot);
        let stored = snapshot.iter().filter(|object| !self.written.contains_key(object.key())).cloned();
        let written = self.written.values().filter_map(|write| match write {
            Write::Object(object) => Some(object.clone()),
            Write::Deleted { .. } => None,
        });
        let mut objects: Vec<S> = stored.chain(written).collect();
        objects.sort_by(|a, b| a.key().cmp(b.key()));
        objects
    }

    /// Drops the writes that the store shows, and returns the number of the remaining ones.
    pub fn forget_seen(&mut self) -> usize {
        let snapshot = self.store.snapshot();
        self.forget_seen_in(&snapshot);
        self.written.len()
    }

    fn forget_seen_in(&mut self, snapshot: &Snapshot<S>) {
        self.written.retain(|key, write| !write.is_seen(key.as_str(), snapshot));
    }
}

impl<S: Stored> Write<S> {
    fn is_newer_than(&self, than: &str) -> bool {
        let own = match self {
            Write::Object(object) => object.resource_version().into_owned(),
            Write::Deleted { version: Some(version), .. } => version.to_string(),
            Write::Deleted { version: None, .. } => return false,
        };
        compare_versions(&own, than).is_some_and(|order| order.is_gt())
    }

    /// True if the store has reached the version of this write's response.
    fn is_seen<T: Stored>(&self, key: &str, snapshot: &Snapshot<T>) -> bool {
        let reached = |version: &str| snapshot.shows_write(key, version) == Some(true);
        match self {
            Write::Object(object) => reached(&object.resource_version()),
            Write::Deleted { version: Some(version), .. } => reached(version),
            Write::Deleted { uid, version: None, behind } => {
                let gone = snapshot.get(key).is_none_or(|stored| stored.uid() != **uid);
                gone && behind.as_ref().is_none_or(|behind| reached(behind))
            }
        }
    }
}
