//! Embedded resources (`x-kubernetes-embedded-resource`): `apiVersion`, `kind` and `metadata`
//! follow the rules of every object, for any schema. [`repair_metadata`] and [`has_sound_metadata`] are for the metadata
//! of stored objects themselves.
//! Rules: apiextensions-apiserver `pkg/apiserver/schema/objectmeta`, Kubernetes 1.36.

use listwatch_json::{Map, Value};
use listwatch_k8s_types::{Field, Id, Omit, Shape, Type};
use listwatch_meta::FieldError;
use listwatch_meta::go::json_kind;
use listwatch_meta::scan;
use listwatch_meta::selector::{
    dns_1035_label_problems, validate_dns_label, validate_label_value, validate_qualified_name,
};

use crate::field_errors;
use crate::golang::quote;
use crate::limits::UNKNOWN_FIELDS_MAX;
use crate::path::Path;
use crate::schema::{Node, Schema};

const MANAGED_FIELDS: &str = "managedFields";
/// The total size of an object's annotations in bytes, as in Kubernetes.
const ANNOTATIONS_BYTES_MAX: usize = 256 * 1024;

impl Schema {
    /// Coerces the metadata of embedded resources: removes unknown and empty fields. The server
    /// handles the object's own metadata.
    ///
    /// With `drop_invalid`, fields of the wrong type are also removed, as in reads from the store.
    /// Returns the paths of unknown fields, sorted.
    ///
    /// # Errors
    /// Without `drop_invalid`: the first field of the wrong type.
    pub fn coerce_embedded(&self, object: &mut Value, drop_invalid: bool) -> Result<Vec<String>, FieldError> {
        coerce(object, &self.root, false, drop_invalid)
    }
}

/// Like [`Schema::coerce_embedded`], for any value. With `is_resource`, the value itself is a resource.
pub(crate) fn coerce(
    value: &mut Value,
    node: &Node,
    is_resource: bool,
    drop_invalid: bool,
) -> Result<Vec<String>, FieldError> {
    let mut coercer = Coercer { drop_invalid, unknown: Vec::new() };
    coercer.value(value, node, is_resource || node.embedded, &Path::NIL)?;
    coercer.unknown.sort_unstable();
    Ok(coercer.unknown)
}

/// Repairs the root metadata of a stored object, as kube-apiserver does when it reads a custom object: removes unknown
/// fields and fields of the wrong type, and sets a missing generation to 1 (`dropInvalidMetadata`, `repairGeneration` of
/// `pkg/apiserver/customresource_handler.go`).
///
/// Well-formed metadata is only scanned, and its empty values stay. The items of `managedFields` are examined only if
/// another field is malformed. `managedFields` may be a string with the JSON text: this server parses stored objects
/// into such trees before it changes them.
pub fn repair_metadata(object: &mut Map) {
    let Some(Value::Object(metadata)) = object.get_mut("metadata") else { return };
    if !metadata.iter().all(|(name, value)| is_well_formed(Id::MetaObjectMeta, name.as_str(), value)) {
        let text = metadata.get(MANAGED_FIELDS).filter(|managed| managed.is_string()).cloned();
        // With `true`, malformed fields are dropped, so this call cannot fail.
        let mut repaired = read_members(metadata, true, &mut Vec::new()).unwrap_or_default();
        if let Some(text) = text {
            repaired.insert(MANAGED_FIELDS, text);
        }
        *metadata = repaired;
    }
    if metadata.get("generation").and_then(Value::as_i64).unwrap_or_default() == 0 {
        metadata.insert("generation", Value::from(1));
    }
}

/// Whether [`repair_metadata`] certainly changes nothing in this metadata, which is JSON. This function parses no tree.
/// It returns false for unusual forms of sound values, such as escaped names of fields.
pub fn has_sound_metadata(metadata: &[u8]) -> bool {
    if !metadata.starts_with(b"{") {
        return true;
    }
    let mut has_generation = false;
    all_members(metadata, |name, value| {
        if name == "generation" {
            has_generation = as_int64(value).is_some_and(|generation| generation != 0);
        }
        is_sound(Id::MetaObjectMeta, name, value)
    }) && has_generation
}

