//! [`Stop`]: the reason for the end of a case before its last step.

use crate::transport::SendError;

/// The reason for the end of a case before its last step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Failed(Failure),
    /// The server does not support the tested capability.
    Unsupported(String),
    /// The environment lacks an action, or the rule does not apply to the server.
    Skipped(String),
}

/// A step that did not meet its expectations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The number of the step, with the numbers of steps inside of `repeat` and `parallel` after
    /// it, such as `2.1`.
    pub(crate) step: String,
    /// The expected and the found value.
    pub(crate) why: String,
    /// The request and the response, as text.
    pub(crate) exchange: Option<String>,
}

impl Stop {
    pub(crate) fn failed(why: impl Into<String>) -> Self {
        Stop::Failed(Failure { step: String::new(), why: why.into(), exchange: None })
    }

    /// Adds the request and the response to a failure.
    pub(crate) fn with_exchange(mut self, exchange: impl FnOnce() -> String) -> Self {
        if let Stop::Failed(failure) = &mut self {
            failure.exchange.get_or_insert_with(exchange);
        }
        self
    }

    /// Adds the number of the step to a failure.
    pub(crate) fn at(mut self, step: usize) -> Self {
        if let Stop::Failed(failure) = &mut self {
            failure.step = match failure.step.as_str() {
                "" => step.to_string(),
                inner => format!("{step}.{inner}"),
            };
        }
        self
    }
}

impl From<SendError> for Stop {
    fn from(error: SendError) -> Self {
        match error {
            SendError::NotNegotiated(protocol) => Stop::Unsupported(format!("the server does not speak {protocol}")),
            SendError::Failed(why) => Stop::failed(why),
        }
    }
}
