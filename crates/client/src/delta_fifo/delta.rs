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
    /// The object is in this state now. Whether that is an addition or an update, the store knows.
    Upsert(S),
    /// The object is gone.
    Delete {
        /// Which one.
        key: ObjectKey,
        /// Its state at the deletion, if the watch sent one and it could be decoded.
        last: Option<S>,
    },
    /// The object's newest version could not be decoded; the store keeps the last decodable one.
    Quarantine {
        /// Which one.
        key: ObjectKey,
        /// The reason.
        entry: Arc<Quarantined>,
    },
    /// The object is unchanged and reported because of a resync.
    Sync(S),
    /// Everything up to this version was reported.
    Version(String),
    /// A whole state, found by listing.
    Replace(Replacement<S>),
}

impl<S: Stored> Delta<S> {
    /// The key of the one object that this is about.
    pub fn key(&self) -> Option<&ObjectKey> {
        match self {
            Delta::Upsert(object) | Delta::Sync(object) => Some(object.key()),
            Delta::Delete { key, .. } | Delta::Quarantine { key, .. } => Some(key),
            Delta::Version(_) | Delta::Replace(_) => None,
        }
    }
}

/// A whole state and the way to it from the one before. What did not change is shared with it.
#[derive(Clone, Debug)]
pub struct Replacement<S: Stored> {
    pub(crate) before: OrdMap<ObjectKey, S>,
    pub(crate) after: OrdMap<ObjectKey, S>,
    pub(crate) quarantine: OrdMap<ObjectKey, Arc<Quarantined>>,
    /// The objects only in `before`, in key order.
    pub(crate) vanished: Vec<ObjectKey>,
    /// The objects only in `after`, or with another state than in `before`, in key order. `None`
    /// means all of `after`.
    pub(crate) upserted: Option<Vec<ObjectKey>>,
    pub(crate) version: String,
}

impl<S: Stored> Replacement<S> {
    /// The version of the whole state.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The numbers of removed objects, and of added or changed ones.
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

    /// The object as it was received, while
    /// [`QUARANTINE_BYTES_MAX`](super::QUARANTINE_BYTES_MAX) is not reached.
    pub fn raw(&self) -> Option<&Bytes> {
        self.raw.as_ref()
    }
}

impl fmt::Debug for Quarantined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{}: {}", self.version, self.error)
    }
}
