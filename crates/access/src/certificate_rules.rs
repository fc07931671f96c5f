//! The rules of X.509 that Go's `crypto/x509` applies and webpki does not: certificates before version 3, CAs as
//! clients, and the usages of trusted CAs (`verify.go`, `Certificate.CheckSignatureFrom`).
//!
//! A certificate that cannot be read is never valid.

use std::ops::RangeInclusive;

use rustls_pki_types::{CertificateDer, SignatureVerificationAlgorithm, SubjectPublicKeyInfoDer};
use webpki::{EndEntityCert, ExtendedKeyUsageValidator, KeyPurposeId, KeyPurposeIdIter, RawPublicKeyEntity};
use x509_cert::Certificate;
use x509_cert::certificate::Version;
use x509_cert::der::asn1::{AnyRef, ObjectIdentifier};
use x509_cert::der::{Decode as _, Encode as _, Reader as _, SliceReader};
use x509_cert::ext::pkix::{BasicConstraints, ExtendedKeyUsage, KeyUsage};
use x509_cert::time::Time;

const ANY_USAGE: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.37.0");
const CLIENT_AUTH: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.2");

/// The critical extensions that do not make a client's certificate invalid: key usage, subject alternative name, basic
/// constraints, name constraints, policies, policy constraints, extended key usage, and inhibitAnyPolicy.
const KNOWN_CRITICAL: [&str; 8] =
    ["2.5.29.15", "2.5.29.17", "2.5.29.19", "2.5.29.30", "2.5.29.32", "2.5.29.36", "2.5.29.37", "2.5.29.54"];

/// Accepts certificates for clients, for any usage, or without extended key usages.
pub(crate) struct ClientUsage;

impl ExtendedKeyUsageValidator for ClientUsage {
    fn validate(&self, usages: KeyPurposeIdIter<'_, '_>) -> Result<(), webpki::Error> {
        let accepted = [CLIENT_AUTH, ANY_USAGE];
        let mut is_empty = true;
        for usage in usages {
            let usage = usage?;
            if accepted.iter().any(|oid| usage == KeyPurposeId::new(oid.as_bytes())) {
                return Ok(());
            }
            is_empty = false;
        }
        // The error is not shown to the client.
        if is_empty { Ok(()) } else { Err(webpki::Error::EmptyEkuExtension) }
    }
}

/// The first and the last second in which a certificate is valid, since 1970.
pub(crate) fn validity(certificate: &Certificate) -> RangeInclusive<u64> {
    let validity = certificate.tbs_certificate().validity();
    let seconds = |time: &Time| time.to_unix_duration().as_secs();
    seconds(&validity.not_before)..=seconds(&validity.not_after)
}

/// Whether a certificate has no extensions by its version.
pub(crate) fn is_before_version_3(certificate: &Certificate) -> bool {
    certificate.tbs_certificate().version() != Version::V3
}

/// Whether a certificate is that of a CA by its basic constraints.
pub(crate) fn is_ca(certificate: &Certificate) -> bool {
    let constraints = certificate.tbs_certificate().get_extension::<BasicConstraints>();
    matches!(constraints, Ok(Some((_, BasicConstraints { ca: true, .. }))))
}

/// The maximum number of CAs between a CA and the certificate of a client, by the basic constraints.
pub(crate) fn path_length(certificate: &Certificate) -> Option<u8> {
    let constraints = certificate.tbs_certificate().get_extension::<BasicConstraints>().ok().flatten();
    constraints.and_then(|(_, constraints)| constraints.path_len_constraint)
}

/// Whether a trusted certificate may sign others. A certificate of version 3 has to be a CA. A certificate before version
/// 3 cannot say so.
pub(crate) fn may_sign(certificate: &Certificate) -> bool {
    let usage = certificate.tbs_certificate().get_extension::<KeyUsage>();
    // Go ignores a key usage without a bit.
    let may_sign = match usage {
        Ok(Some((_, usage))) => usage.key_cert_sign() || usage.0.is_empty(),
        Ok(None) => true,
        Err(_) => false,
    };
    may_sign && (is_before_version_3(certificate) || is_ca(certificate))
}

/// Whether a certificate is for clients, for any usage, or has no extended key usage.
pub(crate) fn is_for_clients(certificate: &Certificate) -> bool {
    match certificate.tbs_certificate().get_extension::<ExtendedKeyUsage>() {
        Ok(Some((_, usages))) => usages.0.is_empty() || usages.0.iter().any(|it| [CLIENT_AUTH, ANY_USAGE].contains(it)),
        Ok(None) => true,
        Err(_) => false,
    }
}

