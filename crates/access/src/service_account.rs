//! Service account tokens: JSON Web Tokens that the API server signs and accepts. A token is valid
//! until it expires, or until its service account or the object that it is bound to is deleted
//! (`pkg/serviceaccount/claims.go`).
//!
//! ```text
//!  token ─▶ header ─▶ signature ─▶ audience, nbf, exp ─▶ account and bound objects exist ─▶ Authenticated
//!             │           │               │                          │
//!             └───────────┴─▶ NotRecognized                          │
//!                                         └──────────────────────────┴─▶ Rejected
//! ```
//!
//! Tokens are signed with HMAC-SHA-256 by a key that all API servers of a store share. Only these
//! servers can verify a token. The existence of bound objects is cached for [`VALIDATED_SECONDS`];
//! for this time a token remains valid after its account was deleted.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use listwatch_meta::UserInfo;
use parking_lot::Mutex;
use ring::hmac;
use serde::{Deserialize, Serialize};

use crate::authenticator::{Authentication, AuthenticationRequest, Authenticator};
use crate::maybe_future::MaybeFuture;

/// The issuer, and the audience of tokens without a requested audience (the usual
/// `--service-account-issuer`).
pub const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// The size of a signing key in bytes: one block of SHA-256, the maximum that HMAC uses.
pub const SIGNING_KEY_BYTES: usize = 64;

/// Seconds for which the existence of a token's objects is cached (`tokenSuccessCacheTTL`).
const VALIDATED_SECONDS: i64 = 10;

/// The number of cached tokens. At this number the cache is cleared.
const VALIDATED_MAX: usize = 10_000;

/// The prefix of each token: the encoded header and a dot.
static HEADER: LazyLock<String> = LazyLock::new(|| format!("{}.", BASE64.encode(br#"{"alg":"HS256","typ":"JWT"}"#)));

/// The key that signs tokens.
#[derive(Clone)]
pub struct SigningKey(hmac::Key);

/// The claims of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// The audiences.
    pub aud: Vec<String>,
    /// The time of expiry, in seconds since the Unix epoch, like all times in this struct.
    pub exp: i64,
    /// The time of issue.
    pub iat: i64,
    /// The issuer.
    pub iss: String,
    /// The id of the token.
    pub jti: String,
    /// The service account and the bound object.
    #[serde(rename = "kubernetes.io")]
    pub kubernetes: KubernetesClaims,
    /// The time from which the token is valid.
    pub nbf: i64,
    /// The user name of the service account.
    pub sub: String,
}

/// The service account of a token, and the objects that the token is bound to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KubernetesClaims {
    /// The namespace of the service account, the pod and the secret.
    pub namespace: String,
    /// The node of the pod, or the node that the token is bound to.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub node: Option<BoundObjectReference>,
    /// The pod that the token is bound to.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pod: Option<BoundObjectReference>,
    /// The secret that the token is bound to.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub secret: Option<BoundObjectReference>,
    /// The service account.
    pub serviceaccount: BoundObjectReference,
}

/// The name and uid of an object. The uid distinguishes it from other objects of that name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoundObjectReference {
    /// The name.
    pub name: String,
    /// The uid.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub uid: String,
}

/// Reads the objects that the check of a token needs. An API server implements it with its store.
#[async_trait::async_trait]
pub trait ServiceAccountObjects: Send + Sync {
    /// The signing key of the store's servers; `None` if it cannot be read.
    async fn signing_key(&self) -> Option<SigningKey>;

    /// True if the object with this uid exists and is not being deleted. `resource` is the plural
    /// name of a core kind.
    async fn exists(&self, resource: &str, namespace: Option<&str>, object: &BoundObjectReference) -> bool;
}

/// The user name of a service account.
pub fn service_account_username(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}

/// The groups of the service accounts of a namespace.
pub(crate) fn service_account_groups(namespace: &str) -> Vec<String> {
    vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")]
}

