//! Merges the discovery documents of several servers: the aggregated form, and the legacy groups.
//!
//! | document | source |
//! |---|---|
//! | `/apis`, aggregated ([`merge_aggregated`]) | the local document, the latest document of each extension server |
//! | `/apis`, legacy ([`api_group_list`]) | the APIServices alone, available or not |
//! | `/apis/<group>` ([`api_group`]) | the APIServices of the group |
//!
//! Rules: `kube-aggregator/pkg/apiserver/{handler_apis,handler_discovery}.go`,
//! `apiserver/pkg/endpoints/discovery/aggregated/handler.go`.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use listwatch_json::{Map, Value, json};
use listwatch_meta::compare_versions;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::ApiService;
use crate::api_service::REGISTRATION_GROUP;
use crate::order::sorted_by_group_and_version;

/// The priority of [`REGISTRATION_GROUP`], which is always the first group: above every priority that an APIService can
/// have.
const REGISTRATION_GROUP_PRIORITY: i64 = 20_001;
/// The group priority and version priority of a group version without an APIService.
const DEFAULT_PRIORITIES: (i64, i64) = (1_000, 15);

/// The response is not a discovery document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed discovery document: {0}")]
pub struct MalformedDiscovery(String);

impl MalformedDiscovery {
    /// Creates the error of a response whose code means that there is no document.
    pub(crate) fn of_code(code: u16) -> Self {
        MalformedDiscovery(format!("response code {code}"))
    }
}

/// The latest discovery of an extension server for one group version.
#[derive(Clone, Debug, PartialEq)]
pub struct RemoteVersion {
    /// The resources, as in an `APIVersionDiscovery`. Empty before the first successful request.
    pub resources: Vec<ResourceDiscovery>,
    /// Whether the last request for the resources succeeded. Otherwise the version is marked `Stale`.
    pub is_current: bool,
}

/// A resource of an extension server (`APIResourceDiscovery` of `apidiscovery.k8s.io/v2`). Members with a `null` or
/// without a value have Go's zero value. Unknown members are dropped. A member of another type is an error: clients
/// decode the discovery of all servers as one document, which one member of a wrong type would make unreadable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceDiscovery {
    #[serde(deserialize_with = "zero_for_null")]
    resource: String,
    /// Always present, because old clients require it (kubernetes/kubernetes#118361).
    #[serde(deserialize_with = "zero_for_null")]
    response_kind: ResponseKind,
    #[serde(deserialize_with = "zero_for_null")]
    scope: String,
    #[serde(deserialize_with = "zero_for_null")]
    singular_resource: String,
    verbs: Option<Vec<String>>,
    #[serde(deserialize_with = "zero_for_null", skip_serializing_if = "Vec::is_empty")]
    short_names: Vec<String>,
    #[serde(deserialize_with = "zero_for_null", skip_serializing_if = "Vec::is_empty")]
    categories: Vec<String>,
    #[serde(deserialize_with = "zero_for_null", skip_serializing_if = "Vec::is_empty")]
    subresources: Vec<SubresourceDiscovery>,
}

/// `APISubresourceDiscovery`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SubresourceDiscovery {
    #[serde(deserialize_with = "zero_for_null")]
    subresource: String,
    #[serde(deserialize_with = "zero_for_null")]
    response_kind: ResponseKind,
    #[serde(deserialize_with = "zero_for_null", skip_serializing_if = "Vec::is_empty")]
    accepted_types: Vec<ResponseKind>,
    verbs: Option<Vec<String>>,
}

/// `GroupVersionKind`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct ResponseKind {
    #[serde(deserialize_with = "zero_for_null")]
    group: String,
    #[serde(deserialize_with = "zero_for_null")]
    version: String,
    #[serde(deserialize_with = "zero_for_null")]
    kind: String,
}

/// Reads `null` as the default value, as Go does.
fn zero_for_null<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

impl From<serde_json::Error> for MalformedDiscovery {
    fn from(error: serde_json::Error) -> Self {
        MalformedDiscovery(error.to_string())
    }
}

