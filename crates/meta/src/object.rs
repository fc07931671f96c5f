//! The object as bytes: [`Object`] holds the encoded JSON with its resource version, and the few
//! values that selectors and indexes need.
//!
//! ```text
//!  stored value      {"kind":"Pod","metadata":{"name":"web",...},...}            (no resourceVersion)
//!                                  │ one copy, when it leaves the store
//!                                  ▼
//!  frame    {"type":"MODIFIED","object":{"kind":"Pod","metadata":{"resourceVersion":"7","name":...}...}}\n
//!                                       └──────────────── json ────────────────────────────────────┘
//! ```
//!
//! The JSON is a slice of the watch frame of the change that produced the object. So one allocation
//! serves the most common watch frame and every list.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

use bytes::Bytes;

use crate::event::Change;
use crate::key::Key;
use crate::revision::Revision;
use crate::scan::{self, Malformed, PathSet, Span};

/// The paths of a resource's selectable fields, compiled once. `metadata.name` and
/// `metadata.namespace` are not among them; the key has these.
///
/// A shape may also [normalize](Normalize) stored bytes before anything reads them.
#[derive(Clone, Debug)]
pub struct ObjectShape {
    paths: PathSet,
    fields: Vec<SelectableField>,
    /// The positions of fields that are read but cannot be used in selectors.
    hidden: Vec<bool>,
    /// The label that a selector uses for each field; empty if it is the field's own label.
    selector_labels: Vec<String>,
    /// Further selector labels, each with the label of its field.
    aliases: Vec<(String, String)>,
    /// Pairs of positions: if the first field is absent or empty, the value of the second field is used.
    stand_ins: Vec<(usize, usize)>,
    /// True if the kind has its own list of field labels, even an empty one.
    own_labels: bool,
    namespaced: bool,
    normalize: Option<Arc<dyn Normalize>>,
}

/// Changes a stored value before it becomes an [`Object`]. A schema that changed after the write
/// may require other fields, or fewer.
///
/// Normalizing twice must have the same result as normalizing once.
pub trait Normalize: fmt::Debug + Send + Sync {
    /// Returns the normalized value. Returns `None` if nothing changes, or if the value cannot be parsed; the stored
    /// value is then used unchanged.
    fn normalize(&self, value: &[u8]) -> Option<Vec<u8>>;
}

/// A field that field selectors can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectableField {
    /// The label used in selectors, e.g. `spec.nodeName`.
    pub label: String,
    /// The object keys that lead to the value, from the root.
    pub path: Vec<String>,
    /// The value of an absent field in comparisons: `""` for strings, `"false"` for booleans, `"0"`
    /// for numbers.
    pub default: String,
}

impl SelectableField {
    /// A string field whose selector label is its dotted path.
    pub fn string(label: &str) -> Self {
        SelectableField {
            label: label.to_owned(),
            path: label.split('.').map(str::to_owned).collect(),
            default: String::new(),
        }
    }
}

const METADATA: usize = 0;
const LABELS: usize = 1;
const RESOURCE_VERSION: usize = 2;
const UID: usize = 3;
const DELETION: usize = 4;
const FIRST_FIELD: usize = 5;

impl ObjectShape {
    /// The shape of a resource with these selectable fields.
    pub fn new(namespaced: bool, fields: Vec<SelectableField>) -> Self {
        let mut paths = PathSet::new();
        assert_eq!(paths.add(&["metadata"]), METADATA);
        assert_eq!(paths.add(&["metadata", "labels"]), LABELS);
        assert_eq!(paths.add(&["metadata", "resourceVersion"]), RESOURCE_VERSION);
        assert_eq!(paths.add(&["metadata", "uid"]), UID);
        assert_eq!(paths.add(&["metadata", "deletionTimestamp"]), DELETION);
        for (position, field) in fields.iter().enumerate() {
            let path: Vec<&str> = field.path.iter().map(String::as_str).collect();
            assert_eq!(paths.add(&path), FIRST_FIELD + position, "field {} stands twice", field.label);
        }
        let hidden = vec![false; fields.len()];
        let own_labels = !fields.is_empty();
        let (selector_labels, aliases, stand_ins) = (Vec::new(), Vec::new(), Vec::new());
        let normalize = None;
        ObjectShape { paths, fields, hidden, selector_labels, aliases, stand_ins, own_labels, namespaced, normalize }
    }

