//! [`ApiServer`]: a running server, without a port.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use listwatch_meta::UserInfo;
use tokio::time::Instant;

use crate::handlers::health;
use crate::service::ApiService;
use crate::shared::Shared;

/// The interval between two checks of [`ApiServer::drain`].
const DRAIN_CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// The maximum time of [`ApiServer::finish_cleanups`]. Further clean-ups are lost, with a warning in the log.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(5);

/// A running API server. Clones share one server. The built-in controllers end when the last clone, service and
/// listener is dropped, or when [`ApiServer::shutdown`] is called.
#[derive(Clone)]
pub struct ApiServer {
    pub(crate) shared: Arc<Shared>,
}

impl std::fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ApiServer")
    }
}

impl ApiServer {
    pub(crate) fn new(shared: Shared) -> Self {
        let shared = Arc::new(shared);
        // The task must not keep the server alive.
        let ready = health::wait_until_ready(Arc::downgrade(&shared));
        shared.presence.start(&shared.writer, ready);
        ApiServer { shared }
    }

    /// Returns the server as a service from requests to responses.
    pub fn service(&self) -> ApiService {
        ApiService::new(Arc::clone(&self.shared))
    }

    /// Returns the server as a service whose requests run as this user, regardless of their credentials. The user is
    /// also a member of `system:authenticated`. Use the service to test a user's permissions; see
    /// [`Builder::authorization`](crate::Builder::authorization).
    pub fn client_as(&self, user: &str, groups: &[&str]) -> ApiService {
        let mut groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
        if !groups.iter().any(|group| group == "system:authenticated") {
            groups.push("system:authenticated".to_owned());
        }
        self.service().with_identity(UserInfo { username: user.to_owned(), groups, ..UserInfo::default() })
    }

    /// Makes readiness fail while the server continues to serve, so that load balancers send no further requests
    /// (`--shutdown-delay-duration`). Call [`ApiServer::shutdown`] after the delay.
    pub fn fail_readiness(&self) {
        self.shared.unready.store(true, Ordering::Relaxed);
    }

    /// Completes the deletions of services whose requests were cut: releases addresses and node ports, and deletes
    /// Endpoints. Call this method in a shutdown, after the last request. Returns after 5 seconds if the store does not
    /// respond.
    pub async fn finish_cleanups(&self) {
        self.shared.tasks.stop_cleanups().await;
        if tokio::time::timeout(CLEANUP_TIMEOUT, self.shared.writer.finish_cleanups()).await.is_err() {
            tracing::warn!("the clean-up after deleted services did not finish within {CLEANUP_TIMEOUT:?}");
        }
    }

    /// Writes the waiting audit events, and accepts no further events. Call this method after the last request. If a
    /// webhook does not respond, the method waits for all retries.
    pub async fn close_audit_log(&self) {
        if let Some(audit) = &self.shared.audit {
            audit.close().await;
        }
    }

    /// Removes this server from the cluster: the address in the endpoints of the Service `kubernetes`, and the Lease.
    /// Call the method first in a shutdown, while requests are still served. Returns after 20 seconds if the store does
    /// not respond.
    pub async fn withdraw(&self) {
        self.shared.presence.withdraw().await;
    }

    /// Rejects new requests with 429 and `Retry-After`, begins the shutdown, and waits until the running requests and
    /// the watches have ended (`--shutdown-send-retry-after`). Health checks are still served. Returns after
    /// [`Builder::request_timeout`](crate::Builder::request_timeout) or the time for watches, whichever is longer.
    pub async fn drain(&self) {
        let shared = &self.shared;
        shared.request_drain.start();
        shared.shut_down(Instant::now());
        let drained = async {
            while !(shared.request_drain.is_drained() && shared.watch_drain.is_drained()) {
                tokio::time::sleep(DRAIN_CHECK_INTERVAL).await;
            }
        };
        let limit = shared.request_timeout.max(shared.watch_drain.grace());
        if tokio::time::timeout(limit, drained).await.is_err() {
            tracing::warn!("some requests did not finish within {limit:?}");
        }
    }

    /// Begins the shutdown: readiness fails, the built-in controllers stop, watches end cleanly. Running requests
    /// finish; `Serving::shutdown` waits for them.
    ///
    /// The ends of the watches are spread over at most
    /// [`Builder::watch_termination_grace_period`](crate::Builder::watch_termination_grace_period), so that not all
    /// clients reconnect to another server at the same time (`--shutdown-watch-termination-grace-period`).
    pub fn shutdown(&self) {
        self.shared.shut_down(Instant::now());
    }
}
