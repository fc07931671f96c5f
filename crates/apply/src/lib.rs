//! Server-side apply without a server: who owns which field of an object, and what comes of it when
//! several write. Pure functions over JSON trees; no I/O, no clock.
//!
//! [`Typing`] says how the values of a kind merge. For the built-in kinds it is a projection of
//! [`listwatch_k8s_types`] ([`Typing::of_built_in`]). Others are made from an OpenAPI schema
//! ([`Typing::of_custom_resource`]), built by hand ([`typing::SchemaBuilder`]), or deduced from the values
//! themselves ([`Typing::deduced`]).
//!
//! [`Kind`] is a kind with its typing. [`Kind::update`] keeps account of any write, [`Kind::apply`]
//! merges what a client applies into what is there, or says who else owns what it would change. Both
//! keep `metadata.managedFields` ([`managed`]), whose sets of fields are [`Set`]s.
//!
//! ```
//! # use listwatch_apply::{ApplyError, Kind, Set, Typing, Writer};
//! # use serde_json::json;
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
//! The rules are those of `sigs.k8s.io/structured-merge-diff/v6` and of
//! `k8s.io/apimachinery/pkg/util/managedfields`, Kubernetes v1.36.
#![forbid(unsafe_code)]

mod builtin;
mod fields_v1;
mod kind;
pub mod managed;
mod openapi;
mod path;
mod set;
mod typed;
pub mod typing;
mod value;

pub use kind::{ApplyError, BEFORE_FIRST_APPLY, Conflict, Convert, Kind, LAST_APPLIED, Writer};
pub use path::{Name, Path, PathElement};
pub use set::Set;
pub use typed::{Comparison, Misfit};
pub use typing::Typing;
