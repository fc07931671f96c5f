//! Defaults, status and deletion of definitions.
//!
//! Source: `apiextensions-apiserver/pkg/apis/apiextensions/v1/defaults.go`,
//! `apiextensions-apiserver/pkg/registry/customresourcedefinition/{strategy,etcd}.go`.

use listwatch_json::{Map, Value, json};
use serde::Deserialize as _;

use listwatch_meta::go;

use crate::definition::{Definition, FINALIZER};
use crate::status::{condition, set_condition};
use listwatch_kinds::Deletion;

/// Fields of a definition whose types are checked: path, Go struct, Go type.
const TEXTS: [(&str, &str, &str); 11] = [
    ("spec", "CustomResourceDefinition", "v1.CustomResourceDefinitionSpec"),
    ("spec.group", "CustomResourceDefinitionSpec", "string"),
    ("spec.scope", "CustomResourceDefinitionSpec", "string"),
    ("spec.names", "CustomResourceDefinitionSpec", "v1.CustomResourceDefinitionNames"),
    ("spec.names.plural", "CustomResourceDefinitionNames", "string"),
    ("spec.names.singular", "CustomResourceDefinitionNames", "string"),
    ("spec.names.kind", "CustomResourceDefinitionNames", "string"),
    ("spec.names.listKind", "CustomResourceDefinitionNames", "string"),
    ("spec.names.shortNames", "CustomResourceDefinitionNames", "[]string"),
    ("spec.names.categories", "CustomResourceDefinitionNames", "[]string"),
    ("spec.versions", "CustomResourceDefinitionSpec", "[]v1.CustomResourceDefinitionVersion"),
];
/// The default port of a conversion webhook's service.
const WEBHOOK_PORT: u16 = 443;

/// Applies the defaults of a definition (`SetDefaults_CustomResourceDefinitionSpec`).
pub(crate) fn apply_defaults(definition: &mut Map) {
    let Some(Value::Object(spec)) = definition.get_mut("spec") else { return };
    drop_nulls(spec);
    if let Some(Value::Object(names)) = spec.get_mut("names") {
        drop_nulls(names);
        let kind = names.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
        let is_empty = |names: &Map, name: &str| names.get(name).and_then(Value::as_str).is_none_or(str::is_empty);
        if is_empty(names, "singular") && !kind.is_empty() {
            names.insert("singular", json!(kind.to_lowercase()));
        }
        if is_empty(names, "listKind") && !kind.is_empty() {
            names.insert("listKind", json!(format!("{kind}List")));
        }
    }
    for version in spec.get_mut("versions").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Value::Object(version) = version {
            drop_nulls(version);
        }
    }
    let conversion = spec.entry("conversion").or_insert_with(|| json!({"strategy": "None"}));
    if let Some(Value::Object(service)) = conversion.pointer_mut("/webhook/clientConfig/service")
        && service.get("port").is_none_or(Value::is_null)
    {
        service.insert("port", json!(WEBHOOK_PORT));
    }
    // Go omits the zero value.
    if spec.get("preserveUnknownFields") == Some(&Value::Bool(false)) {
        spec.shift_remove("preserveUnknownFields");
    }
    let storage = storage_version(definition);
    if let (Some(storage), Some(Value::Object(status))) = (storage, definition.get_mut("status"))
        && status.get("storedVersions").and_then(Value::as_array).is_none_or(Vec::is_empty)
    {
        status.insert("storedVersions", json!([storage]));
    }
}

/// Checks the types of the members that the server reads.
///
/// # Errors
/// The message of Go's decoder about the first member of a wrong type.
pub(crate) fn check_types(definition: &Map) -> Result<(), String> {
    for (pointer, strukt, kind) in TEXTS {
        let mut steps = pointer.split('.');
        let first = definition.get(steps.next().unwrap_or_default());
        let found = steps.fold(first, |value, step| value.and_then(|value| value.get(step)));
        match found {
            None | Some(Value::Null) => {}
            Some(Value::String(_)) if kind == "string" => {}
            Some(Value::Array(_)) if kind.starts_with("[]") => {}
            Some(Value::Object(_)) if kind.starts_with("v1.") => {}
            Some(other) => {
                let found = go::json_kind(other);
                return Err(format!(
                    "json: cannot unmarshal {found} into Go struct field {strukt}.{pointer} of type {kind}"
                ));
            }
        }
    }
    Definition::deserialize(definition).map(drop).map_err(|error| format!("json: {error}"))
}

/// Removes members that are `null`. Do not use this for schemas, whose defaults and enumerations can be `null`.
fn drop_nulls(members: &mut Map) {
    members.retain(|_, value| !value.is_null());
}

