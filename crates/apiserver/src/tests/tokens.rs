//! Tests of service account tokens over HTTP.

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use listwatch_json::json;

use listwatch_access::{
    Authentication, AuthenticationRequest, ISSUER, ServiceAccountTokenOptions, SigningKey, VerificationKey,
};

use crate::{ApiServer, Auth};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use listwatch_json::Value;
use listwatch_storage::Storage;
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
    let elsewhere = &review(json!({"token": token, "audiences": ["other"]})).await["status"];
    let error = format!("token audiences [\"{ISSUER}\"] is invalid for the target audiences [\"other\"]");
    assert_eq!(elsewhere, &json!({"user": {}, "error": error}));
    let of_admin = &review(json!({"token": "admin"})).await["status"];
    assert_eq!((&of_admin["authenticated"], &of_admin["audiences"]), (&json!(true), &json!([ISSUER])));

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
    assert!(matches!(at(expiry + 60).await, Authentication::Authenticated { .. }));
    let rejected = |reason: &str| Authentication::Rejected(reason.to_owned());
    assert_eq!(at(expiry + 61).await, rejected("service account token has expired"));
    assert_eq!(at(expiry - 661).await, rejected("service account token is not valid yet"));
}

#[tokio::test]
async fn token_is_invalid_after_deletion_of_its_bound_object() {
    let server = server(Auth::Open).await;
    let secret = "/api/v1/namespaces/default/secrets";
    assert_eq!(ask(&server, "", &format!("POST {secret}"), json!({"metadata": {"name": "s"}})).await.0, 201);
    let reference = json!({"kind": "Secret", "apiVersion": "v1", "name": "s"});
    let answer = issued(&server, json!({"boundObjectRef": reference})).await;
    assert_eq!(answer["spec"]["boundObjectRef"], reference);
    for api_version in [None, Some(""), Some("v2"), Some("a/b/c")] {
        let mut reference = json!({"kind": "Secret", "name": "s"});
        api_version.into_iter().for_each(|version| reference["apiVersion"] = json!(version));
        issued(&server, json!({"boundObjectRef": reference})).await;
    }
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
            json!({"metadata": {"namespace": "x"}}),
            400,
            "the namespace of the provided object does not match the namespace sent on the request",
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

/// Returns the claims of the token in a response.
fn claims_of(answer: &Value) -> Value {
    let token = answer["status"]["token"].as_str().unwrap();
    serde_json::from_slice(&BASE64.decode(token.split('.').nth(1).unwrap()).unwrap()).unwrap()
}

#[tokio::test]
async fn pod_tokens_live_longer_than_requested_and_other_tokens_at_most_the_maximum() {
    let options = ServiceAccountTokenOptions {
        issuers: vec!["https://issuer".to_owned()],
        api_audiences: vec!["api".to_owned()],
        max_expiration_seconds: Some(4000),
        ..ServiceAccountTokenOptions::default()
    };
    let builder = ApiServer::builder().auth(Auth::Open).service_account_tokens(options);
    let server = builder.storage(listwatch_storage::MemoryStorage::new()).build().await.unwrap();
    let post = async |path: &str, body: Value| {
        let (code, answer) = ask(&server, "", &format!("POST {path}"), body).await;
        assert_eq!(code, 201, "{answer}");
        answer
    };
    post(ACCOUNTS, json!({"metadata": {"name": "robot"}})).await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}], "serviceAccountName": "robot"}});
    post("/api/v1/namespaces/default/pods", pod).await;
    let bound = json!({"kind": "Pod", "apiVersion": "v1", "name": "p"});

    let answer = issued(&server, json!({"boundObjectRef": bound, "expirationSeconds": 3607})).await;
    let claims = claims_of(&answer);
    let after = |claims: &Value, claim: &Value| claim.as_i64().unwrap() - claims["iat"].as_i64().unwrap();
    assert_eq!((&claims["iss"], &claims["aud"]), (&json!("https://issuer"), &json!(["api"])));
    assert_eq!(after(&claims, &claims["exp"]), 31_536_000, "clients that do not read the renewed token still work");
    assert_eq!(after(&claims, &claims["kubernetes.io"]["warnafter"]), 3607);
    assert_eq!(answer["spec"]["expirationSeconds"], 3607, "the answer has the requested time");
    assert_eq!(ask(&server, answer["status"]["token"].as_str().unwrap(), "GET /api/v1/pods", Value::Null).await.0, 200);

    for (spec, seconds) in [
        (json!({"boundObjectRef": bound, "expirationSeconds": 3607, "audiences": ["vault"]}), 3607),
        (json!({"boundObjectRef": bound, "expirationSeconds": 3608}), 3608),
        (json!({"expirationSeconds": 3607}), 3607),
        (json!({"expirationSeconds": 4001}), 4000),
    ] {
        let answer = issued(&server, spec.clone()).await;
        let claims = claims_of(&answer);
        assert_eq!(after(&claims, &claims["exp"]), seconds, "{spec}");
        assert_eq!(answer["spec"]["expirationSeconds"], seconds, "{spec}");
        assert_eq!(claims["kubernetes.io"].get("warnafter"), None, "{spec}");
    }
}

