//! [`Shared`]: the state that all requests of one server share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::HeaderValue;
use listwatch_policy_admission::PolicyMetrics;
use listwatch_registry::Backend;
use listwatch_webhook_admission::WebhookMetrics;
use listwatch_write::Writer;
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
use crate::presence::Presence;
use crate::request::body_budget::BodyBudget;
use crate::response::caches::ResponseCaches;
use crate::response::request_drain::RequestDrain;
use crate::response::watch_drain::WatchDrain;
use crate::store_health::StoreHealth;

/// The state that all requests of one server share.
pub(crate) struct Shared {
    pub(crate) backend: Arc<Backend>,
    pub(crate) writer: Arc<Writer>,
    /// The discovery and OpenAPI documents of the current registry.
    pub(crate) documents: Arc<Documents>,
    /// The group versions that extension servers serve.
    pub(crate) aggregation: Aggregation,
    /// The connections to kubelets, nodes, pods and services.
    pub(crate) connections: Connections,
    #[cfg(feature = "serve")]
    pub(crate) auth: Auth,
    pub(crate) access: Arc<Access>,
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

    fn abort(&self) {
        self.definitions.abort();
        self.others.iter().for_each(JoinHandle::abort);
    }
}

impl Drop for BackgroundTasks {
    fn drop(&mut self) {
        self.abort();
    }
}
