//! Tokens of service accounts: JSON Web Tokens that this server signs (`serviceaccounts/<name>/token`) and
//! takes as credentials, each until it ends, or until its account or the object that it is bound to is
//! gone (`pkg/serviceaccount/claims.go`).
//!
//! They are signed with HMAC-SHA-256 by a key that is kept in the store, beside the Secrets: it is made
//! when a token is first signed or judged, and all servers of a store share it, so a token outlives each
//! of them. Nobody else can check one. Nothing else is stored.
//!
//! That what a token is bound to is there is looked up in the caches that run, then in the store, and is
//! believed for [`BELIEVED_SECONDS`]: so long a token may outlive its account.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use listwatch_meta::{Key, Status};
use listwatch_storage::{CreateError, Storage};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::sync::OnceCell;

use crate::auth::{self, User};
use crate::backend::Backend;

/// Who signs, and the audience of a token that names none (the usual `--service-account-issuer`).
pub(crate) const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// The bytes of a block of SHA-256, which are as much key as HMAC can use.
const KEY_BYTES: usize = 64;

/// Where the key is stored: no resource is below this.
const KEY_PLACE: (&str, &str) = ("listwatch/keys", "serviceaccounts");

/// What was found of a token is believed for so many seconds (`tokenSuccessCacheTTL`).
const BELIEVED_SECONDS: i64 = 10;

/// So many tokens are remembered; when there are more, all are forgotten and looked up again.
const BELIEVED_MAX: usize = 10_000;

/// What stands in front of each token: the encoded header, and a dot.
static HEADER: LazyLock<String> = LazyLock::new(|| format!("{}.", BASE64.encode(br#"{"alg":"HS256","typ":"JWT"}"#)));

/// The key, once it is known, and which tokens were found good lately.
#[derive(Default)]
pub(crate) struct Tokens {
    signer: OnceCell<Signer>,
    /// When each was found good, by the ids of tokens that were signed here.
    believed: Mutex<HashMap<String, i64>>,
}

/// The key of a store's servers.
#[derive(Clone, PartialEq, Eq)]
struct Signer([u8; KEY_BYTES]);

/// What a token says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claims {
    /// Whom it is for.
    pub(crate) aud: Vec<String>,
    /// When it ends; like all times here, in seconds since 1970.
    pub(crate) exp: i64,
    /// When it was issued.
    pub(crate) iat: i64,
    pub(crate) iss: String,
    /// Its own id.
    pub(crate) jti: String,
    #[serde(rename = "kubernetes.io")]
    pub(crate) about: About,
    /// When it begins.
    pub(crate) nbf: i64,
    pub(crate) sub: String,
}

/// Whose a token is, and what it is bound to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct About {
    pub(crate) namespace: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) node: Option<Named>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) pod: Option<Named>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) secret: Option<Named>,
    pub(crate) serviceaccount: Named,
}

/// An object, and which one of that name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Named {
    pub(crate) name: String,
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub(crate) uid: String,
}

/// What is to be thought of a credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is no token of a service account, signed here.
    Unknown,
    /// It is one that has ended, or was never for this server.
    Refused,
    /// It is a service account's, and for these of the audiences that were asked about.
    Known { user: User, audiences: Vec<String> },
}

/// The name of a service account as a user.
pub(crate) fn username(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}

impl Tokens {
    /// The key, read from the store or put there by the first who asks.
    async fn signer(&self, storage: &Arc<dyn Storage>) -> Result<&Signer, Status> {
        self.signer.get_or_try_init(|| Signer::load(storage)).await
    }

    /// The token that says this.
    ///
    /// # Errors
    /// What the store said when it was asked for the key.
    pub(crate) async fn sign(&self, storage: &Arc<dyn Storage>, claims: &Claims) -> Result<String, Status> {
        Ok(self.signer(storage).await?.sign(claims))
    }

