//! Tests admission webhooks from request to response. Most webhooks are functions of this process.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use listwatch_apiserver::{ApiServer, AuthorizationMode, Builder};
use listwatch_json::{Value, json};
use listwatch_meta::Key;
use listwatch_storage::{MemoryStorage, Storage as _};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const VALIDATING: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";

/// Sends a request. Returns code, body and warnings of the response.
async fn send(server: &ApiServer, line: &str, body: Value) -> (u16, Value, Vec<String>) {
    let (method, path) = line.split_once(' ').unwrap();
    let content_type = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
    let request = Request::builder().method(method).uri(path).header("content-type", content_type);
    let response = server.service().handle(request.body(Full::new(body)).unwrap()).await;
    let warnings = response.headers().get_all("warning").iter();
    let warnings = warnings.map(|value| value.to_str().unwrap().to_owned()).collect();
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let text = || Value::from(String::from_utf8_lossy(&bytes));
    (code, serde_json::from_slice(&bytes).unwrap_or_else(|_| text()), warnings)
}

/// Returns the configuration `name` with one webhook that matches every request. `fields` replace fields of the
/// webhook.
fn configuration(name: &str, fields: Value) -> Value {
    let mut hook = json!({
        "name": format!("{name}.example.com"),
        "rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}],
    });
    hook.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    json!({"metadata": {"name": name}, "webhooks": [hook]})
}

/// Returns the fields of a webhook for one resource. Namespaced objects match only in the namespace `default`, because
/// the server itself writes objects in other namespaces.
fn only(group: &str, version: &str, resource: &str) -> Value {
    json!({
        "rules": [{"operations": ["*"], "apiGroups": [group], "apiVersions": [version], "resources": [resource]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}},
    })
}

/// The requests that a webhook has received.
type Seen = Arc<Mutex<Vec<Value>>>;

/// Returns a builder with webhooks that record and allow the requests for one resource.
fn recording(group: &str, version: &str, resource: &str) -> (Builder, Seen, Seen) {
    let (mutating, validating) = (Seen::default(), Seen::default());
    let record = |seen: &Seen| {
        let seen = Arc::clone(seen);
        move |request: Value| {
            seen.lock().unwrap().push(request);
            async { json!({"allowed": true}) }
        }
    };
    let builder = ApiServer::builder()
        .mutating_webhook(configuration("m", only(group, version, resource)), record(&mutating))
        .validating_webhook(configuration("v", only(group, version, resource)), record(&validating));
    (builder, mutating, validating)
}

/// Removes and returns the only request of a webhook.
fn take_one(seen: &Seen) -> Value {
    let mut seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 1, "one call: {seen:?}");
    seen.remove(0)
}

