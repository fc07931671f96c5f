//! The difference between two states of a store, one object at a time: [`Change`].

use crate::object::{Object, ObjectKey};
use crate::stored::Stored;

/// The reason of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// The first state ever loaded.
    Initial,
    /// A watch event.
    Live,
    /// The difference found by listing again after a gap; states in between were not seen.
    Relist,
    /// The object is unchanged and reported on request. Always [`Change::Updated`] with equal `old`
    /// and `new`.
    Resync,
}

/// One difference between two states of the store.
#[derive(Clone, Debug)]
pub enum Change<S = Object> {
    /// The object was not there before.
    Added {
        /// The object.
        object: S,
        /// The reason.
        origin: Origin,
    },
    /// The same object (same uid) in another version.
    Updated {
        /// The state before.
        old: S,
        /// The state now.
        new: S,
        /// The reason.
        origin: Origin,
    },
    /// The object is gone.
    Deleted {
        /// The last state: for [`Origin::Live`] with an unchanged uid the one at its deletion,
        /// otherwise the last one this store knew.
        last: S,
        /// True when `last` is the state at the deletion, false when it may be older.
        last_is_final: bool,
        /// The reason.
        origin: Origin,
    },
}

impl<S: Stored> Change<S> {
    /// The key of the object that changed.
    pub fn key(&self) -> &ObjectKey {
        self.object().key()
    }

    /// The object in its newest state: for a delete the last one.
    pub fn object(&self) -> &S {
        match self {
            Change::Added { object, .. } => object,
            Change::Updated { new, .. } => new,
            Change::Deleted { last, .. } => last,
        }
    }

    /// The reason of the change.
    pub fn origin(&self) -> Origin {
        match self {
            Change::Added { origin, .. } | Change::Updated { origin, .. } | Change::Deleted { origin, .. } => *origin,
        }
    }
}
