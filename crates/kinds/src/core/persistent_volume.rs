//! PersistentVolume (`v1`): a piece of storage.
//!
//! Source: `pkg/registry/core/persistentvolume/strategy.go`, `ValidatePersistentVolume` in
//! `pkg/apis/core/validation`, `pkg/volume/validation`.

use listwatch_json::{Map, Value, json};
use listwatch_meta::FieldError;
use listwatch_schema::Path;
use listwatch_validation::clock::timestamp;
use listwatch_validation::diff::unified;
use listwatch_validation::field_rules::one_of;
use listwatch_validation::formats::{self, IMMUTABLE, amount, json as go_json, positive_amount, same, subdomain};
use listwatch_validation::volume_claim::{VOLUME_MODES, access_modes};
use listwatch_validation::volume_source::volume_source;
use listwatch_validation::{Errors, Object, child, child_mut, given, is_empty, items, metadata, objects, text};

use crate::core::volumes::{CLASS_ANNOTATION, access_modes_cell, class_cell, validate_basic_amount};
use crate::defaults::Default::{If, In, Text};
use crate::defaults::Defaults;
use crate::defaults::volume::{AZURE_DISK, AZURE_FILE, HOST_PATH, ISCSI, RBD, SCALE_IO};
use crate::kind::StoredText::Always;
use crate::{CreateContext, Kind, Subresource, UpdateContext};
use listwatch_printers::Printer;
use listwatch_printers::text::UNSET;
use listwatch_printers::{AGE, Column, NAME};

