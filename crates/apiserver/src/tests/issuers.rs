//! Tests tokens of an issuer over HTTPS. The issuer is another server of this crate, which signs service account tokens
//! and publishes the keys.

use std::net::{SocketAddr, TcpListener};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use listwatch_access::oidc::{AuthenticationConfiguration, JwtAuthenticator, JwtIssuer};
use listwatch_access::{
    Authentication, AuthenticationRequest, Authenticator as _, ServiceAccountTokenOptions, SigningKey,
};
use listwatch_json::{Value, json};

use crate::pki::Pki;
use crate::webhook_client::IssuerClient;
use crate::{ApiServer, Auth, AuthorizationMode, Serving};

/// A running issuer.
struct Issuer {
    server: ApiServer,
    serving: Serving,
}

impl Issuer {
    /// Starts an issuer with this signing key. The issuer in its tokens is the address.
    async fn start(pki: &Pki, address: SocketAddr, key: &[u8]) -> Self {
        let options = ServiceAccountTokenOptions {
            issuers: vec![format!("https://{address}")],
            signing_key: SigningKey::from_pkcs8(key),
            ..ServiceAccountTokenOptions::default()
        };
        let server = ApiServer::builder().auth(Auth::Open).service_account_tokens(options);
        let server = server.external_address(&address.to_string()).build().await.unwrap();
        let serving = server.serve(TcpListener::bind(address).unwrap(), pki).unwrap();
        let accounts = "/api/v1/namespaces/default/serviceaccounts";
        post(&server, "", accounts, json!({"metadata": {"name": "a"}})).await;
        Issuer { server, serving }
    }

    async fn stop(self) {
        self.server.shutdown();
        self.serving.shutdown().await;
    }

    /// Requests a token for the audience `me`.
    async fn token(&self) -> String {
        let path = "/api/v1/namespaces/default/serviceaccounts/a/token";
        let (_, answer) = post(&self.server, "", path, json!({"spec": {"audiences": ["me"]}})).await;
        answer["status"]["token"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }
}

async fn post(server: &ApiServer, token: &str, path: &str, body: Value) -> (u16, Value) {
    let mut request = Request::post(path).header("content-type", "application/json");
    if !token.is_empty() {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let response = server.service().handle(request.body(Full::new(Bytes::from(body.to_string()))).unwrap()).await;
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap_or_default())
}

/// Returns an address on which no process listens.
fn free_address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], listwatch_test_ports::free_port().unwrap()))
}

/// Returns the configuration of an issuer whose certificate is signed by `authority`.
fn configured(url: &str, authority: &str) -> JwtIssuer {
    let file = json!({
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AuthenticationConfiguration",
        "jwt": [{
            "issuer": {"url": url, "audiences": ["me"], "certificateAuthority": authority},
            "claimMappings": {"username": {"claim": "sub", "prefix": "remote:"}},
        }],
    });
    AuthenticationConfiguration::parse(&file.to_string(), &[]).unwrap().issuers.remove(0)
}

/// Authenticates a token. Returns the user, or the reason of the rejection.
async fn ask(authenticator: &JwtAuthenticator<IssuerClient>, token: &str, now: i64) -> Result<String, String> {
    match authenticator.authenticate(&AuthenticationRequest::of_token(Some(token), now)).await {
        Authentication::Authenticated { user, .. } => Ok(user.username.clone()),
        Authentication::Rejected(why) => Err(why),
        Authentication::NotRecognized => Err("not recognized".to_owned()),
    }
}

fn now() -> i64 {
    time::OffsetDateTime::now_utc().unix_timestamp()
}

#[tokio::test]
async fn issuer_keys_are_read_over_https_and_updated_after_rotation() {
    let (pki, other) = (Pki::in_memory(&[]).unwrap(), Pki::in_memory(&[]).unwrap());
    let (old, new) = (SigningKey::generate().unwrap(), SigningKey::generate().unwrap());
    let address = free_address();
    let url = format!("https://{address}");
    let user = Ok("remote:system:serviceaccount:default:a".to_owned());
    let authenticator = |authority: &Pki| {
        JwtAuthenticator::new(configured(&url, authority.ca_pem()), IssuerClient, vec!["api".to_owned()])
    };
    let trusting = authenticator(&pki);
    let issuer = Issuer::start(&pki, address, &old).await;
    let (of_old, begin) = (issuer.token().await, now());
    assert_eq!(ask(&trusting, &of_old, begin).await, user);
    let refused = Err("oidc: authenticator not initialized".to_owned());
    assert_eq!(ask(&authenticator(&other), &of_old, begin).await, refused, "another authority signed the certificate");
    let foreign = JwtAuthenticator::new(configured("https://localhost:1", pki.ca_pem()), IssuerClient, Vec::new());
    assert_eq!(ask(&foreign, &of_old, begin).await, Err("not recognized".to_owned()));
    issuer.stop().await;
    assert_eq!(ask(&authenticator(&pki), &of_old, begin).await, refused, "nothing listens there");
    assert_eq!(ask(&trusting, &of_old, begin + 20).await, user, "the keys stay while the issuer is away");

    // The issuer comes back with another key.
    let issuer = Issuer::start(&pki, address, &new).await;
    let of_new = issuer.token().await;
    let unknown = Err("oidc: failed to verify signature".to_owned());
    assert_eq!(ask(&trusting, &of_new, begin + 5).await, unknown, "the keys were just read");
    assert_eq!(ask(&trusting, &of_new, begin + 20).await, user);
    assert_eq!(ask(&trusting, &of_old, begin + 40).await, unknown, "the key is withdrawn");
    issuer.stop().await;
}

#[tokio::test]
async fn token_of_an_https_issuer_authenticates_requests_of_a_server() {
    let pki = Pki::in_memory(&[]).unwrap();
    let address = free_address();
    let issuer = Issuer::start(&pki, address, &SigningKey::generate().unwrap()).await;
    let server = ApiServer::builder()
        .auth(Auth::Token("admin".to_owned()))
        .token_issuers(vec![configured(&format!("https://{address}"), pki.ca_pem())])
        .authorization([AuthorizationMode::Rbac])
        .build()
        .await
        .unwrap();
    let review = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let token = issuer.token().await;
    let (code, answer) = post(&server, &token, review, json!({})).await;
    let username = &answer["status"]["userInfo"]["username"];
    assert_eq!((code, username), (201, &json!("remote:system:serviceaccount:default:a")), "{answer}");
    let altered = format!("{}AAAA", &token[..token.len() - 4]);
    assert_eq!(post(&server, &altered, review, json!({})).await.0, 401);
    let (code, answer) = post(&server, &token, "/api/v1/namespaces", json!({"metadata": {"name": "x"}})).await;
    assert_eq!(code, 403, "no role names the user: {answer}");
    issuer.stop().await;
}
