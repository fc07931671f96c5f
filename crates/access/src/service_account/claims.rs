//! The claims of service account tokens, and the users that they describe (`pkg/serviceaccount/claims.go`).

use listwatch_meta::UserInfo;
use serde::{Deserialize, Deserializer, Serialize};

use super::names::{service_account_groups, service_account_username};

/// The tolerated clock difference, in seconds. A token is valid for this time before `nbf`, after `exp` and after the
/// deletion of a bound object (`jwt.DefaultLeeway`).
pub(super) const LEEWAY_SECONDS: i64 = 60;

/// The claims of a token. Times are in seconds since the Unix epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// The audiences for which the token is valid.
    #[serde(default, deserialize_with = "one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub aud: Vec<String>,
    /// The time from which the token is no longer valid.
    #[serde(default, deserialize_with = "numeric_date", skip_serializing_if = "Option::is_none")]
    pub exp: Option<i64>,
    /// The time at which the token was issued.
    #[serde(default, deserialize_with = "numeric_date", skip_serializing_if = "Option::is_none")]
    pub iat: Option<i64>,
    /// The issuer.
    pub iss: String,
    /// The id of the token.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub jti: String,
    /// The service account and the bound object.
    #[serde(rename = "kubernetes.io")]
    pub kubernetes: KubernetesClaims,
    /// The time from which the token is valid.
    #[serde(default, deserialize_with = "numeric_date", skip_serializing_if = "Option::is_none")]
    pub nbf: Option<i64>,
    /// The user name of the service account.
    #[serde(default)]
    pub sub: String,
}

/// The service account of a token, and the objects that the token is bound to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KubernetesClaims {
    /// The namespace of the service account, the pod and the secret.
    #[serde(default)]
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
    #[serde(default)]
    pub serviceaccount: BoundObjectReference,
    /// The time from which the client should have renewed the token.
    #[serde(default, deserialize_with = "numeric_date", skip_serializing_if = "Option::is_none")]
    pub warnafter: Option<i64>,
}

/// The name and uid of an object. The uid distinguishes it from other objects of that name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoundObjectReference {
    /// The name.
    #[serde(default)]
    pub name: String,
    /// The UID of the object.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub uid: String,
}

/// A number of seconds, with or without a fraction (RFC 7519, section 2).
fn numeric_date<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    let seconds = Option::<f64>::deserialize(deserializer)?;
    Ok(seconds.map(|seconds| seconds as i64))
}

/// Reads a string or a list of strings (RFC 7519, section 4.1.3).
fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Audience {
        One(String),
        Many(Vec<String>),
        Absent(()),
    }
    Ok(match Audience::deserialize(deserializer)? {
        Audience::One(audience) => vec![audience],
        Audience::Many(audiences) => audiences,
        Audience::Absent(()) => Vec::new(),
    })
}

impl Claims {
    /// Checks the times of the token (`jwt.Claims.ValidateWithLeeway`, `validator.Validate`).
    pub(super) fn check_times(&self, now: i64) -> Result<(), &'static str> {
        let (earliest, latest) = (now.saturating_sub(LEEWAY_SECONDS), now.saturating_add(LEEWAY_SECONDS));
        if self.nbf.is_some_and(|nbf| latest < nbf) {
            return Err("service account token is not valid yet");
        }
        if self.exp.is_some_and(|exp| earliest > exp) {
            return Err("service account token has expired");
        }
        if self.iat.is_some_and(|iat| latest < iat) {
            return Err("service account token is issued in the future");
        }
        Ok(())
    }

    /// The user of the token (`ServiceAccountInfo.UserInfo`).
    pub(super) fn user(&self) -> UserInfo {
        let KubernetesClaims { namespace, node, pod, serviceaccount, .. } = &self.kubernetes;
        let mut extra = Vec::new();
        if !self.jti.is_empty() {
            extra.push(("authentication.kubernetes.io/credential-id", format!("JTI={}", self.jti)));
        }
        if let Some(node) = node.as_ref().filter(|node| !node.name.is_empty()) {
            extra.push(("authentication.kubernetes.io/node-name", node.name.clone()));
            if !node.uid.is_empty() {
                extra.push(("authentication.kubernetes.io/node-uid", node.uid.clone()));
            }
        }
        if let Some(pod) = pod.as_ref().filter(|pod| !pod.name.is_empty() && !pod.uid.is_empty()) {
            extra.push(("authentication.kubernetes.io/pod-name", pod.name.clone()));
            extra.push(("authentication.kubernetes.io/pod-uid", pod.uid.clone()));
        }
        let extra = extra.into_iter().map(|(name, value)| (name.to_owned(), vec![value])).collect();
        UserInfo { extra, ..service_account_user(namespace, &serviceaccount.name, &serviceaccount.uid) }
    }
}

/// The user of a service account, without extra.
pub(super) fn service_account_user(namespace: &str, name: &str, uid: &str) -> UserInfo {
    let mut groups = service_account_groups(namespace);
    groups.push("system:authenticated".to_owned());
    UserInfo { username: service_account_username(namespace, name), uid: uid.to_owned(), groups, ..UserInfo::default() }
}
