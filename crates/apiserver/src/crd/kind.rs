//! [`CustomKind`]: how objects of a custom resource are kept, and [`Form`], how one version shows
//! them.
//!
//! ```text
//!  stored bytes ──Normalize──▶ the cache's bytes ──Form::show──▶ what a client of a version sees
//!   any version  prune, defaults  storage version      apiVersion, fields the version knows
//! ```
//!
//! Kubernetes decodes an object anew for each reader: away with fields that the version it was stored
//! in does not know, defaults of that version, another apiVersion, without the fields that the
//! reader's version does not know. What is written is converted to the storage version, and loses what
//! that one does not know (`customresource_handler.go`, `schemaCoercingConverter`). Here the first half
//! of a read is done once, when bytes come out of the store, for everybody; the cache holds the result in
//! the storage version. The second step costs nothing for readers of the storage version, and a copy
//! with another apiVersion for readers of another one. Only where versions differ in the fields that
//! they know is an object parsed again per view, and then once for all watchers of the version.
//!
//! A definition whose spec changes gets a new kind, and with it new caches: defaults that were added
//! show on old objects from then on.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};

use bytes::Bytes;
use listwatch_meta::scan::{self, PathSet, Span};
use listwatch_meta::{Normalize, Object, ObjectShape};
use listwatch_schema::Interner;
use parking_lot::Mutex;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::schema::Schema;
use listwatch_kinds::definitions::{Definition, Names};

/// A custom resource as one generation of its definition describes it. Its schemas are parsed when
/// they are first needed; until then it holds the definition's bytes, which the cache of definitions
/// holds too.
pub(crate) struct CustomKind {
    group: String,
    uid: String,
    generation: i64,
    accepted: Names,
    storage_version: String,
    versions: Vec<String>,
    source: Mutex<Bytes>,
    schemas: OnceLock<Schemas>,
    creates: AtomicUsize,
    /// The log was told of an object whose defaults are too large.
    warned: AtomicBool,
}

/// An object of the kind is being created.
#[derive(Debug)]
pub(crate) struct Creating(Arc<CustomKind>);

impl Drop for Creating {
    fn drop(&mut self) {
        self.0.creates.fetch_sub(1, Ordering::SeqCst);
    }
}

impl std::fmt::Debug for CustomKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CustomKind({}.{} generation {})", self.accepted.plural, self.group, self.generation)
    }
}

/// The schemas of all versions.
#[derive(Debug)]
struct Schemas {
    by_version: Vec<Option<Arc<Schema>>>,
    /// All versions know the same fields.
    same: bool,
}

impl CustomKind {
    /// The kind that a definition describes, with the names it was given.
    pub(crate) fn new(definition: &Definition, accepted: &Names, source: Bytes) -> Self {
        CustomKind {
            group: definition.spec.group.clone(),
            uid: definition.metadata.uid.clone(),
            generation: definition.metadata.generation,
            accepted: accepted.clone(),
            storage_version: definition.storage_version().map(|version| version.name.clone()).unwrap_or_default(),
            versions: definition.spec.versions.iter().map(|version| version.name.clone()).collect(),
            source: Mutex::new(source),
            schemas: OnceLock::new(),
            creates: AtomicUsize::new(0),
            warned: AtomicBool::new(false),
        }
    }

    /// Says, while the result lives, that an object is being created. To be said before the creator
    /// looks whether the definition is being deleted: then whoever removes the objects of a
    /// definition that is being deleted can wait for the last one.
    pub(crate) fn creating(self: &Arc<Self>) -> Creating {
        self.creates.fetch_add(1, Ordering::SeqCst);
        Creating(Arc::clone(self))
    }

    /// Is an object being created?
    pub(crate) fn is_creating(&self) -> bool {
        self.creates.load(Ordering::SeqCst) > 0
    }

    /// Does this kind still say what the definition says? The generation counts the changes of a
    /// spec.
    pub(crate) fn describes(&self, definition: &Definition, accepted: &Names) -> bool {
        self.uid == definition.metadata.uid
            && self.generation == definition.metadata.generation
            && self.accepted == *accepted
    }

