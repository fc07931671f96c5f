//! The condition `NonStructuralSchema`, which reports violations of the structural rules in a definition's schemas.
//!
//! Source: `apiextensions-apiserver/pkg/controller/nonstructuralschema/nonstructuralschema_controller.go`.

use std::collections::HashSet;

use listwatch_json::{Map, Value};
use listwatch_meta::FieldError;

use crate::definition::Condition;
use crate::status::condition;

/// The type of the condition.
pub const NON_STRUCTURAL_SCHEMA: &str = "NonStructuralSchema";

/// Maximum size of the message of the condition, in bytes. The message ends with the number of the violations that do
/// not fit. kube-apiserver has no limit.
const MESSAGE_BYTES_MAX: usize = 32 * 1024;

/// Checks all schemas of a definition. Returns the condition for its status; `None` if the schemas are structural and
/// the definition does not preserve unknown fields.
///
/// This function compiles each regular expression of the schemas, so it can take seconds for a large definition.
pub fn non_structural_condition(definition: &Map) -> Option<Condition> {
    let spec = definition.get("spec")?;
    let mut violations = Vec::new();
    if spec.get("preserveUnknownFields") == Some(&Value::Bool(true)) {
        violations.push(FieldError::invalid("spec.preserveUnknownFields", true, "must be false"));
    }
    let versions = spec.get("versions").and_then(Value::as_array);
    for (index, version) in versions.into_iter().flatten().enumerate() {
        let schema = version.get("schema").and_then(|schema| schema.get("openAPIV3Schema"));
        let Some(schema) = schema.filter(|schema| !schema.is_null()) else { continue };
        match listwatch_schema::structural_violations(schema, &format!("spec.versions[{index}].schema")) {
            Ok(found) => violations.extend(found),
            Err(why) => {
                let name = version.get("name").and_then(Value::as_str).unwrap_or_default();
                return Some(Condition {
                    kind: NON_STRUCTURAL_SCHEMA.to_owned(),
                    status: "Unknown".to_owned(),
                    reason: "StructuralError".to_owned(),
                    message: format!("failed to check validation schema for version {name}: {why}"),
                });
            }
        }
    }
    (!violations.is_empty()).then(|| condition(NON_STRUCTURAL_SCHEMA, true, "Violations", message(&violations)))
}

/// Joins the violations as Go joins errors (`ErrorList.ToAggregate`): each once, and in brackets if there are several.
fn message(violations: &[FieldError]) -> String {
    let mut seen = HashSet::new();
    let mut texts = violations.iter().map(ToString::to_string).filter(|text| seen.insert(text.clone()));
    let mut message = texts.next().unwrap_or_default();
    let (mut is_single, mut omitted) = (true, 0_usize);
    for text in texts {
        is_single = false;
        // A later, shorter violation must not hide that an earlier one is missing.
        if omitted > 0 || message.len() + text.len() > MESSAGE_BYTES_MAX {
            omitted += 1;
            continue;
        }
        message.push_str(", ");
        message.push_str(&text);
    }
    match (is_single, omitted) {
        (true, _) => message,
        (false, 0) => format!("[{message}]"),
        (false, omitted) => format!("[{message}, and {omitted} more]"),
    }
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;

    fn found(preserve: Value, schemas: &[Value]) -> Option<(String, String, String)> {
        let version = |(index, schema): (usize, &Value)| json!({"name": format!("v{index}"), "schema": {"openAPIV3Schema": schema}});
        let versions: Vec<Value> = schemas.iter().enumerate().map(version).collect();
        let mut definition = Map::new();
        definition.insert("spec", json!({"preserveUnknownFields": preserve, "versions": versions}));
        let Condition { kind, status, reason, message } = non_structural_condition(&definition)?;
        assert_eq!(kind, "NonStructuralSchema");
        Some((status, reason, message))
    }

    fn violations(message: &str) -> Option<(String, String, String)> {
        Some(("True".to_owned(), "Violations".to_owned(), message.to_owned()))
    }

    #[test]
    fn condition_reports_the_flag_and_the_violations_of_all_versions() {
        let structural = json!({"type": "object"});
        assert_eq!(found(json!(false), std::slice::from_ref(&structural)), None);
        assert_eq!(found(Value::Null, &[Value::Null]), None, "a version without a schema");
        let preserves = "spec.preserveUnknownFields: Invalid value: true: must be false";
        assert_eq!(found(json!(true), std::slice::from_ref(&structural)), violations(preserves));
        let second = "spec.versions[1].schema.openAPIV3Schema";
        let untyped = json!({"type": "object", "properties": {"a": {}}});
        let required = "Required value: must not be empty for specified object fields";
        assert_eq!(
            found(json!(true), &[structural, untyped]),
            violations(&format!("[{preserves}, {second}.properties[a].type: {required}]"))
        );
    }

    #[test]
    fn schema_that_cannot_be_converted_makes_the_condition_unknown() {
        let expected = (
            "Unknown".to_owned(),
            "StructuralError".to_owned(),
            "failed to check validation schema for version v0: OpenAPIV3Schema 'definitions' is not supported"
                .to_owned(),
        );
        assert_eq!(found(json!(true), &[json!({"type": "object", "definitions": {"a": {}}})]), Some(expected));
    }

    #[test]
    fn long_message_ends_with_the_number_of_omitted_violations() {
        let properties: Map = (0..1_000).map(|index| (format!("p{index}"), json!({}))).collect();
        let (_, _, message) = found(json!(true), &[json!({"type": "object", "properties": properties})]).unwrap();
        assert!(message.len() < MESSAGE_BYTES_MAX + 100, "{} bytes", message.len());
        let (shown, omitted) = message.rsplit_once(", and ").unwrap();
        let omitted: usize = omitted.strip_suffix(" more]").unwrap().parse().unwrap();
        assert_eq!(shown.matches(".type: Required value").count() + omitted, 1_000);
    }
}
