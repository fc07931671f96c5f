//! Creates responses with a content type: an encoded body, or plain text.

use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderName, VARY};
use http::{HeaderValue, Response, StatusCode};

use crate::response::body::Body;

const NOSNIFF: HeaderName = HeaderName::from_static("x-content-type-options");

/// Creates a 200 response with a body.
pub(crate) fn ok(content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let gzip = response.body().is_gzip();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    if gzip {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        headers.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    }
    response
}

/// Creates a response with plain text.
pub(crate) fn text(code: StatusCode, body: String) -> Response<Body> {
    let mut response = Response::new(Body::full(body));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(NOSNIFF, HeaderValue::from_static("nosniff"));
    response
}
