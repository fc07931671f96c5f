//! Bootstrap tokens: the first credential of a node that joins a cluster. A Secret in `kube-system` holds each token
//! (`plugin/pkg/auth/authenticator/token/bootstrap`, `cluster-bootstrap/util/secrets`).
//!
//! A token with an invalid format or Secret is not recognized, as in kube-apiserver.

use std::collections::BTreeMap;

use listwatch_meta::UserInfo;
use subtle::ConstantTimeEq as _;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::authenticator::{Authentication, AuthenticationRequest, Authenticator, add_authenticated_group};
use crate::maybe_future::MaybeFuture;

/// The length of the public part of a token, in bytes.
const ID_BYTES: usize = 6;
/// The length of the secret part of a token, in bytes.
const SECRET_BYTES: usize = 16;
/// The group of all bootstrap tokens.
const DEFAULT_GROUP: &str = "system:bootstrappers";
/// The maximum length of a group name after `system:bootstrappers:`, in bytes.
const GROUP_SUFFIX_BYTES_MAX: usize = 256;

/// A Secret of a bootstrap token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BootstrapTokenSecret {
    /// The type of the Secret.
    pub secret_type: String,
    /// The data, decoded.
    pub data: BTreeMap<String, Vec<u8>>,
    /// Whether the Secret is being deleted.
    pub is_being_deleted: bool,
}

/// Reads the Secrets of bootstrap tokens. An API server implements this trait with its store.
#[async_trait::async_trait]
pub trait BootstrapTokenSecrets: Send + Sync {
    /// The Secret of this name in the namespace `kube-system`.
    async fn bootstrap_secret(&self, name: &str) -> Option<BootstrapTokenSecret>;
}

/// Authenticates bootstrap tokens (`--enable-bootstrap-token-auth`).
pub struct BootstrapTokenAuthenticator<S>(S);

impl<S: BootstrapTokenSecrets> BootstrapTokenAuthenticator<S> {
    /// Creates an authenticator that reads these Secrets.
    pub fn new(secrets: S) -> Self {
        BootstrapTokenAuthenticator(secrets)
    }

    async fn check(&self, id: &str, secret: &str, now: i64) -> Option<UserInfo> {
        let found = self.0.bootstrap_secret(&format!("bootstrap-token-{id}")).await?;
        user(&found, id, secret, now)
    }
}

impl<S> std::fmt::Debug for BootstrapTokenAuthenticator<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BootstrapTokenAuthenticator")
    }
}

impl<S: BootstrapTokenSecrets> Authenticator for BootstrapTokenAuthenticator<S> {
    fn authenticate<'a>(&'a self, request: &'a AuthenticationRequest<'a>) -> MaybeFuture<'a, Authentication> {
        let Some((id, secret)) = request.token.and_then(parse) else {
            return MaybeFuture::ready(Authentication::NotRecognized);
        };
        MaybeFuture::new(async move {
            let user = self.check(id, secret, request.now).await;
            user.map_or(Authentication::NotRecognized, Authentication::of_user)
        })
    }
}

