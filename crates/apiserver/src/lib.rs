//! A Kubernetes API server for list-watch, as a tower `Service` and on a port.
//!
//! ```text
//!  transport ─▶ service ─▶ chain ─▶ filters ─▶ handlers ─┬▶ read, watch ─▶ cacher
//!  listeners,                                            ├▶ write ───────▶ storage
//!  TLS, HTTP/1.1, HTTP/2                                 └▶ documents, health, metrics
//! ```
//!
//! The server keeps objects in any [`listwatch_storage::Storage`]. It serves reads from one watch cache per resource,
//! which the first request for the resource starts.
//!
//! # Features
//! `serve` (on by default): listeners, TLS and certificates. Without it, the crate has the service alone and neither
//! rustls nor rcgen nor hyper's server.
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
mod auth;
mod builder;
mod chain;
mod compute;
mod documents;
mod filters;
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

/// Admission plugins: code that changes or rejects writes.
pub mod admission {
    pub use listwatch_write::admission::{
        AdmissionFuture, AdmissionRequest, MutatingAdmission, ObjectReader, Operation, ValidatingAdmission,
    };
}

pub use listwatch_controllers::bootstrap::RequestHeader;
pub use listwatch_controllers::{Controllers, UnknownController};
pub use listwatch_write::{InvalidRange, ServiceRanges};

/// The form of values in the store: their encoding and their encryption.
pub mod stored_form {
    pub use listwatch_at_rest::{CONFIG_BYTES_MAX, ConfigError, Encryption, KEYS_MAX};
    pub use listwatch_registry::{StorageMediaType, StoredForm};
}

pub use self::auth::{AnonymousAuth, Auth, AuthorizationMode, UnavailableMode};
pub use self::builder::{BuildError, Builder};
pub use self::documents::{discovery, openapi};
pub use self::handlers::connect::KubeletOptions;
pub use self::request::upload::REQUEST_BODY_BYTES_MAX;
pub use self::response::body::Body;
pub use self::response::{BodyError, table};
pub use self::server::ApiServer;
pub use self::service::ApiService;
#[cfg(feature = "serve")]
pub use self::transport::{HTTP2_STREAMS_MAX, ServeError, Serving, TestServer, pki};

/// The example of the README, as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
