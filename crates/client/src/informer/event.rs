//! The events of handlers: [`Event`], with its [`Reason`].

use std::fmt;
use std::sync::Arc;

use crate::delta_fifo::Quarantined;
use crate::indexer::{Change, Origin};
use crate::object::{Object, ObjectKey};
use crate::stored::Stored;

/// The reason of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Part of the initial state of the handler, or of a namespace or shard that was added.
    Initial,
    /// A watch event.
    Live,
    /// A difference found by a relist after a gap; states in between were not seen.
    Relist,
    /// Nothing changed; the handler's resync is due. Always [`Event::Updated`] with the same state twice.
    Resync,
    /// Part of the state that follows an [`Event::Reset`].
    Refill,
    /// Its namespace or shard is no longer watched; the object may still exist.
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

/// An event of a handler. The order is a legal history of each object: it is added before it is updated
/// or deleted, an update's `old` is the state that this handler received last, and a name that belongs to
/// another object now (another uid) is deleted, then added.
#[derive(Clone, Debug)]
pub enum Event<S = Object> {
    /// The object is new to this handler.
    Added {
        /// The object.
        object: S,
        /// The cause of the event.
        reason: Reason,
    },
    /// The same object (same uid) in another state.
    Updated {
        /// The state that this handler received last.
        old: S,
        /// The state now. States in between may have been left out, see
        /// [`Policy`](super::Policy).
        new: S,
        /// The cause of the event.
        reason: Reason,
    },
    /// The object is gone.
    Deleted {
        /// The last state known.
        last: S,
        /// True when `last` is the state at the deletion, false when it may be older.
        last_is_final: bool,
        /// The cause of the event.
        reason: Reason,
    },
    /// The newest version of an object could not be decoded. The store keeps the last good state, if
    /// there was one. The next version that can be decoded, or the deletion, is the next change.
    Quarantined {
        /// Which one.
        key: ObjectKey,
        /// Which version, and why.
        entry: Arc<Quarantined>,
    },
    /// The handler has processed the whole initial state, or the whole state after a reset.
    Synced,
    /// The handler was too slow for its bound ([`Policy::DropAndResync`](super::Policy)) and must forget
    /// every object. The current state follows as [`Reason::Refill`], then [`Event::Synced`].
    Reset,
    /// The informer stopped. No event follows unless it is started again.
    Stopped(Stop),
}

impl<S: Stored> Event<S> {
    /// The key of the event's object.
    pub fn key(&self) -> Option<&ObjectKey> {
        match self {
            Event::Quarantined { key, .. } => Some(key),
            _ => self.object().map(Stored::key),
        }
    }

    /// The event's object in its newest state; for a deletion, the last state.
    pub fn object(&self) -> Option<&S> {
        match self {
            Event::Added { object, .. } => Some(object),
            Event::Updated { new, .. } => Some(new),
            Event::Deleted { last, .. } => Some(last),
            Event::Quarantined { .. } | Event::Synced | Event::Reset | Event::Stopped(_) => None,
        }
    }

    /// The cause of an event about an object.
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

/// The reason why an informer stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It was stopped; it can be started again.
    Asked,
    /// Its last handle was dropped.
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
