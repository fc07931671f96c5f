//! Former API versions of built-in kinds: [`find`]. Objects that older releases of Kubernetes stored in these versions are
//! still read.
//!
//! Upstream applies the defaults of the former version at each read, and converts the object through the internal type.
//! Here the defaults of the current version follow, and fill what is still absent.
//!
//! Source: `pkg/apis/*/install/install.go`, `pkg/apis/*/v*/{conversion,defaults}.go` of Kubernetes v1.36.

use listwatch_json::{Value, json};
use listwatch_validation::{Object, child, child_mut, items, metadata_mut, number, text, texts};

use crate::apps::daemon_set::{set_template_generation, template_generation};
use crate::apps::deployment::ROLLBACK_TO;
use crate::apps::update_strategy::rolling_update_default;
use crate::certificate_request::former_signer;
use crate::defaults::Default::{Each, From, If, In, Number, Text};
use crate::defaults::pod_spec::labels_of_template;
use crate::defaults::{self, Defaults, missing};
use crate::policy::pod_disruption_budget::{EMPTY_SELECTOR_MATCH, is_reserved, strip_reserved};

/// A former API version of a kind.
#[derive(Debug, Clone, Copy)]
pub struct FormerVersion {
    /// The `apiVersion` of the version that replaces it.
    pub current: &'static str,
    /// Applies the defaults of the former version where they differ from those of the current one, and converts the
    /// fields. `apiVersion` stays. Accepts the field names of both versions, because a protobuf message has only numbers.
    pub convert: fn(&mut Object),
}

/// Finds the former version of an object.
pub fn find(api_version: &str, kind: &str) -> Option<FormerVersion> {
    let (group, version) = api_version.split_once('/')?;
    let is_found =
        |(of, versions, _, kinds, _): &&Row| *of == group && versions.contains(&version) && kinds.contains(&kind);
    let (_, _, current, _, convert) = ROWS.iter().find(is_found)?;
    Some(FormerVersion { current, convert: *convert })
}

/// Some former versions of some kinds: group, versions, `apiVersion` of the current version, kinds, conversion.
type Row = (&'static str, &'static [&'static str], &'static str, &'static [&'static str], fn(&mut Object));

/// The conversion of objects that have the same fields and defaults as in the current version.
const SAME: fn(&mut Object) = |_| {};

const ADMISSION: &str = "admissionregistration.k8s.io/v1";
const APPS: &str = "apps/v1";
const CERTIFICATES: &str = "certificates.k8s.io/v1";
const FLOW_CONTROL: &str = "flowcontrol.apiserver.k8s.io/v1";
const NETWORKING: &str = "networking.k8s.io/v1";
const RBAC: &str = "rbac.authorization.k8s.io/v1";
const RESOURCE: &str = "resource.k8s.io/v1";
const STORAGE: &str = "storage.k8s.io/v1";

const POLICIES: &[&str] = &[
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
];
const LEVELS: &[&str] = &["PriorityLevelConfiguration"];
const WEBHOOK_CONFIGURATIONS: &[&str] = &["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"];

