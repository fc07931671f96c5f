//! What a write to an object, or to one of its subresources, reaches: what becomes of the rest of the
//! object ([`keep_the_rest`]), and what nobody comes to own by it ([`reset_fields`]). Both are read off
//! one table ([`Scope::of`]), as both follow from one strategy in kube-apiserver (`PrepareForUpdate` and
//! `GetResetFields`, Kubernetes v1.36).

use listwatch_apply::{Path, PathElement, Set};
use serde_json::{Map, Value};

use super::ownership::MANAGED_FIELDS;
use crate::registry::{Resource, Subresource};
use listwatch_validation::{child_mut, metadata_mut};

type Object = Map<String, Value>;
type Fields = &'static [&'static [&'static str]];

/// What a write does to the metadata.
#[derive(Clone, Copy)]
enum Metadata {
    /// All of it is written, as far as a client may write it at all.
    Written,
    /// These members stay as they are.
    Without(&'static [&'static str]),
    /// Nothing of it is written, but for who owns what (`ResetObjectMetaForStatus`).
    Kept,
}

/// What a write reaches.
struct Scope {
    metadata: Metadata,
    /// What nobody comes to own by it.
    reset: Fields,
}

impl Scope {
    fn of(resource: &Resource, subresource: Option<&Subresource>) -> Scope {
        use Metadata::{Kept, Without, Written};
        const BUT_STATUS: Fields = &[&["metadata"], &["spec"]];
        let (metadata, reset): (Metadata, Fields) = match (subresource, &*resource.group, &*resource.kind) {
            (None, "certificates.k8s.io", "CertificateSigningRequest") => (Written, &[&["spec"], &["status"]]),
            (None, ..) if has_status(resource) => (Written, &[&["status"]]),
            (Some(Subresource::Status), ..) if resource.custom => (Kept, BUT_STATUS),
            (Some(Subresource::Status), "admissionregistration.k8s.io" | "apiregistration.k8s.io", _)
            | (Some(Subresource::Status), "flowcontrol.apiserver.k8s.io", _)
            | (Some(Subresource::Status), "networking.k8s.io", "ServiceCIDR")
            | (Some(Subresource::Status), "resource.k8s.io" | "storage.k8s.io", _) => (Kept, BUT_STATUS),
            (Some(Subresource::Status), "apps", "Deployment") => {
                (Without(&["labels"]), &[&["spec"], &["metadata", "labels"]])
            }
            (Some(Subresource::Status), "", "Pod") => {
                let owners: Fields = &[&["spec"], &["metadata", "deletionTimestamp"], &["metadata", "ownerReferences"]];
                (Without(&["ownerReferences"]), owners)
            }
            (Some(Subresource::Status), "certificates.k8s.io", _) => (Written, &[&["spec"], &["status", "conditions"]]),
            (Some(Subresource::Status), ..) => (Written, &[&["spec"]]),
            (Some(Subresource::Approval), ..) => (Written, &[&["spec"], &["status", "certificate"]]),
            (Some(Subresource::Finalize), ..) => (Written, &[&["status"]]),
            // What these reach is told below by what they do not.
            (Some(Subresource::EphemeralContainers | Subresource::Resize), ..) => (Kept, &[&["metadata"], &["status"]]),
            _ => (Written, &[]),
        };
        Scope { metadata, reset }
    }
}

fn has_status(resource: &Resource) -> bool {
    resource.subresource("status").is_some()
}

/// What nobody comes to own by writing `object`.
pub(super) fn reset_fields(resource: &Resource, subresource: Option<&Subresource>, object: &Value) -> Set {
    let scope = Scope::of(resource, subresource);
    let mut set: Set = scope.reset.iter().map(|path| Path::of_fields(path)).collect::<Vec<_>>().iter().collect();
    let reached: &[&str] = match subresource {
        Some(Subresource::EphemeralContainers) => &["ephemeralContainers"],
        Some(Subresource::Resize) => &["containers", "initContainers", "resources"],
        _ => return set,
    };
    let Some(spec) = object.get("spec").and_then(Value::as_object) else { return set };
    for name in spec.keys().filter(|name| !reached.contains(&name.as_str())) {
        set.insert(&Path::of_fields(&["spec", name]).0);
    }
    if subresource == Some(&Subresource::Resize) {
        for list in CONTAINERS {
            for container in spec.get(list).and_then(Value::as_array).into_iter().flatten() {
                let (Some(members), Some(name)) = (container.as_object(), container.get("name")) else { continue };
                let key = PathElement::key(vec![("name".into(), name.clone())]);
                for member in members.keys().filter(|member| !SIZES.contains(&member.as_str())) {
                    let [spec, list, member] = ["spec", list, member].map(PathElement::field);
                    set.insert(&[spec, list, key.clone(), member]);
                }
            }
        }
    }
    set
}

