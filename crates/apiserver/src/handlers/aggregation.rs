//! Handles aggregated requests: requests for group versions of extension servers, and requests for merged documents.
//!
//! ```text
//!  filters ─▶ answer ─┬▶ /apis/<group>/<version>… of a service ─▶ listwatch-aggregator ─▶ extension server
//!                     ├▶ /, /apis, /apis/<group>, /openapi/…    ─▶ merged documents
//!                     └▶ everything else                        ─▶ local handlers
//! ```
//!
//! The filters have already authenticated and authorized the request. If no APIService refers to a service, every
//! request is local and this module costs one atomic load.

use std::pin::pin;

use http::{Method, Request as HttpRequest, Response};
use http_body_util::Full;
use hyper::upgrade::OnUpgrade;
use listwatch_aggregator::{RemoteRoute, RequestFacts};
use listwatch_meta::Status;
use tokio::time::Instant;

use super::context::RequestContext;
use super::documents;
use crate::filters::rejection::Rejection;
use crate::flow_control::Admission;
use crate::request::client_address::client_address;
use crate::request::forwarded_headers::forwarded_headers;
use crate::request::upload::{RequestBody, Upload};
use crate::response::body::Body;

/// Responds to a request for an extension server. Returns `None` for a local request.
pub(super) async fn answer<B: RequestBody>(
    request: &RequestContext<'_>,
    admission: &mut Admission<'_>,
    upload: &mut Upload<B>,
) -> Option<Result<Response<Body>, Rejection>> {
    let RequestContext { shared, parts, info, .. } = *request;
    let aggregation = &shared.aggregation;
    if info.problem.is_some() {
        // The request was authorized as one without a resource. An extension server may see a resource in its path.
        return None;
    }
    if let Some(route) = aggregation.aggregator().route(parts.uri.path()) {
        return Some(pass(request, admission, upload, &route).await);
    }
    if info.is_resource_request || !matches!(parts.method, Method::GET | Method::HEAD) {
        return None;
    }
    let segments = info.segments();
    let segments: Vec<&str> = segments.iter().map(|segment| &**segment).collect();
    if let ["openapi", "v3", path @ ..] = &segments[..]
        && !path.is_empty()
    {
        let owner = match aggregation.openapi_v3_owner(&path.join("/")).await {
            Ok(owner) => owner?,
            Err(status) => return Some(Err(Rejection::from(status))),
        };
        let route = aggregation.aggregator().route_of(&owner)?;
        return Some(pass(request, admission, upload, &route).await);
    }
    let document = aggregation.document(&segments, documents::document_request(request)).await?;
    Some(document.map(|document| documents::response(request, document)).map_err(Rejection::from))
}

/// Forwards a request to an extension server.
async fn pass<B: RequestBody>(
    request: &RequestContext<'_>,
    admission: &mut Admission<'_>,
    upload: &mut Upload<B>,
    route: &RemoteRoute,
) -> Result<Response<Body>, Rejection> {
    let RequestContext { shared, parts, info, user, deadline, audit_id, .. } = *request;
    let work = async {
        let received = if upload.is_ended() { None } else { Some(upload.collect(&shared.bodies).await?) };
        if info.is_mutating() {
            admission.take_write_slot(request.flow()).await?;
        }
        let body = received.as_ref().map(|received| received.bytes.clone()).unwrap_or_default();
        let mut outgoing = HttpRequest::new(Full::new(body));
        *outgoing.method_mut() = parts.method.clone();
        *outgoing.uri_mut() = parts.uri.clone();
        *outgoing.headers_mut() = forwarded_headers(
            &parts.headers,
            shared.access.front_proxy.as_deref(),
            shared.aggregation.request_header(),
        );
        if let Some(upgrade) = parts.extensions.get::<OnUpgrade>() {
            outgoing.extensions_mut().insert(upgrade.clone());
        }
        let facts = RequestFacts {
            timeout: (!info.long_running).then(|| deadline.at().saturating_duration_since(Instant::now())),
            client_address: client_address(parts),
            audit_id: Some(audit_id.clone()),
        };
        let response = shared.aggregation.aggregator().handle(route, outgoing, user, facts).await;
        // The aggregator's own limit ends at the same time, with another response.
        match !info.long_running && deadline.at() <= Instant::now() {
            true => Err(Rejection::from(Status::request_timed_out())),
            false => Ok(response.map(|body| Body::proxied(body, None))),
        }
    };
    match info.long_running {
        true => work.await,
        false => deadline.enforce(pin!(work)).await,
    }
}
