//! The path of a request through the crate: [`ApiService`], a tower service.
//!
//! ```text
//!  Request ─▶ audit id ─▶ route ─▶ auth ─▶ read / watch / write / discovery ─▶ Response
//!              │            │        └ 401       └ Status                        ▲
//!              └────────────┴──────────────── every answer carries the id ───────┘
//! ```

use std::borrow::Cow;
use std::collections::HashSet;
use std::convert::Infallible;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures_util::FutureExt as _;
use http::header::{
    ACCEPT, ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, ETAG, EXPIRES, HOST, HeaderName,
    HeaderValue, IF_NONE_MATCH, LOCATION, RETRY_AFTER, USER_AGENT, VARY, WARNING,
};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use hyper::upgrade::OnUpgrade;
use listwatch_meta::Status;
use listwatch_wire::query::{Extra, Query};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::Shared;
use crate::auth::{self, User};
use crate::body::{Body, Hold};
use crate::body_budget::ConnectionBodies;
use crate::components;
use crate::connect;
use crate::documents::{self, Answer, Asked};
use crate::gzip;
use crate::health;
use crate::impersonation;
use crate::metrics::{self, Labels};
use crate::peer::{AnsweredEarly, Unauthenticated};
use crate::read;
use crate::request::{NoRoute, ResourceRoute, Route, Verb, route};
use crate::request_info::RequestInfo;
use crate::respond;
use crate::seats::Seat;
use crate::tokens::{self, Verdict};
use crate::upload::Upload;
use crate::view::{ObjectView, StatusView};
use crate::websocket;
use crate::write::{self, WriteRequest};

/// How long anything but a watch may take, unless the request asks for less (`--request-timeout`).
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Reads served at once, until their answers are sent, watches not counted
/// (`--max-requests-inflight`); further ones take the seat of a slow answer or are a 429.
pub(crate) const READS_IN_FLIGHT_MAX: usize = 400;
/// Writes served at once, until their answers are sent (`--max-mutating-requests-inflight`); further
/// ones take the seat of a slow answer or are a 429.
pub(crate) const WRITES_IN_FLIGHT_MAX: usize = 200;

/// The bodies of writes that are worked on may take this many bytes of memory together when they are
/// parsed, each counted as the most that one of its length can take; then the answers, until they are
/// sent. Further ones wait, within the time that a request may take.
pub(crate) const WRITES_BYTES_MAX: usize = 512 * 1024 * 1024;
/// Bytes of a body that is parsed without room of [`WRITES_BYTES_MAX`].
pub(crate) const SMALL_BODY_BYTES_MAX: usize = 16 * 1024;
/// A write that waits for that memory cuts one slow answer each such time.
const WRITES_BYTES_RECLAIM_INTERVAL: Duration = Duration::from_millis(250);

const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
const NOSNIFF: HeaderName = HeaderName::from_static("x-content-type-options");

/// The API server as a service from requests to responses: cheap to clone, needs no network.
///
/// Implements [`tower_service::Service`] for any request body, so that `kube::Client::new` takes
/// it as it is.
#[derive(Clone)]
pub struct ApiService {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for ApiService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ApiService")
    }
}

impl<B> tower_service::Service<Request<B>> for ApiService
where
    B: http_body::Body + Send + 'static,
    B::Data: Buf + Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move { Ok(service.handle(request).await) })
    }
}

