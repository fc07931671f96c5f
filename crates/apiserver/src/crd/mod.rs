//! CustomResourceDefinitions: from an object in the store to a resource that is served.
//!
//! ```text
//!  write ─▶ strategy, validation ─▶ store ─▶ watch ─▶ Catalog ─▶ registry ─▶ requests
//!                                              (controller) │
//!                                                           └─▶ status: names, conditions
//!                                                               cleanup: objects of a deleted one
//! ```
//!
//! A server serves a definition as soon as it has seen it and its names are free, before it says so
//! in the definition's status; so whoever reads `Established` finds the resource served. The write of a
//! definition is answered when its conditions are in the store ([`Definitions::has_settled`]): its author can
//! read it, change it and write it back, and no later write of the status makes that a conflict. A request to
//! a resource that is not known looks once into the store, for another server may have stored its
//! definition a moment ago ([`Definitions::catch_up`]). Kubernetes takes up to seconds for the same.
//!
//! At rest a definition costs its bytes, which the cache of definitions holds anyway, and one
//! [`Resource`](crate::registry::Resource) per served version. There is no cache and no task for its
//! objects, and no parsed schema, until somebody asks for them.

mod catalog;
mod cleanup;
mod controller;
mod kind;
pub(crate) mod objects;
mod resources;
mod schema;

pub(crate) use self::controller::{Definitions, load, run, unreadable};
pub(crate) use self::kind::{Creating, CustomKind, Form};
pub(crate) use self::schema::FitError;

/// The group of definitions.
pub(crate) const GROUP: &str = "apiextensions.k8s.io";
/// The version in which they are served and stored.
pub(crate) const VERSION: &str = "v1";
/// Their plural.
pub(crate) const PLURAL: &str = "customresourcedefinitions";