#[tokio::test]
async fn admission_webhooks_receive_every_field_of_a_write() {
    let (builder, mutating, validating) = recording("", "v1", "configmaps");
    let server = builder.build().await.unwrap();
    mutating.lock().unwrap().clear();
    validating.lock().unwrap().clear();
    let created = json!({"metadata": {"name": "a"}, "data": {"x": "1"}});
    let path = format!("POST {CONFIG_MAPS}?fieldManager=me&fieldValidation=Strict");
    assert_eq!(send(&server, &path, created).await.0, 201);
    let (first, second) = (take_one(&mutating), take_one(&validating));
    let expect = |request: &Value, operation: &str, options: Value| {
        assert!(!request["uid"].as_str().unwrap().is_empty());
        let kind = json!({"group": "", "version": "v1", "kind": "ConfigMap"});
        let resource = json!({"group": "", "version": "v1", "resource": "configmaps"});
        for (field, expected) in [
            ("kind", &kind),
            ("requestKind", &kind),
            ("resource", &resource),
            ("requestResource", &resource),
            ("name", &json!("a")),
            ("namespace", &json!("default")),
            ("operation", &json!(operation)),
            ("dryRun", &json!(false)),
            ("options", &options),
        ] {
            assert_eq!(&request[field], expected, "{operation} {field}");
        }
        assert_eq!(request["userInfo"]["groups"][0], "system:masters");
    };
    let options = json!({"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "fieldManager": "me",
        "fieldValidation": "Strict"});
    expect(&first, "CREATE", options.clone());
    expect(&second, "CREATE", options);
    for request in [&first, &second] {
        let object = &request["object"];
        assert_eq!((&object["kind"], &object["apiVersion"]), (&json!("ConfigMap"), &json!("v1")));
        assert_eq!(object["metadata"]["managedFields"][0]["manager"], "me", "managed fields are a list");
        assert_eq!(request["oldObject"], Value::Null);
    }
    assert!(first["object"]["metadata"]["uid"].is_null() && second["object"]["metadata"]["uid"].is_string());

    let one = format!("{CONFIG_MAPS}/a");
    assert_eq!(send(&server, &format!("PATCH {one}"), json!({"data": {"x": "2"}})).await.0, 200);
    let (first, second) = (take_one(&mutating), take_one(&validating));
    for request in [&first, &second] {
        expect(request, "UPDATE", json!({"kind": "UpdateOptions", "apiVersion": "meta.k8s.io/v1"}));
        assert_eq!((&request["object"]["data"]["x"], &request["oldObject"]["data"]["x"]), (&json!("2"), &json!("1")));
        let versions = ["object", "oldObject"].map(|object| &request[object]["metadata"]["resourceVersion"]);
        assert!(versions[0].is_string() && versions[0] == versions[1], "{request}");
    }

    assert_eq!(send(&server, &format!("PATCH {one}?dryRun=All"), json!({"data": {"x": "3"}})).await.0, 200);
    take_one(&mutating);
    let request = take_one(&validating);
    assert_eq!((&request["dryRun"], &request["options"]["dryRun"]), (&json!(true), &json!(["All"])));

    let options = json!({"kind": "DeleteOptions", "propagationPolicy": "Background"});
    assert_eq!(send(&server, &format!("DELETE {one}"), options).await.0, 200);
    for request in [take_one(&mutating), take_one(&validating)] {
        let options =
            json!({"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1", "propagationPolicy": "Background"});
        expect(&request, "DELETE", options);
        assert_eq!((&request["object"], &request["oldObject"]["data"]["x"]), (&Value::Null, &json!("2")));
    }

    assert_eq!(send(&server, &format!("POST {CONFIG_MAPS}"), json!({"metadata": {"name": "b"}})).await.0, 201);
    mutating.lock().unwrap().clear();
    validating.lock().unwrap().clear();
    let selected = format!("DELETE {CONFIG_MAPS}?fieldSelector=metadata.name%3Db");
    assert_eq!(send(&server, &selected, Value::Null).await.0, 200);
    let request = take_one(&validating);
    assert_eq!((&request["name"], &request["oldObject"]["metadata"]["name"]), (&Value::Null, &json!("b")));
}

#[tokio::test]
async fn admission_review_of_a_subresource_has_the_kind_of_its_body() {
    let (builder, mutating, validating) = recording("*", "*", "*/*");
    let server = builder.build().await.unwrap();
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": template});
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let deployment = json!({"metadata": {"name": "d"}, "spec": spec});
    assert_eq!(send(&server, &format!("POST {deployments}"), deployment).await.0, 201);
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    assert_eq!(send(&server, "POST /api/v1/namespaces/default/pods", pod).await.0, 201);
    let pod = "/api/v1/namespaces/default/pods/p";
    for (line, body, code, operation, kind) in [
        (
            format!("PATCH {deployments}/d/scale"),
            json!({"spec": {"replicas": 3}}),
            200,
            "UPDATE",
            "autoscaling/v1/Scale",
        ),
        (
            format!("PATCH {deployments}/d/status"),
            json!({"status": {"replicas": 1}}),
            200,
            "UPDATE",
            "apps/v1/Deployment",
        ),
        (
            format!("POST {pod}/binding"),
            json!({"metadata": {"name": "p"}, "target": {"name": "n"}}),
            201,
            "CREATE",
            "/v1/Binding",
        ),
        (
            format!("POST {pod}/eviction?dryRun=All"),
            json!({"metadata": {"name": "p"}}),
            201,
            "CREATE",
            "policy/v1/Eviction",
        ),
        (format!("POST {pod}/exec?command=ls"), Value::Null, 0, "CONNECT", "/v1/PodExecOptions"),
    ] {
        mutating.lock().unwrap().clear();
        validating.lock().unwrap().clear();
        let (found, answer, _) = send(&server, &line, body).await;
        assert!(code == 0 || found == code, "{line}: {found} {answer}");
        for seen in [&mutating, &validating] {
            let requests = seen.lock().unwrap();
            let request = requests.iter().find(|request| request["subResource"].is_string()).expect("no call");
            let Value::Object(names) = &request["kind"] else { panic!("{request}") };
            let names: Vec<&str> = names.values().map(|name| name.as_str().unwrap()).collect();
            assert_eq!((&request["operation"], names.join("/")), (&json!(operation), kind.to_owned()), "{line}");
            let subresource = line.split(['/', '?']).find(|part| request["subResource"] == *part);
            assert!(subresource.is_some(), "{line}: {}", request["subResource"]);
            assert_eq!(request["object"]["kind"], names[2], "{line}");
        }
    }
    let scaled = send(&server, &format!("GET {deployments}/d"), Value::Null).await.1;
    assert_eq!(scaled["spec"]["replicas"], 3);
}

