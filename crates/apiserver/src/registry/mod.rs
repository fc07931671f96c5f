//! What is served: [`Resource`], one served kind with everything the server must know about it,
//! and [`Registry`], all of them at one moment.
//!
//! The registry is an immutable value. The server holds the current one behind a pointer that is
//! swapped when a definition comes or goes, so a request sees one registry from start to end.

mod builtin;

use std::sync::{Arc, OnceLock};

use listwatch_meta::{GroupResource, Key, KeyRange, ObjectShape, status};

use crate::discovery::Discovery;
use crate::openapi::OpenApi;

/// One served resource: a kind in a group and version.
#[derive(Debug, Clone)]
pub struct Resource {
    /// The API group; `""` for core.
    pub group: String,
    /// The version, which is also the version stored.
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
    /// The write rules.
    pub strategy: Strategy,
    /// True for resources of a CustomResourceDefinition.
    pub custom: bool,
    /// The columns of Table views besides `Name`, for resources that bring their own
    /// (`additionalPrinterColumns`); empty for built-ins, whose columns are code.
    pub printer_columns: Vec<PrinterColumn>,
    /// The OpenAPI v3 schema of an object, for resources that bring their own; `None` publishes
    /// a schema that accepts everything.
    pub schema: Option<Arc<serde_json::Value>>,
}

/// A column of a Table view that is read from the object by a path
/// (`spec.versions[].additionalPrinterColumns[]` of a CustomResourceDefinition).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrinterColumn {
    /// The heading.
    pub name: String,
    /// `string`, `integer`, `number`, `boolean` or `date`.
    pub type_: String,
    /// The OpenAPI format of the type, mostly empty.
    pub format: String,
    /// What the column shows.
    pub description: String,
    /// 0 is always shown, more only in wide views.
    pub priority: i32,
    /// Where the value is, in Kubernetes' JSON path form, e.g. `.spec.replicas`.
    pub json_path: String,
}

/// A subresource of a served resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subresource {
    /// `/status`: writes only the status.
    Status,
    /// `/scale`: an `autoscaling/v1` Scale mapped onto the object by JSON paths (dotted, no leading dot).
    Scale {
        /// Where the wanted replicas are, e.g. `spec.replicas`.
        spec_replicas: String,
        /// Where the observed replicas are, e.g. `status.replicas`.
        status_replicas: String,
        /// Where the label selector is: a text for custom resources, a LabelSelector for built-ins.
        selector: Option<String>,
    },
    /// `/finalize` of namespaces: writes only `spec.finalizers`.
    Finalize,
    /// `/binding` of pods: sets `spec.nodeName`.
    Binding,
    /// `/eviction` of pods: deletes the pod.
    Eviction,
    /// `/ephemeralcontainers` of pods.
    EphemeralContainers,
    /// `/approval` of certificate signing requests.
    Approval,
}

impl Subresource {
    /// The path element.
    pub fn name(&self) -> &'static str {
        match self {
            Subresource::Status => "status",
            Subresource::Scale { .. } => "scale",
            Subresource::Finalize => "finalize",
            Subresource::Binding => "binding",
            Subresource::Eviction => "eviction",
            Subresource::EphemeralContainers => "ephemeralcontainers",
            Subresource::Approval => "approval",
        }
    }
}

/// The write rules of a resource (`rest.RESTCreateStrategy` and friends).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Strategy {
    /// PUT without a resource version overwrites; else it is a 422.
    pub unconditional_update: bool,
    /// PUT of an absent object creates it.
    pub create_on_update: bool,
    /// How names are checked.
    pub names: NameRule,
    /// `metadata.generation` is kept: 1 on create, +1 when anything but metadata and status changes.
    pub generation: bool,
    /// Deletion waits: pods take `spec.terminationGracePeriodSeconds` (once bound to a node).
    pub graceful_delete: bool,
    /// Objects remove themselves after this many seconds (events).
    pub ttl_seconds: Option<u64>,
}

/// How names of a resource are checked (`apimachinery/pkg/api/validation`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameRule {
    /// RFC 1123 subdomain, most kinds.
    Subdomain,
    /// RFC 1123 label: namespaces.
    Label,
    /// RFC 1035 label: services.
    Rfc1035Label,
    /// Anything that is one path element: RBAC kinds.
    PathSegment,
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
        const ALL: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
        const NAMESPACES: &[&str] = &["create", "delete", "get", "list", "patch", "update", "watch"];
        if self.group.is_empty() && self.plural == "namespaces" { NAMESPACES } else { ALL }
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
    /// Positions in `resources`, sorted by group, version and plural: every request looks here, and
    /// a binary search over borrowed names allocates nothing.
    by_path: Vec<usize>,
    discovery: OnceLock<Discovery>,
    openapi: OnceLock<OpenApi>,
}

impl Registry {
    /// A registry of these resources, in this order (which discovery shows).
    pub fn new(resources: Vec<Arc<Resource>>) -> Self {
        let mut by_path: Vec<usize> = (0..resources.len()).collect();
        by_path.sort_by(|a, b| resources[*a].path().cmp(&resources[*b].path()));
        Registry { resources, by_path, discovery: OnceLock::new(), openapi: OnceLock::new() }
    }

    /// The built-in kinds of Kubernetes.
    pub fn builtin() -> Self {
        Registry::new(builtin::resources())
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
        self.resources.iter().any(|r| r.group == group && r.version == version)
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
