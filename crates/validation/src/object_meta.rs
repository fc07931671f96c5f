//! `ObjectMeta`: its decoding, its canonical form, and the fields of clients and of the server
//! (`apimachinery/pkg/api/validation/objectmeta.go`, `pkg/registry/rest/{create,update,meta}.go`).
//!
//! The functions work on the `metadata` member of a parsed object. All are pure; uids and times are
//! arguments.

use std::collections::HashSet;

use listwatch_json::{JsonString, Map, Value};
use listwatch_meta::FieldError;
use listwatch_meta::go::{self, TypeErrorStyle};
use listwatch_meta::selector::{label_value_problems, qualified_name_problems};
use listwatch_schema::Path;

use crate::Errors;
use crate::names::{self, NameRule};
use crate::times::{Precision, check_time};

/// The total size of all keys and values of `annotations` in bytes.
const ANNOTATIONS_BYTES_MAX: usize = 256 * 1024;

/// The size of a list of owner references in bytes up to which each additional controller is a
/// separate error. Each error shows the whole list. For a longer list, only the first error is
/// reported.
const OWNERS_REPEATED_BYTES_MAX: usize = 4 * 1024;

/// The finalizer of a deletion with `propagationPolicy=Orphan`, which the garbage collector
/// removes.
pub const FINALIZER_ORPHAN: &str = "orphan";
/// The finalizer of a deletion with `propagationPolicy=Foreground`, which the garbage collector
/// removes.
pub const FINALIZER_FOREGROUND: &str = "foregroundDeletion";
/// The finalizer in a namespace's `spec.finalizers`.
pub const FINALIZER_KUBERNETES: &str = "kubernetes";

/// The members of `ObjectMeta` in Go's order, with the types in decoding errors.
const FIELDS: [(&str, Shape); 15] = [
    ("name", Shape::Text),
    ("generateName", Shape::Text),
    ("namespace", Shape::Text),
    ("selfLink", Shape::Text),
    ("uid", Shape::Text),
    ("resourceVersion", Shape::Text),
    ("generation", Shape::Number),
    ("creationTimestamp", Shape::Time),
    ("deletionTimestamp", Shape::Time),
    ("deletionGracePeriodSeconds", Shape::Number),
    ("labels", Shape::Texts),
    ("annotations", Shape::Texts),
    ("ownerReferences", Shape::Objects),
    ("finalizers", Shape::List),
    ("managedFields", Shape::Objects),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Text,
    Number,
    Time,
    /// A map of strings.
    Texts,
    /// A list of strings.
    List,
    /// A list of objects.
    Objects,
}

/// Checks that `metadata` can be decoded as `ObjectMeta`.
///
/// # Errors
/// The error text of Go's decoder.
pub fn check_shape(kind: &str, style: TypeErrorStyle, metadata: &Value) -> Result<(), String> {
    let cannot = |value: &Value, field: &str, wanted: &str| {
        if style == TypeErrorStyle::Converter {
            return Err(go::cannot_convert(value, wanted));
        }
        let found = go::json_kind(value);
        Err(format!("json: cannot unmarshal {found} into Go struct field {field} of type {wanted}"))
    };
    let fields = match metadata {
        Value::Null => return Ok(()),
        Value::Object(fields) => fields,
        other => return cannot(other, &format!("{}.metadata", kind), "v1.ObjectMeta"),
    };
    for (name, value) in fields {
        let Some((_, shape)) = FIELDS.iter().find(|(known, _)| known == name) else { continue };
        let field = format_args!("ObjectMeta.metadata.{name}");
        match (shape, value) {
            (_, Value::Null) | (Shape::Text, Value::String(_)) => {}
            (Shape::Number, Value::Number(number)) if number.as_i64().is_some() => {}
            (Shape::Number, Value::Number(_)) if style == TypeErrorStyle::Converter => {
                return Err(go::cannot_convert(value, "int64"));
            }
            (Shape::Number, Value::Number(number)) => {
                return Err(format!(
                    "json: cannot unmarshal number {number} into Go struct field {field} of type int64"
                ));
            }
            (Shape::Time, Value::String(text)) => check_time(text, Precision::Seconds)?,
            (Shape::Texts, Value::Object(map)) => {
                for value in map.values() {
                    if !value.is_string() && !value.is_null() {
                        return cannot(value, &field.to_string(), "string");
                    }
                }
            }
            (Shape::List, Value::Array(items)) => {
                if let Some(item) = items.iter().find(|item| !item.is_string()) {
                    return cannot(item, &field.to_string(), "string");
                }
            }
            (Shape::Objects, Value::Array(items)) => {
                if let Some(item) = items.iter().find(|item| !item.is_object()) {
                    let wanted = if name == "ownerReferences" { "v1.OwnerReference" } else { "v1.ManagedFieldsEntry" };
                    return cannot(item, &field.to_string(), wanted);
                }
                if name == "ownerReferences" {
                    check_owners(items, style)?;
                }
            }
            (shape, value) => {
                let wanted = match shape {
                    Shape::Text => "string",
                    Shape::Number => "int64",
                    Shape::Time => "v1.Time",
                    Shape::Texts => "map[string]string",
                    Shape::List => "[]string",
                    Shape::Objects if name == "ownerReferences" => "[]v1.OwnerReference",
                    Shape::Objects => "[]v1.ManagedFieldsEntry",
                };
                return cannot(value, &field.to_string(), wanted);
            }
        }
    }
    Ok(())
}

