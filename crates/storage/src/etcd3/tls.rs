//! TLS of the connections to etcd. [`TlsFiles`] reads its files for each new connection, so that renewed
//! certificates are used without a restart. etcd's own client reads its certificate and key in the same way
//! (etcd, `client/pkg/transport/listener.go`, `TLSInfo`); here the authorities are read again too.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use listwatch_grpc::{TlsSource, error_chain};
use parking_lot::Mutex;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::options::ConnectError;

/// The maximum size of a TLS file, in bytes.
const TLS_FILE_BYTES_MAX: u64 = 1 << 20;

/// The time limit for reading the files again, for file systems that hang.
const READ_TIMEOUT: Duration = Duration::from_secs(1);

/// The paths of the PEM files.
#[derive(Clone, Debug, Default)]
pub(super) struct TlsPaths {
    /// The authorities that sign etcd's certificates. The default is the operating system's.
    pub(super) authorities: Option<PathBuf>,
    /// The client certificate and its private key.
    pub(super) identity: Option<(PathBuf, PathBuf)>,
}

/// The contents of the TLS files.
#[derive(PartialEq, Eq)]
struct Contents {
    authorities: Option<Vec<u8>>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl Contents {
    fn read(paths: &TlsPaths) -> Result<Self, ConnectError> {
        let read = |file: &Path| {
            let mut bytes = Vec::new();
            let opened = std::fs::File::open(file);
            opened
                .and_then(|opened| opened.take(TLS_FILE_BYTES_MAX + 1).read_to_end(&mut bytes))
                .map_err(|error| unusable(file, error.to_string()))?;
            if bytes.len() as u64 > TLS_FILE_BYTES_MAX {
                return Err(unusable(file, format!("it is larger than {TLS_FILE_BYTES_MAX} bytes")));
            }
            Ok(bytes)
        };
        Ok(Contents {
            authorities: paths.authorities.as_deref().map(read).transpose()?,
            identity: match &paths.identity {
                Some((certificate, key)) => Some((read(certificate)?, read(key)?)),
                None => None,
            },
        })
    }
}

/// The TLS files, and the configuration built from them.
pub(super) struct TlsFiles {
    paths: TlsPaths,
    /// Held while the files are read, so that a file system that hangs blocks one thread only.
    reading: Mutex<()>,
    loaded: Mutex<Loaded>,
}

struct Loaded {
    contents: Contents,
    config: Arc<ClientConfig>,
    /// The last error, which the log must not repeat.
    error: Option<ConnectError>,
}

impl TlsFiles {
    /// Reads the files.
    pub(super) fn load(paths: TlsPaths) -> Result<Self, ConnectError> {
        let contents = Contents::read(&paths)?;
        let config = Arc::new(configure(&paths, &contents)?);
        let loaded = Mutex::new(Loaded { contents, config, error: None });
        Ok(TlsFiles { paths, reading: Mutex::new(()), loaded })
    }

    fn last_usable(&self) -> Arc<ClientConfig> {
        self.loaded.lock().config.clone()
    }