impl SigningKey {
    /// Creates a key from these bytes.
    pub fn new(bytes: &[u8; SIGNING_KEY_BYTES]) -> Self {
        SigningKey(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    /// Returns the token with these claims.
    pub fn sign(&self, claims: &Claims) -> String {
        let claims = serde_json::to_vec(claims).expect("texts and numbers serialize");
        let mut token = format!("{}{}", *HEADER, BASE64.encode(claims));
        let signature = hmac::sign(&self.0, token.as_bytes());
        token.push('.');
        token.push_str(&BASE64.encode(signature));
        token
    }

    /// Returns the claims of a token if this key signed it. Expiry is not checked.
    pub fn verify(&self, token: &str) -> Option<Claims> {
        let (signed, signature) = token.rsplit_once('.')?;
        let claims = signed.strip_prefix(HEADER.as_str())?;
        hmac::verify(&self.0, signed.as_bytes(), &BASE64.decode(signature).ok()?).ok()?;
        serde_json::from_slice(&BASE64.decode(claims).ok()?).ok()
    }
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key must not reach a log.
        f.write_str("SigningKey")
    }
}

impl Claims {
    /// The requested audiences that the token is valid for; without a request, the API server's
    /// own. `None` if there is none, or if the token has expired or is not valid yet.
    fn audiences(&self, requested: &[String], now: i64) -> Option<Vec<String>> {
        let own = [ISSUER.to_owned()];
        let requested = if requested.is_empty() { &own[..] } else { requested };
        let audiences: Vec<String> = requested.iter().filter(|audience| self.aud.contains(audience)).cloned().collect();
        (!audiences.is_empty() && self.nbf <= now && now < self.exp).then_some(audiences)
    }

    /// The user of the token.
    fn user(&self) -> UserInfo {
        let KubernetesClaims { namespace, node, pod, serviceaccount, .. } = &self.kubernetes;
        let mut extra = vec![("authentication.kubernetes.io/credential-id", format!("JTI={}", self.jti))];
        for (object, name, uid) in [
            (node, "authentication.kubernetes.io/node-name", "authentication.kubernetes.io/node-uid"),
            (pod, "authentication.kubernetes.io/pod-name", "authentication.kubernetes.io/pod-uid"),
        ] {
            if let Some(object) = object {
                extra.push((name, object.name.clone()));
                if !object.uid.is_empty() {
                    extra.push((uid, object.uid.clone()));
                }
            }
        }
        let mut groups = service_account_groups(namespace);
        groups.push("system:authenticated".to_owned());
        UserInfo {
            username: service_account_username(namespace, &serviceaccount.name),
            uid: serviceaccount.uid.clone(),
            groups,
            extra: extra.into_iter().map(|(name, value)| (name.to_owned(), vec![value])).collect(),
        }
    }

    /// The objects that must exist: resource, namespace, reference.
    fn objects(&self) -> impl Iterator<Item = (&'static str, Option<&str>, &BoundObjectReference)> {
        let KubernetesClaims { namespace, node, pod, secret, serviceaccount } = &self.kubernetes;
        let inside = Some(namespace.as_str());
        // The node of a bound pod may be deleted. Only a token without a pod is bound to its node.
        let node = node.as_ref().filter(|_| pod.is_none());
        let objects = [
            ("serviceaccounts", inside, Some(serviceaccount)),
            ("pods", inside, pod.as_ref()),
            ("secrets", inside, secret.as_ref()),
            ("nodes", None, node),
        ];
        objects.into_iter().filter_map(|(resource, namespace, object)| Some((resource, namespace, object?)))
    }
}

/// Authenticates service account tokens.
pub struct ServiceAccountTokenAuthenticator<O> {
    objects: O,
    validated: Mutex<Validated>,
}

/// The time at which the objects of each token were last found, by the token's id.
#[derive(Default)]
struct Validated(HashMap<String, i64>);

impl Validated {
    fn is_recent(&self, id: &str, now: i64) -> bool {
        // A time in the future, after the clock was set back, does not count.
        self.0.get(id).is_some_and(|at| (0..VALIDATED_SECONDS).contains(&(now - at)))
    }

    fn insert(&mut self, id: &str, now: i64) {
        if self.0.len() >= VALIDATED_MAX {
            self.0.retain(|_, at| (0..VALIDATED_SECONDS).contains(&(now - *at)));
        }
        if self.0.len() >= VALIDATED_MAX {
            self.0.clear();
        }
        self.0.insert(id.to_owned(), now);
    }
}

impl<O: ServiceAccountObjects> ServiceAccountTokenAuthenticator<O> {
    /// Creates an authenticator that reads these objects.
    pub fn new(objects: O) -> Self {
        ServiceAccountTokenAuthenticator { objects, validated: Mutex::default() }
    }

