//! Tests of the built-in controllers with a store that panics or is slow.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use listwatch_meta::{Key, KeyRange, Revision};
use listwatch_storage::{
    Capabilities, CreateError, DeleteError, KeyValue, ListPage, ListQuery, MemoryStorage, ReadError, Storage,
    StoreFault, StoreStats, UpdateError, Watch, WatchError,
};
use tokio::sync::Semaphore;

use crate::ApiServer;

/// A store that panics `panics_left` times: when a key with the suffix `key` is updated, or when a list starts at such
/// a key.
struct PanickingStore {
    inner: Arc<MemoryStorage>,
    key: &'static str,
    panics_left: AtomicUsize,
    /// The permits for creations of keys that end in `/slow`.
    gate: Semaphore,
}

impl PanickingStore {
    fn step_on(&self, key: &str) {
        let less = |left: usize| left.checked_sub(1);
        if key.ends_with(self.key) && self.panics_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok() {
            panic!("this store panics at {key}");
        }
    }
}

#[async_trait]
impl Storage for PanickingStore {
    async fn get(&self, key: &Key) -> Result<(Option<KeyValue>, Revision), ReadError> {
        self.inner.get(key).await
    }
    async fn list(&self, query: ListQuery) -> Result<ListPage, ReadError> {
        self.step_on(query.range.start());
        self.inner.list(query).await
    }
    async fn create(&self, key: &Key, value: Bytes, ttl: Option<Duration>) -> Result<Revision, CreateError> {
        let _place = match key.as_str().ends_with("/slow") {
            true => Some(self.gate.acquire().await),
            false => None,
        };
        self.inner.create(key, value, ttl).await
    }
    async fn update(
        &self,
        key: &Key,
        expected: Revision,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> Result<Revision, UpdateError> {
        self.step_on(key.as_str());
        self.inner.update(key, expected, value, ttl).await
    }
    async fn delete(&self, key: &Key, expected: Revision) -> Result<Revision, DeleteError> {
        self.inner.delete(key, expected).await
    }
    async fn watch(&self, range: KeyRange, after: Revision) -> Result<Watch, WatchError> {
        self.inner.watch(range, after).await
    }
    async fn current_revision(&self) -> Result<Revision, ReadError> {
        self.inner.current_revision().await
    }
    async fn compact(&self, revision: Revision) -> Result<(), ReadError> {
        self.inner.compact(revision).await
    }
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    async fn health(&self) -> Result<(), StoreFault> {
        self.inner.health().await
    }
    async fn stats(&self) -> Result<StoreStats, StoreFault> {
        self.inner.stats().await
    }
}

async fn server(key: &'static str) -> (ApiServer, Arc<PanickingStore>) {
    let (panics_left, gate) = (AtomicUsize::new(1), Semaphore::new(0));
    let storage = Arc::new(PanickingStore { inner: MemoryStorage::new(), key, panics_left, gate });
    (ApiServer::builder().storage(storage.clone()).build().await.unwrap(), storage)
}

async fn send(server: &ApiServer, method: &str, path: &str, body: &'static str) -> (u16, String) {
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    let response = server.service().handle(request.body(Full::new(Bytes::from(body))).unwrap()).await;
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (code, String::from_utf8(body.to_vec()).unwrap())
}

/// Repeats a request until the response satisfies a condition.
async fn until(server: &ApiServer, path: &str, wanted: impl Fn(u16, &str) -> bool) {
    let asking = async {
        loop {
            let (code, body) = send(server, "GET", path, "").await;
            if wanted(code, &body) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), asking).await.expect("it was never worked on again");
}

#[tokio::test]
async fn deleted_namespace_is_emptied_despite_store_panics() {
    let (server, _) = server("configmaps/gone/").await;
    assert_eq!(send(&server, "POST", "/api/v1/namespaces", r#"{"metadata":{"name":"gone"}}"#).await.0, 201);
    let map = r#"{"metadata":{"name":"m"}}"#;
    assert_eq!(send(&server, "POST", "/api/v1/namespaces/gone/configmaps", map).await.0, 201);
    assert_eq!(send(&server, "DELETE", "/api/v1/namespaces/gone", "").await.0, 200);
    until(&server, "/api/v1/namespaces/gone", |code, _| code == 404).await;
}

#[tokio::test]
async fn deleted_namespace_keeps_no_concurrently_created_objects() {
    let (server, storage) = server("nothing").await;
    assert_eq!(send(&server, "POST", "/api/v1/namespaces", r#"{"metadata":{"name":"n"}}"#).await.0, 201);
    let slow = tokio::spawn({
        let server = server.clone();
        async move { send(&server, "POST", "/api/v1/namespaces/n/configmaps", r#"{"metadata":{"name":"slow"}}"#).await.0 }
    });
    // The request has passed admission, and the store has not responded yet.
    while !server.shared.backend.is_creating_in("n") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(send(&server, "DELETE", "/api/v1/namespaces/n", "").await.0, 200);
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(send(&server, "GET", "/api/v1/namespaces/n", "").await.0, 200, "it waits");
    storage.gate.add_permits(1);
    assert_eq!(slow.await.unwrap(), 201);
    until(&server, "/api/v1/namespaces/n", |code, _| code == 404).await;
    let left = storage.list(ListQuery { range: KeyRange::below("configmaps/n/"), at: None, limit: 0 }).await.unwrap();
    assert!(left.items.is_empty(), "{:?}", left.items);
}

#[tokio::test]
async fn definition_is_established_despite_store_panics() {
    const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let (server, _) = server("/as.example.com").await;
    let definition = r#"{"metadata":{"name":"as.example.com"},"spec":{"group":"example.com","scope":"Namespaced",
        "names":{"plural":"as","kind":"A"},"versions":[{"name":"v1","served":true,"storage":true,
        "schema":{"openAPIV3Schema":{"type":"object"}}}]}}"#;
    assert_eq!(send(&server, "POST", DEFINITIONS, definition).await.0, 201);
    until(&server, &format!("{DEFINITIONS}/as.example.com"), |_, body| body.contains("\"Established\"")).await;
}
