//! The end of the request chain: [`handle`] finds the route of a request and calls its handler.
//!
//! | route | handler |
//! |---|---|
//! | a stored kind | [`crate::read`], [`crate::write`], [`crate::connect`], [`crate::websocket`] |
//! | a kind that is answered and not stored | reviews in [`crate::write`], [`crate::components`] |
//! | discovery, OpenAPI, version, index | [`crate::documents`] |
//! | health | [`crate::health`] |
//! | metrics | [`crate::metrics`] |

use std::pin::pin;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use http::header::{
    CACHE_CONTROL, CONTENT_TYPE, ETAG, EXPIRES, HOST, HeaderName, IF_NONE_MATCH, LOCATION, USER_AGENT, VARY,
};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use hyper::upgrade::OnUpgrade;
use listwatch_meta::{Status, UserInfo};
use listwatch_wire::query::Query;
use tokio::time::Instant;

use crate::Shared;
use crate::body::Body;
use crate::components;
use crate::connect;
use crate::documents::{self, Document, DocumentRequest};
use crate::filters::Rejection;
use crate::filters::flow_control::{Admission, TooManyRequests};
use crate::filters::request_deadline::RequestDeadline;
use crate::filters::warnings::WarningRecorder;
use crate::health;
use crate::metrics::{self, Labels};
use crate::preferences::{ResponsePreferences, header};
use crate::read;
use crate::registry::Registry;
use crate::request_info::RequestInfo;
use crate::respond;
use crate::routing::{NoRoute, ResourceRoute, Route, Verb, route};
use crate::upload::Upload;
use crate::view::ObjectView;
use crate::websocket;
use crate::write::{self, WriteRequest};

/// A request that the filters let through.
pub(crate) struct Request<'a> {
    pub(crate) shared: &'a Arc<Shared>,
    pub(crate) parts: &'a Parts,
    pub(crate) info: &'a RequestInfo<'a>,
    pub(crate) query: &'a Query<'a>,
    pub(crate) preferences: &'a ResponsePreferences,
    /// The user on whose behalf the request acts.
    pub(crate) user: &'a UserInfo,
    /// The name of the user who sent the request, who may impersonate `user`.
    pub(crate) requester: &'a str,
    pub(crate) deadline: RequestDeadline,
}

/// Answers a request.
pub(crate) async fn handle<B>(
    request: &Request<'_>,
    warnings: &WarningRecorder,
    admission: &mut Admission<'_>,
    upload: &mut Upload<B>,
) -> Response<Body>
where
    B: http_body::Body + Send + 'static,
    B::Data: Buf + Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    match request.route().await {
        Ok(Route::Unstored(route)) => {
            let (began, labels) = (Instant::now(), request.labels(&route));
            let answered = match route.verb {
                Verb::Write(_) => Box::pin(request.review(&route, warnings, admission, upload)).await,
                _ => components::answer(request.shared, &route, request.query, request.preferences)
                    .await
                    .map_err(Rejection::from),
            };
            let response = answered.unwrap_or_else(|rejection| rejection.response(request.preferences));
            warnings.add(route.resource.deprecation.clone());
            request.count(&labels, &response, began);
            response
        }
        Ok(Route::Resource(route)) => {
            let (began, labels) = (Instant::now(), request.labels(&route));
            let answered = if route.is_watch() {
                request.watch(&route).await
            } else {
                request.read_or_write(&route, warnings, admission, upload).await
            };
            let response = answered.unwrap_or_else(|rejection| rejection.response(request.preferences));
            warnings.add(route.resource.deprecation.clone());
            request.count(&labels, &response, began);
            response
        }
        Ok(Route::Health { endpoint, check }) => request.health(endpoint, check.as_deref()).await,
        Ok(Route::Metrics) => {
            let mut response = respond::text(StatusCode::OK, request.shared.metrics_text().await);
            insert(response.headers_mut(), CONTENT_TYPE, metrics::CONTENT_TYPE);
            response
        }
        Ok(route) => request.document(&route),
        Err(NoRoute::Status(status)) => request.preferences.status(&status),
        Err(NoRoute::PageNotFound) => respond::text(StatusCode::NOT_FOUND, "404 page not found\n".to_owned()),
        Err(NoRoute::Unparsable(why)) => respond::text(StatusCode::INTERNAL_SERVER_ERROR, format!("{why}\n")),
    }
}

