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

use std::fmt::Write as _;
use std::sync::Arc;

use listwatch_meta::UserInfo;
use ring::digest;
use x509_cert::Certificate;
use x509_cert::der::asn1::ObjectIdentifier;
use x509_cert::der::{Any, Tag, Tagged as _};

use crate::authenticator::{Authentication, AuthenticationRequest, Authenticator, add_authenticated_group};
use crate::certificate_chain::{ChainVerifier, InvalidAuthorities, PeerCertificates};
use crate::maybe_future::MaybeFuture;

const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");
const ORGANIZATION: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.10");
/// The subject attribute of a UID (feature gate AllowParsingUserUIDFromCertAuth).
const UID: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.57683.2");

/// Authenticates clients by their TLS certificates (`--client-ca-file`).
///
/// A certificate is not recognized if no trusted CA signed it, or if it is expired or not for clients. A request with
/// such a certificate may still have a valid token.
pub struct ClientCertificateAuthenticator {
    pub(crate) chains: ChainVerifier<Arc<UserInfo>>,
}

impl ClientCertificateAuthenticator {
    /// Creates an authenticator that trusts the CAs of a PEM file.
    ///
    /// # Errors
    /// The text has no certificate, or a certificate that is not usable.
    pub fn new(authorities_pem: &str) -> Result<Self, InvalidAuthorities> {
        Ok(ClientCertificateAuthenticator { chains: ChainVerifier::new(authorities_pem)? })
    }

    fn user(&self, peer: &PeerCertificates, now: u64) -> Option<Arc<UserInfo>> {
        self.chains.verify(peer, now, |certificate, der| user(certificate, der).map(Arc::new))
    }
}

impl std::fmt::Debug for ClientCertificateAuthenticator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ClientCertificateAuthenticator({})", self.chains.len())
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

/// The common name of a certificate's subject; `None` if the subject has none.
pub(crate) fn common_name(certificate: &Certificate) -> Option<String> {
    texts(certificate, COMMON_NAME).last()?
}

/// The values of an attribute of a certificate's subject.
fn texts(certificate: &Certificate, oid: ObjectIdentifier) -> impl Iterator<Item = Option<String>> {
    let attributes = certificate.tbs_certificate().subject().iter();
    attributes.filter(move |attribute| attribute.oid == oid).map(|attribute| text(&attribute.value))
}

/// The user of a certificate.
fn user(certificate: &Certificate, der: &[u8]) -> Option<UserInfo> {
    // An empty common name identifies no user.
    let username = common_name(certificate).filter(|name| !name.is_empty())?;
    let groups = texts(certificate, ORGANIZATION).collect::<Option<Vec<String>>>()?;
    let uids = texts(certificate, UID).collect::<Option<Vec<String>>>()?;
    let uid = match &uids[..] {
        [] => String::new(),
        [uid] if !uid.is_empty() => uid.clone(),
        _ => return None,
    };
    let mut id = "X509SHA256=".to_owned();
    for byte in digest::digest(&digest::SHA256, der).as_ref() {
        let _ = write!(id, "{byte:02x}");
    }
    let extra = [("authentication.kubernetes.io/credential-id".to_owned(), vec![id])].into_iter().collect();
    let mut user = UserInfo { username, uid, groups, extra };
    add_authenticated_group(&mut user);
    Some(user)
}

