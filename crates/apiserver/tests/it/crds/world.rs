//! A server for the tests of custom resources, with helpers for requests.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use listwatch_apiserver::{ApiServer, Body};
use listwatch_json::{Value, json};
use listwatch_storage::Storage;

/// The path of the widgets in the namespace `default`.
pub(crate) const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";
pub(crate) const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// The time limit of every wait in these tests.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct World {
    server: Arc<ApiServer>,
}

/// Creates the JSON of a definition of widgets.
pub(crate) fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"]},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object",
                "properties": {
                    "spec": {"type": "object", "properties": {
                        "size": {"type": "string"}, "replicas": {"type": "integer"}}},
                    "status": {"type": "object", "properties": {
                        "replicas": {"type": "integer"}, "selector": {"type": "string"}}},
                },
            }}}],
        },
    })
}

/// Creates the JSON of a widget.
pub(crate) fn widget(name: &str) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {"size": "m"}})
}

/// Returns the `name` of each member of a list.
pub(crate) fn names(list: &Value) -> Vec<String> {
    let members = list.as_array().expect("a list").iter();
    members.map(|member| member["name"].as_str().expect("a name").to_owned()).collect()
}

/// Returns a condition of an object; null if the object lacks a condition of this type.
pub(crate) fn condition(object: &Value, kind: &str) -> Value {
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|condition| condition["type"] == kind).unwrap_or_default()
}

impl World {
    pub(crate) async fn new() -> Self {
        World::of(Arc::new(ApiServer::builder().build().await.expect("a server")))
    }

    pub(crate) async fn over(storage: Arc<dyn Storage>) -> Self {
        World::of(Arc::new(ApiServer::builder().storage(storage).build().await.expect("a server")))
    }

    pub(crate) fn of(server: Arc<ApiServer>) -> Self {
        World { server }
    }

    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: String,
    ) -> Response<Body> {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.server.service().handle(request.body(Full::new(Bytes::from(body))).expect("a request")).await
    }

    async fn json(&self, method: Method, path: &str, content_type: &str, body: String) -> (u16, Value) {
        let response = self.send(method, path, &[("content-type", content_type)], body).await;
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        // Bodies that are not JSON are plain text.
        let value = serde_json::from_slice(&body).unwrap_or_else(|_| json!(String::from_utf8_lossy(&body)));
        (code, value)
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        self.json(Method::GET, path, "application/json", String::new()).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.json(Method::POST, path, "application/json", body.to_string()).await
    }

    /// Sends a POST, and returns code, headers and body.
    pub(crate) async fn post_headers(&self, path: &str, body: &Value) -> (u16, HeaderMap, Value) {
        let response = self.send(Method::POST, path, &[("content-type", "application/json")], body.to_string()).await;
        let (code, headers) = (response.status().as_u16(), response.headers().clone());
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        (code, headers, serde_json::from_slice(&body).expect("an object"))
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> (u16, Value) {
        self.json(Method::PUT, path, "application/json", body.to_string()).await
    }

    /// Sends a PUT, and returns code and headers.
    pub(crate) async fn put_headers(&self, path: &str, body: &Value) -> (u16, HeaderMap) {
        let response = self.send(Method::PUT, path, &[("content-type", "application/json")], body.to_string()).await;
        (response.status().as_u16(), response.headers().clone())
    }

    pub(crate) async fn patch(&self, path: &str, content_type: &str, body: Value) -> (u16, Value) {
        self.json(Method::PATCH, path, content_type, body.to_string()).await
    }

    pub(crate) async fn delete(&self, path: &str) -> (u16, Value) {
        self.json(Method::DELETE, path, "application/json", String::new()).await
    }

    pub(crate) async fn accept(&self, path: &str, accept: &str) -> (u16, Bytes) {
        let response = self.send(Method::GET, path, &[("accept", accept)], String::new()).await;
        let code = response.status().as_u16();
        (code, response.into_body().collect().await.expect("a body").to_bytes())
    }

    pub(crate) async fn headers(&self, path: &str) -> (u16, HeaderMap) {
        let response = self.send(Method::GET, path, &[], String::new()).await;
        (response.status().as_u16(), response.headers().clone())
    }

    pub(crate) async fn table(&self, path: &str) -> Value {
        let (code, body) = self.accept(path, "application/json;as=Table;v=v1;g=meta.k8s.io").await;
        assert_eq!(code, 200);
        serde_json::from_slice(&body).expect("a table")
    }

    /// Returns the events of a watch that ends after its timeout.
    pub(crate) async fn watch(&self, path: &str) -> Vec<Value> {
        let (code, body) = self.accept(path, "application/json").await;
        assert_eq!(code, 200);
        body.split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).expect("an event"))
            .collect()
    }

    /// Starts a watch, which is read event by event.
    pub(crate) async fn stream(&self, path: &str) -> Stream {
        let response = self.send(Method::GET, path, &[], String::new()).await;
        assert_eq!(response.status(), 200, "{path}");
        Stream { body: response.into_body(), left: Vec::new() }
    }

    /// Creates a definition.
    pub(crate) async fn define(&self, definition: &Value) -> Value {
        let (code, body) = self.post(CRDS, definition).await;
        assert_eq!(code, 201, "{body}");
        body
    }

    /// Waits until the server serves a version of a group, such as `example.com/v1`. A request that follows a
    /// definition waits at most 3 s for it, which is too short for a slow machine.
    pub(crate) async fn serves(&self, group_version: &str) {
        self.until(&format!("/apis/{group_version}"), |found| found["kind"] == "APIResourceList").await;
    }

    /// Waits until the status of a definition has the condition `Established`.
    pub(crate) async fn established(&self, name: &str) -> Value {
        let path = format!("{CRDS}/{name}");
        self.until(&path, |found| condition(found, "Established")["status"] == "True").await
    }

    /// Waits until an object satisfies a condition.
    pub(crate) async fn until(&self, path: &str, is: impl Fn(&Value) -> bool) -> Value {
        let begun = tokio::time::Instant::now();
        loop {
            let (_, found) = self.get(path).await;
            if is(&found) {
                return found;
            }
            assert!(begun.elapsed() < PATIENCE, "{path} did not become what it should: {found}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until an object does not exist.
    pub(crate) async fn gone(&self, path: &str) {
        self.until(path, |found| found["code"] == 404).await;
    }
}

/// A watch that is read event by event.
pub(crate) struct Stream {
    body: Body,
    left: Vec<u8>,
}

impl Stream {
    /// Returns the next event; `None` at the clean end of the stream.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.left.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.left.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).expect("an event"));
            }
            let frame = tokio::time::timeout(PATIENCE, self.body.frame()).await.expect("the watch is silent");
            let frame = frame?.expect("a stream that does not break");
            self.left.extend_from_slice(frame.data_ref().expect("data"));
        }
    }
}
