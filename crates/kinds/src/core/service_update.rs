//! Prepares a Service for a write: keeps allocated values that the client omits, and removes fields that the new type
//! does not use.
//!
//! Source: `patchAllocatedValues` and `normalizeClusterIPs` in `pkg/registry/core/service/storage/storage.go`,
//! `dropTypeDependentFields` in `pkg/registry/core/service/strategy.go`.
//!
//! A field of the former type is removed only if the client did not change the field. A changed field stays, and
//! validation rejects the object.

use std::collections::{HashMap, HashSet};

use listwatch_json::{Value, json};
use listwatch_validation::{Object, child, child_mut, given, is_empty, items, number, text, texts};

use super::service::{is_externally_accessible, is_type};
use crate::UpdateContext;

/// Sets `clusterIPs` of a service that has `clusterIP` alone: a new one, or one of an old release.
pub(super) fn set_cluster_ips(service: &mut Object) {
    let spec = child_mut(service, "spec");
    if items(spec, "clusterIPs").is_empty() && !text(spec, "clusterIP").is_empty() {
        spec.insert("clusterIPs", json!([text(spec, "clusterIP")]));
    }
}

/// Removes the internal traffic policy of an `ExternalName` service. Upstream stores the policy and removes it at each
/// read (`defaultOnReadInternalTrafficPolicy`). Validation rejects an unknown policy, so that one stays.
pub(super) fn drop_unused_internal_policy(service: &mut Object) {
    let spec = child_mut(service, "spec");
    if is_type(spec, "ExternalName") && matches!(text(spec, "internalTrafficPolicy"), "Cluster" | "Local" | "") {
        spec.shift_remove("internalTrafficPolicy");
    }
}

/// Prepares an update of the whole service. Writes of subresources do not change the spec.
pub(super) fn prepare_for_update(new: &mut Object, old: &Object, context: UpdateContext<'_>) {
    if context.subresource.is_some() {
        return;
    }
    let before = child(old, "spec");
    let spec = child_mut(new, "spec");
    keep_allocated_values(spec, before);
    normalize_cluster_ips(spec, before);
    drop_type_dependent_fields(spec, before);
    drop_unused_internal_policy(new);
    if !is_type(child(new, "spec"), "LoadBalancer") {
        clear_load_balancer_status(new);
    }
}

/// Copies allocated values that the new state needs and omits (`patchAllocatedValues`). A client can therefore apply the
/// same manifest again.
fn keep_allocated_values(spec: &mut Object, before: &Object) {
    if needs_cluster_ip(before) && needs_cluster_ip(spec) {
        let address = text(before, "clusterIP");
        if text(spec, "clusterIP").is_empty() && !address.is_empty() {
            spec.insert("clusterIP", json!(address));
        }
        if items(spec, "clusterIPs").is_empty() {
            copy_cluster_ips(spec, before);
        }
    }
    if allocates_node_ports(before) && allocates_node_ports(spec) {
        keep_node_ports(spec, before);
    }
    if needs_health_check_port(before) && needs_health_check_port(spec) && health_check_port(spec) == 0 {
        let port = health_check_port(before);
        if port != 0 {
            spec.insert("healthCheckNodePort", json!(port));
        }
    }
}

/// Copies the node ports of ports with the same name. A node port that the new state already uses is not copied.
fn keep_node_ports(spec: &mut Object, before: &Object) {
    if items(spec, "ports").iter().all(|port| node_port(port).is_some()) {
        return;
    }
    let used: HashSet<i64> = node_ports(spec).collect();
    let held: HashMap<&str, i64> = items(before, "ports")
        .iter()
        .filter_map(|port| Some((port_name(port), node_port(port)?)))
        .filter(|(_, node_port)| !used.contains(node_port))
        .collect();
    let Some(Value::Array(ports)) = spec.get_mut("ports") else { return };
    for port in ports.iter_mut().filter(|port| node_port(port).is_none()) {
        let Some(kept) = held.get(port_name(port)).copied() else { continue };
        if let Value::Object(port) = port {
            port.insert("nodePort", json!(kept));
        }
    }
}

/// Makes `clusterIP` and `clusterIPs` agree if the client changed only one of them (`normalizeClusterIPs`).
fn normalize_cluster_ips(spec: &mut Object, before: &Object) {
    let (address, old) = (text(spec, "clusterIP"), text(before, "clusterIP"));
    if address == old {
        if items(spec, "clusterIPs").is_empty() {
            copy_cluster_ips(spec, before);
        }
        return;
    }
    if !cluster_ips(before).eq(texts(spec, "clusterIPs")) {
        return;
    }
    if address.is_empty() {
        spec.shift_remove("clusterIPs");
    } else {
        let address = json!([address]);
        spec.insert("clusterIPs", address);
    }
}

