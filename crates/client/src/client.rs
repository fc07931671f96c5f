//! A connection to one API server: [`Client`], and [`HttpListWatch`], the [`ListWatch`] over it.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use http::header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, HeaderMap, HeaderValue, RETRY_AFTER, USER_AGENT};
use http::{Request, Response, StatusCode, Uri};
use http_body::Body as _;
use listwatch_meta::{ListOptions, Status};
use listwatch_wire::event::{EventError, JsonEvents, ReadEventError};
use listwatch_wire::{FrameError, ListDecoder, print_list_options};
use tokio::time::Instant;

use crate::config::{Config, ConfigError, Impersonation};
use crate::credentials::Credentials;
use crate::list_watch::{ListItem, ListStream, ListWatch, WatchStream, WatchedEvent};
use crate::object::{RawObject, TypeName};
use crate::problem::Problem;
use crate::resource::{ApiResource, Scope};
use crate::transport::{
    HttpTransport, RequestBody, ResponseBody, Transport, decompressed, disconnected, is_connection_lost,
};

/// The largest body of a small document (discovery, an error), in bytes. A larger body is an error.
pub const DOCUMENT_LIMIT_BYTES: usize = 8 * 1024 * 1024;

/// Time limit for the server to send a small document, from request to last byte.
pub const DOCUMENT_WAIT: Duration = Duration::from_secs(30);

/// The number of times that [`Client::get`], [`Client::get_document`] and [`Client::discover`] send one GET when the
/// server answers `429` or `5xx` with `Retry-After`, or when its connection is lost. client-go sends it 11 times (`maxRetries` of rest/request.go).
pub const GET_TRIES_MAX: usize = 10;

/// The wait before a GET is sent again whose connection was lost before the response, e.g. by a restart of the server.
/// client-go waits for the same time (`retryAfterResponse` of rest/with_retry.go).
pub const GET_RECONNECT_WAIT: Duration = Duration::from_secs(1);

/// The longest wait before a GET is sent again. After a longer `Retry-After`, the call fails at once with the server's
/// answer: a try before that time would add to the load of the server.
pub const GET_RETRY_WAIT_MAX: Duration = Duration::from_secs(10);

/// The time within which a call of [`Client::get`], [`Client::get_document`] or [`Client::discover`] starts its last
/// try. If a wait would end later, the call fails at once with the server's answer. The try itself may end later.
pub const GET_RETRY_LIMIT: Duration = Duration::from_secs(60);

/// The bounds for the tries of one GET.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tries {
    /// The number of tries; at least one is made.
    pub(crate) max: usize,
    /// No try but the first one starts later.
    pub(crate) until: Instant,
}

impl Tries {
    /// The bounds of a call that starts now.
    pub(crate) fn from_now() -> Self {
        Tries { max: GET_TRIES_MAX, until: Instant::now() + GET_RETRY_LIMIT }
    }
}

const AGENT: &str = concat!("listwatch/", env!("CARGO_PKG_VERSION"));

/// A connection to one API server, shared by all its readers. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    transport: Box<dyn Transport>,
    /// The prefix of every path; empty, or `/k8s/clusters/x`.
    prefix: String,
    auth: Credentials,
    /// The headers of the impersonated user; empty without impersonation.
    impersonation: HeaderMap,
    namespace: String,
    /// Whether lists are requested as gzip.
    compression: bool,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({:?})", self.inner.prefix)
    }
}

