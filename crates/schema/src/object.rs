//! Validates an object in the order of the checks of Kubernetes 1.36 (apiextensions-apiserver
//! `pkg/registry/customresource/strategy.go`, `validator.go`).

use listwatch_json::Value;
use listwatch_meta::FieldError;

use crate::field_errors;
use crate::path::Path;
use crate::schema::Schema;
use crate::{embedded, rules, unique, validate};

/// The result of the validation of an update.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UpdateReport {
    /// The reasons why the update is rejected.
    pub errors: Vec<FieldError>,
    /// Violated rules of unchanged parts, which a client should be warned of: at most
    /// [`FIELD_ERRORS_MAX`](crate::limits::FIELD_ERRORS_MAX).
    pub tolerated: Vec<FieldError>,
}

impl Schema {
    /// Validates a new object. The server checks the object's own metadata, `kind` and
    /// `apiVersion`.
    pub fn validate(&self, object: &Value) -> Vec<FieldError> {
        let mut errors = validate::validate(object, &self.root, None, &Path::NIL);
        errors.extend(embedded::validate(object, &self.root, false, &Path::NIL));
        errors.extend(unique::validate(object, &self.root, &Path::NIL));
        self.validate_rules(object, None, errors).errors
    }

    /// Validates an object that replaces `old`. Errors in unchanged parts are tolerated.
    pub fn validate_update(&self, object: &Value, old: &Value) -> Vec<FieldError> {
        self.check_update(object, old).errors
    }

    /// Validates as [`Schema::validate_update`], and also returns the tolerated violations of rules.
    pub fn check_update(&self, object: &Value, old: &Value) -> UpdateReport {
        let mut errors = validate::validate(object, &self.root, Some(old), &Path::NIL);
        errors.extend(embedded::validate(object, &self.root, false, &Path::NIL));
        self.validate_unique_update(object, old, &mut errors);
        self.validate_rules(object, Some(old), errors)
    }

    /// Validates a status update. The errors concern the status, and the rules and lists of the
    /// whole object.
    pub fn check_status_update(&self, object: &Value, old: &Value) -> UpdateReport {
        let mut errors = Vec::new();
        if let (Some(status), Some(node)) = (object.get("status"), self.root.property("status")) {
            let old = old.get("status").unwrap_or(&Value::Null);
            errors.extend(validate::validate(status, node, Some(old), &Path::root("status")));
        }
        self.validate_unique_update(object, old, &mut errors);
        self.validate_rules(object, Some(old), errors)
    }

    /// Checks the uniqueness of list items. Duplicates that the old object has are tolerated.
    fn validate_unique_update(&self, object: &Value, old: &Value, errors: &mut Vec<FieldError>) {
        if unique::validate(old, &self.root, &Path::NIL).is_empty() {
            errors.extend(unique::validate(object, &self.root, &Path::NIL));
        }
    }

    /// Adds the errors of the rules to these errors.
    fn validate_rules(&self, object: &Value, old: Option<&Value>, mut errors: Vec<FieldError>) -> UpdateReport {
        let mut tolerated = Vec::new();
        if !self.root.has_rules {
            return UpdateReport { errors, tolerated };
        }
        if errors.iter().any(field_errors::is_blocking) {
            let detail = concat!(
                "some validation rules were not checked because the object was invalid; ",
                "correct the existing errors to complete validation"
            );
            errors.push(field_errors::invalid(Path::NIL, &Value::Null, detail));
        } else {
            let found = rules::validate(object, &self.root, old, true, &Path::NIL);
            errors.extend(found.errors);
            tolerated = found.tolerated;
        }
        UpdateReport { errors, tolerated }
    }
}
