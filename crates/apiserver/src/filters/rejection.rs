//! [`Rejection`]: the error of a filter or handler, which becomes the response.

use http::request::Parts;
use http::{Response, StatusCode};
use listwatch_meta::Status;
use listwatch_meta::go::quote;

use super::flow_control;
use crate::flow_control::TooManyRequests;
use crate::response::body::Body;
use crate::response::preferences::ResponsePreferences;
use crate::response::respond;
use crate::response::view::status_response;

/// The error of a filter or handler.
#[derive(Debug)]
pub(crate) enum Rejection {
    /// The response is a Status object.
    Status(Box<Status>),
    /// Too many requests are in flight: a 429 in plain text, as in kube-apiserver.
    TooManyRequests(TooManyRequests),
    /// The server cannot decide about the request: a 500 in plain text, as in kube-apiserver.
    InternalError(String),
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
    /// Creates a 500 with the path of the request and a reason (`responsewriters.InternalError`).
    pub(crate) fn internal_error(parts: &Parts, why: &str) -> Self {
        let uri = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        Rejection::InternalError(format!("Internal Server Error: {}: {why}", quote(uri)))
    }

    /// Converts the error to a response.
    pub(crate) fn response(self, preferences: &ResponsePreferences) -> Response<Body> {
        match self {
            Rejection::Status(status) => status_response(preferences, &status),
            Rejection::TooManyRequests(rejected) => flow_control::response(rejected),
            Rejection::InternalError(text) => respond::text(StatusCode::INTERNAL_SERVER_ERROR, format!("{text}\n")),
        }
    }
}
