//! Handles writes and reviews: reads the body, runs the write pipeline, and responds.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::{Response, StatusCode};
use listwatch_meta::{Object, Status};

use super::context::RequestContext;
use crate::audit::{admission_recorder, request_payload};
use crate::filters::rejection::Rejection;
use crate::filters::warnings::WarningRecorder;
use crate::flow_control::Admission;
use crate::request::routing::ResourceRoute;
use crate::request::upload::{RequestBody, Upload};
use crate::response::body::Body;
use crate::response::preferences::header;
use crate::response::view::ObjectView;
use crate::shared::Shared;
use listwatch_registry::{Resource, Subresource};
use listwatch_write::{self as write, WriteBody, WriteContext, WriteRequest, WriteResponse, WriteVerb};

/// Responds to a write or a review. A review is a create of a kind that is not stored; authenticators and authorizers
/// evaluate the review.
///
/// # Errors
/// The errors of the body (400, 408, 413, 429), of flow control (429) and of the write.
pub(crate) async fn answer<B: RequestBody>(
    request: &RequestContext<'_>,
    verb: WriteVerb,
    route: &ResourceRoute<'_>,
    warnings: &WarningRecorder,
    admission: &mut Admission<'_>,
    upload: &mut Upload<B>,
) -> Result<Response<Body>, Rejection> {
    let shared = request.shared;
    let received = upload.collect(&shared.bodies).await?;
    audit_body(request, verb, &received.bytes);
    admission.take_write_slot(request.flow()).await?;
    admission.wait_for_memory(received.bytes.len(), parsed_bytes_max(request, &received.bytes)).await;
    let write = write_request(request, verb, route, received.bytes.clone());
    let deadline = request.deadline.at().into_std();
    let recorder = admission_recorder(request.preferences.audited());
    let context = Arc::new(WriteContext { deadline: Some(deadline), recorder });
    let (view, written) = if route.resource.is_stored() {
        let view = match is_scale(route) {
            true => ObjectView::negotiate_scale(request.preferences, &route.resource)?,
            false => ObjectView::negotiate(request.preferences, &route.resource)?,
        };
        (view, shared.compute.write(&shared.writer, write, &context, request.requester, deadline).await)
    } else {
        let view = ObjectView::plain(request.preferences)?;
        let within = (request.requester, deadline);
        (view, shared.compute.review(&shared.writer, &shared.access, write, &context, within).await)
    };
    if let Some(audited) = request.preferences.audited() {
        audited.annotate_admission(&context.recorder);
    }
    let recorded = context.recorder.take_warnings();
    let written = match written {
        Ok(mut written) => {
            written.warnings.extend(recorded);
            written
        }
        Err(status) => {
            // Plugins also warn about writes that are rejected.
            warnings.add(recorded);
            return Err(status.into());
        }
    };
    Ok(response(request, written, route, &view, warnings)?)
}

/// Whether the request writes a Scale, which is another kind than the resource.
fn is_scale(route: &ResourceRoute<'_>) -> bool {
    let subresource = route.subresource.and_then(|name| route.resource.subresource(name));
    matches!(subresource, Some(Subresource::Scale { .. }))
}

/// Records the object, the patch or the options of a request, as the client sent them.
fn audit_body(request: &RequestContext<'_>, verb: WriteVerb, body: &Bytes) {
    let Some(audited) = request.preferences.audited().filter(|_| !body.is_empty()) else { return };
    let is_object = matches!(verb, WriteVerb::Create | WriteVerb::Update);
    let content_type = header(&request.parts.headers, &CONTENT_TYPE);
    audited.set_request_object(request_payload(content_type, body.clone()), is_object);
}

/// Creates the [`WriteRequest`] of a request whose body has arrived.
fn write_request<'r>(
    request: &'r RequestContext<'_>,
    verb: WriteVerb,
    route: &'r ResourceRoute<'_>,
    body: Bytes,
) -> WriteRequest<'r> {
    let headers = &request.parts.headers;
    WriteRequest {
        verb,
        resource: &route.resource,
        namespace: route.namespace,
        name: route.name,
        subresource: route.subresource,
        query: request.query,
        content_type: header(headers, &CONTENT_TYPE),
        user: request.user,
        user_agent: header(headers, &USER_AGENT),
        body,
    }
}

/// Returns the maximum memory of a parsed body, in bytes.
fn parsed_bytes_max(request: &RequestContext<'_>, body: &Bytes) -> usize {
    let content_type = header(&request.parts.headers, &CONTENT_TYPE).filter(|_| request.shared.cbor);
    write::cbor::parsed_bytes_max(content_type, body.len())
}

/// Returns the response of a write, in the negotiated form.
///
/// # Errors
/// 500 if the object cannot be encoded.
fn response(
    request: &RequestContext<'_>,
    written: WriteResponse,
    route: &ResourceRoute<'_>,
    view: &ObjectView,
    warnings: &WarningRecorder,
) -> Result<Response<Body>, Status> {
    let resource = &route.resource;
    let mut response = match written.body {
        WriteBody::Object(object) if view.is_message() => {
            let object = cached_state(request.shared, resource, object);
            view.stored_object(written.code, resource, &object, &request.shared.caches.encodings)?
        }
        WriteBody::Object(object) => view.object(written.code, resource, &object)?,
        WriteBody::DryRun(json) => view.bytes(written.code, resource, json)?,
        WriteBody::Json(json) if is_scale(route) => view.scale(written.code, resource, json)?,
        WriteBody::Json(json) => view.json(written.code, json)?,
        WriteBody::Status(status) => {
            if let Some(audited) = request.preferences.audited() {
                audited.set_status(&status);
            }
            view.json(written.code, status.to_json().into())?
        }
        WriteBody::List(meta, objects) => view.list(written.code, resource, &meta, &objects)?,
    };
    *response.status_mut() = StatusCode::from_u16(written.code).unwrap_or(StatusCode::OK);
    warnings.add(written.warnings);
    Ok(response)
}

/// Returns the cached object if its revision equals that of the written object. The response and the event of the write
/// then share one encoding. The event often arrives before the response is encoded.
fn cached_state(shared: &Shared, resource: &Resource, written: Object) -> Object {
    let cached = shared.backend.running_cacher(resource).and_then(|cacher| cacher.peek(written.key()));
    let is_same =
        |cached: &Object| cached.revision() == written.revision() && cached.json_slice() == written.json_slice();
    cached.filter(is_same).unwrap_or(written)
}
