//! Kubernetes' admission policies without I/O: ValidatingAdmissionPolicy and MutatingAdmissionPolicy with their
//! bindings.
//!
//! ```text
//!  policies, bindings ─▶ PolicyIndex ─candidates─▶ MatchCriteria::matching (policy, then binding)
//!                                                      │
//!                 (the caller reads the parameters) ◀── param_query
//!                                                      ▼
//!            ValidatingPolicy::evaluate ─▶ ValidatingReport ─▶ rejection, warnings, audit annotations
//!            MutatingPolicy::patch ─▶ Patch (the caller applies it), MutatingReport
//! ```
//!
//! The rules, texts, codes and cost limits are those of kube-apiserver 1.36 (`apiserver/pkg/admission/plugin/policy`).
//! The crate has no clock, lock, task or socket. An evaluation stops at an authorization check without a known
//! decision. The caller then adds the decision and evaluates again.
//!
//! # Example
//! ```
//! use listwatch_admission::{KindName, Operation, ResourceName};
//! use listwatch_cel::AuthorizationDecisions;
//! use listwatch_meta::UserInfo;
//! use listwatch_policies::{Binding, Inputs, ValidatingPolicy, ValidatingReport};
//! use listwatch_webhooks::{Attributes, Invocation};
//! use listwatch_json::json;
//!
//! let policy = json!({"metadata": {"name": "replicas"}, "spec": {
//!     "matchConstraints": {"resourceRules": [
//!         {"operations": ["CREATE"], "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"]}]},
//!     "validations": [{"expression": "object.spec.replicas <= 5", "message": "too many replicas"}],
//! }});
//! let policy = ValidatingPolicy::parse(policy.as_object().unwrap());
//! let binding = json!({"metadata": {"name": "all"}, "spec": {"policyName": "replicas", "validationActions": ["Deny"]}});
//! let binding = Binding::parse(binding.as_object().unwrap());
//!
//! let kind = KindName { group: "apps", version: "v1", kind: "Deployment" };
//! let resource = ResourceName { group: "apps", version: "v1", resource: "deployments", kind };
//! let (user, object) = (UserInfo::default(), json!({"metadata": {"name": "web"}, "spec": {"replicas": 9}}));
//! let attributes = Attributes {
//!     operation: Operation::Create,
//!     resource,
//!     subresource: "",
//!     namespace: "default",
//!     name: "web",
//!     user: &user,
//!     dry_run: false,
//!     object: object.as_object(),
//!     old_object: None,
//!     options: None,
//! };
//! let decisions = AuthorizationDecisions::new();
//! let invocation = Invocation { resource };
//! let evaluated =
//!     policy.evaluate(&Inputs { attributes, invocation, params: None, namespace: None, decisions: &decisions });
//! let mut report = ValidatingReport::default();
//! report.add(policy.as_ref(), &binding, evaluated);
//! let rejection = report.finish(&attributes).rejection.unwrap();
//! assert_eq!(
//!     rejection.message,
//!     "deployments.apps \"web\" is forbidden: ValidatingAdmissionPolicy 'replicas' with binding 'all' denied request: \
//!      too many replicas"
//! );
//! ```
#![forbid(unsafe_code)]

mod activation;
mod evaluation;
mod index;
mod mutating;
mod object_schema;
mod params;
mod policy;
mod report;
mod type_check;
mod validating;

pub use crate::activation::Inputs;
pub use crate::evaluation::POLICY_COST_MAX;
pub use crate::index::{BoundPolicy, PolicyIndex, is_exempt};
pub use crate::mutating::{MutatingPolicy, MutatingReport, PATCH_STEPS_MAX, Patch};
pub use crate::object_schema::ObjectSchema;
pub use crate::params::{ParamQuery, param_query};
pub use crate::policy::{Action, Binding, ParamKind, ParamRef, Policy};
pub use crate::report::{PolicyCheck, ReportedEffects, ValidatingReport, error_type};
pub use crate::type_check::{CheckedKind, TYPES_MAX, resources_to_check, type_check};
pub use crate::validating::{AnnotationResult, Decision, Evaluated, MESSAGE_BYTES_MAX, Reason, ValidatingPolicy};
