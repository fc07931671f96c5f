//! The quality of service class of a pod.
//!
//! Source: `ComputePodQOS` in `pkg/apis/core/helper/qos/qos.go`.

use listwatch_json::Value;

/// Returns `Guaranteed`, `Burstable` or `BestEffort`, based on the requests and limits of CPU and memory.
pub fn quality_of_service(spec: Option<&Value>) -> &'static str {
    let lists = ["containers", "initContainers"];
    let containers = lists.iter().filter_map(|list| spec?.get(list)?.as_array()).flatten();
    let of_pod = spec.filter(|spec| spec.get("resources").is_some());
    let (mut any, mut guaranteed) = (false, true);
    for holder in of_pod.into_iter().chain(containers.filter(|_| of_pod.is_none())) {
        for resource in ["cpu", "memory"] {
            let amount = |kind: &str| {
                let amount = holder.pointer(&format!("/resources/{kind}/{resource}"));
                amount.filter(|amount| *amount != "0" && *amount != 0)
            };
            let (request, limit) = (amount("requests"), amount("limits"));
            any |= request.is_some() || limit.is_some();
            guaranteed &= limit.is_some() && (request.is_none() || are_equal(request, limit));
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// Whether two amounts are the same, also in different forms such as `1Gi` and `1073741824`.
fn are_equal(one: Option<&Value>, other: Option<&Value>) -> bool {
    let nanos = |amount: Option<&Value>| {
        amount.and_then(Value::as_str).and_then(|text| listwatch_meta::quantity::nanos(text).ok().flatten())
    };
    one == other || nanos(one).is_some_and(|amount| nanos(other) == Some(amount))
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;

    fn check_class(spec: Value, expected: &str) {
        assert_eq!(quality_of_service(Some(&spec)), expected, "{spec}");
    }

    #[test]
    fn quality_of_service_class_is_computed_from_requests_and_limits() {
        let both = |amount: &str| json!({"cpu": amount, "memory": amount});
        let containers = |containers: Value| json!({ "containers": containers });
        check_class(containers(json!([{}])), "BestEffort");
        let equal = json!({"limits": both("1"), "requests": both("1")});
        check_class(containers(json!([{"resources": equal}])), "Guaranteed");
        check_class(containers(json!([{"resources": {"limits": both("1")}}])), "Guaranteed");
        let other_form =
            json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1000m", "memory": "1073741824"}});
        check_class(containers(json!([{"resources": other_form}])), "Guaranteed");
        let less = json!({"limits": both("2"), "requests": both("1")});
        check_class(containers(json!([{"resources": less}])), "Burstable");
        check_class(containers(json!([{"resources": {"limits": both("1")}}, {}])), "Burstable");
        check_class(containers(json!([{"resources": {"requests": {"cpu": "1"}}}])), "Burstable");
        check_class(containers(json!([{"resources": {"requests": {"cpu": "0"}}}])), "BestEffort");
        check_class(json!({"resources": equal, "containers": [{"resources": less}]}), "Guaranteed");
    }
}