/// The containers that can be resized, and what of them.
const CONTAINERS: [&str; 2] = ["containers", "initContainers"];
const SIZES: [&str; 2] = ["resources", "resizePolicy"];

/// Leaves of `new` only what the write reaches; everything else is as in `old`.
pub(super) fn keep_the_rest(resource: &Resource, subresource: Option<&Subresource>, new: &mut Object, old: &Object) {
    let mut metadata = std::mem::take(metadata_mut(new));
    let before = listwatch_validation::metadata(old);
    match Scope::of(resource, subresource).metadata {
        Metadata::Written => {}
        Metadata::Without(members) => {
            members.iter().for_each(|member| put(&mut metadata, member, before.get(*member).cloned()));
        }
        Metadata::Kept => {
            let accounts = metadata.shift_remove(MANAGED_FIELDS);
            metadata.clone_from(before);
            put(&mut metadata, MANAGED_FIELDS, accounts);
        }
    }
    match subresource {
        None | Some(Subresource::Scale { .. }) => {
            let asked_once =
                (&*resource.group, &*resource.kind) == ("certificates.k8s.io", "CertificateSigningRequest");
            for member in ["spec", "status"].into_iter().skip(usize::from(!asked_once)) {
                if has_status(resource) {
                    put(new, member, old.get(member).cloned());
                }
            }
        }
        Some(Subresource::Status) => replace(new, old, |new, kept| put(kept, "status", new.shift_remove("status"))),
        Some(Subresource::Approval) => replace(new, old, |new, kept| {
            let conditions = new.get("status").and_then(|status| status.get("conditions")).cloned();
            put(child_mut(kept, "status"), "conditions", conditions);
        }),
        Some(Subresource::Finalize) => replace(new, old, |new, kept| {
            let finalizers = new.get("spec").and_then(|spec| spec.get("finalizers")).cloned();
            let finalizers = finalizers.filter(|list| list.as_array().is_some_and(|list| !list.is_empty()));
            put(child_mut(kept, "spec"), "finalizers", finalizers);
        }),
        Some(Subresource::EphemeralContainers) => replace(new, old, |new, kept| {
            let containers = new.get("spec").and_then(|spec| spec.get("ephemeralContainers")).cloned();
            put(child_mut(kept, "spec"), "ephemeralContainers", containers);
        }),
        Some(Subresource::Resize) => replace(new, old, |new, kept| {
            let sized = new.get("spec").and_then(Value::as_object);
            let kept = child_mut(kept, "spec");
            put(kept, "resources", sized.and_then(|spec| spec.get("resources")).cloned());
            for list in CONTAINERS {
                let sized = sized.and_then(|spec| spec.get(list)).cloned();
                put(kept, list, resized(kept.get(list), sized));
            }
        }),
        // Nothing is written under these names: they are posted to, or passed on.
        Some(_) => {}
    }
    *metadata_mut(new) = metadata;
}

/// Makes `new` what is `kept` of `old` with what a write reaches.
fn replace(new: &mut Object, old: &Object, reach: impl FnOnce(&mut Object, &mut Object)) {
    let mut kept = old.clone();
    reach(new, &mut kept);
    *new = kept;
}

/// Containers with the resources that they are given. Where they are others, or in another order, they
/// are what was given, for that to be refused.
fn resized(containers: Option<&Value>, sized: Option<Value>) -> Option<Value> {
    let names = |list: Option<&Value>| -> Vec<Value> {
        let list = list.and_then(Value::as_array).into_iter().flatten();
        list.map(|container| container.get("name").cloned().unwrap_or_default()).collect()
    };
    if names(containers) != names(sized.as_ref()) {
        return sized;
    }
    let mut kept = containers.cloned();
    let kept_list = kept.as_mut().and_then(Value::as_array_mut).into_iter().flatten();
    let sized_list = sized.as_ref().and_then(Value::as_array).into_iter().flatten();
    for (container, sized) in kept_list.filter_map(Value::as_object_mut).zip(sized_list) {
        SIZES.iter().for_each(|member| put(container, member, sized.get(*member).cloned()));
    }
    kept
}

