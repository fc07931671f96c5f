//! [`WebhookAuthorizer`]: authorizes requests by sending a SubjectAccessReview to a webhook
//! (`plugin/pkg/authorizer/webhook/webhook.go`).

use std::borrow::Cow;
use std::time::{Duration, Instant};

use listwatch_json::{Map, Value, json};
use listwatch_meta::selector::{FieldTerm, LabelOperator, LabelRequirement};
use parking_lot::Mutex;
use serde::Deserialize;

use super::cache::AnswerCache;
use super::conditions::MatchConditions;
use super::{ReviewClient, ReviewVersion, hash};
use crate::authorizer::{Attributes, Authorization, Authorizer, Decision};
use crate::maybe_future::MaybeFuture;
use crate::rules::UserRules;

/// The largest spec of a SubjectAccessReview whose response is cached, in bytes. Larger ones are sent at each request.
const CACHED_REVIEW_BYTES_MAX: usize = 10_000;

/// The length to which the reason or the error of a webhook is truncated, in bytes.
pub(crate) const REASON_BYTES_MAX: usize = 4 << 10;

/// The decision on a request if a webhook does not answer, or if its conditions cannot be evaluated
/// (`failurePolicy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailurePolicy {
    /// Later authorizers decide. If none allows the request, it fails.
    #[default]
    NoOpinion,
    /// The request fails.
    Deny,
}

/// The conditions and the version of the reviews, and the lifetimes of cached responses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizationWebhookOptions {
    /// The version of SubjectAccessReview (`--authorization-webhook-version`).
    pub version: ReviewVersion,
    /// The lifetime of a cached response that allows the request (`--authorization-webhook-cache-authorized-ttl`).
    pub allowed_for: Duration,
    /// The lifetime of any other cached response (`--authorization-webhook-cache-unauthorized-ttl`).
    pub refused_for: Duration,
    /// The time limit of one call (`timeout`).
    pub timeout: Duration,
    /// The decision if the webhook does not answer (`failurePolicy`).
    pub failure_policy: FailurePolicy,
    /// The conditions of the requests that are sent to the webhook (`matchConditions`). The authorizer has no opinion
    /// on other requests.
    pub conditions: MatchConditions,
}

impl Default for AuthorizationWebhookOptions {
    /// The defaults of kube-apiserver's flags.
    fn default() -> Self {
        AuthorizationWebhookOptions {
            version: ReviewVersion::default(),
            allowed_for: Duration::from_secs(5 * 60),
            refused_for: Duration::from_secs(30),
            timeout: Duration::from_secs(30),
            failure_policy: FailurePolicy::default(),
            conditions: MatchConditions::default(),
        }
    }
}

/// Authorizes requests by a webhook. If the webhook does not answer, the [`FailurePolicy`] decides.
pub struct WebhookAuthorizer<C> {
    client: C,
    options: AuthorizationWebhookOptions,
    cache: Mutex<AnswerCache<Authorization>>,
    start: Instant,
}

impl<C> std::fmt::Debug for WebhookAuthorizer<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WebhookAuthorizer")
    }
}

impl<C: ReviewClient> WebhookAuthorizer<C> {
    /// Creates an authorizer with an empty cache.
    pub fn new(client: C, options: AuthorizationWebhookOptions) -> Self {
        WebhookAuthorizer { client, options, cache: Mutex::default(), start: Instant::now() }
    }

    async fn ask(&self, attributes: &Attributes<'_>) -> Authorization {
        match self.options.conditions.matches(attributes) {
            Ok(true) => {}
            Ok(false) => return Authorization::no_opinion(),
            Err(error) => return self.failed(cut(&error)),
        }
        let spec = review_spec(attributes, self.options.version);
        let text = spec.to_string();
        let key = (text.len() <= CACHED_REVIEW_BYTES_MAX).then(|| hash(&[text.as_bytes()]));
        if let Some(found) = key.and_then(|key| self.cache.lock().get(&key, self.millis())) {
            return found;
        }
        let version = self.options.version.name();
        let review = json!({
            "kind": "SubjectAccessReview",
            "apiVersion": format!("authorization.k8s.io/{version}"),
            "metadata": {},
            "spec": spec,
        });
        let answer = match self.client.review(review.to_string().into_bytes()).await {
            Ok(answer) => answer,
            Err(error) => return self.failed(cut(&error)),
        };
        let Some(authorization) = decision(&answer) else {
            return self.failed("the authorization webhook did not answer with a review");
        };
        if let Some(key) = key.filter(|_| authorization.error.is_empty()) {
            let is_allowed = authorization.is_allowed();
            let kept = if is_allowed { self.options.allowed_for } else { self.options.refused_for };
            let until = self.millis().saturating_add(u64::try_from(kept.as_millis()).unwrap_or(u64::MAX));
            self.cache.lock().insert(key, authorization.clone(), until);
        }
        authorization
    }

