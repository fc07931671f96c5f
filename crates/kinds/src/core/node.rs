//! Node (`v1`): a machine that runs pods.
//!
//! Source: `pkg/registry/core/node/strategy.go`, `ValidateNode` and `ValidateNodeUpdate` in
//! `pkg/apis/core/validation`.

use std::collections::HashSet;

use listwatch_json::{Map, Value, json};
use listwatch_meta::FieldError;
use listwatch_meta::go::quote;
use listwatch_schema::Path;
use listwatch_validation::field_rules::{drop_unless_used, required_one_of};
use listwatch_validation::formats::{Range, amount, is_full, legacy_cidr, qualified_name};
use listwatch_validation::{Errors, Object, child, given, items, number, objects, text};

use crate::defaults::Default::{Do, In, Number};
use crate::defaults::{BLANK, Defaults};
use crate::kind::StoredText::With;
use crate::{Field, Kind, Subresource};
use listwatch_printers::text::{NONE, or};
use listwatch_printers::{AGE, Cell, Column, Json, NAME};
use listwatch_printers::{Printed, Printer};
use listwatch_validation::resource_names::amount_of;

pub(crate) static KIND: Kind = Kind {
    short_names: &["no"],
    storage_prefix: "minions",
    fields: &[Field::with_default("spec.unschedulable", "false")],
    subresources: &[Subresource::Status, Subresource::Proxy { options: "NodeProxyOptions" }],
    defaults: &DEFAULTS,
    stored_texts: &[With(r#""capacity":{"#, r#""allocatable":{"#)],
    initial_status: || None,
    prepare_for_create: |node, _| drop_dynamic_config(node, None),
    prepare_for_update: |node, old, _| drop_dynamic_config(node, Some(old)),
    validate,
    validate_status,
    warnings: listwatch_kind_warnings::node::of_node,
    printer: &PRINTER,
    zero_members: r#""spec":{},"status":{}"#,
    ..Kind::cluster("", "v1", "nodes", "Node")
};

/// The largest size of the name of a declared feature, in bytes.
const FEATURE_BYTES_MAX: usize = 253;

const PREFER_AVOID_PODS: &str = "scheduler.alpha.kubernetes.io/preferAvoidPods";

static ENDPOINT_DEFAULTS: Defaults = Defaults(&[("Port", Number(0))]);

static DAEMON_ENDPOINTS_DEFAULTS: Defaults = Defaults(&[("kubeletEndpoint", In(&ENDPOINT_DEFAULTS))]);

static INFO_DEFAULTS: Defaults = Defaults(&[
    ("machineID", BLANK),
    ("systemUUID", BLANK),
    ("bootID", BLANK),
    ("kernelVersion", BLANK),
    ("osImage", BLANK),
    ("containerRuntimeVersion", BLANK),
    ("kubeletVersion", BLANK),
    ("kubeProxyVersion", BLANK),
    ("operatingSystem", BLANK),
    ("architecture", BLANK),
]);

static STATUS_DEFAULTS: Defaults = Defaults(&[
    ("allocatable", Do(default_allocatable)),
    ("daemonEndpoints", In(&DAEMON_ENDPOINTS_DEFAULTS)),
    ("nodeInfo", In(&INFO_DEFAULTS)),
]);

static SPEC_DEFAULTS: Defaults = Defaults(&[("podCIDR", Do(synchronize_pod_cidrs))]);

static DEFAULTS: Defaults = Defaults(&[("spec", In(&SPEC_DEFAULTS)), ("status", In(&STATUS_DEFAULTS))]);

/// Applies the default of `allocatable`: the value of `capacity`.
fn default_allocatable(status: &mut Map) {
    let none = |value: Option<&Value>| value.and_then(Value::as_object).is_none_or(Map::is_empty);
    if none(status.get("allocatable"))
        && let Some(capacity) = status.get("capacity").filter(|capacity| !none(Some(capacity))).cloned()
    {
        status.insert("allocatable", capacity);
    }
}

/// Makes `podCIDR` equal to the first range of `podCIDRs`. If both are present and differ, `podCIDR` wins, because clients
/// that do not know `podCIDRs` change only `podCIDR` (`Convert_v1_NodeSpec_To_core_NodeSpec` and its inverse).
fn synchronize_pod_cidrs(spec: &mut Map) {
    let single = text(spec, "podCIDR");
    let first = spec.get("podCIDRs").and_then(|ranges| ranges.get(0)).map(|first| first.as_str().unwrap_or_default());
    if single.is_empty() {
        if let Some(first) = first.filter(|first| !first.is_empty()) {
            let first = Value::from(first);
            spec.insert("podCIDR", first);
        }
    } else if first != Some(single) {
        let ranges = json!([single]);
        spec.insert("podCIDRs", ranges);
    }
}

/// Drops the fields of dynamic kubelet configuration, unless the stored object has them (`dropDisabledFields`).
fn drop_dynamic_config(node: &mut Object, old: Option<&Object>) {
    for (part, name) in [("spec", "configSource"), ("status", "config")] {
        drop_unless_used(node, old, &[part], &[name]);
    }
}

fn validate(node: &Object, old: Option<&Object>, errors: &mut Errors) {
    let (spec, status) = (child(node, "spec"), child(node, "status"));
    validate_annotations(node, errors);
    validate_taints(spec, errors);
    validate_amounts(status, errors);
    if let Some(capacity) = number(child(child(status, "nodeInfo"), "swap"), "capacity").filter(|bytes| *bytes <= 0) {
        // Upstream reports this field.
        errors.push(FieldError::invalid("metadata.nodeSwapStatus.capacity", capacity, "must be greater than zero"));
    }
    validate_declared_features(status, errors);
    validate_pod_cidrs(spec, errors);
    if let Some(old) = old {
        validate_changes(node, old, errors);
    }
}

/// Validates only the changes of the status. As in upstream, the rules of [`validate`] do not apply.
fn validate_status(node: &Object, old: Option<&Object>, errors: &mut Errors) {
    if let Some(old) = old {
        validate_changes(node, old, errors);
    }
}

/// Validates an update (`ValidateNodeUpdate`).
fn validate_changes(node: &Object, old: &Object, errors: &mut Errors) {
    let (spec, status, before) = (child(node, "spec"), child(node, "status"), child(old, "spec"));
    let spec_at = Path::root("spec");
    validate_annotations(node, errors);
    validate_amounts(status, errors);
    validate_declared_features(status, errors);
    let mut addresses = HashSet::new();
    for (index, address) in objects(status, "addresses") {
        let (kind, value) = (text(address, "type"), text(address, "address"));
        if !addresses.insert((kind, value)) {
            let shown = format!("{{\"Type\":{},\"Address\":{}}}", Value::from(kind), Value::from(value));
            errors.push(FieldError::duplicate(format!("status.addresses[{index}]"), shown));
        }
    }
    let (ranges, ranges_before) = (items(spec, "podCIDRs"), items(before, "podCIDRs"));
    if !ranges_before.is_empty() {
        let differences = if ranges.len() == ranges_before.len() {
            ranges.iter().zip(ranges_before).filter(|(now, then)| now != then).count()
        } else {
            1
        };
        for _ in 0..differences {
            let why = "node updates may not change podCIDR except from \"\" to valid";
            errors.forbidden(&spec_at.child("podCIDRs"), why);
        }
    }
    let provider = text(before, "providerID");
    if !provider.is_empty() && provider != text(spec, "providerID") {
        let why = "node updates may not change providerID except from \"\" to valid";
        errors.forbidden(&spec_at.child("providerID"), why);
    }
    validate_taints(spec, errors);
    if text(spec, "externalID") != text(before, "externalID") {
        errors.forbidden(&spec_at.child("externalID"), "may not be updated");
    }
}

fn validate_annotations(node: &Object, errors: &mut Errors) {
    let annotations = child(child(node, "metadata"), "annotations");
    // Upstream also reads taints from an annotation. Nothing uses them.
    let avoided = text(annotations, PREFER_AVOID_PODS);
    if avoided.is_empty() {
        return;
    }
    let Ok(avoided) = serde_json::from_str::<Value>(avoided) else {
        // Upstream reports the message of Go's JSON decoder.
        let why = "the annotation is no JSON";
        errors.push(FieldError::invalid("metadata.annotations.AvoidPods", quote(PREFER_AVOID_PODS), why));
        return;
    };
    for (index, entry) in avoided.as_object().into_iter().flat_map(|avoided| objects(avoided, "preferAvoidPods")) {
        let at = format!("metadata.annotations.{PREFER_AVOID_PODS}[{index}].PodSignature");
        match given(child(entry, "podSignature"), "podController") {
            None => errors.push(FieldError::required(at, "")),
            Some(controller) if controller.get("controller") != Some(&Value::Bool(true)) => {
                let why = "must point to a controller";
                errors.push(FieldError::invalid(format!("{at}.PodController.Controller"), false, why));
            }
            Some(_) => {}
        }
    }
}

fn validate_taints(spec: &Object, errors: &mut Errors) {
    // Upstream reports this field.
    let metadata_at = Path::root("metadata");
    let taints_at = metadata_at.child("taints");
    let mut seen = HashSet::new();
    for (index, taint) in objects(spec, "taints") {
        let at = taints_at.index(index);
        let (key, effect) = (text(taint, "key"), text(taint, "effect"));
        qualified_name(key, &at.child("key"), errors);
        let problems = listwatch_meta::selector::label_value_problems(text(taint, "value"));
        if !problems.is_empty() {
            errors.invalid(&at.child("value"), text(taint, "value"), problems.join(";"));
        }
        required_one_of(taint, "effect", &["NoSchedule", "PreferNoSchedule", "NoExecute"], &at, errors);
        if !seen.insert((key, effect)) {
            let shown = format!(
                "{{\"Key\":{},\"Value\":{},\"Effect\":{},\"TimeAdded\":{}}}: taints must be unique by key and effect pair",
                Value::from(key),
                Value::from(text(taint, "value")),
                Value::from(effect),
                taint.get("timeAdded").unwrap_or(&Value::Null)
            );
            errors.push(FieldError::duplicate(at, shown));
        }
    }
}

fn validate_amounts(status: &Object, errors: &mut Errors) {
    let status_at = Path::root("status");
    for list in ["capacity", "allocatable"] {
        let list_at = status_at.child(list);
        for (name, value) in child(status, list) {
            amount_of(name, amount(value), &list_at.child(name), errors);
        }
    }
}

fn validate_declared_features(status: &Object, errors: &mut Errors) {
    let status_at = Path::root("status");
    let at = status_at.child("declaredFeatures");
    let mut last: Option<&str> = None;
    for (index, feature) in items(status, "declaredFeatures").iter().enumerate() {
        if is_full(errors) {
            return;
        }
        let feature = feature.as_str().unwrap_or_default();
        let at = at.index(index);
        match last {
            Some(last) if last == feature => errors.duplicate(&at, feature),
            Some(last) if last > feature => errors.invalid(&at, feature, "list must be sorted alphabetically"),
            _ => {}
        }
        last = Some(feature);
        let mut parts = feature.split('/');
        let word = |part: &str| {
            part.starts_with(|c: char| c.is_ascii_alphabetic()) && part.bytes().all(|byte| byte.is_ascii_alphanumeric())
        };
        let begins = parts.next().is_some_and(|part| part.starts_with(|c: char| c.is_ascii_uppercase()) && word(part));
        if feature.len() > FEATURE_BYTES_MAX {
            let why = format_args!(
                "invalid feature name {}: must be no more than {FEATURE_BYTES_MAX} characters",
                quote(feature)
            );
            errors.invalid(&at, feature, why);
        } else if !begins || !parts.all(word) {
            let why = format_args!(
                "invalid feature name {}: must start with an UpperCamelCase segment, with subsequent segments separated by '/' (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes",
                quote(feature)
            );
            errors.invalid(&at, feature, why);
        }
    }
}

fn validate_pod_cidrs(spec: &Object, errors: &mut Errors) {
    let spec_at = Path::root("spec");
    let at = spec_at.child("podCIDRs");
    let ranges = items(spec, "podCIDRs");
    for (index, range) in ranges.iter().enumerate() {
        legacy_cidr(range.as_str().unwrap_or_default(), &at.index(index), errors);
    }
    if ranges.len() < 2 {
        return;
    }
    let read: Vec<Option<Range>> = ranges.iter().map(|range| range.as_str().and_then(Range::parse)).collect();
    if let Some(index) = read.iter().position(Option::is_none) {
        let wrong = ranges[index].as_str().unwrap_or_default();
        let message = format!(
            "Internal error: invalid PodCIDRs. failed to check with dual stack with error:invalid CIDR[{index}]: <nil> (invalid CIDR address: {wrong})"
        );
        errors.push(FieldError { field: at.to_string(), reason: "InternalError", message });
    }
    let has = |six: bool| read.iter().flatten().any(|range| range.is_ipv6() == six);
    if !(has(true) && has(false)) || read.iter().any(Option::is_none) || ranges.len() > 2 {
        errors.invalid_value(&at, Value::from(ranges), "may specify no more than one CIDR for each IP family");
    }
}

static PRINTER: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Status", "Whether the node is ready and takes pods."),
        Column::text("Roles", "The roles of the node, from its labels."),
        AGE,
        Column::text("Version", "The version of the kubelet."),
        Column::wide("Internal-IP", "The node's address inside the cluster."),
        Column::wide("External-IP", "The node's address outside the cluster."),
        Column::wide("OS-Image", "The operating system."),
        Column::wide("Kernel-Version", "The kernel and its architecture."),
        Column::wide("Container-Runtime", "What runs the containers."),
    ],
    cells,
};

