//! Tests mutations: patches and errors.

use listwatch_json::{Value, json};
use listwatch_policies::{MutatingReport, Patch};

use crate::support::{attributes, binding, conditions_hold, mutating, patch};

fn mutation(kind: &str, expression: &str) -> Value {
    let field = if kind == "JSONPatch" { "jsonPatch" } else { "applyConfiguration" };
    json!({"reinvocationPolicy": "Never", "mutations": [{"patchType": kind, field: {"expression": expression}}],
        "variables": [{"name": "team", "expression": "'team-' + object.metadata.name"}]})
}

#[test]
fn apply_configuration_expression_must_return_an_object() {
    let check = |expression: &str, expected: Result<Value, &str>| {
        let found = patch(&mutating(mutation("ApplyConfiguration", expression)));
        let expected = expected.map(|object| Patch::ApplyConfiguration(object.as_object().unwrap().clone()));
        assert_eq!(found, expected.map(Some).map_err(str::to_owned), "{expression}");
    };
    check("Object{spec: Object.spec{replicas: object.spec.replicas + 1}}", Ok(json!({"spec": {"replicas": 4}})));
    check(
        "Object{metadata: Object.metadata{labels: {'team': variables.team, 'user': request.userInfo.username}}}",
        Ok(json!({"metadata": {"labels": {"team": "team-web", "user": "u"}}})),
    );
    check(
        "object.spec.replicas > 5 ? Object{} : Object{spec: Object.spec{names: ['c']}}",
        Ok(json!({"spec": {"names": ["c"]}})),
    );
    check("authorizer.path('/x').check('get').allowed() ? Object{} : Object{spec: Object.spec{}}", Ok(json!({})));
    check("{'spec': 1}", Err("must evaluate to Object but got map(string, int)"));
    check(
        "Object{spec: object.absent}",
        Err("expression 'Object{spec: object.absent}' resulted in error: no such key: absent"),
    );
    check(
        "Object{spec: Object.other{}}",
        Err(
            "type mismatch: unexpected type name \"Object.other\", expected \"Object.spec\", which matches field name path from root Object type",
        ),
    );
}

#[test]
fn json_patch_expression_must_return_a_list_of_operations() {
    let check = |expression: &str, expected: Result<Value, &str>| {
        let found = patch(&mutating(mutation("JSONPatch", expression)));
        let expected = expected.map(|list| Patch::JsonPatch(list.as_array().unwrap().clone()));
        assert_eq!(found, expected.map(Some).map_err(str::to_owned), "{expression}");
    };
    check(
        "[JSONPatch{op: 'test', path: '/spec/replicas', value: 3}, JSONPatch{op: 'remove', path: '/spec/names'}]",
        Ok(json!([{"op": "test", "path": "/spec/replicas", "value": 3}, {"op": "remove", "path": "/spec/names"}])),
    );
    check(
        "[JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('a.b/c~d'), value: variables.team}]",
        Ok(json!([{"op": "add", "path": "/metadata/labels/a.b~1c~0d", "value": "team-web"}])),
    );
    check(
        "[JSONPatch{op: 'add', path: '/spec/x', value: Object.spec{a: [1], b: {'c': null}}}, JSONPatch{op: 'move', from: '/a', path: '/b'}]",
        Ok(json!([
            {"op": "add", "path": "/spec/x", "value": {"a": [1], "b": {"c": null}}},
            {"op": "move", "from": "/a", "path": "/b"},
        ])),
    );
    check("object.spec.replicas > 5 ? [JSONPatch{op: 'remove', path: '/spec'}] : []", Ok(json!([])));
    check("[1]", Err("must evaluate to list(JSONPatch) but got list(int)"));
    check("[JSONPatch{op: 1, path: '/a'}]", Err("unexpected type int for JSONPatchType 'op' field"));
    check("[JSONPatch{op: 'add', what: 'x'}]", Err("unexpected JSONPatchType field: what"));
    check(
        "[JSONPatch{op: 'add', path: '/a', value: quantity('1')}]",
        Err(
            "JSONPath valueExpression evaluated to a type that could not marshal to JSON: unsupported conversion of a value of type kubernetes.Quantity to JSON",
        ),
    );
}

#[test]
fn match_conditions_of_a_mutating_policy_follow_the_failure_policy() {
    let check = |failure_policy: &str, source: &str| {
        let mut spec = mutation("JSONPatch", "[]");
        spec["failurePolicy"] = json!(failure_policy);
        spec["matchConditions"] = json!([{"name": "c", "expression": source}]);
        conditions_hold(&mutating(spec))
    };
    assert_eq!(check("Fail", "variables.team == 'team-web'"), Ok(true));
    assert_eq!(check("Fail", "request.operation == 'UPDATE'"), Ok(false));
    let why = "expression 'bool(object.absent)' resulted in error: no such key: absent";
    assert_eq!(check("Fail", "bool(object.absent)"), Err(why.to_owned()));
    assert_eq!(check("Ignore", "bool(object.absent)"), Ok(false));
}

#[test]
fn errors_of_mutating_policies_reject_the_request_with_one_cause_per_error() {
    let bound = binding(json!({}));
    let policy = |failure_policy: &str| mutating(json!({"failurePolicy": failure_policy}));
    let (fail, ignore) = (policy("Fail"), policy("Ignore"));
    assert_eq!(MutatingReport::default().finish(&attributes(None)), Ok(()));
    let mut report = MutatingReport::default();
    report.add_evaluation_error(ignore.as_ref(), &bound, "unseen");
    report.add_configuration_error(ignore.as_ref(), None, "unseen");
    assert_eq!(report.finish(&attributes(None)), Ok(()));

    let mut report = MutatingReport::default();
    report.add_evaluation_error(fail.as_ref(), &bound, "first");
    report.add_configuration_error(fail.as_ref(), Some(&bound), "second");
    let status = report.finish(&attributes(None)).unwrap_err();
    assert_eq!(status.message, "policy 'p' with binding 'b' denied request: first");
    assert_eq!((status.code, &*status.reason), (403, "Invalid"));
    let causes: Vec<String> = status.details.unwrap().causes.into_iter().map(|cause| cause.message).collect();
    let second = "policy 'p' with binding 'b' denied request: failed to configure binding: second";
    assert_eq!(causes, ["policy 'p' with binding 'b' denied request: first", second]);

    let mut report = MutatingReport::default();
    report.add_configuration_error(fail.as_ref(), None, "why");
    let status = report.finish(&attributes(None)).unwrap_err();
    assert_eq!(status.message, "policy \"p\" denied request: failed to configure policy: why");
    assert_eq!((status.code, &*status.reason), (403, "Forbidden"));
}
