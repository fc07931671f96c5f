//! What PersistentVolumes and PersistentVolumeClaims demand (`pkg/apis/core/validation`,
//! `pkg/volume/validation`, Kubernetes v1.36).

use listwatch_meta::FieldError;
use listwatch_schema::Path;
use serde_json::{Map, Value, json};

use listwatch_meta::go::quote;
use listwatch_validation::diff::unified;
use listwatch_validation::formats::{
    self, IMMUTABLE, amount, is_invalid_selector, json as go_json, not_negative_amount, positive_amount,
    qualified_name, same, subdomain, whole,
};
use listwatch_validation::volume_claim::{ClaimSpecOptions, VOLUME_MODES, access_modes, claim_spec};
use listwatch_validation::volume_source::volume_source;
use listwatch_validation::{Errors, Object, child, given, is_empty, items, objects, text};

const RECLAIM_POLICIES: [&str; 3] = ["Delete", "Recycle", "Retain"];

/// Where the class of a claim was named before there was a field for it.
const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";
/// Where options of mounting were named before there was a field for them.
const MOUNT_ANNOTATION: &str = "volume.beta.kubernetes.io/mount-options";

// PersistentVolume.

pub(crate) fn volume(volume: &Object, old: Option<&Object>, errors: &mut Errors) {
    let spec = child(volume, "spec");
    let at = Path::root("spec");
    let values_too = old.is_none_or(|old| !has_invalid_node_values(child(old, "spec")));
    let name = text(child(volume, "metadata"), "name");
    volume_spec(spec, name, &at, Owner::Volume { values_too }, errors);
    mount_options(volume, errors);
    let Some(old) = old else { return };
    // Upstream judges the object twice when it is updated, which the causes show.
    volume_spec(spec, name, &at, Owner::Volume { values_too }, errors);
    let before = child(old, "spec");
    if !same_source(spec, before) {
        let sources = |spec: &Object| -> Value {
            let given =
                SOURCES.iter().filter_map(|(member, ..)| Some(((*member).to_owned(), given(spec, member)?.clone())));
            Value::Object(given.collect())
        };
        let diff = unified(&sources(before), &sources(spec));
        let why = format!("spec.persistentvolumesource is immutable after creation\n{diff}");
        errors.push(FieldError::forbidden("spec.persistentvolumesource", why));
    }
    if !same(spec.get("volumeMode"), before.get("volumeMode")) {
        errors.invalid_value(&Path::root("volumeMode"), go_json(spec.get("volumeMode")), IMMUTABLE);
    }
    if let Some(affinity) = given(before, "nodeAffinity")
        && !same_affinity(given(spec, "nodeAffinity"), affinity)
    {
        let why = "field is immutable, except for updating from beta label to GA";
        errors.invalid_value(&Path::root("nodeAffinity"), go_affinity(given(spec, "nodeAffinity")), why);
    }
    if given(before, "volumeAttributesClassName").is_some() && given(spec, "volumeAttributesClassName").is_none() {
        errors.forbidden(&at.child("volumeAttributesClassName"), "update from non-nil value to nil is forbidden");
    }
}

/// A volume that is described where it is attached. It is one of a driver, migrated from an older kind.
pub(crate) fn inline_volume(spec: &Object, at: &Path<'_>, errors: &mut Errors) {
    volume_spec(spec, "", at, Owner::Attachment, errors);
}

/// What a volume is described in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// In an object of its own. `values_too` is false where an older server has taken values of labels that
    /// are none.
    Volume {
        values_too: bool,
    },
    Attachment,
}

const INLINE: &str = "may not be specified in the context of inline volumes";
const ONE_SOURCE: &str = "may not specify more than 1 volume type";

