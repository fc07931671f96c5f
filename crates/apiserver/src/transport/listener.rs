//! Accepts connections, detects their protocol, serves them, and drains them at the shutdown.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt as _;
use http::header::{CONNECTION, CONTENT_TYPE, HOST};
use http::{HeaderValue, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use listwatch_access::PeerCertificates;
use listwatch_webhook_admission::LoopbackRegistration;
use rustls::ServerConfig;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tracing::{debug, warn};

use crate::flow_control::in_flight::EXPIRY_INTERVAL;
use crate::request::client_address::ClientAddress;
use crate::response::body::Body;
use crate::response::extensions::{GoAway, RequestBodyUnread, Unauthenticated};
use crate::service::ApiService;
use crate::transport::gather::{Cork, Gathering, gather};
use crate::transport::http1::{Answer, Http1};
use crate::transport::peer::{
    CLOSE_TIMEOUT, Command, Linger, MonitoredIo, Peer, PeerMonitor, PeerState, SentBody, StreamExecutor,
};

/// The largest number of open connections. Further connections wait in the kernel's backlog.
const CONNECTIONS_MAX: usize = 65_536;
/// The time limit for a TLS handshake. After that time the connection is closed.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of the headers of an HTTP/1.1 request, in bytes. Larger headers are rejected with 431. The limit also
/// applies to the unsent bytes of a response to a slow peer, because hyper polls the body only below this limit.
/// kube-apiserver accepts 1 MiB of headers. In this server, a URL has at most 64 KiB, and other headers are small.
const HTTP1_BUFFER_BYTES_MAX: usize = 128 * 1024;
/// The largest number of streams on one HTTP/2 connection, including watches (`--http2-max-streams-per-connection`);
/// the same as kube-apiserver's. A further stream is rejected with `REFUSED_STREAM`. Clients read the limit from the
/// SETTINGS frame and open another connection.
pub const HTTP2_STREAMS_MAX: u32 = 100;
/// The largest buffer of a stalled HTTP/2 stream, in addition to its next chunk, in bytes.
const HTTP2_STREAM_BUFFER_BYTES_MAX: usize = 64 * 1024;
/// The interval of PING frames to an idle HTTP/2 peer.
const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(30);
/// The time limit for the response to a PING frame. After that time the connection is closed.
const HTTP2_PING_TIMEOUT: Duration = Duration::from_secs(15);
/// The idle time after which the kernel sends TCP keep-alive probes (kube-apiserver's 3 minutes). HTTP/1.1 has no
/// pings, and a watch may be silent for half an hour.
const TCP_KEEPALIVE: Duration = Duration::from_secs(180);
/// The largest headers of an HTTP/2 request, in bytes; the same as for HTTP/1.1.
const HTTP2_HEADER_BYTES_MAX: u32 = HTTP1_BUFFER_BYTES_MAX as u32;
/// The time limit for open requests after the start of the shutdown. After that time their connections are closed.
/// Watches with a longer grace period have that period instead.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// The time limit for closing the connections after the last watch has ended.
const WATCH_CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A listener that accepts connections. Dropping the value closes the listener and its connections at once;
/// [`Serving::shutdown`] lets open requests finish.
#[derive(Debug)]
pub struct Serving {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
    /// A task that ends with the listener.
    companion: Option<AbortOnDrop>,
    /// Makes the server call its own webhooks at this listener.
    loopback: Option<LoopbackRegistration>,
}

/// A task that is aborted when the value is dropped.
#[derive(Debug)]
struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Serving {
    /// Runs a task until this value is dropped.
    pub(crate) fn with_task(mut self, task: impl Future<Output = ()> + Send + 'static) -> Self {
        self.companion = Some(AbortOnDrop(tokio::spawn(task)));
        self
    }

    /// Makes the server call its own webhooks at this listener until the listener closes.
    pub(super) fn with_loopback(mut self, loopback: LoopbackRegistration) -> Self {
        self.loopback = Some(loopback);
        self
    }

    /// Returns the bound address. If port 0 was requested, the address has the port that the operating system chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops accepting connections, and waits up to ten seconds for open requests, or up to the grace period of watches
    /// if that is longer. Call [`ApiServer::shutdown`](crate::ApiServer::shutdown) first. Otherwise open watches do not
    /// end, and this method waits for the whole time.
    pub async fn shutdown(mut self) {
        self.loopback = None;
        let _ = self.stop.send(true);
        let _ = (&mut self.task).await;
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Serves on a bound listener. Without TLS, serves plain HTTP/1.1, and HTTP/2 by prior knowledge.
///
/// # Errors
/// The error of the operating system if the listener cannot be used.
pub(crate) fn serve(
    service: ApiService,
    listener: std::net::TcpListener,
    tls: Option<Arc<ServerConfig>>,
    http2_streams_max: u32,
    watch_grace: Duration,
) -> io::Result<Serving> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let address = listener.local_addr()?;
    let (stop, stopped) = watch::channel(false);
    let drain_timeout = DRAIN_TIMEOUT.max(watch_grace + WATCH_CLOSE_TIMEOUT);
    let accept = accept(listener, service, tls.map(TlsAcceptor::from), http2_streams_max, stopped);
    let task = tokio::spawn(async move {
        let mut connections = accept.await;
        let drained = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(drain_timeout, drained).await.is_err() {
            warn!("requests did not finish within {drain_timeout:?}; their connections are closed");
        }
    });
    Ok(Serving { address, stop, task, companion: None, loopback: None })
}

/// Accepts connections until the shutdown. Returns the connections that are still open.
async fn accept(
    listener: TcpListener,
    service: ApiService,
    tls: Option<TlsAcceptor>,
    http2_streams_max: u32,
    mut stopped: watch::Receiver<bool>,
) -> JoinSet<()> {
    let (builder, http1) = (Arc::new(any_builder(http2_streams_max)), Arc::new(http1_builder()));
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    // The set owns the tasks of the connections, so that dropping the server aborts them.
    let mut connections = JoinSet::new();
    let mut expiry = tokio::time::interval(EXPIRY_INTERVAL);
    expiry.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let accepted = tokio::select! {
            accepted = async {
                let slot = Arc::clone(&slots).acquire_owned().await.expect("never closed");
                listener.accept().await.map(|(stream, peer)| (stream, peer, slot))
            } => accepted,
            Some(_) = connections.join_next() => continue,
            _ = expiry.tick() => {
                service.abort_expired(Instant::now());
                continue;
            }
            _ = stopped.changed() => break,
        };
        let (stream, peer, slot) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // The usual cause is a lack of file descriptors. Without a pause, the loop would use a whole core.
                warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let connection = Connection {
            service: service.clone(),
            tls: tls.clone(),
            builder: Arc::clone(&builder),
            http1: Arc::clone(&http1),
            stopped: stopped.clone(),
        };
        connections.spawn(async move {
            let _slot = slot;
            if let Err(error) = connection.run(stream).await {
                debug!(%peer, %error, "connection ended");
            }
        });
    }
    connections
}

/// Creates the builder for HTTP/2 connections, and for plain connections whose first bytes determine the protocol.
fn any_builder(http2_streams_max: u32) -> auto::Builder<StreamExecutor> {
    let mut builder = auto::Builder::new(StreamExecutor);
    builder
        .http1()
        .timer(TokioTimer::new())
        // `peer` has the timeouts of both protocols.
        .header_read_timeout(None)
        .max_buf_size(HTTP1_BUFFER_BYTES_MAX)
        .pipeline_flush(false);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(http2_streams_max)
        .max_send_buf_size(HTTP2_STREAM_BUFFER_BYTES_MAX)
        .max_header_list_size(HTTP2_HEADER_BYTES_MAX)
        .keep_alive_interval(HTTP2_PING_INTERVAL)
        .keep_alive_timeout(HTTP2_PING_TIMEOUT);
    builder
}

fn http1_builder() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .max_buf_size(HTTP1_BUFFER_BYTES_MAX)
        .pipeline_flush(false);
    builder
}

