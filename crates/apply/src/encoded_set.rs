//! [`EncodedSet`]: a set of fields that keeps its text.

use std::ops::{Deref, DerefMut};

use listwatch_json::JsonString;

use crate::set::Set;

/// A set that keeps the text of its `fieldsV1` once it was written, until the set changes. Most writes change the fields
/// of no manager, only their times.
#[derive(Clone, Debug, Default)]
pub struct EncodedSet {
    set: Set,
    /// The text of the set; `None` if it was not written since the last change.
    text: Option<JsonString>,
}

impl EncodedSet {
    /// Returns the set without its text.
    pub(crate) fn into_set(self) -> Set {
        self.set
    }

    /// Estimates the bytes that the set and its text have allocated.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.set.heap_bytes() + self.text.as_ref().map_or(0, |text| text.len())
    }

    /// Writes the text of the set, and keeps it.
    pub(crate) fn write_fields(&mut self, out: &mut String) {
        if let Some(text) = &self.text {
            out.push_str(text);
            return;
        }
        let from = out.len();
        self.set.write_fields(out);
        self.text = Some(JsonString::from(&out[from..]));
    }
}

impl From<Set> for EncodedSet {
    fn from(set: Set) -> Self {
        EncodedSet { set, text: None }
    }
}

impl Deref for EncodedSet {
    type Target = Set;

    fn deref(&self) -> &Set {
        &self.set
    }
}

impl DerefMut for EncodedSet {
    /// The set, to be changed. Its text is dropped.
    fn deref_mut(&mut self) -> &mut Set {
        self.text = None;
        &mut self.set
    }
}

impl PartialEq for EncodedSet {
    fn eq(&self, other: &Self) -> bool {
        self.set == other.set
    }
}

impl Eq for EncodedSet {}
