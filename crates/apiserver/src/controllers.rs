//! Which built-in loops a server runs, and how their jobs survive a panic.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::str::FromStr;

use futures_util::FutureExt as _;
use parking_lot::Mutex;

/// The built-in loops (what kube-controller-manager does in a cluster, as far as clients of the API
/// rest on it). All run by default; several servers on one store may all run them.
///
/// Parsed from a list of names as `--controllers` takes it: `namespace,gc`, `*` for all, `-gc` for all
/// but one behind a `*`, nothing for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Controllers {
    /// Empties namespaces that are being deleted, and lets them go. Without it they stay Terminating.
    pub namespace: bool,
    /// Deletes what its owners leave behind, and ends deletions in the foreground and those that
    /// orphan. Without it such objects keep their finalizers.
    pub gc: bool,
}

/// A name that is no controller's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not in the list of known controllers: namespace, gc")]
pub struct UnknownController(String);

impl Controllers {
    /// None of them.
    pub const NONE: Controllers = Controllers { namespace: false, gc: false };
    /// All of them.
    pub const ALL: Controllers = Controllers { namespace: true, gc: true };
}

impl Default for Controllers {
    fn default() -> Self {
        Controllers::ALL
    }
}

impl FromStr for Controllers {
    type Err = UnknownController;

    fn from_str(list: &str) -> Result<Self, UnknownController> {
        let mut controllers = Controllers::NONE;
        for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let (bare, on) = name.strip_prefix('-').map_or((name, true), |bare| (bare, false));
            match bare {
                "*" if on => controllers = Controllers::ALL,
                "namespace" => controllers.namespace = on,
                "gc" => controllers.gc = on,
                _ => return Err(UnknownController(name.to_owned())),
            }
        }
        Ok(controllers)
    }
}

impl fmt::Display for Controllers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [("namespace", self.namespace), ("gc", self.gc)];
        let on: Vec<&str> = names.iter().filter(|(_, on)| *on).map(|(name, _)| *name).collect();
        f.write_str(&on.join(","))
    }
}

/// Why built-in loops cannot do their work, by the loop's name. `/readyz` and the log say it.
#[derive(Debug, Default)]
pub(crate) struct Problems(Mutex<BTreeMap<&'static str, String>>);

impl Problems {
    /// Says what keeps a loop from its work, or that nothing does. A change is logged.
    pub(crate) fn set(&self, controller: &'static str, problem: Option<String>) {
        let mut problems = self.0.lock();
        if problems.get(controller) == problem.as_ref() {
            return;
        }
        match problem {
            Some(problem) => {
                // The text changes with each value that cannot be read. The log has the first one.
                if problems.contains_key(controller) {
                    tracing::debug!(controller, problem, "a built-in loop still cannot do its work");
                } else {
                    tracing::error!(controller, problem, "a built-in loop cannot do its work");
                }
                problems.insert(controller, problem);
            }
            None => {
                tracing::info!(controller, "a built-in loop does its work again");
                problems.remove(controller);
            }
        }
    }

    /// The problem of one loop.
    pub(crate) fn get(&self, controller: &str) -> Option<String> {
        self.0.lock().get(controller).cloned()
    }

    /// All of them in one line; `None` when there are none.
    pub(crate) fn text(&self) -> Option<String> {
        let problems = self.0.lock();
        let lines: Vec<String> =
            problems.iter().map(|(controller, problem)| format!("{controller}: {problem}")).collect();
        (!lines.is_empty()).then(|| lines.join("; "))
    }
}

/// Does the work on one subject of a loop. `None` when it panicked: a job must end with its subject's
/// name whatever happens, or the subject counts as being worked on for ever.
pub(crate) async fn survive<T>(subject: &str, work: impl Future<Output = T>) -> Option<T> {
    // What the work shared is the store and caches, which other tasks use in spite of a panic as well.
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(done) => Some(done),
        Err(_) => {
            // The panic itself was told to the log already.
            tracing::error!(subject, "the work on something broke off; it is tried again");
            None
        }
    }
}

#[cfg(test)]
mod tests {
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

    use super::*;
    use crate::ApiServer;

    /// A store that panics, so many times, when someone updates a key that ends so, or lists what begins
    /// there.
    struct Shaky {
        inner: Arc<MemoryStorage>,
        key: &'static str,
        panics_left: AtomicUsize,
        /// A creation of a key that ends in `/slow` waits for a place here.
        gate: Semaphore,
    }

