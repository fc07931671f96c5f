//! [`Resource`]: one served kind in a group and version, with its names, storage, schema and write rules.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bytes::Bytes;
use listwatch_apiextensions::PrinterColumn;
use listwatch_apply as apply;
use listwatch_json::Map;
use listwatch_kinds::{Kind, Strategy, Subresource, WriteRules};
use listwatch_meta::{GroupResource, Key, KeyRange, Object, ObjectShape, go, status};
use listwatch_validation::names::{self, NameRule};
use listwatch_wire::list::ListStyle;
use listwatch_wire::media_type::Served;

use crate::conversion::Conversion;
use crate::custom::kind::{Creating, Form};

/// One served resource: a kind in a group and version.
#[derive(Debug, Clone)]
pub struct Resource {
    /// The API group; `""` for the core group.
    pub group: String,
    /// The API version, e.g. `v1`.
    pub version: String,
    /// The kind of an object, e.g. `Pod`.
    pub kind: String,
    /// The kind of a list, e.g. `PodList`.
    pub list_kind: String,
    /// The plural name used in paths, e.g. `pods`.
    pub plural: String,
    /// The singular name, e.g. `pod`.
    pub singular: String,
    /// The short names, e.g. `po`.
    pub short_names: Vec<String>,
    /// The discovery categories, e.g. `all`.
    pub categories: Vec<String>,
    /// True if objects belong to a namespace; false for cluster-scoped objects.
    pub namespaced: bool,
    /// The prefix below which objects are stored, e.g. `pods`, `services/specs`.
    pub storage_prefix: String,
    /// The fields that are read from the bytes of an object.
    pub shape: Arc<ObjectShape>,
    /// Selectable fields with an index (dispatch and lists), e.g. `spec.nodeName`.
    pub indexed_fields: Vec<String>,
    /// The served subresources, e.g. `status`.
    pub subresources: Vec<Subresource>,
    /// The write rules that are plain values, such as `allowUnconditionalUpdate`.
    pub rules: WriteRules,
    /// The functions that prepare and validate an object for a write.
    pub strategy: Arc<dyn Strategy>,
    /// True for resources of a CustomResourceDefinition.
    pub custom: bool,
    /// The description of a built-in kind; `None` for custom resources.
    pub builtin: Option<&'static Kind>,
    /// The columns of Table views after `Name`, from `additionalPrinterColumns`. Empty for built-in resources,
    /// whose columns are code.
    pub printer_columns: Vec<PrinterColumn>,
    /// The OpenAPI v3 schema of an object, for resources that define one. With `None`, a schema that accepts every
    /// object is published.
    pub schema: Option<Arc<listwatch_json::Value>>,
    /// The view of this version on stored objects of a custom resource. `None` for built-in resources.
    pub form: Option<Form>,
    /// The conversion from the stored version of a built-in kind. `None` if this is the stored version.
    pub conversion: Option<Conversion>,
    /// For a second version of a kind: the resource of the stored version. Otherwise `None`.
    pub stored_as: Option<Arc<Resource>>,
    /// True while the definition is being deleted. The server rejects the creation of objects during that time.
    pub terminating: bool,
    /// The `Warning` header text sent with every response of a deprecated version.
    pub deprecation: Option<String>,
    /// For a custom resource: the storage version, if that version is served. For a built-in kind: kube-apiserver's
    /// storage version, if different from the version that this server validates.
    pub storage_version: Option<String>,
    /// The merge rules of server-side apply, set by the first write of an object.
    pub merging: OnceLock<apply::Kind>,
    /// Identifies this resource in the ids of cached encodings.
    pub encodings: EncodingSerial,
}

/// A number that is unique in the process. A clone has a different number, because the fields of the cloned resource
/// may change.
#[derive(Debug, Default)]
pub struct EncodingSerial(OnceLock<u64>);

