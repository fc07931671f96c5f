//! How a connection is secured: from [`TlsOptions`] to rustls.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::config::{ConfigError, TlsOptions};

/// The client side of TLS as these options want it, HTTP/2 preferred.
pub(super) fn tls_config(tls: TlsOptions) -> Result<ClientConfig, ConfigError> {
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
