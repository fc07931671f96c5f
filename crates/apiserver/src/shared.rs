//! [`Shared`]: the state that all requests of one server share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::HeaderValue;
#[cfg(feature = "serve")]
use listwatch_access::LoopbackToken;
use listwatch_discovery::ServedZpages;
use listwatch_policy_admission::PolicyMetrics;
use listwatch_registry::{Backend, StoredForm};
#[cfg(feature = "serve")]
use listwatch_webhook_admission::HttpsCaller;
use listwatch_webhook_admission::WebhookMetrics;
use listwatch_write::Writer;
use parking_lot::Mutex;
use time::OffsetDateTime;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::aggregation::Aggregation;
use crate::audit::Auditor;
#[cfg(feature = "serve")]
use crate::auth::Auth;
use crate::auth::{Access, AnonymousAuth};
use crate::compute::Compute;
use crate::connections::Connections;
use crate::documents::Documents;
use crate::flow_control::FlowControl;
use crate::metrics::Metrics;
use crate::request::body_budget::BodyBudget;
use crate::response::caches::ResponseCaches;
use crate::response::request_drain::RequestDrain;
use crate::response::watch_drain::WatchDrain;
use crate::store_health::StoreHealth;
use listwatch_controllers::health::UnfilledCaches;
use listwatch_controllers::presence::Presence;

/// The state that all requests of one server share.
pub(crate) struct Shared {
    pub(crate) backend: Arc<Backend>,
    /// The form of values in the store, which counts the requests to the store.
    pub(crate) stored_form: Arc<StoredForm>,
    pub(crate) writer: Arc<Writer>,
    /// The discovery and OpenAPI documents of the current registry.
    pub(crate) documents: Arc<Documents>,
    /// The group versions that extension servers serve.
    pub(crate) aggregation: Aggregation,
    /// The connections to kubelets, nodes, pods and services.
    pub(crate) connections: Connections,
    #[cfg(feature = "serve")]
    pub(crate) auth: Auth,
    /// The credential with which the server calls itself.
    #[cfg(feature = "serve")]
    pub(crate) loopback_token: Arc<LoopbackToken>,
    /// The caller of webhooks, to which a listener gives the address of the server.
    #[cfg(feature = "serve")]
    pub(crate) webhook_caller: Arc<HttpsCaller>,
    pub(crate) access: Arc<Access>,
    /// Whether roles and bindings authorize requests.
    pub(crate) enforces_rbac: bool,
    /// The audit log; `None` without a policy.
    pub(crate) audit: Option<Arc<Auditor>>,
    /// The minimum duration of a watch without `timeoutSeconds`; the maximum is twice this value.
    pub(crate) min_request_timeout: Duration,
    /// The treatment of requests without credentials.
    pub(crate) anonymous_auth: AnonymousAuth,
    /// The paths to which anonymous requests are limited; empty: all paths.
    pub(crate) anonymous_paths: Vec<String>,
    /// The maximum duration of a request, except watches.
    pub(crate) request_timeout: Duration,
    /// The URL of the key set of service account tokens, for clients.
    pub(crate) jwks_uri: String,
    /// The header `Strict-Transport-Security` of all responses.
    pub(crate) strict_transport_security: Option<HeaderValue>,
    /// Whether constrained impersonation is enabled.
    pub(crate) constrained_impersonation: bool,
    /// The fraction of HTTP/2 requests after which the connection is closed.
    pub(crate) goaway_chance: f64,
    /// Whether DELETE of a page of metrics resets the metrics.
    pub(crate) metrics_reset: bool,
    pub(crate) flow_control: Arc<FlowControl>,
    /// The budget for the memory of all request bodies.
    pub(crate) bodies: Arc<BodyBudget>,
    /// The caches of encoded objects and of compressed list blocks.
    pub(crate) caches: ResponseCaches,
    pub(crate) store_health: StoreHealth,
    /// The largest number of streams on one HTTP/2 connection.
    #[cfg(feature = "serve")]
    pub(crate) http2_streams_max: u32,
    /// The pool of expensive computations.
    pub(crate) compute: Compute,
    pub(crate) metrics: Metrics,
    pub(crate) webhook_metrics: Arc<WebhookMetrics>,
    /// Counts the evaluations of admission policies.
    pub(crate) policy_metrics: Arc<PolicyMetrics>,
    /// The slots of watches over WebSocket. No other limit counts their connections.
    pub(crate) websockets: Arc<Semaphore>,
    /// Whether the server supports CBOR.
    pub(crate) cbor: bool,
    /// Whether the shutdown has begun.
    pub(crate) stopping: AtomicBool,
    /// Whether readiness fails although the server still serves.
    pub(crate) unready: AtomicBool,
    /// The caches that load their objects, for readiness.
    pub(crate) unfilled_caches: Mutex<UnfilledCaches>,
    /// The start of the server.
    pub(crate) started: OffsetDateTime,
    /// The flags of the process, by name without dashes, without secrets.
    pub(crate) flags: BTreeMap<String, String>,
    /// The pages about the process that the server serves.
    pub(crate) zpages: ServedZpages,
    /// Rejects new requests during the shutdown.
    pub(crate) request_drain: RequestDrain,
    /// The published address and identity Lease of the server.
    pub(crate) presence: Presence,
    /// Spreads the ends of watches over the shutdown.
    pub(crate) watch_drain: Arc<WatchDrain>,
    pub(crate) tasks: BackgroundTasks,
}

impl Shared {
    /// Whether the shutdown has begun.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Begins the shutdown: readiness fails, controllers stop, watches end one by one.
    pub(crate) fn shut_down(&self, now: Instant) {
        self.stopping.store(true, Ordering::Relaxed);
        self.watch_drain.start(now);
        self.tasks.abort();
        for (_, cacher) in self.backend.running_cachers() {
            cacher.stop(None);
        }
    }
}

/// The tasks of the built-in controllers. Dropping the value aborts them.
pub(crate) struct BackgroundTasks {
    /// The controller of custom resource definitions.
    pub(crate) definitions: JoinHandle<()>,
    pub(crate) others: Vec<JoinHandle<()>>,
    /// Completes the deletions of services whose requests were dropped. Runs until the last request has ended.
    pub(crate) cleanups: Mutex<Option<JoinHandle<()>>>,
}

impl BackgroundTasks {
    /// Whether the controller of custom resource definitions has ended.
    pub(crate) fn has_definitions_ended(&self) -> bool {
        self.definitions.is_finished()
    }

    /// Whether another controller has ended.
    pub(crate) fn has_other_ended(&self) -> bool {
        self.others.iter().any(JoinHandle::is_finished)
    }

    /// Ends the task of clean-ups, and waits for its end.
    pub(crate) async fn stop_cleanups(&self) {
        let task = self.cleanups.lock().take();
        if let Some(task) = task {
            task.abort();
            // The task was aborted, so the result is an error.
            let _ = task.await;
        }
    }

    fn abort(&self) {
        self.definitions.abort();
        self.others.iter().for_each(JoinHandle::abort);
    }
}

impl Drop for BackgroundTasks {
    fn drop(&mut self) {
        self.abort();
        if let Some(task) = self.cleanups.get_mut() {
            task.abort();
        }
    }
}
