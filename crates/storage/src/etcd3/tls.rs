//! TLS of the connections to etcd. [`TlsFiles`] reads its files for each new connection, so that renewed
//! certificates are used without a restart. etcd's own client reads its certificate and key in the same way
//! (etcd, `client/pkg/transport/listener.go`, `TLSInfo`); here the authorities are read again too.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tonic::codegen::http::Uri;
use tower_service::Service;

use super::fault::chain;
use super::options::ConnectError;

/// The port of etcd's clients.
const DEFAULT_PORT: u16 = 2379;

/// The paths of the PEM files.
#[derive(Clone, Debug, Default)]
pub(super) struct TlsPaths {
    /// The authorities that sign etcd's certificates. The default is the operating system's.
    pub(super) authorities: Option<PathBuf>,
    /// The client certificate and its private key.
    pub(super) identity: Option<(PathBuf, PathBuf)>,
}

/// The bytes of the files.
#[derive(PartialEq, Eq)]
struct Contents {
    authorities: Option<Vec<u8>>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl Contents {
    fn read(paths: &TlsPaths) -> Result<Self, ConnectError> {
        let read = |file: &Path| std::fs::read(file).map_err(|error| unusable(file, error.to_string()));
        Ok(Contents {
            authorities: paths.authorities.as_deref().map(read).transpose()?,
            identity: match &paths.identity {
                Some((certificate, key)) => Some((read(certificate)?, read(key)?)),
                None => None,
            },
        })
    }
}

/// The TLS files, and the configuration that was made of them.
pub(super) struct TlsFiles {
    paths: TlsPaths,
    loaded: Mutex<Loaded>,
}

struct Loaded {
    contents: Contents,
    config: Arc<ClientConfig>,
    /// The last error, so that the log has it once.
    error: Option<ConnectError>,
}

impl TlsFiles {
    /// Reads the files.
    pub(super) fn load(paths: TlsPaths) -> Result<Self, ConnectError> {
        let contents = Contents::read(&paths)?;
        let config = Arc::new(configure(&paths, &contents)?);
        Ok(TlsFiles { paths, loaded: Mutex::new(Loaded { contents, config, error: None }) })
    }

    /// The configuration of the present files. While they are unusable, for example because only one of certificate and
    /// key was replaced yet, the last usable configuration. Blocks on the file system.
    fn config(&self) -> Arc<ClientConfig> {
        let mut loaded = self.loaded.lock();
        let reloaded = Contents::read(&self.paths).and_then(|contents| {
            if contents == loaded.contents {
                return Ok(None);
            }
            let config = Arc::new(configure(&self.paths, &contents)?);
            Ok(Some(Loaded { contents, config, error: None }))
        });
        match reloaded {
            Ok(None) => loaded.error = None,
            Ok(Some(changed)) => {
                *loaded = changed;
                tracing::info!("the TLS files of etcd have changed; new connections use them");
            }
            Err(error) if loaded.error.as_ref() == Some(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "the TLS files of etcd are unusable; connections use those that were read before");
                loaded.error = Some(error);
            }
        }
        loaded.config.clone()
    }
}