impl ApiService {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        ApiService { shared }
    }

    /// Cuts the answers whose time is over.
    pub(crate) fn sweep(&self, now: Instant) {
        self.shared.reads.sweep(now);
        self.shared.writes.sweep(now);
    }

    /// Answers one request. Never fails: what goes wrong is in the response.
    pub async fn handle<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body + Send + 'static,
        B::Data: Buf + Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let audit_id = audit_id(request.headers());
        let version = request.version();
        let head_only = request.method() == Method::HEAD;
        let (parts, body) = request.into_parts();
        let mut upload = Upload::new(body).of_connection(parts.extensions.get::<ConnectionBodies>().cloned());
        let answer = AssertUnwindSafe(Box::pin(self.answer(&parts, &mut upload))).catch_unwind().await;
        // A client that is still sending may take an answer in between for a broken connection.
        upload.drain(&parts.headers).await;
        let mut response = answer.unwrap_or_else(|_| {
            // The panic hook has told the log; the client is told what kube-apiserver tells.
            let text = "This request caused apiserver to panic. Look in the logs for details.\n";
            self::text(StatusCode::INTERNAL_SERVER_ERROR, text.to_owned())
        });
        if !upload.is_ended() {
            response.extensions_mut().insert(AnsweredEarly);
        }
        let headers = response.headers_mut();
        headers.insert(AUDIT_ID, audit_id);
        headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache, private"));
        if version == Version::HTTP_2 {
            headers.remove(CONNECTION);
        } else if !upload.is_ended() {
            // The rest of the body is not read: nothing can follow on this connection.
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if head_only {
            // What the body would be is said all the same, where that is known before it is made.
            if let Some(length) = http_body::Body::size_hint(response.body()).exact() {
                response.headers_mut().entry(CONTENT_LENGTH).or_insert(HeaderValue::from(length));
            }
            *response.body_mut() = Body::empty();
        }
        response
    }

    async fn answer<B>(&self, parts: &Parts, upload: &mut Upload<B>) -> Response<Body>
    where
        B: http_body::Body + Send + 'static,
        B::Data: Buf + Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let query = Query::parse(parts.uri.query().unwrap_or_default());
        let info = RequestInfo::new(&parts.method, parts.uri.path(), &query);
        let asker = Asker::new(&parts.method, &parts.headers, &query, self.shared.cbor);
        let mut registry = self.shared.backend.registry();
        let mut routed = route(&registry, &parts.method, &info);
        let user = self.user(parts).await;
        let unknown = match &routed {
            Err(NoRoute::PageNotFound) => true,
            Err(NoRoute::Status(status)) => status.code == 404,
            _ => false,
        };
        if unknown
            && user.is_some()
            && let Some((group, plural)) = custom_resource(&info)
            && self.shared.backend.definitions().catch_up(&self.shared.backend, group, plural).await
        {
            // Another server stored the definition a moment ago.
            registry = self.shared.backend.registry();
            routed = route(&registry, &parts.method, &info);
        }

        // Before authentication, as in kube-apiserver's chain of filters.
        if !info.long_running
            && let Err(status) = request_timeout(&query)
        {
            let mut response = asker.status(&status);
            if user.is_none() {
                response.extensions_mut().insert(Unauthenticated);
            }
            return response;
        }
        let open = matches!(routed, Ok(Route::Health { .. } | Route::Version));
        let (user, impersonator) = match (user, impersonation::user(&parts.headers)) {
            (Some(user), Ok(None)) => (user, None),
            (Some(user), Ok(Some(impersonated))) => (Cow::Owned(impersonated), Some(user)),
            (Some(_), Err(status)) => return asker.status(&status),
            // Some routes need no authentication. Impersonation always does.
            (None, impersonated) => {
                let open = open && matches!(impersonated, Ok(None));
                let mut response = match routed {
                    Ok(Route::Health { endpoint, check }) if open => {
                        self.health(endpoint, check.as_deref(), &query).await
                    }
                    Ok(route) if open => self.document(route, &parts.headers, &query, &asker),
                    _ => asker.status(&Status::unauthorized()),
                };
                response.extensions_mut().insert(Unauthenticated);
                return response;
            }
        };
        if let Ok(route) = &routed
            && let Some(refusal) = impersonation::refusal(&user, &info, route)
        {
            return asker.status(&refusal);
        }
        let requester = impersonator.as_ref().unwrap_or(&user).username.as_str();
        let users = Users { user: &user, requester };
        match routed {
            Ok(Route::Unstored(route)) => {
                let begun = Instant::now();
                let labels = labels(&route, &parts.headers, &query);
                let answered = match route.verb {
                    Verb::Write(_) => {
                        Box::pin(self.review(&route, users, &parts.headers, &query, &asker, upload)).await
                    }
                    _ => components::answer(&self.shared, &route, &query, &asker).await,
                };
                let mut response = answered.unwrap_or_else(|status| asker.status(&status));
                add_warnings(response.headers_mut(), route.resource.deprecation.as_slice());
                self.count(&labels, &response, begun);
                response
            }
            Ok(Route::Resource(route)) => {
                let begun = Instant::now();
                let labels = labels(&route, &parts.headers, &query);
                let deprecation = route.resource.deprecation.clone();
                let mut response = if websocket::is_asked(parts) && route.is_watch() {
                    Box::pin(self.websocket(&route, parts, &query, &asker)).await
                } else {
                    self.resource(route, users, &parts.headers, &query, &asker, upload).await
                };
                add_warnings(response.headers_mut(), deprecation.as_slice());
                self.count(&labels, &response, begun);
                response
            }
            Ok(Route::Health { endpoint, check }) => self.health(endpoint, check.as_deref(), &query).await,
            Ok(route) => {
                let now = Instant::now();
                let Some(seat) = self.shared.reads.take(|| now) else { return too_many_requests() };
                let mut response = match route {
                    Route::Metrics => {
                        let mut response = text(StatusCode::OK, self.shared.metrics_text().await);
                        insert(response.headers_mut(), CONTENT_TYPE, metrics::CONTENT_TYPE);
                        response
                    }
                    route => self.document(route, &parts.headers, &query, &asker),
                };
                response.body_mut().hold(Hold::new(seat, now + REQUEST_TIMEOUT, None));
                response
            }
            Err(NoRoute::Status(status)) => asker.status(&status),
            Err(NoRoute::PageNotFound) => text(StatusCode::NOT_FOUND, "404 page not found\n".to_owned()),
            Err(NoRoute::Unparsable(why)) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{why}\n")),
        }
    }

    /// Counts a request that is answered, up to the headers.
    fn count(&self, labels: &Labels, response: &Response<Body>, begun: Instant) {
        let registry = self.shared.backend.registry();
        self.shared.metrics.answered(labels, response.status().as_u16(), begun.elapsed(), &registry);
    }

    /// Who asks, if that is known here.
    async fn user(&self, parts: &Parts) -> Option<Cow<'static, User>> {
        let shared = &self.shared;
        let of_websocket =
            if websocket::is_asked(parts) { websocket::bearer(&parts.headers).ok().flatten() } else { None };
        let token = auth::bearer(&parts.headers);
        for token in token.into_iter().chain(of_websocket.as_deref()) {
            let now = time::OffsetDateTime::now_utc().unix_timestamp();
            match tokens::judge(&shared.backend, token, &[], now).await {
                Verdict::Known { user, .. } => return Some(Cow::Owned(user)),
                Verdict::Refused => return None,
                Verdict::Unknown => {}
            }
        }
        let admin = shared.auth.allows(token) || shared.auth.allows(of_websocket.as_deref());
        admin.then(|| Cow::Borrowed(User::admin()))
    }

    /// A watch whose connection becomes a WebSocket.
    async fn websocket(
        &self,
        route: &ResourceRoute<'_>,
        parts: &Parts,
        query: &Query<'_>,
        asker: &Asker,
    ) -> Response<Body> {
        if self.shared.is_stopping() {
            return asker.status(&Status::unavailable("apiserver is shutting down").retry_after(1));
        }
        let Ok(place) = Arc::clone(&self.shared.websockets).try_acquire_owned() else {
            return too_many_requests();
        };
        let stream = match read::watch_stream(&self.shared, route, query, asker).await {
            Ok(stream) => stream,
            Err(status) => return asker.status(&status),
        };
        let response = match websocket::accept(&parts.headers) {
            Ok(response) => response,
            Err(refusal) => return refusal,
        };
        let Some(upgrade) = parts.extensions.get::<OnUpgrade>().cloned() else {
            return asker.status(&Status::bad_request("this connection cannot become a WebSocket"));
        };
        let encoding = stream.encoding();
        tokio::spawn(websocket::run(upgrade, stream, encoding, place));
        response
    }

    async fn resource<B>(
        &self,
        route: ResourceRoute<'_>,
        users: Users<'_>,
        headers: &HeaderMap,
        query: &Query<'_>,
        asker: &Asker,
        upload: &mut Upload<B>,
    ) -> Response<Body>
    where
        B: http_body::Body + Send + 'static,
        B::Data: Buf + Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if let Err(status) = read::check_namespace(&route) {
            return asker.status(&status);
        }
        if route.is_watch() {
            if self.shared.is_stopping() {
                return asker.status(&Status::unavailable("apiserver is shutting down").retry_after(1));
            }
            // A watch has a deadline of its own, far behind the request timeout.
            let answer = read::watch(&self.shared, &route, query, asker).await;
            return answer.unwrap_or_else(|status| asker.status(&status));
        }
        // An invalid one was rejected before, unless it says nothing about this request.
        let deadline = Instant::now() + request_timeout(query).unwrap_or(REQUEST_TIMEOUT);
        let (seats, received) = match route.verb {
            Verb::Get | Verb::Collection | Verb::Connect => (&self.shared.reads, None),
            // First the body, then the seat: who sends slowly takes none.
            Verb::Write(_) => match in_time(deadline, Box::pin(upload.collect(&self.shared.bodies)).as_mut()).await {
                Ok(received) => (&self.shared.writes, Some(received)),
                Err(status) => return asker.status(&status),
            },
        };
        let Some(seat) = seats.take(Instant::now) else {
            return too_many_requests();
        };
        let mut room = None;
        let work = async {
            match route.verb {
                Verb::Get => read::get(&self.shared, &route, query, asker).await,
                Verb::Collection => read::list(&self.shared, &route, query, asker).await,
                Verb::Connect => connect::answer(&self.shared, &route, query).await,
                Verb::Write(verb) => {
                    let body = received.as_ref().map(|received| received.bytes.clone()).unwrap_or_default();
                    room = self.room_for(header(headers, &CONTENT_TYPE), &body).await;
                    // Boxed, so that a read does not move the future of a write.
                    Box::pin(self.write(verb, &route, users, headers, query, asker, body, deadline)).await
                }
            }
        };
        let mut response = in_time(deadline, pin!(work)).await.unwrap_or_else(|status| asker.status(&status));
        let hold = held(seat, deadline, room, response.body());
        response.body_mut().hold(hold);
        response
    }

    /// Carries out a write whose body has been received.
    #[expect(clippy::too_many_arguments, reason = "the parts of one request, which borrow from each other")]
    async fn write(
        &self,
        verb: write::WriteVerb,
        route: &ResourceRoute<'_>,
        users: Users<'_>,
        headers: &HeaderMap,
        query: &Query<'_>,
        asker: &Asker,
        body: Bytes,
        deadline: Instant,
    ) -> Result<Response<Body>, Status> {
        let content_type = header(headers, &CONTENT_TYPE);
        let request = WriteRequest {
            verb,
            resource: &route.resource,
            namespace: route.namespace,
            name: route.name,
            subresource: route.subresource,
            query,
            content_type,
            user: users.user,
            user_agent: header(headers, &USER_AGENT),
            body,
        };
        let view = ObjectView::negotiate(asker, &route.resource)?;
        let (compute, backend) = (&self.shared.compute, &self.shared.backend);
        let written = compute.write(backend, request, users.requester, deadline.into_std()).await?;
        respond::written(written, &route.resource, &view)
    }

    /// Answers a question.
    async fn review<B>(
        &self,
        route: &ResourceRoute<'_>,
        users: Users<'_>,
        headers: &HeaderMap,
        query: &Query<'_>,
        asker: &Asker,
        upload: &mut Upload<B>,
    ) -> Result<Response<Body>, Status>
    where
        B: http_body::Body + Send + 'static,
        B::Data: Buf + Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let deadline = Instant::now() + request_timeout(query)?;
        let received = in_time(deadline, pin!(upload.collect(&self.shared.bodies))).await?;
        let Some(seat) = self.shared.writes.take(Instant::now) else { return Ok(too_many_requests()) };
        let body = received.bytes.clone();
        let content_type = header(headers, &CONTENT_TYPE);
        let room = in_time(deadline, pin!(async { Ok(self.room_for(content_type, &body).await) })).await?;
        let request = WriteRequest {
            verb: write::WriteVerb::Create,
            resource: &route.resource,
            namespace: route.namespace,
            name: None,
            subresource: None,
            query,
            content_type,
            user: users.user,
            user_agent: header(headers, &USER_AGENT),
            body,
        };
        let view = ObjectView::plain(asker)?;
        let review = self.shared.compute.review(&self.shared, request, users.requester, deadline.into_std());
        let answer = in_time(deadline, pin!(review)).await?;
        let mut response = respond::written(answer, &route.resource, &view)?;
        let hold = held(seat, deadline, room, response.body());
        response.body_mut().hold(hold);
        Ok(response)
    }

    /// Waits until there is room for what becomes of a large body. A small one needs none.
    async fn room_for(&self, content_type: Option<&str>, body: &Bytes) -> Option<OwnedSemaphorePermit> {
        let content_type = content_type.filter(|_| self.shared.cbor);
        let bytes = write::cbor::parsed_bytes_max(content_type, body.len());
        // A small write, such as a lease, never waits behind large ones. The seats bound what small ones take
        // together: 200 times 1.6 MiB.
        if body.len() <= SMALL_BODY_BYTES_MAX {
            return None;
        }
        // None is ever asked for that there is no room for at all, and the semaphore is never closed.
        let bytes = u32::try_from(bytes.min(WRITES_BYTES_MAX)).unwrap_or(u32::MAX);
        let mut room = std::pin::pin!(Arc::clone(&self.shared.writes_bytes).acquire_many_owned(bytes));
        loop {
            match tokio::time::timeout(WRITES_BYTES_RECLAIM_INTERVAL, &mut room).await {
                Ok(room) => return room.ok(),
                Err(_) => self.shared.writes.reclaim(Instant::now()),
            }
        }
    }

    async fn health(&self, endpoint: &str, check: Option<&str>, query: &Query<'_>) -> Response<Body> {
        let findings = self.shared.findings(endpoint).await;
        let (code, body) = health::report(
            endpoint,
            &findings,
            check,
            query.get("verbose").is_some(),
            &query.all("exclude").map(str::to_owned).collect::<Vec<_>>(),
        );
        text(StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), body)
    }

    /// Discovery, OpenAPI, version: documents made from the registry.
    fn document(&self, route: Route<'_>, headers: &HeaderMap, query: &Query<'_>, asker: &Asker) -> Response<Body> {
        let asked = Asked { accept: asker.accept(), host: header(headers, &HOST), query };
        let answer = match documents::answer(&self.shared.backend.registry(), &route, asked) {
            Ok(answer) => answer,
            Err(status) => return asker.status(&status),
        };
        document_response(answer, headers)
    }
}

