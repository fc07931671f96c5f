//! The entries of the queue: [`Delta`], [`Replacement`], [`Quarantined`].

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use imbl::OrdMap;

use crate::decode::DecodeError;
use crate::object::{Object, ObjectKey};
use crate::stored::Stored;

/// One step from one state of the store to the next.
#[derive(Clone, Debug)]
pub enum Delta<S: Stored = Object> {
    /// The object's current state. The store determines whether this is an addition or an update.
    Upsert(S),
    /// The object was deleted.
    Delete {
        /// The deleted object.
        key: ObjectKey,
        /// The state of the object at the deletion, if the watch sent one and it could be decoded.
        last: Option<S>,
    },
    /// The object's newest version could not be decoded; the store keeps the last decodable one.
    Quarantine {
        /// The object.
        key: ObjectKey,
        /// The reason.
        entry: Arc<Quarantined>,
    },
    /// The object is unchanged, and is reported because of a resync.
    Sync(S),
    /// All changes up to this version were reported.
    Version(String),
    /// The complete state of a list, which replaces the current one.
    Replace(Replacement<S>),
}

impl<S: Stored> Delta<S> {
    /// The key of the object; `None` for [`Delta::Version`] and [`Delta::Replace`].
    pub fn key(&self) -> Option<&ObjectKey> {
        match self {
            Delta::Upsert(object) | Delta::Sync(object) => Some(object.key()),
            Delta::Delete { key, .. } | Delta::Quarantine { key, .. } => Some(key),
            Delta::Version(_) | Delta::Replace(_) => None,
        }
    }
}

/// A complete state and its differences from the previous state. Unchanged objects are shared
/// between both.
#[derive(Clone, Debug)]
pub struct Replacement<S: Stored> {
    pub(crate) before: OrdMap<ObjectKey, S>,
    pub(crate) after: OrdMap<ObjectKey, S>,
    pub(crate) quarantine: OrdMap<ObjectKey, Arc<Quarantined>>,
    /// The objects that are only in `before`, in key order.
    pub(crate) vanished: Vec<ObjectKey>,
    /// The objects that are only in `after`, or have another version than in `before`, in key
    /// order. `None` means all of `after`.
    pub(crate) upserted: Option<Vec<ObjectKey>>,
    pub(crate) version: String,
}

impl<S: Stored> Replacement<S> {
    /// The resource version of the complete state.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The number of removed objects, and the number of added or changed objects.
    pub fn differences(&self) -> (usize, usize) {
        (self.vanished.len(), self.upserted.as_ref().map_or(self.after.len(), Vec::len))
    }
}

/// An object whose newest version could not be decoded.
#[derive(Clone, PartialEq, Eq)]
pub struct Quarantined {
    pub(crate) uid: Box<str>,
    pub(crate) version: Box<str>,
    pub(crate) error: DecodeError,
    pub(crate) raw: Option<Bytes>,
}

impl Quarantined {
    /// The object's uid.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// The version that could not be decoded.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The reason.
    pub fn error(&self) -> &DecodeError {
        &self.error
    }

    /// The object's JSON as received. `None` if
    /// [`QUARANTINE_BYTES_MAX`](super::QUARANTINE_BYTES_MAX) was reached.
    pub fn raw(&self) -> Option<&Bytes> {
        self.raw.as_ref()
    }
}

impl fmt::Debug for Quarantined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{}: {}", self.version, self.error)
    }
}
