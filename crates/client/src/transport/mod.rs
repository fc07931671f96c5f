//! Requests to one server: [`Transport`], over the network ([`HttpTransport`]) or to a tower service in
//! this process ([`ServiceTransport`]).
//!
//! The transport uses HTTP/2 if the server supports it (ALPN), with pings, so that a dead
//! connection is detected within seconds. Otherwise it uses HTTP/1.1 with one connection per watch.
//!
//! A server limits the streams per HTTP/2 connection (kube-apiserver: 100 by default). A request above
//! the limit would wait in the client until another stream ends, which takes minutes for a watch.
//! Requests are therefore spread: a connection carries at most [`TransportOptions::streams_max`]
//! streams, then another connection is opened.

mod addresses;
mod body;
mod connect;
mod dial;
mod gzip;
mod reloaded_tls;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
mod tls;
#[cfg(all(test, feature = "tls"))]
mod tls_tests;

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tower_service::Service;

pub use self::body::{BoxError, RequestBody, ResponseBody};
pub use self::connect::ProxyUrl;
pub use self::dial::{Dialed, Dialer, Protocols};
pub(crate) use self::gzip::decompressed;
pub use self::reloaded_tls::TLS_FILES_INTERVAL;

use self::connect::{Connector, bare};
use self::reloaded_tls::ReloadedTls;
use crate::config::{ConfigError, TlsOptions};
use crate::problem::Problem;

/// The flow control window of one HTTP/2 stream in bytes: the amount that a server may send before
/// the consumer reads.
pub const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;

/// The largest flow control window of HTTP/2 (RFC 9113, section 6.9.1), in bytes.
const WINDOW_BYTES_MAX: u32 = (1 << 31) - 1;

/// The maximum number of connections with `streams_max` streams each. Further streams share the
/// least used connections, and some may wait.
pub const CONNECTIONS_MAX: usize = 64;

/// Time after which an idle connection is closed.
const IDLE_LIMIT: Duration = Duration::from_secs(90);

/// The number of idle HTTP/1.1 connections to keep. Further idle connections are closed.
const IDLE_MAX: usize = 8;

/// The options of connections.
#[derive(Clone, Debug)]
pub struct TransportOptions {
    /// The proxy for all connections.
    pub proxy: Option<ProxyUrl>,
    /// Time to establish a connection, including proxy and TLS.
    pub connect_limit: Duration,
    /// An HTTP/2 connection with open streams is pinged after this time without input.
    pub ping_interval: Duration,
    /// The time limit for the answer to a ping. Then the connection is closed.
    pub ping_limit: Duration,
    /// Streams per HTTP/2 connection; at least 1. The window of the connection follows:
    /// [`TransportOptions::connection_window_bytes`].
    pub streams_max: usize,
}

impl Default for TransportOptions {
    fn default() -> Self {
        TransportOptions {
            proxy: None,
            connect_limit: Duration::from_secs(10),
            ping_interval: Duration::from_secs(15),
            ping_limit: Duration::from_secs(10),
            // Below the 100 of kube-apiserver, with room for short requests.
            streams_max: 80,
        }
    }
}

impl TransportOptions {
    /// Time without input after which a connection with open streams is closed, for any kind of
    /// failure on the path. client-go needs 45 s.
    pub fn silence_limit(&self) -> Duration {
        self.ping_interval + self.ping_limit
    }

    /// The flow control window of one HTTP/2 connection in bytes, shared by its streams: [`STREAM_WINDOW_BYTES`] for
    /// each of [`TransportOptions::streams_max`] streams. Unread streams delay others only if all
    /// [`CONNECTIONS_MAX`] connections are full, so that a connection carries more than `streams_max` streams. With a
    /// smaller window, a few unread streams use it up, and the server can send nothing more on the connection. The window costs no memory: the windows of the
    /// streams bound the bytes that are not read. At most 2 GiB, the limit of HTTP/2; client-go has 1 GiB
    /// (`transportDefaultConnFlow` of golang.org/x/net/http2).
    pub fn connection_window_bytes(&self) -> u32 {
        let streams = u32::try_from(self.streams_max.max(1)).unwrap_or(u32::MAX);
        streams.saturating_mul(STREAM_WINDOW_BYTES).min(WINDOW_BYTES_MAX)
    }
}

/// Sends requests and returns responses. The path of a request is absolute; the transport adds
/// scheme and authority.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// Sends the request.
    ///
    /// # Errors
    /// [`Problem::Disconnected`] if there is no response. An HTTP error status is a response.
    async fn send(&self, request: Request<RequestBody>) -> Result<Response<ResponseBody>, Problem>;
}

/// A [`Transport`] over the network. Cheap to clone; clones share connections.
#[derive(Clone)]
pub struct HttpTransport {
    inner: Arc<Connections>,
}

struct Connections {
    options: TransportOptions,
    connector: Connector,
    lanes: Mutex<Lanes>,
    scheme: http::uri::Scheme,
    authority: http::uri::Authority,
}

