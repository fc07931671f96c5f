//! Tests validations, messages, match conditions, variables, audit annotations and cost budgets.

use listwatch_json::{Value, json};
use listwatch_policies::{AnnotationResult, Decision, Evaluated, MESSAGE_BYTES_MAX, Reason};

use crate::support::{deny, evaluate, failed, validating};

/// A nested loop over 2,000 numbers, which exceeds the cost limit of one expression.
const SQUARE: &str = "object.spec.many.all(i, object.spec.many.all(j, i + j >= 0))";

/// Returns the decision of a policy with this validation and these other fields.
fn decide(validation: Value, others: Value) -> Decision {
    let mut spec = json!({"validations": [validation]});
    spec.as_object_mut().unwrap().extend(others.as_object().unwrap().clone());
    let mut evaluated = evaluate(&validating(spec), None);
    assert_eq!(evaluated.decisions.len(), 1);
    evaluated.decisions.remove(0)
}

/// Asserts the decision of a policy with this expression.
fn check(expression: &str, expected: Decision) {
    assert_eq!(decide(json!({"expression": expression}), json!({})), expected, "{expression}");
}

#[test]
fn validation_expression_can_use_the_variables_of_upstream() {
    for expression in [
        "object.spec.replicas == 3 && object.kind == 'Deployment'",
        "oldObject == null",
        "request.operation == 'CREATE' && request.name == 'web' && request.namespace == 'ns'",
        "request.kind.kind == 'Deployment' && request.resource.resource == 'deployments'",
        "request.requestKind.group == 'apps' && request.requestResource.version == 'v1'",
        "request.userInfo.username == 'u' && 'g' in request.userInfo.groups",
        "!request.dryRun && request.subResource == ''",
        "namespaceObject.metadata.labels.env == 'test' && namespaceObject.status.phase == 'Active'",
        "authorizer.requestResource.check('get').allowed()",
        "!authorizer.group('').resource('pods').namespace('ns').check('delete').allowed()",
        "authorizer.serviceAccount('ns', 'sa').path('/healthz').check('get').allowed()",
        "object.spec.names.sort() == ['a', 'b']",
    ] {
        check(expression, Decision::Admit);
    }
    let undeclared = decide(json!({"expression": "params == null"}), json!({}));
    let Decision::Deny { message, failed: true, .. } = undeclared else { panic!("{undeclared:?}") };
    assert!(message.starts_with("compilation error: compilation failed: ERROR: <input>:1:1: undeclared reference"));
}

#[test]
fn params_variable_is_null_without_a_parameter() {
    let spec = json!({
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "validations": [{"expression": "params == null || object.spec.replicas <= int(params.data.max)"}],
    });
    let policy = validating(spec);
    let decide = |params: Option<Value>| evaluate(&policy, params.as_ref()).decisions.remove(0);
    assert_eq!(decide(None), Decision::Admit);
    assert_eq!(decide(Some(json!({"data": {"max": "3"}}))), Decision::Admit);
    let message = "failed expression: params == null || object.spec.replicas <= int(params.data.max)";
    assert_eq!(decide(Some(json!({"data": {"max": "2"}}))), deny(message));
}

#[test]
fn message_expression_overrides_the_message_unless_the_result_is_unusable() {
    let long = format!("'{}'", "x".repeat(MESSAGE_BYTES_MAX + 1));
    for (fields, expected) in [
        (json!({}), "failed expression: object.spec.replicas < 0"),
        (json!({"message": " fixed "}), "fixed"),
        (
            json!({"message": "fixed", "messageExpression": "'replicas: ' + string(object.spec.replicas)"}),
            "replicas: 3",
        ),
        (json!({"message": "fixed", "messageExpression": "'  '"}), "fixed"),
        (json!({"message": "fixed", "messageExpression": "'a\\nb'"}), "fixed"),
        (json!({"message": "fixed", "messageExpression": long}), "fixed"),
        (json!({"message": "fixed", "messageExpression": "object.absent"}), "fixed"),
        (json!({"messageExpression": "string(object.absent)"}), "failed expression: object.spec.replicas < 0"),
        (json!({"message": "fixed", "messageExpression": "authorizer.path('/').check('get').reason()"}), "fixed"),
    ] {
        let mut validation = json!({"expression": " object.spec.replicas < 0 "});
        validation.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        assert_eq!(decide(validation, json!({})), deny(expected), "{fields}");
    }
}