/// The string of an attribute; `None` for a value of another type.
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
    use rustls_pki_types::CertificateDer;
    use time::OffsetDateTime;
    use x509_cert::der::Decode as _;

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

    fn read(der: &[u8]) -> Option<UserInfo> {
        user(&Certificate::from_der(der).expect("a certificate"), der)
    }

    #[test]
    fn certificate_of_a_trusted_ca_authenticates_its_subject() {
        let (ca, other) = (authority("ca", None), authority("other", None));
        let authenticator = ClientCertificateAuthenticator::new(&ca.pem).expect("authorities");
        let find = |chain, now| found(&authenticator, chain, now);
        let jane = leaf(&ca, |_| {});
        assert_eq!(find(vec![jane.clone()], NOW), "jane dev,system:authenticated");
        assert_eq!(find(vec![jane.clone()], NOW + 30), "jane dev,system:authenticated");
        assert_eq!(find(vec![jane.clone()], NOW + 31), "NotRecognized", "the certificate has expired");
        assert_eq!(find(vec![jane], NOW - 3_601), "NotRecognized", "the certificate is not valid yet");
        assert_eq!(find(vec![leaf(&other, |_| {})], NOW), "NotRecognized", "the authority is not trusted");
        assert_eq!(find(Vec::new(), NOW), "NotRecognized", "there is no certificate");
        let of = |usages: Vec<ExtendedKeyUsagePurpose>| leaf(&ca, |params| params.extended_key_usages = usages);
        assert_eq!(find(vec![of(vec![ExtendedKeyUsagePurpose::ServerAuth])], NOW), "NotRecognized");
        assert_eq!(find(vec![of(Vec::new())], NOW), "jane dev,system:authenticated");
        let unnamed = leaf(&ca, |params| params.distinguished_name = name(&[(DnType::OrganizationName, "dev")]));
        assert_eq!(find(vec![unnamed], NOW), "NotRecognized", "there is no CommonName");
    }

    #[test]
    fn certificate_of_an_expired_ca_is_not_recognized() {
        let ca = authority("ca", None);
        let authenticator = ClientCertificateAuthenticator::new(&ca.pem).expect("authorities");
        let lasting = leaf(&ca, |params| params.not_after = at(1_000_000));
        let early = leaf(&ca, |params| params.not_before = at(-1_000_000));
        let find = |der: &CertificateDer<'static>, now| found(&authenticator, vec![der.clone()], now);
        let jane = "jane dev,system:authenticated";
        assert_eq!(find(&lasting, NOW + 86_400), jane);
        assert_eq!(find(&lasting, NOW + 86_400 + 60), "NotRecognized");
        assert_eq!(find(&early, NOW - 86_400), jane);
        assert_eq!(find(&early, NOW - 86_401), "NotRecognized");
    }

    #[test]
    fn chain_with_intermediate_ca_is_authenticated() {
        let ca = authority("ca", None);
        let intermediate = authority("intermediate", Some(&ca));
        let authenticator = ClientCertificateAuthenticator::new(&ca.pem).expect("authorities");
        let jane = leaf(&intermediate, |_| {});
        assert_eq!(found(&authenticator, vec![jane.clone()], NOW), "NotRecognized");
        let chain = vec![jane, intermediate.der.clone()];
        assert_eq!(found(&authenticator, chain, NOW), "jane dev,system:authenticated");
    }

    #[test]
    fn certificate_of_system_masters_has_its_groups_and_credential_id() {
        let ca = authority("ca", None);
        let subject = [(DnType::CommonName, "kubernetes-admin"), (DnType::OrganizationName, "system:masters")];
        let der = leaf(&ca, |params| params.distinguished_name = name(&subject));
        let user = read(&der).expect("a user");
        assert_eq!(user.username, "kubernetes-admin");
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
            read(&leaf(&ca, |params| params.distinguished_name = name(&subject))).map(|user| user.uid)
        };
        assert_eq!(of("1234").as_deref(), Some("1234"));
        assert_eq!(of(""), None, "an empty UID is an error");
    }

    #[test]
    fn certificate_with_unknown_critical_extension_is_not_recognized() {
        let ca = authority("ca", None);
        let authenticator = ClientCertificateAuthenticator::new(&ca.pem).expect("authorities");
        let mut extension = CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 57683, 99], vec![5, 0]);
        extension.set_criticality(true);
        let der = leaf(&ca, |params| params.custom_extensions.push(extension));
        assert_eq!(found(&authenticator, vec![der], NOW), "NotRecognized");
    }

    #[test]
    fn ca_bundle_without_a_valid_certificate_is_rejected() {
        for pem in ["", "garbage", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            assert!(ClientCertificateAuthenticator::new(pem).is_err(), "{pem:?}");
        }
    }
}
