//! Validates volume sources that PersistentVolumes and pods share: NFS, iSCSI, CSI and others.
//!
//! Rules: `validate*VolumeSource` in `pkg/apis/core/validation` of Kubernetes v1.36.

use listwatch_json::Value;

use listwatch_schema::Path;

use crate::field_rules::no_backsteps;
use crate::formats::{driver_name, json as go_json, label, subdomain};
use crate::{Errors, Object, child, given, is_empty, items, number, text};

/// Reports each of these members that is absent or empty.
pub fn required(source: &Object, names: &[&str], at: &Path<'_>, errors: &mut Errors) {
    for name in names.iter().filter(|name| is_empty(source.get(name))) {
        errors.required(&at.child(name), "");
    }
}

/// Reports the missing members of a reference to a secret.
fn secret_ref(source: &Object, names: &[&str], at: &Path<'_>, errors: &mut Errors) {
    if let Some(Value::Object(secret)) = given(source, "secretRef") {
        required(secret, names, &at.child("secretRef"), errors);
    }
}

fn partition(disk: &Object, at: &Path<'_>, errors: &mut Errors) {
    if let Some(partition) = number(disk, "partition").filter(|partition| !(0..=255).contains(partition)) {
        errors.invalid_value(&at.child("partition"), partition, "must be between 1 and 255, inclusive");
    }
}

/// Reports a logical unit number outside 0 to 255.
pub fn lun(source: &Object, at: &Path<'_>, errors: &mut Errors) {
    if let Some(lun) = number(source, "lun").filter(|lun| !(0..=255).contains(lun)) {
        errors.invalid_value(&at.child("lun"), lun, "must be between 0 and 255, inclusive");
    }
}

/// Validates a volume source; `kind` is its member name, `name` the name of the volume.
pub fn volume_source(kind: &str, source: &Object, name: &str, at: &Path<'_>, errors: &mut Errors) {
    match kind {
        "hostPath" => host_path(source, at, errors),
        "gcePersistentDisk" => {
            required(source, &["pdName"], at, errors);
            partition(source, at, errors);
        }
        "awsElasticBlockStore" => {
            required(source, &["volumeID"], at, errors);
            partition(source, at, errors);
        }
        "glusterfs" => {
            required(source, &["endpoints", "path"], at, errors);
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
            required(source, &["server", "path"], at, errors);
            if !text(source, "path").starts_with('/') {
                errors.invalid(&at.child("path"), text(source, "path"), "must be an absolute path");
            }
        }
        "rbd" => required(source, &["monitors", "image"], at, errors),
        "quobyte" => quobyte(source, at, errors),
        "cephfs" => required(source, &["monitors"], at, errors),
        "iscsi" => iscsi(source, name, at, errors),
        "cinder" => {
            required(source, &["volumeID"], at, errors);
            secret_ref(source, &["name", "namespace"], at, errors);
        }
        "fc" => fibre_channel(source, at, errors),
        "flexVolume" => flex_volume(source, at, errors),
        "azureFile" => {
            required(source, &["secretName", "shareName"], at, errors);
            if given(source, "secretNamespace").and_then(Value::as_str) == Some("") {
                errors.required(&at.child("secretNamespace"), "");
            }
        }
        "vsphereVolume" => required(source, &["volumePath"], at, errors),
        "photonPersistentDisk" => required(source, &["pdID"], at, errors),
        "portworxVolume" => required(source, &["volumeID"], at, errors),
        "azureDisk" => azure_disk(source, at, errors),
        "scaleIO" => required(source, &["gateway", "system", "volumeName"], at, errors),
        "local" => {
            required(source, &["path"], at, errors);
            no_backsteps(text(source, "path"), &at.child("path"), errors);
        }
        "storageos" => {
            match text(source, "volumeName") {
                "" => errors.required(&at.child("volumeName"), ""),
                name => label(name, &at.child("volumeName"), errors),
            }
            if !text(source, "volumeNamespace").is_empty() {
                label(text(source, "volumeNamespace"), &at.child("volumeNamespace"), errors);
            }
            secret_ref(source, &["name", "namespace"], at, errors);
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
    no_backsteps(path, &at.child("path"), errors);
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
        // Each error shows the whole text, so a long text gets only one error.
        let wrong = registry.split(',').filter(|pair| !is_host_and_port(pair)).count();
        for _ in 0..if registry.len() > REGISTRY_SHOWN_BYTES_MAX { wrong.min(1) } else { wrong } {
            errors.invalid(&registry_at, registry, WHY);
        }
    }
    required(source, &["volume"], at, errors);
}

/// The largest length of a Quobyte registry, in bytes, for which each invalid pair is a separate
/// error. A longer registry gets one error.
const REGISTRY_SHOWN_BYTES_MAX: usize = 1024;

/// True if `net.SplitHostPort` accepts the text.
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
        ["chapAuthDiscovery", "chapAuthSession"].iter().any(|name| source.get(name) == Some(&Value::Bool(true)));
    if authenticated && given(source, "secretRef").is_none() {
        errors.required(&at.child("secretRef"), "");
    }
    secret_ref(source, &["name"], at, errors);
    if let Some(initiator) = initiator
        && !is_iscsi_name(initiator)
    {
        errors.invalid(&at.child("initiatorname"), initiator, "must be valid format");
    }
}

/// True if the text is the name of an iSCSI target or initiator by upstream's regular expressions.
///
/// The forms are `iqn.` with a date, a domain and a text; `eui.` with 16 and `naa.` with 32 letters
/// and digits. Upstream's expression for `iqn.` is not anchored at the start.
pub fn is_iscsi_name(name: &str) -> bool {
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

/// True if a text can follow `iqn.`, such as `2024-01.com.example:text`.
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
    required(source, &["driver"], at, errors);
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
    required(source, &["diskName", "diskURI"], at, errors);
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
    required(source, &["volumeHandle"], at, errors);
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