fn cells(node: Printed<'_>) -> Vec<Cell> {
    let status = node.status();
    let info = status.get("nodeInfo");
    let mut state = match status.get("conditions").items().into_iter().rfind(|c| c.get("type").is("Ready")) {
        None => "Unknown".to_owned(),
        Some(ready) if ready.get("status").is("True") => "Ready".to_owned(),
        Some(_) => "NotReady".to_owned(),
    };
    if node.at("spec.unschedulable").bool() == Some(true) {
        state.push_str(",SchedulingDisabled");
    }
    let address = |type_: &str| {
        let address = status.get("addresses").items().into_iter().find(|address| address.get("type").is(type_));
        address.map_or_else(|| NONE.to_owned(), |address| address.get("address").string())
    };
    let known = |key: &str| info.get(key).string_or("<unknown>");
    let kernel = match info.get("architecture").string().as_str() {
        "" => known("kernelVersion"),
        architecture => format!("{} ({architecture})", known("kernelVersion")),
    };
    vec![
        node.name().into(),
        state.into(),
        or(roles(node.at("metadata.labels")), NONE).into(),
        node.age().into(),
        info.get("kubeletVersion").string().into(),
        address("InternalIP").into(),
        address("ExternalIP").into(),
        known("osImage").into(),
        kernel.into(),
        known("containerRuntimeVersion").into(),
    ]
}

