//! Who may ask: [`Auth`], bearer tokens, and what answers without one.
//!
//! Authorization is all or nothing: whoever holds the admin token may do everything. Finer rules
//! belong to an authorizer, which this server does not have.

use http::HeaderMap;
use http::header::AUTHORIZATION;

/// How requests prove who sends them.
#[derive(Clone, Default)]
pub enum Auth {
    /// Every request is the administrator's. For servers inside a test process.
    #[default]
    Open,
    /// Requests need `Authorization: Bearer <token>`; without it only health and version answer,
    /// the rest is 401.
    Token(String),
}

impl std::fmt::Debug for Auth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The token itself never reaches a log.
        f.write_str(match self {
            Auth::Open => "Open",
            Auth::Token(_) => "Token",
        })
    }
}

impl Auth {
    /// Does this request carry a credential that is known here?
    pub(crate) fn allows(&self, headers: &HeaderMap) -> bool {
        let Auth::Token(expected) = self else {
            return true;
        };
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let (Some(value), None) = (values.next(), values.next()) else {
            return false;
        };
        let Some((scheme, token)) = value.to_str().ok().and_then(|text| text.trim().split_once(' ')) else {
            return false;
        };
        scheme.eq_ignore_ascii_case("bearer") && same_secret(token.trim(), expected)
    }

    /// Is this bearer token known here?
    pub(crate) fn allows_token(&self, token: &str) -> bool {
        match self {
            Auth::Open => true,
            Auth::Token(expected) => same_secret(token, expected),
        }
    }
}

/// Compares in a time that depends on the length only, so that a guess learns nothing from it.
fn same_secret(given: &str, expected: &str) -> bool {
    let difference = given.bytes().zip(expected.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b));
    given.len() == expected.len() && difference == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_opens() {
        let auth = Auth::Token("s3cret".to_owned());
        let allowed = |value: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(value) = value {
                headers.insert(AUTHORIZATION, value.parse().unwrap());
            }
            auth.allows(&headers)
        };
        assert!(allowed(Some("Bearer s3cret")));
        assert!(allowed(Some("bearer s3cret")));
        for refused in [
            None,
            Some(""),
            Some("Bearer"),
            Some("Bearer "),
            Some("Bearer s3cre"),
            Some("Bearer s3crett"),
            Some("Basic s3cret"),
            Some("s3cret"),
        ] {
            assert!(!allowed(refused), "{refused:?}");
        }
        let mut twice = HeaderMap::new();
        twice.append(AUTHORIZATION, "Bearer s3cret".parse().unwrap());
        twice.append(AUTHORIZATION, "Bearer s3cret".parse().unwrap());
        assert!(!auth.allows(&twice));
    }
}
