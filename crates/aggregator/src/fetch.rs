//! Sends one bounded request of the aggregator itself to an extension server.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use http_body_util::{BodyExt as _, Empty};
use listwatch_meta::UserInfo;
use listwatch_proxy::{Destination, Proxy, ProxyErrorKind, Redirects};

use crate::identity::identity_headers;

/// The parameters and limits of a request.
#[derive(Clone, Debug)]
pub(crate) struct Fetch<'a> {
    pub(crate) user: &'a UserInfo,
    pub(crate) accept: &'static str,
    /// The ETag of the stored document; empty without one.
    pub(crate) etag: &'a str,
    /// The time limit of the whole exchange.
    pub(crate) timeout: Duration,
    /// The largest body, in bytes.
    pub(crate) bytes_max: usize,
}

/// A complete response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fetched {
    pub(crate) code: u16,
    pub(crate) content_type: String,
    pub(crate) etag: String,
    pub(crate) body: Bytes,
}

/// The reason why a request has no usable response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FetchError {
    #[error("{0}")]
    Failed(String),
    #[error("request timed out")]
    TimedOut,
    #[error("the document has more than {bytes_max} bytes")]
    TooLarge { code: u16, bytes_max: usize },
}

/// Sends a GET and reads the response to its end.
pub(crate) async fn fetch(proxy: &Proxy, to: &Destination, fetch: &Fetch<'_>) -> Result<Fetched, FetchError> {
    match tokio::time::timeout(fetch.timeout, send(proxy, to, fetch)).await {
        Ok(fetched) => fetched,
        Err(_) => Err(FetchError::TimedOut),
    }
}

async fn send(proxy: &Proxy, to: &Destination, fetch: &Fetch<'_>) -> Result<Fetched, FetchError> {
    let failed = |error: &dyn std::fmt::Display| FetchError::Failed(error.to_string());
    let mut request = Request::new(Empty::<Bytes>::new());
    let headers = request.headers_mut();
    headers.insert(ACCEPT, HeaderValue::from_static(fetch.accept));
    if let (false, Ok(etag)) = (fetch.etag.is_empty(), HeaderValue::try_from(fetch.etag)) {
        headers.insert(IF_NONE_MATCH, etag);
    }
    let identity = identity_headers(fetch.user).map_err(|error| failed(&error))?;
    let header_timeout = Some(fetch.timeout);
    let to = Destination { headers: identity, header_timeout, redirects: Redirects::PassOn, ..to.clone() };
    let response = match proxy.handle(request, &to).await {
        Ok(response) => response,
        Err(error) if matches!(error.kind(), ProxyErrorKind::HeaderTimeout { .. }) => return Err(FetchError::TimedOut),
        // Upstream's client reports only the cause.
        Err(error) => return Err(failed(error.kind())),
    };
    let text = |headers: &HeaderMap, name: HeaderName| -> String {
        headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok()).unwrap_or_default().to_owned()
    };
    let (code, headers) = (response.status().as_u16(), response.headers());
    let (content_type, etag) = (text(headers, CONTENT_TYPE), text(headers, ETAG));
    let mut body = response.into_body();
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| failed(&error))?;
        let Some(data) = frame.data_ref() else { continue };
        if bytes.len() + data.len() > fetch.bytes_max {
            return Err(FetchError::TooLarge { code, bytes_max: fetch.bytes_max });
        }
        bytes.extend_from_slice(data);
    }
    Ok(Fetched { code, content_type, etag, body: bytes.freeze() })
}
