//! What is served: [`Resource`], one served kind with everything the server must know about it,
//! and [`Registry`], all of them at one moment.
//!
//! The registry is an immutable value. The server holds the current one behind a pointer that is
//! swapped when a definition comes or goes, so a request sees one registry from start to end.

mod builtin;

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use listwatch_apply as apply;
pub use listwatch_kinds::WriteRules;
use listwatch_kinds::{Kind, Strategy};
use listwatch_meta::{GroupResource, Key, KeyRange, Object, ObjectShape, status};
use serde_json::{Map, Value};

use crate::crd::{Creating, Form};
use crate::discovery::Discovery;
use crate::openapi::OpenApi;
use crate::versions::Conversion;

pub use listwatch_validation::names::NameRule;

pub use listwatch_kinds::table::PrinterColumn;
pub use listwatch_kinds::{ForeignKind, Subresource, Way};

/// One served resource: a kind in a group and version.
#[derive(Debug, Clone)]
pub struct Resource {
    /// The API group; `""` for core.
    pub group: String,
    /// The version.
    pub version: String,
    /// The kind, e.g. `Pod`.
    pub kind: String,
    /// The kind of lists, e.g. `PodList`.
    pub list_kind: String,
    /// The plural used in paths, e.g. `pods`.
    pub plural: String,
    /// The singular, e.g. `pod`.
    pub singular: String,
    /// Short names, e.g. `po`.
    pub short_names: Vec<String>,
    /// Categories, e.g. `all`.
    pub categories: Vec<String>,
    /// Do objects live in namespaces?
    pub namespaced: bool,
    /// The prefix below which objects are stored, e.g. `pods`, `services/specs`.
    pub storage_prefix: String,
    /// What is read from the objects' bytes.
    pub shape: Arc<ObjectShape>,
    /// Selectable fields with an index (dispatch and lists), e.g. `spec.nodeName`.
    pub indexed_fields: Vec<String>,
    /// Served subresources.
    pub subresources: Vec<Subresource>,
    /// The write rules that are plain values.
    pub rules: WriteRules,
    /// The write rules.
    pub(crate) strategy: Arc<dyn Strategy>,
    /// True for resources of a CustomResourceDefinition.
    pub custom: bool,
    /// The description of a built-in kind; `None` for custom resources.
    pub(crate) builtin: Option<&'static Kind>,
    /// The columns of Table views besides `Name`, for resources that bring their own
    /// (`additionalPrinterColumns`); empty for built-ins, whose columns are code.
    pub printer_columns: Vec<PrinterColumn>,
    /// The OpenAPI v3 schema of an object, for resources that bring their own; `None` publishes
    /// a schema that accepts everything.
    pub schema: Option<Arc<serde_json::Value>>,
    /// How this version of a custom resource shows what is stored; `None` for built-ins, which are
    /// stored as they are shown.
    pub(crate) form: Option<Form>,
    /// How this version of a built-in kind shows what is stored in another one; `None` for the version
    /// that is stored.
    pub(crate) conversion: Option<Conversion>,
    /// The definition is being deleted: nothing is created any more.
    pub terminating: bool,
    /// What every request to a deprecated version is warned of.
    pub deprecation: Option<String>,
    /// The version in which objects are stored, if that is served and another one.
    pub(crate) storage_version: Option<String>,
    /// How objects merge, once one was written.
    pub(crate) merging: OnceLock<apply::Kind>,
}

impl Resource {
    /// `v1`, `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Group, version and plural: where the resource is served.
    fn path(&self) -> (&str, &str, &str) {
        (&self.group, &self.version, &self.plural)
    }

