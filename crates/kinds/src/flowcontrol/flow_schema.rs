//! FlowSchema (`flowcontrol.apiserver.k8s.io/v1`): assigns requests to a priority level.
//!
//! Source: `pkg/registry/flowcontrol/flowschema`, `ValidateFlowSchema` in `pkg/apis/flowcontrol/validation`,
//! `pkg/apis/flowcontrol/v1/defaults.go`.

use std::sync::LazyLock;

use listwatch_json::{Value, json};
use listwatch_meta::FieldError;
use listwatch_validation::names::{self, NameRule};
use listwatch_validation::{
    Errors, Object, child, given, is_same, is_true, items, named, number, objects, quoted, shown_list, text, texts,
};

use super::status::validate_status;
use crate::defaults::Default::{In, Positive};
use crate::defaults::Defaults;
use crate::{Kind, Subresource, WriteScope};
use listwatch_printers::Printer;
use listwatch_printers::text::{NONE, condition};
use listwatch_printers::{AGE, Column, NAME};

pub(crate) static KIND: Kind = Kind {
    generation: true,
    subresources: &[Subresource::Status],
    defaults: &DEFAULTS,
    validate,
    validate_status,
    status_write: WriteScope::STATUS_ONLY,
    printer: &PRINTER,
    ..Kind::cluster("flowcontrol.apiserver.k8s.io", "v1", "flowschemas", "FlowSchema")
};

static SPEC_DEFAULTS: Defaults = Defaults(&[("matchingPrecedence", Positive(1000))]);
static DEFAULTS: Defaults = Defaults(&[("spec", In(&SPEC_DEFAULTS))]);

/// The largest matching precedence of a flow schema. Schemas with smaller ones match first.
const PRECEDENCE_MAX: i64 = 10_000;

