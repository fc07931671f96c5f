//! Tests the check of schemas of definitions. The expectations are responses of kube-apiserver
//! 1.36.

use listwatch_json::{Value, json};
use listwatch_schema::{CheckContext, Requirements, check};

fn context(requirements: Requirements) -> CheckContext<'static> {
    CheckContext { at: "spec.validation", status_subresource: false, unchanged: false, requirements }
}

fn errors_of(schema: &Value) -> Vec<String> {
    errors_with(schema, Requirements::ALL)
}

fn errors_with(schema: &Value, requirements: Requirements) -> Vec<String> {
    let errors = check(schema, context(requirements)).expect("a schema").errors;
    errors.into_iter().map(|error| format!("{}: {}", error.field, error.message)).collect()
}

/// Checks the schema of the property `spec`.
#[track_caller]
fn rejected(spec: Value, expected: &[&str]) {
    let schema = json!({"type": "object", "properties": {"spec": spec}});
    let prefix = "spec.validation.openAPIV3Schema.properties[spec]";
    let expected: Vec<String> = expected.iter().map(|text| format!("{prefix}{text}")).collect();
    assert_eq!(
        errors_of(&schema),
        expected,
        "a kube-apiserver says this of {spec}",
        spec = schema["properties"]["spec"]
    );
}

#[track_caller]
fn rejected_at_root(schema: Value, expected: &[&str]) {
    let expected: Vec<String> = expected.iter().map(|text| format!("spec.validation.openAPIV3Schema{text}")).collect();
    assert_eq!(errors_of(&schema), expected, "a kube-apiserver says this of {schema}");
}

#[track_caller]
fn accepted(spec: Value) {
    rejected(spec, &[]);
}

#[test]
fn schema_without_type_is_rejected() {
    rejected(json!({}), &[".type: Required value: must not be empty for specified object fields"]);
    rejected(
        json!({"type": "foo"}),
        &[
            ".type: Unsupported value: \"foo\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\"",
        ],
    );
    rejected(json!({"type": "array"}), &[".items: Required value: must be specified"]);
    rejected(
        json!({"type": "array", "items": {}}),
        &[".items.type: Required value: must not be empty for specified array items"],
    );
    rejected_at_root(json!({}), &[".type: Required value: must not be empty at the root"]);
    rejected_at_root(json!({"type": "string"}), &[".type: Invalid value: \"string\": must be object at the root"]);
    accepted(json!({"x-kubernetes-preserve-unknown-fields": true}));
    accepted(json!({"x-kubernetes-int-or-string": true}));
    accepted(
        json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}], "pattern": "^a"}),
    );
    accepted(
        json!({"x-kubernetes-int-or-string": true, "allOf": [{"anyOf": [{"type": "integer"}, {"type": "string"}]}, {"minimum": 1}]}),
    );
}

#[test]
fn logical_combinations_may_only_restrict_the_schema() {
    rejected(
        json!({"type": "string", "anyOf": [{"type": "string", "description": "x"}]}),
        &[
            ".anyOf[0].description: Forbidden: must be empty to be structural",
            ".anyOf[0].type: Forbidden: must be empty to be structural",
        ],
    );
    rejected_at_root(
        json!({"type": "object", "not": {"properties": {"a": {"minimum": 1}}}}),
        &[".properties[a]: Required value: because it is defined in spec.validation.openAPIV3Schema.not.properties[a]"],
    );
    // Kubernetes requires this at the root only.
    accepted(json!({"type": "object", "not": {"properties": {"a": {"minimum": 1}}}}));
    rejected(
        json!({"type": "object", "properties": {"a": {"type": "integer"}}, "oneOf": [{"properties": {"a": {"default": 1, "nullable": true}}}]}),
        &[
            ".oneOf[0].properties[a].default: Forbidden: must be undefined to be structural",
            ".oneOf[0].properties[a].nullable: Forbidden: must be false to be structural",
        ],
    );
    accepted(
        json!({"type": "object", "properties": {"a": {"type": "integer"}}, "oneOf": [{"required": ["a"]}, {"properties": {"a": {"minimum": 3}}}]}),
    );
}

