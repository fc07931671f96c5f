//! [`CustomOpenApi`]: builds OpenAPI v3 documents of custom resources, and caches their forms.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use listwatch_meta::Status;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::encoded_forms::{CustomOpenApiForm, FormCache};
use super::single_flight::build_failed;

/// Maximum number of OpenAPI v3 documents of custom resources that are built at once. Further builds wait. A large
/// document takes tens of milliseconds and several times its size in memory.
const CUSTOM_BUILDS_MAX: usize = 2;

/// The forms of OpenAPI v3 documents of custom resources.
///
/// ```text
///  request ─▶ cached? ─┬─ yes ─────────────────────────────────────────────────▶ return the form
///                      └─ no ──▶ is a build of the form running? ─┬─ yes ──────▶ wait for that build
///                                                                 └─ no ──▶ wait for a permit ─▶ build and cache
/// ```
///
/// All requests for one form share one build, also for a form that is too large for the cache. If all clients
/// disconnect, the build completes and the form is cached.
#[derive(Debug)]
pub(super) struct CustomOpenApi {
    cached: FormCache<CustomOpenApiForm>,
    running: Mutex<HashMap<CustomOpenApiForm, Build>>,
    permits: Arc<Semaphore>,
}

type Build = Shared<BoxFuture<'static, Result<Bytes, Status>>>;

impl Default for CustomOpenApi {
    fn default() -> Self {
        CustomOpenApi {
            cached: FormCache::default(),
            running: Mutex::default(),
            permits: Arc::new(Semaphore::new(CUSTOM_BUILDS_MAX)),
        }
    }
}

/// Removes a build from the running builds when it ends, also if it panics.
struct RunningBuild {
    forms: Arc<CustomOpenApi>,
    key: CustomOpenApiForm,
}

impl Drop for RunningBuild {
    fn drop(&mut self) {
        self.forms.running.lock().remove(&self.key);
    }
}

impl CustomOpenApi {
    /// Returns a form, and calls `encode` on another thread for a form that is not cached.
    ///
    /// # Errors
    /// 500 if `encode` panicked. The next request calls `encode` again.
    pub(super) async fn get_or_encode(
        self: &Arc<Self>,
        key: CustomOpenApiForm,
        encode: impl FnOnce() -> Bytes + Send + 'static,
    ) -> Result<Bytes, Status> {
        let build = {
            let mut running = self.running.lock();
            // A build caches its form before it leaves `running`, so no build starts twice.
            if let Some(body) = self.cached.get(&key) {
                return Ok(body);
            }
            running.entry(key.clone()).or_insert_with(|| self.build(key, encode)).clone()
        };
        build.await
    }

    /// Returns a build that starts when it is first polled. It must not start here: the caller holds the lock of `running`,
    /// and the end of the build takes this lock. A runtime that shuts down would end a new task at once.
    fn build(self: &Arc<Self>, key: CustomOpenApiForm, encode: impl FnOnce() -> Bytes + Send + 'static) -> Build {
        let running = RunningBuild { forms: Arc::clone(self), key };
        let permits = Arc::clone(&self.permits);
        let build = async move {
            // The semaphore is never closed.
            let permit = permits.acquire_owned().await.ok();
            let encode = move || {
                let _permit = permit;
                running.forms.cached.insert(&running.key, encode())
            };
            tokio::task::spawn_blocking(encode).await
        };
        let result = async move { tokio::spawn(build).await.flatten().map_err(|error| build_failed(&error)) };
        result.boxed().shared()
    }

    /// The number of cached forms.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.cached.len()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use futures_util::future::join_all;
    use listwatch_discovery::openapi::V3Form;

    use super::*;

    fn key(path: &str) -> CustomOpenApiForm {
        CustomOpenApiForm { path: path.to_owned(), etag: "\"A\"".to_owned(), form: V3Form::Json }
    }

    #[tokio::test]
    async fn concurrent_requests_share_one_build_also_of_a_form_that_is_too_large_for_the_cache() {
        let forms = Arc::new(CustomOpenApi::default());
        let builds = Arc::new(AtomicUsize::new(0));
        let get = |path: &str, size: usize| {
            let (forms, builds, key) = (Arc::clone(&forms), Arc::clone(&builds), key(path));
            async move {
                let encode = move || {
                    builds.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(20));
                    Bytes::from(vec![b'a'; size])
                };
                forms.get_or_encode(key, encode).await.unwrap().len()
            }
        };
        let disconnected = tokio::spawn(get("small", 5));
        tokio::task::yield_now().await;
        disconnected.abort();
        assert_eq!(join_all((0..8).map(|_| get("small", 5))).await, [5; 8]);
        assert_eq!((get("small", 5).await, builds.load(Ordering::Relaxed)), (5, 1), "the form is cached");
        let large = 9 * 1024 * 1024;
        assert_eq!(join_all((0..8).map(|_| get("large", large))).await, [large; 8]);
        assert_eq!((builds.load(Ordering::Relaxed), forms.len()), (2, 1));
        assert!(forms.running.lock().is_empty());
    }

    #[tokio::test]
    async fn cached_form_is_returned_while_all_permits_are_taken() {
        let forms = Arc::new(CustomOpenApi::default());
        let body = Bytes::from_static(b"a");
        assert_eq!(forms.get_or_encode(key("a"), || Bytes::from_static(b"a")).await, Ok(body.clone()));
        let permits = forms.permits.acquire_many(CUSTOM_BUILDS_MAX as u32).await.unwrap();
        let waiting = tokio::spawn({
            let forms = Arc::clone(&forms);
            async move { forms.get_or_encode(key("b"), || Bytes::from_static(b"b")).await }
        });
        tokio::task::yield_now().await;
        assert_eq!(forms.get_or_encode(key("a"), || panic!("the form is cached")).await, Ok(body));
        assert!(!waiting.is_finished());
        drop(permits);
        assert_eq!(waiting.await.unwrap().unwrap(), "b");
    }

    #[tokio::test]
    async fn request_after_a_panic_builds_again() {
        let forms = Arc::new(CustomOpenApi::default());
        let failed = forms.get_or_encode(key("a"), || panic!("secret")).await.unwrap_err();
        assert!(failed.code == 500 && !format!("{failed:?}").contains("secret"), "{failed:?}");
        assert_eq!(forms.get_or_encode(key("a"), || Bytes::from_static(b"a")).await.unwrap(), "a");
    }
}
