//! Opens TCP and TLS connections to a server: [`Connector`].

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Uri, uri};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tower_service::Service as _;

/// The configuration of each new TLS connection.
#[async_trait]
pub trait TlsSource: Send + Sync {
    /// The present configuration. It must offer `h2` by ALPN.
    async fn config(self: Arc<Self>) -> Arc<ClientConfig>;
}

#[async_trait]
impl TlsSource for ClientConfig {
    async fn config(self: Arc<Self>) -> Arc<ClientConfig> {
        self
    }
}

/// The address of a server, and how to connect to it.
#[derive(Clone)]
pub struct Connector {
    authority: Authority,
    tls: Option<Arc<dyn TlsSource>>,
    /// Looks up addresses, and shares the time limit between them.
    tcp: HttpConnector,
    timeout: Duration,
}

/// An open connection.
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_tls = self.tls.is_some();
        f.debug_struct("Connector").field("authority", &self.authority).field("tls", &is_tls).finish_non_exhaustive()
    }
}

impl Connector {
    /// Connects to the host and the port of `authority`. `timeout` is the time for address lookup, TCP and the TLS
    /// handshake together. Without `tls`, the connection is plain.
    pub fn new(authority: Authority, tls: Option<Arc<dyn TlsSource>>, timeout: Duration) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(timeout));
        Connector { authority, tls, tcp, timeout }
    }

    /// `host:port`.
    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }

    /// The URL of a request.
    pub(crate) fn url(&self, path: PathAndQuery) -> Uri {
        url(if self.tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP }, &self.authority, path)
    }

    /// Opens a connection, on which the server speaks HTTP/2.
    ///
    /// # Errors
    /// The server is not reached in time, or rejects TLS, the certificate or HTTP/2.
    pub(crate) async fn connect(&self) -> io::Result<Stream> {
        match tokio::time::timeout(self.timeout, self.connect_unlimited()).await {
            Ok(connected) => connected,
            Err(_) => {
                let timeout = self.timeout;
                Err(io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {timeout:?}")))
            }
        }
    }

    async fn connect_unlimited(&self) -> io::Result<Stream> {
        let Some(tls) = &self.tls else { return Ok(Stream::Plain(self.connect_tcp().await?)) };
        let host = self.authority.host();
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host).to_owned();
        let name = ServerName::try_from(host.clone())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, format!("host {host}: {error}")))?;
        let config = tls.clone().config().await;
        let tcp = self.connect_tcp().await?;
        let stream = tokio_rustls::TlsConnector::from(config).connect(name, tcp).await?;
        if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the server does not choose HTTP/2"));
        }
        Ok(Stream::Tls(Box::new(stream)))
    }

    async fn connect_tcp(&self) -> io::Result<TcpStream> {
        let mut tcp = self.tcp.clone();
        poll_fn(|context| tcp.poll_ready(context)).await.map_err(io::Error::other)?;
        // The connector accepts no other scheme.
        let address = url(Scheme::HTTP, &self.authority, PathAndQuery::from_static("/"));
        Ok(tcp.call(address).await.map_err(io::Error::other)?.into_inner())
    }
}

fn url(scheme: Scheme, authority: &Authority, path: PathAndQuery) -> Uri {
    let mut parts = uri::Parts::default();
    parts.scheme = Some(scheme);
    parts.authority = Some(authority.clone());
    parts.path_and_query = Some(path);
    Uri::from_parts(parts).expect("a scheme, an authority and a path are a URL")
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use rustls_pki_types::PrivateKeyDer;
    use rustls_pki_types::pem::PemObject as _;

    use super::*;

    /// The error of a TLS connection to a server on the loopback whose authority is `ca`.
    async fn refused(address: SocketAddr, timeout: Duration, ca: &rcgen::Certificate) -> io::ErrorKind {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(ca.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let authority = address.to_string().parse().unwrap();
        let connector = Connector::new(authority, Some(Arc::new(config)), timeout);
        connector.connect().await.map(drop).expect_err("the server is no etcd").kind()
    }

    fn certificate() -> (rcgen::Certificate, rcgen::KeyPair) {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        (certificate.self_signed(&key).unwrap(), key)
    }

    #[tokio::test]
    async fn connection_times_out_if_the_server_never_finishes_the_tls_handshake() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let kind = refused(silent.local_addr().unwrap(), Duration::from_millis(50), &certificate().0).await;
        assert_eq!(kind, io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn tls_server_without_http_2_is_rejected() {
        let (certificate, key) = certificate();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap(),
            )
            .unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (tcp, _) = listener.accept().await.unwrap();
            let accepted = tokio_rustls::TlsAcceptor::from(Arc::new(config)).accept(tcp).await;
            tokio::time::sleep(Duration::from_secs(60)).await;
            drop(accepted);
        });
        assert_eq!(refused(address, Duration::from_secs(60), &certificate).await, io::ErrorKind::InvalidData);
    }
}