#[test]
fn unsupported_schema_keyword_is_rejected() {
    rejected(
        json!({"type": "object", "uniqueItems": true}),
        &[".uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic"],
    );
    rejected(json!({"type": "object", "$ref": "#/x"}), &[".$ref: Forbidden: $ref is not supported"]);
    rejected(
        json!({"type": "object", "patternProperties": {"a": {"type": "string"}}}),
        &[".patternProperties: Forbidden: patternProperties is not supported"],
    );
    rejected(
        json!({"type": "array", "items": [{"type": "string"}]}),
        &[".items: Forbidden: items must be a schema object and not an array"],
    );
    rejected(
        json!({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "string"}}),
        &[".additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive"],
    );
    rejected(
        json!({"type": "object", "x-kubernetes-preserve-unknown-fields": false}),
        &[".x-kubernetes-preserve-unknown-fields: Invalid value: false: must be true or undefined"],
    );
    rejected_at_root(
        json!({"type": "object", "additionalProperties": {"type": "string"}}),
        &[".additionalProperties: Forbidden: must not be used at the root"],
    );
}

#[test]
fn pattern_that_go_rejects_is_rejected() {
    let bad = |pattern: &str, why: &str| {
        let expected = format!(
            ".pattern: Invalid value: {pattern:?}: must be a valid regular expression, but isn't: error parsing regexp: {why}"
        );
        rejected(json!({"type": "string", "pattern": pattern}), &[&expected]);
    };
    bad("[z-a]", "invalid character class range: `z-a`");
    bad("a**", "invalid nested repetition operator: `**`");
    bad("\\8", "invalid escape sequence: `\\8`");
    bad("\\p{Foo}", "invalid character class range: `\\p{Foo}`");
    bad("*a", "missing argument to repetition operator: `*`");
    bad("a)", "unexpected ): `a)`");
    bad("x[a", "missing closing ]: `[a`");
    accepted(json!({"type": "string", "pattern": "(?i)^a*?b+?[*+?]+\\*+(?:c)?$"}));
    rejected(
        json!({"type": "string", "pattern": "(?=a)"}),
        &[
            ".pattern: Invalid value: \"(?=a)\": must be a valid regular expression, but isn't: error parsing regexp: invalid or unsupported Perl syntax: `(?=`",
        ],
    );
    rejected(
        json!({"type": "string", "pattern": "a{2000}"}),
        &[
            ".pattern: Invalid value: \"a{2000}\": must be a valid regular expression, but isn't: error parsing regexp: invalid repeat count: `{2000}`",
        ],
    );
    rejected(
        json!({"type": "string", "pattern": "(a"}),
        &[
            ".pattern: Invalid value: \"(a\": must be a valid regular expression, but isn't: error parsing regexp: missing closing ): `(a`",
        ],
    );
    accepted(json!({"type": "string", "pattern": "^[a-z]{1,63}$"}));
}

#[test]
fn list_type_and_map_keys_are_validated() {
    rejected(
        json!({"type": "object", "x-kubernetes-list-type": "set"}),
        &[".type: Invalid value: \"object\": must be array if x-kubernetes-list-type is specified"],
    );
    rejected(
        json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "foo"}),
        &[".x-kubernetes-list-type: Unsupported value: \"foo\": supported values: \"atomic\", \"set\", \"map\""],
    );
    rejected(
        json!({"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"]}),
        &[".x-kubernetes-list-map-keys: Invalid value: [\"a\"]: entries must all be names of item properties"],
    );
    rejected(
        json!({"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"]}),
        &[
            ".items.properties[a].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
        ],
    );
    rejected(
        json!({"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "set"}),
        &[
            ".items.x-kubernetes-map-type: Invalid value: null: must be atomic as item of a list with x-kubernetes-list-type=set",
        ],
    );
    rejected(
        json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-map-keys": ["a"]}),
        &[".x-kubernetes-list-type: Required value: must be map if x-kubernetes-list-map-keys is non-empty"],
    );
    accepted(
        json!({"type": "array", "items": {"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}}, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"]}),
    );
    accepted(json!({"type": "object", "x-kubernetes-map-type": "atomic"}));
}

#[test]
fn metadata_schema_allows_only_name_restrictions() {
    let metadata = |schema: Value| json!({"type": "object", "properties": {"metadata": schema}});
    rejected_at_root(
        metadata(json!({"type": "object", "properties": {"labels": {"type": "object"}}})),
        &[
            ".properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified",
        ],
    );
    rejected_at_root(
        metadata(json!({"type": "string"})),
        &[".properties[metadata].type: Invalid value: \"string\": must be object"],
    );
    rejected_at_root(
        metadata(json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 10}}})),
        &[],
    );
    rejected_at_root(metadata(json!({"type": "object"})), &[]);
}

