//! [`Resource`]: one served kind in a group and version, with its names, storage, schema and write rules.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use listwatch_apiextensions::PrinterColumn;
use listwatch_apply as apply;
use listwatch_kinds::{Kind, Strategy, Subresource, WriteRules};
use listwatch_meta::{GroupResource, Key, KeyRange, Object, ObjectShape, status};
use serde_json::{Map, Value};

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
    pub schema: Option<Arc<serde_json::Value>>,
    /// The view of this version on stored objects of a custom resource. `None` for built-in resources.
    pub form: Option<Form>,
    /// The conversion from the stored version of a built-in kind. `None` if this is the stored version.
    pub conversion: Option<Conversion>,
    /// The resource in which objects of a second version are stored; `None` for all others.
    pub stored_as: Option<Arc<Resource>>,
    /// True while the definition is being deleted. The server then rejects the creation of objects.
    pub terminating: bool,
    /// The `Warning` header text sent with every response of a deprecated version.
    pub deprecation: Option<String>,
    /// The storage version of a custom resource, if it is served. For a built-in kind, kube-apiserver's storage version,
    /// if it differs from the version that this server validates.
    pub storage_version: Option<String>,
    /// The merge rules of server-side apply, set by the first write of an object.
    pub merging: OnceLock<apply::Kind>,
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

    /// Returns the group and resource for error texts.
    pub fn gr(&self) -> GroupResource<'_> {
        GroupResource { group: &self.group, resource: &self.plural }
    }

    /// Returns the resource in which objects are stored, cached and validated. This is `self`, except for a second
    /// version of a built-in kind.
    pub fn stored(&self) -> &Resource {
        self.stored_as.as_deref().unwrap_or(self)
    }

    /// Reports whether this version serves the bytes of the cache without conversion.
    pub fn is_as_cached(&self) -> bool {
        self.conversion.is_none() && self.form.as_ref().is_none_or(Form::is_as_cached)
    }

    /// Returns a number that distinguishes this version's encodings of an event from those of other versions of the
    /// kind.
    pub fn encoding_position(&self) -> u32 {
        match &self.form {
            Some(form) => form.position(),
            None => self.conversion.is_some().into(),
        }
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

    /// Converts a stored tree to this version.
    pub fn read_stored<'a>(&self, tree: &'a Map<String, Value>) -> Cow<'a, Map<String, Value>> {
        match (&self.form, &self.conversion) {
            (_, Some(conversion)) => Cow::Owned(conversion.show_tree(tree.clone())),
            (Some(form), None) => Cow::Owned(form.read_stored(tree)),
            (None, None) => Cow::Borrowed(tree),
        }
    }

    /// Converts a tree of this version of a custom resource to the storage version. A second version of a built-in
    /// kind is converted earlier ([`listwatch_kinds::Strategy::to_storage_version`]).
    pub fn to_stored(&self, tree: &mut Map<String, Value>) {
        if let Some(form) = &self.form {
            form.to_stored(tree);
        }
    }

    /// Marks the creation of a custom resource object as in progress until the result is dropped.
    pub fn creating(&self) -> Option<Creating> {
        self.form.as_ref().map(|form| form.kind().creating())
    }

    /// Returns a name for the published state of the definition behind a custom resource.
    pub fn openapi_name(&self) -> Option<String> {
        let form = self.form.as_ref()?;
        Some(format!("{} {} {} {}", self.version, self.plural, self.kind, form.kind().name()))
    }

    /// Returns the OpenAPI v3 schema of an object, for resources that define one. The schema of a custom resource
    /// is read from the definition at each call.
    pub fn openapi_schema(&self) -> Option<Arc<serde_json::Value>> {
        self.schema.clone().or_else(|| self.form.as_ref()?.openapi_schema().map(Arc::new))
    }

    /// Returns the time to live of objects, after which the store deletes them.
    pub fn ttl(&self) -> Option<std::time::Duration> {
        self.rules.ttl_seconds.map(std::time::Duration::from_secs)
    }

    /// Returns the storage key of one object.
    ///
    /// # Errors
    /// A [`status::Status`] with code 400 if a part is not valid in a key.
    pub fn key(&self, namespace: Option<&str>, name: &str) -> Result<Key, status::Status> {
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