    /// What a token says that was signed with our key, whether it has ended or not.
    async fn open(&self, storage: &Arc<dyn Storage>, token: &str) -> Option<Claims> {
        match self.signer(storage).await {
            Ok(signer) => signer.open(token),
            Err(status) => {
                tracing::warn!(%status, "cannot read the key of service accounts' tokens");
                None
            }
        }
    }

    fn is_believed(&self, id: &str, now: i64) -> bool {
        // A clock that was set back makes nothing good that was not.
        self.believed.lock().get(id).is_some_and(|at| (0..BELIEVED_SECONDS).contains(&(now - at)))
    }

    fn believe(&self, id: &str, now: i64) {
        let mut believed = self.believed.lock();
        if believed.len() >= BELIEVED_MAX {
            believed.retain(|_, at| (0..BELIEVED_SECONDS).contains(&(now - *at)));
        }
        if believed.len() >= BELIEVED_MAX {
            believed.clear();
        }
        believed.insert(id.to_owned(), now);
    }
}

impl Signer {
    async fn load(storage: &Arc<dyn Storage>) -> Result<Self, Status> {
        let key = Key::new(KEY_PLACE.0, None, KEY_PLACE.1).map_err(Status::internal)?;
        let (found, _) = storage.get(&key).await.map_err(Status::internal)?;
        if let Some(found) = found {
            return Signer::from_stored(&found.value);
        }
        let mut bytes = [0; KEY_BYTES];
        rand::fill(&mut bytes);
        let value = serde_json::json!({"key": BASE64.encode(bytes)}).to_string();
        match storage.create(&key, value.into(), None).await {
            Ok(_) => Ok(Signer(bytes)),
            // Another server was faster.
            Err(CreateError::AlreadyExists { current, .. }) => Signer::from_stored(&current.value),
            Err(error) => Err(Status::internal(error)),
        }
    }

    fn from_stored(value: &[u8]) -> Result<Self, Status> {
        let key = serde_json::from_slice::<Value>(value).ok().and_then(|stored| {
            let bytes = BASE64.decode(stored.get("key")?.as_str()?).ok()?;
            bytes.try_into().ok()
        });
        key.map(Signer).ok_or_else(|| Status::internal("the stored key of service accounts' tokens is damaged"))
    }

    fn sign(&self, claims: &Claims) -> String {
        let claims = serde_json::to_vec(claims).expect("texts and numbers serialize");
        let mut token = format!("{}{}", *HEADER, BASE64.encode(claims));
        let signature = BASE64.encode(hmac(&self.0, token.as_bytes()));
        token.push('.');
        token.push_str(&signature);
        token
    }

    fn open(&self, token: &str) -> Option<Claims> {
        let (signed, signature) = token.rsplit_once('.')?;
        let claims = signed.strip_prefix(HEADER.as_str())?;
        let expected = BASE64.encode(hmac(&self.0, signed.as_bytes()));
        if !crate::auth::same_secret(signature, &expected) {
            return None;
        }
        serde_json::from_slice(&BASE64.decode(claims).ok()?).ok()
    }
}

/// Judges a credential, for one of these audiences; without any, for this server.
pub(crate) async fn judge(backend: &Backend, token: &str, audiences: &[String], now: i64) -> Verdict {
    // Whatever else is presented costs no more than this.
    if !token.starts_with(HEADER.as_str()) {
        return Verdict::Unknown;
    }
    let Some(claims) = backend.tokens().open(backend.storage(), token).await else { return Verdict::Unknown };
    let own = [ISSUER.to_owned()];
    let asked = if audiences.is_empty() { &own[..] } else { audiences };
    let audiences: Vec<String> = asked.iter().filter(|asked| claims.aud.contains(asked)).cloned().collect();
    if audiences.is_empty() || now < claims.nbf || now >= claims.exp {
        return Verdict::Refused;
    }
    if backend.tokens().is_believed(&claims.jti, now) {
        return Verdict::Known { user: user(&claims), audiences };
    }
    let About { namespace, node, pod, secret, serviceaccount } = &claims.about;
    let bound = [("serviceaccounts", Some(serviceaccount)), ("pods", pod.as_ref()), ("secrets", secret.as_ref())];
    for (plural, object) in bound {
        if let Some(object) = object
            && !is_there(backend, plural, Some(namespace), object).await
        {
            return Verdict::Refused;
        }
    }
    // Of a pod's node the token says where the pod was; it is bound to a node alone.
    if let (Some(node), None) = (node, pod)
        && !is_there(backend, "nodes", None, node).await
    {
        return Verdict::Refused;
    }
    backend.tokens().believe(&claims.jti, now);
    Verdict::Known { user: user(&claims), audiences }
}

