//! The fuzz targets: functions that accept any bytes and panic on a violated guarantee. The fuzzer
//! (`fuzz/`) and `crates/schema/tests/it/fuzz.rs` call them.

use listwatch_json::{Value, json};
use listwatch_schema::limits::FIELD_ERRORS_MAX;
use listwatch_schema::{CheckContext, Requirements, Schema, check};

/// The name and function of a target.
pub(crate) type Target = (&'static str, fn(&[u8]));

/// All targets. Each has a file in the fuzzer's folder.
#[allow(dead_code, reason = "a file of the fuzzer runs one target")]
pub(crate) const ALL: [Target; 1] = [("rules", rules)];

/// The input is a rule and, after a newline, a value. The evaluation of any rule must end, and
/// repeating it must give the same result.
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
    let context = CheckContext { at: "", status_subresource: false, unchanged: false, requirements: Requirements::ALL };
    let _ = check(&schema, context);
    let Ok(schema) = Schema::parse(&schema) else { return };
    let object = json!({"spec": value});
    let errors = schema.validate(&object);
    assert!(errors.len() <= FIELD_ERRORS_MAX + 1, "{} errors", errors.len());
    assert_eq!(errors, schema.validate(&object), "a rule said something else the second time");
    let _ = schema.validate_update(&object, &object);
}
