//! [`CustomKind`]: decodes the stored objects of a custom resource. [`Form`]: converts these objects to one version.
//!
//! ```text
//!  stored bytes ──Normalize──▶ the cache's bytes ──Form::show──▶ response in a version
//!   any version  prune, defaults  storage version      apiVersion, fields of the version
//! ```
//!
//! Kubernetes decodes a stored object for each reader (`customresource_handler.go`, `schemaCoercingConverter`):
//!
//! 1. Prune fields that the version of the stored object does not specify.
//! 2. Apply the defaults of that version.
//! 3. Change `apiVersion`, and prune fields that the reader's version does not specify.
//!
//! A write is converted to the storage version and loses the fields that the storage version does not specify.
//!
//! This server runs steps 1 and 2 once, when bytes are read from the store. The cache holds the result in the storage
//! version. Readers of the storage version need no third step. Readers of another version get a copy with another
//! `apiVersion`. If the fields of the versions differ, the object is parsed once for all watchers of the version.
//!
//! With the conversion strategy `Webhook`, each version has a cache that reads through all three steps. The webhook
//! converts the object between steps 2 and 3 ([`crate::conversion`]).
//!
//! A change of a definition's spec creates a new kind with new caches, so added defaults also apply to old objects.
//!
//! If a definition preserves unknown fields, no step prunes fields ([`Schema`]).

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Instant;

use bytes::Bytes;
use listwatch_json::{Map, Value};
use listwatch_meta::scan::{self, PathSet, Span};
use listwatch_meta::{Normalize, Object, ObjectShape};
use listwatch_schema::{Interner, has_sound_metadata, repair_metadata};
use parking_lot::Mutex;
use serde_json::value::RawValue;

use super::schema::Schema;
use crate::conversion::{ConversionCallers, Converter};
use listwatch_apiextensions::{ConversionError, Definition, Names};

/// A custom resource as described by one generation of its definition. The schemas are parsed on first use. Until then,
/// the kind shares the bytes of the definition with the cache of definitions.
pub struct CustomKind {
    group: String,
    uid: String,
    generation: i64,
    accepted: Names,
    storage_version: String,
    versions: Vec<String>,
    preserves_unknown_fields: bool,
    source: Mutex<Bytes>,
    schemas: OnceLock<Schemas>,
    /// Whether the schema of each version is published, in the order of `versions`.
    published: Box<[OnceLock<bool>]>,
    creates: AtomicUsize,
    /// True after a warning about an object whose defaults are too large was logged.
    warned: AtomicBool,
    /// Converts between versions; `None` if they differ only in `apiVersion`.
    converter: Option<Converter>,
}

/// Guard that marks the creation of an object of this kind as in progress.
#[derive(Debug)]
pub struct Creating(Arc<CustomKind>);

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
    /// True if all versions specify the same fields.
    same: bool,
}

impl CustomKind {
    /// Creates the kind that a definition describes, under the definition's accepted names.
    pub fn new(definition: &Definition, accepted: &Names, source: Bytes) -> Self {
        CustomKind {
            group: definition.spec.group.clone(),
            uid: definition.metadata.uid.clone(),
            generation: definition.metadata.generation,
            accepted: accepted.clone(),
            storage_version: definition.storage_version().map(|version| version.name.clone()).unwrap_or_default(),
            versions: definition.spec.versions.iter().map(|version| version.name.clone()).collect(),
            preserves_unknown_fields: definition.spec.preserve_unknown_fields,
            source: Mutex::new(source),
            schemas: OnceLock::new(),
            published: definition.spec.versions.iter().map(|_| OnceLock::new()).collect(),
            creates: AtomicUsize::new(0),
            warned: AtomicBool::new(false),
            converter: None,
        }
    }

    /// Sets how objects are converted between versions, if the definition has the conversion strategy `Webhook`.
    pub(crate) fn with_conversion(mut self, definition: &Definition, callers: &Arc<ConversionCallers>) -> Self {
        self.converter = Converter::new(definition, callers);
        self
    }