/// Is the very object there, and not on its way out?
async fn is_there(backend: &Backend, plural: &str, namespace: Option<&str>, object: &Named) -> bool {
    let registry = backend.registry();
    let Some(resource) = registry.find("", "v1", plural) else { return false };
    let key: Key = match resource.key(namespace, &object.name) {
        Ok(key) => key,
        Err(_) => return false,
    };
    // A cache may be behind: it can say that something is there, not that it is not.
    let cached = backend.running_cacher(resource).and_then(|cacher| cacher.peek(&key));
    if cached.is_some_and(|cached| cached.uid() == object.uid.as_str() && !cached.is_being_deleted()) {
        return true;
    }
    let Ok((Some(found), _)) = backend.storage().get(&key).await else { return false };
    let Ok(tree) = serde_json::from_slice::<Value>(&found.value) else { return false };
    let metadata = |name: &str| tree.get("metadata").and_then(|metadata| metadata.get(name)?.as_str());
    metadata("uid").unwrap_or_default() == object.uid && metadata("deletionTimestamp").is_none()
}

fn user(claims: &Claims) -> User {
    let About { namespace, node, pod, serviceaccount, .. } = &claims.about;
    let mut extra = vec![("authentication.kubernetes.io/credential-id", format!("JTI={}", claims.jti))];
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
    let mut groups = auth::service_account_groups(namespace);
    groups.push("system:authenticated".to_owned());
    User {
        username: username(namespace, &serviceaccount.name),
        uid: serviceaccount.uid.clone(),
        groups,
        extra: extra.into_iter().map(|(name, value)| (name.to_owned(), vec![value])).collect(),
    }
}

