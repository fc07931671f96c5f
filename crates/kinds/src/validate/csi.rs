//! What `storage.k8s.io` demands: StorageClass, VolumeAttachment, CSINode, CSIDriver, CSIStorageCapacity,
//! VolumeAttributesClass (`pkg/apis/storage/validation`, Kubernetes v1.36).

use std::collections::{BTreeSet, HashMap, HashSet};

use listwatch_meta::FieldError;
use listwatch_schema::Path;
use serde_json::Value;

use super::volumes;
use listwatch_validation::formats::{
    IMMUTABLE, NOT_NEGATIVE, amount, driver_name, is_full, is_invalid_selector, json, label_selector,
    not_negative_amount, qualified_name, same, subdomain,
};
use listwatch_validation::{Errors, Object, child, given, items, number, objects, text};

/// Parameters of a class.
const PARAMETERS_MAX: usize = 512;
/// Bytes of all parameters of a class, names included.
const PARAMETERS_BYTES_MAX: usize = 256 * 1024;
/// Bytes of the metadata of an attachment, names included.
const ATTACHMENT_METADATA_BYTES_MAX: usize = 256 * 1024;
/// Bytes of the message of a failed attachment.
const MESSAGE_BYTES_MAX: usize = 1024;
/// Bytes of what a driver calls a node.
const NODE_ID_BYTES_MAX: usize = 256;
/// The shortest life of a token, in seconds, that a driver may ask for.
const TOKEN_SECONDS_MIN: i64 = 600;
/// The longest life of a token, in seconds, that a driver may ask for.
const TOKEN_SECONDS_MAX: i64 = 1 << 32;

// StorageClass.

pub(crate) fn storage_class(class: &Object, old: Option<&Object>, errors: &mut Errors) {
    provisioner(class, "provisioner", errors);
    parameters(class, true, errors);
    let policy = text(class, "reclaimPolicy");
    if !matches!(policy, "" | "Delete" | "Retain") {
        errors.not_supported(&Path::root("reclaimPolicy"), policy, &["Delete", "Retain"]);
    }
    let mode_at = Path::root("volumeBindingMode");
    match text(class, "volumeBindingMode") {
        "" => errors.required(&mode_at, ""),
        "Immediate" | "WaitForFirstConsumer" => {}
        other => errors.not_supported(&mode_at, other, &["Immediate", "WaitForFirstConsumer"]),
    }
    topologies(class, errors);
    let Some(old) = old else { return };
    for name in ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"] {
        if !same(class.get(name), old.get(name)) {
            errors.invalid_value(&Path::root(name), json(class.get(name)), IMMUTABLE);
        }
    }
}

fn provisioner(class: &Object, name: &str, errors: &mut Errors) {
    match text(class, name) {
        "" => errors.required(&Path::root(name), ""),
        provisioner => qualified_name(&provisioner.to_lowercase(), &Path::root(name), errors),
    }
}

fn parameters(class: &Object, may_be_empty: bool, errors: &mut Errors) {
    let at = Path::root("parameters");
    let parameters = child(class, "parameters");
    if parameters.len() > PARAMETERS_MAX {
        return errors.too_long(&at, PARAMETERS_MAX);
    }
    if parameters.contains_key("") {
        errors.invalid(&at, "", "field can not be empty.");
    }
    if bytes(parameters) > PARAMETERS_BYTES_MAX {
        errors.too_long(&at, PARAMETERS_BYTES_MAX);
    }
    if !may_be_empty && parameters.is_empty() {
        errors.required(&at, "must contain at least one key/value pair");
    }
}

fn bytes(texts: &Object) -> usize {
    texts.iter().map(|(name, value)| name.len() + value.as_str().map_or(0, str::len)).sum()
}

