//! Certificates and keys: [`Certificate`] and [`Identity`].

use std::fmt;

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::ConfigError;

/// An X.509 certificate, which is parsed when a connection needs it.
#[derive(Clone, PartialEq, Eq)]
pub struct Certificate {
    der: CertificateDer<'static>,
}

impl Certificate {
    /// A certificate in DER.
    pub fn from_der(der: impl Into<Vec<u8>>) -> Self {
        Certificate { der: CertificateDer::from(der.into()) }
    }

    /// Reads all certificates of a PEM file, in file order.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] when the file has no certificate, or a block is not base64.
    pub fn from_pem(pem: &[u8]) -> Result<Vec<Self>, ConfigError> {
        parse_certificates(pem, "the certificate")
    }

    /// The certificate in DER.
    pub fn der(&self) -> &[u8] {
        &self.der
    }

    /// Converts to rustls' type.
    #[cfg(feature = "tls")]
    pub(crate) fn into_der(self) -> CertificateDer<'static> {
        self.der
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Certificate({} bytes)", self.der.len())
    }
}

/// A client certificate: its chain and its private key.
pub struct Identity {
    /// The chain, which begins with the client's own certificate.
    certificates: Vec<Certificate>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    /// Reads a chain, the client's own certificate first, and its private key (PKCS #8, PKCS #1 or SEC 1).
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] when the chain or the key has no PEM block of its kind.
    pub fn from_pem(certificates: &[u8], key: &[u8]) -> Result<Self, ConfigError> {
        Identity::parse((certificates, "the client certificate"), (key, "the client key"))
    }

    /// The chain, the client's own certificate first.
    pub fn certificates(&self) -> &[Certificate] {
        &self.certificates
    }

    /// The private key in DER.
    pub fn key_der(&self) -> &[u8] {
        self.key.secret_der()
    }

    /// Parses a chain and its key like [`Identity::from_pem`]; each text has a name for error messages.
    pub(super) fn parse(certificates: (&[u8], &str), key: (&[u8], &str)) -> Result<Self, ConfigError> {
        let certificates = parse_certificates(certificates.0, certificates.1)?;
        let (pem, what) = key;
        let key = PrivateKeyDer::from_pem_slice(pem)
            .map_err(|error| ConfigError::invalid(what, format!("is no PEM private key: {error}")).caused_by(error))?;
        Ok(Identity { certificates, key })
    }

    /// Converts to rustls' types.
    #[cfg(feature = "tls")]
    pub(crate) fn into_der(self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        (self.certificates.into_iter().map(Certificate::into_der).collect(), self.key)
    }
}

impl Clone for Identity {
    fn clone(&self) -> Self {
        Identity { certificates: self.certificates.clone(), key: self.key.clone_key() }
    }
}

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        self.certificates == other.certificates && self.key_der() == other.key_der()
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({} certificates)", self.certificates.len())
    }
}

pub(super) fn parse_certificates(pem: &[u8], what: &str) -> Result<Vec<Certificate>, ConfigError> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .map(|der| der.map(|der| Certificate { der }))
        .collect::<Result<_, _>>()
        .map_err(|error| ConfigError::invalid(what, format!("is no PEM certificate: {error}")).caused_by(error))?;
    if certificates.is_empty() {
        return Err(ConfigError::invalid(what, "holds no PEM certificate"));
    }
    Ok(certificates)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A PEM block with one byte. Blocks are decoded, not verified.
    fn pem(kind: &str, byte: u8) -> String {
        let text = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, [byte]);
        format!("-----BEGIN {kind}-----\n{text}\n-----END {kind}-----\n")
    }

    #[test]
    fn pem_file_yields_all_its_certificates_in_order() {
        let file = [pem("CERTIFICATE", 1), pem("PRIVATE KEY", 9), pem("CERTIFICATE", 2)].concat();
        let found = Certificate::from_pem(file.as_bytes()).unwrap();
        assert_eq!(found.iter().map(Certificate::der).collect::<Vec<_>>(), [[1], [2]]);
        assert_eq!(found[1], Certificate::from_der([2]));
        for bad in [pem("PRIVATE KEY", 9), String::new()] {
            let error = Certificate::from_pem(bad.as_bytes()).unwrap_err().to_string();
            assert_eq!(error, "the certificate: holds no PEM certificate");
        }
    }

    #[test]
    fn identities_are_equal_only_with_equal_chain_and_key() {
        let identity = |certificates: &[u8], key: u8| {
            let chain: String = certificates.iter().map(|byte| pem("CERTIFICATE", *byte)).collect();
            Identity::from_pem(chain.as_bytes(), pem("PRIVATE KEY", key).as_bytes()).unwrap()
        };
        let own = identity(&[1, 2], 3);
        assert_eq!(own.certificates(), [Certificate::from_der([1]), Certificate::from_der([2])]);
        assert_eq!(own.key_der(), [3]);
        assert_eq!(own, identity(&[1, 2], 3));
        assert_eq!(own, own.clone());
        assert_ne!(own, identity(&[1, 2], 4), "the key differs");
        assert_ne!(own, identity(&[2, 1], 3), "the chain differs");
    }
}
