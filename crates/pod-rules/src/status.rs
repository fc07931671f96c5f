//! Validates updates of the status of pods.
//!
//! Source: `ValidatePodStatusUpdate` in `pkg/apis/core/validation` and `ContainerShouldRestart` in `pkg/api/v1/pod` of
//! Kubernetes v1.36. The feature gates have their defaults: ContainerRestartRules and
//! RestartAllContainersOnContainerExits are on, DRANodeAllocatableResources and ImageVolumeWithDigest are off.

use std::collections::{HashMap, HashSet};

use listwatch_json::{Value, json};
use listwatch_meta::FieldError;
use listwatch_schema::Path;
use listwatch_validation::formats::{IMMUTABLE, is_ipv6, label, legacy_ip, qualified_name, sloppy_ip, subdomain};
use listwatch_validation::{Errors, Object, child, given, items, number, objects, text};

use crate::update::validate_annotations;

/// The largest user id and group id.
const ID_MAX: i64 = 2_147_483_647;
/// The longest message of the health of a device, in bytes (`ResourceHealthMessageMaxLength`).
const HEALTH_MESSAGE_BYTES_MAX: usize = 1024;

/// Validates an update of the status (`ValidatePodStatusUpdate`).
pub fn validate_status(new: &Object, old: &Object, errors: &mut Errors) {
    validate_annotations(new, old, errors);
    let at = Path::root("status");
    let (spec, status) = (child(new, "spec"), child(new, "status"));
    let (old_spec, old_status) = (child(old, "spec"), child(old, "status"));
    validate_conditions(status, &at.child("conditions"), errors);
    validate_nominated_node(status, old_spec, old_status, &at.child("nominatedNodeName"), errors);
    not_negative(status, &at, errors);
    if text(status, "qosClass") != text(old_status, "qosClass") {
        errors.invalid(&at.child("qosClass"), text(status, "qosClass"), IMMUTABLE);
    }
    validate_restarts(status, old_status, old_spec, &at, errors);
    validate_resource_claims(status, spec, &at.child("resourceClaimStatuses"), errors);
    validate_extended_resources(status, spec, &at.child("extendedResourceClaimStatus"), errors);
    validate_pod_ips(status, old_status, &at.child("podIPs"), errors);
    validate_host_ips(status, old_status, &at.child("hostIPs"), errors);
    validate_users(status, spec, &at, errors);
    validate_allocated_resources(status, spec, &at, errors);
}

fn validate_conditions(status: &Object, at: &Path<'_>, errors: &mut Errors) {
    for (position, condition) in objects(status, "conditions") {
        let at = at.index(position);
        not_negative(condition, &at, errors);
        let kind = text(condition, "type");
        if !matches!(kind, "PodScheduled" | "Ready" | "Initialized") {
            qualified_name(kind, &at.child("Type"), errors);
        }
    }
}

fn not_negative(holder: &Object, at: &Path<'_>, errors: &mut Errors) {
    if let Some(generation) = number(holder, "observedGeneration").filter(|generation| *generation < 0) {
        errors.invalid_value(&at.child("observedGeneration"), generation, "must be a non-negative integer");
    }
}

fn validate_nominated_node(
    status: &Object,
    old_spec: &Object,
    old_status: &Object,
    at: &Path<'_>,
    errors: &mut Errors,
) {
    let name = text(status, "nominatedNodeName");
    if name.is_empty() || name == text(old_status, "nominatedNodeName") {
        return;
    }
    subdomain(name, at, errors);
    if !text(old_spec, "nodeName").is_empty() {
        errors.forbidden(at, "may not be set on pods that are already bound to a node");
    }
}

