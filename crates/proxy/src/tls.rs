//! [`TlsSettings`]: TLS toward backends, and the conversion to a rustls configuration.
//!
//! Rules: `client-go/transport.TLSConfigFor`. One rule differs from webpki's. As in Go (`x509.Certificate.Verify`), a
//! certificate in the bundle is accepted as the server's own certificate. The issuer does not matter, and the
//! certificate may be a certificate authority. Self-signed extension servers and the webhooks of envtest suites depend
//! on this rule.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, OtherError, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

/// The verification of a backend's certificate, and the client certificate of the proxy.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct TlsSettings {
    /// The expected name in the backend's certificate, e.g. `service.namespace.svc`. If empty, the dialed host.
    pub server_name: String,
    /// The trusted certificates, in PEM. If empty, the system's certificates are trusted.
    pub ca_bundle: Vec<u8>,
    /// Accepts any certificate of the backend.
    pub insecure_skip_verify: bool,
    /// The certificate that identifies the proxy to the backend.
    pub client_certificate: Option<ClientCertificate>,
}

impl fmt::Debug for TlsSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSettings")
            .field("server_name", &self.server_name)
            .field("insecure_skip_verify", &self.insecure_skip_verify)
            .field("client_certificate", &self.client_certificate.is_some())
            .finish_non_exhaustive()
    }
}

/// A certificate with its key.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The certificate and its intermediate certificates, in PEM.
    pub chain_pem: Vec<u8>,
    /// The private key, in PEM.
    pub key_pem: Vec<u8>,
}

impl fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientCertificate")
    }
}

/// The settings do not make a valid TLS configuration. The aggregator responds with 500 and this text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsSettingsError {
    /// The bundle has no usable certificate, for this reason.
    #[error("unable to load root certificates: {0}")]
    CaBundle(String),
    /// The settings have both a bundle and `insecure_skip_verify`.
    #[error("specifying a root certificates file with the insecure flag is not allowed")]
    InsecureWithBundle,
    /// The client certificate or its key is unusable, for this reason.
    #[error("tls: {0}")]
    ClientCertificate(String),
    /// The server name is neither a DNS name nor an IP address.
    #[error("tls: invalid server name {0:?}")]
    ServerName(String),
}

/// Converts settings to a rustls configuration without ALPN.
pub(crate) fn client_config(settings: &TlsSettings) -> Result<ClientConfig, TlsSettingsError> {
    if settings.insecure_skip_verify && !settings.ca_bundle.is_empty() {
        return Err(TlsSettingsError::InsecureWithBundle);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsSettingsError::ClientCertificate(error.to_string()))?;
    let verifier: Arc<dyn ServerCertVerifier> = match settings.insecure_skip_verify {
        true => Arc::new(AnyServer { provider }),
        false => Arc::new(BundleVerifier::new(&settings.ca_bundle, provider)?),
    };
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    match &settings.client_certificate {
        None => Ok(builder.with_no_client_auth()),
        Some(certificate) => {
            let wrong = |error: String| TlsSettingsError::ClientCertificate(error);
            let chain = certificates(&certificate.chain_pem).map_err(wrong)?;
            let keys = pem::parse_many(&certificate.key_pem).map_err(|error| wrong(error.to_string()))?;
            let key = keys.into_iter().find(|block| block.tag().ends_with("PRIVATE KEY"));
            let key = key.ok_or_else(|| wrong("failed to find any PEM data in key input".to_owned()))?;
            let key = PrivateKeyDer::try_from(key.into_contents()).map_err(|error| wrong(error.to_owned()))?;
            builder.with_client_auth_cert(chain, key).map_err(|error| wrong(error.to_string()))
        }
    }
}

/// Returns the name to verify: the name in the settings, or otherwise the dialed host.
pub(crate) fn server_name(settings: &TlsSettings, host: &str) -> Result<ServerName<'static>, TlsSettingsError> {
    let name = if settings.server_name.is_empty() { host } else { &settings.server_name };
    ServerName::try_from(name.to_owned()).map_err(|_| TlsSettingsError::ServerName(name.to_owned()))
}

