//! Bytes to and from one server: [`Transport`], over hyper ([`HttpTransport`]) or any tower service
//! in this process ([`ServiceTransport`]).
//!
//! HTTP/2 where the server speaks it (ALPN), with pings, so that a dead connection is noticed in
//! seconds instead of at the next timeout; HTTP/1.1 otherwise, one connection per watch.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body::Body;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower_service::Service;

use crate::config::{ConfigError, TlsOptions};
use crate::problem::Problem;

/// How long a connection may take, TLS included.
pub const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// After this much silence an HTTP/2 connection is pinged.
pub const PING_INTERVAL: Duration = Duration::from_secs(15);

/// How long the answer to a ping may take before the connection is given up.
pub const PING_LIMIT: Duration = Duration::from_secs(10);

/// Flow control window of one HTTP/2 stream in bytes: how much a server may send ahead of a slow
/// consumer.
pub const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;

/// Flow control window of one HTTP/2 connection in bytes, shared by its streams.
pub const CONNECTION_WINDOW_BYTES: u32 = 8 * 1024 * 1024;

/// How long a connection is kept for the next request.
const IDLE_LIMIT: Duration = Duration::from_secs(90);

/// The error of a body, whatever carries it.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// A response body, whatever carries it.
pub type BoxBody = UnsyncBoxBody<Bytes, BoxError>;

/// Sends a request without a body and brings back the response. The path of the request is
/// absolute and complete; scheme and authority are the transport's.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// Sends the request.
    ///
    /// # Errors
    /// [`Problem::Disconnected`] when no response came. An HTTP error is a response.
    async fn send(&self, request: Request<Empty<Bytes>>) -> Result<Response<BoxBody>, Problem>;
}

/// A [`Transport`] over the network.
#[derive(Clone)]
pub struct HttpTransport {
    client: legacy::Client<Connector, Empty<Bytes>>,
    scheme: http::uri::Scheme,
    authority: http::uri::Authority,
}

impl fmt::Debug for HttpTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HttpTransport({}://{})", self.scheme, self.authority)
    }
}

impl HttpTransport {
    /// A transport to the server of this URL. Connects when the first request is sent.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] when the URL or the certificates cannot be used.
    pub fn new(server: &Uri, tls: TlsOptions) -> Result<Self, ConfigError> {
        let invalid =
            |why: &str| ConfigError::Invalid { what: format!("the server's address {server}"), why: why.to_owned() };
        let scheme = server.scheme().cloned().ok_or_else(|| invalid("has no scheme"))?;
        let authority = server.authority().cloned().ok_or_else(|| invalid("has no host"))?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let connector = if scheme == http::uri::Scheme::HTTPS {
            let name = tls.server_name.clone().unwrap_or_else(|| host.clone());
            let name = ServerName::try_from(name).map_err(|error| invalid(&error.to_string()))?;
            let config = tls_config(tls)?;
            Connector { tls: Some((TlsConnector::from(Arc::new(config)), name)), host }
        } else {
            Connector { tls: None, host }
        };
        let client = legacy::Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_LIMIT)
            .http2_keep_alive_interval(PING_INTERVAL)
            .http2_keep_alive_timeout(PING_LIMIT)
            .http2_keep_alive_while_idle(false)
            .http2_initial_stream_window_size(STREAM_WINDOW_BYTES)
            .http2_initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .build(connector);
        Ok(HttpTransport { client, scheme, authority })
    }
}

#[async_trait]
impl Transport for HttpTransport {
    async fn send(&self, mut request: Request<Empty<Bytes>>) -> Result<Response<BoxBody>, Problem> {
        let mut parts = std::mem::take(request.uri_mut()).into_parts();
        parts.scheme = Some(self.scheme.clone());
        parts.authority = Some(self.authority.clone());
        *request.uri_mut() = Uri::from_parts(parts).map_err(|error| disconnected(&error))?;
        let response = self.client.request(request).await.map_err(|error| disconnected(&error))?;
        Ok(response.map(|body| body.map_err(BoxError::from).boxed_unsync()))
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
    S: Service<Request<Empty<Bytes>>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    async fn send(&self, request: Request<Empty<Bytes>>) -> Result<Response<BoxBody>, Problem> {
        let mut service = self.service.clone();
        let failed = |error: S::Error| Problem::Disconnected { why: error.into().to_string() };
        std::future::poll_fn(|context| service.poll_ready(context)).await.map_err(failed)?;
        let response = service.call(request).await.map_err(failed)?;
        Ok(response.map(|body| body.map_err(Into::into).boxed_unsync()))
    }
}

/// An error with its causes, which is where hyper hides what the network said.
pub(crate) fn disconnected(error: &dyn StdError) -> Problem {
    let mut why = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let text = cause.to_string();
        if !why.contains(&text) {
            why = format!("{why}: {text}");
        }
        source = cause.source();
    }
    Problem::Disconnected { why }
}

/// The client side of TLS as these options want it, HTTP/2 preferred.
fn tls_config(tls: TlsOptions) -> Result<ClientConfig, ConfigError> {
    let invalid = |what: &str, why: String| ConfigError::Invalid { what: what.to_owned(), why };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid("TLS", error.to_string()))?;
    let builder = if tls.insecure_skip_verify {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyServer { provider }))
    } else {
        let mut roots = RootCertStore::empty();
        if tls.authorities.is_empty() {
            // Some of the system's certificates are always odd; those that can be read count.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        for authority in tls.authorities {
            roots.add(authority).map_err(|error| invalid("the certificate authority", error.to_string()))?;
        }
        builder.with_root_certificates(roots)
    };
    let mut config = match tls.identity {
        Some(identity) => builder
            .with_client_auth_cert(identity.certificates, identity.key)
            .map_err(|error| invalid("the client certificate", error.to_string()))?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// Believes any certificate, where the user asked for that; signatures are still checked.
#[derive(Debug)]
struct AnyServer {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Makes connections to one server.
#[derive(Clone)]
struct Connector {
    tls: Option<(TlsConnector, ServerName<'static>)>,
    host: String,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<ServerStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<ServerStream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let Connector { tls, host } = self.clone();
        let port = uri.port_u16().unwrap_or(if tls.is_some() { 443 } else { 80 });
        Box::pin(async move {
            let connect = async {
                let stream = TcpStream::connect((host.as_str(), port)).await?;
                stream.set_nodelay(true)?;
                Ok(match tls {
                    Some((connector, name)) => ServerStream::Tls(Box::new(connector.connect(name, stream).await?)),
                    None => ServerStream::Plain(stream),
                })
            };
            match tokio::time::timeout(CONNECT_LIMIT, connect).await {
                Ok(stream) => stream.map(TokioIo::new),
                Err(_) => Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("no connection within {} s", CONNECT_LIMIT.as_secs()),
                )),
            }
        })
    }
}

/// A connection, secured or not.
enum ServerStream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection for ServerStream {
    fn connected(&self) -> Connected {
        match self {
            ServerStream::Plain(stream) => stream.connected(),
            ServerStream::Tls(stream) => {
                let (tcp, tls) = stream.get_ref();
                if tls.alpn_protocol() == Some(b"h2") { tcp.connected().negotiated_h2() } else { tcp.connected() }
            }
        }
    }
}

impl AsyncRead for ServerStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ServerStream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            ServerStream::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for ServerStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            ServerStream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            ServerStream::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            ServerStream::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            ServerStream::Tls(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            ServerStream::Plain(stream) => stream.is_write_vectored(),
            ServerStream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ServerStream::Plain(stream) => Pin::new(stream).poll_flush(context),
            ServerStream::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ServerStream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            ServerStream::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
