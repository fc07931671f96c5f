//! Tests [`HttpTransport`] and [`Dialer`] with a TLS server: the flow control of a full connection, and TLS files that
//! change.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::config::{Certificate, Config, Identity, TlsFiles};

/// The time limit of each step, which only a hang reaches.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The bytes that a server sends at once.
const CHUNK_BYTES: usize = 16 * 1024;

/// An endless body, which counts the bytes that the server took.
struct Endless(Arc<AtomicUsize>);

impl Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.fetch_add(CHUNK_BYTES, Ordering::SeqCst);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b' '; CHUNK_BYTES])))))
    }
}

/// A certificate of `issuer` for a client, or one that signs itself for the server `localhost`, and its key in PEM.
struct Credential {
    der: CertificateDer<'static>,
    pem: String,
    key: rcgen::KeyPair,
}

type Issuer = rcgen::CertifiedIssuer<'static, rcgen::KeyPair>;

fn issuer() -> Issuer {
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    Issuer::self_signed(params, rcgen::KeyPair::generate().unwrap()).unwrap()
}

fn of_client(issuer: &Issuer) -> Credential {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = params.signed_by(&key, issuer).unwrap();
    Credential { der: certificate.der().clone(), pem: certificate.pem(), key }
}

fn of_server() -> Credential {
    let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    Credential { der: signed.cert.der().clone(), pem: signed.cert.pem(), key: signed.signing_key }
}

/// A TLS server, whose certificate can be replaced.
struct Server {
    address: std::net::SocketAddr,
    acceptor: Arc<Mutex<TlsAcceptor>>,
    clients: Option<CertificateDer<'static>>,
    /// The number of connections.
    connections: Arc<AtomicUsize>,
    /// The bytes of [`Endless`] bodies that were sent or wait in the server.
    sent: Arc<AtomicUsize>,
}

