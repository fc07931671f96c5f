//! Decodes and verifies certificate requests (PKCS #10, RFC 2986) and certificates (RFC 5280) in PEM.
//!
//! All checks fail closed. A request that cannot be decoded or verified is rejected, because a signer could decode it
//! differently and sign unchecked fields. For the same reason a request must be exactly one PEM block without headers,
//! although kube-apiserver reads the first of several blocks.
//!
//! Source: `ParseCSR` in `pkg/apis/certificates/helpers.go`, Go's `crypto/x509`.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::signature::{self, UnparsedPublicKey, VerificationAlgorithm};
use x509_cert::Certificate;
use x509_cert::der::asn1::{AnyRef, BitString};
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::der::oid::db::{rfc4519, rfc5280, rfc5912, rfc8410};
use x509_cert::der::{Decode as _, Encode as _, Reader, SliceReader, Tag, Tagged as _};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::request::{CertReqInfo, ExtensionReq};
use x509_cert::spki::AlgorithmIdentifierOwned;

const REQUEST_LABEL: &str = "CERTIFICATE REQUEST";
const CERTIFICATE_LABEL: &str = "CERTIFICATE";

/// `sha1WithRSAEncryption`. Go accepts SHA-1 in requests and not in certificates.
const SHA1_WITH_RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.5");

/// A certificate request.
#[derive(Debug)]
pub struct CertificateRequest {
    info: CertReqInfo,
    /// The signed bytes of `info`.
    signed: Vec<u8>,
    algorithm: AlgorithmIdentifierOwned,
    signature: BitString,
}

impl CertificateRequest {
    /// Decodes a certificate request in PEM.
    ///
    /// # Errors
    /// The reason, in Go's words unless Go's text depends on its parser.
    pub fn from_pem(text: &[u8]) -> Result<Self, String> {
        let blocks = pem::parse_many(text).unwrap_or_default();
        match blocks.as_slice() {
            [block] if block.tag() == REQUEST_LABEL && block.headers().iter().next().is_none() => {
                Self::from_der(block.contents())
            }
            _ => Err("PEM block type must be CERTIFICATE REQUEST".to_owned()),
        }
    }

    fn from_der(der: &[u8]) -> Result<Self, String> {
        let parts = AnyRef::from_der(der).and_then(|request| {
            request.sequence(|parts| {
                let signed = AnyRef::decode(parts)?.to_der()?;
                let info = CertReqInfo::from_der(&signed)?;
                Ok(CertificateRequest { info, signed, algorithm: parts.decode()?, signature: parts.decode()? })
            })
        });
        parts.map_err(|error| format!("asn1: structure error: {error}"))
    }

    /// Returns the organizations in the subject, which are the groups of the user with the certificate.
    ///
    /// # Errors
    /// The encoding of an organization is not a string type.
    pub fn organizations(&self) -> Result<Vec<String>, String> {
        let attributes = self.info.subject.iter_rdn().flat_map(|names| names.iter());
        attributes.filter(|attribute| attribute.oid == rfc4519::O).map(|attribute| text(&attribute.value)).collect()
    }

    /// Returns the common name in the subject: the last one, as in Go; empty if there is none.
    ///
    /// # Errors
    /// The encoding of the name is not a string type.
    pub fn common_name(&self) -> Result<String, String> {
        let attributes = self.info.subject.iter_rdn().flat_map(|names| names.iter());
        let last = attributes.filter(|attribute| attribute.oid == rfc4519::CN).last();
        last.map_or(Ok(String::new()), |attribute| text(&attribute.value))
    }

