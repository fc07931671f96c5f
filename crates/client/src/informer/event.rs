//! What a handler is told: [`Event`], with its [`Reason`].

use std::fmt;
use std::sync::Arc;

use crate::delta_fifo::Quarantined;
use crate::indexer::{Change, Origin};
use crate::object::{Object, ObjectKey};
use crate::stored::Stored;

/// Why something is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Part of the state that was there when the handler began, or when a namespace was taken in.
    Initial,
    /// A watch event.
    Live,
    /// The difference found by listing again after a gap; states in between were not seen.
    Relist,
    /// Nothing changed; the handler's resync is due. Always [`Event::Updated`] with the same state twice.
    Resync,
    /// Part of the state that follows an [`Event::Reset`].
    Refill,
    /// The object may well be there still; its namespace (or shard) is no longer watched.
    Unwatched,
}

impl From<Origin> for Reason {
    fn from(origin: Origin) -> Self {
        match origin {
            Origin::Initial => Reason::Initial,
            Origin::Live => Reason::Live,
            Origin::Relist => Reason::Relist,
            Origin::Resync => Reason::Resync,
        }
    }
}

/// What a handler is told, in an order that is a legal history of each object: it is added before
/// it is updated or deleted, an update's `old` is the state this handler saw last, and a name that
/// belongs to another object now (another uid) is deleted and added.
#[derive(Clone, Debug)]
pub enum Event<S = Object> {
    /// The object was not there before, as far as this handler knew.
    Added {
        /// The object.
        object: S,
        /// Why it is told.
        reason: Reason,
    },
    /// The same object (same uid) in another state.
    Updated {
        /// The state that this handler saw last.
        old: S,
        /// The state now. States in between may have been left out, see
        /// [`Policy`](super::Policy).
        new: S,
        /// Why it is told.
        reason: Reason,
    },
    /// The object is gone.
    Deleted {
        /// The last state known.
        last: S,
        /// True when `last` is the state at the deletion, false when it may be older.
        last_is_final: bool,
        /// Why it is told.
        reason: Reason,
    },
    /// The newest version of an object could not be decoded. The last good state, if there was one,
    /// stands in the store and is what the handler goes on with; a version that can be decoded, or
    /// the deletion, is told as the next change.
    Quarantined {
        /// Which one.
        key: ObjectKey,
        /// Which version, and why.
        entry: Arc<Quarantined>,
    },
    /// Everything there was when the handler began, or at the last reset, was told and processed.
    Synced,
    /// The handler was too slow for its bound ([`Policy::DropAndResync`](super::Policy)): it has
    /// to forget every object it knows. What there is now follows as [`Reason::Refill`], then
    /// [`Event::Synced`].
    Reset,
    /// Nothing more will come, unless the informer is started again.
    Stopped(Stop),
}

impl<S: Stored> Event<S> {
    /// The key of the object that this is about.
    pub fn key(&self) -> Option<&ObjectKey> {
        match self {
            Event::Quarantined { key, .. } => Some(key),
            _ => self.object().map(Stored::key),
        }
    }

    /// The object that this is about in its newest state: for a delete the last one.
    pub fn object(&self) -> Option<&S> {
        match self {
            Event::Added { object, .. } => Some(object),
            Event::Updated { new, .. } => Some(new),
            Event::Deleted { last, .. } => Some(last),
            Event::Quarantined { .. } | Event::Synced | Event::Reset | Event::Stopped(_) => None,
        }
    }

    /// Why it is told, for an event about an object.
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Event::Added { reason, .. } | Event::Updated { reason, .. } | Event::Deleted { reason, .. } => {
                Some(*reason)
            }
            Event::Quarantined { .. } | Event::Synced | Event::Reset | Event::Stopped(_) => None,
        }
    }
}

/// A change of the store as an event, for a handler that sees every change.
impl<S> From<Change<S>> for Event<S> {
    fn from(change: Change<S>) -> Self {
        match change {
            Change::Added { object, origin } => Event::Added { object, reason: origin.into() },
            Change::Updated { old, new, origin } => Event::Updated { old, new, reason: origin.into() },
            Change::Deleted { last, last_is_final, origin } => {
                Event::Deleted { last, last_is_final, reason: origin.into() }
            }
        }
    }
}

/// Why an informer stands still.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It was stopped; it can be started again.
    Asked,
    /// Nobody held it any more.
    Unused,
    /// Its task panicked, in a `ListWatch` or a decoder. It cannot be started again.
    Panicked {
        /// The panic's message.
        message: String,
    },
    /// The runtime it ran on ended its task. It cannot be started again.
    Aborted,
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stop::Asked => f.write_str("the informer was stopped"),
            Stop::Unused => f.write_str("nobody held the informer any more"),
            Stop::Panicked { message } => write!(f, "the informer's task panicked: {message}"),
            Stop::Aborted => f.write_str("the runtime ended the informer's task"),
        }
    }
}

impl std::error::Error for Stop {}