/// The client of a connection.
struct Client {
    address: Option<ClientAddress>,
    certificates: Option<Arc<PeerCertificates>>,
}

type ConnectionError = Box<dyn std::error::Error + Send + Sync>;

/// A connection before its TLS handshake, with the settings of its listener.
struct Connection {
    service: ApiService,
    tls: Option<TlsAcceptor>,
    builder: Arc<auto::Builder<StreamExecutor>>,
    http1: Arc<http1::Builder>,
    stopped: watch::Receiver<bool>,
}

impl Connection {
    async fn run(self, stream: TcpStream) -> Result<(), ConnectionError> {
        // A watch sends many small writes. Nagle's algorithm would delay each event.
        let _ = stream.set_nodelay(true);
        let _ = SockRef::from(&stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(TCP_KEEPALIVE));
        let peer = Peer::new();
        let address = stream.peer_addr().ok().map(|address| ClientAddress(address.ip().to_canonical()));
        let Some(tls) = self.tls.clone() else {
            return self
                .serve(MonitoredIo::new(stream, Arc::clone(&peer)), false, peer, Client { address, certificates: None })
                .await;
        };
        let Some(stream) = refuse_plain_http(stream).await? else {
            return Ok(());
        };
        let stream = MonitoredIo::new(stream, Arc::clone(&peer));
        // The handshake is boxed, so that its memory is freed at its end and is not part of this task.
        let mut stream = Box::new(Box::pin(tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream))).await??);
        let chain = stream.get_ref().1.peer_certificates();
        let chain = chain.map(|chain| chain.iter().map(|der| der.to_vec()).collect());
        let client = Client { address, certificates: chain.and_then(PeerCertificates::new).map(Arc::new) };
        match stream.get_ref().1.alpn_protocol() {
            Some(b"h2") => {
                // `gather` limits the bytes that TLS buffers.
                stream.get_mut().1.set_buffer_limit(None);
                self.serve(stream, true, peer, client).await
            }
            _ => self.serve_http1(stream, peer, client).await,
        }
    }

    /// Serves HTTP/2, or the protocol that the first bytes determine. If `many` is set, the frames of all streams of a
    /// connection are gathered and written together.
    async fn serve(
        self,
        io: impl AsyncRead + AsyncWrite + Cork + Send + Unpin + 'static,
        many: bool,
        peer: Arc<Peer>,
        client: Client,
    ) -> Result<(), ConnectionError> {
        let answer = answers(self.service, &peer, client);
        let service =
            hyper::service::service_fn(move |request| answer(request).map(Ok::<Response<SentBody>, Infallible>));
        let (io, outlet) = gather(io, many);
        let connection = self.builder.serve_connection_with_upgrades(TokioIo::new(io), service).into_owned();
        let connection = Gathering { connection: Box::pin(connection), outlet };
        drive(connection, |both| both.connection.as_mut().graceful_shutdown(), peer, self.stopped).await
    }

    async fn serve_http1(
        self,
        io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        peer: Arc<Peer>,
        client: Client,
    ) -> Result<(), ConnectionError> {
        let connection = Http1::new(io, self.http1, Arc::new(answers(self.service, &peer, client)));
        drive(connection, Http1::graceful_shutdown, peer, self.stopped).await
    }
}

