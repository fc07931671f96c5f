//! [`forwarded_headers`]: returns the headers of a request that are forwarded to another server. Headers with
//! credentials, identities and impersonation are not forwarded.
//!
//! Upstream removes them while it authenticates and impersonates (`apiserver/pkg/endpoints/filters/authentication.go`,
//! `…/filters/impersonation/impersonation.go`, `…/authentication/request/websocket/protocol.go`).

use http::header::SEC_WEBSOCKET_PROTOCOL;
use http::{HeaderMap, HeaderName, HeaderValue};
use listwatch_access::FrontProxyAuthenticator;
use listwatch_aggregator::remove_identity_headers;
use listwatch_controllers::bootstrap::RequestHeader;
use listwatch_wire::websocket;

use crate::request::websocket::protocols;

/// Returns the headers without bearer tokens (in a header or a WebSocket subprotocol), front proxy headers and
/// impersonation headers. `published` contains the headers from which extension servers read the user.
pub(crate) fn forwarded_headers(
    sent: &HeaderMap,
    front_proxy: Option<&FrontProxyAuthenticator>,
    published: Option<&RequestHeader>,
) -> HeaderMap {
    let mut headers = sent.clone();
    remove_identity_headers(&mut headers);
    if let Some(front_proxy) = front_proxy {
        front_proxy.remove_headers(&mut headers);
    }
    let is_kept_back = |name: &&HeaderName| {
        // Some servers read `_` as `-` in header names.
        let name = name.as_str().replace('_', "-");
        name.starts_with("impersonate-") || published.is_some_and(|published| names_user(published, &name))
    };
    let kept_back: Vec<HeaderName> = headers.keys().filter(is_kept_back).cloned().collect();
    for name in kept_back {
        headers.remove(name);
    }
    match websocket::bearer_token(&protocols(sent)) {
        Ok(None) => {}
        Ok(Some((_, others))) => match HeaderValue::try_from(others) {
            Ok(others) => drop(headers.insert(SEC_WEBSOCKET_PROTOCOL, others)),
            Err(_) => drop(headers.remove(SEC_WEBSOCKET_PROTOCOL)),
        },
        // Some subprotocol may be half a token.
        Err(_) => drop(headers.remove(SEC_WEBSOCKET_PROTOCOL)),
    }
    headers
}

/// Whether an extension server reads user information from the header `name`. `name` is in lower case and without `_`.
fn names_user(published: &RequestHeader, name: &str) -> bool {
    let RequestHeader { username_headers, uid_headers, group_headers, extra_header_prefixes, .. } = published;
    let normal = |text: &String| text.to_ascii_lowercase().replace('_', "-");
    [username_headers, uid_headers, group_headers].into_iter().flatten().any(|found| normal(found) == name)
        || extra_header_prefixes.iter().any(|prefix| name.starts_with(&normal(prefix)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_that_extension_servers_trust_are_not_forwarded() {
        let published = RequestHeader {
            username_headers: vec!["X-Forwarded-User".to_owned()],
            uid_headers: vec!["My_Uid".to_owned()],
            group_headers: vec!["Groups".to_owned()],
            extra_header_prefixes: vec!["Scope-".to_owned()],
            ..RequestHeader::default()
        };
        let names =
            ["x-forwarded-user", "x_forwarded_user", "my-uid", "my_uid", "groups", "scope-a", "scope_a", "scoped"];
        let sent =
            HeaderMap::from_iter(names.map(|name| (HeaderName::from_static(name), HeaderValue::from_static("x"))));
        let forwarded = forwarded_headers(&sent, None, Some(&published));
        assert_eq!(forwarded.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["scoped"]);
    }

    #[test]
    fn credentials_and_identities_are_not_forwarded() {
        let token = "base64url.bearer.authorization.k8s.io.c2VjcmV0";
        let check = |lines: &[(&'static str, &str)], expected: &[(&'static str, &str)]| {
            let map = |lines: &[(&'static str, &str)]| {
                let lines = lines.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
                HeaderMap::from_iter(lines)
            };
            assert_eq!(forwarded_headers(&map(lines), None, None), map(expected), "{lines:?}");
        };
        let kept =
            [("accept", "*/*"), ("cookie", "a=b"), ("upgrade", "SPDY/3.1"), ("sec-websocket-protocol", "v5, v4")];
        check(&kept, &kept);
        check(
            &[
                ("authorization", "Bearer secret"),
                ("impersonate-user", "bob"),
                ("impersonate-extra-scopes", "x"),
                ("x-remote-user", "bob"),
                ("x-remote-extra-a", "b"),
            ],
            &[],
        );
        let tokens: &str = &format!("{token}, v5.channel.k8s.io");
        check(&[("sec-websocket-protocol", tokens)], &[("sec-websocket-protocol", "v5.channel.k8s.io")]);
        for malformed in [token, &format!("{token}, {token}, v5"), "base64url.bearer.authorization.k8s.io.!, v5"] {
            check(&[("sec-websocket-protocol", malformed)], &[]);
        }
    }
}
