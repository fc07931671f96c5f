//! The certificates of a TLS connection, and their verification against trusted CAs
//! (`apiserver/pkg/authentication/request/x509/x509.go:Verifier`).

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use parking_lot::Mutex;
use ring::digest;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, TrustAnchor, UnixTime};
use webpki::{EndEntityCert, VerifiedPath};
use x509_cert::Certificate;
use x509_cert::der::Decode as _;

use crate::certificate_rules::{self as rules, ClientUsage};

/// The longest time for which a verified chain is cached, in seconds. The entry expires with the first certificate of
/// the chain. A chain with an expired CA may be accepted up to this time after the expiry.
const VERIFIED_SECONDS: u64 = 60;
/// The maximum number of cached chains. At this number the cache is cleared and all chains are verified again.
const VERIFIED_MAX: usize = 10_000;

/// The SHA-256 of all certificates of a connection.
type Fingerprint = [u8; digest::SHA256_OUTPUT_LEN];

/// The certificates that a client presented in its TLS handshake. The handshake proves that the client has the key of
/// the first one. The chain is not verified yet.
pub struct PeerCertificates {
    chain: Vec<CertificateDer<'static>>,
    fingerprint: Fingerprint,
}

impl PeerCertificates {
    /// Takes DER certificates in the order of the handshake; the certificate of the client is first. Returns `None` for
    /// an empty chain.
    pub fn new(chain: Vec<Vec<u8>>) -> Option<Self> {
        if chain.is_empty() {
            return None;
        }
        let chain: Vec<CertificateDer<'static>> = chain.into_iter().map(CertificateDer::from).collect();
        let mut context = digest::Context::new(&digest::SHA256);
        chain.iter().for_each(|certificate| context.update(certificate));
        let fingerprint = context.finish().as_ref().try_into().ok()?;
        Some(PeerCertificates { chain, fingerprint })
    }
}

impl std::fmt::Debug for PeerCertificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PeerCertificates({})", self.chain.len())
    }
}

/// The CA bundle for client certificates is not usable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidAuthorities(pub(crate) String);

impl std::fmt::Display for InvalidAuthorities {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidAuthorities {}

/// Verifies chains against trusted CAs, and caches the caller's value for each verified certificate.
pub(crate) struct ChainVerifier<T> {
    authorities: Vec<Authority>,
    verified: Mutex<HashMap<Fingerprint, Verified<T>>>,
}

/// A trusted certificate. webpki checks only the name, the key and the name constraints of a trust anchor. Go also checks
/// the validity period, the usages, the path length and the critical extensions (`Certificate.isValid`).
struct Authority {
    anchor: TrustAnchor<'static>,
    der: CertificateDer<'static>,
    certificate: Certificate,
    /// `notBefore` and `notAfter` of the certificate, in seconds since 1970.
    valid: RangeInclusive<u64>,
    /// Whether the certificate may sign certificates of clients. Another certificate is trusted only as that of a
    /// client.
    may_sign: bool,
    /// The maximum number of CAs between the certificate and that of a client; `None` without a limit.
    intermediates_max: Option<usize>,
}

impl Authority {
    fn new(der: &CertificateDer<'_>) -> Result<Self, InvalidAuthorities> {
        let anchor = webpki::anchor_from_trusted_cert(der);
        let anchor = anchor.map_err(|error| InvalidAuthorities(error.to_string()))?.to_owned();
        let certificate = Certificate::from_der(der).map_err(|error| InvalidAuthorities(error.to_string()))?;
        let valid = rules::validity(&certificate);
        let may_sign = rules::may_sign(&certificate)
            && rules::is_for_clients(&certificate)
            && !rules::has_unknown_critical_extension(&certificate);
        let intermediates_max = rules::path_length(&certificate).map(usize::from);
        Ok(Authority { anchor, der: der.clone().into_owned(), certificate, valid, may_sign, intermediates_max })
    }
}

/// A chain that was verified.
struct Verified<T> {
    at: u64,
    /// The certificate's `notAfter`, in seconds since 1970.
    expires: u64,
    found: T,
}

impl<T: Clone> ChainVerifier<T> {
    /// Creates a verifier that trusts the CAs of a PEM file.
    ///
    /// # Errors
    /// The text has no certificate, or a certificate that is not usable.
    pub(crate) fn new(authorities_pem: &str) -> Result<Self, InvalidAuthorities> {
        let mut authorities = Vec::new();
        for certificate in CertificateDer::pem_slice_iter(authorities_pem.as_bytes()) {
            let certificate = certificate.map_err(|error| InvalidAuthorities(error.to_string()))?;
            authorities.push(Authority::new(&certificate)?);
        }
        if authorities.is_empty() {
            return Err(InvalidAuthorities("there is no certificate in PEM".to_owned()));
        }
        Ok(ChainVerifier { authorities, verified: Mutex::default() })
    }

