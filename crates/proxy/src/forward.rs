//! Forwards plain requests over pooled connections, and streams the responses.

use std::error::Error as StdError;
use std::sync::Arc;

use http::header::{CONTENT_TYPE, HOST, LOCATION};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use http_body::Body;
use hyper::body::Incoming;
use hyper_util::client::legacy;
use tokio::time::Instant;

use crate::body::{BodyFailure, BoxError, ProxyBody, RequestBody, request_body};
use crate::destination::{Destination, Redirects};
use crate::error::{ProxyError, ProxyErrorKind};
use crate::headers;

/// The text of a rejected redirect (`upgradeaware.go`).
const REDIRECT_REFUSED: &str = "the backend attempted to redirect this request, which is not permitted";

/// Sends a request and returns the response as soon as the header has arrived.
pub(crate) async fn forward<B>(request: Request<B>, to: &Destination) -> Result<Response<ProxyBody>, ProxyError>
where
    B: Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let (mut parts, body) = request.into_parts();
    prepare(&mut parts, to)?;
    let cut_at = to.total_timeout.map(|timeout| Instant::now() + timeout);
    let header_timeout = to.header_timeout.unwrap_or(to.transport.limits().header_timeout);
    let header_timeout = to.total_timeout.map_or(header_timeout, |total| total.min(header_timeout));
    let failure = BodyFailure::default();
    let sending = send(&parts, body, to, &failure);
    let response = match tokio::time::timeout(header_timeout, sending).await {
        Ok(sent) => sent.map_err(ProxyError::plain)?,
        Err(_) => return Err(ProxyError::plain(ProxyErrorKind::HeaderTimeout { after: header_timeout })),
    };
    Ok(answer(response, to, cut_at))
}

/// Rewrites the URI and the headers of a request for the backend.
fn prepare(parts: &mut Parts, to: &Destination) -> Result<(), ProxyError> {
    let scheme = if to.transport.is_tls() { "https" } else { "http" };
    let uri = format!("{scheme}://{}{}", to.authority(), to.path_and_query);
    parts.uri =
        uri.parse::<Uri>().map_err(|error| ProxyError::plain(ProxyErrorKind::InvalidLocation(error.to_string())))?;
    headers::prepare_request(&mut parts.headers);
    headers::append_forwarded_for(&mut parts.headers, to.client_address);
    headers::set_forwarded(&mut parts.headers, &to.external, to.path());
    headers::replace(&mut parts.headers, &to.headers);
    // The HTTP library sets an absent `Host` from the URI.
    match &to.host_header {
        Some(host) => parts.headers.insert(HOST, host.clone()),
        None => parts.headers.remove(HOST),
    };
    parts.version = Version::HTTP_11;
    Ok(())
}

/// Sends a request, and repeats it once if a retry is safe.
async fn send<B>(
    parts: &Parts,
    body: B,
    to: &Destination,
    failure: &BodyFailure,
) -> Result<Response<Incoming>, ProxyErrorKind>
where
    B: Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let is_repeatable = body.is_end_stream() && matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS);
    let request = |body: RequestBody| {
        let mut request = Request::new(body);
        *request.method_mut() = parts.method.clone();
        *request.uri_mut() = parts.uri.clone();
        *request.headers_mut() = parts.headers.clone();
        request
    };
    let client = to.transport.client();
    let first = client.request(request(request_body(body, Arc::clone(failure)))).await;
    let error = match first {
        Ok(response) => return Ok(response),
        Err(error) => error,
    };
    // The backend may have closed the idle connection at the same moment (Go's `shouldRetryRequest`).
    if is_repeatable && is_closed_early(&error) {
        let empty = request_body(http_body_util::Empty::new(), Arc::clone(failure));
        return client.request(request(empty)).await.map_err(|error| kind(&error, failure));
    }
    Err(kind(&error, failure))
}

/// Whether a connection ended before the first byte of a response.
fn is_closed_early(error: &legacy::Error) -> bool {
    find::<hyper::Error>(error).is_some_and(|error| error.is_incomplete_message() || error.is_canceled())
}

/// The first error of a type in a chain of causes.
fn find<'a, T: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    let mut error = Some(error);
    while let Some(found) = error {
        if let Some(wanted) = found.downcast_ref::<T>() {
            return Some(wanted);
        }
        error = found.source();
    }
    None
}

/// Classifies an error of the HTTP library.
fn kind(error: &legacy::Error, failure: &BodyFailure) -> ProxyErrorKind {
    if let Some(kind) = find::<ProxyErrorKind>(error) {
        return kind.clone();
    }
    if let Some(text) = failure.lock().take() {
        return ProxyErrorKind::RequestBody(text);
    }
    ProxyErrorKind::Response(match find::<hyper::Error>(error) {
        Some(error) => response_text(error),
        None => error.to_string(),
    })
}

/// Returns Go's text for an unreadable response.
pub(crate) fn response_text(error: &hyper::Error) -> String {
    if error.is_incomplete_message() || error.is_canceled() || error.is_closed() {
        return "EOF".to_owned();
    }
    let cause = error.source().map_or_else(String::new, |cause| format!(": {cause}"));
    if error.is_parse() || error.is_parse_too_large() {
        return format!("net/http: HTTP/1.x transport connection broken: {error}{cause}");
    }
    format!("{error}{cause}")
}

/// Rewrites the headers of a response for the client.
fn answer(response: Response<Incoming>, to: &Destination, cut_at: Option<Instant>) -> Response<ProxyBody> {
    let (parts, body) = response.into_parts();
    let mut headers = parts.headers;
    headers::prepare_response(&mut headers);
    let location = headers.get(LOCATION).filter(|location| !location.is_empty());
    let location = location.map(|location| String::from_utf8_lossy(location.as_bytes()).into_owned());
    if let Some(location) = location {
        if to.redirects == Redirects::Reject && parts.status.is_redirection() {
            return redirect_refused();
        }
        let moved = headers::rewrite_location(&location, &to.external, &to.authority());
        if let Ok(moved) = HeaderValue::try_from(moved) {
            headers.insert(LOCATION, moved);
        }
    }
    respond(parts.status, headers, ProxyBody::backend(body, cut_at))
}

/// Creates a response without the extensions of the HTTP library.
pub(crate) fn respond(status: StatusCode, headers: HeaderMap, body: ProxyBody) -> Response<ProxyBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

fn redirect_refused() -> Response<ProxyBody> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    respond(StatusCode::BAD_GATEWAY, headers, ProxyBody::from(bytes::Bytes::from_static(REDIRECT_REFUSED.as_bytes())))
}
