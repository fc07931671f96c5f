//! Identity and version of an object, found in its bytes without parsing the rest.

use std::borrow::Cow;
use std::sync::LazyLock;

use listwatch_meta::scan::{self, Malformed, PathSet, Span};

/// The annotation of the bookmark that ends the initial events of a WatchList.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

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
    /// True for the bookmark that ends the initial events of a WatchList. Only the value `"true"`
    /// is recognized.
    pub initial_events_end: bool,
}

static PATHS: LazyLock<PathSet> = LazyLock::new(|| {
    let mut paths = PathSet::new();
    for path in MetadataSpans::PATHS {
        paths.add(path);
    }
    paths
});

impl<'a> Metadata<'a> {
    /// Reads an object in one pass. Allocates only for values with escapes.
    ///
    /// # Errors
    /// [`Malformed`] when the bytes are not a JSON object.
    pub fn read(object: &'a [u8]) -> Result<Self, Malformed> {
        Ok(MetadataSpans::find(object)?.of(object))
    }
}

/// The positions of an object's metadata in its bytes. A reader that keeps them can read the
/// metadata again without a search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetadataSpans([Span; MetadataSpans::LEN]);

impl MetadataSpans {
    pub(crate) const LEN: usize = 7;

    /// The paths of the members, in the order of the spans.
    pub(crate) const PATHS: [&'static [&'static str]; MetadataSpans::LEN] = [
        &["apiVersion"],
        &["kind"],
        &["metadata", "namespace"],
        &["metadata", "name"],
        &["metadata", "uid"],
        &["metadata", "resourceVersion"],
        &["metadata", "annotations", INITIAL_EVENTS_END],
    ];

    /// Finds the metadata of an object in one pass.
    ///
    /// # Errors
    /// [`Malformed`] when the bytes are not a JSON object.
    pub fn find(object: &[u8]) -> Result<Self, Malformed> {
        let mut spans = [Span::default(); MetadataSpans::LEN];
        scan::find(object, &PATHS, &mut spans)?;
        Ok(MetadataSpans(spans))
    }

    /// Finds the metadata of the object at the beginning of these bytes, and its end; `None` when
    /// the bytes do not begin with a whole object.
    pub(crate) fn find_first(bytes: &[u8]) -> Option<(usize, Self)> {
        let mut spans = [Span::default(); MetadataSpans::LEN];
        let end = scan::find_first(bytes, &PATHS, &mut spans).ok()?;
        Some((end, MetadataSpans(spans)))
    }

    /// The spans relative to an object that begins at `start` of its document.
    pub(crate) fn inside(spans: &[Span], start: u32) -> Self {
        let mut inner = [Span::default(); MetadataSpans::LEN];
        for (inner, span) in inner.iter_mut().zip(spans) {
            if !span.is_absent() {
                *inner = Span { start: span.start - start, end: span.end - start };
            }
        }
        MetadataSpans(inner)
    }

    /// The spans of the same object after `shift` bytes were inserted in front of them.
    #[must_use]
    pub fn shifted(self, shift: u32) -> Self {
        MetadataSpans(self.0.map(|span| span.shifted(shift)))
    }

    /// The spans with the type at these positions, for an object whose type was inserted.
    #[must_use]
    pub fn with_type(mut self, api_version: Span, kind: Span) -> Self {
        self.0[0] = api_version;
        self.0[1] = kind;
        self
    }

    /// Reads the metadata from the object of these spans.
    ///
    /// # Panics
    /// When `object` is shorter than the one the spans belong to.
    pub fn of<'a>(&self, object: &'a [u8]) -> Metadata<'a> {
        let text = |position: usize| text(self.0[position].of(object));
        Metadata {
            api_version: text(0),
            kind: text(1),
            namespace: text(2),
            name: text(3),
            uid: self.uid(object),
            resource_version: self.resource_version(object),
            initial_events_end: self.0[6].of(object) == b"\"true\"",
        }
    }

    /// True if the object has a `kind` or an `apiVersion` that is not empty; see [`MetadataSpans::of`].
    ///
    /// # Panics
    /// As [`MetadataSpans::of`].
    pub fn has_type(&self, object: &[u8]) -> bool {
        self.0[..2].iter().any(|span| !text(span.of(object)).is_empty())
    }

    /// Reads only `metadata.uid`; see [`MetadataSpans::of`].
    ///
    /// # Panics
    /// As [`MetadataSpans::of`].
    pub fn uid<'a>(&self, object: &'a [u8]) -> Cow<'a, str> {
        text(self.0[4].of(object))
    }

    /// Reads only `metadata.resourceVersion`; see [`MetadataSpans::of`].
    ///
    /// # Panics
    /// As [`MetadataSpans::of`].
    pub fn resource_version<'a>(&self, object: &'a [u8]) -> Cow<'a, str> {
        text(self.0[5].of(object))
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
    fn metadata_read_finds_identity_and_version() {
        let object = br#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"w\u0065b","namespace":"default","uid":"u","resourceVersion":"7","annotations":{"k8s.io/initial-events-end":"true"}},"spec":{"name":"x"}}"#;
        let found = Metadata::read(object).unwrap();
        assert_eq!((&*found.kind, &*found.api_version), ("Pod", "v1"));
        assert_eq!((&*found.namespace, &*found.name, &*found.uid), ("default", "web", "u"));
        assert_eq!(&*found.resource_version, "7");
        assert!(matches!(found.name, Cow::Owned(_)), "a value with an escape is allocated");
        assert!(matches!(found.uid, Cow::Borrowed(_)), "a value without escapes is borrowed");
        assert!(found.initial_events_end);
    }

    #[test]
    fn has_type_is_true_for_a_kind_or_an_api_version_that_is_not_empty() {
        let has_type = |object: &[u8]| MetadataSpans::find(object).unwrap().has_type(object);
        assert!(has_type(br#"{"kind":"Pod","metadata":{}}"#));
        assert!(has_type(br#"{"metadata":{},"apiVersion":"v1"}"#));
        assert!(!has_type(br#"{"kind":"","apiVersion":7,"metadata":{"kind":"Pod"}}"#));
    }

    #[test]
    fn absent_and_non_string_metadata_is_empty() {
        let found = Metadata::read(br#"{"metadata":{"name":null,"annotations":{"k8s.io/initial-events-end":"yes"}}}"#);
        assert_eq!(found, Ok(Metadata::default()));
        assert!(Metadata::read(b"[]").is_err());
    }
}
