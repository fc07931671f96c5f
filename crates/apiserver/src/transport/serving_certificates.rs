//! The certificates of a listener: selection by the requested host name, and renewal when their files change.
//!
//! The rules are those of `apiserver/pkg/server/dynamiccertificates`: `named_certificates.go` selects,
//! `dynamic_serving_content.go` reloads.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use listwatch_meta::selector::validate_dns_subdomain;
use parking_lot::Mutex;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tracing::{info, warn};
use x509_cert::Certificate;
use x509_cert::der::oid::db::rfc4519::COMMON_NAME;
use x509_cert::der::{Decode as _, Tag, Tagged as _};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

use super::pki_error::PkiError;

/// The interval at which the files are read again. kube-apiserver reads the files every minute, and when the file
/// system reports a change.
pub(crate) const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

/// A certificate for the host names that a client requests by SNI (`--tls-sni-cert-key`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SniCertificate {
    /// The PEM file of the certificate chain, starting with the certificate of the server.
    pub certificate: PathBuf,
    /// The PEM file of the private key.
    pub key: PathBuf,
    /// The host names for which the certificate is used; `*.example.com` matches one more label. If empty, the common
    /// name and the DNS names of the certificate.
    pub names: Vec<String>,
}

/// The certificates of a listener. Handshakes read them without a lock.
#[derive(Debug)]
pub(crate) struct ServingCertificates {
    current: ArcSwap<NamedCertificates>,
    default: Source,
    sni: Vec<SniCertificate>,
    /// The bytes of all files at the last successful load.
    loaded: Mutex<Vec<Vec<u8>>>,
}

/// The source of the certificate for all other names.
#[derive(Debug)]
enum Source {
    Made(Arc<CertifiedKey>),
    Files { certificate: PathBuf, key: PathBuf },
}

impl ServingCertificates {
    /// Creates one certificate for all names, which never changes.
    pub(crate) fn made(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Result<Self, PkiError> {
        let default = Arc::new(certified(chain, key)?);
        let current = NamedCertificates { default: Arc::clone(&default), by_name: HashMap::new() };
        Ok(ServingCertificates {
            current: ArcSwap::from_pointee(current),
            default: Source::Made(default),
            sni: Vec::new(),
            loaded: Mutex::default(),
        })
    }

    /// Loads one certificate for all names from PEM files.
    ///
    /// # Errors
    /// A file cannot be read or has no certificate or key, or the key does not match the certificate.
    pub(crate) fn from_files(certificate: &Path, key: &Path) -> Result<Self, PkiError> {
        Self::load(Source::Files { certificate: certificate.to_owned(), key: key.to_owned() }, Vec::new())
    }

    /// Returns the same default certificate, with additional certificates for specific names.
    ///
    /// # Errors
    /// See [`ServingCertificates::from_files`].
    pub(crate) fn with_sni(&self, sni: Vec<SniCertificate>) -> Result<Self, PkiError> {
        let default = match &self.default {
            Source::Made(default) => Source::Made(Arc::clone(default)),
            Source::Files { certificate, key } => Source::Files { certificate: certificate.clone(), key: key.clone() },
        };
        Self::load(default, sni)
    }

    fn load(default: Source, sni: Vec<SniCertificate>) -> Result<Self, PkiError> {
        let files = read_files(&default, &sni)?;
        let current = NamedCertificates::parse(&default, &sni, &files)?;
        Ok(ServingCertificates { current: ArcSwap::from_pointee(current), default, sni, loaded: Mutex::new(files) })
    }

    /// Whether the certificates come from files.
    pub(crate) fn can_change(&self) -> bool {
        matches!(self.default, Source::Files { .. }) || !self.sni.is_empty()
    }

    /// Reads the files again. Returns whether the files changed. After an error, the old certificates remain in use.
    /// This happens, for example, while only one of two files is written.
    ///
    /// # Errors
    /// See [`ServingCertificates::from_files`].
    pub(crate) fn reload(&self) -> Result<bool, PkiError> {
        let files = read_files(&self.default, &self.sni)?;
        let mut loaded = self.loaded.lock();
        if *loaded == files {
            return Ok(false);
        }
        self.current.store(Arc::new(NamedCertificates::parse(&self.default, &self.sni, &files)?));
        *loaded = files;
        Ok(true)
    }

    /// Reads the files periodically until the future is dropped. Open connections keep their certificate.
    pub(crate) async fn follow_files(self: Arc<Self>) {
        let mut interval = tokio::time::interval(RELOAD_INTERVAL);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        // The same error is logged once, not at each interval.
        let mut last_error = None;
        loop {
            interval.tick().await;
            let certificates = Arc::clone(&self);
            let Ok(outcome) = tokio::task::spawn_blocking(move || certificates.reload()).await else {
                continue;
            };
            let error = match outcome {
                Ok(changed) => {
                    if changed {
                        info!("the certificates of the listener were read again");
                    }
                    None
                }
                Err(error) => Some(error.to_string()),
            };
            if let Some(error) = error.as_ref().filter(|error| last_error.as_ref() != Some(*error)) {
                warn!(%error, "cannot read the certificates of the listener; the old ones stay in use");
            }
            last_error = error;
        }
    }
}

impl ResolvesServerCert for ServingCertificates {
    fn resolve(&self, client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.load().select(client_hello.server_name()))
    }
}

