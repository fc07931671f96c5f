//! What built-in kinds demand of their fields, with kube-apiserver's texts and in its order
//! (`pkg/apis/*/validation` of v1.36, seen at a real server): one function for each kind, in a module for its group.
//!
//! ```text
//!  create ────────▶ validate(object)
//!  update ────────▶ validate(object, old) ─▶ validate_update(object, old)
//!  PUT …/status ──▶ validate_status(object, old)
//! ```
//!
//! Where it is not certain that kube-apiserver refuses an object, it is accepted. Objects of custom kinds are
//! checked by their schemas instead.

pub(crate) mod devices;

use listwatch_validation::*;
