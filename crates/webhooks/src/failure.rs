//! Failed and denied calls, and the effect of the failure policy (`util/webhook/error.go`,
//! `{mutating,validating}/dispatcher.go`).

use listwatch_meta::{Status, go};

use crate::webhook::{FailurePolicy, SideEffects, Webhook};

/// The status code in metrics for a call without a response (`NewServiceUnavailable`).
const UNAVAILABLE: u16 = 503;

/// A call that did not allow the request.
#[derive(Clone, Debug, PartialEq)]
pub enum CallError {
    /// The call failed: no connection, an HTTP error, or an invalid response. The failure policy applies.
    Failed {
        /// The text after `failed calling webhook "<name>": `.
        reason: String,
        /// The status code for metrics.
        code: u16,
    },
    /// The webhook denied the request. The failure policy has no effect.
    Denied(Box<Status>),
    /// The server could not use the response, e.g. because the patch does not apply. The failure policy has no effect.
    Internal(Box<Status>),
}

/// A call failed under the failure policy `Ignore`: the request proceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedOpen;

impl CallError {
    /// Creates the error of a failed call with this message.
    pub fn failed(reason: impl Into<String>) -> Self {
        CallError::failed_with(reason, UNAVAILABLE)
    }

    pub(crate) fn failed_with(reason: impl Into<String>, code: u16) -> Self {
        CallError::Failed { reason: reason.into(), code }
    }

    /// Creates the error of a failed transport. `cause` is the text of [`crate::Target::transport_error`].
    pub fn transport(cause: impl std::fmt::Display) -> Self {
        CallError::failed(format!("failed to call webhook: {cause}"))
    }

    /// Creates the error for a patch that does not apply, or whose result is not an object.
    pub fn patch(cause: impl std::fmt::Display) -> Self {
        CallError::Internal(Box::new(Status::internal(cause)))
    }

    /// Creates the error for a patch in a response to an operation without a new object, such as a delete.
    pub fn nothing_to_patch(webhook: &str) -> Self {
        CallError::patch(format_args!(
            "admission webhook {} attempted to modify the object, which is not supported for this operation",
            go::quote(webhook)
        ))
    }

    /// Applies the failure policy of the webhook. If the deadline of the request has passed, the caller returns 504
    /// instead.
    ///
    /// # Errors
    /// The [`Status`] for the client.
    pub fn resolve(self, webhook: &Webhook) -> Result<FailedOpen, Status> {
        match self {
            CallError::Failed { .. } if webhook.failure_policy == FailurePolicy::Ignore => Ok(FailedOpen),
            CallError::Failed { reason, .. } => {
                let name = go::quote(&webhook.name);
                Err(Status::internal(format_args!("failed calling webhook {name}: {reason}")))
            }
            CallError::Denied(status) | CallError::Internal(status) => Err(*status),
        }
    }
}

/// Checks that a webhook may be called in a dry run.
///
/// # Errors
/// [`CallError::Internal`] with 400 if the webhook may have side effects, with any failure policy;
/// [`CallError::Failed`] if `sideEffects` is absent.
pub fn check_dry_run(webhook: &Webhook, dry_run: bool) -> Result<(), CallError> {
    match webhook.side_effects {
        _ if !dry_run => Ok(()),
        SideEffects::NoneOnDryRun => Ok(()),
        SideEffects::Undeclared => Err(CallError::failed_with("Webhook SideEffects is nil", 400)),
        SideEffects::Possible => {
            let why = format!("admission webhook {} does not support dry run", go::quote(&webhook.name));
            Err(CallError::Internal(Box::new(Status::bad_request(why))))
        }
    }
}
