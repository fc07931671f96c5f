//! Tests webhooks that the server itself serves (`test/integration/examples/webhook_test.go`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use listwatch_access::{Attributes, Authorization, Authorizer, MaybeFuture};
use listwatch_apiserver::{ApiServer, Auth};
use listwatch_json::{Value, json};
use listwatch_meta::UserInfo;

use crate::aggregation::{Extension, service};

const TOKEN: &str = "a-token-of-the-test";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const VALIDATING: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
/// The number of attempts to call a webhook, 20 ms apart. After them, it counts as not called.
const ATTEMPTS: u32 = 3_000;

/// Records the last user of each path that is not of a resource, and leaves the decision to other authorizers.
#[derive(Clone, Default)]
struct Users(Arc<Mutex<HashMap<String, UserInfo>>>);

impl Authorizer for Users {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> MaybeFuture<'a, Authorization> {
        if !attributes.is_resource_request {
            self.0.lock().unwrap().insert(attributes.path.to_owned(), attributes.user.clone());
        }
        MaybeFuture::ready(Authorization::no_opinion())
    }
}

impl Users {
    fn has_seen(&self, path: &str) -> bool {
        self.0.lock().unwrap().contains_key(path)
    }

    /// Asserts that the server itself has sent the requests for a path.
    fn assert_own(&self, path: &str) {
        let users = self.0.lock().unwrap();
        let user = users.get(path).unwrap_or_else(|| panic!("{path} was not called"));
        let groups: Vec<&str> = user.groups.iter().map(String::as_str).collect();
        assert_eq!(user.username, "system:apiserver", "{path}");
        assert_eq!(groups, ["system:authenticated", "system:masters"], "{path}");
        assert!(!user.uid.is_empty(), "{path}");
    }

    /// Builds a server that needs a token and calls services at their endpoints. Users have added an endpoint, at which
    /// nothing listens, to the service `default/kubernetes`.
    async fn server(&self) -> ApiServer {
        let builder = ApiServer::builder().auth(Auth::Token(TOKEN.to_owned())).authorizer(self.clone());
        let server = builder.aggregator_routing(true).build().await.unwrap();
        let slice = json!({
            "metadata": {"name": "users", "labels": {"kubernetes.io/service-name": "kubernetes"}},
            "addressType": "IPv4",
            "ports": [{"name": "https", "port": 9}],
            "endpoints": [{"addresses": ["192.0.2.1"], "conditions": {"ready": true}}],
        });
        let (code, created) =
            send(&server, "POST /apis/discovery.k8s.io/v1/namespaces/default/endpointslices", slice).await;
        assert_eq!(code, 201, "{created}");
        server
    }
}

/// Sends a request of the administrator.
async fn send(server: &ApiServer, line: &str, body: Value) -> (u16, Value) {
    let (method, path) = line.split_once(' ').unwrap();
    let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    let request = request.header("authorization", format!("Bearer {TOKEN}"));
    let response = server.service().handle(request.body(Full::new(body)).unwrap()).await;
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap_or_default())
}

/// Returns a webhook for the config maps of the namespace `default`.
fn webhook(name: &str, client: Value) -> Value {
    json!({
        "name": format!("{name}.example.com"),
        "clientConfig": client,
        "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 30,
    })
}

fn configuration(webhooks: &[Value]) -> Value {
    json!({"metadata": {"name": "own"}, "webhooks": webhooks})
}

