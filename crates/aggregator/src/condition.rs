//! [`Condition`]: whether the server of an APIService can be reached.

/// The condition `Available` of an APIService.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// `True`, `False` or `Unknown`.
    pub status: &'static str,
    /// A reason in CamelCase.
    pub reason: &'static str,
    /// A message for people.
    pub message: String,
}

impl Condition {
    pub(crate) fn new(status: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Condition { status, reason, message: message.into() }
    }

    /// Whether the status is `True`, so that requests are passed to the service.
    pub fn is_true(&self) -> bool {
        self.status == "True"
    }
}