impl Client {
    /// A client for the server of this configuration. Connects when the first request is sent.
    ///
    /// # Errors
    /// [`ConfigError`] when address, certificates, credentials or impersonation cannot be used.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        let impersonation = config.impersonation.as_ref().map(Impersonation::headers).transpose()?.unwrap_or_default();
        let prefix = config.server.path().trim_end_matches('/').to_owned();
        let auth = Credentials::new(config.auth, (&config.server, &config.tls, &config.transport))?;
        let transport = HttpTransport::new(&config.server, config.tls, config.transport)?;
        Ok(Client {
            inner: Arc::new(Inner {
                transport: Box::new(transport),
                prefix,
                auth,
                impersonation,
                namespace: config.namespace,
                compression: config.compression,
            }),
        })
    }

    /// Creates a client over any transport, for example [`crate::transport::ServiceTransport`] to a
    /// server in the same process. The transport does the authentication.
    pub fn with_transport(transport: impl Transport, namespace: &str) -> Self {
        let inner = Inner {
            transport: Box::new(transport),
            prefix: String::new(),
            auth: Credentials::none(),
            impersonation: HeaderMap::new(),
            namespace: namespace.to_owned(),
            compression: false,
        };
        Client { inner: Arc::new(inner) }
    }

    /// The namespace for requests without a namespace.
    pub fn namespace(&self) -> &str {
        &self.inner.namespace
    }

    /// Lists and watches a resource.
    pub fn list_watch(&self, resource: &ApiResource, scope: &Scope) -> HttpListWatch {
        HttpListWatch {
            client: self.clone(),
            path: resource.collection_path(scope),
            label_selector: String::new(),
            field_selector: String::new(),
            metadata_only: false,
        }
    }

    /// Sends a GET for a path with its query and returns a successful response. After `401
    /// Unauthorized`, renewable credentials are renewed once and the request is sent again. After `429`
    /// or `5xx` with `Retry-After`, the request is sent again after that time, and after a lost connection
    /// after [`GET_RECONNECT_WAIT`]. A connection that is refused, or whose TLS fails, is an error at once. [`GET_TRIES_MAX`],
    /// [`GET_RETRY_WAIT_MAX`] and [`GET_RETRY_LIMIT`] bound this. Lists and watches of
    /// [`HttpListWatch`] fail at once, because their reader has its own backoff.
    ///
    /// # Errors
    /// [`Problem::Refused`] with the server's `Status` for every HTTP status but 2xx,
    /// [`Problem::Disconnected`], and [`Problem::Misconfigured`] when there are no usable
    /// credentials.
    pub async fn get(&self, path_and_query: &str) -> Result<Response<ResponseBody>, Problem> {
        self.fetch_with_retries(path_and_query, None, Tries::from_now()).await
    }

    /// Sends a GET for JSON, and again while the bounds allow it and [`wait_before_retry`] names a wait.
    async fn fetch_with_retries(
        &self,
        path_and_query: &str,
        limit: Option<Duration>,
        bounds: Tries,
    ) -> Result<Response<ResponseBody>, Problem> {
        let mut tries = 1;
        loop {
            let problem = match self.fetch(path_and_query, JSON, false, limit).await {
                Err(problem) if tries < bounds.max => problem,
                answered => return answered,
            };
            let Some(wait) = wait_before_retry(&problem).filter(|wait| Instant::now() + *wait <= bounds.until) else {
                return Err(problem);
            };
            tracing::debug!(%problem, path_and_query, ?wait, tries, "a GET is sent again");
            tokio::time::sleep(wait).await;
            tries += 1;
        }
    }

    /// Sends a GET once; `compressed` requests gzip, and the response is decompressed. The time limit
    /// applies to the server, so the time to obtain credentials (perhaps a login) does not count.
    async fn fetch(
        &self,
        path_and_query: &str,
        accept: &'static str,
        compressed: bool,
        limit: Option<Duration>,
    ) -> Result<Response<ResponseBody>, Problem> {
        let uri = Uri::try_from(format!("{}{path_and_query}", self.inner.prefix)).map_err(|error| {
            Problem::misconfigured(format!("the path {path_and_query:?} is no path: {error}")).caused_by(error)
        })?;
        let mut renewed = false;
        loop {
            let session = self.inner.auth.session().await?;
            let mut request = Request::new(RequestBody::empty());
            *request.uri_mut() = uri.clone();
            let headers = request.headers_mut();
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
            headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
            if compressed {
                headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
            }
            if let Some(credential) = session.header.clone() {
                headers.insert(AUTHORIZATION, credential);
            }
            for (name, value) in &self.inner.impersonation {
                headers.append(name.clone(), value.clone());
            }
            let sending = match &session.transport {
                Some(transport) => transport.send(request),
                None => self.inner.transport.send(request),
            };
            let response = match limit {
                Some(limit) => {
                    tokio::time::timeout(limit, sending).await.unwrap_or(Err(Problem::Silent { waited: limit }))?
                }
                None => sending.await?,
            };
            let response = decompressed(response);
            if response.status().is_success() {
                return Ok(response);
            }
            let unknown = response.status() == StatusCode::UNAUTHORIZED;
            if unknown && !std::mem::replace(&mut renewed, true) && self.inner.auth.refused(&session).await {
                continue;
            }
            return Err(problem_of_response(response).await);
        }
    }

    /// GETs a small JSON document, with the retries of [`Client::get`].
    ///
    /// # Errors
    /// As [`Client::get`]; [`Problem::Malformed`] above [`DOCUMENT_LIMIT_BYTES`];
    /// [`Problem::Silent`] after [`DOCUMENT_WAIT`].
    pub async fn get_document(&self, path_and_query: &str) -> Result<Bytes, Problem> {
        self.get_document_within(path_and_query, Tries::from_now()).await
    }

    /// Like [`Client::get_document`], with bounds whose time several documents share.
    pub(crate) async fn get_document_within(&self, path_and_query: &str, bounds: Tries) -> Result<Bytes, Problem> {
        let response = self.fetch_with_retries(path_and_query, Some(DOCUMENT_WAIT), bounds).await?;
        let waited = Problem::Silent { waited: DOCUMENT_WAIT };
        tokio::time::timeout(DOCUMENT_WAIT, collect(response.into_body())).await.unwrap_or(Err(waited))
    }
}

