//! Impersonation: `Impersonate-User` and the related headers; `kubectl --as`
//! (`apiserver/pkg/endpoints/filters/impersonation`).
//!
//! [`Impersonation::from_headers`] reads the headers. [`Impersonation::authorize`] asks for the permissions that the sender
//! needs, and returns the user for whom the request is then processed.
//!
//! Impersonation fails closed. An invalid header is an error: if it were skipped, the request would be processed for
//! its sender.

use std::collections::BTreeMap;

use http::HeaderMap;
use listwatch_meta::{UserInfo, go};
use percent_encoding::percent_decode_str;

use crate::service_account::service_account_groups;

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";

/// The API group of the resources `uids` and `userextras`, and of all parts in the constrained modes.
pub(crate) const AUTHENTICATION_GROUP: &str = "authentication.k8s.io";

/// The user that a request impersonates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Impersonation {
    user: UserInfo,
    /// The number of groups in the headers. The server added the other groups.
    groups_in_headers: usize,
}

/// Headers name groups, a uid or extra values but no user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserNameMissing {
    user: UserInfo,
}

impl std::fmt::Display for UserNameMissing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "requested {} without impersonating a user name", print(&self.user))
    }
}

impl std::error::Error for UserNameMissing {}

impl Impersonation {
    /// True if a request has an impersonation header.
    fn is_requested(headers: &HeaderMap) -> bool {
        headers.keys().any(|name| {
            let name = name.as_str();
            name.starts_with(EXTRA) || matches!(name, USER | GROUP | UID)
        })
    }

    /// The user that a request impersonates; `None` without impersonation headers.
    ///
    /// # Errors
    /// [`UserNameMissing`] if headers name groups, a uid or extra values but no user. An empty user name is treated as
    /// missing, even if another value follows. kube-apiserver reads only the first name, and would process this request
    /// for its sender.
    pub fn from_headers(headers: &HeaderMap) -> Result<Option<Impersonation>, UserNameMissing> {
        if !Impersonation::is_requested(headers) {
            return Ok(None);
        }
        let all = |name: &str| headers.get_all(name).iter().map(|value| go::text(value.as_bytes())).collect::<Vec<_>>();
        let usernames = all(USER);
        let mut user = UserInfo {
            username: usernames.first().cloned().unwrap_or_default(),
            uid: all(UID).into_iter().next().unwrap_or_default(),
            groups: all(GROUP),
            extra: BTreeMap::new(),
        };
        for name in headers.keys() {
            if let Some(key) = name.as_str().strip_prefix(EXTRA) {
                user.extra.entry(extra_key(key)).or_default().extend(all(name.as_str()));
            }
        }
        if user.username.is_empty() {
            let parts = !user.groups.is_empty() || !user.uid.is_empty() || !user.extra.is_empty();
            let later_name = usernames.iter().any(|name| !name.is_empty());
            return if parts || later_name { Err(UserNameMissing { user }) } else { Ok(None) };
        }
        let groups_in_headers = user.groups.len();
        if user.groups.is_empty()
            && let Some((namespace, _)) = user.service_account()
        {
            user.groups = service_account_groups(namespace);
        }
        let (authenticated, unauthenticated) = ("system:authenticated", "system:unauthenticated");
        let has = |wanted: &str| user.groups.iter().any(|group| group == wanted);
        let added = match user.username.as_str() {
            "system:anonymous" => (!has(unauthenticated)).then_some(unauthenticated),
            _ => (!has(authenticated) && !has(unauthenticated)).then_some(authenticated),
        };
        user.groups.extend(added.map(str::to_owned));
        Ok(Some(Impersonation { user, groups_in_headers }))
    }

    /// The impersonated user.
    pub fn user(&self) -> &UserInfo {
        &self.user
    }

    /// Returns the impersonated user.
    pub fn into_user(self) -> UserInfo {
        self.user
    }

