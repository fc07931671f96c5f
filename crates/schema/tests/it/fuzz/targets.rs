//! What is tried on any bytes: one function per target, which panics where a promise is broken. The
//! fuzzer (`fuzz/`) and its twin (`crates/schema/tests/it/fuzz.rs`) call the same functions.

use listwatch_schema::limits::FIELD_ERRORS_MAX;
use listwatch_schema::{Schema, Surroundings, check};
use serde_json::{Value, json};

/// A target, by its name.
pub(crate) type Target = (&'static str, fn(&[u8]));

/// Every target. The fuzzer has a file for each.
#[allow(dead_code, reason = "a file of the fuzzer runs one target")]
pub(crate) const ALL: [Target; 1] = [("rules", rules)];

/// A rule and, after a line's end, the value that it is asked of. Whatever the definition's check says of
/// the rule, asking it ends, and what was refused by it is refused the same way twice.
pub(crate) fn rules(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (rule, value) = text.split_once('\n').unwrap_or((&text, "{}"));
    let value: Value =
        serde_json::from_str(value).unwrap_or_else(|_| json!({"s": "abc", "l": [1, 2], "m": {"k": "v"}}));
    let schema = json!({"type": "object", "properties": {"spec": {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": true,
        "properties": {
            "s": {"type": "string", "maxLength": 64}, "i": {"type": "integer"}, "d": {"type": "number"},
            "l": {"type": "array", "maxItems": 16, "items": {"type": "integer"}},
            "m": {"type": "object", "maxProperties": 16, "additionalProperties": {"type": "string", "maxLength": 64}},
            "t": {"type": "string", "format": "date-time"}, "b": {"type": "string", "format": "byte"},
            "q": {"x-kubernetes-int-or-string": true}
        },
        "x-kubernetes-validations": [{"rule": rule}]
    }}});
    let surroundings = Surroundings { at: "", status_subresource: false, unchanged: false };
    let _ = check(&schema, surroundings);
    let Ok(schema) = Schema::parse(&schema) else { return };
    let object = json!({"spec": value});
    let errors = schema.validate(&object);
    assert!(errors.len() <= FIELD_ERRORS_MAX + 1, "{} errors", errors.len());
    assert_eq!(errors, schema.validate(&object), "a rule said something else the second time");
    let _ = schema.validate_update(&object, &object);
}
