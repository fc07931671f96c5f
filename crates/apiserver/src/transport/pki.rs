//! [`Pki`]: the certificates of the server and the credential of the administrator.
//!
//! The key of the CA and the token are created at the first start and stored in the data directory. A kubeconfig
//! therefore stays valid after restarts. The server certificate is created at each start, which takes about a
//! millisecond. The certificate always contains the current addresses.

use std::fs;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use listwatch_access::{public_key_unknown_to_rustls, verify_tls12_signature};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, ServerConfig, SignatureScheme, SupportedCipherSuite};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use time::{Duration, OffsetDateTime};

pub use super::pki_error::PkiError;
use super::serving_certificates::ServingCertificates;
pub use super::serving_certificates::SniCertificate;

/// The validity period of a new CA, in days.
const CA_VALIDITY_DAYS: i64 = 3650;
/// The validity period of a server certificate, in days; the same as for the CA. A restart creates a new certificate.
const SERVER_VALIDITY_DAYS: i64 = CA_VALIDITY_DAYS;

/// A certificate authority with a server certificate, and the admin's bearer token.
pub struct Pki {
    ca_pem: String,
    token: String,
    certificates: Arc<ServingCertificates>,
    tls: Arc<ServerConfig>,
}

impl Pki {
    /// Creates a CA, a certificate and a token in memory. `names` holds additional host names and addresses of the
    /// server, besides the loopback address and the names of the service `kubernetes`.
    ///
    /// # Errors
    /// [`PkiError::Generate`] if the operating system returns no random bytes.
    pub fn in_memory(names: &[String]) -> Result<Self, PkiError> {
        let ca_key = KeyPair::generate()?;
        let ca_pem = ca_params().self_signed(&ca_key)?.pem();
        Self::assemble(&ca_key, ca_pem, token(), names)
    }

    /// Loads the CA and the token of a data directory, or creates them: `ca.crt`, `ca.key` (mode 0600) and
    /// `admin.token` (mode 0600).
    ///
    /// # Errors
    /// [`PkiError`], whose message names the file.
    pub fn load_or_create(directory: &Path, names: &[String]) -> Result<Self, PkiError> {
        let (key_path, ca_path, token_path) =
            (directory.join("ca.key"), directory.join("ca.crt"), directory.join("admin.token"));
        let ca_key = match read(&key_path)? {
            Some(pem) => KeyPair::from_pem(&pem)
                .map_err(|error| PkiError::Unusable { path: key_path.clone(), why: error.to_string() })?,
            None => {
                let key = KeyPair::generate()?;
                write_private(&key_path, key.serialize_pem().as_bytes())?;
                // A certificate with another key is useless.
                let _ = fs::remove_file(&ca_path);
                key
            }
        };
        let ca_pem = match read(&ca_path)? {
            Some(pem) => pem,
            None => {
                let pem = ca_params().self_signed(&ca_key)?.pem();
                write_private(&ca_path, pem.as_bytes())?;
                pem
            }
        };
        let token = match read(&token_path)?.map(|text| text.trim().to_owned()) {
            Some(text) if text.len() >= 16 => text,
            Some(_) => {
                let why = "the token is shorter than 16 characters".to_owned();
                return Err(PkiError::Unusable { path: token_path, why });
            }
            None => {
                let token = token();
                write_private(&token_path, token.as_bytes())?;
                token
            }
        };
        Self::assemble(&ca_key, ca_pem, token, names)
    }

    /// Loads the operator's server certificate and private key from PEM files (`--tls-cert-file`,
    /// `--tls-private-key-file`). The chain begins with the server's certificate. A listener reads the files again
    /// every ten seconds, and uses a renewed certificate for new connections. The token is random and is not stored.
    /// Clients must trust the CA of the chain, which [`Pki::ca_pem`] does not contain.
    ///
    /// # Errors
    /// A file cannot be read or has no certificate or key ([`PkiError::File`], [`PkiError::Pem`]), or the key does not
    /// match the certificate ([`PkiError::Tls`]).
    pub fn from_files(certificate: &Path, key: &Path) -> Result<Self, PkiError> {
        Self::new(String::new(), token(), ServingCertificates::from_files(certificate, key)?)
    }

    /// Adds certificates for host names (`--tls-sni-cert-key`). If several certificates match a name, the first one is
    /// used. Explicit names take precedence over the names in certificates. A listener reloads the files periodically.
    /// Set the TLS options after the certificates.
    ///
    /// # Errors
    /// See [`Pki::from_files`].
    pub fn with_sni_certificates(self, certificates: Vec<SniCertificate>) -> Result<Self, PkiError> {
        Self::new(self.ca_pem, self.token, self.certificates.with_sni(certificates)?)
    }