    /// The resource as error texts name it.
    pub fn gr(&self) -> GroupResource<'_> {
        GroupResource { group: &self.group, resource: &self.plural }
    }

    /// The resource in which objects of this one are stored, cached and judged: itself, but for a
    /// second version of a built-in kind.
    pub(crate) fn stored(&self) -> &Resource {
        self.conversion.as_ref().map_or(self, |conversion| conversion.stored())
    }

    /// Are the cache's bytes already what this version shows?
    pub(crate) fn is_as_cached(&self) -> bool {
        self.conversion.is_none() && self.form.as_ref().is_none_or(Form::is_as_cached)
    }

    /// Tells this version's encodings of an event from those of other versions of its kind.
    pub(crate) fn encoding_position(&self) -> u32 {
        match &self.form {
            Some(form) => form.position(),
            None => self.conversion.is_some().into(),
        }
    }

    /// An object of the cache as this version shows it.
    pub(crate) fn shown<'a>(&self, object: &'a Object) -> Cow<'a, Object> {
        match (&self.form, &self.conversion) {
            (_, Some(conversion)) => Cow::Owned(conversion.show_object(object)),
            (Some(form), _) if !form.is_as_cached() => Cow::Owned(form.show_object(object, &self.shape)),
            _ => Cow::Borrowed(object),
        }
    }

    /// As [`Resource::shown`], of an object's bytes.
    pub(crate) fn shown_json(&self, json: Bytes) -> Bytes {
        match (&self.form, &self.conversion) {
            (_, Some(conversion)) => conversion.show(&json),
            (Some(form), _) if !form.is_as_cached() => form.show(&json).into_owned().into(),
            _ => json,
        }
    }

    /// The metadata of an object of the cache may be shown as it is: versions of custom resources
    /// have the same.
    pub(crate) fn has_cached_metadata(&self) -> bool {
        self.conversion.is_none()
    }

    /// A stored tree as this version shows it.
    pub(crate) fn read_stored<'a>(&self, tree: &'a Map<String, Value>) -> Cow<'a, Map<String, Value>> {
        match (&self.form, &self.conversion) {
            (_, Some(conversion)) => Cow::Owned(conversion.show_tree(tree.clone())),
            (Some(form), None) => Cow::Owned(form.read_stored(tree)),
            (None, None) => Cow::Borrowed(tree),
        }
    }

    /// Converts a tree of this version of a custom resource to the stored version. A second version of a built-in
    /// kind is converted before ([`listwatch_kinds::Strategy::to_storage_version`]).
    pub(crate) fn to_stored(&self, tree: &mut Map<String, Value>) {
        if let Some(form) = &self.form {
            form.to_stored(tree);
        }
    }

    /// Says, while the result lives, that an object of a custom resource is being created.
    pub(crate) fn creating(&self) -> Option<Creating> {
        self.form.as_ref().map(|form| form.kind().creating())
    }

    /// Names the state of the definition behind a custom resource, as far as it is published.
    pub(crate) fn openapi_name(&self) -> Option<String> {
        let form = self.form.as_ref()?;
        Some(format!("{} {} {} {}", self.version, self.plural, self.kind, form.kind().name()))
    }

    /// The OpenAPI v3 schema of an object, for resources that bring their own. That of a definition
    /// is read out of the definition each time.
    pub fn openapi_schema(&self) -> Option<Arc<serde_json::Value>> {
        self.schema.clone().or_else(|| self.form.as_ref()?.openapi_schema().map(Arc::new))
    }

    /// The key of one object.
    ///
    /// # Errors
    /// A 400 or 404-like [`status::Status`] when a part cannot be in a key.
    pub fn key(&self, namespace: Option<&str>, name: &str) -> Result<Key, status::Status> {
        Key::new(&self.storage_prefix, namespace.filter(|_| self.namespaced), name)
            .map_err(|error| status::Status::bad_request(error.to_string()))
    }

    /// The range of all objects, or of one namespace's.
    pub fn range(&self, namespace: Option<&str>) -> KeyRange {
        match namespace.filter(|_| self.namespaced) {
            Some(namespace) => KeyRange::namespace(&self.storage_prefix, namespace),
            None => KeyRange::resource(&self.storage_prefix),
        }
    }

    /// The verbs of the resource itself, sorted as discovery shows them.
    ///
    /// Namespaces cannot be deleted all at once: each takes its contents with it.
    pub fn verbs(&self) -> &'static [&'static str] {
        if !self.is_stored() {
            return if self.plural == "componentstatuses" { &["get", "list"] } else { &["create"] };
        }
        const ALL: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
        const NAMESPACES: &[&str] = &["create", "delete", "get", "list", "patch", "update", "watch"];
        if self.group.is_empty() && self.plural == "namespaces" { NAMESPACES } else { ALL }
    }

    /// Are objects of this kind stored? Those of a few built-in kinds are answered and forgotten: reviews,
    /// bindings, the states of components.
    pub fn is_stored(&self) -> bool {
        self.builtin.is_none_or(|kind| kind.stored)
    }

    /// May a whole collection be deleted by one request?
    pub fn serves_delete_collection(&self) -> bool {
        self.verbs().contains(&"deletecollection")
    }

    /// The subresource with this path element, if it is served.
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|subresource| subresource.name() == name)
    }
}

