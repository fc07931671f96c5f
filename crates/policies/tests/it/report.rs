//! Tests the effects of decisions on a request: rejection, warnings and audit annotations.

use listwatch_json::{Value, json};
use listwatch_policies::{AnnotationResult, Decision, Evaluated, Reason, ValidatingReport};
use listwatch_webhooks::Attributes;

use crate::support::{attributes, binding, deny, validating, web};

fn evaluated(decisions: Vec<Decision>) -> Evaluated {
    Evaluated { decisions, annotations: Vec::new() }
}

#[test]
fn rejection_reports_the_first_denial_with_its_reason_and_code() {
    let (policy, bound) = (validating(json!({})), binding(json!({"validationActions": ["Deny"]})));
    let object = web();
    for (reason, code, name) in [
        (Reason::Invalid, 422, "Invalid"),
        (Reason::Forbidden, 403, "Forbidden"),
        (Reason::RequestEntityTooLarge, 413, "RequestEntityTooLarge"),
    ] {
        let mut report = ValidatingReport::default();
        let first = Decision::Deny { message: "no".to_owned(), reason, failed: false };
        report.add(policy.as_ref(), &bound, evaluated(vec![Decision::Admit, first, deny("later")]));
        report.end_policy(policy.as_ref());
        let status = report.finish(&attributes(object.as_object())).rejection.unwrap();
        let why = "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no";
        assert_eq!(status.message, format!("deployments.apps \"web\" is forbidden: {why}"));
        assert_eq!((status.code, &*status.reason), (code, name));
        let details = status.details.unwrap();
        assert_eq!((&*details.name, &*details.group, &*details.kind), ("web", "apps", "deployments"));
        assert_eq!((details.causes.len(), &*details.causes[0].message), (1, why));
    }
}

#[test]
fn rejection_names_the_object_as_upstream_does() {
    let (policy, bound) = (validating(json!({})), binding(json!({"validationActions": ["Deny"]})));
    for (name, object, expected) in [
        ("web", json!({}), "web"),
        ("", json!({"metadata": {"name": "of-object", "generateName": "x-"}}), "of-object"),
        ("", json!({"metadata": {"generateName": "web-"}}), "web-"),
        ("", json!({}), "Unknown"),
    ] {
        let mut report = ValidatingReport::default();
        report.add(policy.as_ref(), &bound, evaluated(vec![deny("no")]));
        let attributes = Attributes { name, ..attributes(object.as_object()) };
        let message = report.finish(&attributes).rejection.unwrap().message;
        assert!(message.starts_with(&format!("deployments.apps \"{expected}\" is forbidden: ")), "{message}");
    }
}

#[test]
fn validation_actions_reject_warn_and_annotate_the_audit_event() {
    let policy = validating(json!({}));
    let report = |actions: Value| {
        let bound = binding(json!({"validationActions": actions}));
        let mut report = ValidatingReport::default();
        report.add(policy.as_ref(), &bound, evaluated(vec![Decision::Admit, deny("no")]));
        let checks: Vec<_> = report.take_checks().into_iter().map(|check| check.enforcement_action).collect();
        (report.finish(&attributes(None)), checks)
    };
    let (effects, checks) = report(json!(["Deny"]));
    assert!(effects.rejection.is_some() && effects.warnings.is_empty() && effects.annotations.is_empty());
    assert_eq!(checks, ["deny"]);
    let (effects, checks) = report(json!(["Warn", "Audit"]));
    assert!(effects.rejection.is_none());
    assert_eq!(effects.warnings, ["Validation failed for ValidatingAdmissionPolicy 'p' with binding 'b': no"]);
    let [(key, value)] = &effects.annotations[..] else { panic!("{effects:?}") };
    assert_eq!(key, "validation.policy.admission.k8s.io/validation_failure");
    let expected = json!([{"message": "no", "policy": "p", "binding": "b", "expressionIndex": 1,
        "validationActions": ["Warn", "Audit"]}]);
    assert_eq!(serde_json::from_str::<Value>(value).unwrap(), expected);
    assert_eq!(checks, ["warn", "audit"]);
}

#[test]
fn audit_annotation_contains_the_first_failure_only() {
    let (policy, bound) = (validating(json!({})), binding(json!({"validationActions": ["Audit"]})));
    let mut report = ValidatingReport::default();
    report.add(policy.as_ref(), &bound, evaluated(vec![Decision::Admit, deny("a < b"), deny("second")]));
    report.add(policy.as_ref(), &bound, evaluated(vec![deny("third")]));
    let effects = report.finish(&attributes(None));
    let [(_, value)] = &effects.annotations[..] else { panic!("{effects:?}") };
    let expected =
        r#"[{"message":"a \u003c b","policy":"p","binding":"b","expressionIndex":1,"validationActions":["Audit"]}]"#;
    assert_eq!(value, expected, "Go writes the fields of a struct in order");
}

#[test]
fn configuration_error_follows_the_failure_policy() {
    let bound = binding(json!({"validationActions": ["Audit"]}));
    let finish = |failure_policy: &str, with_binding: bool| {
        let policy = validating(json!({"failurePolicy": failure_policy}));
        let mut report = ValidatingReport::default();
        report.add_configuration_error(policy.as_ref(), with_binding.then_some(&bound), "why");
        report.finish(&attributes(None)).rejection.map(|status| (status.code, status.message))
    };
    assert_eq!(finish("Ignore", true), None);
    let start = "deployments.apps \"web\" is forbidden: ValidatingAdmissionPolicy 'p'";
    let binding = format!("{start} with binding 'b' denied request: failed to configure binding: why");
    assert_eq!(finish("Fail", true), Some((422, binding)));
    assert_eq!(finish("Fail", false), Some((422, format!("{start} denied request: failed to configure policy: why"))));
}

#[test]
fn audit_annotation_values_of_all_bindings_and_parameters_are_joined() {
    let (policy, bound) = (validating(json!({})), binding(json!({"validationActions": ["Deny"]})));
    let mut report = ValidatingReport::default();
    let publish = |key: &str, value: &str| AnnotationResult::Publish(key.to_owned(), value.to_owned());
    for values in [vec![publish("k", "a"), publish("l", "x")], vec![publish("k", "b")], vec![publish("k", "a")]] {
        report.add(policy.as_ref(), &bound, Evaluated { decisions: Vec::new(), annotations: values });
    }
    report.end_policy(policy.as_ref());
    report.add(
        policy.as_ref(),
        &bound,
        Evaluated { decisions: Vec::new(), annotations: vec![AnnotationResult::Failed("bad".to_owned())] },
    );
    let effects = report.finish(&attributes(None));
    let expected = [("p/k", "a, b"), ("p/l", "x")].map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(effects.annotations, expected);
    let rejection = effects.rejection.unwrap().message;
    assert!(rejection.ends_with("ValidatingAdmissionPolicy 'p' with binding 'b' denied request: bad"), "{rejection}");
}
