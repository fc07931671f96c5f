//! What happened to an object: [`Change`] and [`Event`].

use std::fmt;

use crate::object::Object;
use crate::revision::Revision;

/// The kind of a change, as watchers see it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Change {
    /// The object came into being, or into the view of a selector.
    Added,
    /// The object changed.
    Modified,
    /// The object is gone, or left the view of a selector.
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

    /// What a JSON watch frame of this type begins with; the object and `}\n` follow.
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
    /// What happened.
    pub change: Change,
    /// The state after the change; for [`Change::Deleted`] the last state, carrying the revision
    /// of the delete.
    pub object: Object,
    /// The state before; `None` for [`Change::Added`].
    pub previous: Option<Object>,
}

impl Event {
    /// The revision of the change.
    pub fn revision(&self) -> Revision {
        self.object.revision()
    }
}
