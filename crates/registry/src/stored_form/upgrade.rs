//! Upgrades decoded objects as kube-apiserver does at each read of the store: converts storage versions and adds
//! defaults.

use bytes::Bytes;
use listwatch_json::{Value, json};
use listwatch_validation::Object;
use serde::Deserialize;

/// The prefix of the keys of CustomResourceDefinitions.
pub(super) const DEFINITIONS: &str = "apiextensions.k8s.io/customresourcedefinitions";

/// The version in which kube-apiserver stores CustomResourceDefinitions, because v1beta1 is more compact
/// (`pkg/controlplane/apiserver/apiextensions.go`, Kubernetes v1.36).
const STORED_DEFINITION: &str = "apiextensions.k8s.io/v1beta1";

/// Fields that v1beta1 has at the top level of the spec if they are equal in all versions: name there, name in a
/// version.
const SHARED_MEMBERS: [(&str, &str); 4] = [
    ("validation", "schema"),
    ("subresources", "subresources"),
    ("additionalPrinterColumns", "additionalPrinterColumns"),
    ("selectableFields", "selectableFields"),
];

const VERSION_MEMBERS: [&str; 9] = [
    "name",
    "served",
    "storage",
    "deprecated",
    "deprecationWarning",
    "schema",
    "subresources",
    "additionalPrinterColumns",
    "selectableFields",
];

const COLUMN_MEMBERS: [(&str, &str); 6] = [
    ("name", "name"),
    ("type", "type"),
    ("format", "format"),
    ("description", "description"),
    ("priority", "priority"),
    ("JSONPath", "jsonPath"),
];

/// Converts a CustomResourceDefinition that is stored in v1beta1 to v1. Returns `None` for any other value.
pub(super) fn upgraded_definition(stored: &[u8]) -> Option<Bytes> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Version<'a> {
        #[serde(borrow)]
        api_version: std::borrow::Cow<'a, str>,
    }
    let version: Version<'_> = serde_json::from_slice(stored).ok()?;
    if version.api_version != STORED_DEFINITION {
        return None;
    }
    let mut definition: Object = serde_json::from_slice(stored).ok()?;
    definition.insert("apiVersion", json!("apiextensions.k8s.io/v1"));
    if let Some(Value::Object(spec)) = definition.get_mut("spec") {
        *spec = upgraded_spec(spec);
    }
    serde_json::to_vec(&definition).ok().map(Bytes::from)
}

/// Converts the spec of a definition in v1beta1 to v1 (`pkg/apis/apiextensions/{v1beta1/defaults.go,v1/conversion.go}`
/// of k8s.io/apiextensions-apiserver).
fn upgraded_spec(spec: &mut Object) -> Object {
    let mut versions = match taken(spec, "versions") {
        Some(Value::Array(versions)) if !versions.is_empty() => versions,
        _ => match taken(spec, "version") {
            Some(name) => vec![json!({"name": name, "served": true, "storage": true})],
            None => Vec::new(),
        },
    };
    for (shared, member) in SHARED_MEMBERS {
        let Some(value) = taken(spec, shared) else { continue };
        for version in versions.iter_mut().filter_map(Value::as_object_mut) {
            version.insert(member, value.clone());
        }
    }
    for version in versions.iter_mut().filter_map(Value::as_object_mut) {
        if let Some(Value::Array(columns)) = version.get_mut("additionalPrinterColumns") {
            for column in columns.iter_mut().filter_map(Value::as_object_mut) {
                *column = renamed(column, &COLUMN_MEMBERS);
            }
        }
        *version = renamed(version, &VERSION_MEMBERS.map(|member| (member, member)));
    }
    let mut upgraded = renamed(spec, &["group", "names", "scope"].map(|member| (member, member)));
    upgraded.insert("versions", Value::Array(versions));
    if let Some(Value::Object(mut conversion)) = taken(spec, "conversion") {
        let webhook =
            [("webhookClientConfig", "clientConfig"), ("conversionReviewVersions", "conversionReviewVersions")];
        let webhook = renamed(&mut conversion, &webhook);
        let mut conversion = renamed(&mut conversion, &[("strategy", "strategy")]);
        if !webhook.is_empty() {
            conversion.insert("webhook", Value::Object(webhook));
        }
        upgraded.insert("conversion", Value::Object(conversion));
    }
    // In v1beta1 the default is true, in v1 it is false.
    if spec.get("preserveUnknownFields") != Some(&Value::Bool(false)) {
        upgraded.insert("preserveUnknownFields", Value::Bool(true));
    }
    upgraded
}

