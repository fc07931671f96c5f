//! Custom resources: conversion of a CustomResourceDefinition into served resources.
//!
//! ```text
//!  write ─▶ strategy, validation ─▶ store ─▶ watch ─▶ Catalog ─▶ registry ─▶ requests
//!                                              (controller) │
//!                                                           └─▶ status: names, conditions
//!                                                               cleanup: objects of a deleted definition
//! ```
//!
//! A server serves a definition as soon as the server has received the definition and its names are free. The server
//! writes the condition `Established` afterwards. A client that reads the condition can therefore use the resource. The
//! response to a write of a definition waits until the definition's conditions are stored
//! ([`Definitions::has_applied`](crate::Definitions::has_applied)). The client can then read, change and update the
//! definition without a conflict.
//!
//! A definition costs the memory of its bytes, which the cache of definitions holds anyway, and one
//! [`Resource`](crate::Resource) per served version. Caches, tasks and parsed schemas are created on first use.

pub(crate) mod catalog;
pub(crate) mod kind;
mod objects;
mod resources;
mod schema;
mod structural_check;

pub use self::catalog::{SchemaWork, StatusWork, Work};
pub use self::kind::{Creating, CustomKind, Form};
pub use self::objects::nested;
pub use self::resources::of as resources_of;
pub use self::schema::DefaultAndPruneError;
