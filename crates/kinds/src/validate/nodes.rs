//! What Nodes demand (`ValidateNode` and `ValidateNodeUpdate` of `pkg/apis/core/validation`, Kubernetes v1.36).

use std::collections::HashSet;

use listwatch_meta::FieldError;
use listwatch_schema::Path;
use serde_json::Value;

use listwatch_meta::go::quote;
use listwatch_validation::formats::{Range, amount, is_full, legacy_cidr, qualified_name};
use listwatch_validation::resource_names::amount_of;
use listwatch_validation::{Errors, Object, child, given, items, number, objects, text};

/// Bytes of the name of a feature that a node declares.
const FEATURE_BYTES_MAX: usize = 253;
const PREFER_AVOID_PODS: &str = "scheduler.alpha.kubernetes.io/preferAvoidPods";

pub(crate) fn node(node: &Object, old: Option<&Object>, errors: &mut Errors) {
    let (spec, status) = (child(node, "spec"), child(node, "status"));
    annotations(node, errors);
    taints(spec, errors);
    amounts(status, errors);
    if let Some(capacity) = number(child(child(status, "nodeInfo"), "swap"), "capacity").filter(|bytes| *bytes <= 0) {
        // The field is upstream's own.
        errors.push(FieldError::invalid("metadata.nodeSwapStatus.capacity", capacity, "must be greater than zero"));
    }
    features(status, errors);
    pod_ranges(spec, errors);
    if let Some(old) = old {
        changed(node, old, errors);
    }
}

/// A status is judged by what an update may change, and not by the rules of a node alone.
pub(crate) fn node_status(node: &Object, old: Option<&Object>, errors: &mut Errors) {
    if let Some(old) = old {
        changed(node, old, errors);
    }
}

fn changed(node: &Object, old: &Object, errors: &mut Errors) {
    let (spec, status, before) = (child(node, "spec"), child(node, "status"), child(old, "spec"));
    let spec_at = Path::root("spec");
    annotations(node, errors);
    amounts(status, errors);
    features(status, errors);
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
    taints(spec, errors);
    if text(spec, "externalID") != text(before, "externalID") {
        errors.forbidden(&spec_at.child("externalID"), "may not be updated");
    }
}

fn annotations(node: &Object, errors: &mut Errors) {
    let annotations = child(child(node, "metadata"), "annotations");
    // Taints have a field of their own; what an annotation says about them is read by nobody.
    let avoided = text(annotations, PREFER_AVOID_PODS);
    if avoided.is_empty() {
        return;
    }
    let Ok(avoided) = serde_json::from_str::<Value>(avoided) else {
        // The reason is Go's JSON decoder's own upstream.
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

fn taints(spec: &Object, errors: &mut Errors) {
    // The field is upstream's own.
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
        match effect {
            "" => errors.required(&at.child("effect"), ""),
            "NoSchedule" | "PreferNoSchedule" | "NoExecute" => {}
            other => {
                errors.not_supported(&at.child("effect"), other, &["NoSchedule", "PreferNoSchedule", "NoExecute"]);
            }
        }
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

fn amounts(status: &Object, errors: &mut Errors) {
    let status_at = Path::root("status");
    for list in ["capacity", "allocatable"] {
        let list_at = status_at.child(list);
        for (name, value) in child(status, list) {
            amount_of(name, amount(value), &list_at.child(name), errors);
        }
    }
}

fn features(status: &Object, errors: &mut Errors) {
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

fn pod_ranges(spec: &Object, errors: &mut Errors) {
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

/// Drops what a node no longer has (`dropDisabledFields`): the source of its configuration, unless an older
/// server has stored one.
pub(crate) fn prepare_node(node: &mut Object, old: Option<&Object>) {
    for (part, name) in [("spec", "configSource"), ("status", "config")] {
        let used = old.is_some_and(|old| given(child(old, part), name).is_some());
        if !used && let Some(Value::Object(part)) = node.get_mut(part) {
            part.shift_remove(name);
        }
    }
}