fn configure(paths: &TlsPaths, contents: &Contents) -> Result<ClientConfig, ConnectError> {
    let mut roots = RootCertStore::empty();
    match (&paths.authorities, &contents.authorities) {
        (Some(file), Some(bytes)) => {
            for authority in certificates(file, bytes)? {
                roots.add(authority).map_err(|error| unusable(file, chain(&error)))?;
            }
        }
        // Unreadable certificates of the system are skipped.
        _ => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring supports the default versions of TLS")
        .with_root_certificates(roots);
    let mut config = match (&paths.identity, &contents.identity) {
        (Some((certificate_file, key_file)), Some((certificate, key))) => {
            let chain_of_certificate = certificates(certificate_file, certificate)?;
            let key = PrivateKeyDer::from_pem_slice(key)
                .map_err(|_| unusable(key_file, "it has no PEM block \"PRIVATE KEY\"".to_owned()))?;
            builder
                .with_client_auth_cert(chain_of_certificate, key)
                .map_err(|error| unusable(certificate_file, chain(&error)))?
        }
        _ => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

fn certificates(file: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, ConnectError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(unusable(file, "it has no PEM block \"CERTIFICATE\"".to_owned())),
        Err(error) => Err(unusable(file, chain(&error))),
    }
}

fn unusable(file: &Path, reason: String) -> ConnectError {
    ConnectError::File { file: file.to_owned(), reason }
}

/// Opens connections with the present [`TlsFiles`], for tonic.
#[derive(Clone)]
pub(super) struct Connector {
    files: Arc<TlsFiles>,
    timeout: Duration,
}

impl Connector {
    /// `timeout` is the time for address lookup, TCP and the TLS handshake together.
    pub(super) fn new(files: Arc<TlsFiles>, timeout: Duration) -> Self {
        Connector { files, timeout }
    }

    async fn connect(self, uri: Uri) -> io::Result<TokioIo<TlsStream<TcpStream>>> {
        let host = uri.host().unwrap_or_default();
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host).to_owned();
        let name = ServerName::try_from(host.clone())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, format!("host {host}: {error}")))?;
        let files = self.files;
        let config = tokio::task::spawn_blocking(move || files.config()).await.map_err(io::Error::other)?;
        let tcp = TcpStream::connect((host, uri.port_u16().unwrap_or(DEFAULT_PORT))).await?;
        tcp.set_nodelay(true)?;
        let stream = tokio_rustls::TlsConnector::from(config).connect(name, tcp).await?;
        if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the server does not choose HTTP/2"));
        }
        Ok(TokioIo::new(stream))
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move {
            let timeout = connector.timeout;
            match tokio::time::timeout(timeout, connector.connect(uri)).await {
                Ok(connected) => connected,
                Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, format!("no TLS connection within {timeout:?}"))),
            }
        })
    }
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").field("paths", &self.files.paths).field("timeout", &self.timeout).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A self-signed certificate and its key, as PEM.
    fn identity() -> (String, String) {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(vec!["etcd".to_owned()]).unwrap().self_signed(&key).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    struct Dir {
        dir: tempfile::TempDir,
        paths: TlsPaths,
    }

    impl Dir {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let file = |name: &str| dir.path().join(name);
            let paths = TlsPaths {
                authorities: Some(file("ca.crt")),
                identity: Some((file("client.crt"), file("client.key"))),
            };
            let files = Dir { dir, paths };
            let (certificate, key) = identity();
            files.write("ca.crt", &certificate);
            files.write("client.crt", &certificate);
            files.write("client.key", &key);
            files
        }

        fn write(&self, name: &str, text: &str) {
            std::fs::write(self.dir.path().join(name), text).unwrap();
        }
    }

    #[test]
    fn unchanged_files_keep_their_configuration_and_changed_ones_replace_it() {
        let dir = Dir::new();
        let files = TlsFiles::load(dir.paths.clone()).unwrap();
        let first = files.config();
        assert!(Arc::ptr_eq(&first, &files.config()), "unchanged files are not parsed again");

        let (certificate, key) = identity();
        dir.write("client.crt", &certificate);
        assert!(Arc::ptr_eq(&first, &files.config()), "the key of the new certificate is not there yet");
        dir.write("client.key", &key);
        let second = files.config();
        assert!(!Arc::ptr_eq(&first, &second), "certificate and key were replaced");

        dir.write("ca.crt", &certificate);
        let third = files.config();
        assert!(!Arc::ptr_eq(&second, &third), "the authorities were replaced");
        std::fs::remove_file(dir.dir.path().join("ca.crt")).unwrap();
        assert!(Arc::ptr_eq(&third, &files.config()), "without the file, the last usable one is used");
    }

    #[test]
    fn unusable_file_is_named_with_its_problem() {
        let (certificate, key) = identity();
        let other_key = identity().1;
        for (name, text, expected) in [
            ("ca.crt", "", "ca.crt: it has no PEM block \"CERTIFICATE\""),
            ("ca.crt", &key, "ca.crt: it has no PEM block \"CERTIFICATE\""),
            ("client.crt", "", "client.crt: it has no PEM block \"CERTIFICATE\""),
            ("client.key", &certificate, "client.key: it has no PEM block \"PRIVATE KEY\""),
            ("client.key", &other_key, "client.crt: "),
        ] {
            let dir = Dir::new();
            dir.write(name, text);
            let error = TlsFiles::load(dir.paths.clone()).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(expected), "{name}: {error:?} instead of {expected:?}");
        }
    }
}