#[tokio::test]
async fn published_keys_verify_tokens_for_other_servers() {
    let pkcs8 = SigningKey::generate().unwrap();
    let key = SigningKey::from_pkcs8(&pkcs8).unwrap();
    let options = ServiceAccountTokenOptions { signing_key: Some(key), ..ServiceAccountTokenOptions::default() };
    let builder = ApiServer::builder().service_account_tokens(options.clone()).external_address("api.example:6443");
    let server = builder.build().await.unwrap();
    let get = async |server: &ApiServer, path: &str| {
        let request = Request::get(path).body(Full::new(Bytes::new())).unwrap();
        let response = server.service().handle(request).await;
        let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
        let headers = (response.status().as_u16(), header("content-type"), header("cache-control"));
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (headers, serde_json::from_slice::<Value>(&body).unwrap_or_default())
    };
    let (headers, found) = get(&server, "/.well-known/openid-configuration").await;
    let cached = "public, max-age=3600".to_owned();
    assert_eq!(headers, (200, "application/json".to_owned(), cached.clone()));
    let expected = json!({
        "issuer": ISSUER,
        "jwks_uri": "https://api.example:6443/openid/v1/jwks",
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"],
    });
    assert_eq!(found, expected);
    let (headers, keys) = get(&server, "/openid/v1/jwks").await;
    assert_eq!(headers, (200, "application/jwk-set+json".to_owned(), cached));
    let account = json!({"metadata": {"name": "robot"}});
    assert_eq!(ask(&server, "", &format!("POST {ACCOUNTS}"), account).await.0, 201);
    let token = issued(&server, json!({})).await["status"]["token"].as_str().unwrap().to_owned();
    let header = BASE64.decode(token.split('.').next().unwrap()).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&header).unwrap()["kid"], keys["keys"][0]["kid"]);

    let plain = ServiceAccountTokenOptions { issuers: vec!["issuer".to_owned()], ..options };
    let server = ApiServer::builder().service_account_tokens(plain).build().await.unwrap();
    assert_eq!(get(&server, "/openid/v1/jwks").await.0.0, 404, "an issuer that is not a URL is not discoverable");
}

#[tokio::test]
async fn issuer_documents_require_the_service_account_issuer_discovery_role() {
    let builder = ApiServer::builder().auth(Auth::Token("admin".to_owned()));
    let builder = builder.authorization([crate::AuthorizationMode::Rbac]);
    let server = builder.anonymous_auth(crate::AnonymousAuth::Enabled).build().await.unwrap();
    let account = json!({"metadata": {"name": "robot"}});
    assert_eq!(ask(&server, "admin", &format!("POST {ACCOUNTS}"), account).await.0, 201);
    let token = issued(&server, json!({})).await["status"]["token"].as_str().unwrap().to_owned();
    for path in ["/openid/v1/jwks", "/.well-known/openid-configuration"] {
        assert_eq!(ask(&server, &token, &format!("GET {path}"), Value::Null).await.0, 200, "{path}");
        let anonymous = Request::get(path).body(Full::new(Bytes::new())).unwrap();
        assert_eq!(server.service().handle(anonymous).await.status().as_u16(), 403, "{path}");
        assert_eq!(ask(&server, "x.y.z", &format!("GET {path}"), Value::Null).await.0, 401, "{path}");
    }
}

