//! Tests webhooks that authenticate tokens and authorize requests, over HTTP.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use listwatch_apiserver::access_webhooks::{
    AuthorizationWebhookOptions, Client, FailurePolicy, MatchConditions, ReviewVersion, TokenWebhookOptions,
};
use listwatch_apiserver::{ApiServer, Auth, AuthorizationMode, Builder};
use listwatch_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// A webhook on a port, with the received reviews.
#[derive(Clone, Default)]
struct Webhook {
    received: Arc<Mutex<Vec<Value>>>,
}

impl Webhook {
    /// Starts the webhook, and returns a client.
    async fn start(&self, answer: fn(&Value) -> Value) -> Client {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = client(&format!("http://{}/review", listener.local_addr().unwrap()));
        let received = Arc::clone(&self.received);
        tokio::spawn(async move {
            loop {
                let (connection, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(connection, Arc::clone(&received), answer));
            }
        });
        client
    }

    fn received(&self) -> Vec<Value> {
        self.received.lock().unwrap().clone()
    }
}

async fn serve(mut connection: TcpStream, received: Arc<Mutex<Vec<Value>>>, answer: fn(&Value) -> Value) {
    let (mut bytes, mut more) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = connection.read(&mut more).await {
        bytes.extend_from_slice(&more[..count]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((_, body)) = text.split_once("\r\n\r\n") else { continue };
        let Ok(review) = serde_json::from_str::<Value>(body) else { continue };
        let status = json!({"status": answer(&review["spec"])}).to_string();
        received.lock().unwrap().push(review);
        let response = format!("HTTP/1.1 201 Created\r\ncontent-length: {}\r\n\r\n{status}", status.len());
        connection.write_all(response.as_bytes()).await.unwrap();
        bytes.clear();
    }
}

fn client(url: &str) -> Client {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kubeconfig");
    let text = format!(
        "clusters: [{{name: c, cluster: {{server: '{url}'}}}}]\ncontexts: [{{name: x, context: {{cluster: c}}}}]\n\
         current-context: x\n"
    );
    std::fs::write(&path, text).unwrap();
    Client::try_from(path.as_path()).unwrap()
}

fn builder() -> Builder {
    ApiServer::builder().auth(Auth::Token("s3cret".to_owned()))
}

async fn send(server: &ApiServer, line: &str, token: &str, impersonated: Option<&str>) -> (u16, String) {
    let (method, path) = line.split_once(' ').unwrap();
    let mut request = Request::builder().method(method).uri(path).header("authorization", format!("Bearer {token}"));
    if let Some(user) = impersonated {
        request = request.header("impersonate-user", user);
    }
    let response = server.service().handle(request.body(Full::new(Bytes::new())).unwrap()).await;
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, String::from_utf8_lossy(&bytes).into_owned())
}

#[tokio::test]
async fn authorization_webhook_is_asked_only_if_earlier_modes_do_not_decide() {
    let webhook = Webhook::default();
    let client = webhook
        .start(|spec| match spec["resourceAttributes"]["resource"].as_str() {
            Some("pods") => json!({"allowed": true}),
            Some("secrets") => json!({"denied": true, "reason": "never"}),
            _ => json!({}),
        })
        .await;
    let options = AuthorizationWebhookOptions { version: ReviewVersion::V1, ..Default::default() };
    let modes = [AuthorizationMode::Rbac, AuthorizationMode::Webhook];
    let server = builder().authorization(modes).authorization_webhook(client, options).build().await.unwrap();
    for (path, code) in [("/api/v1/pods", 200), ("/api/v1/secrets", 403), ("/api/v1/nodes", 403), ("/version", 200)] {
        for _ in 0..2 {
            let (found, text) = send(&server, &format!("GET {path}"), "s3cret", Some("bob")).await;
            assert_eq!(found, code, "{path}: {text}");
            assert_eq!(text.contains(": never"), path.ends_with("secrets"), "{text}");
        }
    }
    assert_eq!(send(&server, "GET /api/v1/nodes", "s3cret", None).await.0, 200, "system:masters is never asked about");
    let asked: Vec<Value> =
        webhook.received().iter().map(|review| review["spec"]["resourceAttributes"]["resource"].clone()).collect();
    assert_eq!(
        asked,
        [json!("pods"), json!("secrets"), json!("nodes")],
        "answers are kept, and RBAC allows the version"
    );
}

