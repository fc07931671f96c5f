//! Validates the counts of pods in the status of workloads.
//!
//! Source: `Validate*Status` in `pkg/apis/apps/validation` and `pkg/apis/core/validation` of Kubernetes v1.36.

use listwatch_json::Value;
use listwatch_meta::FieldError;

use crate::Subresource;
use crate::UpdateContext;
use listwatch_validation::{Errors, Object};

/// The rules for the counts in a status, in the order in which kube-apiserver checks them.
pub(crate) struct StatusCounts {
    /// The counts that must not be negative.
    pub(crate) not_negative: &'static [&'static str],
    /// Pairs of counts, of which the first must not exceed the second. The third text is the name of the second count
    /// in errors.
    pub(crate) at_most: &'static [(&'static str, &'static str, &'static str)],
    /// The count that an update cannot decrease, or an empty string.
    pub(crate) never_decreases: &'static str,
}

/// The name of the total count in errors.
pub(crate) const REPLICAS: &str = "status.replicas";

impl StatusCounts {
    /// Validates a write of the status.
    pub(crate) fn validate_transition(
        &self,
        new: &Object,
        old: &Object,
        context: UpdateContext<'_>,
        errors: &mut Errors,
    ) {
        if context.subresource != Some(&Subresource::Status) {
            return;
        }
        let count = |object: &Object, name: &str| {
            object.get("status").and_then(|status| status.get(name)).and_then(Value::as_i64).unwrap_or(0)
        };
        let mut wrong = |name: &str, why: String| {
            errors.push(FieldError::invalid(format!("status.{name}"), count(new, name), why));
        };
        for name in self.not_negative.iter().filter(|name| count(new, name) < 0) {
            wrong(name, "must be greater than or equal to 0".to_owned());
        }
        for (of, whole, shown) in self.at_most {
            if count(new, of) > count(new, whole) {
                wrong(of, format!("cannot be greater than {shown}"));
            }
        }
        if !self.never_decreases.is_empty() && count(new, self.never_decreases) < count(old, self.never_decreases) {
            wrong(self.never_decreases, "cannot be decremented".to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;
    use crate::testing::transition_errors;

    fn check(group: &str, kind: &str, status: Value, expected: &[&str]) {
        let kind = crate::find(group, kind).unwrap();
        let old = json!({"status": {"collisionCount": 2}});
        let errors = |subresource| transition_errors(kind, json!({ "status": status }), old.clone(), subresource);
        assert_eq!(errors(Some(&Subresource::Status)), expected, "{kind:?} {status}");
        assert_eq!(errors(None), [""; 0], "only writes of the status are validated");
    }

    #[test]
    fn status_update_rejects_negative_and_inconsistent_counts() {
        check("apps", "Deployment", json!({"replicas": 2, "readyReplicas": 2, "collisionCount": 2}), &[]);
        check(
            "apps",
            "Deployment",
            json!({"replicas": 1, "updatedReplicas": 2, "availableReplicas": 1, "unavailableReplicas": -1}),
            &[
                "status.unavailableReplicas: Invalid value: -1: must be greater than or equal to 0",
                "status.updatedReplicas: Invalid value: 2: cannot be greater than status.replicas",
                "status.availableReplicas: Invalid value: 1: cannot be greater than readyReplicas",
                "status.collisionCount: Invalid value: 0: cannot be decremented",
            ],
        );
        for (group, kind) in [("", "ReplicationController"), ("apps", "ReplicaSet")] {
            let labeled = "status.fullyLabeledReplicas: Invalid value: 1: cannot be greater than status.replicas";
            check(group, kind, json!({"fullyLabeledReplicas": 1}), &[labeled]);
        }
        check(
            "apps",
            "StatefulSet",
            json!({"replicas": 1, "availableReplicas": 1, "collisionCount": 2}),
            &["status.availableReplicas: Invalid value: 1: cannot be greater than status.readyReplicas"],
        );
        let negative = "status.numberReady: Invalid value: -1: must be greater than or equal to 0";
        check("apps", "DaemonSet", json!({"numberReady": -1, "collisionCount": 3}), &[negative]);
    }
}
