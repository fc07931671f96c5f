//! Tests validation, pruning and defaulting of objects. The expectations are responses of
//! kube-apiserver 1.36.

use listwatch_json::{Value, json};
use listwatch_schema::Schema;

fn schema_of(spec: &Value) -> Schema {
    Schema::parse(&json!({"type": "object", "properties": {"spec": spec}})).expect("a schema")
}

fn texts(errors: Vec<listwatch_meta::FieldError>) -> Vec<String> {
    errors.into_iter().map(|error| format!("{}: {}", error.field, error.message)).collect()
}

/// Checks `{"spec": value}` against a schema for `spec`.
#[track_caller]
fn invalid(spec: Value, value: Value, expected: &[&str]) {
    let errors = texts(schema_of(&spec).validate(&json!({"spec": value})));
    assert_eq!(errors, expected, "a kube-apiserver says this of {value} as {spec}");
}

#[track_caller]
fn valid(spec: Value, value: Value) {
    invalid(spec, value, &[]);
}

#[test]
fn value_of_another_type_is_rejected() {
    invalid(
        json!({"type": "string"}),
        json!(1),
        &["spec: Invalid value: \"integer\": spec in body must be of type string: \"integer\""],
    );
    invalid(
        json!({"type": "integer"}),
        json!("x"),
        &["spec: Invalid value: \"string\": spec in body must be of type integer: \"string\""],
    );
    invalid(
        json!({"type": "integer"}),
        json!(1.5),
        &[
            "spec: Invalid value: \"number\": spec in body must be of type integer: \"number\"",
            "<nil>: Invalid value: \"\": Checked value must be of type integer (default format) in spec",
        ],
    );
    invalid(
        json!({"type": "boolean"}),
        json!([]),
        &["spec: Invalid value: \"array\": spec in body must be of type boolean: \"array\""],
    );
    invalid(
        json!({"type": "array", "items": {"type": "string"}}),
        json!([null]),
        &["spec[0]: Invalid value: \"null\": spec[0] in body must be of type string: \"null\""],
    );
    invalid(
        json!({"x-kubernetes-int-or-string": true}),
        json!(true),
        &["spec: Invalid value: \"boolean\": spec in body must be of type integer,string: \"boolean\""],
    );
    valid(json!({"type": "string", "nullable": true}), json!(null));
    valid(json!({"type": "number"}), json!(1));
    valid(json!({"type": "integer"}), json!(1.0));
    valid(json!({"x-kubernetes-int-or-string": true}), json!("50%"));
}

#[test]
fn string_constraints_are_validated() {
    invalid(
        json!({"type": "string", "maxLength": 3}),
        json!("abcd"),
        &["spec: Too long: may not be more than 3 bytes"],
    );
    invalid(
        json!({"type": "string", "minLength": 3}),
        json!("a"),
        &["spec: Invalid value: \"a\": spec in body should be at least 3 chars long"],
    );
    invalid(
        json!({"type": "string", "pattern": "^a$"}),
        json!("b\"c"),
        &["spec: Invalid value: \"b\\\"c\": spec in body should match '^a$'"],
    );
    invalid(
        json!({"type": "string", "enum": ["a", "b"]}),
        json!("c"),
        &["spec: Unsupported value: \"c\": supported values: \"a\", \"b\""],
    );
    invalid(
        json!({"type": "string", "format": "date"}),
        json!("x"),
        &["spec: Invalid value: \"x\": spec in body must be of type date: \"x\""],
    );
    valid(json!({"type": "string", "maxLength": 3}), json!("äöü"));
    valid(json!({"type": "string", "format": "unknown"}), json!("x"));
    valid(json!({"type": "string", "pattern": "b"}), json!("abc"));
}

#[test]
fn number_constraints_are_validated() {
    invalid(
        json!({"type": "integer", "minimum": 3}),
        json!(1),
        &["spec: Invalid value: 1: spec in body should be greater than or equal to 3"],
    );
    invalid(
        json!({"type": "integer", "minimum": 3, "exclusiveMinimum": true}),
        json!(3),
        &["spec: Invalid value: 3: spec in body should be greater than 3"],
    );
    invalid(
        json!({"type": "number", "maximum": 1.5}),
        json!(1.75),
        &["spec: Invalid value: 1.75: spec in body should be less than or equal to 1.5"],
    );
    invalid(
        json!({"type": "integer", "multipleOf": 3}),
        json!(4),
        &["spec: Invalid value: 4: spec in body should be a multiple of 3"],
    );
    invalid(
        json!({"type": "number", "multipleOf": 0.1}),
        json!(0.25),
        &["spec: Invalid value: 0.25: spec in body should be a multiple of 0.1"],
    );
    invalid(
        json!({"type": "integer", "format": "int32"}),
        json!(3000000000u64),
        &["<nil>: Invalid value: \"\": Checked value must be of type integer with format int32 in spec"],
    );
    invalid(
        json!({"type": "integer", "enum": [1, 2]}),
        json!(3),
        &["spec: Unsupported value: 3: supported values: \"1\", \"2\""],
    );
    valid(json!({"type": "number", "maximum": 1.5}), json!(1));
    valid(json!({"type": "number", "multipleOf": 0.5}), json!(1.5));
}

