//! The identity headers for an extension server: `X-Remote-User`, `-Uid`, `-Group` and `-Extra-…`.
//!
//! Rules: `client-go/transport/round_trippers.go:SetAuthProxyHeaders`,
//! `apiserver/pkg/endpoints/filters/authentication.go`.

use std::fmt::Write as _;

use http::header::{AUTHORIZATION, InvalidHeaderName, InvalidHeaderValue};
use http::{HeaderMap, HeaderName, HeaderValue};
use listwatch_meta::UserInfo;

const USER: HeaderName = HeaderName::from_static("x-remote-user");
const UID: HeaderName = HeaderName::from_static("x-remote-uid");
const GROUP: HeaderName = HeaderName::from_static("x-remote-group");
const EXTRA: &str = "x-remote-extra-";

/// The user cannot be encoded in headers, for example because the name contains a line break. The request must not be
/// sent: without the header it would run as another user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid identity: {0}")]
pub struct InvalidIdentity(String);

impl From<InvalidHeaderValue> for InvalidIdentity {
    fn from(error: InvalidHeaderValue) -> Self {
        InvalidIdentity(error.to_string())
    }
}

impl From<InvalidHeaderName> for InvalidIdentity {
    fn from(error: InvalidHeaderName) -> Self {
        InvalidIdentity(error.to_string())
    }
}

/// Removes the credentials and all identity headers that a client sent, in any letter case and with `_` for `-`.
pub fn remove_identity_headers(headers: &mut HeaderMap) {
    let sent: Vec<HeaderName> = headers.keys().filter(|name| is_identity(name.as_str())).cloned().collect();
    for name in sent {
        headers.remove(name);
    }
    headers.remove(AUTHORIZATION);
}

/// Whether a header name belongs to an identity header. Some servers read `_` as `-` in header names.
fn is_identity(name: &str) -> bool {
    let name = name.replace('_', "-");
    name.starts_with("x-remote-")
}

/// The identity headers of a user. The keys of extra values are percent-encoded where header names do not allow a
/// character. The proxy must set them after it has removed the headers that the client's `Connection` header names
/// ([`Destination::headers`](listwatch_proxy::Destination)).
///
/// # Errors
/// [`InvalidIdentity`] for a user that cannot be encoded in headers.
pub fn identity_headers(user: &UserInfo) -> Result<HeaderMap, InvalidIdentity> {
    let mut identity = HeaderMap::new();
    identity.insert(USER, HeaderValue::from_bytes(user.username.as_bytes())?);
    if !user.uid.is_empty() {
        identity.insert(UID, HeaderValue::from_bytes(user.uid.as_bytes())?);
    }
    for group in &user.groups {
        identity.append(GROUP, HeaderValue::from_bytes(group.as_bytes())?);
    }
    for (key, values) in &user.extra {
        let name: HeaderName = format!("{EXTRA}{}", escape(key)).parse()?;
        for value in values {
            identity.append(name.clone(), HeaderValue::from_bytes(value.as_bytes())?);
        }
    }
    Ok(identity)
}

/// Percent-encodes the percent sign and all characters that are not token characters (`headerKeyEscape`).
fn escape(key: &str) -> String {
    let mut escaped = String::with_capacity(key.len());
    for byte in key.bytes() {
        match byte {
            b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => escaped.push(char::from(byte)),
            b'!' | b'#' | b'$' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~' => {
                escaped.push(char::from(byte));
            }
            _ => {
                // Writing to a string cannot fail.
                let _ = write!(escaped, "%{byte:02X}");
            }
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user() -> UserInfo {
        UserInfo {
            username: "jürgen".to_owned(),
            uid: "u-1".to_owned(),
            groups: vec!["dev".to_owned(), "system:authenticated".to_owned()],
            extra: [("example.com/Scope%".to_owned(), vec!["a".to_owned(), "b".to_owned()])].into(),
        }
    }

    #[test]
    fn identity_headers_of_the_client_are_removed() {
        let mut headers = HeaderMap::new();
        for name in
            ["x-remote-user", "x-remote-group", "x-remote-extra-role", "x_remote_user", "authorization", "accept"]
        {
            headers.insert(name, HeaderValue::from_static("forged"));
        }
        remove_identity_headers(&mut headers);
        assert_eq!(headers, HeaderMap::from_iter([(http::header::ACCEPT, HeaderValue::from_static("forged"))]));
    }

    #[test]
    fn identity_headers_have_name_uid_groups_and_extra_of_the_user() {
        let headers = identity_headers(&user()).unwrap();
        let all = |name: &str| headers.get_all(name).iter().map(|value| value.as_bytes().to_vec()).collect::<Vec<_>>();
        assert_eq!(all("x-remote-user"), ["jürgen".as_bytes().to_vec()]);
        assert_eq!(all("x-remote-uid"), [b"u-1".to_vec()]);
        assert_eq!(all("x-remote-group"), [b"dev".to_vec(), b"system:authenticated".to_vec()]);
        assert_eq!(all("x-remote-extra-example.com%2fscope%25"), [b"a".to_vec(), b"b".to_vec()]);
        assert_eq!(headers.len(), 6, "{headers:?}");
    }

    #[test]
    fn unencodable_identity_is_rejected() {
        for broken in ["a\nb", "a\0"] {
            let user = UserInfo { groups: vec![broken.to_owned()], ..user() };
            assert!(identity_headers(&user).is_err(), "{broken:?}");
        }
    }
}
