//! Front proxies: servers that authenticate users themselves, and name the user of a request in headers
//! (`apiserver/pkg/authentication/request/headerrequest/requestheader.go`).
//!
//! ```text
//!  client certificate ─▶ chain to --requestheader-client-ca-file ─▶ allowed name ─▶ X-Remote-User, … ─▶ user
//!                                 └───────────────┴──────────────────────┴─▶ NotRecognized
//! ```
//!
//! A front proxy whose headers are not UTF-8 is rejected.
//!
//! The headers are read only on a connection with the certificate of a front proxy. On every other connection they are
//! ignored, and the other authenticators decide.

use http::{HeaderMap, HeaderName, HeaderValue};
use listwatch_meta::UserInfo;
use percent_encoding::percent_decode_str;

use crate::authenticator::{Authentication, AuthenticationRequest, Authenticator, add_authenticated_group};
use crate::certificate_chain::{ChainVerifier, InvalidAuthorities};
use crate::client_certificate::{ClientCertificateAuthenticator, common_name};
use crate::maybe_future::MaybeFuture;

/// The headers in which a front proxy names the user, and the names of its certificate (`--requestheader-*`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrontProxyHeaders {
    /// The headers with the user's name. The first header with a value is used.
    pub username: Vec<String>,
    /// The headers with the user's UID. The first header with a value is used.
    pub uid: Vec<String>,
    /// The headers with the user's groups. All values are used.
    pub groups: Vec<String>,
    /// The prefixes of headers with extra values. The rest of the header's name is the percent-encoded key.
    pub extra_prefixes: Vec<String>,
    /// The allowed common names of the front proxy's certificate. Empty: any name.
    pub allowed_names: Vec<String>,
}

/// The settings of a [`FrontProxyAuthenticator`] are not usable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvalidFrontProxy {
    /// The CA bundle for the certificates of front proxies is not usable.
    Authorities(InvalidAuthorities),
    /// The text is not a header name or a prefix of one.
    Header(String),
    /// A CA of front proxies is also a CA of client certificates, and any common name is allowed. Each client could
    /// then act as any user.
    SharedAuthority,
}

impl std::fmt::Display for InvalidFrontProxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            InvalidFrontProxy::Authorities(error) => error.fmt(f),
            InvalidFrontProxy::Header(name) => write!(f, "{name:?} is not a header name"),
            InvalidFrontProxy::SharedAuthority => f.write_str(
                "--requestheader-client-ca-file and --client-ca-file contain overlapping certificates; \
                 --requestheader-allowed-names must be specified to ensure regular client certificates cannot set \
                 authenticating proxy headers for arbitrary users",
            ),
        }
    }
}

impl std::error::Error for InvalidFrontProxy {}

/// Authenticates the users that a front proxy names in headers (`--requestheader-client-ca-file`).
pub struct FrontProxyAuthenticator {
    /// Caches whether a certificate has an allowed name.
    chains: ChainVerifier<()>,
    username: Vec<HeaderName>,
    uid: Vec<HeaderName>,
    groups: Vec<HeaderName>,
    /// The prefixes of the headers with extra fields of users, in lower case.
    extra_prefixes: Vec<String>,
    allowed_names: Vec<String>,
}

impl FrontProxyAuthenticator {
    /// Creates an authenticator for front proxies whose certificates are signed by the CAs of a PEM file.
    ///
    /// # Errors
    /// [`InvalidFrontProxy`] for an unusable CA bundle or header name.
    pub fn new(authorities_pem: &str, headers: &FrontProxyHeaders) -> Result<Self, InvalidFrontProxy> {
        let names = |names: &[String]| names.iter().map(|name| header_name(name)).collect::<Result<Vec<_>, _>>();
        let prefixes = headers.extra_prefixes.iter();
        let extra_prefixes = prefixes.map(|prefix| header_name(prefix).map(|name| name.as_str().to_owned()));
        Ok(FrontProxyAuthenticator {
            chains: ChainVerifier::new(authorities_pem).map_err(InvalidFrontProxy::Authorities)?,
            username: names(&headers.username)?,
            uid: names(&headers.uid)?,
            groups: names(&headers.groups)?,
            extra_prefixes: extra_prefixes.collect::<Result<_, _>>()?,
            allowed_names: headers.allowed_names.clone(),
        })
    }

