//! Service account tokens: JSON Web Tokens that the API server signs and accepts (`pkg/serviceaccount`).
//!
//! ```text
//!  token ─▶ issuer ─▶ signature ─▶ audience ─▶ times ─▶ account and bound objects exist ─▶ Authenticated
//!             │           │            │          │                    │
//!             ▼           └────────────┴──────────┴────────────────────┴─▶ Rejected
//!       NotRecognized
//! ```
//!
//! A token is valid until it expires, or until its service account or the object that it is bound to is deleted. The
//! objects are checked at each request. Verified signatures are cached, because verification is the most expensive
//! step.
//!
//! | module | contents |
//! |---|---|
//! | `keys` | private and public keys |
//! | `jwt` | the compact form of tokens |
//! | `claims` | claims, their times, the user |
//! | `legacy` | tokens in Secrets |
//! | `names` | the user name and the groups of a service account |
//! | `discovery` | the documents for other verifiers |

mod claims;
mod discovery;
pub(crate) mod jwt;
mod keys;
mod legacy;
mod names;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use listwatch_meta::go::quote;
use parking_lot::Mutex;
use ring::digest;

pub use self::claims::{BoundObjectReference, Claims, KubernetesClaims};
pub use self::discovery::{IssuerDocuments, JWKS_PATH, NotDiscoverable, OPENID_CONFIGURATION_PATH};
pub use self::keys::{InvalidKey, SigningKey, TokenKeys, VerificationKey};
pub use self::legacy::{LegacyTokenAccount, LegacyTokenSecret, LegacyTokenUse};
pub(crate) use self::names::service_account_groups;
pub use self::names::service_account_username;

use self::claims::LEEWAY_SECONDS;
use self::jwt::{SignatureError, UnverifiedToken};
use self::legacy::LegacyClaims;
use crate::authenticator::{Authentication, AuthenticationRequest, Authenticator};
use crate::maybe_future::MaybeFuture;

/// The issuer of a server without `--service-account-issuer`.
pub const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// The lifetime that kubelets request for the tokens of pods, in seconds (`WarnOnlyBoundTokenExpirationSeconds`).
pub const EXTENDABLE_SECONDS: i64 = 60 * 60 + 7;

/// The lifetime of such a token if lifetimes are extended, in seconds (`ExpirationExtensionSeconds`).
pub const EXTENDED_SECONDS: i64 = 365 * 24 * 60 * 60;

/// The number of cached tokens. At this number the cache is cleared.
const VERIFIED_MAX: usize = 10_000;

/// The longest token that is cached, in bytes. Longer ones are verified at each request.
const VERIFIED_TOKEN_BYTES_MAX: usize = 4 << 10;

/// The warning for a token that Kubernetes generated in a Secret.
const AUTO_GENERATED: &str = "Use tokens from the TokenRequest API or manually created secret-based tokens instead of auto-generated secret-based tokens.";

/// The options for issuing and verifying service account tokens.
#[derive(Clone, Debug)]
pub struct ServiceAccountTokenOptions {
    /// The accepted issuers (`--service-account-issuer`). The first issues tokens.
    pub issuers: Vec<String>,
    /// The audiences of this server (`--api-audiences`). If empty, the issuers are the audiences.
    pub api_audiences: Vec<String>,
    /// The key that signs tokens (`--service-account-signing-key-file`). `None`: the server creates a key and keeps it
    /// in the store.
    pub signing_key: Option<SigningKey>,
    /// The keys that verify tokens (`--service-account-key-file`). If empty, the public key of the signing key verifies
    /// tokens.
    pub verification_keys: Vec<VerificationKey>,
    /// The longest lifetime of a requested token, in seconds (`--service-account-max-token-expiration`).
    pub max_expiration_seconds: Option<i64>,
    /// Whether tokens of pods live longer than requested (`--service-account-extend-token-expiration`).
    pub extend_expiration: bool,
}

