//! The status that FlowSchema and PriorityLevelConfiguration share.
//!
//! Source: `ValidateFlowSchemaStatus` and `ValidatePriorityLevelConfigurationStatus` in
//! `pkg/apis/flowcontrol/validation`.

use std::collections::HashSet;

use listwatch_meta::FieldError;
use listwatch_validation::{Errors, Object, child, objects, quoted, text};

/// Validates the conditions: each has a type, and no type repeats.
pub(crate) fn validate_status(object: &Object, _: Option<&Object>, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for (position, condition) in objects(child(object, "status"), "conditions") {
        let (field, kind) = (format!("status.conditions[{position}].type"), text(condition, "type"));
        if !seen.insert(kind) {
            errors.push(FieldError::duplicate(&field, quoted(kind)));
        }
        if kind.is_empty() {
            errors.push(FieldError::required(field, ""));
        }
    }
}
