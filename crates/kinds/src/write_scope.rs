//! [`WriteScope`]: the fields that a write to an object or to one of its subresources can change.
//!
//! Other fields keep their old values ([`ResourceWrites::reset_unwritable_fields`]), and the field manager does not own
//! them ([`ResourceWrites::reset_fields`]).
//!
//! Source: `PrepareForUpdate` and `GetResetFields` of the strategies in `pkg/registry` of Kubernetes v1.36.

use listwatch_apply::{Path, PathElement, Set};
use listwatch_json::Value;
use listwatch_validation::{Object, child_mut, metadata, metadata_mut};

use crate::subresource::Subresource;

/// Paths of fields, each from the root of the object.
type FieldPaths = &'static [&'static [&'static str]];

const MANAGED_FIELDS: &str = "managedFields";

/// The part of the metadata that a write can change.
#[derive(Debug, Clone, Copy)]
pub enum MetadataScope {
    /// All fields that clients can write.
    Written,
    /// All fields that clients can write, except these members.
    Without(&'static [&'static str]),
    /// Only `managedFields`. The other members keep their stored values (`ResetObjectMetaForStatus`).
    Kept,
}

/// The fields that a write can change.
#[derive(Debug, Clone, Copy)]
pub struct WriteScope {
    /// The scope of the metadata.
    pub metadata: MetadataScope,
    /// The fields that the field manager of the write does not own.
    pub reset: FieldPaths,
}

impl WriteScope {
    /// A write changes the whole object.
    const ALL: WriteScope = WriteScope { metadata: MetadataScope::Written, reset: &[] };
    /// A write changes only the status and the metadata.
    pub const STATUS: WriteScope = WriteScope { metadata: MetadataScope::Written, reset: &[&["spec"]] };
    /// A write changes only the status.
    pub const STATUS_ONLY: WriteScope =
        WriteScope { metadata: MetadataScope::Kept, reset: &[&["metadata"], &["spec"]] };
}

/// The fields that writes to a resource and to its subresources can change.
#[derive(Debug, Clone, Copy)]
pub struct ResourceWrites {
    /// Whether the status is a subresource.
    pub has_status: bool,
    /// Whether the spec never changes after creation.
    pub keeps_spec: bool,
    /// The fields that a write of the status subresource changes.
    pub status: WriteScope,
}

impl ResourceWrites {
    fn scope(self, subresource: Option<&Subresource>) -> WriteScope {
        use MetadataScope::{Kept, Written};
        let (metadata, reset): (MetadataScope, FieldPaths) = match subresource {
            None if self.keeps_spec => (Written, &[&["spec"], &["status"]]),
            None if self.has_status => (Written, &[&["status"]]),
            Some(Subresource::Status) => return self.status,
            Some(Subresource::Approval) => (Written, &[&["spec"], &["status", "certificate"]]),
            Some(Subresource::Finalize) => (Written, &[&["status"]]),
            // `reset_fields` adds the other fields of the spec.
            Some(Subresource::EphemeralContainers | Subresource::Resize) => (Kept, &[&["metadata"], &["status"]]),
            _ => return WriteScope::ALL,
        };
        WriteScope { metadata, reset }
    }

