//! The user that requests impersonate: [`Impersonation`].
//!
//! The fields are those of a kubeconfig's user (`as`, `as-uid`, `as-groups`, `as-user-extra`), the headers those of
//! client-go's `impersonatingRoundTripper` (transport/round_trippers.go).

use std::collections::BTreeMap;

use http::header::{HeaderMap, HeaderName, HeaderValue};

use super::ConfigError;

/// A user whom requests impersonate. The server checks whether the authenticated user may do that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Impersonation {
    /// The name of the user: `Impersonate-User`. Required.
    pub user: String,
    /// The user's UID: `Impersonate-Uid`; empty for none.
    pub uid: String,
    /// The user's groups: one `Impersonate-Group` for each. The server adds `system:authenticated`.
    pub groups: Vec<String>,
    /// Further attributes of the user: one `Impersonate-Extra-KEY` for each value. Characters that a header name
    /// cannot have are percent-encoded in the key. The server reads keys in lower case.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl Impersonation {
    /// An impersonation of a user without UID, groups and extra attributes.
    pub fn of_user(name: impl Into<String>) -> Self {
        Impersonation { user: name.into(), ..Impersonation::default() }
    }

    /// The headers of every request.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] when there is no user name, or a value cannot be in a header.
    pub fn headers(&self) -> Result<HeaderMap, ConfigError> {
        if self.user.is_empty() {
            let why = "requests a uid, groups or user-extra without impersonating a user";
            return Err(ConfigError::invalid("the impersonation", why));
        }
        let mut headers = HeaderMap::new();
        let mut add = |name: HeaderName, value: &str| {
            // Like Go's, a value may have bytes of UTF-8.
            let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|error| {
                let what = format!("the value {value:?} of {name}");
                ConfigError::invalid(what, "holds characters that a header cannot carry").caused_by(error)
            })?;
            headers.append(name, value);
            Ok(())
        };
        add(HeaderName::from_static("impersonate-user"), &self.user)?;
        if !self.uid.is_empty() {
            add(HeaderName::from_static("impersonate-uid"), &self.uid)?;
        }
        for group in &self.groups {
            add(HeaderName::from_static("impersonate-group"), group)?;
        }
        for (key, values) in &self.extra {
            let name = format!("impersonate-extra-{}", escape_header_key(key));
            let name = HeaderName::try_from(name).map_err(|error| {
                ConfigError::invalid(format!("the key {key:?} of the impersonation's extra"), &error).caused_by(error)
            })?;
            for value in values {
                add(name.clone(), value)?;
            }
        }
        Ok(headers)
    }
}

/// Percent-encodes each byte that is no token character (RFC 9110, section 5.6.2), and the percent sign, as client-go's
/// `headerKeyEscape`. The server decodes the key.
fn escape_header_key(key: &str) -> String {
    let mut escaped = String::with_capacity(key.len());
    for byte in key.bytes() {
        if byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impersonation_becomes_headers_with_escaped_extra_keys() {
        fn check(impersonation: &Impersonation, expected: &[(&str, &str)]) {
            let headers = impersonation.headers().unwrap();
            let found: Vec<_> = headers
                .iter()
                .map(|(name, value)| (name.as_str(), std::str::from_utf8(value.as_bytes()).unwrap()))
                .collect();
            assert_eq!(found, expected, "{impersonation:?}");
        }
        let jane = || Impersonation::of_user("jane");
        check(&jane(), &[("impersonate-user", "jane")]);
        check(&Impersonation::of_user("zoë"), &[("impersonate-user", "zoë")]);
        check(
            &Impersonation { uid: "7".to_owned(), groups: vec!["a".to_owned(), "b".to_owned()], ..jane() },
            &[
                ("impersonate-user", "jane"),
                ("impersonate-uid", "7"),
                ("impersonate-group", "a"),
                ("impersonate-group", "b"),
            ],
        );
        let extra = |key: &str, values: &[&str]| Impersonation {
            extra: [(key.to_owned(), values.iter().map(|value| (*value).to_owned()).collect())].into(),
            ..jane()
        };
        check(&extra("scopes", &[]), &[("impersonate-user", "jane")]);
        check(
            &extra("scopes", &["x", "y"]),
            &[("impersonate-user", "jane"), ("impersonate-extra-scopes", "x"), ("impersonate-extra-scopes", "y")],
        );
        // A header name of this crate is in lower case, and so are the digits of its escapes.
        for (key, expected) in [
            ("example.org/Role", "impersonate-extra-example.org%2frole"),
            ("a%2f", "impersonate-extra-a%252f"),
            ("a b:c", "impersonate-extra-a%20b%3ac"),
            ("ü", "impersonate-extra-%c3%bc"),
            ("!#$&'*+-.^_`|~", "impersonate-extra-!#$&'*+-.^_`|~"),
        ] {
            check(&extra(key, &["v"]), &[("impersonate-user", "jane"), (expected, "v")]);
        }
    }

    #[test]
    fn header_keys_are_escaped_with_upper_case_digits() {
        assert_eq!(escape_header_key("example.org/Rolle:ü"), "example.org%2FRolle%3A%C3%BC");
    }

    #[test]
    fn impersonation_needs_a_user_and_values_for_headers() {
        let error = |impersonation: Impersonation| impersonation.headers().unwrap_err().to_string();
        assert_eq!(
            error(Impersonation { groups: vec!["a".to_owned()], ..Impersonation::default() }),
            "the impersonation: requests a uid, groups or user-extra without impersonating a user"
        );
        assert_eq!(
            error(Impersonation::of_user("a\nb")),
            "the value \"a\\nb\" of impersonate-user: holds characters that a header cannot carry"
        );
    }
}
