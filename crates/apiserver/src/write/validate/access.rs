//! Who may do what, who is asked before something is done, and small kinds of the machinery.

use listwatch_meta::FieldError;

use super::Rule::{Check, Each, NotNegative, OneOf, Required};
use super::{Errors, Object, Rules, child, given, items, number, text};
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