fn check_owners(owners: &[Value], style: TypeErrorStyle) -> Result<(), String> {
    for (name, value) in owners.iter().filter_map(Value::as_object).flatten() {
        let wanted = match name.as_str() {
            "apiVersion" | "kind" | "name" | "uid" if !value.is_string() => "string",
            "controller" | "blockOwnerDeletion" if !value.is_boolean() => "bool",
            _ => continue,
        };
        if !value.is_null() {
            if style == TypeErrorStyle::Converter {
                return Err(go::cannot_convert(value, wanted));
            }
            let found = go::json_kind(value);
            return Err(format!(
                "json: cannot unmarshal {found} into Go struct field OwnerReference.metadata.ownerReferences.{name} of type {wanted}"
            ));
        }
    }
    Ok(())
}

/// The members that `ObjectMeta` does not have, as `metadata.<name>`.
pub fn unknown_fields(metadata: &Map) -> impl Iterator<Item = String> + '_ {
    metadata.keys().filter(|name| !FIELDS.iter().any(|(known, _)| known == name)).map(|name| format!("metadata.{name}"))
}

/// A string member; `""` if it is absent.
pub fn text<'a>(metadata: &'a Map, name: &str) -> &'a str {
    metadata.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// True if a member is present and not null.
pub fn is_set(metadata: &Map, name: &str) -> bool {
    metadata.get(name).is_some_and(|value| !value.is_null())
}

/// `metadata.finalizers`.
pub fn finalizers(metadata: &Map) -> Vec<&str> {
    metadata.get("finalizers").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Converts `metadata` to Kubernetes' member order, without empty and unknown members. A null label
/// or annotation becomes empty. `resourceVersion` is removed, because the store does not contain
/// that field.
pub fn canonical(metadata: Map) -> Map {
    if is_canonical(&metadata) {
        return metadata;
    }
    let mut places: [Option<(JsonString, Value)>; FIELDS.len()] = Default::default();
    for (name, mut value) in metadata {
        if is_omitted(&name, &value) {
            continue;
        }
        if let (Value::Object(texts), "labels" | "annotations") = (&mut value, name.as_str()) {
            texts.values_mut().filter(|text| text.is_null()).for_each(|text| *text = Value::from(""));
        }
        if let Some(place) = FIELDS.iter().position(|(known, _)| *known == name) {
            places[place] = Some((name, value));
        }
    }
    let mut canonical = Map::with_capacity(places.iter().flatten().count());
    canonical.extend(places.into_iter().flatten());
    canonical
}

/// Whether [`canonical`] would change nothing, as in most stored objects.
fn is_canonical(metadata: &Map) -> bool {
    let mut fields = FIELDS.iter();
    metadata.iter().all(|(name, value)| {
        // The names are found in the order of the fields.
        let is_next = fields.any(|(known, _)| *known == name.as_str());
        let has_null = || match (name.as_str(), value) {
            ("labels" | "annotations", Value::Object(texts)) => texts.values().any(Value::is_null),
            _ => false,
        };
        is_next && !is_omitted(name, value) && !has_null()
    })
}

/// Whether canonical metadata omits this member: it is empty, or the store does not contain it.
fn is_omitted(name: &str, value: &Value) -> bool {
    let is_empty = match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Number(number) => name == "generation" && number.as_i64() == Some(0),
        Value::Bool(_) => false,
    };
    is_empty || matches!(name, "resourceVersion" | "selfLink")
}

