//! Tests writes that are charged to quotas, rejected writes, and conflicts.

use super::*;
use crate::testing::{Fixture, create, object};

fn quota(name: &str, hard: Value, used: Value) -> (&'static str, Value) {
    (
        "resourcequotas",
        json!({"metadata": {"name": name, "namespace": "ns"}, "spec": {"hard": hard}, "status": {"hard": hard, "used": used}}),
    )
}

fn pod(cpu: &str) -> Object {
    object(
        json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}}),
    )
}

async fn create_pod(fixture: &Fixture, cpu: &str) -> Result<(), String> {
    let request = create(fixture, "", "pods", "Pod", "p");
    let created = ResourceQuota::new(Vec::new()).validate(&request, &pod(cpu)).await;
    created.map_err(|status| status.message.replace("pods \"p\" is forbidden: ", ""))
}

fn used(fixture: &Fixture, index: usize) -> Value {
    fixture.objects.lock().unwrap()[index].1["status"]["used"].clone()
}

#[tokio::test]
async fn creates_are_charged_until_the_quota_is_exhausted() {
    let fixture = Fixture::new(&[
        quota("compute", json!({"pods": "3", "requests.cpu": "2"}), json!({"pods": "0", "requests.cpu": "0"})),
        quota("services", json!({"services": "0"}), json!({"services": "0"})),
    ]);
    assert_eq!(create_pod(&fixture, "1500m").await, Ok(()));
    assert_eq!(used(&fixture, 0), json!({"pods": "1", "requests.cpu": "1500m"}));
    let refused = create_pod(&fixture, "600m").await;
    let expected =
        "exceeded quota: compute, requested: requests.cpu=600m, used: requests.cpu=1500m, limited: requests.cpu=2";
    assert_eq!(refused, Err(expected.to_owned()));
    assert_eq!(create_pod(&fixture, "500m").await, Ok(()));
    assert_eq!(used(&fixture, 0), json!({"pods": "2", "requests.cpu": "2"}));
    assert_eq!(used(&fixture, 1), json!({"services": "0"}));
}

#[tokio::test]
async fn write_without_a_limited_amount_or_with_an_unknown_quota_status_is_rejected() {
    let fixture = Fixture::new(&[quota("q", json!({"limits.cpu": "1"}), json!({"limits.cpu": "0"}))]);
    assert_eq!(create_pod(&fixture, "1").await, Err("failed quota: q: must specify limits.cpu for: c".to_owned()));
    let fixture = Fixture::new(&[quota("q", json!({"pods": "1", "count/pods": "1"}), json!({"pods": "0"}))]);
    assert_eq!(
        create_pod(&fixture, "1").await,
        Err("status unknown for quota: q, resources: count/pods,pods".to_owned())
    );
    assert!(
        create_pod(&fixture, "-1")
            .await
            .unwrap_err()
            .starts_with("quota usage is negative for resource(s): cpu,requests.cpu")
    );
    let fixture = Fixture::new(&[(
        "resourcequotas",
        json!({"metadata": {"name": "q", "namespace": "ns"}, "spec": {"hard": {"pods": "0"}}}),
    )]);
    assert_eq!(create_pod(&fixture, "1").await, Ok(()), "a quota without a status is not in force");
}

#[tokio::test]
async fn charge_is_retried_on_the_current_quota_after_a_conflict() {
    let both = || {
        Fixture::new(&[
            quota("a", json!({"pods": "2"}), json!({"pods": "0"})),
            quota("b", json!({"count/pods": "2"}), json!({"count/pods": "0"})),
        ])
    };
    let fixture = both();
    *fixture.conflicts.lock().unwrap() = 3;
    assert_eq!(create_pod(&fixture, "1").await, Ok(()));
    assert_eq!(
        (used(&fixture, 0), used(&fixture, 1)),
        (json!({"pods": "1"}), json!({"count/pods": "1"})),
        "each is charged once"
    );
    let fixture = both();
    *fixture.conflicts.lock().unwrap() = 4;
    assert!(create_pod(&fixture, "1").await.is_err());
}