#[tokio::test]
async fn token_of_a_replaced_key_is_rejected() {
    let storage: Arc<dyn Storage> = listwatch_storage::MemoryStorage::new();
    let key = || SigningKey::from_pkcs8(&SigningKey::generate().unwrap()).unwrap();
    let server = async |signing: &SigningKey, verification: &[&SigningKey]| {
        let verification_keys: Vec<VerificationKey> = verification.iter().map(|key| key.public().clone()).collect();
        let options = ServiceAccountTokenOptions {
            signing_key: Some(signing.clone()),
            verification_keys,
            ..ServiceAccountTokenOptions::default()
        };
        let builder = ApiServer::builder().auth(Auth::Token("admin".to_owned())).service_account_tokens(options);
        builder.storage(Arc::clone(&storage)).build().await.unwrap()
    };
    let (former, present) = (key(), key());
    let first = server(&former, &[]).await;
    assert_eq!(ask(&first, "admin", &format!("POST {ACCOUNTS}"), json!({"metadata": {"name": "robot"}})).await.0, 201);
    let token = issued(&first, json!({})).await["status"]["token"].as_str().unwrap().to_owned();
    for (verification, code) in [(&[&present, &former][..], 200), (&[&present], 401)] {
        let server = server(&present, verification).await;
        assert_eq!(ask(&server, &token, &format!("GET {ACCOUNTS}"), Value::Null).await.0, code);
    }
}

#[tokio::test]
async fn bootstrap_token_authenticates_only_if_enabled() {
    let storage: Arc<dyn Storage> = listwatch_storage::MemoryStorage::new();
    let server = async |on: bool| {
        let builder = ApiServer::builder().auth(Auth::Token("admin".to_owned())).bootstrap_tokens(on);
        builder.storage(Arc::clone(&storage)).build().await.unwrap()
    };
    let (on, off) = (server(true).await, server(false).await);
    let secret = json!({
        "metadata": {"name": "bootstrap-token-abcdef"},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {
            "token-id": "abcdef",
            "token-secret": "0123456789abcdef",
            "usage-bootstrap-authentication": "true",
            "auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token",
        },
    });
    let secrets = "/api/v1/namespaces/kube-system/secrets";
    assert_eq!(ask(&on, "admin", &format!("POST {secrets}"), secret).await.0, 201);
    let token = "abcdef.0123456789abcdef";
    let (code, me) = ask(&on, token, &format!("POST {WHOAMI}"), json!({})).await;
    assert_eq!(code, 201, "{me}");
    let groups = ["system:bootstrappers", "system:bootstrappers:kubeadm:default-node-token", "system:authenticated"];
    let expected = json!({"username": "system:bootstrap:abcdef", "groups": groups});
    assert_eq!(me["status"]["userInfo"], expected);
    assert_eq!(ask(&off, token, &format!("POST {WHOAMI}"), json!({})).await.0, 401);
    assert_eq!(ask(&on, "abcdef.0123456789abcdeg", &format!("POST {WHOAMI}"), json!({})).await.0, 401);
    assert_eq!(ask(&on, "admin", &format!("DELETE {secrets}/bootstrap-token-abcdef"), Value::Null).await.0, 200);
    assert_eq!(ask(&on, token, &format!("POST {WHOAMI}"), json!({})).await.0, 401);
}

#[tokio::test]
async fn requests_of_an_in_process_client_run_as_its_user() {
    let builder = ApiServer::builder().auth(Auth::Token("admin".to_owned()));
    let server = builder.authorization([crate::AuthorizationMode::Rbac]).build().await.unwrap();
    let send = async |service: crate::ApiService, path: &str| {
        let request = Request::get(path).header("authorization", "Bearer wrong").body(Full::new(Bytes::new())).unwrap();
        service.handle(request).await.status().as_u16()
    };
    assert_eq!(send(server.client_as("bob", &[]), "/api/v1/pods").await, 403);
    assert_eq!(send(server.client_as("bob", &[]), "/apis").await, 200, "each user may read discovery");
    assert_eq!(send(server.client_as("bob", &["system:masters"]), "/api/v1/pods").await, 200);
    assert_eq!(send(server.service(), "/api/v1/pods").await, 401, "the server itself still needs a credential");
}
