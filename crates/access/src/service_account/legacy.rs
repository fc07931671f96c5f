//! Tokens in Secrets of the type `kubernetes.io/service-account-token`. These tokens do not expire.
//! kube-controller-manager writes them (`pkg/serviceaccount/legacy.go`).

use serde::Deserialize;

use super::FoundObject;
use super::claims::BoundObjectReference;
use super::names::service_account_username;

/// The issuer of these tokens.
pub(super) const ISSUER: &str = "kubernetes/serviceaccount";

/// The claims of a token in a Secret.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct LegacyClaims {
    #[serde(default)]
    pub(super) sub: String,
    #[serde(default, rename = "kubernetes.io/serviceaccount/namespace")]
    pub(super) namespace: String,
    #[serde(default, rename = "kubernetes.io/serviceaccount/secret.name")]
    pub(super) secret: String,
    #[serde(default, rename = "kubernetes.io/serviceaccount/service-account.name")]
    name: String,
    #[serde(default, rename = "kubernetes.io/serviceaccount/service-account.uid")]
    uid: String,
}

/// A Secret with a token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LegacyTokenSecret {
    /// The token in the Secret.
    pub token: Vec<u8>,
    /// Whether the Secret is being deleted.
    pub is_being_deleted: bool,
    /// Whether the Secret has the label `kubernetes.io/legacy-token-invalid-since`.
    pub is_invalidated: bool,
    /// The UID of the Secret.
    pub uid: String,
    /// The label `kubernetes.io/legacy-token-last-used`; empty without it.
    pub last_used: String,
}

/// The service account of a token in a Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LegacyTokenAccount {
    /// The object of the account.
    pub account: FoundObject,
    /// The names of the Secrets in the account's `secrets`. Kubernetes has generated the tokens of these Secrets.
    pub secrets: Vec<String>,
}

/// A use of a token in a Secret. The Secret's label `kubernetes.io/legacy-token-last-used` has to name the day, because
/// kube-controller-manager deletes unused tokens after a year.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegacyTokenUse {
    /// The namespace of the Secret.
    pub namespace: String,
    /// The name of the Secret.
    pub secret: String,
    /// The UID of the Secret.
    pub uid: String,
    /// The day in UTC, such as `2006-01-02`.
    pub date: String,
}

/// The day of a time in UTC, such as `2006-01-02`.
fn date(seconds: i64) -> Option<String> {
    let date = time::OffsetDateTime::from_unix_timestamp(seconds).ok()?.date();
    Some(format!("{:04}-{:02}-{:02}", date.year(), u8::from(date.month()), date.day()))
}

impl LegacyClaims {
    /// Checks that the claims name an account and a Secret.
    pub(super) fn account(&self) -> Result<BoundObjectReference, &'static str> {
        for (claim, error) in [
            (&self.sub, "sub claim is missing"),
            (&self.namespace, "namespace claim is missing"),
            (&self.secret, "secretName claim is missing"),
            (&self.name, "serviceAccountName claim is missing"),
            (&self.uid, "serviceAccountUID claim is missing"),
        ] {
            if claim.is_empty() {
                return Err(error);
            }
        }
        if self.sub != service_account_username(&self.namespace, &self.name) {
            return Err("sub claim is invalid");
        }
        Ok(BoundObjectReference { name: self.name.clone(), uid: self.uid.clone() })
    }

    /// Checks the token against the Secret.
    pub(super) fn check_secret(&self, token: &str, secret: Option<&LegacyTokenSecret>) -> Result<(), String> {
        let Some(secret) = secret.filter(|secret| !secret.is_being_deleted) else {
            return Err("Token has been invalidated".to_owned());
        };
        if !bool::from(subtle::ConstantTimeEq::ct_eq(secret.token.as_slice(), token.as_bytes())) {
            return Err("Token does not match server's copy".to_owned());
        }
        Ok(())
    }

    /// Returns the use of the token, unless the label names this day or the next one: the clock of another server may
    /// be ahead (`patchSecretWithLastUsedDate`).
    pub(super) fn unrecorded_use(&self, secret: &LegacyTokenSecret, now: i64) -> Option<LegacyTokenUse> {
        let (today, tomorrow) = (date(now)?, date(now.saturating_add(24 * 60 * 60)));
        if secret.last_used == today || Some(&secret.last_used) == tomorrow.as_ref() {
            return None;
        }
        let (namespace, name) = (self.namespace.clone(), self.secret.clone());
        Some(LegacyTokenUse { namespace, secret: name, uid: secret.uid.clone(), date: today })
    }

    /// Checks that the Secret is not marked as invalid.
    pub(super) fn check_label(&self, secret: &LegacyTokenSecret) -> Result<(), String> {
        if !secret.is_invalidated {
            return Ok(());
        }
        let LegacyClaims { namespace, secret, name, .. } = self;
        Err(format!(
            "the token in secret {namespace}/{secret} for service account {namespace}/{name} has been marked invalid. Use tokens from the TokenRequest API or manually created secret-based tokens, or remove the 'kubernetes.io/legacy-token-invalid-since' label from the secret to temporarily allow use of this token"
        ))
    }
}
