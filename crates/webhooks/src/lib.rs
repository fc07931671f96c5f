//! Kubernetes' admission webhooks without I/O: the selection of webhooks for a write, the AdmissionReview requests, and
//! the evaluation of responses.
//!
//! ```text
//!  configurations ──▶ WebhookIndex ──candidates──▶ MatchCriteria::matching ──▶ Webhook::check_conditions ──▶ Invocation
//!                                                                                                     │
//!  CallError::resolve ◀── AdmissionResponse::parse ◀── (the caller sends) ◀── AdmissionReviewRequest ◀┘
//! ```
//!
//! The rules are those of kube-apiserver 1.36 (`apiserver/pkg/admission/plugin/webhook`). The crate has no clock, lock,
//! task, socket or random number.
//!
//! # Example
//! ```
//! use std::sync::Arc;
//!
//! use listwatch_admission::{KindName, Operation, ResourceName};
//! use listwatch_meta::UserInfo;
//! use listwatch_webhooks::{Attributes, Matching, NamespaceLabels, Webhook, WebhookIndex};
//! use listwatch_json::json;
//!
//! let configuration = json!({"metadata": {"name": "labels"}, "webhooks": [{
//!     "name": "labels.example.com",
//!     "clientConfig": {"url": "https://example.com/labels"},
//!     "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
//!     "sideEffects": "None",
//!     "admissionReviewVersions": ["v1"],
//! }]});
//! let index = WebhookIndex::new(Webhook::parse(configuration.as_object().unwrap()).into_iter().map(Arc::new));
//! let (user, pod) = (UserInfo::default(), json!({"metadata": {"name": "a"}}));
//! let attributes = Attributes {
//!     operation: Operation::Create,
//!     resource: ResourceName {
//!         group: "",
//!         version: "v1",
//!         resource: "pods",
//!         kind: KindName { group: "", version: "v1", kind: "Pod" },
//!     },
//!     subresource: "",
//!     namespace: "default",
//!     name: "a",
//!     user: &user,
//!     dry_run: false,
//!     object: pod.as_object(),
//!     old_object: None,
//!     options: None,
//! };
//! let (_, webhook) = index.candidates(attributes.operation, &attributes.resource, &[]).next().unwrap();
//! let matching = webhook.criteria().matching(&attributes, &[], NamespaceLabels::Unread);
//! let Ok(Matching::Call(invocation)) = matching else {
//!     panic!("the rule matches")
//! };
//! assert_eq!(invocation.resource.resource, "pods");
//! ```
#![forbid(unsafe_code)]

mod attributes;
mod caller;
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

pub use crate::attributes::{Attributes, is_exempt};
pub use crate::caller::{CallFuture, WebhookAnswer, WebhookCall, WebhookCaller};
pub use crate::client_config::{ClientConfig, ServiceTarget, Target};
pub use crate::conditions::{
    ConditionResult, EXPRESSION_COST_MAX, MATCH_CONDITIONS_COST_MAX, MatchConditions, OUT_OF_BUDGET,
};
pub use crate::failure::{CallError, FailedOpen, check_dry_run};
pub use crate::index::{RuleIndex, WebhookIndex};
pub use crate::matching::{Invocation, MatchCriteria, Matching, NamespaceLabels};
pub use crate::reinvocation::Reinvocation;
pub use crate::response::AdmissionResponse;
pub use crate::review::{AdmissionReviewRequest, ReviewVersion, request_without_objects};
pub use crate::server_error::{is_success, response_error, response_error_text};
pub use crate::webhook::{FailurePolicy, SideEffects, Webhook};
