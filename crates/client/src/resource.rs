//! Resources that can be listed and watched: [`ApiResource`], with their request paths.

use listwatch_wire::query::encode_path_segment;

use crate::object::TypeName;

/// One resource of one API version, as discovery describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiResource {
    /// The API group; empty for core.
    pub group: String,
    /// The version, e.g. `v1`.
    pub version: String,
    /// The plural in request paths, e.g. `pods`.
    pub plural: String,
    /// The singular, e.g. `pod`; may be empty.
    pub singular: String,
    /// The kind, e.g. `Pod`.
    pub kind: String,
    /// Whether the resource is namespaced.
    pub namespaced: bool,
    /// Other names, e.g. `po`.
    pub short_names: Vec<String>,
    /// The categories that contain the resource, e.g. `all`.
    pub categories: Vec<String>,
    /// The supported verbs, e.g. `list`, `watch`.
    pub verbs: Vec<String>,
}

/// The scope of a list or watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All namespaces, or a cluster-scoped resource.
    Cluster,
    /// The objects of one namespace.
    Namespace(String),
}

impl ApiResource {
    /// `v1` or `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// The type of the resource's objects.
    pub fn type_name(&self) -> TypeName {
        TypeName { api_version: self.api_version(), kind: self.kind.clone() }
    }

    /// The unambiguous name as kubectl prints it, e.g. `pods` or `deployments.apps`.
    pub fn qualified_name(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// The request path of the resource's collection. The namespace is ignored for a cluster-scoped
    /// resource.
    pub fn collection_path(&self, scope: &Scope) -> String {
        let mut path = if self.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.group, self.version)
        };
        if let (Scope::Namespace(namespace), true) = (scope, self.namespaced) {
            path.push_str("/namespaces/");
            path.push_str(&encode_path_segment(namespace));
        }
        path.push('/');
        path.push_str(&self.plural);
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_paths_match_the_server() {
        let mut resource = ApiResource {
            group: "apps".to_owned(),
            version: "v1".to_owned(),
            plural: "deployments".to_owned(),
            namespaced: true,
            ..ApiResource::default()
        };
        let shop = Scope::Namespace("shop".to_owned());
        assert_eq!(resource.collection_path(&Scope::Cluster), "/apis/apps/v1/deployments");
        assert_eq!(resource.collection_path(&shop), "/apis/apps/v1/namespaces/shop/deployments");
        resource.namespaced = false;
        assert_eq!(resource.collection_path(&shop), "/apis/apps/v1/deployments");
        resource.group.clear();
        assert_eq!(resource.collection_path(&shop), "/api/v1/deployments");
    }
}
