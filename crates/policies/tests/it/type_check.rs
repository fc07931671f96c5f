//! Tests the type checks of policies.

use listwatch_json::{Value, json};
use listwatch_policies::{CheckedKind, ObjectSchema, resources_to_check, type_check};

fn deployments() -> CheckedKind {
    CheckedKind {
        group: "apps".to_owned(),
        version: "v1".to_owned(),
        kind: "Deployment".to_owned(),
        schema: ObjectSchema::of_built_in("apps/v1", "Deployment").unwrap(),
    }
}

/// Returns the warnings for a policy with this expression.
fn check(expression: &str, kind: &CheckedKind) -> Vec<Value> {
    let policy = json!({"spec": {
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "variables": [{"name": "replicas", "expression": "object.spec.replicas"}],
        "validations": [{"expression": "true"}, {"expression": expression}],
    }});
    let params = ObjectSchema::of_built_in("v1", "ConfigMap").unwrap();
    type_check(policy.as_object().unwrap(), std::slice::from_ref(kind), Some(&params))
}

#[test]
fn well_typed_expression_has_no_warning() {
    for expression in [
        "object.spec.replicas <= 5",
        "has(object.spec.strategy.rollingUpdate) && object.spec.strategy.rollingUpdate.maxSurge == 1",
        "object.metadata.labels['a'] == 'b' && object.metadata.creationTimestamp < timestamp('2030-01-01T00:00:00Z')",
        "object.spec.template.spec.containers.all(c, c.image.startsWith('a') && has(c.resources.limits))",
        "object.spec.template.spec.containers.exists(c, quantity(c.resources.limits['cpu']).sign() > 0)",
        "oldObject == null || oldObject.spec.replicas < object.spec.replicas",
        "params == null || int(params.data['max']) > variables.replicas",
        "authorizer.group('apps').resource('deployments').check('get').allowed()",
        "request.operation == 'CREATE' && namespaceObject.metadata.name == object.metadata.namespace",
    ] {
        assert_eq!(check(expression, &deployments()), Vec::<Value>::new(), "{expression}");
    }
}

#[test]
fn ill_typed_expression_has_a_warning_with_its_field_path() {
    for (expression, issue) in [
        ("object.spec.replica <= 5", "ERROR: <input>:1:12: undefined field 'replica'"),
        (
            "object.spec.replicas == 'a'",
            "ERROR: <input>:1:22: found no matching overload for '_==_' applied to '(int, string)'",
        ),
        (
            "variables.replicas == 'a'",
            "ERROR: <input>:1:20: found no matching overload for '_==_' applied to '(int, string)'",
        ),
        ("params.dat == {}", "ERROR: <input>:1:7: undefined field 'dat'"),
    ] {
        let warnings = check(expression, &deployments());
        assert_eq!(warnings.len(), 1, "{expression}");
        assert_eq!(warnings[0]["fieldRef"], "spec.validations[1].expression");
        let warning = warnings[0]["warning"].as_str().unwrap();
        assert_eq!(warning.lines().next().unwrap(), format!("apps/v1, Kind=Deployment: {issue}"));
    }
    let policy = json!({"spec": {"validations": [{"expression": "true", "messageExpression": "object.nothing"}]}});
    let warnings = type_check(policy.as_object().unwrap(), &[deployments()], None);
    assert_eq!(warnings[0]["fieldRef"], "spec.validations[0].messageExpression");
}

#[test]
fn expressions_on_custom_resources_are_checked_against_the_schema_of_the_definition() {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "size": {"type": "integer"}, "any": {"x-kubernetes-int-or-string": true},
        "map": {"type": "object", "additionalProperties": {"type": "string"}},
    }}}});
    let kind = CheckedKind {
        group: "example.com".to_owned(),
        version: "v1".to_owned(),
        kind: "Thing".to_owned(),
        schema: ObjectSchema::of_custom_resource(&schema),
    };
    for (expression, warns) in [
        ("object.spec.size > 1 && object.spec.any == 'x' && object.spec.map['a'] == 'b'", false),
        ("object.metadata.name == 'a' && object.kind == 'Thing' && has(object.metadata.labels)", false),
        ("object.spec.size == 'a'", true),
        ("object.status.x == 1", true),
    ] {
        assert_eq!(!check(expression, &kind).is_empty(), warns, "{expression}");
    }
}

#[test]
fn resources_of_rules_with_wildcards_are_not_type_checked() {
    let resources = |rules: Value| {
        let policy = json!({"spec": {"matchConstraints": {"resourceRules": rules}}});
        let found = resources_to_check(policy.as_object().unwrap()).into_iter();
        found.map(|(group, version, resource)| format!("{group}/{version}/{resource}")).collect::<Vec<_>>()
    };
    let rule = |groups: Value, versions: Value, resources: Value| json!({"apiGroups": groups, "apiVersions": versions, "resources": resources});
    assert_eq!(
        resources(json!([
            rule(json!(["apps", ""]), json!(["v1"]), json!(["deployments", "deployments/scale", "*"])),
            rule(json!(["*"]), json!(["v1"]), json!(["pods"])),
            rule(json!([""]), json!(["*"]), json!(["pods"])),
        ])),
        ["/v1/deployments", "apps/v1/deployments"]
    );
}