/// All former versions.
static ROWS: &[Row] = &[
    ("admissionregistration.k8s.io", &["v1alpha1", "v1beta1"], ADMISSION, POLICIES, SAME),
    ("admissionregistration.k8s.io", &["v1beta1"], ADMISSION, WEBHOOK_CONFIGURATIONS, default_webhooks),
    ("apiregistration.k8s.io", &["v1beta1"], "apiregistration.k8s.io/v1", &["APIService"], SAME),
    ("apps", &["v1beta1"], APPS, &["Deployment"], |workload| convert_deployment(workload, &DEPLOYMENT_OF_APPS_V1BETA1)),
    ("apps", &["v1beta1"], APPS, &["StatefulSet"], |set| default_workload(set, &UPDATE_ON_DELETE)),
    ("apps", &["v1beta1", "v1beta2"], APPS, &["ControllerRevision"], SAME),
    ("apps", &["v1beta2"], APPS, &["DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"], SAME),
    ("batch", &["v1beta1"], "batch/v1", &["CronJob"], SAME),
    ("certificates.k8s.io", &["v1beta1"], CERTIFICATES, &["CertificateSigningRequest"], default_certificate_request),
    ("coordination.k8s.io", &["v1beta1"], "coordination.k8s.io/v1", &["Lease"], SAME),
    ("discovery.k8s.io", &["v1beta1"], "discovery.k8s.io/v1", &["EndpointSlice"], convert_endpoint_slice),
    ("events.k8s.io", &["v1beta1"], "events.k8s.io/v1", &["Event"], SAME),
    ("extensions", &["v1beta1"], APPS, &["DaemonSet"], convert_daemon_set),
    ("extensions", &["v1beta1"], APPS, &["Deployment"], |workload| {
        convert_deployment(workload, &DEPLOYMENT_OF_EXTENSIONS)
    }),
    ("extensions", &["v1beta1"], APPS, &["ReplicaSet"], |set| default_workload(set, &Defaults::NONE)),
    ("extensions", &["v1beta1"], NETWORKING, &["Ingress"], convert_ingress),
    ("extensions", &["v1beta1"], NETWORKING, &["NetworkPolicy"], SAME),
    ("flowcontrol.apiserver.k8s.io", &["v1beta1", "v1beta2", "v1beta3"], FLOW_CONTROL, &["FlowSchema"], SAME),
    ("flowcontrol.apiserver.k8s.io", &["v1beta1", "v1beta2"], FLOW_CONTROL, LEVELS, convert_priority_level),
    ("flowcontrol.apiserver.k8s.io", &["v1beta3"], FLOW_CONTROL, LEVELS, convert_priority_level_of_v1beta3),
    ("networking.k8s.io", &["v1beta1"], NETWORKING, &["Ingress"], convert_ingress),
    ("networking.k8s.io", &["v1beta1"], NETWORKING, &["IPAddress", "IngressClass", "ServiceCIDR"], SAME),
    ("node.k8s.io", &["v1alpha1"], "node.k8s.io/v1", &["RuntimeClass"], convert_runtime_class),
    ("node.k8s.io", &["v1beta1"], "node.k8s.io/v1", &["RuntimeClass"], SAME),
    ("policy", &["v1beta1"], "policy/v1", &["PodDisruptionBudget"], convert_disruption_budget),
    ("rbac.authorization.k8s.io", &["v1alpha1", "v1beta1"], RBAC, &["ClusterRole", "Role"], SAME),
    ("rbac.authorization.k8s.io", &["v1alpha1"], RBAC, &["ClusterRoleBinding", "RoleBinding"], convert_subjects),
    ("rbac.authorization.k8s.io", &["v1beta1"], RBAC, &["ClusterRoleBinding", "RoleBinding"], SAME),
    ("resource.k8s.io", &["v1beta1", "v1beta2"], RESOURCE, &["DeviceClass"], SAME),
    ("resource.k8s.io", &["v1beta1"], RESOURCE, &["ResourceClaim"], convert_claim),
    ("resource.k8s.io", &["v1beta1"], RESOURCE, &["ResourceClaimTemplate"], |it| convert_claim(child_mut(it, "spec"))),
    ("resource.k8s.io", &["v1beta1"], RESOURCE, &["ResourceSlice"], convert_resource_slice),
    ("resource.k8s.io", &["v1beta2"], RESOURCE, &["ResourceClaim", "ResourceClaimTemplate", "ResourceSlice"], SAME),
    ("scheduling.k8s.io", &["v1beta1"], "scheduling.k8s.io/v1", &["PriorityClass"], SAME),
    ("storage.k8s.io", &["v1alpha1", "v1beta1"], STORAGE, &["CSIStorageCapacity", "VolumeAttachment"], SAME),
    ("storage.k8s.io", &["v1alpha1", "v1beta1"], STORAGE, &["VolumeAttributesClass"], SAME),
    ("storage.k8s.io", &["v1beta1"], STORAGE, &["CSIDriver", "CSINode", "StorageClass"], SAME),
];

