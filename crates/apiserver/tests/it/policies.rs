//! Tests admission policies from request to response.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use listwatch_apiserver::audit_log::{AuditBackend, AuditOptions, Policy};
use listwatch_apiserver::{ApiServer, AuthorizationMode};
use listwatch_json::{Value, json};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const REGISTRATION: &str = "/apis/admissionregistration.k8s.io/v1";

/// Code, body and warnings of a response.
type Answer = (u16, Value, Vec<String>);

/// Sends a request as a user; `""` is the administrator.
async fn send_as(server: &ApiServer, user: &str, line: &str, body: Value) -> Answer {
    let (method, path) = line.split_once(' ').unwrap();
    let content_type = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
    let mut request = Request::builder().method(method).uri(path).header("content-type", content_type);
    if !user.is_empty() {
        request = request.header("impersonate-user", user);
    }
    let response = server.service().handle(request.body(Full::new(body)).unwrap()).await;
    let warnings = response.headers().get_all("warning").iter();
    let warnings = warnings.map(|value| value.to_str().unwrap().to_owned()).collect();
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let text = || Value::from(String::from_utf8_lossy(&bytes));
    (code, serde_json::from_slice(&bytes).unwrap_or_else(|_| text()), warnings)
}

async fn send(server: &ApiServer, line: &str, body: Value) -> Answer {
    send_as(server, "", line, body).await
}

/// Creates an object of `admissionregistration.k8s.io/v1`, which the server must accept without a warning.
async fn register(server: &ApiServer, plural: &str, name: &str, spec: Value) {
    let object = json!({"metadata": {"name": name}, "spec": spec});
    let (code, body, warnings) = send(server, &format!("POST {REGISTRATION}/{plural}"), object).await;
    assert_eq!((code, warnings), (201, Vec::new()), "{body}");
}

