//! LimitRanger: sets and limits the resources of pods and claims by the LimitRanges of their namespace
//! (`plugin/pkg/admission/limitranger`).

use std::collections::BTreeMap;

use listwatch_json::{JsonString, Value};
use listwatch_meta::Status;
use listwatch_meta::quantity::Quantity;
use listwatch_validation::{Object, child, child_mut, metadata_mut, objects, text};

use super::amounts::{Amounts, amounts, of_pod};
use super::plugin::{Mutator, Validator};
use super::{AdmissionRequest, LISTED_MAX, Operation, aggregate};

/// The annotation that lists the defaults that the plugin has set.
const ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// The plugin that enforces LimitRanges.
pub(super) struct LimitRanger;

impl LimitRanger {
    /// Returns the LimitRanges of the namespace of the request.
    async fn ranges(request: &AdmissionRequest<'_>, object: &Object) -> Result<Vec<Object>, Status> {
        let listed = request.objects.list("", "v1", "limitranges", request.namespace, LISTED_MAX).await;
        let ranges = listed.and_then(|listed| listed.all("limitranges"));
        ranges.map_err(|_| {
            let (operation, version) = (request.operation.as_str(), request.version);
            let resource = format_args!("{}/{version}, Resource={}", request.group, request.resource);
            let why = format_args!(
                "unable to {operation} {resource} at this time because there was an error enforcing limit ranges"
            );
            request.forbid(object, why)
        })
    }

    fn applies(request: &AdmissionRequest<'_>) -> bool {
        let writes = matches!(request.operation, Operation::Create | Operation::Update);
        let concerns = match (request.resource, request.subresource) {
            ("pods", None) => request.operation == Operation::Create,
            ("pods", Some("resize")) => request.operation == Operation::Update,
            ("persistentvolumeclaims", None) => writes,
            _ => false,
        };
        concerns && request.group.is_empty() && !request.is_old_object_deleting()
    }
}

impl Mutator for LimitRanger {
    const NAME: &'static str = "LimitRanger";

    fn concerns(request: &AdmissionRequest<'_>) -> bool {
        request.resource == "pods" && LimitRanger::applies(request)
    }

    async fn mutate(&self, request: &AdmissionRequest<'_>, object: &mut Object) -> Result<(), Status> {
        for range in LimitRanger::ranges(request, object).await? {
            set_defaults(&range, object);
        }
        Ok(())
    }
}

impl Validator for LimitRanger {
    const NAME: &'static str = "LimitRanger";

    fn concerns(request: &AdmissionRequest<'_>) -> bool {
        LimitRanger::applies(request)
    }

    async fn check(&self, request: &AdmissionRequest<'_>, object: &Object) -> Result<(), Status> {
        for range in LimitRanger::ranges(request, object).await? {
            let problems = match request.resource {
                "pods" => pod_problems(&range, object),
                _ => claim_problems(&range, object),
            };
            if let Some(why) = aggregate(problems) {
                return Err(request.forbid(object, why));
            }
        }
        Ok(())
    }
}

/// Returns the limits of one type.
fn limits_of<'a>(range: &'a Object, limit_type: &'a str) -> impl Iterator<Item = &'a Object> {
    let limits = objects(child(range, "spec"), "limits").map(|(_, limit)| limit);
    limits.filter(move |limit| text(limit, "type") == limit_type)
}

/// Sets the default requests and limits of containers without them, and lists them in an annotation
/// (`mergePodResourceRequirements`).
fn set_defaults(range: &Object, pod: &mut Object) {
    let mut defaults: BTreeMap<&str, BTreeMap<JsonString, Value>> = BTreeMap::new();
    for limit in limits_of(range, "Container") {
        for (list, source) in [("requests", "defaultRequest"), ("limits", "default")] {
            let amounts = child(limit, source).iter().map(|(name, amount)| (name.clone(), amount.clone()));
            defaults.entry(list).or_default().extend(amounts);
        }
    }
    if defaults.values().all(BTreeMap::is_empty) {
        return;
    }
    let mut set = Vec::new();
    for (list, what) in [("containers", "container"), ("initContainers", "init container")] {
        let Some(Value::Array(containers)) = child_mut(pod, "spec").get_mut(list) else { continue };
        for container in containers.iter_mut().filter_map(Value::as_object_mut) {
            let name = text(container, "name").to_owned();
            for (list, kind) in [("requests", "request"), ("limits", "limit")] {
                let Some(defaults) = defaults.get(list).filter(|defaults| !defaults.is_empty()) else { continue };
                let present = child_mut(child_mut(container, "resources"), list);
                let missing: Vec<&JsonString> = defaults.keys().filter(|name| !present.contains_key(name)).collect();
                for resource in &missing {
                    present.insert((*resource).clone(), defaults[*resource].clone());
                }
                if !missing.is_empty() {
                    let missing = missing.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
                    set.push(format!("{missing} {kind} for {what} {name}"));
                }
            }
        }
    }
    if !set.is_empty() {
        let value = format!("LimitRanger plugin set: {}", set.join("; "));
        child_mut(metadata_mut(pod), "annotations").insert(ANNOTATION, Value::from(value));
    }
}

