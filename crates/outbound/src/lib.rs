//! Calls from an API server to other servers: webhooks in a kubeconfig, and documents at a URL
//! (`apiserver/pkg/util/webhook`).
//!
//! ```text
//!  kubeconfig ─▶ Kubeconfig ─▶ Client ──post, get──▶ listwatch-proxy ──TLS──▶ the other server
//!                                └ post_with_retry: Backoff between the attempts
//! ```
//!
//! # Example
//! ```
//! use listwatch_outbound::{Client, Kubeconfig};
//!
//! let text = "
//! clusters: [{name: audit, cluster: {server: 'https://127.0.0.1:1/audit', insecure-skip-tls-verify: true}}]
//! users: [{name: server, user: {token: s3cret}}]
//! contexts: [{name: a, context: {cluster: audit, user: server}}]
//! current-context: a
//! ";
//! let kubeconfig = Kubeconfig::parse(text, std::path::Path::new("."))?;
//! assert_eq!(kubeconfig.url(), "https://127.0.0.1:1/audit");
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! let call = async {
//!     let client = Client::new(&kubeconfig)?;
//!     let refused = client.post("{}".into(), std::time::Duration::from_secs(5)).await;
//!     assert!(refused.unwrap_err().to_string().contains("127.0.0.1:1"));
//!     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
//! };
//! # runtime.block_on(call)?;
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```
#![forbid(unsafe_code)]

mod backoff;
mod client;
mod kubeconfig;
mod token_file;

pub use crate::backoff::Backoff;
pub use crate::client::{CALLS_MAX, CallError, Client, RESPONSE_BYTES_MAX};
pub use crate::kubeconfig::{Kubeconfig, KubeconfigError};