/// Reports terminated containers that run again, although they must not be restarted
/// (`ValidateContainerStateTransition` and the functions beside it).
fn validate_restarts(status: &Object, old_status: &Object, spec: &Object, at: &Path<'_>, errors: &mut Errors) {
    for (list, containers) in [
        ("containerStatuses", Some("containers")),
        ("initContainerStatuses", Some("initContainers")),
        // Ephemeral containers never restart.
        ("ephemeralContainerStatuses", None),
    ] {
        let mut ended = objects(old_status, list)
            .filter_map(|(position, before)| Some((position, before, terminated(before)?)))
            .peekable();
        if ended.peek().is_none() {
            continue;
        }
        let after = objects(status, list).filter(|(_, after)| terminated(after).is_none());
        let running: HashSet<&str> = after.map(|(_, after)| text(after, "name")).collect();
        let restarted: Vec<_> = ended.filter(|(_, before, _)| running.contains(text(before, "name"))).collect();
        if restarted.is_empty() || (containers.is_some() && all_containers_could_restart(spec)) {
            continue;
        }
        let containers = containers.map(|containers| by_name(spec, &[containers])).unwrap_or_default();
        let list_at = at.child(list);
        for (position, before, terminated) in restarted {
            let exit_code = number(terminated, "exitCode").unwrap_or(0);
            let container = containers.get(text(before, "name"));
            if !container.is_some_and(|container| should_restart(container, spec, exit_code)) {
                let at = list_at.index(position);
                errors.forbidden(&at.child("state"), "may not be transitioned to non-terminated state");
            }
        }
    }
}

fn terminated(status: &Object) -> Option<&Object> {
    given(child(status, "state"), "terminated")?.as_object()
}

/// The first container of each name.
fn by_name<'a>(spec: &'a Object, lists: &[&str]) -> HashMap<&'a str, &'a Object> {
    let mut containers = HashMap::new();
    for (_, container) in lists.iter().flat_map(|list| objects(spec, list)) {
        containers.entry(text(container, "name")).or_insert(container);
    }
    containers
}

/// Whether the exit of some container can restart all containers (`AllContainersCouldRestart`).
fn all_containers_could_restart(spec: &Object) -> bool {
    let mut containers = ["initContainers", "containers"].into_iter().flat_map(|list| objects(spec, list));
    containers.any(|(_, container)| {
        objects(container, "restartPolicyRules").any(|(_, rule)| text(rule, "action") == "RestartAllContainers")
    })
}

/// Whether a container restarts after an exit (`ContainerShouldRestart`): first its rules decide, then its policy, then
/// the policy of the pod.
fn should_restart(container: &Object, spec: &Object, exit_code: i64) -> bool {
    let of_policy = |policy: &str| match policy {
        "Always" => Some(true),
        "OnFailure" => Some(exit_code != 0),
        "Never" => Some(false),
        _ => None,
    };
    let of_container = given(container, "restartPolicy").and_then(Value::as_str).and_then(|policy| {
        let action = matching_rule(container, exit_code).map(|rule| text(rule, "action"));
        if action == Some("Restart") { Some(true) } else { of_policy(policy) }
    });
    of_container.or_else(|| of_policy(text(spec, "restartPolicy"))).unwrap_or(true)
}

/// The first restart rule that matches an exit code (`FindMatchingContainerRestartRule`).
fn matching_rule(container: &Object, exit_code: i64) -> Option<&Object> {
    let mut rules = objects(container, "restartPolicyRules").map(|(_, rule)| rule);
    rules.find(|rule| {
        let Some(Value::Object(codes)) = given(rule, "exitCodes") else { return false };
        let listed = items(codes, "values").iter().any(|code| code.as_i64() == Some(exit_code));
        match text(codes, "operator") {
            "In" => listed,
            "NotIn" => !listed,
            _ => false,
        }
    })
}

/// Validates the names of generated claims (`validatePodResourceClaimStatuses`).
fn validate_resource_claims(status: &Object, spec: &Object, at: &Path<'_>, errors: &mut Errors) {
    if items(status, "resourceClaimStatuses").is_empty() {
        return;
    }
    let claims: HashSet<&str> = objects(spec, "resourceClaims").map(|(_, claim)| text(claim, "name")).collect();
    let mut seen = HashSet::new();
    for (position, claim) in objects(status, "resourceClaimStatuses") {
        let (at, name) = (at.index(position), text(claim, "name"));
        if !claims.contains(name) {
            let why = "must match the name of an entry in `spec.resourceClaims`";
            errors.invalid(&at.child("name"), name, why);
        }
        if !seen.insert(name) {
            errors.duplicate(&at.child("name"), name);
        }
        if let Some(generated) = given(claim, "resourceClaimName").and_then(Value::as_str) {
            subdomain(generated, &at.child("resourceClaimName"), errors);
        }
    }
}

