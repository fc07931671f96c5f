//! [`PkiError`]: the error of unusable certificates or tokens.

use std::io;
use std::path::PathBuf;

/// The error of [`Pki`](super::pki::Pki): the certificates or the token could not be read or created.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file of the data directory cannot be read or written. The operator must fix its permissions or path.
    #[error("{path}: {source}")]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A file of the data directory has no usable key, certificate or token. If it is removed, the next start creates
    /// a new one, and earlier kubeconfigs become invalid.
    #[error("{path} is not usable: {why}; remove the file to create a new one")]
    Unusable {
        /// The path of the file.
        path: PathBuf,
        /// The reason why the content is unusable.
        why: String,
    },
    /// A file that the operator provides has no certificate or key in PEM.
    #[error("{path} is not usable: {why}")]
    Pem {
        /// The path of the file.
        path: PathBuf,
        /// The reason why the content is unusable.
        why: String,
    },
    /// A certificate could not be created.
    #[error("cannot make a certificate: {0}")]
    Generate(#[from] rcgen::Error),
    /// The TLS options leave no version, cipher suite or group that the server supports.
    #[error("{0}")]
    TlsOptions(String),
    /// The TLS library rejects the certificate.
    #[error("cannot use the certificate: {0}")]
    Tls(#[from] rustls::Error),
}
