//! Aggregation: requests for group versions that extension servers serve, and the documents that describe all servers.
//!
//! ```text
//!  filters ─▶ handle ─┬▶ /apis/<group>/<version>… of a service ─▶ listwatch-aggregator ─▶ extension server
//!                     ├▶ /apis, /apis/<group>, /openapi/…       ─▶ merged documents
//!                     └▶ everything else                        ─▶ local handlers
//! ```
//!
//! Rules: `kube-aggregator/pkg/apiserver`. The request was authenticated and authorized by the ordinary filters. While no
//! APIService names a service, every request is local and this module costs one atomic load.

mod documents;
mod objects;

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use http::header::HOST;
use http::{Method, Request as HttpRequest, Response};
use http_body_util::Full;
use hyper::upgrade::OnUpgrade;
use listwatch_aggregator::{Aggregator, AggregatorOptions, RemoteRoute, RequestFacts, api_group};
use listwatch_controllers::bootstrap::RequestHeader;
use listwatch_meta::Status;
use listwatch_proxy::{Limits, Proxy};
use listwatch_write::Writer;
use tokio::time::Instant;

use self::documents::MergedDocuments;
use self::objects::StoredObjects;
use crate::documents::{Document, DocumentRequest};
use crate::filters::flow_control::Admission;
use crate::filters::rejection::Rejection;
use crate::handlers::context::RequestContext;
use crate::handlers::documents::response as document_response;
use crate::request::client_address::client_address;
use crate::request::forwarded_headers::forwarded_headers;
use crate::request::upload::{RequestBody, Upload};
use crate::response::body::Body;
use crate::response::preferences::header;
use crate::shared::Shared;

/// The aggregation of one server.
pub(crate) struct Aggregation {
    aggregator: Arc<Aggregator>,
    objects: Arc<StoredObjects>,
    documents: MergedDocuments,
    /// The headers in which extension servers expect a user.
    request_header: Option<RequestHeader>,
}

impl Aggregation {
    pub(crate) fn new(writer: &Arc<Writer>, options: AggregatorOptions, request_header: Option<RequestHeader>) -> Self {
        let objects = Arc::new(StoredObjects::new(Arc::clone(writer)));
        let reader: Arc<dyn listwatch_aggregator::ServiceObjects> = Arc::<StoredObjects>::clone(&objects);
        let aggregator = Arc::new(Aggregator::new(Proxy::new(Limits::default()), reader, options));
        Aggregation { aggregator, objects, documents: MergedDocuments::default(), request_header }
    }

    /// Whether some group version is served by an extension server.
    pub(crate) fn has_remote(&self) -> bool {
        self.aggregator.has_remote()
    }

    /// The headers in which extension servers expect a user.
    pub(crate) fn request_header(&self) -> Option<&RequestHeader> {
        self.request_header.as_ref()
    }

    fn aggregator(&self) -> &Aggregator {
        &self.aggregator
    }

    /// The loop that follows APIServices and extension servers.
    pub(crate) fn run(&self) -> impl Future<Output = ()> + Send + 'static {
        let objects: Arc<dyn listwatch_aggregator::ApiServiceObjects> = Arc::<StoredObjects>::clone(&self.objects);
        Arc::clone(&self.aggregator).run(objects)
    }

    /// The merged document of a path; `None` for a path whose local document is right.
    async fn document(
        &self,
        shared: &Arc<Shared>,
        segments: &[&str],
        request: DocumentRequest<'_>,
    ) -> Option<Result<Document, Status>> {
        match segments {
            ["apis"] => Some(self.documents.of(shared).await.and_then(|merged| merged.groups(request.accept))),
            ["apis", group] => {
                let services = self.aggregator.services();
                let is_remote = services.iter().any(|service| service.group == *group && service.is_remote());
                let document = is_remote.then(|| api_group(&services, group)).flatten()?;
                Some(Ok(Document::json(Bytes::from(document.to_string()))))
            }
            ["openapi", "v2"] => {
                let (content_type, spec) = shared.documents.openapi(&shared.backend.registry()).v2(request.accept)?;
                // The binary form describes local group versions only.
                let is_json = content_type == crate::documents::openapi::JSON;
                match (is_json, self.documents.of(shared).await) {
                    (false, _) => None,
                    (true, Ok(merged)) => Some(Ok(merged.openapi_v2(spec).await)),
                    (true, Err(status)) => Some(Err(status)),
                }
            }
            ["openapi", "v3"] => Some(self.documents.of(shared).await.map(|merged| merged.openapi_v3())),
            _ => None,
        }
    }
}

/// Answers a request that concerns an extension server; `None` for a local one.
pub(crate) async fn handle<B: RequestBody>(
    request: &RequestContext<'_>,
    admission: &mut Admission<'_>,
    upload: &mut Upload<B>,
) -> Option<Result<Response<Body>, Rejection>> {
    let RequestContext { shared, parts, info, query, preferences, .. } = *request;
    let aggregation = &shared.aggregation;
    if info.problem.is_some() {
        // The request was authorized as one without a resource. An extension server may see a resource in its path.
        return None;
    }
    if let Some(route) = aggregation.aggregator.route(parts.uri.path()) {
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
        let merged = match aggregation.documents.of(shared).await {
            Ok(merged) => merged,
            Err(status) => return Some(Err(Rejection::from(status))),
        };
        let route = aggregation.aggregator.route_of(merged.owner(&path.join("/"))?)?;
        return Some(pass(request, admission, upload, &route).await);
    }
    let wanted = DocumentRequest { accept: preferences.accept(), host: header(&parts.headers, &HOST), query };
    let document = aggregation.document(shared, &segments, wanted).await?;
    Some(document.map(|document| document_response(document, &parts.headers)).map_err(Rejection::from))
}

/// Passes a request on.
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
        let response = shared.aggregation.aggregator.handle(route, outgoing, user, facts).await;
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
