//! [`StoreHealth`]: the health of the store, probed at most once per second.
//!
//! `/healthz`, `/livez` and `/readyz` need no credential, so requests must not cause unlimited work in the store.
//! kube-apiserver limits the checks of etcd in the same way (`apiserver/pkg/storage/storagebackend/factory/etcd3.go`).

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use listwatch_storage::Storage;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// The time for which a result of a probe is reused.
const FRESH: Duration = Duration::from_secs(1);
/// The time limit of a probe (`--etcd-healthcheck-timeout`). After that time the store is unhealthy.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// The result of the last probe of the store.
pub(crate) struct StoreHealth {
    probe: Box<dyn Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync>,
    last: Arc<Mutex<Option<Probed>>>,
}

struct Probed {
    at: Instant,
    problem: Option<String>,
}

impl StoreHealth {
    pub(crate) fn new(storage: Arc<dyn Storage>) -> Self {
        Self::probed_by(move || {
            let storage = Arc::clone(&storage);
            async move { storage.health().await.map_err(|fault| fault.to_string()) }.boxed()
        })
    }

    fn probed_by(probe: impl Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync + 'static) -> Self {
        StoreHealth { probe: Box::new(probe), last: Arc::default() }
    }

    /// Returns the problem of the store, if there is one. Concurrent calls share one probe.
    pub(crate) async fn problem(&self) -> Option<String> {
        let mut last = Arc::clone(&self.last).lock_owned().await;
        if let Some(probed) = last.as_ref().filter(|probed| probed.at.elapsed() < FRESH) {
            return probed.problem.clone();
        }
        let probe = (self.probe)();
        // The probe has its own task: it continues when its client disconnects.
        let probe = tokio::spawn(async move {
            let problem = match tokio::time::timeout(PROBE_TIMEOUT, probe).await {
                Ok(health) => health.err(),
                Err(_) => Some(format!("the store did not answer within {PROBE_TIMEOUT:?}")),
            };
            *last = Some(Probed { at: Instant::now(), problem: problem.clone() });
            problem
        });
        probe.await.unwrap_or_else(|error| Some(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    /// Returns the health of a store that responds after a delay, and the counter of probes.
    fn health(takes: Duration) -> (Arc<StoreHealth>, Arc<AtomicUsize>) {
        let probes = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&probes);
        let probe = move || {
            let before = count.fetch_add(1, Relaxed);
            async move {
                tokio::time::sleep(takes).await;
                if before == 0 { Ok(()) } else { Err("gone".to_owned()) }
            }
            .boxed()
        };
        (Arc::new(StoreHealth::probed_by(probe)), probes)
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_health_requests_share_one_store_probe() {
        let (health, probes) = health(Duration::from_millis(100));
        let requests: Vec<_> = (0..500)
            .map(|_| {
                let health = Arc::clone(&health);
                tokio::spawn(async move { health.problem().await })
            })
            .collect();
        for request in requests {
            assert_eq!(request.await.unwrap(), None);
        }
        assert_eq!(probes.load(Relaxed), 1);
        tokio::time::advance(FRESH).await;
        assert_eq!(health.problem().await.as_deref(), Some("gone"));
        assert_eq!(health.problem().await.as_deref(), Some("gone"), "a failure is remembered as well");
        assert_eq!(probes.load(Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn disconnected_client_does_not_cancel_the_store_probe() {
        let (health, probes) = health(Duration::from_millis(100));
        for _ in 0..10 {
            let given_up = tokio::time::timeout(Duration::from_millis(1), health.problem()).await;
            assert!(given_up.is_err());
        }
        assert_eq!(health.problem().await, None);
        assert_eq!(probes.load(Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn unresponsive_store_is_unhealthy_after_the_probe_timeout() {
        let (health, _) = health(Duration::from_secs(3600));
        let begun = Instant::now();
        assert_eq!(health.problem().await.as_deref(), Some("the store did not answer within 2s"));
        assert_eq!(begun.elapsed(), PROBE_TIMEOUT);
    }
}