    /// Whether a webhook converts between versions. If so, each version has its own cache.
    pub(crate) fn has_converter(&self) -> bool {
        self.converter.is_some()
    }

    /// Whether objects keep the fields that their schema does not specify (`spec.preserveUnknownFields`).
    pub fn preserves_unknown_fields(&self) -> bool {
        self.preserves_unknown_fields
    }

    /// Returns the generation of the definition.
    pub fn generation(&self) -> i64 {
        self.generation
    }

    /// Returns the names of all versions, in the order of the definition. Some may not be served.
    pub fn versions(&self) -> &[String] {
        &self.versions
    }

    /// Marks the creation of an object as in progress until the result is dropped. Call this before the check
    /// whether the definition is being deleted. The cleanup of a deleted definition then waits for the last
    /// creation.
    pub fn creating(self: &Arc<Self>) -> Creating {
        self.creates.fetch_add(1, Ordering::SeqCst);
        Creating(Arc::clone(self))
    }

    /// Reports whether the creation of an object is in progress.
    pub fn is_creating(&self) -> bool {
        self.creates.load(Ordering::SeqCst) > 0
    }

    /// Reports whether this kind still matches the definition's generation and accepted names. The generation
    /// increases with each change of the spec.
    pub fn describes(&self, definition: &Definition, accepted: &Names) -> bool {
        self.uid == definition.metadata.uid
            && self.generation == definition.metadata.generation
            && self.accepted == *accepted
    }

    /// Returns the name of this generation of the definition. All servers on one store use the same name.
    pub fn name(&self) -> String {
        format!("{} {}", self.uid, self.generation)
    }

    /// Replaces the stored bytes of the definition with newer ones and frees the old bytes.
    pub fn refresh(&self, source: Bytes) {
        *self.source.lock() = source;
    }

    /// Returns the `openAPIV3Schema` of a version, read from the definition's bytes. `None` if the version has no
    /// schema, or a schema that kube-apiserver does not publish ([`listwatch_schema::is_published`]).
    pub fn openapi_schema(&self, version: &str) -> Option<Value> {
        let source = self.source.lock().clone();
        let raw = raw_schemas(&source).into_iter().find(|(name, _)| name == version)?.1?;
        let schema: Value = serde_json::from_str(raw.get()).ok()?;
        let position = self.versions.iter().position(|name| name == version)?;
        let is_published = self.published[position].get_or_init(|| listwatch_schema::is_published(&schema));
        is_published.then_some(schema)
    }

    /// Returns the schema of a version, or `None` if the version has none.
    pub fn schema(&self, version: &str) -> Option<&Arc<Schema>> {
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
                .map(|source: Option<Value>| {
                    source.map(|source| Arc::new(Schema::parse(&source, self.preserves_unknown_fields, &mut shared)))
                })
                .collect();
            Schemas { by_version, same: texts.windows(2).all(|pair| pair[0] == pair[1]) }
        })
    }

    fn api_version(&self, version: &str) -> String {
        format!("{}/{version}", self.group)
    }

    /// Returns the version named by a stored `apiVersion`. Falls back to the storage version for an unknown
    /// `apiVersion`.
    fn version_of<'a>(&'a self, api_version: &str) -> &'a str {
        let version = api_version.strip_prefix(self.group.as_str()).and_then(|rest| rest.strip_prefix('/'));
        let known = version.and_then(|version| self.versions.iter().find(|name| *name == version));
        known.unwrap_or(&self.storage_version)
    }

    /// Prunes a stored tree, applies the defaults of its version and repairs its metadata. Small schemas can produce
    /// very large defaults. If the result exceeds the size limit of a stored value, the tree is restored from
    /// `original`, without defaults. If the version has no schema, only the metadata is repaired.
    fn complete_tree(&self, tree: &mut Map, original: impl FnOnce() -> Map) {
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
        repair_metadata(tree);
    }

    /// Converts a stored tree to the form held in the cache of all versions.
    fn normalize_tree(&self, tree: &mut Map, original: impl FnOnce() -> Map) {
        self.complete_tree(tree, original);
        // Fields unknown to the current storage version stay. A reader of the version in which the object was
        // stored sees these fields until the object is written again.
        tree.insert("apiVersion", Value::from(self.api_version(&self.storage_version)));
    }
}