/// Adds the fields that kube-apiserver adds to an object at each read from the store:
/// - the `kind` and `apiVersion` of the claim templates of a StatefulSet, which protobuf does not contain
///   (`pkg/apis/apps/v1/conversion.go`);
/// - the labels of a Job without labels, copied from the pod template; kube-apiserver generates these labels after
///   defaulting (`SetDefaults_Job` in `pkg/apis/batch/v1/defaults.go`);
/// - the phase of a PersistentVolumeClaim, which kube-apiserver stores only after a controller has set the phase
///   (`SetDefaults_PersistentVolumeClaim` in `pkg/apis/core/v1/defaults.go`);
/// - the allocatable resources of a node without any, copied from the capacity (`SetDefaults_NodeStatus`).
pub(super) fn completed(api_version: &str, kind: &str, json: Vec<u8>) -> Result<Bytes, serde_json::Error> {
    match (api_version, kind) {
        ("v1", "PersistentVolumeClaim") => {
            let mut claim: Object = serde_json::from_slice(&json)?;
            add_phase(&mut claim);
            serde_json::to_vec(&claim).map(Bytes::from)
        }
        ("v1", "Node") => {
            // Nearly all nodes have the member, and need no tree.
            if memchr::memmem::find(&json, b"\"allocatable\":{").is_some() {
                return Ok(json.into());
            }
            let mut node: Object = serde_json::from_slice(&json)?;
            if let Some(Value::Object(status)) = node.get_mut("status")
                && let Some(capacity) = status.get("capacity").filter(|capacity| !capacity.is_null()).cloned()
            {
                let at = status.keys().position(|name| name == "capacity").map_or(0, |at| at + 1);
                status.shift_insert(at, "allocatable", capacity);
            }
            serde_json::to_vec(&node).map(Bytes::from)
        }
        ("batch/v1", "Job") => {
            let mut job: Object = serde_json::from_slice(&json)?;
            let labels = |object: &Object| match object.get("metadata")?.get("labels")? {
                Value::Object(labels) if !labels.is_empty() => Some(labels.clone()),
                _ => None,
            };
            let template = job.get("spec").and_then(|spec| spec.get("template")).and_then(Value::as_object);
            let Some(generated) = template.and_then(labels).filter(|_| labels(&job).is_none()) else {
                return Ok(json.into());
            };
            if let Some(Value::Object(metadata)) = job.get_mut("metadata") {
                metadata.insert("labels", Value::Object(generated));
            }
            serde_json::to_vec(&job).map(Bytes::from)
        }
        ("apps/v1", "StatefulSet") => {
            let mut set: Object = serde_json::from_slice(&json)?;
            let Some(Value::Array(claims)) = set.get_mut("spec").and_then(|spec| spec.get_mut("volumeClaimTemplates"))
            else {
                return Ok(json.into());
            };
            for claim in claims.iter_mut().filter_map(Value::as_object_mut) {
                add_phase(claim);
                let mut typed = Object::new();
                typed.insert("kind", json!("PersistentVolumeClaim"));
                typed.insert("apiVersion", json!("v1"));
                typed.append(claim);
                *claim = typed;
            }
            serde_json::to_vec(&set).map(Bytes::from)
        }
        _ => Ok(json.into()),
    }
}

fn add_phase(claim: &mut Object) {
    let status = claim.entry("status").or_insert_with(|| json!({}));
    if let Value::Object(status) = status
        && !status.contains_key("phase")
    {
        let mut first = Object::new();
        first.insert("phase", json!("Pending"));
        first.append(status);
        *status = first;
    }
}

/// Moves fields to a new object. `names` lists the old and new names in the order of the new object.
fn renamed(from: &mut Object, names: &[(&str, &str)]) -> Object {
    names.iter().filter_map(|(old, new)| taken(from, old).map(|value| ((*new).to_owned(), value))).collect()
}

/// Removes and returns a field that is not null.
fn taken(from: &mut Object, name: &str) -> Option<Value> {
    from.get_mut(name).map(Value::take).filter(|value| !value.is_null())
}
