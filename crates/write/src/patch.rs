//! Parses the body of a PATCH and applies the patch to an object: [`Patch`].
//!
//! | media type | rule |
//! |---|---|
//! | `application/json-patch+json` | RFC 6902 with the exceptions of kube-apiserver: [`super::json_patch`] |
//! | `application/merge-patch+json` | RFC 7386, in this module; nulls in new lists are also dropped |
//! | `application/strategic-merge-patch+json` | [`super::strategic`] |
//!
//! No patch can make an object deeper than [`OBJECT_DEPTH_MAX`] levels. A merge result is at most as deep as the object
//! or the patch. The depth of each JSON patch operation is checked before the operation is applied.
//!
//! Source of rules and error messages: `pkg/endpoints/handlers/patch.go`.

use std::collections::HashSet;

use listwatch_json::{JsonString, Map, Value};
use listwatch_meta::Status;
use listwatch_meta::status::{StatusDetails, reason};
use listwatch_wire::media_type::PatchType;

use super::decode::FieldValidation;
use super::depth::{OBJECT_DEPTH_MAX, is_deeper};
use super::document::Document;
use super::json_patch::{self, NotApplicable};
use super::merge_keys::At;
use super::store::MANAGED_FIELDS;
use super::strategic::{self, StrategicError};
use listwatch_meta::go::{self, TypeErrorStyle};

/// The maximum number of operations in a JSON patch (`maxJSONPatchOperations`). A larger patch gets a 413.
pub(super) const JSON_PATCH_OPERATIONS_MAX: usize = 10_000;

/// The error of the library for merge patches, whatever is wrong.
const INVALID_MERGE_PATCH: &str = "Invalid JSON Patch";

/// A parsed patch. [`Patch::apply`] consumes the patch, so a retry parses the body again.
#[derive(Debug)]
pub(super) enum Patch {
    Json(Vec<Value>),
    Merge(Map),
    Strategic(Map),
}

/// A parsed patch and its strict decoding errors.
#[derive(Debug)]
pub(super) struct ParsedPatch {
    pub(super) patch: Patch,
    /// The strict decoding errors, e.g. `duplicate field "a.b"`.
    pub(super) strict_errors: Vec<String>,
}

impl ParsedPatch {
    /// Parses the body of a patch. `validation` determines the texts of errors: with [`FieldValidation::Ignore`],
    /// kube-apiserver does not decode the patch strictly before the library of the patch type does.
    ///
    /// # Errors
    /// 400 for a malformed patch, 413 for more than 10 000 operations.
    pub(super) fn parse(patch_type: PatchType, body: &[u8], validation: FieldValidation) -> Result<Self, Status> {
        let is_strict = validation != FieldValidation::Ignore;
        let undecodable = |why: String| match patch_type {
            PatchType::Merge if !is_strict => Status::bad_request(INVALID_MERGE_PATCH),
            PatchType::Json | PatchType::Merge if is_strict => {
                Status::bad_request(format!("error decoding patch: {why}"))
            }
            _ => Status::bad_request(why),
        };
        let operations_type = if is_strict { "[]handlers.jsonPatchOp" } else { "jsonpatch.Patch" };
        let Document { value, strict_errors } = Document::from_json(body).map_err(undecodable)?;
        let cannot = |value: &Value, target: &str| {
            undecodable(format!("json: cannot unmarshal {} into Go value of type {target}", go::json_kind(value)))
        };
        let (patch, source) = match (patch_type, value) {
            (PatchType::Json, Value::Array(operations)) => {
                if operations.len() > JSON_PATCH_OPERATIONS_MAX {
                    return Err(Status::failure(
                        413,
                        reason::REQUEST_ENTITY_TOO_LARGE,
                        format!(
                            "Request entity too large: The allowed maximum operations in a JSON patch is \
                             {JSON_PATCH_OPERATIONS_MAX}, got {}",
                            operations.len()
                        ),
                    ));
                }
                (Patch::Json(operations), "json patch ")
            }
            (PatchType::Json, Value::Null) => (Patch::Json(Vec::new()), ""),
            (PatchType::Json, other) => return Err(cannot(&other, operations_type)),
            (PatchType::Merge, Value::Object(patch)) => (Patch::Merge(patch), ""),
            (PatchType::Merge, Value::Null) => return Err(Status::bad_request(INVALID_MERGE_PATCH)),
            (PatchType::StrategicMerge, Value::Object(patch)) => (Patch::Strategic(patch), ""),
            (PatchType::StrategicMerge, Value::Null) => (Patch::Strategic(Map::new()), ""),
            (_, other) => return Err(cannot(&other, "map[string]interface {}")),
        };
        let mut strict_errors: Vec<String> =
            strict_errors.into_iter().map(|error| format!("{source}{error}")).collect();
        match &patch {
            Patch::Json(operations) if is_strict => strict_errors.extend(unknown_operation_fields(operations)?),
            Patch::Json(operations) => match operations.iter().find(|operation| !operation.is_object()) {
                // A null is an operation without members, which cannot be applied.
                None | Some(Value::Null) => {}
                Some(other) => return Err(cannot(other, "jsonpatch.Operation")),
            },
            Patch::Merge(_) | Patch::Strategic(_) => {}
        }
        Ok(ParsedPatch { patch, strict_errors })
    }
}