/// The verbs that a rule can match.
const VERBS: [&str; 9] = ["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];

/// Validates a flow schema (`ValidateFlowSchema`).
fn validate(schema: &Object, _: Option<&Object>, errors: &mut Errors) {
    let (name, spec) = (text(child(schema, "metadata"), "name"), child(schema, "spec"));
    let precedence = number(spec, "matchingPrecedence").unwrap_or(0);
    let mut wrong = |why: String| errors.push(FieldError::invalid("spec.matchingPrecedence", precedence, why));
    if precedence <= 0 {
        wrong("must be a positive value".to_owned());
    }
    if precedence > PRECEDENCE_MAX {
        wrong(format!("must not be greater than {PRECEDENCE_MAX}"));
    }
    if precedence == 1 && name != "exempt" {
        wrong("only the schema named 'exempt' may have matchingPrecedence 1".to_owned());
    }
    if let Some(Value::Object(method)) = given(spec, "distinguisherMethod") {
        let kind = text(method, "type");
        if !matches!(kind, "ByNamespace" | "ByUser") {
            errors.push(FieldError {
                field: "spec.distinguisherMethod.type".to_owned(),
                reason: "FieldValueNotSupported",
                message: format!(
                    "Unsupported value: {}: supported values: \"ByNamespace\", \"ByUser\"",
                    json!({"Type": kind})
                ),
            });
        }
    }
    match text(child(spec, "priorityLevelConfiguration"), "name") {
        "" => {
            let why = "must reference a priority level";
            errors.push(FieldError::required("spec.priorityLevelConfiguration.name", why));
        }
        level => named(level, NameRule::Subdomain, "spec.priorityLevelConfiguration.name", errors),
    }
    for (position, rule) in objects(spec, "rules") {
        validate_rule(rule, &format!("spec.rules[{position}]"), errors);
    }
    if mandatory_spec(name).is_some_and(|mandatory| !is_same(schema.get("spec"), Some(mandatory))) {
        let why = format!("spec of '{name}' must equal the fixed value");
        errors.push(FieldError::invalid("spec", schema.get("spec").unwrap_or(&Value::Null), why));
    }
    validate_status(schema, None, errors);
}

/// The fixed spec of a flow schema that every cluster has.
fn mandatory_spec(name: &str) -> Option<&'static Value> {
    fn spec(name: &str, precedence: i64, method: Option<Value>, groups: &[&str]) -> Value {
        let subjects: Vec<Value> =
            groups.iter().map(|group| json!({"kind": "Group", "group": {"name": group}})).collect();
        json!({"priorityLevelConfiguration": {"name": name}, "matchingPrecedence": precedence,
            "distinguisherMethod": method, "rules": [{"subjects": subjects,
                "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true,
                    "namespaces": ["*"]}],
                "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}]}]})
    }
    static EXEMPT: LazyLock<Value> = LazyLock::new(|| spec("exempt", 1, None, &["system:masters"]));
    static CATCH_ALL: LazyLock<Value> = LazyLock::new(|| {
        let everyone = ["system:unauthenticated", "system:authenticated"];
        spec("catch-all", PRECEDENCE_MAX, Some(json!({"type": "ByUser"})), &everyone)
    });
    match name {
        "exempt" => Some(&EXEMPT),
        "catch-all" => Some(&CATCH_ALL),
        _ => None,
    }
}

/// Validates one rule (`ValidateFlowSchemaPolicyRulesWithSubjects`).
fn validate_rule(rule: &Object, at: &str, errors: &mut Errors) {
    if items(rule, "subjects").is_empty() {
        errors.push(FieldError::required(format!("{at}.subjects"), "subjects must contain at least one value"));
    }
    for (position, one) in objects(rule, "subjects") {
        validate_subject(one, &format!("{at}.subjects[{position}]"), errors);
    }
    if items(rule, "resourceRules").is_empty() && items(rule, "nonResourceRules").is_empty() {
        let why = "at least one of resourceRules and nonResourceRules has to be non-empty";
        errors.push(FieldError::required(at, why));
    }
    for (position, rule) in objects(rule, "resourceRules") {
        validate_resource_rule(rule, &format!("{at}.resourceRules[{position}]."), errors);
    }
    for (position, rule) in objects(rule, "nonResourceRules") {
        let at = format!("{at}.nonResourceRules[{position}].");
        validate_verbs(rule, &at, errors);
        let why = "nonResourceURLs must contain at least one value";
        if validate_list(rule, "nonResourceURLs", &at, why, "other non-resource URLs", errors) {
            for (position, path) in texts(rule, "nonResourceURLs").enumerate() {
                if let Some(why) = url_path_problem(path) {
                    errors.push(FieldError::invalid(format!("{at}nonResourceURLs[{position}]"), quoted(path), why));
                }
            }
        }
    }
}

/// Validates that a list is not empty and that `*` is the only item if present. Returns whether the items need
/// validation.
fn validate_list(rule: &Object, name: &str, at: &str, none: &str, others: &str, errors: &mut Errors) -> bool {
    if items(rule, name).is_empty() {
        errors.push(FieldError::required(format!("{at}{name}"), none));
        return false;
    }
    if !texts(rule, name).any(|item| item == "*") {
        return true;
    }
    if items(rule, name).len() > 1 {
        let why = format!("if '*' is present, must not specify {others}");
        errors.push(FieldError::invalid(format!("{at}{name}"), shown_list(rule, name), why));
    }
    false
}

fn validate_verbs(rule: &Object, at: &str, errors: &mut Errors) {
    let each = validate_list(rule, "verbs", at, "verbs must contain at least one value", "other verbs", errors);
    if each && texts(rule, "verbs").any(|verb| !VERBS.contains(&verb)) {
        let supported: Vec<String> = VERBS.iter().map(|verb| format!("{verb:?}")).collect();
        errors.push(FieldError {
            field: format!("{at}verbs"),
            reason: "FieldValueNotSupported",
            message: format!(
                "Unsupported value: {}: supported values: {}",
                shown_list(rule, "verbs"),
                supported.join(", ")
            ),
        });
    }
}

fn validate_resource_rule(rule: &Object, at: &str, errors: &mut Errors) {
    validate_verbs(rule, at, errors);
    let why = "resource rules must supply at least one api group";
    validate_list(rule, "apiGroups", at, why, "other api groups", errors);
    let why = "resource rules must supply at least one resource";
    validate_list(rule, "resources", at, why, "other resources", errors);
    if items(rule, "namespaces").is_empty() && is_true(rule, "clusterScope") {
        return;
    }
    let why = "resource rules that are not cluster scoped must supply at least one namespace";
    if validate_list(rule, "namespaces", at, why, "other namespaces", errors) {
        for (position, namespace) in texts(rule, "namespaces").enumerate() {
            for problem in names::problems(NameRule::Label, namespace, false) {
                let why = format!("each member of this list must be '*' or a DNS-1123 label; {problem}");
                errors.push(FieldError::invalid(format!("{at}namespaces[{position}]"), quoted(namespace), why));
            }
        }
    }
}

/// The kinds of subjects, and the member for each.
const SUBJECTS: [(&str, &str); 3] = [("ServiceAccount", "serviceAccount"), ("User", "user"), ("Group", "group")];

/// Validates a subject (`ValidateFlowSchemaSubject`).
fn validate_subject(subject: &Object, at: &str, errors: &mut Errors) {
    let kind = text(subject, "kind");
    let Some((_, member)) = SUBJECTS.iter().find(|(known, _)| *known == kind) else {
        let supported = ["Group", "ServiceAccount", "User"];
        return errors.push(FieldError::not_supported(format!("{at}.kind"), kind, &supported));
    };
    let at_member = format!("{at}.{member}");
    match given(subject, member).and_then(Value::as_object) {
        None => {
            let why = format!("{member} is required when subject kind is '{kind}'");
            errors.push(FieldError::required(at_member, why));
        }
        Some(named_subject) => {
            let name = text(named_subject, "name");
            if name.is_empty() {
                errors.push(FieldError::required(format!("{at_member}.name"), ""));
            } else if kind == "ServiceAccount" && name != "*" {
                named(name, NameRule::Subdomain, &format!("{at_member}.name"), errors);
            }
            if kind == "ServiceAccount" {
                match text(named_subject, "namespace") {
                    "" => {
                        let why = "must specify namespace for service account";
                        errors.push(FieldError::required(format!("{at_member}.namespace"), why));
                    }
                    namespace => named(namespace, NameRule::Label, &format!("{at_member}.namespace"), errors),
                }
            }
        }
    }
    for (other_kind, other) in SUBJECTS.iter().filter(|(known, _)| *known != kind) {
        if given(subject, other).is_some() {
            let why = format!("{other} is forbidden when subject kind is not '{other_kind}'");
            errors.push(FieldError::forbidden(format!("{at}.{other}"), why));
        }
    }
}

/// Validates the URL path of a rule (`ValidateNonResourceURLPath`). Returns the reason if it is invalid.
fn url_path_problem(path: &str) -> Option<&'static str> {
    let wildcards = path.matches('*').count();
    match path {
        "" => Some("must not be empty"),
        "/" => None,
        path if !path.starts_with('/') => Some("must start with slash"),
        path if path.contains(' ') => Some("must not contain white-space"),
        path if path.contains("//") => Some("must not contain double slash"),
        path if wildcards > 1 || (wildcards == 1 && !path.ends_with("/*")) => {
            Some("wildcard can only do suffix matching")
        }
        _ => None,
    }
}

static PRINTER: Printer = Printer {
    columns: &[
        NAME,
        Column::text("PriorityLevel", "The level that matching requests go to."),
        Column::text("MatchingPrecedence", "The lowest that matches wins."),
        Column::text("DistinguisherMethod", "What makes two requests two flows."),
        AGE,
        Column::text("MissingPL", "Whether the level does not exist."),
    ],
    cells: |schema| {
        let spec = schema.spec();
        let dangling = condition(schema.at("status.conditions"), "Dangling");
        vec![
            schema.name().into(),
            spec.at("priorityLevelConfiguration.name").string().into(),
            spec.get("matchingPrecedence").int().unwrap_or(1000).into(),
            spec.at("distinguisherMethod.type").string_or(NONE).into(),
            schema.age().into(),
            dangling.map_or_else(|| "?".to_owned(), |dangling| dangling.get("status").string()).into(),
        ]
    },
};