    /// Gives the field labeled `absent` the value of `other` when it is absent or empty. Unknown
    /// labels are ignored.
    #[must_use]
    pub fn with_fallback(mut self, absent: &str, other: &str) -> Self {
        let of = |label| self.field_position(label);
        self.stand_ins.extend(of(absent).zip(of(other)));
        self
    }

    /// Adds another selector label of the field labeled `label`.
    #[must_use]
    pub fn with_alias(mut self, alias: &str, label: &str) -> Self {
        self.aliases.push((alias.to_owned(), label.to_owned()));
        self
    }

    /// Sets the normalization of stored values.
    #[must_use]
    pub fn normalized_by(mut self, normalize: Arc<dyn Normalize>) -> Self {
        self.normalize = Some(normalize);
        self
    }

    /// Returns the shape with selectors limited to the fields for which `shown` is true. All fields
    /// are still read and keep their positions. So resources with different selectable fields can
    /// share objects and caches.
    #[must_use]
    pub fn showing(&self, shown: impl Fn(&SelectableField) -> bool) -> Self {
        let hidden = self.fields.iter().map(|field| !shown(field)).collect();
        ObjectShape { hidden, own_labels: true, ..self.clone() }
    }

    /// Returns the shape with other selector labels, those of another version of the kind.
    /// `label_of` returns the label of a field, or `None` if that version has no such field. As
    /// with [`ObjectShape::showing`], objects and caches can be shared.
    #[must_use]
    pub fn with_selector_labels(&self, label_of: impl Fn(&SelectableField) -> Option<String>) -> Self {
        let selector_labels: Vec<Option<String>> = self.fields.iter().map(label_of).collect();
        let hidden = selector_labels.iter().map(Option::is_none).collect();
        let selector_labels = selector_labels.into_iter().map(Option::unwrap_or_default).collect();
        ObjectShape { hidden, selector_labels, own_labels: true, ..self.clone() }
    }

    /// The field's own label for a selector label; an unknown label is returned unchanged.
    pub(crate) fn own_label<'a>(&'a self, label: &'a str) -> &'a str {
        if let Some((_, label)) = self.aliases.iter().find(|(alias, _)| alias == label) {
            return label;
        }
        match self.selector_labels.iter().position(|selector_label| selector_label == label) {
            Some(position) if !self.hidden[position] => &self.fields[position].label,
            _ => label,
        }
    }

    /// Whether objects of this resource are namespaced.
    pub fn namespaced(&self) -> bool {
        self.namespaced
    }

    /// The selectable fields besides `metadata.name` and `metadata.namespace`.
    pub fn fields(&self) -> &[SelectableField] {
        &self.fields
    }

    /// The position of a selectable field by its label, for [`Object::field_at`].
    pub fn field_position(&self, label: &str) -> Option<usize> {
        self.fields.iter().position(|field| field.label == label)
    }

    fn selector_position(&self, label: &str) -> Option<usize> {
        match self.selector_labels.is_empty() {
            true => self.field_position(label),
            false => self.selector_labels.iter().position(|selector_label| selector_label == label),
        }
    }

    /// Whether a field selector may use this label. A cluster-scoped kind without its own list of field labels also has
    /// `metadata.namespace`, whose value is empty (`DefaultMetaV1FieldSelectorConversion` in
    /// `apimachinery/pkg/runtime/conversion.go`). The lists of cluster-scoped kinds omit it.
    pub fn is_selectable(&self, label: &str) -> bool {
        label == "metadata.name"
            || (label == "metadata.namespace" && (self.namespaced || !self.own_labels))
            || self.selector_position(label).is_some_and(|position| !self.hidden[position])
            || self.aliases.iter().any(|(alias, _)| alias == label)
    }

