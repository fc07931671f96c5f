//! CustomResourceDefinitions: their rules, their status, and what the server reads of them. Serving what they define
//! is the API server's.
//!
//! Rules: `apiextensions-apiserver` of Kubernetes v1.36 (`pkg/apis/apiextensions`, `pkg/registry/customresourcedefinition`).

mod approval;
mod definition;
mod schema;
mod status;
pub(crate) mod strategy;
pub(crate) mod validation;

pub use approval::approval_condition;
pub use definition::{Condition, Definition, FINALIZER, Names, Version};
pub use status::{condition, set_accepted, set_condition};