fn put(object: &mut Object, name: &str, value: Option<Value>) {
    match value {
        Some(value) => {
            object.insert(name.to_owned(), value);
        }
        None => {
            object.shift_remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::kinds::map;
    use super::*;
    use crate::registry::Registry;

    /// What becomes of `{labels: old, spec: old, status: old}` when everything is sent as new.
    fn check(path: &str, subresource: &str, labels: &str, spec: &str, status: &str, reset: &str) {
        let registry = Registry::builtin();
        let (group, plural) = path.split_once('/').unwrap();
        let resource = registry.resources().iter().find(|found| found.group == group && found.plural == plural);
        let resource = resource.unwrap_or_else(|| panic!("{path} is served"));
        let found = (!subresource.is_empty()).then(|| resource.subresource(subresource).unwrap());
        let object = |text: &str| json!({"metadata": {"name": "x", "labels": {"l": text}}, "spec": {"f": text}, "status": {"f": text}});
        let (mut new, old) = (map(object("new")), map(object("old")));
        let mut paths: Vec<String> =
            reset_fields(resource, found, &object("new")).paths().iter().map(ToString::to_string).collect();
        paths.sort();
        assert_eq!(paths.join(" "), reset, "what {path} {subresource:?} gives nobody");
        keep_the_rest(resource, found, &mut new, &old);
        let seen = [&new["metadata"]["labels"]["l"], &new["spec"]["f"], &new["status"]["f"]];
        assert_eq!(seen, [labels, spec, status], "{path} {subresource:?}");
    }

    #[test]
    fn a_write_reaches_what_it_is_for() {
        check("/pods", "", "new", "new", "old", ".status");
        check("/pods", "status", "new", "old", "new", ".metadata.deletionTimestamp .metadata.ownerReferences .spec");
        check("/pods", "ephemeralcontainers", "old", "old", "old", ".metadata .spec.f .status");
        check("/pods", "resize", "old", "old", "old", ".metadata .spec.f .status");
        check("/configmaps", "", "new", "new", "new", "");
        check("/namespaces", "finalize", "new", "old", "old", ".status");
        check("/nodes", "status", "new", "old", "new", ".spec");
        check("apps/deployments", "status", "old", "old", "new", ".metadata.labels .spec");
        check("apps/replicasets", "status", "new", "old", "new", ".spec");
        check("certificates.k8s.io/certificatesigningrequests", "", "new", "old", "old", ".spec .status");
        check(
            "certificates.k8s.io/certificatesigningrequests",
            "status",
            "new",
            "old",
            "new",
            ".spec .status.conditions",
        );
        check(
            "certificates.k8s.io/certificatesigningrequests",
            "approval",
            "new",
            "old",
            "old",
            ".spec .status.certificate",
        );
        check("apiextensions.k8s.io/customresourcedefinitions", "status", "new", "old", "new", ".spec");
        for path in [
            "admissionregistration.k8s.io/validatingadmissionpolicies",
            "apiregistration.k8s.io/apiservices",
            "flowcontrol.apiserver.k8s.io/flowschemas",
            "networking.k8s.io/servicecidrs",
            "resource.k8s.io/resourceclaims",
            "storage.k8s.io/volumeattachments",
        ] {
            check(path, "status", "old", "old", "new", ".metadata .spec");
        }
    }

    #[test]
    fn a_resize_reaches_what_containers_ask_for() {
        let registry = Registry::builtin();
        let pods = registry.find("", "v1", "pods").unwrap();
        let resize = pods.subresource("resize");
        let pod = |image: &str, cpu: &str| {
            let container = json!({"name": "c", "image": image, "resources": {"requests": {"cpu": cpu}}});
            map(json!({"metadata": {}, "spec": {"nodeName": image, "containers": [container]}, "status": {}}))
        };
        let (mut new, old) = (pod("new", "2"), pod("old", "1"));
        let paths = reset_fields(pods, resize, &Value::Object(new.clone())).paths();
        let mut paths: Vec<String> = paths.iter().map(ToString::to_string).collect();
        paths.sort();
        let container = ".spec.containers[name=\"c\"]";
        let image = format!("{container}.image");
        let name = format!("{container}.name");
        assert_eq!(paths, [".metadata", &image, &name, ".spec.nodeName", ".status"]);
        keep_the_rest(pods, resize, &mut new, &old);
        assert_eq!(new["spec"], pod("old", "2")["spec"], "the image or the node changed, or the size did not");
        let mut more = pod("new", "2");
        more["spec"]["containers"].as_array_mut().unwrap().push(json!({"name": "d"}));
        keep_the_rest(pods, resize, &mut more, &old);
        assert_eq!(more["spec"]["containers"].as_array().unwrap().len(), 2, "nobody is told that one came");
    }
}
