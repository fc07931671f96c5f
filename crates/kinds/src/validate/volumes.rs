//! What PersistentVolumes and PersistentVolumeClaims demand (`pkg/apis/core/validation`,
//! `pkg/volume/validation`, Kubernetes v1.36).

use listwatch_meta::FieldError;
use listwatch_schema::Path;
use serde_json::{Map, Value, json};

use listwatch_meta::go::quote;
use listwatch_validation::diff::unified;
use listwatch_validation::formats::{
    self, IMMUTABLE, amount, driver_name, is_invalid_selector, json as go_json, label, label_selector,
    not_negative_amount, positive_amount, qualified_name, same, subdomain, whole,
};
use listwatch_validation::{Errors, Object, child, given, items, number, objects, text};

const ACCESS_MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
const VOLUME_MODES: [&str; 2] = ["Block", "Filesystem"];
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
            if given(spec, name).is_some_and(|value| !super::is_empty(Some(value)) || name == "claimRef") {
                errors.forbidden(&at.child(name), INLINE);
            }
        }
        if given(spec, "csi").is_none() {
            errors.required(&at.child("csi"), "has to be specified in the context of inline volumes");
        }
    }
    access_modes(spec, "", at, errors);
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

fn access_modes(spec: &Object, none: &str, at: &Path<'_>, errors: &mut Errors) {
    let at = at.child("accessModes");
    if items(spec, "accessModes").is_empty() {
        errors.required(&at, none);
    }
    judge_access_modes(spec, &at, errors);
}

fn judge_access_modes(spec: &Object, at: &Path<'_>, errors: &mut Errors) {
    let modes = || items(spec, "accessModes").iter().map(|mode| mode.as_str().unwrap_or_default());
    for mode in modes().filter(|mode| !ACCESS_MODES.contains(mode)) {
        errors.not_supported(at, mode, &ACCESS_MODES);
    }
    let single = |mode: &str| mode == "ReadWriteOncePod";
    if modes().any(single) && modes().any(|mode| !single(mode) && ACCESS_MODES.contains(&mode)) {
        errors.forbidden(at, "may not use ReadWriteOncePod with other access modes");
    }
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
        one_source(member, source, name, &at.child(inside), errors);
        if member == "local" && (inline || given(spec, "nodeAffinity").is_none()) {
            errors.required(&at.child("nodeAffinity"), "Local volume requires node affinity");
        }
    }
    if !found {
        errors.required(at, "must specify a volume type");
    }
}

pub(crate) fn needs(source: &Object, names: &[&str], at: &Path<'_>, errors: &mut Errors) {
    for name in names.iter().filter(|name| super::is_empty(source.get(**name))) {
        errors.required(&at.child(name), "");
    }
}

/// A reference to a secret: it names what is listed.
fn secret(source: &Object, names: &[&str], at: &Path<'_>, errors: &mut Errors) {
    if let Some(Value::Object(secret)) = given(source, "secretRef") {
        needs(secret, names, &at.child("secretRef"), errors);
    }
}

fn partition(disk: &Object, at: &Path<'_>, errors: &mut Errors) {
    if let Some(partition) = number(disk, "partition").filter(|partition| !(0..=255).contains(partition)) {
        errors.invalid_value(&at.child("partition"), partition, "must be between 1 and 255, inclusive");
    }
}

pub(crate) fn lun(source: &Object, at: &Path<'_>, errors: &mut Errors) {
    if let Some(lun) = number(source, "lun").filter(|lun| !(0..=255).contains(lun)) {
        errors.invalid_value(&at.child("lun"), lun, "must be between 0 and 255, inclusive");
    }
}

fn no_steps_back(path: &str, at: &Path<'_>, errors: &mut Errors) {
    if path.split('/').any(|part| part == "..") {
        errors.invalid(at, path, "must not contain '..'");
    }
}

