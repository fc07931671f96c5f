//! Responses of handlers: codes, headers and bodies.

use std::sync::Arc;

use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderName, VARY};
use http::{HeaderValue, Response, StatusCode};
use listwatch_meta::{Object, Status};
use listwatch_wire::list::{ListBody, ListMeta, ListStyle};

use crate::body::Body;
use crate::filters::warnings::WarningRecorder;
use crate::registry::Resource;
use crate::view::ObjectView;
use crate::write::{WriteBody, WriteResponse};

const NOSNIFF: HeaderName = HeaderName::from_static("x-content-type-options");

/// A 200 with this body.
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

/// The response of a write, in the view that was negotiated.
///
/// # Errors
/// 500 when it cannot be shown in that view.
pub(crate) fn written(
    written: WriteResponse,
    resource: &Arc<Resource>,
    view: &ObjectView,
    warnings: &WarningRecorder,
) -> Result<Response<Body>, Status> {
    let mut response = match written.body {
        WriteBody::Object(object) => view.object(written.code, resource, &object)?,
        WriteBody::Json(json) => view.json(written.code, json)?,
        WriteBody::Status(status) => view.json(written.code, status.to_json().into())?,
        WriteBody::List(meta, objects) => view.json(written.code, removed(resource, &meta, objects))?,
    };
    *response.status_mut() = StatusCode::from_u16(written.code).unwrap_or(StatusCode::OK);
    warnings.add(written.warnings);
    Ok(response)
}

/// A response of plain text.
pub(crate) fn text(code: StatusCode, body: String) -> Response<Body> {
    let mut response = Response::new(Body::full(body));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(NOSNIFF, HeaderValue::from_static("nosniff"));
    response
}

/// The list that a deletecollection answers.
fn removed(resource: &Resource, meta: &ListMeta, objects: Vec<Object>) -> bytes::Bytes {
    let style = if resource.custom { ListStyle::Unstructured } else { ListStyle::Typed };
    let mut body = Vec::new();
    let shown = objects.into_iter().map(|object| resource.shown(&object).into_owned());
    ListBody::new(meta, style, shown).for_each(|chunk| body.extend_from_slice(&chunk));
    // The newline that ends every body comes with the view.
    if body.last() == Some(&b'\n') {
        body.pop();
    }
    body.into()
}