/// Parses the resources of one group version in an `APIGroupDiscoveryList` (`apidiscovery.k8s.io/v2`). A list without
/// the group version has no resources. Errors in other group versions are ignored.
///
/// # Errors
/// [`MalformedDiscovery`] if the bytes are not such a list.
pub fn parse_aggregated(
    document: &[u8],
    group: &str,
    version: &str,
) -> Result<Vec<ResourceDiscovery>, MalformedDiscovery> {
    #[derive(Deserialize)]
    struct List<'a> {
        #[serde(borrow)]
        items: Option<Vec<Group<'a>>>,
    }
    #[derive(Deserialize)]
    struct Group<'a> {
        #[serde(default, deserialize_with = "zero_for_null")]
        metadata: Metadata,
        #[serde(borrow)]
        versions: Option<Vec<Version<'a>>>,
    }
    #[derive(Deserialize, Default)]
    struct Metadata {
        #[serde(default, deserialize_with = "zero_for_null")]
        name: String,
    }
    #[derive(Deserialize)]
    struct Version<'a> {
        version: String,
        #[serde(borrow)]
        resources: Option<&'a RawValue>,
    }
    let list: List<'_> = serde_json::from_slice(document)?;
    let groups = list.items.into_iter().flatten().filter(|found| found.metadata.name == group);
    let mut versions = groups.flat_map(|group| group.versions.into_iter().flatten());
    match versions.find(|found| found.version == version).and_then(|found| found.resources) {
        None => Ok(Vec::new()),
        Some(resources) => Ok(serde_json::from_str::<Option<_>>(resources.get())?.unwrap_or_default()),
    }
}

/// Converts the resources of an `APIResourceList` to the aggregated form (`ConvertGroupVersionIntoToDiscovery`).
///
/// # Errors
/// [`MalformedDiscovery`] if the bytes are not such a list.
pub fn parse_resource_list(document: &[u8]) -> Result<Vec<ResourceDiscovery>, MalformedDiscovery> {
    #[derive(Deserialize)]
    struct List {
        resources: Option<Vec<Resource>>,
    }
    #[derive(Deserialize, Default)]
    #[serde(rename_all = "camelCase", default)]
    struct Resource {
        #[serde(deserialize_with = "zero_for_null")]
        name: String,
        #[serde(deserialize_with = "zero_for_null")]
        singular_name: String,
        #[serde(deserialize_with = "zero_for_null")]
        namespaced: bool,
        #[serde(deserialize_with = "zero_for_null")]
        group: String,
        #[serde(deserialize_with = "zero_for_null")]
        version: String,
        #[serde(deserialize_with = "zero_for_null")]
        kind: String,
        verbs: Option<Vec<String>>,
        #[serde(deserialize_with = "zero_for_null")]
        short_names: Vec<String>,
        #[serde(deserialize_with = "zero_for_null")]
        categories: Vec<String>,
    }
    let scope = |is_namespaced: bool| if is_namespaced { "Namespaced" } else { "Cluster" }.to_owned();
    let list: List = serde_json::from_slice(document)?;
    let (subresources, parents): (Vec<_>, Vec<_>) =
        list.resources.unwrap_or_default().into_iter().partition(|resource| resource.name.contains('/'));
    let mut resources: Vec<ResourceDiscovery> = Vec::new();
    let mut positions: BTreeMap<String, usize> = BTreeMap::new();
    for found in parents {
        positions.insert(found.name.clone(), resources.len());
        resources.push(ResourceDiscovery {
            resource: found.name,
            response_kind: ResponseKind { group: found.group, version: found.version, kind: found.kind },
            scope: scope(found.namespaced),
            singular_resource: found.singular_name,
            verbs: found.verbs,
            short_names: found.short_names,
            categories: found.categories,
            subresources: Vec::new(),
        });
    }
    for found in subresources {
        let Some((parent, name)) = found.name.split_once('/') else { continue };
        let position = *positions.entry(parent.to_owned()).or_insert_with(|| {
            let scope = scope(found.namespaced);
            resources.push(ResourceDiscovery { resource: parent.to_owned(), scope, ..ResourceDiscovery::default() });
            resources.len() - 1
        });
        resources[position].subresources.push(SubresourceDiscovery {
            subresource: name.to_owned(),
            response_kind: ResponseKind { group: found.group, version: found.version, kind: found.kind },
            accepted_types: Vec::new(),
            verbs: found.verbs,
        });
    }
    Ok(resources)
}

