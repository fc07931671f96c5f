//! Fields that never change once the object exists, as a table by kind (`pkg/apis/*/validation`).

use listwatch_meta::FieldError;
use serde_json::{Map, Value};

use super::store::at;
use super::validate::Errors;

const FIELDS: [(&str, &str, &[&str]); 9] = [
    ("apps", "DaemonSet", &["spec.selector"]),
    ("apps", "Deployment", &["spec.selector"]),
    ("apps", "ReplicaSet", &["spec.selector"]),
    ("apps", "ControllerRevision", &["data"]),
    ("batch", "Job", &["spec.selector", "spec.template", "spec.completionMode"]),
    ("rbac.authorization.k8s.io", "ClusterRoleBinding", &["roleRef"]),
    ("rbac.authorization.k8s.io", "RoleBinding", &["roleRef"]),
    ("scheduling.k8s.io", "PriorityClass", &["value", "preemptionPolicy"]),
    ("", "Secret", &["type"]),
];

/// Finds changes of what never changes.
pub(super) fn validate(
    group: &str,
    kind: &str,
    new: &Map<String, Value>,
    old: &Map<String, Value>,
    errors: &mut Errors,
) {
    let fields = FIELDS.iter().find(|(g, k, _)| *g == group && *k == kind).map_or(&[][..], |(.., fields)| fields);
    for field in fields {
        let (before, after) = (at(old, field), at(new, field));
        if before.is_some_and(|before| !before.is_null()) && before != after {
            errors.push(FieldError::invalid(*field, after.unwrap_or(&Value::Null), "field is immutable"));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::kinds::map;
    use super::*;

    fn check(group: &str, kind: &str, new: Value, old: Value, expected: &[&str]) {
        let mut errors = Errors::default();
        validate(group, kind, &map(new), &map(old), &mut errors);
        let found: Vec<String> = errors.iter().map(FieldError::to_string).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn what_never_changes() {
        let selector = |value: &str| json!({"spec": {"selector": {"matchLabels": {"a": value}}}});
        check("apps", "Deployment", selector("b"), selector("b"), &[]);
        let refused = "spec.selector: Invalid value: {\"matchLabels\":{\"a\":\"c\"}}: field is immutable";
        check("apps", "Deployment", selector("c"), selector("b"), &[refused]);
        let refused = "type: Invalid value: \"b\": field is immutable";
        check("", "Secret", json!({"type": "b"}), json!({"type": "a"}), &[refused]);
        check("", "ConfigMap", json!({"data": {"a": "2"}}), json!({"data": {"a": "1"}}), &[]);
    }
}
