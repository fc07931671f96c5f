//! Validates the volumes of pods (`ValidateVolumes`). [`crate::volume_source`] contains the rules
//! for sources that PersistentVolumes also have.

use std::collections::{HashMap, HashSet};

use listwatch_json::Value;
use listwatch_schema::Path;

use super::SpecOwner;
use crate::field_rules::{descending_path, required_one_of};
use crate::formats::{self, label, qualified_name, subdomain};
use crate::volume_claim::{ClaimSpecOptions, claim_spec};
use crate::volume_source::{is_iscsi_name, lun, required, volume_source};
use crate::{Errors, Object, child, given, is_empty, is_true, number, objects, text};

/// The largest file mode.
const MODE_MAX: i64 = 0o777;
/// The lifetime of a service account token in seconds.
const TOKEN_SECONDS_MIN: i64 = 600;
const TOKEN_SECONDS_MAX: i64 = 1 << 32;
/// The total length of a volume's name and its iSCSI portal in bytes.
const PORTAL_BYTES_MAX: usize = 64;

/// The volume sources in upstream's order: the member, its name in the error about a second source,
/// and its name in errors inside the source.
const SOURCES: [(&str, &str, &str); 30] = [
    ("emptyDir", "emptyDir", "emptyDir"),
    ("hostPath", "hostPath", "hostPath"),
    ("gitRepo", "gitRepo", "gitRepo"),
    ("gcePersistentDisk", "gcePersistentDisk", "persistentDisk"),
    ("awsElasticBlockStore", "awsElasticBlockStore", "awsElasticBlockStore"),
    ("secret", "secret", "secret"),
    ("nfs", "nfs", "nfs"),
    ("iscsi", "iscsi", "iscsi"),
    ("glusterfs", "glusterfs", "glusterfs"),
    ("flocker", "flocker", "flocker"),
    ("persistentVolumeClaim", "persistentVolumeClaim", "persistentVolumeClaim"),
    ("rbd", "rbd", "rbd"),
    ("cinder", "cinder", "cinder"),
    ("cephfs", "cephFS", "cephfs"),
    ("quobyte", "quobyte", "quobyte"),
    ("downwardAPI", "downwarAPI", "downwardAPI"),
    ("fc", "fc", "fc"),
    ("flexVolume", "flexVolume", "flexVolume"),
    ("configMap", "configMap", "configMap"),
    ("azureFile", "azureFile", "azureFile"),
    ("vsphereVolume", "vsphereVolume", "vsphereVolume"),
    ("photonPersistentDisk", "photonPersistentDisk", "photonPersistentDisk"),
    ("portworxVolume", "portworxVolume", "portworxVolume"),
    ("azureDisk", "azureDisk", "azureDisk"),
    ("storageos", "storageos", "storageos"),
    ("projected", "projected", "projected"),
    ("scaleIO", "scaleIO", "scaleIO"),
    ("csi", "csi", "csi"),
    ("ephemeral", "ephemeral", "ephemeral"),
    ("image", "image", "image"),
];

/// Validates the volumes of a spec. Returns the names of the valid volumes; the value is true for a
/// volume of a claim.
pub(super) fn validate<'a>(
    spec: &'a Object,
    owner: SpecOwner<'_>,
    at: &Path<'_>,
    errors: &mut Errors,
) -> HashMap<&'a str, bool> {
    let mut valid = HashMap::new();
    // The claims of ephemeral volumes. Other volumes must not use them.
    let mut made = HashSet::new();
    if !owner.name.is_empty() {
        let ephemeral = objects(spec, "volumes").filter(|(_, volume)| given(volume, "ephemeral").is_some());
        made.extend(ephemeral.map(|(_, volume)| format!("{}-{}", owner.name, text(volume, "name"))));
    }
    for (position, volume) in objects(spec, "volumes") {
        let (at, name) = (at.index(position), text(volume, "name"));
        let before = errors.len();
        source(volume, name, owner, &at, errors);
        let name_at = at.child("name");
        if name.is_empty() {
            errors.required(&name_at, "");
        } else {
            label(name, &name_at, errors);
        }
        if valid.contains_key(name) {
            errors.duplicate(&name_at, name);
        }
        if errors.len() == before {
            let of_claim = ["persistentVolumeClaim", "ephemeral"].iter().any(|kind| given(volume, kind).is_some());
            valid.insert(name, of_claim);
        }
        let claim = text(child(volume, "persistentVolumeClaim"), "claimName");
        if made.contains(claim) {
            let at = at.child("persistentVolumeClaim");
            let why = "must not reference a PVC that gets created for an ephemeral volume";
            errors.invalid(&at.child("claimName"), claim, why);
        }
    }
    valid
}