    impl Shaky {
        fn step_on(&self, key: &str) {
            let less = |left: usize| left.checked_sub(1);
            if key.ends_with(self.key)
                && self.panics_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok()
            {
                panic!("this store panics at {key}");
            }
        }
    }

    #[async_trait]
    impl Storage for Shaky {
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

    async fn server(key: &'static str) -> (ApiServer, Arc<Shaky>) {
        let (panics_left, gate) = (AtomicUsize::new(1), Semaphore::new(0));
        let storage = Arc::new(Shaky { inner: MemoryStorage::new(), key, panics_left, gate });
        (ApiServer::builder().storage(storage.clone()).build().await.unwrap(), storage)
    }

    async fn send(server: &ApiServer, method: &str, path: &str, body: &'static str) -> (u16, String) {
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        let response = server.service().handle(request.body(Full::new(Bytes::from(body))).unwrap()).await;
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (code, String::from_utf8(body.to_vec()).unwrap())
    }

    /// Asks until the answer is what is wanted.
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
    async fn a_namespace_is_emptied_in_spite_of_panics() {
        let (server, _) = server("configmaps/gone/").await;
        assert_eq!(send(&server, "POST", "/api/v1/namespaces", r#"{"metadata":{"name":"gone"}}"#).await.0, 201);
        let map = r#"{"metadata":{"name":"m"}}"#;
        assert_eq!(send(&server, "POST", "/api/v1/namespaces/gone/configmaps", map).await.0, 201);
        assert_eq!(send(&server, "DELETE", "/api/v1/namespaces/gone", "").await.0, 200);
        until(&server, "/api/v1/namespaces/gone", |code, _| code == 404).await;
    }

    #[tokio::test]
    async fn nothing_stays_behind_in_a_namespace_that_is_gone() {
        let (server, storage) = server("nothing").await;
        assert_eq!(send(&server, "POST", "/api/v1/namespaces", r#"{"metadata":{"name":"n"}}"#).await.0, 201);
        let slow = tokio::spawn({
            let server = server.clone();
            async move {
                send(&server, "POST", "/api/v1/namespaces/n/configmaps", r#"{"metadata":{"name":"slow"}}"#).await.0
            }
        });
        // It was let in, and the store has not answered yet.
        while !server.shared.backend.is_creating_in("n") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(send(&server, "DELETE", "/api/v1/namespaces/n", "").await.0, 200);
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert_eq!(send(&server, "GET", "/api/v1/namespaces/n", "").await.0, 200, "it waits");
        storage.gate.add_permits(1);
        assert_eq!(slow.await.unwrap(), 201);
        until(&server, "/api/v1/namespaces/n", |code, _| code == 404).await;
        let left =
            storage.list(ListQuery { range: KeyRange::below("configmaps/n/"), at: None, limit: 0 }).await.unwrap();
        assert!(left.items.is_empty(), "{:?}", left.items);
    }

    #[tokio::test]
    async fn a_definition_is_established_in_spite_of_panics() {
        const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let (server, _) = server("/as.example.com").await;
        let definition = r#"{"metadata":{"name":"as.example.com"},"spec":{"group":"example.com","scope":"Namespaced",
            "names":{"plural":"as","kind":"A"},"versions":[{"name":"v1","served":true,"storage":true,
            "schema":{"openAPIV3Schema":{"type":"object"}}}]}}"#;
        assert_eq!(send(&server, "POST", DEFINITIONS, definition).await.0, 201);
        until(&server, &format!("{DEFINITIONS}/as.example.com"), |_, body| body.contains("\"Established\"")).await;
    }

    fn check(list: &str, expected: Result<(bool, bool), &str>) {
        let found = list.parse::<Controllers>();
        let found = found.map(|on| (on.namespace, on.gc)).map_err(|error| error.0);
        assert_eq!(found, expected.map_err(str::to_owned), "{list:?}");
    }

    #[test]
    fn lists_of_names() {
        check("namespace,gc", Ok((true, true)));
        check(" gc ", Ok((false, true)));
        check("", Ok((false, false)));
        check("*", Ok((true, true)));
        check("*,-gc", Ok((true, false)));
        check("gc,deployment", Err("deployment"));
        check("-*", Err("-*"));
        assert_eq!(Controllers::default().to_string(), "namespace,gc");
        assert_eq!(Controllers::NONE.to_string().parse(), Ok(Controllers::NONE));
    }
}