/// Removes unchanged fields of the former type (`dropTypeDependentFields`).
fn drop_type_dependent_fields(spec: &mut Object, before: &Object) {
    if needs_cluster_ip(before) && !needs_cluster_ip(spec) {
        if text(spec, "clusterIP") == text(before, "clusterIP") && cluster_ips(before).eq(texts(spec, "clusterIPs")) {
            spec.shift_remove("clusterIP");
            spec.shift_remove("clusterIPs");
        }
        if items(spec, "ipFamilies") == items(before, "ipFamilies") {
            spec.shift_remove("ipFamilies");
        }
        if text(spec, "ipFamilyPolicy") == text(before, "ipFamilyPolicy") {
            spec.shift_remove("ipFamilyPolicy");
        }
    }
    if has_node_port_type(before) && !has_node_port_type(spec) && adds_no_node_port(spec, before) {
        remove_node_ports(spec);
    }
    if needs_health_check_port(before)
        && !needs_health_check_port(spec)
        && health_check_port(spec) == health_check_port(before)
    {
        spec.shift_remove("healthCheckNodePort");
    }
    if is_type(before, "LoadBalancer") && !is_type(spec, "LoadBalancer") {
        for field in ["allocateLoadBalancerNodePorts", "loadBalancerClass"] {
            if given(spec, field) == given(before, field) {
                spec.shift_remove(field);
            }
        }
    }
    if is_externally_accessible(before)
        && !is_externally_accessible(spec)
        && text(spec, "externalTrafficPolicy") == text(before, "externalTrafficPolicy")
    {
        spec.shift_remove("externalTrafficPolicy");
    }
}

/// Whether all node ports of the new state are node ports of the old state.
fn adds_no_node_port(spec: &Object, before: &Object) -> bool {
    let had: HashSet<i64> = node_ports(before).collect();
    node_ports(spec).all(|port| had.contains(&port))
}

fn remove_node_ports(spec: &mut Object) {
    let ports = spec.get_mut("ports").and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten().filter_map(Value::as_object_mut) {
        port.shift_remove("nodePort");
    }
}

/// Removes the addresses of the former load balancer.
fn clear_load_balancer_status(service: &mut Object) {
    let balancer = service.get_mut("status").and_then(|status| status.get_mut("loadBalancer"));
    if let Some(balancer) = balancer.filter(|balancer| !is_empty(Some(balancer))) {
        *balancer = json!({});
    }
}

/// Returns `clusterIPs`. Services of old servers have `clusterIP` alone.
fn cluster_ips(spec: &Object) -> impl Iterator<Item = &str> {
    let single = items(spec, "clusterIPs").is_empty().then(|| text(spec, "clusterIP"));
    single.filter(|address| !address.is_empty()).into_iter().chain(texts(spec, "clusterIPs"))
}

fn copy_cluster_ips(spec: &mut Object, before: &Object) {
    let addresses: Vec<Value> = cluster_ips(before).map(Value::from).collect();
    if !addresses.is_empty() {
        spec.insert("clusterIPs", Value::Array(addresses));
    }
}

fn needs_cluster_ip(spec: &Object) -> bool {
    !is_type(spec, "ExternalName")
}

/// Whether the type of the service has node ports (`needsNodePort` of the strategy).
fn has_node_port_type(spec: &Object) -> bool {
    is_type(spec, "NodePort") || is_type(spec, "LoadBalancer")
}

/// Whether the server allocates node ports for the service (`needsNodePort` of the storage).
fn allocates_node_ports(spec: &Object) -> bool {
    let declined = spec.get("allocateLoadBalancerNodePorts") == Some(&Value::Bool(false));
    is_type(spec, "NodePort") || (is_type(spec, "LoadBalancer") && !declined)
}

/// Whether the service has a health check port (`needsHCNodePort`).
fn needs_health_check_port(spec: &Object) -> bool {
    is_type(spec, "LoadBalancer") && text(spec, "externalTrafficPolicy") == "Local"
}

fn health_check_port(spec: &Object) -> i64 {
    number(spec, "healthCheckNodePort").unwrap_or(0)
}