/// Returns match rules for ConfigMaps of the namespace `default`.
fn config_maps(operations: &[&str]) -> Value {
    json!({
        "resourceRules": [
            {"operations": operations, "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}},
    })
}

/// Creates the policy `name` for ConfigMaps, and its binding `<name>-binding`.
async fn validate(server: &ApiServer, name: &str, spec: Value, binding: Value) {
    let mut policy = json!({"matchConstraints": config_maps(&["CREATE", "UPDATE"])});
    policy.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    register(server, "validatingadmissionpolicies", name, policy).await;
    let mut bound = json!({"policyName": name, "validationActions": ["Deny"]});
    bound.as_object_mut().unwrap().extend(binding.as_object().unwrap().clone());
    register(server, "validatingadmissionpolicybindings", &format!("{name}-binding"), bound).await;
}

fn config_map(name: &str, data: Value) -> Value {
    json!({"metadata": {"name": name}, "data": data})
}

/// Repeats a request until the response satisfies a condition, because policies take effect shortly after they are
/// written.
async fn eventually(server: &ApiServer, line: &str, body: &Value, fulfils: impl Fn(&Answer) -> bool) -> Answer {
    for _ in 0..200 {
        let answer = send(server, line, body.clone()).await;
        if fulfils(&answer) {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("{line} {body}: {:?}", send(server, line, body.clone()).await);
}

#[tokio::test]
async fn failed_policy_validation_rejects_the_request_with_upstreams_status() {
    let server = ApiServer::builder().build().await.unwrap();
    let spec = json!({"validations": [
        {"expression": "!has(object.data.bad)", "message": "bad is forbidden", "reason": "Forbidden"},
        {"expression": "!has(object.data.worse)", "messageExpression": "'worse is ' + object.data.worse"},
        {"expression": "int(object.data.n) < 5"},
    ], "matchConditions": [{"name": "not-exempt", "expression": "object.metadata.name != 'exempt'"}]});
    validate(&server, "p", spec, json!({})).await;
    let create = format!("POST {CONFIG_MAPS}");
    let dry = format!("{create}?dryRun=All");
    let refused = |answer: &Answer| answer.0 >= 400;
    let start =
        "configmaps \"a\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'p-binding' denied request: ";
    let first = config_map("a", json!({"bad": "", "n": "1"}));
    eventually(&server, &dry, &first, refused).await;
    for (data, code, reason, why) in [
        (json!({"bad": "", "n": "9"}), 403, "Forbidden", "bad is forbidden"),
        (json!({"worse": "x", "n": "1"}), 422, "Invalid", "worse is x"),
        (json!({"n": "5"}), 422, "Invalid", "failed expression: int(object.data.n) < 5"),
        (json!({"m": "5"}), 422, "Invalid", "expression 'int(object.data.n) < 5' resulted in error: no such key: n"),
    ] {
        for line in [&create, &dry] {
            let (found, body, _) = send(&server, line, config_map("a", data.clone())).await;
            assert_eq!((found, &body["reason"]), (code, &json!(reason)), "{data}");
            assert_eq!(body["message"], format!("{start}{why}"));
            assert_eq!(body["details"]["kind"], "configmaps");
            let cause = json!([{"message": format!("{start}{why}").split_once("forbidden: ").unwrap().1}]);
            assert_eq!(body["details"]["causes"], cause);
        }
    }
    assert_eq!(send(&server, &create, config_map("exempt", json!({"bad": ""}))).await.0, 201);
    assert_eq!(send(&server, &create, config_map("a", json!({"n": "1"}))).await.0, 201);
    let (code, body, _) = send(&server, &format!("PATCH {CONFIG_MAPS}/a"), json!({"data": {"n": "7"}})).await;
    assert_eq!((code, &body["reason"]), (422, &json!("Invalid")));
    let generated = json!({"metadata": {"generateName": "gen-"}, "data": {"n": "7"}});
    let (_, body, _) = send(&server, &create, generated).await;
    assert!(body["message"].as_str().unwrap().starts_with("configmaps \"gen-"), "{body}");
    let other = "POST /api/v1/namespaces/kube-system/configmaps";
    assert_eq!(send(&server, other, config_map("a", json!({"bad": ""}))).await.0, 201, "another namespace");
    assert_eq!(send(&server, &format!("DELETE {CONFIG_MAPS}/a"), Value::Null).await.0, 200, "another operation");

    let removed = format!("DELETE {REGISTRATION}/validatingadmissionpolicybindings/p-binding");
    assert_eq!(send(&server, &removed, Value::Null).await.0, 200);
    eventually(&server, &dry, &first, |answer| answer.0 == 201).await;
}

#[tokio::test]
async fn validation_actions_warn_and_audit_do_not_reject_the_request() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("audit.log");
    let rules = "- {level: Metadata, omitStages: [RequestReceived], resources: [{group: '', resources: [configmaps]}]}";
    let policy = Policy::parse(&format!("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n{rules}\n")).unwrap();
    let backends = vec![AuditBackend::log(log.to_str().unwrap())];
    let server = ApiServer::builder().audit_log(AuditOptions { policy, backends }).build().await.unwrap();
    let spec = json!({"validations": [{"expression": "true"}, {"expression": "object.data.n == '1'", "message": "n is not 1"}],
        "auditAnnotations": [{"key": "n", "valueExpression": "'n is ' + object.data.n"}]});
    validate(&server, "p", spec, json!({"validationActions": ["Warn", "Audit"]})).await;
    let dry = format!("POST {CONFIG_MAPS}?dryRun=All");
    let object = config_map("a", json!({"n": "2"}));
    let (code, _, warnings) = eventually(&server, &dry, &object, |answer| !answer.2.is_empty()).await;
    let warning = "299 - \"Validation failed for ValidatingAdmissionPolicy 'p' with binding 'p-binding': n is not 1\"";
    assert_eq!((code, warnings), (201, vec![warning.to_owned()]));
    assert_eq!(send(&server, &dry, config_map("a", json!({"n": "1"}))).await.2, Vec::<String>::new());

    server.close_audit_log().await;
    let text = std::fs::read_to_string(log).unwrap();
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [.., warned, fine] = &events[..] else { panic!("{events:?}") };
    let failures = warned["annotations"]["validation.policy.admission.k8s.io/validation_failure"].as_str().unwrap();
    let expected = json!([{"message": "n is not 1", "policy": "p", "binding": "p-binding", "expressionIndex": 1,
        "validationActions": ["Warn", "Audit"]}]);
    assert_eq!(serde_json::from_str::<Value>(failures).unwrap(), expected);
    assert_eq!((&warned["annotations"]["p/n"], &fine["annotations"]["p/n"]), (&json!("n is 2"), &json!("n is 1")));
    assert!(fine["annotations"].get("validation.policy.admission.k8s.io/validation_failure").is_none());
}

#[tokio::test]
async fn policy_parameters_are_read_from_named_or_selected_objects() {
    let server = ApiServer::builder().build().await.unwrap();
    let spec = |kind: &str| {
        json!({
            "paramKind": {"apiVersion": "v1", "kind": kind},
            "matchConditions": [{"name": "no-param", "expression": "!object.metadata.name.startsWith('param')"}],
            "validations": [{"expression": "int(object.data.n) <= int(params.data.max)",
                "messageExpression": "'max is ' + params.data.max"}],
        })
    };
    let param =
        |name: &str, max: &str| json!({"metadata": {"name": name, "labels": {"param": "yes"}}, "data": {"max": max}});
    let create = format!("POST {CONFIG_MAPS}");
    assert_eq!(send(&server, &create, param("param-a", "3")).await.0, 201);
    let by_name = json!({"paramRef": {"name": "param-a", "parameterNotFoundAction": "Deny"}});
    validate(&server, "named", spec("ConfigMap"), by_name).await;
    let dry = format!("{create}?dryRun=All");
    let denied = |answer: &Answer| answer.0 == 422;
    let message = |answer: Answer| {
        let message = answer.1["message"].as_str().unwrap_or_default().to_owned();
        message.split_once("denied request: ").map(|(_, why)| why.to_owned()).unwrap_or(message)
    };
    let four = config_map("a", json!({"n": "4"}));
    assert_eq!(message(eventually(&server, &dry, &four, denied).await), "max is 3");
    assert_eq!(send(&server, &dry, config_map("a", json!({"n": "3"}))).await.0, 201);
    // A changed parameter has effect, an absent one is a configuration error.
    assert_eq!(send(&server, &format!("PATCH {CONFIG_MAPS}/param-a"), json!({"data": {"max": "4"}})).await.0, 200);
    eventually(&server, &dry, &four, |answer| answer.0 == 201).await;
    assert_eq!(send(&server, &format!("DELETE {CONFIG_MAPS}/param-a"), Value::Null).await.0, 200);
    let why = "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction";
    assert_eq!(message(eventually(&server, &dry, &four, denied).await), why);
    let removed = format!("DELETE {REGISTRATION}/validatingadmissionpolicies/named");
    assert_eq!(send(&server, &removed, Value::Null).await.0, 200);
    eventually(&server, &dry, &four, |answer| answer.0 == 201).await;

    for (name, max) in [("param-b", "9"), ("param-c", "5")] {
        assert_eq!(send(&server, &create, param(name, max)).await.0, 201);
    }
    let selected =
        json!({"paramRef": {"selector": {"matchLabels": {"param": "yes"}}, "parameterNotFoundAction": "Allow"}});
    validate(&server, "selected", spec("ConfigMap"), selected).await;
    let six = config_map("a", json!({"n": "6"}));
    assert_eq!(message(eventually(&server, &dry, &six, denied).await), "max is 5", "each parameter counts");
    assert_eq!(send(&server, &dry, config_map("a", json!({"n": "5"}))).await.0, 201);

    let unknown = json!({"paramRef": {"name": "x", "parameterNotFoundAction": "Allow"}});
    validate(&server, "unknown", spec("Nothing"), unknown).await;
    let one = config_map("a", json!({"n": "1"}));
    let why = "failed to configure policy: failed to find resource referenced by paramKind: '/v1, Kind=Nothing'";
    assert_eq!(message(eventually(&server, &dry, &one, denied).await), why);
}

#[tokio::test]
async fn failure_policy_applies_to_failing_and_expensive_policy_expressions() {
    let server = ApiServer::builder().build().await.unwrap();
    let list: Vec<u32> = (0..2000).collect();
    let object = json!({"metadata": {"name": "a"}, "data": {"list": json!(list).to_string(), "n": "1"}});
    let square = "object.data.list.split(',').all(a, object.data.list.split(',').all(b, a != '' && b != ''))";
    let dry = format!("POST {CONFIG_MAPS}?dryRun=All");
    let only = |key: &str| json!([{"name": "c", "expression": format!("has(object.metadata.labels) && '{key}' in object.metadata.labels")}]);
    for (name, policy, expression) in [
        ("open", "Ignore", "object.data.absent == 'x'"),
        ("closed", "Fail", "object.data.absent == 'x'"),
        ("slow", "Fail", square),
        ("slow-open", "Ignore", square),
    ] {
        let spec = json!({"failurePolicy": policy, "validations": [{"expression": expression}], "matchConditions": only(name)});
        validate(&server, name, spec, json!({})).await;
    }
    let labeled = |key: &str| {
        let mut object = object.clone();
        object["metadata"]["labels"] = json!({key: ""});
        object
    };
    let failed = "expression 'object.data.absent == 'x'' resulted in error: no such key: absent";
    let (_, body, _) = eventually(&server, &dry, &labeled("closed"), |answer| answer.0 == 422).await;
    assert!(body["message"].as_str().unwrap().ends_with(failed), "{body}");
    let (_, body, _) = eventually(&server, &dry, &labeled("slow"), |answer| answer.0 == 422).await;
    let limit = "resulted in error: operation cancelled: actual cost limit exceeded";
    assert!(body["message"].as_str().unwrap().ends_with(limit), "{body}");
    for name in ["open", "slow-open"] {
        assert_eq!(send(&server, &dry, labeled(name)).await.0, 201, "{name}");
    }
    let metrics = send(&server, "GET /metrics", Value::Null).await.1;
    let series = "apiserver_validating_admission_policy_check_total{enforcement_action=\"deny\",error_type=\"invalid_error\",policy=\"closed\",policy_binding=\"closed-binding\"}";
    assert!(metrics.as_str().unwrap().contains(series), "{metrics}");
}

#[tokio::test]
async fn policy_expressions_can_check_permissions_of_the_user() {
    let server = ApiServer::builder().authorization([AuthorizationMode::Rbac]).build().await.unwrap();
    let may =
        |verb: &str| format!("authorizer.group('').resource('secrets').namespace('default').check('{verb}').allowed()");
    let spec = json!({"validations": [{"expression": may("get"), "message": "needs secrets"}]});
    validate(&server, "p", spec, json!({})).await;
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    for (name, resources) in [("maps", json!(["configmaps"])), ("secrets", json!(["configmaps", "secrets"]))] {
        let role =
            json!({"metadata": {"name": name}, "rules": [{"apiGroups": [""], "resources": resources, "verbs": ["*"]}]});
        assert_eq!(send(&server, &format!("POST {rbac}/roles"), role).await.0, 201);
        let subject = json!([{"kind": "User", "name": name, "apiGroup": "rbac.authorization.k8s.io"}]);
        let role_ref = json!({"kind": "Role", "name": name, "apiGroup": "rbac.authorization.k8s.io"});
        let bound = json!({"metadata": {"name": name}, "subjects": subject, "roleRef": role_ref});
        assert_eq!(send(&server, &format!("POST {rbac}/rolebindings"), bound).await.0, 201);
    }
    let dry = format!("POST {CONFIG_MAPS}?dryRun=All");
    let mut answer = (0, Value::Null, Vec::new());
    for _ in 0..200 {
        answer = send_as(&server, "maps", &dry, config_map("a", json!({}))).await;
        if answer.0 == 422 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    assert!(answer.1["message"].as_str().unwrap().ends_with("denied request: needs secrets"), "{answer:?}");
    assert_eq!(send_as(&server, "secrets", &dry, config_map("a", json!({}))).await.0, 201);
}

#[tokio::test]
async fn policies_apply_to_deletions_but_not_to_policies() {
    let server = ApiServer::builder().build().await.unwrap();
    let everything = json!({"resourceRules": [
        {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}]});
    let spec = json!({"matchConstraints": everything, "validations": [{"expression": "request.operation != 'DELETE' || \
        (object == null && oldObject.metadata.name != 'kept')", "message": "kept"}]});
    validate(&server, "p", spec, json!({})).await;
    let create = format!("POST {CONFIG_MAPS}");
    for name in ["kept", "other"] {
        assert_eq!(send(&server, &create, config_map(name, json!({}))).await.0, 201);
    }
    let dry = format!("DELETE {CONFIG_MAPS}/kept?dryRun=All");
    let (_, body, _) = eventually(&server, &dry, &Value::Null, |answer| answer.0 == 422).await;
    assert!(body["message"].as_str().unwrap().ends_with("denied request: kept"), "{body}");
    assert_eq!(send(&server, &format!("DELETE {CONFIG_MAPS}/other"), Value::Null).await.0, 200);
    let collection = format!("DELETE {CONFIG_MAPS}?fieldSelector=metadata.name%3Dkept");
    assert_eq!(send(&server, &collection, Value::Null).await.0, 422, "each item of a collection is judged");
    let none = json!({"matchConstraints": config_maps(&["*"]), "validations": [{"expression": "false"}]});
    register(&server, "validatingadmissionpolicies", "kept", none).await;
    let policy = format!("DELETE {REGISTRATION}/validatingadmissionpolicies/kept");
    assert_eq!(send(&server, &policy, Value::Null).await.0, 200, "a policy cannot protect policies");
}

#[tokio::test]
async fn policy_status_contains_type_check_warnings() {
    let server = ApiServer::builder().build().await.unwrap();
    let rules = json!({"resourceRules": [{"operations": ["CREATE"], "apiGroups": ["apps"], "apiVersions": ["v1"],
        "resources": ["deployments"]}]});
    let policy = json!({"metadata": {"name": "p"}, "spec": {"matchConstraints": rules, "validations": [
        {"expression": "object.spec.replica < 5"}]}});
    let policies = format!("{REGISTRATION}/validatingadmissionpolicies");
    assert_eq!(send(&server, &format!("POST {policies}"), policy).await.0, 201);
    let one = format!("{policies}/p");
    let observed = |generation: u64| move |answer: &Answer| answer.1["status"]["observedGeneration"] == generation;
    let (_, body, _) = eventually(&server, &format!("GET {one}"), &Value::Null, observed(1)).await;
    let warning = "apps/v1, Kind=Deployment: ERROR: <input>:1:12: undefined field 'replica'\n | object.spec.replica < 5\n | ...........^\n";
    let expected = json!({"expressionWarnings": [{"fieldRef": "spec.validations[0].expression", "warning": warning}]});
    assert_eq!(body["status"]["typeChecking"], expected);
    let mended = json!({"spec": {"validations": [{"expression": "object.spec.replicas < 5"}]}});
    assert_eq!(send(&server, &format!("PATCH {one}"), mended).await.0, 200);
    let (_, body, _) = eventually(&server, &format!("GET {one}"), &Value::Null, observed(2)).await;
    assert_eq!(body["status"]["typeChecking"], json!({}));
}

#[tokio::test]
async fn binding_policy_parameters_requires_permission_to_read_them() {
    let server = ApiServer::builder().authorization([AuthorizationMode::Rbac]).build().await.unwrap();
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let rules = json!([{"apiGroups": ["admissionregistration.k8s.io"], "resources": ["*"], "verbs": ["*"]}]);
    let role = json!({"metadata": {"name": "policies"}, "rules": rules});
    assert_eq!(send(&server, &format!("POST {rbac}/clusterroles"), role).await.0, 201);
    let subject = json!([{"kind": "User", "name": "ann", "apiGroup": "rbac.authorization.k8s.io"}]);
    let role_ref = json!({"kind": "ClusterRole", "name": "policies", "apiGroup": "rbac.authorization.k8s.io"});
    let bound = json!({"metadata": {"name": "ann"}, "subjects": subject, "roleRef": role_ref});
    assert_eq!(send(&server, &format!("POST {rbac}/clusterrolebindings"), bound).await.0, 201);
    let policy = |kind: Value| {
        let mut spec = json!({"matchConstraints": config_maps(&["CREATE"]), "validations": [{"expression": "true"}]});
        if !kind.is_null() {
            spec["paramKind"] = kind;
        }
        json!({"metadata": {"name": "p"}, "spec": spec})
    };
    let policies = format!("POST {REGISTRATION}/validatingadmissionpolicies");
    let secrets = json!({"apiVersion": "v1", "kind": "Secret"});
    let mut answer = (0, Value::Null, Vec::new());
    for _ in 0..200 {
        answer = send_as(&server, "ann", &policies, policy(secrets.clone())).await;
        if answer.0 != 403 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    let why = "ValidatingAdmissionPolicy.admissionregistration.k8s.io \"p\" is invalid: spec.paramKind: Forbidden: user \
        &{ann  [system:authenticated] map[]} must have \"get\" permission on all objects of the referenced paramKind \
        (kind=Secret, apiVersion=v1)";
    assert_eq!((answer.0, answer.1["message"].as_str()), (422, Some(why)));
    assert_eq!(send(&server, &policies, policy(secrets)).await.0, 201, "the administrator may");
    let bindings = format!("POST {REGISTRATION}/validatingadmissionpolicybindings");
    for (param_ref, verb) in [(json!({"name": "s", "namespace": "default"}), "get"), (json!({"selector": {}}), "list")]
    {
        let mut param_ref = param_ref;
        param_ref["parameterNotFoundAction"] = json!("Allow");
        let spec = json!({"policyName": "p", "validationActions": ["Deny"], "paramRef": param_ref});
        let (code, body, _) =
            send_as(&server, "ann", &bindings, json!({"metadata": {"name": "b"}, "spec": spec})).await;
        let why = format!("does not have \"{verb}\" permission on the object referenced by paramRef");
        assert_eq!(code, 422);
        assert!(body["message"].as_str().unwrap().ends_with(&why), "{body}");
    }
    let spec = json!({"policyName": "p", "validationActions": ["Deny"]});
    assert_eq!(send_as(&server, "ann", &bindings, json!({"metadata": {"name": "b"}, "spec": spec})).await.0, 201);
}

/// Creates the mutating policy `name` for ConfigMaps, and its binding `<name>-binding`.
async fn mutate(server: &ApiServer, name: &str, spec: Value) {
    let mut policy = json!({"matchConstraints": config_maps(&["CREATE", "UPDATE"]), "reinvocationPolicy": "Never"});
    policy.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    register(server, "mutatingadmissionpolicies", name, policy).await;
    let bound = json!({"policyName": name});
    register(server, "mutatingadmissionpolicybindings", &format!("{name}-binding"), bound).await;
}

fn apply(expression: &str) -> Value {
    json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}})
}

fn json_patch(expression: &str) -> Value {
    json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}})
}

