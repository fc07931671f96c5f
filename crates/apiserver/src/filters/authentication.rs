//! Authentication: finds the user who sent a request (`filters/authentication.go`).

use std::sync::{Arc, LazyLock};

use http::HeaderMap;
use http::header::AUTHORIZATION;
use http::request::Parts;
use listwatch_access::{
    Authentication, AuthenticationRecorder, AuthenticationRequest, AuthenticatorChain, Impersonation, PeerCertificates,
};
use listwatch_meta::{Status, UserInfo};

use crate::auth::AnonymousAuth;
use crate::request::info::RequestInfo;
use crate::request::websocket;

/// The user who sent a request.
#[derive(Debug)]
pub(crate) struct Sender {
    pub(crate) user: Arc<UserInfo>,
    /// Whether an authenticator found the user.
    pub(crate) is_authenticated: bool,
}

/// The user of a request from an in-process client. Only the server can attach this type to a request, so a network
/// request never has one.
#[derive(Debug, Clone)]
pub(crate) struct Identity(pub(crate) Arc<UserInfo>);

/// Finds the sender of a request. A request without credentials is anonymous if `anonymous_auth` allows this. If
/// `anonymous_paths` is not empty, the path must also be in that list. `api_audiences` are the audiences of this server.
///
/// # Errors
/// 401 for an invalid credential or a credential for other audiences, or for a missing credential if anonymous requests
/// are not allowed.
pub(crate) async fn authenticate(
    authenticators: &AuthenticatorChain,
    api_audiences: &[String],
    (anonymous_auth, anonymous_paths): (AnonymousAuth, &[String]),
    parts: &Parts,
    info: &RequestInfo<'_>,
    now: i64,
    recorder: &AuthenticationRecorder,
) -> Result<Sender, Status> {
    if let Some(Identity(user)) = parts.extensions.get() {
        return Ok(Sender { user: Arc::clone(user), is_authenticated: true });
    }
    let headers = &parts.headers;
    let of_header = bearer(headers);
    let of_websocket = match websocket::is_upgrade_request(parts) {
        true => websocket::bearer_token(headers).map_err(|_| MalformedToken),
        false => Ok(None),
    };
    // Another credential of the request may be valid. Otherwise a malformed token fails like an invalid one.
    let mut has_rejected = of_header.is_err() || of_websocket.is_err();
    let mut has_unknown_token = false;
    let of_websocket = of_websocket.ok().flatten();
    let mut tokens = [of_header.ok().flatten(), of_websocket.as_deref()].into_iter().flatten().peekable();
    let certificates = parts.extensions.get::<Arc<PeerCertificates>>().map(|certificates| &**certificates);
    // Authenticators also run for a request without a token, because other headers may contain credentials.
    let mut token = tokens.next();
    loop {
        let request = AuthenticationRequest::of_token(token, now)
            .with_headers(headers)
            .with_recorder(recorder)
            .with_certificates(certificates)
            .with_required_credential(has_rejected || tokens.peek().is_some());
        match authenticators.authenticate(&request).await {
            Authentication::Authenticated { user, audiences } if are_acceptable(&audiences, api_audiences) => {
                return Ok(Sender { user, is_authenticated: true });
            }
            Authentication::Authenticated { audiences, .. } => {
                tracing::debug!(?audiences, "rejected a credential for other audiences");
                return Err(Status::unauthorized());
            }
            Authentication::Rejected(reason) => {
                tracing::debug!(reason, "rejected the credential of a request");
                has_rejected = true;
            }
            Authentication::NotRecognized => has_unknown_token |= token.is_some(),
        }
        // The request may have a second token, which may be valid (`request/union/union.go`).
        match tokens.next() {
            Some(next) => token = Some(next),
            None => break,
        }
    }
    let is_open = match anonymous_auth {
        AnonymousAuth::Enabled => anonymous_paths.is_empty() || anonymous_paths.iter().any(|path| *path == info.path),
        AnonymousAuth::HealthOnly => {
            info.is_health_or_version() && matches!(Impersonation::from_headers(headers), Ok(None))
        }
        AnonymousAuth::Disabled => false,
    };
    match is_open && !has_rejected && !has_unknown_token && certificates.is_none() {
        true => Ok(Sender { user: Arc::clone(&ANONYMOUS), is_authenticated: false }),
        false => Err(Status::unauthorized()),
    }
}

