//! The rules that ClusterRoleBinding and RoleBinding share.
//!
//! Source: `pkg/apis/rbac/validation`, `pkg/apis/rbac/v1/defaults.go`.

use listwatch_json::{Value, json};
use listwatch_schema::Path;
use listwatch_validation::field_rules::one_of;
use listwatch_validation::formats::{path_segment, subdomain};
use listwatch_validation::{Errors, Object, child, is_same, objects, text};

use crate::defaults::Default::{Each, From, If, Text};
use crate::defaults::Defaults;
use listwatch_printers::Printer;
use listwatch_printers::{AGE, Column, Json, NAME};

const GROUP: &str = "rbac.authorization.k8s.io";

static ROLE_REF: Defaults = Defaults(&[("apiGroup", Text(GROUP))]);

static SUBJECT: Defaults = Defaults(&[(
    "apiGroup",
    From(|subject| matches!(subject.get("kind").and_then(Value::as_str), Some("User" | "Group")).then(|| json!(GROUP))),
)]);

pub(crate) static DEFAULTS: Defaults = Defaults(&[("roleRef", If(&ROLE_REF)), ("subjects", Each(&SUBJECT))]);

/// Validates a binding. `kinds` lists the kinds of roles to which the binding can refer.
pub(crate) fn validate_binding(binding: &Object, kinds: &[&str], errors: &mut Errors) {
    let role = child(binding, "roleRef");
    let at = Path::root("roleRef");
    // Defaults set the group.
    one_of(role, "apiGroup", &[GROUP], &at, errors);
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

/// Validates a subject (`ValidateRoleBindingSubject`).
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

/// Reports a changed `roleRef`, which is immutable.
pub(crate) fn validate_update(new: &Object, old: &Object, errors: &mut Errors) {
    if !is_same(new.get("roleRef"), old.get("roleRef")) {
        let role = child(new, "roleRef");
        let shown = json!({"APIGroup": text(role, "apiGroup"), "Kind": text(role, "kind"), "Name": text(role, "name")});
        errors.invalid_value(&Path::root("roleRef"), shown, "cannot change roleRef");
    }
}

pub(crate) static PRINTER: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Role", "The role that is granted."),
        AGE,
        Column::wide("Users", "The users who get it."),
        Column::wide("Groups", "The groups that get it."),
        Column::wide("ServiceAccounts", "The service accounts that get it."),
    ],
    cells: |binding| {
        let role = binding.get("roleRef");
        let subjects = binding.get("subjects").items();
        let of_kind = |kind: &str| {
            let name = |subject: &Json<'_>| match kind {
                "ServiceAccount" => format!("{}/{}", subject.get("namespace").string(), subject.get("name").string()),
                _ => subject.get("name").string(),
            };
            subjects.iter().filter(|s| s.get("kind").is(kind)).map(name).collect::<Vec<_>>().join(", ")
        };
        vec![
            binding.name().into(),
            format!("{}/{}", role.get("kind").string(), role.get("name").string()).into(),
            binding.age().into(),
            of_kind("User").into(),
            of_kind("Group").into(),
            of_kind("ServiceAccount").into(),
        ]
    },
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::check_defaults;

    #[test]
    fn api_group_of_role_ref_and_subjects_has_a_default() {
        let user = json!({"kind": "User", "name": "u"});
        let account = json!({"kind": "ServiceAccount", "name": "s"});
        check_defaults(
            &crate::rbac::role_binding::KIND,
            json!({"roleRef": {"kind": "Role", "name": "r"}, "subjects": [user, account]}),
            json!({"roleRef": {"kind": "Role", "name": "r", "apiGroup": GROUP},
                "subjects": [{"kind": "User", "name": "u", "apiGroup": GROUP}, account]}),
        );
    }
}