fn topologies(class: &Object, errors: &mut Errors) {
    let list_at = Path::root("allowedTopologies");
    let terms = items(class, "allowedTopologies");
    // Upstream compares each term with all before it, and with as many empty ones as there are terms.
    let mut seen: HashMap<Vec<(String, BTreeSet<&str>)>, usize> = HashMap::new();
    for (index, term) in objects(class, "allowedTopologies") {
        if is_full(errors) {
            return;
        }
        let at = list_at.index(index);
        let expressions_at = at.child("matchLabelExpressions");
        let mut expressions: HashMap<&str, BTreeSet<&str>> = HashMap::new();
        for (index, requirement) in objects(term, "matchLabelExpressions") {
            let at = expressions_at.index(index);
            let values_at = at.child("values");
            if items(requirement, "values").is_empty() {
                errors.required(&values_at, "");
            }
            let mut values = BTreeSet::new();
            for (index, value) in items(requirement, "values").iter().enumerate() {
                let value = value.as_str().unwrap_or_default();
                if !values.insert(value) {
                    errors.duplicate(&values_at.index(index), value);
                }
            }
            let key = text(requirement, "key");
            qualified_name(key, &at.child("key"), errors);
            if expressions.insert(key, values).is_some() {
                errors.duplicate(&at.child("key"), key);
            }
        }
        let mut term: Vec<_> = expressions.into_iter().map(|(key, values)| (key.to_owned(), values)).collect();
        term.sort_unstable();
        let empties = if term.is_empty() { terms.len() } else { 0 };
        let times = seen.entry(term).or_default();
        for _ in 0..(*times + empties) {
            if is_full(errors) {
                return;
            }
            errors.duplicate(&expressions_at, "");
        }
        *times += 1;
    }
}

// VolumeAttachment.

pub(crate) fn volume_attachment(attachment: &Object, old: Option<&Object>, errors: &mut Errors) {
    let spec = child(attachment, "spec");
    let at = Path::root("spec");
    driver_name(text(spec, "attacher"), &at.child("attacher"), errors);
    let (source, source_at) = (child(spec, "source"), at.child("source"));
    let volume = given(source, "persistentVolumeName").and_then(Value::as_str);
    let volume_at = source_at.child("persistentVolumeName");
    match (given(source, "inlineVolumeSpec").and_then(Value::as_object), volume) {
        (None, None) => {
            errors.required(&source_at, "must specify exactly one of inlineVolumeSpec and persistentVolumeName");
        }
        (Some(_), Some(_)) => {
            errors.forbidden(&source_at, "must specify exactly one of inlineVolumeSpec and persistentVolumeName");
        }
        (None, Some("")) => errors.required(&volume_at, "must specify non empty persistentVolumeName"),
        (None, Some(_)) => {}
        (Some(inline), None) => volumes::inline_volume(inline, &source_at.child("inlineVolumeSpec"), errors),
    }
    subdomain(text(spec, "nodeName"), &at.child("nodeName"), errors);
    attachment_status(attachment, errors);
    if let Some(volume) = volume {
        subdomain(volume, &volume_at, errors);
    }
    if let Some(old) = old
        && !same(attachment.get("spec"), old.get("spec"))
    {
        // As upstream's own type prints itself, but for what is inside an inline volume.
        let shown = format!(
            "{{\"Attacher\":{},\"Source\":{{\"PersistentVolumeName\":{},\"InlineVolumeSpec\":{}}},\"NodeName\":{}}}",
            Value::from(text(spec, "attacher")),
            json(given(source, "persistentVolumeName")),
            json(given(source, "inlineVolumeSpec")),
            Value::from(text(spec, "nodeName")),
        );
        errors.invalid_value(&at, shown, IMMUTABLE);
    }
}

fn attachment_status(attachment: &Object, errors: &mut Errors) {
    let status = child(attachment, "status");
    let at = Path::root("status");
    if bytes(child(status, "attachmentMetadata")) > ATTACHMENT_METADATA_BYTES_MAX {
        errors.too_long(&at.child("attachmentMetadata"), ATTACHMENT_METADATA_BYTES_MAX);
    }
    for name in ["attachError", "detachError"] {
        let (failure, at) = (child(status, name), at.child(name));
        if text(failure, "message").len() > MESSAGE_BYTES_MAX {
            // Upstream names another limit than it applies.
            errors.too_long(&at.child("message"), ATTACHMENT_METADATA_BYTES_MAX);
        }
        if let Some(code) = number(failure, "errorCode").filter(|code| *code < 0) {
            errors.invalid_value(&at.child("errorCode"), code, "must be between 0 and 2147483647, inclusive");
        }
    }
}