/// Removes the fields of a posted object that only the server sets (`WipeObjectMetaSystemFields` of
/// `pkg/registry/rest/meta.go`). The generation stays: kinds that count their changes reset it.
pub fn wipe_system_fields(metadata: &mut Map) {
    for name in ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
        metadata.shift_remove(name);
    }
}

/// Prepares the metadata of a new object: removes the fields that only the server sets, and sets
/// uid and creation time.
pub fn begin(metadata: &mut Map, uid: String, now: String) {
    wipe_system_fields(metadata);
    metadata.insert("uid", Value::from(uid));
    metadata.insert("creationTimestamp", Value::from(now));
}

/// Restores the immutable fields on update: the uid if the client omits it, and always the times
/// and the generation. [`validate_update`] rejects other differences.
pub fn carry_over(metadata: &mut Map, old: &Map) {
    let restore = |metadata: &mut Map, name: &str| {
        if let Some(value) = old.get(name) {
            metadata.insert(name, value.clone());
        }
    };
    metadata.swap_remove("generation");
    restore(metadata, "generation");
    if text(metadata, "uid").is_empty() {
        restore(metadata, "uid");
    }
    if is_set(old, "creationTimestamp") {
        restore(metadata, "creationTimestamp");
    }
    if is_set(old, "deletionTimestamp") {
        restore(metadata, "deletionTimestamp");
    }
    if !is_set(metadata, "deletionGracePeriodSeconds") {
        restore(metadata, "deletionGracePeriodSeconds");
    }
}

/// Sets `metadata.generation` of a new object to 1.
pub fn begin_generation(metadata: &mut Map) {
    metadata.insert("generation", Value::Number(1.into()));
}

/// Increments `metadata.generation`, or sets it to 1.
pub fn raise_generation(metadata: &mut Map) {
    let next = metadata.get("generation").and_then(Value::as_i64).unwrap_or(0).saturating_add(1);
    metadata.insert("generation", Value::Number(next.into()));
}

/// When [`dedup_owners`] runs: before or after the mutating admission plugins. Determines the text of the warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Before the plugins, for the body of a create or an update.
    Before,
    /// After the plugins, for every write.
    After,
}

/// Removes duplicate owner references (`dedupOwnerReferencesAndAddWarning` of `pkg/endpoints/handlers/rest.go`).
///
/// Returns kube-apiserver's warning if there were any.
pub fn dedup_owners(metadata: &mut Map, admission: Admission) -> Option<String> {
    let owners = match metadata.get_mut("ownerReferences") {
        Some(Value::Array(owners)) if owners.len() > 1 => owners,
        _ => return None,
    };
    let mut seen: HashSet<&Value> = HashSet::with_capacity(owners.len());
    let mut repeated = Vec::new();
    let mut first = Vec::with_capacity(owners.len());
    for owner in owners.iter() {
        let is_first = seen.insert(owner);
        if !is_first {
            repeated.push(owner.get("uid").and_then(Value::as_str).unwrap_or_default().to_owned());
        }
        first.push(is_first);
    }
    let mut first = first.into_iter();
    owners.retain(|_| first.next().unwrap_or(true));
    if repeated.is_empty() {
        return None;
    }
    let after = if admission == Admission::After { " after mutating admission happens" } else { "" };
    Some(format!(
        ".metadata.ownerReferences contains duplicate entries{after}; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
        repeated.join(", ")
    ))
}

/// The properties of a kind that determine the validation of `metadata`.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Whether the kind is namespaced.
    pub namespaced: bool,
    /// The rule for names.
    pub names: NameRule,
    /// Whether the kind is a custom resource. Built-in kinds have stricter rules for finalizers.
    pub custom: bool,
}