static WEBHOOK: Defaults = Defaults(&[
    ("failurePolicy", Text("Ignore")),
    ("matchPolicy", Text("Exact")),
    ("sideEffects", Text("Unknown")),
    ("timeoutSeconds", Number(30)),
    ("admissionReviewVersions", From(|_| Some(json!(["v1beta1"])))),
]);

static WEBHOOKS: Defaults = Defaults(&[("webhooks", Each(&WEBHOOK))]);

static ON_DELETE: Defaults = Defaults(&[("type", Text("OnDelete"))]);

static UPDATE_ON_DELETE: Defaults = Defaults(&[("updateStrategy", In(&ON_DELETE))]);

static DEPLOYMENT_OF_APPS_V1BETA1: Defaults = Defaults(&[("revisionHistoryLimit", Number(2))]);

/// The value of a limit that means no limit.
const UNLIMITED: i64 = 2_147_483_647;

static DEPLOYMENT_OF_EXTENSIONS: Defaults = Defaults(&[
    ("strategy", In(&STRATEGY_OF_EXTENSIONS)),
    ("revisionHistoryLimit", Number(UNLIMITED)),
    ("progressDeadlineSeconds", Number(UNLIMITED)),
]);

static STRATEGY_OF_EXTENSIONS: Defaults = Defaults(&[
    ("type", Text("RollingUpdate")),
    ("rollingUpdate", From(rolling_update_default)),
    ("rollingUpdate", If(&ROLLING_UPDATE_OF_EXTENSIONS)),
]);

static ROLLING_UPDATE_OF_EXTENSIONS: Defaults = Defaults(&[("maxUnavailable", Number(1)), ("maxSurge", Number(1))]);

/// Applies the defaults of `admissionregistration.k8s.io/v1beta1`.
fn default_webhooks(configuration: &mut Object) {
    defaults::apply(&WEBHOOKS, configuration);
}

/// Moves the template generation to an annotation. Upstream's number has the default 0.
fn convert_daemon_set(set: &mut Object) {
    default_workload(set, &UPDATE_ON_DELETE);
    let former = child_mut(set, "spec").shift_remove("templateGeneration");
    let generation = former.and_then(|number| number.as_i64()).or_else(|| template_generation(set));
    set_template_generation(set, generation.unwrap_or(0));
}

/// Moves the revision of a rollback to an annotation.
fn convert_deployment(deployment: &mut Object, spec_defaults: &Defaults) {
    default_workload(deployment, spec_defaults);
    if let Some(Value::Object(rollback)) = child_mut(deployment, "spec").shift_remove("rollbackTo") {
        let revision = number(&rollback, "revision").unwrap_or(0).to_string();
        child_mut(metadata_mut(deployment), "annotations").insert(ROLLBACK_TO, Value::from(revision));
    }
}

/// Copies the labels of the pod template to a selector and to labels that are absent, and applies the defaults of the
/// spec.
fn default_workload(workload: &mut Object, spec_defaults: &Defaults) {
    labels_of_template(workload);
    let Some(Value::Object(spec)) = workload.get_mut("spec") else { return };
    let labels = spec.get("template").and_then(|template| template.pointer("/metadata/labels")).cloned();
    if let Some(labels @ Value::Object(_)) = labels
        && missing(spec, "selector")
    {
        spec.insert("selector", json!({ "matchLabels": labels }));
    }
    defaults::apply(spec_defaults, spec);
}

/// Applies the defaults of `certificates.k8s.io/v1beta1`. Requests that were stored before 1.18 have no signer.
fn default_certificate_request(request: &mut Object) {
    if let Some(Value::Object(spec)) = request.get_mut("spec") {
        if missing(spec, "usages") {
            spec.insert("usages", json!(["digital signature", "key encipherment"]));
        }
        if missing(spec, "signerName") {
            let signer = former_signer(text(spec, "request"), texts(spec, "usages"));
            spec.insert("signerName", json!(signer));
        }
    }
    for condition in objects_mut(request.get_mut("status"), "conditions") {
        if missing(condition, "status") {
            condition.insert("status", json!("True"));
        }
    }
}