/// Validates the claim for extended resources (`validatePodExtendedResourceClaimStatus`).
fn validate_extended_resources(status: &Object, spec: &Object, at: &Path<'_>, errors: &mut Errors) {
    let Some(Value::Object(claim)) = given(status, "extendedResourceClaimStatus") else { return };
    let containers = by_name(spec, &["containers", "initContainers"]);
    let mappings_at = at.child("requestMappings");
    if items(claim, "requestMappings").is_empty() {
        errors.required(&mappings_at, "at least one request mapping is required");
    }
    let mut seen = HashSet::new();
    for (position, mapping) in objects(claim, "requestMappings") {
        let at_mapping = mappings_at.index(position);
        let names = ["containerName", "resourceName", "requestName"].map(|name| (name, text(mapping, name)));
        let [(_, container), (_, resource), (_, request)] = names;
        match containers.get(container) {
            Some(container) => {
                if given(child(child(container, "resources"), "requests"), resource).is_none() {
                    let why = "must match the extended resource name of an entry in spec.initContainers.resources.requests or spec.containers.resources.requests";
                    errors.invalid(&at_mapping.child("resourceName"), resource, why);
                }
            }
            None => {
                let why = "must match the name of an entry in spec.initContainers.name or spec.containers.name";
                errors.invalid(&at_mapping.child("containerName"), container, why);
            }
        }
        // Upstream reports this field without the position.
        label(request, &at.child("requestName"), errors);
        if !seen.insert(names.map(|(_, name)| name)) {
            for (member, name) in names {
                errors.duplicate(&at_mapping.child(member), name);
            }
        }
    }
    match text(claim, "resourceClaimName") {
        "" => errors.required(&at.child("resourceClaimName"), ""),
        name => subdomain(name, &at.child("resourceClaimName"), errors),
    }
}

/// Validates the addresses of a pod (`validatePodIPs`).
fn validate_pod_ips(status: &Object, old_status: &Object, at: &Path<'_>, errors: &mut Errors) {
    validate_addresses(status, old_status, "podIPs", at, errors);
}

/// Validates the addresses of the node (`validateHostIPs`).
fn validate_host_ips(status: &Object, old_status: &Object, at: &Path<'_>, errors: &mut Errors) {
    if let Some((_, first)) = objects(status, "hostIPs").next() {
        let first = text(first, "ip");
        if first != text(status, "hostIP") {
            let at = at.index(0);
            errors.invalid(&at.child("ip"), first, "must be equal to `hostIP`");
        }
    }
    validate_addresses(status, old_status, "hostIPs", at, errors);
}

/// Validates a list of at most one address per IP family. Invalid addresses that are already stored are accepted.
fn validate_addresses(status: &Object, old_status: &Object, list: &str, at: &Path<'_>, errors: &mut Errors) {
    let addresses = || objects(status, list).map(|(_, address)| text(address, "ip"));
    let mut wrong = Errors::default();
    let mut kept: Option<HashSet<&str>> = None;
    for (position, address) in addresses().enumerate() {
        if !legacy_ip(address, &at.index(position), &mut wrong) {
            let kept = kept.get_or_insert_with(|| objects(old_status, list).map(|(_, old)| text(old, "ip")).collect());
            if kept.contains(address) {
                wrong.clear();
            }
            errors.extend(wrong.drain(..));
        }
    }
    if items(status, list).len() < 2 {
        return;
    }
    let unreadable = addresses().enumerate().find(|(_, address)| sloppy_ip(address).is_none());
    if let Some((position, address)) = unreadable {
        let message =
            format!("Internal error: failed to check for dual stack with error:invalid IP[{position}]: {address}");
        errors.push(FieldError { field: at.to_string(), reason: "InternalError", message });
    }
    let dual = unreadable.is_none() && addresses().any(is_ipv6) && !addresses().all(is_ipv6);
    if !dual || items(status, list).len() > 2 {
        // Upstream formats its internal type.
        let shown: Vec<Value> = addresses().map(|address| json!({"IP": address})).collect();
        errors.invalid_value(at, Value::from(shown), "may specify no more than one IP for each IP family");
    }
}

const STATUS_LISTS: [&str; 3] = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];

