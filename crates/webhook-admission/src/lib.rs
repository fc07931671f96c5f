//! The admission plugins MutatingAdmissionWebhook and ValidatingAdmissionWebhook
//! (`apiserver/pkg/admission/plugin/webhook`).
//!
//! ```text
//!  configurations ─▶ WebhookConfigurations ─snapshot─▶ MutatingAdmissionWebhook    one webhook after the other
//!                                                      ValidatingAdmissionWebhook  all webhooks at once
//!                                                         │
//!                                   listwatch-webhooks ◀──┤ matching, review, checks
//!                                                         ▼
//!                                       WebhookCaller: HttpsCaller ─▶ service or URL
//!                                       WebhookHandler: a Rust function
//! ```
//!
//! A write without a webhook for its resource costs a few hash look-ups, however many webhooks there are. A call ends
//! at the timeout of the webhook or at the deadline of the request. No lock is held during a call.
#![forbid(unsafe_code)]

mod call;
mod caller;
mod configurations;
mod dispatch;
mod https;
mod loopback;
mod metered;
mod metrics;
mod mutating;
mod plugin;
mod validating;

pub use listwatch_webhooks::{CallFuture, WebhookAnswer, WebhookCall, WebhookCaller};

pub use crate::caller::WebhookHandler;
pub use crate::configurations::{InvalidConfiguration, WebhookConfigurations};
pub use crate::dispatch::{Dispatch, ShownObjects};
pub use crate::https::{HttpsCaller, RESPONSE_BYTES_MAX};
pub use crate::loopback::{LoopbackClient, LoopbackRegistration};
pub use crate::metered::metered;
pub use crate::metrics::{SERIES_MAX, WebhookMetrics};
pub use crate::mutating::MutatingAdmissionWebhook;
pub use crate::validating::ValidatingAdmissionWebhook;