#[tokio::test]
async fn authorization_webhooks_are_asked_in_order_about_requests_that_match_their_conditions() {
    let (first, second) = (Webhook::default(), Webhook::default());
    let of_first = first.start(|_| json!({"denied": true, "reason": "first"})).await;
    let of_second = second.start(|_| json!({"allowed": true})).await;
    let options = |conditions: &[&str]| AuthorizationWebhookOptions {
        version: ReviewVersion::V1,
        conditions: MatchConditions::compile("", conditions.iter().copied()).unwrap(),
        ..Default::default()
    };
    let secrets = "has(request.resourceAttributes) && request.resourceAttributes.resource == 'secrets'";
    let modes = [AuthorizationMode::Webhook, AuthorizationMode::Rbac, AuthorizationMode::Webhook];
    let server =
        builder().authorization(modes).authorization_webhook(of_first, options(&[secrets])).authorization_webhook(
            of_second,
            options(&["request.user != 'eve'", "request.resourceAttributes.verb == 'list'"]),
        );
    let server = server.build().await.unwrap();
    for (path, user, code) in [
        ("/api/v1/secrets", "bob", 403),
        ("/api/v1/pods", "bob", 200),
        ("/api/v1/pods", "eve", 403),
        ("/api/v1/nodes/n", "bob", 403),
        // The second condition needs a resource: its error counts, and nobody else allows the path.
        ("/metrics", "bob", 500),
        ("/version", "bob", 200),
    ] {
        let (found, text) = send(&server, &format!("GET {path}"), "s3cret", Some(user)).await;
        assert_eq!(found, code, "{path} {user}: {text}");
        assert_eq!(text.contains(": first"), path.ends_with("secrets"), "{text}");
    }
    assert_eq!((first.received().len(), second.received().len()), (1, 1), "only matching requests are asked about");
}

#[tokio::test]
async fn failed_authorization_webhook_with_policy_deny_stops_later_modes() {
    let port = listwatch_test_ports::free_port().unwrap();
    for (failure_policy, condition, code) in [
        (FailurePolicy::NoOpinion, "request.resourceAttributes.name == 'x'", 200),
        (FailurePolicy::Deny, "request.resourceAttributes.name == 'x'", 500),
        (FailurePolicy::Deny, "request.user == 'eve'", 200),
    ] {
        let client = client(&format!("http://127.0.0.1:{port}/review"));
        let conditions = MatchConditions::compile("", [condition]).unwrap();
        let options = AuthorizationWebhookOptions { failure_policy, conditions, ..Default::default() };
        let modes = [AuthorizationMode::Webhook, AuthorizationMode::AlwaysAllow];
        let server = builder().authorization(modes).authorization_webhook(client, options).build().await.unwrap();
        let (found, text) = send(&server, "GET /metrics", "s3cret", Some("bob")).await;
        assert_eq!(found, code, "{failure_policy:?} {condition}: {text}");
    }
}

#[tokio::test]
async fn unreachable_authorization_webhook_never_allows_a_request() {
    // Nothing listens there.
    let port = listwatch_test_ports::free_port().unwrap();
    let client = client(&format!("http://127.0.0.1:{port}/review"));
    let modes = [AuthorizationMode::Webhook, AuthorizationMode::Rbac];
    let server = builder().authorization(modes).authorization_webhook(client, Default::default());
    // The deadline of the request ends the retries.
    let server = server.request_timeout(Duration::from_secs(5)).build().await.unwrap();
    let (code, text) = send(&server, "GET /api/v1/pods", "s3cret", Some("bob")).await;
    assert!(matches!(code, 500 | 504), "{code} {text}");
    assert_eq!(send(&server, "GET /api/v1/pods", "s3cret", None).await.0, 200);
}

#[tokio::test]
async fn token_webhook_is_asked_only_about_unknown_tokens() {
    let webhook = Webhook::default();
    let client = webhook
        .start(|spec| match spec["token"].as_str() {
            Some("bobs") => json!({"authenticated": true, "user": {"username": "bob", "groups": ["system:masters"]}}),
            _ => json!({"authenticated": false}),
        })
        .await;
    let options = TokenWebhookOptions {
        version: ReviewVersion::V1,
        kept_for: Duration::from_secs(120),
        api_audiences: vec!["https://kubernetes.default.svc.cluster.local".to_owned()],
    };
    let server = builder().token_webhook(client, options).build().await.unwrap();
    for (token, code) in [("s3cret", 200), ("bobs", 200), ("bobs", 200), ("another", 401)] {
        assert_eq!(send(&server, "GET /api/v1/pods", token, None).await.0, code, "{token}");
    }
    let asked: Vec<Value> = webhook.received().iter().map(|review| review["spec"]["token"].clone()).collect();
    assert_eq!(asked, [json!("bobs"), json!("another")], "the administrator's token is sent to nobody");
}