/// Whether a credential for these audiences is valid for this server. A credential without audiences always is, and any
/// credential is if the server has no audiences (`audiencesAreAcceptable`).
fn are_acceptable(audiences: &[String], api_audiences: &[String]) -> bool {
    audiences.is_empty()
        || api_audiences.is_empty()
        || audiences.iter().any(|audience| api_audiences.contains(audience))
}

/// A token that cannot be read, and that no authenticator can therefore accept.
struct MalformedToken;

static ANONYMOUS: LazyLock<Arc<UserInfo>> = LazyLock::new(|| {
    let groups = vec!["system:unauthenticated".to_owned()];
    Arc::new(UserInfo { username: "system:anonymous".to_owned(), groups, ..UserInfo::default() })
});

/// Returns the bearer token of the first `Authorization` header; `None` for another scheme or an empty token
/// (`authentication/request/bearertoken`).
///
/// # Errors
/// [`MalformedToken`] for a token that is not UTF-8.
fn bearer(headers: &HeaderMap) -> Result<Option<&str>, MalformedToken> {
    let Some(value) = headers.get(AUTHORIZATION) else { return Ok(None) };
    let mut words = value.as_bytes().trim_ascii().split(|byte| *byte == b' ');
    let is_bearer = words.next().is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"bearer"));
    match words.next().filter(|token| is_bearer && !token.is_empty()) {
        Some(token) => std::str::from_utf8(token).map(Some).map_err(|_| MalformedToken),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use http::Request;
    use listwatch_access::AdminToken;
    use listwatch_wire::query::Query;

    use super::*;

    /// Returns the user name of a request, or the code of the failure.
    async fn sender(line: &str, headers: &[(&str, &str)]) -> Result<String, u16> {
        sender_with(AnonymousAuth::HealthOnly, line, headers).await
    }

    async fn sender_with(anonymous_auth: AnonymousAuth, line: &str, headers: &[(&str, &str)]) -> Result<String, u16> {
        let chain = AuthenticatorChain::new().with(AdminToken::new("s3cret"));
        let (method, path) = line.split_once(' ').unwrap();
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let info = RequestInfo::new(&parts.method, parts.uri.path(), &Query::default());
        let sender = authenticate(&chain, &[], (anonymous_auth, &[]), &parts, &info, 0, &Default::default())
            .await
            .map_err(|status| status.code)?;
        assert_eq!(sender.is_authenticated, sender.user.username != "system:anonymous");
        Ok(sender.user.username.clone())
    }

    #[tokio::test]
    async fn only_a_valid_bearer_token_in_the_first_header_authenticates() {
        let pods = async |values: &[&str]| {
            let headers: Vec<(&str, &str)> = values.iter().map(|value| ("authorization", *value)).collect();
            sender("GET /api/v1/pods", &headers).await.is_ok()
        };
        assert!(pods(&["Bearer s3cret"]).await);
        assert!(pods(&["bearer s3cret"]).await);
        assert!(pods(&["Bearer s3cret", "Bearer x"]).await);
        assert!(pods(&["Bearer s3cret x"]).await);
        for rejected in [
            &[][..],
            &[""],
            &["Bearer"],
            &["Bearer "],
            &["Bearer s3cre"],
            &["Bearer s3crett"],
            &["Basic s3cret"],
            &["s3cret"],
            &["Bearer x", "Bearer s3cret"],
            &["Bearer  s3cret"],
        ] {
            assert!(!pods(rejected).await, "{rejected:?}");
        }
    }

    #[tokio::test]
    async fn malformed_token_is_never_anonymous() {
        let anonymous = || Ok("system:anonymous".to_owned());
        let admin = || Ok("admin".to_owned());
        let name = "base64url.bearer.authorization.k8s.io";
        for (authorization, protocols, expected) in [
            (&b"Bearer \xff"[..], String::new(), Err(401)),
            ("Bearer t\u{f6}ken".as_bytes(), String::new(), Err(401)),
            (b"Basic \xff", String::new(), anonymous()),
            (b"Bearer", String::new(), anonymous()),
            (b"", "x".to_owned(), anonymous()),
            (b"", format!("{name}., x"), anonymous()),
            (b"", format!("{name}.czNjcmV0, x"), admin()),
            (b"", format!("{name}.czNjcmV0, {name}.czNjcmV0, x"), Err(401)),
            (b"", format!("{name}.czNjcmV0"), Err(401)),
            (b"", format!("{name}.!, x"), Err(401)),
            (b"", format!("{name}.\u{f6}, x"), Err(401)),
            (b"", format!("{name}._w, x"), Err(401)),
            (b"Bearer s3cret", format!("{name}.!, x"), admin()),
            (b"Bearer x", format!("{name}.czNjcmV0, x"), admin()),
        ] {
            let chain = AuthenticatorChain::new().with(AdminToken::new("s3cret"));
            let value = |bytes: &[u8]| http::HeaderValue::from_bytes(bytes).unwrap();
            let request = Request::get("/api/v1/pods?watch=true")
                .header("connection", "upgrade")
                .header("upgrade", "websocket")
                .header("authorization", value(authorization))
                .header("sec-websocket-protocol", value(protocols.as_bytes()));
            let (parts, ()) = request.body(()).unwrap().into_parts();
            let info = RequestInfo::new(&parts.method, parts.uri.path(), &Query::default());
            let sender =
                authenticate(&chain, &[], (AnonymousAuth::Enabled, &[]), &parts, &info, 0, &Default::default()).await;
            let name = sender.map(|sender| sender.user.username.clone()).map_err(|status| status.code);
            assert_eq!(name, expected, "{authorization:?} {protocols}");
        }
    }

    #[tokio::test]
    async fn token_of_a_websocket_is_in_its_subprotocol() {
        let websocket = [("connection", "upgrade"), ("upgrade", "websocket")];
        let with = |token: &'static str| [websocket[0], websocket[1], ("sec-websocket-protocol", token)];
        let name = "base64url.bearer.authorization.k8s.io";
        let (valid, invalid) = (format!("{name}.czNjcmV0, x"), format!("{name}.eA, x"));
        let path = "GET /api/v1/pods?watch=true";
        assert_eq!(sender(path, &with(valid.clone().leak())).await, Ok("admin".to_owned()));
        assert_eq!(sender(path, &with(invalid.leak())).await, Err(401));
        assert_eq!(sender(path, &[("sec-websocket-protocol", valid.as_str())]).await, Err(401), "no upgrade");
    }

    #[tokio::test]
    async fn anonymous_auth_setting_allows_or_rejects_requests_without_credentials() {
        use AnonymousAuth::{Disabled, Enabled, HealthOnly};
        let anonymous = || Ok("system:anonymous".to_owned());
        let wrong: &[(&str, &str)] = &[("authorization", "Bearer wrong")];
        for (anonymous_auth, path, headers, expected) in [
            (Enabled, "/api/v1/pods", &[][..], anonymous()),
            (Enabled, "/readyz", &[], anonymous()),
            (Enabled, "/readyz", wrong, Err(401)),
            (Enabled, "/api/v1/pods", wrong, Err(401)),
            (HealthOnly, "/readyz", &[], anonymous()),
            (HealthOnly, "/readyz", wrong, Err(401)),
            (HealthOnly, "/api/v1/pods", &[], Err(401)),
            (Disabled, "/readyz", &[], Err(401)),
            (Disabled, "/api/v1/pods", &[], Err(401)),
        ] {
            let found = sender_with(anonymous_auth, &format!("GET {path}"), headers).await;
            assert_eq!(found, expected, "{anonymous_auth:?} {path} {headers:?}");
        }
    }

    #[tokio::test]
    async fn anonymous_requests_are_limited_to_the_configured_paths() {
        let paths = ["/livez".to_owned(), "/version".to_owned()];
        for (path, is_anonymous) in [
            ("/livez", true),
            ("/version", true),
            ("/livez/ping", false),
            ("/livez/", false),
            ("/readyz", false),
            ("/api", false),
        ] {
            let (parts, ()) = Request::get(path).body(()).unwrap().into_parts();
            let info = RequestInfo::new(&parts.method, parts.uri.path(), &Query::default());
            let anonymous = (AnonymousAuth::Enabled, &paths[..]);
            let sender =
                authenticate(&AuthenticatorChain::new(), &[], anonymous, &parts, &info, 0, &Default::default()).await;
            assert_eq!(sender.is_ok(), is_anonymous, "{path}");
        }
    }

    /// Authenticates requests by the header `x-api-key`.
    struct ApiKey;

    impl listwatch_access::Authenticator for ApiKey {
        fn authenticate<'a>(
            &'a self,
            request: &'a AuthenticationRequest<'a>,
        ) -> listwatch_access::MaybeFuture<'a, Authentication> {
            let key = request.headers.and_then(|headers| headers.get("x-api-key"));
            listwatch_access::MaybeFuture::ready(match key {
                Some(_) => Authentication::Rejected("not a key".to_owned()),
                None => Authentication::NotRecognized,
            })
        }
    }

    #[tokio::test]
    async fn rejected_credential_in_another_header_is_never_anonymous() {
        let chain = AuthenticatorChain::new().with(ApiKey);
        for (key, expected) in [(None, Ok("system:anonymous")), (Some("wrong"), Err(401))] {
            let mut request = Request::get("/api/v1/pods");
            if let Some(key) = key {
                request = request.header("x-api-key", key);
            }
            let (parts, ()) = request.body(()).unwrap().into_parts();
            let info = RequestInfo::new(&parts.method, parts.uri.path(), &Query::default());
            let sender =
                authenticate(&chain, &[], (AnonymousAuth::Enabled, &[]), &parts, &info, 0, &Default::default()).await;
            let name = sender.as_ref().map(|sender| sender.user.username.as_str()).map_err(|status| status.code);
            assert_eq!(name, expected, "{key:?}");
        }
    }

    /// Authenticates the token `known` for these audiences, and rejects tokens that begin with `x`. Like a veto, a
    /// rejection may be final.
    struct Known {
        audiences: &'static [&'static str],
        is_veto: bool,
    }

    impl listwatch_access::Authenticator for Known {
        fn authenticate<'a>(
            &'a self,
            request: &'a AuthenticationRequest<'a>,
        ) -> listwatch_access::MaybeFuture<'a, Authentication> {
            listwatch_access::MaybeFuture::ready(match request.token {
                Some("known") => Authentication::Authenticated {
                    user: Arc::new(UserInfo { username: "known".to_owned(), ..UserInfo::default() }),
                    audiences: self.audiences.iter().map(|&audience| audience.to_owned()).collect(),
                },
                Some(token) if token.starts_with('x') => Authentication::Rejected("it begins with x".to_owned()),
                _ => Authentication::NotRecognized,
            })
        }

        fn is_rejection_final(&self) -> bool {
            self.is_veto
        }
    }

    #[tokio::test]
    async fn credential_for_other_audiences_than_those_of_the_server_is_rejected() {
        for (audiences, api_audiences, is_accepted) in [
            (&[][..], &[][..], true),
            (&[], &["api"], true),
            (&["vault"], &[], true),
            (&["vault"], &["api"], false),
            (&["vault", "api"], &["other", "api"], true),
        ] {
            let chain = AuthenticatorChain::new().with(Known { audiences, is_veto: false });
            let chain = chain.with(listwatch_access::EveryoneIsAdmin::new());
            let own: Vec<String> = api_audiences.iter().map(|&audience: &&str| audience.to_owned()).collect();
            let request = Request::get("/readyz").header("authorization", "Bearer known");
            let (parts, ()) = request.body(()).unwrap().into_parts();
            let info = RequestInfo::new(&parts.method, parts.uri.path(), &Query::default());
            let sender =
                authenticate(&chain, &own, (AnonymousAuth::Enabled, &[]), &parts, &info, 0, &Default::default()).await;
            let name = sender.map(|sender| sender.user.username.clone()).map_err(|status| status.code);
            let expected = if is_accepted { Ok("known".to_owned()) } else { Err(401) };
            assert_eq!(name, expected, "{audiences:?} {api_audiences:?}");
        }
    }

    #[tokio::test]
    async fn rejection_ends_the_request_before_the_token_of_the_administrator_only_if_it_is_final() {
        for (is_veto, expected) in [(false, Ok("admin")), (true, Err(401))] {
            let chain = AuthenticatorChain::new().with(Known { audiences: &[], is_veto }).with(AdminToken::new("x1"));
            let request = Request::get("/api/v1/pods").header("authorization", "Bearer x1");
            let (parts, ()) = request.body(()).unwrap().into_parts();
            let info = RequestInfo::new(&parts.method, parts.uri.path(), &Query::default());
            let sender =
                authenticate(&chain, &[], (AnonymousAuth::Disabled, &[]), &parts, &info, 0, &Default::default()).await;
            let name = sender.as_ref().map(|sender| sender.user.username.as_str()).map_err(|status| status.code);
            assert_eq!(name, expected, "{is_veto}");
        }
    }

    #[tokio::test]
    async fn malformed_or_rejected_credential_is_not_that_of_the_administrator_of_an_open_server() {
        let name = "base64url.bearer.authorization.k8s.io";
        // The tokens in subprotocols are `unknown`, `x1` and `known`.
        let [unknown, rejected, known] = ["dW5rbm93bg", "eDE", "a25vd24"].map(|token| format!("{name}.{token}, p"));
        let malformed = format!("{name}.!, p");
        for (authorization, protocols, expected) in [
            (&b""[..], "p", Ok("admin")),
            (b"Bearer unknown", "p", Ok("admin")),
            (b"", &unknown, Ok("admin")),
            (b"Bearer unknown", &unknown, Ok("admin")),
            (b"Bearer unknown", &known, Ok("known")),
            (b"Bearer x1", &known, Ok("known")),
            (b"Bearer \xff", &known, Ok("known")),
            (b"Bearer known", &malformed, Ok("known")),
            (b"Bearer \xff", "p", Err(401)),
            (b"Bearer \xff", &unknown, Err(401)),
            (b"Bearer x1", "p", Err(401)),
            (b"Bearer x1", &unknown, Err(401)),
            (b"Bearer unknown", &rejected, Err(401)),
            (b"Bearer unknown", &malformed, Err(401)),
            (b"", &malformed, Err(401)),
        ] {
            let chain = AuthenticatorChain::new().with(Known { audiences: &[], is_veto: false });
            let chain = chain.with(listwatch_access::EveryoneIsAdmin::new());
            let request = Request::get("/api/v1/pods?watch=true")
                .header("connection", "upgrade")
                .header("upgrade", "websocket")
                .header("authorization", http::HeaderValue::from_bytes(authorization).unwrap())
                .header("sec-websocket-protocol", protocols);
            let (parts, ()) = request.body(()).unwrap().into_parts();
            let info = RequestInfo::new(&parts.method, parts.uri.path(), &Query::default());
            let sender =
                authenticate(&chain, &[], (AnonymousAuth::Enabled, &[]), &parts, &info, 0, &Default::default()).await;
            let name = sender.as_ref().map(|sender| sender.user.username.as_str()).map_err(|status| status.code);
            assert_eq!(name, expected, "{} {protocols}", authorization.escape_ascii());
        }
    }

    #[tokio::test]
    async fn health_and_version_accept_anonymous_requests_without_impersonation() {
        for path in ["/version", "/healthz", "/livez/ping", "/readyz/poststarthook/x", "/readyz/"] {
            assert_eq!(sender(&format!("GET {path}"), &[]).await, Ok("system:anonymous".to_owned()), "{path}");
            for name in ["impersonate-user", "impersonate-group"] {
                assert_eq!(sender(&format!("GET {path}"), &[(name, "x")]).await, Err(401), "{path} {name}");
            }
            assert_eq!(sender(&format!("POST {path}"), &[]).await, Err(401), "{path}");
        }
        for path in ["/", "/metrics", "/version/x", "/api", "/healthz1", "/api/v1/healthz"] {
            assert_eq!(sender(&format!("GET {path}"), &[]).await, Err(401), "{path}");
        }
    }
}
