//! Roles and their bindings (`pkg/apis/rbac/validation`).

use listwatch_schema::Path;
use serde_json::{Value, json};

use listwatch_validation::formats::{label_selector, path_segment, subdomain};
use listwatch_validation::{Errors, Object, child, given, is_same, items, objects, shown_list, text};

const GROUP: &str = "rbac.authorization.k8s.io";

pub(crate) fn role(role: &Object, _: Option<&Object>, errors: &mut Errors) {
    rules(role, true, errors);
}

pub(crate) fn cluster_role(role: &Object, _: Option<&Object>, errors: &mut Errors) {
    rules(role, false, errors);
    let Some(Value::Object(aggregation)) = given(role, "aggregationRule") else { return };
    let at = Path::root("aggregationRule");
    let at = at.child("clusterRoleSelectors");
    if items(aggregation, "clusterRoleSelectors").is_empty() {
        let why = "at least one clusterRoleSelector required if aggregationRule is non-nil";
        errors.required(&at, why);
    }
    for (position, selector) in items(aggregation, "clusterRoleSelectors").iter().enumerate() {
        let at = at.index(position);
        let before = errors.len();
        label_selector(Some(selector), true, &at, errors);
        if errors.len() > before {
            // Upstream shows the selector that it could not make.
            errors.invalid_value(&at, "null", "invalid label selector.");
        }
    }
}

fn rules(role: &Object, namespaced: bool, errors: &mut Errors) {
    let at = Path::root("rules");
    for (position, rule) in objects(role, "rules") {
        policy_rule(rule, namespaced, &at.index(position), errors);
    }
}

/// `ValidatePolicyRule`.
fn policy_rule(rule: &Object, namespaced: bool, at: &Path<'_>, errors: &mut Errors) {
    let none = |list: &str| items(rule, list).is_empty();
    if none("verbs") {
        errors.required(&at.child("verbs"), "verbs must contain at least one value");
    }
    if !none("nonResourceURLs") {
        let at = at.child("nonResourceURLs");
        let mut wrong = |why: &str| errors.invalid_value(&at, shown_list(rule, "nonResourceURLs"), why);
        if namespaced {
            wrong("namespaced rules cannot apply to non-resource URLs");
        }
        if !none("apiGroups") || !none("resources") || !none("resourceNames") {
            wrong("rules cannot apply to both regular resources and non-resource URLs");
        }
        return;
    }
    if none("apiGroups") {
        errors.required(&at.child("apiGroups"), "resource rules must supply at least one api group");
    }
    if none("resources") {
        errors.required(&at.child("resources"), "resource rules must supply at least one resource");
    }
}

pub(crate) fn role_binding(binding: &Object, _: Option<&Object>, errors: &mut Errors) {
    validate_binding(binding, &["Role", "ClusterRole"], errors);
}

pub(crate) fn cluster_role_binding(binding: &Object, _: Option<&Object>, errors: &mut Errors) {
    validate_binding(binding, &["ClusterRole"], errors);
}

fn validate_binding(binding: &Object, kinds: &[&str], errors: &mut Errors) {
    let role = child(binding, "roleRef");
    let at = Path::root("roleRef");
    // A role without a group is of this one.
    let group = text(role, "apiGroup");
    if !matches!(group, "" | GROUP) {
        errors.not_supported(&at.child("apiGroup"), group, &[GROUP]);
    }
    let kind = text(role, "kind");
    if !kinds.contains(&kind) {
        errors.not_supported(&at.child("kind"), kind, kinds);
    }
    match text(role, "name") {
        "" => errors.required(&at.child("name"), ""),
        name => path_segment(name, &at.child("name"), errors),
    }
    let at = Path::root("subjects");
    for (position, one) in objects(binding, "subjects") {
        subject(one, kinds.len() > 1, &at.index(position), errors);
    }
}

/// `ValidateRoleBindingSubject`.
fn subject(subject: &Object, namespaced: bool, at: &Path<'_>, errors: &mut Errors) {
    let (kind, name, group) = (text(subject, "kind"), text(subject, "name"), text(subject, "apiGroup"));
    if name.is_empty() {
        errors.required(&at.child("name"), "");
    }
    match kind {
        "ServiceAccount" => {
            if !name.is_empty() {
                subdomain(name, &at.child("name"), errors);
            }
            if !group.is_empty() {
                errors.not_supported(&at.child("apiGroup"), group, &[""]);
            }
            if !namespaced && text(subject, "namespace").is_empty() {
                errors.required(&at.child("namespace"), "");
            }
        }
        "User" | "Group" if group != GROUP => errors.not_supported(&at.child("apiGroup"), group, &[GROUP]),
        "User" | "Group" => {}
        _ => errors.not_supported(&at.child("kind"), kind, &["ServiceAccount", "User", "Group"]),
    }
}

/// What a binding binds to never changes.
pub(crate) fn update_binding(new: &Object, old: &Object, errors: &mut Errors) {
    if !is_same(new.get("roleRef"), old.get("roleRef")) {
        let role = child(new, "roleRef");
        let shown = json!({"APIGroup": text(role, "apiGroup"), "Kind": text(role, "kind"), "Name": text(role, "name")});
        errors.invalid_value(&Path::root("roleRef"), shown, "cannot change roleRef");
    }
}
