//! Tests that the size of errors is bounded, with schemas and objects that produce as much error
//! text as possible.

use listwatch_json::{Value, json};
use listwatch_meta::FieldError;
use listwatch_schema::Schema;
use listwatch_schema::limits::{
    FIELD_ERROR_BYTES_MAX, FIELD_ERRORS_BYTES_MAX, UNKNOWN_FIELDS_BYTES_MAX, UNKNOWN_FIELDS_MAX,
};

fn bytes(errors: &[FieldError]) -> usize {
    errors.iter().map(|error| error.field.len() + error.message.len()).sum()
}

fn check(schema: &Value, object: &Value) -> Vec<FieldError> {
    let schema = Schema::parse(schema).expect("a schema");
    let errors = schema.validate(object);
    assert!(!errors.is_empty(), "the object is invalid");
    assert!(errors.iter().all(|error| error.message.len() <= FIELD_ERROR_BYTES_MAX + 3), "one error is bounded");
    let total = bytes(&errors);
    assert!(total <= FIELD_ERRORS_BYTES_MAX + 2 * FIELD_ERROR_BYTES_MAX + 6, "{total} bytes of errors");
    errors
}

#[test]
fn size_of_errors_of_large_enums_is_bounded() {
    let allowed: Vec<String> = (0..30_000).map(|number| format!("value-{number}")).collect();
    let schema = json!({"type": "object", "properties": {"list": {"type": "array",
        "items": {"type": "string", "enum": allowed}}}});
    let items: Vec<String> = (0..1_200).map(|number| format!("{number}")).collect();
    let errors = check(&schema, &json!({"list": items}));
    assert!(errors[0].message.starts_with(r#"Unsupported value: "0": supported values: "value-0", "value-1", "#));
    assert!(errors[0].message.ends_with('…'));
}

#[test]
fn errors_of_small_enums_list_all_values() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "string", "enum": ["x", "y"]}}});
    let errors = check(&schema, &json!({"a": "z"}));
    assert_eq!(errors[0].to_string(), r#"a: Unsupported value: "z": supported values: "x", "y""#);
}

#[test]
fn size_of_errors_of_large_values_is_bounded() {
    let long = "é".repeat(1 << 20);
    let schema = json!({"type": "object", "properties": {
        "a": {"type": "string", "maxLength": 1, "pattern": "^x$"},
        "b": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "minProperties": 2,
            "not": {"required": ["c"]}},
        "d": {"type": "integer"},
        "e": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
    }});
    check(&schema, &json!({"a": long, "b": {"c": long}, "d": long, "e": [long, long]}));
}

#[test]
fn size_of_errors_below_long_keys_is_bounded() {
    let key = "k".repeat(1 << 20);
    let schema = json!({"type": "object", "properties": {"map": {"type": "object",
        "additionalProperties": {"type": "array", "items": {"type": "integer"}}}}});
    check(&schema, &json!({"map": {key: vec!["x"; 2_000]}}));
}

#[test]
fn size_of_applied_defaults_is_bounded() {
    let schema = json!({"type": "object", "properties": {"list": {"type": "array", "items": {"type": "object",
        "properties": {"a": {"type": "string", "default": "x".repeat(50_000)}}}}}});
    let schema = Schema::parse(&schema).expect("a schema");
    let mut object = json!({"list": vec![json!({}); 4_000]});
    assert!(schema.default_within(&mut object, 1 << 20).is_err());
    let mut few = json!({"list": vec![json!({}); 20]});
    assert!(schema.default_within(&mut few, 20 * 50_010).is_ok());
    assert_eq!(few.pointer("/list/19/a").and_then(Value::as_str).map(str::len), Some(50_000));
}

#[test]
fn size_of_reported_unknown_field_paths_is_bounded() {
    let key = "k".repeat(1 << 20);
    let unknown: listwatch_json::Map = (0..5_000).map(|n| (format!("u{n}"), json!(1))).collect();
    let schema = json!({"type": "object", "properties": {"map": {"type": "object",
        "additionalProperties": {"type": "object"}}}});
    let schema = Schema::parse(&schema).expect("a schema");
    let mut object = json!({"map": {key: unknown.clone()}});
    let paths = schema.prune(&mut object);
    let total: usize = paths.iter().map(String::len).sum();
    assert!(
        !paths.is_empty() && total <= UNKNOWN_FIELDS_BYTES_MAX + FIELD_ERROR_BYTES_MAX + 3,
        "{total} bytes of paths"
    );
    let mut object = json!({"map": {"short": unknown}});
    assert_eq!(schema.prune(&mut object).len(), UNKNOWN_FIELDS_MAX);
}