fn port_name(port: &Value) -> &str {
    port.get("name").and_then(Value::as_str).unwrap_or_default()
}

fn node_port(port: &Value) -> Option<i64> {
    port.get("nodePort")?.as_i64().filter(|port| *port != 0)
}

fn node_ports(spec: &Object) -> impl Iterator<Item = i64> {
    items(spec, "ports").iter().filter_map(node_port)
}

#[cfg(test)]
mod tests {
    use listwatch_json::Map;
    use time::OffsetDateTime;

    use super::*;
    use crate::Subresource;

    fn object(value: Value) -> Map {
        let Value::Object(object) = value else { panic!("not an object: {value}") };
        object
    }

    /// Prepares an update from one spec to another, and compares the result.
    fn check(old: Value, new: Value, expected: Value) {
        let (mut new, old) = (object(json!({"spec": new})), object(json!({"spec": old})));
        let context = UpdateContext { subresource: None, now: OffsetDateTime::UNIX_EPOCH };
        prepare_for_update(&mut new, &old, context);
        assert_eq!(Value::Object(new), json!({"spec": expected}));
    }

    fn balancer() -> Value {
        json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30001,
            "allocateLoadBalancerNodePorts": true, "loadBalancerClass": "a.io/b",
            "clusterIP": "10.96.7.7", "clusterIPs": ["10.96.7.7"], "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack", "ports": [{"port": 80, "nodePort": 30000}]})
    }

    /// Returns the spec with changed members; `null` removes a member.
    fn with(mut spec: Value, changes: Value) -> Value {
        for (name, value) in object(changes) {
            let spec = spec.as_object_mut().unwrap();
            match value {
                Value::Null => spec.shift_remove(&name),
                value => spec.insert(name, value),
            };
        }
        spec
    }

    #[test]
    fn external_name_service_has_no_internal_traffic_policy() {
        let external = |policy: Value| json!({"type": "ExternalName", "internalTrafficPolicy": policy});
        let without = json!({"type": "ExternalName"});
        for policy in ["Cluster", "Local"] {
            check(without.clone(), external(json!(policy)), without.clone());
            check(
                json!({"type": "ClusterIP", "internalTrafficPolicy": policy}),
                external(json!(policy)),
                without.clone(),
            );
        }
        // Validation rejects this one.
        check(without, external(json!("Odd")), external(json!("Odd")));
        let inside = json!({"type": "ClusterIP", "internalTrafficPolicy": "Local"});
        check(inside.clone(), inside.clone(), inside);
    }

    #[test]
    fn type_change_removes_unchanged_fields_of_the_former_type() {
        let node_port = json!({"type": "NodePort", "healthCheckNodePort": null, "loadBalancerClass": null,
            "allocateLoadBalancerNodePorts": null});
        let inside = json!({"type": "ClusterIP", "externalTrafficPolicy": null, "ports": [{"port": 80}]});
        let external = json!({"type": "ExternalName", "clusterIP": null, "clusterIPs": null, "ipFamilies": null,
            "ipFamilyPolicy": null});
        let to = |spec: &Value, kind: &str| with(spec.clone(), json!({"type": kind}));
        let balancer = balancer();
        let node_port = with(balancer.clone(), node_port);
        let inside = with(node_port.clone(), inside);
        let external = with(inside.clone(), external);
        check(balancer.clone(), to(&balancer, "NodePort"), node_port.clone());
        check(balancer.clone(), to(&balancer, "ClusterIP"), inside.clone());
        check(balancer.clone(), to(&balancer, "ExternalName"), external.clone());
        check(node_port.clone(), to(&node_port, "ClusterIP"), inside.clone());
        check(inside.clone(), to(&inside, "ExternalName"), external);
        let reachable =
            with(node_port, json!({"type": "ClusterIP", "externalIPs": ["1.2.3.4"], "ports": [{"port": 80}]}));
        check(balancer.clone(), with(balancer, json!({"type": "ClusterIP", "externalIPs": ["1.2.3.4"]})), reachable);
    }

    #[test]
    fn type_change_keeps_fields_that_the_client_changed() {
        let old = balancer();
        for (kind, field, value) in [
            ("NodePort", "healthCheckNodePort", json!(30002)),
            ("NodePort", "allocateLoadBalancerNodePorts", json!(false)),
            ("ClusterIP", "loadBalancerClass", json!("a.io/c")),
            ("ClusterIP", "externalTrafficPolicy", json!("Cluster")),
            ("ClusterIP", "ports", json!([{"port": 80, "nodePort": 30009}])),
            ("ExternalName", "clusterIPs", json!(["10.96.7.8"])),
            ("ExternalName", "ipFamilies", json!(["IPv6"])),
            ("ExternalName", "ipFamilyPolicy", json!("PreferDualStack")),
        ] {
            let mut new = object(json!({"spec": with(old.clone(), json!({"type": kind, field: value.clone()}))}));
            let context = UpdateContext { subresource: None, now: OffsetDateTime::UNIX_EPOCH };
            prepare_for_update(&mut new, &object(json!({"spec": old.clone()})), context);
            assert_eq!(new["spec"][field], value, "{kind} {field}");
        }
    }

    #[test]
    fn status_of_a_load_balancer_is_cleared_only_after_a_type_change_of_the_whole_object() {
        let status = json!({"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}, "conditions": []});
        let old = object(json!({"spec": balancer(), "status": status}));
        let prepared = |kind: &str, subresource: Option<&Subresource>| {
            let mut new = object(json!({"spec": with(balancer(), json!({"type": kind})), "status": status}));
            let context = UpdateContext { subresource, now: OffsetDateTime::UNIX_EPOCH };
            prepare_for_update(&mut new, &old, context);
            new["status"].clone()
        };
        assert_eq!(prepared("NodePort", None), json!({"loadBalancer": {}, "conditions": []}));
        assert_eq!(prepared("LoadBalancer", None), status);
        assert_eq!(prepared("NodePort", Some(&Subresource::Status)), status);
    }

    #[test]
    fn omitted_node_ports_are_kept_by_the_name_of_the_port() {
        let spec = |kind: &str, ports: Value| json!({"type": kind, "ports": ports});
        let node_port = |ports: Value| spec("NodePort", ports);
        let old = || {
            node_port(
                json!([{"name": "a", "port": 80, "nodePort": 30000}, {"name": "b", "port": 81, "nodePort": 30001}]),
            )
        };
        // The number and the protocol may change.
        check(
            old(),
            node_port(json!([{"name": "b", "port": 80}, {"name": "a", "port": 81, "protocol": "UDP"}])),
            node_port(json!([{"name": "b", "port": 80, "nodePort": 30001},
                {"name": "a", "port": 81, "protocol": "UDP", "nodePort": 30000}])),
        );
        // Another port of the new state uses the node port.
        let moved = || node_port(json!([{"name": "a", "port": 80}, {"name": "b", "port": 81, "nodePort": 30000}]));
        check(old(), moved(), moved());
        let renamed = || node_port(json!([{"name": "c", "port": 80}]));
        check(old(), renamed(), renamed());
        let inside = || spec("ClusterIP", json!([{"name": "a", "port": 80}]));
        check(old(), inside(), inside());
        // A load balancer without allocation has only chosen node ports.
        let declined =
            |ports: Value| json!({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false, "ports": ports});
        let chosen = declined(json!([{"name": "a", "port": 80, "nodePort": 30000}]));
        let omitted = node_port(json!([{"name": "a", "port": 80}]));
        check(chosen, with(omitted.clone(), json!({"ports": [{"name": "a", "port": 80}]})), omitted);
    }

    #[test]
    fn omitted_addresses_and_health_check_ports_are_kept() {
        let omitted = json!({"clusterIP": null, "clusterIPs": null, "healthCheckNodePort": null});
        let order = |spec: Value| {
            let mut spec = object(spec);
            for field in ["clusterIP", "clusterIPs", "healthCheckNodePort"] {
                let value = spec.shift_remove(field).unwrap();
                spec.insert(field, value);
            }
            Value::Object(spec)
        };
        check(balancer(), with(balancer(), omitted), order(balancer()));
        let old_client = || json!({"type": "ClusterIP", "clusterIP": "10.96.7.7"});
        let both = |address: &str| json!({"type": "ClusterIP", "clusterIP": address, "clusterIPs": [address]});
        check(old_client(), old_client(), both("10.96.7.7"));
        check(both("10.96.7.7"), json!({"type": "ClusterIP"}), both("10.96.7.7"));
        // The change of `clusterIP` alone is a change of both.
        check(both("10.96.7.7"), json!({"type": "ClusterIP", "clusterIP": "10.96.7.8"}), both("10.96.7.8"));
        let cleared = json!({"type": "ExternalName", "clusterIPs": ["10.96.7.7"]});
        check(both("10.96.7.7"), cleared, json!({"type": "ExternalName"}));
    }
}