/// A status is judged as the whole attachment is.
pub(crate) fn volume_attachment_status(attachment: &Object, old: Option<&Object>, errors: &mut Errors) {
    volume_attachment(attachment, old, errors);
}

// CSINode.

pub(crate) fn csi_node(node: &Object, old: Option<&Object>, errors: &mut Errors) {
    let spec_at = Path::root("spec");
    let drivers_at = spec_at.child("drivers");
    let drivers = |node| objects(child(node, "spec"), "drivers");
    let mut names = HashSet::new();
    for (index, driver) in drivers(node) {
        let at = drivers_at.index(index);
        let name = text(driver, "name");
        driver_name(name, &at.child("name"), errors);
        let (id, id_at) = (text(driver, "nodeID"), at.child("nodeID"));
        if id.is_empty() {
            errors.required(&id_at, "");
        }
        if id.len() > NODE_ID_BYTES_MAX {
            errors.invalid(&id_at, id, format_args!("must be {NODE_ID_BYTES_MAX} characters or less"));
        }
        let allocatable_at = at.child("allocatable");
        if let Some(count) = number(child(driver, "allocatable"), "count").filter(|count| *count < 0) {
            errors.invalid_value(&allocatable_at.child("count"), count, NOT_NEGATIVE);
        }
        if !names.insert(name) {
            errors.duplicate(&at.child("name"), name);
        }
        let mut keys = HashSet::new();
        for key in items(driver, "topologyKeys").iter().map(|key| key.as_str().unwrap_or_default()) {
            if is_full(errors) {
                return;
            }
            if key.is_empty() {
                errors.required(&at, "");
            }
            if !keys.insert(key) {
                errors.duplicate(&at, key);
            }
            qualified_name(key, &at, errors);
        }
    }
    let Some(old) = old else { return };
    let mut by_name: HashMap<&str, Vec<&Object>> = HashMap::new();
    for (_, driver) in drivers(node) {
        by_name.entry(text(driver, "name")).or_default().push(driver);
    }
    let fixed = |driver: &Object| {
        let mut driver = driver.clone();
        driver.shift_remove("allocatable");
        Value::Object(driver)
    };
    for (_, before) in drivers(old) {
        let before_fixed = fixed(before);
        for driver in by_name.get(text(before, "name")).into_iter().flatten() {
            let driver = fixed(driver);
            if !same(Some(&driver), Some(&before_fixed)) {
                errors.invalid_value(&drivers_at, csi_node_driver(&driver), IMMUTABLE);
            }
        }
    }
}

/// A driver of a node as upstream's own type prints it, which has no JSON names.
fn csi_node_driver(driver: &Value) -> String {
    let text = |name: &str| json(Some(driver.get(name).unwrap_or(&Value::from(""))));
    format!(
        "{{\"Name\":{},\"NodeID\":{},\"TopologyKeys\":{},\"Allocatable\":null}}",
        text("name"),
        text("nodeID"),
        json(driver.get("topologyKeys"))
    )
}

// CSIDriver.