fn volume_spec(spec: &Object, name: &str, at: &Path<'_>, owner: Owner, errors: &mut Errors) {
    let inline = owner == Owner::Attachment;
    if inline {
        for name in ["claimRef", "capacity"] {
            if given(spec, name).is_some_and(|value| !is_empty(Some(value)) || name == "claimRef") {
                errors.forbidden(&at.child(name), INLINE);
            }
        }
        if given(spec, "csi").is_none() {
            errors.required(&at.child("csi"), "has to be specified in the context of inline volumes");
        }
    }
    let modes_at = at.child("accessModes");
    if items(spec, "accessModes").is_empty() {
        errors.required(&modes_at, "");
    }
    access_modes(spec, &modes_at, errors);
    if !inline {
        capacity(spec, &at.child("capacity"), errors);
    }
    let (policy, policy_at) = (text(spec, "persistentVolumeReclaimPolicy"), at.child("persistentVolumeReclaimPolicy"));
    if inline && !matches!(policy, "" | "Retain") {
        errors.forbidden(&policy_at, "may only be Retain in the context of inline volumes");
    } else if !inline && !policy.is_empty() && !RECLAIM_POLICIES.contains(&policy) {
        errors.not_supported(&policy_at, policy, &RECLAIM_POLICIES);
    }
    let affinity_at = at.child("nodeAffinity");
    match (given(spec, "nodeAffinity").and_then(Value::as_object), owner) {
        (None, _) => {}
        (Some(_), Owner::Attachment) => errors.forbidden(&affinity_at, INLINE),
        (Some(affinity), Owner::Volume { values_too }) => {
            match given(affinity, "required").and_then(Value::as_object) {
                None => errors.required(&affinity_at.child("required"), "must specify required node constraints"),
                Some(required) => formats::node_selector(required, values_too, &affinity_at.child("required"), errors),
            }
        }
    }
    source(spec, name, inline, at, errors);
    let host_path = given(spec, "hostPath").and_then(Value::as_object);
    if policy == "Recycle" && host_path.is_some_and(|host| is_root(text(host, "path"))) {
        errors.forbidden(&policy_at, "may not be 'recycle' for a hostPath mount of '/'");
    }
    let (class, class_at) = (text(spec, "storageClassName"), at.child("storageClassName"));
    if !class.is_empty() {
        if inline { errors.forbidden(&class_at, INLINE) } else { subdomain(class, &class_at, errors) }
    }
    if let Some(mode) = given(spec, "volumeMode").and_then(Value::as_str) {
        let mode_at = at.child("volumeMode");
        if inline && mode != "Filesystem" {
            let why = "may not specify volumeMode other than Filesystem in the context of inline volumes";
            errors.forbidden(&mode_at, why);
        } else if !inline && !VOLUME_MODES.contains(&mode) {
            errors.not_supported(&mode_at, mode, &VOLUME_MODES);
        }
    }
    // Inline volumes have no class of attributes to upstream's validation, which looks away.
    if !inline && let Some(class) = given(spec, "volumeAttributesClassName").and_then(Value::as_str) {
        let class_at = at.child("volumeAttributesClassName");
        match class {
            "" => errors.required(&class_at, "an empty string is disallowed"),
            class => subdomain(class, &class_at, errors),
        }
        if given(spec, "csi").is_none() {
            errors.required(&at.child("csi"), "has to be specified when using volumeAttributesClassName");
        }
    }
}

/// Is a path the root of a file system, once it is cleaned (`path.Clean`)?
fn is_root(path: &str) -> bool {
    let mut depth = 0usize;
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => depth = depth.saturating_sub(1),
            _ => depth += 1,
        }
    }
    path.starts_with('/') && depth == 0
}

fn capacity(spec: &Object, at: &Path<'_>, errors: &mut Errors) {
    let amounts = child(spec, "capacity");
    if amounts.is_empty() {
        errors.required(at, "");
    }
    if !amounts.contains_key("storage") || amounts.len() > 1 {
        let shown = go_json(spec.get("capacity"));
        errors.push(FieldError {
            field: at.to_string(),
            reason: "FieldValueNotSupported",
            message: format!("Unsupported value: {shown}: supported values: \"storage\""),
        });
    }
    for (name, value) in amounts {
        let at = at.key(name);
        basic_amount(amount(value), &at, errors);
        positive_amount(amount(value), &at, errors);
    }
}

/// An amount of zero units at least (`validateBasicResource`). Returns whether it is.
fn basic_amount(amount: &str, at: &Path<'_>, errors: &mut Errors) -> bool {
    let units = whole(amount);
    if units < 0 {
        errors.invalid_value(at, units, "must be a valid resource quantity");
    }
    units >= 0
}

fn mount_options(volume: &Object, errors: &mut Errors) {
    const TAKEN_BY: [&str; 13] = [
        "gcePersistentDisk",
        "awsElasticBlockStore",
        "glusterfs",
        "nfs",
        "rbd",
        "quobyte",
        "iscsi",
        "cinder",
        "cephfs",
        "azureFile",
        "vsphereVolume",
        "azureDisk",
        "photonPersistentDisk",
    ];
    let spec = child(volume, "spec");
    let annotations = child(child(volume, "metadata"), "annotations");
    if annotations.contains_key(MOUNT_ANNOTATION) && !TAKEN_BY.iter().any(|source| given(spec, source).is_some()) {
        let at = format!("metadata.annotations.{MOUNT_ANNOTATION}");
        errors.push(FieldError::forbidden(at, "may not specify mount options for this volume type"));
    }
}

