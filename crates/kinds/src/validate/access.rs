//! Small kinds of the machinery: priority classes, leases, runtime classes (`pkg/apis/{scheduling,coordination,
//! node}/validation`).

use std::collections::{BTreeSet, HashSet};

use listwatch_schema::Path;
use serde_json::{Map, Value, json};

use listwatch_validation::field_rules::immutable;
use listwatch_validation::formats::{self, NOT_NEGATIVE, label};
use listwatch_validation::pod_spec;
use listwatch_validation::{Errors, Object, child, given, is_true, items, number, objects, text};

/// The highest priority that is not the system's own.
const PRIORITY_MAX: i64 = 1_000_000_000;
/// The classes that every cluster has, and their priorities.
const SYSTEM_CLASSES: [(&str, i64); 2] =
    [("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)];

/// `ValidatePriorityClass`; of an update, only [`update_priority_class`] is asked.
pub(crate) fn priority_class(class: &Object, old: Option<&Object>, errors: &mut Errors) {
    if old.is_some() {
        return;
    }
    let name = text(child(class, "metadata"), "name");
    let value = number(class, "value").unwrap_or(0);
    if name.starts_with("system-") {
        let why = match SYSTEM_CLASSES.iter().find(|(known, _)| *known == name) {
            None => Some(format!("{name} is not a known system priority class")),
            Some((_, known)) if *known != value => Some(format!("value of {name} PriorityClass must be {known}")),
            Some(_) => {
                is_true(class, "globalDefault").then(|| format!("globalDefault of {name} PriorityClass must be false"))
            }
        };
        if let Some(why) = why {
            let at = Path::root("metadata");
            let reserved = "priority class names with 'system-' prefix are reserved for system use only. error: ";
            errors.forbidden(&at.child("name"), &format!("{reserved}{why}"));
        }
    } else if value > PRIORITY_MAX {
        let why = format!("maximum allowed value of a user defined priority is {PRIORITY_MAX}");
        errors.forbidden(&Path::root("value"), &why);
    }
    let policy = text(class, "preemptionPolicy");
    if !matches!(policy, "" | "PreemptLowerPriority" | "Never") {
        let supported = ["PreemptLowerPriority", "Never"];
        errors.not_supported(&Path::root("preemptionPolicy"), policy, &supported);
    }
}

/// A class keeps its priority and whom it preempts.
pub(crate) fn update_priority_class(new: &Object, old: &Object, errors: &mut Errors) {
    if number(new, "value").unwrap_or(0) != number(old, "value").unwrap_or(0) {
        errors.forbidden(&Path::root("value"), "may not be changed in an update.");
    }
    immutable(new, old, "", "preemptionPolicy", errors);
}

/// `ValidateLeaseSpec`, without what only leases of the feature CoordinatedLeaderElection have.
pub(crate) fn lease(lease: &Object, _: Option<&Object>, errors: &mut Errors) {
    let (spec, at) = (child(lease, "spec"), Path::root("spec"));
    if let Some(seconds) = number(spec, "leaseDurationSeconds").filter(|seconds| *seconds <= 0) {
        errors.invalid_value(&at.child("leaseDurationSeconds"), seconds, "must be greater than 0");
    }
    if let Some(count) = number(spec, "leaseTransitions").filter(|count| *count < 0) {
        errors.invalid_value(&at.child("leaseTransitions"), count, NOT_NEGATIVE);
    }
}

/// `ValidateRuntimeClass`; of an update, only [`update_runtime_class`] is asked.
pub(crate) fn runtime_class(class: &Object, old: Option<&Object>, errors: &mut Errors) {
    if old.is_some() {
        return;
    }
    match text(class, "handler") {
        "" => errors.required(&Path::root("handler"), ""),
        handler => label(handler, &Path::root("handler"), errors),
    }
    if let Some(Value::Object(overhead)) = given(class, "overhead") {
        let mut limits = Map::new();
        limits.insert("limits".to_owned(), overhead.get("podFixed").cloned().unwrap_or_default());
        pod_spec::container_resources(&limits, &BTreeSet::new(), &Path::root("overhead"), errors);
    }
    let Some(Value::Object(scheduling)) = given(class, "scheduling") else { return };
    let at = Path::root("scheduling");
    formats::labels(scheduling, "nodeSelector", &at.child("nodeSelector"), errors);
    let at = at.child("tolerations");
    pod_spec::tolerations(items(scheduling, "tolerations"), &at, errors);
    let mut seen = HashSet::new();
    for (position, toleration) in objects(scheduling, "tolerations") {
        let [key, operator, value, effect] = ["key", "operator", "value", "effect"].map(|name| text(toleration, name));
        if !seen.insert((key, operator, value, effect)) {
            let shown = json!({"Key": key, "Operator": operator, "Value": value, "Effect": effect,
                "TolerationSeconds": toleration.get("tolerationSeconds")});
            errors.push(listwatch_meta::FieldError::duplicate(at.index(position), shown));
        }
    }
}

/// A class keeps its handler.
pub(crate) fn update_runtime_class(new: &Object, old: &Object, errors: &mut Errors) {
    immutable(new, old, "", "handler", errors);
}