#[test]
fn list_and_map_constraints_are_validated() {
    invalid(
        json!({"type": "array", "items": {"type": "string"}, "maxItems": 1}),
        json!(["a", "b"]),
        &["spec: Too many: 2: must have at most 1 item"],
    );
    invalid(
        json!({"type": "array", "items": {"type": "string"}, "minItems": 1}),
        json!([]),
        &["spec: Invalid value: 0: spec in body should have at least 1 items"],
    );
    invalid(
        json!({"type": "array", "items": {"type": "string"}}),
        json!(["a", 1]),
        &["spec[1]: Invalid value: \"integer\": spec[1] in body must be of type string: \"integer\""],
    );
    invalid(
        json!({"type": "object", "additionalProperties": {"type": "string"}}),
        json!({"a": 1}),
        &["spec.a: Invalid value: \"integer\": spec.a in body must be of type string: \"integer\""],
    );
    invalid(
        json!({"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 1}),
        json!({"a": "", "b": ""}),
        &["spec: Too many: 2: must have at most 1 item"],
    );
    invalid(
        json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}),
        json!({}),
        &["spec.a: Required value"],
    );
    invalid(
        json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"}),
        json!(["a", "b", "a", "a"]),
        &["spec[2]: Duplicate value: \"a\""],
    );
    let keyed = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
        "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}, "v": {"type": "integer"}}}});
    invalid(keyed.clone(), json!([{"k": "a"}, {"k": "a", "v": 1}]), &["spec[1]: Duplicate value: {\"k\":\"a\"}"]);
    valid(keyed, json!([{"k": "a"}, {"k": "b"}]));
}

#[test]
fn all_of_any_of_one_of_and_not_are_validated() {
    let either = json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]});
    invalid(
        either.clone(),
        json!({}),
        &[
            "<nil>: Invalid value: \"\": \"spec\" must validate one and only one schema (oneOf). Found none valid",
            "spec.a: Required value",
        ],
    );
    invalid(
        either.clone(),
        json!({"a": 1, "b": 1}),
        &[
            "<nil>: Invalid value: \"\": \"spec\" must validate one and only one schema (oneOf). Found 2 valid alternatives",
        ],
    );
    valid(either, json!({"a": 1}));
    invalid(
        json!({"type": "string", "anyOf": [{"pattern": "^a"}, {"maxLength": 1}]}),
        json!("bcd"),
        &[
            "<nil>: Invalid value: \"\": \"spec\" must validate at least one schema (anyOf)",
            "spec: Invalid value: \"bcd\": spec in body should match '^a'",
        ],
    );
    invalid(
        json!({"type": "string", "not": {"enum": ["a"]}}),
        json!("a"),
        &["<nil>: Invalid value: \"\": \"spec\" must not validate the schema (not)"],
    );
    invalid(
        json!({"type": "string", "allOf": [{"pattern": "^a"}]}),
        json!("b"),
        &[
            "spec: Invalid value: \"b\": spec in body should match '^a'",
            "<nil>: Invalid value: \"\": \"spec\" must validate all the schemas (allOf). None validated",
        ],
    );
}

#[test]
fn unchanged_invalid_value_is_accepted_on_update() {
    let spec = json!({"type": "object", "properties": {
        "a": {"type": "string", "maxLength": 1},
        "list": {"type": "array", "items": {"type": "string", "maxLength": 1}},
        "keyed": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}, "v": {"type": "integer", "maximum": 1}}}},
    }});
    let check = |old: Value, new: Value, expected: &[&str]| {
        let errors = texts(schema_of(&spec).validate_update(&json!({"spec": new}), &json!({"spec": old})));
        assert_eq!(errors, expected, "a kube-apiserver says this of {new} after {old}");
    };
    check(json!({"a": "xx"}), json!({"a": "xx"}), &[]);
    check(json!({"a": "xx"}), json!({"a": "yy"}), &["spec.a: Too long: may not be more than 1 byte"]);
    check(json!({"list": ["xx"]}), json!({"list": ["xx"]}), &[]);
    check(
        json!({"list": ["xx"]}),
        json!({"list": ["xx", "y"]}),
        &["spec.list[0]: Too long: may not be more than 1 byte"],
    );
    check(json!({"keyed": [{"k": "a", "v": 5}]}), json!({"keyed": [{"k": "b"}, {"k": "a", "v": 5}]}), &[]);
    check(
        json!({"keyed": [{"k": "a", "v": 5}]}),
        json!({"keyed": [{"k": "a", "v": 6}]}),
        &["spec.keyed[0].v: Invalid value: 6: spec.keyed[0].v in body should be less than or equal to 1"],
    );
}