#[test]
fn embedded_resource_schema_is_validated() {
    rejected(
        json!({"type": "object", "x-kubernetes-embedded-resource": true}),
        &[
            ".properties: Required value: must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
        ],
    );
    rejected(
        json!({"x-kubernetes-int-or-string": true, "x-kubernetes-preserve-unknown-fields": true}),
        &[
            ".x-kubernetes-preserve-unknown-fields: Invalid value: true: must be false if x-kubernetes-int-or-string is true",
        ],
    );
    accepted(
        json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}),
    );
}

#[test]
fn invalid_or_unpruned_default_is_rejected() {
    rejected(
        json!({"type": "string", "default": 1}),
        &[".default: Invalid value: \"integer\":  in body must be of type string: \"integer\""],
    );
    rejected(
        json!({"type": "object", "default": {"a": 1}}),
        &[".default: Invalid value: {\"a\":1}: must not have unknown fields"],
    );
    rejected(
        json!({"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "default": {"a": 1}}),
        &[".default.a: Invalid value: 1: a in body should be greater than or equal to 3"],
    );
    rejected_at_root(
        json!({"type": "object", "properties": {"kind": {"type": "string", "default": "A"}}}),
        &[".properties[kind].default: Forbidden: must not be set in top-level kind"],
    );
    accepted(json!({"type": "object", "properties": {"a": {"type": "integer"}}, "default": {"a": 1}}));
}

#[test]
fn schema_with_wrong_type_depth_or_unknown_fields_is_reported() {
    let context = context(Requirements::ALL);
    let error = check(&json!({"type": 3}), context).expect_err("a type is text");
    assert_eq!(
        error.to_string(),
        "json: cannot unmarshal number into Go struct field JSONSchemaProps.type of type string"
    );
    let mut deep = json!({"type": "string"});
    for _ in 0..200 {
        deep = json!({"type": "array", "items": deep});
    }
    check(&deep, context).expect_err("a schema has a bounded depth");
    let checked =
        check(&json!({"type": "object", "foo": 1, "properties": {"a": {"type": "string", "bar": 1}}}), context);
    assert_eq!(checked.expect("a schema").unknown_fields, ["foo", "properties.a.bar"]);
}

#[test]
fn rule_that_is_not_required_reports_no_error() {
    let accepted = |spec: Value, requirements: Requirements| {
        let schema = json!({"type": "object", "properties": {"spec": spec}});
        assert_ne!(errors_of(&schema), [""; 0], "a new definition");
        assert_eq!(errors_with(&schema, requirements), [""; 0], "{schema}");
    };
    const ALL: Requirements = Requirements::ALL;
    let not_structural = Requirements { structural: false, ..ALL };
    accepted(json!({}), not_structural);
    accepted(json!({"type": "string", "pattern": "+"}), not_structural);
    accepted(json!({"type": "file"}), Requirements { valid_types: false, ..ALL });
    accepted(
        json!({"type": "object", "properties": {"a": {"type": "string"}}, "default": {"b": 1}}),
        Requirements { pruned_defaults: false, ..ALL },
    );
    accepted(
        json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "object"}}),
        Requirements { atomic_set_items: false, ..ALL },
    );
    accepted(
        json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "object", "properties": {"k": {"type": "string"}}}}),
        Requirements { list_map_keys: false, ..ALL },
    );
    // Some rules apply to every schema.
    let schema = json!({"type": "object", "properties": {"a": {"uniqueItems": true}}});
    let path = "spec.validation.openAPIV3Schema.properties[a].uniqueItems";
    let error =
        format!("{path}: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic");
    assert_eq!(errors_with(&schema, not_structural), [error]);
}
