//! [`Registry`]: an immutable snapshot of all served resources.
//!
//! The server replaces the current registry when a definition is added or removed. A request therefore sees one
//! registry from start to end.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use listwatch_meta::Key;

use crate::builtin;
use crate::custom::kind::{CustomKind, Form};
use crate::index::Index;
use crate::resource::Resource;
use crate::runtime_config::RuntimeConfig;

/// The default lifetime of events (`--event-ttl`).
const EVENT_TTL: Duration = Duration::from_secs(3600);

/// The settings of the built-in kinds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuiltinOptions {
    /// The served group versions and resources. Default: all.
    pub runtime_config: RuntimeConfig,
    /// The time after which events expire, in whole seconds. Zero means never. Default: one hour.
    pub event_ttl: Duration,
}

impl Default for BuiltinOptions {
    fn default() -> Self {
        BuiltinOptions { runtime_config: RuntimeConfig::default(), event_ttl: EVENT_TTL }
    }
}

/// All resources served at one time. A registry is immutable: the server creates a new one when a definition is added
/// or removed.
#[derive(Debug, Default)]
pub struct Registry {
    resources: Vec<Arc<Resource>>,
    /// Kinds that are served but never stored, such as reviews.
    unstored: Arc<[Arc<Resource>]>,
    /// By group, version and plural. Every request searches this index, and `by_group_version`.
    by_path: Index,
    /// By group and version.
    by_group_version: Index,
    /// By group, version and kind. Built at the first search: while many definitions are created, most registries are
    /// replaced before one.
    by_kind: OnceLock<Index>,
    /// By storage prefix and scope.
    by_prefix: Index,
    /// The registry that this one extends. Discovery documents of the base registry are reused.
    base: Option<Arc<Registry>>,
}

impl Registry {
    /// Creates a registry of these resources. Discovery lists them in the same order.
    pub fn new(resources: Vec<Arc<Resource>>) -> Self {
        let by_path = Index::new(&resources, Resource::path);
        let by_group_version = Index::new(&resources, group_version);
        let by_prefix = Index::new(&resources, prefix_and_scope);
        let has_builtin = resources.iter().any(|resource| !resource.custom);
        let unstored = if has_builtin { Arc::clone(builtin::unstored()) } else { Arc::default() };
        Registry { resources, unstored, by_path, by_group_version, by_kind: OnceLock::new(), by_prefix, base: None }
    }

    /// Creates a registry that holds the resources of `base`, followed by these custom resources.
    pub fn extended(base: &Arc<Registry>, custom: &[Arc<Resource>]) -> Self {
        let resources = [base.resources(), custom].concat();
        let unstored = Arc::clone(&base.unstored);
        Registry { base: Some(Arc::clone(base)), unstored, ..Registry::new(resources) }
    }

    /// Returns the registry that this one extends.
    pub fn base(&self) -> Option<&Arc<Registry>> {
        self.base.as_ref()
    }

    /// Creates the registry of the built-in kinds of Kubernetes that are served by default.
    pub fn builtin() -> Self {
        Registry::configured(&BuiltinOptions::default())
    }

    /// Creates the registry of the built-in kinds that a server with these options serves.
    pub fn configured(options: &BuiltinOptions) -> Self {
        let mut resources = builtin::resources();
        resources.retain(|resource| options.runtime_config.serves(resource));
        for resource in &mut resources {
            if resource.rules.ttl_seconds.is_some() && options.event_ttl != EVENT_TTL {
                let seconds = options.event_ttl.as_secs();
                Arc::make_mut(resource).rules.ttl_seconds = (seconds > 0).then_some(seconds);
            }
        }
        let unstored = builtin::unstored().iter().filter(|resource| options.runtime_config.serves(resource));
        let unstored = unstored.cloned().collect();
        Registry { unstored, ..Registry::new(resources) }
    }

    /// Returns the kinds whose objects are not stored ([`Resource::is_stored`]). These kinds have a path and cannot
    /// be watched. [`Registry::resources`] does not include them.
    pub fn unstored(&self) -> &[Arc<Resource>] {
        &self.unstored
    }

    /// Returns the kind at `/apis/<group>/<version>/<plural>` whose objects are not stored.
    pub fn find_unstored(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.unstored.iter().find(|resource| resource.path() == (group, version, plural))
    }

    /// Reports whether the registry serves a resource of this group.
    pub fn has_group(&self, group: &str) -> bool {
        self.resources.iter().chain(&*self.unstored).any(|resource| resource.group == group)
    }

    /// Returns all resources whose objects are stored, in the order of discovery.
    pub fn resources(&self) -> &[Arc<Resource>] {
        &self.resources
    }