#[test]
fn reason_of_a_failed_validation_defaults_to_invalid() {
    for (named, expected) in [
        (json!({}), Reason::Invalid),
        (json!({"reason": "Forbidden"}), Reason::Forbidden),
        (json!({"reason": "RequestEntityTooLarge"}), Reason::RequestEntityTooLarge),
    ] {
        let mut validation = json!({"expression": "false"});
        validation.as_object_mut().unwrap().extend(named.as_object().unwrap().clone());
        let Decision::Deny { reason, .. } = decide(validation, json!({})) else { panic!("{named}") };
        assert_eq!(reason, expected);
    }
}

#[test]
fn failed_evaluation_follows_the_failure_policy() {
    for (expression, message) in [
        ("object.absent == 1", "expression 'object.absent == 1' resulted in error: no such key: absent"),
        (
            "object.spec.replicas + object.kind == 1",
            "expression 'object.spec.replicas + object.kind == 1' resulted in error: no such overload",
        ),
        (
            SQUARE,
            "expression 'object.spec.many.all(i, object.spec.many.all(j, i + j >= 0))' resulted in error: operation cancelled: actual cost limit exceeded",
        ),
        ("1", "compilation error: must evaluate to bool but got int"),
        (
            "authorizer.path('').check('get').allowed()",
            "expression 'authorizer.path('').check('get').allowed()' resulted in error: path must not be empty",
        ),
    ] {
        check(expression, failed(message));
        let ignored = decide(json!({"expression": expression}), json!({"failurePolicy": "Ignore"}));
        assert_eq!(ignored, Decision::Ignore(message.to_owned()));
    }
    let mixed = validating(json!({"failurePolicy": "Ignore",
        "validations": [{"expression": "object.absent"}, {"expression": "false"}, {"expression": "true"}]}));
    let decisions = evaluate(&mixed, None).decisions;
    assert!(matches!(decisions[0], Decision::Ignore(_)));
    assert_eq!(decisions[1..], [deny("failed expression: false"), Decision::Admit], "the others still count");
}

#[test]
fn validations_of_a_policy_share_a_budget() {
    let budget = "validation failed due to running out of cost budget, no further validation rules will be run";
    let spec = |count: usize, expression: &str, policy: &str| json!({"failurePolicy": policy, "validations": vec![json!({"expression": expression}); count]});
    // 700,000 units.
    let costly = "authorizer.path('/a').check('get').allowed() && authorizer.path('/b').check('get').allowed()";
    assert_eq!(evaluate(&validating(spec(15, costly, "Fail")), None).decisions, [failed(budget)]);
    assert_eq!(evaluate(&validating(spec(15, costly, "Ignore")), None).decisions, [Decision::Ignore(budget.into())]);
    assert_eq!(evaluate(&validating(spec(14, costly, "Fail")), None).decisions, vec![Decision::Admit; 14]);
    let mut messages = spec(12, "false", "Fail");
    for validation in messages["validations"].as_array_mut().unwrap() {
        validation["messageExpression"] = json!(format!("{SQUARE} ? 'a' : 'b'"));
    }
    let decisions = evaluate(&validating(messages), None).decisions;
    assert_eq!(decisions, vec![failed(&format!("failed messageExpression: {budget}")); 12]);
    let variables = json!({"variables": [{"name": "costly", "expression": costly}],
        "validations": vec![json!({"expression": "variables.costly"}); 30]});
    let decisions = evaluate(&validating(variables), None).decisions;
    assert_eq!(decisions, vec![Decision::Admit; 30], "the cost of a variable counts once");
    let many: Vec<Value> = (0..15).map(|n| json!({"name": format!("v{n}"), "expression": costly})).collect();
    let used: Vec<Value> = (0..15).map(|n| json!({"expression": format!("variables.v{n}")})).collect();
    let spent = evaluate(&validating(json!({"variables": many, "validations": used})), None).decisions;
    assert_eq!(spent, [failed(budget)], "the costs of variables count");
}

