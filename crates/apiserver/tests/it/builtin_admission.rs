//! Tests the built-in admission plugins and the controllers that belong to them, over HTTP.

use std::time::Duration;

use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use listwatch_apiserver::ApiServer;
use listwatch_apiserver::admission::{AdmissionConfiguration, AdmissionPlugins};
use listwatch_json::{Value, json};

async fn send(server: &ApiServer, line: &str, body: Value) -> (u16, Value) {
    let (method, path) = line.split_once(' ').unwrap();
    let method: Method = method.parse().unwrap();
    let content_type = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    let body = if body.is_null() { bytes::Bytes::new() } else { body.to_string().into() };
    let request = Request::builder().method(method).uri(path).header("content-type", content_type);
    let response = server.service().handle(request.body(Full::new(body)).unwrap()).await;
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&body).unwrap_or_default())
}

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name}})
}

#[tokio::test]
async fn create_in_a_missing_namespace_creates_it_only_with_namespace_auto_provision() {
    let plain = ApiServer::builder().build().await.unwrap();
    let maps = "POST /api/v1/namespaces/new/configmaps";
    assert_eq!(send(&plain, maps, map("a")).await.0, 404);
    let plugins = AdmissionPlugins::default().with("NamespaceAutoProvision", true);
    let server = ApiServer::builder().admission_plugins(plugins).build().await.unwrap();
    let dry_run = "POST /api/v1/namespaces/new/configmaps?dryRun=All";
    assert_eq!(send(&server, dry_run, map("a")).await.0, 404, "a dry run creates nothing");
    assert_eq!(send(&server, "GET /api/v1/namespaces/new", Value::Null).await.0, 404);
    assert_eq!(send(&server, maps, map("a")).await.0, 201);
    let (code, namespace) = send(&server, "GET /api/v1/namespaces/new", Value::Null).await;
    assert_eq!((code, &namespace["status"]["phase"]), (200, &json!("Active")));
    let put = "PUT /api/v1/namespaces/other/configmaps/a";
    assert_eq!(send(&server, put, map("a")).await.0, 404, "an update creates no ConfigMap, and no namespace");
    assert_eq!(send(&server, "GET /api/v1/namespaces/other", Value::Null).await.0, 404);
    let bad = "POST /api/v1/namespaces/Not_a_name/configmaps";
    let (code, refused) = send(&server, bad, map("a")).await;
    assert_eq!(code, 403, "the namespace cannot be created: {refused}");
}

#[tokio::test]
async fn pod_without_a_priority_class_gets_the_default_class_and_keeps_it() {
    let server = ApiServer::builder().build().await.unwrap();
    let pods = "POST /api/v1/namespaces/default/pods";
    let pod = |name: &str| json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let (code, before) = send(&server, pods, pod("before")).await;
    assert_eq!((code, &before["spec"]["priority"]), (201, &json!(0)));
    let classes = "POST /apis/scheduling.k8s.io/v1/priorityclasses";
    let class = |name: &str| json!({"metadata": {"name": name}, "value": 7, "globalDefault": true});
    assert_eq!(send(&server, classes, class("first")).await.0, 201);
    let (code, refused) = send(&server, classes, class("second")).await;
    assert_eq!(
        (code, &refused["message"]),
        (
            403,
            &json!(
                "priorityclasses.scheduling.k8s.io \"second\" is forbidden: PriorityClass first is already marked as default. Only one default can exist"
            )
        )
    );
    let (_, after) = send(&server, pods, pod("after")).await;
    assert_eq!(
        (&after["spec"]["priority"], &after["spec"]["priorityClassName"]),
        (&json!(7), &json!("first")),
        "the next pod has the class"
    );
    // A client that sends the object that it created, without what the server added.
    let update = json!({"metadata": {"name": "after", "labels": {"a": "b"}}, "spec": after["spec"]});
    let mut without = update.clone();
    without["spec"]
        .as_object_mut()
        .unwrap()
        .retain(|name, _| !matches!(name.as_str(), "priority" | "preemptionPolicy"));
    let (code, updated) = send(&server, "PUT /api/v1/namespaces/default/pods/after", without).await;
    assert_eq!((code, &updated["spec"]["priority"]), (200, &json!(7)), "{updated}");
    let system = json!({"metadata": {"name": "s"}, "spec": {"priorityClassName": "system-node-critical",
        "containers": [{"name": "c", "image": "i"}]}});
    let (_, system) = send(&server, "POST /api/v1/namespaces/kube-system/pods", system).await;
    assert_eq!(system["spec"]["priority"], json!(2_000_001_000), "{system}");
}

#[tokio::test(start_paused = true)]
async fn events_above_the_configured_rate_are_rejected() {
    let file = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: EventRateLimit\n  path: limits\n";
    let limits = "apiVersion: eventratelimit.admission.k8s.io/v1alpha1\nkind: Configuration\nlimits:\n- {type: Namespace, qps: 1, burst: 1}\n";
    let configuration = AdmissionConfiguration::from_yaml(file, |_| Ok(limits.to_owned())).unwrap();
    let plugins = AdmissionPlugins::default().with("EventRateLimit", true);
    let builder = ApiServer::builder().admission_plugins(plugins).admission_configuration(configuration);
    let server = builder.build().await.unwrap();
    let event = |name: &str| json!({"metadata": {"name": name}, "involvedObject": {"namespace": "default", "kind": "Pod", "name": "p"}});
    let events = "POST /api/v1/namespaces/default/events";
    assert_eq!(send(&server, events, event("a")).await.0, 201);
    let (code, refused) = send(&server, events, event("b")).await;
    let message = json!("Too many requests: limit reached on type Namespace for key default");
    assert_eq!((code, &refused["message"], &refused["reason"]), (429, &message, &json!("TooManyRequests")));
}

#[tokio::test]
async fn deleted_claim_is_removed_when_no_pod_uses_it() {
    let server = ApiServer::builder().build().await.unwrap();
    let claim = json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}});
    let claims = "POST /api/v1/namespaces/default/persistentvolumeclaims";
    let (code, created) = send(&server, claims, claim).await;
    assert_eq!((code, &created["metadata"]["finalizers"]), (201, &json!(["kubernetes.io/pvc-protection"])));
    let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}});
    assert_eq!(send(&server, "POST /api/v1/namespaces/default/pods", pod).await.0, 201);
    let one = "/api/v1/namespaces/default/persistentvolumeclaims/c";
    assert_eq!(send(&server, &format!("DELETE {one}"), Value::Null).await.0, 200);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let (code, deleted) = send(&server, &format!("GET {one}"), Value::Null).await;
    assert_eq!(code, 200, "a pod uses the claim");
    assert!(deleted["metadata"]["deletionTimestamp"].is_string());
    let now = json!({"gracePeriodSeconds": 0});
    assert_eq!(send(&server, "DELETE /api/v1/namespaces/default/pods/p", now).await.0, 200);
    let gone = async {
        while send(&server, &format!("GET {one}"), Value::Null).await.0 != 404 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), gone).await.expect("the claim disappears");
}