#[tokio::test]
async fn webhook_patches_are_applied_in_order_with_defaults() {
    let add = |operations: Value| {
        move |_: Value| {
            let operations = operations.clone();
            async move { json!({"allowed": true, "patch": operations, "warnings": ["changed"]}) }
        }
    };
    let pods = || only("", "v1", "pods");
    let container = json!({"name": "side", "image": "side:1", "unknown": 1});
    let first = json!([{"op": "add", "path": "/spec/containers/-", "value": container}]);
    let second = json!([
        {"op": "test", "path": "/spec/containers/1/imagePullPolicy", "value": "IfNotPresent"},
        {"op": "add", "path": "/metadata/labels", "value": {"seen": "2"}},
        {"op": "replace", "path": "/metadata/managedFields", "value": [{"operation": "No"}]}]);
    let server = ApiServer::builder()
        .mutating_webhook(configuration("b", pods()), add(second))
        .mutating_webhook(configuration("a", pods()), add(first))
        .build()
        .await
        .unwrap();
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let (code, pod, warnings) = send(&server, "POST /api/v1/namespaces/default/pods", pod).await;
    assert_eq!(code, 201, "{pod}");
    assert_eq!(
        (&pod["spec"]["containers"][1]["name"], &pod["metadata"]["labels"]["seen"]),
        (&json!("side"), &json!("2"))
    );
    assert_eq!(pod["spec"]["containers"][1]["unknown"], Value::Null, "unknown fields are removed");
    assert_eq!(pod["metadata"]["managedFields"][0]["operation"], "Update", "invalid managed fields are restored");
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings.contains(&"299 - \"changed\"".to_owned()));
    assert!(
        warnings.iter().any(|text| text.contains(".metadata.managedFields was in an invalid state")),
        "{warnings:?}"
    );
}

