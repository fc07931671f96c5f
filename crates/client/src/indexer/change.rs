//! One difference between two states of a store: [`Change`].

use crate::object::{Object, ObjectKey};
use crate::stored::Stored;

/// The reason of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// Part of the first state that the store loaded.
    Initial,
    /// A watch event.
    Live,
    /// A difference that a relist found after a gap. States in between were not seen.
    Relist,
    /// The object is unchanged and was reported because of a resync. Always [`Change::Updated`]
    /// with equal `old` and `new`.
    Resync,
}

/// One difference between two states of the store.
#[derive(Clone, Debug)]
pub enum Change<S = Object> {
    /// The object was not in the store before.
    Added {
        /// The object.
        object: S,
        /// The reason.
        origin: Origin,
    },
    /// The same object (same uid) in another version.
    Updated {
        /// The previous state.
        old: S,
        /// The current state.
        new: S,
        /// The reason.
        origin: Origin,
    },
    /// The object was deleted.
    Deleted {
        /// The last state. For [`Origin::Live`] with an unchanged uid: the state at the deletion.
        /// Otherwise: the last state that this store had.
        last: S,
        /// Whether `last` is the state at the deletion; if false, it may be older.
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

    /// The object in its newest state; for a deletion, its last state.
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