/// The wait before a GET is sent again; `None` if the server did not request that, or only after more than
/// [`GET_RETRY_WAIT_MAX`]. The rule of client-go: a lost connection (`isErrRetryableFunc` of rest/request.go), and `429`
/// or any `5xx` with `Retry-After` (`checkWait` of rest/with_retry.go). client-go waits for any time.
pub(crate) fn wait_before_retry(problem: &Problem) -> Option<Duration> {
    if is_connection_lost(problem) {
        return Some(GET_RECONNECT_WAIT);
    }
    let is_retryable = problem.status().is_some_and(|status| status.code == 429 || status.code >= 500);
    problem.retry_after().filter(|wait| is_retryable && *wait <= GET_RETRY_WAIT_MAX)
}

/// Converts an unsuccessful response to a problem.
async fn problem_of_response(response: Response<ResponseBody>) -> Problem {
    let code = response.status();
    let retry_after = response
        .headers()
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.trim().parse().ok())
        .map(Duration::from_secs);
    let body = tokio::time::timeout(DOCUMENT_WAIT, collect(response.into_body())).await;
    let body = body.ok().and_then(Result::ok).unwrap_or_default();
    let status = match serde_json::from_slice::<Status>(&body) {
        Ok(status) if status.kind == "Status" && status.code != 0 => status,
        _ => status_of_other_server(code, &body),
    };
    let Problem::Refused { status, retry_after: in_status } = Problem::refused(status) else {
        unreachable!("the status is not a success")
    };
    Problem::Refused { status, retry_after: retry_after.or(in_status) }
}

/// Builds a `Status` for an error response without one, for example of a proxy.
fn status_of_other_server(code: StatusCode, body: &[u8]) -> Status {
    let text = String::from_utf8_lossy(body);
    let line: String = text.lines().next().unwrap_or_default().chars().take(200).collect();
    let message = if line.trim().is_empty() { code.to_string() } else { format!("{code}: {}", line.trim()) };
    Status::failure(code.as_u16(), "", message)
}

/// Reads a whole small document.
async fn collect(mut body: ResponseBody) -> Result<Bytes, Problem> {
    let mut document = BytesMut::new();
    while let Some(chunk) = body.chunk().await {
        let chunk = chunk.map_err(disconnected)?;
        if document.len() + chunk.len() > DOCUMENT_LIMIT_BYTES {
            return Err(Problem::malformed(format!("a document of more than {DOCUMENT_LIMIT_BYTES} bytes")));
        }
        document.extend_from_slice(&chunk);
    }
    Ok(document.freeze())
}

/// The default `Accept` header.
const JSON: &str = "application/json";