/// Merges the `APIGroupDiscoveryList` of all servers. Each remote APIService adds or replaces its group version in the
/// local document. `remote` is keyed by the name of the APIService; a service without an entry is stale and empty.
/// Groups and versions are ordered by the priorities of the APIServices.
pub fn merge_aggregated(local: &Value, services: &[ApiService], remote: &BTreeMap<String, RemoteVersion>) -> Value {
    let mut groups: BTreeMap<String, Map> = BTreeMap::new();
    for group in local["items"].as_array().into_iter().flatten() {
        if let (Some(name), Some(group)) = (group["metadata"]["name"].as_str(), group.as_object()) {
            groups.insert(name.to_owned(), group.clone());
        }
    }
    for service in services.iter().filter(|service| service.is_remote()) {
        let found = remote.get(&service.name);
        let freshness = if found.is_some_and(|found| found.is_current) { "Current" } else { "Stale" };
        let mut version = json!({"version": service.version, "freshness": freshness});
        if let Some(found) = found.filter(|found| !found.resources.is_empty()) {
            version["resources"] = json!(found.resources);
        }
        let group = groups
            .entry(service.group.clone())
            .or_insert_with(|| Map::from_iter([("metadata".to_owned(), json!({"name": service.group}))]));
        let versions = group.entry("versions").or_insert_with(|| json!([]));
        let Some(versions) = versions.as_array_mut() else { continue };
        match versions.iter_mut().find(|present| present["version"] == service.version.as_str()) {
            Some(present) => *present = version,
            None => versions.push(version),
        }
    }
    let priorities: BTreeMap<(&str, &str), (i64, i64)> = services
        .iter()
        .map(|service| {
            let priorities = (service.group_priority_minimum, service.version_priority);
            ((service.group.as_str(), service.version.as_str()), priorities)
        })
        .collect();
    let of = |group: &str, version: &str| match group {
        REGISTRATION_GROUP => (REGISTRATION_GROUP_PRIORITY, 0),
        _ => priorities.get(&(group, version)).copied().unwrap_or(DEFAULT_PRIORITIES),
    };
    let mut items: Vec<(i64, String, Map)> = Vec::new();
    for (name, mut group) in groups {
        let mut highest = 0;
        if let Some(versions) = group.get_mut("versions").and_then(Value::as_array_mut) {
            let text = |version: &Value| version["version"].as_str().unwrap_or_default().to_owned();
            highest = versions.iter().map(|version| of(&name, &text(version)).0).max().unwrap_or_default();
            versions.sort_by(|a, b| {
                let (a, b) = (text(a), text(b));
                of(&name, &b).1.cmp(&of(&name, &a).1).then_with(|| compare_versions(&a, &b))
            });
        }
        items.push((highest, name, group));
    }
    items.sort_by(|(a, a_name, _), (b, b_name, _)| (Reverse(a), a_name).cmp(&(Reverse(b), b_name)));
    let mut merged = local.clone();
    merged["items"] = items.into_iter().map(|(_, _, group)| Value::Object(group)).collect();
    merged
}