#[tokio::test]
async fn dry_run_is_checked_against_quotas_but_not_charged() {
    let fixture = Fixture::new(&[quota("q", json!({"pods": "1"}), json!({"pods": "0"}))]);
    let request = AdmissionRequest { dry_run: true, ..create(&fixture, "", "pods", "Pod", "p") };
    let plugin = ResourceQuota::new(Vec::new());
    assert!(plugin.validate(&request, &pod("1")).await.is_ok());
    assert_eq!(used(&fixture, 0), json!({"pods": "0"}));
    let full = Fixture::new(&[quota("q", json!({"pods": "1"}), json!({"pods": "1"}))]);
    let request = AdmissionRequest { dry_run: true, ..create(&full, "", "pods", "Pod", "p") };
    assert!(plugin.validate(&request, &pod("1")).await.is_err());
}

#[tokio::test]
async fn update_is_charged_only_for_increased_usage() {
    let service = |kind: &str| object(json!({"metadata": {"name": "s"}, "spec": {"type": kind, "ports": [{}, {}]}}));
    let hard = json!({"services": "1", "services.nodeports": "2", "services.loadbalancers": "0"});
    for (old, new, expected, nodeports) in [
        ("ClusterIP", "NodePort", None, "2"),
        ("NodePort", "ClusterIP", None, "0"),
        (
            "ClusterIP",
            "LoadBalancer",
            Some(
                "exceeded quota: q, requested: services.loadbalancers=1, used: services.loadbalancers=0, limited: services.loadbalancers=0",
            ),
            "0",
        ),
    ] {
        let fixture = Fixture::new(&[quota(
            "q",
            hard.clone(),
            json!({"services": "9", "services.nodeports": "0", "services.loadbalancers": "0"}),
        )]);
        let (old, new) = (service(old), service(new));
        let request = create(&fixture, "", "services", "Service", "s");
        let request = AdmissionRequest { operation: Operation::Update, old_object: Some(&old), ..request };
        let plugin = ResourceQuota::new(Vec::new());
        assert!(plugin.handles(&request));
        let found = plugin.validate(&request, &new).await.err();
        let found = found.map(|status| status.message.replace("services \"s\" is forbidden: ", ""));
        assert_eq!(found, expected.map(str::to_owned));
        assert_eq!(used(&fixture, 0)["services.nodeports"], nodeports);
    }
}

#[tokio::test]
async fn update_of_a_pod_is_charged_if_its_deadline_changes_the_scope() {
    let with_deadline = |seconds: Value| {
        let mut pod = pod("1");
        pod["spec"]["activeDeadlineSeconds"] = seconds;
        pod
    };
    for (old, new, terminating) in [
        (json!(null), json!(9), "1"),
        (json!(9), json!(null), "0"),
        (json!(9), json!(8), "0"),
        (json!(null), json!(null), "0"),
    ] {
        let mut quota = quota("q", json!({"pods": "1"}), json!({"pods": "0"}));
        quota.1["spec"]["scopes"] = json!(["Terminating"]);
        let fixture = Fixture::new(&[quota]);
        let (old, new) = (with_deadline(old), with_deadline(new));
        let request = create(&fixture, "", "pods", "Pod", "p");
        let request = AdmissionRequest { operation: Operation::Update, old_object: Some(&old), ..request };
        ResourceQuota::new(Vec::new()).validate(&request, &new).await.unwrap();
        assert_eq!(used(&fixture, 0)["pods"], terminating);
    }
}

