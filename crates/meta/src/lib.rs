//! The basic types of Kubernetes list and watch, without I/O, async or HTTP.
//!
//! ```text
//!  store's side                                        client's side
//!  Revision ◀───────────── revision ─────────────▶ ResourceVersion
//!  Key, KeyRange           key                      namespace and name
//!  stored JSON ──────────▶ Object (bytes) ────────▶ list items, watch frames
//!  Event(Change)           event                    ADDED / MODIFIED / DELETED
//!  ReadAt, WatchFrom ◀──── read ─────────────────── ListOptions
//!                          selector                 labelSelector, fieldSelector
//!                          shard                    shardSelector: a part of a collection, by hash
//!                          continue_token           limit, continue
//!                          status                   v1.Status
//!                          user                     UserInfo
//!                          version_order            compare_versions: v1 before v1beta1
//! ```
//!
//! Everything is a plain value. Two rules hold across the workspace:
//!
//! - Clients never see a [`Revision`], and the store never sees a [`ResourceVersion`].
//! - An [`Object`] is bytes. Nothing on the read path parses these bytes.
//!
//! # Example
//! ```
//! use listwatch_meta::{Change, Key, LabelSelector, Object, ObjectShape, Revision, SelectableField};
//!
//! let shape = ObjectShape::new(true, vec![SelectableField::string("spec.nodeName")]);
//! let key = Key::new("pods", Some("default"), "web")?;
//! let stored = br#"{"metadata":{"name":"web","labels":{"app":"shop"}},"spec":{"nodeName":"n1"}}"#;
//! let pod = Object::from_stored(key, Revision::new(7), Change::Added, stored, &shape)?;
//!
//! assert!(pod.json_slice().starts_with(br#"{"metadata":{"resourceVersion":"7","#));
//! assert_eq!(pod.field("spec.nodeName", &shape).as_deref(), Some("n1"));
//! let selector = LabelSelector::parse("app in (shop, bank)")?;
//! assert!(selector.matches(|label| pod.label(label)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod calendar;
pub mod canary;
pub mod continue_token;
pub mod event;
pub mod fuel;
pub mod go;
pub mod key;
pub mod object;
pub mod quantity;
pub mod read;
pub mod revision;
pub mod scan;
pub mod selector;
pub mod shard;
pub mod status;
pub mod user;
mod version_order;

pub use continue_token::ContinueToken;
pub use event::{Change, Event};
pub use key::{Key, KeyRange};
pub use object::{Normalize, Object, ObjectShape, SelectableField, WeakObject};
pub use read::{ListOptions, ListRequest, ReadAt, WatchFrom, WatchRequest};
pub use revision::{ResourceVersion, Revision};
pub use selector::{FieldSelector, LabelSelector};
pub use shard::{InvalidShardSelector, ShardField, ShardSelector};
pub use status::{FieldError, GroupResource, Status};
pub use user::UserInfo;
pub use version_order::compare_versions;

/// The example of the README, as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
