//! The shell around the service: listeners, TLS, connections, and a graceful end.
//!
//! ```text
//!  accept ─▶ first byte ─▶ TLS handshake ─┬─h2──────▶ gather ─▶ hyper ─▶ service
//!              │                            └─http/1.1─▶ crate::h1 ─▶ hyper ─▶ service
//!              │ plain HTTP? one helpful line, closed
//!              └ a peer that asks or takes nothing is let go: crate::peer
//! ```

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
use rustls::ServerConfig;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tracing::{debug, warn};

use crate::body::Body;
use crate::gather::{Cork, Gathering, gather};
use crate::h1::{Answer, Http1};
use crate::peer::{
    AnsweredEarly, Counted, GOODBYE_TIMEOUT, Linger, Looks, Order, Peer, StreamExecutor, Unauthenticated, Verdict,
    WatchedIo,
};
use crate::seats::SWEEP_INTERVAL;
use crate::service::ApiService;

/// Connections served at once; further ones wait in the kernel's backlog.
const CONNECTIONS_MAX: usize = 65_536;
/// A TLS handshake that takes longer is given up.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of HTTP/1.1 request headers taken; more is a 431. The same bounds what waits to be written
/// for a peer that does not read: a response is asked for more only below it. (kube-apiserver takes
/// 1 MiB of headers; no URL has more than 64 KiB here, and other headers are small.)
const HTTP1_BUFFER_BYTES_MAX: usize = 128 * 1024;
/// Streams open on one HTTP/2 connection, watches included (`--http2-max-streams-per-connection`):
/// kube-apiserver's 100. A stream beyond it is refused (`REFUSED_STREAM`); clients know the limit from
/// the settings and open another connection.
pub const HTTP2_STREAMS_MAX: u32 = 100;
/// Bytes a stalled HTTP/2 stream may hold in the server, besides the chunk it was to take next.
const HTTP2_STREAM_BUFFER_BYTES_MAX: usize = 64 * 1024;
/// How often an idle HTTP/2 peer is asked for a sign of life, and how long it may take to give one.
const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(30);
const HTTP2_PING_TIMEOUT: Duration = Duration::from_secs(15);
/// After this silence the kernel asks whether the other machine is still there (kube-apiserver's 3
/// minutes): HTTP/1.1 has no signs of life of its own, and a watch may be silent for half an hour.
const TCP_KEEPALIVE: Duration = Duration::from_secs(180);
/// Bytes of HTTP/2 request headers taken, as for HTTP/1.
const HTTP2_HEADER_BYTES_MAX: u32 = HTTP1_BUFFER_BYTES_MAX as u32;
/// How long requests may go on after a shutdown began.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// A server that listens. Dropping it closes the listener and cuts the connections;
/// [`Serving::shutdown`] ends them in order.
#[derive(Debug)]
pub struct Serving {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Serving {
    /// The address bound, with the port the system chose when 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops accepting, lets running requests finish for at most ten seconds, then returns.
    /// Watches must have been ended before (see [`crate::ApiServer::shutdown`]), or they use up
    /// that time.
    pub async fn shutdown(mut self) {
        let _ = self.stop.send(true);
        let _ = (&mut self.task).await;
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Serves on a bound listener. With `tls: None` it speaks plain HTTP (HTTP/2 by prior knowledge),
/// which only loopback should see.
///
/// # Errors
/// What the system says when the listener cannot be used.
pub(crate) fn serve(
    service: ApiService,
    listener: std::net::TcpListener,
    tls: Option<Arc<ServerConfig>>,
    http2_streams_max: u32,
) -> io::Result<Serving> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let address = listener.local_addr()?;
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(accept(listener, service, tls.map(TlsAcceptor::from), http2_streams_max, stopped));
    Ok(Serving { address, stop, task })
}

async fn accept(
    listener: TcpListener,
    service: ApiService,
    tls: Option<TlsAcceptor>,
    http2_streams_max: u32,
    mut stopped: watch::Receiver<bool>,
) {
    let (builder, http1) = (Arc::new(any_builder(http2_streams_max)), Arc::new(http1_builder()));
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    // Connections are tasks of their own; they end with this set, and so with the server.
    let mut connections = tokio::task::JoinSet::new();
    let mut sweep = tokio::time::interval(SWEEP_INTERVAL);
    sweep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let accepted = tokio::select! {
            accepted = async {
                let place = Arc::clone(&places).acquire_owned().await.expect("never closed");
                listener.accept().await.map(|(stream, peer)| (stream, peer, place))
            } => accepted,
            Some(_) = connections.join_next() => continue,
            _ = sweep.tick() => {
                service.sweep(Instant::now());
                continue;
            }
            _ = stopped.changed() => break,
        };
        let (stream, peer, place) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors, most likely: breathe, or this loop burns a core.
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
            let _place = place;
            if let Err(error) = connection.run(stream).await {
                debug!(%peer, %error, "connection ended");
            }
        });
    }
    drop(listener);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN_TIMEOUT, drained).await.is_err() {
        warn!("requests did not finish within {DRAIN_TIMEOUT:?}; their connections are cut");
    }
}