    /// Names this generation of the definition; the same on every server on the store.
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.uid, self.generation)
    }

    /// Takes newer bytes of the same definition, so that the old ones can go.
    pub(crate) fn refresh(&self, source: Bytes) {
        *self.source.lock() = source;
    }

    /// The `openAPIV3Schema` of a version, read from the definition.
    pub(crate) fn openapi_schema(&self, version: &str) -> Option<Value> {
        let source = self.source.lock().clone();
        let raw = raw_schemas(&source).into_iter().find(|(name, _)| name == version)?.1?;
        serde_json::from_str(raw.get()).ok()
    }

    /// The schema of a version; `None` when it has none.
    pub(crate) fn schema(&self, version: &str) -> Option<&Arc<Schema>> {
        let position = self.versions.iter().position(|name| name == version)?;
        self.schemas().by_version[position].as_ref()
    }

    fn schemas(&self) -> &Schemas {
        self.schemas.get_or_init(|| {
            let source = self.source.lock().clone();
            let found = raw_schemas(&source);
            let texts: Vec<Option<&str>> = self
                .versions
                .iter()
                .map(|version| found.iter().find(|(name, _)| name == version)?.1.map(RawValue::get))
                .collect();
            let mut shared = Interner::default();
            let by_version = texts
                .iter()
                .map(|text| serde_json::from_str((*text)?).ok())
                .map(|source: Option<Value>| source.map(|source| Arc::new(Schema::parse(&source, &mut shared))))
                .collect();
            Schemas { by_version, same: texts.windows(2).all(|pair| pair[0] == pair[1]) }
        })
    }

    fn api_version(&self, version: &str) -> String {
        format!("{}/{version}", self.group)
    }

    /// The version in which bytes are stored; the storage version when they do not say one of ours.
    fn version_of<'a>(&'a self, api_version: &str) -> &'a str {
        let version = api_version.strip_prefix(self.group.as_str()).and_then(|rest| rest.strip_prefix('/'));
        let known = version.and_then(|version| self.versions.iter().find(|name| *name == version));
        known.unwrap_or(&self.storage_version)
    }

    /// Makes of a stored tree what the cache holds of it. A few bytes may ask for very large defaults: an object
    /// that would become larger than any store takes it is shown as it is stored, without them. `original` gives
    /// the stored tree again.
    fn normalize_tree(&self, tree: &mut Map<String, Value>, original: impl FnOnce() -> Map<String, Value>) {
        let stored = tree.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
        let stored = self.version_of(stored).to_owned();
        if let Some(schema) = self.schema(&stored) {
            schema.prune(tree);
            if schema.default(tree).is_err() {
                *tree = original();
                schema.prune(tree);
                if !self.warned.swap(true, Ordering::Relaxed) {
                    let name = tree.get("metadata").and_then(|metadata| metadata.get("name")).cloned();
                    tracing::warn!(kind = ?self, ?name, "defaults are too large: objects are shown without them");
                }
            }
        }
        // What the storage version of today does not know stays: a reader of the version in which the
        // object was stored sees it until the object is written again.
        tree.insert("apiVersion".to_owned(), Value::String(self.api_version(&self.storage_version)));
    }
}

impl Normalize for CustomKind {
    fn normalize(&self, value: &[u8]) -> Option<Vec<u8>> {
        if self.schemas().by_version.iter().all(Option::is_none) {
            return with_api_version(value, &self.api_version(&self.storage_version));
        }
        let mut tree: Map<String, Value> = serde_json::from_slice(value).ok()?;
        self.normalize_tree(&mut tree, || serde_json::from_slice(value).unwrap_or_default());
        // This server writes compact JSON, so what did not change comes out as it went in.
        serde_json::to_vec(&tree).ok().filter(|normal| normal != value)
    }
}

/// How one version shows the objects of its kind.
#[derive(Debug, Clone)]
pub(crate) struct Form {
    kind: Arc<CustomKind>,
    version: String,
    api_version: String,
    /// Position among the definition's versions, by which shared encodings are told apart.
    position: u32,
}

impl Form {
    /// The form of a version.
    pub(crate) fn new(kind: &Arc<CustomKind>, version: &str) -> Self {
        let position = kind.versions.iter().position(|name| name == version).unwrap_or_default();
        Form {
            kind: Arc::clone(kind),
            version: version.to_owned(),
            api_version: kind.api_version(version),
            position: u32::try_from(position).unwrap_or_default(),
        }
    }

    /// The kind of which this is a version.
    pub(crate) fn kind(&self) -> &Arc<CustomKind> {
        &self.kind
    }

