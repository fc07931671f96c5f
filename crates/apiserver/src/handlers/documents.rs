//! Serves discovery, OpenAPI, version and index with their cache headers.

use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, EXPIRES, HOST, HeaderName, IF_NONE_MATCH, LOCATION, VARY};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use super::context::RequestContext;
use crate::documents::{Document, DocumentRequest};
use crate::request::routing::Route;
use crate::response::body::Body;
use crate::response::preferences::header;
use crate::response::view::status_response;

/// Responds to a request for a document.
pub(crate) fn answer(request: &RequestContext<'_>, route: &Route<'_>) -> Response<Body> {
    let headers = &request.parts.headers;
    let host = header(headers, &HOST);
    let of = DocumentRequest { accept: request.preferences.accept(), host, query: request.query };
    match request.shared.documents.document(&request.shared.backend.registry(), route, of) {
        Ok(document) => response(document, headers),
        Err(status) => status_response(request.preferences, &status),
    }
}

pub(crate) fn response(document: Document, headers: &HeaderMap) -> Response<Body> {
    if let Some(location) = document.location {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
        insert(response.headers_mut(), LOCATION, &location);
        return response;
    }
    let unchanged = document.etag.is_some() && header(headers, &IF_NONE_MATCH) == document.etag.as_deref();
    let mut response = Response::new(if unchanged { Body::empty() } else { Body::full(document.body) });
    if unchanged {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let out = response.headers_mut();
    insert(out, CONTENT_TYPE, document.content_type);
    if let Some(etag) = document.etag {
        insert(out, ETAG, &etag);
        out.insert(VARY, HeaderValue::from_static("Accept"));
    }
    if let Some(cache_control) = document.cache_control {
        insert(out, CACHE_CONTROL, cache_control);
    }
    if let Some(expires) = document.expires {
        insert(out, EXPIRES, &expires);
    }
    response
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}