#[tokio::test]
async fn policy_mutations_are_applied_in_order() {
    let server = ApiServer::builder().build().await.unwrap();
    let spec = json!({
        "variables": [{"name": "team", "expression": "'team-' + object.metadata.name"}],
        "mutations": [
            apply("Object{metadata: Object.metadata{labels: {'team': variables.team}}, data: {'added': 'a'}}"),
            json_patch("[JSONPatch{op: 'test', path: '/data/added', value: 'a'}, \
                JSONPatch{op: 'add', path: '/data/' + jsonpatch.escapeKey('x.y'), value: object.data.added + '!'}]"),
            json_patch("[JSONPatch{op: 'test', path: '/data/added', value: 'other'}, \
                JSONPatch{op: 'remove', path: '/data/added'}]"),
        ],
    });
    mutate(&server, "p", spec).await;
    let create = format!("POST {CONFIG_MAPS}");
    let dry = format!("{create}?dryRun=All");
    let object = config_map("a", json!({"own": "1"}));
    let (code, body, _) = eventually(&server, &dry, &object, |answer| answer.1["data"]["added"] == "a").await;
    assert_eq!(code, 201);
    let expected = json!({"own": "1", "added": "a", "x.y": "a!"});
    assert_eq!((&body["data"], &body["metadata"]["labels"]["team"]), (&expected, &json!("team-a")));
    assert_eq!(send(&server, &format!("GET {CONFIG_MAPS}/a"), Value::Null).await.0, 404, "a dry run stores nothing");
    assert_eq!(send(&server, &create, object).await.1["data"], expected);
    assert_eq!(send(&server, &format!("GET {CONFIG_MAPS}/a"), Value::Null).await.1["data"], expected);
    let (code, body, _) = send(&server, &format!("PATCH {CONFIG_MAPS}/a"), json!({"data": {"added": null}})).await;
    assert_eq!((code, &body["data"]), (200, &expected), "updates are mutated too");
    let metrics = send(&server, "GET /metrics", Value::Null).await.1;
    let series = "apiserver_mutating_admission_policy_check_total{error_type=\"no_error\",policy=\"p\",policy_binding=\"p-binding\"}";
    assert!(metrics.as_str().unwrap().contains(series), "{metrics}");
}

