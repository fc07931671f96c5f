//! Kubernetes' admission webhooks without I/O: which webhooks a write is sent to, what is sent, and what an answer means.
//!
//! ```text
//!  configurations ──▶ WebhookIndex ──candidates──▶ Webhook::matching ──▶ Webhook::check_conditions ──▶ Invocation
//!                                                                                                     │
//!  CallError::resolve ◀── AdmissionResponse::parse ◀── (the caller sends) ◀── AdmissionReviewRequest ◀┘
//! ```
//!
//! The rules are those of kube-apiserver 1.36 (`apiserver/pkg/admission/plugin/webhook`). The crate has no clock, lock,
//! task, socket or random number.
//!
//! # Example
//! ```
//! use listwatch_meta::UserInfo;
//! use listwatch_webhooks::{Attributes, Matching, NamespaceLabels, Operation, ResourceName, Webhook, WebhookIndex};
//! use serde_json::json;
//!
//! let configuration = json!({"metadata": {"name": "labels"}, "webhooks": [{
//!     "name": "labels.example.com",
//!     "clientConfig": {"url": "https://example.com/labels"},
//!     "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
//!     "sideEffects": "None",
//!     "admissionReviewVersions": ["v1"],
//! }]});
//! let index = WebhookIndex::new(Webhook::parse(configuration.as_object().unwrap()));
//! let (user, pod) = (UserInfo::default(), json!({"metadata": {"name": "a"}}));
//! let attributes = Attributes {
//!     operation: Operation::Create,
//!     resource: ResourceName { group: "", version: "v1", resource: "pods", kind: "Pod" },
//!     subresource: "",
//!     namespace: "default",
//!     name: "a",
//!     user: &user,
//!     dry_run: false,
//!     object: pod.as_object(),
//!     old_object: None,
//!     options: None,
//! };
//! let webhook = index.candidates(&attributes.resource, &[]).next().unwrap();
//! let Ok(Matching::Call(invocation)) = webhook.matching(&attributes, &[], NamespaceLabels::Unread) else {
//!     panic!("the rule matches")
//! };
//! assert_eq!(invocation.resource.resource, "pods");
//! ```
#![forbid(unsafe_code)]

mod attributes;
mod client_config;
mod conditions;
mod failure;
mod index;
mod matching;
mod reinvocation;
mod response;
mod review;
mod rule;
mod server_error;
mod webhook;

pub use crate::attributes::{Attributes, Operation, ResourceName, is_exempt};
pub use crate::client_config::{ClientConfig, ServiceTarget, Target};
pub use crate::conditions::{ConditionResult, EXPRESSION_COST_MAX, MATCH_CONDITIONS_COST_MAX};
pub use crate::failure::{CallError, FailedOpen, check_dry_run};
pub use crate::index::WebhookIndex;
pub use crate::matching::{Invocation, Matching, NamespaceLabels};
pub use crate::reinvocation::Reinvocation;
pub use crate::response::AdmissionResponse;
pub use crate::review::{AdmissionReviewRequest, ReviewVersion};
pub use crate::server_error::response_error;
pub use crate::webhook::{FailurePolicy, SideEffects, Webhook};