pub(crate) static KIND: Kind = Kind {
    short_names: &["pv"],
    subresources: &[Subresource::Status],
    defaults: &DEFAULTS,
    stored_texts: &[Always(r#""volumeMode":""#), Always(r#""phase":""#)],
    initial_status: || Some(json!({"phase": "Pending"})),
    prepare_for_create,
    prepare_for_update,
    validate,
    warnings: listwatch_kind_warnings::storage::of_volume,
    printer: &PRINTER,
    zero_members: r#""spec":{},"status":{}"#,
    returns_deleted: true,
    ..Kind::cluster("", "v1", "persistentvolumes", "PersistentVolume")
};

const RECLAIM_POLICIES: [&str; 3] = ["Delete", "Recycle", "Retain"];

/// The annotation that the field `mountOptions` replaced.
const MOUNT_ANNOTATION: &str = "volume.beta.kubernetes.io/mount-options";

static SPEC_DEFAULTS: Defaults = Defaults(&[
    ("persistentVolumeReclaimPolicy", Text("Retain")),
    ("volumeMode", Text("Filesystem")),
    ("hostPath", If(&HOST_PATH)),
    ("iscsi", If(&ISCSI)),
    ("rbd", If(&RBD)),
    ("azureFile", If(&AZURE_FILE)),
    ("azureDisk", If(&AZURE_DISK)),
    ("scaleIO", If(&SCALE_IO)),
]);

static DEFAULTS: Defaults = Defaults(&[("spec", In(&SPEC_DEFAULTS)), ("status", In(&STATUS_DEFAULTS))]);

static STATUS_DEFAULTS: Defaults = Defaults(&[("phase", Text("Pending"))]);

/// Sets `status.lastPhaseTransitionTime` to the creation time.
fn prepare_for_create(volume: &mut Object, _: CreateContext<'_>) {
    let since = metadata(volume).get("creationTimestamp").cloned().unwrap_or_default();
    child_mut(volume, "status").insert("lastPhaseTransitionTime", since);
}

/// Sets `lastPhaseTransitionTime` to the current time when the phase changes, unless the client sets another time.
fn prepare_for_update(volume: &mut Object, old: &Object, context: UpdateContext<'_>) {
    const SINCE: &str = "lastPhaseTransitionTime";
    if context.subresource != Some(&Subresource::Status) {
        return;
    }
    let read = |volume: &Object, name: &str| volume.get("status").and_then(|status| status.get(name)).cloned();
    let (phase, since) = (read(volume, "phase"), read(volume, SINCE));
    let (phase_before, since_before) = (read(old, "phase"), read(old, SINCE));
    let since = match (phase == phase_before, since) {
        (true, None) => since_before,
        (false, since) if since.is_none() || since == since_before => Some(Value::from(timestamp(context.now))),
        (_, since) => since,
    };
    if let Some(since) = since {
        child_mut(volume, "status").insert(SINCE, since);
    }
}

fn validate(volume: &Object, old: Option<&Object>, errors: &mut Errors) {
    let spec = child(volume, "spec");
    let at = Path::root("spec");
    let check_values = old.is_none_or(|old| !has_invalid_node_values(child(old, "spec")));
    let name = text(child(volume, "metadata"), "name");
    validate_spec(spec, name, &at, Owner::Volume { check_values }, errors);
    validate_mount_options(volume, errors);
    let Some(old) = old else { return };
    // Upstream validates the object twice on update, and reports each cause twice.
    validate_spec(spec, name, &at, Owner::Volume { check_values }, errors);
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

/// Validates the inline volume of a VolumeAttachment: a CSI volume that an in-tree volume was migrated to.
pub(crate) fn validate_inline_volume(spec: &Object, at: &Path<'_>, errors: &mut Errors) {
    validate_spec(spec, "", at, Owner::Attachment, errors);
}

/// The object that contains the spec of a volume.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// A PersistentVolume. Label values are not checked if the stored object has invalid ones.
    Volume { check_values: bool },
    /// A VolumeAttachment.
    Attachment,
}

const INLINE: &str = "may not be specified in the context of inline volumes";

const ONE_SOURCE: &str = "may not specify more than 1 volume type";

fn validate_spec(spec: &Object, name: &str, at: &Path<'_>, owner: Owner, errors: &mut Errors) {
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
        validate_capacity(spec, &at.child("capacity"), errors);
    }
    let (policy, policy_at) = (text(spec, "persistentVolumeReclaimPolicy"), at.child("persistentVolumeReclaimPolicy"));
    if inline && !matches!(policy, "" | "Retain") {
        errors.forbidden(&policy_at, "may only be Retain in the context of inline volumes");
    } else if !inline {
        one_of(spec, "persistentVolumeReclaimPolicy", &RECLAIM_POLICIES, at, errors);
    }
    let affinity_at = at.child("nodeAffinity");
    match (given(spec, "nodeAffinity").and_then(Value::as_object), owner) {
        (None, _) => {}
        (Some(_), Owner::Attachment) => errors.forbidden(&affinity_at, INLINE),
        (Some(affinity), Owner::Volume { check_values }) => {
            match given(affinity, "required").and_then(Value::as_object) {
                None => errors.required(&affinity_at.child("required"), "must specify required node constraints"),
                Some(required) => {
                    formats::node_selector(required, check_values, &affinity_at.child("required"), errors)
                }
            }
        }
    }
    validate_source(spec, name, inline, at, errors);
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
    // Upstream does not validate this field of inline volumes.
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

/// Whether Go's `path.Clean` turns a path into `/`.
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

fn validate_capacity(spec: &Object, at: &Path<'_>, errors: &mut Errors) {
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
        validate_basic_amount(amount(value), &at, errors);
        positive_amount(amount(value), &at, errors);
    }
}

fn validate_mount_options(volume: &Object, errors: &mut Errors) {
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

/// The kinds of sources in upstream's order. Each has the member, its name in the error about a second source, and its
/// name in errors about fields.
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

fn validate_source(spec: &Object, name: &str, inline: bool, at: &Path<'_>, errors: &mut Errors) {
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

/// Whether two specs have the same source. `controllerExpandSecretRef` of CSI can be added.
fn same_source(new: &Object, old: &Object) -> bool {
    SOURCES.iter().all(|(member, ..)| {
        let (after, before) = (given(new, member), given(old, member));
        // An empty source is treated as present.
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

/// Whether two affinities are the same. A beta label can change to its GA successor.
fn same_affinity(new: Option<&Value>, old: &Value) -> bool {
    const FINAL: [(&str, &str); 5] = [
        ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
        ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
        ("beta.kubernetes.io/os", "kubernetes.io/os"),
        ("beta.kubernetes.io/arch", "kubernetes.io/arch"),
        ("beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type"),
    ];
    fn requirements(affinity: &mut Value) -> impl Iterator<Item = &mut Map> {
        let terms = affinity.pointer_mut("/required/nodeSelectorTerms").and_then(Value::as_array_mut);
        let lists = terms.into_iter().flatten().filter_map(|term| term.get_mut("matchExpressions")?.as_array_mut());
        lists.flatten().filter_map(Value::as_object_mut)
    }
    let (mut old, mut new) = (old.clone(), new.cloned().unwrap_or_default());
    for (before, after) in requirements(&mut old).zip(requirements(&mut new)) {
        let key = text(before, "key").to_owned();
        if FINAL.contains(&(key.as_str(), text(after, "key"))) {
            after.insert("key", Value::from(key));
        }
    }
    same(Some(&new), Some(&old))
}

/// An affinity as Go prints upstream's internal type, without JSON names.
fn go_affinity(affinity: Option<&Value>) -> String {
    let Some(affinity) = affinity.and_then(Value::as_object) else { return "null".to_owned() };
    json!({ "Required": given(affinity, "required").map(formats::go_node_selector) }).to_string()
}

static PRINTER: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Capacity", "How much the volume holds."),
        Column::text("Access Modes", "How the volume can be mounted."),
        Column::text("Reclaim Policy", "What happens to the volume when its claim goes."),
        Column::text("Status", "Whether the volume is bound."),
        Column::text("Claim", "The claim that the volume is bound to."),
        Column::text("StorageClass", "The class of the volume."),
        Column::text("VolumeAttributesClass", "The class of the volume's changeable attributes."),
        Column::text("Reason", "Why the volume is in its state."),
        AGE,
        Column::wide("VolumeMode", "Whether the volume is a file system or a block device."),
    ],
    cells: |volume| {
        let (spec, status) = (volume.spec(), volume.status());
        let claim = spec.get("claimRef");
        let claim = match claim.exists() {
            true => format!("{}/{}", claim.get("namespace").string(), claim.get("name").string()),
            false => String::new(),
        };
        let phase = status.get("phase").string_or("Pending");
        vec![
            volume.name().into(),
            spec.at("capacity.storage").scalar().unwrap_or_else(|| "0".to_owned()).into(),
            access_modes_cell(spec.get("accessModes")).into(),
            spec.get("persistentVolumeReclaimPolicy").string_or("Retain").into(),
            if volume.is_being_deleted() { "Terminating".to_owned() } else { phase }.into(),
            claim.into(),
            class_cell(volume.annotation(CLASS_ANNOTATION), spec).into(),
            spec.get("volumeAttributesClassName").text().map_or_else(|| UNSET.to_owned(), Into::into).into(),
            status.get("reason").string().into(),
            volume.age().into(),
            spec.get("volumeMode").string_or("Filesystem").into(),
        ]
    },
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::check_defaults;

    #[test]
    fn status_without_phase_is_pending() {
        let spec = json!({"volumeMode": "Filesystem", "persistentVolumeReclaimPolicy": "Retain"});
        for (status, phase) in
            [(json!({}), "Pending"), (json!({"phase": ""}), "Pending"), (json!({"phase": "Bound"}), "Bound")]
        {
            let expected = json!({"spec": spec, "status": {"phase": phase}});
            check_defaults(&KIND, json!({"spec": spec, "status": status}), expected);
        }
    }
}
