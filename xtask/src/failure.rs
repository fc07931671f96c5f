//! [`Failure`]: the error of a command, as a text for the terminal.

use std::fmt;

/// The result of a fallible step.
pub(crate) type Outcome<T> = Result<T, Failure>;

/// An error text with the problem and, if known, its remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure(String);

impl Failure {
    /// Prepends the operation that failed.
    pub(crate) fn while_doing(self, what: impl fmt::Display) -> Self {
        Self(format!("{what}: {}", self.0))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for Failure {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self(format!("unexpected JSON: {error}"))
    }
}

/// Returns early with a [`Failure`] made from a format string.
macro_rules! fail {
    ($($text:tt)*) => { return Err($crate::failure::Failure::from(format!($($text)*))) };
}

/// Returns early with a [`Failure`] made from a format string, unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)*) => { if !$condition { $crate::failure::fail!($($text)*) } };
}

pub(crate) use {ensure, fail};