#[tokio::test]
async fn limited_resource_without_a_quota_is_rejected() {
    let requirement = object(json!({"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}));
    let limited = |match_contains: &[&str], match_scopes: Vec<Requirement>| LimitedResource {
        api_group: String::new(),
        resource: "pods".to_owned(),
        match_contains: match_contains.iter().map(|part| (*part).to_owned()).collect(),
        match_scopes,
    };
    let none = Fixture::new(&[]);
    let request = create(&none, "", "pods", "Pod", "p");
    let plugin = ResourceQuota::new(vec![limited(&["requests.cpu"], Vec::new())]);
    let refused = plugin.validate(&request, &pod("1")).await.unwrap_err();
    assert_eq!(refused.message, "pods \"p\" is forbidden: insufficient quota to consume: requests.cpu");
    let covered = Fixture::new(&[quota("q", json!({"requests.cpu": "1"}), json!({"requests.cpu": "0"}))]);
    assert!(plugin.validate(&create(&covered, "", "pods", "Pod", "p"), &pod("1")).await.is_ok());
    let plugin = ResourceQuota::new(vec![limited(&[], vec![Requirement::read(&requirement)])]);
    assert!(plugin.validate(&request, &pod("1")).await.is_ok());
    let mut high = pod("1");
    high["spec"]["priorityClassName"] = json!("high");
    let refused = plugin.validate(&request, &high).await.unwrap_err();
    // Upstream returns a plain error here.
    let expected = Status::unknown("insufficient quota to match these scopes: [{PriorityClass In [high]}]");
    assert_eq!((refused.code, &*refused.reason, &refused.message), (500, "", &expected.message));
    let elsewhere =
        LimitedResource { resource: "services".to_owned(), ..limited(&[], vec![Requirement::read(&requirement)]) };
    let refused = ResourceQuota::new(vec![elsewhere]).validate(&request, &high).await;
    assert_eq!(refused.unwrap_err().code, 500, "scopes are matched for all resources");
}

fn limit_of(resource: &str, part: &str) -> ResourceQuota {
    ResourceQuota::new(vec![LimitedResource {
        api_group: String::new(),
        resource: resource.to_owned(),
        match_contains: vec![part.to_owned()],
        match_scopes: Vec::new(),
    }])
}

fn service(kind: &str) -> Object {
    object(json!({"metadata": {"name": "s"}, "spec": {"type": kind, "ports": [{}, {}]}}))
}

#[tokio::test]
async fn limited_resource_without_usage_needs_no_quota() {
    let plugin = limit_of("services", "services.loadbalancers");
    let fixture = Fixture::new(&[]);
    let request = create(&fixture, "", "services", "Service", "s");
    assert!(plugin.validate(&request, &service("ClusterIP")).await.is_ok(), "zero load balancers are no usage");
    let refused = plugin.validate(&request, &service("LoadBalancer")).await.unwrap_err();
    assert_eq!(refused.message, "services \"s\" is forbidden: insufficient quota to consume: services.loadbalancers");
}

#[tokio::test]
async fn update_without_more_usage_needs_no_quota_for_a_limited_resource() {
    let plugin = limit_of("services", "services.nodeports");
    let fixture = Fixture::new(&[quota("q", json!({"services": "1"}), json!({"services": "1"}))]);
    let old = service("NodePort");
    let request = create(&fixture, "", "services", "Service", "s");
    let request = AdmissionRequest { operation: Operation::Update, old_object: Some(&old), ..request };
    assert!(plugin.validate(&request, &old).await.is_ok());
    let cluster_ip = service("ClusterIP");
    let request = AdmissionRequest { old_object: Some(&cluster_ip), ..request };
    assert!(plugin.validate(&request, &old).await.is_err(), "the update adds node ports");
}

const IMPLICIT: &str = "requests.deviceclass.resource.kubernetes.io/gold";

fn device_class(name: &str, extended_resource: Option<&str>) -> (&'static str, Value) {
    ("deviceclasses", json!({"metadata": {"name": name}, "spec": {"extendedResourceName": extended_resource}}))
}

fn pod_with(resource: &str, count: &str) -> Object {
    let resources = json!({"requests": {resource: count}, "limits": {resource: count}});
    object(
        json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": {"containers": [{"name": "c", "resources": resources}]}}),
    )
}

fn claim(name: &str, count: u32, owner: Option<&str>) -> Object {
    let annotations = owner.map(|_| json!({"resource.kubernetes.io/extended-resource-claim": "true"}));
    let owners =
        owner.map(|uid| json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": true}]));
    let exactly = json!({"allocationMode": "ExactCount", "count": count, "deviceClassName": "gold"});
    object(json!({
        "metadata": {"name": name, "namespace": "ns", "annotations": annotations, "ownerReferences": owners},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
    }))
}

async fn create_claim(fixture: &Fixture, claim: &Object) -> Result<(), String> {
    let request = create(fixture, "resource.k8s.io", "resourceclaims", "ResourceClaim", text(metadata(claim), "name"));
    let created = ResourceQuota::new(Vec::new()).validate(&request, claim).await;
    created.map_err(|status| status.message)
}

#[tokio::test]
async fn pod_that_requests_devices_by_class_is_charged_to_the_quota_of_the_class() {
    let fixture = Fixture::new(&[quota("q", json!({IMPLICIT: "1"}), json!({IMPLICIT: "0"}))]);
    let request = create(&fixture, "", "pods", "Pod", "p");
    let plugin = ResourceQuota::new(Vec::new());
    let resource = "deviceclass.resource.kubernetes.io/gold";
    assert!(plugin.validate(&request, &pod_with(resource, "1")).await.is_ok());
    assert_eq!(used(&fixture, 0), json!({IMPLICIT: "1"}));
    assert!(plugin.validate(&request, &pod_with(resource, "1")).await.is_err());
}

#[tokio::test]
async fn resource_claim_is_charged_to_the_quotas_of_its_extended_resources() {
    let explicit = "requests.example.com/gpu";
    for (class, name, is_charged) in [
        (device_class("gold", None), IMPLICIT, true),
        (device_class("gold", Some("example.com/gpu")), IMPLICIT, true),
        (device_class("gold", Some("example.com/gpu")), explicit, true),
        (device_class("gold", None), explicit, false),
        (device_class("tin", Some("example.com/tin")), IMPLICIT, false),
        // Another class has the name. The quota matches, and the claim does not use it.
        (device_class("tin", Some("example.com/gpu")), explicit, false),
    ] {
        let fixture = Fixture::new(&[quota("q", json!({name: "3"}), json!({name: "0"})), class.clone()]);
        assert_eq!(create_claim(&fixture, &claim("a", 2, None)).await, Ok(()));
        assert_eq!(used(&fixture, 0)[name], if is_charged { "2" } else { "0" }, "{name} {class:?}");
        assert_eq!(create_claim(&fixture, &claim("b", 2, None)).await.is_err(), is_charged, "{name} {class:?}");
    }
}

#[tokio::test]
async fn resource_claim_of_a_pod_is_charged_only_beyond_the_usage_of_the_pod() {
    let stored = |value: Object| ("resourceclaims", Value::Object(value));
    let pod = |status: Value| {
        let mut pod = pod_with("deviceclass.resource.kubernetes.io/gold", "2");
        pod.insert("status", status);
        ("pods", Value::Object(pod))
    };
    let of_claim = |name: &str| json!({"extendedResourceClaimStatus": {"resourceClaimName": name}});
    let mut earlier = claim("0", 2, Some("u"));
    earlier["metadata"]["creationTimestamp"] = json!("2020-01-01T00:00:00Z");
    for (others, created, charged) in [
        (vec![pod(json!({}))], claim("a", 2, Some("u")), "0"),
        (vec![pod(json!({}))], claim("a", 3, Some("u")), "1"),
        (vec![pod(json!({}))], claim("a", 2, Some("other")), "2"),
        (vec![pod(json!({}))], claim("a", 2, None), "2"),
        (vec![], claim("a", 2, Some("u")), "2"),
        (vec![pod(of_claim("a"))], claim("a", 2, Some("u")), "0"),
        (vec![pod(of_claim("b"))], claim("a", 2, Some("u")), "2"),
        (vec![pod(json!({})), stored(earlier.clone())], claim("a", 2, Some("u")), "2"),
        (vec![pod(of_claim("a")), stored(earlier)], claim("a", 2, Some("u")), "0"),
        (vec![pod(json!({})), stored(claim("0", 2, Some("other")))], claim("a", 2, Some("u")), "0"),
    ] {
        let mut created = created;
        created["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        let mut objects = vec![quota("q", json!({IMPLICIT: "3"}), json!({IMPLICIT: "0"})), device_class("gold", None)];
        objects.extend(others.clone());
        let fixture = Fixture::new(&objects);
        assert_eq!(create_claim(&fixture, &created).await, Ok(()));
        assert_eq!(used(&fixture, 0)[IMPLICIT], charged, "{created:?} {others:?}");
    }
}

#[test]
fn resource_quota_handles_creates_and_updates_that_can_increase_usage() {
    let fixture = Fixture::new(&[]);
    let plugin = ResourceQuota::new(Vec::new());
    for (group, resource, subresource, operation, expected) in [
        ("", "pods", None, Operation::Create, true),
        ("", "pods", None, Operation::Update, true),
        ("resource.k8s.io", "resourceclaims", None, Operation::Update, true),
        ("resource.k8s.io", "resourceclaims", Some("status"), Operation::Update, false),
        ("", "pods", Some("resize"), Operation::Update, true),
        ("", "pods", Some("binding"), Operation::Create, false),
        ("", "services", None, Operation::Update, true),
        ("", "persistentvolumeclaims", Some("status"), Operation::Update, true),
        ("", "configmaps", None, Operation::Create, true),
        ("", "configmaps", None, Operation::Update, false),
        ("", "configmaps", None, Operation::Delete, false),
        ("", "events", None, Operation::Create, false),
        ("events.k8s.io", "events", None, Operation::Create, false),
        ("", "namespaces", None, Operation::Create, false),
        ("example.com", "widgets", None, Operation::Create, true),
    ] {
        let request = AdmissionRequest { subresource, operation, ..create(&fixture, group, resource, "", "x") };
        assert_eq!(plugin.handles(&request), expected, "{group}/{resource} {subresource:?} {operation:?}");
    }
    let cluster = AdmissionRequest { namespace: None, ..create(&fixture, "", "nodes", "", "x") };
    assert!(!plugin.handles(&cluster));
}

#[test]
fn recalculated_quota_status_replaces_only_a_wrong_status() {
    let now = OffsetDateTime::UNIX_EPOCH;
    let spec = json!({"hard": {"pods": "5", "requests.cpu": "2", "count/widgets.example.com": "1"}});
    let mut found = object(json!({"metadata": {"name": "q"}, "spec": spec}));
    let (one, two) = (pod("1"), pod("500m"));
    let pods = || [(&Evaluator::Pods, &one), (&Evaluator::Pods, &two)];
    let status = counted_status(&found, pods(), now).unwrap();
    assert_eq!(status["used"], json!({"pods": "2", "requests.cpu": "1500m", "count/widgets.example.com": "0"}));
    assert_eq!(status["hard"], spec["hard"]);
    found.insert("status", status);
    assert_eq!(counted_status(&found, pods(), now), None);
    assert!(counted_status(&found, [(&Evaluator::Pods, &one)], now).is_some());
    let terminating = json!({"hard": {"pods": "5"}, "scopes": ["Terminating"]});
    let scoped = object(json!({"metadata": {"name": "q"}, "spec": terminating}));
    assert_eq!(counted_status(&scoped, pods(), now).unwrap()["used"], json!({"pods": "0"}));
}