#[test]
fn variables_can_use_earlier_variables_and_are_evaluated_lazily() {
    let variables = json!({"variables": [
        {"name": "names", "expression": "object.spec.names"},
        {"name": "first", "expression": "variables.names[0]"},
        {"name": "broken", "expression": "object.absent"},
        {"name": "slow", "expression": SQUARE},
    ]});
    for (expression, expected) in [
        ("variables.first == 'a' && variables.names.size() == 2", Decision::Admit),
        ("variables.first == 'b'", deny("failed expression: variables.first == 'b'")),
        (
            "variables.broken == 1",
            failed(
                "expression 'variables.broken == 1' resulted in error: composited variable \"broken\" fails to evaluate: \
                 no such key: absent",
            ),
        ),
    ] {
        assert_eq!(decide(json!({"expression": expression}), variables.clone()), expected, "{expression}");
    }
    let mut both = variables.clone();
    both["validations"] = json!([{"expression": "false", "messageExpression": "'name ' + variables.first"}]);
    both["auditAnnotations"] = json!([{"key": "k", "valueExpression": "string(variables.names[1])"}]);
    both["matchConditions"] = json!([{"name": "c", "expression": "variables.first == 'a'"}]);
    let evaluated = evaluate(&validating(both), None);
    let annotations = vec![AnnotationResult::Publish("k".to_owned(), "b".to_owned())];
    assert_eq!(evaluated, Evaluated { decisions: vec![deny("name a")], annotations });
}

#[test]
fn validations_run_only_if_all_match_conditions_hold() {
    let with = |policy: &str, conditions: &[&str]| {
        let conditions: Vec<Value> =
            conditions.iter().map(|source| json!({"name": "c", "expression": source})).collect();
        let spec = json!({"failurePolicy": policy, "matchConditions": conditions, "validations": [{"expression": "false"}],
            "auditAnnotations": [{"key": "k", "valueExpression": "'v'"}]});
        let evaluated = evaluate(&validating(spec), None);
        (evaluated.decisions, evaluated.annotations.len())
    };
    let denied = deny("failed expression: false");
    assert_eq!(with("Fail", &["true", "object.spec.replicas == 3"]), (vec![denied.clone()], 1));
    assert_eq!(with("Fail", &["true", "request.operation == 'DELETE'"]), (vec![], 0));
    assert_eq!(with("Fail", &["object.absent", "false"]), (vec![], 0), "false outweighs a failure");
    assert_eq!(with("Fail", &["namespaceObject == null"]), (vec![denied], 1), "conditions do not see the namespace");
    let error = "expression 'object.absent' resulted in error: no such key: absent";
    let compiled = "compilation error: must evaluate to bool but got dyn";
    assert_eq!(with("Fail", &["object.absent"]), (vec![failed(compiled)], 0));
    assert_eq!(
        with("Fail", &["bool(object.absent)"]).0,
        [failed(&error.replace("object.absent'", "bool(object.absent)'"))]
    );
    assert_eq!(with("Ignore", &["bool(object.absent)"]), (vec![], 0));
    let budget = "validation failed due to running out of cost budget, no further validation rules will be run";
    assert_eq!(with("Fail", &[SQUARE; 4]).0, [failed(budget)]);
    assert_eq!(with("Ignore", &[SQUARE; 4]), (vec![], 0));
}

#[test]
fn empty_or_null_audit_annotation_is_omitted() {
    let annotate = |policy: &str, source: &str| {
        let spec = json!({"failurePolicy": policy, "auditAnnotations": [{"key": "k", "valueExpression": source}]});
        let evaluated = evaluate(&validating(spec), None);
        assert_eq!(evaluated.decisions, []);
        evaluated.annotations
    };
    let publish = |value: &str| vec![AnnotationResult::Publish("k".to_owned(), value.to_owned())];
    assert_eq!(annotate("Fail", "' a ' + object.metadata.name"), publish("a web"));
    assert_eq!(annotate("Fail", "object.spec.replicas > 5 ? 'many' : ''"), []);
    assert_eq!(annotate("Fail", "null"), []);
    let why = "expression 'string(object.absent)' resulted in error: no such key: absent";
    assert_eq!(annotate("Fail", "string(object.absent)"), [AnnotationResult::Failed(why.to_owned())]);
    assert_eq!(annotate("Ignore", "string(object.absent)"), []);
}