/// Whether a certificate has a critical extension that Go does not know, or an extension although its version has none.
pub(crate) fn has_unknown_critical_extension(certificate: &Certificate) -> bool {
    let mut extensions = certificate.tbs_certificate().extensions().into_iter().flatten();
    let is_old = is_before_version_3(certificate);
    extensions.any(|it| is_old || (it.critical && !KNOWN_CRITICAL.contains(&&*it.extn_id.to_string())))
}

/// Whether the key of `signer` signed a certificate, and the certificate names `signer` as its issuer.
pub(crate) fn signed(signer: &Certificate, der: &[u8]) -> bool {
    let Ok(certificate) = Certificate::from_der(der) else { return false };
    let tbs = certificate.tbs_certificate();
    let names = (tbs.issuer().to_der(), signer.tbs_certificate().subject().to_der());
    let is_issuer = matches!(names, (Ok(issuer), Ok(subject)) if issuer == subject);
    let (Some(signature), Ok(key)) =
        (certificate.signature().as_bytes(), signer.tbs_certificate().subject_public_key_info().to_der())
    else {
        return false;
    };
    let algorithm = certificate.signature_algorithm();
    let Ok(identifier) = algorithm.to_der() else { return false };
    let Ok(identifier) = AnyRef::from_der(&identifier) else { return false };
    let algorithms = webpki::ALL_VERIFICATION_ALGS.iter().copied();
    let algorithms: Vec<_> = algorithms.filter(|it| it.signature_alg_id().as_ref() == identifier.value()).collect();
    let is_signed = signed_part(der).is_some_and(|message| verify(&key, &algorithms, message, signature));
    is_issuer && tbs.signature() == algorithm && is_signed
}

/// The bytes of a certificate that its signature covers.
fn signed_part(der: &[u8]) -> Option<&[u8]> {
    SliceReader::new(AnyRef::from_der(der).ok()?.value()).ok()?.tlv_bytes().ok()
}

/// Verifies a signature with a public key, by one of the algorithms.
fn verify(
    public_key: &[u8],
    algorithms: &[&dyn SignatureVerificationAlgorithm],
    message: &[u8],
    signature: &[u8],
) -> bool {
    let key = SubjectPublicKeyInfoDer::from(public_key);
    let Ok(key) = RawPublicKeyEntity::try_from(&key) else { return false };
    algorithms.iter().any(|algorithm| key.verify_signature(*algorithm, message, signature).is_ok())
}

/// Verifies the signature of a client in a TLS 1.2 handshake. `scheme` is the IANA number of the signature scheme.
/// rustls does this only for certificates that it can read.
pub fn verify_tls12_signature(public_key: &[u8], scheme: u16, message: &[u8], signature: &[u8]) -> bool {
    use webpki::ring::*;
    let algorithms: &[&dyn SignatureVerificationAlgorithm] = match scheme {
        0x0401 => &[RSA_PKCS1_2048_8192_SHA256],
        0x0501 => &[RSA_PKCS1_2048_8192_SHA384],
        0x0601 => &[RSA_PKCS1_2048_8192_SHA512],
        0x0403 => &[ECDSA_P256_SHA256, ECDSA_P384_SHA256],
        0x0503 => &[ECDSA_P384_SHA384, ECDSA_P256_SHA384],
        0x0804 => &[RSA_PSS_2048_8192_SHA256_LEGACY_KEY],
        0x0805 => &[RSA_PSS_2048_8192_SHA384_LEGACY_KEY],
        0x0806 => &[RSA_PSS_2048_8192_SHA512_LEGACY_KEY],
        0x0807 => &[ED25519],
        _ => &[],
    };
    verify(public_key, algorithms, message, signature)
}

/// The public key (SubjectPublicKeyInfo in DER) of a certificate that rustls cannot read, such as one of X.509 version 1.
/// `None` if rustls reads the certificate, or if it has no public key.
pub fn public_key_unknown_to_rustls(certificate: &[u8]) -> Option<Vec<u8>> {
    if EndEntityCert::try_from(&CertificateDer::from(certificate)).is_ok() {
        return None;
    }
    Certificate::from_der(certificate).ok()?.tbs_certificate().subject_public_key_info().to_der().ok()
}
