//! Discovery: the documents that list the served groups, versions and resources. [`Discovery`] is a pure function of a
//! [`Registry`].
//!
//! ```text
//!  legacy                                   aggregated (…;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList)
//!  /api              APIVersions            /api    the core group, all its resources
//!  /apis             APIGroupList           /apis   every other group, all its resources
//!  /apis/{g}         APIGroup
//!  /api/v1, /apis/{g}/{v}  APIResourceList
//! ```
//!
//! Groups have the registry's order; groups of custom resources follow by name. The most stable and newest version is
//! the first ([`compare_versions`]). The bytes are built once per registry and shared by all responses.
//!
//! Rules: `k8s.io/apiserver/pkg/endpoints/discovery`, `…/discovery/aggregated`, kube-aggregator.

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine as _;
use bytes::Bytes;
use serde::Serialize;
use sha2::{Digest, Sha256};

use listwatch_meta::compare_versions;
use listwatch_registry::{ForeignKind, Registry, Resource, Subresource};

use crate::document::Document;

/// The `Content-Type` of the aggregated documents.
pub const AGGREGATED_CONTENT_TYPE: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// All discovery documents of one registry.
#[derive(Debug)]
pub struct Discovery {
    groups: Bytes,
    group: HashMap<String, Bytes>,
    resources: HashMap<(String, String), Bytes>,
    aggregated_core: Document,
    aggregated_groups: Document,
}

impl Discovery {
    /// Builds the documents, which takes about a millisecond for the built-in kinds.
    pub fn new(registry: &Registry) -> Self {
        let groups = group_versions(registry);
        let named: Vec<ApiGroup<'_>> =
            groups.iter().filter(|group| !group.name.is_empty()).map(|group| ApiGroup::new(None, group)).collect();
        let list = ApiGroupList { kind: "APIGroupList", api_version: "v1", groups: named };
        let (core, others): (Vec<_>, Vec<_>) = groups.iter().partition(|group| group.name.is_empty());

        let mut resources = HashMap::new();
        let mut group_documents = HashMap::new();
        for group in &groups {
            for version in &group.versions {
                resources.insert((group.name.to_owned(), version.name.to_owned()), resource_list(group, version));
            }
            if !group.name.is_empty() {
                let header = TypeMeta { kind: "APIGroup", api_version: "v1" };
                group_documents.insert(group.name.to_owned(), json(&ApiGroup::new(Some(header), group)));
            }
        }
        Discovery {
            groups: json(&list),
            group: group_documents,
            resources,
            aggregated_core: Document::new(json(&aggregated(&core))),
            aggregated_groups: Document::new(json(&aggregated(&others))),
        }
    }

    /// `/api`: the versions of the core group. `server_address` is the `host:port` that clients use.
    pub fn api(server_address: &str) -> Bytes {
        // As in kube-apiserver, this document alone has no apiVersion.
        json(&listwatch_json::json!({
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": server_address}],
        }))
    }

    /// `/apis`: all groups except the core group.
    pub fn apis(&self) -> Bytes {
        self.groups.clone()
    }

    /// `/apis/{group}`; `None` if the group is not served.
    pub fn group(&self, group: &str) -> Option<Bytes> {
        self.group.get(group).cloned()
    }

    /// `/api/v1` (group `""`) and `/apis/{group}/{version}`; `None` if the version is not served.
    pub fn resources(&self, group: &str, version: &str) -> Option<Bytes> {
        self.resources.get(&(group.to_owned(), version.to_owned())).cloned()
    }

    /// The aggregated form of `/api`.
    pub fn aggregated_api(&self) -> &Document {
        &self.aggregated_core
    }

    /// The aggregated form of `/apis`.
    pub fn aggregated_apis(&self) -> &Document {
        &self.aggregated_groups
    }
}

/// The hash that changes with the storage version of a resource: base64 of the first 8 bytes of the SHA-256 of
/// `group/version/kind`.
fn storage_version_hash(group: &str, version: &str, kind: &str) -> String {
    let digest = Sha256::digest(format!("{group}/{version}/{kind}"));
    base64::engine::general_purpose::STANDARD.encode(&digest[..8])
}

/// The hash of a resource's storage version in kube-apiserver; empty for a custom resource whose storage version is not
/// served.
fn stored_hash(resource: &Resource) -> String {
    let resource = resource.stored();
    match (&resource.form, &resource.storage_version) {
        // A kind that is not stored has no storage version.
        (None, _) if !resource.is_stored() => String::new(),
        (_, Some(version)) => storage_version_hash(&resource.group, version, &resource.kind),
        (None, None) => storage_version_hash(&resource.group, &resource.version, &resource.kind),
        (Some(_), None) => String::new(),
    }
}

