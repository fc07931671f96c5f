//! Serves discovery, OpenAPI, version and index with their cache headers.

use http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, EXPIRES, HOST, HeaderName, IF_NONE_MATCH, LOCATION, VARY,
};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use super::context::RequestContext;
use crate::documents::{Document, DocumentRequest};
use crate::request::routing::Route;
use crate::response::body::Body;
use crate::response::preferences::header;
use crate::response::view::status_response;

/// Responds to a request for a document.
pub(crate) async fn answer(request: &RequestContext<'_>, route: &Route<'_>) -> Response<Body> {
    let registry = request.shared.backend.registry();
    match request.shared.documents.document(&registry, route, document_request(request)).await {
        Ok(document) => response(request, document),
        Err(status) => status_response(request.preferences, &status),
    }
}

/// Returns the parts of a request that select the form of a document.
pub(super) fn document_request<'a>(request: &RequestContext<'a>) -> DocumentRequest<'a> {
    let headers = &request.parts.headers;
    DocumentRequest {
        preferences: request.preferences,
        host: header(headers, &HOST),
        if_none_match: header(headers, &IF_NONE_MATCH),
        query: request.query,
        forms: Some(&request.shared.documents.forms),
        zpages: request.shared.zpages,
    }
}

/// Responds with a document, or with 406, 301 or 304.
pub(super) fn response(request: &RequestContext<'_>, document: Document) -> Response<Body> {
    if document.is_not_acceptable {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NOT_ACCEPTABLE;
        insert(response.headers_mut(), VARY, "Accept");
        return response;
    }
    if let Some(location) = document.location {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
        insert(response.headers_mut(), LOCATION, &location);
        return response;
    }
    let blocks = request.preferences.compressed_blocks().filter(|_| document.compressible);
    let body = if document.is_not_modified { Body::empty() } else { Body::compressed(document.body, blocks) };
    let is_gzip = body.is_gzip();
    let mut response = Response::new(body);
    let out = response.headers_mut();
    if document.etag.is_some() {
        out.insert(VARY, HeaderValue::from_static("Accept"));
    }
    if is_gzip {
        out.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    if document.compressible {
        // A 304 has the `Vary` header of the 200 (RFC 9110, section 15.4.5).
        out.append(VARY, HeaderValue::from_static("Accept-Encoding"));
    }
    for (name, value) in [
        // A 304 has no content type, because caches would replace the type of the document that they have.
        (CONTENT_TYPE, Some(document.content_type).filter(|_| !document.is_not_modified)),
        (ETAG, document.etag.as_deref()),
        (CACHE_CONTROL, document.cache_control),
        (EXPIRES, document.expires.as_deref()),
    ] {
        if let Some(value) = value {
            insert(out, name, value);
        }
    }
    if document.is_not_modified {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    response
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}
