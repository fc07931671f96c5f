//! Client certificates as credentials (`apiserver/pkg/authentication/request/x509/x509.go`).
//!
//! ```text
//!  TLS handshake ─▶ PeerCertificates ─▶ chain to a trusted CA, valid now, usage ClientAuth ─▶ subject ─▶ user
//!                                                  └─▶ NotRecognized
//! ```
//!
//! | part of the user | from |
//! |---|---|
//! | name | the CommonName |
//! | groups | each Organization, and `system:authenticated` |
//! | UID | the attribute 1.3.6.1.4.1.57683.2 |
//! | extra `authentication.kubernetes.io/credential-id` | `X509SHA256=` and the hash of the certificate |
//!
//! There is no revocation, as in kube-apiserver: a certificate is valid until it expires.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use listwatch_meta::UserInfo;
use parking_lot::Mutex;
use ring::digest;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, TrustAnchor, UnixTime};
use webpki::{EndEntityCert, KeyUsage};
use x509_cert::Certificate;
use x509_cert::der::asn1::ObjectIdentifier;
use x509_cert::der::{Any, Decode as _, Tag, Tagged as _};

use crate::authenticator::{Authentication, AuthenticationRequest, Authenticator};
use crate::maybe_future::MaybeFuture;

const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");
const ORGANIZATION: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.10");
/// The subject attribute of a UID (feature gate AllowParsingUserUIDFromCertAuth).
const UID: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.57683.2");

/// The number of seconds for which a verified chain is cached, but not beyond the expiry of its first certificate. A
/// chain with an expired intermediate certificate may be accepted up to this time after the expiry.
const VERIFIED_SECONDS: u64 = 60;
/// The maximum number of cached chains. At this number the cache is cleared and all chains are verified again.
const VERIFIED_MAX: usize = 10_000;

/// The certificates that a client presented in its TLS handshake. The handshake proves that the client has the key of
/// the first one. No authority is checked yet.
pub struct PeerCertificates {
    chain: Vec<CertificateDer<'static>>,
    fingerprint: [u8; digest::SHA256_OUTPUT_LEN],
}

impl PeerCertificates {
    /// The certificates, in DER and in the order of the handshake, the client's own first. `None` for an empty chain.
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

/// The authorities of client certificates are not usable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidAuthorities(String);

impl std::fmt::Display for InvalidAuthorities {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidAuthorities {}

/// Authenticates clients by their TLS certificates (`--client-ca-file`).
///
/// A certificate that no authority signed, that is not valid now or that is not for clients is not recognized: a
/// request with such a certificate may still have a valid token.
pub struct ClientCertificateAuthenticator {
    authorities: Vec<TrustAnchor<'static>>,
    verified: Mutex<HashMap<[u8; digest::SHA256_OUTPUT_LEN], Verified>>,
}

/// A chain that was verified.
struct Verified {
    at: u64,
    /// The certificate's `notAfter`, in seconds since 1970.
    expires: u64,
    user: Arc<UserInfo>,
}

impl ClientCertificateAuthenticator {
    /// An authenticator that trusts the authorities of a PEM file.
    ///
    /// # Errors
    /// The text has no certificate, or one that is not usable.
    pub fn new(authorities_pem: &str) -> Result<Self, InvalidAuthorities> {
        let mut authorities = Vec::new();
        for certificate in CertificateDer::pem_slice_iter(authorities_pem.as_bytes()) {
            let certificate = certificate.map_err(|error| InvalidAuthorities(error.to_string()))?;
            let anchor = webpki::anchor_from_trusted_cert(&certificate);
            authorities.push(anchor.map_err(|error| InvalidAuthorities(error.to_string()))?.to_owned());
        }
        if authorities.is_empty() {
            return Err(InvalidAuthorities("there is no certificate in PEM".to_owned()));
        }
        Ok(ClientCertificateAuthenticator { authorities, verified: Mutex::default() })
    }

    fn user(&self, peer: &PeerCertificates, now: u64) -> Option<Arc<UserInfo>> {
        if let Some(known) = self.verified.lock().get(&peer.fingerprint)
            && (known.at..known.at.saturating_add(VERIFIED_SECONDS)).contains(&now)
            && now <= known.expires
        {
            return Some(Arc::clone(&known.user));
        }
        let (user, expires) = self.verify(peer, now)?;
        let user = Arc::new(user);
        let mut verified = self.verified.lock();
        if verified.len() >= VERIFIED_MAX {
            verified.clear();
        }
        verified.insert(peer.fingerprint, Verified { at: now, expires, user: Arc::clone(&user) });
        Some(user)
    }

