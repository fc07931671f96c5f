//! The change of an object: [`Change`] and [`Event`].

use std::fmt;

use crate::object::Object;
use crate::revision::Revision;

/// The kind of a change, as watchers see it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Change {
    /// The object was created, or began to match the watch's selector.
    Added,
    /// The object changed.
    Modified,
    /// The object was deleted, or no longer matches the watch's selector.
    Deleted,
}

impl Change {
    /// The `type` of the watch event.
    pub const fn as_str(self) -> &'static str {
        match self {
            Change::Added => "ADDED",
            Change::Modified => "MODIFIED",
            Change::Deleted => "DELETED",
        }
    }

    /// The first bytes of a JSON watch frame of this type; the object and `}\n` follow.
    pub const fn frame_head(self) -> &'static [u8] {
        match self {
            Change::Added => b"{\"type\":\"ADDED\",\"object\":",
            Change::Modified => b"{\"type\":\"MODIFIED\",\"object\":",
            Change::Deleted => b"{\"type\":\"DELETED\",\"object\":",
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One change of one object, as the store ordered it, before any selector.
#[derive(Clone, Debug)]
pub struct Event {
    /// The kind of the change.
    pub change: Change,
    /// The state after the change. For [`Change::Deleted`] it is the last state, with the revision
    /// of the delete.
    pub object: Object,
    /// The state before the change; `None` for [`Change::Added`].
    pub previous: Option<Object>,
}

impl Event {
    /// The revision of the change.
    pub fn revision(&self) -> Revision {
        self.object.revision()
    }
}