    fn failed(&self, error: impl Into<Cow<'static, str>>) -> Authorization {
        let decision = match self.options.failure_policy {
            FailurePolicy::NoOpinion => Authorization::no_opinion(),
            FailurePolicy::Deny => Authorization::deny(""),
        };
        decision.with_error(error)
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl<C: ReviewClient> Authorizer for WebhookAuthorizer<C> {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> MaybeFuture<'a, Authorization> {
        MaybeFuture::new(self.ask(attributes))
    }

    fn rules<'a>(&'a self, _user: &'a listwatch_meta::UserInfo, _namespace: &'a str) -> MaybeFuture<'a, UserRules> {
        MaybeFuture::ready(UserRules {
            incomplete: true,
            evaluation_error: "webhook authorizer does not support user rule resolution".to_owned(),
            ..UserRules::default()
        })
    }
}

fn cut(text: &str) -> String {
    listwatch_meta::status::cut(text, REASON_BYTES_MAX)
}

/// Reads the decision from the status of a review. Returns `None` for a body that is not a review.
fn decision(answer: &[u8]) -> Option<Authorization> {
    #[derive(Deserialize)]
    struct Review {
        status: Status,
    }
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Status {
        allowed: bool,
        denied: bool,
        reason: String,
    }
    let Status { allowed, denied, reason } = serde_json::from_slice::<Review>(answer).ok()?.status;
    let decision = match (allowed, denied) {
        (true, true) => {
            let error = "webhook subject access review returned both allow and deny response";
            return Some(Authorization::deny(cut(&reason)).with_error(error));
        }
        (false, true) => Decision::Deny,
        (true, false) => Decision::Allow,
        (false, false) => Decision::NoOpinion,
    };
    Some(Authorization { decision, reason: cut(&reason).into(), error: Cow::Borrowed("") })
}

/// Builds the spec of a review. Empty strings are omitted.
fn review_spec(attributes: &Attributes<'_>, version: ReviewVersion) -> Value {
    let user = attributes.user;
    let mut spec = Map::new();
    let texts = |pairs: &[(&str, &str)]| -> Map {
        pairs.iter().filter(|(_, text)| !text.is_empty()).map(|(key, text)| ((*key).to_owned(), json!(text))).collect()
    };
    if attributes.is_resource_request {
        let mut resource = texts(&[
            ("namespace", attributes.namespace),
            ("verb", attributes.verb),
            ("group", attributes.api_group),
            ("version", attributes.api_version),
            ("resource", attributes.resource),
            ("subresource", attributes.subresource),
            ("name", attributes.name),
        ]);
        let fields: Vec<Value> = attributes.field_selector.iter().map(field_requirement).collect();
        let labels: Vec<Value> = attributes.label_selector.iter().filter_map(label_requirement).collect();
        for (name, requirements) in [("fieldSelector", fields), ("labelSelector", labels)] {
            if !requirements.is_empty() {
                resource.insert(name, json!({"requirements": requirements}));
            }
        }
        spec.insert("resourceAttributes", Value::Object(resource));
    } else {
        let path = texts(&[("path", attributes.path), ("verb", attributes.verb)]);
        spec.insert("nonResourceAttributes", Value::Object(path));
    }
    spec.extend(texts(&[("user", &user.username), ("uid", &user.uid)]));
    if !user.groups.is_empty() {
        let name = if version == ReviewVersion::V1 { "groups" } else { "group" };
        spec.insert(name, json!(user.groups));
    }
    if !user.extra.is_empty() {
        spec.insert("extra", json!(user.extra));
    }
    Value::Object(spec)
}

pub(super) fn field_requirement(term: &FieldTerm) -> Value {
    let operator = if term.negated { "NotIn" } else { "In" };
    json!({"key": term.field, "operator": operator, "values": [term.value]})
}

/// Converts a label requirement. Returns `None` for the operators `Gt` and `Lt`, which reviews do not have. Without
/// such a requirement, the review describes a broader request.
pub(super) fn label_requirement(requirement: &LabelRequirement) -> Option<Value> {
    let (key, values) = (requirement.key(), requirement.values());
    Some(match requirement.operator() {
        LabelOperator::In(_) => json!({"key": key, "operator": "In", "values": values}),
        LabelOperator::NotIn(_) => json!({"key": key, "operator": "NotIn", "values": values}),
        LabelOperator::Exists => json!({"key": key, "operator": "Exists"}),
        LabelOperator::DoesNotExist => json!({"key": key, "operator": "DoesNotExist"}),
        LabelOperator::GreaterThan(_) | LabelOperator::LessThan(_) => return None,
    })
}