/// The lanes for new requests.
#[derive(Default)]
struct Lanes {
    lanes: Vec<Arc<Lane>>,
    /// The number of the TLS options of these lanes: [`ReloadedTls::number`].
    tls: u64,
}

/// A client with its own HTTP/2 connection.
struct Lane {
    client: legacy::Client<Connector, RequestBody>,
    open: AtomicUsize,
}

/// An open request or response of a lane. Counts until it is dropped.
struct OpenStream(Arc<Lane>);

impl OpenStream {
    fn new(lane: &Arc<Lane>) -> Self {
        lane.open.fetch_add(1, Ordering::Relaxed);
        OpenStream(lane.clone())
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for HttpTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HttpTransport({}://{})", self.inner.scheme, self.inner.authority)
    }
}

impl HttpTransport {
    /// A transport to the server of this URL. Connects when the first request is sent.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] when the URL or the certificates cannot be used.
    pub fn new(server: &Uri, tls: TlsOptions, options: TransportOptions) -> Result<Self, ConfigError> {
        let invalid = |why: &str| ConfigError::invalid(format!("the server's address {server}"), why);
        let scheme = server.scheme().cloned().ok_or_else(|| invalid("has no scheme"))?;
        let authority = server.authority().cloned().ok_or_else(|| invalid("has no host"))?;
        let host = bare(authority.host()).to_owned();
        let tls = if scheme == http::uri::Scheme::HTTPS {
            Some(Arc::new(ReloadedTls::new(&host, tls, Protocols::Any)?))
        } else {
            None
        };
        let connector = Connector {
            tls,
            host,
            proxy: options.proxy.clone(),
            connect_limit: options.connect_limit,
            ping_interval: options.ping_interval,
            ping_limit: options.ping_limit,
        };
        let lanes = Mutex::default();
        Ok(HttpTransport { inner: Arc::new(Connections { options, connector, lanes, scheme, authority }) })
    }

    /// The number of running requests per connection, including streaming responses.
    pub fn open_streams(&self) -> Vec<usize> {
        let lanes = self.inner.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.lanes.iter().map(|lane| lane.open.load(Ordering::Relaxed)).collect()
    }
}

impl Connections {
    /// Returns a lane with room. Empty lanes except the first are dropped. After a change of the TLS files all lanes
    /// are dropped, and a connection closes when its last stream ends.
    fn lane(&self) -> OpenStream {
        let mut held = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let Lanes { lanes, tls } = &mut *held;
        let number = self.connector.tls.as_ref().map_or(0, |tls| tls.number());
        if std::mem::replace(tls, number) != number {
            lanes.clear();
        }
        let open = |lane: &Arc<Lane>| lane.open.load(Ordering::Relaxed);
        if let Some(lane) = lanes.iter().find(|lane| open(lane) < self.options.streams_max.max(1)) {
            let chosen = OpenStream::new(lane);
            let mut first = true;
            lanes.retain(|lane| std::mem::take(&mut first) || open(lane) > 0);
            return chosen;
        }
        if lanes.len() < CONNECTIONS_MAX {
            lanes.push(Arc::new(Lane { client: self.client(), open: AtomicUsize::new(0) }));
            return OpenStream::new(&lanes[lanes.len() - 1]);
        }
        let least = lanes.iter().min_by_key(|lane| open(lane)).expect("there are lanes");
        OpenStream::new(least)
    }

    fn client(&self) -> legacy::Client<Connector, RequestBody> {
        legacy::Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_LIMIT)
            .pool_max_idle_per_host(IDLE_MAX)
            .http2_keep_alive_interval(self.options.ping_interval)
            .http2_keep_alive_timeout(self.options.ping_limit)
            .http2_keep_alive_while_idle(false)
            .http2_initial_stream_window_size(STREAM_WINDOW_BYTES)
            .http2_initial_connection_window_size(self.options.connection_window_bytes())
            .build(self.connector.clone())
    }
}

#[async_trait]
impl Transport for HttpTransport {
    async fn send(&self, mut request: Request<RequestBody>) -> Result<Response<ResponseBody>, Problem> {
        let mut parts = std::mem::take(request.uri_mut()).into_parts();
        parts.scheme = Some(self.inner.scheme.clone());
        parts.authority = Some(self.inner.authority.clone());
        *request.uri_mut() = Uri::from_parts(parts).map_err(disconnected)?;
        if let Some(tls) = &self.inner.connector.tls {
            tls.refresh().await;
        }
        let open = self.inner.lane();
        let response = open.0.client.request(request).await.map_err(disconnected)?;
        Ok(response.map(|body| ResponseBody::new(TrackedBody { body, _open: open })))
    }
}

/// A response body that occupies a stream of its connection until it is dropped.
struct TrackedBody {
    body: Incoming,
    _open: OpenStream,
}

