//! [`WebhookTokenAuthenticator`]: authenticates tokens by sending a TokenReview to a webhook
//! (`plugin/pkg/authenticator/token/webhook/webhook.go`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use listwatch_json::json;
use listwatch_meta::UserInfo;
use parking_lot::Mutex;
use serde::Deserialize;

use super::cache::AnswerCache;
use super::{ReviewClient, ReviewVersion, hash};
use crate::authenticator::{Authentication, AuthenticationRequest, Authenticator, add_authenticated_group};
use crate::maybe_future::MaybeFuture;

/// The longest token that is sent to a webhook, in bytes. A longer token is not recognized.
pub(crate) const TOKEN_BYTES_MAX: usize = 64 << 10;

/// The version of the reviews, the lifetime of cached responses, and the audiences of this server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenWebhookOptions {
    /// The version of TokenReview (`--authentication-token-webhook-version`).
    pub version: ReviewVersion,
    /// The lifetime of a cached response (`--authentication-token-webhook-cache-ttl`). Errors are not cached.
    pub kept_for: Duration,
    /// The audiences of this server (`--api-audiences`). With others than those of its service account tokens, the server
    /// refuses the users of the webhook.
    pub api_audiences: Vec<String>,
}

/// Authenticates tokens by a webhook. If the call fails, the token is not recognized.
pub struct WebhookTokenAuthenticator<C> {
    client: C,
    options: TokenWebhookOptions,
    cache: Mutex<AnswerCache<Authentication>>,
}

impl<C> std::fmt::Debug for WebhookTokenAuthenticator<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WebhookTokenAuthenticator")
    }
}

#[derive(Deserialize)]
struct Review {
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    authenticated: bool,
    user: User,
    audiences: Vec<String>,
    error: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct User {
    username: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

impl<C: ReviewClient> WebhookTokenAuthenticator<C> {
    /// Creates an authenticator with an empty cache.
    pub fn new(client: C, options: TokenWebhookOptions) -> Self {
        WebhookTokenAuthenticator { client, options, cache: Mutex::default() }
    }

    async fn ask(&self, token: &str, request: &AuthenticationRequest<'_>) -> Authentication {
        let own = &self.options.api_audiences;
        let audiences = if request.audiences.is_empty() { own } else { request.audiences };
        let mut parts: Vec<&[u8]> = vec![token.as_bytes()];
        parts.extend(audiences.iter().map(String::as_bytes));
        let (key, now) = (hash(&parts), u64::try_from(request.now).unwrap_or_default());
        if let Some(found) = self.cache.lock().get(&key, now) {
            return found;
        }
        let mut spec = json!({"token": token});
        if !audiences.is_empty() {
            spec["audiences"] = json!(audiences);
        }
        let review = json!({
            "kind": "TokenReview",
            "apiVersion": format!("authentication.k8s.io/{}", self.options.version.name()),
            "metadata": {},
            "spec": spec,
        });
        let answer = match self.client.review(review.to_string().into_bytes()).await {
            Ok(answer) => answer,
            Err(error) => return Authentication::Rejected(format!("the token webhook failed: {error}")),
        };
        let Ok(Review { status }) = serde_json::from_slice(&answer) else {
            return Authentication::Rejected("the token webhook did not answer with a review".to_owned());
        };
        let found = match (status.authenticated, status.error.is_empty()) {
            (true, _) => self.authenticated(status, audiences),
            (false, true) => Authentication::NotRecognized,
            // The text may quote the token.
            (false, false) => return Authentication::Rejected("the token webhook rejected the token".to_owned()),
        };
        self.cache.lock().insert(key, found.clone(), now.saturating_add(self.options.kept_for.as_secs()));
        found
    }

    /// The user, if the token is for one of the requested audiences. A response without audiences is valid for this
    /// server.
    fn authenticated(&self, status: Status, requested: &[String]) -> Authentication {
        let own = &self.options.api_audiences;
        let of_token = if status.audiences.is_empty() { own } else { &status.audiences };
        let audiences: Vec<String> = requested.iter().filter(|audience| of_token.contains(audience)).cloned().collect();
        if audiences.is_empty() && !requested.is_empty() {
            return Authentication::NotRecognized;
        }
        let User { username, uid, groups, extra } = status.user;
        let mut user = UserInfo { username, uid, groups, extra };
        add_authenticated_group(&mut user);
        Authentication::Authenticated { user: Arc::new(user), audiences }
    }
}

impl<C: ReviewClient> Authenticator for WebhookTokenAuthenticator<C> {
    fn authenticate<'a>(&'a self, request: &'a AuthenticationRequest<'a>) -> MaybeFuture<'a, Authentication> {
        match request.token.filter(|token| !token.is_empty() && token.len() <= TOKEN_BYTES_MAX) {
            Some(token) => MaybeFuture::new(self.ask(token, request)),
            None => MaybeFuture::ready(Authentication::NotRecognized),
        }
    }
}
