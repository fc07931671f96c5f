//! API aggregation for a Kubernetes API server: group versions that other servers serve (`k8s.io/kube-aggregator`).
//!
//! ```text
//!  APIServices ─▶ Routes ──────────────▶ Aggregator::handle ─▶ Service, EndpointSlices ─▶ listwatch-proxy
//!             └─▶ probes ─▶ Condition    (identity headers)
//!             └─▶ documents ─▶ merged discovery and OpenAPI
//! ```
//!
//! | to do this | use |
//! |---|---|
//! | find the server of a path | [`Aggregator::route`], [`api_service_name`] |
//! | forward a request | [`Aggregator::handle`] |
//! | keep routes, conditions and documents up to date | [`Aggregator::run`] with [`ApiServiceObjects`] |
//! | compute the condition `Available` | [`check_objects`], [`check_probes`], [`set_condition`] |
//! | find the address of a service | [`ServiceResolver`], [`resolve_cluster`], [`resolve_endpoint`] |
//! | merge documents | [`merge_aggregated`], [`api_group_list`], [`merge_v3_index`], [`merge_v2`] |
//!
//! Decisions are pure functions. [`Aggregator`] is the shell around them: it reads objects by [`ServiceObjects`] and
//! [`ApiServiceObjects`], and sends requests by a [`Proxy`](listwatch_proxy::Proxy).
//!
//! # Example
//! The condition of an APIService whose service listens on another port, and its position in the legacy group list.
//! ```
//! use listwatch_aggregator::{ApiService, Service, api_group_list, check_objects};
//! use listwatch_json::json;
//!
//! let api_service = ApiService::from_object(&json!({
//!     "metadata": {"name": "v1.metrics.example"},
//!     "spec": {"group": "metrics.example", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 20,
//!         "service": {"namespace": "monitoring", "name": "api", "port": 443}},
//! })).unwrap();
//! let service = Service::from_object(&json!({"spec": {"type": "ClusterIP", "ports": [{"port": 80}]}}));
//!
//! let condition = check_objects(&api_service, &Ok(Some(service)), &Ok(vec![])).unwrap();
//! assert_eq!(condition.reason, "ServicePortError");
//! assert_eq!(condition.message, "service/api in \"monitoring\" is not listening on port 443");
//! assert_eq!(api_group_list(&[api_service])["groups"][1]["name"], "metrics.example");
//! ```
#![forbid(unsafe_code)]

mod aggregator;
mod api_service;
mod availability;
mod condition;
mod controller;
mod discovery;
mod documents;
mod fetch;
mod identity;
mod objects;
mod openapi;
mod order;
mod resolve;
mod route;
mod schedule;
mod service_resolver;

pub use crate::aggregator::{Aggregator, AggregatorOptions, RequestFacts};
pub use crate::api_service::{ApiService, InvalidApiService, ServiceReference};
pub use crate::availability::{ProbeResult, check_objects, check_probes, set_condition};
pub use crate::condition::Condition;
pub use crate::discovery::{
    MalformedDiscovery, RemoteVersion, ResourceDiscovery, api_group, api_group_list, merge_aggregated,
    parse_aggregated, parse_resource_list,
};
pub use crate::documents::{RemoteDocument, RemoteDocuments};
pub use crate::identity::{InvalidIdentity, identity_headers, remove_identity_headers};
pub use crate::objects::{ApiServiceObjects, EndpointSlice, Service, ServiceObjects};
pub use crate::openapi::{V3Index, merge_v2, merge_v3_index, restrict_v2};
pub use crate::order::sorted_by_group_and_version;
pub use crate::resolve::{Address, ResolveError, resolve_cluster, resolve_endpoint};
pub use crate::route::{RemoteRoute, api_service_name};
pub use crate::service_resolver::{ServiceResolver, loopback_address};