/// The `APIGroupList` at `/apis` (`apisHandler`). The group of APIServices is the first one.
pub fn api_group_list(services: &[ApiService]) -> Value {
    let registration = json!({"name": REGISTRATION_GROUP, "versions": [version_of(REGISTRATION_GROUP, "v1")],
        "preferredVersion": version_of(REGISTRATION_GROUP, "v1")});
    let sorted = sorted_by_group_and_version(services);
    let named = sorted.iter().filter(|group| !matches!(group[0].group.as_str(), "" | REGISTRATION_GROUP));
    let groups: Vec<Value> = std::iter::once(registration).chain(named.map(|group| group_of(group))).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// The `APIGroup` at `/apis/<group>` (`apiGroupHandler`); `None` if the group has no APIService.
pub fn api_group(services: &[ApiService], group: &str) -> Option<Value> {
    let sorted = sorted_by_group_and_version(services);
    let versions = sorted.iter().find(|versions| versions[0].group == group && !group.is_empty())?;
    let mut document = json!({"kind": "APIGroup", "apiVersion": "v1"});
    for (name, value) in group_of(versions).as_object().into_iter().flatten() {
        document[name] = value.clone();
    }
    Some(document)
}

fn version_of(group: &str, version: &str) -> Value {
    json!({"groupVersion": format!("{group}/{version}"), "version": version})
}

/// Creates the group of APIServices that are sorted by preference.
fn group_of(services: &[&ApiService]) -> Value {
    let versions: Vec<Value> = services.iter().map(|service| version_of(&service.group, &service.version)).collect();
    json!({"name": services[0].group, "versions": versions, "preferredVersion": versions[0]})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(group: &str, version: &str, priorities: (i64, i64), is_remote: bool) -> ApiService {
        let reference = if is_remote { json!({"namespace": "ns", "name": "api"}) } else { Value::Null };
        ApiService::from_object(&json!({"metadata": {"name": format!("{version}.{group}")},
            "spec": {"group": group, "version": version, "groupPriorityMinimum": priorities.0,
                "versionPriority": priorities.1, "service": reference}}))
        .unwrap()
    }

    fn services() -> Vec<ApiService> {
        vec![
            service("", "v1", (18_000, 1), false),
            service("apps", "v1", (17_800, 15), false),
            service("metrics.k8s.io", "v1beta1", (100, 20), true),
            service("metrics.k8s.io", "v1", (100, 30), true),
            service("aaa", "v1", (100, 1), false),
        ]
    }

    fn local() -> Value {
        let group = |name: &str| json!({"metadata": {"name": name}, "versions": [{"version": "v1", "freshness": "Current", "resources": []}]});
        json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {},
            "items": [group("aaa"), group("apps"), group(REGISTRATION_GROUP)]})
    }

    fn pods() -> ResourceDiscovery {
        ResourceDiscovery { resource: "pods".to_owned(), ..ResourceDiscovery::default() }
    }

    #[test]
    fn merged_discovery_orders_remote_and_local_versions_by_priority() {
        let fresh = RemoteVersion { resources: vec![pods()], is_current: true };
        let remote = BTreeMap::from([("v1beta1.metrics.k8s.io".to_owned(), fresh)]);
        let merged = merge_aggregated(&local(), &services(), &remote);
        let names: Vec<&str> =
            merged["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect();
        assert_eq!(names, [REGISTRATION_GROUP, "apps", "aaa", "metrics.k8s.io"]);
        assert_eq!(merged["kind"], "APIGroupDiscoveryList");
        let versions = &merged["items"][3]["versions"];
        assert_eq!(versions[0], json!({"version": "v1", "freshness": "Stale"}), "nothing is known of it");
        assert_eq!(versions[1], json!({"version": "v1beta1", "freshness": "Current", "resources": [pods()]}));
    }

    #[test]
    fn failed_refresh_keeps_resources_and_marks_them_stale() {
        let old = RemoteVersion { resources: vec![pods()], is_current: false };
        let remote = BTreeMap::from([("v1.metrics.k8s.io".to_owned(), old)]);
        let merged = merge_aggregated(&local(), &services(), &remote);
        let version = &merged["items"][3]["versions"][0];
        assert_eq!(version["freshness"], "Stale");
        assert_eq!(version["resources"][0]["resource"], "pods");
    }

    #[test]
    fn remote_version_replaces_a_local_one() {
        let services = [service("apps", "v1", (17_800, 15), true)];
        let merged = merge_aggregated(&local(), &services, &BTreeMap::new());
        let apps = merged["items"].as_array().unwrap().iter().find(|item| item["metadata"]["name"] == "apps").unwrap();
        assert_eq!(apps["versions"], json!([{"version": "v1", "freshness": "Stale"}]));
    }

    #[test]
    fn legacy_group_list_has_only_groups_of_api_services() {
        let list = api_group_list(&services());
        let names: Vec<&str> =
            list["groups"].as_array().unwrap().iter().map(|group| group["name"].as_str().unwrap()).collect();
        assert_eq!(names, [REGISTRATION_GROUP, "apps", "aaa", "metrics.k8s.io"]);
        let metrics = api_group(&services(), "metrics.k8s.io").unwrap();
        let versions = json!([{"groupVersion": "metrics.k8s.io/v1", "version": "v1"},
            {"groupVersion": "metrics.k8s.io/v1beta1", "version": "v1beta1"}]);
        assert_eq!((&metrics["kind"], &metrics["versions"]), (&json!("APIGroup"), &versions));
        assert_eq!(metrics["preferredVersion"]["version"], "v1");
        assert_eq!((api_group(&services(), "none"), api_group(&services(), "")), (None, None));
    }

    #[test]
    fn aggregated_document_is_parsed_by_group_version() {
        let document = json!({"items": [{"metadata": {"name": "g", "creationTimestamp": null}, "versions": [
            {"version": "v1", "resources": [{"resource": "things", "scope": null, "unknown": 1,
                "subresources": [{"subresource": "status"}]}]},
            {"version": "v2"}, {"version": "v3", "resources": 5}]}]});
        let parse = |version: &str| parse_aggregated(document.to_string().as_bytes(), "g", version);
        let none = json!({"group": "", "version": "", "kind": ""});
        let expected = json!([{"resource": "things", "responseKind": none, "scope": "", "singularResource": "",
            "verbs": null, "subresources": [{"subresource": "status", "responseKind": none, "verbs": null}]}]);
        assert_eq!(json!(parse("v1").unwrap()), expected);
        assert!(parse("v2").unwrap().is_empty() && parse("v4").unwrap().is_empty());
        assert!(parse("v3").is_err());
        for wrong in ["", "[]", "{\"items\": 1}", "{\"items\": [{\"versions\": [{}]}]}"] {
            assert!(parse_aggregated(wrong.as_bytes(), "g", "v1").is_err(), "{wrong}");
        }
    }

    #[test]
    fn resource_with_a_member_of_a_wrong_type_is_malformed() {
        for wrong in [
            json!({"resource": 5}),
            json!({"verbs": "get"}),
            json!({"verbs": [1]}),
            json!({"responseKind": "Thing"}),
            json!({"shortNames": {}}),
            json!({"subresources": [{"subresource": {}}]}),
            json!("things"),
        ] {
            let versions = json!([{"version": "v1", "resources": [wrong]}]);
            let document = json!({"items": [{"metadata": {"name": "g"}, "versions": versions}]}).to_string();
            assert!(parse_aggregated(document.as_bytes(), "g", "v1").is_err(), "{wrong}");
        }
    }

    #[test]
    fn resource_list_is_converted_to_the_aggregated_form() {
        let document = json!({"kind": "APIResourceList", "groupVersion": "g/v1", "resources": [
            {"name": "things", "singularName": "thing", "namespaced": true, "kind": "Thing", "verbs": ["get", "list"],
                "shortNames": ["th"]},
            {"name": "things/status", "namespaced": true, "kind": "Thing", "verbs": ["get"]},
            {"name": "orphans/scale", "namespaced": false, "kind": "Scale", "group": "autoscaling", "version": "v1",
                "verbs": ["update"]}]});
        let resources = json!(parse_resource_list(document.to_string().as_bytes()).unwrap());
        assert_eq!(
            resources[0],
            json!({"resource": "things", "responseKind": {"group": "", "version": "", "kind": "Thing"},
                "scope": "Namespaced", "singularResource": "thing", "verbs": ["get", "list"], "shortNames": ["th"],
                "subresources": [{"subresource": "status",
                    "responseKind": {"group": "", "version": "", "kind": "Thing"}, "verbs": ["get"]}]})
        );
        assert_eq!((&resources[1]["resource"], &resources[1]["scope"]), (&json!("orphans"), &json!("Cluster")));
        assert_eq!(resources[1]["subresources"][0]["responseKind"]["kind"], "Scale");
        assert!(parse_resource_list(b"{\"resources\": [{\"name\": 5}]}").is_err());
    }
}