#[tokio::test]
async fn failed_policy_mutation_rejects_the_request_with_upstreams_text() {
    let server = ApiServer::builder().build().await.unwrap();
    let labeled = |key: &str| json!([{"name": "c", "expression": format!("has(object.metadata.labels) && '{key}' in object.metadata.labels")}]);
    let rules = json!({"resourceRules": [{"operations": ["CREATE"], "apiGroups": ["", "apps"], "apiVersions": ["v1"],
        "resources": ["configmaps", "deployments"]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}}});
    let atomic = "Object{spec: Object.spec{selector: Object.spec.selector{matchLabels: {'a': 'b'}}}}";
    let cases = [
        (
            "broken",
            "Fail",
            apply("Object{data: {'a': object.data.absent}}"),
            Some("expression 'Object{data: {'a': object.data.absent}}' resulted in error: no such key: data"),
        ),
        ("ignored", "Ignore", apply("Object{data: {'a': object.data.absent}}"), None),
        (
            "missing",
            "Fail",
            json_patch("[JSONPatch{op: 'remove', path: '/absent/x'}]"),
            Some(
                "JSON Patch: jsonpatch remove operation does not apply: doc is missing path: \"/absent/x\": missing value",
            ),
        ),
        (
            "unknown",
            "Fail",
            apply("Object{nothing: 1}"),
            Some(
                "error applying patch: failed to convert patch object to typed \
            object: .nothing: field not declared in schema",
            ),
        ),
        (
            "atomic",
            "Fail",
            apply(atomic),
            Some(
                "error applying patch: invalid ApplyConfiguration: may not mutate atomic \
            arrays, maps or structs: .spec.selector",
            ),
        ),
    ];
    for (name, policy, mutation, _) in &cases {
        let spec = json!({"failurePolicy": policy, "matchConditions": labeled(name), "matchConstraints": rules,
            "mutations": [mutation]});
        mutate(&server, name, spec).await;
    }
    // The last policy is known when the earlier ones are.
    for (name, _, _, expected) in cases.iter().rev() {
        let labels = json!({*name: "", "app": "x"});
        let (line, object) = if *name == "atomic" {
            let template =
                json!({"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "a", "image": "i"}]}});
            let spec = json!({"selector": {"matchLabels": {"app": "x"}}, "template": template});
            let line = "POST /apis/apps/v1/namespaces/default/deployments?dryRun=All".to_owned();
            (line, json!({"metadata": {"name": "a", "labels": labels}, "spec": spec}))
        } else {
            (format!("POST {CONFIG_MAPS}?dryRun=All"), json!({"metadata": {"name": "a", "labels": labels}}))
        };
        let Some(expected) = expected else {
            assert_eq!(send(&server, &line, object).await.0, 201, "{name}");
            continue;
        };
        let (code, body, _) = eventually(&server, &line, &object, |answer| answer.0 != 201).await;
        let message = format!("policy '{name}' with binding '{name}-binding' denied request: {expected}");
        assert_eq!((code, &body["reason"]), (403, &json!("Invalid")), "{body}");
        assert_eq!(body["message"], message);
        assert_eq!(body["details"]["causes"], json!([{"message": message}]));
    }
}

#[tokio::test]
async fn mutating_policy_runs_again_if_a_later_plugin_changes_the_object() {
    let webhook = json!({"metadata": {"name": "w"}, "webhooks": [{"name": "w.example.com",
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}}}]});
    let handler = |request: Value| async move {
        let has = request["object"]["data"].get("hook").is_some();
        let patch = if has { json!([]) } else { json!([{"op": "add", "path": "/data/hook", "value": "h"}]) };
        json!({"allowed": true, "patch": patch})
    };
    let server = ApiServer::builder().mutating_webhook(webhook, handler).build().await.unwrap();
    let count = |key: &str| {
        json!([apply(&format!("Object{{data: {{'{key}': object.data.map(k, k).size() > 2 ? 'late' : 'early'}}}}"))])
    };
    mutate(&server, "again", json!({"reinvocationPolicy": "IfNeeded", "mutations": count("again")})).await;
    mutate(&server, "once", json!({"mutations": count("once")})).await;
    let dry = format!("POST {CONFIG_MAPS}?dryRun=All");
    let object = config_map("a", json!({"own": "1"}));
    let (_, body, _) = eventually(&server, &dry, &object, |answer| answer.1["data"].get("once").is_some()).await;
    assert_eq!(body["data"], json!({"own": "1", "again": "late", "once": "early", "hook": "h"}));
}