/// Validates the users of the containers' processes (`validateContainerStatusUsers`).
fn validate_users(status: &Object, spec: &Object, at: &Path<'_>, errors: &mut Errors) {
    for list in STATUS_LISTS {
        let list_at = at.child(list);
        for (position, container) in objects(status, list) {
            let Some(Value::Object(user)) = given(container, "user") else { continue };
            let Some(Value::Object(linux)) = given(user, "linux") else { continue };
            let at = list_at.index(position);
            let at = at.child("user");
            let at = at.child("linux");
            let os = given(spec, "os").and_then(Value::as_object).map_or("linux", |os| text(os, "name"));
            match os {
                "windows" => errors.forbidden(&at, "cannot be set for a windows pod"),
                "linux" => {
                    for name in ["uid", "gid"] {
                        validate_id(number(linux, name).unwrap_or(0), &at.child(name), errors);
                    }
                    let groups_at = at.child("supplementalGroups");
                    for (position, group) in items(linux, "supplementalGroups").iter().enumerate() {
                        validate_id(group.as_i64().unwrap_or(0), &groups_at.index(position), errors);
                    }
                }
                _ => {}
            }
        }
    }
}

fn validate_id(id: i64, at: &Path<'_>, errors: &mut Errors) {
    if !(0..=ID_MAX).contains(&id) {
        errors.invalid_value(at, id, format_args!("must be between 0 and {ID_MAX}, inclusive"));
    }
}

/// Validates the health of allocated devices (`validateContainerStatusAllocatedResourcesStatus` and
/// `validateContainerStatusNoAllocatedResourcesStatus`).
fn validate_allocated_resources(status: &Object, spec: &Object, at: &Path<'_>, errors: &mut Errors) {
    for (list, containers) in [("containerStatuses", "containers"), ("initContainerStatuses", "initContainers")] {
        let list_at = at.child(list);
        let mut named = None;
        for (position, container) in objects(status, list) {
            if items(container, "allocatedResourcesStatus").is_empty() {
                continue;
            }
            let named = named.get_or_insert_with(|| by_name(spec, &[containers]));
            let at = list_at.index(position);
            let at = at.child("allocatedResourcesStatus");
            for (position, resource) in objects(container, "allocatedResourcesStatus") {
                let at = at.index(position);
                if let Some(container) = named.get(text(container, "name")) {
                    validate_resource_name(text(resource, "name"), container, &at.child("name"), errors);
                }
                validate_health(resource, &at.child("resources"), errors);
            }
        }
    }
    let list_at = at.child("ephemeralContainerStatuses");
    for (position, container) in objects(status, "ephemeralContainerStatuses") {
        if !items(container, "allocatedResourcesStatus").is_empty() {
            let at = list_at.index(position);
            let why = "must not be specified in container status";
            errors.forbidden(&at.child("allocatedResourcesStatus"), why);
        }
    }
}

/// Validates that a container requests a resource or has a claim. The name of a claim is `claim:<claim>[/<request>]`.
fn validate_resource_name(name: &str, container: &Object, at: &Path<'_>, errors: &mut Errors) {
    let resources = child(container, "resources");
    let (found, why) = match name.strip_prefix("claim:") {
        None => {
            let found = child(resources, "requests").contains_key(name);
            (found, "must match one of the container's resource requests")
        }
        Some(claim) => {
            let found = objects(resources, "claims").any(|(_, known)| {
                let rest = claim.strip_prefix(text(known, "name"));
                match text(known, "request") {
                    "" => rest == Some(""),
                    request => rest.and_then(|rest| rest.strip_prefix('/')) == Some(request),
                }
            });
            let why = "must match one of the container's resource claims in a format 'claim:<claimName>/<request>' or 'claim:<claimName>' if request is empty";
            (found, why)
        }
    };
    if !found {
        errors.invalid(at, name, why);
    }
}

