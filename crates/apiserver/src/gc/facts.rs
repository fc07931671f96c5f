//! What the collector reads of an object: its uid, who owns it, and whether it is on its way out.
//! Nothing else of an object is parsed, and nothing of it is kept.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

use listwatch_validation::object_meta::{FINALIZER_FOREGROUND, FINALIZER_ORPHAN};

/// An entry of `metadata.ownerReferences`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OwnerRef {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) uid: String,
    /// `blockOwnerDeletion`: the owner stays until this dependent is gone, when it is deleted in
    /// the foreground.
    pub(super) blocks: bool,
}

/// Where an object stands in its life, as far as the collector has to act.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Life {
    /// Nobody has deleted it.
    #[default]
    Alive,
    /// It was deleted, and something that is not ours holds it up.
    Dying,
    /// It was deleted and waits until its dependents no longer refer to it.
    Orphaning,
    /// It was deleted and waits until those of its dependents that block it are gone.
    Foreground,
}

/// What the collector reads of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) uid: String,
    pub(super) owners: Vec<OwnerRef>,
    /// `metadata.deletionTimestamp` is set.
    pub(super) deleted: bool,
    /// The finalizer `orphan` is set, on a living object too.
    pub(super) orphan: bool,
    /// The finalizer `foregroundDeletion` is set, on a living object too.
    pub(super) foreground: bool,
}

impl Facts {
    /// Reads the facts of a stored object; `None` for values of which they cannot be read. That says
    /// nothing about whether the object exists: it does.
    ///
    /// Stored objects have their metadata before the rest, so parsing stops behind it and a large
    /// object costs no more than a small one.
    pub(super) fn read(object: &[u8]) -> Option<Facts> {
        let mut found = None;
        let mut parser = serde_json::Deserializer::from_slice(object);
        // Ends in an error whenever something follows the metadata, which is not looked at.
        let _ = parser.deserialize_map(UntilMetadata(&mut found));
        found
    }

    pub(super) fn life(&self) -> Life {
        match (self.deleted, self.orphan, self.foreground) {
            (false, ..) => Life::Alive,
            // With both, the dependents are let go first.
            (true, true, _) => Life::Orphaning,
            (true, false, true) => Life::Foreground,
            (true, false, false) => Life::Dying,
        }
    }
}

struct UntilMetadata<'a>(&'a mut Option<Facts>);

impl<'de> Visitor<'de> for UntilMetadata<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while let Some(name) = members.next_key::<Cow<'_, str>>()? {
            if name == "metadata" {
                *self.0 = Some(members.next_value_seed(MetadataMap)?.into());
                return Ok(());
            }
            members.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }
}

/// Reads metadata from an object, and not from a list as serde's derived code would.
struct MetadataMap;

impl<'de> DeserializeSeed<'de> for MetadataMap {
    type Value = Metadata;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Metadata, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for MetadataMap {
    type Value = Metadata;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("metadata")
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<Metadata, A::Error> {
        Metadata::deserialize(MapAccessDeserializer::new(members))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default)]
    uid: String,
    #[serde(default)]
    deletion_timestamp: Option<IgnoredAny>,
    #[serde(default)]
    finalizers: Option<Vec<String>>,
    #[serde(default)]
    owner_references: Option<Vec<Reference>>,
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

impl From<Metadata> for Facts {
    fn from(metadata: Metadata) -> Self {
        let has = |wanted: &str| metadata.finalizers.iter().flatten().any(|name| name == wanted);
        Facts {
            deleted: metadata.deletion_timestamp.is_some(),
            orphan: has(FINALIZER_ORPHAN),
            foreground: has(FINALIZER_FOREGROUND),
            uid: metadata.uid,
            owners: metadata.owner_references.into_iter().flatten().map(Reference::into).collect(),
        }
    }
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

    /// Uid, life, and the owners' uids with whether they are blocked.
    type Read<'a> = Option<(&'a str, Life, &'a [(&'a str, bool)])>;

    fn check(object: &str, expected: Read<'_>) {
        let facts = Facts::read(object.as_bytes());
        let owners: Vec<(&str, bool)> =
            facts.iter().flat_map(|facts| &facts.owners).map(|owner| (owner.uid.as_str(), owner.blocks)).collect();
        let found = facts.as_ref().map(|facts| (facts.uid.as_str(), facts.life(), owners.as_slice()));
        assert_eq!(found, expected, "{object}");
    }

    #[test]
    fn metadata_is_read_and_nothing_behind_it() {
        check(r#"{"kind":"Pod","metadata":{"uid":"u"},"spec":{"a":1}}"#, Some(("u", Life::Alive, &[])));
        check(r#"{"metadata":{"uid":"u"},"spec":BROKEN"#, Some(("u", Life::Alive, &[])));
        check(
            r#"{"spec":{},"metadata":{"uid":"u","deletionTimestamp":"x","finalizers":["a","foregroundDeletion"],"ownerReferences":[{"uid":"o","blockOwnerDeletion":true},{"uid":"p"}]}}"#,
            Some(("u", Life::Foreground, &[("o", true), ("p", false)])),
        );
        check(
            r#"{"metadata":{"uid":"u","deletionTimestamp":"x","finalizers":["orphan","foregroundDeletion"]}}"#,
            Some(("u", Life::Orphaning, &[])),
        );
        check(r#"{"metadata":{"uid":"u","finalizers":["orphan"]}}"#, Some(("u", Life::Alive, &[])));
        check(
            r#"{"metadata":{"uid":"u","deletionTimestamp":null,"ownerReferences":null}}"#,
            Some(("u", Life::Alive, &[])),
        );
        check(r#"{"metadata":{"uid":"u","deletionTimestamp":"x"}}"#, Some(("u", Life::Dying, &[])));
        check(r#"{"metadata":{}}"#, Some(("", Life::Alive, &[])));
        for none in ["", "[]", "{}", "5", r#"{"metadata":[]}"#, r#"{"metadata":{"uid":"u"#, "k8s\0", "not json"] {
            check(none, None);
        }
    }
}
