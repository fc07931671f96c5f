//! [`Rejection`]: the failure of a request before its handler has a response.

use http::Response;
use listwatch_meta::Status;

use super::flow_control::TooManyRequests;
use crate::response::body::Body;
use crate::response::preferences::ResponsePreferences;
use crate::response::view::status_response;

/// The failure of a filter or handler.
#[derive(Debug)]
pub(crate) enum Rejection {
    /// The failure is a Status object.
    Status(Box<Status>),
    /// Too many requests are in flight: a 429 in plain text, as in kube-apiserver.
    TooManyRequests(TooManyRequests),
}

impl From<Status> for Rejection {
    fn from(status: Status) -> Self {
        Rejection::Status(Box::new(status))
    }
}

impl From<TooManyRequests> for Rejection {
    fn from(rejected: TooManyRequests) -> Self {
        Rejection::TooManyRequests(rejected)
    }
}

impl Rejection {
    /// Converts the failure to a response.
    pub(crate) fn response(self, preferences: &ResponsePreferences) -> Response<Body> {
        match self {
            Rejection::Status(status) => status_response(preferences, &status),
            Rejection::TooManyRequests(rejected) => rejected.response(),
        }
    }
}