impl Default for ServiceAccountTokenOptions {
    fn default() -> Self {
        ServiceAccountTokenOptions {
            issuers: vec![ISSUER.to_owned()],
            api_audiences: Vec::new(),
            signing_key: None,
            verification_keys: Vec::new(),
            max_expiration_seconds: None,
            extend_expiration: true,
        }
    }
}

impl ServiceAccountTokenOptions {
    /// The issuer of new tokens.
    pub fn issuer(&self) -> &str {
        self.issuers.first().map_or(ISSUER, String::as_str)
    }

    /// The audiences of this server.
    pub fn audiences(&self) -> &[String] {
        if self.api_audiences.is_empty() { &self.issuers } else { &self.api_audiences }
    }
}

/// An object that a token names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundObject {
    /// The UID of the object.
    pub uid: String,
    /// The time of `metadata.deletionTimestamp`, in seconds since the Unix epoch.
    pub deletion: Option<i64>,
}

/// Reads the objects that the check of a token needs. An API server implements it with its store.
#[async_trait::async_trait]
pub trait ServiceAccountObjects: Send + Sync {
    /// The options for verifying tokens.
    fn options(&self) -> &ServiceAccountTokenOptions;

    /// The keys of the store's servers; `None` if they cannot be read.
    async fn keys(&self) -> Option<Arc<TokenKeys>>;

    /// Finds the object of this name. `resource` is the plural name of a core kind. A stale object may be returned only
    /// if it has the uid of the reference and is not being deleted.
    async fn bound_object(
        &self,
        resource: &str,
        namespace: Option<&str>,
        reference: &BoundObjectReference,
    ) -> Option<FoundObject>;

    /// Reads the Secret that contains a token.
    async fn legacy_secret(&self, namespace: &str, name: &str) -> Option<LegacyTokenSecret>;

    /// Finds the service account of a token in a Secret. The account may be stale under the conditions of
    /// [`ServiceAccountObjects::bound_object`].
    async fn legacy_account(&self, namespace: &str, reference: &BoundObjectReference) -> Option<LegacyTokenAccount>;

    /// Takes a use of a token in a Secret. The caller does not wait until the Secret has the label.
    fn report_use(&self, used: LegacyTokenUse);
}

impl Claims {
    /// Signs a token with these claims. `None` if the system has no random numbers.
    pub fn sign(&self, key: &SigningKey) -> Option<String> {
        jwt::sign(key, &serde_json::to_vec(self).ok()?)
    }
}

/// Authenticates service account tokens.
pub struct ServiceAccountTokenAuthenticator<O> {
    objects: O,
    verified: Mutex<Verified>,
}

/// The claims of tokens whose signature was verified, by the hash of the token. Keys never change while a server runs.
#[derive(Default)]
struct Verified(HashMap<[u8; 32], Arc<Claims>>);

impl Verified {
    fn insert(&mut self, token: &str, claims: &Arc<Claims>) {
        if token.len() > VERIFIED_TOKEN_BYTES_MAX {
            return;
        }
        if self.0.len() >= VERIFIED_MAX {
            self.0.clear();
        }
        self.0.insert(hash(token), Arc::clone(claims));
    }
}

