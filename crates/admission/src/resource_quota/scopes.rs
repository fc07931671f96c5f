//! The scopes of a ResourceQuota (`PodMatchesScopeFunc` in `pkg/quota/v1/evaluator/core`).

use listwatch_validation::{Object, child, given, items, number, objects, text, texts};

use crate::amounts::amount;

/// One condition on the objects that a quota counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Requirement {
    scope: String,
    operator: String,
    values: Vec<String>,
}

impl Requirement {
    /// Reads one of the `matchExpressions` of a scope selector.
    pub(crate) fn read(object: &Object) -> Self {
        Requirement {
            scope: text(object, "scopeName").to_owned(),
            operator: text(object, "operator").to_owned(),
            values: texts(object, "values").map(str::to_owned).collect(),
        }
    }

    /// Formats the requirement for errors: `{PriorityClass In [high]}`.
    fn print(&self) -> String {
        format!("{{{} {} [{}]}}", self.scope, self.operator, self.values.join(" "))
    }

    /// Whether the value satisfies the requirement. An absent value satisfies `NotIn` and `DoesNotExist`.
    fn selects(&self, value: Option<&str>) -> bool {
        let is_listed = value.is_some_and(|value| self.values.iter().any(|listed| listed == value));
        match self.operator.as_str() {
            "In" => is_listed,
            "NotIn" => !is_listed,
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            _ => false,
        }
    }
}

/// Returns the requirements of a quota: its scopes, then its scope selector.
pub(super) fn requirements(quota: &Object) -> Vec<Requirement> {
    let spec = child(quota, "spec");
    let scopes = texts(spec, "scopes").map(|scope| Requirement {
        scope: scope.to_owned(),
        operator: "Exists".to_owned(),
        values: Vec::new(),
    });
    let selected = objects(child(spec, "scopeSelector"), "matchExpressions").map(|(_, one)| Requirement::read(one));
    scopes.chain(selected).collect()
}

/// Whether a pod ends by itself at a deadline.
pub(super) fn is_terminating(pod: &Object) -> bool {
    number(child(pod, "spec"), "activeDeadlineSeconds").is_some_and(|seconds| seconds >= 0)
}

/// Whether a pod satisfies one requirement.
pub(super) fn selects_pod(requirement: &Requirement, pod: &Object) -> bool {
    let spec = child(pod, "spec");
    match requirement.scope.as_str() {
        "Terminating" => is_terminating(pod),
        "NotTerminating" => !is_terminating(pod),
        "BestEffort" => is_best_effort(pod),
        "NotBestEffort" => !is_best_effort(pod),
        "PriorityClass" => requirement.selects(Some(text(spec, "priorityClassName")).filter(|name| !name.is_empty())),
        "CrossNamespacePodAffinity" => has_foreign_affinity(spec),
        _ => false,
    }
}

/// Whether a claim satisfies one requirement. The class is the requested or the current VolumeAttributesClass of the
/// claim.
pub(super) fn selects_claim(requirement: &Requirement, claim: &Object) -> bool {
    if requirement.scope != "VolumeAttributesClass" {
        return false;
    }
    let status = child(claim, "status");
    let names = [
        text(child(claim, "spec"), "volumeAttributesClassName"),
        text(status, "currentVolumeAttributesClassName"),
        text(child(status, "modifyVolumeStatus"), "targetVolumeAttributesClassName"),
    ];
    let mut names = names.into_iter().filter(|name| !name.is_empty()).peekable();
    match names.peek() {
        None => requirement.selects(None),
        Some(_) => names.any(|name| requirement.selects(Some(name))),
    }
}

/// Whether the QoS class of a pod is `BestEffort`: no container requests or limits CPU or memory, and nor does the pod.
/// Amounts of zero do not count. The amounts of a pod replace those of its containers (`GetPodQOS` in
/// `pkg/apis/core/helper/qos/qos.go`).
fn is_best_effort(pod: &Object) -> bool {
    let class = text(child(pod, "status"), "qosClass");
    if !class.is_empty() {
        return class == "BestEffort";
    }
    let uses = |holder: &Object| {
        let lists = ["requests", "limits"].map(|list| child(child(holder, "resources"), list));
        let values = lists.iter().flat_map(|list| ["cpu", "memory"].map(|name| list.get(name)));
        values.flatten().filter_map(amount).any(|amount| amount.nanos() > 0)
    };
    let spec = child(pod, "spec");
    match given(spec, "resources") {
        Some(_) => !uses(spec),
        None => !["containers", "initContainers"].iter().flat_map(|list| objects(spec, list)).any(|(_, one)| uses(one)),
    }
}

/// Whether an affinity term of the pod names other namespaces (`usesCrossNamespacePodAffinity`).
fn has_foreign_affinity(spec: &Object) -> bool {
    let is_foreign =
        |term: &Object| !items(term, "namespaces").is_empty() || given(term, "namespaceSelector").is_some();
    let affinity = child(spec, "affinity");
    ["podAffinity", "podAntiAffinity"].iter().map(|kind| child(affinity, kind)).any(|affinity| {
        let required = objects(affinity, "requiredDuringSchedulingIgnoredDuringExecution").map(|(_, term)| term);
        let preferred = objects(affinity, "preferredDuringSchedulingIgnoredDuringExecution");
        let preferred = preferred.map(|(_, weighted)| child(weighted, "podAffinityTerm"));
        required.chain(preferred).any(is_foreign)
    })
}

