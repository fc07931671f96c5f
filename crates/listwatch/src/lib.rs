//! Kubernetes list-watch: a facade that re-exports the library crates. Not included are `listwatch-kube`, which needs
//! kube-rs, the suites `listwatch-conformance` and `listwatch-store-conformance`, the checks of histories
//! `listwatch-history`, and the gRPC client `listwatch-grpc`. The crate `listwatch-cli` contains the command `listwatch`.
//!
//! ```text
//!  etcd, embedded ─▶ storage ─▶ cacher ─▶ apiserver ─▶ wire ══TCP══▶ wire ─▶ client ─▶ your code
//! ```
//!
//! Each layer is a separate crate that can be used alone. This facade is one dependency for all of
//! them.
//!
//! # A controller test without a cluster
//! ```
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! let server = listwatch::apiserver::ApiServer::builder().build().await?;
//! let _service = server.service(); // kube::Client::new(service, "default")
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub use listwatch_access as access;
pub use listwatch_admission as admission;
pub use listwatch_aggregator as aggregator;
pub use listwatch_apiextensions as apiextensions;
pub use listwatch_apiserver as apiserver;
pub use listwatch_apply as apply;
pub use listwatch_at_rest as at_rest;
pub use listwatch_audit as audit;
pub use listwatch_cacher as cacher;
pub use listwatch_cel as cel;
pub use listwatch_client as client;
pub use listwatch_connect as connect;
pub use listwatch_controllers as controllers;
pub use listwatch_discovery as discovery;
pub use listwatch_flow_control as flow_control;
pub use listwatch_json as json;
pub use listwatch_k8s_types as k8s_types;
pub use listwatch_kind_warnings as kind_warnings;
pub use listwatch_kinds as kinds;
pub use listwatch_meta as meta;
pub use listwatch_outbound as outbound;
pub use listwatch_pod_rules as pod_rules;
pub use listwatch_policies as policies;
pub use listwatch_policy_admission as policy_admission;
pub use listwatch_printers as printers;
pub use listwatch_proxy as proxy;
pub use listwatch_registry as registry;
pub use listwatch_schema as schema;
pub use listwatch_storage as storage;
pub use listwatch_table as table;
pub use listwatch_validation as validation;
pub use listwatch_webhook_admission as webhook_admission;
pub use listwatch_webhooks as webhooks;
pub use listwatch_wire as wire;
pub use listwatch_work_queue as work_queue;
pub use listwatch_write as write;

/// The example of the README, as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