/// The users of a request.
#[derive(Clone, Copy)]
struct Users<'a> {
    /// The user on whose behalf the request acts.
    user: &'a User,
    /// The name of the user who authenticated, who may impersonate `user`.
    requester: &'a str,
}

/// The outcome, or a 504 at the deadline.
///
/// Takes the work by reference: an `async fn` would hold it twice, as its argument and inside the timeout.
async fn in_time<T, F>(deadline: Instant, work: Pin<&mut F>) -> Result<T, Status>
where
    F: Future<Output = Result<T, Status>>,
{
    let late = |_| Status::timeout("request did not complete within the allotted timeout");
    tokio::time::timeout_at(deadline, work).await.map_err(late)?
}

/// What an answer keeps until it is sent: its seat, and of the memory of writes what it takes itself.
fn held(seat: Seat, deadline: Instant, room: Option<OwnedSemaphorePermit>, body: &Body) -> Box<Hold> {
    let bytes = usize::try_from(http_body::Body::size_hint(body).lower()).unwrap_or(usize::MAX);
    let room = room.and_then(|mut room| room.split(bytes.min(room.num_permits())));
    Hold::new(seat, deadline, room)
}

/// The group and plural of the custom resource that a request may be for. The groups of definitions
/// have a dot.
fn custom_resource<'a>(info: &'a RequestInfo<'_>) -> Option<(&'a str, &'a str)> {
    let (group, plural) = (&*info.api_group, &*info.resource);
    (group.contains('.') && !matches!(plural, "" | "namespaces")).then_some((group, plural))
}

