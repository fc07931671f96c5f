//! The controllers inside a Kubernetes API server.
//!
//! | controller | purpose | upstream |
//! |---|---|---|
//! | [`definitions`] | serves CustomResourceDefinitions, writes their status, deletes their objects | `apiextensions-apiserver/pkg/controller` |
//! | [`namespaces`] | creates the system namespaces, empties deleted namespaces | `pkg/controller/namespace` |
//! | [`gc`] | deletes dependents of absent owners, completes foreground and orphan deletions | `pkg/controller/garbagecollector` |
//! | [`rbac`] | updates the RBAC authorizer, writes the default roles and aggregated ClusterRoles | `pkg/registry/rbac/rest`, `pkg/controller/clusterroleaggregation` |
//! | [`nodes`] | updates the graph of the Node authorizer | `plugin/pkg/auth/authorizer/node/graph_populator.go` |
//! | [`flow_control`] | configures priority and fairness, maintains the bootstrap objects | `util/flowcontrol`, `pkg/registry/flowcontrol/rest` |
//! | [`policy_status`] | writes the type checks of ValidatingAdmissionPolicies | `pkg/controller/validatingadmissionpolicystatus` |
//! | [`policies`] | updates the admission policies, reads their parameters | `admission/plugin/policy/generic` |
//! | [`webhooks`] | updates the admission webhooks | `admission/configuration` |
//! | [`node_ports`] | repairs the allocated node ports from the services | `pkg/registry/core/service/portallocator/controller` |
//! | [`ip_addresses`] | repairs the claims of cluster addresses from the services | `pkg/registry/core/service/ipallocator/controller` |
//! | [`service_cidrs`] | updates the ranges of cluster addresses | `pkg/registry/core/service/ipallocator` |
//! | [`service_cidr_lifecycle`] | marks ServiceCIDRs as ready, keeps those that services need | `pkg/controller/servicecidrs` |
//! | [`kubernetes_endpoints`] | publishes the addresses of the running servers in the Service `kubernetes` | `pkg/controlplane/reconcilers` |
//! | [`identity_lease`] | renews the Lease of this server, deletes the Leases of stopped servers | `pkg/controlplane/controller/apiserverleasegc` |
//! | [`resource_quotas`] | counts the usage of resource quotas | `pkg/controller/resourcequota` |
//! | [`storage_protection`] | keeps PersistentVolumeClaims, PersistentVolumes and VolumeAttributesClasses that are in use | `pkg/controller/volume/{pvc,pv,vac}protection` |
//! | [`storage_migration`] | rewrites all objects of a resource in the current storage version and encoding | `pkg/controller/storageversionmigrator` |
//! | [`legacy_tokens`] | labels used token Secrets with the day of their last use | `pkg/serviceaccount/legacy.go` |
//! | [`service_accounts`] | creates the ServiceAccount `default` and the root CA ConfigMap in each namespace | `pkg/controller/serviceaccount` |
//! | [`bootstrap`] | creates and maintains the objects that each cluster has | `pkg/controlplane/controller` |
//!
//! Each controller is a future that runs until it is dropped. Controllers write through a
//! [`Writer`](listwatch_write::Writer). Creations and deletions pass admission, like the writes of clients. Changes by
//! [`Writer::amend`](listwatch_write::Writer::amend) (status, finalizers, owner references) bypass admission. Several
//! servers on one store may all run the controllers. [`health`] has the health checks of a server, most of which examine a
//! controller.
//!
//! # Example
//! ```
//! use listwatch_controllers::Controllers;
//!
//! // As `--controllers` takes them.
//! let controllers: Controllers = "*,-gc".parse()?;
//! assert!(controllers.namespace && !controllers.gc);
//! # Ok::<(), listwatch_controllers::UnknownController>(())
//! ```
#![forbid(unsafe_code)]

pub mod bootstrap;
mod changed_names;
mod controllers;
pub mod definitions;
mod feed;
pub mod flow_control;
pub mod gc;
pub mod health;
mod identity_lease;
pub mod ip_addresses;
mod kubernetes_endpoints;
pub mod legacy_tokens;
mod master_leases;
pub mod namespaces;
pub mod node_ports;
pub mod nodes;
mod objects;
pub mod policies;
pub mod policy_status;
pub mod presence;
pub mod rbac;
pub mod resource_quotas;
pub mod service_accounts;
pub mod service_cidr_lifecycle;
pub mod service_cidrs;
pub mod storage_migration;
pub mod storage_protection;
pub mod webhooks;

pub use crate::controllers::{Controllers, UnknownController};

/// Compiles the examples of the README as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
