//! The rules of `openAPIV3Schema` ([`listwatch_schema`]), for validation of definitions.

use listwatch_meta::FieldError;
use listwatch_schema::Surroundings;
use serde_json::Value;

/// What is wrong with a version's `openAPIV3Schema`, which stands at `path` of a definition.
/// `status`: the version has a status subresource. `unchanged`: it is as it was before the update.
pub(crate) fn check(schema: &Value, path: &str, status: bool, unchanged: bool) -> Vec<FieldError> {
    let surroundings = Surroundings { at: path, status_subresource: status, unchanged };
    match listwatch_schema::check(schema, surroundings) {
        Ok(checked) => checked.errors,
        Err(error) => vec![FieldError::invalid(format!("{path}.openAPIV3Schema"), "\"\"", error)],
    }
}