/// Returns the service for the requests of one connection.
fn answers(
    service: ApiService,
    peer: &Arc<Peer>,
    client: Client,
) -> impl Fn(Request<Incoming>) -> Answer + Send + Sync + 'static {
    let peer = Arc::clone(peer);
    move |mut request| {
        let (service, open, peer) = (service.clone(), peer.open_request(), Arc::clone(&peer));
        if let Some(certificates) = &client.certificates {
            request.extensions_mut().insert(Arc::clone(certificates));
        }
        if let Some(address) = client.address {
            request.extensions_mut().insert(address);
        }
        Box::pin(async move {
            let response = match invalid_host(&request) {
                Some(why) => bad_request(why),
                None => {
                    request.extensions_mut().insert(peer.bodies().clone());
                    let version = request.version();
                    // A client can start all streams of a connection at once. A request takes the large future of the
                    // service when its task runs, and not when it is queued.
                    let mut response = Box::pin(service.handle(request)).await;
                    if response.extensions_mut().remove::<Unauthenticated>().is_some() && version == Version::HTTP_2 {
                        peer.note_unauthenticated();
                    }
                    if response.extensions_mut().remove::<GoAway>().is_some() && version == Version::HTTP_2 {
                        peer.go_away();
                    }
                    if response.extensions_mut().remove::<RequestBodyUnread>().is_some() {
                        peer.note_answered_early();
                    }
                    response
                }
            };
            let (head, body) = response.into_parts();
            Response::from_parts(head, open.send_body(body).await)
        })
    }
}