    /// The user of a valid chain, and when its certificate expires.
    fn verify(&self, peer: &PeerCertificates, now: u64) -> Option<(UserInfo, u64)> {
        let (leaf, intermediates) = peer.chain.split_first()?;
        let end_entity = EndEntityCert::try_from(leaf).ok()?;
        end_entity
            .verify_for_usage(
                webpki::ALL_VERIFICATION_ALGS,
                &self.authorities,
                intermediates,
                UnixTime::since_unix_epoch(Duration::from_secs(now)),
                KeyUsage::client_auth(),
                None,
                None,
            )
            .ok()?;
        user(leaf)
    }
}

impl std::fmt::Debug for ClientCertificateAuthenticator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ClientCertificateAuthenticator({})", self.authorities.len())
    }
}

impl Authenticator for ClientCertificateAuthenticator {
    fn authenticate<'a>(&'a self, request: &'a AuthenticationRequest<'a>) -> MaybeFuture<'a, Authentication> {
        let now = u64::try_from(request.now).unwrap_or_default();
        let user = request.certificates.and_then(|peer| self.user(peer, now));
        MaybeFuture::ready(match user {
            // A certificate has no audiences: it is valid for each requested audience (`audagnostic.go`).
            Some(user) => Authentication::Authenticated { user, audiences: request.audiences.to_vec() },
            None => Authentication::NotRecognized,
        })
    }
}

/// The user of a certificate, and when the certificate expires.
fn user(der: &[u8]) -> Option<(UserInfo, u64)> {
    let certificate = Certificate::from_der(der).ok()?;
    let fields = certificate.tbs_certificate();
    let texts = |oid| fields.subject().iter().filter(move |attribute| attribute.oid == oid).map(|it| text(&it.value));
    // An empty common name identifies no user.
    let username = texts(COMMON_NAME).last()??;
    let mut groups = texts(ORGANIZATION).collect::<Option<Vec<String>>>()?;
    let uids = texts(UID).collect::<Option<Vec<String>>>()?;
    let uid = match &uids[..] {
        [] => String::new(),
        [uid] if !uid.is_empty() => uid.clone(),
        _ => return None,
    };
    if username.is_empty() {
        return None;
    }
    let outside = ["system:authenticated", "system:unauthenticated"];
    if username != "system:anonymous" && !groups.iter().any(|group| outside.contains(&group.as_str())) {
        groups.push(outside[0].to_owned());
    }
    let mut id = "X509SHA256=".to_owned();
    for byte in digest::digest(&digest::SHA256, der).as_ref() {
        let _ = write!(id, "{byte:02x}");
    }
    let extra = [("authentication.kubernetes.io/credential-id".to_owned(), vec![id])].into_iter().collect();
    let expires = fields.validity().not_after.to_unix_duration().as_secs();
    Some((UserInfo { username, uid, groups, extra }, expires))
}