/// Returns the violations by a pod of the limits for containers and for pods.
fn pod_problems(range: &Object, pod: &Object) -> Vec<String> {
    let mut problems = Vec::new();
    for limit in limits_of(range, "Container") {
        for list in ["containers", "initContainers"] {
            for (_, container) in objects(child(pod, "spec"), list) {
                let resources = child(container, "resources");
                let requests = amounts(child(resources, "requests"));
                check_all(limit, &requests, &amounts(child(resources, "limits")), &mut problems);
            }
        }
    }
    let mut of_whole_pod = None;
    for limit in limits_of(range, "Pod") {
        let sums = of_whole_pod.get_or_insert_with(|| of_pod(pod, false));
        check_all(limit, &sums.requests, &sums.limits, &mut problems);
    }
    problems
}

/// Returns the violations by a claim of the limits for claims. Only the requests of the claim are compared.
fn claim_problems(range: &Object, claim: &Object) -> Vec<String> {
    let mut problems = Vec::new();
    let requests = amounts(child(child(child(claim, "spec"), "resources"), "requests"));
    for limit in limits_of(range, "PersistentVolumeClaim") {
        for (name, min) in &amounts(child(limit, "min")) {
            problems.extend(below_min(limit, name, *min, &requests, &Amounts::new()));
        }
        for (name, max) in &amounts(child(limit, "max")) {
            let usage = Usage { bound: "maximum", limit_type: text(limit, "type"), name, enforced: *max };
            problems.extend(match requests.get(name) {
                None => Some(usage.without("request")),
                Some(request) if request > max => Some(usage.but("request", *request)),
                Some(_) => None,
            });
        }
    }
    problems
}

fn check_all(limit: &Object, requests: &Amounts, limits: &Amounts, problems: &mut Vec<String>) {
    for (name, min) in &amounts(child(limit, "min")) {
        problems.extend(below_min(limit, name, *min, requests, limits));
    }
    for (name, max) in &amounts(child(limit, "max")) {
        problems.extend(above_max(limit, name, *max, requests, limits));
    }
    for (name, ratio) in &amounts(child(limit, "maxLimitRequestRatio")) {
        problems.extend(above_ratio(limit, name, *ratio, requests, limits));
    }
}

/// Formats the errors of one bound on usage.
struct Usage<'a> {
    bound: &'a str,
    limit_type: &'a str,
    name: &'a str,
    enforced: Quantity,
}

impl Usage<'_> {
    fn without(&self, what: &str) -> String {
        let Usage { bound, limit_type, name, enforced } = self;
        format!("{bound} {name} usage per {limit_type} is {enforced}.  No {what} is specified")
    }

    fn but(&self, what: &str, found: Quantity) -> String {
        let Usage { bound, limit_type, name, enforced } = self;
        format!("{bound} {name} usage per {limit_type} is {enforced}, but {what} is {found}")
    }
}

fn below_min(limit: &Object, name: &str, min: Quantity, requests: &Amounts, limits: &Amounts) -> Option<String> {
    let usage = Usage { bound: "minimum", limit_type: text(limit, "type"), name, enforced: min };
    match (requests.get(name), limits.get(name)) {
        (None, _) => Some(usage.without("request")),
        (Some(request), _) if *request < min => Some(usage.but("request", *request)),
        (_, Some(found)) if *found < min => Some(usage.but("limit", *found)),
        _ => None,
    }
}

fn above_max(limit: &Object, name: &str, max: Quantity, requests: &Amounts, limits: &Amounts) -> Option<String> {
    let usage = Usage { bound: "maximum", limit_type: text(limit, "type"), name, enforced: max };
    match (requests.get(name), limits.get(name)) {
        (_, None) => Some(usage.without("limit")),
        (_, Some(found)) if *found > max => Some(usage.but("limit", *found)),
        (Some(request), _) if *request > max => Some(usage.but("request", *request)),
        _ => None,
    }
}

