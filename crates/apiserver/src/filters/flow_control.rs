//! The responses of [flow control](crate::flow_control): the 429, and the slot that a response holds until it is sent.

use http::header::RETRY_AFTER;
use http::{HeaderValue, Response, StatusCode};
use tokio::time::Instant;

use crate::flow_control::{Admission, TooManyRequests};
use crate::response::body::{Body, Hold};
use crate::response::respond;

/// Returns the 429 without a Status, as in kube-apiserver.
pub(crate) fn response(rejected: TooManyRequests) -> Response<Body> {
    let text = "Too many requests, please try again later.\n".to_owned();
    let mut response = respond::text(StatusCode::TOO_MANY_REQUESTS, text);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(rejected.retry_after_seconds));
    response
}

/// Moves the slot and the memory permit of a request to the response. The response holds them until it is sent.
pub(crate) fn hold_until_sent(admission: Admission<'_>, response: &mut Response<Body>, deadline: Instant) {
    let bytes = usize::try_from(http_body::Body::size_hint(response.body()).lower()).unwrap_or(usize::MAX);
    if let Some((slot, memory)) = admission.into_slot(bytes) {
        response.body_mut().hold(Hold::new(slot, deadline, memory));
    }
}