/// Formats the requirements of `wanted` that are not in `covered`, for errors.
pub(super) fn print_uncovered(wanted: &[&Requirement], covered: &[Requirement]) -> Option<String> {
    let is_covered = |wanted: &Requirement| covered.iter().any(|covered| covered.scope == wanted.scope);
    let open: Vec<String> = wanted.iter().filter(|one| !is_covered(one)).map(|one| one.print()).collect();
    (!open.is_empty()).then(|| format!("[{}]", open.join(" ")))
}

#[cfg(test)]
mod tests {
    use listwatch_json::{Value, json};

    use super::*;
    use crate::testing::object;

    fn check(scope: &str, operator: &str, values: Value, spec: Value, expected: bool) {
        let requirement =
            Requirement::read(&object(json!({"scopeName": scope, "operator": operator, "values": values})));
        let pod = object(json!({ "spec": spec }));
        assert_eq!(selects_pod(&requirement, &pod), expected, "{requirement:?} {pod:?}");
    }

    #[test]
    fn quota_scopes_select_pods_by_deadline_qos_priority_and_affinity() {
        let deadline = json!({"activeDeadlineSeconds": 0});
        check("Terminating", "Exists", json!([]), deadline.clone(), true);
        check("NotTerminating", "Exists", json!([]), deadline, false);
        check("NotTerminating", "Exists", json!([]), json!({}), true);
        let burstable = json!({"containers": [{"resources": {"requests": {"cpu": "1m"}}}]});
        let best_effort = json!({"containers": [{"resources": {"requests": {"cpu": "0", "example.com/x": "1"}}}]});
        check("BestEffort", "Exists", json!([]), best_effort.clone(), true);
        check("BestEffort", "Exists", json!([]), burstable.clone(), false);
        check("NotBestEffort", "Exists", json!([]), burstable, true);
        check("NotBestEffort", "Exists", json!([]), best_effort, false);
        for (resources, expected) in [
            (json!({"requests": {"cpu": "0"}, "limits": {"cpu": "4"}}), false),
            (json!({"requests": {"cpu": "1"}, "limits": {"cpu": "0"}}), false),
            (json!({"requests": {"cpu": "0"}, "limits": {"memory": "1"}}), false),
            (json!({"requests": {"cpu": "0"}, "limits": {"cpu": 0}}), true),
        ] {
            let containers = json!([{"resources": resources}]);
            check("BestEffort", "Exists", json!([]), json!({"containers": containers}), expected);
            check("BestEffort", "Exists", json!([]), json!({"initContainers": containers}), expected);
            check("NotBestEffort", "Exists", json!([]), json!({"containers": containers}), !expected);
            // The amounts of the pod replace those of the containers.
            let own = json!({"resources": resources, "containers": [{"resources": {"requests": {"cpu": "1"}}}]});
            check("BestEffort", "Exists", json!([]), own, expected);
        }
        let pod =
            object(json!({"status": {"qosClass": "BestEffort"}, "spec": {"resources": {"limits": {"cpu": "1"}}}}));
        assert!(is_best_effort(&pod), "a stored class is not computed again");
        let high = json!({"priorityClassName": "high"});
        for (operator, values, with_class, without) in [
            ("Exists", json!([]), true, false),
            ("DoesNotExist", json!([]), false, true),
            ("In", json!(["high"]), true, false),
            ("In", json!(["low"]), false, false),
            ("NotIn", json!(["high"]), false, true),
        ] {
            check("PriorityClass", operator, values.clone(), high.clone(), with_class);
            check("PriorityClass", operator, values, json!({}), without);
        }
        let term = |term: Value| json!({"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"podAffinityTerm": term}]}}});
        check("CrossNamespacePodAffinity", "Exists", json!([]), term(json!({"namespaceSelector": {}})), true);
        check("CrossNamespacePodAffinity", "Exists", json!([]), term(json!({})), false);
    }

    #[test]
    fn volume_attributes_class_scope_selects_claims_by_requested_and_current_class() {
        let requirement = |operator: &str, values: Value| {
            Requirement::read(&object(
                json!({"scopeName": "VolumeAttributesClass", "operator": operator, "values": values}),
            ))
        };
        let claim = object(
            json!({"spec": {"volumeAttributesClassName": "a"}, "status": {"currentVolumeAttributesClassName": "b"}}),
        );
        for (operator, values, expected) in
            [("In", json!(["b"]), true), ("In", json!(["c"]), false), ("DoesNotExist", json!([]), false)]
        {
            assert_eq!(selects_claim(&requirement(operator, values), &claim), expected, "{operator}");
        }
        assert!(selects_claim(&requirement("DoesNotExist", json!([])), &Object::new()));
    }
}