/// Everything served at one moment. Immutable; made anew when a definition comes or goes.
#[derive(Debug, Default)]
pub struct Registry {
    resources: Vec<Arc<Resource>>,
    /// What is answered and not stored by any server of built-in kinds.
    unstored: &'static [Arc<Resource>],
    /// Positions in `resources`, sorted by group, version and plural: every request looks here, and
    /// a binary search over borrowed names allocates nothing.
    by_path: Vec<usize>,
    /// What this one extends: its documents need not be made again.
    base: Option<Arc<Registry>>,
    discovery: OnceLock<Discovery>,
    openapi: OnceLock<OpenApi>,
}

impl Registry {
    /// A registry of these resources, in this order (which discovery shows).
    pub fn new(resources: Vec<Arc<Resource>>) -> Self {
        let mut by_path: Vec<usize> = (0..resources.len()).collect();
        by_path.sort_by(|a, b| resources[*a].path().cmp(&resources[*b].path()));
        let unstored = if resources.iter().any(|resource| !resource.custom) { builtin::unstored() } else { &[] };
        Registry { resources, unstored, by_path, base: None, discovery: OnceLock::new(), openapi: OnceLock::new() }
    }

    /// A registry with these custom resources behind those of another registry.
    pub fn extended(base: &Arc<Registry>, custom: &[Arc<Resource>]) -> Self {
        let resources = [base.resources(), custom].concat();
        Registry { base: Some(Arc::clone(base)), ..Registry::new(resources) }
    }

    /// The registry that this one extends.
    pub(crate) fn base(&self) -> Option<&Arc<Registry>> {
        self.base.as_ref()
    }

    /// The built-in kinds of Kubernetes.
    pub fn builtin() -> Self {
        Registry::new(builtin::resources())
    }

    /// The kinds whose objects are not stored ([`Resource::is_stored`]). They have a path and a kind, and
    /// nothing that could be watched; everything else here is about [`Registry::resources`].
    pub fn unstored(&self) -> &[Arc<Resource>] {
        self.unstored
    }

    /// The kind at `/apis/<group>/<version>/<plural>` whose objects are not stored.
    pub fn find_unstored(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.unstored.iter().find(|resource| resource.path() == (group, version, plural))
    }

    /// Is anything of this group served?
    pub fn has_group(&self, group: &str) -> bool {
        self.resources.iter().chain(self.unstored).any(|resource| resource.group == group)
    }

    /// All resources.
    pub fn resources(&self) -> &[Arc<Resource>] {
        &self.resources
    }

    /// The resource at `/apis/<group>/<version>/<plural>`.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        let at = self.by_path.binary_search_by(|at| self.resources[*at].path().cmp(&(group, version, plural))).ok()?;
        Some(&self.resources[self.by_path[at]])
    }

    /// Is this group and version served at all?
    pub fn has_group_version(&self, group: &str, version: &str) -> bool {
        let at = self.by_path.partition_point(|at| self.resources[*at].path() < (group, version, ""));
        let stored = self.by_path.get(at).is_some_and(|at| {
            let found = &self.resources[*at];
            found.group == group && found.version == version
        });
        stored || self.unstored.iter().any(|found| found.group == group && found.version == version)
    }

    /// The discovery documents, written when first asked for.
    pub fn discovery(&self) -> &Discovery {
        self.discovery.get_or_init(|| Discovery::new(self))
    }

    /// The OpenAPI documents, written when first asked for.
    pub fn openapi(&self) -> &OpenApi {
        self.openapi.get_or_init(|| OpenApi::new(self))
    }

    /// The resource of a kind, e.g. for `ownerReferences`.
    pub fn find_kind(&self, group: &str, version: &str, kind: &str) -> Option<&Arc<Resource>> {
        self.resources.iter().find(|r| r.group == group && r.version == version && r.kind == kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_resource_is_found_at_its_path_and_nothing_elsewhere() {
        let registry = Registry::builtin();
        for resource in registry.resources() {
            let found = registry.find(&resource.group, &resource.version, &resource.plural).expect("it is served");
            assert!(Arc::ptr_eq(found, resource), "{} leads to {}", resource.plural, found.plural);
            let by_kind = registry.find_kind(&resource.group, &resource.version, &resource.kind).expect("it is served");
            assert!(Arc::ptr_eq(by_kind, resource), "{} leads to {}", resource.kind, by_kind.kind);
        }
        for (group, version, plural) in [("", "v2", "pods"), ("apps", "v1", "pods"), ("", "v1", ""), ("zz", "v1", "z")]
        {
            assert!(registry.find(group, version, plural).is_none(), "{group}/{version}/{plural} is not served");
        }
        assert!(registry.has_group_version("apps", "v1") && !registry.has_group_version("apps", "v1beta1"));
    }
}