    /// Whether the kind has its own list of field labels, even an empty one. The error for an
    /// unsupported label depends on it.
    pub(crate) fn has_own_labels(&self) -> bool {
        self.own_labels
    }
}

/// One object at one revision: its JSON bytes with `metadata.resourceVersion` in place.
///
/// An object is cheap to clone and immutable. The cache, the history and all responses share it.
#[derive(Clone)]
pub struct Object(Arc<Inner>);

struct Inner {
    /// `{"type":"<change>","object":` + json + `}\n`
    frame: Bytes,
    key: Key,
    revision: Revision,
    change: Change,
    namespaced: bool,
    deleting: bool,
    normalized: bool,
    /// The labels. All spans are positions in `frame`.
    labels: Span,
    uid: Span,
    fields: Fields,
    /// A value that another crate attaches to the object.
    attachment: OnceLock<Box<dyn Any + Send + Sync>>,
}

/// A reference that does not keep its object alive.
#[derive(Clone)]
pub struct WeakObject(Weak<Inner>);

impl WeakObject {
    /// The object; `None` if it was dropped.
    pub fn upgrade(&self) -> Option<Object> {
        self.0.upgrade().map(Object)
    }

    /// Whether all references that keep the object alive were dropped.
    pub fn is_dropped(&self) -> bool {
        self.0.strong_count() == 0
    }
}

/// The spans of the selectable fields. One or two, as most resources have, need no allocation.
enum Fields {
    Few([Span; 2]),
    Many(Box<[Span]>),
}

impl Fields {
    fn new(spans: impl ExactSizeIterator<Item = Span>) -> Self {
        let mut few = [Span::default(); 2];
        if spans.len() > few.len() {
            return Fields::Many(spans.collect());
        }
        few.iter_mut().zip(spans).for_each(|(place, span)| *place = span);
        Fields::Few(few)
    }

    fn at(&self, position: usize) -> Span {
        match self {
            Fields::Few(spans) => spans[position],
            Fields::Many(spans) => spans[position],
        }
    }

    fn heap_size(&self) -> usize {
        match self {
            Fields::Few(_) => 0,
            Fields::Many(spans) => size_of_val::<[Span]>(spans),
        }
    }
}

impl Object {
    /// Builds an object from its stored JSON. `revision` is the revision of the change that produced this state; that
    /// revision replaces a resource version within `value`.
    ///
    /// `value` is copied once. Normalization, if the shape has one, costs extra.
    ///
    /// # Errors
    /// [`Malformed`] when the value is not a JSON object with a `metadata` object.
    pub fn from_stored(
        key: Key,
        revision: Revision,
        change: Change,
        value: &[u8],
        shape: &ObjectShape,
    ) -> Result<Self, Malformed> {
        match shape.normalize.as_ref().and_then(|normalize| normalize.normalize(value)) {
            Some(value) => Object::build(key, revision, change, &value, shape, true),
            None => Object::build(key, revision, change, value, shape, false),
        }
    }

    /// The same object with other JSON bytes, which are used unchanged: its form in another
    /// version.
    ///
    /// # Errors
    /// [`Malformed`] when the value is not a JSON object with a `metadata` object.
    pub fn with_json(&self, json: &[u8], shape: &ObjectShape) -> Result<Self, Malformed> {
        Object::build(self.0.key.clone(), self.0.revision, self.0.change, json, shape, self.0.normalized)
    }