fn config_map(name: &str) -> Value {
    json!({"metadata": {"name": name}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admission_webhook_of_the_server_itself_is_called_as_system_apiserver_without_a_ca_bundle() {
    let users = Users::default();
    let server = users.server().await;
    let _served = server.serve_on_free_port().await.unwrap();
    // The end of a further listener has no effect on the calls.
    drop(server.serve_on_free_port().await.unwrap());
    let service = json!({"service": {"namespace": "default", "name": "kubernetes", "path": "/of-service"}});
    let url = json!({"url": "https://kubernetes.default.svc/of-url"});
    let configuration = configuration(&[webhook("service", service), webhook("url", url)]);
    let (code, created) = send(&server, &format!("POST {VALIDATING}"), configuration).await;
    assert_eq!(code, 201, "{created}");
    let mut last = (0, Value::Null);
    for number in 0..ATTEMPTS {
        let name = format!("a{number}");
        last = send(&server, &format!("POST {CONFIG_MAPS}?dryRun=All"), config_map(&name)).await;
        if users.has_seen("/of-service") && users.has_seen("/of-url") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    users.assert_own("/of-service");
    users.assert_own("/of-url");
    assert_eq!(last.0, 500, "nothing is at the paths: {}", last.1);
}

/// Calls the webhook of an extension server at the own listener. The write that needs the review holds the last slot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn review_of_an_extension_server_decides_the_write_that_holds_the_last_slot() {
    let folder = tempfile::tempdir().unwrap();
    let extension = Extension::start(folder.path());
    for is_fair in [true, false] {
        let builder = ApiServer::builder().auth(Auth::Token(TOKEN.to_owned()));
        let builder = builder.priority_and_fairness(is_fair).requests_in_flight_max(400, 1);
        let server = builder.build().await.unwrap();
        let _served = server.serve_on_free_port().await.unwrap();
        for (path, object) in [
            ("/api/v1/namespaces/default/services", service()),
            ("/apis/apiregistration.k8s.io/v1/apiservices", extension.api_service()),
        ] {
            let (code, created) = send(&server, &format!("POST {path}"), object).await;
            assert_eq!(code, 201, "{created}");
        }
        let mut code = 0;
        for _ in 0..ATTEMPTS {
            code = send(&server, "GET /apis/ext.example.com/v1", Value::Null).await.0;
            if code == 200 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(code, 200, "the extension server is not available");

        let reviews = "/apis/ext.example.com/v1/reviews";
        let client = json!({"service": {"namespace": "default", "name": "kubernetes", "path": reviews}});
        let (code, created) =
            send(&server, &format!("POST {VALIDATING}"), configuration(&[webhook("reviews", client)])).await;
        assert_eq!(code, 201, "{created}");
        let mut last = (0, Value::Null);
        for _ in 0..ATTEMPTS {
            last = send(&server, &format!("POST {CONFIG_MAPS}?dryRun=All"), config_map("denied")).await;
            if last.0 != 201 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let message = last.1["message"].as_str().unwrap_or_default();
        let expected = "\"reviews.example.com\" denied the request: reviewed for system:apiserver";
        assert!(last.0 == 400 && message.contains(expected), "priority and fairness {is_fair}: {last:?}");
        let (code, created) = send(&server, &format!("POST {CONFIG_MAPS}"), config_map("allowed")).await;
        assert_eq!(code, 201, "priority and fairness {is_fair}: {created}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conversion_webhook_of_the_server_itself_is_called_as_system_apiserver_without_a_ca_bundle() {
    let users = Users::default();
    let server = users.server().await;
    let _served = server.serve_on_free_port().await.unwrap();
    let version = |name: &str| {
        json!({"name": name, "served": true, "storage": name == "v1",
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}})
    };
    let client = json!({"service": {"namespace": "default", "name": "kubernetes", "path": "/convert"}});
    let definition = json!({"metadata": {"name": "widgets.example.com"}, "spec": {
        "group": "example.com", "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
        "versions": [version("v1"), version("v2")],
        "conversion": {"strategy": "Webhook",
            "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": client}}}});
    let definitions = "POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let (code, created) = send(&server, definitions, definition).await;
    assert_eq!(code, 201, "{created}");
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}});
    let (code, created) = send(&server, "POST /apis/example.com/v1/namespaces/default/widgets", widget).await;
    assert_eq!(code, 201, "{created}");
    for _ in 0..ATTEMPTS {
        let read = send(&server, "GET /apis/example.com/v2/namespaces/default/widgets/w", Value::Null);
        // Nothing is at the path, so the read fails or waits.
        let _ = tokio::time::timeout(Duration::from_secs(2), read).await;
        if users.has_seen("/convert") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    users.assert_own("/convert");
}