fn labels(route: &ResourceRoute<'_>, headers: &HeaderMap, query: &Query<'_>) -> Labels {
    let apply = header(headers, &CONTENT_TYPE).is_some_and(|sent| sent.starts_with("application/apply-patch"));
    Labels::new(route, apply, query.get("dryRun") == Some("All"))
}

fn document_response(answer: Answer, headers: &HeaderMap) -> Response<Body> {
    if let Some(location) = answer.location {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
        insert(response.headers_mut(), LOCATION, &location);
        return response;
    }
    let unchanged = answer.etag.is_some() && header(headers, &IF_NONE_MATCH) == answer.etag.as_deref();
    let mut response = Response::new(if unchanged { Body::empty() } else { Body::full(answer.body) });
    if unchanged {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let out = response.headers_mut();
    insert(out, CONTENT_TYPE, answer.content_type);
    if let Some(etag) = answer.etag {
        insert(out, ETAG, &etag);
        out.insert(VARY, HeaderValue::from_static("Accept"));
    }
    if let Some(cache_control) = answer.cache_control {
        insert(out, CACHE_CONTROL, cache_control);
    }
    if let Some(expires) = answer.expires {
        insert(out, EXPIRES, &expires);
    }
    response
}

/// Who asks, as far as the form of the answer goes: media types, and whether human eyes will read.
pub(crate) struct Asker {
    accept: Option<String>,
    user_agent: Option<String>,
    pretty: Option<String>,
    include_object: Option<String>,
    gzip: bool,
    cbor: bool,
}

impl Asker {
    fn new(method: &Method, headers: &HeaderMap, query: &Query<'_>, cbor: bool) -> Self {
        let accept: Vec<&str> = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
        Asker {
            accept: (!accept.is_empty()).then(|| accept.join(",")),
            user_agent: header(headers, &USER_AGENT).map(str::to_owned),
            pretty: query.get("pretty").map(str::to_owned),
            include_object: query.get("includeObject").map(str::to_owned),
            gzip: method == Method::GET && gzip::is_accepted(headers),
            cbor,
        }
    }

    /// CBOR is served.
    pub(crate) fn cbor(&self) -> bool {
        self.cbor
    }

    /// A read whose answer may be compressed.
    pub(crate) fn gzip(&self) -> bool {
        self.gzip
    }

    /// The `Accept` header, all its lines joined.
    pub(crate) fn accept(&self) -> Option<&str> {
        self.accept.as_deref()
    }

    pub(crate) fn user_agent(&self) -> Option<&str> {
        self.user_agent.as_deref()
    }

    /// `?pretty=` as sent.
    pub(crate) fn pretty(&self) -> Option<&str> {
        self.pretty.as_deref()
    }

    /// `?includeObject=` as sent.
    pub(crate) fn include_object(&self) -> Option<&str> {
        self.include_object.as_deref()
    }

    /// A failure, as a response in a form the client takes; in JSON where it takes none of ours.
    pub(crate) fn status(&self, status: &Status) -> Response<Body> {
        let mut response = StatusView::negotiate(self).status(status);
        *response.status_mut() = StatusCode::from_u16(status.code).unwrap_or(StatusCode::OK);
        if let Some(seconds) = status.retry_after_seconds() {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// The warnings of one answer have about this many characters together (`truncateAtTotalRunes`). When
/// they would have more, each is cut to [`WARNING_CHARS_MAX`], and what still goes beyond is left out.
const WARNINGS_CHARS_MAX: usize = 4 * 1024;

/// The characters of one warning where the warnings of an answer are cut (`truncateItemRunes`).
const WARNING_CHARS_MAX: usize = 256;

/// Adds the warnings of a write: `Warning: 299 - "text"`, each once and within limits
/// (`WarningRecorder`).
pub(crate) fn add_warnings(headers: &mut HeaderMap, warnings: &[String]) {
    let mut seen = HashSet::new();
    let each: Vec<&str> =
        warnings.iter().map(String::as_str).filter(|text| !text.is_empty() && seen.insert(*text)).collect();
    let chars: usize = each.iter().map(|text| text.chars().count()).sum();
    let item_max = if chars > WARNINGS_CHARS_MAX { WARNING_CHARS_MAX } else { usize::MAX };
    let mut written = 0;
    for warning in each {
        if written >= WARNINGS_CHARS_MAX {
            break;
        }
        let mut text = String::new();
        for c in warning.chars().take(item_max) {
            written += 1;
            match c {
                '\\' | '"' => text.extend(['\\', c]),
                c if c.is_control() => {}
                c => text.push(c),
            }
        }
        if let Ok(value) = HeaderValue::from_bytes(format!("299 - \"{text}\"").as_bytes()) {
            headers.append(WARNING, value);
        }
    }
}

/// What the limit on requests in flight answers: no Status, as in kube-apiserver.
fn too_many_requests() -> Response<Body> {
    let mut response = text(StatusCode::TOO_MANY_REQUESTS, "Too many requests, please try again later.\n".to_owned());
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// How long a request may take: `?timeout=` as a Go duration, at most the server's own limit.
fn request_timeout(query: &Query<'_>) -> Result<Duration, Status> {
    let extra = Extra { timeout: query.get("timeout").map(str::to_owned), ..Extra::default() };
    Ok(extra.timeout()?.map_or(REQUEST_TIMEOUT, |asked| asked.min(REQUEST_TIMEOUT)))
}

fn audit_id(headers: &HeaderMap) -> HeaderValue {
    headers
        .get(&AUDIT_ID)
        .filter(|value| !value.is_empty())
        .cloned()
        .unwrap_or_else(|| HeaderValue::from_str(&uuid::Uuid::new_v4().to_string()).expect("a UUID is plain ASCII"))
}

fn header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

fn text(code: StatusCode, body: String) -> Response<Body> {
    let mut response = Response::new(Body::full(body));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(NOSNIFF, HeaderValue::from_static("nosniff"));
    headers.remove(ALLOW);
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Auth;

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

    #[test]
    fn warnings_are_quoted_and_not_repeated() {
        let mut headers = HeaderMap::new();
        add_warnings(&mut headers, &["a \"b\"".to_owned(), "a \"b\"".to_owned(), "c\n".to_owned()]);
        let values: Vec<&str> = headers.get_all(WARNING).iter().map(|value| value.to_str().unwrap()).collect();
        assert_eq!(values, ["299 - \"a \\\"b\\\"\"", "299 - \"c\""]);
    }

    #[tokio::test]
    async fn invalid_timeout_is_rejected_on_every_path_that_has_a_deadline() {
        use http_body_util::BodyExt as _;

        let auth = Auth::Token("t".to_owned());
        let server = crate::ApiServer::builder().auth(auth).build().await.unwrap();
        let send = async |method: &str, path: &str, timeout: &str, token: Option<&str>| {
            let sign = if path.contains('?') { '&' } else { '?' };
            let mut request = Request::builder().method(method).uri(format!("{path}{sign}timeout={timeout}"));
            if let Some(token) = token {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            let body = http_body_util::Full::new(Bytes::from_static(b"{}"));
            let response = server.service().handle(request.body(body).unwrap()).await;
            let code = response.status().as_u16();
            (
                code,
                response.into_body().frame().await.and_then(|frame| frame.ok()?.into_data().ok()).unwrap_or_default(),
            )
        };
        let invalid = serde_json::json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "invalid timeout specified in the request URL - time: invalid duration \"invalid\"",
            "reason": "BadRequest", "code": 400});
        for (method, path) in [
            ("GET", "/version"),
            ("GET", "/readyz"),
            ("GET", "/livez/ping"),
            ("GET", "/metrics"),
            ("GET", "/"),
            ("GET", "/api"),
            ("GET", "/apis"),
            ("GET", "/apis/apps/v1"),
            ("GET", "/openapi/v3"),
            ("GET", "/nonsense"),
            ("GET", "/nonsense?watch=true"),
            ("GET", "/api/v1/nonsense"),
            ("POST", "/version"),
            ("GET", "/api/v1/pods"),
            ("DELETE", "/api/v1/namespaces/a"),
            ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"),
            ("GET", "/api/v1/componentstatuses"),
        ] {
            // The deadline is looked at before the credential.
            for token in [None, Some("t")] {
                let (code, body) = send(method, path, "invalid", token).await;
                assert_eq!(code, 400, "{method} {path} {token:?}");
                assert_eq!(serde_json::from_slice::<serde_json::Value>(&body).unwrap(), invalid, "{method} {path}");
            }
            for valid in ["", "10s", "0", "-1s", "1000h"] {
                assert_ne!(send(method, path, valid, Some("t")).await.0, 400, "{method} {path} {valid}");
            }
        }
        for (path, code) in [
            ("/api/v1/namespaces?watch=true", 200),
            ("/api/v1/watch/namespaces", 200),
            ("/api/v1/nonsense?watch=true", 404),
            ("/api/v1/namespaces/a/pods/x/log", 404),
            ("/api/v1/watch", 500),
        ] {
            assert_eq!(send("GET", path, "invalid", Some("t")).await.0, code, "{path} has no deadline by its query");
        }
    }

    #[tokio::test]
    async fn impersonation_needs_authentication_on_open_paths() {
        let auth = Auth::Token("t".to_owned());
        let server = crate::ApiServer::builder().auth(auth).build().await.unwrap();
        let send = async |token: &str, header: Option<(&str, &str)>| {
            let mut request = Request::get("/version").header("authorization", format!("Bearer {token}"));
            if let Some((name, value)) = header {
                request = request.header(name, value);
            }
            server.service().handle(request.body(http_body_util::Empty::<Bytes>::new()).unwrap()).await.status()
        };
        assert_eq!(send("wrong", None).await, StatusCode::OK);
        assert_eq!(send("t", Some(("impersonate-user", "bob"))).await, StatusCode::OK);
        for header in [("impersonate-user", "bob"), ("impersonate-group", "dev")] {
            assert_eq!(send("wrong", Some(header)).await, StatusCode::UNAUTHORIZED, "{header:?}");
        }
    }

    #[tokio::test]
    async fn writes_share_their_memory() {
        let server = &crate::ApiServer::builder().build().await.unwrap();
        let send = |annotation: usize| async move {
            let annotations = format!(r#"{{"a":"{}"}}"#, "x".repeat(annotation));
            let body = format!(r#"{{"metadata":{{"generateName":"n","annotations":{annotations}}}}}"#);
            let body = http_body_util::Full::new(Bytes::from(body));
            let request = Request::post("/api/v1/namespaces").header(CONTENT_TYPE, "application/json");
            server.service().handle(request.body(body).unwrap()).await.status()
        };
        let all = Arc::clone(&server.shared.writes_bytes).acquire_many_owned(WRITES_BYTES_MAX as u32);
        let taken = all.await.unwrap();
        let mut waiting = std::pin::pin!(send(100_000));
        let soon = tokio::time::timeout(Duration::from_millis(100), &mut waiting).await;
        assert!(soon.is_err(), "there is room for no large body");
        assert_eq!(send(1).await, StatusCode::CREATED, "a small write does not wait behind large ones");
        drop(taken);
        assert_eq!(waiting.await, StatusCode::CREATED);
        assert_eq!(server.shared.writes_bytes.available_permits(), WRITES_BYTES_MAX);
    }

    #[test]
    fn warnings_have_bounds() {
        let texts = |warnings: Vec<String>| -> Vec<usize> {
            let mut headers = HeaderMap::new();
            add_warnings(&mut headers, &warnings);
            headers.get_all(WARNING).iter().map(|value| value.as_bytes().len() - "299 - \"\"".len()).collect()
        };
        assert_eq!(texts(vec!["x".repeat(4096)]), [4096]);
        assert_eq!(texts(vec!["x".repeat(2 << 20)]), [256]);
        // Within 4096 characters nothing is cut; beyond, all are, those before as well.
        assert_eq!(texts(vec!["x".repeat(3000), "y".repeat(1096)]), [3000, 1096]);
        assert_eq!(texts(vec!["x".repeat(3000), "y".repeat(1097)]), [256, 256]);
        let many: Vec<String> = (0..1000).map(|n| format!("unknown field \"{n:06}\"")).collect();
        // Quotes are escaped, and not counted twice.
        assert_eq!(texts(many), vec!["unknown field \"000000\"".len() + 2; 187]);
    }
}
