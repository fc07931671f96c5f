//! Discovery: the documents from which clients learn what is served, as [`Discovery`], a pure
//! function of a [`Registry`].
//!
//! ```text
//!  legacy                                   aggregated (…;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList)
//!  /api              APIVersions            /api    the core group, all its resources
//!  /apis             APIGroupList           /apis   every other group, all its resources
//!  /apis/{g}         APIGroup
//!  /api/v1, /apis/{g}/{v}  APIResourceList
//! ```
//!
//! Groups stand in the registry's order, groups of custom resources behind them by name; versions
//! stand newest and most stable first ([`compare_versions`]). The bytes are made once per registry
//! ([`Registry::discovery`]) and shared by every answer.
//!
//! Rules: `k8s.io/apiserver/pkg/endpoints/discovery`, `…/discovery/aggregated`, kube-aggregator.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine as _;
use bytes::Bytes;
use serde::Serialize;
use sha2::{Digest, Sha256, Sha512};

use crate::registry::{ForeignKind, Registry, Resource, Subresource};

/// The `Content-Type` of the aggregated documents.
pub const AGGREGATED_CONTENT_TYPE: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// The release of Kubernetes whose behaviour is served.
pub const KUBERNETES_VERSION: &str = "v1.36.0";

/// A document whose state is known by its ETag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// The bytes, compact JSON or protobuf.
    pub body: Bytes,
    /// The ETag as it goes into the header, with its quotes: the upper-case hex SHA-512 of the body.
    pub etag: String,
}

impl Document {
    /// A document with the ETag of its bytes.
    pub fn new(body: impl Into<Bytes>) -> Self {
        let body = body.into();
        let etag = format!("\"{}\"", sha512_hex(&body));
        Document { body, etag }
    }

    /// Does an `If-None-Match` header say that the client has this document? The header is one
    /// ETag, several separated by commas, or `*`; weak ETags match as strong ones.
    pub fn is_known(&self, if_none_match: &str) -> bool {
        if_none_match.split(',').map(str::trim).any(|tag| tag == "*" || tag.trim_start_matches("W/") == self.etag)
    }
}

/// The upper-case hex SHA-512 by which kube-apiserver names states of discovery and OpenAPI.
fn sha512_hex(bytes: &[u8]) -> String {
    Sha512::digest(bytes).iter().map(|byte| format!("{byte:02X}")).collect()
}

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
    /// Writes the documents. Costs about a millisecond for the built-in kinds; see
    /// [`Registry::discovery`] for the one that is made once.
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

    /// `/api`: the versions of the core group. `server_address` is `host:port` as clients reach it.
    pub fn api(server_address: &str) -> Bytes {
        // The only document without an apiVersion, as kube-apiserver has it.
        json(&serde_json::json!({
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": server_address}],
        }))
    }

    /// `/apis`: every group but the core group.
    pub fn apis(&self) -> Bytes {
        self.groups.clone()
    }

    /// `/apis/{group}`; `None` when the group is not served.
    pub fn group(&self, group: &str) -> Option<Bytes> {
        self.group.get(group).cloned()
    }

    /// `/api/v1` (group `""`) and `/apis/{group}/{version}`; `None` when that is not served.
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

/// What `/version` tells.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VersionInfo {
    /// `1`.
    pub major: String,
    /// The minor version of Kubernetes whose behaviour is served, e.g. `36`.
    pub minor: String,
    /// A version that clients parse as semver, e.g. `v1.36.0+listwatch-0.1.0`.
    pub git_version: String,
    /// The commit this was built from; empty when unknown.
    pub git_commit: String,
    /// `clean`, `dirty`, or empty when unknown.
    pub git_tree_state: String,
    /// When this was built, RFC 3339; empty when unknown.
    pub build_date: String,
    /// The toolchain. Clients print it and nothing else.
    pub go_version: String,
    /// The compiler.
    pub compiler: String,
    /// `<os>/<arch>` in Go's words, e.g. `linux/amd64`.
    pub platform: String,
}