/// Like [`is_well_formed`], for JSON.
fn is_sound(message: Id, name: &str, json: &[u8]) -> bool {
    let Some(field) = message.message().field(name) else { return false };
    let is_string = |json: &[u8]| json.starts_with(b"\"");
    match (field.shape(), field.of()) {
        (Shape::Map, _) => json.starts_with(b"{") && all_members(json, |_, value| is_string(value)),
        (Shape::Repeated, Type::Message(Id::MetaManagedFieldsEntry)) => json.starts_with(b"[") || is_string(json),
        (Shape::Repeated, Type::Message(of)) => {
            all_items(json, |item| item.starts_with(b"{") && all_members(item, |name, value| is_sound(of, name, value)))
        }
        (Shape::Repeated, Type::String) => all_items(json, is_string),
        (Shape::One | Shape::Pointer, Type::String) => is_string(json),
        (Shape::One | Shape::Pointer, Type::Bool) => json == b"true" || json == b"false",
        (Shape::One | Shape::Pointer, Type::Int64) => as_int64(json).is_some(),
        (Shape::One | Shape::Pointer, Type::Time) => {
            let text = as_text(json).and_then(|text| text.strip_prefix('"')?.strip_suffix('"'));
            text.is_some_and(is_rfc3339)
        }
        _ => false,
    }
}

fn as_text(json: &[u8]) -> Option<&str> {
    std::str::from_utf8(json).ok()
}

fn as_int64(json: &[u8]) -> Option<i64> {
    as_text(json)?.parse().ok()
}

/// Whether JSON is an object all of whose members satisfy a condition.
fn all_members(json: &[u8], mut is: impl FnMut(&str, &[u8]) -> bool) -> bool {
    let mut all = true;
    let each = |name, value| all = all && as_text(name).is_some_and(|name| is(name, value));
    scan::entries(json, each).is_ok() && all
}

/// Whether JSON is an array all of whose items satisfy a condition.
fn all_items(json: &[u8], is: impl Fn(&[u8]) -> bool) -> bool {
    let mut all = true;
    scan::elements(json, |item| all = all && is(item)).is_ok() && all
}

/// Whether Go decodes a field of a message of the metadata without a loss.
fn is_well_formed(message: Id, name: &str, value: &Value) -> bool {
    let Some(field) = message.message().field(name) else { return false };
    match (field.shape(), field.of(), value) {
        (Shape::Map, _, Value::Object(members)) => members.values().all(Value::is_string),
        (Shape::Repeated, Type::Message(Id::MetaManagedFieldsEntry), Value::Array(_) | Value::String(_)) => true,
        (Shape::Repeated, Type::Message(of), Value::Array(items)) => items.iter().all(|item| match item {
            Value::Object(members) => members.iter().all(|(name, value)| is_well_formed(of, name.as_str(), value)),
            _ => false,
        }),
        (Shape::Repeated, Type::String, Value::Array(items)) => items.iter().all(Value::is_string),
        (Shape::One | Shape::Pointer, Type::String, value) => value.is_string(),
        (Shape::One | Shape::Pointer, Type::Bool, value) => value.is_boolean(),
        (Shape::One | Shape::Pointer, Type::Int64, value) => value.as_i64().is_some(),
        (Shape::One | Shape::Pointer, Type::Time, Value::String(text)) => is_rfc3339(text),
        _ => false,
    }
}

struct Coercer {
    drop_invalid: bool,
    unknown: Vec<String>,
}