pub(crate) fn one_source(kind: &str, source: &Object, name: &str, at: &Path<'_>, errors: &mut Errors) {
    match kind {
        "hostPath" => host_path(source, at, errors),
        "gcePersistentDisk" => {
            needs(source, &["pdName"], at, errors);
            partition(source, at, errors);
        }
        "awsElasticBlockStore" => {
            needs(source, &["volumeID"], at, errors);
            partition(source, at, errors);
        }
        "glusterfs" => {
            needs(source, &["endpoints", "path"], at, errors);
            let namespace_at = at.child("endpointsNamespace");
            match given(source, "endpointsNamespace").and_then(Value::as_str) {
                None => {}
                Some("") => {
                    let why = "if the endpointnamespace is set, it must be a valid namespace name";
                    errors.invalid(&namespace_at, "", why);
                }
                Some(namespace) => label(namespace, &namespace_at, errors),
            }
        }
        "flocker" => flocker(source, at, errors),
        "nfs" => {
            needs(source, &["server", "path"], at, errors);
            if !text(source, "path").starts_with('/') {
                errors.invalid(&at.child("path"), text(source, "path"), "must be an absolute path");
            }
        }
        "rbd" => needs(source, &["monitors", "image"], at, errors),
        "quobyte" => quobyte(source, at, errors),
        "cephfs" => needs(source, &["monitors"], at, errors),
        "iscsi" => iscsi(source, name, at, errors),
        "cinder" => {
            needs(source, &["volumeID"], at, errors);
            secret(source, &["name", "namespace"], at, errors);
        }
        "fc" => fibre_channel(source, at, errors),
        "flexVolume" => flex_volume(source, at, errors),
        "azureFile" => {
            needs(source, &["secretName", "shareName"], at, errors);
            if given(source, "secretNamespace").and_then(Value::as_str) == Some("") {
                errors.required(&at.child("secretNamespace"), "");
            }
        }
        "vsphereVolume" => needs(source, &["volumePath"], at, errors),
        "photonPersistentDisk" => needs(source, &["pdID"], at, errors),
        "portworxVolume" => needs(source, &["volumeID"], at, errors),
        "azureDisk" => azure_disk(source, at, errors),
        "scaleIO" => needs(source, &["gateway", "system", "volumeName"], at, errors),
        "local" => {
            needs(source, &["path"], at, errors);
            no_steps_back(text(source, "path"), &at.child("path"), errors);
        }
        "storageos" => {
            match text(source, "volumeName") {
                "" => errors.required(&at.child("volumeName"), ""),
                name => label(name, &at.child("volumeName"), errors),
            }
            if !text(source, "volumeNamespace").is_empty() {
                label(text(source, "volumeNamespace"), &at.child("volumeNamespace"), errors);
            }
            secret(source, &["name", "namespace"], at, errors);
        }
        "csi" => csi(source, at, errors),
        _ => {}
    }
}

fn host_path(source: &Object, at: &Path<'_>, errors: &mut Errors) {
    const TYPES: [&str; 8] =
        ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
    let path = text(source, "path");
    if path.is_empty() {
        return errors.required(&at.child("path"), "");
    }
    no_steps_back(path, &at.child("path"), errors);
    let kind = text(source, "type");
    if !TYPES.contains(&kind) {
        errors.not_supported(&at.child("type"), kind, &TYPES);
    }
}

fn flocker(source: &Object, at: &Path<'_>, errors: &mut Errors) {
    let (name, id) = (text(source, "datasetName"), text(source, "datasetUUID"));
    if name.is_empty() && id.is_empty() {
        errors.required(at, "one of datasetName and datasetUUID is required");
    }
    if !name.is_empty() && !id.is_empty() {
        errors.invalid(at, "resource", "datasetName and datasetUUID can not be specified simultaneously");
    }
    if name.contains('/') {
        errors.invalid(&at.child("datasetName"), name, "must not contain '/'");
    }
}

