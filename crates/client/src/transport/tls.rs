//! TLS of connections, from [`TlsOptions`] to rustls.

use std::io;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::Protocols;
use crate::config::{ConfigError, TlsOptions};

/// The client side of TLS, for one server.
#[derive(Clone)]
pub(super) struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

/// A connection over TLS.
pub(super) type TlsStream = tokio_rustls::client::TlsStream<TcpStream>;

impl Tls {
    /// Creates the TLS options for this host, or for the server name in the options.
    pub(super) fn offering(host: &str, tls: TlsOptions, protocols: Protocols) -> Result<Self, ConfigError> {
        let name = tls.server_name.clone().unwrap_or_else(|| host.to_owned());
        let name = ServerName::try_from(name)
            .map_err(|error| ConfigError::invalid(format!("the server's name {host}"), &error).caused_by(error))?;
        Ok(Tls { connector: TlsConnector::from(Arc::new(tls_config(tls, protocols)?)), name })
    }

    pub(super) async fn connect(&self, stream: TcpStream) -> io::Result<TlsStream> {
        self.connector.connect(self.name.clone(), stream).await
    }
}

/// The TCP connection below, and whether the server chose HTTP/2.
pub(super) fn inspect(stream: &TlsStream) -> (&TcpStream, bool) {
    let (tcp, tls) = stream.get_ref();
    (tcp, tls.alpn_protocol() == Some(b"h2"))
}

/// Converts the options to rustls' configuration.
fn tls_config(tls: TlsOptions, protocols: Protocols) -> Result<ClientConfig, ConfigError> {
    let invalid = |what: &str, error: rustls::Error| ConfigError::invalid(what, &error).caused_by(error);
    if tls.insecure_skip_verify && (!tls.authorities.is_empty() || tls.files.authorities.is_some()) {
        // As `TLSConfigFor` of client-go. Whoever names an authority expects that it is checked.
        let why = "is given together with insecure-skip-tls-verify, which would ignore it; remove one of them";
        return Err(ConfigError::invalid("the certificate authority", why));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid("TLS", error))?;
    let builder = if tls.insecure_skip_verify {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyServer { provider }))
    } else {
        let mut roots = RootCertStore::empty();
        if tls.authorities.is_empty() {
            // Unreadable certificates of the system are skipped.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        for authority in tls.authorities {
            roots.add(authority.into_der()).map_err(|error| invalid("the certificate authority", error))?;
        }
        builder.with_root_certificates(roots)
    };
    let mut config = match tls.identity {
        Some(identity) => {
            let (certificates, key) = identity.into_der();
            builder
                .with_client_auth_cert(certificates, key)
                .map_err(|error| invalid("the client certificate", error))?
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = protocols.alpn();
    Ok(config)
}

/// Accepts any certificate if the user configured that. Signatures are still verified.
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