    /// Reads the files again. Keeps the configuration while they are unusable, for example because only one of
    /// certificate and key was replaced yet. Blocks on the file system.
    fn reload(&self) {
        let Some(_reading) = self.reading.try_lock() else { return };
        let contents = Contents::read(&self.paths);
        let mut loaded = self.loaded.lock();
        let reloaded = contents.and_then(|contents| {
            if contents == loaded.contents {
                return Ok(None);
            }
            let config = Arc::new(configure(&self.paths, &contents)?);
            Ok(Some(Loaded { contents, config, error: None }))
        });
        match reloaded {
            Ok(None) => {
                if loaded.error.take().is_some() {
                    tracing::info!("the TLS files of etcd are usable again");
                }
            }
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
    }
}

/// The configuration of the present files, or the last usable one if reading them takes too long.
#[async_trait]
impl TlsSource for TlsFiles {
    async fn config(self: Arc<Self>) -> Arc<ClientConfig> {
        let files = self.clone();
        let reading = tokio::task::spawn_blocking(move || files.reload());
        if tokio::time::timeout(READ_TIMEOUT, reading).await.is_err() {
            tracing::warn!("the TLS files of etcd cannot be read within {READ_TIMEOUT:?}");
        }
        self.last_usable()
    }
}

fn configure(paths: &TlsPaths, contents: &Contents) -> Result<ClientConfig, ConnectError> {
    let mut roots = RootCertStore::empty();
    match (&paths.authorities, &contents.authorities) {
        (Some(file), Some(bytes)) => {
            let (_, skipped) = roots.add_parsable_certificates(certificates(file, bytes)?);
            if roots.is_empty() {
                return Err(unusable(file, "none of its certificates is one of an authority".to_owned()));
            }
            if skipped > 0 {
                tracing::warn!(file = %file.display(), skipped, "certificates of an authority are unusable");
            }
        }
        _ => {
            // Unusable certificates of the system are skipped.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                let reason = "the operating system trusts no authority; name the file of etcd's authority".to_owned();
                return Err(unusable(Path::new("/etc/ssl/certs"), reason));
            }
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring supports the default versions of TLS")
        .with_root_certificates(roots);
    let mut config = match (&paths.identity, &contents.identity) {
        (Some((certificate_file, key_file)), Some((certificate, key))) => {
            let certificate_chain = certificates(certificate_file, certificate)?;
            let key = PrivateKeyDer::from_pem_slice(key)
                .map_err(|_| unusable(key_file, "it has no PEM block \"PRIVATE KEY\"".to_owned()))?;
            builder
                .with_client_auth_cert(certificate_chain, key)
                .map_err(|error| unusable(certificate_file, error_chain(&error)))?
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
        Err(error) => Err(unusable(file, error_chain(&error))),
    }
}

fn unusable(file: &Path, reason: String) -> ConnectError {
    ConnectError::File { file: file.to_owned(), reason }
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

    fn reloaded(files: &TlsFiles) -> Arc<ClientConfig> {
        files.reload();
        files.last_usable()
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
    fn tls_configuration_is_rebuilt_only_when_the_files_change() {
        let dir = Dir::new();
        let files = TlsFiles::load(dir.paths.clone()).unwrap();
        let first = reloaded(&files);
        assert!(Arc::ptr_eq(&first, &reloaded(&files)), "unchanged files are not parsed again");

        let (certificate, key) = identity();
        dir.write("client.crt", &certificate);
        assert!(Arc::ptr_eq(&first, &reloaded(&files)), "the key of the new certificate is not there yet");
        dir.write("client.key", &key);
        let second = reloaded(&files);
        assert!(!Arc::ptr_eq(&first, &second), "certificate and key were replaced");

        dir.write("ca.crt", &certificate);
        let third = reloaded(&files);
        assert!(!Arc::ptr_eq(&second, &third), "the authorities were replaced");
        std::fs::remove_file(dir.dir.path().join("ca.crt")).unwrap();
        assert!(Arc::ptr_eq(&third, &reloaded(&files)), "without the file, the last usable one is used");
    }

    #[test]
    fn tls_error_names_the_unusable_file_and_the_problem() {
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

    #[tokio::test]
    async fn connection_does_not_wait_while_another_one_reads_the_tls_files() {
        let dir = Dir::new();
        let files = Arc::new(TlsFiles::load(dir.paths.clone()).unwrap());
        let first = files.clone().config().await;
        dir.write("ca.crt", &identity().0);
        let reading = files.reading.lock();
        assert!(Arc::ptr_eq(&first, &reloaded(&files)), "a read that hangs does not block other connections");
        drop(reading);
        assert!(!Arc::ptr_eq(&first, &files.clone().config().await));
    }

    #[test]
    fn tls_file_above_the_size_limit_is_rejected() {
        let dir = Dir::new();
        for (more, expected) in [(0, "ca.crt: it has no PEM block"), (1, "ca.crt: it is larger than 1048576 bytes")] {
            dir.write("ca.crt", &" ".repeat(TLS_FILE_BYTES_MAX as usize + more));
            let error = TlsFiles::load(dir.paths.clone()).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(expected), "{error:?} instead of {expected:?}");
        }
    }
}