/// Parses the certificates in PEM text. Blocks of other types are skipped.
fn certificates(pem_text: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let blocks = pem::parse_many(pem_text).map_err(|error| error.to_string())?;
    let found: Vec<_> = blocks
        .into_iter()
        .filter(|block| block.tag() == "CERTIFICATE")
        .map(|block| CertificateDer::from(block.into_contents()))
        .collect();
    if found.is_empty() { Err("unable to parse bytes as PEM block".to_owned()) } else { Ok(found) }
}

/// Verifies with webpki, and also accepts a server certificate that is itself in the bundle.
#[derive(Debug)]
struct BundleVerifier {
    webpki: Arc<WebPkiServerVerifier>,
    bundle: Vec<CertificateDer<'static>>,
}

impl BundleVerifier {
    fn new(ca_bundle: &[u8], provider: Arc<CryptoProvider>) -> Result<Self, TlsSettingsError> {
        let wrong = TlsSettingsError::CaBundle;
        let mut roots = RootCertStore::empty();
        let bundle = match ca_bundle.is_empty() {
            true => {
                // Unreadable certificates of the system are skipped.
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                Vec::new()
            }
            false => {
                let bundle = certificates(ca_bundle).map_err(wrong)?;
                let (added, _) = roots.add_parsable_certificates(bundle.iter().cloned());
                if added == 0 {
                    return Err(wrong("no valid certificate authority data seen".to_owned()));
                }
                bundle
            }
        };
        if roots.is_empty() {
            return Err(wrong("the system has no certificate authorities".to_owned()));
        }
        let webpki = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| wrong(error.to_string()))?;
        Ok(BundleVerifier { webpki, bundle })
    }
}

/// Whether webpki found nothing wrong with a certificate except its place in a chain: its issuer is not in the bundle,
/// or it is a CA certificate. webpki checks validity period and extended key usage before it looks for an issuer.
fn lacks_only_an_issuer(error: &rustls::Error) -> bool {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => true,
        rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(error))) => {
            format!("{error:?}").contains("CaUsedAsEndEntity")
        }
        _ => false,
    }
}

impl ServerCertVerifier for BundleVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if !self.bundle.contains(certificate) {
            return self.webpki.verify_server_cert(certificate, intermediates, name, ocsp, now);
        }
        match self.webpki.verify_server_cert(certificate, &[], name, ocsp, now) {
            Err(error) if lacks_only_an_issuer(&error) => {
                verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.webpki.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.webpki.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}

/// Accepts any certificate, for `insecure_skip_verify`. Signatures of the handshake are still verified.
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

/// Returns Go's text of a failed handshake, for the most frequent failures.
pub(crate) fn handshake_text(error: &std::io::Error, name: &ServerName<'_>) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let verify = |why: &str| format!("tls: failed to verify certificate: x509: {why}");
    match inner {
        Some(rustls::Error::InvalidCertificate(certificate)) => match certificate {
            // The certificate of another authority with the same name has another key.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                verify("certificate signed by unknown authority")
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                verify("certificate has expired or is not yet valid")
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                verify("certificate has expired or is not yet valid")
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                verify(&format!("certificate is not valid for any names, but wanted to match {}", name.to_str()))
            }
            other => verify(&other.to_string()),
        },
        Some(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)) => {
            "http: server gave HTTP response to HTTPS client".to_owned()
        }
        Some(other) => format!("tls: {other}"),
        None if error.kind() == std::io::ErrorKind::UnexpectedEof => "EOF".to_owned(),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusable_tls_settings_are_rejected_with_upstreams_text() {
        let check = |settings: TlsSettings, expected: &str| {
            assert_eq!(client_config(&settings).unwrap_err().to_string(), expected);
        };
        let bundle = |text: &str| TlsSettings { ca_bundle: text.as_bytes().to_vec(), ..TlsSettings::default() };
        check(bundle("nonsense"), "unable to load root certificates: unable to parse bytes as PEM block");
        let empty = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        check(bundle(empty), "unable to load root certificates: no valid certificate authority data seen");
        let both = TlsSettings { insecure_skip_verify: true, ..bundle(empty) };
        check(both, "specifying a root certificates file with the insecure flag is not allowed");
        let certificate = ClientCertificate { chain_pem: empty.into(), key_pem: b"none".to_vec() };
        let settings =
            TlsSettings { insecure_skip_verify: true, client_certificate: Some(certificate), ..TlsSettings::default() };
        check(settings, "tls: failed to find any PEM data in key input");
    }
}
