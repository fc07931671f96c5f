//! Admission policies and their bindings (`pkg/apis/admissionregistration/validation`): what they match, and
//! the expressions in them, which are compiled as far as [`check_expression`] knows them.

use std::collections::HashSet;

use listwatch_cel::{Outcome, RESERVED_WORDS, check_expression};
use listwatch_meta::FieldError;
use listwatch_meta::selector::{dns_1035_label_problems, dns_subdomain_problems};
use serde_json::Value;

use listwatch_validation::names;
use listwatch_validation::names::NameRule;
use listwatch_validation::{
    Errors, Object, child, conditions, given, invalid_each, is_same, items, named, objects, one_of, qualified_name,
    quoted, selector, shown_list, text, texts,
};

/// Audit annotations of one policy.
const AUDIT_ANNOTATIONS_MAX: usize = 20;
/// Bytes of the expression of an audit annotation's value.
const AUDIT_EXPRESSION_BYTES_MAX: usize = 5 * 1024;
/// Match conditions of one policy or webhook.
const MATCH_CONDITIONS_MAX: usize = 64;
/// Bytes of expressions that are compiled for one object. Those behind them are stored unchecked: compiling
/// takes time, and a body may consist of expressions.
const COMPILED_BYTES_MAX: usize = 256 * 1024;

const FAILURE_POLICIES: [&str; 2] = ["Fail", "Ignore"];
const MATCH_POLICIES: [&str; 2] = ["Equivalent", "Exact"];
pub(crate) const REINVOCATION_POLICIES: [&str; 2] = ["IfNeeded", "Never"];
const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
/// A mutating policy sees no deletions.
const MUTATING_OPERATIONS: [&str; 4] = ["*", "CONNECT", "CREATE", "UPDATE"];
const ACTIONS: [&str; 3] = ["Audit", "Deny", "Warn"];
const REASONS: [&str; 3] = ["Forbidden", "Invalid", "RequestEntityTooLarge"];

/// The variables that expressions of one object may use, and how many of their bytes are still compiled.
pub(crate) struct Expressions {
    params: bool,
    variables: bool,
    bytes_left: usize,
}

impl Expressions {
    pub(crate) fn new(params: bool, variables: bool) -> Expressions {
        Expressions { params, variables, bytes_left: COMPILED_BYTES_MAX }
    }

    /// Compiles an expression; the error shows `shown`.
    fn check(&mut self, source: &str, shown: &str, context: Context, field: &str, errors: &mut Errors) {
        let Some(left) = self.bytes_left.checked_sub(source.len()) else { return };
        self.bytes_left = left;
        let mut names = vec!["object", "oldObject", "namespaceObject", "request"];
        if self.params {
            names.push("params");
        }
        if context.authorizer {
            names.push("authorizer");
        }
        if self.variables && context.variables {
            names.push("variables");
        }
        if let Err(why) = check_expression(source, &names, context.patches, context.outcome) {
            errors.push(FieldError::invalid(field, quoted(shown), why));
        }
    }
}

/// Where an expression stands.
#[derive(Clone, Copy)]
struct Context {
    outcome: Outcome,
    authorizer: bool,
    variables: bool,
    patches: bool,
}

impl Context {
    const CONDITION: Context = Context { outcome: Outcome::Bool, authorizer: true, variables: false, patches: false };
    const VALIDATION: Context = Context { variables: true, ..Context::CONDITION };
    const MESSAGE: Context = Context { outcome: Outcome::Text, authorizer: false, ..Context::VALIDATION };
    const AUDIT: Context = Context { outcome: Outcome::TextOrNull, ..Context::VALIDATION };
    const VARIABLE: Context = Context { outcome: Outcome::Any, ..Context::VALIDATION };
    const PATCH: Context = Context { patches: true, ..Context::VARIABLE };
}