impl<'a> Request<'a> {
    /// The route, by what is served now. If another server stored the definition of the custom resource a
    /// moment ago, this one waits for it.
    async fn route(&self) -> Result<Route<'a>, NoRoute> {
        let backend = &self.shared.backend;
        let by = |registry: &Registry| route(registry, &self.parts.method, self.info);
        let routed = by(&backend.registry());
        let is_unknown = match &routed {
            Err(NoRoute::PageNotFound) => true,
            Err(NoRoute::Status(status)) => status.code == 404,
            _ => false,
        };
        if is_unknown
            && let Some((group, plural)) = custom_resource(self.info)
            && backend.definitions().catch_up(backend, group, plural).await
        {
            return by(&backend.registry());
        }
        routed
    }

    fn labels(&self, route: &ResourceRoute<'_>) -> Labels {
        let content_type = header(&self.parts.headers, &CONTENT_TYPE);
        let apply = content_type.is_some_and(|sent| sent.starts_with("application/apply-patch"));
        Labels::new(route, apply, self.query.get("dryRun") == Some("All"))
    }

    /// Counts a request that is answered, up to the headers.
    fn count(&self, labels: &Labels, response: &Response<Body>, began: Instant) {
        let registry = self.shared.backend.registry();
        self.shared.metrics.answered(labels, response.status().as_u16(), began.elapsed(), &registry);
    }

    async fn watch(&self, route: &ResourceRoute<'_>) -> Result<Response<Body>, Rejection> {
        if websocket::is_upgrade_request(self.parts) {
            return Box::pin(self.watch_over_websocket(route)).await;
        }
        read::check_namespace(route)?;
        self.check_not_stopping()?;
        // A watch has a deadline of its own, far behind that of a request.
        Ok(read::watch(self.shared, route, self.query, self.preferences).await?)
    }

    /// A watch whose connection becomes a WebSocket.
    async fn watch_over_websocket(&self, route: &ResourceRoute<'_>) -> Result<Response<Body>, Rejection> {
        self.check_not_stopping()?;
        let slot = Arc::clone(&self.shared.websockets).try_acquire_owned().map_err(|_| TooManyRequests)?;
        let stream = read::watch_stream(self.shared, route, self.query, self.preferences).await?;
        let response = match websocket::accept(&self.parts.headers) {
            Ok(response) => response,
            Err(refusal) => return Ok(refusal),
        };
        let Some(upgrade) = self.parts.extensions.get::<OnUpgrade>().cloned() else {
            return Err(Status::bad_request("this connection cannot become a WebSocket").into());
        };
        let encoding = stream.encoding();
        tokio::spawn(websocket::run(upgrade, stream, encoding, slot));
        Ok(response)
    }

    fn check_not_stopping(&self) -> Result<(), Status> {
        match self.shared.is_stopping() {
            true => Err(Status::unavailable("apiserver is shutting down").retry_after(1)),
            false => Ok(()),
        }
    }

    async fn read_or_write<B>(
        &self,
        route: &ResourceRoute<'_>,
        warnings: &WarningRecorder,
        admission: &mut Admission<'_>,
        upload: &mut Upload<B>,
    ) -> Result<Response<Body>, Rejection>
    where
        B: http_body::Body + Send + 'static,
        B::Data: Buf + Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        read::check_namespace(route)?;
        let Request { shared, query, preferences, .. } = *self;
        let work = async {
            match route.verb {
                Verb::Get => Ok(read::get(shared, route, query, preferences).await?),
                Verb::Collection => Ok(read::list(shared, route, query, preferences).await?),
                Verb::Connect => Ok(connect::answer(shared, route, query).await?),
                // Boxed, so that a read does not move the future of a write.
                Verb::Write(verb) => Box::pin(self.write(verb, route, warnings, admission, upload)).await,
            }
        };
        self.deadline.enforce(pin!(work)).await
    }

    async fn write<B>(
        &self,
        verb: write::WriteVerb,
        route: &ResourceRoute<'_>,
        warnings: &WarningRecorder,
        admission: &mut Admission<'_>,
        upload: &mut Upload<B>,
    ) -> Result<Response<Body>, Rejection>
    where
        B: http_body::Body + Send + 'static,
        B::Data: Buf + Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let received = upload.collect(&self.shared.bodies).await?;
        admission.take_write_seat()?;
        admission.wait_for_memory(received.bytes.len(), self.parsed_bytes_max(&received.bytes)).await;
        let request = self.write_request(verb, route, received.bytes.clone());
        let view = ObjectView::negotiate(self.preferences, &route.resource)?;
        let deadline = self.deadline.at().into_std();
        let Shared { compute, backend, .. } = &**self.shared;
        let written = compute.write(backend, request, self.requester, deadline).await?;
        Ok(respond::written(written, &route.resource, &view, warnings)?)
    }

    /// Answers a review.
    async fn review<B>(
        &self,
        route: &ResourceRoute<'_>,
        warnings: &WarningRecorder,
        admission: &mut Admission<'_>,
        upload: &mut Upload<B>,
    ) -> Result<Response<Body>, Rejection>
    where
        B: http_body::Body + Send + 'static,
        B::Data: Buf + Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let work = async {
            let received = upload.collect(&self.shared.bodies).await?;
            admission.take_write_seat()?;
            admission.wait_for_memory(received.bytes.len(), self.parsed_bytes_max(&received.bytes)).await;
            let request = self.write_request(write::WriteVerb::Create, route, received.bytes.clone());
            let view = ObjectView::plain(self.preferences)?;
            let deadline = self.deadline.at().into_std();
            let answer = self.shared.compute.review(self.shared, request, self.requester, deadline).await?;
            Ok(respond::written(answer, &route.resource, &view, warnings)?)
        };
        self.deadline.enforce(pin!(work)).await
    }

    /// A write whose body has arrived.
    fn write_request<'r>(
        &'r self,
        verb: write::WriteVerb,
        route: &'r ResourceRoute<'_>,
        body: Bytes,
    ) -> WriteRequest<'r> {
        let headers = &self.parts.headers;
        WriteRequest {
            verb,
            resource: &route.resource,
            namespace: route.namespace,
            name: route.name,
            subresource: route.subresource,
            query: self.query,
            content_type: header(headers, &CONTENT_TYPE),
            user: self.user,
            user_agent: header(headers, &USER_AGENT),
            body,
        }
    }

    /// The memory that a body takes at most when it is parsed.
    fn parsed_bytes_max(&self, body: &Bytes) -> usize {
        let content_type = header(&self.parts.headers, &CONTENT_TYPE).filter(|_| self.shared.cbor);
        write::cbor::parsed_bytes_max(content_type, body.len())
    }

    async fn health(&self, endpoint: &str, check: Option<&str>) -> Response<Body> {
        let findings = self.shared.findings(endpoint).await;
        let excluded = self.query.all("exclude").map(str::to_owned).collect::<Vec<_>>();
        let verbose = self.query.get("verbose").is_some();
        let (code, body) = health::report(endpoint, &findings, check, verbose, &excluded);
        respond::text(StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), body)
    }

    /// Discovery, OpenAPI, version: documents made from the registry.
    fn document(&self, route: &Route<'_>) -> Response<Body> {
        let headers = &self.parts.headers;
        let host = header(headers, &HOST);
        let request = DocumentRequest { accept: self.preferences.accept(), host, query: self.query };
        match documents::document(&self.shared.backend.registry(), route, request) {
            Ok(document) => document_response(document, headers),
            Err(status) => self.preferences.status(&status),
        }
    }
}

/// The group and plural of the custom resource that a request may be for. The groups of definitions
/// have a dot.
fn custom_resource<'a>(info: &'a RequestInfo<'_>) -> Option<(&'a str, &'a str)> {
    let (group, plural) = (&*info.api_group, &*info.resource);
    (group.contains('.') && !matches!(plural, "" | "namespaces")).then_some((group, plural))
}

fn document_response(document: Document, headers: &HeaderMap) -> Response<Body> {
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

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    #[test]
    fn custom_resource_path_yields_group_and_plural() {
        for (path, expected) in [
            ("/apis/example.com/v1/widgets", Some(("example.com", "widgets"))),
            ("/apis/example.com/v1/watch/widgets", Some(("example.com", "widgets"))),
            ("/apis/example.com/v1/namespaces/n/widgets/w/status", Some(("example.com", "widgets"))),
            ("/apis/example.com/v1/namespaces/n", None),
            ("/apis/apps/v1/deployments", None),
            ("/apis/example.com/v1", None),
            ("/api/v1/pods", None),
        ] {
            let query = Query::default();
            let info = RequestInfo::new(&Method::GET, path, &query);
            assert_eq!(custom_resource(&info), expected, "{path}");
        }
    }
}