    fn build(
        key: Key,
        revision: Revision,
        change: Change,
        value: &[u8],
        shape: &ObjectShape,
        normalized: bool,
    ) -> Result<Self, Malformed> {
        let mut spans = SpanBuffer::new(shape.paths.len());
        let spans = spans.as_mut();
        scan::find(value, &shape.paths, spans)?;
        let metadata = spans[METADATA];
        if metadata.is_absent() || metadata.of(value).first() != Some(&b'{') {
            return Err(Malformed { at: metadata.start as usize });
        }

        let mut number = itoa(revision.get());
        let number = number.text();
        let head = change.frame_head();
        let version = spans[RESOURCE_VERSION];
        // Either the present value is replaced, or a new member is inserted right after the brace.
        let (cut_from, cut_to, prefix, suffix): (u32, u32, &[u8], &[u8]) = if version.is_absent() {
            let at = metadata.start + 1;
            let empty = metadata.of(value)[1..].iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'}');
            (at, at, b"\"resourceVersion\":\"", if empty { b"\"" } else { b"\"," })
        } else {
            (version.start, version.end, b"\"", b"\"")
        };
        let inserted = prefix.len() + number.len() + suffix.len();
        let json_len = value.len() - (cut_to - cut_from) as usize + inserted;

        let mut frame = Vec::with_capacity(head.len() + json_len + FRAME_TAIL.len());
        frame.extend_from_slice(head);
        frame.extend_from_slice(&value[..cut_from as usize]);
        frame.extend_from_slice(prefix);
        frame.extend_from_slice(number);
        frame.extend_from_slice(suffix);
        frame.extend_from_slice(&value[cut_to as usize..]);
        frame.extend_from_slice(FRAME_TAIL);