impl Normalize for CustomKind {
    fn normalize(&self, value: &[u8]) -> Option<Vec<u8>> {
        if self.schemas().by_version.iter().all(Option::is_none) {
            // Most of these objects need no tree.
            let spans = FrameSpans::find(value)?;
            if has_sound_metadata(spans.metadata.of(value)) {
                return spans.with_api_version(value, &self.api_version(&self.storage_version));
            }
        }
        let mut tree: Map = serde_json::from_slice(value).ok()?;
        self.normalize_tree(&mut tree, || serde_json::from_slice(value).unwrap_or_default());
        // This server writes compact JSON, so an unchanged object serializes to the same bytes.
        serde_json::to_vec(&tree).ok().filter(|normal| normal != value)
    }
}

/// One version of a custom resource. Converts stored and cached objects to this version.
#[derive(Debug, Clone)]
pub struct Form {
    kind: Arc<CustomKind>,
    version: String,
    api_version: String,
}

impl Form {
    /// Creates the form of a version.
    pub fn new(kind: &Arc<CustomKind>, version: &str) -> Self {
        Form { kind: Arc::clone(kind), version: version.to_owned(), api_version: kind.api_version(version) }
    }

    /// Returns the kind that this version belongs to.
    pub fn kind(&self) -> &Arc<CustomKind> {
        &self.kind
    }

    /// Returns the schema of this version, or `None` if the version has none.
    pub fn schema(&self) -> Option<&Arc<Schema>> {
        self.kind.schema(&self.version)
    }

    /// Returns the `openAPIV3Schema` of this version.
    pub fn openapi_schema(&self) -> Option<Value> {
        self.kind.openapi_schema(&self.version)
    }

    fn is_storage_version(&self) -> bool {
        self.version == self.kind.storage_version
    }

    /// Reports whether this version serves the bytes of the cache without conversion.
    pub fn is_as_cached(&self) -> bool {
        self.converts() || (self.is_storage_version() && self.kind.schemas().same)
    }

    /// Whether a webhook converts between the versions. If so, this version has its own cache.
    pub fn converts(&self) -> bool {
        self.kind.has_converter()
    }

    /// Whether this version has its own cache in addition to the cache of the storage version.
    pub(crate) fn has_own_cache(&self) -> bool {
        self.converts() && !self.is_storage_version()
    }

