//! Rules that several kinds share: label selectors, conditions, port names, enumerations
//! (`apimachinery/pkg/apis/meta/v1/validation`, `pkg/apis/core/validation`).

use listwatch_json::Value;
use listwatch_meta::FieldError;
use listwatch_meta::selector::{label_value_problems, qualified_name_problems};

use crate::names::NameRule;
use crate::{Errors, Object, given, items, names, number, object_meta, objects, quoted, text, texts};

/// Reports a nonempty string that is not one of the supported values. The field is `at` followed by
/// `name`.
pub fn one_of(object: &Object, name: &str, at: &str, supported: &[&str], errors: &mut Errors) {
    let value = text(object, name);
    if !value.is_empty() && !supported.contains(&value) {
        errors.push(FieldError::not_supported(format!("{at}{name}"), value, supported));
    }
}

/// Validates a name by a rule, unless it is empty.
pub fn named(name: &str, rule: NameRule, field: &str, errors: &mut Errors) {
    if !name.is_empty() {
        for problem in names::problems(rule, name, false) {
            errors.push(FieldError::invalid(field, quoted(name), problem));
        }
    }
}

/// Adds an error for each problem of a value.
pub fn invalid_each(problems: Vec<String>, value: &str, field: &str, errors: &mut Errors) {
    for problem in problems {
        errors.push(FieldError::invalid(field, quoted(value), problem));
    }
}

/// Checks a label or annotation key (`ValidateLabelName`, `ValidateQualifiedName`).
pub fn qualified_name(value: &str, field: &str, errors: &mut Errors) {
    invalid_each(qualified_name_problems(value), value, field, errors);
}

/// The maximum lengths of a condition's reason and message in bytes.
const CONDITION_REASON_BYTES_MAX: usize = 1024;
const CONDITION_MESSAGE_BYTES_MAX: usize = 32 * 1024;

/// Checks conditions of the common type (`metav1.Condition`, `ValidateConditions`).
pub fn conditions(status: &Object, at: &str, errors: &mut Errors) {
    let mut seen = std::collections::HashSet::new();
    for (position, condition) in objects(status, "conditions") {
        let at = format!("{at}conditions[{position}].");
        let kind = text(condition, "type");
        if !seen.insert(kind) {
            errors.push(FieldError::duplicate(format!("{at}type"), quoted(kind)));
        }
        qualified_name(kind, &format!("{at}type"), errors);
        let supported = ["False", "True", "Unknown"];
        let state = text(condition, "status");
        if !supported.contains(&state) {
            errors.push(FieldError::not_supported(format!("{at}status"), state, &supported));
        }
        if let Some(generation) = number(condition, "observedGeneration").filter(|generation| *generation < 0) {
            let why = "must be greater than or equal to zero";
            errors.push(FieldError::invalid(format!("{at}observedGeneration"), generation, why));
        }
        if given(condition, "lastTransitionTime").is_none() {
            errors.push(FieldError::required(format!("{at}lastTransitionTime"), ""));
        }
        condition_reason(text(condition, "reason"), &format!("{at}reason"), errors);
        no_longer_than(text(condition, "message"), CONDITION_MESSAGE_BYTES_MAX, &format!("{at}message"), errors);
    }
}

/// Checks the reason of a condition (`IsValidConditionReason`): required, an identifier of at most
/// 1,024 bytes.
pub fn condition_reason(reason: &str, field: &str, errors: &mut Errors) {
    if reason.is_empty() {
        errors.push(FieldError::required(field, ""));
        return;
    }
    let inside = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b',' | b':');
    let ends = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    let bytes = reason.as_bytes();
    let begins = bytes.first().is_some_and(u8::is_ascii_alphabetic);
    if !begins || !ends(bytes.last()) || !bytes.iter().all(inside) {
        let why = "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')";
        errors.push(FieldError::invalid(field, quoted(reason), why));
    }
    no_longer_than(reason, CONDITION_REASON_BYTES_MAX, field, errors);
}

/// Reports a string with more than `bytes_max` bytes.
pub fn no_longer_than(text: &str, bytes_max: usize, field: &str, errors: &mut Errors) {
    if text.len() > bytes_max {
        errors.push(FieldError::too_long(field, format_args!("may not be more than {bytes_max} bytes")));
    }
}

/// Checks the name of a port (`IsValidPortName`): up to 15 lower-case letters, digits and dashes.
pub fn port_name(name: &str, field: &str, errors: &mut Errors) {
    let mut wrong = |why: &str| errors.push(FieldError::invalid(field, quoted(name), why));
    let bytes = name.as_bytes();
    if bytes.len() > 15 {
        wrong("must be no more than 15 characters");
    }
    if !bytes.iter().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-') {
        wrong("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)");
    }
    if !bytes.iter().any(u8::is_ascii_lowercase) {
        wrong("must contain at least one letter (a-z)");
    }
    if name.contains("--") {
        wrong("must not contain consecutive hyphens");
    }
    if name.starts_with('-') || name.ends_with('-') {
        wrong("must not begin or end with a hyphen");
    }
}

/// Checks a label selector.
pub fn selector(object: &Object, name: &str, at: &str, errors: &mut Errors) {
    let Some(Value::Object(selector)) = object.get(name) else { return };
    let field = format!("{at}{name}");
    if let Some(Value::Object(labels)) = selector.get("matchLabels") {
        object_meta::validate_labels(labels, &format!("{field}.matchLabels"), errors);
    }
    for (position, requirement) in objects(selector, "matchExpressions") {
        let field = format!("{field}.matchExpressions[{position}]");
        let none = items(requirement, "values").is_empty();
        match text(requirement, "operator") {
            "In" | "NotIn" if none => {
                let why = "must be specified when `operator` is 'In' or 'NotIn'";
                errors.push(FieldError::required(format!("{field}.values"), why));
            }
            "Exists" | "DoesNotExist" if !none => {
                let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.push(FieldError::forbidden(format!("{field}.values"), why));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => {
                let why = "not a valid selector operator";
                errors.push(FieldError::invalid(format!("{field}.operator"), quoted(other), why));
            }
        }
        qualified_name(text(requirement, "key"), &format!("{field}.key"), errors);
        for (position, value) in texts(requirement, "values").enumerate() {
            let problems = label_value_problems(value);
            if !problems.is_empty() {
                invalid_each(problems, value, &format!("{field}.values[{position}]"), errors);
            }
        }
    }
}
