//! The rules that ClusterRole and Role share.
//!
//! Source: `ValidatePolicyRule` in `pkg/apis/rbac/validation`.

use listwatch_schema::Path;
use listwatch_validation::{Errors, Object, items, objects, shown_list};

use crate::defaults::Default::From;
use crate::defaults::Defaults;

/// The default of `rules`: Go prints absent rules as `null`.
pub(crate) static DEFAULTS: Defaults = Defaults(&[("rules", From(|_| Some(listwatch_json::Value::Null)))]);

/// Validates the rules of a role. `namespaced` is true for a Role and false for a ClusterRole.
pub(crate) fn validate_rules(role: &Object, namespaced: bool, errors: &mut Errors) {
    let at = Path::root("rules");
    for (position, rule) in objects(role, "rules") {
        policy_rule(rule, namespaced, &at.index(position), errors);
    }
}

/// Validates one rule.
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