/// For a connection that says by its first bytes what it speaks, or was found to speak HTTP/2.
fn any_builder(http2_streams_max: u32) -> auto::Builder<StreamExecutor> {
    let mut builder = auto::Builder::new(StreamExecutor);
    builder
        .http1()
        .timer(TokioTimer::new())
        // Silence is looked after by `peer`, for both protocols.
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

type ConnectionError = Box<dyn std::error::Error + Send + Sync>;

/// What a connection needs to be served.
struct Connection {
    service: ApiService,
    tls: Option<TlsAcceptor>,
    builder: Arc<auto::Builder<StreamExecutor>>,
    http1: Arc<http1::Builder>,
    stopped: watch::Receiver<bool>,
}

impl Connection {
    async fn run(self, stream: TcpStream) -> Result<(), ConnectionError> {
        // A watch is many small writes; waiting to fill a segment would delay every event.
        let _ = stream.set_nodelay(true);
        let _ = SockRef::from(&stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(TCP_KEEPALIVE));
        let peer = Peer::new();
        let Some(tls) = self.tls.clone() else {
            return self.serve(WatchedIo::new(stream, Arc::clone(&peer)), false, peer).await;
        };
        let Some(stream) = refuse_plain_http(stream).await? else {
            return Ok(());
        };
        let stream = WatchedIo::new(stream, Arc::clone(&peer));
        // In boxes: what only the handshake needs goes with it, and does not stay part of this task.
        let mut stream = Box::new(Box::pin(tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream))).await??);
        match stream.get_ref().1.alpn_protocol() {
            Some(b"h2") => {
                // `gather` bounds what TLS keeps.
                stream.get_mut().1.set_buffer_limit(None);
                self.serve(stream, true, peer).await
            }
            _ => self.serve_http1(stream, peer).await,
        }
    }

    /// Whichever protocol it speaks. `many`: many streams share the connection, and their frames go
    /// out together.
    async fn serve(
        self,
        io: impl AsyncRead + AsyncWrite + Cork + Send + Unpin + 'static,
        many: bool,
        peer: Arc<Peer>,
    ) -> Result<(), ConnectionError> {
        let answer = answers(self.service, &peer);
        let service =
            hyper::service::service_fn(move |request| answer(request).map(Ok::<Response<Counted>, Infallible>));
        let (io, outlet) = gather(io, many);
        let connection = self.builder.serve_connection_with_upgrades(TokioIo::new(io), service).into_owned();
        let connection = Gathering { connection: Box::pin(connection), outlet };
        until_the_end(connection, |both| both.connection.as_mut().graceful_shutdown(), peer, self.stopped).await
    }

    async fn serve_http1(
        self,
        io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        peer: Arc<Peer>,
    ) -> Result<(), ConnectionError> {
        let connection = Http1::new(io, self.http1, Arc::new(answers(self.service, &peer)));
        until_the_end(connection, Http1::graceful_shutdown, peer, self.stopped).await
    }
}

/// How the requests of one connection are answered.
fn answers(service: ApiService, peer: &Arc<Peer>) -> impl Fn(Request<Incoming>) -> Answer + Send + Sync + 'static {
    let peer = Arc::clone(peer);
    move |mut request| {
        let (service, open, peer) = (service.clone(), peer.request(), Arc::clone(&peer));
        Box::pin(async move {
            let response = match refused_host(&request) {
                Some(why) => bad_request(why),
                None => {
                    request.extensions_mut().insert(peer.bodies().clone());
                    let version = request.version();
                    let mut response = service.handle(request).await;
                    if response.extensions_mut().remove::<Unauthenticated>().is_some() && version == Version::HTTP_2 {
                        peer.unauthenticated();
                    }
                    if response.extensions_mut().remove::<AnsweredEarly>().is_some() {
                        peer.answered_early();
                    }
                    response
                }
            };
            let (head, body) = response.into_parts();
            Response::from_parts(head, open.answered(body).await)
        })
    }
}

/// What is wrong with the `Host` headers of a request, in the words of Go's `net/http`
/// (`readRequest` in `server.go` and `request.go`). HTTP/2 has `:authority` instead.
fn refused_host(request: &Request<Incoming>) -> Option<&'static str> {
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

/// The bytes of RFC 3986's `host [":" port]`, without looking where they stand (`ValidHostHeader`).
fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!$%&'()*+,-.:;=[]_~".contains(&byte)
}

/// A 400 as Go's server gives one before any handler runs.
fn bad_request(why: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::full(format!("400 Bad Request{why}")));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Runs a connection until it ends, its peer is let go, or the server stops; `goodbye` tells it to
/// end in order.
async fn until_the_end<F>(
    mut connection: F,
    goodbye: impl Fn(&mut F),
    peer: Arc<Peer>,
    mut stopped: watch::Receiver<bool>,
) -> Result<(), ConnectionError>
where
    F: Future<Output = Result<(), ConnectionError>> + Unpin,
{
    peer.run_by(&std::future::poll_fn(|cx| Poll::Ready(cx.waker().clone())).await);
    let mut looks = Looks::new(Instant::now());
    loop {
        let due = match looks.look(&peer, Instant::now()) {
            Verdict::Fine(due) => due,
            Verdict::Idle => {
                goodbye(&mut connection);
                return tokio::time::timeout(GOODBYE_TIMEOUT, connection).await?;
            }
            Verdict::Stalled => return Err("the peer does not read".into()),
        };
        // Looked at before the connection is polled, since what wakes this task may be an order alone.
        let turn = std::future::poll_fn(|cx| match peer.take_order() {
            Some(order) => Poll::Ready(Err(order)),
            None => Pin::new(&mut connection).poll(cx).map(Ok),
        });
        tokio::select! {
            biased;
            turn = turn => match turn {
                Ok(ended) => return ended,
                Err(Order::End) => goodbye(&mut connection),
                Err(Order::Cut) => return Err("the peer was cut".into()),
            },
            () = tokio::time::sleep_until(due) => {}
            // An error is the end of the server as well: nobody can say stop any more.
            _ = stopped.changed() => break,
        }
    }
    goodbye(&mut connection);
    connection.await
}

/// A TLS record begins with byte 22. Somebody who speaks plain HTTP gets the line that Go's server
/// gives, instead of a TLS alert that no HTTP client can show.
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