    /// The number of trusted CAs.
    pub(crate) fn len(&self) -> usize {
        self.authorities.len()
    }

    /// Whether the verifiers have a trusted CA in common.
    pub(crate) fn shares_authority_with<U>(&self, other: &ChainVerifier<U>) -> bool {
        let key = |it: &Authority| (it.anchor.subject.clone(), it.anchor.subject_public_key_info.clone());
        self.authorities.iter().any(|one| other.authorities.iter().any(|two| key(one) == key(two)))
    }

    /// Verifies a chain at a time, and returns the result of `read` for the DER of its first certificate. Returns
    /// `None` if `read` does, if no trusted CA signed the chain, or if the chain is not valid for clients at that time.
    pub(crate) fn verify(
        &self,
        peer: &PeerCertificates,
        now: u64,
        read: impl FnOnce(&Certificate, &[u8]) -> Option<T>,
    ) -> Option<T> {
        if let Some(known) = self.verified.lock().get(&peer.fingerprint)
            && (known.at..known.at.saturating_add(VERIFIED_SECONDS)).contains(&now)
            && now <= known.expires
        {
            return Some(known.found.clone());
        }
        let (leaf, intermediates) = peer.chain.split_first()?;
        let certificate = Certificate::from_der(leaf).ok()?;
        if !self.is_trusted(leaf, &certificate, intermediates, now) {
            return None;
        }
        let expires = *rules::validity(&certificate).end();
        let found = read(&certificate, leaf)?;
        let mut verified = self.verified.lock();
        if verified.len() >= VERIFIED_MAX {
            verified.clear();
        }
        verified.insert(peer.fingerprint, Verified { at: now, expires, found: found.clone() });
        Some(found)
    }
    /// Whether the certificate is for clients, valid now, and trusted or signed by a trusted CA.
    ///
    /// webpki builds the chains, but rejects two kinds of certificates that Go accepts: those that are CAs, and those
    /// without X.509 version 3. Such a certificate must be trusted itself, or be signed by a trusted CA without an
    /// intermediate CA.
    fn is_trusted(
        &self,
        leaf: &CertificateDer<'_>,
        certificate: &Certificate,
        intermediates: &[CertificateDer<'_>],
        now: u64,
    ) -> bool {
        let is_valid = rules::validity(certificate).contains(&now) && rules::is_for_clients(certificate);
        let mut signers = self.authorities.iter().filter(|it| it.may_sign && it.valid.contains(&now));
        if self.authorities.iter().any(|it| it.der == *leaf) {
            is_valid && !rules::has_unknown_critical_extension(certificate)
        } else if rules::is_before_version_3(certificate) || rules::is_ca(certificate) {
            is_valid
                && !rules::has_unknown_critical_extension(certificate)
                && signers.any(|it| it.anchor.name_constraints.is_none() && rules::signed(&it.certificate, leaf))
        } else {
            let signers: Vec<&Authority> = signers.collect();
            let anchors: Vec<TrustAnchor<'_>> = signers.iter().map(|it| it.anchor.clone()).collect();
            // After an error of this function, webpki tries other chains.
            let verify_path = |path: &VerifiedPath<'_>| {
                let number = path.intermediate_certificates().count();
                let is_allowed = |it: &&Authority| it.intermediates_max.is_none_or(|max| number <= max);
                match signers.iter().filter(|it| it.anchor == *path.anchor()).any(is_allowed) {
                    true => Ok(()),
                    false => Err(webpki::Error::PathLenConstraintViolated),
                }
            };
            let now = UnixTime::since_unix_epoch(Duration::from_secs(now));
            EndEntityCert::try_from(leaf).is_ok_and(|leaf| {
                let (algorithms, verify) = (webpki::ALL_VERIFICATION_ALGS, Some(&verify_path as _));
                leaf.verify_for_usage(algorithms, &anchors, intermediates, now, ClientUsage, None, verify).is_ok()
            })
        }
    }
}