/// A served group with its versions in order of preference.
struct Group<'a> {
    name: &'a str,
    versions: Vec<Version<'a>>,
}

struct Version<'a> {
    name: &'a str,
    /// The resources, sorted by plural.
    resources: Vec<&'a Arc<Resource>>,
}

/// Sorts the registry by group and version. Groups with a built-in kind keep the registry's order, because their
/// priorities are all above the 1000 of custom groups. Custom groups follow by name.
fn group_versions(registry: &Registry) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    let mut builtin: Vec<&str> = Vec::new();
    // The groups of reviews follow those of workloads and events, by kube-apiserver's priorities.
    let resources = registry.resources();
    let before = resources
        .iter()
        .rposition(|r| matches!(r.group.as_str(), "apps" | "events.k8s.io") && !r.custom)
        .map_or(0, |at| at + 1);
    let (before, behind) = resources.split_at(before);
    for resource in before.iter().chain(registry.unstored()).chain(behind) {
        if !resource.custom && !builtin.contains(&resource.group.as_str()) {
            builtin.push(&resource.group);
        }
        let group = match groups.iter().position(|group| group.name == resource.group) {
            Some(at) => &mut groups[at],
            None => {
                groups.push(Group { name: &resource.group, versions: Vec::new() });
                groups.last_mut().expect("just pushed")
            }
        };
        match group.versions.iter_mut().find(|version| version.name == resource.version) {
            Some(version) => version.resources.push(resource),
            None => group.versions.push(Version { name: &resource.version, resources: vec![resource] }),
        }
    }
    groups.sort_by_key(|group| {
        let rank = builtin.iter().position(|name| *name == group.name);
        (rank.unwrap_or(usize::MAX), if rank.is_some() { "" } else { group.name })
    });
    for group in &mut groups {
        group.versions.sort_by(|a, b| compare_versions(a.name, b.name));
        for version in &mut group.versions {
            version.resources.sort_by(|a, b| a.plural.cmp(&b.plural));
        }
    }
    groups
}

/// The verbs in discovery: unsorted for custom resources, as their handler lists them, and otherwise sorted.
fn verbs(resource: &Resource) -> &'static [&'static str] {
    const CUSTOM: &[&str] = &["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];
    const TERMINATING: &[&str] = &["delete", "deletecollection", "get", "list", "watch"];
    match (resource.custom, resource.terminating) {
        (false, _) => resource.verbs(),
        (true, false) => CUSTOM,
        (true, true) => TERMINATING,
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TypeMeta {
    kind: &'static str,
    api_version: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ApiGroupList<'a> {
    kind: &'static str,
    api_version: &'static str,
    groups: Vec<ApiGroup<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ApiGroup<'a> {
    #[serde(flatten)]
    header: Option<TypeMeta>,
    name: &'a str,
    versions: Vec<GroupVersion<'a>>,
    preferred_version: GroupVersion<'a>,
}

#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct GroupVersion<'a> {
    group_version: String,
    version: &'a str,
}

impl<'a> ApiGroup<'a> {
    fn new(header: Option<TypeMeta>, group: &Group<'a>) -> Self {
        let versions: Vec<GroupVersion<'a>> = group
            .versions
            .iter()
            .map(|version| GroupVersion {
                group_version: group_version(group.name, version.name),
                version: version.name,
            })
            .collect();
        ApiGroup { header, name: group.name, preferred_version: versions[0].clone(), versions }
    }
}

fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ApiResourceList<'a> {
    kind: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    api_version: &'static str,
    group_version: String,
    resources: Vec<ApiResource<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ApiResource<'a> {
    name: String,
    singular_name: &'a str,
    namespaced: bool,
    #[serde(skip_serializing_if = "str::is_empty")]
    group: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    version: &'a str,
    kind: &'a str,
    verbs: &'a [&'static str],
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    short_names: &'a [String],
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    categories: &'a [String],
    #[serde(skip_serializing_if = "String::is_empty")]
    storage_version_hash: String,
}