/// Returns the name of the version in which objects are stored.
pub(crate) fn storage_version(definition: &Map) -> Option<String> {
    let versions = definition.get("spec")?.get("versions")?.as_array()?;
    let storage = versions.iter().find(|version| version.get("storage") == Some(&Value::Bool(true)))?;
    storage.get("name")?.as_str().map(str::to_owned)
}

/// Sets the status of a new definition (`PrepareForCreate`).
pub(crate) fn prepare_for_create(definition: &mut Map) {
    let stored = storage_version(definition);
    definition.shift_remove("status");
    let status = json!({
        "conditions": null,
        "acceptedNames": {"plural": "", "kind": ""},
        "storedVersions": stored.map_or(Value::Null, |stored| json!([stored])),
    });
    definition.insert("status", status);
}

/// Adds the storage version to `status.storedVersions` (`PrepareForUpdate`).
pub(crate) fn prepare_for_update(definition: &mut Map) {
    let Some(storage) = storage_version(definition) else { return };
    let status = definition.entry("status").or_insert_with(|| json!({}));
    if let Value::Object(status) = status {
        let stored = status.entry("storedVersions").or_insert(Value::Null);
        if !stored.is_array() {
            *stored = json!([]);
        }
        if let Value::Array(stored) = stored
            && !stored.contains(&json!(storage))
        {
            stored.push(json!(storage));
        }
    }
}

/// Marks a definition for deletion. A finalizer keeps the definition until all of its objects are deleted
/// (`REST.Delete`).
pub(crate) fn begin_deletion(definition: &mut Map, now: &str) -> Deletion {
    let Some(Value::Object(metadata)) = definition.get_mut("metadata") else { return Deletion::Unmarked };
    if metadata.get("deletionTimestamp").is_some_and(|time| !time.is_null()) {
        return Deletion::Unmarked;
    }
    metadata.insert("deletionTimestamp", json!(now));
    let finalizers = metadata.entry("finalizers").or_insert_with(|| json!([]));
    if let Value::Array(finalizers) = finalizers
        && !finalizers.contains(&json!(FINALIZER))
    {
        finalizers.push(json!(FINALIZER));
    }
    let text = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon";
    set_condition(definition, &condition("Terminating", true, "InstanceDeletionPending", text), now);
    Deletion::Marked
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(value: Value) -> Map {
        match value {
            Value::Object(map) => map,
            other => panic!("{other} is not an object"),
        }
    }

    #[test]
    fn absent_singular_list_kind_and_conversion_get_defaults() {
        let mut definition = map(json!({"spec": {
            "names": {"plural": "widgets", "kind": "Widget", "categories": null},
            "versions": [{"name": "v1", "storage": true, "subresources": null,
                "schema": {"openAPIV3Schema": {"default": {"a": null}}}}],
        }}));
        apply_defaults(&mut definition);
        assert_eq!(
            Value::Object(definition),
            json!({"spec": {
                "names": {"plural": "widgets", "kind": "Widget", "singular": "widget", "listKind": "WidgetList"},
                "versions": [{"name": "v1", "storage": true, "schema": {"openAPIV3Schema": {"default": {"a": null}}}}],
                "conversion": {"strategy": "None"},
            }})
        );
    }

    #[test]
    fn check_types_reports_member_of_wrong_type() {
        let group = map(json!({"spec": {"group": 5}}));
        let text =
            "json: cannot unmarshal number into Go struct field CustomResourceDefinitionSpec.spec.group of type string";
        assert_eq!(check_types(&group), Err(text.to_owned()));
        assert!(check_types(&map(json!({"spec": {"versions": [{"name": 5}]}}))).is_err());
        assert_eq!(check_types(&map(json!({"spec": {"group": null}}))), Ok(()));
    }

    #[test]
    fn new_storage_version_is_added_to_stored_versions() {
        let mut definition = map(json!({"spec": {"versions": [{"name": "v1", "storage": true}]}}));
        prepare_for_create(&mut definition);
        assert_eq!(definition["status"]["storedVersions"], json!(["v1"]));
        definition["spec"]["versions"] = json!([{"name": "v1"}, {"name": "v2", "storage": true}]);
        prepare_for_update(&mut definition);
        prepare_for_update(&mut definition);
        assert_eq!(definition["status"]["storedVersions"], json!(["v1", "v2"]));
    }

    #[test]
    fn begin_deletion_marks_a_definition_only_once() {
        let mut definition = map(json!({"metadata": {"name": "a", "finalizers": ["x/y"]}}));
        assert_eq!(begin_deletion(&mut definition, "t1"), Deletion::Marked);
        assert_eq!(begin_deletion(&mut definition, "t2"), Deletion::Unmarked);
        assert_eq!(definition["metadata"]["deletionTimestamp"], "t1");
        assert_eq!(definition["metadata"]["finalizers"], json!(["x/y", FINALIZER]));
        assert_eq!(definition["status"]["conditions"][0]["reason"], "InstanceDeletionPending");
    }
}