#[tokio::test]
async fn webhook_rejections_have_upstreams_codes_and_messages() {
    let response = Arc::new(Mutex::new(Value::Null));
    let current = Arc::clone(&response);
    let handler = move |_: Value| {
        let response = current.lock().unwrap().clone();
        async { response }
    };
    let rules = only("", "v1", "configmaps");
    let server = ApiServer::builder().mutating_webhook(configuration("m", rules), handler).build().await.unwrap();
    let name = "m.example.com";
    let failed = |why: &str| format!("Internal error occurred: failed calling webhook \"{name}\": {why}");
    let denied = |why: &str| format!("admission webhook \"{name}\" denied the request{why}");
    for (answer, code, message) in [
        (json!({"allowed": false}), 400, denied(" without explanation")),
        (json!({"allowed": false, "status": {"code": 403, "message": "no", "reason": "Forbidden"}}), 403, denied(": no")),
        (json!({"allowed": false, "status": {"code": 200, "message": "odd"}}), 400, denied(": odd")),
        (Value::Null, 500, failed("received invalid webhook response: webhook response was absent")),
        (json!([1]), 500, failed("failed to call webhook: couldn't get version/kind; json parse error: json: cannot unmarshal array into response")),
        (json!({"allowed": true, "patch": [{"op": "remove", "path": "/none"}]}), 500,
            "Internal error occurred: jsonpatch remove operation does not apply: doc is missing path: \"/none\": missing value".to_owned()),
        (json!({"allowed": true, "patch": [{"op": "replace", "path": "/metadata/namespace", "value": "other"}]}), 400,
            "the namespace of the provided object does not match the namespace sent on the request".to_owned()),
        (json!({"allowed": true, "patch": "bm90IGpzb24=", "patchType": "JSONPatch"}), 500,
            failed("received undecodable patch in webhook response: expected ident at line 1 column 2")),
    ] {
        let warns = answer.is_object();
        let mut shown = answer.clone();
        if warns {
            shown["warnings"] = json!(["careful"]);
        }
        *response.lock().unwrap() = shown;
        let (found, status, warnings) =
            send(&server, &format!("POST {CONFIG_MAPS}"), json!({"metadata": {"name": "a"}})).await;
        assert_eq!((found, status["message"].as_str().unwrap()), (code, &*message), "{answer}");
        if message.contains("denied") {
            assert_eq!(warnings, ["299 - \"careful\""], "warnings reach the client on denial");
        }
    }
    // The uid of another request.
    *response.lock().unwrap() = json!({"allowed": true, "uid": "other"});
    let (code, status, _) = send(&server, &format!("POST {CONFIG_MAPS}"), json!({"metadata": {"name": "a"}})).await;
    let text = status["message"].as_str().unwrap();
    assert!(code == 500 && text.contains("received invalid webhook response: expected response.uid="), "{text}");
    // A change of an immutable field passes through validation.
    *response.lock().unwrap() = json!({"allowed": true});
    let fixed = json!({"metadata": {"name": "a"}, "data": {"x": "1"}, "immutable": true});
    assert_eq!(send(&server, &format!("POST {CONFIG_MAPS}"), fixed).await.0, 201);
    *response.lock().unwrap() = json!({"allowed": true, "patch": [{"op": "replace", "path": "/data/x", "value": "2"}]});
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    let (code, status, _) = send(&server, &format!("PATCH {CONFIG_MAPS}/a"), labels).await;
    assert_eq!((code, &status["reason"]), (422, &json!("Invalid")), "{status}");
    // There is nothing to patch in a deletion.
    let (code, status, _) = send(&server, &format!("DELETE {CONFIG_MAPS}/a"), Value::Null).await;
    let text = "Internal error occurred: admission webhook \"m.example.com\" attempted to modify the object, which is not supported for this operation";
    assert_eq!((code, &status["message"]), (500, &json!(text)));
    let metrics = send(&server, "GET /metrics", Value::Null).await.1;
    let metrics = metrics.as_str().unwrap();
    for line in [
        "apiserver_admission_webhook_rejection_count{error_type=\"no_error\",name=\"m.example.com\",operation=\"CREATE\",rejection_code=\"403\",type=\"admit\"} 1",
        "apiserver_admission_webhook_request_total{code=\"200\",name=\"m.example.com\",operation=\"CREATE\",rejected=\"false\",type=\"admit\"} 2",
        "# TYPE apiserver_admission_webhook_admission_duration_seconds histogram",
    ] {
        assert!(metrics.contains(line), "no {line} in {metrics}");
    }
}