/// The certificates by host name, and the default certificate for all other names.
#[derive(Debug)]
struct NamedCertificates {
    default: Arc<CertifiedKey>,
    by_name: HashMap<String, Arc<CertifiedKey>>,
}

impl NamedCertificates {
    /// Parses the bytes of [`read_files`].
    fn parse(default: &Source, sni: &[SniCertificate], files: &[Vec<u8>]) -> Result<Self, PkiError> {
        let mut pairs = files.chunks_exact(2);
        let default = match default {
            Source::Made(default) => Arc::clone(default),
            Source::Files { certificate, key } => Arc::new(parse_pair(certificate, key, pairs.next())?),
        };
        let (mut by_name, mut explicit) = (HashMap::new(), HashMap::new());
        // Backwards, so that earlier certificates win.
        for (at, pair) in sni.iter().zip(pairs).rev() {
            let certified = Arc::new(parse_pair(&at.certificate, &at.key, Some(pair))?);
            for name in &at.names {
                explicit.insert(name.to_ascii_lowercase(), Arc::clone(&certified));
            }
            if at.names.is_empty() {
                for name in names_of(&certified) {
                    by_name.insert(name.to_ascii_lowercase(), Arc::clone(&certified));
                }
            }
        }
        by_name.extend(explicit);
        Ok(NamedCertificates { default, by_name })
    }

    /// Returns the certificate for the host name, for its wildcard, or the default, in this order (Go's
    /// `tls.Config.getCertificate`).
    fn select(&self, name: Option<&str>) -> Arc<CertifiedKey> {
        let named = name.filter(|_| !self.by_name.is_empty()).and_then(|name| {
            let name = name.to_ascii_lowercase();
            let wildcard = || name.split_once('.').map(|(_, parent)| format!("*.{parent}"));
            self.by_name.get(&name).or_else(|| self.by_name.get(&wildcard()?))
        });
        Arc::clone(named.unwrap_or(&self.default))
    }
}

/// Reads all files: certificate, key, certificate, key, and so on.
fn read_files(default: &Source, sni: &[SniCertificate]) -> Result<Vec<Vec<u8>>, PkiError> {
    let default = match default {
        Source::Made(_) => None,
        Source::Files { certificate, key } => Some([certificate, key]),
    };
    let paths = default.into_iter().chain(sni.iter().map(|sni| [&sni.certificate, &sni.key])).flatten();
    let read = |path: &PathBuf| std::fs::read(path).map_err(|source| PkiError::File { path: path.clone(), source });
    paths.map(read).collect()
}

fn parse_pair(certificate: &Path, key: &Path, pair: Option<&[Vec<u8>]>) -> Result<CertifiedKey, PkiError> {
    let unusable = |path: &Path, why: String| PkiError::Pem { path: path.to_owned(), why };
    let Some([chain_pem, key_pem]) = pair else {
        return Err(unusable(certificate, "the file was not read".to_owned()));
    };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain_pem).collect();
    let chain = chain.map_err(|error| unusable(certificate, error.to_string()))?;
    if chain.is_empty() {
        return Err(unusable(certificate, "there is no certificate in PEM".to_owned()));
    }
    let key_der = PrivateKeyDer::from_pem_slice(key_pem).map_err(|error| unusable(key, error.to_string()))?;
    Ok(certified(chain, key_der)?)
}