/// `ValidateValidatingAdmissionPolicy`.
pub(crate) fn validating_policy(policy: &Object, old: Option<&Object>, errors: &mut Errors) {
    let spec = child(policy, "spec");
    let mut expressions = Expressions::new(given(spec, "paramKind").is_some(), !items(spec, "variables").is_empty());
    policy_matching(spec, old, false, &mut expressions, errors);
    variables(spec, &mut expressions, errors);
    if items(spec, "validations").is_empty() && items(spec, "auditAnnotations").is_empty() {
        let why = "validations or auditAnnotations must contain at least one item";
        errors.push(FieldError::required("spec.validations", why));
        errors.push(FieldError::required("spec.auditAnnotations", why));
        return;
    }
    for (position, validation) in objects(spec, "validations") {
        validate_validation(validation, &format!("spec.validations[{position}]."), &mut expressions, errors);
    }
    if items(spec, "auditAnnotations").len() > AUDIT_ANNOTATIONS_MAX {
        let why = format_args!("must not have more than {AUDIT_ANNOTATIONS_MAX} auditAnnotations");
        errors.push(FieldError::invalid("spec.auditAnnotations", shown_annotations(spec), why));
    }
    let name = text(child(policy, "metadata"), "name");
    let mut keys = HashSet::new();
    for (position, annotation) in objects(spec, "auditAnnotations") {
        let at = format!("spec.auditAnnotations[{position}].");
        audit_annotation(name, annotation, &at, &mut expressions, errors);
        let key = text(annotation, "key");
        if !keys.insert(key) {
            errors.push(FieldError::duplicate(format!("{at}key"), quoted(key)));
        }
    }
}

/// Audit annotations as Go shows them.
fn shown_annotations(spec: &Object) -> Value {
    let shown = objects(spec, "auditAnnotations").map(|(_, annotation)| {
        serde_json::json!({"Key": text(annotation, "key"), "ValueExpression": text(annotation, "valueExpression")})
    });
    Value::Array(shown.collect())
}

/// What policies of both kinds begin with: up to their match conditions.
fn policy_matching(
    spec: &Object,
    old: Option<&Object>,
    mutating: bool,
    expressions: &mut Expressions,
    errors: &mut Errors,
) {
    required_one_of(spec, "failurePolicy", "spec.", &FAILURE_POLICIES, errors);
    if let Some(Value::Object(kind)) = given(spec, "paramKind") {
        param_kind(kind, errors);
    }
    match given(spec, "matchConstraints") {
        Some(Value::Object(constraints)) => {
            match_resources(constraints, "spec.matchConstraints.", errors);
            if items(constraints, "resourceRules").is_empty() {
                errors.push(FieldError::required("spec.matchConstraints.resourceRules", ""));
            }
            if mutating {
                mutating_operations(constraints, "spec.matchConstraints.", errors);
            }
        }
        _ => errors.push(FieldError::required("spec.matchConstraints", "")),
    }
    // Conditions that an update leaves as they are were judged before.
    let unchanged = old.is_some_and(|old| {
        let old = child(old, "spec");
        ["paramKind", "matchConditions"].iter().all(|name| is_same(spec.get(*name), old.get(*name)))
    });
    if !unchanged {
        match_conditions(spec, "spec.", expressions, errors);
    }
}

/// `ValidateMutatingAdmissionPolicy`.
pub(crate) fn mutating_policy(policy: &Object, old: Option<&Object>, errors: &mut Errors) {
    let spec = child(policy, "spec");
    let mut expressions = Expressions::new(given(spec, "paramKind").is_some(), true);
    policy_matching(spec, old, true, &mut expressions, errors);
    variables(spec, &mut expressions, errors);
    if items(spec, "mutations").is_empty() {
        errors.push(FieldError::required("spec.mutations", "mutations must contain at least one item"));
    }
    for (position, mutation) in objects(spec, "mutations") {
        validate_mutation(mutation, &format!("spec.mutations[{position}]."), &mut expressions, errors);
    }
    required_one_of(spec, "reinvocationPolicy", "spec.", &REINVOCATION_POLICIES, errors);
}

/// `ValidateValidatingAdmissionPolicyBinding`.
pub(crate) fn validating_binding(binding: &Object, _: Option<&Object>, errors: &mut Errors) {
    let spec = child(binding, "spec");
    binding_spec(spec, errors);
    let field = "spec.validationActions";
    let mut seen = HashSet::new();
    for (position, action) in texts(spec, "validationActions").enumerate() {
        let field = || format!("{field}[{position}]");
        if !ACTIONS.contains(&action) {
            errors.push(FieldError::not_supported(field(), action, &ACTIONS));
        }
        if !seen.insert(action) {
            errors.push(FieldError::duplicate(field(), quoted(action)));
        }
    }
    if seen.contains("Deny") && seen.contains("Warn") {
        let why = "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)";
        errors.push(FieldError::invalid(field, shown_list(spec, "validationActions"), why));
    }
    if seen.is_empty() {
        errors.push(FieldError::required(field, "at least one validation action is required"));
    }
}

