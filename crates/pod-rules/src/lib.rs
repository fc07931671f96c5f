//! The rules of pods that no other kind has, as pure functions.
//!
//! ```text
//!  new pod ──merge_label_keys, copy_app_armor_annotations──▶ completed pod
//!  new and old pod ──validate_update │ validate_status │ validate_resize │ validate_ephemeral_containers──▶ errors
//! ```
//!
//! The rules that pods share with pod templates are in `listwatch_validation::pod_spec`. `listwatch-kinds` calls all of
//! them in the order of kube-apiserver.
//!
//! Source: `pkg/registry/core/pod/strategy.go` and `pkg/apis/core/validation` of Kubernetes v1.36.
//!
//! # Example
//! ```
//! use listwatch_json::{Value, json};
//! use listwatch_pod_rules::validate_update;
//! use listwatch_validation::Errors;
//!
//! let pod = |name: &str| match json!({"spec": {"containers": [{"name": name, "image": "nginx"}]}}) {
//!     Value::Object(pod) => pod,
//!     _ => unreachable!(),
//! };
//! let mut errors = Errors::default();
//! validate_update(&pod("b"), &pod("a"), &mut errors);
//! assert!(errors.iter().any(|error| error.to_string().starts_with("spec: Forbidden: pod updates may not change fields")));
//! ```
#![forbid(unsafe_code)]

mod create;
mod qos;
mod resize;
mod status;
#[cfg(test)]
mod testing;
mod update;

pub use crate::create::{app_armor_warnings, copy_app_armor_annotations, merge_label_keys};
pub use crate::qos::quality_of_service;
pub use crate::resize::validate_resize;
pub use crate::status::validate_status;
pub use crate::update::{validate_ephemeral_containers, validate_update};
