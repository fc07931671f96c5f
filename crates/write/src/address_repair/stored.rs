//! Reads claims of addresses, and the addresses of services, from stored values. Builds no trees, because a repair
//! reads all services.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use listwatch_storage::{KeyValue, unreadable_reason};
use listwatch_validation::clock::parse_timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::super::services::{FAMILY, FAMILY_LABEL, MANAGER, MANAGER_LABEL, ipv4_address};
use super::plan::{Claim, Owner, ServiceName};

fn parse<T: DeserializeOwned>(value: &[u8]) -> Option<T> {
    unreadable_reason(value).is_none().then(|| serde_json::from_slice(value).ok()).flatten()
}

/// Reads an `IPAddress`. Returns `None` for an address that is not IPv4.
pub(super) fn claim(stored: &KeyValue) -> Option<Claim> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        labels: Option<BTreeMap<String, String>>,
        creation_timestamp: Option<String>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Parent {
        group: String,
        resource: String,
        namespace: String,
        name: String,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Spec {
        parent_ref: Option<Parent>,
    }
    #[derive(Deserialize)]
    struct Address {
        metadata: Metadata,
        spec: Option<Spec>,
    }
    let address = stored.key.name().parse::<Ipv4Addr>().ok()?;
    let revision = stored.modified;
    let Some(object) = parse::<Address>(&stored.value) else {
        let owner = Owner::Unknown;
        return Some(Claim { address, revision, owner, created: None, is_managed: false, has_labels: false });
    };
    let owner = match object.spec.and_then(|spec| spec.parent_ref) {
        Some(Parent { group, resource, namespace, name }) if group.is_empty() && resource == "services" => {
            Owner::Service(ServiceName { namespace, name })
        }
        _ => Owner::Other,
    };
    let labels = object.metadata.labels.unwrap_or_default();
    let has = |label: &str, value: &str| labels.get(label).is_some_and(|found| found == value);
    let is_managed = has(MANAGER_LABEL, MANAGER);
    let has_labels = is_managed && has(FAMILY_LABEL, FAMILY);
    let created = object.metadata.creation_timestamp.as_deref().and_then(parse_timestamp);
    Some(Claim { address, revision, owner, created, is_managed, has_labels })
}

/// Reads the name of a service and its IPv4 addresses. The addresses are `None` if the service is unreadable.
pub(super) fn service(stored: &KeyValue) -> (ServiceName, Option<Vec<Ipv4Addr>>) {
    #[derive(Deserialize)]
    struct Spec {
        #[serde(rename = "clusterIP")]
        cluster_ip: Option<String>,
        #[serde(rename = "clusterIPs")]
        cluster_ips: Option<Vec<String>>,
    }
    #[derive(Deserialize)]
    struct Service {
        spec: Option<Spec>,
    }
    let (namespace, name) = (stored.key.namespace().to_owned(), stored.key.name().to_owned());
    let addresses = parse::<Service>(&stored.value).map(|service| match service.spec {
        // Old servers stored `clusterIP` alone.
        Some(Spec { cluster_ip, cluster_ips }) => {
            let all = cluster_ip.into_iter().chain(cluster_ips.into_iter().flatten());
            let mut addresses: Vec<Ipv4Addr> = all.filter_map(|text| ipv4_address(&text)).collect();
            addresses.sort_unstable();
            addresses.dedup();
            addresses
        }
        None => Vec::new(),
    });
    (ServiceName { namespace, name }, addresses)
}

#[cfg(test)]
mod tests {
    use listwatch_json::{Value, json};
    use listwatch_meta::{Key, Revision};

    use super::*;

    fn stored(path: &str, value: impl Into<bytes::Bytes>) -> KeyValue {
        let revision = Revision::new(7);
        let key = Key::from_path(path).unwrap();
        KeyValue { key, value: value.into(), created: revision, modified: revision, stale: false }
    }

    #[test]
    fn claim_of_an_ipv4_address_is_read_with_its_owner_and_labels() {
        let service = || Owner::Service(ServiceName { namespace: "a".to_owned(), name: "s".to_owned() });
        let read = |labels: Value, parent: Value| {
            let object = json!({"metadata": {"labels": labels}, "spec": {"parentRef": parent}});
            let claim = claim(&stored("/ipaddresses/10.0.0.1", object.to_string())).unwrap();
            (claim.owner, claim.is_managed, claim.has_labels)
        };
        let both = || json!({FAMILY_LABEL: "IPv4", MANAGER_LABEL: MANAGER});
        let parent = || json!({"resource": "services", "namespace": "a", "name": "s"});
        assert_eq!(read(both(), parent()), (service(), true, true));
        assert_eq!(read(json!({MANAGER_LABEL: MANAGER}), parent()), (service(), true, false));
        assert_eq!(read(json!({FAMILY_LABEL: "IPv4"}), parent()), (service(), false, false));
        assert_eq!(read(json!(null), json!(null)), (Owner::Other, false, false));
        let gateway = json!({"group": "example.com", "resource": "services", "namespace": "a", "name": "s"});
        assert_eq!(read(both(), gateway), (Owner::Other, true, true));
        assert_eq!(claim(&stored("/ipaddresses/fd00::1", "{}")), None);
        assert_eq!(claim(&stored("/ipaddresses/10.0.0.1", "k8s\0")).unwrap().owner, Owner::Unknown);
    }

    #[test]
    fn ipv4_addresses_of_a_service_are_read() {
        let check = |value: &str, expected: Option<&[[u8; 4]]>| {
            let (name, addresses) = service(&stored("/services/specs/a/s", value.to_owned()));
            assert_eq!((name.namespace.as_str(), name.name.as_str()), ("a", "s"));
            let expected = expected.map(|all| all.iter().copied().map(Ipv4Addr::from).collect::<Vec<_>>());
            assert_eq!(addresses, expected, "{value}");
        };
        check(r#"{"spec":{"clusterIP":"10.0.0.11"}}"#, Some(&[[10, 0, 0, 11]]));
        check(r#"{"spec":{"clusterIP":"10.0.0.1","clusterIPs":["10.0.0.1","fd00::1"]}}"#, Some(&[[10, 0, 0, 1]]));
        check(r#"{"spec":{"clusterIP":"fd00::1","clusterIPs":["fd00::1","10.0.0.1"]}}"#, Some(&[[10, 0, 0, 1]]));
        check(r#"{"spec":{"clusterIP":"010.0.0.1"}}"#, Some(&[[10, 0, 0, 1]]));
        check(r#"{"spec":{"clusterIP":"None","clusterIPs":["None"]}}"#, Some(&[]));
        check(r#"{"spec":{"clusterIP":"","clusterIPs":null}}"#, Some(&[]));
        check("{}", Some(&[]));
        check("k8s\0", None);
    }
}
