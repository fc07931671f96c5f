//! What single built-in kinds do beyond defaults when they are written, and which of their fields
//! never change (`pkg/registry/*/*/strategy.go`, `pkg/apis/*/validation`).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use listwatch_meta::FieldError;
use serde_json::{Map, Value, json};

use super::metadata::{self, FINALIZER_KUBERNETES};
use super::store::{at, child_mut, metadata, metadata_mut};
use crate::versions::autoscaling;

/// The label by which a namespace can be selected.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// Fields that never change once the object exists, by kind.
const IMMUTABLE: [(&str, &str, &[&str]); 14] = [
    ("apps", "DaemonSet", &["spec.selector"]),
    ("apps", "Deployment", &["spec.selector"]),
    ("apps", "ReplicaSet", &["spec.selector"]),
    ("apps", "ControllerRevision", &["data"]),
    ("batch", "Job", &["spec.selector", "spec.template", "spec.completionMode"]),
    ("networking.k8s.io", "IngressClass", &["spec.controller"]),
    ("rbac.authorization.k8s.io", "ClusterRoleBinding", &["roleRef"]),
    ("rbac.authorization.k8s.io", "RoleBinding", &["roleRef"]),
    ("resource.k8s.io", "ResourceClaim", &["spec"]),
    ("scheduling.k8s.io", "PriorityClass", &["value", "preemptionPolicy"]),
    ("storage.k8s.io", "StorageClass", &["provisioner", "parameters", "reclaimPolicy", "volumeBindingMode"]),
    ("storage.k8s.io", "VolumeAttachment", &["spec"]),
    ("", "Secret", &["type"]),
    ("", "PersistentVolume", &["spec.volumeMode"]),
];

/// What an unchanged spec of a pod may still change.
const POD_UPDATE: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// What a kind does to a body before anything is defaulted.
///
/// # Errors
/// What a decoder says.
pub(super) fn decode(group: &str, kind: &str, object: &mut Map<String, Value>) -> Result<(), String> {
    match (group, kind) {
        ("", "Secret") => {
            if let Some(Value::Object(texts)) = object.shift_remove("stringData") {
                let data = child_mut(object, "data");
                for (name, text) in texts {
                    let encoded = BASE64.encode(text.as_str().unwrap_or_default());
                    data.insert(name, Value::String(encoded));
                }
            }
            check_base64(object.get("data"))
        }
        ("", "ConfigMap") => check_base64(object.get("binaryData")),
        ("autoscaling", "HorizontalPodAutoscaler") => {
            autoscaling::drop_carriers(object);
            Ok(())
        }
        _ => Ok(()),
    }
}

fn check_base64(data: Option<&Value>) -> Result<(), String> {
    for text in data.and_then(Value::as_object).into_iter().flat_map(Map::values) {
        let Some(text) = text.as_str() else { continue };
        if let Err(error) = BASE64.decode(text) {
            let at = match error {
                base64::DecodeError::InvalidByte(at, _) => at,
                // Go names the beginning of the group of four that is not whole.
                _ => text.len().saturating_sub(1) / 4 * 4,
            };
            return Err(format!("illegal base64 data at input byte {at}"));
        }
    }
    Ok(())
}

/// What a kind does to a new object, behind the defaults.
pub(super) fn create(group: &str, kind: &str, object: &mut Map<String, Value>) {
    match (group, kind) {
        ("", "Namespace") => {
            child_mut(object, "spec").insert("finalizers".to_owned(), json!([FINALIZER_KUBERNETES]));
            name_label(object);
        }
        ("", "Pod") => {
            let class = quality_of_service(object.get("spec"));
            object.insert("status".to_owned(), json!({"phase": "Pending", "qosClass": class}));
        }
        ("", "PersistentVolume") => {
            let since = metadata(object).get("creationTimestamp").cloned().unwrap_or_default();
            child_mut(object, "status").insert("lastPhaseTransitionTime".to_owned(), since);
        }
        ("apps", "DaemonSet") => set_template_generation(object, 1),
        ("batch", "Job") => generate_selector(object),
        _ => {}
    }
}

/// What a kind keeps of the old object in an update of its main resource, behind the defaults.
pub(super) fn update(group: &str, kind: &str, new: &mut Map<String, Value>, old: &Map<String, Value>) {
    if (group, kind) == ("apps", "DaemonSet") {
        // The annotation is all that is left of a field of former versions.
        let before = template_generation(old).unwrap_or(1);
        let changed = at(new, "spec.template") != at(old, "spec.template");
        set_template_generation(new, if changed { before.saturating_add(1) } else { before });
    }
    if (group, kind) == ("", "Namespace") {
        // These are for `/finalize`.
        let kept = old.get("spec").and_then(|spec| spec.get("finalizers")).cloned();
        let spec = child_mut(new, "spec");
        match kept {
            Some(finalizers) => spec.insert("finalizers".to_owned(), finalizers),
            None => spec.shift_remove("finalizers"),
        };
    }
}

/// The annotation that says how often a daemon set's template was changed.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