/// Validates all fields that a client may set.
pub fn validate(metadata: &Map, rules: Rules, errors: &mut Errors) {
    let invalid = |field: &str, value: &str, why: &str| FieldError::invalid(field, go::quote(value), why);
    let generate_name = text(metadata, "generateName");
    if !generate_name.is_empty() {
        for why in names::problems(rules.names, generate_name, true) {
            errors.push(invalid("metadata.generateName", generate_name, &why));
        }
    }
    let name = text(metadata, "name");
    if name.is_empty() {
        errors.push(FieldError::required("metadata.name", "name or generateName is required"));
    } else {
        for why in names::problems(rules.names, name, false) {
            errors.push(invalid("metadata.name", name, &why));
        }
    }
    let namespace = text(metadata, "namespace");
    if rules.namespaced {
        if namespace.is_empty() {
            errors.push(FieldError::required("metadata.namespace", ""));
        } else {
            for why in names::problems(NameRule::Label, namespace, false) {
                errors.push(invalid("metadata.namespace", namespace, &why));
            }
        }
    } else if !namespace.is_empty() {
        errors.push(FieldError::forbidden("metadata.namespace", "not allowed on this type"));
    }
    if let Some(generation) = metadata.get("generation").and_then(Value::as_i64).filter(|generation| *generation < 0) {
        errors.push(FieldError::invalid("metadata.generation", generation, "must be greater than or equal to 0"));
    }
    if let Some(Value::Object(labels)) = metadata.get("labels") {
        validate_labels(labels, "metadata.labels", errors);
    }
    if let Some(Value::Object(annotations)) = metadata.get("annotations") {
        validate_annotations(annotations, errors);
    }
    if let Some(Value::Array(owners)) = metadata.get("ownerReferences") {
        validate_owners(owners, errors);
    }
    validate_finalizers(&finalizers(metadata), rules.custom, errors);
}

/// Validates a map of labels at `field`.
pub fn validate_labels(labels: &Map, field: &str, errors: &mut Errors) {
    for (name, value) in labels {
        for why in qualified_name_problems(name) {
            errors.push(FieldError::invalid(field, go::quote(name), why));
        }
        let value = value.as_str().unwrap_or_default();
        for why in label_value_problems(value) {
            errors.push(FieldError::invalid(field, go::quote(value), why));
        }
    }
}

fn validate_annotations(annotations: &Map, errors: &mut Errors) {
    validate_annotations_at(annotations, &Path::root("metadata").child("annotations"), errors);
}

/// Validates annotations at `at`.
pub fn validate_annotations_at(annotations: &Map, at: &Path<'_>, errors: &mut Errors) {
    let mut bytes = 0;
    for (name, value) in annotations {
        // Annotation keys are case-insensitive for this rule.
        for why in qualified_name_problems(&name.to_lowercase()) {
            errors.push(FieldError::invalid(at, go::quote(name), why));
        }
        bytes += name.len() + value.as_str().map_or(0, str::len);
    }
    if bytes > ANNOTATIONS_BYTES_MAX {
        let why = format_args!("may not be more than {ANNOTATIONS_BYTES_MAX} bytes");
        errors.push(FieldError::too_long(at, why));
    }
}

fn validate_owners(owners: &[Value], errors: &mut Errors) {
    let mut controller = None;
    let mut printed: Option<String> = None;
    for owner in owners.iter().filter_map(Value::as_object) {
        let mut wrong = |field: &str, value: &str, why: &str| {
            let field = format!("metadata.ownerReferences.{field}");
            errors.push(FieldError::invalid(field, go::quote(value), why));
        };
        let api_version = text(owner, "apiVersion");
        if api_version.is_empty() || api_version.ends_with('/') {
            wrong("apiVersion", api_version, "version must not be empty");
        }
        for field in ["kind", "name", "uid"] {
            if text(owner, field).is_empty() {
                wrong(field, "", "must not be empty");
            }
        }
        if text(owner, "kind") == "Event" && api_version == "v1" {
            let why = "/v1, Kind=Event is disallowed from being an owner";
            errors.push(FieldError::invalid("metadata.ownerReferences", Value::Object(owner.clone()), why));
        }
        if owner.get("controller") == Some(&Value::Bool(true)) {
            let this = format!("{}/{}", text(owner, "kind"), text(owner, "name"));
            match &controller {
                None => controller = Some(this),
                // The second error repeats the list only if it is short.
                Some(_) if printed.as_ref().is_some_and(|list| list.len() > OWNERS_REPEATED_BYTES_MAX) => {}
                Some(first) => {
                    let list = printed.get_or_insert_with(|| Value::Array(owners.to_vec()).to_string());
                    let why = format_args!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {this}"
                    );
                    errors.push(FieldError::invalid("metadata.ownerReferences", &*list, why));
                }
            }
        }
    }
}

