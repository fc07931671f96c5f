//! Flow schemas and priority levels (`pkg/apis/flowcontrol/validation`).

use std::collections::HashSet;
use std::sync::LazyLock;

use listwatch_meta::FieldError;
use serde_json::{Value, json};

use listwatch_validation::names;
use listwatch_validation::names::NameRule;
use listwatch_validation::{
    Errors, Object, child, given, is_same, is_true, items, named, number, objects, quoted, shown_list, text, texts,
};

/// The last place among flow schemas.
const PRECEDENCE_MAX: i64 = 10_000;
/// Queues of one priority level.
const QUEUES_MAX: i64 = 10_000_000;
/// Bits of a hash that shuffle sharding may use up.
const HASH_BITS_MAX: i64 = 60;
/// The annotation that only `v1beta3` has.
const PRESERVE_ZERO: &str = "flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares";

const VERBS: [&str; 9] = ["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];

/// `ValidateFlowSchema`.
pub(crate) fn flow_schema(schema: &Object, _: Option<&Object>, errors: &mut Errors) {
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
        policy_rules(rule, &format!("spec.rules[{position}]"), errors);
    }
    if mandatory_schema(name).is_some_and(|mandatory| !is_same(schema.get("spec"), Some(mandatory))) {
        let why = format!("spec of '{name}' must equal the fixed value");
        errors.push(FieldError::invalid("spec", shown_spec(schema), why));
    }
    status(schema, None, errors);
}

fn shown_spec(object: &Object) -> &Value {
    object.get("spec").unwrap_or(&Value::Null)
}

/// The specs of the flow schemas that every cluster has.
fn mandatory_schema(name: &str) -> Option<&'static Value> {
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
        let everybody = ["system:unauthenticated", "system:authenticated"];
        spec("catch-all", PRECEDENCE_MAX, Some(json!({"type": "ByUser"})), &everybody)
    });
    match name {
        "exempt" => Some(&EXEMPT),
        "catch-all" => Some(&CATCH_ALL),
        _ => None,
    }
}

fn policy_rules(rule: &Object, at: &str, errors: &mut Errors) {
    if items(rule, "subjects").is_empty() {
        errors.push(FieldError::required(format!("{at}.subjects"), "subjects must contain at least one value"));
    }
    for (position, one) in objects(rule, "subjects") {
        subject(one, &format!("{at}.subjects[{position}]"), errors);
    }
    if items(rule, "resourceRules").is_empty() && items(rule, "nonResourceRules").is_empty() {
        let why = "at least one of resourceRules and nonResourceRules has to be non-empty";
        errors.push(FieldError::required(at, why));
    }
    for (position, rule) in objects(rule, "resourceRules") {
        resource_rule(rule, &format!("{at}.resourceRules[{position}]."), errors);
    }
    for (position, rule) in objects(rule, "nonResourceRules") {
        let at = format!("{at}.nonResourceRules[{position}].");
        verbs(rule, &at, errors);
        let why = "nonResourceURLs must contain at least one value";
        if list(rule, "nonResourceURLs", &at, why, "other non-resource URLs", errors) {
            for (position, path) in texts(rule, "nonResourceURLs").enumerate() {
                if let Some(why) = url_path_problem(path) {
                    errors.push(FieldError::invalid(format!("{at}nonResourceURLs[{position}]"), quoted(path), why));
                }
            }
        }
    }
}

