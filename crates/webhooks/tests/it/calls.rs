//! Tests requests, addresses, failure policies and dry runs.

use std::time::Duration;

use listwatch_admission::{KindName, Operation, ResourceName};
use listwatch_json::{Value, json};
use listwatch_webhooks::{
    AdmissionReviewRequest, Attributes, CallError, FailedOpen, Invocation, ReviewVersion, SideEffects, check_dry_run,
};

use crate::support::{PODS, attributes, resource, webhook};

const SCALE: KindName<'static> = KindName { group: "autoscaling", version: "v1", kind: "Scale" };

#[test]
fn review_has_every_field_of_the_request() {
    let (new, old) = (json!({"metadata": {"name": "p"}}), json!({"old": true}));
    let options = json!({"kind": "UpdateOptions", "apiVersion": "meta.k8s.io/v1"});
    let attributes = Attributes {
        operation: Operation::Update,
        subresource: "status",
        dry_run: true,
        old_object: old.as_object(),
        options: options.as_object(),
        ..attributes(new.as_object())
    };
    let invocation = Invocation { resource: ResourceName { kind: SCALE, ..resource("g", "v2", "pods2", "Pod2") } };
    let request =
        AdmissionReviewRequest { version: ReviewVersion::V1, uid: "uid-1", attributes: &attributes, invocation };
    let found: Value = serde_json::from_slice(&request.to_json()).unwrap();
    let expected = json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": {
        "uid": "uid-1",
        "kind": {"group": "autoscaling", "version": "v1", "kind": "Scale"},
        "resource": {"group": "g", "version": "v2", "resource": "pods2"},
        "subResource": "status",
        "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
        "requestResource": {"group": "", "version": "v1", "resource": "pods"},
        "requestSubResource": "status",
        "name": "p", "namespace": "ns", "operation": "UPDATE",
        "userInfo": {"username": "u", "groups": ["g"]},
        "object": new, "oldObject": old, "dryRun": true, "options": options,
    }});
    assert_eq!(found, expected);
}

#[test]
fn absent_names_in_a_review_are_omitted_and_absent_objects_are_null() {
    let attributes = Attributes { operation: Operation::Delete, name: "", namespace: "", ..attributes(None) };
    let invocation = Invocation { resource: PODS };
    let request =
        AdmissionReviewRequest { version: ReviewVersion::V1Beta1, uid: "u", attributes: &attributes, invocation };
    let found: Value = serde_json::from_slice(&request.to_json()).unwrap();
    assert_eq!(found["apiVersion"], "admission.k8s.io/v1beta1");
    let request = found["request"].as_object().unwrap();
    for absent in ["name", "namespace", "subResource", "requestSubResource"] {
        assert!(!request.contains_key(absent), "{absent}");
    }
    for null in ["object", "oldObject", "options"] {
        assert_eq!(request.get(null), Some(&Value::Null), "{null}");
    }
    assert_eq!(request["dryRun"], false);
}

#[test]
fn first_supported_admission_review_version_is_used() {
    for (versions, expected) in [
        (json!(["v1", "v1beta1"]), Some(ReviewVersion::V1)),
        (json!(["v2", "v1beta1", "v1"]), Some(ReviewVersion::V1Beta1)),
        (json!(["v2"]), None),
    ] {
        assert_eq!(webhook(json!({"admissionReviewVersions": versions})).review_version, expected, "{versions}");
    }
}

