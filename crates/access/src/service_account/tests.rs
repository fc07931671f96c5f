//! Tests of the authenticator of service account tokens.

use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use listwatch_json::{Value, json};

use super::*;
use crate::authentication_recorder::{AuthenticationRecorder, AuthenticationRecords};

const RSA_PUBLIC: &str = include_str!("test_keys/rsa-public.pem");

fn key(pem: &str) -> SigningKey {
    SigningKey::read(pem.as_bytes()).unwrap()
}

fn rsa() -> SigningKey {
    key(include_str!("test_keys/rsa.pem"))
}

fn p256() -> SigningKey {
    key(include_str!("test_keys/p256.pem"))
}

/// A key that the server does not have.
fn foreign() -> SigningKey {
    key(include_str!("test_keys/p384-pkcs8.pem"))
}

fn reference(name: &str) -> BoundObjectReference {
    BoundObjectReference { name: name.to_owned(), uid: format!("uid-of-{name}") }
}

fn claims() -> Claims {
    Claims {
        aud: vec![ISSUER.to_owned()],
        exp: Some(2000),
        iat: Some(1000),
        iss: ISSUER.to_owned(),
        jti: "j".to_owned(),
        kubernetes: KubernetesClaims {
            namespace: "a".to_owned(),
            serviceaccount: reference("robot"),
            ..KubernetesClaims::default()
        },
        nbf: Some(1000),
        sub: service_account_username("a", "robot"),
    }
}

/// The existing objects, by `resource/namespace/name`.
struct Objects {
    options: ServiceAccountTokenOptions,
    found: Mutex<HashMap<String, FoundObject>>,
    /// The number of reads of objects.
    reads: AtomicUsize,
    secret: Mutex<Option<LegacyTokenSecret>>,
    /// The uses of tokens in Secrets.
    uses: Mutex<Vec<LegacyTokenUse>>,
}

impl Objects {
    fn new(names: &[&str]) -> Self {
        let object = |path: &&str| {
            let name = path.rsplit('/').next().unwrap();
            (path.to_string(), FoundObject { uid: format!("uid-of-{name}"), deletion: None })
        };
        let options = ServiceAccountTokenOptions {
            issuers: vec![ISSUER.to_owned(), "https://former".to_owned()],
            api_audiences: vec![ISSUER.to_owned(), "api".to_owned()],
            ..ServiceAccountTokenOptions::default()
        };
        let found = Mutex::new(names.iter().map(object).collect());
        Objects { options, found, reads: AtomicUsize::new(0), secret: Mutex::default(), uses: Mutex::default() }
    }

    fn set(&self, path: &str, uid: &str, deletion: Option<i64>) {
        self.found.lock().insert(path.to_owned(), FoundObject { uid: uid.to_owned(), deletion });
    }
}

#[async_trait::async_trait]
impl ServiceAccountObjects for &Objects {
    fn options(&self) -> &ServiceAccountTokenOptions {
        &self.options
    }

    async fn keys(&self) -> Option<Arc<TokenKeys>> {
        let verification = vec![p256().public().clone(), rsa().public().clone()];
        Some(Arc::new(TokenKeys { signing: rsa(), verification }))
    }

    async fn bound_object(
        &self,
        resource: &str,
        namespace: Option<&str>,
        object: &BoundObjectReference,
    ) -> Option<FoundObject> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let path = format!("{resource}/{}/{}", namespace.unwrap_or_default(), object.name);
        self.found.lock().get(&path).cloned()
    }

    async fn legacy_secret(&self, _: &str, _: &str) -> Option<LegacyTokenSecret> {
        self.secret.lock().clone()
    }

    async fn legacy_account(&self, namespace: &str, reference: &BoundObjectReference) -> Option<LegacyTokenAccount> {
        let account = self.bound_object("serviceaccounts", Some(namespace), reference).await?;
        let prefix = format!("generated/{namespace}/{}/", reference.name);
        let secrets =
            self.found.lock().keys().filter_map(|path| path.strip_prefix(&prefix)).map(str::to_owned).collect();
        Some(LegacyTokenAccount { account, secrets })
    }

    fn report_use(&self, used: LegacyTokenUse) {
        self.uses.lock().push(used);
    }
}