        let relocate = |span: Span| {
            let behind = span.start >= cut_to;
            let shift = head.len() as u32 + if behind { inserted as u32 - (cut_to - cut_from) } else { 0 };
            span.shifted(shift)
        };
        let deletion = spans[DELETION].of(value);
        Ok(Object(Arc::new(Inner {
            frame: Bytes::from(frame), // filled to its capacity, so nothing is copied
            key,
            revision,
            change,
            namespaced: shape.namespaced,
            deleting: !deletion.is_empty() && deletion != b"null",
            normalized,
            labels: relocate(spans[LABELS]),
            uid: relocate(spans[UID]),
            fields: Fields::new(spans[FIRST_FIELD..].iter().copied().map(relocate)),
            attachment: OnceLock::new(),
        })))
    }

    /// The same state with the revision and type of another change. A `DELETED` event has the last
    /// state with the revision of the delete. The bytes are copied once.
    #[must_use]
    pub fn at_change(&self, revision: Revision, change: Change, shape: &ObjectShape) -> Object {
        Object::build(self.0.key.clone(), revision, change, self.json_slice(), shape, self.0.normalized)
            .expect("an object's own bytes are well formed")
    }

    /// The object's JSON: one line without a newline at the end.
    pub fn json(&self) -> Bytes {
        let head = self.0.change.frame_head().len();
        self.0.frame.slice(head..self.0.frame.len() - FRAME_TAIL.len())
    }

    /// The object's JSON, borrowed.
    pub fn json_slice(&self) -> &[u8] {
        let head = self.0.change.frame_head().len();
        &self.0.frame[head..self.0.frame.len() - FRAME_TAIL.len()]
    }

    /// The JSON watch frame of the change that produced this state, with its newline.
    pub fn frame(&self) -> Bytes {
        self.0.frame.clone()
    }

    /// The kind of change that produced this state: the type in [`Object::frame`].
    pub fn change(&self) -> Change {
        self.0.change
    }

    /// The object's key in the store.
    pub fn key(&self) -> &Key {
        &self.0.key
    }

    /// The revision of this state, which is its resource version.
    pub fn revision(&self) -> Revision {
        self.0.revision
    }

    /// The object's name.
    pub fn name(&self) -> &str {
        self.0.key.name()
    }

    /// The object's namespace; `""` for cluster-scoped resources.
    pub fn namespace(&self) -> &str {
        if self.0.namespaced { self.0.key.namespace() } else { "" }
    }

    /// The value of `metadata.uid`; empty when absent.
    pub fn uid(&self) -> Cow<'_, str> {
        unquote(self.0.uid.of(&self.0.frame))
    }

    /// True when `metadata.deletionTimestamp` is set.
    pub fn is_being_deleted(&self) -> bool {
        self.0.deleting
    }

    /// True when the shape's [`Normalize`] changed the stored bytes.
    pub fn is_normalized(&self) -> bool {
        self.0.normalized
    }

    /// The value of one label, if the object has it.
    pub fn label(&self, name: &str) -> Option<Cow<'_, str>> {
        let labels = self.0.labels.of(&self.0.frame);
        if labels.first() != Some(&b'{') {
            return None; // absent, or null
        }
        let mut found = None;
        // The scan has validated these bytes, so this cannot fail.
        let _ = scan::entries(labels, |key, value| {
            if key == name.as_bytes() {
                found = Some(unquote(value));
            }
        });
        found
    }

    /// Calls `visit` with the name and value of every label, in document order. One call is cheaper than
    /// [`Object::label`] for callers that need many labels.
    pub fn for_each_label<'a>(&'a self, mut visit: impl FnMut(&'a [u8], Cow<'a, str>)) {
        let labels = self.0.labels.of(&self.0.frame);
        if labels.first() == Some(&b'{') {
            // The scan has validated these bytes, so this cannot fail.
            let _ = scan::entries(labels, |key, value| visit(key, unquote(value)));
        }
    }

    /// Calls `visit` with the value of every label for whose name `find` returns a position, in document order. The
    /// labels are read once, and other values are not decoded.
    pub fn find_labels<'a>(
        &'a self,
        find: impl Fn(&[u8]) -> Option<usize>,
        mut visit: impl FnMut(usize, Cow<'a, str>),
    ) {
        let labels = self.0.labels.of(&self.0.frame);
        if labels.first() == Some(&b'{') {
            // The scan has validated these bytes, so this cannot fail.
            let _ = scan::entries(labels, |key, value| {
                if let Some(position) = find(key) {
                    visit(position, unquote(value));
                }
            });
        }
    }

    /// The value of a selectable field by its position in the shape; the field's default when
    /// absent.
    pub fn field_at<'a>(&'a self, position: usize, shape: &'a ObjectShape) -> Cow<'a, str> {
        let raw = |position| self.0.fields.at(position).of(&self.0.frame);
        let (found, position) = match raw(position) {
            b"" | b"null" | b"\"\"" => {
                let other = shape.stand_ins.iter().find(|(absent, _)| *absent == position);
                other.map_or((raw(position), position), |(_, other)| (raw(*other), *other))
            }
            found => (found, position),
        };
        match found {
            b"" | b"null" => Cow::Borrowed(&shape.fields[position].default),
            found => unquote(found),
        }
    }

    /// The value of a selectable field by its label; `None` when the resource has no such field.
    pub fn field<'a>(&'a self, label: &str, shape: &'a ObjectShape) -> Option<Cow<'a, str>> {
        match label {
            "metadata.name" => Some(Cow::Borrowed(self.name())),
            "metadata.namespace" => Some(Cow::Borrowed(self.namespace())),
            _ => shape.field_position(label).map(|position| self.field_at(position, shape)),
        }
    }

    /// The value that was attached with [`Object::attachment_or_default`], if the value has this type. Clones of an
    /// object share the value.
    pub fn attachment<T: Any + Send + Sync>(&self) -> Option<&T> {
        self.0.attachment.get()?.downcast_ref()
    }

    /// As [`Object::attachment`]. If nothing is attached yet, attaches the default value of the type. Returns `None`
    /// if a value of another type is attached, so a program must use one type.
    pub fn attachment_or_default<T: Any + Send + Sync + Default>(&self) -> Option<&T> {
        self.0.attachment.get_or_init(|| Box::new(T::default())).downcast_ref()
    }

    /// Whether other references to the object exist, for example in a cache.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// A reference that does not keep the object alive.
    pub fn downgrade(&self) -> WeakObject {
        WeakObject(Arc::downgrade(&self.0))
    }

    /// Bytes on the heap, including the object's own fields and without its attachment; for byte budgets.
    pub fn heap_size(&self) -> usize {
        size_of::<Inner>() + self.0.frame.len() + self.0.key.as_str().len() + 16 + self.0.fields.heap_size()
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{:?}", self.0.key, self.0.revision)
    }
}