fn source(volume: &Object, name: &str, owner: SpecOwner<'_>, at: &Path<'_>, errors: &mut Errors) {
    let mut found = false;
    for (member, second, inside) in SOURCES {
        let Some(source) = given(volume, member).and_then(Value::as_object) else { continue };
        if found {
            errors.forbidden(&at.child(second), "may not specify more than 1 volume type");
        } else {
            found = true;
            one(member, source, name, owner, &at.child(inside), errors);
        }
        match member {
            "iscsi" => {
                let total = name.len() + 1 + text(source, "targetPortal").len();
                if given(source, "initiatorName").is_some() && total > PORTAL_BYTES_MAX {
                    let why = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.";
                    errors.invalid(&at.child("name"), name, why);
                }
            }
            "ephemeral" if !owner.name.is_empty() && !name.is_empty() => {
                let claim = format!("{}-{name}", owner.name);
                for problem in listwatch_meta::selector::dns_subdomain_problems(&claim) {
                    let why = format_args!("PVC name {}: {problem}", listwatch_meta::go::quote(&claim));
                    errors.invalid(&at.child("name"), name, why);
                }
            }
            _ => {}
        }
    }
    if !found {
        errors.required(at, "must specify a volume type");
    }
}

fn one(kind: &str, source: &Object, name: &str, owner: SpecOwner<'_>, at: &Path<'_>, errors: &mut Errors) {
    match kind {
        "emptyDir" => {
            let limit = given(source, "sizeLimit").map(formats::amount);
            if limit.is_some_and(|limit| formats::sign(limit) == std::cmp::Ordering::Less) {
                errors.forbidden(&at.child("sizeLimit"), "SizeLimit field must be a valid resource quantity");
            }
        }
        "gitRepo" => {
            required(source, &["repository"], at, errors);
            descending_path(text(source, "directory"), &at.child("directory"), errors);
        }
        "secret" | "configMap" => {
            required(source, &[if kind == "secret" { "secretName" } else { "name" }], at, errors);
            mode(source, "defaultMode", at, errors);
            let at = at.child("items");
            for (position, item) in objects(source, "items") {
                key_to_path(item, &at.index(position), errors);
            }
        }
        "iscsi" => iscsi(source, at, errors),
        "persistentVolumeClaim" => required(source, &["claimName"], at, errors),
        "cinder" => {
            required(source, &["volumeID"], at, errors);
            secret_name(source, at, errors);
        }
        "storageos" => {
            match text(source, "volumeName") {
                "" => errors.required(&at.child("volumeName"), ""),
                name => label(name, &at.child("volumeName"), errors),
            }
            if !text(source, "volumeNamespace").is_empty() {
                label(text(source, "volumeNamespace"), &at.child("volumeNamespace"), errors);
            }
            secret_name(source, at, errors);
        }
        "azureFile" => required(source, &["secretName", "shareName"], at, errors),
        "glusterfs" => required(source, &["endpoints", "path"], at, errors),
        "downwardAPI" => {
            mode(source, "defaultMode", at, errors);
            for (_, file) in objects(source, "items") {
                downward_file(file, at, errors);
            }
        }
        "projected" => {
            mode(source, "defaultMode", at, errors);
            projections(source, at, errors);
        }
        "csi" => {
            formats::driver_name(text(source, "driver"), &at.child("driver"), errors);
            if let Some(Value::Object(secret)) = given(source, "nodePublishSecretRef") {
                match text(secret, "name") {
                    "" => {
                        let at = at.child("nodePublishSecretRef");
                        errors.required(&at.child("name"), "");
                    }
                    name => subdomain(name, &at.child("name"), errors),
                }
            }
        }
        "ephemeral" => match given(source, "volumeClaimTemplate") {
            Some(Value::Object(template)) => claim_template(template, &at.child("volumeClaimTemplate"), errors),
            _ => errors.required(&at.child("volumeClaimTemplate"), ""),
        },
        "image" => {
            if owner.is_pod {
                required(source, &["reference"], at, errors);
            }
            required_one_of(source, "pullPolicy", &["Always", "IfNotPresent", "Never"], at, errors);
        }
        _ => volume_source(kind, source, name, at, errors),
    }
}

fn secret_name(source: &Object, at: &Path<'_>, errors: &mut Errors) {
    if let Some(Value::Object(secret)) = given(source, "secretRef") {
        required(secret, &["name"], &at.child("secretRef"), errors);
    }
}

fn mode(holder: &Object, name: &str, at: &Path<'_>, errors: &mut Errors) {
    if let Some(mode) = number(holder, name).filter(|mode| !(0..=MODE_MAX).contains(mode)) {
        let why = "must be a number between 0 and 0777 (octal), both inclusive";
        errors.invalid_value(&at.child(name), mode, why);
    }
}