/// Returns the user and audiences, the reason of a rejection, or `not recognized`.
async fn answer_to(objects: &Objects, token: &str, audiences: &[&str], now: i64) -> String {
    let authenticator = ServiceAccountTokenAuthenticator::new(objects);
    let audiences: Vec<String> = audiences.iter().map(|audience| (*audience).to_owned()).collect();
    let request = AuthenticationRequest::of_token(Some(token), now).with_audiences(&audiences);
    // The second answer is that of a token with a cached signature.
    let first = authenticator.authenticate(&request).await;
    assert_eq!(first, authenticator.authenticate(&request).await);
    match first {
        Authentication::Authenticated { user, audiences } => format!("{} {audiences:?}", user.username),
        Authentication::Rejected(reason) => reason,
        Authentication::NotRecognized => "not recognized".to_owned(),
    }
}

async fn answer(objects: &Objects, claims: &Claims, audiences: &[&str], now: i64) -> String {
    answer_to(objects, &claims.sign(&rsa()).unwrap(), audiences, now).await
}

const ROBOT: &str = r#"system:serviceaccount:a:robot ["https://kubernetes.default.svc.cluster.local"]"#;

#[tokio::test]
async fn token_of_each_key_authenticates_its_service_account() {
    let objects = Objects::new(&["serviceaccounts/a/robot"]);
    for key in [rsa(), p256()] {
        let token = claims().sign(&key).unwrap();
        let header: Value = serde_json::from_slice(&BASE64.decode(token.split('.').next().unwrap()).unwrap()).unwrap();
        assert_eq!(header, json!({"alg": key.public().algorithm(), "kid": key.public().id()}));
        assert_eq!(answer_to(&objects, &token, &[], 1000).await, ROBOT);
    }
    let former = Claims { iss: "https://former".to_owned(), ..claims() };
    assert_eq!(answer(&objects, &former, &[], 1000).await, ROBOT, "each issuer of the server is accepted");
}

#[tokio::test]
async fn token_is_valid_for_its_time_with_a_minute_of_leeway() {
    let objects = Objects::new(&["serviceaccounts/a/robot"]);
    let (expired, early) = ("service account token has expired", "service account token is not valid yet");
    for (now, expected) in [(940, ROBOT), (939, early), (2000, ROBOT), (2060, ROBOT), (2061, expired)] {
        assert_eq!(answer(&objects, &claims(), &[], now).await, expected, "at {now}");
    }
    let future = Claims { nbf: None, iat: Some(5000), exp: None, ..claims() };
    let issued = "service account token is issued in the future";
    assert_eq!(answer(&objects, &future, &[], 4939).await, issued);
    assert_eq!(answer(&objects, &future, &[], 4940).await, ROBOT);
}

