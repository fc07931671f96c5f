//! Who may do what, who is asked before something is done, and small kinds of the machinery.

use listwatch_meta::FieldError;
use serde_json::Value;

use super::Rule::{Check, Each, NotNegative, OneOf, Required};
use super::{Errors, Object, Rules, child, given, items, number, quoted, text};
use crate::registry::NameRule;

const RBAC: &str = "rbac.authorization.k8s.io";

pub(super) const ROLE: Rules = &[Each("rules", &[Check(|rule, at, errors| policy_rule(rule, at, true, errors))])];
pub(super) const CLUSTER_ROLE: Rules =
    &[Each("rules", &[Check(|rule, at, errors| policy_rule(rule, at, false, errors))])];
pub(super) const ROLE_BINDING: Rules =
    &[Check(|binding, _, errors| role_ref(binding, &["Role", "ClusterRole"], errors)), Each("subjects", SUBJECT)];
pub(super) const CLUSTER_ROLE_BINDING: Rules =
    &[Check(|binding, _, errors| role_ref(binding, &["ClusterRole"], errors)), Each("subjects", SUBJECT)];
const SUBJECT: Rules = &[Required("name", ""), Check(subject)];

pub(super) const VALIDATING_WEBHOOKS: Rules = &[Check(webhooks)];
pub(super) const MUTATING_WEBHOOKS: Rules =
    &[Each("webhooks", &[OneOf("reinvocationPolicy", &["IfNeeded", "Never"])]), Check(webhooks)];

pub(super) const PRIORITY_CLASS: Rules =
    &[Check(priority_class), OneOf("preemptionPolicy", &["PreemptLowerPriority", "Never"])];
pub(super) const LEASE: Rules = &[super::Rule::Below("spec", &[Check(duration), NotNegative("leaseTransitions")])];
pub(super) const RUNTIME_CLASS: Rules = &[Required("handler", ""), super::Rule::Name("handler", NameRule::Label)];

fn policy_rule(rule: &Object, at: &str, namespaced: bool, errors: &mut Errors) {
    if items(rule, "verbs").is_empty() {
        errors.push(FieldError::required(format!("{at}verbs"), "verbs must contain at least one value"));
    }
    if let Some(urls) = given(rule, "nonResourceURLs").filter(|urls| !super::is_empty(Some(urls))) {
        let both = !items(rule, "apiGroups").is_empty() || !items(rule, "resources").is_empty();
        let field = format!("{at}nonResourceURLs");
        if namespaced {
            errors.push(FieldError::invalid(field, urls, "namespaced rules cannot apply to non-resource URLs"));
        } else if both {
            let why = "rules cannot apply to both regular resources and non-resource URLs";
            errors.push(FieldError::invalid(field, urls, why));
        }
        return;
    }
    for (list, why) in [
        ("apiGroups", "resource rules must supply at least one api group"),
        ("resources", "resource rules must supply at least one resource"),
    ] {
        if items(rule, list).is_empty() {
            errors.push(FieldError::required(format!("{at}{list}"), why));
        }
    }
}

fn role_ref(binding: &Object, kinds: &[&str], errors: &mut Errors) {
    let role = child(binding, "roleRef");
    let group = text(role, "apiGroup");
    if !matches!(group, "" | RBAC) {
        errors.push(FieldError::not_supported("roleRef.apiGroup", group, &[RBAC]));
    }
    let kind = text(role, "kind");
    if !kinds.contains(&kind) {
        errors.push(FieldError::not_supported("roleRef.kind", kind, kinds));
    }
    if text(role, "name").is_empty() {
        errors.push(FieldError::required("roleRef.name", ""));
    }
}

fn subject(subject: &Object, at: &str, errors: &mut Errors) {
    let (kind, group) = (text(subject, "kind"), text(subject, "apiGroup"));
    let expected = match kind {
        "ServiceAccount" => "",
        "User" | "Group" => RBAC,
        _ => {
            let supported = ["ServiceAccount", "User", "Group"];
            return errors.push(FieldError::not_supported(format!("{at}kind"), kind, &supported));
        }
    };
    if group != expected {
        errors.push(FieldError::not_supported(format!("{at}apiGroup"), group, &[expected]));
    }
}

fn webhooks(configuration: &Object, _: &str, errors: &mut Errors) {
    let mut seen = std::collections::HashSet::new();
    for (position, webhook) in super::objects(configuration, "webhooks") {
        let at = format!("webhooks[{position}].");
        let name = text(webhook, "name");
        if !name.is_empty() && !seen.insert(name) {
            errors.push(FieldError::duplicate(format!("{at}name"), quoted(name)));
        }
        webhook_of(webhook, name, &at, errors);
    }
}

