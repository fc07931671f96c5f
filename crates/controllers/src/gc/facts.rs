//! [`Facts`]: the metadata that the collector reads from an object: uid, owner references and deletion state. No
//! other part of an object is parsed or kept.

use std::sync::LazyLock;

use listwatch_meta::scan::{self, PathSet, Span};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use listwatch_validation::object_meta::{FINALIZER_FOREGROUND, FINALIZER_ORPHAN};

/// An entry of `metadata.ownerReferences`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OwnerRef {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) uid: String,
    /// `blockOwnerDeletion`: a foreground deletion of the owner waits until this dependent is deleted.
    pub(super) blocks: bool,
}

/// The deletion state of an object, as far as the collector needs to know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum DeletionState {
    /// The object is not being deleted.
    #[default]
    Alive,
    /// The object is being deleted and waits for finalizers of other controllers, if any.
    Dying,
    /// The object is being deleted and waits until its dependents no longer refer to the object.
    Orphaning,
    /// The object is being deleted and waits until its blocking dependents are deleted.
    Foreground,
}

/// The metadata that the collector reads from an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) uid: String,
    pub(super) owners: Vec<OwnerRef>,
    /// True if `metadata.deletionTimestamp` is set.
    pub(super) deleted: bool,
    /// True if the finalizer `orphan` is set, even if the object is not being deleted.
    pub(super) orphan: bool,
    /// True if the finalizer `foregroundDeletion` is set, even if the object is not being deleted.
    pub(super) foreground: bool,
}

impl Facts {
    /// Reads the facts of a stored object. Returns `None` if the value is unreadable; the object exists
    /// nevertheless.
    ///
    /// Stored objects begin with their metadata. Nothing after the metadata is read, so a large object costs no more
    /// than a small one.
    pub(super) fn read(object: &[u8]) -> Option<Facts> {
        let mut spans = [Span::default(); 4];
        if !scan::find_in_member(object, "metadata", &PATHS, &mut spans).ok()? {
            return None;
        }
        let [uid, deletion, finalizers, owners] = spans.map(|span| span.of(object));
        let finalizers: Vec<String> = parse(finalizers)?.unwrap_or_default();
        let owners: Vec<Reference> = parse(owners)?.unwrap_or_default();
        Some(Facts {
            // A uid may be absent, but not null.
            uid: if uid.is_empty() { String::new() } else { serde_json::from_slice(uid).ok()? },
            deleted: !deletion.is_empty() && deletion != b"null",
            orphan: finalizers.iter().any(|name| name == FINALIZER_ORPHAN),
            foreground: finalizers.iter().any(|name| name == FINALIZER_FOREGROUND),
            owners: owners.into_iter().map(Reference::into).collect(),
        })
    }

    pub(super) fn deletion_state(&self) -> DeletionState {
        match (self.deleted, self.orphan, self.foreground) {
            (false, ..) => DeletionState::Alive,
            // If both finalizers are set, orphaning takes precedence.
            (true, true, _) => DeletionState::Orphaning,
            (true, false, true) => DeletionState::Foreground,
            (true, false, false) => DeletionState::Dying,
        }
    }
}

/// The paths of the facts below `metadata`, in the order of [`Facts::read`].
static PATHS: LazyLock<PathSet> = LazyLock::new(|| {
    let mut paths = PathSet::new();
    for name in ["uid", "deletionTimestamp", "finalizers", "ownerReferences"] {
        paths.add(&[name]);
    }
    paths
});

/// Parses a field. An absent field is parsed as null. Returns `None` if the field has another type.
fn parse<T: DeserializeOwned>(member: &[u8]) -> Option<Option<T>> {
    if member.is_empty() { Some(None) } else { serde_json::from_slice(member).ok() }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Reference {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    uid: String,
    #[serde(default)]
    block_owner_deletion: Option<bool>,
}

impl From<Reference> for OwnerRef {
    fn from(reference: Reference) -> Self {
        OwnerRef {
            api_version: reference.api_version,
            kind: reference.kind,
            name: reference.name,
            uid: reference.uid,
            blocks: reference.block_owner_deletion == Some(true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The uid, the deletion state, and each owner's uid with its `blockOwnerDeletion`.
    type Read<'a> = Option<(&'a str, DeletionState, &'a [(&'a str, bool)])>;

    fn check(object: &str, expected: Read<'_>) {
        let facts = Facts::read(object.as_bytes());
        let owners: Vec<(&str, bool)> =
            facts.iter().flat_map(|facts| &facts.owners).map(|owner| (owner.uid.as_str(), owner.blocks)).collect();
        let found = facts.as_ref().map(|facts| (facts.uid.as_str(), facts.deletion_state(), owners.as_slice()));
        assert_eq!(found, expected, "{object}");
    }

    #[test]
    fn facts_read_parses_metadata_and_ignores_the_rest() {
        check(r#"{"kind":"Pod","metadata":{"uid":"u"},"spec":{"a":1}}"#, Some(("u", DeletionState::Alive, &[])));
        check(r#"{"metadata":{"uid":"u"},"spec":BROKEN"#, Some(("u", DeletionState::Alive, &[])));
        check(
            r#"{"spec":{},"metadata":{"uid":"u","deletionTimestamp":"x","finalizers":["a","foregroundDeletion"],"ownerReferences":[{"uid":"o","blockOwnerDeletion":true},{"uid":"p"}]}}"#,
            Some(("u", DeletionState::Foreground, &[("o", true), ("p", false)])),
        );
        check(
            r#"{"metadata":{"uid":"u","deletionTimestamp":"x","finalizers":["orphan","foregroundDeletion"]}}"#,
            Some(("u", DeletionState::Orphaning, &[])),
        );
        check(r#"{"metadata":{"uid":"u","finalizers":["orphan"]}}"#, Some(("u", DeletionState::Alive, &[])));
        check(
            r#"{"metadata":{"uid":"u","deletionTimestamp":null,"ownerReferences":null}}"#,
            Some(("u", DeletionState::Alive, &[])),
        );
        check(r#"{"metadata":{"uid":"u","deletionTimestamp":"x"}}"#, Some(("u", DeletionState::Dying, &[])));
        check(r#"{"metadata":{}}"#, Some(("", DeletionState::Alive, &[])));
        for none in ["", "[]", "{}", "5", r#"{"metadata":[]}"#, r#"{"metadata":{"uid":"u"#, "k8s\0", "not json"] {
            check(none, None);
        }
    }
}