/// A list is not empty, and a `*` in it stands alone. True where its items are to be looked at.
fn list(rule: &Object, name: &str, at: &str, none: &str, others: &str, errors: &mut Errors) -> bool {
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

fn verbs(rule: &Object, at: &str, errors: &mut Errors) {
    let each = list(rule, "verbs", at, "verbs must contain at least one value", "other verbs", errors);
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

fn resource_rule(rule: &Object, at: &str, errors: &mut Errors) {
    verbs(rule, at, errors);
    let why = "resource rules must supply at least one api group";
    list(rule, "apiGroups", at, why, "other api groups", errors);
    let why = "resource rules must supply at least one resource";
    list(rule, "resources", at, why, "other resources", errors);
    if items(rule, "namespaces").is_empty() && is_true(rule, "clusterScope") {
        return;
    }
    let why = "resource rules that are not cluster scoped must supply at least one namespace";
    if list(rule, "namespaces", at, why, "other namespaces", errors) {
        for (position, namespace) in texts(rule, "namespaces").enumerate() {
            for problem in names::problems(NameRule::Label, namespace, false) {
                let why = format!("each member of this list must be '*' or a DNS-1123 label; {problem}");
                errors.push(FieldError::invalid(format!("{at}namespaces[{position}]"), quoted(namespace), why));
            }
        }
    }
}

/// Where each kind of subject is named, and what is told of one that is not of that kind.
const SUBJECTS: [(&str, &str); 3] = [("ServiceAccount", "serviceAccount"), ("User", "user"), ("Group", "group")];

fn subject(subject: &Object, at: &str, errors: &mut Errors) {
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

/// `ValidateNonResourceURLPath`.
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

/// `ValidatePriorityLevelConfiguration`.
pub(crate) fn priority_level(level: &Object, _: Option<&Object>, errors: &mut Errors) {
    let (metadata, spec) = (child(level, "metadata"), child(level, "spec"));
    let name = text(metadata, "name");
    if child(metadata, "annotations").contains_key(PRESERVE_ZERO) {
        let why = format!("annotation '{PRESERVE_ZERO}' is forbidden");
        errors.push(FieldError::forbidden("metadata.annotations", why));
    }
    let kind = text(spec, "type");
    if (name == "exempt") != (kind == "Exempt") {
        let why = "must be 'Exempt' if and only if `name` is 'exempt'";
        errors.push(FieldError::invalid("spec.type", quoted(kind), why));
    }
    let (limited, exempt) = (given(spec, "limited"), given(spec, "exempt"));
    match kind {
        "Exempt" => {
            if limited.is_some() {
                errors.push(FieldError::forbidden("spec.limited", "must be nil if the type is not Limited"));
            }
            if let Some(Value::Object(exempt)) = exempt {
                shares(exempt, "spec.exempt.", errors);
                lendable(exempt, "spec.exempt.", errors);
            }
        }
        "Limited" => {
            if exempt.is_some() {
                errors.push(FieldError::forbidden("spec.exempt", "must be nil if the type is Limited"));
            }
            match limited.and_then(Value::as_object) {
                Some(limited) => limits(limited, errors),
                None => {
                    errors.push(FieldError::required("spec.limited", "must not be empty when type is Limited"));
                }
            }
        }
        _ => errors.push(FieldError::not_supported("spec.type", kind, &["Exempt", "Limited"])),
    }
    mandatory_level(name, level, errors);
    status(level, None, errors);
}

/// The two levels that every cluster has are what they are; of one, the share may change.
fn mandatory_level(name: &str, level: &Object, errors: &mut Errors) {
    let spec = child(level, "spec");
    let why = match name {
        "exempt" => {
            let same = text(spec, "type") == "Exempt" && given(spec, "limited").is_none();
            (!same).then(|| format!("spec of '{name}' except the 'spec.exempt' field must equal the fixed value"))
        }
        "catch-all" => {
            let fixed = json!({"type": "Limited", "limited": {"nominalConcurrencyShares": 5, "lendablePercent": 0,
                "limitResponse": {"type": "Reject"}}});
            (!is_same(level.get("spec"), Some(&fixed))).then(|| format!("spec of '{name}' must equal the fixed value"))
        }
        _ => None,
    };
    if let Some(why) = why {
        errors.push(FieldError::invalid("spec", shown_spec(level), why));
    }
}

fn shares(holder: &Object, at: &str, errors: &mut Errors) {
    if let Some(shares) = number(holder, "nominalConcurrencyShares").filter(|shares| *shares < 0) {
        let why = "must be a non-negative integer";
        errors.push(FieldError::invalid(format!("{at}nominalConcurrencyShares"), shares, why));
    }
}

fn lendable(holder: &Object, at: &str, errors: &mut Errors) {
    if let Some(percent) = number(holder, "lendablePercent").filter(|percent| !(0..=100).contains(percent)) {
        let why = "must be between 0 and 100, inclusive";
        errors.push(FieldError::invalid(format!("{at}lendablePercent"), percent, why));
    }
}

fn limits(limited: &Object, errors: &mut Errors) {
    let at = "spec.limited.";
    shares(limited, at, errors);
    let response = child(limited, "limitResponse");
    let queuing = given(response, "queuing").and_then(Value::as_object);
    let field = format!("{at}limitResponse.queuing");
    match (text(response, "type"), queuing) {
        ("Reject", Some(_)) => {
            let why = "must be nil if limited.limitResponse.type is not Limited";
            errors.push(FieldError::forbidden(field, why));
        }
        ("Queue", None) => {
            let why = "must not be empty if limited.limitResponse.type is Limited";
            errors.push(FieldError::required(field, why));
        }
        ("Queue", Some(queuing)) => queues(queuing, &format!("{field}."), errors),
        ("Reject", None) => {}
        (other, _) => {
            let field = format!("{at}limitResponse.type");
            errors.push(FieldError::not_supported(field, other, &["Queue", "Reject"]));
        }
    }
    lendable(limited, at, errors);
    if let Some(percent) = number(limited, "borrowingLimitPercent").filter(|percent| *percent < 0) {
        let why = "if specified, must be a non-negative integer";
        errors.push(FieldError::invalid(format!("{at}borrowingLimitPercent"), percent, why));
    }
}

fn queues(queuing: &Object, at: &str, errors: &mut Errors) {
    let of = |name: &str| number(queuing, name).unwrap_or(0);
    let mut wrong = |name: &str, why: String| {
        errors.push(FieldError::invalid(format!("{at}{name}"), of(name), why));
    };
    let positive = || "must be positive".to_owned();
    let (queues, hand) = (of("queues"), of("handSize"));
    if of("queueLengthLimit") <= 0 {
        wrong("queueLengthLimit", positive());
    }
    if queues <= 0 {
        wrong("queues", positive());
    } else if queues > QUEUES_MAX {
        wrong("queues", format!("must not be greater than {QUEUES_MAX}"));
    }
    if hand <= 0 {
        wrong("handSize", positive());
    } else if hand > queues {
        wrong("handSize", format!("should not be greater than queues ({queues})"));
    } else if ((queues as f64).log2() * hand as f64).ceil() as i64 > HASH_BITS_MAX {
        let why = format!(
            "required entropy bits of deckSize {queues} and handSize {hand} should not be greater than {HASH_BITS_MAX}"
        );
        wrong("handSize", why);
    }
}

/// `ValidateFlowSchemaStatus` and `ValidatePriorityLevelConfigurationStatus`.
pub(crate) fn status(object: &Object, _: Option<&Object>, errors: &mut Errors) {
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
