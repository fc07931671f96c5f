//! The admission plugins ValidatingAdmissionPolicy and MutatingAdmissionPolicy
//! (`apiserver/pkg/admission/plugin/policy`).
//!
//! ```text
//!  policies, bindings ─▶ AdmissionPolicies ─snapshot─▶ MutatingAdmissionPolicy     one policy after the other
//!                                                      ValidatingAdmissionPolicy   all policies
//!                                                         │
//!                                    listwatch-policies ◀─┤ evaluation, decisions
//!                                           ParamReader ◀─┤ parameters
//!                                       AuthorizerChain ◀─┘ checks of expressions
//! ```
//!
//! A write without a policy for its resource costs a few hash look-ups, however many policies there are. No lock is
//! held during an evaluation.
#![forbid(unsafe_code)]

mod metrics;
mod mutating;
mod param_access;
mod params;
mod plugin;
mod policies;
mod validating;

pub use crate::metrics::{PolicyMetrics, SERIES_MAX};
pub use crate::mutating::MutatingAdmissionPolicy;
pub use crate::param_access::ParamAccess;
pub use crate::params::ParamReader;
pub use crate::policies::{AdmissionPolicies, CompiledPolicy};
pub use crate::validating::ValidatingAdmissionPolicy;