impl Body for TrackedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.body).poll_frame(context).map_err(BoxError::from)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A [`Transport`] to a server in the same process: any tower service of requests.
#[derive(Clone, Debug)]
pub struct ServiceTransport<S> {
    service: S,
}

impl<S> ServiceTransport<S> {
    /// A transport to this service, which is cloned for every request.
    pub fn new(service: S) -> Self {
        ServiceTransport { service }
    }
}

#[async_trait]
impl<S, B> Transport for ServiceTransport<S>
where
    S: Service<Request<RequestBody>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    async fn send(&self, request: Request<RequestBody>) -> Result<Response<ResponseBody>, Problem> {
        let mut service = self.service.clone();
        let failed = |error: S::Error| {
            let error: BoxError = error.into();
            Problem::disconnected(error.to_string()).caused_by(error)
        };
        std::future::poll_fn(|context| service.poll_ready(context)).await.map_err(failed)?;
        let response = service.call(request).await.map_err(failed)?;
        Ok(response.map(ResponseBody::new))
    }
}

/// Formats a network error with its causes, because hyper's own text does not contain them.
pub(crate) fn disconnected(error: impl Into<BoxError>) -> Problem {
    let error = error.into();
    let mut why = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let text = cause.to_string();
        if !why.contains(&text) {
            why = format!("{why}: {text}");
        }
        source = cause.source();
    }
    // rustls explains this error by a link only, so the text is added here.
    let why = why.split(": https://docs.rs/").next().unwrap_or_default().to_owned();
    Problem::disconnected(why).caused_by(error)
}

/// True if an open connection was lost before the response, or was reset while it was opened. A refused connection, a
/// TLS failure and an invalid response are other failures: another try would fail as well.
pub(crate) fn is_connection_lost(problem: &Problem) -> bool {
    let Problem::Disconnected { cause: Some(cause), .. } = problem else { return false };
    let Some(error) = cause.get().downcast_ref::<legacy::Error>() else { return false };
    let mut causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    if error.is_connect() {
        let is_reset = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionReset;
        return causes.any(|cause| cause.downcast_ref().is_some_and(is_reset));
    }
    // hyper reports a reset, an end of the stream, GOAWAY and missing answers to pings in different ways.
    causes.all(|cause| {
        !is_tls_failure(cause)
            && cause.downcast_ref().is_none_or(|error: &hyper::Error| {
                !error.is_parse() && !error.is_user() && !error.is_parse_too_large() && !error.is_parse_status()
            })
    })
}

/// Whether TLS failed. A server that uses TLS 1.3 rejects a client certificate after the handshake of the client.
fn is_tls_failure(error: &(dyn std::error::Error + 'static)) -> bool {
    #[cfg(feature = "tls")]
    {
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        error.is::<rustls::Error>() || inner.is_some_and(|inner| inner.is::<rustls::Error>())
    }
    #[cfg(not(feature = "tls"))]
    {
        let _ = error;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "tls")]
    #[test]
    fn alert_after_the_handshake_is_a_tls_failure() {
        use std::io::{Error, ErrorKind};
        let alert = rustls::Error::AlertReceived(rustls::AlertDescription::CertificateRequired);
        assert!(is_tls_failure(&Error::new(ErrorKind::InvalidData, alert.clone())) && is_tls_failure(&alert));
        assert!(!is_tls_failure(&Error::from(ErrorKind::ConnectionReset)));
        assert!(!is_tls_failure(&Error::new(ErrorKind::UnexpectedEof, "peer closed connection")));
    }

    #[tokio::test]
    async fn streams_above_the_connection_limit_share_the_least_used_connections() {
        let server = "http://localhost:1".parse().unwrap();
        let options = TransportOptions { streams_max: 2, ..TransportOptions::default() };
        let transport = HttpTransport::new(&server, TlsOptions::default(), options).unwrap();
        let mut open: Vec<OpenStream> = (0..2 * CONNECTIONS_MAX).map(|_| transport.inner.lane()).collect();
        assert_eq!(transport.open_streams(), [2; CONNECTIONS_MAX]);
        open.extend((0..CONNECTIONS_MAX).map(|_| transport.inner.lane()));
        assert_eq!(transport.open_streams(), [3; CONNECTIONS_MAX], "the surplus is not spread evenly");
    }

    #[test]
    fn connection_window_has_room_for_the_windows_of_all_streams() {
        fn check(streams_max: usize, expected: u32) {
            let options = TransportOptions { streams_max, ..TransportOptions::default() };
            assert_eq!(options.connection_window_bytes(), expected, "{streams_max} streams");
        }
        check(0, STREAM_WINDOW_BYTES);
        check(1, STREAM_WINDOW_BYTES);
        check(TransportOptions::default().streams_max, 80 * STREAM_WINDOW_BYTES);
        check(2047, 2047 * STREAM_WINDOW_BYTES);
        for too_many in [2048, usize::MAX] {
            check(too_many, WINDOW_BYTES_MAX);
        }
    }
}