    /// The fields of `object` that the field manager of the write does not own (`GetResetFields`).
    pub fn reset_fields(self, subresource: Option<&Subresource>, object: &Value) -> Set {
        let scope = self.scope(subresource);
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

    /// Resets the fields of `new` that the write cannot change to their values in `old`.
    pub fn reset_unwritable_fields(self, subresource: Option<&Subresource>, new: &mut Object, old: &Object) {
        let mut written = std::mem::take(metadata_mut(new));
        let before = metadata(old);
        match self.scope(subresource).metadata {
            MetadataScope::Written => {}
            MetadataScope::Without(members) => {
                members.iter().for_each(|member| put(&mut written, member, before.get(member).cloned()));
            }
            MetadataScope::Kept => {
                let managed_fields = written.shift_remove(MANAGED_FIELDS);
                written.clone_from(before);
                put(&mut written, MANAGED_FIELDS, managed_fields);
            }
        }
        match subresource {
            None | Some(Subresource::Scale { .. }) => {
                if self.has_status && self.keeps_spec {
                    put(new, "spec", old.get("spec").cloned());
                }
                if self.has_status {
                    put(new, "status", old.get("status").cloned());
                }
            }
            Some(Subresource::Status) => keep_all_but(new, old, "status"),
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
            // Requests to the other subresources do not write the object.
            Some(_) => {}
        }
        *metadata_mut(new) = written;
    }
}

/// The lists of containers that can be resized.
const CONTAINERS: [&str; 2] = ["containers", "initContainers"];
/// The members of a container that a resize changes.
const SIZES: [&str; 2] = ["resources", "resizePolicy"];

/// Replaces `new` with a copy of `old` in which `reach` sets the written fields.
fn replace(new: &mut Object, old: &Object, reach: impl FnOnce(&mut Object, &mut Object)) {
    let mut kept = old.clone();
    reach(new, &mut kept);
    *new = kept;
}

/// Resets the members of `new` to those of `old`, except `written` and the metadata, which the caller sets. A member that
/// is the same already, as a large spec usually is, is moved and not copied.
fn keep_all_but(new: &mut Object, old: &Object, written: &str) {
    let mut sent = std::mem::replace(new, Object::with_capacity(old.len() + 1));
    for (name, value) in old {
        let value = match name.as_str() {
            "metadata" => Some(Value::Object(Object::new())),
            name if name == written => sent.get_mut(name).map(Value::take),
            name => match sent.get_mut(name) {
                Some(same) if same == value => Some(same.take()),
                _ => Some(value.clone()),
            },
        };
        if let Some(value) = value {
            new.insert(name.clone(), value);
        }
    }
    if !old.contains_key(written)
        && let Some(value) = sent.get_mut(written)
    {
        new.insert(written, value.take());
    }
}

/// Returns the old containers with the sizes of `sized`. If the names or their order differ, returns `sized`, and
/// validation then rejects it.
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
            object.insert(name, value);
        }
        None => {
            object.shift_remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;
    use crate::Strategy;
    use crate::testing::map;

    /// Writes an object with new labels, spec and status over an old one, and checks which of them have changed.
    fn check(path: &str, subresource: &str, labels: &str, spec: &str, status: &str, reset: &str) {
        let (group, plural) = path.split_once('/').unwrap();
        let kind = crate::KINDS.iter().find(|kind| kind.group == group && kind.plural == plural);
        let kind = kind.unwrap_or_else(|| panic!("{path} is a built-in kind"));
        let found = kind.subresources.iter().find(|found| found.name() == subresource);
        assert_eq!(found.is_some(), !subresource.is_empty(), "{path} {subresource}");
        let writes = Strategy::writes(*kind);
        let object = |text: &str| json!({"metadata": {"name": "x", "labels": {"l": text}}, "spec": {"f": text}, "status": {"f": text}});
        let (mut new, old) = (map(object("new")), map(object("old")));
        let mut paths: Vec<String> =
            writes.reset_fields(found, &object("new")).paths().iter().map(ToString::to_string).collect();
        paths.sort();
        assert_eq!(paths.join(" "), reset, "reset fields of {path} {subresource:?}");
        writes.reset_unwritable_fields(found, &mut new, &old);
        let seen = [&new["metadata"]["labels"]["l"], &new["spec"]["f"], &new["status"]["f"]];
        assert_eq!(seen, [labels, spec, status], "{path} {subresource:?}");
    }

    #[test]
    fn write_changes_only_the_fields_of_its_subresource() {
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
    fn resize_changes_only_container_resources() {
        let pods = Strategy::writes(crate::find("", "Pod").unwrap());
        let resize = Some(&Subresource::Resize);
        let pod = |image: &str, cpu: &str| {
            let container = json!({"name": "c", "image": image, "resources": {"requests": {"cpu": cpu}}});
            map(json!({"metadata": {}, "spec": {"nodeName": image, "containers": [container]}, "status": {}}))
        };
        let (mut new, old) = (pod("new", "2"), pod("old", "1"));
        let paths = pods.reset_fields(resize, &Value::Object(new.clone())).paths();
        let mut paths: Vec<String> = paths.iter().map(ToString::to_string).collect();
        paths.sort();
        let container = ".spec.containers[name=\"c\"]";
        let image = format!("{container}.image");
        let name = format!("{container}.name");
        assert_eq!(paths, [".metadata", &image, &name, ".spec.nodeName", ".status"]);
        pods.reset_unwritable_fields(resize, &mut new, &old);
        assert_eq!(new["spec"], pod("old", "2")["spec"], "the image or the node changed, or the size did not");
        let mut more = pod("new", "2");
        more["spec"]["containers"].as_array_mut().unwrap().push(json!({"name": "d"}));
        pods.reset_unwritable_fields(resize, &mut more, &old);
        assert_eq!(
            more["spec"]["containers"].as_array().unwrap().len(),
            2,
            "the added container is hidden from validation"
        );
    }
}