/// Splits a token `[a-z0-9]{6}.[a-z0-9]{16}`.
fn parse(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.split_once('.')?;
    let is_part = |part: &str, bytes| {
        part.len() == bytes && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    (is_part(id, ID_BYTES) && is_part(secret, SECRET_BYTES)).then_some((id, secret))
}

/// Returns the user of a token, if the Secret contains the token and is valid.
fn user(found: &BootstrapTokenSecret, id: &str, secret: &str, now: i64) -> Option<UserInfo> {
    let data = |name: &str| found.data.get(name).map(Vec::as_slice).unwrap_or_default();
    let is_valid = !found.is_being_deleted
        && found.secret_type == "bootstrap.kubernetes.io/token"
        && bool::from(data("token-secret").ct_eq(secret.as_bytes()))
        && data("token-id") == id.as_bytes()
        && data("usage-bootstrap-authentication") == b"true"
        && !has_expired(data("expiration"), now);
    if !is_valid {
        return None;
    }
    let username = format!("system:bootstrap:{id}");
    let groups = groups(data("auth-extra-groups"))?;
    let mut user = UserInfo { username, groups, ..UserInfo::default() };
    add_authenticated_group(&mut user);
    Some(user)
}

/// Whether the token has expired. An invalid time is treated as expired.
fn has_expired(expiration: &[u8], now: i64) -> bool {
    let parse = |text| OffsetDateTime::parse(text, &Rfc3339).ok();
    let time = std::str::from_utf8(expiration).ok().and_then(parse);
    !expiration.is_empty() && time.is_none_or(|time| time.unix_timestamp() <= now)
}

/// The groups of a token, sorted. `None` if the Secret names a group without the prefix `system:bootstrappers:`.
fn groups(extra: &[u8]) -> Option<Vec<String>> {
    let mut groups = vec![DEFAULT_GROUP.to_owned()];
    for group in std::str::from_utf8(extra).ok()?.split(',').filter(|_| !extra.is_empty()) {
        let suffix = group.strip_prefix(DEFAULT_GROUP)?.strip_prefix(':')?;
        let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let is_valid = suffix.len() <= GROUP_SUFFIX_BYTES_MAX
            && suffix.bytes().all(|byte| is_name(byte) || matches!(byte, b':' | b'-'))
            && suffix.bytes().last().is_some_and(is_name);
        if !is_valid {
            return None;
        }
        groups.push(group.to_owned());
    }
    groups.sort();
    groups.dedup();
    Some(groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_700_000_000; // 2023-11-14T22:13:20Z

    fn secret(changes: &[(&str, &str)]) -> BootstrapTokenSecret {
        let mut data: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        let given =
            [("token-id", "abcdef"), ("token-secret", "0123456789abcdef"), ("usage-bootstrap-authentication", "true")];
        for (name, value) in given.iter().chain(changes) {
            data.insert((*name).to_owned(), value.as_bytes().to_vec());
        }
        let secret_type = "bootstrap.kubernetes.io/token".to_owned();
        BootstrapTokenSecret { secret_type, data, is_being_deleted: false }
    }

    /// The groups of the token of a Secret, or `None` if the Secret does not match the token.
    fn check(found: &BootstrapTokenSecret) -> Option<Vec<String>> {
        let user = user(found, "abcdef", "0123456789abcdef", NOW)?;
        assert_eq!(user.username, "system:bootstrap:abcdef");
        Some(user.groups)
    }

    #[test]
    fn only_tokens_in_bootstrap_token_format_are_looked_up() {
        assert_eq!(parse("abcdef.0123456789abcdef"), Some(("abcdef", "0123456789abcdef")));
        for other in [
            "",
            ".",
            "abcdef",
            "abcdef.",
            "abcde.0123456789abcdef",
            "abcdef.0123456789abcde",
            "Abcdef.0123456789abcdef",
            "abcdef.0123456789abcdef.",
            "abcdef.0123456789abcdef ",
            "abcd/f.0123456789abcdef",
            "abcdef.0123456789abcdé",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn bootstrap_token_is_rejected_unless_its_secret_matches_every_field() {
        let default = Some(vec!["system:bootstrappers".to_owned(), "system:authenticated".to_owned()]);
        assert_eq!(check(&secret(&[])), default);
        assert_eq!(check(&secret(&[("expiration", "2023-11-14T22:13:21Z")])), default);
        assert_eq!(check(&secret(&[("expiration", "")])), default);
        for changes in [
            ("token-id", "abcdeg"),
            ("token-secret", "0123456789abcdeg"),
            ("token-secret", ""),
            ("usage-bootstrap-authentication", "false"),
            ("usage-bootstrap-authentication", "TRUE"),
            ("expiration", "2023-11-14T22:13:20Z"),
            ("expiration", "2023-11-14T23:13:20+01:00"),
            ("expiration", "tomorrow"),
            ("auth-extra-groups", "system:masters"),
            ("auth-extra-groups", "system:bootstrappers:a,system:masters"),
            ("auth-extra-groups", "system:bootstrappers:"),
            ("auth-extra-groups", "system:bootstrappers:a-"),
            ("auth-extra-groups", "system:bootstrappers:a, system:bootstrappers:b"),
            ("auth-extra-groups", "system:bootstrappersa"),
        ] {
            assert_eq!(check(&secret(&[changes])), None, "{changes:?}");
        }
        assert_eq!(check(&BootstrapTokenSecret { is_being_deleted: true, ..secret(&[]) }), None);
        assert_eq!(check(&BootstrapTokenSecret { secret_type: "Opaque".to_owned(), ..secret(&[]) }), None);
    }

    #[test]
    fn extra_groups_of_a_bootstrap_token_are_sorted_and_unique() {
        let groups = check(&secret(&[(
            "auth-extra-groups",
            "system:bootstrappers:b,system:bootstrappers:a:1,system:bootstrappers:b",
        )]));
        let expected =
            ["system:bootstrappers", "system:bootstrappers:a:1", "system:bootstrappers:b", "system:authenticated"];
        assert_eq!(groups.unwrap(), expected);
    }
}