/// The warnings for finalizers of a custom resource that are not in `known`
/// (`generateWarningsFromObj` of `pkg/registry/customresource/strategy.go`).
pub fn finalizer_warnings(metadata: &Map, known: &[String]) -> Vec<String> {
    let mut added = finalizers(metadata);
    added.retain(|name| !known.iter().any(|known| known == name));
    added.sort_unstable();
    added.dedup();
    let mut warnings = Vec::new();
    for name in added {
        let mut warn = |why: &str| warnings.push(format!("metadata.finalizers: {}: {why}", go::quote(name)));
        for why in qualified_name_problems(name) {
            warn(&why);
        }
        let standard = [FINALIZER_KUBERNETES, FINALIZER_ORPHAN, FINALIZER_FOREGROUND].contains(&name);
        if !name.contains('/') && !standard {
            let path = if name.contains('.') { " including a path (/)" } else { "" };
            warn(&format!(
                "prefer a domain-qualified finalizer name{path} to avoid accidental conflicts with other finalizer writers"
            ));
        }
    }
    warnings
}

fn validate_finalizers(finalizers: &[&str], custom: bool, errors: &mut Errors) {
    for finalizer in finalizers {
        for why in qualified_name_problems(finalizer) {
            errors.push(FieldError::invalid("metadata.finalizers", go::quote(finalizer), why));
        }
    }
    if finalizers.contains(&FINALIZER_ORPHAN) && finalizers.contains(&FINALIZER_FOREGROUND) {
        let why = format_args!("finalizer {FINALIZER_ORPHAN} and {FINALIZER_FOREGROUND} cannot be both set");
        errors.push(FieldError::invalid("metadata.finalizers", Value::from(finalizers.to_vec()), why));
    }
    if custom {
        return;
    }
    let standard = [FINALIZER_KUBERNETES, FINALIZER_ORPHAN, FINALIZER_FOREGROUND];
    for (place, finalizer) in finalizers.iter().enumerate() {
        if !finalizer.contains('/') && !standard.contains(finalizer) {
            errors.push(FieldError::invalid(
                format!("metadata.finalizers[{place}]"),
                go::quote(finalizer),
                "name is neither a standard finalizer name nor is it fully qualified",
            ));
        }
    }
}

