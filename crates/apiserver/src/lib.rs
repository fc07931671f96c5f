//! A Kubernetes API server for list-watch, as a tower `Service` and on a port.
//!
//! ```text
//!  transport ─▶ service ─▶ chain ─▶ filters ─▶ handlers ─┬▶ read, watch ─▶ cacher
//!  listeners,                                            ├▶ write ───────▶ storage
//!  TLS, HTTP/1.1, HTTP/2                                 └▶ documents, health, metrics
//! ```
//!
//! The server keeps objects in any [`listwatch_storage::Storage`]. Reads are served from one watch cache per resource.
//! The first request for a resource starts the cache.
//!
//! # Layers
//! A module uses only modules in lower lines. `cargo xtask tidy` checks this rule.
//! ```text
//!  builder ─ transport ─ server ─ service ─ chain      from the outside to one request
//!  handlers                                            one file per kind of request
//!  filters             shared                          the steps before; the state of one server
//!  aggregation                                         extension servers
//!  documents                                           discovery and OpenAPI
//!  response  metrics                                   bodies and their forms; counters
//!  flow_control        compute                         seats and slots; the pool of computations
//!  request   auth      connections store_health        facts of a request; users; transports to nodes and pods
//! ```
//!
//! # Features
//! `serve` (on by default): listeners, TLS and certificates. Without the feature, the crate provides only the service,
//! and does not depend on rustls, rcgen and hyper's server.
//!
//! # In a test process
//! ```
//! use http_body_util::BodyExt as _;
//! use listwatch_apiserver::ApiServer;
//!
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! // No port, no TLS, no files: the server starts in milliseconds.
//! let server = ApiServer::builder().build().await?;
//! // `kube::Client::new(server.service(), "default")` takes the service. Here is a request by hand:
//! let request = http::Request::get("/api/v1/namespaces/default").body(http_body_util::Empty::<bytes::Bytes>::new())?;
//! let response = server.service().handle(request).await;
//! assert_eq!(response.status(), 200);
//! let namespace = response.into_body().collect().await?.to_bytes();
//! assert!(namespace.starts_with(b"{\"kind\":\"Namespace\",\"apiVersion\":\"v1\""));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # On a port
//! ```no_run
//! # #[cfg(feature = "serve")]
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let server = listwatch_apiserver::ApiServer::builder().build().await?;
//! let served = server.serve_on_free_port().await?;
//! std::fs::write("kubeconfig", served.kubeconfig())?; // for kubectl or any other client
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

/// The examples of docs/extending.md.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/extending.md")]
struct Extending;

mod aggregation;
mod audit;
mod auth;
mod builder;
mod chain;
mod compute;
mod connections;
mod documents;
mod filters;
mod flow_control;
mod handlers;
mod metrics;
mod request;
mod response;
mod server;
mod service;
mod shared;
mod store_health;
#[cfg(test)]
mod tests;
#[cfg(feature = "serve")]
mod transport;
mod webhook_client;

/// Admission plugins: code that changes or rejects writes.
pub mod admission {
    pub use listwatch_admission::{
        AdmissionConfiguration, AdmissionFuture, AdmissionPlugins, AdmissionRequest, InvalidConfiguration,
        InvalidPlugins, ListedObjects, MutatingAdmission, ObjectReader, Operation, PLUGINS, PluginInfo,
        TolerationSeconds, ValidatingAdmission,
    };
}

pub use listwatch_controllers::bootstrap::RequestHeader;
pub use listwatch_controllers::{Controllers, UnknownController};
pub use listwatch_registry::{InvalidRuntimeConfig, RuntimeConfig};
pub use listwatch_write::{InvalidRange, ServiceRanges};

/// Webhooks that are implemented as functions in this process.
pub mod webhook {
    pub use listwatch_registry::{ConversionHandler, ConversionRequest};
    pub use listwatch_webhook_admission::{CallFuture, WebhookHandler};
}

/// The form of values in the store: encoding and encryption.
pub mod stored_form {
    pub use listwatch_at_rest::{CONFIG_BYTES_MAX, ConfigError, Encryption, KEYS_MAX};
    pub use listwatch_registry::{StorageMediaType, StoredForm};
}

/// The audit log: the policy that selects requests, and the backends that receive events.
pub mod audit_log {
    pub use listwatch_audit::{BatchOptions, Policy, PolicyError, RotationOptions, Throttle, Truncation};
    pub use listwatch_outbound::Client;

    pub use crate::audit::{AuditBackend, AuditMode, AuditOptions, AuditTarget};
}

/// Webhooks that authenticate tokens and authorize requests.
pub mod access_webhooks {
    pub use listwatch_access::webhook::{
        AuthorizationWebhookOptions, FailurePolicy, MatchConditions, ReviewVersion, TokenWebhookOptions,
    };
    pub use listwatch_outbound::Client;
}

/// The issuers of JSON Web Tokens in the file of `--authentication-config`.
pub mod token_issuers {
    pub use listwatch_access::oidc::{
        AnonymousConfiguration, AuthenticationConfiguration, InvalidConfiguration, JwtIssuer, OidcFlags,
    };
}

pub use self::auth::{AnonymousAuth, Auth, AuthorizationMode, UnknownMode};
pub use self::builder::{BuildError, Builder};
pub use self::connections::KubeletOptions;
pub use self::request::upload::REQUEST_BODY_BYTES_MAX;
pub use self::response::BodyError;
pub use self::response::body::Body;
pub use self::response::caches::ENCODING_CACHE_BYTES_MAX;
pub use self::server::ApiServer;
pub use self::service::ApiService;
#[cfg(feature = "serve")]
pub use self::transport::{HTTP2_STREAMS_MAX, ServeError, Serving, TestServer, pki};

/// The example of the README, as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