impl Patch {
    /// Applies the patch to `object`. `at` is the type of the object and determines the merge keys of lists.
    ///
    /// # Errors
    /// 422 when an operation cannot be applied or the result nests too deep, 400 when a directive is malformed, 500 for
    /// [`StrategicError::Other`]. After an error, `object` is partly changed and must be discarded.
    pub(super) fn apply(self, object: &mut Map, at: At) -> Result<(), Status> {
        match self {
            Patch::Json(operations) => {
                let mut document = Value::Object(std::mem::take(object));
                json_patch::apply(&mut document, operations).map_err(|NotApplicable| unprocessable())?;
                match document {
                    Value::Object(patched) => *object = patched,
                    _ => return Err(unprocessable()),
                }
                Ok(())
            }
            Patch::Merge(patch) => {
                merge(object, shallow(patch)?);
                Ok(())
            }
            Patch::Strategic(patch) => strategic::merge(object, shallow(patch)?, at).map_err(|error| match error {
                StrategicError::Malformed(why) => Status::bad_request(why),
                StrategicError::ListOfLists => unprocessable(),
                StrategicError::Other(why) => Status::unknown(why),
            }),
        }
    }

    /// Whether the patch may change `kind` and `apiVersion`. A strategic merge patch never changes them.
    pub(super) fn may_change_kind(&self) -> bool {
        !matches!(self, Patch::Strategic(_))
    }

    /// The style of errors about values of the wrong type: Go's decoder, or the converter for a strategic merge patch.
    pub(super) fn error_style(&self) -> TypeErrorStyle {
        if self.may_change_kind() { TypeErrorStyle::Decoder } else { TypeErrorStyle::Converter }
    }

    /// Formats the patch as Go prints it, for the error about a patched object that cannot be decoded. A strategic
    /// merge patch is printed without its directives.
    pub(super) fn shown(&self) -> String {
        match self {
            Patch::Json(operations) => go::print_list(operations),
            Patch::Merge(patch) => go::print_map(patch),
            Patch::Strategic(patch) => go::print_map(&strategic::obeyed(patch)),
        }
    }

    /// Whether the patch may change or test `metadata.managedFields`.
    pub(super) fn may_touch_owners(&self) -> bool {
        match self {
            Patch::Json(operations) => operations.iter().any(|operation| {
                ["path", "from"].iter().any(|name| match operation.get(name) {
                    None => false,
                    Some(Value::String(path)) => meets(path, "/metadata/managedFields"),
                    Some(_) => true,
                })
            }),
            Patch::Merge(patch) | Patch::Strategic(patch) => {
                // The name of a list directive ends with the name of its list.
                let metadata = patch.get("metadata").and_then(Value::as_object);
                metadata.is_some_and(|metadata| metadata.keys().any(|name| name.ends_with(MANAGED_FIELDS)))
            }
        }
    }
}