/// The last bytes of every JSON watch frame.
pub(crate) const FRAME_TAIL: &[u8] = b"}\n";

/// The text of a raw JSON scalar: a string without quotes and escapes, any other value unchanged.
fn unquote(raw: &[u8]) -> Cow<'_, str> {
    match raw {
        [b'"', inner @ .., b'"'] if !inner.contains(&b'\\') => String::from_utf8_lossy(inner),
        [b'"', ..] => serde_json::from_slice::<String>(raw).map_or(Cow::Borrowed(""), Cow::Owned),
        _ => String::from_utf8_lossy(raw),
    }
}

/// Spans on the stack for up to a handful of fields.
struct SpanBuffer {
    small: [Span; 16],
    large: Vec<Span>,
    len: usize,
}

impl SpanBuffer {
    fn new(len: usize) -> Self {
        let large = if len > 16 { vec![Span::default(); len] } else { Vec::new() };
        SpanBuffer { small: [Span::default(); 16], large, len }
    }

    fn as_mut(&mut self) -> &mut [Span] {
        if self.len > 16 { &mut self.large } else { &mut self.small[..self.len] }
    }
}

struct Decimal {
    digits: [u8; 20],
    start: usize,
}

impl Decimal {
    fn text(&mut self) -> &[u8] {
        &self.digits[self.start..]
    }
}