/// The text of an attribute; `None` for other values.
fn text(value: &Any) -> Option<String> {
    match value.tag() {
        Tag::Utf8String | Tag::PrintableString | Tag::Ia5String => String::from_utf8(value.value().to_vec()).ok(),
        // Go reads it as Latin-1.
        Tag::TeletexString => Some(value.value().iter().copied().map(char::from).collect()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, CustomExtension, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
        Issuer, KeyPair,
    };
    use time::OffsetDateTime;

    use super::*;

    const NOW: i64 = 1_800_000_000;

    struct Authority {
        params: CertificateParams,
        key: KeyPair,
        pem: String,
        der: CertificateDer<'static>,
    }

    fn name(parts: &[(DnType, &str)]) -> DistinguishedName {
        let mut name = DistinguishedName::new();
        parts.iter().for_each(|(kind, value)| name.push(kind.clone(), *value));
        name
    }

    fn at(seconds: i64) -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp(NOW + seconds).expect("a time")
    }

    fn authority(common_name: &str, parent: Option<&Authority>) -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name = name(&[(DnType::CommonName, common_name)]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        (params.not_before, params.not_after) = (at(-86_400), at(86_400));
        let key = KeyPair::generate().expect("a key");
        let certificate = match parent {
            Some(parent) => params.signed_by(&key, &Issuer::from_params(&parent.params, &parent.key)),
            None => params.self_signed(&key),
        }
        .expect("a certificate");
        Authority { params, key, pem: certificate.pem(), der: certificate.der().clone() }
    }

    fn leaf(authority: &Authority, change: impl FnOnce(&mut CertificateParams)) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.distinguished_name = name(&[(DnType::CommonName, "jane"), (DnType::OrganizationName, "dev")]);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        (params.not_before, params.not_after) = (at(-3_600), at(30));
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let issuer = Issuer::from_params(&authority.params, &authority.key);
        params.signed_by(&key, &issuer).expect("a certificate").der().clone()
    }

    fn found(authenticator: &ClientCertificateAuthenticator, chain: Vec<CertificateDer<'static>>, now: i64) -> String {
        let peer = PeerCertificates::new(chain.iter().map(|der| der.to_vec()).collect());
        let request = AuthenticationRequest::of_token(None, now).with_certificates(peer.as_ref());
        let answer = futures_executor(authenticator.authenticate(&request));
        match answer {
            Authentication::Authenticated { user, .. } => format!("{} {}", user.username, user.groups.join(",")),
            other => format!("{other:?}"),
        }
    }

    fn futures_executor(answer: MaybeFuture<'_, Authentication>) -> Authentication {
        tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(answer)
    }

    #[test]
    fn certificate_of_a_trusted_authority_authenticates_its_subject() {
        let (ca, other) = (authority("ca", None), authority("other", None));
        let authenticator = ClientCertificateAuthenticator::new(&ca.pem).expect("authorities");
        let find = |chain, now| found(&authenticator, chain, now);
        let jane = leaf(&ca, |_| {});
        assert_eq!(find(vec![jane.clone()], NOW), "jane dev,system:authenticated");
        assert_eq!(find(vec![jane.clone()], NOW + 30), "jane dev,system:authenticated");
        assert_eq!(find(vec![jane.clone()], NOW + 31), "NotRecognized", "the certificate has expired");
        assert_eq!(find(vec![jane], NOW - 3_601), "NotRecognized", "the certificate is not valid yet");
        assert_eq!(find(vec![leaf(&other, |_| {})], NOW), "NotRecognized", "nobody trusts the authority");
        assert_eq!(find(Vec::new(), NOW), "NotRecognized", "there is no certificate");
        let of = |usages: Vec<ExtendedKeyUsagePurpose>| leaf(&ca, |params| params.extended_key_usages = usages);
        assert_eq!(find(vec![of(vec![ExtendedKeyUsagePurpose::ServerAuth])], NOW), "NotRecognized");
        assert_eq!(find(vec![of(Vec::new())], NOW), "jane dev,system:authenticated");
        let unnamed = leaf(&ca, |params| params.distinguished_name = name(&[(DnType::OrganizationName, "dev")]));
        assert_eq!(find(vec![unnamed], NOW), "NotRecognized", "there is no CommonName");
    }

    #[test]
    fn chain_with_intermediate_authority_is_authenticated() {
        let ca = authority("ca", None);
        let intermediate = authority("intermediate", Some(&ca));
        let authenticator = ClientCertificateAuthenticator::new(&ca.pem).expect("authorities");
        let jane = leaf(&intermediate, |_| {});
        assert_eq!(found(&authenticator, vec![jane.clone()], NOW), "NotRecognized");
        let chain = vec![jane, intermediate.der.clone()];
        assert_eq!(found(&authenticator, chain, NOW), "jane dev,system:authenticated");
    }

    #[test]
    fn member_of_system_masters_keeps_its_groups() {
        let ca = authority("ca", None);
        let subject = [(DnType::CommonName, "kubernetes-admin"), (DnType::OrganizationName, "system:masters")];
        let der = leaf(&ca, |params| params.distinguished_name = name(&subject));
        let (user, expires) = user(&der).expect("a user");
        assert_eq!((user.username.as_str(), expires), ("kubernetes-admin", (NOW + 30) as u64));
        assert_eq!(user.groups, ["system:masters", "system:authenticated"]);
        let id = &user.extra["authentication.kubernetes.io/credential-id"][0];
        assert!(id.starts_with("X509SHA256=") && id.len() == "X509SHA256=".len() + 64, "{id}");
    }

    #[test]
    fn uid_attribute_is_the_uid_of_the_user() {
        let ca = authority("ca", None);
        let uid = DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]);
        let of = |value: &'static str| {
            let subject = [(DnType::CommonName, "jane"), (uid.clone(), value)];
            user(&leaf(&ca, |params| params.distinguished_name = name(&subject))).map(|(user, _)| user.uid)
        };
        assert_eq!(of("1234").as_deref(), Some("1234"));
        assert_eq!(of(""), None, "an empty UID is an error");
    }

    #[test]
    fn unknown_critical_extension_is_not_recognized() {
        let ca = authority("ca", None);
        let authenticator = ClientCertificateAuthenticator::new(&ca.pem).expect("authorities");
        let mut extension = CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 57683, 99], vec![5, 0]);
        extension.set_criticality(true);
        let der = leaf(&ca, |params| params.custom_extensions.push(extension));
        assert_eq!(found(&authenticator, vec![der], NOW), "NotRecognized");
    }

    #[test]
    fn authorities_without_certificate_are_an_error() {
        for pem in ["", "garbage", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            assert!(ClientCertificateAuthenticator::new(pem).is_err(), "{pem:?}");
        }
    }
}