/// Moves the zone of an endpoint from its topology to a field. Removes the host name that the endpoint has as the name of
/// its node.
fn convert_endpoint_slice(slice: &mut Object) {
    let Some(Value::Array(endpoints)) = slice.get_mut("endpoints") else { return };
    for endpoint in endpoints.iter_mut().filter_map(Value::as_object_mut) {
        let topology = endpoint.shift_remove("topology").or_else(|| endpoint.shift_remove("deprecatedTopology"));
        let Some(Value::Object(mut topology)) = topology else { continue };
        if let Some(zone) = topology.shift_remove("topology.kubernetes.io/zone") {
            endpoint.insert("zone", zone);
        }
        let node = text(endpoint, "nodeName");
        if !node.is_empty() && text(&topology, "kubernetes.io/hostname") == node {
            topology.shift_remove("kubernetes.io/hostname");
        }
        if !topology.is_empty() {
            endpoint.insert("deprecatedTopology", Value::Object(topology));
        }
    }
}

/// Renames the default backend, and moves the service of each backend to a member.
fn convert_ingress(ingress: &mut Object) {
    let Some(Value::Object(spec)) = ingress.get_mut("spec") else { return };
    if let Some(backend @ Value::Object(_)) = spec.shift_remove("backend") {
        spec.insert("defaultBackend", backend);
    }
    convert_backend(spec.get_mut("defaultBackend"));
    let Some(Value::Array(rules)) = spec.get_mut("rules") else { return };
    for rule in rules {
        for path in objects_mut(rule.get_mut("http"), "paths") {
            convert_backend(path.get_mut("backend"));
            if missing(path, "pathType") {
                path.insert("pathType", json!("ImplementationSpecific"));
            }
        }
    }
}

fn convert_backend(backend: Option<&mut Value>) {
    let Some(Value::Object(backend)) = backend else { return };
    let name = backend.shift_remove("serviceName");
    let name = name.as_ref().and_then(Value::as_str).unwrap_or_default();
    let port = match backend.shift_remove("servicePort") {
        Some(Value::String(port)) if port.is_empty() => Some(json!({})),
        Some(port @ Value::String(_)) => Some(json!({ "name": port })),
        Some(port @ Value::Number(_)) if port != 0 => Some(json!({ "number": port })),
        _ => None,
    };
    if port.is_some() || !name.is_empty() {
        backend.insert("service", json!({ "name": name, "port": port.unwrap_or_else(|| json!({})) }));
    }
}

/// The concurrency shares of a limited priority level.
const SHARES: &str = "nominalConcurrencyShares";

/// Renames the concurrency shares of v1beta1 and v1beta2, and replaces 0 by the default.
fn convert_priority_level(level: &mut Object) {
    let Some(Value::Object(limited)) = level.get_mut("spec").and_then(|spec| spec.get_mut("limited")) else { return };
    if let Some(shares) = limited.shift_remove("assuredConcurrencyShares") {
        limited.insert(SHARES, shares);
    }
    if number(limited, SHARES).unwrap_or(0) == 0 {
        limited.insert(SHARES, json!(30));
    }
}

/// Replaces concurrency shares of 0 by the default, unless an annotation of v1beta3 keeps the 0. Removes the annotation.
fn convert_priority_level_of_v1beta3(level: &mut Object) {
    const PRESERVE_ZERO: &str = "flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares";
    let annotations = level.get_mut("metadata").and_then(|metadata| metadata.get_mut("annotations"));
    let annotations = annotations.and_then(Value::as_object_mut);
    let keeps_zero = annotations.is_some_and(|annotations| annotations.shift_remove(PRESERVE_ZERO).is_some());
    let Some(Value::Object(limited)) = level.get_mut("spec").and_then(|spec| spec.get_mut("limited")) else { return };
    if number(limited, SHARES).is_none_or(|shares| shares == 0) {
        // An absent number is 0 in v1beta3, and the default in v1.
        limited.insert(SHARES, json!(if keeps_zero { 0 } else { 30 }));
    }
}

/// Moves the members of the spec to the object.
fn convert_runtime_class(class: &mut Object) {
    let Some(Value::Object(mut spec)) = class.shift_remove("spec") else { return };
    for (former, current) in [("runtimeHandler", "handler"), ("overhead", "overhead"), ("scheduling", "scheduling")] {
        if let Some(value) = spec.shift_remove(former) {
            class.insert(current, value);
        }
    }
}

