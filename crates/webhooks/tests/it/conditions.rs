//! Tests the failures and the cost budget of match conditions.

use listwatch_cel::{AuthorizationDecisions, CheckDecision};
use listwatch_json::{Value, json};
use listwatch_webhooks::{ConditionResult, Invocation};

use crate::support::{PODS, attributes, webhook};

fn check(policy: &str, sources: &[&str]) -> Result<ConditionResult, String> {
    let conditions: Vec<Value> = sources
        .iter()
        .enumerate()
        .map(|(position, source)| json!({"name": format!("c{position}"), "expression": source}))
        .collect();
    let hook = webhook(json!({"failurePolicy": policy, "matchConditions": conditions}));
    let object = json!({"metadata": {"name": "p"}, "n": (0..2000).collect::<Vec<u32>>()});
    let attributes = attributes(object.as_object());
    let mut decisions = AuthorizationDecisions::new();
    let result = loop {
        let result = hook.check_conditions(&attributes, &Invocation { resource: PODS }, &decisions);
        let Some(check) = decisions.take_undecided() else { break result };
        let allowed = check.verb == "get";
        decisions.insert(check, CheckDecision { allowed, ..CheckDecision::default() });
    };
    result.map_err(|status| {
        assert_eq!((status.code, &*status.reason), (403, "Forbidden"));
        status.message
    })
}

#[test]
fn false_condition_skips_and_failed_condition_follows_the_failure_policy() {
    let skip = |condition: Option<&str>| Ok(ConditionResult::Skip { condition: condition.map(str::to_owned) });
    for policy in ["Fail", "Ignore"] {
        assert_eq!(check(policy, &[]), Ok(ConditionResult::Call));
        assert_eq!(
            check(policy, &["object.metadata.name == 'p'", "oldObject == null", "request.userInfo.username == 'u'"]),
            Ok(ConditionResult::Call)
        );
        assert_eq!(check(policy, &["request.kind.kind == 'Pod'", "request.operation == 'DELETE'"]), skip(Some("c1")));
        assert_eq!(check(policy, &["object.absent == 1", "false"]), skip(Some("c1")), "false outweighs a failure");
    }
    let forbidden = r#"pods "p" is forbidden: "#;
    let one = "expression 'object.absent == 1' resulted in error: no such key: absent";
    assert_eq!(check("Fail", &["true", "object.absent == 1"]), Err(format!("{forbidden}{one}")));
    let two = "expression 'object.gone == 1' resulted in error: no such key: gone";
    assert_eq!(check("Fail", &["object.absent == 1", "object.gone == 1"]), Err(format!("{forbidden}[{one}, {two}]")));
    assert_eq!(check("Ignore", &["object.absent == 1"]), skip(None));
}

#[test]
fn match_condition_with_authorizer_uses_the_known_decisions() {
    let check_verb = |verb: &str| check("Fail", &[&format!("authorizer.requestResource.check('{verb}').allowed()")]);
    assert_eq!(check_verb("get"), Ok(ConditionResult::Call));
    assert_eq!(check_verb("delete"), Ok(ConditionResult::Skip { condition: Some("c0".to_owned()) }));
    let why = check("Fail", &["authorizer.path('').check('get').allowed()"]).unwrap_err();
    assert!(why.ends_with("resulted in error: path must not be empty"), "{why}");
}

#[test]
fn match_condition_beyond_the_cost_limit_fails() {
    let square = "object.n.all(i, object.n.all(j, i + j >= 0))";
    let why = check("Fail", &[square]).unwrap_err();
    assert!(why.ends_with("operation cancelled: actual cost limit exceeded"), "{why}");
    assert_eq!(check("Ignore", &[square]), Ok(ConditionResult::Skip { condition: None }));
}

#[test]
fn match_conditions_of_one_webhook_share_a_cost_budget() {
    let squares = ["object.n.all(i, object.n.all(j, i + j >= 0))"; 4];
    let why = check("Fail", &squares).unwrap_err();
    assert!(why.ends_with("running out of cost budget, no further validation rules will be run"), "{why}");
    let then_false = [&squares[..], &["false"]].concat();
    assert!(check("Fail", &then_false).is_err(), "conditions beyond the budget do not count");
}
