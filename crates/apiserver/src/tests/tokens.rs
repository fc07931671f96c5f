//! Tests of service account tokens over HTTP.

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use serde_json::json;

use listwatch_access::{Authentication, AuthenticationRequest, ISSUER};

use crate::{ApiServer, Auth};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use listwatch_storage::Storage;
use serde_json::Value;
use std::sync::Arc;

const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const WHOAMI: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

/// Sends a request with a token.
async fn ask(server: &ApiServer, token: &str, line: &str, body: Value) -> (u16, Value) {
    let (method, path) = line.split_once(' ').unwrap();
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    let request = request.header("authorization", format!("Bearer {token}"));
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let response = server.service().handle(request.body(Full::new(Bytes::from(body))).unwrap()).await;
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&body).unwrap_or_default())
}

async fn server(auth: Auth) -> ApiServer {
    let storage = listwatch_storage::MemoryStorage::new();
    let server = ApiServer::builder().auth(auth).storage(storage).build().await.unwrap();
    let account = json!({"metadata": {"name": "robot"}});
    assert_eq!(ask(&server, "admin", &format!("POST {ACCOUNTS}"), account).await.0, 201);
    server
}

/// Starts another server on the same store, without cached tokens.
async fn restarted(server: &ApiServer) -> ApiServer {
    let storage = Arc::clone(server.shared.backend.storage());
    ApiServer::builder().auth(server.shared.auth.clone()).storage(storage).build().await.unwrap()
}

async fn issued(server: &ApiServer, spec: Value) -> Value {
    let (code, answer) = ask(server, "admin", &format!("POST {ACCOUNTS}/robot/token"), json!({"spec": spec})).await;
    assert_eq!(code, 201, "{answer}");
    answer
}

#[tokio::test]
async fn token_authenticates_its_service_account() {
    let server = server(Auth::Token("admin".to_owned())).await;
    let answer = issued(&server, json!({})).await;
    let spec = json!({"audiences": [ISSUER], "expirationSeconds": 3600});
    assert_eq!((&answer["kind"], &answer["spec"]), (&json!("TokenRequest"), &spec));
    assert_eq!((&answer["metadata"]["name"], &answer["metadata"]["namespace"]), (&json!("robot"), &json!("default")));
    let token = answer["status"]["token"].as_str().unwrap();
    let claims: Value = serde_json::from_slice(&BASE64.decode(token.split('.').nth(1).unwrap()).unwrap()).unwrap();
    assert_eq!(claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap(), 3600);
    let parse = |text: &Value| {
        let format = &time::format_description::well_known::Rfc3339;
        time::OffsetDateTime::parse(text.as_str().unwrap(), format).unwrap().unix_timestamp()
    };
    assert_eq!(parse(&answer["status"]["expirationTimestamp"]), claims["exp"].as_i64().unwrap());

    let (code, me) = ask(&server, token, &format!("POST {WHOAMI}"), json!({})).await;
    let user = &me["status"]["userInfo"];
    assert_eq!((code, &user["username"]), (201, &json!("system:serviceaccount:default:robot")), "{me}");
    assert_eq!(user["groups"][1], "system:serviceaccounts:default");
    assert_eq!(user["uid"], answer["metadata"]["uid"]);
    let (_, me) = ask(&server, "admin", &format!("POST {WHOAMI}"), json!({})).await;
    assert_eq!(me["status"]["userInfo"]["username"], "admin");
    assert_eq!(ask(&server, token, &format!("GET {ACCOUNTS}/robot"), Value::Null).await.0, 200);
    let forged = format!("{}x", &token[..token.len() - 1]);
    assert_eq!(ask(&server, &forged, &format!("GET {ACCOUNTS}/robot"), Value::Null).await.0, 401);

    let review = async |spec: Value| ask(&server, "admin", &format!("POST {REVIEWS}"), json!({"spec": spec})).await.1;
    let reviewed = review(json!({"token": token})).await;
    assert_eq!(reviewed["status"]["authenticated"], true);
    assert_eq!((&reviewed["status"]["user"], &reviewed["status"]["audiences"]), (user, &json!([ISSUER])));
    assert_eq!(review(json!({"token": token, "audiences": ["other"]})).await["status"].get("authenticated"), None);

    // A token is not valid for another account with the same name.
    for (line, body) in [
        (format!("DELETE {ACCOUNTS}/robot"), Value::Null),
        (format!("POST {ACCOUNTS}"), json!({"metadata": {"name": "robot"}})),
    ] {
        assert!(ask(&server, "admin", &line, body).await.0 < 300);
        let server = restarted(&server).await;
        assert_eq!(ask(&server, token, &format!("GET {ACCOUNTS}"), Value::Null).await.0, 401, "{line}");
    }
}