#[test]
fn webhook_address_comes_from_the_service_or_the_url() {
    let check = |config: Value, seconds: f64, expected: &str| {
        let hook = webhook(json!({"clientConfig": config}));
        let shown = match hook.client_config.target(Duration::from_secs_f64(seconds)) {
            Ok(to) => {
                let service =
                    to.service.map_or(String::new(), |to| format!(" {}/{}:{}", to.namespace, to.name, to.port));
                format!("{}:{} {} {}{service}", to.host, to.port, to.path_and_query, to.shown_url)
            }
            Err(why) => why,
        };
        assert_eq!(shown, expected);
    };
    let service = |fields: Value| {
        let mut service = json!({"name": "s", "namespace": "n"});
        service.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!({"service": service})
    };
    check(service(json!({})), 10.0, "s.n.svc:443 /?timeout=10s https://s.n.svc:443/?timeout=10s n/s:443");
    check(
        service(json!({"path": "/a/b", "port": 8443})),
        9.1,
        "s.n.svc:8443 /a/b?timeout=10s https://s.n.svc:8443/a/b?timeout=10s n/s:8443",
    );
    for path in ["/a/b/", "a//b", "/a/./b", "/x/../a/b"] {
        let expected = "s.n.svc:443 /a/b?timeout=10s https://s.n.svc:443/a/b?timeout=10s n/s:443";
        check(service(json!({ "path": path })), 10.0, expected);
    }
    check(json!({"url": "https://h/p/"}), 1.0, "h:443 /p?timeout=1s https://h/p?timeout=1s");
    check(json!({"url": "https://h/"}), 1.0, "h:443 /?timeout=1s https://h/?timeout=1s");
    check(json!({"url": "https://h"}), 1.0, "h:443 /?timeout=1s https://h/?timeout=1s");
    check(json!({"url": "https://h:9/p"}), 1.0, "h:9 /p?timeout=1s https://h:9/p?timeout=1s");
    check(json!({"url": "https://[::1]:9/p"}), 1.0, "::1:9 /p?timeout=1s https://[::1]:9/p?timeout=1s");
    check(json!({"url": "https://[::1]"}), 1.0, "::1:443 /?timeout=1s https://[::1]/?timeout=1s");
    check(json!({}), 1.0, "webhook configuration must have either service or URL");
    for broken in ["http://h", "h", "https://", "https://h:x", "https://h:0", "https://[::1", "https://h:99999"] {
        check(json!({"url": broken}), 1.0, &format!("Unparsable URL: {broken}"));
    }
}

#[test]
fn failure_policy_applies_only_to_failed_calls() {
    let (fail, ignore) = (webhook(json!({"failurePolicy": "Fail"})), webhook(json!({"failurePolicy": "Ignore"})));
    let target = fail.client_config.target(Duration::from_secs(10)).unwrap();
    let down = || CallError::transport(target.transport_error("context deadline exceeded"));
    let status = down().resolve(&fail).unwrap_err();
    assert_eq!((status.code, &*status.reason), (500, "InternalError"));
    assert_eq!(
        status.message,
        r#"Internal error occurred: failed calling webhook "a.b.c": failed to call webhook: Post "https://h/p?timeout=10s": context deadline exceeded"#
    );
    assert_eq!(down().resolve(&ignore), Ok(FailedOpen));
    for hook in [&fail, &ignore, &webhook(json!({}))] {
        let status = CallError::nothing_to_patch("a.b.c").resolve(hook).unwrap_err();
        assert_eq!(
            status.message,
            r#"Internal error occurred: admission webhook "a.b.c" attempted to modify the object, which is not supported for this operation"#
        );
        assert!(CallError::patch("x").resolve(hook).is_err(), "a patch that does not apply is never ignored");
        let denied = listwatch_meta::Status::failure(403, "Forbidden", "no");
        assert_eq!(CallError::Denied(Box::new(denied.clone())).resolve(hook), Err(denied));
    }
    assert!(down().resolve(&webhook(json!({}))).is_err(), "the default is Fail");
}

#[test]
fn dry_run_calls_only_webhooks_without_side_effects() {
    for (declared, parsed) in [
        ("None", SideEffects::NoneOnDryRun),
        ("NoneOnDryRun", SideEffects::NoneOnDryRun),
        ("Some", SideEffects::Possible),
        ("Unknown", SideEffects::Possible),
        ("", SideEffects::Undeclared),
    ] {
        let hook = webhook(json!({"sideEffects": declared, "failurePolicy": "Ignore"}));
        assert_eq!(hook.side_effects, parsed);
        assert_eq!(check_dry_run(&hook, false), Ok(()));
        let found = check_dry_run(&hook, true);
        match parsed {
            SideEffects::NoneOnDryRun => assert_eq!(found, Ok(())),
            SideEffects::Undeclared => assert_eq!(found.unwrap_err().resolve(&hook), Ok(FailedOpen)),
            SideEffects::Possible => {
                let status = found.unwrap_err().resolve(&hook).unwrap_err();
                let text = r#"admission webhook "a.b.c" does not support dry run"#;
                assert_eq!((status.code, status.message.as_str()), (400, text));
            }
        }
    }
}

#[test]
fn absent_webhook_fields_have_the_defaults_of_the_kind() {
    let hook = webhook(json!({}));
    assert_eq!(hook.timeout, Duration::from_secs(10));
    assert!(!hook.reinvoked_if_needed && !hook.has_conditions());
    let hook = webhook(json!({"timeoutSeconds": 3, "reinvocationPolicy": "IfNeeded"}));
    assert_eq!((hook.timeout, hook.reinvoked_if_needed), (Duration::from_secs(3), true));
}