/// Replaces the selectors of v1beta1 that stand for no pods (the empty one) and for all pods.
fn convert_disruption_budget(budget: &mut Object) {
    let selector = budget.get_mut("spec").and_then(|spec| spec.get_mut("selector"));
    let Some(Value::Object(selector)) = selector else { return };
    if child(selector, "matchLabels").is_empty() && items(selector, "matchExpressions").is_empty() {
        selector.insert("matchExpressions", json!([{ "key": EMPTY_SELECTOR_MATCH, "operator": "Exists" }]));
    } else if is_reserved(selector, "DoesNotExist") {
        selector.clear();
    } else {
        strip_reserved(selector);
    }
}

/// Moves the fields of each device request of a claim, or of the spec of a template, to `exactly` if one of them is set.
fn convert_claim(claim: &mut Object) {
    const FIELDS: [&str; 7] =
        ["deviceClassName", "selectors", "allocationMode", "count", "adminAccess", "tolerations", "capacity"];
    let is_set = |value: &Value| !value.is_null() && *value != "" && *value != 0;
    for request in objects_mut(claim.get_mut("spec").and_then(|spec| spec.get_mut("devices")), "requests") {
        let moved = FIELDS.iter().filter_map(|name| Some(((*name).to_owned(), request.shift_remove(name)?)));
        let exactly: Object = moved.collect();
        if exactly.values().any(is_set) {
            request.insert("exactly", Value::Object(exactly));
        }
    }
}

/// Moves the members of `basic` to the device. Removes zero values that are absent in the current version.
fn convert_resource_slice(slice: &mut Object) {
    let Some(Value::Object(spec)) = slice.get_mut("spec") else { return };
    spec.retain(|name, value| !(name == "nodeName" && *value == "" || name == "allNodes" && *value == false));
    for device in objects_mut(slice.get_mut("spec"), "devices") {
        if let Some(Value::Object(basic)) = device.shift_remove("basic") {
            device.extend(basic);
        }
    }
}

/// Replaces the versions of subjects by groups. The user `*` becomes the group of all authenticated users.
fn convert_subjects(binding: &mut Object) {
    const GROUP: &str = "rbac.authorization.k8s.io";
    let Some(Value::Array(subjects)) = binding.get_mut("subjects") else { return };
    for subject in subjects.iter_mut().filter_map(Value::as_object_mut) {
        let version = subject.shift_remove("apiVersion").or_else(|| subject.shift_remove("apiGroup"));
        let version = version.as_ref().and_then(Value::as_str).unwrap_or_default();
        let group = match text(subject, "kind") {
            "ServiceAccount" => "",
            "User" | "Group" => GROUP,
            _ => version.split_once('/').map_or("", |(group, _)| group),
        };
        if !group.is_empty() {
            subject.insert("apiGroup", json!(group));
        }
        if text(subject, "kind") == "User" && text(subject, "name") == "*" {
            subject.insert("kind", json!("Group"));
            subject.insert("name", json!("system:authenticated"));
        }
    }
}