fn webhook_of(webhook: &Object, name: &str, at: &str, errors: &mut Errors) {
    match name {
        "" => errors.push(FieldError::required(format!("{at}name"), "")),
        name => {
            let before = errors.len();
            super::named(name, NameRule::Subdomain, &format!("{at}name"), errors);
            if errors.len() == before && name.split('.').count() < 3 {
                let why = "should be a domain with at least three segments separated by dots";
                errors.push(FieldError::invalid(format!("{at}name"), quoted(name), why));
            }
        }
    }
    for (position, rule) in super::objects(webhook, "rules") {
        let at = format!("{at}rules[{position}].");
        if items(rule, "operations").is_empty() {
            errors.push(FieldError::required(format!("{at}operations"), ""));
        }
        let supported = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
        for (position, operation) in items(rule, "operations").iter().enumerate() {
            let operation = operation.as_str().unwrap_or_default();
            if !supported.contains(&operation) {
                errors.push(FieldError::not_supported(format!("{at}operations[{position}]"), operation, &supported));
            }
        }
        for list in ["apiGroups", "apiVersions", "resources"] {
            if items(rule, list).is_empty() {
                errors.push(FieldError::required(format!("{at}{list}"), ""));
            }
        }
        super::one_of(rule, "scope", &at, &["*", "Cluster", "Namespaced"], errors);
    }
    super::one_of(webhook, "failurePolicy", at, &["Fail", "Ignore"], errors);
    super::one_of(webhook, "matchPolicy", at, &["Equivalent", "Exact"], errors);
    if text(webhook, "sideEffects").is_empty() {
        errors.push(FieldError::required(format!("{at}sideEffects"), "must specify one of None, NoneOnDryRun"));
    }
    super::one_of(webhook, "sideEffects", at, &["None", "NoneOnDryRun"], errors);
    if let Some(seconds) = number(webhook, "timeoutSeconds").filter(|seconds| !(1..=30).contains(seconds)) {
        let why = "the timeout value must be between 1 and 30 seconds";
        errors.push(FieldError::invalid(format!("{at}timeoutSeconds"), seconds, why));
    }
    client_config(child(webhook, "clientConfig"), at, errors);
    let versions = items(webhook, "admissionReviewVersions");
    let field = format!("{at}admissionReviewVersions");
    if versions.is_empty() {
        errors.push(FieldError::required(field, "must specify one of v1, v1beta1"));
    } else if !versions.iter().any(|version| version == "v1" || version == "v1beta1") {
        let shown = Value::from(versions.to_vec());
        errors.push(FieldError::invalid(field, shown, "must include at least one of v1, v1beta1"));
    }
}

fn client_config(config: &Object, at: &str, errors: &mut Errors) {
    let (url, service) = (given(config, "url").and_then(Value::as_str), given(config, "service"));
    if url.is_some() == service.is_some() {
        let why = "exactly one of url or service is required";
        return errors.push(FieldError::required(format!("{at}clientConfig"), why));
    }
    if let Some(url) = url {
        let mut wrong = |value: &str, why: &str| {
            errors.push(FieldError::invalid(format!("{at}clientConfig.url"), quoted(value), why))
        };
        let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
        if scheme != "https" {
            wrong(scheme, "'https' is the only allowed URL scheme; desired format: https://host[/path]");
        }
        let (rest, fragment) = url.split_once('#').map_or((url, ""), |(rest, fragment)| (rest, fragment));
        if !fragment.is_empty() {
            wrong(fragment, "fragments are not permitted in the URL");
        }
        if let Some((_, query)) = rest.split_once('?') {
            wrong(query, "query parameters are not permitted in the URL");
        }
    }
    if let Some(Value::Object(service)) = service {
        for member in ["name", "namespace"] {
            if text(service, member).is_empty() {
                let why = format!("service {member} is required");
                errors.push(FieldError::required(format!("{at}clientConfig.service.{member}"), why));
            }
        }
    }
}

/// The highest priority that is not the system's own.
const PRIORITY_MAX: i64 = 1_000_000_000;

fn priority_class(class: &Object, _: &str, errors: &mut Errors) {
    let name = text(child(class, "metadata"), "name");
    let value = number(class, "value").unwrap_or(0);
    if name.starts_with("system-") {
        let known = [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];
        if !known.contains(&(name, value)) {
            let why = format!(
                "priority class names with 'system-' prefix are reserved for system use only. error: {name} is not a known system priority class"
            );
            errors.push(FieldError::forbidden("metadata.name", why));
        }
    } else if value > PRIORITY_MAX {
        let why = format_args!("maximum allowed value of a user defined priority is {PRIORITY_MAX}");
        errors.push(FieldError::forbidden("value", why));
    }
}

fn duration(spec: &Object, at: &str, errors: &mut Errors) {
    if let Some(seconds) = number(spec, "leaseDurationSeconds").filter(|seconds| *seconds <= 0) {
        errors.push(FieldError::invalid(format!("{at}leaseDurationSeconds"), seconds, "must be greater than 0"));
    }
}
