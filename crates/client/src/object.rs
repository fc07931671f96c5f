//! Objects of a client: [`RawObject`] as received, [`Object`] as stored, and [`ObjectKey`].
//!
//! Neither type is parsed. A received object is a slice of the network buffer, and storing it would
//! keep the whole buffer in memory. An [`Object`] is therefore a copy of its own bytes. The copy
//! also contains the `kind` and `apiVersion` that the server omits from list items of built-in
//! resources.

use std::borrow::{Borrow, Cow};
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use listwatch_meta::scan::{Malformed, Span};
use listwatch_wire::{Metadata, MetadataSpans};
use smol_str::SmolStr;

/// The identity of an object within its resource: `namespace/name`, or `name` if the resource is
/// cluster-scoped. Keys have the order of the server's lists. Cheap to clone.
///
/// A key of up to 23 bytes is stored in place. The nodes of a store's map then hold the text, so that a search and a copy of a
/// node touch no other memory. A longer key is shared by its clones.
#[derive(Clone)]
pub struct ObjectKey {
    text: SmolStr,
    /// The offset of the name.
    name_at: u32,
}

impl ObjectKey {
    /// The key of this object; `namespace` is empty for cluster-scoped resources.
    pub fn new(namespace: &str, name: &str) -> Self {
        if namespace.is_empty() {
            return ObjectKey { text: name.into(), name_at: 0 };
        }
        let text: SmolStr = [namespace, "/", name].into_iter().collect();
        // A namespace is a DNS label. A longer one is truncated instead of a panic.
        let name_at = u32::try_from(namespace.len() + 1).unwrap_or(0);
        ObjectKey { text, name_at }
    }

    /// A key that precedes every other key.
    pub(crate) fn first() -> Self {
        ObjectKey { text: SmolStr::default(), name_at: 0 }
    }

    /// `namespace/name` or `name`.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The namespace; empty for cluster-scoped resources.
    pub fn namespace(&self) -> &str {
        self.text[..self.name_at as usize].trim_end_matches('/')
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.text[self.name_at as usize..]
    }
}

impl PartialEq for ObjectKey {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for ObjectKey {}

impl PartialOrd for ObjectKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ObjectKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.text.cmp(&other.text)
    }
}

impl std::hash::Hash for ObjectKey {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl Borrow<str> for ObjectKey {
    fn borrow(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// An object as received: a slice of a larger buffer, with the positions of its metadata.
#[derive(Clone, Debug)]
pub struct RawObject {
    bytes: Bytes,
    spans: MetadataSpans,
}

impl RawObject {
    /// Finds the metadata in an object's JSON.
    ///
    /// # Errors
    /// [`Malformed`] when the bytes are not a JSON object.
    pub fn new(bytes: Bytes) -> Result<Self, Malformed> {
        let spans = MetadataSpans::find(&bytes)?;
        Ok(RawObject { bytes, spans })
    }

    /// An object with known positions of its metadata.
    #[cfg(feature = "http")]
    pub(crate) fn with_spans(bytes: Bytes, spans: MetadataSpans) -> Self {
        RawObject { bytes, spans }
    }

    /// The object's JSON.
    pub fn json(&self) -> &Bytes {
        &self.bytes
    }

    /// The object's metadata.
    pub fn metadata(&self) -> Metadata<'_> {
        self.spans.of(&self.bytes)
    }
}

/// The `kind` and `apiVersion` of a resource's objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TypeName {
    /// The API version, e.g. `apps/v1`.
    pub api_version: String,
    /// The kind, e.g. `Deployment`.
    pub kind: String,
}

/// An object as a cache stores it: its own bytes, immutable, shared by all readers.
#[derive(Clone)]
pub struct Object(Arc<ObjectData>);

struct ObjectData {
    bytes: Bytes,
    key: ObjectKey,
    spans: MetadataSpans,
}

impl Object {
    /// Copies a received object, and adds its type if the server omitted it.
    pub(crate) fn keep(raw: &RawObject, key: ObjectKey, type_name: Option<&TypeName>) -> Self {
        let Some(type_name) = type_name.filter(|_| !raw.spans.has_type(&raw.bytes)) else {
            return Object(Arc::new(ObjectData { bytes: Bytes::copy_from_slice(&raw.bytes), key, spans: raw.spans }));
        };
        let quoted = |text: &str| serde_json::to_string(text).expect("a string is JSON");
        let (kind, api_version) = (quoted(&type_name.kind), quoted(&type_name.api_version));
        let mut bytes = BytesMut::with_capacity(28 + kind.len() + api_version.len() + raw.bytes.len());
        let mut put = |name: &[u8], value: &str| {
            bytes.put_slice(name);
            let start = bytes.len() as u32;
            bytes.put_slice(value.as_bytes());
            Span { start, end: bytes.len() as u32 }
        };
        let kind = put(b"{\"kind\":", &kind);
        let api_version = put(b",\"apiVersion\":", &api_version);
        // The object has a name, so it is not empty and needs a comma.
        bytes.put_u8(b',');
        let shift = bytes.len() as u32 - 1;
        bytes.put_slice(&raw.bytes[1..]);
        let spans = raw.spans.shifted(shift).with_type(api_version, kind);
        Object(Arc::new(ObjectData { bytes: bytes.freeze(), key, spans }))
    }

