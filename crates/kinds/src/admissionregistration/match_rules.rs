//! The requests that policies, bindings and webhooks match.
//!
//! Source: `validateMatchResources` and `validateRuleWithOperations` in
//! `pkg/apis/admissionregistration/validation`, `pkg/apis/admissionregistration/v1/defaults.go`.

use std::collections::HashSet;

use listwatch_meta::FieldError;
use listwatch_validation::names::{self, NameRule};
use listwatch_validation::{
    Errors, Object, given, invalid_each, items, objects, one_of, quoted, selector, shown_list, text, texts,
};

use crate::Kind;
use crate::defaults::Default::{Each, Empty, Text};
use crate::defaults::Defaults;

pub(crate) static RULE_DEFAULTS: Defaults = Defaults(&[("scope", Text("*"))]);

pub(crate) static MATCH_DEFAULTS: Defaults = Defaults(&[
    ("matchPolicy", Text("Equivalent")),
    ("namespaceSelector", Empty),
    ("objectSelector", Empty),
    ("resourceRules", Each(&RULE_DEFAULTS)),
    ("excludeResourceRules", Each(&RULE_DEFAULTS)),
]);

/// Creates a kind of this group with the properties that all its kinds share.
pub(super) const fn admission_kind(plural: &'static str, kind: &'static str) -> Kind {
    Kind {
        unconditional_update: false,
        generation: true,
        categories: &["api-extensions"],
        warnings: listwatch_kind_warnings::small::of_admission_kind,
        ..Kind::cluster("admissionregistration.k8s.io", "v1", plural, kind)
    }
}

/// The match policies of rules: whether they match requests for other versions of a resource.
const MATCH_POLICIES: [&str; 2] = ["Equivalent", "Exact"];

/// The operations that a rule can match.
const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];

/// The operations that a rule of a mutating policy can match.
const MUTATING_OPERATIONS: [&str; 4] = ["*", "CONNECT", "CREATE", "UPDATE"];

/// Validates the match rules of a policy or a binding (`validateMatchResources`).
pub(crate) fn validate_match_resources(resources: &Object, at: &str, errors: &mut Errors) {
    required_one_of(resources, "matchPolicy", at, &MATCH_POLICIES, errors);
    for name in ["namespaceSelector", "objectSelector"] {
        if given(resources, name).is_none() {
            errors.push(FieldError::required(format!("{at}{name}"), ""));
        }
        selector(resources, name, at, errors);
    }
    for list in ["resourceRules", "excludeResourceRules"] {
        for (position, rule) in objects(resources, list) {
            let at = format!("{at}{list}[{position}].");
            let mut seen = HashSet::new();
            for (position, name) in texts(rule, "resourceNames").enumerate() {
                let field = format!("{at}resourceNames[{position}]");
                invalid_each(names::problems(NameRule::PathSegment, name, false), name, &field, errors);
                if !seen.insert(name) {
                    errors.push(FieldError::duplicate(field, quoted(name)));
                }
            }
            validate_rule(rule, &at, errors);
        }
    }
}

/// Rejects the operation `DELETE` in a mutating policy or its binding.
pub(crate) fn validate_mutating_operations(resources: &Object, at: &str, errors: &mut Errors) {
    let rules = objects(resources, "resourceRules");
    for operation in rules.flat_map(|(_, rule)| texts(rule, "operations")) {
        if !MUTATING_OPERATIONS.contains(&operation) {
            let field = format!("{at}resourceRules.operations");
            errors.push(FieldError::not_supported(field, operation, &MUTATING_OPERATIONS));
        }
    }
}

/// Validates the requests that a rule matches (`validateRuleWithOperations`).
pub(crate) fn validate_rule(rule: &Object, at: &str, errors: &mut Errors) {
    let has_wildcard = |list: &str| items(rule, list).len() > 1 && texts(rule, list).any(|item| item == "*");
    let crowded = |list: &str, others: &str, errors: &mut Errors| {
        let why = format!("if '*' is present, must not specify other {others}");
        errors.push(FieldError::invalid(format!("{at}{list}"), shown_list(rule, list), why));
    };
    if items(rule, "operations").is_empty() {
        errors.push(FieldError::required(format!("{at}operations"), ""));
    }
    if has_wildcard("operations") {
        crowded("operations", "operations", errors);
    }
    for (position, operation) in texts(rule, "operations").enumerate() {
        if !OPERATIONS.contains(&operation) {
            errors.push(FieldError::not_supported(format!("{at}operations[{position}]"), operation, &OPERATIONS));
        }
    }
    for (list, others) in [("apiGroups", "API groups"), ("apiVersions", "API versions")] {
        if items(rule, list).is_empty() {
            errors.push(FieldError::required(format!("{at}{list}"), ""));
        }
        if has_wildcard(list) {
            crowded(list, others, errors);
        }
    }
    for (position, version) in texts(rule, "apiVersions").enumerate() {
        if version.is_empty() {
            errors.push(FieldError::required(format!("{at}apiVersions[{position}]"), ""));
        }
    }
    validate_resources(rule, at, errors);
    one_of(rule, "scope", at, &["*", "Cluster", "Namespaced"], errors);
}

/// Validates the resources of a rule. A wildcard excludes the resources that it matches (`validateResources`).
fn validate_resources(rule: &Object, at: &str, errors: &mut Errors) {
    let field = format!("{at}resources");
    if items(rule, "resources").is_empty() {
        errors.push(FieldError::required(&field, ""));
    }
    let (mut all_of, mut in_all) = (HashSet::new(), HashSet::new());
    let (mut double, mut single, mut plain) = (false, false, false);
    for (position, resource) in texts(rule, "resources").enumerate() {
        if resource.is_empty() {
            errors.push(FieldError::required(format!("{field}[{position}]"), ""));
            continue;
        }
        double |= resource == "*/*";
        single |= resource == "*";
        let Some((of, sub)) = resource.split_once('/') else {
            plain = resource != "*";
            continue;
        };
        let mut contained = |why: String| {
            errors.push(FieldError::invalid(format!("{field}[{position}]"), quoted(resource), why));
        };
        if all_of.contains(of) {
            contained(format!("if '{of}/*' is present, must not specify {resource}"));
        }
        if in_all.contains(sub) {
            contained(format!("if '*/{sub}' is present, must not specify {resource}"));
        }
        if sub == "*" {
            all_of.insert(of);
        }
        if of == "*" {
            in_all.insert(sub);
        }
    }
    let mut crowded = |why: &str| errors.push(FieldError::invalid(&field, shown_list(rule, "resources"), why));
    if double && items(rule, "resources").len() > 1 {
        crowded("if '*/*' is present, must not specify other resources");
    }
    if single && plain {
        crowded("if '*' is present, must not specify other resources without subresources");
    }
}

/// Reports a text that is absent or not one of `supported`.
pub(crate) fn required_one_of(object: &Object, name: &str, at: &str, supported: &[&str], errors: &mut Errors) {
    if text(object, name).is_empty() {
        errors.push(FieldError::required(format!("{at}{name}"), ""));
    } else {
        one_of(object, name, at, supported, errors);
    }
}