/// Checks that the key belongs to the certificate.
pub(super) fn certified(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<CertifiedKey, rustls::Error> {
    CertifiedKey::from_der(chain, key, &rustls::crypto::ring::default_provider())
}

/// Returns the DNS names of a certificate, and the common name if that is a host name (`getCertificateNames`).
fn names_of(certified: &CertifiedKey) -> Vec<String> {
    let Some(certificate) = certified.cert.first().and_then(|der| Certificate::from_der(der).ok()) else {
        return Vec::new();
    };
    let tbs = certificate.tbs_certificate();
    let attributes = tbs.subject().iter().filter(|attribute| attribute.oid == COMMON_NAME);
    let common_name = attributes.last().and_then(|attribute| match attribute.value.tag() {
        Tag::Utf8String | Tag::PrintableString => String::from_utf8(attribute.value.value().to_vec()).ok(),
        _ => None,
    });
    let is_host = |name: &String| {
        let domain = name.strip_prefix("*.").unwrap_or(name);
        name == "*" || (name.parse::<std::net::IpAddr>().is_err() && validate_dns_subdomain(domain).is_ok())
    };
    let mut names: Vec<String> = common_name.into_iter().filter(is_host).collect();
    if let Ok(Some((_, SubjectAltName(alternatives)))) = tbs.get_extension::<SubjectAltName>() {
        names.extend(alternatives.iter().filter_map(|name| match name {
            GeneralName::DnsName(name) => Some(name.as_str().to_owned()),
            _ => None,
        }));
    }
    names
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    use super::*;

    /// Writes a self-signed certificate and its key. Returns the paths and the certificate.
    fn write_pair(directory: &Path, file: &str, names: &[&str], common_name: &str) -> (PathBuf, PathBuf, Vec<u8>) {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name);
        let certificate = params.self_signed(&key).unwrap();
        let paths = (directory.join(format!("{file}.crt")), directory.join(format!("{file}.key")));
        fs::write(&paths.0, certificate.pem()).unwrap();
        fs::write(&paths.1, key.serialize_pem()).unwrap();
        (paths.0, paths.1, certificate.der().to_vec())
    }

    fn selected(certificates: &ServingCertificates, name: Option<&str>) -> Vec<u8> {
        certificates.current.load().select(name).cert[0].to_vec()
    }

    #[test]
    fn certificate_is_selected_by_name_then_wildcard_then_default() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        let (default_crt, default_key, default) = write_pair(at, "default", &["a.example.com"], "default");
        let (own_crt, own_key, own) = write_pair(at, "own", &["a.example.com", "10.0.0.1"], "cn.example.com");
        let (wild_crt, wild_key, wild) = write_pair(at, "wild", &["unused.example.com"], "not a host name");
        let (late_crt, late_key, late) = write_pair(at, "late", &["a.example.com", "late.example.com"], "late");
        let sni = |certificate, key, names: &[&str]| SniCertificate {
            certificate,
            key,
            names: names.iter().map(|name| (*name).to_owned()).collect(),
        };
        let certificates = ServingCertificates::from_files(&default_crt, &default_key).unwrap();
        let certificates = certificates
            .with_sni(vec![
                sni(own_crt, own_key, &[]),
                sni(wild_crt, wild_key, &["*.Example.com"]),
                sni(late_crt, late_key, &[]),
            ])
            .unwrap();
        for (name, expected, why) in [
            (None, &default, "no name"),
            (Some("elsewhere.org"), &default, "an unknown name"),
            (Some("A.example.com"), &own, "the first certificate of a name, in any case"),
            (Some("cn.example.com"), &own, "the common name"),
            (Some("10.0.0.1"), &default, "an address is not a name"),
            (Some("b.example.com"), &wild, "a wildcard"),
            (Some("unused.example.com"), &wild, "explicit names replace those of the certificate"),
            (Some("b.c.example.com"), &default, "a wildcard is one label"),
            (Some("late.example.com"), &late, "another name of a later certificate"),
            (Some("not a host name"), &default, "a common name that is no host name"),
        ] {
            assert!(&selected(&certificates, name) == expected, "{name:?}: {why}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn renewed_certificate_is_used_without_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let (certificate, key, first) = write_pair(directory.path(), "server", &["localhost"], "localhost");
        let certificates = Arc::new(ServingCertificates::from_files(&certificate, &key).unwrap());
        let following = tokio::spawn(Arc::clone(&certificates).follow_files());
        tokio::time::sleep(RELOAD_INTERVAL * 3 / 2).await;
        assert!(selected(&certificates, None) == first);

        let (_, _, second) = write_pair(directory.path(), "server", &["localhost"], "localhost");
        tokio::time::sleep(RELOAD_INTERVAL * 2).await;
        assert!(selected(&certificates, None) == second, "a changed file must be read within {RELOAD_INTERVAL:?}");
        following.abort();
    }

    #[test]
    fn old_certificate_is_used_while_the_new_files_are_unusable() {
        let directory = tempfile::tempdir().unwrap();
        let (certificate, key, first) = write_pair(directory.path(), "server", &["localhost"], "localhost");
        let certificates = ServingCertificates::from_files(&certificate, &key).unwrap();
        assert!(!certificates.reload().unwrap(), "nothing changed");

        // A new certificate whose key is not written yet.
        let (other, other_key, second) = write_pair(directory.path(), "other", &["localhost"], "localhost");
        fs::copy(&other, &certificate).unwrap();
        assert!(matches!(certificates.reload(), Err(PkiError::Tls(_))), "a key of another certificate");
        fs::write(&certificate, "garbage").unwrap();
        assert!(matches!(certificates.reload(), Err(PkiError::Pem { .. })), "no certificate");
        fs::remove_file(&certificate).unwrap();
        assert!(matches!(certificates.reload(), Err(PkiError::File { .. })), "no file");
        assert!(selected(&certificates, None) == first);

        fs::copy(&other, &certificate).unwrap();
        fs::copy(&other_key, &key).unwrap();
        assert!(certificates.reload().unwrap());
        assert!(selected(&certificates, None) == second);
    }
}
