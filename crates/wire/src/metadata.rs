//! What a client reads from every object: its identity and version, found in the bytes without
//! parsing the rest.

use std::borrow::Cow;
use std::sync::LazyLock;

use listwatch_meta::scan::{self, Malformed, PathSet, Span};

use crate::event::INITIAL_EVENTS_END;

/// The identity and version of an object, borrowed from its bytes. Absent members are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata<'a> {
    /// `apiVersion`; absent from the items of a built-in resource's list.
    pub api_version: Cow<'a, str>,
    /// `kind`; absent from the items of a built-in resource's list.
    pub kind: Cow<'a, str>,
    /// `metadata.namespace`; empty for cluster-scoped resources.
    pub namespace: Cow<'a, str>,
    /// `metadata.name`; empty in a bookmark.
    pub name: Cow<'a, str>,
    /// `metadata.uid`.
    pub uid: Cow<'a, str>,
    /// `metadata.resourceVersion`.
    pub resource_version: Cow<'a, str>,
    /// The bookmark that ends the initial events of a WatchList. Only the value `"true"` counts.
    pub initial_events_end: bool,
}

static PATHS: LazyLock<PathSet> = LazyLock::new(|| {
    let mut paths = PathSet::new();
    for path in Metadata::PATHS {
        paths.add(path);
    }
    paths
});

impl<'a> Metadata<'a> {
    /// Where the members stand, in the order [`Metadata::from_spans`] takes them.
    pub(crate) const PATHS: [&'static [&'static str]; 7] = [
        &["apiVersion"],
        &["kind"],
        &["metadata", "namespace"],
        &["metadata", "name"],
        &["metadata", "uid"],
        &["metadata", "resourceVersion"],
        &["metadata", "annotations", INITIAL_EVENTS_END],
    ];

    /// Reads an object in one pass, without allocating unless a value holds an escape.
    ///
    /// # Errors
    /// [`Malformed`] when the bytes are no JSON object.
    pub fn read(object: &'a [u8]) -> Result<Self, Malformed> {
        let mut spans = [Span::default(); Metadata::PATHS.len()];
        scan::find(object, &PATHS, &mut spans)?;
        Ok(Metadata::from_spans(object, &spans))
    }

    pub(crate) fn from_spans(document: &'a [u8], spans: &[Span]) -> Self {
        let text = |position: usize| text(spans[position].of(document));
        Metadata {
            api_version: text(0),
            kind: text(1),
            namespace: text(2),
            name: text(3),
            uid: text(4),
            resource_version: text(5),
            initial_events_end: spans[6].of(document) == b"\"true\"",
        }
    }
}

/// The text of a raw JSON string; empty for anything else.
fn text(raw: &[u8]) -> Cow<'_, str> {
    let Some(inner) = raw.strip_prefix(b"\"").and_then(|raw| raw.strip_suffix(b"\"")) else {
        return Cow::Borrowed("");
    };
    match std::str::from_utf8(inner) {
        Ok(inner) if !inner.contains('\\') => Cow::Borrowed(inner),
        _ => Cow::Owned(serde_json::from_slice(raw).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_and_version_are_found() {
        let object = br#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"w\u0065b","namespace":"default","uid":"u","resourceVersion":"7","annotations":{"k8s.io/initial-events-end":"true"}},"spec":{"name":"x"}}"#;
        let found = Metadata::read(object).unwrap();
        assert_eq!((&*found.kind, &*found.api_version), ("Pod", "v1"));
        assert_eq!((&*found.namespace, &*found.name, &*found.uid), ("default", "web", "u"));
        assert_eq!(&*found.resource_version, "7");
        assert!(found.initial_events_end);
    }

    #[test]
    fn absent_and_odd_values_are_empty() {
        let found = Metadata::read(br#"{"metadata":{"name":null,"annotations":{"k8s.io/initial-events-end":"yes"}}}"#);
        assert_eq!(found, Ok(Metadata::default()));
        assert!(Metadata::read(b"[]").is_err());
    }
}