    fn new(ca_pem: String, token: String, certificates: ServingCertificates) -> Result<Self, PkiError> {
        let certificates = Arc::new(certificates);
        let tls = Arc::new(tls_config(&certificates, &TlsOptions::default())?);
        Ok(Pki { ca_pem, token, certificates, tls })
    }

    fn assemble(ca_key: &KeyPair, ca_pem: String, token: String, names: &[String]) -> Result<Self, PkiError> {
        let issuer = Issuer::new(ca_params(), ca_key);
        let server_key = KeyPair::generate()?;
        let certificate = server_params(names)?.signed_by(&server_key, &issuer)?;
        let chain = vec![CertificateDer::from(certificate.der().to_vec())];
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(server_key.serialize_der()));
        Self::new(ca_pem, token, ServingCertificates::made(chain, key)?)
    }

    /// Returns the same certificates with other TLS options.
    ///
    /// # Errors
    /// [`PkiError::TlsOptions`] if the options allow no version, cipher suite or group that the server supports.
    pub fn with_tls_options(mut self, options: &TlsOptions) -> Result<Self, PkiError> {
        self.tls = Arc::new(tls_config(&self.certificates, options)?);
        Ok(self)
    }

    /// Returns the CA certificate that clients must trust, in PEM.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// Returns the administrator's bearer token.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Returns the same certificates with another token.
    #[must_use]
    pub fn with_token(mut self, token: &str) -> Self {
        token.clone_into(&mut self.token);
        self
    }

    /// Returns the certificates of the listener, for the task that reloads changed files.
    pub(crate) fn certificates(&self) -> &Arc<ServingCertificates> {
        &self.certificates
    }

    /// Returns the TLS settings of a listener: HTTP/2 and HTTP/1.1 by ALPN.
    pub fn tls(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.tls)
    }

    /// Writes the kubeconfig of the administrator for the server at `url`, which only its owner may read (mode 0600). An
    /// existing file is replaced atomically, but the file is not synced, which takes milliseconds: after a power failure
    /// it may be empty until the server starts again.
    ///
    /// # Errors
    /// [`PkiError::File`] with the path.
    pub fn write_kubeconfig(&self, path: &Path, url: &str) -> Result<(), PkiError> {
        replace_private(path, self.kubeconfig(url).as_bytes(), |_| Ok(()))
    }

    /// Returns a kubeconfig of the administrator for the server at `url`, with the CA certificate and the token.
    pub(crate) fn kubeconfig(&self, url: &str) -> String {
        let ca = STANDARD.encode(&self.ca_pem);
        let token = &self.token;
        format!(
            "apiVersion: v1\n\
             kind: Config\n\
             clusters:\n\
             - name: listwatch\n\
             \x20 cluster:\n\
             \x20   server: {url}\n\
             \x20   certificate-authority-data: {ca}\n\
             users:\n\
             - name: admin\n\
             \x20 user:\n\
             \x20   token: {token}\n\
             contexts:\n\
             - name: listwatch\n\
             \x20 context:\n\
             \x20   cluster: listwatch\n\
             \x20   user: admin\n\
             \x20   namespace: default\n\
             current-context: listwatch\n"
        )
    }
}

/// The options of a listener for TLS handshakes. Default: TLS 1.2 and 1.3, all suites and groups of rustls, HTTP/2, no
/// client certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// Whether only TLS 1.3 is accepted (`--tls-min-version=VersionTLS13`).
    pub tls13_only: bool,
    /// The cipher suites of TLS 1.2, by their IANA names (`--tls-cipher-suites`). If empty, all suites. Unknown names
    /// are ignored. As in Go, the suites of TLS 1.3 are always offered.
    pub cipher_suites: Vec<String>,
    /// The groups of the key exchange, by their IANA numbers (`--tls-curve-preferences`). If empty, all groups. Unknown
    /// numbers are ignored.
    pub key_exchange_groups: Vec<u16>,
    /// Whether only HTTP/1.1 is offered (`--disable-http2-serving`).
    pub http1_only: bool,
    /// Whether the server requests client certificates. The handshake accepts every certificate; authenticators verify
    /// the certificate.
    pub request_client_certificates: bool,
}