#[tokio::test]
async fn token_is_valid_for_its_audiences_only() {
    let objects = Objects::new(&["serviceaccounts/a/robot"]);
    let robot = |audiences: &str| format!("system:serviceaccount:a:robot {audiences}");
    for (token, requested, expected) in [
        (&["api"][..], &[][..], robot(r#"["api"]"#)),
        (&[], &[], robot(&format!("[{ISSUER:?}, \"api\"]"))),
        (&["vault", "api"], &["x", "vault"], robot(r#"["vault"]"#)),
        (
            &["vault"],
            &[],
            format!("token audiences [\"vault\"] is invalid for the target audiences [\"{ISSUER}\" \"api\"]"),
        ),
        (&["api"], &["other"], r#"token audiences ["api"] is invalid for the target audiences ["other"]"#.to_owned()),
    ] {
        let claims = Claims { aud: token.iter().map(|audience| (*audience).to_owned()).collect(), ..claims() };
        assert_eq!(answer(&objects, &claims, requested, 1000).await, expected, "{token:?} for {requested:?}");
    }
}

#[tokio::test]
async fn token_is_rejected_after_its_objects_are_deleted_or_replaced() {
    let objects = Objects::new(&["serviceaccounts/a/robot", "pods/a/p", "secrets/a/s", "nodes//n"]);
    let bound = |kind: &str, name: &str| {
        let mut kubernetes = claims().kubernetes;
        match kind {
            "pod" => kubernetes.pod = Some(reference(name)),
            "secret" => kubernetes.secret = Some(reference(name)),
            _ => kubernetes.node = Some(reference(name)),
        }
        Claims { kubernetes, ..claims() }
    };
    let invalidated = "service account token has been invalidated";
    for (kind, name, path) in [("pod", "p", "pods/a/p"), ("secret", "s", "secrets/a/s"), ("node", "n", "nodes//n")] {
        assert_eq!(answer(&objects, &bound(kind, name), &[], 1000).await, ROBOT, "{kind}");
        assert_eq!(answer(&objects, &bound(kind, "gone"), &[], 1000).await, invalidated, "{kind}");
        objects.set(path, "other", None);
        let expected = format!("{kind} UID (other) does not match service account {kind} ref claim (uid-of-{name})");
        assert_eq!(answer(&objects, &bound(kind, name), &[], 1000).await, expected);
        objects.set(path, &format!("uid-of-{name}"), Some(1000));
        assert_eq!(answer(&objects, &bound(kind, name), &[], 1060).await, ROBOT, "{kind} ends gracefully");
        assert_eq!(answer(&objects, &bound(kind, name), &[], 1061).await, invalidated, "{kind}");
        objects.set(path, &format!("uid-of-{name}"), None);
    }
    let mut of_pod = bound("pod", "p");
    of_pod.kubernetes.node = Some(reference("gone"));
    assert_eq!(answer(&objects, &of_pod, &[], 1000).await, ROBOT, "the node of a pod may be gone");

    objects.set("serviceaccounts/a/robot", "uid-of-robot", Some(1000));
    assert_eq!(answer(&objects, &claims(), &[], 1060).await, ROBOT);
    let deleted = "service account a/robot has been deleted";
    assert_eq!(answer(&objects, &claims(), &[], 1061).await, deleted);
    objects.set("serviceaccounts/a/robot", "other", None);
    let expected = "service account UID (other) does not match claim (uid-of-robot)";
    assert_eq!(answer(&objects, &claims(), &[], 1000).await, expected);
    objects.found.lock().clear();
    assert_eq!(answer(&objects, &claims(), &[], 1000).await, "serviceaccounts \"robot\" not found");
}

#[tokio::test]
async fn bound_objects_are_checked_at_each_request() {
    let objects = Objects::new(&["serviceaccounts/a/robot"]);
    let authenticator = ServiceAccountTokenAuthenticator::new(&objects);
    let token = claims().sign(&rsa()).unwrap();
    let request = AuthenticationRequest::of_token(Some(&token), 1000);
    assert!(matches!(authenticator.authenticate(&request).await, Authentication::Authenticated { .. }));
    objects.found.lock().clear();
    assert!(matches!(authenticator.authenticate(&request).await, Authentication::Rejected(_)));
}

#[tokio::test]
async fn forged_and_garbage_tokens_authenticate_no_user() {
    let objects = Objects::new(&["serviceaccounts/a/robot"]);
    let encode = |value: &Value| BASE64.encode(value.to_string());
    let payload = BASE64.encode(serde_json::to_vec(&claims()).unwrap());
    let with_header =
        |header: Value, signature: &[u8]| format!("{}.{payload}.{}", encode(&header), BASE64.encode(signature));
    // HMAC with the bytes of the public key, which an attacker knows.
    let hmac_by_public_key = {
        let header = json!({"alg": "HS256", "kid": rsa().public().id()});
        let signed = format!("{}.{payload}", encode(&header));
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, RSA_PUBLIC.as_bytes());
        format!("{signed}.{}", BASE64.encode(ring::hmac::sign(&key, signed.as_bytes())))
    };
    let signed_with = |header: Value| {
        let signed = format!("{}.{payload}", encode(&header));
        format!("{signed}.{}", BASE64.encode(rsa().sign(signed.as_bytes()).unwrap()))
    };
    let valid = claims().sign(&rsa()).unwrap();
    let parts: Vec<&str> = valid.split('.').collect();
    let admin = encode(&json!({"iss": ISSUER, "sub": "admin", "kubernetes.io": {}}));
    let crypto = "go-jose/go-jose: error in cryptographic primitive";
    let unknown = "invalid signature, no keys found";
    for (token, expected) in [
        (with_header(json!({"alg": "none"}), b""), crypto),
        (with_header(json!({"alg": "none", "kid": rsa().public().id()}), b"x"), crypto),
        (hmac_by_public_key, crypto),
        (claims().sign(&foreign()).unwrap(), unknown),
        (signed_with(json!({"alg": "RS256", "kid": "x"})), unknown),
        (signed_with(json!({"alg": "RS256", "kid": p256().public().id()})), crypto),
        (signed_with(json!({"alg": "ES256", "kid": rsa().public().id()})), crypto),
        (signed_with(json!({"alg": "RS256", "crit": ["b64"], "b64": false})), crypto),
        (signed_with(json!({"alg": "RS256"})), ROBOT),
        (format!("{}.{admin}.{}", parts[0], parts[2]), crypto),
        (format!("{}.{}.", parts[0], parts[1]), crypto),
        (format!("{}.{}.%", parts[0], parts[1]), "not recognized"),
        (format!("%.{}.{}", parts[1], parts[2]), "not recognized"),
        (format!("{}.{}", parts[0], parts[1]), "not recognized"),
        (format!("{valid}.x"), "not recognized"),
        (Claims { iss: "https://other".to_owned(), ..claims() }.sign(&rsa()).unwrap(), "not recognized"),
        (String::new(), "not recognized"),
        ("..".to_owned(), "not recognized"),
        (".".repeat(100 << 10), "not recognized"),
        (format!("{0}.{0}.{0}", "A".repeat(34 << 10)), "not recognized"),
        (format!("{{\"payload\":\"{}\"}}", parts[1]), "not recognized"),
    ] {
        assert_eq!(answer_to(&objects, &token, &[], 1000).await, expected, "{}", &token[..token.len().min(200)]);
    }
    let long = Claims { aud: vec![ISSUER.to_owned(), "x".repeat(100 << 10)], ..claims() }.sign(&rsa()).unwrap();
    assert_eq!(answer_to(&objects, &long, &[], 1000).await, "not recognized", "a token of more than 64 KiB");
}

#[tokio::test]
async fn user_of_a_token_has_its_uid_groups_and_bound_objects() {
    let objects = Objects::new(&["serviceaccounts/a/robot", "pods/a/p"]);
    let authenticator = ServiceAccountTokenAuthenticator::new(&objects);
    let mut claims = claims();
    claims.kubernetes.pod = Some(reference("p"));
    claims.kubernetes.node = Some(reference("n"));
    let token = claims.sign(&rsa()).unwrap();
    let found = authenticator.authenticate(&AuthenticationRequest::of_token(Some(&token), 1000)).await;
    let Authentication::Authenticated { user, .. } = found else { panic!("the token is valid: {found:?}") };
    assert_eq!(
        listwatch_json::to_value(&*user).unwrap(),
        json!({
            "username": "system:serviceaccount:a:robot",
            "uid": "uid-of-robot",
            "groups": ["system:serviceaccounts", "system:serviceaccounts:a", "system:authenticated"],
            "extra": {
                "authentication.kubernetes.io/credential-id": ["JTI=j"],
                "authentication.kubernetes.io/node-name": ["n"],
                "authentication.kubernetes.io/node-uid": ["uid-of-n"],
                "authentication.kubernetes.io/pod-name": ["p"],
                "authentication.kubernetes.io/pod-uid": ["uid-of-p"],
            },
        })
    );
}

/// A token in the Secret `s`, with changed claims.
fn legacy(changes: &[(&str, &str)]) -> String {
    let mut claims = json!({
        "iss": "kubernetes/serviceaccount",
        "kubernetes.io/serviceaccount/namespace": "a",
        "kubernetes.io/serviceaccount/secret.name": "s",
        "kubernetes.io/serviceaccount/service-account.name": "robot",
        "kubernetes.io/serviceaccount/service-account.uid": "uid-of-robot",
        "sub": "system:serviceaccount:a:robot",
    });
    for (claim, value) in changes {
        claims[*claim] = json!(value);
    }
    jwt::sign(&rsa(), claims.to_string().as_bytes()).unwrap()
}

/// The audit annotations without their common prefix, and the warnings of a token.
async fn records(objects: &Objects, token: &str, now: i64) -> (Vec<(String, String)>, Vec<&'static str>) {
    let recorder = AuthenticationRecorder::default();
    let authenticator = ServiceAccountTokenAuthenticator::new(objects);
    let request = AuthenticationRequest::of_token(Some(token), now).with_recorder(&recorder);
    let _ = authenticator.authenticate(&request).await;
    let AuthenticationRecords { annotations, warnings, .. } = recorder.take();
    let short = |key: &str| key.strip_prefix("authentication.k8s.io/").unwrap().to_owned();
    (annotations.into_iter().map(|(key, value)| (short(key), value)).collect(), warnings)
}

#[tokio::test]
async fn use_of_a_secret_based_token_is_reported_once_a_day() {
    let objects = Objects::new(&["serviceaccounts/a/robot"]);
    let token = legacy(&[]);
    // 2026-11-30, half a minute before the next day.
    let now = 1_796_083_170;
    let secret = |last_used: &str| LegacyTokenSecret {
        token: token.clone().into_bytes(),
        uid: "u".to_owned(),
        last_used: last_used.to_owned(),
        ..LegacyTokenSecret::default()
    };
    let uses = async |secret: LegacyTokenSecret, now| {
        *objects.secret.lock() = Some(secret);
        records(&objects, &token, now).await;
        std::mem::take(&mut *objects.uses.lock())
    };
    let used = |date: &str| {
        let [namespace, secret, uid, date] = ["a", "s", "u", date].map(str::to_owned);
        vec![LegacyTokenUse { namespace, secret, uid, date }]
    };
    for last_used in ["", "2026-11-29", "2026-12-02", "garbage"] {
        assert_eq!(uses(secret(last_used), now).await, used("2026-11-30"), "{last_used:?}");
    }
    for last_used in ["2026-11-30", "2026-12-01"] {
        assert_eq!(uses(secret(last_used), now).await, [], "{last_used:?}");
    }
    assert_eq!(uses(secret("2026-11-30"), now + 60).await, used("2026-12-01"), "the next day");
    let invalidated = LegacyTokenSecret { is_invalidated: true, ..secret("") };
    assert_eq!(uses(invalidated, now).await, used("2026-11-30"), "an invalidated token was used");
    let other = LegacyTokenSecret { token: b"other".to_vec(), ..secret("") };
    assert_eq!(uses(other, now).await, [], "the Secret has another token");
    objects.set("serviceaccounts/a/robot", "other", None);
    assert_eq!(uses(secret(""), now).await, [], "the account was replaced");
}

#[tokio::test]
async fn legacy_and_stale_tokens_are_audited() {
    let objects = Objects::new(&["serviceaccounts/a/robot"]);
    let token = legacy(&[]);
    let secret = LegacyTokenSecret { token: token.clone().into_bytes(), ..LegacyTokenSecret::default() };
    *objects.secret.lock() = Some(secret.clone());
    let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let sub = ("legacy-token", "system:serviceaccount:a:robot");
    let manual = (pairs(&[sub, ("legacy-token-manual-secret", "s")]), vec![]);
    assert_eq!(records(&objects, &token, 1000).await, manual);
    assert_eq!(objects.reads.load(Ordering::Relaxed), 1, "the account is read once");
    objects.set("generated/a/robot/s", "", None);
    let generated = (pairs(&[sub, ("legacy-token-autogenerated-secret", "s")]), vec![AUTO_GENERATED]);
    assert_eq!(records(&objects, &token, 1000).await, generated);
    *objects.secret.lock() = Some(LegacyTokenSecret { is_invalidated: true, ..secret });
    let invalidated = (pairs(&[sub, ("legacy-token-invalidated", "s/a")]), vec![]);
    assert_eq!(records(&objects, &token, 1000).await, invalidated);

    let mut stale = claims();
    stale.kubernetes.warnafter = Some(1500);
    let token = stale.sign(&rsa()).unwrap();
    assert_eq!(records(&objects, &token, 1499).await, (vec![], vec![]));
    let value = "subject: system:serviceaccount:a:robot, seconds after warning threshold: 7";
    assert_eq!(records(&objects, &token, 1507).await, (pairs(&[("stale-token", value)]), vec![]));
    let for_all = Claims { aud: Vec::new(), ..claims() }.sign(&rsa()).unwrap();
    assert_eq!(records(&objects, &for_all, 1000).await, (pairs(&[sub]), vec![]), "a token without an audience");
}

#[tokio::test]
async fn secret_based_token_is_valid_while_the_secret_contains_it() {
    let objects = Objects::new(&["serviceaccounts/a/robot"]);
    let token = legacy(&[]);
    let robot = format!("system:serviceaccount:a:robot [{ISSUER:?}, \"api\"]");
    let invalidated = "Token has been invalidated".to_owned();
    assert_eq!(answer_to(&objects, &token, &[], 1000).await, invalidated, "the secret is absent");
    let secret = LegacyTokenSecret { token: token.clone().into_bytes(), ..LegacyTokenSecret::default() };
    *objects.secret.lock() = Some(secret.clone());
    assert_eq!(answer_to(&objects, &token, &[], 1000).await, robot);
    let other = r#"token audiences ["https://kubernetes.default.svc.cluster.local" "api"] is invalid for the target audiences ["x"]"#;
    assert_eq!(answer_to(&objects, &token, &["x"], 1000).await, other);
    for (changes, expected) in [
        (&[("sub", "")][..], "sub claim is missing"),
        (&[("sub", "system:serviceaccount:a:other")], "sub claim is invalid"),
        (&[("kubernetes.io/serviceaccount/namespace", "")], "namespace claim is missing"),
        (&[("kubernetes.io/serviceaccount/secret.name", "")], "secretName claim is missing"),
        (&[("kubernetes.io/serviceaccount/service-account.uid", "x")], "Token does not match server's copy"),
    ] {
        assert_eq!(answer_to(&objects, &legacy(changes), &[], 1000).await, expected, "{changes:?}");
    }
    *objects.secret.lock() = Some(LegacyTokenSecret { is_invalidated: true, ..secret.clone() });
    let marked = answer_to(&objects, &token, &[], 1000).await;
    assert!(marked.starts_with("the token in secret a/s for service account a/robot has been marked invalid."));
    *objects.secret.lock() = Some(LegacyTokenSecret { is_being_deleted: true, ..secret.clone() });
    assert_eq!(answer_to(&objects, &token, &[], 1000).await, invalidated);
    *objects.secret.lock() = Some(secret);
    objects.set("serviceaccounts/a/robot", "other", None);
    let expected = "ServiceAccount UID (other) does not match claim (uid-of-robot)";
    assert_eq!(answer_to(&objects, &token, &[], 1000).await, expected);
}

#[test]
fn claims_with_single_audience_and_fractional_expiry_are_parsed() {
    let read = |value: Value| listwatch_json::from_value::<Claims>(value);
    let minimal = json!({"iss": "i", "aud": "one", "exp": 1.5e3, "kubernetes.io": {"namespace": "a"}, "other": {}});
    let claims = read(minimal).unwrap();
    assert_eq!((claims.aud, claims.exp, claims.nbf), (vec!["one".to_owned()], Some(1500), None));
    assert!(read(json!({"iss": "i", "aud": [1], "kubernetes.io": {}})).is_err());
    assert!(read(json!({"iss": "i"})).is_err());
}

#[test]
fn token_cache_is_cleared_at_its_limit() {
    let mut verified = Verified::default();
    let claims = Arc::new(claims());
    (0..2 * VERIFIED_MAX).for_each(|token| verified.insert(&token.to_string(), &claims));
    assert!(verified.0.len() <= VERIFIED_MAX);
    let before = verified.0.len();
    verified.insert(&"x".repeat(VERIFIED_TOKEN_BYTES_MAX + 1), &claims);
    assert_eq!(verified.0.len(), before, "a long token is not cached");
}