#[tokio::test]
async fn stored_webhook_configuration_takes_effect_and_is_exempt_from_webhooks() {
    let server = ApiServer::builder().build().await.unwrap();
    let everything = |policy: &str| {
        let client = json!({"url": "https://127.0.0.1:1/x"});
        let fields = json!({"clientConfig": client, "sideEffects": "None", "admissionReviewVersions": ["v1"], "failurePolicy": policy});
        configuration("all", fields)
    };
    let (code, _, warnings) = send(&server, &format!("POST {VALIDATING}"), everything("Fail")).await;
    assert_eq!((code, warnings.len()), (201, 0), "a configuration has effect: {warnings:?}");
    let probe = async |wanted: u16| -> Value {
        for number in 0..1_000 {
            let name = format!("a{number}");
            let (code, answer, _) =
                send(&server, &format!("POST {CONFIG_MAPS}?dryRun=All"), json!({"metadata": {"name": name}})).await;
            if code == wanted {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("no answer {wanted}");
    };
    let refused = probe(500).await;
    let text = "Internal error occurred: failed calling webhook \"all.example.com\": failed to call webhook: Post \"https://127.0.0.1:1/x?timeout=10s\": dial tcp 127.0.0.1:1: connect: connection refused";
    assert_eq!(refused["message"], text);
    let mut ignoring = everything("Ignore");
    let stored = send(&server, &format!("GET {VALIDATING}/all"), Value::Null).await.1;
    ignoring["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"].clone();
    assert_eq!(send(&server, &format!("PUT {VALIDATING}/all"), ignoring).await.0, 200);
    probe(201).await;
    assert_eq!(send(&server, &format!("DELETE {VALIDATING}/all"), Value::Null).await.0, 200);
    probe(201).await;
}

#[tokio::test]
async fn webhook_for_another_version_receives_and_patches_that_version() {
    let seen = Seen::default();
    let recorded = Arc::clone(&seen);
    let handler = move |request: Value| {
        recorded.lock().unwrap().push(request);
        let patch = json!([{"op": "add", "path": "/spec/targetCPUUtilizationPercentage", "value": 70}]);
        async move { json!({"allowed": true, "patch": patch}) }
    };
    let rules = only("autoscaling", "v1", "horizontalpodautoscalers");
    let server = ApiServer::builder().mutating_webhook(configuration("m", rules), handler).build().await.unwrap();
    let spec = json!({"maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"},
        "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}]});
    let scaler = json!({"metadata": {"name": "h"}, "spec": spec});
    let path = "POST /apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
    let (code, stored, _) = send(&server, path, scaler).await;
    assert_eq!(code, 201, "{stored}");
    let request = take_one(&seen);
    assert_eq!((&request["kind"]["version"], &request["requestKind"]["version"]), (&json!("v1"), &json!("v2")));
    assert_eq!(request["object"]["apiVersion"], "autoscaling/v1");
    assert_eq!(request["object"]["spec"]["targetCPUUtilizationPercentage"], 50);
    assert_eq!(stored["apiVersion"], "autoscaling/v2");
    assert_eq!(stored["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 70);
}

#[tokio::test]
async fn earlier_webhooks_are_reinvoked_with_the_changed_object() {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let hook = |name: &'static str, value: &'static str| {
        let calls = Arc::clone(&calls);
        move |request: Value| {
            calls.lock().unwrap().push(name);
            let present = request["object"]["data"][name].is_string();
            let patch = if present {
                json!([])
            } else {
                json!([{"op": "add", "path": format!("/data/{name}"), "value": value}])
            };
            async move { json!({"allowed": true, "patch": patch}) }
        }
    };
    let again = |policy: &str| {
        let mut fields = only("", "v1", "configmaps");
        fields["reinvocationPolicy"] = json!(policy);
        fields["namespaceSelector"] = json!({"matchLabels": {"team": "a"}});
        fields
    };
    let server = ApiServer::builder()
        .mutating_webhook(configuration("a", again("IfNeeded")), hook("a", "1"))
        .mutating_webhook(configuration("b", again("Never")), hook("b", "2"))
        .mutating_webhook(configuration("c", again("IfNeeded")), hook("c", "3"))
        .build()
        .await
        .unwrap();
    let namespace = json!({"metadata": {"name": "team-a", "labels": {"team": "a"}}});
    assert_eq!(send(&server, "POST /api/v1/namespaces", namespace).await.0, 201);
    let object = json!({"metadata": {"name": "x"}, "data": {"k": "v"}});
    let (code, _, _) = send(&server, &format!("POST {CONFIG_MAPS}"), object.clone()).await;
    assert_eq!((code, calls.lock().unwrap().len()), (201, 0), "the namespace is not selected");
    let (code, stored, _) = send(&server, "POST /api/v1/namespaces/team-a/configmaps", object).await;
    assert_eq!((code, &stored["data"]), (201, &json!({"k": "v", "a": "1", "b": "2", "c": "3"})));
    assert_eq!(*calls.lock().unwrap(), ["a", "b", "c", "a"]);
}

#[tokio::test]
async fn webhook_may_call_the_server_during_its_call() {
    let server = Arc::new(OnceLock::<ApiServer>::new());
    let known = Arc::clone(&server);
    let handler = move |request: Value| {
        let known = Arc::clone(&known);
        async move {
            if request["name"] == "outer"
                && let Some(server) = known.get()
            {
                let inner = json!({"metadata": {"name": "inner"}});
                let (code, answer, _) = Box::pin(send(server, &format!("POST {CONFIG_MAPS}"), inner)).await;
                return json!({"allowed": code == 201, "status": {"message": answer.to_string()}});
            }
            json!({"allowed": true})
        }
    };
    let rules = only("", "v1", "configmaps");
    let builder = ApiServer::builder().validating_webhook(configuration("v", rules), handler);
    let _ = server.set(builder.build().await.unwrap());
    let server = server.get().unwrap();
    let path = format!("POST {CONFIG_MAPS}");
    let outer = send(server, &path, json!({"metadata": {"name": "outer"}}));
    let (code, answer, _) = tokio::time::timeout(Duration::from_secs(60), outer).await.expect("a deadlock");
    assert_eq!(code, 201, "{answer}");
    assert_eq!(send(server, &format!("GET {CONFIG_MAPS}/inner"), Value::Null).await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn failure_policy_applies_to_slow_and_panicking_webhooks() {
    let slow = |_: Value| std::future::pending::<Value>();
    let panicking = |request: Value| async move {
        assert!(request.is_null(), "on purpose");
        request
    };
    let fields = |policy: &str| {
        let mut fields = only("", "v1", "configmaps");
        (fields["failurePolicy"], fields["timeoutSeconds"]) = (json!(policy), json!(2));
        fields
    };
    let build = async |policy: &str, panics: bool| {
        let builder = ApiServer::builder();
        let configuration = configuration("v", fields(policy));
        match panics {
            true => builder.validating_webhook(configuration, panicking).build().await.unwrap(),
            false => builder.validating_webhook(configuration, slow).build().await.unwrap(),
        }
    };
    for (panics, cause) in [(false, "context deadline exceeded"), (true, "the handler panicked")] {
        let server = build("Fail", panics).await;
        let (code, status, _) = send(&server, &format!("POST {CONFIG_MAPS}"), json!({"metadata": {"name": "a"}})).await;
        let text = format!(
            "Internal error occurred: failed calling webhook \"v.example.com\": failed to call webhook: {cause}"
        );
        assert_eq!((code, &status["message"]), (500, &json!(text)));
        let server = build("Ignore", panics).await;
        let (code, ..) = send(&server, &format!("POST {CONFIG_MAPS}"), json!({"metadata": {"name": "a"}})).await;
        assert_eq!(code, 201);
        let metrics = send(&server, "GET /metrics", Value::Null).await.1;
        let line = "apiserver_admission_webhook_fail_open_count{name=\"v.example.com\",type=\"validating\"}";
        assert!(metrics.as_str().unwrap().contains(line), "{metrics}");
    }
}

#[tokio::test]
async fn webhook_receives_a_custom_resource_in_the_version_of_its_rule() {
    let seen = Seen::default();
    let recorded = Arc::clone(&seen);
    let handler = move |request: Value| {
        recorded.lock().unwrap().push(request);
        async { json!({"allowed": true, "patch": [{"op": "replace", "path": "/spec/size", "value": 2}]}) }
    };
    let rules = only("example.com", "v1", "widgets");
    let server = ApiServer::builder().mutating_webhook(configuration("m", rules), handler).build().await.unwrap();
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object",
        "properties": {"size": {"type": "integer"}, "color": {"type": "string", "default": "red"}}}}}});
    let version = |name: &str| json!({"name": name, "served": true, "storage": name == "v1", "schema": schema});
    let definition = json!({"metadata": {"name": "widgets.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"}, "versions": [version("v1"), version("v2")]}});
    let definitions = "POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(send(&server, definitions, definition).await.0, 201);
    let widget =
        json!({"apiVersion": "example.com/v2", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 1}});
    let widgets = "/apis/example.com/v2/namespaces/default/widgets";
    let (code, stored, _) = send(&server, &format!("POST {widgets}"), widget).await;
    assert_eq!((code, &stored["apiVersion"], &stored["spec"]["size"]), (201, &json!("example.com/v2"), &json!(2)));
    let request = take_one(&seen);
    assert_eq!((&request["kind"]["version"], &request["requestKind"]["version"]), (&json!("v1"), &json!("v2")));
    assert_eq!(request["object"]["apiVersion"], "example.com/v1");
    assert_eq!(request["object"]["spec"]["color"], "red");
    let unchanged = send(&server, &format!("PATCH {widgets}/w"), json!({"metadata": {"labels": {"a": "b"}}})).await;
    assert_eq!((unchanged.0, &unchanged.1["spec"]), (200, &json!({"size": 2, "color": "red"})));
    let request = take_one(&seen);
    assert_eq!(request["oldObject"]["apiVersion"], "example.com/v1");
    assert_eq!(send(&server, &format!("DELETE {widgets}/w"), Value::Null).await.0, 500, "a deletion has no patch");
    assert_eq!(take_one(&seen)["oldObject"]["apiVersion"], "example.com/v1");
}