impl Server {
    /// Starts a server. With `clients`, clients may have a certificate of this authority.
    async fn start(credential: &Credential, clients: Option<CertificateDer<'static>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = Arc::new(Mutex::new(acceptor(credential, clients.clone())));
        let server = Server { address, acceptor, clients, connections: Arc::default(), sent: Arc::default() };
        let (acceptor, connections) = (server.acceptor.clone(), server.connections.clone());
        let sent = server.sent.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, connections) = (acceptor.lock().unwrap().clone(), connections.clone());
                let sent = sent.clone();
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    connections.fetch_add(1, Ordering::SeqCst);
                    let certificates = stream.get_ref().1.peer_certificates();
                    let client = certificates.and_then(|chain| chain.first()).map(|own| own.to_vec());
                    let service = service_fn(move |request: Request<Incoming>| {
                        let response = answer(&request, client.clone().unwrap_or_else(|| b"nobody".to_vec()), &sent);
                        async move { Ok::<_, Infallible>(response) }
                    });
                    let builder = auto::Builder::new(TokioExecutor::new());
                    drop(builder.serve_connection(TokioIo::new(stream), service).await);
                });
            }
        });
        server
    }

    fn replace(&self, credential: &Credential) {
        *self.acceptor.lock().unwrap() = acceptor(credential, self.clients.clone());
    }

    fn config(&self, tls: TlsOptions) -> Config {
        Config { tls, ..Config::new(&format!("https://localhost:{}", self.address.port())).unwrap() }
    }

    fn transport(&self, tls: TlsOptions) -> HttpTransport {
        let config = self.config(tls);
        HttpTransport::new(&config.server, config.tls, config.transport).unwrap()
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

fn acceptor(credential: &Credential, clients: Option<CertificateDer<'static>>) -> TlsAcceptor {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider.clone());
    let config = config.with_safe_default_protocol_versions().unwrap();
    let config = match clients {
        None => config.with_no_client_auth(),
        Some(clients) => {
            let mut roots = rustls::RootCertStore::empty();
            roots.add(clients).unwrap();
            let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            config.with_client_cert_verifier(verifier.build().unwrap())
        }
    };
    let key = PrivateKeyDer::try_from(credential.key.serialize_der()).unwrap();
    let mut config = config.with_single_cert(vec![credential.der.clone()], key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

/// An endless body, or the client's certificate in DER, or a few bytes for a client without certificate.
fn answer(
    request: &Request<Incoming>,
    client: Vec<u8>,
    sent: &Arc<AtomicUsize>,
) -> Response<UnsyncBoxBody<Bytes, Infallible>> {
    Response::new(match request.uri().path() {
        "/endless" => Endless(sent.clone()).boxed_unsync(),
        _ => Full::from(client).boxed_unsync(),
    })
}

async fn open(transport: &HttpTransport, path: &str) -> Result<ResponseBody, Problem> {
    let mut request = Request::new(RequestBody::empty());
    *request.uri_mut() = path.parse().unwrap();
    let response = tokio::time::timeout(TIMEOUT, transport.send(request)).await.expect("no response");
    response.map(Response::into_body)
}

/// The certificate that the server received with this request.
async fn seen(transport: &HttpTransport) -> Vec<u8> {
    let body = open(transport, "/").await.unwrap();
    let body = tokio::time::timeout(TIMEOUT, body.collect()).await.expect("the response has no end");
    body.unwrap().to_bytes().to_vec()
}

/// Lets the interval between two reads of the files pass.
async fn pass_interval() {
    tokio::time::pause();
    tokio::time::advance(TLS_FILES_INTERVAL).await;
    tokio::time::resume();
}

#[tokio::test]
async fn response_arrives_while_eight_streams_of_its_connection_are_full_and_unread() {
    let credential = of_server();
    let server = Server::start(&credential, None).await;
    let authorities = vec![Certificate::from_der(credential.der.to_vec())];
    let transport = server.transport(TlsOptions { authorities, ..TlsOptions::default() });
    let mut unread = Vec::new();
    for _ in 0..8 {
        unread.push(open(&transport, "/endless").await.unwrap());
    }
    // The streams are full when the server takes no more bytes of their bodies.
    let full = async {
        let mut last = 0;
        loop {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let sent = server.sent.load(Ordering::SeqCst);
            if sent == last && sent >= 7 * STREAM_WINDOW_BYTES as usize {
                return;
            }
            last = sent;
        }
    };
    tokio::time::timeout(TIMEOUT, full).await.expect("the streams do not fill up");
    let body = open(&transport, "/").await.unwrap();
    let small = tokio::time::timeout(TIMEOUT, body.collect()).await;
    assert!(small.is_ok(), "unread streams delay the others");
    assert_eq!(server.connections(), 1, "the streams do not share a connection");
}

/// Writes a certificate and its key, as files of [`TlsOptions`].
fn write(folder: &Path, certificate: &Credential, key: &Credential) {
    std::fs::write(folder.join("client.crt"), &certificate.pem).unwrap();
    std::fs::write(folder.join("client.key"), key.key.serialize_pem()).unwrap();
}

#[tokio::test]
async fn replaced_client_certificate_is_used_by_later_requests_after_the_interval() {
    let (credential, issuer) = (of_server(), issuer());
    let server = Server::start(&credential, Some(issuer.der().clone())).await;
    let folder = tempfile::tempdir().unwrap();
    let (first, second, third) = (of_client(&issuer), of_client(&issuer), of_client(&issuer));
    let tls = TlsOptions {
        authorities: vec![Certificate::from_der(credential.der.to_vec())],
        identity: Some(Identity::from_pem(first.pem.as_bytes(), first.key.serialize_pem().as_bytes()).unwrap()),
        files: TlsFiles {
            identity: Some((folder.path().join("client.crt"), folder.path().join("client.key"))),
            ..TlsFiles::default()
        },
        ..TlsOptions::default()
    };
    let transport = server.transport(tls);
    write(folder.path(), &first, &first);
    assert_eq!(seen(&transport).await, *first.der);
    let mut running = open(&transport, "/endless").await.unwrap();

    write(folder.path(), &second, &second);
    assert_eq!(seen(&transport).await, *first.der, "the files are read for every request");
    pass_interval().await;
    assert_eq!(seen(&transport).await, *second.der, "a rotated certificate is not used");
    assert_eq!(server.connections(), 2);
    let read = tokio::time::timeout(TIMEOUT, running.chunk()).await.expect("a running stream stands still");
    assert!(read.is_some_and(|chunk| chunk.is_ok()), "a rotation breaks running streams");

    // A certificate without its key, and a file that is no certificate: the old ones stay.
    write(folder.path(), &third, &second);
    pass_interval().await;
    assert_eq!(seen(&transport).await, *second.der);
    std::fs::write(folder.path().join("client.crt"), "").unwrap();
    pass_interval().await;
    assert_eq!(seen(&transport).await, *second.der);
    std::fs::remove_file(folder.path().join("client.key")).unwrap();
    pass_interval().await;
    assert_eq!(seen(&transport).await, *second.der);
    assert_eq!(server.connections(), 2, "unchanged certificates need no new connection");
    write(folder.path(), &third, &third);
    pass_interval().await;
    assert_eq!(seen(&transport).await, *third.der);
}

#[tokio::test]
async fn replaced_certificate_authority_is_trusted_after_the_interval() {
    let (old, new) = (of_server(), of_server());
    let server = Server::start(&old, None).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ca.crt");
    let tls = TlsOptions {
        authorities: vec![Certificate::from_der(old.der.to_vec())],
        files: TlsFiles { authorities: Some(path.clone()), identity: None },
        ..TlsOptions::default()
    };
    let (transport, dialer) =
        (server.transport(tls.clone()), Dialer::new(&server.config(tls), Protocols::Http2).unwrap());
    std::fs::write(&path, &old.pem).unwrap();
    assert!(open(&transport, "/").await.is_ok() && dialer.dial().await.is_ok());

    server.replace(&new);
    assert!(dialer.dial().await.is_err(), "an unknown authority is trusted");
    std::fs::write(&path, "no certificate").unwrap();
    pass_interval().await;
    assert!(open(&transport, "/").await.is_ok(), "an unreadable file closes the connections");
    std::fs::write(&path, &new.pem).unwrap();
    pass_interval().await;
    let before = server.connections();
    assert!(open(&transport, "/").await.is_ok(), "the new authority is not trusted");
    assert_eq!(server.connections(), before + 1, "the connection of the old authority is used again");
    assert!(dialer.dial().await.is_ok(), "a dialer does not trust the new authority");
}

#[tokio::test]
async fn certificate_authority_that_changed_before_the_first_request_is_trusted() {
    let (old, new) = (of_server(), of_server());
    let server = Server::start(&new, None).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ca.crt");
    std::fs::write(&path, &new.pem).unwrap();
    let tls = TlsOptions {
        authorities: vec![Certificate::from_der(old.der.to_vec())],
        files: TlsFiles { authorities: Some(path), identity: None },
        ..TlsOptions::default()
    };
    let transport = server.transport(tls);
    assert!(open(&transport, "/").await.is_ok(), "a transport that is created late has stale authorities");
}

/// `TLSConfigFor` of client-go's transport/transport.go.
#[test]
fn certificate_authority_without_verification_is_rejected() {
    let certificate = || Certificate::from_der(of_server().der.to_vec());
    let file = TlsFiles { authorities: Some("/nowhere/ca.pem".into()), identity: None };
    let check = |authorities: Vec<Certificate>, files: TlsFiles, insecure_skip_verify, server: &str, expected: bool| {
        let given = format!("{} authorities, {files:?}, insecure: {insecure_skip_verify}, {server}", authorities.len());
        let tls = TlsOptions { authorities, files, insecure_skip_verify, ..TlsOptions::default() };
        let made = HttpTransport::new(&server.parse().unwrap(), tls, TransportOptions::default());
        assert_eq!(made.is_ok(), expected, "{given}");
    };
    let none = TlsFiles::default;
    check(vec![certificate()], none(), true, "https://localhost", false);
    check(Vec::new(), file, true, "https://localhost", false);
    check(vec![certificate()], none(), false, "https://localhost", true);
    check(Vec::new(), none(), true, "https://localhost", true);
    check(vec![certificate()], none(), true, "http://localhost", true);
}
