//! [`LoopbackCertificate`]: the certificate with which a listener identifies itself to its own server
//! (`apiserver/pkg/server/options/serving_with_loopback.go`).
//!
//! The server calls the webhooks that it serves itself at its own listener, with a privileged token. The TLS server
//! name of these connections selects the certificate. The key of the certificate exists only in the memory of this
//! process. Therefore no other process can receive the token, whatever listens at the address.

use std::net::SocketAddr;
use std::sync::Arc;

use listwatch_webhook_admission::LoopbackClient;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};
use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use super::pki::name;
use super::pki_error::PkiError;
use super::serving_certificates::certified;

/// The TLS server name of the connections of a server to itself (`LoopbackClientServerNameOverride`).
const SERVER_NAME: &str = "apiserver-loopback-client";

/// A self-signed certificate of one listener.
pub(super) struct LoopbackCertificate {
    pem: String,
    own: Arc<CertifiedKey>,
}

impl LoopbackCertificate {
    /// Creates a certificate with a new key. The certificate does not expire, because its key ends with the process;
    /// upstream's expires after three years.
    ///
    /// # Errors
    /// [`PkiError::Generate`] if the operating system returns no random bytes.
    pub(super) fn create() -> Result<Self, PkiError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec![SERVER_NAME.to_owned()])?;
        params.distinguished_name = name(SERVER_NAME);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.self_signed(&key)?;
        let private_key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let own = Arc::new(certified(vec![certificate.der().clone()], private_key)?);
        Ok(LoopbackCertificate { pem: certificate.pem(), own })
    }

    /// Returns the TLS settings of a listener with this certificate. It replaces other certificates with its name.
    pub(super) fn add_to(&self, tls: &ServerConfig) -> Arc<ServerConfig> {
        let mut tls = tls.clone();
        let others = Arc::clone(&tls.cert_resolver);
        tls.cert_resolver = Arc::new(WithLoopback { own: Arc::clone(&self.own), others });
        Arc::new(tls)
    }

    /// Returns the client that connects only to the listener at `address`, and sends `token`.
    pub(super) fn into_client(self, address: SocketAddr, token: &str) -> LoopbackClient {
        let (server_name, token) = (SERVER_NAME.to_owned(), token.to_owned());
        LoopbackClient { address, server_name, certificate_pem: self.pem, token }
    }
}

/// The certificates of a listener, and that for the server itself.
#[derive(Debug)]
struct WithLoopback {
    own: Arc<CertifiedKey>,
    others: Arc<dyn ResolvesServerCert>,
}

impl ResolvesServerCert for WithLoopback {
    fn resolve(&self, client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let is_own = client_hello.server_name().is_some_and(|name| name.eq_ignore_ascii_case(SERVER_NAME));
        match is_own {
            true => Some(Arc::clone(&self.own)),
            false => self.others.resolve(client_hello),
        }
    }
}

#[cfg(test)]
mod tests {
    use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConnection};
    use rustls_pki_types::CertificateDer;
    use rustls_pki_types::pem::PemObject as _;

    use super::*;
    use crate::transport::complete_handshake;
    use crate::transport::pki::{Pki, TlsOptions};

    /// Performs a handshake in memory with a client that trusts one certificate.
    fn handshake(server: &Arc<ServerConfig>, trusted_pem: &str, name: &'static str) -> Result<(), rustls::Error> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(trusted_pem.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let client = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let client = client.with_root_certificates(roots).with_no_client_auth();
        let mut client = ClientConnection::new(Arc::new(client), name.try_into().unwrap()).unwrap();
        let mut server = ServerConnection::new(Arc::clone(server)).unwrap();
        complete_handshake(&mut client, &mut server)
    }

    #[test]
    fn loopback_name_selects_the_loopback_certificate_and_other_names_do_not() {
        let loopback = LoopbackCertificate::create().unwrap();
        let other = LoopbackCertificate::create().unwrap();
        // A kube-apiserver flag must not lock the server out of its own listener.
        let narrow = TlsOptions {
            cipher_suites: vec!["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256".to_owned()],
            http1_only: true,
            request_client_certificates: true,
            ..TlsOptions::default()
        };
        for options in [TlsOptions::default(), narrow] {
            let pki = Pki::in_memory(&[SERVER_NAME.to_owned()]).unwrap().with_tls_options(&options).unwrap();
            let server = loopback.add_to(&pki.tls());
            for (trusted, name, is_accepted) in [
                (&*loopback.pem, SERVER_NAME, true),
                (&*loopback.pem, "localhost", false),
                (&*other.pem, SERVER_NAME, false),
                (pki.ca_pem(), SERVER_NAME, false),
                (pki.ca_pem(), "localhost", true),
            ] {
                let result = handshake(&server, trusted, name);
                assert_eq!(result.is_ok(), is_accepted, "{name}, {options:?}: {result:?}");
            }
        }
    }
}