/// The roles in the labels of the node, sorted.
fn roles(labels: Json<'_>) -> String {
    let mut roles: Vec<String> = Vec::new();
    for (label, value) in labels.entries() {
        match label.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => roles.push(role.to_owned()),
            None if label == "kubernetes.io/role" => roles.push(value.string()),
            None => {}
        }
    }
    roles.retain(|role| !role.is_empty());
    roles.sort();
    roles.dedup();
    roles.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::map;

    #[test]
    fn pod_cidr_and_first_pod_cidr_are_synchronized() {
        let check = |spec: Value, expected: Value| {
            let mut node = map(json!({ "spec": spec }));
            crate::defaults::apply(KIND.defaults, &mut node);
            assert_eq!(node["spec"], expected);
        };
        let both = |single: &str, list: &[&str]| json!({"podCIDR": single, "podCIDRs": list});
        check(json!({"podCIDR": "10.0.0.0/24"}), both("10.0.0.0/24", &["10.0.0.0/24"]));
        check(json!({"podCIDRs": ["10.0.0.0/24"]}), json!({"podCIDRs": ["10.0.0.0/24"], "podCIDR": "10.0.0.0/24"}));
        check(both("", &["10.0.0.0/24", "fd00::/64"]), both("10.0.0.0/24", &["10.0.0.0/24", "fd00::/64"]));
        check(both("10.0.1.0/24", &["10.0.0.0/24", "fd00::/64"]), both("10.0.1.0/24", &["10.0.1.0/24"]));
        check(both("10.0.0.0/24", &["10.0.0.0/24", "fd00::/64"]), both("10.0.0.0/24", &["10.0.0.0/24", "fd00::/64"]));
        check(json!({}), json!({}));
    }
}
