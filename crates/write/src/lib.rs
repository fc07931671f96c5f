//! The write pipeline of a Kubernetes API server: create, update, patch, apply, delete and deletecollection.
//!
//! The crate does not depend on HTTP, except for the names of media types. [`Writer`] carries out a [`WriteRequest`].
//!
//! ```text
//!  WriteRequest ─▶ Writer ─▶ Action (one per verb and subresource) ─▶ WriteResponse
//!                              │ options, body ─▶ a change of one object
//!                              ▼
//!                            pipeline: default ─▶ mutate ─▶ validate ─▶ allocate ─▶ admit ─▶ store
//! ```
//!
//! A body is parsed once into a [`listwatch_json::Value`] and stored as compact JSON: `kind`, `apiVersion`, `metadata` in
//! Kubernetes' order, then the rest in the client's order. Pure functions compute the changed object
//! ([`listwatch_kinds::Strategy`], [`strategic`], [`patch`]). `action.rs` lists the actions.
//!
//! # Example
//! ```
//! use std::sync::Arc;
//!
//! use listwatch_cacher::Limits;
//! use listwatch_meta::UserInfo;
//! use listwatch_registry::{Backend, Registry};
//! use listwatch_storage::MemoryStorage;
//! use listwatch_wire::query::Query;
//! use listwatch_admission::AdmissionChain;
//! use listwatch_write::{WriteRequest, WriteVerb, Writer};
//!
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! let backend = Backend::new(MemoryStorage::new(), Registry::builtin(), true, Limits::default());
//! let writer = Writer::new(Arc::new(backend), AdmissionChain::default());
//! let registry = writer.backend().registry();
//! let created = writer
//!     .write(WriteRequest {
//!         verb: WriteVerb::Create,
//!         resource: registry.find("", "v1", "namespaces").expect("namespaces are served"),
//!         namespace: None,
//!         name: None,
//!         subresource: None,
//!         query: &Query::default(),
//!         content_type: Some("application/json"),
//!         user: UserInfo::admin(),
//!         user_agent: Some("example/1"),
//!         body: br#"{"metadata":{"name":"shop"}}"#.as_slice().into(),
//!     })
//!     .await?;
//! assert_eq!(created.code, 201);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod action;
mod address_repair;
mod admission;
mod apply;
mod binding;
pub mod cbor;
mod cleanups;
mod conflicts;
mod connect;
mod create;
mod decode;
mod decode_error;
mod delete;
mod depth;
mod document;
mod evict;
mod expected;
mod field_path;
mod interruption;
mod ip_families;
mod json_patch;
mod memory;
mod merge_keys;
mod monotonic;
mod no_op;
mod node_ports;
mod options;
mod ownership;
mod patch;
mod pipeline;
mod proxied_path;
mod recent;
mod request;
mod request_details;
mod review_selectors;
mod reviews;
mod scale;
mod scale_view;
mod service_cidrs;
mod service_deletion;
mod service_ranges;
mod services;
mod store;
mod strategic;
mod strict_order;
mod subresource_body;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod token;
mod typed;
mod unenforced;
mod unmetered;
mod update;
mod version_conversions;
mod writer;
mod yaml_reader;

pub use listwatch_validation::clock::{Clock, parse_timestamp, timestamp};

pub use crate::address_repair::{
    AddressPlan, AddressReading, AddressRepairOutcome, FOLLOW_UPS_MAX, PendingClaim, ServiceName, cluster_ips,
};
pub use crate::admission::namespace_lifecycle::NAMESPACE_RECHECK;
pub use crate::connect::{connect_options, query_of_options};
pub use crate::node_ports::{NodePortRepair, REPAIR_INTERVAL};
pub use crate::options::Propagation;
pub use crate::proxied_path::ProxiedPath;
pub use crate::request::{OwnedWriteRequest, WriteBody, WriteContext, WriteRequest, WriteResponse, WriteVerb};
pub use crate::scale_view::scale_of;
pub use crate::service_cidrs::ServiceCidrs;
pub use crate::service_ranges::{InvalidRange, ServiceRanges};
pub use crate::writer::{Amendment, ConnectRequest, Removal, Writer, check_readable, is_unreadable};

#[cfg(test)]
mod tests;