#[tokio::test]
async fn webhook_sees_an_expensive_write_once() {
    let calls = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&calls);
    // Two patches of 700 KiB take more fuel than an I/O worker has for a write that may start again.
    let handler = move |_: Value| {
        *counted.lock().unwrap() += 1;
        async {
            let operation = json!({"op": "add", "path": "/data/large", "value": "x".repeat(700 << 10)});
            json!({"allowed": true, "patch": [operation, operation]})
        }
    };
    let rules = only("", "v1", "configmaps");
    let server = ApiServer::builder().mutating_webhook(configuration("m", rules), handler).build().await.unwrap();
    *calls.lock().unwrap() = 0;
    for (name, bytes) in [("small", 10), ("large", 200 << 10)] {
        let object = json!({"metadata": {"name": name}, "data": {"x": "y".repeat(bytes)}});
        let (code, answer, _) = send(&server, &format!("POST {CONFIG_MAPS}?dryRun=All"), object).await;
        assert_eq!(code, 201, "{name}: {}", answer["message"]);
        assert_eq!(std::mem::take(&mut *calls.lock().unwrap()), 1, "calls for the {name} object");
    }
}

#[tokio::test]
async fn webhook_that_needs_a_server_does_not_keep_it_from_starting() {
    let storage = MemoryStorage::new();
    let start = || ApiServer::builder().authorization([AuthorizationMode::Rbac]).storage(storage.clone()).build();
    let first = start().await.unwrap();
    let url = "https://127.0.0.1:1/of-this-server";
    let of_roles = json!({
        "rules": [{
            "operations": ["CREATE", "UPDATE"],
            "apiGroups": ["rbac.authorization.k8s.io"],
            "apiVersions": ["*"],
            "resources": ["*"],
        }],
        "clientConfig": {"url": url},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    });
    let (code, answer, _) = send(&first, &format!("POST {VALIDATING}"), configuration("roles", of_roles)).await;
    assert_eq!(code, 201, "{answer}");
    first.shutdown();
    // An upgrade brings a role that the store does not have yet.
    for name in ["view", "admin"] {
        let key = Key::new("clusterroles", None, name).unwrap();
        let (stored, _) = storage.get(&key).await.unwrap();
        storage.delete(&key, stored.expect("a default role").modified).await.unwrap();
    }
    let second = tokio::time::timeout(Duration::from_secs(60), start()).await.expect("the server starts").unwrap();
    let (code, view, _) = send(&second, "GET /apis/rbac.authorization.k8s.io/v1/clusterroles/view", Value::Null).await;
    assert_eq!(code, 200, "{view}");
    let role = json!({"metadata": {"name": "r"}, "rules": []});
    let (code, answer, _) = send(&second, "POST /apis/rbac.authorization.k8s.io/v1/clusterroles", role).await;
    assert_eq!(code, 500, "the webhook is asked about requests: {answer}");
}
