//! Parses discovery documents (`APIGroupList`, `APIResourceList`) and resource names from user
//! input.

use std::collections::HashSet;

use serde::Deserialize;

use crate::resource::ApiResource;

impl ApiResource {
    /// Whether the resource can be listed and watched.
    pub(crate) fn can_watch(&self) -> bool {
        ["list", "watch"].iter().all(|verb| self.verbs.iter().any(|known| known == verb))
    }

    /// True if the text is one of the resource's names: plural, singular, short name, or kind in
    /// any case.
    pub(crate) fn has_name(&self, name: &str) -> bool {
        self.plural == name
            || (!self.singular.is_empty() && self.singular == name)
            || self.short_names.iter().any(|short| short == name)
            || self.kind.eq_ignore_ascii_case(name)
    }
}

/// A name as a user types it: `pods`, `deploy`, `deployments.apps`, `deployments.v1.apps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResourceName {
    /// The first part: any name of the resource, in lower case.
    pub(crate) name: String,
    /// The part after the first dot, if any: a group, or a version and a group.
    pub(crate) rest: Option<String>,
}

impl ResourceName {
    /// Splits a name at its first dot.
    pub(crate) fn parse(text: &str) -> Self {
        let text = text.trim().to_ascii_lowercase();
        match text.split_once('.') {
            Some((name, rest)) if !rest.is_empty() => {
                ResourceName { name: name.to_owned(), rest: Some(rest.to_owned()) }
            }
            _ => ResourceName { name: text.trim_end_matches('.').to_owned(), rest: None },
        }
    }

    /// True if the name may refer to a resource of this group and version. `x.v1.apps` has two
    /// readings: version `v1` of group `apps`, or group `v1.apps`.
    pub(crate) fn may_match(&self, group: &str, version: &str) -> bool {
        let Some(rest) = &self.rest else { return true };
        rest == group
            || rest.split_once('.').is_some_and(|(v, g)| v == version && g == group)
            || (group.is_empty() && rest == version)
    }

    /// True if this name refers to that resource.
    pub(crate) fn matches(&self, resource: &ApiResource) -> bool {
        resource.has_name(&self.name) && self.may_match(&resource.group, &resource.version)
    }
}

/// The fields of `APIResourceList` that discovery needs.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResourceList {
    #[serde(default)]
    group_version: String,
    #[serde(default)]
    resources: Vec<ListedResource>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListedResource {
    name: String,
    #[serde(default)]
    singular_name: String,
    #[serde(default)]
    namespaced: bool,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    verbs: Option<Vec<String>>,
    #[serde(default)]
    short_names: Option<Vec<String>>,
    #[serde(default)]
    categories: Option<Vec<String>>,
}

/// Reads an `APIResourceList`, without its subresources.
///
/// # Errors
/// When the document is not an `APIResourceList`.
pub(crate) fn parse_resource_list(document: &[u8]) -> Result<Vec<ApiResource>, serde_json::Error> {
    let list: ResourceList = serde_json::from_slice(document)?;
    let (group, version) = list.group_version.split_once('/').unwrap_or(("", &list.group_version));
    let resources = list.resources.into_iter().filter(|resource| !resource.name.contains('/'));
    Ok(resources
        .map(|resource| ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            plural: resource.name,
            singular: resource.singular_name,
            kind: resource.kind,
            namespaced: resource.namespaced,
            short_names: resource.short_names.unwrap_or_default(),
            categories: resource.categories.unwrap_or_default(),
            verbs: resource.verbs.unwrap_or_default(),
        })
        .collect())
}

/// A group and its versions, the preferred one first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiGroup {
    /// The group's name.
    pub(crate) name: String,
    /// The versions of the group, the preferred one first, then as the server orders them.
    pub(crate) versions: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct GroupList {
    #[serde(default)]
    groups: Vec<ListedGroup>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListedGroup {
    name: String,
    #[serde(default)]
    versions: Vec<GroupVersion>,
    preferred_version: Option<GroupVersion>,
}

#[derive(Debug, Deserialize)]
struct GroupVersion {
    #[serde(default)]
    version: String,
}

/// Reads an `APIGroupList`, groups in the server's order.
///
/// # Errors
/// When the document is not an `APIGroupList`.
pub(crate) fn parse_group_list(document: &[u8]) -> Result<Vec<ApiGroup>, serde_json::Error> {
    let list: GroupList = serde_json::from_slice(document)?;
    Ok(list
        .groups
        .into_iter()
        .map(|group| {
            let mut known = HashSet::new();
            let versions = group.preferred_version.into_iter().chain(group.versions).map(|listed| listed.version);
            let versions = versions.filter(|version| !version.is_empty() && known.insert(version.clone())).collect();
            ApiGroup { name: group.name, versions }
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const APPS: &str = r#"{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"apps/v1","resources":[
        {"name":"deployments","singularName":"deployment","namespaced":true,"kind":"Deployment","verbs":["create","list","watch"],"shortNames":["deploy"],"categories":["all"]},
        {"name":"deployments/scale","singularName":"","namespaced":true,"group":"autoscaling","version":"v1","kind":"Scale","verbs":["get"]}]}"#;

    #[test]
    fn resource_list_is_parsed_without_subresources() {
        let found = parse_resource_list(APPS.as_bytes()).unwrap();
        assert_eq!(found.len(), 1);
        let deployments = &found[0];
        assert_eq!(deployments.api_version(), "apps/v1");
        assert_eq!(deployments.qualified_name(), "deployments.apps");
        assert!(deployments.can_watch());
        assert!(parse_resource_list(b"[1]").is_err());
    }

    #[test]
    fn resource_names_resolve_like_kubectl() {
        let deployments = parse_resource_list(APPS.as_bytes()).unwrap().remove(0);
        fn check(name: &str, resource: &ApiResource, expected: bool) {
            assert_eq!(ResourceName::parse(name).matches(resource), expected, "{name}");
        }
        for name in
            ["deployments", "deployment", "deploy", "Deployment", "deploy.apps", "deployments.v1.apps", "deployments."]
        {
            check(name, &deployments, true);
        }
        for name in ["pods", "deployments.extensions", "deployments.v2.apps", "dep", "", "deployments.v1"] {
            check(name, &deployments, false);
        }
        let pods =
            ApiResource { version: "v1".into(), plural: "pods".into(), kind: "Pod".into(), ..ApiResource::default() };
        check("pods", &pods, true);
        check("", &pods, false);
        let tabs = ApiResource { singular: "ct".into(), kind: "CronTab".into(), ..pods.clone() };
        check("ct", &tabs, true);
        check("pods.v1", &pods, true);
        check("pods.apps", &pods, false);
    }

    #[test]
    fn preferred_api_version_comes_first() {
        let found = parse_group_list(
            br#"{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"apps","versions":[{"groupVersion":"apps/v2","version":"v2"},{"groupVersion":"apps/v1","version":"v1"}],"preferredVersion":{"groupVersion":"apps/v1","version":"v1"}},{"name":"bare","versions":[{"groupVersion":"bare/v1","version":"v1"}]}]}"#,
        );
        let found: Vec<_> = found.unwrap().into_iter().map(|group| (group.name, group.versions.join(","))).collect();
        assert_eq!(found, [("apps".to_owned(), "v1,v2".to_owned()), ("bare".to_owned(), "v1".to_owned())]);
    }
}