/// `ValidateMutatingAdmissionPolicyBinding`.
pub(crate) fn mutating_binding(binding: &Object, _: Option<&Object>, errors: &mut Errors) {
    let spec = child(binding, "spec");
    binding_spec(spec, errors);
    mutating_operations(child(spec, "matchResources"), "spec.matchResources.", errors);
}

fn binding_spec(spec: &Object, errors: &mut Errors) {
    match text(spec, "policyName") {
        "" => errors.push(FieldError::required("spec.policyName", "")),
        name => named(name, NameRule::Subdomain, "spec.policyName", errors),
    }
    if let Some(Value::Object(reference)) = given(spec, "paramRef") {
        param_ref(reference, "spec.paramRef", errors);
    }
    if let Some(Value::Object(resources)) = given(spec, "matchResources") {
        match_resources(resources, "spec.matchResources.", errors);
    }
}

fn param_ref(reference: &Object, at: &str, errors: &mut Errors) {
    const EXCLUSIVE: &str = "name and selector are mutually exclusive";
    let (name, selects) = (text(reference, "name"), given(reference, "selector").is_some());
    if !name.is_empty() {
        named(name, NameRule::PathSegment, &format!("{at}.name"), errors);
        if selects {
            errors.push(FieldError::forbidden(format!("{at}.name"), EXCLUSIVE));
        }
    }
    if selects {
        selector(reference, "selector", &format!("{at}."), errors);
        if !name.is_empty() {
            errors.push(FieldError::forbidden(format!("{at}.selector"), EXCLUSIVE));
        }
    }
    if name.is_empty() && !selects {
        errors.push(FieldError::required(at, "one of name or selector must be specified"));
    }
    required_one_of(reference, "parameterNotFoundAction", &format!("{at}."), &["Deny", "Allow"], errors);
}

fn required_one_of(object: &Object, name: &str, at: &str, supported: &[&str], errors: &mut Errors) {
    if text(object, name).is_empty() {
        errors.push(FieldError::required(format!("{at}{name}"), ""));
    } else {
        one_of(object, name, at, supported, errors);
    }
}

fn param_kind(reference: &Object, errors: &mut Errors) {
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

fn match_resources(resources: &Object, at: &str, errors: &mut Errors) {
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
            rule_with_operations(rule, &at, errors);
        }
    }
}

fn mutating_operations(resources: &Object, at: &str, errors: &mut Errors) {
    let rules = objects(resources, "resourceRules");
    for operation in rules.flat_map(|(_, rule)| texts(rule, "operations")) {
        if !MUTATING_OPERATIONS.contains(&operation) {
            let field = format!("{at}resourceRules.operations");
            errors.push(FieldError::not_supported(field, operation, &MUTATING_OPERATIONS));
        }
    }
}

/// What a webhook or a policy is asked about (`validateRuleWithOperations`).
pub(crate) fn rule_with_operations(rule: &Object, at: &str, errors: &mut Errors) {
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
    resources(rule, at, errors);
    one_of(rule, "scope", at, &["*", "Cluster", "Namespaced"], errors);
}

/// Resources with their subresources; a wildcard stands alone.
fn resources(rule: &Object, at: &str, errors: &mut Errors) {
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

/// `validateMatchConditions`, of policies and of webhooks.
pub(crate) fn match_conditions(holder: &Object, at: &str, expressions: &mut Expressions, errors: &mut Errors) {
    let count = items(holder, "matchConditions").len();
    if count > MATCH_CONDITIONS_MAX {
        errors.push(FieldError::too_many(format!("{at}matchConditions"), count, MATCH_CONDITIONS_MAX));
    }
    let mut seen = HashSet::new();
    for (position, condition) in objects(holder, "matchConditions") {
        let at = format!("{at}matchConditions[{position}].");
        match text(condition, "expression").trim() {
            "" => errors.push(FieldError::required(format!("{at}expression"), "")),
            source => {
                expressions.check(source, source, Context::CONDITION, &format!("{at}expression"), errors);
            }
        }
        match text(condition, "name") {
            "" => errors.push(FieldError::required(format!("{at}name"), "")),
            name => {
                qualified_name(name, &format!("{at}name"), errors);
                if !seen.insert(name) {
                    errors.push(FieldError::duplicate(format!("{at}name"), quoted(name)));
                }
            }
        }
    }
}

fn variables(spec: &Object, expressions: &mut Expressions, errors: &mut Errors) {
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
            expressions.check(source, source, Context::VARIABLE, &format!("{at}expression"), errors);
        }
    }
}