fn resource_list(group: &Group<'_>, version: &Version<'_>) -> Bytes {
    let mut resources = Vec::new();
    for resource in &version.resources {
        resources.push(ApiResource {
            name: resource.plural.clone(),
            singular_name: &resource.singular,
            namespaced: resource.namespaced,
            group: "",
            version: "",
            kind: &resource.kind,
            verbs: verbs(resource),
            short_names: &resource.short_names,
            categories: &resource.categories,
            storage_version_hash: stored_hash(resource),
        });
        for subresource in &resource.subresources {
            let foreign = subresource.kind();
            // Group and version are omitted if they equal those of the document.
            let elsewhere = foreign.filter(|kind| (kind.group, kind.version) != (group.name, version.name));
            resources.push(ApiResource {
                name: format!("{}/{}", resource.plural, subresource.name()),
                singular_name: "",
                namespaced: resource.namespaced,
                group: elsewhere.map_or("", |kind| kind.group),
                version: elsewhere.map_or("", |kind| kind.version),
                kind: foreign.map_or(&resource.kind, |foreign| foreign.kind),
                verbs: subresource.verbs(),
                short_names: &[],
                categories: &[],
                storage_version_hash: String::new(),
            });
        }
    }
    // The handler of custom resources does not sort its verbs.
    if !version.resources.iter().any(|resource| resource.custom) {
        resources.sort_by(|a, b| a.name.cmp(&b.name));
    }
    json(&ApiResourceList {
        kind: "APIResourceList",
        // As in kube-apiserver, the document of the core group has no `apiVersion`.
        api_version: if group.name.is_empty() { "" } else { "v1" },
        group_version: group_version(group.name, version.name),
        resources,
    })
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AggregatedList<'a> {
    kind: &'static str,
    api_version: &'static str,
    metadata: Empty,
    items: Vec<AggregatedGroup<'a>>,
}

#[derive(Serialize)]
struct Empty {}

#[derive(Serialize)]
struct AggregatedGroup<'a> {
    metadata: Name<'a>,
    versions: Vec<AggregatedVersion<'a>>,
}

#[derive(Serialize)]
struct Name<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
}

#[derive(Serialize)]
struct AggregatedVersion<'a> {
    version: &'a str,
    resources: Vec<AggregatedResource<'a>>,
    freshness: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AggregatedResource<'a> {
    resource: &'a str,
    response_kind: GroupVersionKind<'a>,
    scope: &'static str,
    singular_resource: &'a str,
    verbs: &'a [&'static str],
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    short_names: &'a [String],
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    categories: &'a [String],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    subresources: Vec<AggregatedSubresource<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AggregatedSubresource<'a> {
    subresource: &'static str,
    response_kind: GroupVersionKind<'a>,
    verbs: &'static [&'static str],
}

#[derive(Serialize)]
struct GroupVersionKind<'a> {
    group: &'a str,
    version: &'a str,
    kind: &'a str,
}

fn aggregated<'a>(groups: &[&'a Group<'a>]) -> AggregatedList<'a> {
    let version = |version: &'a Version<'a>| AggregatedVersion {
        version: version.name,
        resources: version.resources.iter().map(|resource| aggregated_resource(resource)).collect(),
        freshness: "Current",
    };
    AggregatedList {
        kind: "APIGroupDiscoveryList",
        api_version: "apidiscovery.k8s.io/v2",
        metadata: Empty {},
        items: groups
            .iter()
            .map(|group| AggregatedGroup {
                metadata: Name { name: group.name },
                versions: group.versions.iter().map(version).collect(),
            })
            .collect(),
    }
}

fn aggregated_resource(resource: &Resource) -> AggregatedResource<'_> {
    // The handler of custom resources writes group and version. Other handlers omit them if they equal those of the
    // document.
    let own = |kind| match resource.custom {
        true => GroupVersionKind { group: &resource.group, version: &resource.version, kind },
        false => GroupVersionKind { group: "", version: "", kind },
    };
    let subresource = |subresource: &Subresource| {
        let response_kind = match subresource.kind() {
            None => own(&resource.kind),
            Some(ForeignKind { group, version, kind }) if (group, version) == (&resource.group, &resource.version) => {
                own(kind)
            }
            Some(ForeignKind { group, version, kind }) => GroupVersionKind { group, version, kind },
        };
        AggregatedSubresource { subresource: subresource.name(), response_kind, verbs: subresource.verbs() }
    };
    AggregatedResource {
        resource: &resource.plural,
        response_kind: own(&resource.kind),
        scope: if resource.namespaced { "Namespaced" } else { "Cluster" },
        singular_resource: &resource.singular,
        verbs: verbs(resource),
        short_names: &resource.short_names,
        categories: &resource.categories,
        subresources: resource.subresources.iter().map(subresource).collect(),
    }
}

/// Serializes a document as compact JSON, with the final newline of Kubernetes' encoder.
fn json(document: &impl Serialize) -> Bytes {
    let mut body = serde_json::to_vec(document).expect("discovery documents serialize");
    body.push(b'\n');
    body.into()
}

#[cfg(test)]
mod tests;
