//! Completes the spec of a new pod: label keys of scheduling constraints, and AppArmor profiles of annotations.
//!
//! Source: `mutatePodAffinity`, `mutateTopologySpreadConstraints` and `applyAppArmorVersionSkew` in
//! `pkg/registry/core/pod/strategy.go` of Kubernetes v1.36. No field manager owns the fields that are set here.

use std::collections::HashMap;

use listwatch_json::{Map, Value, json};
use listwatch_schema::Path;
use listwatch_validation::pod_spec::{APPARMOR_OF_CONTAINER, PROFILE_BYTES_MAX};
use listwatch_validation::{Object, child, child_mut, given, is_same, metadata, objects, text, texts};

/// The longest label value, in bytes. Longer values are not merged, because validation rejects the pod.
const LABEL_VALUE_BYTES_MAX: usize = 63;

/// How often one key of a list is merged into one selector. Validation rejects the second requirement of a key of
/// `matchLabelKeys`. More requirements of a key of `mismatchLabelKeys` select the same pods: upstream stores them all.
const KEY_COPIES_MAX: usize = 2;

/// The largest size of the merged requirements of one pod, in bytes of JSON. Later keys are not merged, because the
/// storage rejects the pod: it is larger than `VALUE_BYTES_MAX`. A short key in a request is much smaller than its
/// requirement.
const MERGED_BYTES_MAX: usize = 2 * 1024 * 1024;

/// The bytes of a requirement without its key, its operator and its value: `{"key":"","operator":"","values":[""]},`.
const REQUIREMENT_BYTES: usize = 39;

const MATCH: (&str, &str) = ("matchLabelKeys", "In");
const MISMATCH: (&str, &str) = ("mismatchLabelKeys", "NotIn");

/// The lists of containers, in upstream's order (`VisitContainers`).
const CONTAINERS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// Adds the pod's values of `matchLabelKeys` and `mismatchLabelKeys` to the label selectors of pod affinity and topology
/// spread.
pub fn merge_label_keys(pod: &mut Object) {
    let constrained =
        |spec: &Object| given(spec, "affinity").is_some() || given(spec, "topologySpreadConstraints").is_some();
    if !constrained(child(pod, "spec")) {
        return;
    }
    let Some(mut spec) = pod.get_mut("spec").map(Value::take) else { return };
    let labels = child(metadata(pod), "labels");
    let mut bytes = MERGED_BYTES_MAX;
    for kind in ["podAffinity", "podAntiAffinity"] {
        let Some(affinity) = spec.get_mut("affinity").and_then(|affinity| affinity.get_mut(kind)) else { continue };
        for weighted in objects_mut(affinity.get_mut("preferredDuringSchedulingIgnoredDuringExecution")) {
            if let Some(Value::Object(term)) = weighted.get_mut("podAffinityTerm") {
                merge_into_selector(term, &[MATCH, MISMATCH], labels, &mut bytes);
            }
        }
        for term in objects_mut(affinity.get_mut("requiredDuringSchedulingIgnoredDuringExecution")) {
            merge_into_selector(term, &[MATCH, MISMATCH], labels, &mut bytes);
        }
    }
    for constraint in objects_mut(spec.get_mut("topologySpreadConstraints")) {
        merge_into_selector(constraint, &[MATCH], labels, &mut bytes);
    }
    pod.insert("spec", spec);
}

