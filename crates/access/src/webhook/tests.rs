//! Tests the webhook authenticator and authorizer with responses from a list.

use std::sync::Arc;
use std::time::Duration;

use listwatch_json::{Value, json};
use listwatch_meta::{FieldSelector, LabelSelector, UserInfo};
use parking_lot::Mutex;

use super::*;
use crate::authenticator::{Authentication, AuthenticationRequest, Authenticator as _};
use crate::authorizer::{Attributes, Authorization, Authorizer as _};

/// Responds to each review with the next status, and records the reviews.
#[derive(Clone, Default)]
struct Scripted {
    answers: Arc<Mutex<Vec<Result<Value, String>>>>,
    asked: Arc<Mutex<Vec<Value>>>,
}

impl Scripted {
    fn new(answers: impl IntoIterator<Item = Result<Value, &'static str>>) -> Self {
        let mut answers: Vec<_> = answers.into_iter().map(|answer| answer.map_err(str::to_owned)).collect();
        answers.reverse();
        Scripted { answers: Arc::new(Mutex::new(answers)), asked: Arc::default() }
    }

    fn asked(&self) -> usize {
        self.asked.lock().len()
    }
}

impl ReviewClient for Scripted {
    fn review<'a>(&'a self, body: Vec<u8>) -> Pin<Box<dyn Future<Output = ReviewAnswer> + Send + 'a>> {
        self.asked.lock().push(serde_json::from_slice(&body).expect("a review in JSON"));
        let answer = self.answers.lock().pop().unwrap_or(Err("no further answer".to_owned()));
        Box::pin(async move { answer.map(|status| json!({"status": status}).to_string().into_bytes()) })
    }
}

fn alice() -> UserInfo {
    UserInfo {
        username: "alice".to_owned(),
        uid: "7".to_owned(),
        groups: vec!["dev".to_owned()],
        extra: [("a".to_owned(), vec!["b".to_owned()])].into(),
    }
}

fn authorizer(client: &Scripted, options: AuthorizationWebhookOptions) -> WebhookAuthorizer<Scripted> {
    WebhookAuthorizer::new(client.clone(), options)
}

#[tokio::test]
async fn review_has_the_attributes_and_selectors_of_the_request() {
    let client = Scripted::new([Ok(json!({"allowed": true})), Ok(json!({}))]);
    let v1 = AuthorizationWebhookOptions { version: ReviewVersion::V1, ..Default::default() };
    let authorizer = authorizer(&client, v1);
    let fields = FieldSelector::parse("status.phase!=Failed,metadata.name=a").unwrap();
    let labels = LabelSelector::parse("x in (a,b),!y,z>5").unwrap();
    let user = alice();
    let attributes = Attributes {
        namespace: "n",
        api_version: "v1",
        subresource: "log",
        field_selector: fields.terms(),
        label_selector: labels.requirements(),
        ..Attributes::resource(&user, "list", "apps", "pods")
    };
    assert!(authorizer.authorize(&attributes).await.is_allowed());
    let _ = authorizer.authorize(&Attributes::path(&user, "get", "/metrics")).await;
    let asked = client.asked.lock().clone();
    let expected = json!({
        "kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "metadata": {},
        "spec": {
            "resourceAttributes": {
                "namespace": "n", "verb": "list", "group": "apps", "version": "v1", "resource": "pods", "subresource": "log",
                "fieldSelector": {"requirements": [
                    {"key": "metadata.name", "operator": "In", "values": ["a"]},
                    {"key": "status.phase", "operator": "NotIn", "values": ["Failed"]},
                ]},
                "labelSelector": {"requirements": [
                    {"key": "x", "operator": "In", "values": ["a", "b"]},
                    {"key": "y", "operator": "DoesNotExist"},
                ]},
            },
            "user": "alice", "uid": "7", "groups": ["dev"], "extra": {"a": ["b"]},
        },
    });
    assert_eq!(asked[0], expected);
    assert_eq!(asked[1]["spec"]["nonResourceAttributes"], json!({"path": "/metrics", "verb": "get"}));
}

#[tokio::test]
async fn webhook_response_becomes_the_authorization_decision() {
    let user = alice();
    let attributes = Attributes::resource(&user, "get", "", "pods");
    let both = "webhook subject access review returned both allow and deny response";
    for (answer, expected) in [
        (Ok(json!({"allowed": true, "reason": "r"})), Authorization::allow("r")),
        (Ok(json!({"denied": true, "reason": "r"})), Authorization::deny("r")),
        (Ok(json!({"allowed": false})), Authorization::no_opinion()),
        (Ok(json!({"allowed": true, "denied": true})), Authorization::deny("").with_error(both)),
        (Err("connection refused"), Authorization::no_opinion().with_error("connection refused")),
        (
            Ok(json!("text")),
            Authorization::no_opinion().with_error("the authorization webhook did not answer with a review"),
        ),
    ] {
        let client = Scripted::new([answer.clone()]);
        let found = authorizer(&client, Default::default()).authorize(&attributes).await;
        assert_eq!(found, expected, "{answer:?}");
        let spec = client.asked.lock()[0].clone();
        assert_eq!(
            (&spec["apiVersion"], &spec["spec"]["group"]),
            (&json!("authorization.k8s.io/v1beta1"), &json!(["dev"]))
        );
    }
}