fn key_to_path(item: &Object, at: &Path<'_>, errors: &mut Errors) {
    required(item, &["key", "path"], at, errors);
    unreserved_path(text(item, "path"), &at.child("path"), errors);
    mode(item, "mode", at, errors);
}

/// Reports a path outside of its volume (`ValidateLocalNonReservedPath`).
fn unreserved_path(path: &str, at: &Path<'_>, errors: &mut Errors) {
    descending_path(path, at, errors);
    if path.starts_with("..") && !path.starts_with("../") {
        errors.invalid(at, path, "must not start with '..'");
    }
}

fn iscsi(source: &Object, at: &Path<'_>, errors: &mut Errors) {
    const FORM: &str = "must be valid format starting with iqn, eui, or naa";
    let known = |name: &str| ["iqn", "eui", "naa"].iter().any(|prefix| name.starts_with(prefix));
    required(source, &["targetPortal"], at, errors);
    match text(source, "iqn") {
        "" => errors.required(&at.child("iqn"), ""),
        name if is_iscsi_name(name) => {}
        name => errors.invalid(&at.child("iqn"), name, if known(name) { "must be valid format" } else { FORM }),
    }
    lun(source, at, errors);
    let authenticated = is_true(source, "chapAuthDiscovery") || is_true(source, "chapAuthSession");
    if authenticated && given(source, "secretRef").is_none() {
        errors.required(&at.child("secretRef"), "");
    }
    if let Some(name) = given(source, "initiatorName").and_then(Value::as_str).filter(|name| !is_iscsi_name(name)) {
        let why = if known(name) { "must be valid format" } else { FORM };
        errors.invalid(&at.child("initiatorname"), name, why);
    }
}

/// The fields of the pod that a downward API file may refer to.
const FILE_FIELDS: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];

fn downward_file(file: &Object, at: &Path<'_>, errors: &mut Errors) {
    required(file, &["path"], at, errors);
    unreserved_path(text(file, "path"), &at.child("path"), errors);
    let resource = given(file, "resourceFieldRef").and_then(Value::as_object);
    if let Some(Value::Object(field)) = given(file, "fieldRef") {
        field_ref(field, &FILE_FIELDS, &at.child("fieldRef"), errors);
        if resource.is_some() {
            errors.invalid(at, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously");
        }
    } else if let Some(resource) = resource {
        resource_ref(resource, true, &at.child("resourceFieldRef"), errors);
    } else {
        errors.required(at, "one of fieldRef and resourceFieldRef is required");
    }
    mode(file, "mode", at, errors);
}

/// Validates a reference to a field of the pod (`validateObjectFieldSelector`).
pub(super) fn field_ref(field: &Object, known: &[&str], at: &Path<'_>, errors: &mut Errors) {
    const FIELDS: [&str; 14] = [
        "metadata.annotations",
        "metadata.labels",
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.serviceAccountName",
        "spec.schedulerName",
        "status.phase",
        "status.hostIP",
        "status.hostIPs",
        "status.podIP",
        "status.podIPs",
    ];
    for name in ["apiVersion", "fieldPath"] {
        if text(field, name).is_empty() {
            return errors.required(&at.child(name), "");
        }
    }
    let (version, path, path_at) = (text(field, "apiVersion"), text(field, "fieldPath"), at.child("fieldPath"));
    let subscript = path.strip_suffix("']").and_then(|rest| rest.split_once("['")).filter(|(of, _)| !of.is_empty());
    let failed = if version != "v1" {
        Some(format!("unsupported pod version: {version}"))
    } else if let Some((of, _)) = subscript {
        (!matches!(of, "metadata.annotations" | "metadata.labels"))
            .then(|| format!("field label does not support subscript: {path}"))
    } else {
        (!FIELDS.contains(&path) && path != "spec.host").then(|| format!("field label not supported: {path}"))
    };
    if let Some(why) = failed {
        return errors.invalid(&path_at, path, format_args!("error converting fieldPath: {why}"));
    }
    match subscript {
        Some(("metadata.annotations", name)) => qualified_name(&name.to_lowercase(), at, errors),
        Some((_, name)) => qualified_name(name, at, errors),
        None => {
            let path = if path == "spec.host" { "spec.nodeName" } else { path };
            if !known.contains(&path) {
                errors.not_supported(&path_at, path, known);
            }
        }
    }
}

/// Validates a reference to a container's resource (`validateContainerResourceFieldSelector`).
pub(super) fn resource_ref(reference: &Object, of_volume: bool, at: &Path<'_>, errors: &mut Errors) {
    const KNOWN: [&str; 6] = [
        "limits.cpu",
        "limits.ephemeral-storage",
        "limits.memory",
        "requests.cpu",
        "requests.ephemeral-storage",
        "requests.memory",
    ];
    let resource = text(reference, "resource");
    let huge = ["requests.hugepages-", "limits.hugepages-"].iter().any(|prefix| resource.starts_with(prefix));
    if of_volume && text(reference, "containerName").is_empty() {
        errors.required(&at.child("containerName"), "");
    } else if resource.is_empty() {
        errors.required(&at.child("resource"), "");
    } else if !KNOWN.contains(&resource) && !huge {
        errors.not_supported(&at.child("resource"), resource, &KNOWN);
    }
    let divisor = given(reference, "divisor").map_or("0", formats::amount);
    if formats::sign(divisor) == std::cmp::Ordering::Equal {
        return;
    }
    const BYTES: [&str; 13] = ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];
    let of_bytes = |what: &str| {
        (!BYTES.contains(&divisor))
            .then(|| format!("only divisor's values {} are supported with the {what} resource", BYTES.join(", ")))
    };
    let why = match resource.split_once('.').map_or("", |(_, name)| name) {
        "cpu" if !matches!(divisor, "1" | "1m") => {
            Some("only divisor's values 1m and 1 are supported with the cpu resource".to_owned())
        }
        "memory" => of_bytes("memory"),
        "ephemeral-storage" => of_bytes("local ephemeral storage"),
        _ if huge => of_bytes("hugepages"),
        _ => None,
    };
    if let Some(why) = why {
        errors.invalid(&at.child("divisor"), resource, why);
    }
}