#[tokio::test]
async fn token_for_another_audience_or_time_is_rejected() {
    let server = server(Auth::Open).await;
    let elsewhere = issued(&server, json!({"audiences": ["vault"], "expirationSeconds": 600})).await;
    let token = elsewhere["status"]["token"].as_str().unwrap();
    assert_eq!(ask(&server, token, "GET /api/v1/pods", Value::Null).await.0, 401, "it is not for this server");
    let reviewed =
        ask(&server, "", &format!("POST {REVIEWS}"), json!({"spec": {"token": token, "audiences": ["vault", "x"]}}))
            .await
            .1;
    assert_eq!(reviewed["status"]["audiences"], json!(["vault"]));
    let ours = issued(&server, json!({"expirationSeconds": 600})).await;
    let token = ours["status"]["token"].as_str().unwrap();
    let claims: Value = serde_json::from_slice(&BASE64.decode(token.split('.').nth(1).unwrap()).unwrap()).unwrap();
    let expiry = claims["exp"].as_i64().unwrap();
    let at = async |now| {
        server.shared.access.authenticators.authenticate(&AuthenticationRequest::of_token(Some(token), now)).await
    };
    assert!(matches!(at(expiry - 1).await, Authentication::Authenticated { .. }));
    assert_eq!(at(expiry).await, Authentication::Rejected);
    assert_eq!(at(expiry - 601).await, Authentication::Rejected, "it is not valid yet");
}

#[tokio::test]
async fn token_is_invalid_after_deletion_of_its_bound_object() {
    let server = server(Auth::Open).await;
    let secret = "/api/v1/namespaces/default/secrets";
    assert_eq!(ask(&server, "", &format!("POST {secret}"), json!({"metadata": {"name": "s"}})).await.0, 201);
    let reference = json!({"kind": "Secret", "apiVersion": "v1", "name": "s"});
    let answer = issued(&server, json!({"boundObjectRef": reference})).await;
    assert_eq!(answer["spec"]["boundObjectRef"], reference);
    let token = answer["status"]["token"].as_str().unwrap();
    assert_eq!(ask(&server, token, "GET /api/v1/pods", Value::Null).await.0, 200);
    assert_eq!(ask(&server, "", &format!("DELETE {secret}/s"), Value::Null).await.0, 200);
    assert_eq!(ask(&restarted(&server).await, token, "GET /api/v1/pods", Value::Null).await.0, 401);

    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}], "serviceAccountName": "other"}});
    assert_eq!(ask(&server, "", "POST /api/v1/namespaces/default/pods", pod).await.0, 201);
    let of_request = |spec: Value| json!({"spec": spec});
    let bound = |kind: &str, name: &str| {
        of_request(json!({"boundObjectRef": {"kind": kind, "apiVersion": "v1", "name": name}}))
    };
    for (path, body, code, message) in [
        ("nobody", json!({}), 404, "serviceaccounts \"nobody\" not found"),
        (
            "robot",
            json!({"metadata": {"name": "x"}}),
            422,
            "TokenRequest.authentication.k8s.io \"robot\" is invalid: metadata.name: Invalid value: \"x\": must match the service account name if specified",
        ),
        (
            "robot",
            of_request(json!({"expirationSeconds": 599})),
            422,
            "TokenRequest.authentication.k8s.io \"\" is invalid: spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes",
        ),
        (
            "robot",
            of_request(json!({"expirationSeconds": 4_294_967_297_i64})),
            422,
            "TokenRequest.authentication.k8s.io \"\" is invalid: spec.expirationSeconds: Invalid value: 4294967297: may not specify a duration larger than 2^32 seconds",
        ),
        ("robot", bound("Secret", "s"), 404, "secrets \"s\" not found"),
        ("robot", bound("ConfigMap", "s"), 400, "cannot bind token to object of type /v1, Kind=ConfigMap"),
        (
            "robot",
            bound("Pod", "p"),
            400,
            "cannot bind token for serviceaccount \"robot\" to pod running with different serviceaccount name.",
        ),
    ] {
        let (found, status) = ask(&server, "", &format!("POST {ACCOUNTS}/{path}/token"), body).await;
        assert_eq!((found, status["message"].as_str().unwrap_or_default()), (code, message));
    }
    assert_eq!(ask(&server, "", &format!("GET {ACCOUNTS}/robot/token"), Value::Null).await.0, 405);
}

#[tokio::test]
async fn token_is_valid_on_all_servers_of_a_store() {
    let storage: Arc<dyn Storage> = listwatch_storage::MemoryStorage::new();
    let server = || async { ApiServer::builder().storage(Arc::clone(&storage)).build().await.unwrap() };
    let (one, other) = (server().await, server().await);
    let account = json!({"metadata": {"name": "robot"}});
    assert_eq!(ask(&one, "", &format!("POST {ACCOUNTS}"), account).await.0, 201);
    let from = |answer: Value| answer["status"]["token"].as_str().unwrap().to_owned();
    // Both servers start at the same time, when no signing key exists yet.
    let issued = tokio::join!(issued(&one, json!({})), issued(&other, json!({})));
    for token in [from(issued.0), from(issued.1)] {
        for server in [&one, &other, &server().await] {
            assert_eq!(ask(server, &token, &format!("GET {ACCOUNTS}/robot"), Value::Null).await.0, 200);
        }
    }
}