fn objects_mut(list: Option<&mut Value>) -> impl Iterator<Item = &mut Map> {
    list.and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

/// Adds one requirement for each listed key that the pod has as a label. A term without `labelSelector` selects nothing
/// and stays as it is. `bytes` is what remains of [`MERGED_BYTES_MAX`].
fn merge_into_selector(term: &mut Map, lists: &[(&str, &str)], labels: &Object, bytes: &mut usize) {
    if !matches!(term.get("labelSelector"), Some(Value::Object(_))) {
        return;
    }
    let mut requirements = Vec::new();
    for (list, operator) in lists {
        let mut copies: HashMap<&str, usize> = HashMap::new();
        for key in texts(term, list) {
            let value = labels.get(key).and_then(Value::as_str);
            let Some(value) = value.filter(|value| value.len() <= LABEL_VALUE_BYTES_MAX) else { continue };
            let copies = copies.entry(key).or_default();
            *copies += 1;
            if *copies > KEY_COPIES_MAX {
                continue;
            }
            let size = REQUIREMENT_BYTES + key.len() + operator.len() + value.len();
            let Some(rest) = bytes.checked_sub(size) else { break };
            *bytes = rest;
            requirements.push(json!({"key": key, "operator": *operator, "values": [value]}));
        }
    }
    if requirements.is_empty() {
        return;
    }
    let selector = child_mut(term, "labelSelector");
    match selector.get_mut("matchExpressions") {
        Some(Value::Array(present)) => present.append(&mut requirements),
        _ => {
            selector.insert("matchExpressions", Value::Array(requirements));
        }
    }
}

/// Copies AppArmor annotations to containers that have no AppArmor profile.
pub fn copy_app_armor_annotations(pod: &mut Object) {
    if !has_app_armor_annotations(pod) {
        return;
    }
    let Some(mut spec) = pod.get_mut("spec").map(Value::take) else { return };
    // The map yields each annotation once, so a pod cannot multiply a long annotation. Validation rejects a second
    // container with the same name.
    let mut annotations = app_armor_annotations(pod);
    let of_pod = spec.as_object().and_then(own_profile).cloned();
    for list in CONTAINERS {
        for container in objects_mut(spec.get_mut(list)) {
            if let Some(annotation) = annotations.remove(text(container, "name"))
                && own_profile(container).is_none()
                && let Some(profile) = profile_of(annotation)
                && !is_same(Some(&profile), of_pod.as_ref())
            {
                child_mut(container, "securityContext").insert("appArmorProfile", profile);
            }
        }
    }
    pod.insert("spec", spec);
}

/// Warns about AppArmor annotations of containers without an AppArmor profile. The pod is as the client sent it, because
/// the copy of an annotation is no profile of the client.
pub fn app_armor_warnings(pod: &Object) -> Vec<String> {
    if !has_app_armor_annotations(pod) {
        return Vec::new();
    }
    let spec = child(pod, "spec");
    let mut annotations = app_armor_annotations(pod);
    let of_pod = own_profile(spec);
    let mut warnings = Vec::new();
    for (_, container) in CONTAINERS.iter().flat_map(|list| objects(spec, list)) {
        let name = text(container, "name");
        let Some(annotation) = annotations.remove(name) else { continue };
        let profile = profile_of(annotation);
        // The profile of the pod says the same as the annotation.
        let redundant = profile.is_some() && is_same(profile.as_ref(), of_pod);
        if own_profile(container).is_none() && !redundant {
            let metadata_at = Path::root("metadata");
            let at = metadata_at.child("annotations");
            let key = format!("{APPARMOR_OF_CONTAINER}{name}");
            let at = at.key(&key);
            warnings.push(format!("{at}: deprecated since v1.30; use the \"appArmorProfile\" field instead"));
        }
    }
    warnings
}

/// Whether AppArmor annotations apply to the pod. They do not apply to pods for Windows.
fn has_app_armor_annotations(pod: &Object) -> bool {
    let annotations = child(metadata(pod), "annotations");
    annotations.keys().any(|name| name.starts_with(APPARMOR_OF_CONTAINER))
        && text(child(child(pod, "spec"), "os"), "name") != "windows"
}

/// The AppArmor annotations by the names of the containers.
fn app_armor_annotations(pod: &Object) -> HashMap<&str, &str> {
    let annotations = child(metadata(pod), "annotations").iter();
    annotations.filter_map(|(name, value)| Some((name.strip_prefix(APPARMOR_OF_CONTAINER)?, value.as_str()?))).collect()
}

/// The AppArmor profile in the security context of a container or of a pod spec.
fn own_profile(holder: &Object) -> Option<&Value> {
    given(child(holder, "securityContext"), "appArmorProfile")
}

/// The profile that an annotation names (`ApparmorFieldForAnnotation`). `None` if the profile would be invalid
/// (`ValidateAppArmorProfileField`).
fn profile_of(annotation: &str) -> Option<Value> {
    match annotation {
        "unconfined" => Some(json!({"type": "Unconfined"})),
        "runtime/default" => Some(json!({"type": "RuntimeDefault"})),
        _ => {
            let path = annotation.strip_prefix("localhost/")?;
            let valid = !path.is_empty() && path.trim() == path && path.len() <= PROFILE_BYTES_MAX;
            valid.then(|| json!({"type": "Localhost", "localhostProfile": path}))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::map;

    #[test]
    fn label_keys_of_new_pod_are_merged_into_the_label_selector() {
        let check = |place: &str, term: Value, expected: Value| {
            let labels = json!({"app": "web", "hash": "1"});
            let spec = |term: Value| match place {
                "topologySpreadConstraints" => json!({ place: [term] }),
                "preferred" => json!({"affinity": {"podAffinity":
                    {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]}}}),
                kind => json!({"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}),
            };
            let mut pod = map(json!({"metadata": {"labels": labels}, "spec": spec(term)}));
            merge_label_keys(&mut pod);
            assert_eq!(pod["spec"], spec(expected), "{place}");
        };
        let requires =
            |key: &str, operator: &str, value: &str| json!({"key": key, "operator": operator, "values": [value]});
        for place in ["podAffinity", "podAntiAffinity", "preferred", "topologySpreadConstraints"] {
            let term = |selector: Value| json!({"labelSelector": selector, "matchLabelKeys": ["hash", "absent"]});
            check(place, term(json!({})), term(json!({"matchExpressions": [requires("hash", "In", "1")]})));
            let present = requires("app", "In", "web");
            check(
                place,
                term(json!({ "matchExpressions": [present] })),
                term(json!({"matchExpressions": [present, requires("hash", "In", "1")]})),
            );
            check(place, term(Value::Null), term(Value::Null));
            check(place, json!({"labelSelector": {}}), json!({"labelSelector": {}}));
        }
        let keys = json!({"matchLabelKeys": ["hash"], "mismatchLabelKeys": ["app"]});
        let term = |selector: Value| {
            let mut term = keys.clone();
            term["labelSelector"] = selector;
            term
        };
        let merged = json!({"matchExpressions": [requires("hash", "In", "1"), requires("app", "NotIn", "web")]});
        check("podAffinity", term(json!({})), term(merged));
    }

    #[test]
    fn label_value_that_is_too_long_is_not_merged() {
        let term = json!({"labelSelector": {}, "matchLabelKeys": ["a"]});
        let mut pod = map(json!({"metadata": {"labels": {"a": "x".repeat(LABEL_VALUE_BYTES_MAX + 1)}},
            "spec": {"topologySpreadConstraints": [term]}}));
        merge_label_keys(&mut pod);
        assert_eq!(pod["spec"]["topologySpreadConstraints"][0], term);
    }

    /// The merged requirements of a pod with these constraints and the label `a`.
    fn merged(spec: Value, at: &str) -> Vec<Value> {
        let mut pod = map(json!({"metadata": {"labels": {"a": "1"}}, "spec": spec}));
        merge_label_keys(&mut pod);
        pod["spec"].pointer(at).and_then(Value::as_array).map(|list| list.to_vec()).unwrap_or_default()
    }

    #[test]
    fn label_key_that_is_listed_many_times_is_merged_twice() {
        let keys: Value = (0..1000).map(|_| json!("a")).collect();
        let requires = |operator: &str| json!({"key": "a", "operator": operator, "values": ["1"]});
        let selector = "labelSelector/matchExpressions";
        for (list, operator) in [MATCH, MISMATCH] {
            let term = json!({"labelSelector": {}, list: keys});
            let spec = json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}});
            let at = format!("/affinity/podAffinity/requiredDuringSchedulingIgnoredDuringExecution/0/{selector}");
            assert_eq!(merged(spec, &at), [requires(operator), requires(operator)], "{list}");
        }
        let spec = json!({"topologySpreadConstraints": [{"labelSelector": {}, "matchLabelKeys": keys}]});
        let at = format!("/topologySpreadConstraints/0/{selector}");
        assert_eq!(merged(spec, &at), [requires("In"), requires("In")]);
    }

    #[test]
    fn merged_requirements_of_a_pod_are_limited_in_bytes() {
        let constraint = || json!({"labelSelector": {}, "matchLabelKeys": ["a"]});
        let requirement = json!({"key": "a", "operator": "In", "values": ["1"]}).to_string();
        let fitting = MERGED_BYTES_MAX / (requirement.len() + 1);
        let constraints: Value = (0..fitting + 2).map(|_| constraint()).collect();
        let mut pod = map(json!({"metadata": {"labels": {"a": "1"}},
            "spec": {"topologySpreadConstraints": constraints}}));
        merge_label_keys(&mut pod);
        let constraints = &pod["spec"]["topologySpreadConstraints"];
        assert_ne!(constraints[fitting - 1], constraint());
        assert_eq!(constraints[fitting], constraint());
    }

    #[test]
    fn app_armor_annotation_of_new_pod_is_copied_to_the_field() {
        let check = |annotation: &str, spec: Value, expected: Value, warns: bool| {
            let key = format!("{APPARMOR_OF_CONTAINER}c");
            let annotations = Value::from_iter([(key.clone(), annotation)]);
            let mut pod = map(json!({"metadata": {"annotations": annotations}, "spec": spec}));
            let why = "deprecated since v1.30; use the \"appArmorProfile\" field instead";
            let warning = warns.then(|| format!("metadata.annotations[{key}]: {why}"));
            assert_eq!(app_armor_warnings(&pod), warning.into_iter().collect::<Vec<_>>(), "{annotation}");
            copy_app_armor_annotations(&mut pod);
            assert_eq!(pod["spec"], expected, "{annotation}");
        };
        let with = |profile: Value| json!({"name": "c", "securityContext": {"appArmorProfile": profile}});
        let bare = || json!({"name": "c"});
        let unconfined = || json!({"type": "Unconfined"});
        for list in CONTAINERS {
            let lists = |container: Value| json!({ list: [{"name": "other"}, container] });
            check("unconfined", lists(bare()), lists(with(unconfined())), true);
        }
        let one = |container: Value| json!({"containers": [container]});
        let local = json!({"type": "Localhost", "localhostProfile": "a/b"});
        check("localhost/a/b", one(bare()), one(with(local)), true);
        check("runtime/default", one(bare()), one(with(json!({"type": "RuntimeDefault"}))), true);
        // The own field wins, and an invalid value is not copied.
        check("runtime/default", one(with(unconfined())), one(with(unconfined())), false);
        for invalid in ["", "localhost/", "localhost/ a", "other"] {
            check(invalid, one(bare()), one(bare()), true);
        }
        let below = |profile: Value| json!({"securityContext": {"appArmorProfile": profile}, "containers": [bare()]});
        check("unconfined", below(unconfined()), below(unconfined()), false);
        let windows = || json!({"os": {"name": "windows"}, "containers": [bare()]});
        check("unconfined", windows(), windows(), false);
    }
}