    /// The groups that the headers name, without those that the server adds.
    pub(crate) fn requested_groups(&self) -> &[String] {
        &self.user.groups[..self.groups_in_headers]
    }

    /// Whether the headers name nothing but the user.
    pub(crate) fn has_only_a_name(&self) -> bool {
        self.groups_in_headers == 0 && self.user.uid.is_empty() && self.user.extra.is_empty()
    }
}

/// The key of an extra value, from the lower-case suffix of its header's name. A key with an
/// invalid escape is not decoded (`url.PathUnescape`).
fn extra_key(encoded: &str) -> String {
    let mut escapes = encoded.split('%').skip(1);
    let valid = escapes.all(|rest| rest.len() >= 2 && rest.as_bytes()[..2].iter().all(u8::is_ascii_hexdigit));
    match valid {
        true => go::text(&percent_decode_str(encoded).collect::<Vec<_>>()),
        false => encoded.to_owned(),
    }
}

/// Formats a user like `%#v` of `user.DefaultInfo`.
fn print(user: &UserInfo) -> String {
    let list = |values: &[String]| values.iter().map(|value| go::quote(value)).collect::<Vec<_>>().join(", ");
    let groups = match user.groups.as_slice() {
        [] => "[]string(nil)".to_owned(),
        groups => format!("[]string{{{}}}", list(groups)),
    };
    let extra: Vec<String> =
        user.extra.iter().map(|(key, values)| format!("{}:[]string{{{}}}", go::quote(key), list(values))).collect();
    let extra = match extra.as_slice() {
        [] => "map[string][]string(nil)".to_owned(),
        extra => format!("map[string][]string{{{}}}", extra.join(", ")),
    };
    let (name, uid) = (go::quote(&user.username), go::quote(&user.uid));
    format!("&user.DefaultInfo{{Name:{name}, UID:{uid}, Groups:{groups}, Extra:{extra}}}")
}

#[cfg(test)]
mod tests {
    use listwatch_json::{Value, json};

    use super::*;