/// Validates the changes of an update.
pub fn validate_update(new: &Map, old: &Map, errors: &mut Errors) {
    if is_set(old, "deletionTimestamp") {
        let known: HashSet<&str> = finalizers(old).into_iter().collect();
        let mut added: Vec<&str> = finalizers(new).into_iter().filter(|name| !known.contains(name)).collect();
        added.sort_unstable();
        added.dedup();
        if !added.is_empty() {
            let added: Vec<String> = added.into_iter().map(go::quote).collect();
            errors.push(FieldError::forbidden(
                "metadata.finalizers",
                format_args!(
                    "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                    added.join(", ")
                ),
            ));
        }
    }
    let none = Value::Null;
    for name in ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        let value = new.get(name).unwrap_or(&none);
        if value != old.get(name).unwrap_or(&none) {
            errors.push(FieldError::invalid(format!("metadata.{name}"), value, "field is immutable"));
        }
    }
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;

    fn map(value: Value) -> Map {
        let Value::Object(map) = value else { panic!("not an object") };
        map
    }

    const POD: Rules = Rules { namespaced: true, names: NameRule::Subdomain, custom: false };

    fn check(metadata: Value, rules: Rules, expected: &[&str]) {
        let mut errors = Errors::default();
        validate(&map(metadata), rules, &mut errors);
        let found: Vec<String> = errors.iter().map(FieldError::to_string).collect();
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found} should begin with {expected}");
        }
    }

    #[test]
    fn invalid_client_metadata_is_rejected() {
        let with = |field: &str, value: Value| json!({"name": "x", "namespace": "n", field: value});
        check(with("labels", json!({"a/b": "c", "d": ""})), POD, &[]);
        check(json!({"namespace": "n"}), POD, &["metadata.name: Required value: name or generateName is required"]);
        check(json!({"name": "x"}), POD, &["metadata.namespace: Required value"]);
        let cluster = Rules { namespaced: false, ..POD };
        check(with("uid", json!("")), cluster, &["metadata.namespace: Forbidden: not allowed on this type"]);
        check(
            with("labels", json!({"Bad Key": "bad value!"})),
            POD,
            &[
                "metadata.labels: Invalid value: \"Bad Key\": name part",
                "metadata.labels: Invalid value: \"bad value!\": a valid",
            ],
        );
        check(with("annotations", json!({"Fine": "any thing"})), POD, &[]);
        check(
            with("annotations", json!({"a": "x".repeat(ANNOTATIONS_BYTES_MAX)})),
            POD,
            &["metadata.annotations: Too long: may not be more than 262144 bytes"],
        );
        check(
            with("finalizers", json!(["foo", "a/b", "orphan", "foregroundDeletion"])),
            POD,
            &[
                "metadata.finalizers: Invalid value: [\"foo\",\"a/b\",\"orphan\",\"foregroundDeletion\"]: finalizer orphan and foregroundDeletion cannot be both set",
                "metadata.finalizers[0]: Invalid value: \"foo\": name is neither a standard",
            ],
        );
        check(with("finalizers", json!(["foo"])), Rules { custom: true, ..POD }, &[]);
        check(
            with("ownerReferences", json!([{"apiVersion": "", "kind": "", "name": "", "uid": ""}])),
            POD,
            &[
                "metadata.ownerReferences.apiVersion: Invalid value: \"\": version must not be empty",
                "metadata.ownerReferences.kind: Invalid value: \"\": must not be empty",
                "metadata.ownerReferences.name: Invalid value: \"\": must not be empty",
                "metadata.ownerReferences.uid: Invalid value: \"\": must not be empty",
            ],
        );
        let owner =
            |name: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": "u", "controller": true});
        check(
            with("ownerReferences", json!([owner("a"), owner("b")])),
            POD,
            &["metadata.ownerReferences: Invalid value: [{\"apiVersion\":\"v1\""],
        );
    }

    fn check_changed(new: Value, old: Value, expected: &[&str]) {
        let mut errors = Errors::default();
        validate_update(&map(new), &map(old), &mut errors);
        let found: Vec<String> = errors.iter().map(FieldError::to_string).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn update_rejects_changed_immutable_metadata() {
        check_changed(json!({"name": "a", "uid": "u"}), json!({"name": "a", "uid": "u"}), &[]);
        check_changed(
            json!({"name": "a", "uid": "v", "deletionTimestamp": "2001-01-01T00:00:00Z"}),
            json!({"name": "a", "uid": "u"}),
            &[
                "metadata.uid: Invalid value: \"v\": field is immutable",
                "metadata.deletionTimestamp: Invalid value: \"2001-01-01T00:00:00Z\": field is immutable",
            ],
        );
        check_changed(
            json!({"deletionTimestamp": "t", "finalizers": ["a/b", "x.io/y"]}),
            json!({"deletionTimestamp": "t", "finalizers": ["a/b"]}),
            &[
                "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{\"x.io/y\"}",
            ],
        );
    }

    #[test]
    fn metadata_of_wrong_type_returns_go_decoding_error() {
        let check = |metadata: Value, expected: &str| {
            assert_eq!(
                check_shape("ConfigMap", TypeErrorStyle::Decoder, &metadata),
                Err(format!("json: cannot unmarshal {expected}"))
            );
        };
        check(json!([]), "array into Go struct field ConfigMap.metadata of type v1.ObjectMeta");
        check(json!({"name": 5}), "number into Go struct field ObjectMeta.metadata.name of type string");
        check(json!({"labels": {"a": 5}}), "number into Go struct field ObjectMeta.metadata.labels of type string");
        check(json!({"labels": []}), "array into Go struct field ObjectMeta.metadata.labels of type map[string]string");
        check(json!({"finalizers": [1]}), "number into Go struct field ObjectMeta.metadata.finalizers of type string");
        check(
            json!({"generation": 1.5}),
            "number 1.5 into Go struct field ObjectMeta.metadata.generation of type int64",
        );
        assert_eq!(
            check_shape(
                "ConfigMap",
                TypeErrorStyle::Decoder,
                &json!({"name": null, "unknown": 1, "creationTimestamp": null})
            ),
            Ok(())
        );
        assert_eq!(
            check_shape("ConfigMap", TypeErrorStyle::Decoder, &json!({"creationTimestamp": "2026-01-01"})),
            Err("parsing time \"2026-01-01\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"\" as \"T\"".to_owned())
        );
        for (metadata, why) in [
            (json!([]), "cannot restore struct from: slice"),
            (json!({"labels": {"a": 5}}), "cannot convert int64 to string"),
            (json!({"labels": []}), "cannot restore map from slice"),
            (json!({"finalizers": "a"}), "cannot restore slice from string"),
            (json!({"generation": 1.5}), "cannot convert float64 to int64"),
            (json!({"ownerReferences": [{"controller": "yes"}]}), "unrecognized type: bool"),
        ] {
            assert_eq!(
                check_shape("ConfigMap", TypeErrorStyle::Converter, &metadata),
                Err(why.to_owned()),
                "{metadata}"
            );
        }
    }

    #[test]
    fn canonical_metadata_has_the_member_order_of_kubernetes() {
        let shuffled = map(json!({
            "labels": {"a": "b", "c": null}, "annotations": {}, "uid": "u", "namespace": "n", "resourceVersion": "5", "name": "x",
            "creationTimestamp": null, "managedFields": [{}], "odd": 1, "generation": 0
        }));
        assert_eq!(
            Value::Object(canonical(shuffled)).to_string(),
            r#"{"name":"x","namespace":"n","uid":"u","labels":{"a":"b","c":""},"managedFields":[{}]}"#
        );
    }

    #[test]
    fn only_metadata_that_would_not_change_counts_as_canonical() {
        let all = json!({
            "name": "x", "generateName": "g", "namespace": "n", "uid": "u", "generation": 1, "creationTimestamp": "t",
            "deletionTimestamp": "t", "deletionGracePeriodSeconds": 0, "labels": {"a": ""}, "annotations": {"a": "b"},
            "ownerReferences": [{}], "finalizers": ["f"], "managedFields": [{}]
        });
        assert!(is_canonical(&map(all.clone())));
        assert!(is_canonical(&map(json!({}))));
        for changed in [
            json!({"namespace": "n", "name": "x"}),
            json!({"name": "x", "odd": 1}),
            json!({"name": "x", "selfLink": "s"}),
            json!({"name": "x", "resourceVersion": "5"}),
            json!({"name": "x", "labels": {}}),
            json!({"name": "x", "generation": 0}),
            json!({"name": "x", "creationTimestamp": null}),
            json!({"name": "x", "annotations": {"a": "b", "c": null}}),
        ] {
            let metadata = map(changed);
            assert!(!is_canonical(&metadata), "{metadata:?}");
            assert_ne!(Value::Object(canonical(metadata.clone())).to_string(), Value::Object(metadata).to_string());
        }
    }

    #[test]
    fn duplicate_owner_references_are_removed_with_a_warning() {
        let mut metadata = map(json!({"ownerReferences": [{"uid": "a"}, {"uid": "b"}, {"uid": "a"}]}));
        let warning = dedup_owners(&mut metadata, Admission::Before).unwrap();
        assert!(warning.ends_with("duplicate UID(s) observed: a"), "{warning}");
        assert_eq!(metadata["ownerReferences"], json!([{"uid": "a"}, {"uid": "b"}]));
        assert_eq!(dedup_owners(&mut metadata, Admission::Before), None);
    }
}