#[tokio::test]
async fn mutating_policy_with_reinvocation_runs_again_after_its_own_change() {
    let server = ApiServer::builder().build().await.unwrap();
    let append = |key: &str| {
        let old = format!("(has(object.data.{key}) ? object.data.{key} : '')");
        json!([apply(&format!("Object{{data: {{'{key}': {old} + 'x'}}}}"))])
    };
    mutate(&server, "again", json!({"reinvocationPolicy": "IfNeeded", "mutations": append("again")})).await;
    mutate(&server, "once", json!({"mutations": append("once")})).await;
    let dry = format!("POST {CONFIG_MAPS}?dryRun=All");
    let object = config_map("a", json!({"own": "1"}));
    let (_, body, _) = eventually(&server, &dry, &object, |answer| answer.1["data"].get("once").is_some()).await;
    assert_eq!(body["data"], json!({"own": "1", "again": "xx", "once": "x"}));
    let alone = format!("DELETE {REGISTRATION}/mutatingadmissionpolicies/once");
    assert_eq!(send(&server, &alone, Value::Null).await.0, 200);
    let (_, body, _) = eventually(&server, &dry, &object, |answer| answer.1["data"].get("once").is_none()).await;
    assert_eq!(body["data"], json!({"own": "1", "again": "xx"}), "its own change is enough");
}