    fn headers(pairs: &[(&str, &[u8])]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let name = http::HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.append(name, http::HeaderValue::from_bytes(value).unwrap());
        }
        headers
    }

    fn check(pairs: &[(&str, &[u8])], expected: Result<Option<Value>, &str>) {
        let found = Impersonation::from_headers(&headers(pairs));
        let found = found.map(|user| user.map(|user| json!(user.user))).map_err(|error| error.to_string());
        assert_eq!(found, expected.map_err(str::to_owned), "{pairs:?}");
    }

    fn named(username: &str, groups: &[&str]) -> Result<Option<Value>, &'static str> {
        Ok(Some(json!({"username": username, "groups": groups})))
    }

    #[test]
    fn impersonated_user_gets_requested_and_implied_groups() {
        check(&[], Ok(None));
        check(&[("Impersonate-User", b"bob")], named("bob", &["system:authenticated"]));
        check(
            &[
                ("Impersonate-User", b"bob"),
                ("Impersonate-Group", b"dev"),
                ("Impersonate-Group", b"ops"),
                ("Impersonate-Uid", b"7"),
                ("Impersonate-Extra-Example.com%2fScope", b"a"),
                ("Impersonate-Extra-Example.com%2fScope", b"b"),
            ],
            Ok(Some(json!({"username": "bob", "uid": "7", "groups": ["dev", "ops", "system:authenticated"],
                "extra": {"example.com/scope": ["a", "b"]}}))),
        );
        let account = "system:serviceaccount:n:a";
        let groups = ["system:serviceaccounts", "system:serviceaccounts:n", "system:authenticated"];
        check(&[("Impersonate-User", account.as_bytes())], named(account, &groups));
        check(
            &[("Impersonate-User", account.as_bytes()), ("Impersonate-Group", b"dev")],
            named(account, &["dev", "system:authenticated"]),
        );
        check(&[("Impersonate-User", b"system:anonymous")], named("system:anonymous", &["system:unauthenticated"]));
        for malformed in ["", "n", "n:", ":a", "n:a:b", "N:a", "n:A", "n.m:a", "n:b\u{f8}"] {
            let name = format!("system:serviceaccount:{malformed}");
            check(&[("Impersonate-User", name.as_bytes())], named(&name, &["system:authenticated"]));
        }
    }

    #[test]
    fn impersonation_header_with_invalid_utf8_is_decoded_like_go() {
        check(&[("Impersonate-User", "b\u{f8}b".as_bytes())], named("b\u{f8}b", &["system:authenticated"]));
        // Latin-1 is not UTF-8: invalid bytes are replaced, as by Go's encoder.
        check(
            &[("Impersonate-User", b"b\xf8\xe2\x82b")],
            named("b\u{fffd}\u{fffd}\u{fffd}b", &["system:authenticated"]),
        );
        check(
            &[("Impersonate-User", b"bob"), ("Impersonate-Group", "gr\u{f8}n".as_bytes())],
            named("bob", &["gr\u{f8}n", "system:authenticated"]),
        );
        let extra = |name: &str, key: &str| {
            let user = json!({"username": "bob", "groups": ["system:authenticated"], "extra": {key: ["\u{f8}"]}});
            check(&[("Impersonate-User", b"bob"), (name, "\u{f8}".as_bytes())], Ok(Some(user)));
        };
        extra("Impersonate-Extra-", "");
        extra("Impersonate-Extra-A%2Fb%C3%B8", "a/b\u{f8}");
        extra("Impersonate-Extra-%41", "A");
        extra("Impersonate-Extra-a%ff", "a\u{fffd}");
        for invalid in ["a%2fb%", "a%2fb%4", "a%2fb%zz", "%%41"] {
            extra(&format!("Impersonate-Extra-{invalid}"), invalid);
        }
    }

    #[test]
    fn impersonation_without_a_user_name_is_rejected() {
        let rejected = |headers: &[(&str, &[u8])], user: &str| {
            let text = format!("requested &user.DefaultInfo{{{user}}} without impersonating a user name");
            check(headers, Err(text.as_str()));
        };
        let none = ("[]string(nil)", "map[string][]string(nil)");
        let user =
            |uid: &str, groups: &str, extra: &str| format!("Name:\"\", UID:\"{uid}\", Groups:{groups}, Extra:{extra}");
        rejected(&[("Impersonate-Group", b"dev")], &user("", "[]string{\"dev\"}", none.1));
        rejected(&[("Impersonate-Group", "gr\u{f8}n".as_bytes())], &user("", "[]string{\"gr\u{f8}n\"}", none.1));
        rejected(&[("Impersonate-Group", b"")], &user("", "[]string{\"\"}", none.1));
        rejected(&[("Impersonate-Uid", b"7")], &user("7", none.0, none.1));
        rejected(&[("Impersonate-Uid", "\u{f8}".as_bytes())], &user("\u{f8}", none.0, none.1));
        rejected(&[("Impersonate-Extra-A", b"b")], &user("", none.0, "map[string][]string{\"a\":[]string{\"b\"}}"));
        rejected(
            &[
                ("Impersonate-User", b""),
                ("Impersonate-Uid", b"7"),
                ("Impersonate-Group", b"a"),
                ("Impersonate-Group", b"b"),
            ],
            &user("7", "[]string{\"a\", \"b\"}", none.1),
        );
        rejected(&[("Impersonate-User", b""), ("Impersonate-User", b"bob")], &user("", none.0, none.1));
        // Headers with only empty values do not impersonate, as in kube-apiserver.
        check(&[("Impersonate-User", b"")], Ok(None));
        check(&[("Impersonate-Uid", b"")], Ok(None));
        // The first of several names is used.
        check(&[("Impersonate-User", b"bob"), ("Impersonate-User", b"admin")], named("bob", &["system:authenticated"]));
    }
}