    /// Checks that no client certificate is also the certificate of a front proxy: the CAs differ, or only certain
    /// common names are allowed (`pkg/kubeapiserver/options/authentication.go`).
    ///
    /// # Errors
    /// [`InvalidFrontProxy::SharedAuthority`].
    pub fn check_distinct_from(&self, clients: &ClientCertificateAuthenticator) -> Result<(), InvalidFrontProxy> {
        match self.allowed_names.is_empty() && self.chains.shares_authority_with(&clients.chains) {
            true => Err(InvalidFrontProxy::SharedAuthority),
            false => Ok(()),
        }
    }

    /// Removes the headers that name a user, so that no server behind this one trusts them
    /// (`apiserver/pkg/endpoints/filters/authentication.go`).
    pub fn remove_headers(&self, headers: &mut HeaderMap) {
        let named = [&self.username, &self.uid, &self.groups].into_iter().flatten();
        let is_extra = |name: &&HeaderName| self.extra_prefixes.iter().any(|prefix| name.as_str().starts_with(prefix));
        let extra: Vec<HeaderName> = headers.keys().filter(is_extra).cloned().collect();
        for name in named.chain(&extra) {
            headers.remove(name);
        }
    }

    /// Whether the connection has a certificate of a front proxy.
    fn is_front_proxy(&self, request: &AuthenticationRequest<'_>) -> bool {
        let now = u64::try_from(request.now).unwrap_or_default();
        let is_allowed = |name: Option<String>| {
            self.allowed_names.is_empty() || name.is_some_and(|name| self.allowed_names.contains(&name))
        };
        let verified = request.certificates.and_then(|peer| {
            self.chains.verify(peer, now, |certificate, _| is_allowed(common_name(certificate)).then_some(()))
        });
        verified.is_some()
    }

    /// The user that the headers name; `None` without a name.
    fn user(&self, headers: &HeaderMap) -> Result<Option<UserInfo>, NotUtf8> {
        let username = first_value(headers, &self.username)?;
        if username.is_empty() {
            return Ok(None);
        }
        let mut user = UserInfo {
            username: username.to_owned(),
            uid: first_value(headers, &self.uid)?.to_owned(),
            ..UserInfo::default()
        };
        for value in self.groups.iter().flat_map(|name| headers.get_all(name)) {
            let group = text(value)?;
            if !group.is_empty() {
                user.groups.push(group.to_owned());
            }
        }
        for prefix in &self.extra_prefixes {
            for (name, value) in headers {
                let Some(key) = name.as_str().strip_prefix(prefix.as_str()) else { continue };
                // A key that is not encoded correctly is taken as it is.
                let decoded = if is_escaped(key) { percent_decode_str(key).decode_utf8().ok() } else { None };
                let key = decoded.map_or_else(|| key.to_owned(), std::borrow::Cow::into_owned);
                user.extra.entry(key).or_default().push(text(value)?.to_owned());
            }
        }
        add_authenticated_group(&mut user);
        Ok(Some(user))
    }
}

/// A header that names a user has a value that is not UTF-8.
struct NotUtf8;

/// Parses a header name of a flag.
fn header_name(name: &str) -> Result<HeaderName, InvalidFrontProxy> {
    name.trim().parse().map_err(|_| InvalidFrontProxy::Header(name.to_owned()))
}

fn text(value: &HeaderValue) -> Result<&str, NotUtf8> {
    std::str::from_utf8(value.as_bytes()).map_err(|_| NotUtf8)
}

/// The first value of the first header that has a nonempty one, or an empty text.
fn first_value<'h>(headers: &'h HeaderMap, names: &[HeaderName]) -> Result<&'h str, NotUtf8> {
    let mut values = names.iter().filter_map(|name| headers.get(name)).filter(|value| !value.is_empty());
    values.next().map_or(Ok(""), text)
}