#[test]
fn unknown_fields_are_pruned() {
    #[track_caller]
    fn check(spec: Value, value: Value, expected: Value, unknown: &[&str]) {
        let mut object = json!({"apiVersion": "g/v1", "kind": "A", "metadata": {"name": "a"}, "spec": value});
        let found = schema_of(&spec).prune(&mut object);
        assert_eq!(
            (&object["spec"], found.iter().map(String::as_str).collect::<Vec<_>>()),
            (&expected, unknown.to_vec())
        );
        assert_eq!(object["metadata"]["name"], "a", "metadata is not pruned");
    }
    let known = json!({"type": "object", "properties": {"a": {"type": "string"}, "l": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "string"}}}}}});
    check(known.clone(), json!({"a": "1", "b": 2}), json!({"a": "1"}), &["spec.b"]);
    check(known, json!({"l": [{"x": "", "y": {"z": 1}}]}), json!({"l": [{"x": ""}]}), &["spec.l[0].y"]);
    let preserving = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"a": {"type": "object", "properties": {"x": {"type": "string"}}}}});
    check(preserving, json!({"b": {"c": 1}, "a": {"y": 1}}), json!({"b": {"c": 1}, "a": {}}), &["spec.a.y"]);
    check(
        json!({"type": "object", "additionalProperties": {"type": "string"}}),
        json!({"k": "v"}),
        json!({"k": "v"}),
        &[],
    );
    check(
        json!({"type": "object", "additionalProperties": true}),
        json!({"k": {"x": 1}}),
        json!({"k": {}}),
        &["spec.k.x"],
    );
    let embedded =
        json!({"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"spec": {"type": "object"}}});
    check(
        embedded,
        json!({"kind": "A", "metadata": {"foo": 1}, "x": 1, "spec": {"y": 1}}),
        json!({"kind": "A", "metadata": {"foo": 1}, "spec": {}}),
        &["spec.spec.y", "spec.x"],
    );
}

#[test]
fn missing_fields_get_their_defaults() {
    #[track_caller]
    fn check(spec: Value, value: Value, expected: Value) {
        let schema = schema_of(&spec);
        let mut object = json!({"spec": value});
        schema.prune_nulls(&mut object);
        schema.default(&mut object);
        assert_eq!(object, json!({"spec": expected}));
    }
    let spec = json!({"type": "object", "properties": {
        "a": {"type": "integer", "default": 1},
        "n": {"type": "integer", "default": 1, "nullable": true},
        "p": {"type": "integer"},
        "o": {"type": "object", "properties": {"x": {"type": "string", "default": "y"}}},
        "d": {"type": "object", "default": {}, "properties": {"x": {"type": "string", "default": "y"}}},
    }});
    check(spec.clone(), json!({}), json!({"a": 1, "n": 1, "d": {"x": "y"}}));
    check(
        spec.clone(),
        json!({"a": null, "n": null, "p": null, "d": {"x": "z"}}),
        json!({"a": 1, "n": null, "d": {"x": "z"}}),
    );
    check(spec, json!({"a": 2, "n": 2, "o": {}, "d": {}}), json!({"a": 2, "n": 2, "o": {"x": "y"}, "d": {"x": "y"}}));
    let list =
        json!({"type": "array", "items": {"type": "object", "properties": {"x": {"type": "integer", "default": 0}}}});
    check(list, json!([{}, {"x": 1}]), json!([{"x": 0}, {"x": 1}]));
    // A default value is stored as Kubernetes stores it: as an integer.
    check(
        json!({"type": "object", "additionalProperties": {"type": "integer", "default": 7.0}}),
        json!({"a": null, "b": 1}),
        json!({"a": 7, "b": 1}),
    );
}

#[test]
fn embedded_metadata_loses_unknown_fields_and_rejects_wrong_types() {
    let schema = schema_of(
        &json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}),
    );
    let mut object = json!({"spec": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "foo": 1, "creationTimestamp": null, "labels": {}}}});
    let unknown = schema.coerce_embedded(&mut object, false).expect("good metadata");
    assert_eq!(unknown, ["spec.metadata.foo"]);
    assert_eq!(object["spec"]["metadata"], json!({"name": "a"}));
    let mut object = json!({"spec": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": 1}}});
    let error = schema.coerce_embedded(&mut object, false).expect_err("a name is text");
    assert_eq!(error.field, "spec.metadata");
    assert!(
        error.message.ends_with("json: cannot unmarshal number into Go struct field ObjectMeta.name of type string"),
        "{}",
        error.message
    );
    let errors = texts(schema.validate(&json!({"spec": {"kind": "pod_"}})));
    assert_eq!(errors[0], "spec.apiVersion: Required value");
    assert!(errors[1].starts_with("spec.kind: Invalid value: \"pod_\": may have mixed case"), "{}", errors[1]);
}