/// The `Accept` header of a watch of metadata only.
const PARTIAL_METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// The `Accept` header of a list of metadata only.
const PARTIAL_METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// Lists and watches one resource in one scope over HTTP, as JSON.
#[derive(Clone, Debug)]
pub struct HttpListWatch {
    client: Client,
    path: String,
    label_selector: String,
    field_selector: String,
    metadata_only: bool,
}

impl HttpListWatch {
    /// Requests only the metadata of objects, of the kind `PartialObjectMetadata` of
    /// `meta.k8s.io/v1` for every resource. A reflector configured with the resource's own type
    /// would skip these objects.
    #[must_use]
    pub fn metadata_only(mut self) -> Self {
        self.metadata_only = true;
        self
    }

    /// Restricts the resource to objects whose labels match.
    #[must_use]
    pub fn labels(mut self, selector: &str) -> Self {
        selector.clone_into(&mut self.label_selector);
        self
    }

    /// Restricts the resource to objects whose fields match.
    #[must_use]
    pub fn fields(mut self, selector: &str) -> Self {
        selector.clone_into(&mut self.field_selector);
        self
    }

    async fn open(
        &self,
        mut options: ListOptions,
        partial: &'static str,
        compressed: bool,
    ) -> Result<ResponseBody, Problem> {
        self.label_selector.clone_into(&mut options.label_selector);
        self.field_selector.clone_into(&mut options.field_selector);
        let target = format!("{}?{}", self.path, print_list_options(&options));
        let accept = if self.metadata_only { partial } else { JSON };
        Ok(self.client.fetch(&target, accept, compressed, None).await?.into_body())
    }
}

#[async_trait]
impl ListWatch for HttpListWatch {
    async fn list(&self, options: ListOptions) -> Result<ListStream, Problem> {
        let body = self.open(options, PARTIAL_METADATA_LIST, self.client.inner.compression).await?;
        Ok(Box::pin(ListBodyStream::new(body)))
    }

    async fn watch(&self, options: ListOptions) -> Result<WatchStream, Problem> {
        // Events are small and urgent, so compression does not pay.
        let body = self.open(options, PARTIAL_METADATA, false).await?;
        Ok(Box::pin(WatchBodyStream::new(body)))
    }
}

/// The items of a list body while the body arrives.
struct ListBodyStream {
    body: ResponseBody,
    /// `None` after the end of the list.
    decoder: Option<ListDecoder>,
    /// Whether the type was returned.
    typed: bool,
    /// Decoded items to return: at most the type, the items of one chunk, and the end.
    ready: VecDeque<ListItem>,
}

impl ListBodyStream {
    fn new(body: ResponseBody) -> Self {
        ListBodyStream { body, decoder: Some(ListDecoder::new()), typed: false, ready: VecDeque::new() }
    }

    fn decode(&mut self, chunk: Bytes) -> Result<(), Problem> {
        let Some(decoder) = &mut self.decoder else { return Ok(()) };
        decoder.feed(chunk);
        let mut objects = Vec::new();
        // An unreadable item has no name, so the reflector skips it.
        while let Some((item, spans)) = decoder.next_object().map_err(unreadable)? {
            objects.push(RawObject::with_spans(item, spans));
        }
        let meta = decoder.meta();
        if !self.typed && !meta.kind.is_empty() && !meta.api_version.is_empty() {
            self.typed = true;
            let type_name = TypeName { api_version: meta.api_version.clone(), kind: meta.kind.clone() };
            self.ready.push_back(ListItem::Type(type_name));
        }
        if !objects.is_empty() {
            self.ready.push_back(ListItem::Objects(objects));
        }
        Ok(())
    }
}

impl Stream for ListBodyStream {
    type Item = Result<ListItem, Problem>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            if let Some(item) = this.ready.pop_front() {
                return Poll::Ready(Some(Ok(item)));
            }
            if this.decoder.is_none() {
                return Poll::Ready(None);
            }
            let read = match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Ok(frame)) => frame.into_data().map_or(Ok(()), |chunk| this.decode(chunk)),
                Some(Err(error)) => Err(disconnected(error)),
                None => match this.decoder.take().map(ListDecoder::finish) {
                    Some(Ok(meta)) => {
                        this.ready.push_back(ListItem::End(meta));
                        Ok(())
                    }
                    Some(Err(error)) => Err(unreadable(error)),
                    None => Ok(()),
                },
            };
            if let Err(problem) = read {
                this.decoder = None;
                return Poll::Ready(Some(Err(problem)));
            }
        }
    }
}