    /// Tells this version's encodings from those of the others.
    pub(crate) fn position(&self) -> u32 {
        self.position
    }

    /// The schema of this version; `None` when it has none.
    pub(crate) fn schema(&self) -> Option<&Arc<Schema>> {
        self.kind.schema(&self.version)
    }

    /// The `openAPIV3Schema` of this version.
    pub(crate) fn openapi_schema(&self) -> Option<Value> {
        self.kind.openapi_schema(&self.version)
    }

    fn is_storage_version(&self) -> bool {
        self.version == self.kind.storage_version
    }

    /// Are the cache's bytes already what this version shows?
    pub(crate) fn is_as_cached(&self) -> bool {
        self.is_storage_version() && self.kind.schemas().same
    }

    /// An object of the cache as this version shows it.
    pub(crate) fn show<'a>(&self, json: &'a [u8]) -> Cow<'a, [u8]> {
        if self.kind.schemas().same {
            if self.is_storage_version() {
                return Cow::Borrowed(json);
            }
            return with_api_version(json, &self.api_version).map_or(Cow::Borrowed(json), Cow::Owned);
        }
        let Ok(mut tree) = serde_json::from_slice::<Map<String, Value>>(json) else { return Cow::Borrowed(json) };
        self.take_on(&mut tree);
        serde_json::to_vec(&tree).map_or(Cow::Borrowed(json), Cow::Owned)
    }

    /// As [`Form::show`], of a whole object.
    pub(crate) fn show_object(&self, object: &Object, shape: &ObjectShape) -> Object {
        match self.show(object.json_slice()) {
            Cow::Borrowed(_) => object.clone(),
            Cow::Owned(json) => object.with_json(&json, shape).unwrap_or_else(|_| object.clone()),
        }
    }

    /// What this version shows of a stored tree.
    pub(crate) fn read_stored(&self, stored: &Map<String, Value>) -> Map<String, Value> {
        let mut tree = stored.clone();
        self.kind.normalize_tree(&mut tree, || stored.clone());
        self.take_on(&mut tree);
        tree
    }

    fn take_on(&self, tree: &mut Map<String, Value>) {
        tree.insert("apiVersion".to_owned(), Value::String(self.api_version.clone()));
        if let Some(schema) = self.schema() {
            schema.prune(tree);
        }
    }

    /// Makes of a tree of this version what is stored of it: without what the storage version does
    /// not know.
    pub(crate) fn to_stored(&self, tree: &mut Map<String, Value>) {
        if self.is_storage_version() {
            return;
        }
        let storage = &self.kind.storage_version;
        tree.insert("apiVersion".to_owned(), Value::String(self.kind.api_version(storage)));
        if !self.kind.schemas().same
            && let Some(schema) = self.kind.schema(storage)
        {
            schema.prune(tree);
        }
    }
}

/// The document with another `apiVersion`; `None` when it has that one, or none that could be
/// replaced.
fn with_api_version(json: &[u8], api_version: &str) -> Option<Vec<u8>> {
    static PATHS: LazyLock<PathSet> = LazyLock::new(|| {
        let mut paths = PathSet::new();
        paths.add(&["apiVersion"]);
        paths
    });
    let mut span = [Span::default()];
    scan::find(json, &PATHS, &mut span).ok()?;
    let present = span[0].of(json);
    // The API server wrote these bytes, in its own compact form.
    let has = present.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    if has.is_none_or(|has| has == api_version.as_bytes()) {
        return None;
    }
    let mut out = Vec::with_capacity(json.len() + api_version.len());
    out.extend_from_slice(&json[..span[0].start as usize + 1]);
    out.extend_from_slice(api_version.as_bytes());
    out.extend_from_slice(&json[span[0].end as usize - 1..]);
    Some(out)
}

