//! The values that a store can hold: the [`Stored`] trait, and [`Typed`] for the user's own types.
//!
//! A cache of JSON ([`Object`]) and a cache of Rust values differ only in the type that readers
//! get. This trait states the requirements on both: identity, version, labels, size.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use listwatch_meta::scan;

use crate::object::{Object, ObjectKey, RawObject};

/// A state of one object in a store: immutable, and cheap to clone (one pointer).
pub trait Stored: Clone + fmt::Debug + Send + Sync + 'static {
    /// The object's identity.
    fn key(&self) -> &ObjectKey;

    /// `metadata.uid`, which differs between two objects of the same name.
    fn uid(&self) -> Cow<'_, str>;

    /// `metadata.resourceVersion`.
    fn resource_version(&self) -> Cow<'_, str>;

    /// True if both are the same allocation, not merely equal.
    fn is_same(&self, other: &Self) -> bool;

    /// The approximate size of this state in memory, in bytes, for the limit of a queue.
    fn size_bytes(&self) -> usize;

    /// `metadata.labels` as JSON; empty if there are none, or if the decoder dropped them.
    fn labels_json(&self) -> &[u8];

    /// The value of one label.
    fn label(&self, key: &str) -> Option<Cow<'_, str>> {
        let mut found = None;
        // Labels that are not a JSON object count as none.
        let _ = scan::entries(self.labels_json(), |name, value| {
            if json_text(name) == key {
                found = Some(json_text(unquoted(value)));
            }
        });
        found
    }

    /// Calls `each` with every label and its value.
    fn for_each_label(&self, mut each: impl FnMut(&str, &str)) {
        let _ = scan::entries(self.labels_json(), |name, value| each(&json_text(name), &json_text(unquoted(value))));
    }
}

fn unquoted(value: &[u8]) -> &[u8] {
    value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or_default()
}

/// The text of a JSON string without its quotes. Only an escape costs an allocation.
fn json_text(inner: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(inner) {
        Ok(text) if !text.contains('\\') => Cow::Borrowed(text),
        _ => {
            let quoted = [b"\"", inner, b"\""].concat();
            Cow::Owned(serde_json::from_slice(&quoted).unwrap_or_default())
        }
    }
}

/// `metadata.labels` of an object's JSON; empty when there are none.
pub(crate) fn labels_of(json: &[u8]) -> &[u8] {
    use std::sync::LazyLock;
    static LABELS: LazyLock<scan::PathSet> = LazyLock::new(|| {
        let mut paths = scan::PathSet::new();
        paths.add(&["metadata", "labels"]);
        paths
    });
    let mut spans = [scan::Span::default()];
    match scan::find(json, &LABELS, &mut spans) {
        Ok(()) => spans[0].of(json),
        Err(_) => &[],
    }
}

impl Stored for Object {
    fn key(&self) -> &ObjectKey {
        Object::key(self)
    }

    fn uid(&self) -> Cow<'_, str> {
        Object::uid(self)
    }

    fn resource_version(&self) -> Cow<'_, str> {
        Object::resource_version(self)
    }

    fn is_same(&self, other: &Self) -> bool {
        Object::is_same(self, other)
    }

    fn size_bytes(&self) -> usize {
        self.json().len()
    }

    fn labels_json(&self) -> &[u8] {
        labels_of(self.json())
    }
}

/// A value of the user's own type (a `k8s-openapi` type, or a few fields), with the metadata that
/// the store needs. Dereferences to the value.
///
/// # Example
/// ```
/// use bytes::Bytes;
/// use listwatch_client::{RawObject, Stored, Typed};
///
/// let json = br#"{"metadata":{"name":"web","uid":"u","resourceVersion":"7","labels":{"app":"shop"}}}"#;
/// let raw = RawObject::new(Bytes::from_static(json)).unwrap();
/// let replicas = Typed::new(&raw, 3_u32);
/// assert_eq!((*replicas, replicas.key().as_str()), (3, "web"));
/// assert_eq!(replicas.label("app").as_deref(), Some("shop"));
/// ```
pub struct Typed<T>(Arc<TypedData<T>>);

struct TypedData<T> {
    key: ObjectKey,
    uid: Box<str>,
    version: Box<str>,
    labels: Box<[u8]>,
    size_bytes: usize,
    value: T,
}

impl<T> Typed<T> {
    /// A value with the identity, version and labels of its object. The size of the value is estimated by the size of
    /// the object's JSON.
    pub fn new(raw: &RawObject, value: T) -> Self {
        let metadata = raw.metadata();
        let key = ObjectKey::new(&metadata.namespace, &metadata.name);
        Typed::with_key(raw, key, value)
    }

    pub(crate) fn with_key(raw: &RawObject, key: ObjectKey, value: T) -> Self {
        let metadata = raw.metadata();
        Typed(Arc::new(TypedData {
            key,
            uid: metadata.uid.into(),
            version: metadata.resource_version.into(),
            labels: labels_of(raw.json()).into(),
            size_bytes: raw.json().len(),
            value,
        }))
    }
}

impl<T> Clone for Typed<T> {
    fn clone(&self) -> Self {
        Typed(self.0.clone())
    }
}

impl<T> Deref for Typed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T> fmt::Debug for Typed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.0.key, self.0.version)
    }
}

impl<T: Send + Sync + 'static> Stored for Typed<T> {
    fn key(&self) -> &ObjectKey {
        &self.0.key
    }

    fn uid(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.0.uid)
    }

    fn resource_version(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.0.version)
    }

    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn size_bytes(&self) -> usize {
        self.0.size_bytes
    }

    fn labels_json(&self) -> &[u8] {
        &self.0.labels
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn labels_are_available_for_bytes_and_typed_values() {
        fn check(json: &'static str, key: &str, expected: Option<&str>) {
            let raw = RawObject::new(Bytes::from_static(json.as_bytes())).unwrap();
            let object = Object::keep(&raw, ObjectKey::new("", "a"), None);
            assert_eq!(object.label(key).as_deref(), expected, "{json}");
            assert_eq!(Typed::new(&raw, ()).label(key).as_deref(), expected, "{json} typed");
        }
        check(r#"{"metadata":{"name":"a","labels":{"x":"1","y":"2"}}}"#, "y", Some("2"));
        check(r#"{"metadata":{"name":"a","labels":{"x":"1"}}}"#, "y", None);
        check(r#"{"metadata":{"name":"a","labels":{"x":"caf\u00e9","k\u0065y":"v"}}}"#, "x", Some("caf\u{e9}"));
        check(r#"{"metadata":{"name":"a","labels":{"k\u0065y":"v"}}}"#, "key", Some("v"));
        check(r#"{"metadata":{"name":"a","labels":null}}"#, "x", None);
        check(r#"{"metadata":{"name":"a"}}"#, "x", None);
    }

    #[test]
    fn size_of_a_stored_value_is_that_of_its_json() {
        let json = r#"{"metadata":{"name":"a"}}"#;
        let raw = RawObject::new(Bytes::from_static(json.as_bytes())).unwrap();
        assert_eq!(Object::keep(&raw, ObjectKey::new("", "a"), None).size_bytes(), json.len());
        assert_eq!(Typed::new(&raw, ()).size_bytes(), json.len(), "a typed value is invisible to the queue's limit");
    }
}