/// Creates the TLS configuration of a listener.
fn tls_config(certificates: &Arc<ServingCertificates>, options: &TlsOptions) -> Result<ServerConfig, PkiError> {
    let mut provider = rustls::crypto::ring::default_provider();
    if !options.cipher_suites.is_empty() {
        let is_named = |suite: &SupportedCipherSuite| {
            // rustls names suites as IANA does, those of TLS 1.3 as `TLS13_...`.
            options.cipher_suites.iter().any(|name| suite.suite().as_str() == Some(go_alias(name)))
        };
        provider.cipher_suites.retain(|suite| suite.tls13().is_some() || is_named(suite));
    }
    if !options.key_exchange_groups.is_empty() {
        provider.kx_groups.retain(|group| options.key_exchange_groups.contains(&u16::from(group.name())));
        if provider.kx_groups.is_empty() {
            return Err(PkiError::TlsOptions("none of the groups for the key exchange is known: 23, 24 or 29".into()));
        }
    }
    let provider = Arc::new(provider);
    let versions = if options.tls13_only { &[&rustls::version::TLS13][..] } else { rustls::DEFAULT_VERSIONS };
    let has_tls12 = provider.cipher_suites.iter().any(|suite| suite.tls13().is_none());
    let versions = if has_tls12 { versions } else { &[&rustls::version::TLS13] };
    let algorithms = provider.signature_verification_algorithms;
    let builder = ServerConfig::builder_with_provider(provider).with_protocol_versions(versions)?;
    let builder = match options.request_client_certificates {
        true => builder.with_client_cert_verifier(Arc::new(RequestClientCertificate { algorithms })),
        false => builder.with_no_client_auth(),
    };
    let mut tls = builder.with_cert_resolver(Arc::clone(certificates) as _);
    tls.alpn_protocols = match options.http1_only {
        true => vec![b"http/1.1".to_vec()],
        false => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
    };
    Ok(tls)
}

/// Returns the IANA name of a suite for which Go also accepts a shorter name.
fn go_alias(name: &str) -> &str {
    match name {
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305" => "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305" => "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        name => name,
    }
}

/// Requests a client certificate without requiring one, and accepts any certificate, like Go's `tls.RequestClientCert`.
/// The handshake proves that the client has the key. If the handshake failed instead, the client would not receive a
/// 401, and could not use a token. This holds for certificates that rustls cannot read, too, such as those of X.509
/// version 1.
#[derive(Debug)]
struct RequestClientCertificate {
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for RequestClientCertificate {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[rustls::DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let Some(key) = public_key_unknown_to_rustls(certificate) else {
            return rustls::crypto::verify_tls12_signature(message, certificate, signature, &self.algorithms);
        };
        match verify_tls12_signature(&key, signature.scheme.into(), message, signature.signature()) {
            true => Ok(HandshakeSignatureValid::assertion()),
            false => Err(rustls::CertificateError::BadSignature.into()),
        }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        match public_key_unknown_to_rustls(certificate) {
            Some(key) => verify_tls13_signature_with_raw_key(message, &key.into(), signature, &self.algorithms),
            None => rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.algorithms),
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Writes a file that only its owner may read (mode 0600), and syncs it. Replaces an existing file atomically.
fn write_private(path: &Path, content: &[u8]) -> Result<(), PkiError> {
    replace_private(path, content, fs::File::sync_all)
}

fn replace_private(path: &Path, content: &[u8], sync: fn(&fs::File) -> io::Result<()>) -> Result<(), PkiError> {
    let failed = |source| PkiError::File { path: path.to_owned(), source };
    let mut name = path.file_name().unwrap_or_default().to_owned();
    // The temporary file has a random new name, so that no existing link or file of another user is written.
    name.push(format!(".{:016x}.tmp", rand::random::<u64>()));
    let temporary = path.with_file_name(name);
    let written = create_private(&temporary)
        .and_then(|mut file| file.write_all(content).and_then(|()| sync(&file)))
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written.map_err(failed)
}

#[cfg(unix)]
fn create_private(path: &Path) -> io::Result<fs::File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

#[cfg(not(unix))]
fn create_private(path: &Path) -> io::Result<fs::File> {
    fs::File::create_new(path)
}

fn read(path: &Path) -> Result<Option<String>, PkiError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(PkiError::File { path: path.to_owned(), source }),
    }
}

fn token() -> String {
    URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>())
}

/// Returns the parameters of the CA. They are constant, so that the issuer can be rebuilt from the key alone.
fn ca_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = name("listwatch-ca");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    let now = OffsetDateTime::now_utc();
    params.not_before = now - Duration::hours(1); // clock skew
    params.not_after = now + Duration::days(CA_VALIDITY_DAYS);
    params
}

fn server_params(names: &[String]) -> Result<CertificateParams, rcgen::Error> {
    let always = [
        "localhost",
        "127.0.0.1",
        "::1",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    ];
    let mut all: Vec<String> = Vec::new();
    for name in always.into_iter().map(str::to_owned).chain(names.iter().cloned()) {
        let unspecified = name.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified());
        if !unspecified && !all.contains(&name) {
            all.push(name);
        }
    }
    // Names that parse as an address become addresses; the others are DNS names.
    let mut params = CertificateParams::new(all)?;
    params.distinguished_name = name("listwatch");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    let now = OffsetDateTime::now_utc();
    params.not_before = now - Duration::hours(1);
    params.not_after = now + Duration::days(SERVER_VALIDITY_DAYS);
    Ok(params)
}

