//! The rules that MutatingAdmissionPolicy and ValidatingAdmissionPolicy share.
//!
//! Source: `pkg/apis/admissionregistration/validation`, `pkg/apis/admissionregistration/v1/defaults.go`.

use listwatch_cel::RESERVED_WORDS;
use listwatch_json::Value;
use listwatch_meta::FieldError;
use listwatch_meta::selector::{dns_1035_label_problems, dns_subdomain_problems};
use listwatch_validation::{Errors, Object, child, given, is_same, items, objects, quoted, text};

use super::expressions::{Expressions, validate_match_conditions};
use super::match_rules::{MATCH_DEFAULTS, required_one_of, validate_match_resources, validate_mutating_operations};
use crate::defaults::Default::{If, In, Text};
use crate::defaults::Defaults;
use listwatch_printers::Printed;
use listwatch_printers::text::UNSET;
use listwatch_printers::{Cell, Column};

static SPEC_DEFAULTS: Defaults =
    Defaults(&[("failurePolicy", Text("Fail")), ("matchConstraints", If(&MATCH_DEFAULTS))]);

pub(crate) static DEFAULTS: Defaults = Defaults(&[("spec", In(&SPEC_DEFAULTS))]);

/// The failure policies: the outcome of a request if an expression fails.
const FAILURE_POLICIES: [&str; 2] = ["Fail", "Ignore"];

/// Validates failure policy, parameters, match rules and match conditions.
pub(crate) fn validate_matching(
    spec: &Object,
    old: Option<&Object>,
    mutating: bool,
    expressions: &mut Expressions,
    errors: &mut Errors,
) {
    required_one_of(spec, "failurePolicy", "spec.", &FAILURE_POLICIES, errors);
    if let Some(Value::Object(kind)) = given(spec, "paramKind") {
        validate_param_kind(kind, errors);
    }
    match given(spec, "matchConstraints") {
        Some(Value::Object(constraints)) => {
            validate_match_resources(constraints, "spec.matchConstraints.", errors);
            if items(constraints, "resourceRules").is_empty() {
                errors.push(FieldError::required("spec.matchConstraints.resourceRules", ""));
            }
            if mutating {
                validate_mutating_operations(constraints, "spec.matchConstraints.", errors);
            }
        }
        _ => errors.push(FieldError::required("spec.matchConstraints", "")),
    }
    // Upstream skips conditions that an update does not change.
    let unchanged = old.is_some_and(|old| {
        let old = child(old, "spec");
        ["paramKind", "matchConditions"].iter().all(|name| is_same(spec.get(name), old.get(name)))
    });
    if !unchanged {
        validate_match_conditions(spec, "spec.", expressions, errors);
    }
}

/// Validates `spec.paramKind` (`validateParamKind`).
fn validate_param_kind(reference: &Object, errors: &mut Errors) {
    let at = "spec.paramKind.apiVersion";
    let version = text(reference, "apiVersion");
    if version.is_empty() {
        errors.push(FieldError::required(at, ""));
    } else if version.matches('/').count() > 1 {
        let why = format!("unexpected GroupVersion string: {version}");
        errors.push(FieldError::invalid(at, quoted(version), why));
    } else {
        let (group, version_of_group) = version.split_once('/').unwrap_or(("", version));
        let wrong = if group.is_empty() { Vec::new() } else { dns_subdomain_problems(group) };
        if !wrong.is_empty() {
            errors.push(FieldError::invalid(at, quoted(group), wrong.join(",")));
        }
        let wrong = dns_1035_label_problems(version_of_group);
        if version_of_group.is_empty() {
            errors.push(FieldError::invalid(at, quoted(version), "version must be specified"));
        } else if !wrong.is_empty() {
            errors.push(FieldError::invalid(at, quoted(version_of_group), wrong.join(",")));
        }
    }
    let kind = text(reference, "kind");
    let wrong = dns_1035_label_problems(&kind.to_lowercase());
    if kind.is_empty() {
        errors.push(FieldError::required("spec.paramKind.kind", ""));
    } else if !wrong.is_empty() {
        let why = format!("may have mixed case, but should otherwise match: {}", wrong.join(","));
        errors.push(FieldError::invalid("spec.paramKind.kind", quoted(kind), why));
    }
}

/// Validates `spec.variables` (`validateVariable`).
pub(crate) fn validate_variables(spec: &Object, expressions: &mut Expressions, errors: &mut Errors) {
    for (position, variable) in objects(spec, "variables") {
        let at = format!("spec.variables[{position}].");
        let name = text(variable, "name");
        if name.trim().is_empty() {
            errors.push(FieldError::required(format!("{at}name"), "name is not specified"));
        } else if !is_identifier(name) {
            errors.push(FieldError::invalid(format!("{at}name"), quoted(name), "must be a valid CEL identifier"));
        }
        let source = text(variable, "expression");
        if source.trim().is_empty() {
            errors.push(FieldError::required(format!("{at}expression"), "expression is not specified"));
        } else {
            expressions.declare(name, source, &format!("{at}expression"), errors);
        }
    }
}

fn is_identifier(name: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    !name.starts_with(|first: char| first.is_ascii_digit()) && name.bytes().all(word) && !RESERVED_WORDS.contains(&name)
}

pub(crate) const PARAM_KIND: Column = Column::text("ParamKind", "The kind of the policy's parameters.");

/// The cells of a policy. One cell is the length of the list `rules`.
pub(crate) fn cells(policy: Printed<'_>, rules: &str) -> Vec<Cell> {
    let kind = policy.at("spec.paramKind");
    let kind = match kind.exists() {
        true => format!("{}/{}", kind.get("apiVersion").string(), kind.get("kind").string()),
        false => UNSET.to_owned(),
    };
    vec![policy.name().into(), policy.spec().get(rules).count().into(), kind.into(), policy.age().into()]
}