    /// Returns the number of DNS names and IP addresses, if the subject is that of a node and no other names are present.
    fn hosts_of_node(&self) -> Option<usize> {
        let (groups, user) = (self.organizations().ok()?, self.common_name().ok()?);
        let mut hosts = 0;
        let requested = self.info.attributes.iter().filter(|attribute| attribute.oid == rfc5912::ID_EXTENSION_REQ);
        for extensions in requested.flat_map(|attribute| attribute.values.iter()) {
            let extensions = extensions.decode_as::<ExtensionReq>().ok()?.0;
            for names in extensions.iter().filter(|extension| extension.extn_id == rfc5280::ID_CE_SUBJECT_ALT_NAME) {
                for name in SubjectAltName::from_der(names.extn_value.as_bytes()).ok()?.0 {
                    match name {
                        GeneralName::DnsName(_) | GeneralName::IpAddress(_) => hosts += 1,
                        GeneralName::Rfc822Name(_) | GeneralName::UniformResourceIdentifier(_) => return None,
                        _ => {}
                    }
                }
            }
        }
        (groups == ["system:nodes"] && user.starts_with("system:node:")).then_some(hosts)
    }

    /// Verifies the signature of the request with its own public key (`CertificateRequest.CheckSignature`).
    ///
    /// # Errors
    /// Go's text. Algorithms that this server lacks are rejected with Go's text for unsupported algorithms. Compared to
    /// Go, the curves P-224 and P-521 and ECDSA with SHA-1 or SHA-512 are missing.
    pub(crate) fn check_signature(&self) -> Result<(), String> {
        let unsupported = || Err("x509: cannot verify signature: algorithm unimplemented".to_owned());
        let (Some(key), Some(signed_by)) = (KeyKind::of_key(&self.info), KeyKind::of_signature(&self.algorithm)) else {
            return unsupported();
        };
        if key != signed_by {
            let (wanted, found) = (signed_by.name(), key.go_type());
            return Err(format!(
                "x509: signature algorithm specifies an \"{wanted}\" public key, but have public key of type {found}"
            ));
        }
        let Some(algorithm) = self.verification() else { return unsupported() };
        // Keys and signatures are whole bytes. Bit strings with unused bits are invalid.
        let bytes = self.info.public_key.subject_public_key.as_bytes().unwrap_or_default();
        let signature = self.signature.as_bytes().unwrap_or_default();
        UnparsedPublicKey::new(algorithm, bytes).verify(&self.signed, signature).map_err(|_| {
            match key {
                KeyKind::Rsa => "crypto/rsa: verification error",
                KeyKind::Ecdsa => "x509: ECDSA verification failure",
                KeyKind::Ed25519 => "x509: Ed25519 verification failure",
            }
            .to_owned()
        })
    }

    /// The algorithm that verifies the signature; `None` if this server lacks it.
    fn verification(&self) -> Option<&'static dyn VerificationAlgorithm> {
        let parameters = self.info.public_key.algorithm.parameters.as_ref();
        let curve = parameters.and_then(|curve| curve.decode_as::<ObjectIdentifier>().ok());
        Some(match (self.algorithm.oid, curve) {
            (SHA1_WITH_RSA, _) => &signature::RSA_PKCS1_1024_8192_SHA1_FOR_LEGACY_USE_ONLY,
            (rfc5912::SHA_256_WITH_RSA_ENCRYPTION, _) => &signature::RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY,
            (rfc5912::SHA_384_WITH_RSA_ENCRYPTION, _) => &signature::RSA_PKCS1_2048_8192_SHA384,
            (rfc5912::SHA_512_WITH_RSA_ENCRYPTION, _) => &signature::RSA_PKCS1_1024_8192_SHA512_FOR_LEGACY_USE_ONLY,
            (rfc5912::ID_RSASSA_PSS, _) => return self.pss(),
            (rfc5912::ECDSA_WITH_SHA_256, Some(rfc5912::SECP_256_R_1)) => &signature::ECDSA_P256_SHA256_ASN1,
            (rfc5912::ECDSA_WITH_SHA_384, Some(rfc5912::SECP_256_R_1)) => &signature::ECDSA_P256_SHA384_ASN1,
            (rfc5912::ECDSA_WITH_SHA_256, Some(rfc5912::SECP_384_R_1)) => &signature::ECDSA_P384_SHA256_ASN1,
            (rfc5912::ECDSA_WITH_SHA_384, Some(rfc5912::SECP_384_R_1)) => &signature::ECDSA_P384_SHA384_ASN1,
            (rfc8410::ID_ED_25519, _) => &signature::ED25519,
            _ => return None,
        })
    }

    /// RSASSA-PSS in the three forms that Go accepts (`getSignatureAlgorithmFromAI`). The message and the mask have the
    /// same hash, and the salt is as long as the hash.
    fn pss(&self) -> Option<&'static dyn VerificationAlgorithm> {
        use rustls_pki_types::alg_id;
        let written = self.algorithm.to_der().ok()?;
        let content = AnyRef::from_der(&written).ok()?.value();
        let known: [(&[u8], &'static dyn VerificationAlgorithm); 3] = [
            (alg_id::RSA_PSS_SHA256.as_ref(), &signature::RSA_PSS_2048_8192_SHA256),
            (alg_id::RSA_PSS_SHA384.as_ref(), &signature::RSA_PSS_2048_8192_SHA384),
            (alg_id::RSA_PSS_SHA512.as_ref(), &signature::RSA_PSS_2048_8192_SHA512),
        ];
        known.into_iter().find(|(identifier, _)| *identifier == content).map(|(_, algorithm)| algorithm)
    }
}