/// Returns a distinguished name with only a common name.
pub(super) fn name(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

#[cfg(test)]
mod tests {
    use rcgen::SigningKey as _;
    use rustls_pki_types::pem::PemObject as _;
    use x509_cert::der::asn1::BitString;
    use x509_cert::der::{Any, Decode as _, Encode as _, Tag};

    use super::*;
    use crate::transport::complete_handshake;

    #[test]
    fn ca_and_token_are_kept_across_restarts() {
        let directory = tempfile::tempdir().unwrap();
        let first = Pki::load_or_create(directory.path(), &[]).unwrap();
        let second = Pki::load_or_create(directory.path(), &[]).unwrap();
        assert_eq!(first.ca_pem(), second.ca_pem());
        assert_eq!(first.token(), second.token());
        assert_ne!(Pki::in_memory(&[]).unwrap().token(), first.token());
    }

    #[cfg(unix)]
    #[test]
    fn key_and_token_files_have_mode_0600() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        Pki::load_or_create(directory.path(), &[]).unwrap();
        for file in ["ca.key", "admin.token"] {
            let mode = fs::metadata(directory.path().join(file)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{file}");
        }
    }

    #[test]
    fn error_of_an_unusable_key_names_its_file() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("ca.key"), "garbage").unwrap();
        let error = Pki::load_or_create(directory.path(), &[]).err().unwrap().to_string();
        assert!(error.contains("ca.key is not usable"), "{error}");
    }

    /// A certificate of X.509 version 1, which rustls cannot read, and its key.
    fn version_1_certificate() -> (CertificateDer<'static>, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let der = ca_params().self_signed(&key).unwrap().der().clone();
        let parsed = x509_cert::Certificate::from_der(&der).unwrap();
        let (tbs, algorithm) = (parsed.tbs_certificate(), parsed.signature_algorithm());
        let parts = [
            tbs.serial_number().to_der(),
            algorithm.to_der(),
            tbs.issuer().to_der(),
            tbs.validity().to_der(),
            tbs.subject().to_der(),
            tbs.subject_public_key_info().to_der(),
        ];
        let sequence = |content: &[u8]| Any::new(Tag::Sequence, content).unwrap().to_der().unwrap();
        let tbs = sequence(&parts.map(|part| part.unwrap()).concat());
        let signature = BitString::from_bytes(&key.sign(&tbs).unwrap()).unwrap();
        (sequence(&[tbs, algorithm.to_der().unwrap(), signature.to_der().unwrap()].concat()).into(), key)
    }

    /// Accepts every server. Presents one certificate, and signs with one key.
    #[derive(Debug)]
    struct Client(Arc<rustls::sign::CertifiedKey>);

    impl rustls::client::ResolvesClientCert for Client {
        fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<rustls::sign::CertifiedKey>> {
            Some(Arc::clone(&self.0))
        }

        fn has_certs(&self) -> bool {
            true
        }
    }

    /// Performs a handshake in memory. Returns the certificates that the server received.
    fn handshake(
        version: &'static rustls::SupportedProtocolVersion,
        certificate: CertificateDer<'static>,
        key: &KeyPair,
    ) -> Result<Option<Vec<CertificateDer<'static>>>, rustls::Error> {
        let pki = Pki::in_memory(&[]).unwrap();
        let options = TlsOptions { request_client_certificates: true, ..TlsOptions::default() };
        let server = tls_config(pki.certificates(), &options).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(pki.ca_pem().as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let private = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let signer = provider.key_provider.load_private_key(private).unwrap();
        let certified = rustls::sign::CertifiedKey::new(vec![certificate], signer);
        let client = rustls::ClientConfig::builder_with_provider(provider).with_protocol_versions(&[version]).unwrap();
        let client = client.with_root_certificates(roots).with_client_cert_resolver(Arc::new(Client(certified.into())));
        let mut client = rustls::ClientConnection::new(client.into(), "localhost".try_into().unwrap()).unwrap();
        let mut server = rustls::ServerConnection::new(server.into()).unwrap();
        complete_handshake(&mut client, &mut server)?;
        Ok(server.peer_certificates().map(<[_]>::to_vec))
    }

    #[test]
    fn client_with_a_version_1_certificate_completes_the_handshake() {
        let (certificate, key) = version_1_certificate();
        let other = KeyPair::generate().unwrap();
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let received = handshake(version, certificate.clone(), &key);
            assert_eq!(received, Ok(Some(vec![certificate.clone()])), "{version:?}");
            let stolen = handshake(version, certificate.clone(), &other);
            let rejected = rustls::Error::InvalidCertificate(rustls::CertificateError::BadSignature);
            assert_eq!(stolen, Err(rejected), "{version:?}: the client does not have the key of the certificate");
        }
    }
}