    async fn check(&self, token: &str, request: &AuthenticationRequest<'_>) -> Authentication {
        let claims = self.objects.signing_key().await.and_then(|key| key.verify(token));
        let Some(claims) = claims else { return Authentication::NotRecognized };
        let Some(audiences) = claims.audiences(request.audiences, request.now) else {
            return Authentication::Rejected;
        };
        if !self.validated.lock().is_recent(&claims.jti, request.now) {
            for (resource, namespace, object) in claims.objects() {
                if !self.objects.exists(resource, namespace, object).await {
                    return Authentication::Rejected;
                }
            }
            self.validated.lock().insert(&claims.jti, request.now);
        }
        Authentication::Authenticated { user: Arc::new(claims.user()), audiences }
    }
}

impl<O> std::fmt::Debug for ServiceAccountTokenAuthenticator<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServiceAccountTokenAuthenticator")
    }
}

impl<O: ServiceAccountObjects> Authenticator for ServiceAccountTokenAuthenticator<O> {
    fn authenticate<'a>(&'a self, request: &'a AuthenticationRequest<'a>) -> MaybeFuture<'a, Authentication> {
        // Other tokens cost only this comparison.
        match request.token.filter(|token| token.starts_with(HEADER.as_str())) {
            Some(token) => MaybeFuture::new(self.check(token, request)),
            None => MaybeFuture::ready(Authentication::NotRecognized),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference(name: &str) -> BoundObjectReference {
        BoundObjectReference { name: name.to_owned(), uid: format!("uid-of-{name}") }
    }

    fn claims() -> Claims {
        let serviceaccount = reference("robot");
        Claims {
            aud: vec![ISSUER.to_owned()],
            exp: 200,
            iat: 100,
            iss: ISSUER.to_owned(),
            jti: "j".to_owned(),
            kubernetes: KubernetesClaims {
                namespace: "a".to_owned(),
                node: None,
                pod: None,
                secret: None,
                serviceaccount,
            },
            nbf: 100,
            sub: service_account_username("a", "robot"),
        }
    }

    fn key() -> SigningKey {
        SigningKey::new(&[7; SIGNING_KEY_BYTES])
    }

    /// The existing objects, as `resource/namespace/name`.
    struct Objects(Mutex<Vec<&'static str>>);

    #[async_trait::async_trait]
    impl ServiceAccountObjects for &Objects {
        async fn signing_key(&self) -> Option<SigningKey> {
            Some(key())
        }

        async fn exists(&self, resource: &str, namespace: Option<&str>, object: &BoundObjectReference) -> bool {
            let wanted = format!("{resource}/{}/{}", namespace.unwrap_or_default(), object.name);
            self.0.lock().iter().any(|found| *found == wanted)
        }
    }

    async fn answer(objects: &Objects, claims: &Claims, audiences: &[&str], now: i64) -> String {
        let authenticator = ServiceAccountTokenAuthenticator::new(objects);
        let audiences: Vec<String> = audiences.iter().map(|audience| (*audience).to_owned()).collect();
        let token = key().sign(claims);
        let request = AuthenticationRequest::of_token(Some(&token), now).with_audiences(&audiences);
        match authenticator.authenticate(&request).await {
            Authentication::Authenticated { user, audiences } => format!("{} {audiences:?}", user.username),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn token_signed_with_another_key_is_not_verified() {
        let token = key().sign(&claims());
        assert_eq!(key().verify(&token), Some(claims()));
        assert_eq!(SigningKey::new(&[8; SIGNING_KEY_BYTES]).verify(&token), None, "another store's key");
        let parts: Vec<&str> = token.split('.').collect();
        assert_eq!(parts.len(), 3);
        let other = BASE64.encode(serde_json::to_vec(&Claims { sub: "admin".to_owned(), ..claims() }).unwrap());
        for forged in [
            format!("{}.{other}.{}", parts[0], parts[2]),
            format!("{}.{}.", parts[0], parts[1]),
            format!("{}.{}", parts[0], parts[1]),
            format!("{}.{}.{}", BASE64.encode(br#"{"alg":"none"}"#), parts[1], parts[2]),
            format!("{token}x"),
            String::new(),
        ] {
            assert_eq!(key().verify(&forged), None, "{forged}");
        }
    }

    #[test]
    fn token_signature_matches_the_test_vectors_of_rfc_4231() {
        // Test cases 1 and 2. Trailing zeros of a short key do not change the result.
        for (key, text, expected) in [
            (&[0x0b; 20][..], "Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"),
            (
                b"Jefe",
                "what do ya want for nothing?",
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
            ),
        ] {
            let mut padded = [0; SIGNING_KEY_BYTES];
            padded[..key.len()].copy_from_slice(key);
            let tag = hmac::sign(&SigningKey::new(&padded).0, text.as_bytes());
            let found: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(found, expected);
        }
    }

    #[tokio::test]
    async fn token_is_valid_for_its_audience_and_time_only() {
        let objects = Objects(Mutex::new(vec!["serviceaccounts/a/robot"]));
        let robot = format!("system:serviceaccount:a:robot [{ISSUER:?}]");
        for (audiences, now, expected) in [
            (&[][..], 100, robot.as_str()),
            (&[], 199, &robot),
            (&[], 99, "Rejected"),
            (&[], 200, "Rejected"),
            (&["other"], 100, "Rejected"),
            (&["other", ISSUER], 100, &robot),
        ] {
            assert_eq!(answer(&objects, &claims(), audiences, now).await, expected, "{audiences:?} at {now}");
        }
    }

    #[tokio::test]
    async fn token_is_rejected_after_its_bound_objects_are_deleted() {
        let objects = Objects(Mutex::new(vec!["serviceaccounts/a/robot", "pods/a/p", "nodes//n"]));
        let bound = |kubernetes: KubernetesClaims| Claims { kubernetes, ..claims() };
        let plain = claims().kubernetes;
        let [node, gone, pod] = ["n", "gone", "p"].map(|name| Some(reference(name)));
        for (kubernetes, valid) in [
            (plain.clone(), true),
            (KubernetesClaims { serviceaccount: reference("gone"), ..plain.clone() }, false),
            (KubernetesClaims { pod: pod.clone(), ..plain.clone() }, true),
            (KubernetesClaims { pod: gone.clone(), ..plain.clone() }, false),
            (KubernetesClaims { secret: gone.clone(), ..plain.clone() }, false),
            (KubernetesClaims { node, ..plain.clone() }, true),
            (KubernetesClaims { node: gone.clone(), ..plain.clone() }, false),
            (KubernetesClaims { node: gone, pod, ..plain }, true),
        ] {
            let found = answer(&objects, &bound(kubernetes.clone()), &[], 100).await;
            assert_eq!(found != "Rejected", valid, "{kubernetes:?}");
        }
    }

    #[tokio::test]
    async fn existence_of_bound_objects_is_cached_for_ten_seconds() {
        let objects = Objects(Mutex::new(vec!["serviceaccounts/a/robot"]));
        let authenticator = ServiceAccountTokenAuthenticator::new(&objects);
        let token = key().sign(&claims());
        let valid = async |now| {
            let request = AuthenticationRequest::of_token(Some(&token), now);
            matches!(authenticator.authenticate(&request).await, Authentication::Authenticated { .. })
        };
        assert!(valid(100).await);
        objects.0.lock().clear();
        assert!(valid(100 + VALIDATED_SECONDS - 1).await, "the objects are not read again");
        assert!(!valid(100 + VALIDATED_SECONDS).await);
        assert!(!valid(100 + VALIDATED_SECONDS + 1).await, "a rejection is not remembered as valid");
    }

    #[test]
    fn token_cache_is_cleared_at_its_limit() {
        let mut validated = Validated::default();
        (0..2 * VALIDATED_MAX).for_each(|id| validated.insert(&id.to_string(), 0));
        assert!(validated.0.len() <= VALIDATED_MAX);
    }

    #[tokio::test]
    async fn foreign_token_is_not_recognized() {
        let objects = Objects(Mutex::default());
        let authenticator = ServiceAccountTokenAuthenticator::new(&objects);
        let forged = format!("{}x", key().sign(&claims()));
        for token in [None, Some("admin"), Some(forged.as_str())] {
            let answer = authenticator.authenticate(&AuthenticationRequest::of_token(token, 100)).await;
            assert_eq!(answer, Authentication::NotRecognized, "{token:?}");
        }
    }
}