/// Validates the sources of a projected volume and reports duplicate paths. The feature gates of
/// `clusterTrustBundle` and `podCertificate` are off, so these sources are only counted.
fn projections(projected: &Object, at: &Path<'_>, errors: &mut Errors) {
    let mut paths = HashSet::new();
    let sources_at = at.child("sources");
    for (position, source) in objects(projected, "sources") {
        let at_source = sources_at.index(position);
        let mut count = 0;
        for kind in ["secret", "configMap"] {
            let Some(Value::Object(source)) = given(source, kind) else { continue };
            count += 1;
            let at_kind = at_source.child(kind);
            required(source, &["name"], &at_kind, errors);
            let at_items = at_kind.child("items");
            for (position, item) in objects(source, "items") {
                key_to_path(item, &at_items.index(position), errors);
                let path = text(item, "path");
                if !path.is_empty() && !paths.insert(path) {
                    errors.invalid(at, text(source, "name"), "conflicting duplicate paths");
                }
            }
        }
        if let Some(Value::Object(source)) = given(source, "downwardAPI") {
            count += 1;
            let at_kind = at_source.child("downwardAPI");
            for (_, file) in objects(source, "items") {
                downward_file(file, &at_kind, errors);
                let path = text(file, "path");
                if !path.is_empty() && !paths.insert(path) {
                    errors.invalid(at, path, "conflicting duplicate paths");
                }
            }
        }
        if let Some(Value::Object(token)) = given(source, "serviceAccountToken") {
            count += 1;
            let at_kind = at_source.child("serviceAccountToken");
            let seconds = number(token, "expirationSeconds").unwrap_or(0);
            let seconds_at = at_kind.child("expirationSeconds");
            if seconds < TOKEN_SECONDS_MIN {
                errors.invalid_value(&seconds_at, seconds, "may not specify a duration less than 10 minutes");
            }
            if seconds > TOKEN_SECONDS_MAX {
                errors.invalid_value(&seconds_at, seconds, "may not specify a duration larger than 2^32 seconds");
            }
            match text(token, "path") {
                "" => errors.required(&at.child("path"), ""),
                path => unreserved_path(path, &at.child("path"), errors),
            }
        }
        for kind in ["clusterTrustBundle", "podCertificate"] {
            count += usize::from(given(source, kind).is_some());
        }
        if count > 1 {
            errors.forbidden(&at_source, "may not specify more than 1 volume type per source");
        }
    }
}

/// Validates the claim template of an ephemeral volume (`ValidatePersistentVolumeClaimTemplate`).
fn claim_template(template: &Object, at: &Path<'_>, errors: &mut Errors) {
    let metadata = child(template, "metadata");
    let at_metadata = at.child("metadata");
    if let Some(Value::Object(notes)) = metadata.get("annotations") {
        crate::object_meta::validate_annotations_at(notes, &at_metadata.child("annotations"), errors);
    }
    formats::labels(metadata, "labels", &at_metadata.child("labels"), errors);
    let others = [
        "name",
        "generateName",
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "ownerReferences",
        "finalizers",
        "managedFields",
    ];
    for name in others.iter().filter(|name| !is_empty(metadata.get(name))) {
        let shown = if *name == "uid" { "uID" } else { name };
        errors.forbidden(&at_metadata.child(shown), "cannot be set");
    }
    claim_spec(child(template, "spec"), ClaimSpecOptions::ALL, &at.child("spec"), errors);
}