/// Whether each percent sign has two hexadecimal digits (Go's `url.PathUnescape`).
fn is_escaped(text: &str) -> bool {
    let digits = |rest: &str| rest.len() >= 2 && rest.as_bytes()[..2].iter().all(u8::is_ascii_hexdigit);
    text.split('%').skip(1).all(digits)
}

impl std::fmt::Debug for FrontProxyAuthenticator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FrontProxyAuthenticator({}, {:?})", self.chains.len(), self.allowed_names)
    }
}

impl Authenticator for FrontProxyAuthenticator {
    fn authenticate<'a>(&'a self, request: &'a AuthenticationRequest<'a>) -> MaybeFuture<'a, Authentication> {
        // Most requests have no such header, which is cheaper to find out than the owner of a certificate.
        let user = request.headers.map_or(Ok(None), |headers| self.user(headers));
        MaybeFuture::ready(match user {
            Ok(None) => Authentication::NotRecognized,
            _ if !self.is_front_proxy(request) => Authentication::NotRecognized,
            // The headers name no audiences, so the chain gives the user those of this server.
            Ok(Some(user)) => Authentication::of_user(user),
            Err(NotUtf8) => Authentication::Rejected("the front proxy names a user that is not UTF-8".to_owned()),
        })
    }

    /// Otherwise the request would be made as the front proxy itself.
    fn is_rejection_final(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair};

    use super::*;
    use crate::PeerCertificates;

    const NOW: i64 = 1_800_000_000;

    struct Authority {
        params: CertificateParams,
        key: KeyPair,
        pem: String,
    }

    fn named(name: &str) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params
    }

    impl Authority {
        fn new(name: &str) -> Self {
            let mut params = named(name);
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let key = KeyPair::generate().expect("a key");
            let pem = params.self_signed(&key).expect("a certificate").pem();
            Authority { params, key, pem }
        }

        /// The connection of a client with a certificate of this authority.
        fn peer(&self, name: &str) -> PeerCertificates {
            let key = KeyPair::generate().expect("a key");
            let issuer = Issuer::from_params(&self.params, &self.key);
            let certificate = named(name).signed_by(&key, &issuer).expect("a certificate");
            PeerCertificates::new(vec![certificate.der().to_vec()]).expect("a chain")
        }
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn standard() -> FrontProxyHeaders {
        FrontProxyHeaders {
            username: names(&["X-Remote-User"]),
            uid: names(&["X-Remote-Uid"]),
            groups: names(&["X-Remote-Group"]),
            extra_prefixes: names(&["X-Remote-Extra-"]),
            allowed_names: names(&["front-proxy-client"]),
        }
    }

    fn map(lines: &[(&str, &[u8])]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            let name: HeaderName = name.parse().expect("a name");
            headers.append(name, HeaderValue::from_bytes(value).expect("a value"));
        }
        headers
    }

    /// The user that an authenticator finds, as one line.
    fn found(
        authenticator: &FrontProxyAuthenticator,
        peer: Option<&PeerCertificates>,
        lines: &[(&str, &[u8])],
    ) -> String {
        let headers = map(lines);
        let request = AuthenticationRequest::of_token(None, NOW).with_headers(&headers).with_certificates(peer);
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        match runtime.block_on(authenticator.authenticate(&request)) {
            Authentication::Authenticated { user, .. } => {
                format!("{}/{}/{}/{:?}", user.username, user.uid, user.groups.join(","), user.extra)
            }
            other => format!("{other:?}"),
        }
    }

    const JANE: &[(&str, &[u8])] = &[("x-remote-user", b"jane")];

    #[test]
    fn front_proxy_headers_name_the_authenticated_user() {
        let proxies = Authority::new("front-proxy-ca");
        let authenticator = FrontProxyAuthenticator::new(&proxies.pem, &standard()).expect("an authenticator");
        let peer = proxies.peer("front-proxy-client");
        let user = |lines: &[(&str, &[u8])]| found(&authenticator, Some(&peer), lines);
        assert_eq!(user(JANE), "jane//system:authenticated/{}");
        let whole: &[(&str, &[u8])] = &[
            ("X-REMOTE-USER", "jürgen".as_bytes()),
            ("x-remote-user", b"second"),
            ("x-remote-uid", b"7"),
            ("x-remote-group", b"dev"),
            ("x-remote-group", b""),
            ("x-remote-group", b"system:masters"),
            ("X-Remote-Extra-Example.com%2fScope", b"a"),
            ("x-remote-extra-example.com%2Fscope", b"b"),
            ("x-remote-extra-50%", b"c"),
        ];
        let extra = r#"{"50%": ["c"], "example.com/scope": ["a", "b"]}"#;
        assert_eq!(user(whole), format!("jürgen/7/dev,system:masters,system:authenticated/{extra}"));
        let anonymous: &[(&str, &[u8])] = &[("x-remote-user", b"system:anonymous")];
        assert_eq!(user(anonymous), "system:anonymous///{}");
        let outside: &[(&str, &[u8])] = &[("x-remote-user", b"a"), ("x-remote-group", b"system:unauthenticated")];
        assert_eq!(user(outside), "a//system:unauthenticated/{}");
    }

    #[test]
    fn identity_headers_without_the_certificate_of_a_front_proxy_have_no_effect() {
        let (proxies, users) = (Authority::new("front-proxy-ca"), Authority::new("ca"));
        let same_name = Authority::new("front-proxy-ca");
        let authenticator = FrontProxyAuthenticator::new(&proxies.pem, &standard()).expect("an authenticator");
        for (what, peer) in [
            ("no certificate", None),
            ("the certificate of a user", Some(users.peer("kubernetes-admin"))),
            ("a user with the name of a front proxy", Some(users.peer("front-proxy-client"))),
            ("an authority with the name of the front proxies'", Some(same_name.peer("front-proxy-client"))),
            ("a name that is not allowed", Some(proxies.peer("other"))),
            ("an empty name", Some(proxies.peer(""))),
        ] {
            // A second look must not find a cached answer.
            for _ in 0..2 {
                assert_eq!(found(&authenticator, peer.as_ref(), JANE), "NotRecognized", "{what}");
            }
        }
        let peer = proxies.peer("front-proxy-client");
        for lines in [
            &[][..],
            &[("x-remote-user", b"" as &[u8])],
            &[("x-remote-user", b""), ("x-remote-user", b"jane")],
            &[("x-remote-group", b"system:masters")],
        ] {
            assert_eq!(found(&authenticator, Some(&peer), lines), "NotRecognized", "{lines:?}");
        }
    }

    #[test]
    fn front_proxy_that_names_a_malformed_user_is_rejected() {
        let (proxies, users) = (Authority::new("front-proxy-ca"), Authority::new("ca"));
        let authenticator = FrontProxyAuthenticator::new(&proxies.pem, &standard()).expect("an authenticator");
        let (proxy, user) = (proxies.peer("front-proxy-client"), users.peer("kubernetes-admin"));
        for lines in [
            &[("x-remote-user", b"\xff" as &[u8])][..],
            &[("x-remote-user", b"jane"), ("x-remote-group", b"\xff")],
            &[("x-remote-user", b"jane"), ("x-remote-uid", b"\xff")],
            &[("x-remote-user", b"jane"), ("x-remote-extra-a", b"\xff")],
        ] {
            let rejected = r#"Rejected("the front proxy names a user that is not UTF-8")"#;
            assert_eq!(found(&authenticator, Some(&proxy), lines), rejected, "{lines:?}");
            assert_eq!(found(&authenticator, Some(&user), lines), "NotRecognized", "{lines:?}");
        }
    }

    #[test]
    fn front_proxy_without_allowed_names_may_have_any_name() {
        let proxies = Authority::new("front-proxy-ca");
        let any = FrontProxyHeaders { allowed_names: Vec::new(), ..standard() };
        let authenticator = FrontProxyAuthenticator::new(&proxies.pem, &any).expect("an authenticator");
        assert_eq!(found(&authenticator, Some(&proxies.peer("x")), JANE), "jane//system:authenticated/{}");
    }

    #[test]
    fn front_proxy_without_a_user_header_authenticates_no_user() {
        let proxies = Authority::new("front-proxy-ca");
        let unnamed = FrontProxyHeaders { username: Vec::new(), ..standard() };
        let authenticator = FrontProxyAuthenticator::new(&proxies.pem, &unnamed).expect("an authenticator");
        assert_eq!(found(&authenticator, Some(&proxies.peer("front-proxy-client")), JANE), "NotRecognized");
    }

    #[test]
    fn first_configured_header_with_a_value_names_the_user() {
        let proxies = Authority::new("front-proxy-ca");
        let headers = FrontProxyHeaders { username: names(&["X-First", "X-Remote-User"]), ..standard() };
        let authenticator = FrontProxyAuthenticator::new(&proxies.pem, &headers).expect("an authenticator");
        let peer = proxies.peer("front-proxy-client");
        let user = |lines: &[(&str, &[u8])]| found(&authenticator, Some(&peer), lines);
        assert_eq!(user(&[("x-remote-user", b"b"), ("x-first", b"a")]), "a//system:authenticated/{}");
        assert_eq!(user(&[("x-remote-user", b"b"), ("x-first", b"")]), "b//system:authenticated/{}");
    }

    #[test]
    fn identity_headers_of_front_proxies_are_removed() {
        let proxies = Authority::new("front-proxy-ca");
        let headers = FrontProxyHeaders { username: names(&["X-My-User"]), ..standard() };
        let authenticator = FrontProxyAuthenticator::new(&proxies.pem, &headers).expect("an authenticator");
        let mut sent = map(&[
            ("x-my-user", b"jane"),
            ("x-remote-uid", b"7"),
            ("x-remote-group", b"a"),
            ("x-remote-group", b"b"),
            ("x-remote-extra-scope", b"a"),
            ("accept", b"*/*"),
        ]);
        authenticator.remove_headers(&mut sent);
        assert_eq!(sent, map(&[("accept", b"*/*")]));
    }

    #[test]
    fn unusable_front_proxy_settings_are_rejected() {
        let proxies = Authority::new("front-proxy-ca");
        let error = |pem: &str, headers: FrontProxyHeaders| {
            FrontProxyAuthenticator::new(pem, &headers).expect_err("an error").to_string()
        };
        assert_eq!(error("", standard()), "there is no certificate in PEM");
        let with = |name: &str| FrontProxyHeaders { uid: names(&[name]), ..standard() };
        assert_eq!(error(&proxies.pem, with("")), "\"\" is not a header name");
        assert_eq!(error(&proxies.pem, with("a b")), "\"a b\" is not a header name");
        let prefix = FrontProxyHeaders { extra_prefixes: names(&[" "]), ..standard() };
        assert_eq!(error(&proxies.pem, prefix), "\" \" is not a header name");
    }

    #[test]
    fn front_proxy_that_shares_the_client_ca_needs_allowed_names() {
        let (users, proxies) = (Authority::new("ca"), Authority::new("front-proxy-ca"));
        let clients = ClientCertificateAuthenticator::new(&users.pem).expect("authorities");
        let check = |pem: &str, allowed: &[&str]| {
            let headers = FrontProxyHeaders { allowed_names: names(allowed), ..standard() };
            FrontProxyAuthenticator::new(pem, &headers).expect("an authenticator").check_distinct_from(&clients)
        };
        let both = format!("{}{}", proxies.pem, users.pem);
        assert_eq!(check(&proxies.pem, &[]), Ok(()));
        assert_eq!(check(&users.pem, &["front-proxy-client"]), Ok(()));
        assert_eq!(check(&users.pem, &[]), Err(InvalidFrontProxy::SharedAuthority));
        assert_eq!(check(&both, &[]), Err(InvalidFrontProxy::SharedAuthority));
    }
}