fn quobyte(source: &Object, at: &Path<'_>, errors: &mut Errors) {
    const WHY: &str = "must be a host:port pair or multiple pairs separated by commas";
    let (registry, registry_at) = (text(source, "registry"), at.child("registry"));
    if registry.is_empty() {
        errors.required(&registry_at, WHY);
    } else if text(source, "tenant").len() >= 65 {
        errors.required(&at.child("tenant"), "must be a UUID and may not exceed a length of 64 characters");
    } else {
        // Each error shows the whole text, so that one error has to do for a long one.
        let wrong = registry.split(',').filter(|pair| !is_host_and_port(pair)).count();
        for _ in 0..if registry.len() > REGISTRY_SHOWN_BYTES_MAX { wrong.min(1) } else { wrong } {
            errors.invalid(&registry_at, registry, WHY);
        }
    }
    needs(source, &["volume"], at, errors);
}

/// A longer registry of Quobyte is refused with one error, a shorter one with one for each wrong pair.
const REGISTRY_SHOWN_BYTES_MAX: usize = 1024;

/// `net.SplitHostPort`.
fn is_host_and_port(text: &str) -> bool {
    if let Some(rest) = text.strip_prefix('[') {
        return rest
            .split_once("]:")
            .is_some_and(|(host, port)| !host.contains(['[', ']']) && !port.contains([':', '[', ']']));
    }
    text.matches(':').count() == 1 && !text.contains(['[', ']'])
}

fn iscsi(source: &Object, name: &str, at: &Path<'_>, errors: &mut Errors) {
    let portal = text(source, "targetPortal");
    if portal.is_empty() {
        errors.required(&at.child("targetPortal"), "");
    }
    let initiator = given(source, "initiatorName").and_then(Value::as_str);
    if initiator.is_some() && name.len() + 1 + portal.len() > 64 {
        let why = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.";
        errors.invalid(&at.child("targetportal"), portal, why);
    }
    match text(source, "iqn") {
        "" => errors.required(&at.child("iqn"), ""),
        target if is_iscsi_name(target) => {}
        target => errors.invalid(&at.child("iqn"), target, "must be valid format"),
    }
    lun(source, at, errors);
    let authenticated =
        ["chapAuthDiscovery", "chapAuthSession"].iter().any(|name| source.get(*name) == Some(&Value::Bool(true)));
    if authenticated && given(source, "secretRef").is_none() {
        errors.required(&at.child("secretRef"), "");
    }
    secret(source, &["name"], at, errors);
    if let Some(initiator) = initiator
        && !is_iscsi_name(initiator)
    {
        errors.invalid(&at.child("initiatorname"), initiator, "must be valid format");
    }
}

/// The name of a target or initiator: `iqn.`, a date, a domain and a text; `eui.` and 16, `naa.` and 32
/// letters and digits. As upstream's expressions read it: one of them looks for its text anywhere.
pub(crate) fn is_iscsi_name(name: &str) -> bool {
    let alphanumeric = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let rest_of =
        |prefix: &str| name.strip_prefix(prefix).and_then(|rest| rest.char_indices().nth(1).map(|(at, _)| &rest[at..]));
    if name.starts_with("iqn") {
        return name.match_indices("iqn.").any(|(at, _)| is_qualified_iscsi_name(&name[at + 4..]));
    }
    let is =
        |prefix: &str, length: usize| rest_of(prefix).is_some_and(|rest| rest.len() == length && alphanumeric(rest));
    is("eui", 16) || is("naa", 32)
}

/// What is behind `iqn.`: `2024-01.com.example:text`.
fn is_qualified_iscsi_name(rest: &str) -> bool {
    let bytes = rest.as_bytes();
    let digits =
        |range: std::ops::Range<usize>| bytes.get(range).is_some_and(|part| part.iter().all(u8::is_ascii_digit));
    if !(digits(0..4) && bytes.get(4) == Some(&b'-') && digits(5..7) && bytes.get(7) == Some(&b'.')) {
        return false;
    }
    let domain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    let end = bytes[8..].iter().position(|byte| !domain(byte)).map(|end| end + 8);
    let Some(end) = end.filter(|end| *end > 8 && bytes[*end] == b':') else { return false };
    let tail = &rest[end + 1..];
    !tail.is_empty() && !tail.contains([',', ';', '*', '&', '$', '|', ' ', '\t', '\n', '\r', '\u{b}', '\u{c}'])
}

