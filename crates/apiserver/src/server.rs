//! The shell around the service: listeners, TLS, connections, and a graceful end.
//!
//! ```text
//!  accept ─▶ first byte ─▶ TLS handshake ─▶ hyper (h2 or http/1.1 by ALPN) ─▶ service
//!              │ plain HTTP? one helpful line, closed
//! ```

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use rustls::ServerConfig;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tracing::{debug, warn};

use crate::service::ApiService;

/// Connections served at once; further ones wait in the kernel's backlog.
const CONNECTIONS_MAX: usize = 65_536;
/// A TLS handshake that takes longer is given up.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Request headers that take longer to arrive are given up (kube-apiserver's 32 s).
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(32);
/// Bytes of request headers taken; more is a 431 (kube-apiserver's 1 MiB is Go's default; hyper's
/// buffer bounds head and body reads together).
const HTTP1_BUFFER_BYTES_MAX: usize = 256 * 1024;
/// Streams on one HTTP/2 connection; a client opens another connection for more.
const HTTP2_STREAMS_MAX: u32 = 2_000;
/// Bytes a stalled HTTP/2 stream may hold in the server.
const HTTP2_STREAM_BUFFER_BYTES_MAX: usize = 64 * 1024;
/// How often an idle HTTP/2 peer is asked for a sign of life, and how long it may take to give one.
const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(30);
const HTTP2_PING_TIMEOUT: Duration = Duration::from_secs(15);
/// A connection that brings no request within this time is closed (kube-apiserver's 32 s to read
/// the headers of the first one).
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(32);
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
) -> io::Result<Serving> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let address = listener.local_addr()?;
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(accept(listener, service, tls.map(TlsAcceptor::from), stopped));
    Ok(Serving { address, stop, task })
}

async fn accept(
    listener: TcpListener,
    service: ApiService,
    tls: Option<TlsAcceptor>,
    mut stopped: watch::Receiver<bool>,
) {
    let builder = Arc::new(http_builder());
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    // Connections are tasks of their own; they end with this set, and so with the server.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = async {
                let place = Arc::clone(&places).acquire_owned().await.expect("never closed");
                listener.accept().await.map(|(stream, peer)| (stream, peer, place))
            } => accepted,
            Some(_) = connections.join_next() => continue,
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
        let (service, tls, builder, watcher) = (service.clone(), tls.clone(), Arc::clone(&builder), graceful.watcher());
        connections.spawn(async move {
            let _place = place;
            // A watch is many small writes; waiting to fill a segment would delay every event.
            let _ = stream.set_nodelay(true);
            if let Err(error) = connection(stream, service, tls, &builder, watcher).await {
                debug!(%peer, %error, "connection ended");
            }
        });
    }
    drop(listener);
    if tokio::time::timeout(DRAIN_TIMEOUT, graceful.shutdown()).await.is_err() {
        warn!("requests did not finish within {DRAIN_TIMEOUT:?}; their connections are cut");
    }
}

fn http_builder() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_READ_TIMEOUT)
        .max_buf_size(HTTP1_BUFFER_BYTES_MAX)
        .pipeline_flush(false);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(HTTP2_STREAMS_MAX)
        .max_send_buf_size(HTTP2_STREAM_BUFFER_BYTES_MAX)
        .max_header_list_size(HTTP2_HEADER_BYTES_MAX)
        .keep_alive_interval(HTTP2_PING_INTERVAL)
        .keep_alive_timeout(HTTP2_PING_TIMEOUT);
    builder
}

type ConnectionError = Box<dyn std::error::Error + Send + Sync>;

async fn connection(
    stream: TcpStream,
    service: ApiService,
    tls: Option<TlsAcceptor>,
    builder: &auto::Builder<TokioExecutor>,
    watcher: hyper_util::server::graceful::Watcher,
) -> Result<(), ConnectionError> {
    let asked = Arc::new(AtomicBool::new(false));
    let service = hyper::service::service_fn({
        let asked = Arc::clone(&asked);
        move |request: Request<Incoming>| {
            asked.store(true, Ordering::Relaxed);
            let service = service.clone();
            async move { Ok::<_, Infallible>(service.handle(request).await) }
        }
    });
    let Some(tls) = tls else {
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned();
        return until_silent(watcher.watch(connection), &asked).await;
    };
    let Some(stream) = refuse_plain_http(stream).await? else {
        return Ok(());
    };
    let stream = tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await??;
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned();
    until_silent(watcher.watch(connection), &asked).await
}

/// Runs a connection, but gives up on one that never asks for anything: it holds a place and a
/// file descriptor, and needs no credential to do so.
async fn until_silent(
    connection: impl Future<Output = Result<(), ConnectionError>>,
    asked: &AtomicBool,
) -> Result<(), ConnectionError> {
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        ended = &mut connection => return ended,
        () = tokio::time::sleep(FIRST_REQUEST_TIMEOUT) => {}
    }
    if asked.load(Ordering::Relaxed) { connection.await } else { Err("no request came".into()) }
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
            Ok(None)
        }
        Ok(Ok(_)) | Err(_) => Ok(None),
        Ok(Err(error)) => Err(error),
    }
}