/// The objects in a list of an object.
fn objects_mut<'a>(object: Option<&'a mut Value>, list: &str) -> impl Iterator<Item = &'a mut Object> {
    let list = object.and_then(|object| object.get_mut(list)?.as_array_mut());
    list.into_iter().flatten().filter_map(Value::as_object_mut)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::map;
    use crate::versions::SECOND_VERSIONS;

    fn check(api_version: &str, kind: &str, former: Value, expected: Value) {
        let version = find(api_version, kind).unwrap_or_else(|| panic!("{api_version} {kind} is not read"));
        let mut object = map(former);
        (version.convert)(&mut object);
        assert_eq!(Value::Object(object.clone()), expected, "{api_version} {kind}");
    }

    #[test]
    fn each_former_version_belongs_to_a_served_kind() {
        for (former_group, versions, current, kinds, _) in ROWS {
            let (group, version) = current.split_once('/').unwrap();
            for kind in *kinds {
                let is_stored = crate::find(group, kind).is_some_and(|kind| kind.version == version);
                let is_second = SECOND_VERSIONS.iter().any(|second| second.api_version() == *current);
                assert!(is_stored || is_second, "{current} {kind}");
                for version in *versions {
                    let rows = ROWS.iter().filter(|row| row.0 == *former_group && row.1.contains(version));
                    assert_eq!(rows.filter(|row| row.3.contains(kind)).count(), 1, "{former_group}/{version} {kind}");
                    assert_eq!(find(&format!("{former_group}/{version}"), kind).unwrap().current, *current);
                }
            }
        }
        assert!(find("apps/v1", "Deployment").is_none());
        assert!(find("resource.k8s.io/v1alpha3", "ResourceClaim").is_none());
    }

    #[test]
    fn empty_selector_of_a_v1beta1_disruption_budget_selects_no_pods() {
        const KEY: &str = "pdb.kubernetes.io/deprecated-v1beta1-empty-selector-match";
        let none = json!({"matchExpressions": [{"key": KEY, "operator": "Exists"}]});
        let all = json!({"matchExpressions": [{"key": KEY, "operator": "DoesNotExist"}]});
        let own = json!({"key": "a", "operator": "Exists"});
        for (former, expected) in [
            (json!({}), none.clone()),
            (
                json!({"matchLabels": {}, "matchExpressions": []}),
                json!({"matchLabels": {}, "matchExpressions": none["matchExpressions"]}),
            ),
            (all, json!({})),
            (json!({"matchLabels": {"a": "b"}}), json!({"matchLabels": {"a": "b"}})),
            (
                json!({"matchExpressions": [own, {"key": KEY, "operator": "Exists"}]}),
                json!({"matchExpressions": [own]}),
            ),
            (Value::Null, Value::Null),
        ] {
            let budget = |selector: Value| json!({"spec": {"selector": selector}});
            check("policy/v1beta1", "PodDisruptionBudget", budget(former), budget(expected));
        }
    }

    #[test]
    fn defaults_of_the_former_version_precede_those_of_the_current_one() {
        check(
            "admissionregistration.k8s.io/v1beta1",
            "ValidatingWebhookConfiguration",
            json!({"webhooks": [{"name": "a", "failurePolicy": "Fail", "sideEffects": null}]}),
            json!({"webhooks": [{"name": "a", "failurePolicy": "Fail", "matchPolicy": "Exact", "sideEffects": "Unknown",
                "timeoutSeconds": 30, "admissionReviewVersions": ["v1beta1"]}]}),
        );
        let template = json!({"metadata": {"labels": {"a": "b"}}});
        let workload = |members: Value| {
            let mut spec = map(json!({"template": template, "selector": {"matchLabels": {"a": "b"}}}));
            spec.extend(map(members));
            json!({"metadata": {"name": "w", "labels": {"a": "b"}}, "spec": spec})
        };
        let former = |members: Value| {
            let mut spec = map(json!({ "template": template }));
            spec.extend(map(members));
            json!({"metadata": {"name": "w"}, "spec": spec})
        };
        let annotated = |mut workload: Value, key: &str, value: &str| {
            workload["metadata"]["annotations"] = json!({ key: value });
            workload
        };
        check("apps/v1beta1", "Deployment", former(json!({})), workload(json!({"revisionHistoryLimit": 2})));
        for (rollback, revision) in [(json!({"revision": 7}), "7"), (json!({}), "0")] {
            let expected = workload(json!({"revisionHistoryLimit": 2}));
            let expected = annotated(expected, "deprecated.deployment.rollback.to", revision);
            check("apps/v1beta1", "Deployment", former(json!({ "rollbackTo": rollback })), expected);
        }
        let on_delete = || workload(json!({"updateStrategy": {"type": "OnDelete"}}));
        check("apps/v1beta1", "StatefulSet", former(json!({})), on_delete());
        for (members, generation) in [(json!({"templateGeneration": 3}), "3"), (json!({}), "0")] {
            let expected = annotated(on_delete(), "deprecated.daemonset.template.generation", generation);
            check("extensions/v1beta1", "DaemonSet", former(members), expected);
        }
        check("extensions/v1beta1", "ReplicaSet", former(json!({"replicas": 2})), workload(json!({"replicas": 2})));
        let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 1}});
        check(
            "extensions/v1beta1",
            "Deployment",
            former(json!({})),
            workload(
                json!({"strategy": rolling, "revisionHistoryLimit": UNLIMITED, "progressDeadlineSeconds": UNLIMITED}),
            ),
        );
        check(
            "certificates.k8s.io/v1beta1",
            "CertificateSigningRequest",
            json!({"spec": {"request": "eA=="}, "status": {"conditions": [{"type": "Approved"}]}}),
            json!({"spec": {"request": "eA==", "usages": ["digital signature", "key encipherment"],
                "signerName": "kubernetes.io/legacy-unknown"},
                "status": {"conditions": [{"type": "Approved", "status": "True"}]}}),
        );
    }

    #[test]
    fn device_requests_and_devices_of_v1beta1_have_the_current_structure() {
        let fields = json!({"deviceClassName": "c", "selectors": [{"cel": {"expression": "true"}}],
            "allocationMode": "ExactCount", "count": 2, "adminAccess": true, "tolerations": [{"operator": "Exists"}],
            "capacity": {"requests": {"a": "1"}}});
        let mut former = map(fields.clone());
        former.insert("name", json!("r"));
        let alternatives = json!([{"name": "s", "deviceClassName": "c", "count": 1}]);
        let spec = |request: Value| json!({"devices": {"requests": [request]}});
        for (former, current) in [
            (Value::Object(former), json!({"name": "r", "exactly": fields})),
            (
                json!({"name": "r", "deviceClassName": "", "count": 0, "firstAvailable": alternatives}),
                json!({"name": "r", "firstAvailable": alternatives}),
            ),
            (json!({"name": "r", "adminAccess": false}), json!({"name": "r", "exactly": {"adminAccess": false}})),
            // A decoded message has the current names.
            (json!({"name": "r", "exactly": fields}), json!({"name": "r", "exactly": fields})),
        ] {
            let claim = |request: &Value| json!({"spec": spec(request.clone())});
            let template = |request: &Value| json!({"spec": {"metadata": {}, "spec": spec(request.clone())}});
            let version = "resource.k8s.io/v1beta1";
            check(version, "ResourceClaim", claim(&former), claim(&current));
            check(version, "ResourceClaimTemplate", template(&former), template(&current));
        }
        let slice = |device: Value| json!({"spec": {"driver": "d", "devices": [device]}});
        let mut former = slice(json!({"name": "a", "basic": {"attributes": {"m": {"int": 1}}, "allNodes": false}}));
        former["spec"]["nodeName"] = json!("");
        former["spec"]["allNodes"] = json!(false);
        let current = slice(json!({"name": "a", "attributes": {"m": {"int": 1}}, "allNodes": false}));
        check("resource.k8s.io/v1beta1", "ResourceSlice", former, current);
    }

    #[test]
    fn backends_of_an_ingress_name_a_service() {
        for version in ["extensions/v1beta1", "networking.k8s.io/v1beta1"] {
            let path = |backend: Value| {
                let path = json!({"path": "/", "pathType": "Prefix", "backend": backend});
                json!({"spec": {"rules": [{"host": "h"}, {"http": {"paths": [path]}}]}})
            };
            let service = |port: Value| path(json!({"service": {"name": "s", "port": port}}));
            for (port, expected) in
                [(json!(80), json!({"number": 80})), (json!("http"), json!({"name": "http"})), (json!(""), json!({}))]
            {
                let former = path(json!({"serviceName": "s", "servicePort": port}));
                check(version, "Ingress", former, service(expected));
            }
            let resource = json!({"resource": {"kind": "Bucket", "name": "b"}});
            check(version, "Ingress", path(resource.clone()), path(resource));
            check(version, "Ingress", path(json!({"serviceName": "", "servicePort": 0})), path(json!({})));
            check(
                version,
                "Ingress",
                json!({"spec": {"backend": {"serviceName": "s", "servicePort": 80}, "rules": [{"http": {"paths": [{}]}}]}}),
                json!({"spec": {"defaultBackend": {"service": {"name": "s", "port": {"number": 80}}},
                    "rules": [{"http": {"paths": [{"pathType": "ImplementationSpecific"}]}}]}}),
            );
        }
    }

    #[test]
    fn renamed_and_moved_fields_keep_their_values() {
        for field in ["topology", "deprecatedTopology"] {
            let endpoint = |rest: Value| {
                let mut endpoint = map(json!({"addresses": ["10.0.0.1"], "nodeName": "n"}));
                endpoint.extend(map(rest));
                json!({ "endpoints": [endpoint] })
            };
            check(
                "discovery.k8s.io/v1beta1",
                "EndpointSlice",
                endpoint(json!({field: {"topology.kubernetes.io/zone": "z", "kubernetes.io/hostname": "n"}})),
                endpoint(json!({"zone": "z"})),
            );
            check(
                "discovery.k8s.io/v1beta1",
                "EndpointSlice",
                endpoint(json!({field: {"kubernetes.io/hostname": "other", "a": "b"}})),
                endpoint(json!({"deprecatedTopology": {"kubernetes.io/hostname": "other", "a": "b"}})),
            );
        }
        let level = |member: &str, shares: i64| json!({"metadata": {}, "spec": {"limited": {member: shares}}});
        for (version, member) in [
            ("v1beta1", "assuredConcurrencyShares"),
            ("v1beta2", "assuredConcurrencyShares"),
            ("v1beta2", "nominalConcurrencyShares"),
            ("v1beta3", "nominalConcurrencyShares"),
        ] {
            let version = format!("flowcontrol.apiserver.k8s.io/{version}");
            for (shares, expected) in [(7, 7), (0, 30)] {
                let expected = level("nominalConcurrencyShares", expected);
                check(&version, "PriorityLevelConfiguration", level(member, shares), expected);
            }
        }
        let annotations = json!({"a": "b", "flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares": ""});
        let annotated = |annotations: &Value, limited: Value| json!({"metadata": {"annotations": annotations}, "spec": {"limited": limited}});
        let zero = || annotated(&json!({"a": "b"}), json!({"nominalConcurrencyShares": 0}));
        for limited in [json!({"nominalConcurrencyShares": 0}), json!({})] {
            let kept = annotated(&annotations, limited);
            check("flowcontrol.apiserver.k8s.io/v1beta3", "PriorityLevelConfiguration", kept, zero());
        }
        // The other versions do not know the annotation.
        for version in ["v1beta1", "v1beta2"] {
            let version = format!("flowcontrol.apiserver.k8s.io/{version}");
            let former = annotated(&annotations, json!({"assuredConcurrencyShares": 0}));
            let expected = annotated(&annotations, json!({"nominalConcurrencyShares": 30}));
            check(&version, "PriorityLevelConfiguration", former, expected);
        }
        check(
            "node.k8s.io/v1alpha1",
            "RuntimeClass",
            json!({"spec": {"runtimeHandler": "runc", "overhead": {"podFixed": {"cpu": "1"}}}}),
            json!({"handler": "runc", "overhead": {"podFixed": {"cpu": "1"}}}),
        );
        for (former, expected) in [
            (
                json!({"kind": "User", "name": "*", "apiVersion": "rbac.authorization.k8s.io/v1alpha1"}),
                json!({"kind": "Group", "name": "system:authenticated", "apiGroup": "rbac.authorization.k8s.io"}),
            ),
            (
                json!({"kind": "ServiceAccount", "name": "a", "apiVersion": "v1"}),
                json!({"kind": "ServiceAccount", "name": "a"}),
            ),
            // The number of the version in a message is that of the group.
            (
                json!({"kind": "Robot", "name": "a", "apiGroup": "example.com/v1"}),
                json!({"kind": "Robot", "name": "a", "apiGroup": "example.com"}),
            ),
        ] {
            let binding = |subject: Value| json!({ "subjects": [subject] });
            check("rbac.authorization.k8s.io/v1alpha1", "RoleBinding", binding(former), binding(expected));
        }
    }
}
