//! Server-side apply as pure functions over JSON trees: field ownership, merges and conflicts. The
//! crate does no I/O and reads no clock.
//!
//! [`Typing`] determines how the values of a kind merge. There are four sources: the types of
//! [`listwatch_k8s_types`] for built-in kinds ([`Typing::of_built_in`]), an OpenAPI schema
//! ([`Typing::of_custom_resource`]), a builder ([`typing::SchemaBuilder`]), and the values
//! themselves ([`Typing::deduced`]).
//!
//! [`Kind`] is a kind with its typing. [`Kind::update`] tracks the ownership of any write.
//! [`Kind::apply`] merges an applied configuration into the live object, or returns the conflicts
//! with other managers. Both maintain `metadata.managedFields` ([`managed`]), whose field sets are
//! [`Set`].
//!
//! ```
//! # use listwatch_apply::{ApplyError, Kind, Set, Typing, Writer};
//! # use listwatch_json::json;
//! let kind = Kind::custom("example.com/v1", "Thing", Typing::deduced(), Vec::new());
//! let reset = Set::new();
//! let by = |manager| Writer { manager, subresource: "", now: time::OffsetDateTime::UNIX_EPOCH, reset: &reset };
//! let config = |size: u32| {
//!     json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "a"}, "spec": {"size": size}})
//! };
//! let thing = kind.apply(None, &config(1), by("ann"), false)?;
//! let refused = kind.apply(Some(&thing), &config(2), by("bob"), false).unwrap_err();
//! assert_eq!(refused.to_string(), r#"Apply failed with 1 conflict: conflict with "ann": .spec.size"#);
//! let forced = kind.apply(Some(&thing), &config(2), by("bob"), true)?;
//! // That there is a spec is still Ann's too; its size is Bob's.
//! let owners = &forced["metadata"]["managedFields"];
//! assert_eq!(owners[0]["fieldsV1"], json!({"f:spec": {}}));
//! assert_eq!(owners[1]["fieldsV1"], json!({"f:spec": {".": {}, "f:size": {}}}));
//! # Ok::<(), ApplyError>(())
//! ```
//!
//! Sources: `sigs.k8s.io/structured-merge-diff/v6` and
//! `k8s.io/apimachinery/pkg/util/managedfields`, Kubernetes v1.36.
#![forbid(unsafe_code)]

mod builtin;
mod encoded_set;
mod fields_v1;
mod kind;
pub mod managed;
mod openapi;
mod path;
mod set;
mod typed;
pub mod typing;
mod value;

pub use encoded_set::EncodedSet;
pub use kind::{ApplyError, BEFORE_FIRST_APPLY, Conflict, Convert, Kind, LAST_APPLIED, TryConvert, Writer};
pub use path::{Name, Path, PathElement};
pub use set::Set;
pub use typed::{Comparison, ValidationError};
pub use typing::Typing;

/// The example of the README, as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
