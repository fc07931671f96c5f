//! An upgrade-aware reverse proxy for single requests, for an API server in front of extension servers, kubelets, pods
//! and services (`k8s.io/apimachinery/pkg/util/proxy.UpgradeAwareHandler`).
//!
//! ```text
//!                     ┌─ plain ───▶ pool (HTTP/1.1) ─▶ header ─▶ body, frame by frame
//!  Request ─▶ Proxy ──┤
//!                     └─ upgrade ─▶ dial (HTTP/1.1) ─▶ 101 ─▶ bytes both ways
//! ```
//!
//! | to do this | use |
//! |---|---|
//! | bound memory, time and connections | [`Limits`] |
//! | set up TLS toward a group of backends | [`Proxy::tls_transport`], [`TlsSettings`] |
//! | forward a request or an upgrade | [`Proxy::handle`] with a [`Destination`] |
//! | answer a failure as kube-apiserver does | [`ProxyError::to_text`], [`ProxyError::to_status`] |
//!
//! A request is sent again in two cases: no byte of it was sent, or a reused connection ended before the response. The
//! second case applies only to a GET, HEAD or OPTIONS without a body. Redirects are never followed. Links in HTML
//! bodies are not rewritten, unlike upstream.
//!
//! # Example
//! A backend that answers one request, and the proxy in front of it.
//! ```
//! use http_body_util::{BodyExt as _, Empty};
//! use listwatch_proxy::{Destination, Limits, Proxy};
//! use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let backend = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
//! let port = backend.local_addr().unwrap().port();
//! tokio::spawn(async move {
//!     let (mut connection, _) = backend.accept().await.unwrap();
//!     connection.read(&mut [0; 4096]).await.unwrap();
//!     connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").await.unwrap();
//! });
//!
//! let proxy = Proxy::new(Limits::default());
//! let destination = Destination::new(proxy.plain_transport(), "127.0.0.1", port, "/greeting");
//! let request = http::Request::get("/greeting").body(Empty::<bytes::Bytes>::new()).unwrap();
//! let response = proxy.handle(request, &destination).await.unwrap();
//! assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "hello");
//! # });
//! ```
#![forbid(unsafe_code)]

mod body;
mod destination;
mod dial;
mod error;
mod forward;
mod headers;
mod limits;
mod proxy;
mod relay;
mod slots;
mod tls;
mod upgrade;

pub use crate::body::{IncompleteBody, ProxyBody};
pub use crate::destination::{Destination, Redirects};
pub use crate::dial::{AddressFuture, AddressResolver};
pub use crate::error::{ProxyError, ProxyErrorKind};
pub use crate::headers::{ExternalLocation, is_upgrade_request};
pub use crate::limits::Limits;
pub use crate::proxy::{Proxy, Transport};
pub use crate::tls::{ClientCertificate, TlsSettings, TlsSettingsError};
