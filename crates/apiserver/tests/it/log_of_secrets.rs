//! Checks that the log of a server contains no part of a token, a key or a Secret, even at the most verbose level.

use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use listwatch_access::TokenFileAuthenticator;
use listwatch_apiserver::{AnonymousAuth, ApiServer, Auth, AuthorizationMode};
use listwatch_json::Value;
use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::span;

/// Collects the text of all events and spans.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<String>>);

impl Visit for Recorder {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = writeln!(self.0.lock(), "{field}={value:?}");
    }
}

impl tracing::Subscriber for Recorder {
    fn enabled(&self, _metadata: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &span::Attributes<'_>) -> span::Id {
        span.record(&mut self.clone());
        span::Id::from_u64(1)
    }

    fn record(&self, _span: &span::Id, values: &span::Record<'_>) {
        values.record(&mut self.clone());
    }

    fn record_follows_from(&self, _span: &span::Id, _follows: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _span: &span::Id) {}

    fn exit(&self, _span: &span::Id) {}
}

/// The length of a part of a secret that no log may contain.
const PART_BYTES: usize = 12;

#[tokio::test]
async fn log_at_every_level_contains_no_token_key_or_secret() {
    let recorder = Recorder::default();
    let _guard = tracing::subscriber::set_default(recorder.clone());
    tracing::trace!("the log is recorded");
    assert!(recorder.0.lock().contains("the log is recorded"));
    let server = ApiServer::builder()
        .auth(Auth::Token("administrators-token-0123456789".to_owned()))
        .authenticator(TokenFileAuthenticator::new("bobs-token-abcdefghijkl,bob,1\n").unwrap())
        .anonymous_auth(AnonymousAuth::Enabled)
        .authorization([AuthorizationMode::Rbac])
        .bootstrap_tokens(true)
        .build()
        .await
        .unwrap();
    let send = async |token: &str, line: &str, headers: &[(&str, &str)], body: &str| -> (u16, Value) {
        let (method, path) = line.split_once(' ').unwrap();
        let mut request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        if !token.is_empty() {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let response = server.service().handle(request.body(Full::new(Bytes::from(body.to_owned()))).unwrap()).await;
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (code, serde_json::from_slice(&bytes).unwrap_or_default())
    };
    let admin = "administrators-token-0123456789";
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    assert_eq!(send(admin, &format!("POST {accounts}"), &[], r#"{"metadata":{"name":"a"}}"#).await.0, 201);
    let (code, issued) = send(admin, &format!("POST {accounts}/a/token"), &[], r#"{"spec":{}}"#).await;
    assert_eq!(code, 201, "{issued}");
    let issued = issued["status"]["token"].as_str().unwrap().to_owned();
    let secret = r#"{"metadata":{"name":"s"},"stringData":{"password":"the-password-of-a-secret"}}"#;
    let secrets = "/api/v1/namespaces/default/secrets";
    assert_eq!(send(admin, &format!("POST {secrets}"), &[], secret).await.0, 201);

    let (signed, signature) = issued.rsplit_once('.').unwrap();
    let altered = format!("{signed}.{}", signature.chars().rev().collect::<String>());
    let bootstrap = "abcdef.0123456789abcdef";
    let garbage = "garbage-garbage-garbage-garbage".repeat(4_000);
    let none = "eyJhbGciOiJub25lIn0.eyJpc3MiOiJodHRwczovL2t1YmVybmV0ZXMiLCJzdWIiOiJhZG1pbiJ9.";
    let tokens =
        [admin, "bobs-token-abcdefghijkl", &issued, &altered, bootstrap, &garbage, none, "wrong-token-wrong-token"];
    for token in tokens {
        for line in ["GET /api/v1/nodes", "GET /api/v1/namespaces/default/secrets/s", "GET /version", "GET /nonsense"] {
            send(token, line, &[], "").await;
        }
        let review = format!(r#"{{"spec":{{"token":"{token}"}}}}"#);
        send(admin, "POST /apis/authentication.k8s.io/v1/tokenreviews", &[], &review).await;
        // A body that cannot be read, and one that is invalid.
        send(admin, "POST /apis/authentication.k8s.io/v1/tokenreviews", &[], &review[..review.len() - 1]).await;
        let wrong = format!(r#"{{"metadata":{{"name":"Wrong_Name"}},"stringData":{{"k":"{token}"}},"type":7}}"#);
        send(admin, &format!("POST {secrets}"), &[], &wrong).await;
        if token.len() < 1_000 {
            use base64::Engine as _;
            let encoded = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(token);
            let protocols = format!("base64url.bearer.authorization.k8s.io.{encoded}, v4.channel.k8s.io");
            let upgrade = [
                ("connection", "Upgrade"),
                ("upgrade", "websocket"),
                ("sec-websocket-version", "13"),
                ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
                ("sec-websocket-protocol", &*protocols),
            ];
            send("", "GET /api/v1/namespaces/default/pods/p/exec?command=id", &upgrade, "").await;
            send(admin, &format!("GET /api/v1/nodes?token={token}"), &[("cookie", token)], "").await;
        }
    }
    server.shutdown();
    let log = recorder.0.lock().clone();
    for secret in tokens.into_iter().chain(["the-password-of-a-secret", "dGhlLXBhc3N3b3JkLW9m"]) {
        let bytes = secret.as_bytes();
        for part in bytes.windows(PART_BYTES.min(bytes.len())).take(4_000).step_by(3) {
            let part = String::from_utf8_lossy(part);
            let at = log.find(&*part);
            let around =
                at.map(|at| log.chars().skip(log[..at].chars().count().saturating_sub(80)).take(200).collect());
            assert_eq!(around, None::<String>, "{part:?} of {} is in the log", &secret[..secret.len().min(40)]);
        }
    }
}
