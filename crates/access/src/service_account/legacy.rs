//! Tokens in Secrets of the type `kubernetes.io/service-account-token`. These tokens do not expire.
//! kube-controller-manager writes them (`pkg/serviceaccount/legacy.go`).

use serde::Deserialize;

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