/// The kinds of sources in the order in which upstream looks at them: the member, how an error of the second
/// source names it, and how errors inside it name it.
const SOURCES: [(&str, &str, &str); 22] = [
    ("hostPath", "hostPath", "hostPath"),
    ("gcePersistentDisk", "gcePersistentDisk", "persistentDisk"),
    ("awsElasticBlockStore", "awsElasticBlockStore", "awsElasticBlockStore"),
    ("glusterfs", "glusterfs", "glusterfs"),
    ("flocker", "flocker", "flocker"),
    ("nfs", "nfs", "nfs"),
    ("rbd", "rbd", "rbd"),
    ("quobyte", "quobyte", "quobyte"),
    ("cephfs", "cephFS", "cephfs"),
    ("iscsi", "iscsi", "iscsi"),
    ("cinder", "cinder", "cinder"),
    ("fc", "fc", "fc"),
    ("flexVolume", "flexVolume", "flexVolume"),
    ("azureFile", "azureFile", "azureFile"),
    ("vsphereVolume", "vsphereVolume", "vsphereVolume"),
    ("photonPersistentDisk", "photonPersistentDisk", "photonPersistentDisk"),
    ("portworxVolume", "portworxVolume", "portworxVolume"),
    ("azureDisk", "azureDisk", "azureDisk"),
    ("scaleIO", "scaleIO", "scaleIO"),
    ("local", "local", "local"),
    ("storageos", "storageos", "storageos"),
    ("csi", "csi", "csi"),
];

fn source(spec: &Object, name: &str, inline: bool, at: &Path<'_>, errors: &mut Errors) {
    let mut found = false;
    for (member, second, inside) in SOURCES {
        let Some(source) = given(spec, member).and_then(Value::as_object) else { continue };
        if found && member != "flexVolume" {
            errors.forbidden(&at.child(second), ONE_SOURCE);
            continue;
        }
        found = true;
        volume_source(member, source, name, &at.child(inside), errors);
        if member == "local" && (inline || given(spec, "nodeAffinity").is_none()) {
            errors.required(&at.child("nodeAffinity"), "Local volume requires node affinity");
        }
    }
    if !found {
        errors.required(at, "must specify a volume type");
    }
}

/// Is where a volume is the same? A secret for expansion may come later.
fn same_source(new: &Object, old: &Object) -> bool {
    SOURCES.iter().all(|(member, ..)| {
        let (after, before) = (given(new, member), given(old, member));
        // An empty source is one.
        if after.is_some() != before.is_some() {
            return false;
        }
        if *member != "csi" || before.is_none_or(|before| before.get("controllerExpandSecretRef").is_some()) {
            return same(after, before);
        }
        let mut after = after.cloned().unwrap_or_default();
        if let Some(members) = after.as_object_mut() {
            members.shift_remove("controllerExpandSecretRef");
        }
        same(Some(&after), before)
    })
}

fn has_invalid_node_values(spec: &Object) -> bool {
    let required = child(child(spec, "nodeAffinity"), "required");
    objects(required, "nodeSelectorTerms").any(|(_, term)| {
        objects(term, "matchExpressions").any(|(_, requirement)| {
            let mut values = items(requirement, "values").iter().filter_map(Value::as_str);
            values.any(|value| listwatch_meta::selector::validate_label_value(value).is_err())
        })
    })
}

/// Are two affinities the same? A label of a beta version may become that of the final one.
fn same_affinity(new: Option<&Value>, old: &Value) -> bool {
    const FINAL: [(&str, &str); 5] = [
        ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
        ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
        ("beta.kubernetes.io/os", "kubernetes.io/os"),
        ("beta.kubernetes.io/arch", "kubernetes.io/arch"),
        ("beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type"),
    ];
    fn requirements(affinity: &mut Value) -> impl Iterator<Item = &mut Map<String, Value>> {
        let terms = affinity.pointer_mut("/required/nodeSelectorTerms").and_then(Value::as_array_mut);
        let lists = terms.into_iter().flatten().filter_map(|term| term.get_mut("matchExpressions")?.as_array_mut());
        lists.flatten().filter_map(Value::as_object_mut)
    }
    let (mut old, mut new) = (old.clone(), new.cloned().unwrap_or_default());
    for (before, after) in requirements(&mut old).zip(requirements(&mut new)) {
        let key = text(before, "key").to_owned();
        if FINAL.contains(&(key.as_str(), text(after, "key"))) {
            after.insert("key".to_owned(), Value::String(key));
        }
    }
    same(Some(&new), Some(&old))
}