/// HMAC-SHA-256 (RFC 2104).
fn hmac(key: &[u8; KEY_BYTES], text: &[u8]) -> [u8; 32] {
    let padded = |with: u8| key.map(|byte| byte ^ with);
    let inner = Sha256::new().chain_update(padded(0x36)).chain_update(text).finalize();
    Sha256::new().chain_update(padded(0x5c)).chain_update(inner).finalize().into()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::Request;
    use http_body_util::{BodyExt as _, Full};
    use serde_json::json;

    use super::*;
    use crate::{ApiServer, Auth};

    const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
    const WHOAMI: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

    /// A server that wants a token, asked by who has one.
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
        let server = ApiServer::builder().auth(auth).build().await.unwrap();
        let account = json!({"metadata": {"name": "robot"}});
        assert_eq!(ask(&server, "admin", &format!("POST {ACCOUNTS}"), account).await.0, 201);
        server
    }

    async fn issued(server: &ApiServer, spec: Value) -> Value {
        let (code, answer) = ask(server, "admin", &format!("POST {ACCOUNTS}/robot/token"), json!({"spec": spec})).await;
        assert_eq!(code, 201, "{answer}");
        answer
    }

    #[tokio::test]
    async fn a_token_speaks_for_its_account() {
        let server = server(Auth::Token("admin".to_owned())).await;
        let answer = issued(&server, json!({})).await;
        let spec = json!({"audiences": [ISSUER], "expirationSeconds": 3600});
        assert_eq!((&answer["kind"], &answer["spec"]), (&json!("TokenRequest"), &spec));
        assert_eq!(
            (&answer["metadata"]["name"], &answer["metadata"]["namespace"]),
            (&json!("robot"), &json!("default"))
        );
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

        let review =
            async |spec: Value| ask(&server, "admin", &format!("POST {REVIEWS}"), json!({"spec": spec})).await.1;
        let reviewed = review(json!({"token": token})).await;
        assert_eq!(reviewed["status"]["authenticated"], true);
        assert_eq!((&reviewed["status"]["user"], &reviewed["status"]["audiences"]), (user, &json!([ISSUER])));
        assert_eq!(review(json!({"token": token, "audiences": ["other"]})).await["status"].get("authenticated"), None);

        // Of an account that is made anew, or not there, it says nothing.
        for (line, body) in [
            (format!("DELETE {ACCOUNTS}/robot"), Value::Null),
            (format!("POST {ACCOUNTS}"), json!({"metadata": {"name": "robot"}})),
        ] {
            assert!(ask(&server, "admin", &line, body).await.0 < 300);
            server.shared.backend.tokens().believed.lock().clear();
            assert_eq!(ask(&server, token, &format!("GET {ACCOUNTS}"), Value::Null).await.0, 401, "{line}");
        }
    }

    #[tokio::test]
    async fn a_token_of_others_or_of_the_past_is_refused() {
        let server = server(Auth::Open).await;
        let elsewhere = issued(&server, json!({"audiences": ["vault"], "expirationSeconds": 600})).await;
        let token = elsewhere["status"]["token"].as_str().unwrap();
        assert_eq!(ask(&server, token, "GET /api/v1/pods", Value::Null).await.0, 401, "it is not for this server");
        let reviewed = ask(
            &server,
            "",
            &format!("POST {REVIEWS}"),
            json!({"spec": {"token": token, "audiences": ["vault", "x"]}}),
        )
        .await
        .1;
        assert_eq!(reviewed["status"]["audiences"], json!(["vault"]));
        let ours = issued(&server, json!({"expirationSeconds": 600})).await;
        let token = ours["status"]["token"].as_str().unwrap();
        let backend = &server.shared.backend;
        let ends = backend.tokens().open(backend.storage(), token).await.unwrap().exp;
        assert!(matches!(judge(backend, token, &[], ends - 1).await, Verdict::Known { .. }));
        assert_eq!(judge(backend, token, &[], ends).await, Verdict::Refused);
        assert_eq!(judge(backend, token, &[], ends - 601).await, Verdict::Refused, "it has not begun");
    }

    #[tokio::test]
    async fn a_token_ends_with_what_it_is_bound_to() {
        let server = server(Auth::Open).await;
        let secret = "/api/v1/namespaces/default/secrets";
        assert_eq!(ask(&server, "", &format!("POST {secret}"), json!({"metadata": {"name": "s"}})).await.0, 201);
        let reference = json!({"kind": "Secret", "apiVersion": "v1", "name": "s"});
        let answer = issued(&server, json!({"boundObjectRef": reference})).await;
        assert_eq!(answer["spec"]["boundObjectRef"], reference);
        let token = answer["status"]["token"].as_str().unwrap();
        assert_eq!(ask(&server, token, "GET /api/v1/pods", Value::Null).await.0, 200);
        assert_eq!(ask(&server, "", &format!("DELETE {secret}/s"), Value::Null).await.0, 200);
        server.shared.backend.tokens().believed.lock().clear();
        assert_eq!(ask(&server, token, "GET /api/v1/pods", Value::Null).await.0, 401);

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
    async fn all_servers_of_a_store_take_a_token() {
        let storage: Arc<dyn Storage> = listwatch_storage::MemoryStorage::new();
        let server = || async { ApiServer::builder().storage(Arc::clone(&storage)).build().await.unwrap() };
        let (one, other) = (server().await, server().await);
        let account = json!({"metadata": {"name": "robot"}});
        assert_eq!(ask(&one, "", &format!("POST {ACCOUNTS}"), account).await.0, 201);
        let from = |answer: Value| answer["status"]["token"].as_str().unwrap().to_owned();
        // Both at once, when there is no key yet.
        let issued = tokio::join!(issued(&one, json!({})), issued(&other, json!({})));
        for token in [from(issued.0), from(issued.1)] {
            for server in [&one, &other, &server().await] {
                assert_eq!(ask(server, &token, &format!("GET {ACCOUNTS}/robot"), Value::Null).await.0, 200);
            }
        }
        let stored = Key::new(KEY_PLACE.0, None, KEY_PLACE.1).unwrap();
        let (Some(found), _) = storage.get(&stored).await.unwrap() else { panic!("the key is stored") };
        assert!(Signer::from_stored(&found.value).is_ok() && Signer::from_stored(b"{}").is_err());
    }

    #[tokio::test]
    async fn what_was_found_is_believed_for_a_while() {
        let server = server(Auth::Open).await;
        let backend = &server.shared.backend;
        let answer = issued(&server, json!({})).await;
        let token = answer["status"]["token"].as_str().unwrap();
        let begins = backend.tokens().open(backend.storage(), token).await.unwrap().nbf;
        let judged =
            async |after: i64| matches!(judge(backend, token, &[], begins + after).await, Verdict::Known { .. });
        assert!(judged(0).await);
        assert_eq!(ask(&server, "", &format!("DELETE {ACCOUNTS}/robot"), Value::Null).await.0, 200);
        assert!(judged(BELIEVED_SECONDS - 1).await, "the store was not asked again");
        assert!(!judged(BELIEVED_SECONDS).await);
        assert!(!judged(BELIEVED_SECONDS + 1).await, "what was refused is not believed");
        let tokens = Tokens::default();
        (0..2 * BELIEVED_MAX).for_each(|id| tokens.believe(&id.to_string(), 0));
        assert!(tokens.believed.lock().len() <= BELIEVED_MAX);
    }

    fn claims() -> Claims {
        let serviceaccount = Named { name: "robot".to_owned(), uid: "u1".to_owned() };
        Claims {
            aud: vec![ISSUER.to_owned()],
            exp: 200,
            iat: 100,
            iss: ISSUER.to_owned(),
            jti: "j".to_owned(),
            about: About { namespace: "a".to_owned(), node: None, pod: None, secret: None, serviceaccount },
            nbf: 100,
            sub: username("a", "robot"),
        }
    }

    #[test]
    fn hmac_is_that_of_the_rfc() {
        // RFC 4231, test cases 1 and 2; a short key is one with zeros behind.
        let check = |key: &[u8], text: &str, expected: &str| {
            let mut padded = [0; KEY_BYTES];
            padded[..key.len()].copy_from_slice(key);
            let found: String = hmac(&padded, text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(found, expected);
        };
        check(&[0x0b; 20], "Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
        check(
            b"Jefe",
            "what do ya want for nothing?",
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
        );
    }

    #[test]
    fn only_what_was_signed_here_opens() {
        let tokens = Signer([7; KEY_BYTES]);
        let token = tokens.sign(&claims());
        assert_eq!(tokens.open(&token), Some(claims()));
        assert_eq!(Signer([8; KEY_BYTES]).open(&token), None, "another store's key");
        let parts: Vec<&str> = token.split('.').collect();
        assert_eq!(parts.len(), 3);
        let other = BASE64.encode(serde_json::to_vec(&Claims { sub: "admin".to_owned(), ..claims() }).unwrap());
        for forged in [
            format!("{}.{other}.{}", parts[0], parts[2]),
            format!("{}.{}.", parts[0], parts[1]),
            format!("{}.{}", parts[0], parts[1]),
            format!("{}.{}.{}", BASE64.encode(br#"{"alg":"none"}"#), parts[1], parts[2]),
            String::new(),
        ] {
            assert_eq!(tokens.open(&forged), None, "{forged}");
        }
    }
}