/// The schemas of all versions as they stand in a definition's bytes.
fn raw_schemas(source: &[u8]) -> Vec<(String, Option<&RawValue>)> {
    #[derive(serde::Deserialize)]
    struct Root<'a> {
        #[serde(borrow)]
        spec: Spec<'a>,
    }
    #[derive(serde::Deserialize)]
    struct Spec<'a> {
        #[serde(borrow)]
        versions: Vec<Version<'a>>,
    }
    #[derive(serde::Deserialize)]
    struct Version<'a> {
        name: String,
        #[serde(borrow, default)]
        schema: Option<Validation<'a>>,
    }
    #[derive(serde::Deserialize)]
    struct Validation<'a> {
        #[serde(borrow, rename = "openAPIV3Schema", default)]
        schema: Option<&'a RawValue>,
    }
    let root: Option<Root<'_>> = serde_json::from_slice(source).ok();
    let versions = root.map(|root| root.spec.versions).unwrap_or_default();
    versions.into_iter().map(|version| (version.name, version.schema.and_then(|schema| schema.schema))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(versions: &str) -> Arc<CustomKind> {
        let json = format!(
            r#"{{"metadata":{{"name":"widgets.example.com","uid":"u","generation":1}},"spec":{{"group":"example.com","scope":"Namespaced","names":{{"plural":"widgets","kind":"Widget"}},"versions":[{versions}]}}}}"#
        );
        let definition = Definition::parse(json.as_bytes()).unwrap();
        Arc::new(CustomKind::new(&definition, &definition.spec.names, json.into()))
    }

    #[test]
    fn a_version_costs_its_name_and_nothing_else() {
        let kind = kind(r#"{"name":"v1","storage":true},{"name":"v2"}"#);
        let stored = br#"{"kind":"Widget","apiVersion":"example.com/v1","metadata":{},"spec":{"apiVersion":"x"}}"#;
        let check = |version: &str, json: &[u8], expected: &str| {
            let shown = Form::new(&kind, version).show(json).into_owned();
            assert_eq!(String::from_utf8(shown).unwrap(), expected);
        };
        let (v1, v2) = (
            std::str::from_utf8(stored).unwrap(),
            r#"{"kind":"Widget","apiVersion":"example.com/v2","metadata":{},"spec":{"apiVersion":"x"}}"#,
        );
        check("v1", stored, v1);
        check("v2", stored, v2);
        assert!(Form::new(&kind, "v1").is_as_cached() && !Form::new(&kind, "v2").is_as_cached());
        assert_eq!(kind.normalize(stored), None, "what is as it should be is not copied");
        assert_eq!(kind.normalize(v2.as_bytes()).unwrap(), stored, "the cache holds the storage version");
        check("v2", b"{}", "{}");
    }

    #[test]
    fn defaults_that_are_too_large_are_not_kept() {
        let schema = format!(
            r#"{{"type":"object","properties":{{"list":{{"type":"array","items":{{"type":"object","properties":{{"a":{{"type":"string","default":"{}"}}}}}}}}}}}}"#,
            "x".repeat(50_000)
        );
        let kind = kind(&format!(r#"{{"name":"v1","storage":true,"schema":{{"openAPIV3Schema":{schema}}}}}"#));
        let object = |items: usize| {
            let items = vec!["{}"; items].join(",");
            format!(r#"{{"kind":"Widget","apiVersion":"example.com/v1","metadata":{{"name":"w"}},"list":[{items}]}}"#)
        };
        let normal = kind.normalize(object(20).as_bytes()).unwrap();
        assert!(normal.len() > 1_000_000 && normal.len() < listwatch_storage::VALUE_BYTES_MAX);
        assert_eq!(kind.normalize(object(4_000).as_bytes()), None, "it stays as it is stored");
        let tree: Map<String, Value> = serde_json::from_str(&object(4_000)).unwrap();
        assert_eq!(Form::new(&kind, "v1").read_stored(&tree), tree);
    }

    #[test]
    fn trees_take_the_same_way() {
        let kind = kind(r#"{"name":"v1","storage":true},{"name":"v2"}"#);
        let form = Form::new(&kind, "v2");
        let mut tree: Map<String, Value> = serde_json::from_str(r#"{"apiVersion":"example.com/v1"}"#).unwrap();
        tree = form.read_stored(&tree);
        assert_eq!(tree["apiVersion"], "example.com/v2");
        form.to_stored(&mut tree);
        assert_eq!(tree["apiVersion"], "example.com/v1");
    }

    #[test]
    fn schemas_are_found_in_the_bytes() {
        let kind = kind(r#"{"name":"v1","storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}},{"name":"v2"}"#);
        assert_eq!(kind.openapi_schema("v1").unwrap()["type"], "object");
        assert_eq!(kind.openapi_schema("v2"), None);
        assert!(kind.schema("v1").is_some() && kind.schema("v2").is_none() && kind.schema("v3").is_none());
    }
}