/// Returns the signer that upstream derives from a request in PEM and base64 without a signer, and from its usages
/// (`DefaultSignerNameFromSpec` in `pkg/apis/certificates/v1beta1/defaults.go`).
pub(crate) fn former_signer<'a>(request: &str, usages: impl Iterator<Item = &'a str>) -> &'static str {
    // RSA keys need this usage in addition.
    let usages: BTreeSet<&str> = usages.filter(|usage| *usage != "key encipherment").collect();
    let is_for = |usage| usages.len() == 2 && usages.contains("digital signature") && usages.contains(usage);
    let pem = STANDARD.decode(request).unwrap_or_default();
    match CertificateRequest::from_pem(&pem).ok().and_then(|request| request.hosts_of_node()) {
        Some(0) if is_for("client auth") => "kubernetes.io/kube-apiserver-client-kubelet",
        Some(1..) if is_for("server auth") => "kubernetes.io/kubelet-serving",
        _ => "kubernetes.io/legacy-unknown",
    }
}

/// The family of a key or signature algorithm.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KeyKind {
    Rsa,
    Ecdsa,
    Ed25519,
}

impl KeyKind {
    fn of_key(info: &CertReqInfo) -> Option<Self> {
        match info.public_key.algorithm.oid {
            rfc5912::RSA_ENCRYPTION => Some(KeyKind::Rsa),
            rfc5912::ID_EC_PUBLIC_KEY => Some(KeyKind::Ecdsa),
            rfc8410::ID_ED_25519 => Some(KeyKind::Ed25519),
            _ => None,
        }
    }

    fn of_signature(algorithm: &AlgorithmIdentifierOwned) -> Option<Self> {
        match algorithm.oid {
            SHA1_WITH_RSA
            | rfc5912::SHA_256_WITH_RSA_ENCRYPTION
            | rfc5912::SHA_384_WITH_RSA_ENCRYPTION
            | rfc5912::SHA_512_WITH_RSA_ENCRYPTION
            | rfc5912::ID_RSASSA_PSS => Some(KeyKind::Rsa),
            rfc5912::ECDSA_WITH_SHA_256 | rfc5912::ECDSA_WITH_SHA_384 => Some(KeyKind::Ecdsa),
            rfc8410::ID_ED_25519 => Some(KeyKind::Ed25519),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            KeyKind::Rsa => "RSA",
            KeyKind::Ecdsa => "ECDSA",
            KeyKind::Ed25519 => "Ed25519",
        }
    }

    fn go_type(self) -> &'static str {
        match self {
            KeyKind::Rsa => "*rsa.PublicKey",
            KeyKind::Ecdsa => "*ecdsa.PublicKey",
            KeyKind::Ed25519 => "ed25519.PublicKey",
        }
    }
}