/// An affinity as upstream's own type prints it, which has no JSON names.
fn go_affinity(affinity: Option<&Value>) -> String {
    let Some(affinity) = affinity.and_then(Value::as_object) else { return "null".to_owned() };
    json!({ "Required": given(affinity, "required").map(formats::go_node_selector) }).to_string()
}

// PersistentVolumeClaim.

pub(crate) fn claim(claim: &Object, old: Option<&Object>, errors: &mut Errors) {
    let spec = child(claim, "spec");
    let at = Path::root("spec");
    let before = old.map(|old| child(old, "spec"));
    let label_values = before.is_none_or(|before| !is_invalid_selector(before.get("selector")));
    let api_groups = before.is_none_or(|before| {
        ["dataSource", "dataSourceRef"].iter().all(|name| given(child(before, name), "apiGroup").is_none())
    });
    claim_spec(spec, ClaimSpecOptions { label_values, api_groups }, &at, errors);
    if let Some(old) = old {
        changed_claim(claim, old, errors);
    }
}

fn changed_claim(claim: &Object, old: &Object, errors: &mut Errors) {
    let at = Path::root("spec");
    let (spec, before) = (child(claim, "spec"), child(old, "spec"));
    let annotations = |object| child(child(object, "metadata"), "annotations");
    let (was, is) = (annotations(old).get(CLASS_ANNOTATION), annotations(claim).get(CLASS_ANNOTATION));
    let (class_before, class) = (given(before, "storageClassName"), given(spec, "storageClassName"));
    let moved = was.is_some() && class_before.is_none() && class == was && (is.is_none() || is == was);
    if !moved && was.and_then(Value::as_str).unwrap_or_default() != is.and_then(Value::as_str).unwrap_or_default() {
        let field = format!("metadata.annotations.{CLASS_ANNOTATION}");
        errors.push(FieldError::invalid(field, quote(is.and_then(Value::as_str).unwrap_or_default()), IMMUTABLE));
    }
    let class_came = class.is_some() && class_before.is_none() && (was.is_none() || class == was);
    let bound = text(child(claim, "status"), "phase") == "Bound";
    let requests = |spec| child(child(spec, "resources"), "requests");
    // What may change is made the same before both are compared.
    let mut after = spec.clone();
    let mut then = before.clone();
    let keep = |from: &Object, to: &mut Object, name: &str| match from.get(name) {
        Some(value) => {
            to.insert(name.to_owned(), value.clone());
        }
        None => {
            to.shift_remove(name);
        }
    };
    if text(before, "volumeName").is_empty() {
        keep(spec, &mut then, "volumeName");
    }
    if moved || class_came {
        keep(before, &mut after, "storageClassName");
    }
    if bound {
        keep(before, &mut after, "volumeAttributesClassName");
        if let Some(requests_after) =
            after.get_mut("resources").and_then(|all| all.get_mut("requests")?.as_object_mut())
        {
            keep(requests(before), requests_after, "storage");
        }
    }
    let (then, after) = (go_claim_spec(&then), go_claim_spec(&after));
    let pointers = ["StorageClassName", "VolumeAttributesClassName"];
    if !same(Some(&after), Some(&then)) || pointers.iter().any(|name| then[*name] != after[*name]) {
        let why =
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        errors.forbidden(&at, &format!("{why}\n{}", unified(&then, &after)));
    }
    let storage = |amounts: &Object| amounts.get("storage").map_or("0", amount).to_owned();
    let (size, size_before) = (storage(requests(spec)), storage(requests(before)));
    if formats::compare(&size, &size_before).is_lt()
        && formats::compare(&size, &storage(child(child(old, "status"), "capacity"))).is_le()
    {
        errors.push(FieldError::forbidden(
            "spec.resources.requests.storage",
            "field can not be less than status.capacity",
        ));
    }
    if !same(spec.get("volumeMode"), before.get("volumeMode")) {
        errors.invalid_value(&Path::root("volumeMode"), go_json(spec.get("volumeMode")), IMMUTABLE);
    }
    let attributes = given(spec, "volumeAttributesClassName");
    if attributes != given(before, "volumeAttributesClassName")
        && given(child(old, "status"), "currentVolumeAttributesClassName").is_some()
    {
        let why = match attributes.and_then(Value::as_str) {
            None => "update to nil is forbidden when status.currentVolumeAttributesClassName is not nil",
            Some("") => "update to empty string is forbidden when status.currentVolumeAttributesClassName is not nil",
            Some(_) => return,
        };
        errors.forbidden(&at.child("volumeAttributesClassName"), why);
    }
}