#[allow(clippy::cast_precision_loss, reason = "the ratio is a float64 in kube-apiserver, too")]
fn above_ratio(limit: &Object, name: &str, max: Quantity, requests: &Amounts, limits: &Amounts) -> Option<String> {
    let limit_type = text(limit, "type");
    let bound = format!("{name} max limit to request ratio per {limit_type} is {max}, but");
    let nonzero = |amounts: &Amounts| amounts.get(name).map(|amount| amount.nanos()).filter(|nanos| *nanos != 0);
    let Some(request) = nonzero(requests) else {
        return Some(format!("{bound} no request is specified or request is 0"));
    };
    let Some(found) = nonzero(limits) else {
        return Some(format!("{bound} no limit is specified or limit is 0"));
    };
    let ratio = found as f64 / request as f64;
    // In thousandths, as upstream compares.
    let exceeds = ratio * 1000.0 > (max.nanos() / 1_000_000) as f64;
    exceeds.then(|| format!("{bound} provided ratio is {ratio:.6}"))
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::super::testing::{Fixture, create, object};
    use super::*;

    fn range(limit: Value) -> Value {
        json!({"metadata": {"name": "l", "namespace": "ns"}, "spec": {"limits": [limit]}})
    }

    fn container(name: &str, requests: Value, limits: Value) -> Value {
        json!({"name": name, "resources": {"requests": requests, "limits": limits}})
    }

    #[test]
    fn containers_without_resources_get_the_defaults_and_the_pod_an_annotation() {
        let limit =
            json!({"type": "Container", "default": {"cpu": "2", "memory": "1Gi"}, "defaultRequest": {"cpu": "1"}});
        let mut pod = object(json!({"metadata": {"name": "p"}, "spec": {
            "containers": [{"name": "a"}, container("b", json!({"cpu": "3"}), json!({"cpu": "3", "memory": "2Gi"}))],
            "initContainers": [{"name": "i"}]}}));
        set_defaults(&object(range(limit)), &mut pod);
        assert_eq!(
            pod["metadata"]["annotations"][ANNOTATION],
            "LimitRanger plugin set: cpu request for container a; cpu, memory limit for container a; \
             cpu request for init container i; cpu, memory limit for init container i"
        );
        assert_eq!(
            pod["spec"]["containers"][0]["resources"],
            json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2", "memory": "1Gi"}})
        );
        assert_eq!(pod["spec"]["containers"][1]["resources"]["requests"], json!({"cpu": "3"}));
        let once = pod.clone();
        set_defaults(&object(range(json!({"type": "Pod", "max": {"cpu": "1"}}))), &mut pod);
        assert_eq!(pod, once, "limits of pods have no defaults");
    }

    fn check_pod(limit: Value, containers: Value, expected: &[&str]) {
        let pod = object(json!({"spec": {"containers": containers}}));
        assert_eq!(pod_problems(&object(range(limit.clone())), &pod), expected, "{limit}");
    }

    #[test]
    fn pod_outside_the_limits_gets_an_error_for_each_violated_bound() {
        let one = |requests: Value, limits: Value| json!([container("c", requests, limits)]);
        let min = json!({"type": "Container", "min": {"cpu": "100m"}});
        check_pod(
            min.clone(),
            one(json!({}), json!({})),
            &["minimum cpu usage per Container is 100m.  No request is specified"],
        );
        check_pod(
            min.clone(),
            one(json!({"cpu": "50m"}), json!({})),
            &["minimum cpu usage per Container is 100m, but request is 50m"],
        );
        check_pod(
            min.clone(),
            one(json!({"cpu": "100m"}), json!({"cpu": "99m"})),
            &["minimum cpu usage per Container is 100m, but limit is 99m"],
        );
        check_pod(min, one(json!({"cpu": "100m"}), json!({})), &[]);
        let max = json!({"type": "Container", "max": {"memory": "1Gi"}});
        check_pod(
            max.clone(),
            one(json!({}), json!({})),
            &["maximum memory usage per Container is 1Gi.  No limit is specified"],
        );
        check_pod(
            max.clone(),
            one(json!({}), json!({"memory": "2Gi"})),
            &["maximum memory usage per Container is 1Gi, but limit is 2Gi"],
        );
        check_pod(
            max,
            one(json!({"memory": "2Gi"}), json!({"memory": "1Gi"})),
            &["maximum memory usage per Container is 1Gi, but request is 2Gi"],
        );
        let ratio = json!({"type": "Container", "maxLimitRequestRatio": {"cpu": "1500m"}});
        check_pod(
            ratio.clone(),
            one(json!({"cpu": "1"}), json!({"cpu": "3"})),
            &["cpu max limit to request ratio per Container is 1500m, but provided ratio is 3.000000"],
        );
        check_pod(ratio.clone(), one(json!({"cpu": "2"}), json!({"cpu": "3"})), &[]);
        check_pod(
            ratio,
            one(json!({"cpu": "0"}), json!({})),
            &["cpu max limit to request ratio per Container is 1500m, but no request is specified or request is 0"],
        );
        let whole = json!({"type": "Pod", "max": {"cpu": "2"}});
        let two =
            json!([container("a", json!({}), json!({"cpu": "1"})), container("b", json!({}), json!({"cpu": "1500m"}))]);
        check_pod(whole, two, &["maximum cpu usage per Pod is 2, but limit is 2500m"]);
    }

    #[test]
    fn claim_outside_the_limits_gets_an_error_for_each_violated_bound() {
        let limit = json!({"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "2Gi"}});
        for (size, expected) in [
            ("512Mi", Some("minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 512Mi")),
            ("1Gi", None),
            ("3Gi", Some("maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 3Gi")),
        ] {
            let claim = object(json!({"spec": {"resources": {"requests": {"storage": size}}}}));
            let found = claim_problems(&object(range(limit.clone())), &claim);
            assert_eq!(found, expected.map(str::to_owned).into_iter().collect::<Vec<_>>(), "{size}");
        }
    }

    #[tokio::test]
    async fn pod_is_checked_against_all_limit_ranges_of_its_own_namespace() {
        let fixture = Fixture::new(&[
            ("limitranges", range(json!({"type": "Container", "max": {"cpu": "1"}, "default": {"cpu": "1"}}))),
            (
                "limitranges",
                json!({"metadata": {"name": "o", "namespace": "other"}, "spec": {"limits": [{"type": "Container", "max": {"cpu": "0"}}]}}),
            ),
        ]);
        let mut pod = object(json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}));
        let request = create(&fixture, "", "pods", "Pod", "p");
        LimitRanger.mutate(&request, &mut pod).await.unwrap();
        LimitRanger.check(&request, &pod).await.unwrap();
        pod["spec"]["containers"][0]["resources"]["limits"]["cpu"] = json!("2");
        let refused = LimitRanger.check(&request, &pod).await.unwrap_err();
        assert_eq!(refused.message, "pods \"p\" is forbidden: maximum cpu usage per Container is 1, but limit is 2");
        let two = vec!["a".to_owned(), "b".to_owned(), "a".to_owned()];
        assert_eq!(aggregate(two).as_deref(), Some("[a, b]"));
    }

    #[tokio::test]
    async fn write_is_forbidden_if_limit_ranges_cannot_be_read() {
        let mut fixture = Fixture::new(&[]);
        fixture.failing = true;
        let mut pod = object(json!({"metadata": {"generateName": "p-"}}));
        let refused = LimitRanger.mutate(&create(&fixture, "", "pods", "Pod", ""), &mut pod).await.unwrap_err();
        assert_eq!(
            refused.message,
            "pods \"p-\" is forbidden: unable to CREATE /v1, Resource=pods at this time because there was an error \
             enforcing limit ranges"
        );
    }

    #[test]
    fn limit_ranger_handles_new_pods_resizes_and_claim_writes() {
        let fixture = Fixture::new(&[]);
        for (resource, subresource, operation, expected) in [
            ("pods", None, Operation::Create, true),
            ("pods", None, Operation::Update, false),
            ("pods", Some("resize"), Operation::Update, true),
            ("pods", Some("status"), Operation::Update, false),
            ("persistentvolumeclaims", None, Operation::Update, true),
            ("persistentvolumeclaims", None, Operation::Delete, false),
            ("services", None, Operation::Create, false),
        ] {
            let request = AdmissionRequest { subresource, operation, ..create(&fixture, "", resource, "", "") };
            assert_eq!(<LimitRanger as Validator>::concerns(&request), expected, "{resource} {subresource:?}");
        }
        let old = object(json!({"metadata": {"deletionTimestamp": "now"}}));
        let request = create(&fixture, "", "persistentvolumeclaims", "", "");
        let request = AdmissionRequest { operation: Operation::Update, old_object: Some(&old), ..request };
        assert!(!<LimitRanger as Validator>::concerns(&request), "the claim is being deleted");
    }
}