/// Returns the error of an invalid `Host` header, with the text of Go's `net/http` (`readRequest` in `server.go` and
/// `request.go`). HTTP/2 has `:authority` instead.
fn invalid_host(request: &Request<Incoming>) -> Option<&'static str> {
    if request.version() > Version::HTTP_11 {
        return None;
    }
    let mut hosts = request.headers().get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (_, Some(_)) => Some(""),
        (None, None) if request.version() == Version::HTTP_11 => Some(": missing required Host header"),
        (Some(host), None) if !host.as_bytes().iter().all(|byte| is_host_byte(*byte)) => {
            Some(": malformed Host header")
        }
        _ => None,
    }
}

/// Whether RFC 3986 allows the byte in `host [":" port]`, at any position (`ValidHostHeader`).
fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!$%&'()*+,-.:;=[]_~".contains(&byte)
}

/// Creates the 400 response that Go's server sends before any handler runs.
fn bad_request(why: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::full(format!("400 Bad Request{why}")));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Runs a connection until the connection ends, the peer is idle or stalled, or the server stops. `drain` makes the
/// connection accept no further requests.
async fn drive<F>(
    mut connection: F,
    drain: impl Fn(&mut F),
    peer: Arc<Peer>,
    mut stopped: watch::Receiver<bool>,
) -> Result<(), ConnectionError>
where
    F: Future<Output = Result<(), ConnectionError>> + Unpin,
{
    peer.set_task(&std::future::poll_fn(|cx| Poll::Ready(cx.waker().clone())).await);
    let mut monitor = PeerMonitor::new(Instant::now());
    loop {
        let due = match monitor.check(&peer, Instant::now()) {
            PeerState::Active(due) => due,
            PeerState::Idle => {
                drain(&mut connection);
                return tokio::time::timeout(CLOSE_TIMEOUT, connection).await?;
            }
            PeerState::Stalled => return Err("the peer does not read".into()),
        };
        // Commands are read before the connection is polled, because a command alone can have woken this task.
        let progress = std::future::poll_fn(|cx| match peer.take_command() {
            Some(command) => Poll::Ready(Err(command)),
            None => Pin::new(&mut connection).poll(cx).map(Ok),
        });
        tokio::select! {
            biased;
            progress = progress => match progress {
                Ok(ended) => return ended,
                Err(Command::Drain) => drain(&mut connection),
                Err(Command::Abort) => return Err("the connection was aborted".into()),
            },
            () = tokio::time::sleep_until(due) => {}
            // The error means that the server was dropped, which also ends the connection.
            _ = stopped.changed() => break,
        }
    }
    drain(&mut connection);
    connection.await
}

/// Rejects plain HTTP on a TLS port. A TLS record starts with byte 22. A plain HTTP client cannot parse a TLS alert, so
/// the response is the plain-text error of Go's server.
async fn refuse_plain_http(mut stream: TcpStream) -> io::Result<Option<TcpStream>> {
    let mut first = [0_u8; 1];
    let peeked = tokio::time::timeout(HANDSHAKE_TIMEOUT, stream.peek(&mut first)).await;
    match peeked {
        Ok(Ok(1)) if !first[0].is_ascii_uppercase() => Ok(Some(stream)),
        Ok(Ok(1)) => {
            let answer = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";
            stream.write_all(answer).await?;
            stream.shutdown().await?;
            let mut linger = Linger::new(true);
            std::future::poll_fn(|cx| linger.poll(&mut stream, cx)).await;
            Ok(None)
        }
        Ok(Ok(_)) | Err(_) => Ok(None),
        Ok(Err(error)) => Err(error),
    }
}
