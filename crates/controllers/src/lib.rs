//! The controllers inside a Kubernetes API server.
//!
//! | controller | does | upstream |
//! |---|---|---|
//! | [`definitions`] | serves CustomResourceDefinitions, writes their status, removes their objects | `apiextensions-apiserver/pkg/controller` |
//! | [`namespaces`] | creates the system namespaces, empties deleted namespaces | `pkg/controller/namespace` |
//! | [`gc`] | deletes dependents of absent owners, ends foreground and orphaning deletions | `pkg/controller/garbagecollector` |
//! | [`rbac`] | keeps the RBAC authorizer in step, writes the default roles and aggregated ClusterRoles | `pkg/registry/rbac/rest`, `pkg/controller/clusterroleaggregation` |
//! | [`nodes`] | keeps the graph of the Node authorizer in step | `plugin/pkg/auth/authorizer/node/graph_populator.go` |
//! | [`flow_control`] | configures priority and fairness, keeps its objects | `util/flowcontrol`, `pkg/registry/flowcontrol/rest` |
//! | [`node_ports`] | repairs the allocated node ports from the services | `pkg/registry/core/service/portallocator/controller` |
//! | [`bootstrap`] | creates the objects that each cluster has, and keeps them | `pkg/controlplane/controller` |
//!
//! Each controller is a future that runs until it is dropped. Controllers write through a
//! [`Writer`](listwatch_write::Writer). Their creations and deletions pass admission, as those of clients do. Changes by
//! [`Writer::amend`](listwatch_write::Writer::amend) (status, finalizers, owner references) do not. Several servers on
//! one store may all run the controllers.
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
mod controllers;
pub mod definitions;
mod feed;
pub mod flow_control;
pub mod gc;
pub mod namespaces;
pub mod node_ports;
pub mod nodes;
pub mod rbac;

pub use crate::controllers::{Controllers, UnknownController};

/// Compiles the examples of the README as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