fn is_identifier(name: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    !name.starts_with(|first: char| first.is_ascii_digit()) && name.bytes().all(word) && !RESERVED_WORDS.contains(&name)
}

fn validate_validation(validation: &Object, at: &str, expressions: &mut Expressions, errors: &mut Errors) {
    let source = text(validation, "expression");
    if source.trim().is_empty() {
        errors.push(FieldError::required(format!("{at}expression"), "expression is not specified"));
    } else {
        expressions.check(source, source, Context::VALIDATION, &format!("{at}expression"), errors);
    }
    let source = text(validation, "messageExpression");
    if !source.trim().is_empty() {
        expressions.check(source, source, Context::MESSAGE, &format!("{at}messageExpression"), errors);
    } else if !source.is_empty() {
        let why = "must be non-empty if specified";
        errors.push(FieldError::invalid(format!("{at}messageExpression"), quoted(source), why));
    }
    let message = text(validation, "message");
    if !message.is_empty() && message.trim().is_empty() {
        let why = "must be non-empty if specified";
        errors.push(FieldError::invalid(format!("{at}message"), quoted(message), why));
    } else if message.trim().contains(['\n', '\r']) {
        errors.push(FieldError::invalid(format!("{at}message"), quoted(message), "must not contain line breaks"));
    }
    one_of(validation, "reason", at, &REASONS, errors);
}

fn audit_annotation(policy: &str, annotation: &Object, at: &str, expressions: &mut Expressions, errors: &mut Errors) {
    let key = text(annotation, "key");
    if policy.is_empty() {
        errors.push(FieldError::invalid(format!("{at}key"), quoted(key), "requires metadata.name be non-empty"));
    } else {
        qualified_name(&format!("{policy}/{key}"), &format!("{at}key"), errors);
    }
    let field = format!("{at}valueExpression");
    let shown = text(annotation, "valueExpression");
    match shown.trim() {
        "" => errors.push(FieldError::required(field, "valueExpression is not specified")),
        source if source.len() > AUDIT_EXPRESSION_BYTES_MAX => {
            let why = format!("must not exceed {AUDIT_EXPRESSION_BYTES_MAX} bytes in length");
            errors.push(FieldError::required(field, why));
        }
        source => expressions.check(source, shown, Context::AUDIT, &field, errors),
    }
}

fn validate_mutation(mutation: &Object, at: &str, expressions: &mut Expressions, errors: &mut Errors) {
    let (wanted, other) = match text(mutation, "patchType") {
        "" => return errors.push(FieldError::required(format!("{at}patchType"), "")),
        "JSONPatch" => ("jsonPatch", "applyConfiguration"),
        "ApplyConfiguration" => ("applyConfiguration", "jsonPatch"),
        kind => {
            let supported = ["ApplyConfiguration", "JSONPatch"];
            return errors.push(FieldError::not_supported(format!("{at}patchType"), kind, &supported));
        }
    };
    let kind = text(mutation, "patchType");
    match given(mutation, wanted) {
        Some(Value::Object(patch)) => match text(patch, "expression").trim() {
            "" => errors.push(FieldError::required(format!("{at}{wanted}.expression"), "")),
            source => {
                expressions.check(source, source, Context::PATCH, &format!("{at}{wanted}.expression"), errors);
            }
        },
        _ => {
            let why = format!("must be specified when patchType is {kind}");
            errors.push(FieldError::required(format!("{at}{wanted}"), why));
        }
    }
    if given(mutation, other).is_some() {
        let why = format!("must not be specified when patchType is {kind}");
        errors.push(FieldError::invalid(format!("{at}{other}"), quoted(&format!("{{{other}}}")), why));
    }
}

/// `ValidateValidatingAdmissionPolicyStatusUpdate`. Paths of expressions are not read.
pub(crate) fn policy_status(policy: &Object, _: Option<&Object>, errors: &mut Errors) {
    let status = child(policy, "status");
    for (position, warning) in objects(child(status, "typeChecking"), "expressionWarnings") {
        let at = format!("status.typeChecking.expressionWarnings[{position}].");
        for (name, value) in [("warning", text(warning, "warning")), ("fieldRef", text(warning, "fieldRef").trim())] {
            if value.is_empty() {
                errors.push(FieldError::required(format!("{at}{name}"), ""));
            }
        }
    }
    conditions(status, "status.", errors);
}
