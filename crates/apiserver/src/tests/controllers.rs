//! Tests of the built-in controllers and of clean-ups with a store that panics or is slow.

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
    /// The permits for deletions of keys that end in `/held`.
    deletions: Semaphore,
    /// The number of deletions that wait for a permit, or have got one.
    deletions_begun: AtomicUsize,
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
        if key.as_str().ends_with("/held") {
            self.deletions_begun.fetch_add(1, Ordering::SeqCst);
            let _permit = self.deletions.acquire().await;
        }
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
    let storage = Arc::new(PanickingStore {
        inner: MemoryStorage::new(),
        key,
        panics_left: AtomicUsize::new(1),
        gate: Semaphore::new(0),
        deletions: Semaphore::new(0),
        deletions_begun: AtomicUsize::new(0),
    });
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

/// Creates a service and its Endpoints, sends a deletion of the service, and drops the request while the store holds the
/// deletion.
async fn drop_a_held_deletion(server: &ApiServer, storage: &PanickingStore) {
    let service = r#"{"metadata":{"name":"held"},"spec":{"ports":[{"port":80}]}}"#;
    assert_eq!(send(server, "POST", "/api/v1/namespaces/default/services", service).await.0, 201);
    let endpoints = r#"{"metadata":{"name":"held"}}"#;
    assert_eq!(send(server, "POST", "/api/v1/namespaces/default/endpoints", endpoints).await.0, 201);
    let held = async {
        while storage.deletions_begun.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        (code, body) = send(server, "DELETE", "/api/v1/namespaces/default/services/held", "") => panic!("{code} {body}"),
        () = held => {}
    }
}

async fn has_endpoints(storage: &PanickingStore) -> bool {
    storage.get(&Key::new("services/endpoints", Some("default"), "held").unwrap()).await.unwrap().0.is_some()
}

#[tokio::test]
async fn cleanup_of_a_dropped_deletion_continues_when_the_shutdown_begins() {
    let (server, storage) = server("nothing").await;
    drop_a_held_deletion(&server, &storage).await;
    server.shutdown();
    assert!(has_endpoints(&storage).await);
    storage.deletions.add_permits(1);
    let cleaned_up = async {
        while has_endpoints(&storage).await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), cleaned_up).await.expect("the Endpoints of the service remain");
    server.finish_cleanups().await;
}

#[tokio::test]
async fn finish_cleanups_completes_what_was_dropped_before_it() {
    let (server, storage) = server("nothing").await;
    drop_a_held_deletion(&server, &storage).await;
    server.shutdown();
    // The server gives up after five seconds, which must not pass while a slow machine computes.
    tokio::time::pause();
    let finish = server.finish_cleanups();
    tokio::pin!(finish);
    assert!(
        tokio::time::timeout(Duration::from_millis(50), &mut finish).await.is_err(),
        "the store holds the deletion"
    );
    storage.deletions.add_permits(1);
    finish.await;
    assert!(!has_endpoints(&storage).await, "the Endpoints of the service remain");
}

#[tokio::test]
async fn finish_cleanups_gives_up_after_five_seconds() {
    let (server, storage) = server("nothing").await;
    drop_a_held_deletion(&server, &storage).await;
    server.shutdown();
    tokio::time::pause();
    let start = tokio::time::Instant::now();
    server.finish_cleanups().await;
    let waited = start.elapsed();
    assert!((Duration::from_secs(5)..Duration::from_secs(6)).contains(&waited), "{waited:?}");
    assert!(has_endpoints(&storage).await);
}
