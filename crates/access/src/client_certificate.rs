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
            // A certificate has no audiences, so the chain gives it those of this server.
            Some(user) => Authentication::Authenticated { user, audiences: Vec::new() },
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
        Issuer, KeyPair, KeyUsagePurpose, SigningKey as _,
    };
    use rustls_pki_types::CertificateDer;
    use time::OffsetDateTime;
    use x509_cert::der::asn1::BitString;
    use x509_cert::der::{Decode as _, Encode as _};

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
        authority_with(common_name, parent, |_| {})
    }

    fn authority_with(
        common_name: &str,
        parent: Option<&Authority>,
        change: impl FnOnce(&mut CertificateParams),
    ) -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name = name(&[(DnType::CommonName, common_name)]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        (params.not_before, params.not_after) = (at(-86_400), at(86_400));
        change(&mut params);
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
    fn chain_longer_than_the_path_length_of_the_trusted_ca_is_not_recognized() {
        let masters = |params: &mut CertificateParams| {
            params.distinguished_name =
                name(&[(DnType::CommonName, "jane"), (DnType::OrganizationName, "system:masters")]);
        };
        // Returns what a chain with each number of intermediate CAs authenticates.
        let of = |path_length: u8| {
            let constraints = IsCa::Ca(BasicConstraints::Constrained(path_length));
            let ca = authority_with("ca", None, |params| params.is_ca = constraints);
            let (first, authenticator) = (authority("first", Some(&ca)), ClientCertificateAuthenticator::new(&ca.pem));
            let (second, authenticator) = (authority("second", Some(&first)), authenticator.expect("authorities"));
            [
                vec![leaf(&ca, masters)],
                vec![leaf(&first, masters), first.der.clone()],
                vec![leaf(&second, masters), second.der.clone(), first.der.clone()],
            ]
            .map(|chain| found(&authenticator, chain, NOW))
        };
        let (jane, none) = ("jane system:masters,system:authenticated", "NotRecognized");
        assert_eq!(of(0), [jane, none, none]);
        assert_eq!(of(1), [jane, jane, none]);
        assert_eq!(of(2), [jane, jane, jane]);
    }

    #[test]
    fn renewed_ca_without_a_path_length_accepts_longer_chains() {
        let old = authority_with("ca", None, |params| params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0)));
        let mut params = old.params.clone();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let renewed = params.self_signed(&old.key).expect("a certificate").pem();
        let intermediate = authority("intermediate", Some(&old));
        let chain = vec![leaf(&intermediate, |_| {}), intermediate.der.clone()];
        for bundle in [format!("{}{renewed}", old.pem), format!("{renewed}{}", old.pem)] {
            let authenticator = ClientCertificateAuthenticator::new(&bundle).expect("authorities");
            assert_eq!(found(&authenticator, chain.clone(), NOW), "jane dev,system:authenticated");
        }
    }

    #[test]
    fn trusted_ca_with_unknown_critical_extension_signs_no_clients() {
        let mut extension = CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 57683, 99], vec![5, 0]);
        for (is_critical, expected) in [(false, "jane dev,system:authenticated"), (true, "NotRecognized")] {
            extension.set_criticality(is_critical);
            let ca = authority_with("ca", None, |params| params.custom_extensions.push(extension.clone()));
            let authenticator = ClientCertificateAuthenticator::new(&ca.pem).expect("authorities");
            let intermediate = authority("intermediate", Some(&ca));
            assert_eq!(found(&authenticator, vec![leaf(&ca, |_| {})], NOW), expected);
            let chain = vec![leaf(&intermediate, |_| {}), intermediate.der];
            assert_eq!(found(&authenticator, chain, NOW), expected);
        }
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

    /// Rebuilds a certificate without extensions as one of X.509 version 1, signed by `signer`.
    fn version_1(der: &CertificateDer<'static>, signer: &KeyPair) -> CertificateDer<'static> {
        let parsed = Certificate::from_der(der).expect("a certificate");
        let (tbs, algorithm) = (parsed.tbs_certificate(), parsed.signature_algorithm());
        let parts = [
            tbs.serial_number().to_der(),
            algorithm.to_der(),
            tbs.issuer().to_der(),
            tbs.validity().to_der(),
            tbs.subject().to_der(),
            tbs.subject_public_key_info().to_der(),
        ];
        let tbs = sequence(&parts.map(|part| part.expect("DER")).concat());
        let signature = BitString::from_bytes(&signer.sign(&tbs).expect("a signature")).expect("bits");
        sequence(&[tbs, algorithm.to_der().expect("DER"), signature.to_der().expect("DER")].concat()).into()
    }

    fn sequence(content: &[u8]) -> Vec<u8> {
        Any::new(Tag::Sequence, content).expect("a value").to_der().expect("DER")
    }

    #[test]
    fn version_1_certificate_is_authenticated_if_a_trusted_ca_signed_it() {
        let (ca, other) = (authority("ca", None), authority("ca", None));
        let authenticator = ClientCertificateAuthenticator::new(&ca.pem).expect("authorities");
        let find = |chain: &[&CertificateDer<'static>], now| {
            found(&authenticator, chain.iter().copied().cloned().collect(), now)
        };
        let jane = version_1(&leaf(&ca, |_| {}), &ca.key);
        assert_eq!(find(&[&jane], NOW), "jane dev,system:authenticated");
        assert_eq!(find(&[&jane, &other.der], NOW + 30), "jane dev,system:authenticated");
        assert_eq!(find(&[&jane], NOW + 91), "NotRecognized", "the certificate has expired");
        let early = version_1(&leaf(&ca, |params| params.not_before = at(10)), &ca.key);
        assert_eq!(find(&[&early], NOW), "NotRecognized", "the certificate is not valid yet");
        let forged = version_1(&leaf(&ca, |_| {}), &other.key);
        assert_eq!(find(&[&forged], NOW), "NotRecognized", "another key signed it");
        assert_eq!(find(&[&forged, &other.der], NOW), "NotRecognized", "the client's own CA is not trusted");
        let stranger = authority("stranger", None);
        let foreign = version_1(&leaf(&stranger, |_| {}), &ca.key);
        assert_eq!(find(&[&foreign], NOW), "NotRecognized", "the issuer has another name");
        let mut changed = jane.to_vec();
        let at = changed.windows(4).position(|bytes| bytes == b"jane").expect("the name");
        changed[at] = b'k';
        assert_eq!(find(&[&changed.into()], NOW), "NotRecognized", "the certificate was changed");
    }

    /// Version 1 has no basic constraints. As in Go, such a certificate in the CA file is a CA without limits.
    #[test]
    fn version_1_certificate_in_the_ca_file_signs_for_every_identity() {
        use base64::Engine as _;
        let old = authority("old", None);
        let der = base64::engine::general_purpose::STANDARD.encode(version_1(&old.der, &old.key));
        let pem = format!("-----BEGIN CERTIFICATE-----\n{der}\n-----END CERTIFICATE-----\n");
        let authenticator = ClientCertificateAuthenticator::new(&pem).expect("authorities");
        let subject = [(DnType::CommonName, "kubernetes-admin"), (DnType::OrganizationName, "system:masters")];
        let der = leaf(&old, |params| params.distinguished_name = name(&subject));
        assert_eq!(found(&authenticator, vec![der], NOW), "kubernetes-admin system:masters,system:authenticated");
    }

    #[test]
    fn version_1_certificate_is_no_intermediate_ca() {
        let ca = authority("ca", None);
        let authenticator = ClientCertificateAuthenticator::new(&ca.pem).expect("authorities");
        let mut intermediate = authority("intermediate", Some(&ca));
        intermediate.der = version_1(&intermediate.der, &ca.key);
        let issued = leaf(&intermediate, |_| {});
        for jane in [version_1(&issued, &intermediate.key), issued] {
            assert_eq!(found(&authenticator, vec![jane, intermediate.der.clone()], NOW), "NotRecognized");
        }
    }

    #[test]
    fn trusted_certificate_authenticates_its_own_subject() {
        let subject = name(&[(DnType::CommonName, "jane"), (DnType::OrganizationName, "dev")]);
        let of = |change: &dyn Fn(&mut CertificateParams), now| {
            let mut params = CertificateParams::default();
            (params.not_before, params.not_after) = (at(-3_600), at(30));
            (params.distinguished_name, params.is_ca) = (subject.clone(), IsCa::Ca(BasicConstraints::Unconstrained));
            change(&mut params);
            let key = KeyPair::generate().expect("a key");
            let certificate = params.self_signed(&key).expect("a certificate");
            let authenticator = ClientCertificateAuthenticator::new(&certificate.pem()).expect("authorities");
            let own = found(&authenticator, vec![certificate.der().clone()], now);
            let authority = Authority { params, key, pem: certificate.pem(), der: certificate.der().clone() };
            (own, found(&authenticator, vec![leaf(&authority, |_| {})], now))
        };
        let (jane, none) = ("jane dev,system:authenticated".to_owned(), "NotRecognized".to_owned());
        assert_eq!(of(&|_| {}, NOW), (jane.clone(), jane.clone()));
        assert_eq!(of(&|_| {}, NOW + 31), (none.clone(), none.clone()), "it has expired");
        let for_servers = |params: &mut CertificateParams| {
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        };
        assert_eq!(of(&for_servers, NOW), (none.clone(), none.clone()), "it is for servers");
        let no_ca = |params: &mut CertificateParams| params.is_ca = IsCa::ExplicitNoCa;
        assert_eq!(of(&no_ca, NOW), (jane.clone(), none.clone()), "it may not sign others");
        let plain = |params: &mut CertificateParams| params.is_ca = IsCa::NoCa;
        assert_eq!(of(&plain, NOW), (jane.clone(), none.clone()), "version 3 has to say that it is a CA");
        let cannot_sign = |params: &mut CertificateParams| params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        assert_eq!(of(&cannot_sign, NOW), (jane, none), "its key may not sign certificates");
    }

    #[test]
    fn ca_certificate_is_authenticated_if_a_trusted_ca_signed_it() {
        let (ca, other) = (authority("ca", None), authority("other", None));
        let authenticator = ClientCertificateAuthenticator::new(&ca.pem).expect("authorities");
        let of = |signer: &Authority| {
            let der = leaf(signer, |params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained));
            found(&authenticator, vec![der], NOW)
        };
        assert_eq!(of(&ca), "jane dev,system:authenticated");
        assert_eq!(of(&other), "NotRecognized");
    }

    #[test]
    fn certificate_for_any_usage_is_for_clients() {
        let ca = authority("ca", None);
        let authenticator = ClientCertificateAuthenticator::new(&ca.pem).expect("authorities");
        for usages in [
            vec![ExtendedKeyUsagePurpose::Any],
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::Any],
        ] {
            let der = leaf(&ca, |params| params.extended_key_usages = usages.clone());
            assert_eq!(found(&authenticator, vec![der], NOW), "jane dev,system:authenticated", "{usages:?}");
        }
        let intermediate = {
            let mut params = CertificateParams::default();
            params.distinguished_name = name(&[(DnType::CommonName, "servers")]);
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            (params.not_before, params.not_after) = (at(-86_400), at(86_400));
            let key = KeyPair::generate().expect("a key");
            let issuer = Issuer::from_params(&ca.params, &ca.key);
            let certificate = params.signed_by(&key, &issuer).expect("a certificate");
            Authority { params, key, pem: certificate.pem(), der: certificate.der().clone() }
        };
        let chain = vec![leaf(&intermediate, |_| {}), intermediate.der.clone()];
        assert_eq!(found(&authenticator, chain, NOW), "NotRecognized", "its CA is for servers");
    }
}
