//! Connections to backends: TCP and TLS with deadlines, counted against a limit.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::error::ProxyErrorKind;
use crate::limits::Limits;
use crate::slots::{Slot, SlotLimit, Slots};
use crate::tls::{self, TlsSettings};

/// The interval of TCP keep-alive probes on an idle connection (Go's `Dialer.KeepAlive`).
const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// The future of [`AddressResolver::resolve`].
pub type AddressFuture<'a> = Pin<Box<dyn Future<Output = Result<(String, u16), String>> + Send + 'a>>;

/// Finds the address of a backend when a connection is opened. Requests over an open connection do not call it.
pub trait AddressResolver: Send + Sync {
    /// Returns the host and the port to dial for those of a destination. Hosts have no brackets.
    ///
    /// # Errors
    /// The text of the error, with which the request fails.
    fn resolve<'a>(&'a self, host: &'a str, port: u16) -> AddressFuture<'a>;
}

/// Opens connections with one TLS configuration.
#[derive(Clone)]
pub(crate) struct Dialer {
    resolver: Option<Arc<dyn AddressResolver>>,
    tls: Option<Arc<DialerTls>>,
    connections: Arc<Slots>,
    limits: Arc<Limits>,
}

struct DialerTls {
    settings: TlsSettings,
    connector: TlsConnector,
}

impl Dialer {
    pub(crate) fn plain(connections: Arc<Slots>, limits: Arc<Limits>) -> Self {
        Dialer { resolver: None, tls: None, connections, limits }
    }

    pub(crate) fn tls(
        settings: TlsSettings,
        connections: Arc<Slots>,
        limits: Arc<Limits>,
    ) -> Result<Self, tls::TlsSettingsError> {
        let mut config = tls::client_config(&settings)?;
        if !settings.server_name.is_empty() {
            tls::server_name(&settings, "")?;
        }
        // One HTTP/2 connection would be shared by all users of a backend: its 100 streams, and its flow-control window,
        // which a few clients that stop reading use up.
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let connector = TlsConnector::from(Arc::new(config));
        Ok(Dialer { resolver: None, tls: Some(Arc::new(DialerTls { settings, connector })), connections, limits })
    }

    /// Sets the resolver of the addresses to dial.
    pub(crate) fn with_resolver(mut self, resolver: Arc<dyn AddressResolver>) -> Self {
        self.resolver = Some(resolver);
        self
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Connects to a host, given as a name or as an address without brackets.
    pub(crate) async fn connect(&self, host: &str, port: u16) -> Result<BackendIo, ProxyErrorKind> {
        let resolved;
        let (host, port) = match &self.resolver {
            Some(resolver) => {
                resolved = resolver.resolve(host, port).await.map_err(ProxyErrorKind::Dial)?;
                (resolved.0.as_str(), resolved.1)
            }
            None => (host, port),
        };
        let address = authority(host, port);
        let slot = self.connections.take(&address).map_err(|limit| match limit {
            SlotLimit::Total(max) => ProxyErrorKind::TooManyConnections(max),
            SlotLimit::Backend(max) => ProxyErrorKind::TooManyConnectionsToBackend(max),
        })?;
        let connecting = tokio::time::timeout(self.limits.connect_timeout, dial(host, port));
        let stream = match connecting.await {
            Ok(Ok(stream)) => stream,
            Ok(Err(text)) => return Err(ProxyErrorKind::Dial(text)),
            Err(_) => return Err(ProxyErrorKind::Dial(format!("dial tcp {address}: i/o timeout"))),
        };
        // Socket options only improve latency and cleanup, so failures to set them are ignored.
        let _ = stream.set_nodelay(true);
        let _ = SockRef::from(&stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEP_ALIVE));
        let Some(tls) = &self.tls else { return Ok(BackendIo { stream: Stream::Tcp(stream), _slot: slot }) };
        let name = tls::server_name(&tls.settings, host).map_err(|error| ProxyErrorKind::Tls(error.to_string()))?;
        let shaking = tls.connector.connect(name.clone(), stream);
        match tokio::time::timeout(self.limits.tls_handshake_timeout, shaking).await {
            Ok(Ok(stream)) => Ok(BackendIo { stream: Stream::Tls(Box::new(stream)), _slot: slot }),
            Ok(Err(error)) => Err(ProxyErrorKind::Tls(tls::handshake_text(&error, &name))),
            Err(_) => Err(ProxyErrorKind::Tls("net/http: TLS handshake timeout".to_owned())),
        }
    }
}

/// `host:port`, with brackets around an IPv6 address (Go's `net.JoinHostPort`).
pub(crate) fn authority(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Connects to the addresses of a host in turn. As in Go, the error is that of the first address.
async fn dial(host: &str, port: u16) -> Result<TcpStream, String> {
    let no_host = |_| format!("dial tcp: lookup {host}: no such host");
    let mut first = None;
    for address in tokio::net::lookup_host((host, port)).await.map_err(no_host)? {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => first = first.or_else(|| Some(dial_text(address, &error))),
        }
    }
    Err(first.unwrap_or_else(|| format!("dial tcp: lookup {host}: no such host")))
}

/// Returns Go's text for a failed dial.
fn dial_text(address: SocketAddr, error: &io::Error) -> String {
    use io::ErrorKind as Kind;
    let why = match error.kind() {
        Kind::ConnectionRefused => "connection refused".to_owned(),
        Kind::ConnectionReset => "connection reset by peer".to_owned(),
        Kind::HostUnreachable => "no route to host".to_owned(),
        Kind::NetworkUnreachable => "network is unreachable".to_owned(),
        Kind::TimedOut => "connection timed out".to_owned(),
        _ => error.to_string(),
    };
    format!("dial tcp {address}: connect: {why}")
}

/// A connection to a backend. A slot of the connection limit is held until the connection is dropped.
pub(crate) struct BackendIo {
    stream: Stream,
    _slot: Slot,
}

enum Stream {
    Tcp(TcpStream),
    Tls(Box<tokio_rustls::client::TlsStream<TcpStream>>),
}

/// Delegates a method to the inner stream.
macro_rules! inner {
    ($io:expr, $stream:ident => $call:expr) => {
        match &mut $io.get_mut().stream {
            Stream::Tcp($stream) => {
                let $stream = Pin::new($stream);
                $call
            }
            Stream::Tls($stream) => {
                let $stream = Pin::new($stream.as_mut());
                $call
            }
        }
    };
}

impl AsyncRead for BackendIo {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        inner!(self, stream => stream.poll_read(cx, buffer))
    }
}

impl AsyncWrite for BackendIo {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        inner!(self, stream => stream.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        inner!(self, stream => stream.poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        inner!(self, stream => stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        inner!(self, stream => stream.poll_shutdown(cx))
    }
}

impl Connection for BackendIo {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

/// Opens connections for the pool.
#[derive(Clone)]
pub(crate) struct Connector(pub(crate) Dialer);

impl tower_service::Service<Uri> for Connector {
    type Response = TokioIo<BackendIo>;
    type Error = ProxyErrorKind;
    type Future = Pin<Box<dyn Future<Output = Result<TokioIo<BackendIo>, ProxyErrorKind>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ProxyErrorKind>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let dialer = self.0.clone();
        Box::pin(async move {
            let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
            let port = uri.port_u16().unwrap_or(if dialer.is_tls() { 443 } else { 80 });
            dialer.connect(host, port).await.map(TokioIo::new)
        })
    }
}