/// Whether one JSON pointer is a prefix of the other. A step with an escape (`~`) matches any step.
fn meets(one: &str, other: &str) -> bool {
    let mut steps = one.split('/').skip(1).zip(other.split('/').skip(1));
    steps.all(|(a, b)| a == b || a.contains('~'))
}

/// Returns the patch, or an error if the patch is deeper than [`OBJECT_DEPTH_MAX`]. The parser limits the depth of all
/// patches.
fn shallow(patch: Map) -> Result<Map, Status> {
    let members_too_deep = patch.values().any(|value| is_deeper(value, OBJECT_DEPTH_MAX - 1, &mut 0));
    if members_too_deep { Err(unprocessable()) } else { Ok(patch) }
}

/// Applies a merge patch (RFC 7386) as kube-apiserver does (`gopkg.in/evanphx/json-patch.v4`). A value that does not
/// replace an object loses its null members, even inside lists.
fn merge(object: &mut Map, patch: Map) {
    // All members are removed in one pass, because each single removal shifts the members behind it.
    let mut gone: HashSet<JsonString> = HashSet::new();
    for (name, mut value) in patch {
        match (object.get_mut(&name), &mut value) {
            (Some(_), Value::Null) => {
                gone.insert(name);
            }
            (None, Value::Null) => {}
            (Some(Value::Object(target)), Value::Object(patch)) => merge(target, std::mem::take(patch)),
            (Some(target @ Value::Object(_)), _) => *target = value,
            _ => {
                prune_nulls(&mut value);
                object.insert(name, value);
            }
        }
    }
    if !gone.is_empty() {
        object.retain(|name, _| !gone.contains(name.as_str()));
    }
}

/// Removes the null members of all objects. Keeps the null items of lists.
fn prune_nulls(value: &mut Value) {
    match value {
        Value::Object(members) => members.retain(|_, value| {
            prune_nulls(value);
            !value.is_null()
        }),
        Value::Array(items) => items.iter_mut().for_each(prune_nulls),
        _ => {}
    }
}

/// The error for a JSON patch that cannot be applied. As in kube-apiserver, the message contains no cause.
fn unprocessable() -> Status {
    Status::failure(422, reason::INVALID, "the server rejected our request due to an error in our request")
        .with_details(StatusDetails::default())
}