/// Decodes the string of an attribute, in the encodings of a `DirectoryString` (X.520) and in the others that Go
/// decodes as strings.
fn text(value: &x509_cert::der::Any) -> Result<String, String> {
    let bytes = value.value();
    let decoded = match value.tag() {
        Tag::Utf8String | Tag::PrintableString | Tag::Ia5String | Tag::NumericString | Tag::VisibleString => {
            String::from_utf8(bytes.to_vec()).ok()
        }
        Tag::TeletexString => Some(bytes.iter().copied().map(char::from).collect()),
        Tag::BmpString => {
            let (pairs, rest) = bytes.as_chunks::<2>();
            let units = pairs.iter().map(|pair| u16::from_be_bytes(*pair));
            let text: Option<String> = char::decode_utf16(units).map(Result::ok).collect();
            // Go removes a NUL at the end.
            text.filter(|_| rest.is_empty()).map(|text| text.strip_suffix('\0').map(str::to_owned).unwrap_or(text))
        }
        _ => None,
    };
    decoded.ok_or_else(|| "x509: invalid RDNSequence: invalid attribute value".to_owned())
}

/// Checks issued certificates: one or more PEM blocks, all of them certificates.
///
/// # Errors
/// The reason, in upstream's words unless Go's text depends on its parser.
pub(crate) fn check_certificates(text: &[u8]) -> Result<(), String> {
    let blocks = pem::parse_many(text).map_err(|error| format!("malformed PEM block: {error}"))?;
    if blocks.is_empty() {
        return Err("must contain at least one CERTIFICATE PEM block".to_owned());
    }
    for block in &blocks {
        if block.tag() != CERTIFICATE_LABEL {
            let found = listwatch_meta::go::quote(block.tag());
            return Err(format!("only CERTIFICATE PEM blocks are allowed, found {found}"));
        }
        if block.headers().iter().next().is_some() {
            return Err("no PEM block headers are permitted".to_owned());
        }
        if block.contents().is_empty() {
            return Err("found CERTIFICATE PEM block containing 0 certificates".to_owned());
        }
        certificates(block.contents()).map_err(|error| format!("x509: malformed certificate: {error}"))?;
    }
    Ok(())
}

/// Decodes the certificates of one block. A block can have several.
fn certificates(der: &[u8]) -> Result<(), x509_cert::der::Error> {
    let mut reader = SliceReader::new(der)?;
    while !reader.is_finished() {
        Certificate::decode(&mut reader)?;
    }
    Ok(())
}

/// Creates requests and certificates for tests.
#[cfg(any(test, feature = "testing"))]
#[expect(clippy::unwrap_used, reason = "test helpers")]
pub mod testing {
    /// Creates a request in PEM, whose subject has one organization.
    pub fn request(organization: &str) -> String {
        request_with(rcgen::DnValue::Utf8String(organization.to_owned()), &rcgen::PKCS_ECDSA_P256_SHA256)
    }