fn itoa(mut number: u64) -> Decimal {
    let mut decimal = Decimal { digits: [b'0'; 20], start: 20 };
    loop {
        decimal.start -= 1;
        decimal.digits[decimal.start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return decimal;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod_shape() -> ObjectShape {
        ObjectShape::new(true, vec![SelectableField::string("spec.nodeName"), SelectableField::string("status.phase")])
    }

    fn object(value: &str) -> Object {
        let key = Key::new("pods", Some("default"), "web").unwrap();
        Object::from_stored(key, Revision::new(120), Change::Modified, value.as_bytes(), &pod_shape()).unwrap()
    }

    #[test]
    fn stored_json_gets_its_resource_version() {
        let check = |stored: &str, expected: &str| {
            assert_eq!(std::str::from_utf8(&object(stored).json()).unwrap(), expected);
        };
        check(r#"{"metadata":{"name":"web"}}"#, r#"{"metadata":{"resourceVersion":"120","name":"web"}}"#);
        check(r#"{"metadata":{ }}"#, r#"{"metadata":{"resourceVersion":"120" }}"#);
        check(
            r#"{"metadata":{"name":"web","resourceVersion":"7","uid":"u"},"spec":{}}"#,
            r#"{"metadata":{"name":"web","resourceVersion":"120","uid":"u"},"spec":{}}"#,
        );
        check(
            r#"{"spec":{"metadata":{}},"metadata":{"labels":{}}}"#,
            r#"{"spec":{"metadata":{}},"metadata":{"resourceVersion":"120","labels":{}}}"#,
        );
    }

    #[test]
    fn frame_contains_type_and_object() {
        let object = object(r#"{"metadata":{}}"#);
        assert_eq!(object.frame(), "{\"type\":\"MODIFIED\",\"object\":{\"metadata\":{\"resourceVersion\":\"120\"}}}\n");
    }

    #[test]
    fn labels_and_fields_are_readable_after_version_insertion() {
        let shape = pod_shape();
        let object = object(
            r#"{"spec":{"nodeName":"n1"},"metadata":{"uid":"u1","labels":{"app":"a\"b","tier":"x"},"deletionTimestamp":"t"},"status":{"phase":null}}"#,
        );
        assert_eq!(object.label("app").as_deref(), Some("a\"b"));
        assert_eq!(object.label("tier").as_deref(), Some("x"));
        assert_eq!(object.label("none"), None);
        assert_eq!(object.field("spec.nodeName", &shape).as_deref(), Some("n1"));
        assert_eq!(object.field("status.phase", &shape).as_deref(), Some(""));
        assert_eq!(object.field("metadata.name", &shape).as_deref(), Some("web"));
        assert_eq!(object.field("metadata.namespace", &shape).as_deref(), Some("default"));
        assert_eq!(object.field("spec.x", &shape), None);
        assert_eq!(object.uid(), "u1");
        assert!(object.is_being_deleted());
    }

    #[test]
    fn absent_field_takes_the_value_of_its_fallback() {
        let fields = || vec![SelectableField::string("a"), SelectableField::string("b.c")];
        let shape = ObjectShape::new(true, fields()).with_fallback("a", "b.c");
        let check = |value: &str, expected: [&str; 2]| {
            let key = Key::new("events", Some("default"), "e").unwrap();
            let value = value.replacen('{', r#"{"metadata":{},"#, 1);
            let object = Object::from_stored(key, Revision::new(1), Change::Added, value.as_bytes(), &shape).unwrap();
            let found = ["a", "b.c"].map(|label| object.field(label, &shape).unwrap().into_owned());
            assert_eq!(found, expected, "{value}");
        };
        check(r#"{"a":"x","b":{"c":"y"}}"#, ["x", "y"]);
        check(r#"{"a":"x","b":{}}"#, ["x", ""]);
        check(r#"{"a":"","b":{"c":"y"}}"#, ["y", "y"]);
        check(r#"{"a":null,"b":{"c":"y"}}"#, ["y", "y"]);
        check(r#"{"b":{"c":"y"}}"#, ["y", "y"]);
        check(r#"{"b":null}"#, ["", ""]);
    }

    #[test]
    fn at_change_keeps_state_and_replaces_revision() {
        let deleted =
            object(r#"{"metadata":{"name":"web"}}"#).at_change(Revision::new(121), Change::Deleted, &pod_shape());
        assert_eq!(
            deleted.frame(),
            "{\"type\":\"DELETED\",\"object\":{\"metadata\":{\"resourceVersion\":\"121\",\"name\":\"web\"}}}\n"
        );
    }

    #[test]
    fn attachment_is_shared_by_clones_and_dropped_with_the_object() {
        let object = object(r#"{"metadata":{}}"#);
        assert_eq!(object.attachment::<Arc<Vec<u8>>>(), None);
        let attached: &Arc<Vec<u8>> = object.attachment_or_default().unwrap();
        let alive = Arc::downgrade(attached);
        assert!(object.clone().attachment::<Arc<Vec<u8>>>().is_some());
        assert_eq!((object.attachment::<u8>(), object.attachment_or_default::<u8>()), (None, None), "one type");
        assert!(!object.is_shared());
        let clone = object.clone();
        assert!(object.is_shared() && clone.is_shared());
        drop(clone);
        let weak = object.downgrade();
        assert!(weak.upgrade().is_some() && !weak.is_dropped());
        drop(object);
        assert!(weak.upgrade().is_none() && weak.is_dropped() && alive.upgrade().is_none());
    }

    #[test]
    fn stored_bytes_are_normalized_before_they_are_read() {
        #[derive(Debug)]
        struct Paint;
        impl Normalize for Paint {
            fn normalize(&self, value: &[u8]) -> Option<Vec<u8>> {
                let text = std::str::from_utf8(value).unwrap();
                text.contains("red").then(|| text.replace("red", "blue").into_bytes())
            }
        }
        let shape = ObjectShape::new(false, vec![SelectableField::string("color")]).normalized_by(Arc::new(Paint));
        let key = Key::new("paints", None, "a").unwrap();
        let object = |value: &str| {
            Object::from_stored(key.clone(), Revision::new(1), Change::Added, value.as_bytes(), &shape).unwrap()
        };
        let old = object(r#"{"metadata":{},"color":"red"}"#);
        assert_eq!(old.field("color", &shape).as_deref(), Some("blue"));
        assert!(old.is_normalized() && old.at_change(Revision::new(2), Change::Deleted, &shape).is_normalized());
        assert!(!object(r#"{"metadata":{},"color":"green"}"#).is_normalized());
        let other = old.with_json(br#"{"metadata":{},"color":"red"}"#, &shape).unwrap();
        assert_eq!(other.field("color", &shape).as_deref(), Some("red"), "these bytes are taken as they are");
        assert_eq!(other.revision(), old.revision());
    }

    #[test]
    fn hidden_fields_are_read_but_not_selectable() {
        let whole = pod_shape();
        let shape = whole.showing(|field| field.label == "status.phase");
        assert!(shape.is_selectable("status.phase") && !shape.is_selectable("spec.nodeName"));
        assert_eq!(shape.field_position("spec.nodeName"), whole.field_position("spec.nodeName"));
        assert!(whole.showing(|_| false).has_own_labels() && !ObjectShape::new(true, Vec::new()).has_own_labels());
    }

    #[test]
    fn cluster_scoped_kind_has_an_empty_namespace_unless_it_has_its_own_field_labels() {
        let own = ObjectShape::new(false, vec![SelectableField::string("spec.x")]);
        let plain = ObjectShape::new(false, Vec::new());
        let custom = plain.showing(|_| true);
        for (shape, selectable) in [(&plain, true), (&own, false), (&custom, false), (&pod_shape(), true)] {
            assert_eq!(shape.is_selectable("metadata.namespace"), selectable, "{shape:?}");
        }
        let key = Key::new("nodes", None, "n").unwrap();
        let object = Object::from_stored(key, Revision::new(1), Change::Added, br#"{"metadata":{}}"#, &plain).unwrap();
        for (selector, matches) in
            [("metadata.namespace=", true), ("metadata.namespace!=x", true), ("metadata.namespace=x", false)]
        {
            let options = crate::ListOptions { field_selector: selector.to_owned(), ..Default::default() };
            assert_eq!(options.list(&plain).unwrap().fields.matches(&object, &plain), matches, "{selector}");
        }
    }

    #[test]
    fn alias_of_a_field_label_selects_by_the_field() {
        let shape = pod_shape().with_alias("spec.host", "spec.nodeName");
        let key = Key::new("pods", Some("a"), "x").unwrap();
        let json = br#"{"metadata":{},"spec":{"nodeName":"n1"}}"#;
        let object = Object::from_stored(key, Revision::new(1), Change::Added, json, &shape).unwrap();
        for (selector, matches) in
            [("spec.host=n1", true), ("spec.host!=n1", false), ("spec.host=n2", false), ("spec.nodeName=n1", true)]
        {
            let options = crate::ListOptions { field_selector: selector.to_owned(), ..Default::default() };
            assert_eq!(options.list(&shape).unwrap().fields.matches(&object, &shape), matches, "{selector}");
        }
    }

    #[test]
    fn selectors_of_another_version_use_the_labels_of_that_version() {
        let whole = pod_shape();
        let shape = whole.with_selector_labels(|field| (field.label == "spec.nodeName").then(|| "node".to_owned()));
        assert!(shape.is_selectable("node") && shape.is_selectable("metadata.name"));
        for hidden in ["spec.nodeName", "status.phase", ""] {
            assert!(!shape.is_selectable(hidden), "{hidden}");
        }
        assert_eq!((shape.own_label("node"), shape.own_label("metadata.name")), ("spec.nodeName", "metadata.name"));
        assert_eq!(shape.field_position("spec.nodeName"), whole.field_position("spec.nodeName"));
        let object = object(r#"{"metadata":{},"spec":{"nodeName":"n1"}}"#);
        let options = crate::ListOptions { field_selector: "node=n1".to_owned(), ..Default::default() };
        assert!(options.list(&shape).unwrap().fields.matches(&object, &whole), "caches know the own labels");
    }

    #[test]
    fn object_without_metadata_is_rejected() {
        let key = Key::new("pods", Some("a"), "b").unwrap();
        for bad in ["{}", "[]", r#"{"metadata":null}"#, "garbage", ""] {
            assert!(
                Object::from_stored(key.clone(), Revision::new(1), Change::Added, bad.as_bytes(), &pod_shape())
                    .is_err(),
                "{bad}"
            );
        }
    }
}
