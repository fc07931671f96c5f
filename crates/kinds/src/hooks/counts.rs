//! Statuses that count: no count is below zero, none of a part above that of the whole
//! (`Validate*Status` in `pkg/apis/{apps,core}/validation`).

use listwatch_meta::FieldError;
use serde_json::Value;

use crate::Subresource;
use crate::kind::UpdateContext;
use listwatch_validation::Errors;
use listwatch_validation::Object;

/// What a kind counts, in the order in which kube-apiserver looks.
pub(crate) struct Counts {
    /// Not below zero.
    members: &'static [&'static str],
    /// The first is not above the second, which the detail names so.
    parts: &'static [(&'static str, &'static str, &'static str)],
    /// Not below what it was.
    grows: &'static str,
}

const REPLICAS: &str = "status.replicas";

pub(crate) const DEPLOYMENT: Counts = Counts {
    members: &[
        "observedGeneration",
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
        "unavailableReplicas",
        "terminatingReplicas",
        "collisionCount",
    ],
    parts: &[
        ("updatedReplicas", "replicas", REPLICAS),
        ("readyReplicas", "replicas", REPLICAS),
        ("availableReplicas", "replicas", REPLICAS),
        ("availableReplicas", "readyReplicas", "readyReplicas"),
    ],
    grows: "collisionCount",
};

pub(crate) const REPLICA_SET: Counts = Counts {
    members: &[
        "replicas",
        "fullyLabeledReplicas",
        "readyReplicas",
        "availableReplicas",
        "observedGeneration",
        "terminatingReplicas",
    ],
    parts: &[
        ("fullyLabeledReplicas", "replicas", REPLICAS),
        ("readyReplicas", "replicas", REPLICAS),
        ("availableReplicas", "replicas", REPLICAS),
        ("availableReplicas", "readyReplicas", "readyReplicas"),
    ],
    grows: "",
};

pub(crate) const REPLICATION_CONTROLLER: Counts = Counts {
    members: &["replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas", "observedGeneration"],
    parts: &[
        ("fullyLabeledReplicas", "replicas", REPLICAS),
        ("readyReplicas", "replicas", REPLICAS),
        ("availableReplicas", "replicas", REPLICAS),
        ("availableReplicas", "readyReplicas", "readyReplicas"),
    ],
    grows: "",
};

pub(crate) const STATEFUL_SET: Counts = Counts {
    members: &[
        "replicas",
        "readyReplicas",
        "currentReplicas",
        "updatedReplicas",
        "availableReplicas",
        "observedGeneration",
        "collisionCount",
    ],
    parts: &[
        ("readyReplicas", "replicas", REPLICAS),
        ("currentReplicas", "replicas", REPLICAS),
        ("updatedReplicas", "replicas", REPLICAS),
        ("availableReplicas", "replicas", REPLICAS),
        ("availableReplicas", "readyReplicas", "status.readyReplicas"),
    ],
    grows: "collisionCount",
};

pub(crate) const DAEMON_SET: Counts = Counts {
    members: &[
        "currentNumberScheduled",
        "numberMisscheduled",
        "desiredNumberScheduled",
        "numberReady",
        "observedGeneration",
        "updatedNumberScheduled",
        "numberAvailable",
        "numberUnavailable",
        "collisionCount",
    ],
    parts: &[],
    grows: "collisionCount",
};

impl Counts {
    /// Finds what is wrong with the counts of a status that is written.
    pub(crate) fn judge(&self, new: &Object, old: &Object, context: UpdateContext<'_>, errors: &mut Errors) {
        if context.subresource != Some(&Subresource::Status) {
            return;
        }
        let count = |object: &Object, name: &str| {
            object.get("status").and_then(|status| status.get(name)).and_then(Value::as_i64).unwrap_or(0)
        };
        let mut wrong = |name: &str, why: String| {
            errors.push(FieldError::invalid(format!("status.{name}"), count(new, name), why));
        };
        for name in self.members.iter().filter(|name| count(new, name) < 0) {
            wrong(name, "must be greater than or equal to 0".to_owned());
        }
        for (of, whole, shown) in self.parts {
            if count(new, of) > count(new, whole) {
                wrong(of, format!("cannot be greater than {shown}"));
            }
        }
        if !self.grows.is_empty() && count(new, self.grows) < count(old, self.grows) {
            wrong(self.grows, "cannot be decremented".to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::judged;

    fn check(group: &str, kind: &str, status: Value, expected: &[&str]) {
        let old = json!({"status": {"collisionCount": 2}});
        let found = judged(group, kind, json!({ "status": status }), old.clone(), Some(&Subresource::Status));
        assert_eq!(found, expected, "{kind} {status}");
        assert_eq!(judged(group, kind, json!({ "status": status }), old, None), [""; 0], "only a status is judged");
    }

    #[test]
    fn parts_are_not_above_the_whole() {
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
            let labelled = "status.fullyLabeledReplicas: Invalid value: 1: cannot be greater than status.replicas";
            check(group, kind, json!({"fullyLabeledReplicas": 1}), &[labelled]);
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