    /// Creates a request in PEM with a new key. The subject has one organization in the given encoding.
    pub fn request_with(organization: rcgen::DnValue, algorithm: &'static rcgen::SignatureAlgorithm) -> String {
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, "bob");
        params.distinguished_name.push(rcgen::DnType::OrganizationName, organization);
        params.serialize_request(&rcgen::KeyPair::generate_for(algorithm).unwrap()).unwrap().pem().unwrap()
    }

    /// Creates a certificate in PEM.
    pub fn certificate() -> String {
        let key = rcgen::KeyPair::generate().unwrap();
        rcgen::CertificateParams::new(vec!["example.com".to_owned()]).unwrap().self_signed(&key).unwrap().pem()
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{certificate, request, request_with};
    use super::*;

    fn armored(label: &str, der: &[u8]) -> String {
        pem::encode(&pem::Pem::new(label, der))
    }

    fn check(text: &str) -> Result<(), String> {
        CertificateRequest::from_pem(text.as_bytes())?.check_signature()
    }

    #[test]
    fn certificate_request_signed_by_its_own_key_is_accepted() {
        for algorithm in [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519] {
            let text = request_with(rcgen::DnValue::Utf8String("dev".to_owned()), algorithm);
            assert_eq!(check(&text), Ok(()), "{algorithm:?}");
        }
        let parsed = CertificateRequest::from_pem(request("dev").as_bytes()).unwrap();
        assert_eq!(parsed.organizations().unwrap(), ["dev"]);
    }

    #[test]
    fn changed_or_truncated_certificate_request_is_rejected() {
        let der = pem::parse(request("dev")).unwrap().into_contents();
        for at in 0..der.len() {
            for bit in 0..8 {
                let mut broken = der.clone();
                broken[at] ^= 1 << bit;
                assert!(check(&armored(REQUEST_LABEL, &broken)).is_err(), "bit {bit} of byte {at} may be changed");
            }
        }
        for end in 0..der.len() {
            assert!(check(&armored(REQUEST_LABEL, &der[..end])).is_err(), "the first {end} bytes are accepted");
        }
        let longer: Vec<u8> = der.iter().copied().chain([0]).collect();
        assert!(check(&armored(REQUEST_LABEL, &longer)).is_err(), "a byte after the request is accepted");
    }

    #[test]
    fn certificate_request_with_other_or_several_pem_blocks_is_rejected() {
        let wrong = || Err("PEM block type must be CERTIFICATE REQUEST".to_owned());
        let text = request("dev");
        assert_eq!(check(&format!("a comment\n{text}")), Ok(()));
        let der = pem::parse(&text).unwrap().into_contents();
        for refused in [
            "hello".to_owned(),
            String::new(),
            armored(CERTIFICATE_LABEL, &der),
            text.replace("-----END", "----END"),
            text.replacen("-----\n", "-----\nProc-Type: 4\n\n", 1),
            format!("{text}{}", request("system:masters")),
            format!("-----BEGIN X-----\n{text}"),
        ] {
            assert_eq!(check(&refused), wrong(), "{refused}");
        }
    }

    #[test]
    fn organization_is_decoded_in_every_string_encoding() {
        let masters = "system:masters";
        for value in [
            rcgen::DnValue::Utf8String(masters.to_owned()),
            rcgen::DnValue::BmpString(masters.try_into().unwrap()),
            rcgen::DnValue::TeletexString(masters.try_into().unwrap()),
            rcgen::DnValue::Ia5String(masters.try_into().unwrap()),
        ] {
            let text = request_with(value.clone(), &rcgen::PKCS_ECDSA_P256_SHA256);
            let request = CertificateRequest::from_pem(text.as_bytes()).unwrap();
            assert_eq!(request.organizations().unwrap(), [masters], "{value:?}");
        }
        let unknown = rcgen::DnValue::UniversalString(masters.try_into().unwrap());
        let text = request_with(unknown, &rcgen::PKCS_ECDSA_P256_SHA256);
        assert!(CertificateRequest::from_pem(text.as_bytes()).is_err(), "a string of an unknown encoding is accepted");
        let mut der = pem::parse(request(masters)).unwrap().into_contents();
        let at = der.windows(masters.len()).position(|bytes| bytes == masters.as_bytes()).unwrap();
        der[at - 2] = Tag::OctetString.number().value() as u8;
        let request = CertificateRequest::from_der(&der).unwrap();
        let error = "x509: invalid RDNSequence: invalid attribute value".to_owned();
        assert_eq!(request.organizations(), Err(error), "an organization that is not a string is ignored");
    }

    #[test]
    fn unknown_or_mismatched_signature_algorithm_is_rejected() {
        let with_algorithm = |key: &'static rcgen::SignatureAlgorithm, algorithm: ObjectIdentifier| {
            let text = request_with(rcgen::DnValue::Utf8String("dev".to_owned()), key);
            let der = pem::parse(text).unwrap().into_contents();
            let mut request = x509_cert::request::CertReq::from_der(&der).unwrap();
            request.algorithm = AlgorithmIdentifierOwned { oid: algorithm, parameters: None };
            check(&armored(REQUEST_LABEL, &request.to_der().unwrap()))
        };
        let unknown = "x509: cannot verify signature: algorithm unimplemented";
        let ecdsa = &rcgen::PKCS_ECDSA_P256_SHA256;
        for algorithm in [rfc5912::ECDSA_WITH_SHA_512, rfc5912::DSA_WITH_SHA_256, rfc5912::ID_SHA_256] {
            assert_eq!(with_algorithm(ecdsa, algorithm), Err(unknown.to_owned()), "{algorithm}");
        }
        assert_eq!(
            with_algorithm(ecdsa, rfc5912::SHA_256_WITH_RSA_ENCRYPTION),
            Err("x509: signature algorithm specifies an \"RSA\" public key, but have public key of type *ecdsa.PublicKey".to_owned())
        );
        assert_eq!(
            with_algorithm(ecdsa, rfc5912::ECDSA_WITH_SHA_384),
            Err("x509: ECDSA verification failure".to_owned())
        );
    }

    #[test]
    fn requests_of_kubelets_get_the_signers_of_kubelets() {
        use rcgen::SanType::{DnsName, IpAddress, Rfc822Name, URI};
        const CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
        const SERVING: &str = "kubernetes.io/kubelet-serving";
        const UNKNOWN: &str = "kubernetes.io/legacy-unknown";
        let request = |group: &str, user: &str, names: &[rcgen::SanType]| {
            let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
            params.distinguished_name.push(rcgen::DnType::CommonName, user);
            params.distinguished_name.push(rcgen::DnType::OrganizationName, group);
            params.subject_alt_names = names.to_vec();
            let pem = params.serialize_request(&rcgen::KeyPair::generate().unwrap()).unwrap().pem().unwrap();
            STANDARD.encode(pem)
        };
        let signer = |request: &str, usages: &[&str]| former_signer(request, usages.iter().copied());
        let (client, serving) = (["digital signature", "client auth"], ["digital signature", "server auth"]);
        let dns = DnsName("n".try_into().unwrap());
        let ip = IpAddress([10, 0, 0, 1].into());
        let node = |names: &[rcgen::SanType]| request("system:nodes", "system:node:n", names);
        for (request, usages, expected) in [
            (node(&[]), client, CLIENT),
            (node(std::slice::from_ref(&dns)), serving, SERVING),
            (node(&[ip.clone(), dns.clone()]), serving, SERVING),
            (node(&[]), serving, UNKNOWN),
            (node(std::slice::from_ref(&ip)), client, UNKNOWN),
            (node(&[ip.clone(), Rfc822Name("a@b".try_into().unwrap())]), serving, UNKNOWN),
            (node(&[URI("https://a".try_into().unwrap())]), client, UNKNOWN),
            (request("system:masters", "system:node:n", &[]), client, UNKNOWN),
            (request("system:nodes", "bob", &[]), client, UNKNOWN),
            (STANDARD.encode("hello"), client, UNKNOWN),
            ("?".to_owned(), client, UNKNOWN),
        ] {
            assert_eq!(signer(&request, &usages), expected, "{usages:?}");
            let with_rsa = [&usages[..], &["key encipherment"]].concat();
            assert_eq!(signer(&request, &with_rsa), expected, "{with_rsa:?}");
            assert_eq!(signer(&request, &usages[..1]), UNKNOWN);
            assert_eq!(signer(&request, &[&usages[..], &["any"]].concat()), UNKNOWN);
        }
    }

    #[test]
    fn issued_certificates_must_be_certificate_blocks_in_pem() {
        let text = certificate();
        assert_eq!(check_certificates(text.as_bytes()), Ok(()));
        assert_eq!(check_certificates(text.repeat(2).as_bytes()), Ok(()));
        let refused = |text: &str, why: &str| {
            let found = check_certificates(text.as_bytes());
            assert!(found.as_ref().is_err_and(|found| found.starts_with(why)), "{found:?} is not {why}");
        };
        refused("hello", "must contain at least one CERTIFICATE PEM block");
        refused(&text.replace("CERTIFICATE", "KEY"), "only CERTIFICATE PEM blocks are allowed, found \"KEY\"");
        refused(&text.replacen("-----\n", "-----\nA: b\n\n", 1), "no PEM block headers are permitted");
        refused(&armored(CERTIFICATE_LABEL, &[]), "found CERTIFICATE PEM block containing 0 certificates");
        refused(&armored(CERTIFICATE_LABEL, &[0x30, 0]), "x509: malformed certificate");
        refused(&format!("{text}{}", armored(CERTIFICATE_LABEL, b"x")), "x509: malformed certificate");
        refused(&text.replace("-----END CERTIFICATE", "-----END X"), "malformed PEM block");
    }
}
