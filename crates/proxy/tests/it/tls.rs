//! Tests TLS to backends: verification, client certificates, ALPN.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use listwatch_proxy::{ClientCertificate, Destination, Limits, Proxy, TlsSettings};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::backend::{get, outcome};

const NAME: &str = "api.kube-system.svc";

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Issues a certificate for `name`, and returns it with its key.
fn leaf(authority: &CertifiedIssuer<'static, KeyPair>, name: &str) -> (rcgen::Certificate, KeyPair) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    (params.signed_by(&key, authority).unwrap(), key)
}

/// Starts a backend that responds with the HTTP version and whether the client sent a certificate.
async fn serve(
    certificate: &rcgen::Certificate,
    key: &KeyPair,
    protocols: &[&str],
    clients: Option<CertificateDer<'static>>,
) -> u16 {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            roots.add(authority).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
            builder.with_client_cert_verifier(verifier)
        }
    };
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let mut config = builder.with_single_cert(vec![certificate.der().clone()], key).unwrap();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let shown = stream.get_ref().1.peer_certificates().is_some();
                let answer = service_fn(move |request: Request<Incoming>| async move {
                    let text = format!("{:?} {shown}", request.version());
                    Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(text))))
                });
                let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), answer).await;
            });
        }
    });
    port
}

async fn ask(settings: TlsSettings, port: u16) -> Result<(u16, String), String> {
    let proxy = Proxy::new(Limits::default());
    let transport = proxy.tls_transport(settings).map_err(|error| error.to_string())?;
    let to = Destination::new(transport, "127.0.0.1", port, "/");
    outcome(proxy.handle(get("/"), &to).await).await
}

fn trusting(authority_pem: String, name: &str) -> TlsSettings {
    TlsSettings {
        server_name: name.to_owned(),
        ca_bundle: authority_pem.into_bytes(),
        insecure_skip_verify: false,
        client_certificate: None,
    }
}

#[tokio::test]
async fn backend_certificate_is_verified_by_bundle_and_name() {
    let authority_one = authority();
    let (certificate, key) = leaf(&authority_one, NAME);
    let port = serve(&certificate, &key, &["http/1.1"], None).await;
    assert_eq!(ask(trusting(authority_one.pem(), NAME), port).await, Ok((200, "HTTP/1.1 false".to_owned())));
    let reach = "error trying to reach service: tls: failed to verify certificate: x509: ";
    let check = async |settings: TlsSettings, why: &str| {
        assert_eq!(ask(settings, port).await, Err(format!("{reach}{why}")));
    };
    check(trusting(authority().pem(), NAME), "certificate signed by unknown authority").await;
    let other = "certificate is not valid for any names, but wanted to match other.kube-system.svc";
    check(trusting(authority_one.pem(), "other.kube-system.svc"), other).await;
    let insecure = TlsSettings { insecure_skip_verify: true, ..TlsSettings::default() };
    assert_eq!(ask(insecure, port).await, Ok((200, "HTTP/1.1 false".to_owned())));
}

#[tokio::test]
async fn self_signed_authority_in_the_bundle_is_accepted_for_its_own_name_only() {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).unwrap();
    let port = serve(&certificate, &key, &["http/1.1"], None).await;
    assert_eq!(ask(trusting(certificate.pem(), NAME), port).await, Ok((200, "HTTP/1.1 false".to_owned())));
    assert!(ask(trusting(certificate.pem(), "other.svc"), port).await.is_err(), "another name is accepted");
    assert!(ask(trusting(authority().pem(), NAME), port).await.is_err(), "another bundle is accepted");
}

/// envtest gives the webhook's own certificate as its bundle, without the authority that issued it.
#[tokio::test]
async fn issued_certificate_in_the_bundle_is_accepted_while_it_is_valid() {
    let authority = authority();
    let (certificate, key) = leaf(&authority, NAME);
    let port = serve(&certificate, &key, &["http/1.1"], None).await;
    assert_eq!(ask(trusting(certificate.pem(), NAME), port).await, Ok((200, "HTTP/1.1 false".to_owned())));
    assert!(ask(trusting(certificate.pem(), "other.svc"), port).await.is_err(), "another name is accepted");
    let (sibling, _) = leaf(&authority, NAME);
    assert!(ask(trusting(sibling.pem(), NAME), port).await.is_err(), "a certificate of the same issuer is accepted");

    let check = async |change: fn(&mut CertificateParams), why: &str| {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
        change(&mut params);
        let certificate = params.signed_by(&key, &authority).unwrap();
        let port = serve(&certificate, &key, &["http/1.1"], None).await;
        let refused = ask(trusting(certificate.pem(), NAME), port).await.unwrap_err();
        assert!(refused.contains(why), "{refused}");
    };
    check(|params| params.not_after = rcgen::date_time_ymd(2001, 1, 1), "expired").await;
    check(|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth], "x509").await;
}

#[tokio::test]
async fn client_certificate_is_sent_to_the_backend() {
    let authority = authority();
    let (certificate, key) = leaf(&authority, NAME);
    let (proxy_certificate, proxy_key) = leaf(&authority, "front-proxy-client");
    let port = serve(&certificate, &key, &["http/1.1"], Some(authority.der().clone())).await;
    let shown = ClientCertificate {
        chain_pem: proxy_certificate.pem().into_bytes(),
        key_pem: proxy_key.serialize_pem().into_bytes(),
    };
    let settings = TlsSettings { client_certificate: Some(shown), ..trusting(authority.pem(), NAME) };
    assert_eq!(ask(settings, port).await, Ok((200, "HTTP/1.1 true".to_owned())));
    assert!(ask(trusting(authority.pem(), NAME), port).await.is_err(), "a proxy without a certificate is accepted");
}

#[tokio::test]
async fn request_to_a_backend_that_offers_http2_uses_http1() {
    let authority = authority();
    let (certificate, key) = leaf(&authority, NAME);
    let port = serve(&certificate, &key, &["h2", "http/1.1"], None).await;
    assert_eq!(ask(trusting(authority.pem(), NAME), port).await, Ok((200, "HTTP/1.1 false".to_owned())));
}