/// The spec of a claim as upstream's own type prints it, which has no JSON names.
fn go_claim_spec(spec: &Object) -> Value {
    let resources = child(spec, "resources");
    let source = |name: &str, members: &[(&str, &str)]| {
        let source = given(spec, name)?.as_object()?;
        let text = |member: &str| {
            source
                .get(member)
                .cloned()
                .unwrap_or_else(|| if matches!(member, "kind" | "name") { Value::from("") } else { Value::Null })
        };
        Some(members.iter().map(|(shown, member)| ((*shown).to_owned(), text(member))).collect::<Map<_, _>>())
    };
    let reference = [("APIGroup", "apiGroup"), ("Kind", "kind"), ("Name", "name"), ("Namespace", "namespace")];
    json!({
        "AccessModes": spec.get("accessModes"),
        "Selector": spec.get("selector"),
        "Resources": {"Limits": resources.get("limits"), "Requests": resources.get("requests")},
        "VolumeName": text(spec, "volumeName"),
        "StorageClassName": spec.get("storageClassName"),
        "VolumeMode": spec.get("volumeMode"),
        "DataSource": source("dataSource", &reference[..3]),
        "DataSourceRef": source("dataSourceRef", &reference),
        "VolumeAttributesClassName": spec.get("volumeAttributesClassName"),
    })
}

/// Prepares a claim that is written. A source that is neither a claim nor a snapshot is dropped where only its
/// older name is used (`EnforceDataSourceBackwardsCompatibility`), and so is a reference into another namespace,
/// which is an alpha feature; then both names say the same (`NormalizeDataSources`).
pub(crate) fn prepare_claim(claim: &mut Object, old: Option<&Object>) {
    let Some(Value::Object(spec)) = claim.get_mut("spec") else { return };
    let had = |name: &str| old.is_some_and(|old| given(child(old, "spec"), name).is_some());
    if !text(child(spec, "dataSourceRef"), "namespace").is_empty() && !had("dataSourceRef") {
        spec.shift_remove("dataSourceRef");
    }
    let source = child(spec, "dataSource");
    let fine = matches!(
        (text(source, "apiGroup"), text(source, "kind")),
        ("", "PersistentVolumeClaim") | ("snapshot.storage.k8s.io", "VolumeSnapshot")
    );
    if !had("dataSource") && !had("dataSourceRef") && given(spec, "dataSourceRef").is_none() && !fine {
        spec.shift_remove("dataSource");
    }
    for (from, to) in [("dataSource", "dataSourceRef"), ("dataSourceRef", "dataSource")] {
        if let Some(source @ Value::Object(members)) = given(spec, from)
            && given(spec, to).is_none()
            && text(members, "namespace").is_empty()
        {
            let mut source = source.clone();
            if let Some(members) = source.as_object_mut() {
                members.shift_remove("namespace");
            }
            spec.insert(to.to_owned(), source);
            return;
        }
    }
}

pub(crate) fn claim_status(claim: &Object, _: Option<&Object>, errors: &mut Errors) {
    const STATES: [&str; 5] = [
        "ControllerResizeInProgress",
        "ControllerResizeInfeasible",
        "NodeResizePending",
        "NodeResizeInProgress",
        "NodeResizeInfeasible",
    ];
    let status = child(claim, "status");
    let at = Path::root("status");
    if items(child(claim, "spec"), "accessModes").is_empty() {
        errors.push(FieldError::required("Spec.accessModes", ""));
    }
    let capacity_at = at.child("capacity");
    for (name, value) in child(status, "capacity") {
        basic_amount(amount(value), &capacity_at.key(name), errors);
    }
    let states_at = at.child("allocatedResourceStatuses");
    for (name, state) in child(status, "allocatedResourceStatuses") {
        resource_key(name, &states_at, errors);
        if !STATES.contains(&state.as_str().unwrap_or_default()) {
            let mut sorted = STATES;
            sorted.sort_unstable();
            errors.not_supported(&states_at, name, &sorted);
        }
    }
    let allocated_at = at.child("allocatedResources");
    for (name, value) in child(status, "allocatedResources") {
        if !resource_key(name, &allocated_at, errors) {
            continue;
        }
        let at = allocated_at.key(name);
        if basic_amount(amount(value), &at, errors) {
            not_negative_amount(amount(value), &at, errors);
        }
    }
}

/// What of a claim is measured: storage, or something of a vendor. Returns whether it is.
fn resource_key(name: &str, at: &Path<'_>, errors: &mut Errors) -> bool {
    let before = errors.len();
    qualified_name(name, at, errors);
    let native = !name.contains('/') || name.contains("kubernetes.io/");
    if errors.len() == before && native && name != "storage" {
        errors.not_supported(at, name, &["storage"]);
    }
    errors.len() == before
}