    /// The object's JSON.
    pub fn json(&self) -> &Bytes {
        &self.0.bytes
    }

    /// The object's identity.
    pub fn key(&self) -> &ObjectKey {
        &self.0.key
    }

    /// The object's namespace; empty for cluster-scoped resources.
    pub fn namespace(&self) -> &str {
        self.0.key.namespace()
    }

    /// The object's name.
    pub fn name(&self) -> &str {
        self.0.key.name()
    }

    /// `metadata.uid`. Objects with equal names and different uids are different objects.
    pub fn uid(&self) -> Cow<'_, str> {
        self.0.spans.uid(&self.0.bytes)
    }

    /// `metadata.resourceVersion`.
    pub fn resource_version(&self) -> Cow<'_, str> {
        self.0.spans.resource_version(&self.0.bytes)
    }

    /// The metadata that this crate reads.
    pub fn metadata(&self) -> Metadata<'_> {
        self.0.spans.of(&self.0.bytes)
    }

    /// True if both are the same allocation, not merely equal.
    pub fn is_same(&self, other: &Object) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{} ({} bytes)", self.key(), self.resource_version(), self.json().len())
    }
}

/// Compares two resource versions: Kubernetes lets clients of one resource compare them as integers
/// (KEP-5504). `None` when one of them is not a number.
pub fn compare_versions(a: &str, b: &str) -> Option<Ordering> {
    let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten();
    Some(number(a)?.cmp(&number(b)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_item_without_a_type_gets_the_type_of_its_list() {
        fn check(item: &str, expected: &str) {
            let raw = RawObject::new(Bytes::copy_from_slice(item.as_bytes())).unwrap();
            let metadata = raw.metadata();
            let key = ObjectKey::new(&metadata.namespace, &metadata.name);
            let type_name = TypeName { api_version: "apps/v1".to_owned(), kind: "Deployment".to_owned() };
            let kept = Object::keep(&raw, key, Some(&type_name));
            assert_eq!(std::str::from_utf8(kept.json()).unwrap(), expected);
            assert_eq!((&*kept.uid(), &*kept.resource_version()), ("u", "7"));
            assert_eq!(kept.metadata(), Metadata::read(expected.as_bytes()).unwrap());
        }
        check(
            r#"{"metadata":{"name":"a","uid":"u","resourceVersion":"7"}}"#,
            r#"{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"a","uid":"u","resourceVersion":"7"}}"#,
        );
        let typed = r#"{"apiVersion":"x/v1","kind":"Y","metadata":{"name":"a","uid":"u","resourceVersion":"7"}}"#;
        check(typed, typed);
        // Half a type is a type: a second `kind` would make the object ambiguous.
        for half in [r#""kind":"Y""#, r#""apiVersion":"x/v1""#] {
            let half = format!(r#"{{{half},"metadata":{{"name":"a","uid":"u","resourceVersion":"7"}}}}"#);
            check(&half, &half);
        }
    }

    #[test]
    fn object_keys_split_into_parts_and_sort_in_list_order() {
        let key = ObjectKey::new("default", "web");
        assert_eq!((key.as_str(), key.namespace(), key.name()), ("default/web", "default", "web"));
        let key = ObjectKey::new("", "node-1");
        assert_eq!((key.as_str(), key.namespace(), key.name()), ("node-1", "", "node-1"));
        // '-' sorts before '/': byte order of the whole path, not of the parts.
        assert!(ObjectKey::new("a-b", "x") < ObjectKey::new("a", "x"));
    }

    #[test]
    fn resource_versions_compare_as_numbers() {
        assert_eq!(compare_versions("9", "10"), Some(Ordering::Less));
        assert_eq!(compare_versions("10", "10"), Some(Ordering::Equal));
        assert_eq!(compare_versions("", "10"), None);
        assert_eq!(compare_versions("a", "10"), None);
    }
}