    /// Returns the resource at `/apis/<group>/<version>/<plural>`.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        let at = self.by_path.position(&self.resources, Resource::path, (group, version, plural))?;
        Some(&self.resources[at])
    }

    /// Reports whether the registry serves a resource of this group and version.
    pub fn has_group_version(&self, group: &str, version: &str) -> bool {
        self.by_group_version.position(&self.resources, group_version, (group, version)).is_some()
            || self.unstored.iter().any(|found| group_version(found) == (group, version))
    }

    /// Returns the resource whose objects are stored under this key. If a kind has several versions, returns the first.
    pub fn find_stored_at(&self, key: &Key) -> Option<&Arc<Resource>> {
        let (parent, _) = key.as_str().strip_prefix('/')?.rsplit_once('/')?;
        let of_cluster = self.find_prefix(parent, false);
        let of_namespace = parent.rsplit_once('/').and_then(|(prefix, _)| self.find_prefix(prefix, true));
        // Both exist if the prefix of one kind continues that of the other.
        of_cluster.into_iter().chain(of_namespace).min().map(|at| &self.resources[at])
    }

    /// Returns the position of the first resource with this storage prefix and scope.
    fn find_prefix(&self, prefix: &str, namespaced: bool) -> Option<usize> {
        self.by_prefix.position(&self.resources, prefix_and_scope, (prefix, namespaced))
    }

    /// Returns the custom kind whose objects are stored below this prefix.
    pub(crate) fn custom_kind(&self, prefix: &str) -> Option<&Arc<CustomKind>> {
        let form = |namespaced| self.resources[self.find_prefix(prefix, namespaced)?].form.as_ref();
        [true, false].into_iter().find_map(form).map(Form::kind)
    }

    /// Returns the resource of a kind, e.g. for `ownerReferences`.
    pub fn find_kind(&self, group: &str, version: &str, kind: &str) -> Option<&Arc<Resource>> {
        let by_kind = self.by_kind.get_or_init(|| Index::new(&self.resources, group_version_kind));
        let at = by_kind.position(&self.resources, group_version_kind, (group, version, kind))?;
        Some(&self.resources[at])
    }
}

fn group_version(resource: &Resource) -> (&str, &str) {
    (&resource.group, &resource.version)
}

fn group_version_kind(resource: &Resource) -> (&str, &str, &str) {
    (&resource.group, &resource.version, &resource.kind)
}

fn prefix_and_scope(resource: &Resource) -> (&str, bool) {
    (&resource.storage_prefix, resource.namespaced)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_ttl_applies_to_both_versions_of_events() {
        let ttl = |seconds: u64| {
            let options = BuiltinOptions { event_ttl: Duration::from_secs(seconds), ..BuiltinOptions::default() };
            let registry = Registry::configured(&options);
            let events = [registry.find("", "v1", "events"), registry.find("events.k8s.io", "v1", "events")];
            let pods = registry.find("", "v1", "pods").and_then(|pods| pods.ttl());
            assert_eq!(pods, None, "only events expire");
            events.map(|events| events.expect("events are served").ttl())
        };
        assert_eq!(ttl(3600), [Some(EVENT_TTL); 2]);
        assert_eq!(ttl(90), [Some(Duration::from_secs(90)); 2]);
        assert_eq!(ttl(0), [None; 2], "without a lifetime, events stay");
    }

    #[test]
    fn find_stored_at_returns_the_resource_with_the_prefix_and_scope_of_the_key() {
        let registry = Registry::builtin();
        let found = |key: &str| {
            let key = Key::from_path(key).expect("a key");
            registry.find_stored_at(&key).map(|resource| (resource.version.as_str(), resource.plural.as_str()))
        };
        assert_eq!(found("/pods/a/x"), Some(("v1", "pods")));
        assert_eq!(found("/services/specs/a/x"), Some(("v1", "services")));
        assert_eq!(found("/services/endpoints/a/x"), Some(("v1", "endpoints")));
        assert_eq!(found("/minions/n"), Some(("v1", "nodes")));
        for of_none in ["/pods/x", "/minions/a/n", "/pods/a/b/x", "/specs/a/x", "/services/a/x", "/ranges/serviceips"] {
            assert_eq!(found(of_none), None, "{of_none}");
        }
        for resource in registry.resources() {
            let key = resource.key(resource.namespaced.then_some("a"), "x").expect("a key");
            let first = registry.resources().iter().find(|other| other.storage_prefix == resource.storage_prefix);
            assert!(Arc::ptr_eq(registry.find_stored_at(&key).unwrap(), first.unwrap()), "{key}");
        }
    }

    #[test]
    fn find_returns_each_resource_only_at_its_own_path() {
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