fn hash(token: &str) -> [u8; 32] {
    let digest = digest::digest(&digest::SHA256, token.as_bytes());
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// The result of a check: the user, or the reason of the rejection.
type Checked = Result<Authentication, String>;

impl<O: ServiceAccountObjects> ServiceAccountTokenAuthenticator<O> {
    /// Creates an authenticator that reads these objects.
    pub fn new(objects: O) -> Self {
        ServiceAccountTokenAuthenticator { objects, verified: Mutex::default() }
    }

    async fn check(&self, token: &str, request: &AuthenticationRequest<'_>) -> Checked {
        let cached = if token.len() <= VERIFIED_TOKEN_BYTES_MAX {
            self.verified.lock().0.get(&hash(token)).cloned()
        } else {
            None
        };
        if let Some(claims) = cached {
            return self.check_claims(&claims, request).await;
        }
        let Some(unverified) = UnverifiedToken::parse(token) else { return Ok(Authentication::NotRecognized) };
        let is_legacy = unverified.issuer == legacy::ISSUER;
        if !is_legacy && !self.objects.options().issuers.contains(&unverified.issuer) {
            return Ok(Authentication::NotRecognized);
        }
        let keys = self.objects.keys().await.ok_or("the keys of service account tokens cannot be read")?;
        let payload = match unverified.verify(&keys.verification) {
            Ok(payload) => payload,
            Err(SignatureError::Header) => return Ok(Authentication::NotRecognized),
            Err(SignatureError::UnknownKey) => return Err("invalid signature, no keys found".to_owned()),
            Err(SignatureError::Invalid) => {
                return Err("go-jose/go-jose: error in cryptographic primitive".to_owned());
            }
        };
        let unreadable = "the claims of the service account token cannot be read";
        if is_legacy {
            let claims = serde_json::from_slice(payload).map_err(|_| unreadable)?;
            return self.check_legacy(token, &claims, request).await;
        }
        let claims: Claims = serde_json::from_slice(payload).map_err(|_| unreadable)?;
        let claims = Arc::new(claims);
        self.verified.lock().insert(token, &claims);
        self.check_claims(&claims, request).await
    }

    /// Checks the audiences, times, service account and bound objects of claims with a verified signature, in the order
    /// of kube-apiserver.
    async fn check_claims(&self, claims: &Claims, request: &AuthenticationRequest<'_>) -> Checked {
        if claims.aud.is_empty() {
            request.annotate("authentication.k8s.io/legacy-token", &*claims.sub);
        }
        let audiences = self.audiences(&claims.aud, request)?;
        claims.check_times(request.now)?;
        let KubernetesClaims { namespace, node, pod, secret, serviceaccount, .. } = &claims.kubernetes;
        let account = self.account(namespace, serviceaccount).await?;
        let (uid, claimed) = (&account.uid, &serviceaccount.uid);
        if uid != claimed {
            return Err(format!("service account UID ({uid}) does not match claim ({claimed})"));
        }
        let is_gone = |object: &FoundObject| {
            object.deletion.is_some_and(|deletion| deletion < request.now.saturating_sub(LEEWAY_SECONDS))
        };
        if is_gone(&account) {
            return Err(format!("service account {namespace}/{} has been deleted", serviceaccount.name));
        }
        // The node of a bound pod may be deleted. Only a token without a pod is bound to its node.
        let node = node.as_ref().filter(|_| pod.is_none());
        let inside = Some(namespace.as_str());
        for (resource, namespace, reference, title, claim) in [
            ("secrets", inside, secret.as_ref(), "secret", "service account secret ref claim"),
            ("pods", inside, pod.as_ref(), "pod", "service account pod ref claim"),
            ("nodes", None, node, "node", "service account node ref claim"),
        ] {
            let Some(reference) = reference else { continue };
            let invalidated = || "service account token has been invalidated".to_owned();
            let object = self.objects.bound_object(resource, namespace, reference).await.ok_or_else(invalidated)?;
            let (uid, claimed) = (&object.uid, &reference.uid);
            if uid != claimed {
                return Err(format!("{title} UID ({uid}) does not match {claim} ({claimed})"));
            }
            if is_gone(&object) {
                return Err(invalidated());
            }
        }
        if let Some(after) = claims.kubernetes.warnafter.filter(|after| *after != 0 && request.now >= *after) {
            let (subject, seconds) = (&claims.sub, request.now.saturating_sub(after));
            let value = format!("subject: {subject}, seconds after warning threshold: {seconds}");
            request.annotate("authentication.k8s.io/stale-token", value);
        }
        Ok(Authentication::Authenticated { user: Arc::new(claims.user()), audiences })
    }

    async fn check_legacy(&self, token: &str, claims: &LegacyClaims, request: &AuthenticationRequest<'_>) -> Checked {
        request.annotate("authentication.k8s.io/legacy-token", &*claims.sub);
        let audiences = self.audiences(&[], request)?;
        let reference = claims.account()?;
        let namespace = claims.namespace.as_str();
        let secret = self.objects.legacy_secret(namespace, &claims.secret).await;
        claims.check_secret(token, secret.as_ref())?;
        let account = self.objects.legacy_account(namespace, &reference).await;
        let LegacyTokenAccount { account, secrets } = account.ok_or_else(|| account_not_found(&reference))?;
        if account.deletion.is_some() {
            return Err(format!("ServiceAccount {namespace}/{} has been deleted", reference.name));
        }
        if account.uid != reference.uid {
            let (uid, claimed) = (account.uid, reference.uid);
            return Err(format!("ServiceAccount UID ({uid}) does not match claim ({claimed})"));
        }
        let secret = secret.unwrap_or_default();
        if let Some(used) = claims.unrecorded_use(&secret, request.now) {
            self.objects.report_use(used);
        }
        let name = claims.secret.as_str();
        if let Err(invalidated) = claims.check_label(&secret) {
            request.annotate("authentication.k8s.io/legacy-token-invalidated", format!("{name}/{namespace}"));
            return Err(invalidated);
        }
        if secrets.iter().any(|generated| generated == name) {
            if let Some(recorder) = request.recorder {
                recorder.warn(AUTO_GENERATED);
            }
            request.annotate("authentication.k8s.io/legacy-token-autogenerated-secret", name);
        } else {
            request.annotate("authentication.k8s.io/legacy-token-manual-secret", name);
        }
        let user = claims::service_account_user(namespace, &reference.name, &reference.uid);
        Ok(Authentication::Authenticated { user: Arc::new(user), audiences })
    }

    async fn account(&self, namespace: &str, reference: &BoundObjectReference) -> Result<FoundObject, String> {
        let found = self.objects.bound_object("serviceaccounts", Some(namespace), reference).await;
        found.ok_or_else(|| account_not_found(reference))
    }

    /// Returns the audiences that the token and the request have in common. An empty list means the audiences of this
    /// server.
    fn audiences(&self, token: &[String], request: &AuthenticationRequest<'_>) -> Result<Vec<String>, String> {
        let own = self.objects.options().audiences();
        let token = if token.is_empty() { own } else { token };
        let requested = if request.audiences.is_empty() { own } else { request.audiences };
        let audiences: Vec<String> = token.iter().filter(|audience| requested.contains(audience)).cloned().collect();
        if audiences.is_empty() {
            let (token, requested) = (list(token), list(requested));
            return Err(format!("token audiences {token} is invalid for the target audiences {requested}"));
        }
        Ok(audiences)
    }
}

fn account_not_found(reference: &BoundObjectReference) -> String {
    format!("serviceaccounts {:?} not found", reference.name)
}

/// Go's `%q` of a list.
fn list(texts: &[String]) -> String {
    let mut out = "[".to_owned();
    for (at, text) in texts.iter().enumerate() {
        let _ = write!(out, "{}{}", if at == 0 { "" } else { " " }, quote(text));
    }
    out.push(']');
    out
}

impl<O> std::fmt::Debug for ServiceAccountTokenAuthenticator<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServiceAccountTokenAuthenticator")
    }
}

impl<O: ServiceAccountObjects> Authenticator for ServiceAccountTokenAuthenticator<O> {
    fn authenticate<'a>(&'a self, request: &'a AuthenticationRequest<'a>) -> MaybeFuture<'a, Authentication> {
        // Tokens without two dots cost only this comparison.
        match request.token.filter(|token| token.bytes().filter(|byte| *byte == b'.').count() == 2) {
            Some(token) => {
                MaybeFuture::new(
                    async move { self.check(token, request).await.unwrap_or_else(Authentication::Rejected) },
                )
            }
            None => MaybeFuture::ready(Authentication::NotRecognized),
        }
    }
}

#[cfg(test)]
mod tests;
