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
    /// Part of the handler's initial state, or of a namespace or shard that was added.
    Initial,
    /// A watch event.
    Live,
    /// A difference found by a relist after a gap; states in between were not seen.
    Relist,
    /// The handler's resync is due and nothing changed. Always [`Event::Updated`] with the same
    /// state twice.
    Resync,
    /// Part of the complete state that follows an [`Event::Reset`].
    Refill,
    /// The namespace or shard of the object is no longer watched. The object may still exist.
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

/// An event of a handler. The events of an object are a legal history. The object is added before it is updated or
/// deleted. The `old` of an update is the state that this handler received last. A name with another uid is deleted,
/// then added.
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
        /// The current state. States in between may be omitted, see [`Policy`](super::Policy).
        new: S,
        /// The cause of the event.
        reason: Reason,
    },
    /// The object was deleted.
    Deleted {
        /// The last state known.
        last: S,
        /// Whether `last` is the state at the deletion; if false, it may be older.
        last_is_final: bool,
        /// The cause of the event.
        reason: Reason,
    },
    /// The newest version of an object could not be decoded. The store keeps the last decodable
    /// state, if any. The next change is the next decodable version or the deletion.
    Quarantined {
        /// The key of the object.
        key: ObjectKey,
        /// The version of the object and the decoding error.
        entry: Arc<Quarantined>,
    },
    /// The handler has processed the complete initial state, or the complete state after a reset.
    Synced,
    /// The handler exceeded the limit of [`Policy::DropAndResync`](super::Policy) and must drop all
    /// its objects. The current state follows as [`Reason::Refill`], then [`Event::Synced`].
    Reset,
    /// The informer stopped. No event follows until the informer is started again.
    Stopped(StopReason),
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

/// Converts a change for a handler that receives every change.
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
pub enum StopReason {
    /// A holder stopped the informer. The informer can be started again.
    Requested,
    /// The last handle was dropped.
    Unused,
    /// The informer's task panicked, in a `ListWatch` or a decoder. The informer cannot be started again.
    Panicked {
        /// The panic's message.
        message: String,
    },
    /// The tokio runtime ended the task. The informer cannot be started again.
    Aborted,
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StopReason::Requested => f.write_str("the informer was stopped"),
            StopReason::Unused => f.write_str("the last handle of the informer was dropped"),
            StopReason::Panicked { message } => write!(f, "the informer's task panicked: {message}"),
            StopReason::Aborted => f.write_str("the runtime ended the informer's task"),
        }
    }
}

impl std::error::Error for StopReason {}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::decode::DecodeError;
    use crate::object::RawObject;
    use crate::stored::Typed;

    #[test]
    fn event_accessors_return_key_newest_object_and_reason() {
        let item = |name: &str, version: u32| {
            let json = format!(r#"{{"metadata":{{"name":"{name}","uid":"u","resourceVersion":"{version}"}}}}"#);
            Typed::new(&RawObject::new(Bytes::from(json)).unwrap(), version)
        };
        fn check(event: &Event<Typed<u32>>, key: Option<&str>, version: Option<u32>, reason: Option<Reason>) {
            assert_eq!(event.key().map(ObjectKey::as_str), key, "the key of {event:?}");
            assert_eq!(event.object().map(|object| **object), version, "the object of {event:?}");
            assert_eq!(event.reason(), reason, "the reason of {event:?}");
        }
        let live = Reason::Live;
        check(&Event::Added { object: item("a", 1), reason: live }, Some("a"), Some(1), Some(live));
        let updated = Event::Updated { old: item("a", 1), new: item("a", 2), reason: Reason::Relist };
        check(&updated, Some("a"), Some(2), Some(Reason::Relist));
        check(
            &Event::Deleted { last: item("a", 3), last_is_final: true, reason: live },
            Some("a"),
            Some(3),
            Some(live),
        );
        let error = DecodeError::new("bad");
        let entry = Quarantined { uid: "u".into(), version: "4".into(), error, raw: None };
        check(&Event::Quarantined { key: ObjectKey::new("n", "b"), entry: Arc::new(entry) }, Some("n/b"), None, None);
        check(&Event::Synced, None, None, None);
        check(&Event::Reset, None, None, None);
        check(&Event::Stopped(StopReason::Requested), None, None, None);
    }
}