/// The events of a watch body while the body arrives.
struct WatchBodyStream {
    body: ResponseBody,
    reader: JsonEvents,
    /// The last item, to return after `events`: an error, or the end of the stream.
    end: Option<Option<Problem>>,
}

impl WatchBodyStream {
    fn new(body: ResponseBody) -> Self {
        WatchBodyStream { body, reader: JsonEvents::new(), end: None }
    }

    /// Returns the complete events of a chunk. Events before an invalid one are valid.
    fn decode(&mut self, chunk: Bytes) -> Vec<WatchedEvent> {
        self.reader.feed(chunk);
        let mut events = Vec::new();
        loop {
            let problem = match self.reader.next_event() {
                Ok(Some((event, spans))) => {
                    let object = RawObject::with_spans(event.object, spans);
                    events.push(WatchedEvent { kind: event.kind, object });
                    continue;
                }
                Ok(None) => return events,
                // Event types of later server versions are skipped.
                Err(ReadEventError::Event(error @ EventError::UnknownType { .. })) => {
                    tracing::warn!(%error, "passed over");
                    continue;
                }
                Err(ReadEventError::Event(error)) => Problem::malformed(error.to_string()).caused_by(error),
                Err(ReadEventError::Frame(error)) => unreadable(error),
            };
            self.end = Some(Some(problem));
            return events;
        }
    }
}

impl Stream for WatchBodyStream {
    type Item = Result<Vec<WatchedEvent>, Problem>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            if let Some(end) = &mut this.end {
                return Poll::Ready(end.take().map(Err));
            }
            match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Ok(frame)) => {
                    let events = frame.into_data().map_or_else(|_| Vec::new(), |chunk| this.decode(chunk));
                    if !events.is_empty() {
                        return Poll::Ready(Some(Ok(events)));
                    }
                }
                Some(Err(error)) => this.end = Some(Some(disconnected(error))),
                None => this.end = Some(this.reader.finish().err().map(unreadable)),
            }
        }
    }
}