/// Checks the types of the operations' fields, and returns one text per unknown field.
fn unknown_operation_fields(operations: &[Value]) -> Result<Vec<String>, Status> {
    let mut strict_errors = Vec::new();
    for (place, operation) in operations.iter().enumerate() {
        let fields = operation.as_object().ok_or_else(|| {
            let kind = go::json_kind(operation);
            Status::bad_request(format!(
                "error decoding patch: json: cannot unmarshal {kind} into Go value of type handlers.jsonPatchOp"
            ))
        })?;
        for (name, value) in fields {
            match name.as_str() {
                "value" => {}
                "op" | "path" | "from" if value.is_string() || value.is_null() => {}
                "op" | "path" | "from" => {
                    let kind = go::json_kind(value);
                    return Err(Status::bad_request(format!(
                        "error decoding patch: json: cannot unmarshal {kind} into Go struct field jsonPatchOp.{name} of type string"
                    )));
                }
                unknown => strict_errors.push(format!("json patch unknown field \"[{place}].{unknown}\"")),
            }
        }
    }
    Ok(strict_errors)
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;
    use proptest::prelude::*;

    use super::*;

    fn apply(patch_type: PatchType, object: &Value, body: &str) -> Result<Value, (u16, String)> {
        let mut object = object.as_object().unwrap().clone();
        ParsedPatch::parse(patch_type, body.as_bytes(), FieldValidation::Warn)
            .and_then(|parsed| parsed.patch.apply(&mut object, At::Unknown))
            .map_err(|status| (status.code, status.message))?;
        Ok(Value::Object(object))
    }

    fn check(patch_type: PatchType, object: Value, body: &str, expected: Value) {
        assert_eq!(apply(patch_type, &object, body), Ok(expected), "{object} patched with {body}");
    }

    fn check_error(patch_type: PatchType, body: &str, code: u16, expected: &str) {
        let object = json!({"a": {"b": "c"}, "list": [1, 2]});
        assert_eq!(apply(patch_type, &object, body), Err((code, expected.to_owned())), "{body}");
    }

    #[test]
    fn json_patch_operations_change_the_object() {
        let object = json!({"a": {"b": "c"}, "list": [1, 2]});
        let check = |body: &str, expected: Value| check(PatchType::Json, object.clone(), body, expected);
        check(r#"[{"op":"add","path":"/list/1","value":9}]"#, json!({"a": {"b": "c"}, "list": [1, 9, 2]}));
        check(r#"[{"op":"add","path":"/list/-","value":9}]"#, json!({"a": {"b": "c"}, "list": [1, 2, 9]}));
        check(r#"[{"op":"add","path":"/x"}]"#, json!({"a": {"b": "c"}, "list": [1, 2], "x": null}));
        check(r#"[{"op":"remove","path":"/a/b"}]"#, json!({"a": {}, "list": [1, 2]}));
        check(r#"[{"op":"replace","path":"/a/b","value":1}]"#, json!({"a": {"b": 1}, "list": [1, 2]}));
        check(r#"[{"op":"replace","path":"/a/x","value":1}]"#, json!({"a": {"b": "c", "x": 1}, "list": [1, 2]}));
        check(r#"[{"op":"replace","path":"/list/-1","value":9}]"#, json!({"a": {"b": "c"}, "list": [1, 9]}));
        check(r#"[{"op":"replace","path":"","value":{"z":1}}]"#, json!({"z": 1}));
        check(r#"[{"op":"move","from":"/a/b","path":"/list/0"}]"#, json!({"a": {}, "list": ["c", 1, 2]}));
        check(
            r#"[{"op":"copy","from":"/a","path":"/x~1y"}]"#,
            json!({"a": {"b": "c"}, "list": [1, 2], "x/y": {"b": "c"}}),
        );
        check(r#"[{"op":"test","path":"/a/b","value":"c"}]"#, object.clone());
        check(r#"[{"op":"test","path":"/a/x","value":null}]"#, object.clone());
        check(r#"[{"op":"test","path":"/x~1y"}]"#, object.clone());
    }

    #[test]
    fn malformed_patch_without_field_validation_is_rejected_by_the_library() {
        for (patch_type, body, expected) in [
            (PatchType::Json, "{{", "invalid character '{' looking for beginning of object key string"),
            (PatchType::Json, "{}", "json: cannot unmarshal object into Go value of type jsonpatch.Patch"),
            (PatchType::Json, "[1]", "json: cannot unmarshal number into Go value of type jsonpatch.Operation"),
            (PatchType::Merge, "{{", "Invalid JSON Patch"),
            (PatchType::Merge, "[1]", "Invalid JSON Patch"),
        ] {
            let status = ParsedPatch::parse(patch_type, body.as_bytes(), FieldValidation::Ignore).unwrap_err();
            assert_eq!((status.code, &*status.message), (400, expected), "{body}");
        }
        let parsed =
            ParsedPatch::parse(PatchType::Json, br#"[{"op":"add","odd":1}]"#, FieldValidation::Ignore).unwrap();
        assert!(parsed.strict_errors.is_empty(), "{:?}", parsed.strict_errors);
    }

    const REJECTED: &str = "the server rejected our request due to an error in our request";

    #[test]
    fn json_patch_that_cannot_be_applied_returns_422() {
        for body in [
            r#"[{"op":"test","path":"/a/b","value":"x"}]"#,
            r#"[{"op":"test","path":"/a/b","value":null}]"#,
            r#"[{"op":"test","path":"/x/y","value":null}]"#,
            r#"[{"op":"test","path":"/list/2","value":null}]"#,
            r#"[{"op":"remove","path":"/a/x"}]"#,
            r#"[{"op":"replace","path":"/x/y","value":1}]"#,
            r#"[{"op":"replace","path":"/list/2","value":1}]"#,
            r#"[{"op":"add","path":"","value":{}}]"#,
            r#"[{"op":"copy","from":"","path":"/x"}]"#,
            r#"[{"op":"add","path":"/x/y","value":1}]"#,
            r#"[{"op":"add","path":"/list/7","value":1}]"#,
            r#"[{"op":"fly","path":"/a","value":1}]"#,
            r#"[{"op":"move","from":"/x","path":"/a"}]"#,
            r#"[{"op":"add","value":1}]"#,
            r#"[{"op":"add","path":"a","value":1}]"#,
            r#"[{"op":"replace","path":"","value":1}]"#,
        ] {
            check_error(PatchType::Json, body, 422, REJECTED);
        }
    }

    #[test]
    fn malformed_patch_is_rejected_with_gos_error_text() {
        let unmarshal = |what: &str| format!("error decoding patch: json: cannot unmarshal {what}");
        check_error(PatchType::Json, "", 400, "error decoding patch: unexpected end of JSON input");
        check_error(PatchType::Json, "{}", 400, &unmarshal("object into Go value of type []handlers.jsonPatchOp"));
        check_error(PatchType::Json, "[1]", 400, &unmarshal("number into Go value of type handlers.jsonPatchOp"));
        check_error(
            PatchType::Json,
            r#"[{"op":1}]"#,
            400,
            &unmarshal("number into Go struct field jsonPatchOp.op of type string"),
        );
        check_error(PatchType::Merge, "[1]", 400, &unmarshal("array into Go value of type map[string]interface {}"));
        check_error(PatchType::Merge, "null", 400, "Invalid JSON Patch");
        check(PatchType::Json, json!({"a": 1}), "null", json!({"a": 1}));
        check_error(
            PatchType::StrategicMerge,
            "[]",
            400,
            "json: cannot unmarshal array into Go value of type map[string]interface {}",
        );
        check_error(
            PatchType::StrategicMerge,
            r#"{"$patch":"foo"}"#,
            500,
            "unknown patch type: foo in map: map[$patch:foo]",
        );
    }

    #[test]
    fn json_patch_above_the_cost_limits_is_rejected() {
        let operations = vec![r#"{"op":"test","path":"/a/b","value":"c"}"#; JSON_PATCH_OPERATIONS_MAX + 1].join(",");
        let why = "Request entity too large: The allowed maximum operations in a JSON patch is 10000, got 10001";
        check_error(PatchType::Json, &format!("[{operations}]"), 413, why);
        // Each copy doubles the object.
        let doubling: Vec<String> =
            (0..64).map(|n| format!(r#"{{"op":"copy","from":"/a","path":"/a/x{n}"}}"#)).collect();
        check_error(PatchType::Json, &format!("[{}]", doubling.join(",")), 422, REJECTED);
        // Each insertion shifts the whole list.
        let long = json!({"list": vec![0; 300_000]});
        let shifting = vec![r#"{"op":"add","path":"/list/0","value":1}"#; 1000].join(",");
        assert_eq!(apply(PatchType::Json, &long, &format!("[{shifting}]")), Err((422, REJECTED.to_owned())));
    }

    /// Returns the JSON text of `levels` nested objects.
    fn nested(levels: usize) -> String {
        format!("{}{{}}{}", r#"{"a":"#.repeat(levels - 1), "}".repeat(levels - 1))
    }

    fn nested_in_a(levels: usize) -> Value {
        serde_json::from_str(&nested(levels)).unwrap()
    }

    #[test]
    fn json_patch_operation_that_nests_too_deep_returns_422() {
        // The object is 51 levels deep, and /b/a/a… is a path in it. `rest` is the depth limit below that path.
        let rest = OBJECT_DEPTH_MAX - 51;
        let object = json!({"b": nested_in_a(50)});
        let below_b = |steps: usize| format!("/b{}", "/a".repeat(steps));
        let op = |op: &str, path: &str, rest: &str| format!(r#"[{{"op":"{op}","path":"{path}",{rest}}}]"#);
        let value = |levels: usize| format!(r#""value":{}"#, nested(levels));
        let check = |fits: bool, body: String| match apply(PatchType::Json, &object, &body) {
            Ok(patched) => {
                assert!(fits, "should have been refused: {body}");
                assert!(!is_deeper(&patched, OBJECT_DEPTH_MAX, &mut 0), "too deep: {body}");
                let stored = serde_json::to_vec(&json!({"items": [{"managedFields": [[[patched]]]}]})).unwrap();
                assert!(serde_json::from_slice::<Value>(&stored).is_ok(), "what is stored can be read in a list");
            }
            Err(refusal) => {
                assert!(!fits, "should have been applied: {body}");
                assert_eq!(refusal, (422, REJECTED.to_owned()), "{body}");
            }
        };
        for (fits, over) in [(true, 0), (false, 1)] {
            check(fits, op("add", "/x", &value(OBJECT_DEPTH_MAX - 1 + over)));
            check(fits, op("replace", "", &value(OBJECT_DEPTH_MAX + over)));
            check(fits, op("add", &below_b(50), &value(rest + over)));
            check(fits, op("replace", "/b", &value(OBJECT_DEPTH_MAX - 1 + over)));
            check(fits, op("replace", &below_b(49), &value(rest + 1 + over)));
        }
        // A scalar has no depth of its own.
        check(true, op("add", &below_b(50), r#""value":1"#));
        // A move to a deeper place is measured, a move upward is not.
        let two = |moved: usize| {
            format!(
                r#"[{{"op":"add","path":"/c","value":{}}},{{"op":"move","from":"/c","path":"{}"}}]"#,
                nested(moved),
                below_b(50)
            )
        };
        check(true, two(rest));
        check(false, two(rest + 1));
        check(true, op("move", "/x", &format!(r#""from":"{}""#, below_b(49))));

        // The source of the copy is 90 levels deep.
        let object = json!({"b": nested_in_a(90)});
        let copied =
            |steps: usize| apply(PatchType::Json, &object, &op("copy", &below_b(steps), r#""from":"/b""#)).is_ok();
        let deepest = OBJECT_DEPTH_MAX - 91;
        assert!(copied(deepest) && !copied(deepest + 1));
    }

    #[test]
    fn json_patch_that_nests_too_deep_in_several_steps_returns_422() {
        let object = json!({"data": {}});
        let two = format!(
            r#"[{{"op":"add","path":"/data/x","value":{0}}},{{"op":"add","path":"/data/x{1}/x","value":{0}}}]"#,
            nested(60),
            "/a".repeat(59),
        );
        assert_eq!(apply(PatchType::Json, &object, &two), Err((422, REJECTED.to_owned())), "two halves");

        // Each round nests the whole object below another 60 levels.
        let tower = nested(60);
        let below = "/a".repeat(60);
        let round = format!(
            r#"{{"op":"add","path":"/n","value":{tower}}},{{"op":"move","from":"/data","path":"/n{below}"}},{{"op":"move","from":"/n","path":"/data"}}"#
        );
        let body = format!("[{}]", vec![round; JSON_PATCH_OPERATIONS_MAX / 3].join(","));
        assert_eq!(apply(PatchType::Json, &object, &body), Err((422, REJECTED.to_owned())), "towers");
    }

    #[test]
    fn json_patch_with_1000_deep_moves_of_a_large_list_returns_422() {
        let object = json!({"a": vec![0; 300_000], "b": {}});
        let there_and_back = r#"{"op":"move","from":"/a","path":"/b/a"},{"op":"move","from":"/b/a","path":"/a"}"#;
        let body = |rounds: usize| format!("[{}]", vec![there_and_back; rounds].join(","));
        assert!(apply(PatchType::Json, &object, &body(10)).is_ok());
        assert_eq!(apply(PatchType::Json, &object, &body(1000)), Err((422, REJECTED.to_owned())));
    }

    #[test]
    fn merge_patch_deeper_than_the_limit_returns_422() {
        for patch_type in [PatchType::Merge, PatchType::StrategicMerge] {
            let object = json!({"a": {"b": 1}});
            let patched = apply(patch_type, &object, &nested(OBJECT_DEPTH_MAX)).unwrap();
            assert!(is_deeper(&patched, OBJECT_DEPTH_MAX - 2, &mut 0), "the patch was merged");
            assert!(!is_deeper(&patched, OBJECT_DEPTH_MAX, &mut 0));
            let deeper = apply(patch_type, &object, &nested(OBJECT_DEPTH_MAX + 1));
            assert_eq!(deeper, Err((422, REJECTED.to_owned())), "{patch_type:?}");
        }
    }

    #[test]
    fn strict_decoding_of_a_patch_names_duplicate_and_unknown_fields() {
        let strict_errors = |patch_type, body: &str| {
            ParsedPatch::parse(patch_type, body.as_bytes(), FieldValidation::Warn).unwrap().strict_errors
        };
        assert_eq!(strict_errors(PatchType::Merge, r#"{"data":{"a":"5","a":"6"}}"#), [r#"duplicate field "data.a""#]);
        assert_eq!(
            strict_errors(PatchType::Json, r#"[{"op":"add","op":"add","path":"/a","x":1}]"#),
            [r#"json patch duplicate field "[0].op""#, r#"json patch unknown field "[0].x""#]
        );
    }

    /// Applies the pseudocode of RFC 7386, section 2, except for lists that do not replace an object.
    fn reference(target: Value, patch: &Value) -> Value {
        let Value::Object(patch) = patch else { return if target.is_object() { patch.clone() } else { bare(patch) } };
        let mut target = match target {
            Value::Object(target) => target,
            _ => Map::new(),
        };
        for (name, value) in patch {
            if value.is_null() {
                target.shift_remove(name);
            } else {
                let merged = reference(target.get(name).cloned().unwrap_or(Value::Null), value);
                target.insert(name.clone(), merged);
            }
        }
        Value::Object(target)
    }

    /// Returns the value without null members.
    fn bare(value: &Value) -> Value {
        match value {
            Value::Object(map) => {
                let there = map.iter().filter(|(_, value)| !value.is_null());
                there.map(|(name, value)| (name.clone(), bare(value))).collect()
            }
            Value::Array(items) => items.iter().map(bare).collect(),
            scalar => scalar.clone(),
        }
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![Just(Value::Null), any::<bool>().prop_map(Value::from), (0..3).prop_map(Value::from)];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                any_members(inner).prop_map(Value::Object),
            ]
        })
    }

    fn any_members(inner: impl Strategy<Value = Value>) -> impl Strategy<Value = Map> {
        prop::collection::vec(("[a-d]", inner), 0..4).prop_map(|members| members.into_iter().collect())
    }

    proptest! {
        #[test]
        fn random_merge_patch_matches_rfc_7386(object in any_members(any_value()), patch in any_members(any_value())) {
            let expected = reference(Value::Object(object.clone()), &Value::Object(patch.clone()));
            let mut merged = object;
            merge(&mut merged, patch);
            prop_assert_eq!(Value::Object(merged), expected);
        }
    }
}