fn template_generation(object: &Map<String, Value>) -> Option<i64> {
    metadata(object).get("annotations")?.get(TEMPLATE_GENERATION)?.as_str()?.parse().ok()
}

fn set_template_generation(object: &mut Map<String, Value>, generation: i64) {
    let annotations = child_mut(metadata_mut(object), "annotations");
    annotations.insert(TEMPLATE_GENERATION.to_owned(), Value::String(generation.to_string()));
}

/// The label that carries the namespace's own name.
pub(super) fn name_label(object: &mut Map<String, Value>) {
    let name = metadata::text(metadata(object), "name").to_owned();
    if !name.is_empty() {
        child_mut(metadata_mut(object), "labels").insert(NAME_LABEL.to_owned(), Value::String(name));
    }
}

/// A job selects its pods by its own uid, unless the client chose the selector.
fn generate_selector(object: &mut Map<String, Value>) {
    let meta = metadata(object);
    let (name, uid) = (metadata::text(meta, "name").to_owned(), metadata::text(meta, "uid").to_owned());
    let spec = child_mut(object, "spec");
    if spec.get("manualSelector") == Some(&Value::Bool(true)) {
        return;
    }
    let template = child_mut(spec, "template");
    let labels = child_mut(child_mut(template, "metadata"), "labels");
    for (label, value) in [
        ("batch.kubernetes.io/controller-uid", &uid),
        ("batch.kubernetes.io/job-name", &name),
        ("controller-uid", &uid),
        ("job-name", &name),
    ] {
        labels.insert(label.to_owned(), Value::String(value.clone()));
    }
    let generated = labels.clone();
    spec.insert("selector".to_owned(), json!({"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}));
    let meta = metadata_mut(object);
    if meta.get("labels").and_then(Value::as_object).is_none_or(Map::is_empty) {
        meta.insert("labels".to_owned(), Value::Object(generated));
    }
}

/// `Guaranteed`, `Burstable` or `BestEffort`, from requests and limits of cpu and memory.
fn quality_of_service(spec: Option<&Value>) -> &'static str {
    let lists = ["containers", "initContainers"];
    let containers = lists.iter().filter_map(|list| spec?.get(list)?.as_array()).flatten();
    let (mut any, mut guaranteed) = (false, true);
    for container in containers {
        for resource in ["cpu", "memory"] {
            let amount = |kind: &str| container.pointer(&format!("/resources/{kind}/{resource}"));
            let (request, limit) = (amount("requests"), amount("limits"));
            any |= request.is_some() || limit.is_some();
            guaranteed &= limit.is_some() && (request.is_none() || request == limit);
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// Finds changes of what never changes.
pub(super) fn validate_update(
    group: &str,
    kind: &str,
    new: &Map<String, Value>,
    old: &Map<String, Value>,
    errors: &mut Vec<FieldError>,
) {
    let fields = IMMUTABLE.iter().find(|(g, k, _)| *g == group && *k == kind).map_or(&[][..], |(.., fields)| fields);
    for field in fields {
        let (before, after) = (at(old, field), at(new, field));
        if before.is_some_and(|before| !before.is_null()) && before != after {
            errors.push(FieldError::invalid(*field, after.unwrap_or(&Value::Null), "field is immutable"));
        }
    }
    match (group, kind) {
        ("", "ConfigMap" | "Secret") if old.get("immutable") == Some(&Value::Bool(true)) => {
            for field in ["immutable", "data", "binaryData"] {
                if new.get(field) != old.get(field) {
                    errors.push(FieldError::forbidden(field, "field is immutable when `immutable` is set"));
                }
            }
        }
        ("", "Pod") if !same_pod(new.get("spec"), old.get("spec")) => {
            errors.push(FieldError::forbidden("spec", POD_UPDATE));
        }
        _ => {}
    }
}

/// Does an update of a pod change only what may change?
fn same_pod(new: Option<&Value>, old: Option<&Value>) -> bool {
    let (Some(Value::Object(new)), Some(Value::Object(old))) = (new, old) else { return new == old };
    let same = |name: &str| new.get(name) == old.get(name);
    let names = new.keys().chain(old.keys());
    names.map(String::as_str).all(|name| match name {
        "containers" | "initContainers" => {
            let list =
                |spec: &Map<String, Value>| spec.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
            let (mut new, mut old) = (list(new), list(old));
            for container in new.iter_mut().chain(&mut old).filter_map(Value::as_object_mut) {
                container.shift_remove("image");
            }
            new == old
        }
        "activeDeadlineSeconds" => {
            let seconds = |spec: &Map<String, Value>| spec.get(name).and_then(Value::as_i64);
            match (seconds(new), seconds(old)) {
                (Some(new), Some(old)) => new <= old,
                (None, Some(_)) => false,
                (_, None) => true,
            }
        }
        "terminationGracePeriodSeconds" => {
            same(name)
                || (old.get(name).and_then(Value::as_i64).is_some_and(|seconds| seconds < 0)
                    && new.get(name) == Some(&json!(1)))
        }
        "tolerations" => {
            let list =
                |spec: &Map<String, Value>| spec.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
            let new = list(new);
            list(old).iter().all(|toleration| new.contains(toleration))
        }
        "schedulingGates" => {
            let list =
                |spec: &Map<String, Value>| spec.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
            let old = list(old);
            list(new).iter().all(|gate| old.contains(gate))
        }
        // A pod that is gated may still be narrowed to fewer nodes.
        "nodeSelector" | "affinity" if old.contains_key("schedulingGates") => true,
        _ => same(name),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(value: Value) -> Map<String, Value> {
        let Value::Object(map) = value else { panic!("not an object") };
        map
    }

    #[test]
    fn secrets_take_plain_text() {
        let mut secret = map(json!({"data": {"a": "eA==", "c": "ZA=="}, "stringData": {"a": "b"}}));
        assert_eq!(decode("", "Secret", &mut secret), Ok(()));
        assert_eq!(Value::Object(secret), json!({"data": {"a": "Yg==", "c": "ZA=="}}));
        let mut broken = map(json!({"data": {"a": "!!"}}));
        assert_eq!(decode("", "Secret", &mut broken), Err("illegal base64 data at input byte 0".to_owned()));
    }

    fn check_class(containers: Value, expected: &str) {
        assert_eq!(quality_of_service(Some(&json!({"containers": containers}))), expected);
    }

    #[test]
    fn quality_of_service_follows_the_resources() {
        let both = |amount: &str| json!({"cpu": amount, "memory": amount});
        check_class(json!([{}]), "BestEffort");
        check_class(json!([{"resources": {"limits": both("1"), "requests": both("1")}}]), "Guaranteed");
        check_class(json!([{"resources": {"limits": both("1")}}]), "Guaranteed");
        check_class(json!([{"resources": {"limits": both("2"), "requests": both("1")}}]), "Burstable");
        check_class(json!([{"resources": {"limits": both("1")}}, {}]), "Burstable");
        check_class(json!([{"resources": {"requests": {"cpu": "1"}}}]), "Burstable");
    }

    fn check(group: &str, kind: &str, new: Value, old: Value, expected: &[&str]) {
        let mut errors = Vec::new();
        validate_update(group, kind, &map(new), &map(old), &mut errors);
        let found: Vec<String> = errors.iter().map(FieldError::to_string).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn what_never_changes() {
        let selector = |value: &str| json!({"spec": {"selector": {"matchLabels": {"a": value}}}});
        check("apps", "Deployment", selector("b"), selector("b"), &[]);
        check(
            "apps",
            "Deployment",
            selector("c"),
            selector("b"),
            &["spec.selector: Invalid value: {\"matchLabels\":{\"a\":\"c\"}}: field is immutable"],
        );
        check(
            "",
            "Secret",
            json!({"type": "b"}),
            json!({"type": "a"}),
            &["type: Invalid value: \"b\": field is immutable"],
        );
        check(
            "",
            "ConfigMap",
            json!({"immutable": true, "data": {"a": "2"}}),
            json!({"immutable": true, "data": {"a": "1"}}),
            &["data: Forbidden: field is immutable when `immutable` is set"],
        );
        check("", "ConfigMap", json!({"data": {"a": "2"}}), json!({"data": {"a": "1"}}), &[]);
    }

    #[test]
    fn pods_hardly_change() {
        let refused = format!("spec: Forbidden: {POD_UPDATE}");
        let check = |new: Value, old: Value, fine: bool| {
            let expected: &[&str] = if fine { &[] } else { &[&refused] };
            check("", "Pod", json!({"spec": new}), json!({"spec": old}), expected);
        };
        let spec = || json!({"containers": [{"name": "a", "image": "x"}], "tolerations": [{"key": "k"}]});
        let with = |name: &str, value: Value| {
            let mut spec = spec();
            spec[name] = value;
            spec
        };
        check(spec(), spec(), true);
        check(with("containers", json!([{"name": "a", "image": "y"}])), spec(), true);
        check(with("containers", json!([{"name": "b", "image": "x"}])), spec(), false);
        check(with("nodeName", json!("n")), spec(), false);
        check(with("tolerations", json!([{"key": "k"}, {"key": "l"}])), spec(), true);
        check(with("tolerations", json!([])), spec(), false);
        check(with("activeDeadlineSeconds", json!(5)), spec(), true);
        check(with("activeDeadlineSeconds", json!(5)), with("activeDeadlineSeconds", json!(3)), false);
        check(spec(), with("schedulingGates", json!([{"name": "g"}])), true);
        check(with("schedulingGates", json!([{"name": "g"}])), spec(), false);
    }

    #[test]
    fn jobs_select_by_their_uid() {
        let mut job = map(json!({"metadata": {"name": "j", "uid": "u"}, "spec": {"template": {}}}));
        create("batch", "Job", &mut job);
        let labels = json!({"batch.kubernetes.io/controller-uid": "u", "batch.kubernetes.io/job-name": "j",
            "controller-uid": "u", "job-name": "j"});
        assert_eq!(job["spec"]["template"]["metadata"]["labels"], labels);
        assert_eq!(job["metadata"]["labels"], labels);
    }
}