fn fibre_channel(source: &Object, at: &Path<'_>, errors: &mut Errors) {
    let (targets, wide) = (items(source, "targetWWNs"), items(source, "wwids"));
    let targets_at = at.child("targetWWNs");
    match (targets.is_empty(), wide.is_empty()) {
        (true, true) => errors.required(&targets_at, "must specify either targetWWNs or wwids, but not both"),
        (false, false) => {
            let why = "targetWWNs and wwids can not be specified simultaneously";
            errors.invalid_value(&targets_at, go_json(source.get("targetWWNs")), why);
        }
        _ => {}
    }
    if !targets.is_empty() {
        if number(source, "lun").is_none() {
            errors.required(&at.child("lun"), "lun is required if targetWWNs is specified");
        }
        lun(source, at, errors);
    }
}

fn flex_volume(source: &Object, at: &Path<'_>, errors: &mut Errors) {
    needs(source, &["driver"], at, errors);
    let options_at = at.child("options");
    for name in child(source, "options").keys() {
        let namespace =
            format!(".{}", name.split_once('/').map_or(name.as_str(), |(namespace, _)| namespace).to_lowercase());
        if namespace.ends_with(".kubernetes.io") || namespace.ends_with(".k8s.io") {
            errors.invalid(&options_at.key(name), name, "kubernetes.io and k8s.io namespaces are reserved");
        }
    }
}

fn azure_disk(source: &Object, at: &Path<'_>, errors: &mut Errors) {
    needs(source, &["diskName", "diskURI"], at, errors);
    let (caching, kind) = (text(source, "cachingMode"), text(source, "kind"));
    const MODES: [&str; 3] = ["None", "ReadOnly", "ReadWrite"];
    if given(source, "cachingMode").is_some() && !MODES.contains(&caching) {
        errors.not_supported(&at.child("cachingMode"), caching, &MODES);
    }
    const KINDS: [&str; 3] = ["Dedicated", "Managed", "Shared"];
    if given(source, "kind").is_none() {
        return;
    }
    if !KINDS.contains(&kind) {
        errors.not_supported(&at.child("kind"), kind, &KINDS);
    }
    let (address, address_at) = (text(source, "diskURI"), at.child("diskURI"));
    if kind == "Managed" && !address.starts_with("/subscriptions/") {
        let form = "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}";
        errors.not_supported(&address_at, address, &[form]);
    }
    if kind != "Managed" && !address.starts_with("https://") {
        let form = "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd";
        errors.not_supported(&address_at, address, &[form]);
    }
}