fn validate_health(resource: &Object, at: &Path<'_>, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for (position, device) in objects(resource, "resources") {
        let at = at.index(position);
        let health = text(device, "health");
        let supported = ["Healthy", "Unhealthy", "Unknown"];
        if !supported.contains(&health) {
            errors.not_supported(&at.child("health"), health, &supported);
        }
        match given(device, "message").and_then(Value::as_str) {
            Some("") => errors.required(&at.child("message"), "must be non-empty if specified"),
            Some(message) if message.len() > HEALTH_MESSAGE_BYTES_MAX => {
                errors.too_long(&at.child("message"), HEALTH_MESSAGE_BYTES_MAX);
            }
            _ => {}
        }
        let id = text(device, "resourceID");
        if !seen.insert(id) {
            errors.duplicate(&at.child("resourceID"), id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::transition_errors;

    /// Checks the errors of an update of the status from `old` to `new` of a pod with this spec.
    fn check(spec: Value, new: Value, old: Value, expected: &[&str]) {
        let pod = |status: Value| json!({"spec": spec, "status": status});
        let found = transition_errors(validate_status, pod(new.clone()), pod(old));
        assert_eq!(found, expected, "{spec} {new}");
    }

    #[test]
    fn status_update_rejects_restart_of_terminated_container_that_must_not_restart() {
        let status = |list: &str, state: Value| json!({ list: [{"name": "c", "state": state}] });
        let check = |list: &str, container: Value, policy: &str, code: i64, allowed: bool| {
            let mut named = container;
            named["name"] = json!("c");
            let list_of = if list == "initContainerStatuses" { "initContainers" } else { "containers" };
            let spec = json!({"restartPolicy": policy, list_of: [named]});
            let refused = format!("status.{list}[0].state: Forbidden: may not be transitioned to non-terminated state");
            let expected: &[&str] = if allowed { &[] } else { &[&refused] };
            let ended = || status(list, json!({"terminated": {"exitCode": code}}));
            check(spec.clone(), status(list, json!({"running": {}})), ended(), expected);
            check(spec.clone(), status(list, json!({"waiting": {}})), ended(), expected);
            check(spec, ended(), ended(), &[]);
        };
        let rule = |operator: &str, action: &str| {
            json!({"restartPolicy": "Never", "restartPolicyRules":
                [{"action": action, "exitCodes": {"operator": operator, "values": [42]}}]})
        };
        for list in ["containerStatuses", "initContainerStatuses"] {
            for (policy, code, allowed) in [
                ("Always", 0, true),
                ("Always", 1, true),
                ("OnFailure", 0, false),
                ("OnFailure", 1, true),
                ("Never", 0, false),
                ("Never", 1, false),
            ] {
                // The policy of the container replaces that of the pod.
                check(list, json!({}), policy, code, allowed);
                check(list, json!({"restartPolicy": policy}), "Never", code, allowed);
                check(list, json!({"restartPolicy": policy}), "Always", code, allowed);
            }
            check(list, rule("In", "Restart"), "Never", 42, true);
            check(list, rule("In", "Restart"), "Always", 1, false);
            check(list, rule("NotIn", "Restart"), "Never", 42, false);
            check(list, rule("NotIn", "Restart"), "Never", 1, true);
            check(list, rule("In", "RestartAllContainers"), "Never", 1, true);
        }
        check("ephemeralContainerStatuses", json!({}), "Always", 0, false);
    }

    #[test]
    fn status_update_rejects_restart_of_terminated_container_that_the_spec_does_not_have() {
        let status = |state: Value| json!({"containerStatuses": [{"name": "other", "state": state}]});
        check(
            json!({"restartPolicy": "Always", "containers": [{"name": "c"}]}),
            status(json!({"running": {}})),
            status(json!({"terminated": {"exitCode": 0}})),
            &["status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state"],
        );
    }

    #[test]
    fn status_update_rejects_invalid_conditions_generations_and_changed_qos_class() {
        let check = |new: Value, old: Value, expected: &[&str]| check(json!({}), new, old, expected);
        let class = |class: &str| json!({"qosClass": class});
        let fixed = "status.qosClass: Invalid value: \"Burstable\": field is immutable";
        check(class("Burstable"), class("BestEffort"), &[fixed]);
        check(
            json!({"observedGeneration": -1, "conditions": [{"type": "Ready", "observedGeneration": -2}]}),
            json!({}),
            &[
                "status.conditions[0].observedGeneration: Invalid value: -2: must be a non-negative integer",
                "status.observedGeneration: Invalid value: -1: must be a non-negative integer",
            ],
        );
        let conditions = json!({"conditions": [{"type": "Ready"}, {"type": "example.com/mine"}, {"type": "no good"}]});
        let pod = |status: Value| json!({ "status": status });
        let found = transition_errors(validate_status, pod(conditions), pod(json!({})));
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("status.conditions[2].Type: Invalid value: \"no good\": "), "{found:?}");
    }

    #[test]
    fn status_update_rejects_new_nominated_node_of_bound_pod() {
        let nominated = |name: &str| json!({"nominatedNodeName": name});
        let bound = || json!({"nodeName": "n"});
        let why = "status.nominatedNodeName: Forbidden: may not be set on pods that are already bound to a node";
        check(json!({}), nominated("a"), json!({}), &[]);
        check(bound(), nominated("a"), nominated("b"), &[why]);
        check(bound(), nominated("a"), nominated("a"), &[]);
        check(bound(), json!({}), nominated("a"), &[]);
        let pod = |status: Value| json!({ "status": status });
        let found = transition_errors(validate_status, pod(nominated("A")), pod(json!({})));
        assert!(found[0].starts_with("status.nominatedNodeName: Invalid value: \"A\": "), "{found:?}");
    }

    #[test]
    fn status_update_rejects_invalid_addresses() {
        let check = |new: Value, old: Value, expected: &[&str]| check(json!({}), new, old, expected);
        let ips = |ips: &[&str]| -> Value {
            let list: Vec<Value> = ips.iter().map(|ip| json!({ "ip": ip })).collect();
            json!({"podIPs": list, "hostIP": ips.first(), "hostIPs": list})
        };
        let errors = |why: &str| [why.replace("LIST", "podIPs"), why.replace("LIST", "hostIPs")];
        for (fine, old) in [
            (ips(&["10.0.0.1"]), ips(&[])),
            (ips(&["10.0.0.1", "fd00::1"]), ips(&[])),
            (ips(&["fd00::1", "10.0.0.1"]), ips(&[])),
            (ips(&["010.0.0.1"]), ips(&["010.0.0.1"])),
        ] {
            check(fine, old, &[]);
        }
        let pair = "may specify no more than one IP for each IP family";
        for (wrong, why) in [
            (ips(&["10.0.0.01"]), "status.LIST[0]: Invalid value: \"10.0.0.01\": must not have leading 0s".to_owned()),
            (
                ips(&["10.0.0.1", "10.0.0.2"]),
                format!("status.LIST: Invalid value: [{{\"IP\":\"10.0.0.1\"}},{{\"IP\":\"10.0.0.2\"}}]: {pair}"),
            ),
        ] {
            let [pod, host] = errors(&why);
            check(wrong, json!({}), &[&pod, &host]);
        }
        let unreadable = json!({"podIPs": [{"ip": "10.0.0.1"}, {"ip": "x"}]});
        check(
            unreadable,
            json!({}),
            &[
                "status.podIPs[1]: Invalid value: \"x\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
                "status.podIPs: Internal error: failed to check for dual stack with error:invalid IP[1]: x",
                &format!("status.podIPs: Invalid value: [{{\"IP\":\"10.0.0.1\"}},{{\"IP\":\"x\"}}]: {pair}"),
            ],
        );
        let other = "status.hostIPs[0].ip: Invalid value: \"10.0.0.1\": must be equal to `hostIP`";
        check(json!({"hostIP": "10.0.0.2", "hostIPs": [{"ip": "10.0.0.1"}]}), json!({}), &[other]);
        check(json!({"hostIP": "10.0.0.2"}), json!({}), &[]);
    }

    #[test]
    fn status_update_rejects_unknown_resource_claims() {
        let spec = || {
            json!({"resourceClaims": [{"name": "a"}, {"name": "b"}],
                "containers": [{"name": "c", "resources": {"requests": {"example.com/gpu": "1"}}}]})
        };
        let claims = |claims: Value| json!({ "resourceClaimStatuses": claims });
        let generated = json!([{"name": "a", "resourceClaimName": "pod-a"}, {"name": "b"}]);
        check(spec(), claims(generated), json!({}), &[]);
        check(
            spec(),
            claims(json!([{"name": "a"}, {"name": "x"}, {"name": "a"}])),
            json!({}),
            &[
                "status.resourceClaimStatuses[1].name: Invalid value: \"x\": must match the name of an entry in `spec.resourceClaims`",
                "status.resourceClaimStatuses[2].name: Duplicate value: \"a\"",
            ],
        );
        let extended = |mappings: Value, claim: &str| json!({"extendedResourceClaimStatus": {"requestMappings": mappings, "resourceClaimName": claim}});
        let mapping = |container: &str, resource: &str| json!({"containerName": container, "resourceName": resource, "requestName": "r"});
        check(spec(), extended(json!([mapping("c", "example.com/gpu")]), "claim"), json!({}), &[]);
        let at = "status.extendedResourceClaimStatus";
        let no_container = "must match the name of an entry in spec.initContainers.name or spec.containers.name";
        let no_resource = "must match the extended resource name of an entry in spec.initContainers.resources.requests or spec.containers.resources.requests";
        check(
            spec(),
            extended(json!([mapping("c", "other"), mapping("d", "example.com/gpu")]), ""),
            json!({}),
            &[
                &format!("{at}.requestMappings[0].resourceName: Invalid value: \"other\": {no_resource}"),
                &format!("{at}.requestMappings[1].containerName: Invalid value: \"d\": {no_container}"),
                &format!("{at}.resourceClaimName: Required value"),
            ],
        );
        check(
            spec(),
            extended(json!([mapping("c", "example.com/gpu"), mapping("c", "example.com/gpu")]), "claim"),
            json!({}),
            &[
                &format!("{at}.requestMappings[1].containerName: Duplicate value: \"c\""),
                &format!("{at}.requestMappings[1].resourceName: Duplicate value: \"example.com/gpu\""),
                &format!("{at}.requestMappings[1].requestName: Duplicate value: \"r\""),
            ],
        );
        let none = format!("{at}.requestMappings: Required value: at least one request mapping is required");
        check(spec(), extended(json!([]), "claim"), json!({}), &[&none]);
    }

    #[test]
    fn status_update_rejects_invalid_users_of_containers() {
        let status = |user: Value| json!({"containerStatuses": [{"name": "c", "user": {"linux": user}}]});
        let at = "status.containerStatuses[0].user.linux";
        check(json!({}), status(json!({"uid": 0, "gid": 0, "supplementalGroups": [1]})), json!({}), &[]);
        let range = "must be between 0 and 2147483647, inclusive";
        check(
            json!({}),
            status(json!({"uid": -1, "gid": 2_147_483_648_i64, "supplementalGroups": [1, -2]})),
            json!({}),
            &[
                &format!("{at}.uid: Invalid value: -1: {range}"),
                &format!("{at}.gid: Invalid value: 2147483648: {range}"),
                &format!("{at}.supplementalGroups[1]: Invalid value: -2: {range}"),
            ],
        );
        let windows = format!("{at}: Forbidden: cannot be set for a windows pod");
        check(json!({"os": {"name": "windows"}}), status(json!({"uid": 0, "gid": 0})), json!({}), &[&windows]);
    }

    #[test]
    fn status_update_rejects_health_of_devices_that_the_container_does_not_request() {
        let spec = || {
            json!({"containers": [{"name": "c", "resources":
                {"requests": {"example.com/gpu": "1"}, "claims": [{"name": "a"}, {"name": "b", "request": "r"}]}}]})
        };
        let status = |list: &str, name: &str, devices: Value| json!({list: [{"name": "c", "allocatedResourcesStatus": [{"name": name, "resources": devices}]}]});
        let list = "containerStatuses";
        let healthy = json!([{"resourceID": "1", "health": "Healthy"}]);
        for name in ["example.com/gpu", "claim:a", "claim:b/r"] {
            check(spec(), status(list, name, healthy.clone()), json!({}), &[]);
        }
        let at = "status.containerStatuses[0].allocatedResourcesStatus[0]";
        let no_request = "must match one of the container's resource requests";
        let no_claim = "must match one of the container's resource claims in a format 'claim:<claimName>/<request>' or 'claim:<claimName>' if request is empty";
        for (name, why) in [("cpu", no_request), ("claim:b", no_claim), ("claim:a/r", no_claim)] {
            let why = format!("{at}.name: Invalid value: \"{name}\": {why}");
            check(spec(), status(list, name, healthy.clone()), json!({}), &[&why]);
        }
        let long = "x".repeat(HEALTH_MESSAGE_BYTES_MAX + 1);
        let devices = json!([{"resourceID": "1", "health": "Odd", "message": ""},
            {"resourceID": "1", "health": "Unknown", "message": long}]);
        check(
            spec(),
            status(list, "claim:a", devices),
            json!({}),
            &[
                &format!(
                    "{at}.resources[0].health: Unsupported value: \"Odd\": supported values: \"Healthy\", \"Unhealthy\", \"Unknown\""
                ),
                &format!("{at}.resources[0].message: Required value: must be non-empty if specified"),
                &format!("{at}.resources[1].message: Too long: may not be more than 1024 bytes"),
                &format!("{at}.resources[1].resourceID: Duplicate value: \"1\""),
            ],
        );
        let list = "ephemeralContainerStatuses";
        let refused =
            format!("status.{list}[0].allocatedResourcesStatus: Forbidden: must not be specified in container status");
        check(spec(), status(list, "claim:a", json!([])), json!({}), &[&refused]);
    }
}
