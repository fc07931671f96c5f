//! The server's certificates and the admin's credential: made on first start, kept in the data
//! directory ([`Pki`]).
//!
//! The CA's key and the token are kept, so a kubeconfig stays good over restarts. The server's own
//! certificate is made anew at each start: it costs about a millisecond and always names the
//! present addresses.

use std::fs;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::ServerConfig;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use time::{Duration, OffsetDateTime};

/// How long a CA made here is valid, in days.
const CA_VALIDITY_DAYS: i64 = 3650;
/// How long a server certificate made here is valid, in days. It is made anew at each start, so
/// this is the longest a server can run without one: as long as its CA lives.
const SERVER_VALIDITY_DAYS: i64 = CA_VALIDITY_DAYS;

/// A certificate authority with a server certificate, and the admin's bearer token.
pub struct Pki {
    ca_pem: String,
    token: String,
    tls: Arc<ServerConfig>,
}

/// Why the certificates or the token could not be had.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file of the data directory cannot be read or written; the operator must mend it.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A file of the data directory holds no usable key or certificate; remove it to have it made
    /// anew (kubeconfigs handed out before stop working).
    #[error("{path} is not usable: {why}; remove it to have it made anew")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A certificate could not be made.
    #[error("cannot make a certificate: {0}")]
    Generate(#[from] rcgen::Error),
    /// The TLS library refuses the certificate.
    #[error("cannot use the certificate: {0}")]
    Tls(#[from] rustls::Error),
}

impl Pki {
    /// A CA, certificate and token that live only in memory. `names` are further host names and
    /// addresses of the server, besides loopback and the names every cluster knows.
    ///
    /// # Errors
    /// [`PkiError::Generate`] when the system's randomness fails.
    pub fn in_memory(names: &[String]) -> Result<Self, PkiError> {
        let ca_key = KeyPair::generate()?;
        let ca_pem = ca_params().self_signed(&ca_key)?.pem();
        Self::assemble(&ca_key, ca_pem, token(), names)
    }

    /// The CA and token of a data directory, made on first use: `ca.crt`, `ca.key` (0600) and
    /// `admin.token` (0600).
    ///
    /// # Errors
    /// See [`PkiError`]; every message names the file.
    pub fn load_or_create(directory: &Path, names: &[String]) -> Result<Self, PkiError> {
        let (key_path, ca_path, token_path) =
            (directory.join("ca.key"), directory.join("ca.crt"), directory.join("admin.token"));
        let ca_key = match read(&key_path)? {
            Some(pem) => KeyPair::from_pem(&pem)
                .map_err(|error| PkiError::Unusable { path: key_path.clone(), why: error.to_string() })?,
            None => {
                let key = KeyPair::generate()?;
                write_private(&key_path, key.serialize_pem().as_bytes())?;
                // A certificate of another key would be useless.
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

    fn assemble(ca_key: &KeyPair, ca_pem: String, token: String, names: &[String]) -> Result<Self, PkiError> {
        let issuer = Issuer::new(ca_params(), ca_key);
        let server_key = KeyPair::generate()?;
        let certificate = server_params(names)?.signed_by(&server_key, &issuer)?;
        let chain = vec![CertificateDer::from(certificate.der().to_vec())];
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(server_key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Pki { ca_pem, token, tls: Arc::new(tls) })
    }

    /// The CA's certificate, as PEM: what clients trust.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// The admin's bearer token.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// The same certificates with another token.
    #[must_use]
    pub fn with_token(mut self, token: &str) -> Self {
        token.clone_into(&mut self.token);
        self
    }

    /// What the listener serves TLS with: HTTP/2 and HTTP/1.1 by ALPN.
    pub fn tls(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.tls)
    }

    /// A kubeconfig for the admin of the server at `url`: the CA and the token inside, so that one
    /// file is all a client needs.
    pub fn kubeconfig(&self, url: &str) -> String {
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

/// Writes a file that only its owner may read (mode 0600), replacing what is there in one step.
///
/// # Errors
/// [`PkiError::File`] naming the path.
pub fn write_private(path: &Path, content: &[u8]) -> Result<(), PkiError> {
    let failed = |source| PkiError::File { path: path.to_owned(), source };
    let mut name = path.file_name().unwrap_or_default().to_owned();
    // A name that nobody can guess, made new: a link or file laid in wait is never written to.
    name.push(format!(".{:016x}.tmp", rand::random::<u64>()));
    let temporary = path.with_file_name(name);
    let written = create_private(&temporary)
        .and_then(|mut file| file.write_all(content).and_then(|()| file.sync_all()))
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

/// The CA's parameters: always the same, so that the issuer can be rebuilt from the key alone.
fn ca_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = name("listwatch-ca");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    let now = OffsetDateTime::now_utc();
    params.not_before = now - Duration::hours(1); // clocks differ
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
    // What parses as an address becomes one, the rest are DNS names.
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

fn name(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_once_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let first = Pki::load_or_create(directory.path(), &[]).unwrap();
        let second = Pki::load_or_create(directory.path(), &[]).unwrap();
        assert_eq!(first.ca_pem(), second.ca_pem());
        assert_eq!(first.token(), second.token());
        assert_ne!(Pki::in_memory(&[]).unwrap().token(), first.token());
    }

    #[cfg(unix)]
    #[test]
    fn secrets_are_for_their_owner_only() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        Pki::load_or_create(directory.path(), &[]).unwrap();
        for file in ["ca.key", "admin.token"] {
            let mode = fs::metadata(directory.path().join(file)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{file}");
        }
    }

    #[test]
    fn a_broken_file_is_named() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("ca.key"), "garbage").unwrap();
        let error = Pki::load_or_create(directory.path(), &[]).err().unwrap().to_string();
        assert!(error.contains("ca.key is not usable"), "{error}");
    }
}