    /// The name of the version.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// Converts the JSON of a cached object to this version.
    pub fn show<'a>(&self, json: &'a [u8]) -> Cow<'a, [u8]> {
        if self.kind.schemas().same {
            if self.is_storage_version() {
                return Cow::Borrowed(json);
            }
            let shown = FrameSpans::find(json).and_then(|spans| spans.with_api_version(json, &self.api_version));
            return shown.map_or(Cow::Borrowed(json), Cow::Owned);
        }
        let Ok(mut tree) = serde_json::from_slice::<Map>(json) else { return Cow::Borrowed(json) };
        self.take_on(&mut tree);
        serde_json::to_vec(&tree).map_or(Cow::Borrowed(json), Cow::Owned)
    }

    /// Converts a cached object to this version. See [`Form::show`].
    pub fn show_object(&self, object: &Object, shape: &ObjectShape) -> Object {
        match self.show(object.json_slice()) {
            Cow::Borrowed(_) => object.clone(),
            Cow::Owned(json) => object.with_json(&json, shape).unwrap_or_else(|_| object.clone()),
        }
    }

    /// Prunes a stored tree and applies the defaults of its version, in preparation for [`Form::show_completed`].
    /// `original` returns a fresh copy of the stored tree.
    pub(crate) fn complete_tree(&self, tree: &mut Map, original: impl FnOnce() -> Map) {
        self.kind.complete_tree(tree, original);
    }

    /// Converts trees from [`Form::complete_tree`] to this version. All objects that need the webhook are sent in one
    /// batch.
    ///
    /// # Errors
    /// The failure of the webhook. Without a webhook, this never fails.
    pub(crate) async fn show_completed(
        &self,
        trees: Vec<Map>,
        deadline: Option<Instant>,
    ) -> Result<Vec<Map>, ConversionError> {
        let is_own = |tree: &Map| tree.get("apiVersion").is_some_and(|is| *is == *self.api_version);
        let converted: Vec<bool> = trees.iter().map(|tree| !is_own(tree)).collect();
        let mut trees = match &self.kind.converter {
            Some(converter) => converter.convert(trees, &self.api_version, deadline).await?,
            None => trees,
        };
        for (tree, _) in trees.iter_mut().zip(converted).filter(|(_, converted)| *converted) {
            self.take_on(tree);
        }
        Ok(trees)
    }

    /// Converts a stored tree to this version.
    ///
    /// # Errors
    /// See [`Form::show_completed`].
    pub(crate) async fn read_stored(&self, stored: &Map, deadline: Option<Instant>) -> Result<Map, ConversionError> {
        if self.converts() {
            let mut tree = stored.clone();
            self.kind.complete_tree(&mut tree, || stored.clone());
            let shown = self.show_completed(vec![tree], deadline).await?;
            return Ok(shown.into_iter().next().unwrap_or_default());
        }
        let mut tree = stored.clone();
        self.kind.normalize_tree(&mut tree, || stored.clone());
        self.take_on(&mut tree);
        Ok(tree)
    }

    fn take_on(&self, tree: &mut Map) {
        tree.insert("apiVersion", Value::from(self.api_version.as_str()));
        if let Some(schema) = self.schema() {
            schema.prune(tree);
        }
    }

    /// Converts a tree of this version to the storage version. Prunes fields that the storage version does not
    /// specify.
    ///
    /// # Errors
    /// See [`Form::show_completed`].
    pub(crate) async fn to_stored(&self, tree: &mut Map, deadline: Option<Instant>) -> Result<(), ConversionError> {
        if self.is_storage_version() {
            return Ok(());
        }
        let storage = &self.kind.storage_version;
        if self.converts() {
            let api_version = self.kind.api_version(storage);
            *tree = self.convert_to(std::mem::take(tree), &api_version, deadline).await?;
            return Ok(());
        }
        tree.insert("apiVersion", Value::from(self.kind.api_version(storage)));
        if !self.kind.schemas().same
            && let Some(schema) = self.kind.schema(storage)
        {
            schema.prune(tree);
        }
        Ok(())
    }

    /// Converts a tree between any two versions of the kind, without defaults (`schemaCoercingConverter`).
    ///
    /// # Errors
    /// See [`Form::show_completed`].
    pub(crate) async fn convert_to(
        &self,
        mut tree: Map,
        api_version: &str,
        deadline: Option<Instant>,
    ) -> Result<Map, ConversionError> {
        if let Some(converter) = &self.kind.converter {
            tree = converter.convert(vec![tree], api_version, deadline).await?.into_iter().next().unwrap_or_default();
        } else {
            tree.insert("apiVersion", api_version.into());
        }
        if let Some(schema) = self.kind.schema(self.kind.version_of(api_version)) {
            schema.prune(&mut tree);
        }
        Ok(tree)
    }
}

/// The fields of a stored document that do not depend on a schema.
struct FrameSpans {
    api_version: Span,
    metadata: Span,
}

impl FrameSpans {
    /// Finds the fields. Returns `None` if the document is not a JSON object.
    fn find(json: &[u8]) -> Option<Self> {
        static PATHS: LazyLock<PathSet> = LazyLock::new(|| {
            let mut paths = PathSet::new();
            paths.add(&["apiVersion"]);
            paths.add(&["metadata"]);
            paths
        });
        let mut spans = [Span::default(); 2];
        scan::find(json, &PATHS, &mut spans).ok()?;
        let [api_version, metadata] = spans;
        Some(FrameSpans { api_version, metadata })
    }

