//! [`Amounts`]: quantities by resource name (`ResourceList`), and sums of them over the containers of a pod.
//!
//! Sources: `apiserver/pkg/quota/v1/resources.go`, `component-helpers/resource/helpers.go`.

use std::collections::BTreeMap;

use listwatch_json::Value;
use listwatch_meta::quantity::Quantity;
use listwatch_validation::resource_names::is_huge_page;
use listwatch_validation::{Object, child, items, objects, text};

/// Quantities by resource name.
pub(crate) type Amounts = BTreeMap<String, Quantity>;

/// Reads a list of resources. Values that are not quantities are omitted; validation rejects them.
pub(crate) fn amounts(list: &Object) -> Amounts {
    list.iter().filter_map(|(name, value)| Some((name.as_str().to_owned(), amount(value)?))).collect()
}

/// Reads one quantity.
pub(crate) fn amount(value: &Value) -> Option<Quantity> {
    match value {
        Value::String(text) => Quantity::parse(text),
        Value::Number(number) => Quantity::parse(&number.to_string()),
        _ => None,
    }
}

/// Returns the quantities as a JSON object.
pub(crate) fn to_json(amounts: &Amounts) -> Value {
    Value::Object(amounts.iter().map(|(name, amount)| (name.clone(), Value::from(amount.to_string()))).collect())
}

/// Adds the amounts of `other` to `sum`.
pub(crate) fn add(sum: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        let entry = sum.entry(name.clone()).or_insert(Quantity::ZERO);
        *entry = entry.plus(*amount);
    }
}

/// Sets each amount in `max` to the larger of its value and the amount in `other`.
pub(crate) fn raise(max: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        let entry = max.entry(name.clone()).or_insert(*amount);
        *entry = (*entry).max(*amount);
    }
}

/// Formats the quantities as `name=amount`, joined by commas (`prettyPrint`).
pub(crate) fn print(amounts: &Amounts) -> String {
    amounts.iter().map(|(name, amount)| format!("{name}={amount}")).collect::<Vec<_>>().join(",")
}

/// The requests and limits of a whole pod.
#[derive(Debug, Default)]
pub(crate) struct PodAmounts {
    pub(crate) requests: Amounts,
    pub(crate) limits: Amounts,
}

/// Computes the requests and limits of a pod: the sum of the containers, or the largest sum of an init container and
/// the sidecars before it. Pod-level amounts replace the sums (`PodRequests`, `PodLimits`). `for_quota` also counts the
/// overhead of the runtime class, and resources that a pending resize has not released.
pub(crate) fn of_pod(pod: &Object, for_quota: bool) -> PodAmounts {
    let spec = child(pod, "spec");
    let mut sums =
        PodAmounts { requests: sum_of(pod, "requests", for_quota), limits: sum_of(pod, "limits", for_quota) };
    if for_quota {
        let overhead = amounts(child(spec, "overhead"));
        add(&mut sums.requests, &overhead);
        for (name, amount) in overhead {
            // Without a limit, the pod is not limited at all.
            if let Some(limit) = sums.limits.get_mut(&name).filter(|limit| limit.nanos() != 0) {
                *limit = limit.plus(amount);
            }
        }
    }
    sums
}

fn sum_of(pod: &Object, list: &str, with_status: bool) -> Amounts {
    let spec = child(pod, "spec");
    let of = |container: &Object| container_amounts(pod, container, list, with_status);
    let (mut sum, mut sidecars, mut init) = (Amounts::new(), Amounts::new(), Amounts::new());
    for (_, container) in objects(spec, "containers") {
        add(&mut sum, &of(container));
    }
    for (_, container) in objects(spec, "initContainers") {
        let mut amounts = of(container);
        if text(container, "restartPolicy") == "Always" {
            add(&mut sum, &amounts);
            add(&mut sidecars, &amounts);
            amounts.clone_from(&sidecars);
        } else {
            add(&mut amounts, &sidecars);
        }
        raise(&mut init, &amounts);
    }
    raise(&mut sum, &init);
    for (name, amount) in amounts(child(child(spec, "resources"), list)) {
        if name == "cpu" || name == "memory" || is_huge_page(&name) {
            sum.insert(name, amount);
        }
    }
    sum
}