#[tokio::test]
async fn webhook_decisions_are_cached_and_errors_are_not() {
    let user = alice();
    let get = Attributes::resource(&user, "get", "", "pods");
    let kept = Duration::from_secs(3600);
    let ask =
        async |allowed_for, refused_for, answers: [Result<Value, &'static str>; 2], attributes: &Attributes<'_>| {
            let client = Scripted::new(answers);
            let options = AuthorizationWebhookOptions { allowed_for, refused_for, ..Default::default() };
            let authorizer = authorizer(&client, options);
            let _ = authorizer.authorize(attributes).await;
            let second = authorizer.authorize(attributes).await;
            (client.asked(), second.decision == crate::Decision::Allow)
        };
    let (yes, no) = (|| Ok(json!({"allowed": true})), || Ok(json!({"allowed": false})));
    assert_eq!(ask(kept, Duration::ZERO, [yes(), no()], &get).await, (1, true));
    assert_eq!(ask(Duration::ZERO, kept, [yes(), no()], &get).await, (2, false));
    assert_eq!(ask(Duration::ZERO, kept, [no(), yes()], &get).await, (1, false));
    assert_eq!(ask(kept, kept, [Err("down"), yes()], &get).await, (2, true));
    let long = "x".repeat(10_000);
    let large = Attributes { name: &long, ..get };
    assert_eq!(ask(kept, kept, [yes(), no()], &large).await, (2, false), "a large review is not kept");
}

fn authenticator(client: &Scripted) -> WebhookTokenAuthenticator<Scripted> {
    let options = TokenWebhookOptions {
        version: ReviewVersion::V1,
        kept_for: Duration::from_secs(120),
        api_audiences: vec!["api".to_owned()],
    };
    WebhookTokenAuthenticator::new(client.clone(), options)
}

fn user_of(found: Authentication) -> Result<(String, Vec<String>, Vec<String>), String> {
    match found {
        Authentication::Authenticated { user, audiences } => {
            Ok((user.username.clone(), user.groups.clone(), audiences))
        }
        Authentication::Rejected(why) => Err(why),
        Authentication::NotRecognized => Err(String::new()),
    }
}

#[tokio::test]
async fn token_webhook_response_yields_the_user_and_the_common_audiences() {
    let authenticated = |audiences: &[&str]| {
        Ok(json!({"authenticated": true, "user": {"username": "bob", "groups": ["g"]}, "audiences": audiences}))
    };
    let bob = |audience: &str| {
        Ok(("bob".to_owned(), vec!["g".to_owned(), "system:authenticated".to_owned()], vec![audience.to_owned()]))
    };
    for (answer, requested, expected) in [
        (authenticated(&[]), &[][..], bob("api")),
        (authenticated(&["api", "x"]), &[], bob("api")),
        (authenticated(&["x"]), &[], Err(String::new())),
        (authenticated(&["x"]), &["x", "y"], bob("x")),
        (authenticated(&[]), &["x"], Err(String::new())),
        (Ok(json!({"authenticated": false})), &[], Err(String::new())),
        (Ok(json!({"error": "token s3cret is bad"})), &[], Err("the token webhook rejected the token".to_owned())),
        (Err("down"), &[], Err("the token webhook failed: down".to_owned())),
    ] {
        let client = Scripted::new([answer.clone()]);
        let requested: Vec<String> = requested.iter().map(|audience| (*audience).to_owned()).collect();
        let request = AuthenticationRequest::of_token(Some("s3cret"), 0).with_audiences(&requested);
        let found = user_of(authenticator(&client).authenticate(&request).await);
        assert_eq!(found, expected, "{answer:?} {requested:?}");
        let audiences = if requested.is_empty() { vec!["api".to_owned()] } else { requested };
        assert_eq!(client.asked.lock()[0]["spec"], json!({"token": "s3cret", "audiences": audiences}));
    }
}

#[tokio::test]
async fn token_reviews_are_cached_until_their_ttl_and_errors_are_not() {
    let yes = || Ok(json!({"authenticated": true, "user": {"username": "bob"}}));
    let client = Scripted::new([yes(), Ok(json!({"authenticated": false})), Err("down"), yes()]);
    let authenticator = authenticator(&client);
    let ask = async |token: &str, now: i64| {
        let request = AuthenticationRequest::of_token(Some(token), now);
        user_of(authenticator.authenticate(&request).await).map(|(name, ..)| name)
    };
    assert_eq!((ask("a", 0).await.is_ok(), ask("a", 119).await.is_ok(), client.asked()), (true, true, 1));
    assert_eq!((ask("a", 120).await, client.asked()), (Err(String::new()), 2));
    assert_eq!(ask("b", 0).await, Err("the token webhook failed: down".to_owned()));
    assert_eq!((ask("b", 0).await, client.asked()), (Ok("bob".to_owned()), 4));
    let none = authenticator.authenticate(&AuthenticationRequest::of_token(None, 0)).await;
    assert_eq!((none, client.asked()), (Authentication::NotRecognized, 4));
    let long = "x".repeat(super::authenticator::TOKEN_BYTES_MAX + 1);
    assert_eq!((ask(&long, 0).await, client.asked()), (Err(String::new()), 4), "no webhook sees a token of that size");
}