pub(crate) fn csi_driver(driver: &Object, old: Option<&Object>, errors: &mut Errors) {
    let spec = child(driver, "spec");
    let at = Path::root("spec");
    for (name, shown) in [
        ("attachRequired", "attachedRequired"),
        ("podInfoOnMount", "podInfoOnMount"),
        ("storageCapacity", "storageCapacity"),
    ] {
        if given(spec, name).is_none() {
            errors.required(&at.child(shown), "");
        }
    }
    const POLICIES: [&str; 3] = ["File", "None", "ReadWriteOnceWithFSType"];
    if let Some(policy) = given(spec, "fsGroupPolicy").and_then(Value::as_str)
        && !POLICIES.contains(&policy)
    {
        errors.not_supported(&at.child("fsGroupPolicy"), policy, &POLICIES);
    }
    token_requests(spec, &at.child("tokenRequests"), errors);
    let modes_at = at.child("volumeLifecycleModes");
    for mode in items(spec, "volumeLifecycleModes").iter().map(|mode| mode.as_str().unwrap_or_default()) {
        if !matches!(mode, "Persistent" | "Ephemeral") {
            errors.not_supported(&modes_at, mode, &["Persistent", "Ephemeral"]);
        }
    }
    if given(spec, "seLinuxMount").is_none() {
        errors.required(&at.child("seLinuxMount"), "");
    }
    if let Some(period) = number(spec, "nodeAllocatableUpdatePeriodSeconds").filter(|period| *period < 10) {
        let why = "must be greater than or equal to 10 seconds";
        errors.invalid_value(&at.child("nodeAllocatableUpdatePeriodSeconds"), period, why);
    }
    if let Some(set) = given(spec, "serviceAccountTokenInSecrets")
        && items(spec, "tokenRequests").is_empty()
    {
        let why = "serviceAccountTokenInSecrets is set but no tokenRequests are specified";
        errors.invalid_value(&at.child("serviceAccountTokenInSecrets"), set, why);
    }
    let Some(old) = old else { return };
    for (name, shown) in [("attachRequired", "attachedRequired"), ("volumeLifecycleModes", "volumeLifecycleModes")] {
        if !same(spec.get(name), child(old, "spec").get(name)) {
            errors.invalid_value(&at.child(shown), json(spec.get(name)), IMMUTABLE);
        }
    }
}

fn token_requests(spec: &Object, at: &Path<'_>, errors: &mut Errors) {
    let mut audiences = HashSet::new();
    for (index, request) in objects(spec, "tokenRequests") {
        let at = at.index(index);
        let audience = text(request, "audience");
        if !audiences.insert(audience) {
            errors.duplicate(&at.child("audience"), audience);
            continue;
        }
        let Some(seconds) = number(request, "expirationSeconds") else { continue };
        let seconds_at = at.child("expirationSeconds");
        if seconds < TOKEN_SECONDS_MIN {
            errors.invalid_value(&seconds_at, seconds, "may not specify a duration less than 10 minutes");
        }
        if seconds > TOKEN_SECONDS_MAX {
            errors.invalid_value(&seconds_at, seconds, "may not specify a duration larger than 2^32 seconds");
        }
    }
}

// CSIStorageCapacity.

pub(crate) fn csi_storage_capacity(capacity: &Object, old: Option<&Object>, errors: &mut Errors) {
    let (topology_at, class_at) = (Path::root("nodeTopology"), Path::root("storageClassName"));
    let values_too = old.is_none_or(|old| !is_invalid_selector(old.get("nodeTopology")));
    label_selector(capacity.get("nodeTopology"), values_too, &topology_at, errors);
    let class = text(capacity, "storageClassName");
    subdomain(class, &class_at, errors);
    if let Some(amount) = given(capacity, "capacity").map(amount) {
        not_negative_amount(amount, &Path::root("capacity"), errors);
    }
    let Some(old) = old else { return };
    if !same(capacity.get("nodeTopology"), old.get("nodeTopology")) {
        errors.invalid_value(&topology_at, json(capacity.get("nodeTopology")), IMMUTABLE);
    }
    if text(old, "storageClassName") != class {
        errors.invalid(&class_at, class, IMMUTABLE);
    }
}

// VolumeAttributesClass.

pub(crate) fn volume_attributes_class(class: &Object, old: Option<&Object>, errors: &mut Errors) {
    if let Some(old) = old {
        if text(old, "driverName") != text(class, "driverName") {
            errors.push(FieldError::forbidden("driverName", "updates to driverName are forbidden."));
        }
        if !same(old.get("parameters"), class.get("parameters")) {
            errors.push(FieldError::forbidden("parameters", "updates to parameters are forbidden."));
        }
    }
    provisioner(class, "driverName", errors);
    parameters(class, false, errors);
}