impl Coercer {
    fn value(&mut self, value: &mut Value, node: &Node, embedded: bool, at: &Path<'_>) -> Result<(), FieldError> {
        if !node.has_embedded_resources && !embedded {
            return Ok(());
        }
        match value {
            Value::Object(members) => {
                if embedded {
                    self.resource(members, at)?;
                }
                for (name, value) in members.iter_mut() {
                    if let Some(property) = node.property(name) {
                        self.value(value, property, property.embedded, &at.child(name))?;
                    } else if let Some(more) = node.additional_schema() {
                        self.value(value, more, more.embedded, &at.key(name))?;
                    }
                }
                Ok(())
            }
            Value::Array(items) => {
                let Some(node) = node.items.as_deref() else { return Ok(()) };
                for (index, item) in items.iter_mut().enumerate() {
                    self.value(item, node, node.embedded, &at.index(index))?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn resource(&mut self, members: &mut Map, at: &Path<'_>) -> Result<(), FieldError> {
        for name in ["apiVersion", "kind"] {
            match members.get(name) {
                None | Some(Value::String(_)) => {}
                Some(_) if self.drop_invalid => {
                    members.remove(name);
                }
                Some(other) => return Err(field_errors::invalid(at.child(name), other, "must be a string")),
            }
        }
        let Some(metadata) = members.get("metadata") else { return Ok(()) };
        let at = at.child("metadata");
        let mut unknown = Vec::new();
        match read_object_meta(metadata, self.drop_invalid, &mut unknown) {
            Ok(read) => {
                for name in unknown {
                    if self.unknown.len() < UNKNOWN_FIELDS_MAX {
                        self.unknown.push(format!("{at}.{name}"));
                    }
                }
                members.insert("metadata", Value::Object(read));
                Ok(())
            }
            Err(_) if self.drop_invalid => Ok(()),
            Err(why) => Err(field_errors::invalid(at, metadata, why)),
        }
    }
}

/// Decodes metadata as Go decodes `ObjectMeta`, and returns the re-encoded form.
fn read_object_meta(value: &Value, drop_invalid: bool, unknown: &mut Vec<String>) -> Result<Map, String> {
    let members = match value {
        Value::Object(members) => members,
        Value::Null => return Ok(Map::new()),
        other => return Err(cannot(other, "value of type v1.ObjectMeta")),
    };
    read_members(members, drop_invalid, unknown)
}

fn read_members(members: &Map, drop_invalid: bool, unknown: &mut Vec<String>) -> Result<Map, String> {
    let mut read = Map::new();
    for (name, value) in members {
        let Some(field) = Id::MetaObjectMeta.message().field(name) else {
            unknown.push(name.as_str().to_owned());
            continue;
        };
        let before = unknown.len();
        match read_field(value, field, "ObjectMeta", unknown) {
            Ok(Some(value)) => {
                read.insert(name.clone(), value);
            }
            Ok(None) => {}
            Err(_) if drop_invalid => unknown.truncate(before),
            Err(why) => return Err(why),
        }
    }
    Ok(read)
}

fn cannot(found: &Value, target: &str) -> String {
    let found = json_kind(found);
    format!("json: cannot unmarshal {found} into Go {target}")
}

/// Decodes a value and returns the JSON that Go encodes. `None` if Go omits the field.
fn read_field(value: &Value, field: &Field, of: &str, unknown: &mut Vec<String>) -> Result<Option<Value>, String> {
    let name = field.name();
    let wrong = |value: &Value, kind: &str| cannot(value, &format!("struct field {of}.{name} of type {kind}"));
    // Go omits empty and zero values, but not those behind a pointer.
    let is_written = field.omit() == Omit::Never || field.shape() == Shape::Pointer;
    match (field.shape(), field.of(), value) {
        (_, _, Value::Null) => Ok(None),
        (Shape::Map, _, Value::Object(members)) => {
            match members.values().find(|value| !value.is_string() && !value.is_null()) {
                Some(other) => Err(wrong(other, "string")),
                None if members.is_empty() => Ok(None),
                None => {
                    let text = |value: &Value| if value.is_null() { Value::from("") } else { value.clone() };
                    Ok(Some(Value::Object(members.iter().map(|(name, value)| (name.clone(), text(value))).collect())))
                }
            }
        }
        (Shape::Map, _, other) => Err(wrong(other, "map[string]string")),
        (Shape::Repeated, Type::Message(item), Value::Array(items)) => {
            let kind = item.message().name();
            let mut read = Vec::with_capacity(items.len());
            for (index, value) in items.iter().enumerate() {
                let Value::Object(members) = value else { return Err(wrong(value, &format!("v1.{kind}"))) };
                let mut entry = Map::new();
                for (member, value) in members {
                    let Some(field) = item.message().field(member) else {
                        unknown.push(format!("{name}[{index}].{member}"));
                        continue;
                    };
                    let inner = &mut Vec::new();
                    if let Some(value) = read_field(value, field, &format!("{kind}.{name}"), inner)? {
                        entry.insert(member.clone(), value);
                    }
                }
                read.push(Value::Object(entry));
            }
            Ok((!read.is_empty()).then_some(Value::Array(read)))
        }
        (Shape::Repeated, Type::Message(item), other) => Err(wrong(other, &format!("[]v1.{}", item.message().name()))),
        (Shape::Repeated, _, Value::Array(items)) => match items.iter().find(|item| !item.is_string()) {
            Some(other) => Err(wrong(other, "string")),
            None => Ok((!items.is_empty()).then(|| value.clone())),
        },
        (Shape::Repeated, _, other) => Err(wrong(other, "[]string")),
        (_, Type::String, Value::String(text)) => Ok((is_written || !text.is_empty()).then(|| value.clone())),
        (_, Type::String, other) => Err(wrong(other, "string")),
        (_, Type::Bool, Value::Bool(_)) => Ok(Some(value.clone())),
        (_, Type::Bool, other) => Err(wrong(other, "bool")),
        (_, Type::Int64, value) => match value.as_i64() {
            Some(number) => Ok((is_written || number != 0).then(|| value.clone())),
            None => Err(wrong(value, "int64")),
        },
        (_, Type::Time, Value::String(text)) if is_rfc3339(text) => Ok(Some(value.clone())),
        (_, Type::Time, Value::String(text)) => {
            let shown = quote(text);
            Err(format!("parsing time {shown} as \"2006-01-02T15:04:05Z07:00\": cannot parse {shown} as \"2006\""))
        }
        (_, Type::Time, other) => Err(cannot(other, "value of type string")),
        // `FieldsV1`: any object.
        (_, _, value) => Ok(Some(value.clone())),
    }
}

fn is_rfc3339(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.get(10) == Some(&b'T') && text.ends_with(|c: char| c == 'Z' || c.is_ascii_digit()) && {
        let zoned = listwatch_cel::format::Format::DateTime.accepts(text);
        zoned && !text.contains('t') && !text.contains('z')
    }
}

/// Validates `apiVersion`, `kind` and `metadata` of embedded resources. The value itself is an
/// embedded resource if its schema has `x-kubernetes-embedded-resource` or if `is_resource`.
pub(crate) fn validate(value: &Value, node: &Node, is_resource: bool, at: &Path<'_>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    check(value, node, is_resource || node.embedded, at, &mut errors);
    errors
}

fn check(value: &Value, node: &Node, embedded: bool, at: &Path<'_>, errors: &mut Vec<FieldError>) {
    if !node.has_embedded_resources && !embedded {
        return;
    }
    match value {
        Value::Object(members) => {
            if embedded {
                check_resource(members, at, errors);
            }
            for (name, value) in members {
                if let Some(property) = node.property(name) {
                    check(value, property, property.embedded, &at.child(name), errors);
                } else if let Some(more) = node.additional_schema() {
                    check(value, more, more.embedded, &at.key(name), errors);
                }
            }
        }
        Value::Array(items) => {
            let Some(node) = node.items.as_deref() else { return };
            for (index, item) in items.iter().enumerate() {
                check(item, node, node.embedded, &at.index(index), errors);
            }
        }
        _ => {}
    }
}

fn check_resource(members: &Map, at: &Path<'_>, errors: &mut Vec<FieldError>) {
    let api_version = at.child("apiVersion");
    let kind = at.child("kind");
    match members.get("apiVersion") {
        None => errors.push(field_errors::required(api_version, "")),
        Some(Value::String(text)) if text.is_empty() => {
            errors.push(field_errors::invalid_str(api_version, text, "must not be empty"));
        }
        Some(Value::String(text)) if text.matches('/').count() > 1 => {
            errors.push(field_errors::invalid_str(
                api_version,
                text,
                format!("unexpected GroupVersion string: {text}"),
            ));
        }
        Some(Value::String(_)) => {}
        Some(other) => errors.push(field_errors::invalid(api_version, other, "must be a string")),
    }
    match members.get("kind") {
        None => errors.push(field_errors::required(kind, "")),
        Some(Value::String(text)) if text.is_empty() => {
            errors.push(field_errors::invalid_str(kind, text, "must not be empty"));
        }
        Some(Value::String(text)) => {
            let problems = dns_1035_label_problems(&text.to_lowercase());
            if !problems.is_empty() {
                let detail = format!("may have mixed case, but should otherwise match: {}", problems.join(","));
                errors.push(field_errors::invalid_str(kind, text, detail));
            }
        }
        Some(other) => errors.push(field_errors::invalid(kind, other, "must be a string")),
    }
    let Some(metadata) = members.get("metadata") else { return };
    let at = at.child("metadata");
    match read_object_meta(metadata, false, &mut Vec::new()) {
        Ok(read) => check_metadata(&read, &at, errors),
        Err(why) => errors.push(field_errors::invalid(at, metadata, why)),
    }
}

fn path_segment(name: &str, prefix: bool) -> Vec<String> {
    if !prefix && matches!(name, "." | "..") {
        return vec![format!("may not be '{name}'")];
    }
    let illegal = ['/', '%'].into_iter().filter(|c| name.contains(*c));
    illegal.map(|c| format!("may not contain '{c}'")).collect()
}

fn check_metadata(metadata: &Map, at: &Path<'_>, errors: &mut Vec<FieldError>) {
    let text = |name: &str| metadata.get(name).and_then(Value::as_str).unwrap_or_default();
    for (field, prefix) in [("generateName", true), ("name", false)] {
        let name = text(field);
        if !name.is_empty() {
            let problems = path_segment(name, prefix).into_iter();
            errors.extend(problems.map(|why| field_errors::invalid_str(at.child(field), name, why)));
        }
    }
    let namespace = text("namespace");
    if !namespace.is_empty()
        && let Err(why) = validate_dns_label(namespace)
    {
        errors.push(field_errors::invalid_str(at.child("namespace"), namespace, why));
    }
    if let Some(generation) = metadata.get("generation").filter(|value| value.as_i64().is_some_and(|n| n < 0)) {
        errors.push(field_errors::invalid(at.child("generation"), generation, "must be greater than or equal to 0"));
    }
    let labels = at.child("labels");
    for (key, value) in metadata.get("labels").and_then(Value::as_object).into_iter().flatten() {
        if let Err(why) = validate_qualified_name(key) {
            errors.push(field_errors::invalid_str(labels, key, why));
        }
        let value = value.as_str().unwrap_or_default();
        if let Err(why) = validate_label_value(value) {
            errors.push(field_errors::invalid_str(labels, value, why));
        }
    }
    let annotations = at.child("annotations");
    let mut bytes = 0;
    for (key, value) in metadata.get("annotations").and_then(Value::as_object).into_iter().flatten() {
        bytes += key.len() + value.as_str().unwrap_or_default().len();
        if let Err(why) = validate_qualified_name(&key.to_lowercase()) {
            errors.push(field_errors::invalid_str(annotations, key, why));
        }
    }
    if bytes > ANNOTATIONS_BYTES_MAX {
        errors.push(field_errors::too_long(annotations, ANNOTATIONS_BYTES_MAX as i64));
    }
    let owners = at.child("ownerReferences");
    for (index, owner) in metadata.get("ownerReferences").and_then(Value::as_array).into_iter().flatten().enumerate() {
        let at = owners.index(index);
        let text = |name: &str| owner.get(name).and_then(Value::as_str).unwrap_or_default();
        if text("apiVersion").is_empty() || text("apiVersion").split('/').next_back().is_none_or(str::is_empty) {
            errors.push(field_errors::invalid_str(
                at.child("apiVersion"),
                text("apiVersion"),
                "version must not be empty",
            ));
        }
        for name in ["kind", "name", "uid"] {
            if text(name).is_empty() {
                errors.push(field_errors::invalid_str(at.child(name), "", "must not be empty"));
            }
        }
    }
    for finalizer in metadata.get("finalizers").and_then(Value::as_array).into_iter().flatten() {
        let finalizer = finalizer.as_str().unwrap_or_default();
        if let Err(why) = validate_qualified_name(finalizer) {
            errors.push(field_errors::invalid_str(at.child("finalizers"), finalizer, why));
        }
    }
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;

    fn repaired(metadata: Value) -> Value {
        let mut object = Map::from_iter([("metadata".to_owned(), metadata.clone())]);
        let json = serde_json::to_vec(&object["metadata"]).unwrap();
        repair_metadata(&mut object);
        let repaired = object.remove("metadata").unwrap_or_default();
        assert_eq!(has_sound_metadata(&json), repaired == metadata, "the scan and the repair differ: {metadata}");
        repaired
    }

    #[test]
    fn unusual_forms_of_metadata_are_not_sound() {
        for (json, expected) in [
            (r#"{"generation": 1, "labels" : {"a": "b"}}"#, true),
            (r#"{"generation":1,"l\u0061bels":{}}"#, false),
            (r#"{"generation":1e0}"#, false),
            (r#"{"generation":-0}"#, false),
            (r#"{"generation":1,"generation":0}"#, false),
            (r#"{"generation":1,"creationTimestamp":"2024\u002d01-01T00:00:00Z"}"#, false),
            (r#"{"generation":1,"labels":{"a":"b"}"#, false),
            ("", true),
            ("null", true),
        ] {
            assert_eq!(has_sound_metadata(json.as_bytes()), expected, "{json}");
        }
    }

    #[test]
    fn malformed_root_metadata_is_removed_and_missing_generation_becomes_1() {
        let check = |metadata: Value, expected: Value| {
            assert_eq!(repaired(metadata.clone()), expected, "{metadata}");
            assert_eq!(repaired(expected.clone()), expected, "a second repair changes nothing");
        };
        let managed = json!([{"manager": "m", "fieldsV1": {"f:spec": {}}}]);
        check(
            json!({"name": "a", "unknown": 42, "generation": null, "labels": {"invalid": "x y"},
                "annotations": {"foo": 42, "bar": "abc"}, "managedFields": managed}),
            json!({"name": "a", "labels": {"invalid": "x y"}, "managedFields": managed, "generation": 1}),
        );
        check(json!({"name": "a", "creationTimestamp": null}), json!({"name": "a", "generation": 1}));
        check(json!({"name": "a", "creationTimestamp": "soon"}), json!({"name": "a", "generation": 1}));
        check(json!({"name": 1, "finalizers": ["a", 1]}), json!({"generation": 1}));
        check(json!({"ownerReferences": [{"name": "o", "uid": 1}]}), json!({"generation": 1}));
        check(json!({"unknown": 1, "managedFields": "[]"}), json!({"managedFields": "[]", "generation": 1}));
        check(json!({"name": "a", "generation": 0}), json!({"name": "a", "generation": 1}));
        check(json!("not an object"), json!("not an object"));
    }

    #[test]
    fn well_formed_root_metadata_is_not_changed() {
        for metadata in [
            json!({"name": "a", "generation": 7, "creationTimestamp": "2024-01-01T00:00:00Z", "labels": {}, "uid": ""}),
            json!({"generation": 1, "deletionGracePeriodSeconds": 0, "annotations": {"a": "b"}, "finalizers": ["f"],
                "ownerReferences": [{"apiVersion": "v1", "kind": "A", "name": "n", "uid": "u", "controller": true}]}),
            json!({"generation": 1, "managedFields": "[{}]"}),
        ] {
            assert_eq!(repaired(metadata.clone()), metadata);
        }
    }
}