impl EncodingSerial {
    fn number(&self) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        *self.0.get_or_init(|| NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl Clone for EncodingSerial {
    fn clone(&self) -> Self {
        EncodingSerial::default()
    }
}

impl Resource {
    /// Returns the `apiVersion` of objects: `v1`, `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Returns the group, version and plural that form the path of the resource.
    pub(crate) fn path(&self) -> (&str, &str, &str) {
        (&self.group, &self.version, &self.plural)
    }

    /// Returns the group and resource for error messages.
    pub fn gr(&self) -> GroupResource<'_> {
        GroupResource { group: &self.group, resource: &self.plural }
    }

    /// Returns the resource of the version in which objects are stored, cached and validated. This is `self`, except
    /// for a second version of a built-in kind.
    pub fn stored(&self) -> &Resource {
        self.stored_as.as_deref().unwrap_or(self)
    }

    /// Reports whether this version serves the bytes of the cache without conversion.
    pub fn is_as_cached(&self) -> bool {
        self.conversion.is_none() && self.form.as_ref().is_none_or(Form::is_as_cached)
    }

    /// Returns a number that identifies this version and this generation of the definition in the process. Cached
    /// encodings are keyed by this number, because they depend on both. For example, a Table has the columns of the
    /// definition.
    pub fn encoding_serial(&self) -> u64 {
        self.encodings.number()
    }

    /// Converts a cached object to this version.
    pub fn shown<'a>(&self, object: &'a Object) -> Cow<'a, Object> {
        match (&self.form, &self.conversion) {
            (_, Some(conversion)) => Cow::Owned(conversion.show_object(object)),
            (Some(form), _) if !form.is_as_cached() => Cow::Owned(form.show_object(object, &self.shape)),
            _ => Cow::Borrowed(object),
        }
    }

    /// Converts the JSON of a cached object to this version. See [`Resource::shown`].
    pub fn shown_json(&self, json: Bytes) -> Bytes {
        match (&self.form, &self.conversion) {
            (_, Some(conversion)) => conversion.show(&json),
            (Some(form), _) if !form.is_as_cached() => form.show(&json).into_owned().into(),
            _ => json,
        }
    }

    /// Reports whether the metadata of a cached object can be served without conversion. All versions of a custom
    /// resource have the same metadata.
    pub fn has_cached_metadata(&self) -> bool {
        self.conversion.is_none()
    }

    /// Whether a webhook converts between the versions of the kind. If so, caches already hold objects of this version,
    /// and [`Resource::shown`] returns them unchanged.
    pub fn converts_by_webhook(&self) -> bool {
        self.form.as_ref().is_some_and(Form::converts)
    }

    /// Whether a webhook converts stored objects to this version, and the version has its own cache.
    pub(crate) fn has_own_cache(&self) -> bool {
        self.form.as_ref().is_some_and(Form::has_own_cache)
    }

    /// Returns the name of the cache of this version: the storage prefix, and the version if it has its own cache.
    pub(crate) fn cache_name(&self) -> String {
        match &self.form {
            Some(form) if form.has_own_cache() => format!("{}@{}", self.storage_prefix, form.version()),
            _ => self.storage_prefix.clone(),
        }
    }

    /// Converts a stored tree to this version. A call to a conversion webhook ends at `deadline`.
    ///
    /// # Errors
    /// 500 if the webhook fails. Conversions without a webhook never fail.
    pub async fn read_stored<'a>(
        &self,
        tree: &'a Map,
        deadline: Option<Instant>,
    ) -> Result<Cow<'a, Map>, status::Status> {
        Ok(match (&self.form, &self.conversion) {
            (_, Some(conversion)) => Cow::Owned(conversion.show_tree(tree.clone())),
            (Some(form), None) => {
                let shown = Box::pin(form.read_stored(tree, deadline)).await;
                Cow::Owned(shown.map_err(|error| status::Status::unknown(error.to_string()))?)
            }
            (None, None) => Cow::Borrowed(tree),
        })
    }

    /// Converts a tree of this version of a custom resource to the storage version. Built-in kinds are converted
    /// earlier ([`listwatch_kinds::Strategy::to_storage_version`]).
    ///
    /// # Errors
    /// See [`Resource::read_stored`].
    pub async fn to_stored(&self, tree: &mut Map, deadline: Option<Instant>) -> Result<(), status::Status> {
        match &self.form {
            Some(form) => {
                let stored = Box::pin(form.to_stored(tree, deadline)).await;
                stored.map_err(|error| status::Status::unknown(error.to_string()))
            }
            None => Ok(()),
        }
    }

    /// Converts a tree of this custom resource to another version, for field managers of that version.
    ///
    /// # Errors
    /// The error message of the conversion.
    pub async fn convert_to(&self, tree: Map, api_version: &str, deadline: Option<Instant>) -> Result<Map, String> {
        match &self.form {
            Some(form) => {
                Box::pin(form.convert_to(tree, api_version, deadline)).await.map_err(|error| error.to_string())
            }
            None => Ok(tree),
        }
    }

    /// Marks the creation of a custom resource object as in progress until the result is dropped.
    pub fn creating(&self) -> Option<Creating> {
        self.form.as_ref().map(|form| form.kind().creating())
    }

    /// Returns a name that identifies the definition and its generation, for the published OpenAPI document.
    pub fn openapi_name(&self) -> Option<String> {
        let form = self.form.as_ref()?;
        Some(format!("{} {} {} {}", self.version, self.plural, self.kind, form.kind().name()))
    }

    /// Whether objects keep the fields that their schema does not specify (`spec.preserveUnknownFields` of the
    /// definition of a custom resource).
    pub fn preserves_unknown_fields(&self) -> bool {
        self.form.as_ref().is_some_and(|form| form.kind().preserves_unknown_fields())
    }

    /// Returns the published OpenAPI v3 schema of an object, for resources that define one. The schema of a custom
    /// resource is read from the definition at each call.
    pub fn openapi_schema(&self) -> Option<Arc<listwatch_json::Value>> {
        self.schema.clone().or_else(|| self.form.as_ref()?.openapi_schema().map(Arc::new))
    }

    /// Returns the media types and views in which objects are served, without CBOR, which is a setting of the server.
    pub fn served(&self) -> Served {
        if self.custom { Served::CUSTOM_JSON } else { Served::BUILTIN }
    }

    /// Returns the form of lists. Items of custom resources keep their `kind` and `apiVersion`.
    pub fn list_style(&self) -> ListStyle {
        if self.custom { ListStyle::Unstructured } else { ListStyle::Typed }
    }

    /// Returns the time to live of objects, after which the store deletes them.
    pub fn ttl(&self) -> Option<std::time::Duration> {
        self.rules.ttl_seconds.map(std::time::Duration::from_secs)
    }

    /// Returns the storage key of one object (`NamespaceKeyFunc` of `pkg/registry/generic/registry`).
    ///
    /// # Errors
    /// A [`status::Status`] with code 400 if the namespace or the name is not valid in a key.
    pub fn key(&self, namespace: Option<&str>, name: &str) -> Result<Key, status::Status> {
        let problems = names::problems(NameRule::PathSegment, name, false);
        if !problems.is_empty() {
            let (name, why) = (go::quote(name), problems.join(";"));
            return Err(status::Status::bad_request(format!("Name parameter invalid: {name}: {why}")));
        }
        Key::new(&self.storage_prefix, namespace.filter(|_| self.namespaced), name)
            .map_err(|error| status::Status::bad_request(error.to_string()))
    }

    /// Returns the key range of all objects, or of the objects in one namespace.
    pub fn range(&self, namespace: Option<&str>) -> KeyRange {
        match namespace.filter(|_| self.namespaced) {
            Some(namespace) => KeyRange::namespace(&self.storage_prefix, namespace),
            None => KeyRange::resource(&self.storage_prefix),
        }
    }

    /// Returns the verbs of the resource itself, sorted as discovery lists them.
    ///
    /// Namespaces do not support `deletecollection`, because deleting a namespace deletes the namespace's content.
    pub fn verbs(&self) -> &'static [&'static str] {
        if !self.is_stored() {
            return if self.plural == "componentstatuses" { &["get", "list"] } else { &["create"] };
        }
        const ALL: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
        const NAMESPACES: &[&str] = &["create", "delete", "get", "list", "patch", "update", "watch"];
        if self.group.is_empty() && self.plural == "namespaces" { NAMESPACES } else { ALL }
    }

    /// Reports whether objects of this kind are stored. Requests for reviews, bindings and component statuses are
    /// answered without storing an object.
    pub fn is_stored(&self) -> bool {
        self.builtin.is_none_or(|kind| kind.stored)
    }

    /// Reports whether the resource supports `deletecollection`.
    pub fn serves_delete_collection(&self) -> bool {
        self.verbs().contains(&"deletecollection")
    }

    /// Returns the subresource with this path element, if the resource serves one.
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|subresource| subresource.name() == name)
    }
}