/// Converts a frame error: a truncated stream is a network error; every other error is the server's
/// fault.
fn unreadable(error: FrameError) -> Problem {
    let problem = match error {
        FrameError::Incomplete { .. } => Problem::disconnected(error.to_string()),
        FrameError::TooLarge { .. } | FrameError::Malformed { .. } => Problem::malformed(error.to_string()),
    };
    problem.caused_by(error)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::poll_fn;

    use http_body_util::StreamBody;

    use super::*;

    /// A body that arrives in these pieces; if `cut`, it ends with an error.
    fn body(pieces: &[&'static str], cut: bool) -> ResponseBody {
        let mut frames: Vec<Result<http_body::Frame<Bytes>, crate::transport::BoxError>> =
            pieces.iter().map(|piece| Ok(http_body::Frame::data(Bytes::from_static(piece.as_bytes())))).collect();
        if cut {
            frames.push(Err("connection reset".into()));
        }
        ResponseBody::new(StreamBody::new(Pieces(frames.into())))
    }

    struct Pieces<T>(VecDeque<T>);

    impl<T: Unpin> Stream for Pieces<T> {
        type Item = T;

        fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<T>> {
            Poll::Ready(self.0.pop_front())
        }
    }

    async fn all<T>(mut stream: impl Stream<Item = T> + Unpin) -> Vec<T> {
        let mut found = Vec::new();
        while let Some(item) = poll_fn(|context| Pin::new(&mut stream).poll_next(context)).await {
            found.push(item);
        }
        found
    }

    #[tokio::test]
    async fn watch_yields_complete_events_then_the_cause_of_its_end() {
        async fn check(pieces: &[&'static str], cut: bool, expected: &[&str]) {
            let found = all(WatchBodyStream::new(body(pieces, cut))).await;
            let found: Vec<String> = found
                .iter()
                .map(|item| match item {
                    Ok(events) => events
                        .iter()
                        .map(|event| format!("{} {}", event.kind.as_str(), event.object.metadata().name))
                        .collect::<Vec<_>>()
                        .join(", "),
                    Err(problem) => problem.to_string(),
                })
                .collect();
            assert_eq!(found, expected, "{pieces:?}");
        }
        const A: &str = "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"a\"}}}\n";
        check(&[A, A], false, &["ADDED a", "ADDED a"]).await;
        check(&[&A[..20], &A[20..]], false, &["ADDED a"]).await;
        check(
            &[A, &A[..20]],
            false,
            &["ADDED a", "no connection to the server: the stream ended inside a frame, after 20 of its bytes"],
        )
        .await;
        check(&[A], true, &["ADDED a", "no connection to the server: connection reset"]).await;
        check(&["{\"type\":\"NEW\",\"object\":{}}"], false, &[]).await;
        check(
            &["{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"a\"}}}{\"type\":\"ADDED\"}", A],
            false,
            &["ADDED a", "the server's answer cannot be read: a watch event carries no object"],
        )
        .await;
        check(&["<html>"], false, &["the server's answer cannot be read: malformed frame at byte 0 of the stream"])
            .await;
    }

    #[tokio::test]
    async fn list_yields_its_type_then_items_then_metadata() {
        async fn check(pieces: &[&'static str], cut: bool, expected: &[&str]) {
            let found = all(ListBodyStream::new(body(pieces, cut))).await;
            let found: Vec<String> = found
                .iter()
                .map(|item| match item {
                    Ok(ListItem::Type(type_name)) => format!("{}/{}", type_name.api_version, type_name.kind),
                    Ok(ListItem::Objects(objects)) => {
                        objects.iter().map(|object| object.metadata().name.into_owned()).collect::<Vec<_>>().join(",")
                    }
                    Ok(ListItem::End(meta)) => format!("end at {}", meta.resource_version),
                    Err(problem) => problem.to_string(),
                })
                .collect();
            assert_eq!(found, expected, "{pieces:?}");
        }
        const HEAD: &str =
            "{\"kind\":\"PodList\",\"apiVersion\":\"v1\",\"metadata\":{\"resourceVersion\":\"7\"},\"items\":[";
        const A: &str = "{\"metadata\":{\"name\":\"a\"}}";
        check(&[HEAD, A, ",", A, "]}\n"], false, &["v1/PodList", "a", "a", "end at 7"]).await;
        check(&[HEAD, A], true, &["v1/PodList", "a", "no connection to the server: connection reset"]).await;
        check(
            &[HEAD, A],
            false,
            &["v1/PodList", "a", "no connection to the server: the stream ended inside a frame, after 0 of its bytes"],
        )
        .await;
        check(&["[]"], false, &["the server's answer cannot be read: malformed frame at byte 0 of the stream"]).await;
    }

    #[derive(Clone)]
    struct Scripted(StatusCode, Option<&'static str>, &'static str);

    impl tower_service::Service<Request<RequestBody>> for Scripted {
        type Response = Response<http_body_util::Full<Bytes>>;
        type Error = Infallible;
        type Future = std::future::Ready<Result<Self::Response, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<RequestBody>) -> Self::Future {
            let mut response = Response::new(http_body_util::Full::new(Bytes::from_static(self.2.as_bytes())));
            *response.status_mut() = self.0;
            if let Some(seconds) = self.1 {
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(seconds));
            }
            std::future::ready(Ok(response))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn errors_keep_status_and_retry_after_of_the_server() {
        async fn check(answer: Scripted, expected: (u16, &str, Option<u64>)) {
            let client = Client::with_transport(crate::transport::ServiceTransport::new(answer), "default");
            let problem = client.get("/api").await.unwrap_err();
            let status = problem.status().unwrap();
            let found = (status.code, status.message.as_str(), problem.retry_after().map(|wait| wait.as_secs()));
            assert_eq!(found, expected);
        }
        const STATUS: &str = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"slow down","reason":"TooManyRequests","details":{"retryAfterSeconds":3},"code":429}"#;
        check(Scripted(StatusCode::TOO_MANY_REQUESTS, None, STATUS), (429, "slow down", Some(3))).await;
        check(Scripted(StatusCode::TOO_MANY_REQUESTS, Some("7"), STATUS), (429, "slow down", Some(7))).await;
        check(
            Scripted(StatusCode::BAD_GATEWAY, None, "<html>\nno upstream</html>"),
            (502, "502 Bad Gateway: <html>", None),
        )
        .await;
        check(Scripted(StatusCode::NOT_FOUND, None, ""), (404, "404 Not Found", None)).await;
        // JSON of another program is no `Status`, and neither is a `Status` without a code.
        for other in [r#"{"message":"full"}"#, r#"{"kind":"Status","message":"full"}"#, r#"{"kind":"X","code":7}"#] {
            let message = format!("503 Service Unavailable: {other}");
            check(Scripted(StatusCode::SERVICE_UNAVAILABLE, Some("2"), other), (503, &message, Some(2))).await;
        }
    }

    /// A server that answers with these statuses in turn, the last one for ever, and notes the headers of requests.
    #[derive(Clone, Default)]
    struct Turns(Arc<std::sync::Mutex<(VecDeque<Scripted>, Vec<HeaderMap>)>>);

    impl Turns {
        fn new(answers: &[(u16, Option<&'static str>)]) -> Self {
            let answer = |(code, wait): &(u16, _)| Scripted(StatusCode::from_u16(*code).unwrap(), *wait, "{}");
            let turns = Turns::default();
            turns.0.lock().unwrap().0 = answers.iter().map(answer).collect();
            turns
        }

        fn headers(&self) -> Vec<HeaderMap> {
            self.0.lock().unwrap().1.clone()
        }
    }

    impl tower_service::Service<Request<RequestBody>> for Turns {
        type Response = Response<http_body_util::Full<Bytes>>;
        type Error = Infallible;
        type Future = std::future::Ready<Result<Self::Response, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
            let mut turns = self.0.lock().unwrap();
            turns.1.push(request.headers().clone());
            let mut answer = turns.0[0].clone();
            if turns.0.len() > 1 {
                turns.0.pop_front();
            }
            answer.call(request)
        }
    }

    /// `checkWait` of client-go's rest/with_retry.go, with bounds for the time.
    #[tokio::test(start_paused = true)]
    async fn get_is_sent_again_after_retry_after_within_its_bounds() {
        async fn check(answers: &[(u16, Option<&'static str>)], expected: (Option<u16>, usize, u64)) {
            for as_document in [false, true] {
                let turns = Turns::new(answers);
                let client = Client::with_transport(crate::transport::ServiceTransport::new(turns.clone()), "default");
                let begun = Instant::now();
                let error = match as_document {
                    true => client.get_document("/api").await.err(),
                    false => client.get("/api").await.err(),
                };
                let code = error.map(|problem| problem.status().unwrap().code);
                let found = (code, turns.headers().len(), begun.elapsed().as_secs());
                assert_eq!(found, expected, "{answers:?}");
            }
        }
        check(&[(200, None)], (None, 1, 0)).await;
        check(&[(429, Some("2")), (503, Some("3")), (500, Some("1")), (200, None)], (None, 4, 6)).await;
        // The server did not request another try.
        check(&[(503, None)], (Some(503), 1, 0)).await;
        check(&[(404, Some("1"))], (Some(404), 1, 0)).await;
        // At most ten tries, the last one after at most 60 s.
        check(&[(429, Some("0"))], (Some(429), 10, 0)).await;
        check(&[(429, Some("1"))], (Some(429), 10, 9)).await;
        check(&[(429, Some("10"))], (Some(429), 7, 60)).await;
        // A longer wait than 10 s is left to the caller.
        check(&[(429, Some("11"))], (Some(429), 1, 0)).await;
        check(&[(503, Some("3600")), (200, None)], (Some(503), 1, 0)).await;
        check(&[(503, Some("1")), (503, Some("11")), (200, None)], (Some(503), 2, 1)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn list_and_watch_fail_at_once_although_the_server_requests_another_try() {
        let turns = Turns::new(&[(429, Some("1"))]);
        let client = Client::with_transport(crate::transport::ServiceTransport::new(turns.clone()), "default");
        let pods = client.list_watch(&ApiResource::default(), &Scope::Cluster);
        assert!(pods.list(ListOptions::default()).await.is_err());
        assert!(pods.watch(ListOptions::default()).await.is_err());
        assert_eq!(turns.headers().len(), 2, "the reader's own backoff does not apply");
    }

    #[tokio::test]
    async fn every_request_names_the_impersonated_user() {
        async fn check(auth: crate::config::Auth, authorization: Option<&str>) {
            let groups = vec!["a".to_owned(), "b".to_owned()];
            let impersonation = Some(Impersonation { groups, ..Impersonation::of_user("jane") });
            let config = Config { auth, impersonation, ..Config::new("http://localhost:1").unwrap() };
            let turns = Turns::new(&[(200, None)]);
            let mut client = Client::new(config).unwrap();
            Arc::get_mut(&mut client.inner).unwrap().transport =
                Box::new(crate::transport::ServiceTransport::new(turns.clone()));
            client.get("/api").await.unwrap();
            client.get_document("/api").await.unwrap();
            let pods = client.list_watch(&ApiResource::default(), &Scope::Cluster);
            drop(pods.list(ListOptions::default()).await.unwrap());
            drop(pods.watch(ListOptions::default()).await.unwrap());
            let headers = turns.headers();
            assert_eq!(headers.len(), 4);
            for headers in headers {
                assert_eq!(headers["impersonate-user"], "jane");
                assert_eq!(headers.get_all("impersonate-group").iter().collect::<Vec<_>>(), ["a", "b"]);
                assert_eq!(headers.get(AUTHORIZATION).map(|value| value.to_str().unwrap()), authorization);
            }
        }
        check(crate::config::Auth::None, None).await;
        check(crate::config::Auth::Token("t".to_owned()), Some("Bearer t")).await;
        #[cfg(feature = "exec")]
        {
            let credential = r#"{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"of-plugin"}}"#;
            let plugin = crate::config::ExecPlugin {
                command: "echo".into(),
                args: vec![credential.to_owned()],
                env: Vec::new(),
                version: crate::config::ExecVersion::V1,
                interactive: crate::config::InteractiveMode::Never,
                install_hint: String::new(),
                cluster: None,
            };
            check(crate::config::Auth::Exec(Box::new(plugin)), Some("Bearer of-plugin")).await;
        }
    }

    #[test]
    fn client_without_an_impersonated_user_for_its_groups_is_rejected() {
        let without_user = Impersonation { groups: vec!["a".to_owned()], ..Impersonation::default() };
        let config = Config { impersonation: Some(without_user), ..Config::new("http://localhost:1").unwrap() };
        assert!(Client::new(config).is_err(), "groups without a user are accepted");
    }

    #[tokio::test]
    async fn document_above_its_limit_is_an_error() {
        let half = Bytes::from(vec![b' '; DOCUMENT_LIMIT_BYTES / 2]);
        let read = async |surplus: usize| {
            let chunks = [half.clone(), half.clone(), half.slice(..surplus)];
            let frames = chunks.map(|chunk| Ok::<_, Infallible>(http_body::Frame::data(chunk)));
            collect(ResponseBody::new(StreamBody::new(Pieces(frames.into())))).await.map(|document| document.len())
        };
        assert_eq!(read(0).await, Ok(DOCUMENT_LIMIT_BYTES));
        for surplus in [1, 2] {
            assert_eq!(read(surplus).await, Err(Problem::malformed("a document of more than 8388608 bytes")));
        }
    }

    #[tokio::test]
    async fn client_has_the_namespace_of_its_configuration() {
        let config = Config { namespace: "shop".to_owned(), ..Config::new("http://localhost:1").unwrap() };
        assert_eq!(Client::new(config).unwrap().namespace(), "shop");
        let service = crate::transport::ServiceTransport::new(Scripted(StatusCode::OK, None, ""));
        assert_eq!(Client::with_transport(service, "other").namespace(), "other");
    }
}
