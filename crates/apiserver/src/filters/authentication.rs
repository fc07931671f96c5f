//! Authentication: finds the user who sent a request (`filters/authentication.go`).

use std::sync::{Arc, LazyLock};

use http::HeaderMap;
use http::header::AUTHORIZATION;
use http::request::Parts;
use listwatch_access::{Authentication, AuthenticationRequest, AuthenticatorChain, Impersonation, PeerCertificates};
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
/// `anonymous_paths` is not empty, the path must also be in that list.
///
/// # Errors
/// 401 for an invalid credential, or for a missing credential if anonymous requests are not allowed.
pub(crate) async fn authenticate(
    authenticators: &AuthenticatorChain,
    (anonymous_auth, anonymous_paths): (AnonymousAuth, &[String]),
    parts: &Parts,
    info: &RequestInfo<'_>,
    now: i64,
) -> Result<Sender, Status> {
    if let Some(Identity(user)) = parts.extensions.get() {
        return Ok(Sender { user: Arc::clone(user), is_authenticated: true });
    }
    let headers = &parts.headers;
    let of_websocket =
        if websocket::is_upgrade_request(parts) { websocket::bearer_token(headers).ok().flatten() } else { None };
    let mut tokens = [bearer(headers), of_websocket.as_deref()].into_iter().flatten();
    let certificates = parts.extensions.get::<Arc<PeerCertificates>>().map(|certificates| &**certificates);
    // Authenticators also run for a request without a token, because other headers may contain credentials.
    let mut token = tokens.next();
    let answer = loop {
        let request = AuthenticationRequest::of_token(token, now).with_headers(headers).with_certificates(certificates);
        let answer = authenticators.authenticate(&request).await;
        token = match (&answer, tokens.next()) {
            (Authentication::NotRecognized, Some(next)) => Some(next),
            _ => break answer,
        };
    };
    match answer {
        Authentication::Authenticated { user, .. } => Ok(Sender { user, is_authenticated: true }),
        Authentication::Rejected(reason) => {
            tracing::debug!(reason, "rejected the credential of a request");
            Err(Status::unauthorized())
        }
        Authentication::NotRecognized => {
            let has_credential = bearer(headers).is_some_and(|token| !token.is_empty())
                || of_websocket.is_some()
                || certificates.is_some();
            let is_open = match anonymous_auth {
                AnonymousAuth::Enabled => {
                    anonymous_paths.is_empty() || anonymous_paths.iter().any(|path| *path == info.path)
                }
                AnonymousAuth::HealthOnly => {
                    info.is_health_or_version() && matches!(Impersonation::from_headers(headers), Ok(None))
                }
                AnonymousAuth::Disabled => false,
            };
            match is_open && !has_credential {
                true => Ok(Sender { user: Arc::clone(&ANONYMOUS), is_authenticated: false }),
                false => Err(Status::unauthorized()),
            }
        }
    }
}

static ANONYMOUS: LazyLock<Arc<UserInfo>> = LazyLock::new(|| {
    let groups = vec!["system:unauthenticated".to_owned()];
    Arc::new(UserInfo { username: "system:anonymous".to_owned(), groups, ..UserInfo::default() })
});

/// Returns the bearer token of a request that has exactly one `Authorization` header.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let (scheme, token) = value.to_str().ok()?.trim().split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
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
        let sender =
            authenticate(&chain, (anonymous_auth, &[]), &parts, &info, 0).await.map_err(|status| status.code)?;
        assert_eq!(sender.is_authenticated, sender.user.username != "system:anonymous");
        Ok(sender.user.username.clone())
    }

    #[tokio::test]
    async fn only_one_valid_bearer_token_authenticates() {
        let pods = async |values: &[&str]| {
            let headers: Vec<(&str, &str)> = values.iter().map(|value| ("authorization", *value)).collect();
            sender("GET /api/v1/pods", &headers).await.is_ok()
        };
        assert!(pods(&["Bearer s3cret"]).await);
        assert!(pods(&["bearer s3cret"]).await);
        for rejected in [
            &[][..],
            &[""],
            &["Bearer"],
            &["Bearer "],
            &["Bearer s3cre"],
            &["Bearer s3crett"],
            &["Basic s3cret"],
            &["s3cret"],
            &["Bearer s3cret", "Bearer s3cret"],
        ] {
            assert!(!pods(rejected).await, "{rejected:?}");
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
            let sender = authenticate(&AuthenticatorChain::new(), anonymous, &parts, &info, 0).await;
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
            let sender = authenticate(&chain, (AnonymousAuth::Enabled, &[]), &parts, &info, 0).await;
            let name = sender.as_ref().map(|sender| sender.user.username.as_str()).map_err(|status| status.code);
            assert_eq!(name, expected, "{key:?}");
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