    /// Returns the document with another `apiVersion`. Returns `None` if the document already has that `apiVersion`, or
    /// has no `apiVersion` string to replace.
    fn with_api_version(&self, json: &[u8], api_version: &str) -> Option<Vec<u8>> {
        // The API server wrote these bytes, in its own compact form.
        let present = self.api_version.of(json);
        let has = present.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
        if has.is_none_or(|has| has == api_version.as_bytes()) {
            return None;
        }
        let mut out = Vec::with_capacity(json.len() + api_version.len());
        out.extend_from_slice(&json[..self.api_version.start as usize + 1]);
        out.extend_from_slice(api_version.as_bytes());
        out.extend_from_slice(&json[self.api_version.end as usize - 1..]);
        Some(out)
    }
}

/// Returns the raw schema of each version from a definition's bytes.
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
        kind_of(false, versions)
    }

    /// A kind whose definition preserves unknown fields.
    fn preserving_kind(versions: &str) -> Arc<CustomKind> {
        kind_of(true, versions)
    }

    fn kind_of(preserves: bool, versions: &str) -> Arc<CustomKind> {
        let json = format!(
            r#"{{"metadata":{{"name":"widgets.example.com","uid":"u","generation":1}},"spec":{{"group":"example.com","scope":"Namespaced","preserveUnknownFields":{preserves},"names":{{"plural":"widgets","kind":"Widget"}},"versions":[{versions}]}}}}"#
        );
        let definition = Definition::parse(json.as_bytes()).unwrap();
        Arc::new(CustomKind::new(&definition, &definition.spec.names, json.into()))
    }

    #[test]
    fn custom_form_without_schema_changes_only_the_api_version() {
        let kind = kind(r#"{"name":"v1","storage":true},{"name":"v2"}"#);
        let stored =
            br#"{"kind":"Widget","apiVersion":"example.com/v1","metadata":{"generation":1},"spec":{"apiVersion":"x"}}"#;
        let check = |version: &str, json: &[u8], expected: &str| {
            let shown = Form::new(&kind, version).show(json).into_owned();
            assert_eq!(String::from_utf8(shown).unwrap(), expected);
        };
        let (v1, v2) = (
            std::str::from_utf8(stored).unwrap(),
            r#"{"kind":"Widget","apiVersion":"example.com/v2","metadata":{"generation":1},"spec":{"apiVersion":"x"}}"#,
        );
        check("v1", stored, v1);
        check("v2", stored, v2);
        assert!(Form::new(&kind, "v1").is_as_cached() && !Form::new(&kind, "v2").is_as_cached());
        assert_eq!(kind.normalize(stored), None, "what is as it should be is not copied");
        assert_eq!(kind.normalize(v2.as_bytes()).unwrap(), stored, "the cache holds the storage version");
        check("v2", b"{}", "{}");
    }

    #[tokio::test]
    async fn object_with_oversized_defaults_is_cached_without_them() {
        let schema = format!(
            r#"{{"type":"object","properties":{{"list":{{"type":"array","items":{{"type":"object","properties":{{"a":{{"type":"string","default":"{}"}}}}}}}}}}}}"#,
            "x".repeat(50_000)
        );
        let kind = kind(&format!(r#"{{"name":"v1","storage":true,"schema":{{"openAPIV3Schema":{schema}}}}}"#));
        let object = |items: usize| {
            let items = vec!["{}"; items].join(",");
            format!(
                r#"{{"kind":"Widget","apiVersion":"example.com/v1","metadata":{{"name":"w","generation":1}},"list":[{items}]}}"#
            )
        };
        let normal = kind.normalize(object(20).as_bytes()).unwrap();
        assert!(normal.len() > 1_000_000 && normal.len() < listwatch_storage::VALUE_BYTES_MAX);
        assert_eq!(kind.normalize(object(4_000).as_bytes()), None, "it stays as it is stored");
        let tree: Map = serde_json::from_str(&object(4_000)).unwrap();
        assert_eq!(Form::new(&kind, "v1").read_stored(&tree, None).await.unwrap(), tree);
    }

    #[tokio::test]
    async fn preserved_fields_survive_reads_and_conversions() {
        let schema = |kind: &str| format!(r#"{{"openAPIV3Schema":{{"properties":{{"a":{{"type":"{kind}"}}}}}}}}"#);
        let kind = preserving_kind(&format!(
            r#"{{"name":"v1","storage":true,"schema":{}}},{{"name":"v2","schema":{}}}"#,
            schema("string"),
            schema("integer")
        ));
        let stored = r#"{"kind":"Widget","apiVersion":"example.com/v1","metadata":{"name":"w","generation":1},"spec":{"b":null}}"#;
        assert_eq!(kind.normalize(stored.as_bytes()), None);
        let form = Form::new(&kind, "v2");
        let shown = String::from_utf8(form.show(stored.as_bytes()).into_owned()).unwrap();
        assert_eq!(shown, stored.replace("/v1", "/v2"));
        let mut tree: Map = serde_json::from_str(&shown).unwrap();
        form.to_stored(&mut tree, None).await.unwrap();
        assert_eq!(serde_json::to_string(&tree).unwrap(), stored);
        let converted = form.convert_to(tree.clone(), "example.com/v1", None).await.unwrap();
        assert_eq!(converted, tree);
    }

    #[test]
    fn only_structural_schemas_with_known_types_are_published() {
        for preserves in [true, false] {
            let kind = kind_of(
                preserves,
                r#"{"name":"v1","storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}},
                   {"name":"v2","schema":{"openAPIV3Schema":{"properties":{"a":{}}}}},
                   {"name":"v3","schema":{"openAPIV3Schema":{"type":"object","properties":{"a":{"type":"file"}}}}}"#,
            );
            let published: Vec<&String> =
                kind.versions().iter().filter(|version| kind.openapi_schema(version).is_some()).collect();
            assert_eq!(published, ["v1"], "preserves unknown fields: {preserves}");
            assert!(kind.schema("v2").is_some() && kind.schema("v3").is_some(), "the schemas still validate objects");
        }
    }

    #[test]
    fn malformed_metadata_of_a_stored_object_is_not_shown() {
        let stored = br#"{"kind":"Widget","apiVersion":"example.com/v1","metadata":{"name":"w","unknown":42,"generation":null}}"#;
        let expected = r#"{"kind":"Widget","apiVersion":"example.com/v1","metadata":{"name":"w","generation":1}}"#;
        for versions in [
            r#"{"name":"v1","storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}"#,
            r#"{"name":"v1","storage":true}"#,
            r#"{"name":"v1"},{"name":"v2","storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}"#,
        ] {
            let kind = preserving_kind(versions);
            let storage_version = kind.api_version(&kind.storage_version);
            let expected = expected.replace("example.com/v1", &storage_version);
            assert_eq!(String::from_utf8(kind.normalize(stored).unwrap()).unwrap(), expected, "{versions}");
            assert_eq!(kind.normalize(expected.as_bytes()), None, "{versions}");
        }
    }

    #[tokio::test]
    async fn custom_form_converts_a_tree_to_its_version_and_back() {
        let kind = kind(r#"{"name":"v1","storage":true},{"name":"v2"}"#);
        let form = Form::new(&kind, "v2");
        let mut tree: Map = serde_json::from_str(r#"{"apiVersion":"example.com/v1"}"#).unwrap();
        tree = form.read_stored(&tree, None).await.unwrap();
        assert_eq!(tree["apiVersion"], "example.com/v2");
        form.to_stored(&mut tree, None).await.unwrap();
        assert_eq!(tree["apiVersion"], "example.com/v1");
    }

    #[test]
    fn custom_kind_returns_schemas_only_for_versions_that_have_one() {
        let kind = kind(r#"{"name":"v1","storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}},{"name":"v2"}"#);
        assert_eq!(kind.openapi_schema("v1").unwrap()["type"], "object");
        assert_eq!(kind.openapi_schema("v2"), None);
        assert!(kind.schema("v1").is_some() && kind.schema("v2").is_none() && kind.schema("v3").is_none());
    }
}