impl VersionInfo {
    /// This build: [`KUBERNETES_VERSION`] as far as clients can tell.
    pub fn current() -> Self {
        let arch = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        VersionInfo {
            major: "1".to_owned(),
            minor: "36".to_owned(),
            git_version: format!("{KUBERNETES_VERSION}+listwatch-{}", env!("CARGO_PKG_VERSION")),
            git_commit: String::new(),
            git_tree_state: String::new(),
            build_date: String::new(),
            go_version: "none".to_owned(),
            compiler: "rustc".to_owned(),
            platform: format!("{}/{arch}", std::env::consts::OS),
        }
    }

    /// The body of `/version`: JSON, indented as kube-apiserver indents it.
    pub fn body(&self) -> Bytes {
        serde_json::to_vec_pretty(self).expect("texts serialize").into()
    }
}

/// The hash by which clients tell that a resource's storage version changed: base64 of the first
/// 8 bytes of the SHA-256 of `group/version/kind`.
pub fn storage_version_hash(group: &str, version: &str, kind: &str) -> String {
    let digest = Sha256::digest(format!("{group}/{version}/{kind}"));
    base64::engine::general_purpose::STANDARD.encode(&digest[..8])
}

/// The hash of a resource's storage version; empty when that is not served.
fn stored_hash(resource: &Resource) -> String {
    let resource = resource.stored();
    match (&resource.form, &resource.storage_version) {
        // What is not stored has no version in which it is stored.
        (None, _) if !resource.is_stored() => String::new(),
        (None, _) => storage_version_hash(&resource.group, &resource.version, &resource.kind),
        (Some(_), Some(version)) => storage_version_hash(&resource.group, version, &resource.kind),
        (Some(_), None) => String::new(),
    }
}

/// Kubernetes' order of versions, the preferred one first: `v2`, `v1`, `v2beta1`, `v1beta2`,
/// `v1alpha1`, then everything that is no such version, alphabetically
/// (`apimachinery/pkg/version.CompareKubeAwareVersionStrings`).
pub fn compare_versions(a: &str, b: &str) -> Ordering {
    match (parse_version(a), parse_version(b)) {
        (Some(a), Some(b)) => b.cmp(&a),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

/// Stability (GA over beta over alpha), major, minor.
fn parse_version(text: &str) -> Option<(u8, u64, u64)> {
    let rest = text.strip_prefix('v')?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (major, rest) = rest.split_at(digits);
    let major = number(major)?;
    if rest.is_empty() {
        return Some((2, major, 0));
    }
    let (stability, minor) = match (rest.strip_prefix("beta"), rest.strip_prefix("alpha")) {
        (Some(minor), _) => (1, minor),
        (_, Some(minor)) => (0, minor),
        _ => return None,
    };
    Some((stability, major, number(minor)?))
}

fn number(text: &str) -> Option<u64> {
    if text.starts_with('0') { None } else { text.parse().ok() }
}

/// A served group, its versions in order of preference.
struct Group<'a> {
    name: &'a str,
    versions: Vec<Version<'a>>,
}

struct Version<'a> {
    name: &'a str,
    /// Sorted by plural.
    resources: Vec<&'a Arc<Resource>>,
}

/// The registry by group and version. Groups that hold a built-in kind keep the registry's order
/// (their priorities are all above the 1000 of custom groups); custom groups follow by name.
fn group_versions(registry: &Registry) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    let mut builtin: Vec<&str> = Vec::new();
    // The groups of reviews stand behind the workloads and the events, as kube-apiserver's priorities have it.
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

/// The verbs as discovery shows them. Custom resources keep the order in which their handler lists
/// them; everything else is sorted.
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
            // A kind of the same group and version needs no group and version of its own.
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
    // The handler of custom resources lists them as it comes upon them.
    if !version.resources.iter().any(|resource| resource.custom) {
        resources.sort_by(|a, b| a.name.cmp(&b.name));
    }
    json(&ApiResourceList {
        kind: "APIResourceList",
        // The core group's document goes without, as in kube-apiserver.
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
    // The handler of custom resources spells out their group and version; elsewhere empty means
    // those of the document.
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

/// Compact JSON with the newline that Kubernetes' encoder ends every document with.
fn json(document: &impl Serialize) -> Bytes {
    let mut body = serde_json::to_vec(document).expect("discovery documents serialize");
    body.push(b'\n');
    body.into()
}

#[cfg(test)]
mod tests;
