//! Who may ask: [`Auth`], bearer tokens, and what answers without one.
//!
//! Besides the administrator there are service accounts, by the tokens that this server issued to them
//! ([`crate::tokens`]). Authorization is all or nothing: whoever is let in may do everything, and whoever
//! is named by [`crate::impersonation`] everything or nothing. Finer rules belong to an authorizer, which
//! this server does not have.

use http::HeaderMap;
use http::header::AUTHORIZATION;
pub(crate) use listwatch_meta::UserInfo as User;
use listwatch_meta::user::SYSTEM_MASTERS;

/// How requests prove who sends them.
#[derive(Clone, Default)]
pub enum Auth {
    /// Every request is the administrator's, but for those with the token of a service account. For
    /// servers inside a test process.
    #[default]
    Open,
    /// Requests need `Authorization: Bearer <token>`, this one or a service account's; without it only
    /// health and version answer, the rest is 401.
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

/// Whether the server knows this user. Known users may do everything: members of `system:masters`, the
/// administrator by name, and service accounts.
pub(crate) fn may_do_everything(user: &User) -> bool {
    user.groups.iter().any(|group| group == SYSTEM_MASTERS)
        || user.username == User::admin().username
        || user.service_account().is_some()
}

/// The groups of the service accounts of a namespace.
pub(crate) fn service_account_groups(namespace: &str) -> Vec<String> {
    vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")]
}

/// The bearer token of a request that has exactly one.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let (scheme, token) = value.to_str().ok()?.trim().split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

impl Auth {
    /// Is this the credential of the administrator?
    pub(crate) fn allows(&self, token: Option<&str>) -> bool {
        match self {
            Auth::Open => true,
            Auth::Token(expected) => token.is_some_and(|token| same_secret(token, expected)),
        }
    }
}

/// Compares in a time that depends on the length only, so that a guess learns nothing from it.
pub(crate) fn same_secret(given: &str, expected: &str) -> bool {
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
            auth.allows(bearer(&headers))
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
        assert!(!auth.allows(bearer(&twice)));
    }
}