fn csi(source: &Object, at: &Path<'_>, errors: &mut Errors) {
    driver_name(text(source, "driver"), &at.child("driver"), errors);
    needs(source, &["volumeHandle"], at, errors);
    for name in
        ["controllerPublishSecretRef", "controllerExpandSecretRef", "nodePublishSecretRef", "nodeExpandSecretRef"]
    {
        let Some(Value::Object(secret)) = given(source, name) else { continue };
        let at = at.child(name);
        match text(secret, "name") {
            "" => errors.required(&at.child("name"), ""),
            name => subdomain(name, &at.child("name"), errors),
        }
        match text(secret, "namespace") {
            "" => errors.required(&at.child("namespace"), ""),
            namespace => label(namespace, &at.child("namespace"), errors),
        }
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
    json!({ "Required": given(affinity, "required").map(go_node_selector) }).to_string()
}

/// A selector of nodes as upstream's own type prints it.
pub(crate) fn go_node_selector(selector: &Value) -> Value {
    json!({ "NodeSelectorTerms": selector.get("nodeSelectorTerms").map(go_node_selector_terms) })
}

pub(crate) fn go_node_selector_terms(terms: &Value) -> Value {
    let requirements = |term: &Value, name: &str| {
        let list = term.get(name)?.as_array()?.iter();
        let list = list.map(|requirement| {
            json!({"Key": requirement.get("key"), "Operator": requirement.get("operator"), "Values": requirement.get("values")})
        });
        Some(list.collect::<Vec<_>>())
    };
    let terms = terms.as_array().into_iter().flatten();
    terms
        .map(|term| {
            json!({"MatchExpressions": requirements(term, "matchExpressions"), "MatchFields": requirements(term, "matchFields")})
        })
        .collect()
}

// PersistentVolumeClaim.

pub(crate) fn claim(claim: &Object, old: Option<&Object>, errors: &mut Errors) {
    let spec = child(claim, "spec");
    let at = Path::root("spec");
    let before = old.map(|old| child(old, "spec"));
    let values_too = before.is_none_or(|before| !is_invalid_selector(before.get("selector")));
    let groups_too = before.is_none_or(|before| {
        ["dataSource", "dataSourceRef"].iter().all(|name| given(child(before, name), "apiGroup").is_none())
    });
    claim_rules(spec, values_too, groups_too, &at, errors);
    if let Some(old) = old {
        changed_claim(claim, old, errors);
    }
}

/// The spec of a claim that is yet to be made (`ValidatePersistentVolumeClaimSpec`).
pub(crate) fn claim_spec(spec: &Object, at: &Path<'_>, errors: &mut Errors) {
    claim_rules(spec, true, true, at, errors);
}

fn claim_rules(spec: &Object, values_too: bool, groups_too: bool, at: &Path<'_>, errors: &mut Errors) {
    let modes_at = at.child("accessModes");
    if items(spec, "accessModes").is_empty() {
        errors.required(&modes_at, "at least 1 access mode is required");
    }
    label_selector(spec.get("selector"), values_too, &at.child("selector"), errors);
    judge_access_modes(spec, &modes_at, errors);
    let resources_at = at.child("resources");
    let storage_at = resources_at.key("storage");
    match child(child(spec, "resources"), "requests").get("storage") {
        None => errors.required(&storage_at, ""),
        Some(storage) => positive_amount(amount(storage), &storage_at, errors),
    }
    if !text(spec, "storageClassName").is_empty() {
        subdomain(text(spec, "storageClassName"), &at.child("storageClassName"), errors);
    }
    if let Some(mode) = given(spec, "volumeMode").and_then(Value::as_str)
        && !VOLUME_MODES.contains(&mode)
    {
        errors.not_supported(&at.child("volumeMode"), mode, &VOLUME_MODES);
    }
    data_sources(spec, groups_too, at, errors);
    if !text(spec, "volumeAttributesClassName").is_empty() {
        subdomain(text(spec, "volumeAttributesClassName"), &at.child("volumeAttributesClassName"), errors);
    }
}

fn data_sources(spec: &Object, groups_too: bool, at: &Path<'_>, errors: &mut Errors) {
    let mut source = |name: &str| {
        let source = given(spec, name)?.as_object()?;
        let at = at.child(name);
        needs(source, &["name", "kind"], &at, errors);
        let (group, kind) = (text(source, "apiGroup"), text(source, "kind"));
        if group.is_empty() && kind != "PersistentVolumeClaim" {
            errors.invalid(&at, kind, "must be 'PersistentVolumeClaim' when referencing the default apiGroup");
        }
        if !group.is_empty() && groups_too {
            subdomain(group, &at.child("apiGroup"), errors);
        }
        if name == "dataSourceRef" && !text(source, "namespace").is_empty() {
            label(text(source, "namespace"), &at.child("namespace"), errors);
        }
        Some(source)
    };
    let (first, second) = (source("dataSource"), source("dataSourceRef"));
    let (Some(first), Some(second)) = (first, second) else { return };
    let why = if !text(second, "namespace").is_empty() {
        "may not be specified when dataSourceRef.namespace is specified"
    } else if ["apiGroup", "kind", "name"].iter().any(|name| first.get(*name) != second.get(*name)) {
        "must match dataSourceRef"
    } else {
        return;
    };
    // What is shown is the path, as its Go type prints itself.
    errors.invalid_value(at, "{}", why);
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