/// The amounts of one container. While a pod is resized, the larger amount of its request and its current allocation
/// counts.
fn container_amounts(pod: &Object, container: &Object, list: &str, with_status: bool) -> Amounts {
    let mut sum = amounts(child(child(container, "resources"), list));
    if !with_status {
        return sum;
    }
    let status = child(pod, "status");
    let name = text(container, "name");
    let lists = ["containerStatuses", "initContainerStatuses"];
    let mut statuses = lists.iter().flat_map(|list| items(status, list)).filter_map(Value::as_object);
    let Some(found) = statuses.find(|found| text(found, "name") == name) else { return sum };
    let Some(Value::Object(actual)) = found.get("resources") else { return sum };
    let infeasible = objects(status, "conditions").any(|(_, condition)| {
        text(condition, "type") == "PodResizePending" && text(condition, "reason") == "Infeasible"
    });
    if infeasible {
        sum = Amounts::new();
    }
    raise(&mut sum, &amounts(child(actual, list)));
    if list == "requests" {
        raise(&mut sum, &amounts(child(found, "allocatedResources")));
    }
    sum
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;

    fn check(pod: Value, for_quota: bool, requests: &str, limits: &str) {
        let Value::Object(object) = &pod else { unreachable!("it is an object") };
        let found = of_pod(object, for_quota);
        assert_eq!((print(&found.requests), print(&found.limits)), (requests.to_owned(), limits.to_owned()), "{pod}");
    }

    fn container(name: &str, cpu: &str) -> Value {
        json!({"name": name, "resources": {"requests": {"cpu": cpu}}})
    }

    #[test]
    fn pod_amounts_are_the_larger_of_container_sum_and_init_container_with_sidecars() {
        check(json!({"spec": {"containers": [container("a", "1"), container("b", "500m")]}}), false, "cpu=1500m", "");
        let init = json!([container("i", "2")]);
        check(json!({"spec": {"containers": [container("a", "1")], "initContainers": init}}), false, "cpu=2", "");
        let mut sidecar = container("s", "1");
        sidecar["restartPolicy"] = json!("Always");
        let init = json!([sidecar, container("i", "2")]);
        check(json!({"spec": {"containers": [container("a", "1")], "initContainers": init}}), false, "cpu=3", "");
        let init = json!([container("i", "2"), sidecar]);
        check(json!({"spec": {"containers": [container("a", "1")], "initContainers": init}}), false, "cpu=2", "");
        let pod = json!({"spec": {"containers": [container("a", "1")], "resources": {"requests": {"cpu": "4"}}}});
        check(pod, false, "cpu=4", "");
    }

    #[test]
    fn quota_amounts_include_overhead_and_resources_of_a_pending_resize() {
        let limited = json!({"name": "a", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}});
        let spec = json!({"containers": [limited], "overhead": {"cpu": "100m", "memory": "1Mi"}});
        check(json!({ "spec": spec }), true, "cpu=1100m,memory=1Mi", "cpu=2100m");
        check(json!({ "spec": spec }), false, "cpu=1", "cpu=2");
        let status = json!({"containerStatuses": [{"name": "a", "resources": {"requests": {"cpu": "3"}}}]});
        let pod = json!({"spec": {"containers": [container("a", "1")]}, "status": status});
        check(pod.clone(), true, "cpu=3", "");
        check(pod, false, "cpu=1", "");
        let infeasible = json!({"conditions": [{"type": "PodResizePending", "reason": "Infeasible"}],
            "containerStatuses": [{"name": "a", "resources": {"requests": {"cpu": "1"}}}]});
        check(json!({"spec": {"containers": [container("a", "9")]}, "status": infeasible}), true, "cpu=1", "");
    }
}
