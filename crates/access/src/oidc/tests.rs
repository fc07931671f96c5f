//! Tests issuers whose documents come from a list.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use listwatch_json::{Value, json};
use parking_lot::Mutex;

use super::*;
use crate::authenticator::{Authentication, AuthenticationRequest, Authenticator as _};
use crate::service_account::{SigningKey, jwt};

const ISSUER: &str = "https://issuer.example.com";
const NOW: i64 = 1_700_000_000;

/// Documents by URL, and the URLs that were fetched.
#[derive(Clone, Default)]
struct Documents {
    documents: Arc<Mutex<HashMap<String, Value>>>,
    fetched: Arc<Mutex<Vec<String>>>,
}

impl Documents {
    /// An issuer with these keys.
    fn of_keys(keys: &[&SigningKey]) -> Self {
        let documents = Documents::default();
        let discovery = json!({"issuer": ISSUER, "jwks_uri": "https://issuer.example.com/keys"});
        documents.set(&format!("{ISSUER}/.well-known/openid-configuration"), discovery);
        documents.set_keys(keys);
        documents
    }

    fn set(&self, url: &str, document: Value) {
        self.documents.lock().insert(url.to_owned(), document);
    }

    fn set_keys(&self, keys: &[&SigningKey]) {
        let keys: Vec<Value> = keys.iter().map(|key| key.public().to_jwk().unwrap()).collect();
        self.set("https://issuer.example.com/keys", json!({"keys": keys}));
    }
}

impl DocumentFetcher for Documents {
    fn fetch<'a>(
        &'a self,
        url: &'a str,
        _authorities: &'a str,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<u8>, String>> + Send + 'a>> {
        self.fetched.lock().push(url.to_owned());
        let found = self.documents.lock().get(url).map(|document| document.to_string().into_bytes());
        Box::pin(async move { found.ok_or("404".to_owned()) })
    }
}

fn key() -> SigningKey {
    SigningKey::from_pkcs8(&SigningKey::generate().unwrap()).unwrap()
}

/// A configuration of one issuer whose `jwt` entry has these lines beside its issuer.
fn configuration(rest: &str) -> Result<AuthenticationConfiguration, InvalidConfiguration> {
    let text = format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt:\n- issuer: {{url: '{ISSUER}', audiences: [me]}}\n{rest}"
    );
    AuthenticationConfiguration::parse(&text, &["https://kubernetes".to_owned()])
}

const PLAIN: &str = "  claimMappings: {username: {claim: sub, prefix: 'oidc:'}, groups: {claim: groups, prefix: ''}}";

fn authenticator(documents: &Documents, rest: &str) -> JwtAuthenticator<Documents> {
    let issuer = configuration(rest).unwrap().issuers.remove(0);
    JwtAuthenticator::new(issuer, documents.clone(), vec!["api".to_owned()])
}

fn claims(changes: Value) -> Value {
    let mut claims = json!({"iss": ISSUER, "aud": "me", "exp": NOW + 60, "sub": "jane", "groups": ["dev", ""]});
    for (name, value) in changes.as_object().unwrap() {
        claims[name] = value.clone();
    }
    claims
}

fn token(key: &SigningKey, changes: Value) -> String {
    jwt::sign(key, claims(changes).to_string().as_bytes()).unwrap()
}

/// The user as JSON, or the reason of the rejection; empty if the token is not recognized.
async fn ask(authenticator: &JwtAuthenticator<Documents>, token: &str, now: i64) -> Result<Value, String> {
    match authenticator.authenticate(&AuthenticationRequest::of_token(Some(token), now)).await {
        Authentication::Authenticated { user, .. } => Ok(json!(*user)),
        Authentication::Rejected(why) => Err(why),
        Authentication::NotRecognized => Err(String::new()),
    }
}

#[tokio::test]
async fn valid_token_names_the_user_with_prefix_groups_and_credential() {
    let key = key();
    let authenticator = authenticator(&Documents::of_keys(&[&key]), PLAIN);
    let expected = json!({
        "username": "oidc:jane", "groups": ["dev", "system:authenticated"],
        "extra": {"authentication.kubernetes.io/credential-id": ["JTI=1"]},
    });
    assert_eq!(ask(&authenticator, &token(&key, json!({"jti": "1"})), NOW).await, Ok(expected));
    let several = token(&key, json!({"aud": ["x", "me"], "groups": "ops", "nbf": NOW + 200}));
    assert_eq!(ask(&authenticator, &several, NOW).await.unwrap()["groups"], json!(["ops", "system:authenticated"]));
}

#[tokio::test]
async fn invalid_token_is_rejected_and_a_foreign_one_is_not_recognized() {
    let (key, other) = (key(), key());
    let authenticator = authenticator(&Documents::of_keys(&[&key]), PLAIN);
    let none = {
        use base64::Engine as _;
        let encode = |text: String| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text);
        format!("{}.{}.", encode(json!({"alg": "none"}).to_string()), encode(claims(json!({})).to_string()))
    };
    let valid = token(&key, json!({}));
    let (signed, _) = valid.rsplit_once('.').unwrap();
    for (token, expected) in [
        (token(&key, json!({"iss": "https://other"})), ""),
        ("a.b".to_owned(), ""),
        ("x".repeat(100 << 10), ""),
        (token(&key, json!({"exp": NOW})), "oidc: token is expired"),
        (token(&key, json!({"exp": null})), "oidc: token is expired"),
        (token(&key, json!({"nbf": NOW + 301})), "oidc: current time is before the nbf (not before) time"),
        (token(&key, json!({"aud": "you"})), "oidc: the token is for another audience"),
        (token(&key, json!({"aud": null})), "oidc: the token is for another audience"),
        (token(&key, json!({"sub": 7})), "oidc: the claim \"sub\" has another type"),
        (token(&key, json!({"sub": ""})), "oidc: the claim \"sub\" is empty"),
        (token(&key, json!({"groups": [7]})), "oidc: the claim \"groups\" has another type"),
        (token(&other, json!({})), "oidc: failed to verify signature"),
        (format!("{signed}.AAAA"), "oidc: failed to verify signature"),
        (none, "oidc: id token signed with unsupported algorithm \"none\""),
    ] {
        assert_eq!(ask(&authenticator, &token, NOW).await, Err(expected.to_owned()), "{token}");
    }
    let audiences = ["other".to_owned()];
    let request = AuthenticationRequest::of_token(Some(&valid), NOW).with_audiences(&audiences);
    assert_eq!(authenticator.authenticate(&request).await, Authentication::NotRecognized, "a TokenReview for others");
}

#[tokio::test]
async fn token_with_distributed_groups_is_rejected() {
    let key = key();
    let authenticator = authenticator(&Documents::of_keys(&[&key]), PLAIN);
    let answer = async |names: Value, sources: Option<Value>, changes: Value| {
        let mut claims = claims(changes);
        claims["_claim_names"] = names;
        sources.into_iter().for_each(|sources| claims["_claim_sources"] = sources);
        if claims["groups"].is_null() {
            claims.as_object_mut().unwrap().shift_remove("groups");
        }
        let token = jwt::sign(&key, claims.to_string().as_bytes()).unwrap();
        ask(&authenticator, &token, NOW).await.map(|user| user["groups"].clone())
    };
    let (none, absent) = (Ok(json!(["system:authenticated"])), || json!({"groups": null}));
    let failed = |why: &str| Err(format!("oidc: could not expand distributed claims: {why}"));
    let endpoint = || Some(json!({"src": {"endpoint": "https://groups.example.com", "access_token": "t"}}));
    let groups = || json!({"groups": "src"});
    let fetch = "this server does not fetch the distributed claim \"groups\"";
    assert_eq!(answer(groups(), endpoint(), absent()).await, failed(fetch), "the groups are lost");
    let own = answer(groups(), endpoint(), json!({})).await;
    assert_eq!(own, Ok(json!(["dev", "system:authenticated"])), "the token has the groups");
    assert_eq!(answer(json!({"roles": "src"}), endpoint(), absent()).await, none, "another claim is distributed");
    let aggregated = Some(json!({"src": {"JWT": "a.b.c"}}));
    assert_eq!(answer(groups(), aggregated, absent()).await, none, "upstream ignores aggregated claims");
    assert_eq!(answer(groups(), None, absent()).await, failed("oidc: no claim sources"));
    let missing = "id token _claim_names contained a source src missing in _claims_sources";
    assert_eq!(answer(groups(), Some(json!({})), absent()).await, failed(missing));
    let names = "oidc: error parsing distributed claim names";
    for malformed in [json!(["groups"]), json!({"groups": 7}), json!("groups")] {
        assert_eq!(answer(malformed, endpoint(), absent()).await, failed(names));
    }
    let sources = "oidc: could not parse claim sources";
    assert_eq!(answer(groups(), Some(json!([])), absent()).await, failed(sources));
}

#[tokio::test]
async fn signing_keys_are_fetched_on_first_use_and_refetched_after_a_pause() {
    let (old, new) = (key(), key());
    let documents = Documents::default();
    let authenticator = authenticator(&documents, PLAIN);
    let fetches = || documents.fetched.lock().len();
    assert_eq!(fetches(), 0, "nothing is fetched without a token");
    let (of_old, of_new) = (token(&old, json!({"exp": NOW + 999})), token(&new, json!({"exp": NOW + 999})));
    for now in [NOW, NOW + 9] {
        let found = ask(&authenticator, &of_old, now).await;
        assert_eq!((found, fetches()), (Err("oidc: authenticator not initialized".to_owned()), 1));
    }
    let ready = Documents::of_keys(&[&old]);
    documents.documents.lock().extend(ready.documents.lock().clone());
    assert!(ask(&authenticator, &of_old, NOW + 10).await.is_ok());
    assert_eq!(fetches(), 3);
    documents.set_keys(&[&new]);
    for _ in 0..100 {
        assert!(ask(&authenticator, &of_new, NOW + 11).await.is_err(), "the pause has not passed");
    }
    assert_eq!(fetches(), 3, "tokens with unknown keys cause no requests");
    assert!(ask(&authenticator, &of_new, NOW + 20).await.is_ok());
    assert_eq!(ask(&authenticator, &of_old, NOW + 31).await, Err("oidc: failed to verify signature".to_owned()));
    documents.set("https://issuer.example.com/keys", json!("broken"));
    assert!(ask(&authenticator, &of_old, NOW + 50).await.is_err());
    assert!(ask(&authenticator, &of_new, NOW + 50).await.is_ok(), "the last keys stay when a fetch fails");
}

#[tokio::test]
async fn prepared_authenticator_has_keys_before_the_first_token() {
    let key = key();
    let documents = Documents::default();
    let authenticator = authenticator(&documents, PLAIN);
    assert!(!authenticator.prepare(NOW).await, "the issuer is not there yet");
    documents.documents.lock().extend(Documents::of_keys(&[&key]).documents.lock().clone());
    assert!(!authenticator.prepare(NOW + 9).await, "the pause has not passed");
    assert!(authenticator.prepare(NOW + 10).await);
    let fetched = documents.fetched.lock().len();
    assert!(ask(&authenticator, &token(&key, json!({"exp": NOW + 99})), NOW + 10).await.is_ok());
    assert_eq!(documents.fetched.lock().len(), fetched, "the token needs no fetch");
}

/// An issuer that answers when its gate opens.
struct Gated {
    documents: Documents,
    gate: Arc<tokio::sync::Semaphore>,
}

impl DocumentFetcher for Gated {
    fn fetch<'a>(
        &'a self,
        url: &'a str,
        authorities: &'a str,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<u8>, String>> + Send + 'a>> {
        Box::pin(async move {
            drop(self.gate.acquire().await);
            self.documents.fetch(url, authorities).await
        })
    }
}

#[tokio::test]
async fn tokens_wait_for_the_fetch_that_another_request_began_and_dropped() {
    let key = key();
    let (documents, gate) = (Documents::of_keys(&[&key]), Arc::new(tokio::sync::Semaphore::new(0)));
    let issuer = configuration(PLAIN).unwrap().issuers.remove(0);
    let gated = Gated { documents: documents.clone(), gate: Arc::clone(&gate) };
    let authenticator = JwtAuthenticator::new(issuer, gated, vec!["api".to_owned()]);
    let (token, authenticator) = (&token(&key, json!({})), &authenticator);
    let ask = |now: i64| async move {
        let asked = AuthenticationRequest::of_token(Some(token), now);
        matches!(authenticator.authenticate(&asked).await, Authentication::Authenticated { .. })
    };
    let dropped = tokio::time::timeout(std::time::Duration::from_millis(1), ask(NOW)).await;
    assert!(dropped.is_err(), "the issuer does not answer yet");
    let open = async {
        tokio::task::yield_now().await;
        gate.add_permits(1);
    };
    // Reading two documents may take longer than the pause between two fetches.
    let (first, second, prepared, ()) =
        tokio::join!(ask(NOW + 2), ask(NOW + 12), authenticator.prepare(NOW + 12), open);
    assert!(first && second && prepared, "{first} {second} {prepared}");
    assert_eq!(documents.fetched.lock().len(), 2, "one fetch of the discovery document and of the keys");
}

/// A fetcher with a bug.
struct Panicking;

impl DocumentFetcher for Panicking {
    fn fetch<'a>(
        &'a self,
        _: &'a str,
        _: &'a str,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<u8>, String>> + Send + 'a>> {
        Box::pin(async { panic!("a bug") })
    }
}

#[tokio::test]
async fn panic_of_a_fetcher_rejects_tokens_and_reaches_no_request() {
    let issuer = configuration(PLAIN).unwrap().issuers.remove(0);
    let authenticator = JwtAuthenticator::new(issuer, Panicking, vec!["api".to_owned()]);
    let token = token(&key(), json!({}));
    for now in [NOW, NOW + 1, NOW + 20] {
        let answer = authenticator.authenticate(&AuthenticationRequest::of_token(Some(&token), now)).await;
        let Authentication::Rejected(why) = answer else { panic!("{answer:?}") };
        assert_eq!(why, "oidc: authenticator not initialized");
    }
}

#[tokio::test]
async fn discovery_document_of_another_issuer_is_refused() {
    let key = key();
    for (issuer, uri) in
        [("https://other", "https://issuer.example.com/keys"), (ISSUER, "http://issuer.example.com/keys")]
    {
        let documents = Documents::of_keys(&[&key]);
        let url = format!("{ISSUER}/.well-known/openid-configuration");
        documents.set(&url, json!({"issuer": issuer, "jwks_uri": uri}));
        let found = ask(&authenticator(&documents, PLAIN), &token(&key, json!({})), NOW).await;
        assert_eq!(found, Err("oidc: authenticator not initialized".to_owned()), "{issuer} {uri}");
        assert_eq!(*documents.fetched.lock(), [url]);
    }
}

#[tokio::test]
async fn cel_expressions_map_claims_to_the_user_and_rules_reject_tokens() {
    let key = key();
    let rest = "  claimMappings:\n    username: {expression: 'claims.email_verified ? claims.email : claims.sub'}\n    \
                groups: {expression: 'claims.roles.split(\",\")'}\n    uid: {expression: 'claims.id'}\n    \
                extra: [{key: example.com/tenant, valueExpression: 'claims.tenant'}]\n  \
                claimValidationRules:\n  - {claim: hd, requiredValue: example.com}\n  \
                - {expression: 'claims.exp - claims.iat <= 86400', message: too long}\n  \
                userValidationRules:\n  - {expression: \"!user.username.startsWith('system:')\", message: reserved}\n  \
                - {expression: \"user.groups.all(group, !group.startsWith('system:'))\"}";
    let authenticator = authenticator(&Documents::of_keys(&[&key]), rest);
    let good = json!({
        "email": "j@example.com", "email_verified": true, "roles": "a,b", "id": "7", "tenant": ["t"], "hd": "example.com",
        "iat": NOW,
    });
    let ask = async |name: &str, value: Value| {
        let mut changed = good.clone();
        if !name.is_empty() {
            changed[name] = value;
        }
        ask(&authenticator, &token(&key, changed), NOW).await
    };
    let expected = json!({
        "username": "j@example.com", "uid": "7", "groups": ["a", "b", "system:authenticated"],
        "extra": {"example.com/tenant": ["t"]},
    });
    assert_eq!(ask("", Value::Null).await, Ok(expected));
    assert_eq!(ask("email_verified", json!(false)).await.unwrap()["username"], "jane");
    assert_eq!(ask("tenant", json!("")).await.unwrap().get("extra"), None, "empty values are left out");
    for (name, value, expected) in [
        ("hd", json!("other"), "oidc: required claim hd has another value"),
        ("hd", json!(7), "oidc: required claim hd has another value"),
        ("iat", json!(NOW - 86_400), "oidc: validation expression 'claims.exp - claims.iat <= 86400' failed: too long"),
        (
            "email",
            json!("system:admin"),
            "oidc: validation expression '!user.username.startsWith('system:')' failed: reserved",
        ),
        (
            "roles",
            json!("a,system:masters"),
            "oidc: validation expression 'user.groups.all(group, !group.startsWith('system:'))' failed",
        ),
        ("email", json!(""), "oidc: the username expression returned an empty string"),
        (
            "email",
            json!(7),
            "oidc: expression 'claims.email_verified ? claims.email : claims.sub' resulted in error: the value has another type",
        ),
    ] {
        assert_eq!(ask(name, value.clone()).await, Err(expected.to_owned()), "{name}: {value}");
    }
    let error = ask("id", json!(null)).await.unwrap_err();
    assert!(error.starts_with("oidc: expression 'claims.id' resulted in error"), "{error}");
}

#[tokio::test]
async fn unverified_email_is_rejected_as_username() {
    let key = key();
    let rest = "  claimMappings: {username: {claim: email, prefix: ''}}";
    let authenticator = authenticator(&Documents::of_keys(&[&key]), rest);
    let ask = async |verified: Value| {
        let changes = json!({"email": "j@example.com", "email_verified": verified});
        ask(&authenticator, &token(&key, changes), NOW).await.map(|user| user["username"].clone())
    };
    assert_eq!(ask(json!(true)).await, Ok(json!("j@example.com")));
    assert_eq!(ask(json!(false)).await, Err("oidc: email not verified".to_owned()));
    assert_eq!(ask(json!("true")).await, Err("oidc: the claim \"email_verified\" has another type".to_owned()));
}

#[test]
fn invalid_configuration_is_rejected_with_its_field() {
    let error = |rest: &str| configuration(rest).expect_err(rest).to_string();
    for (rest, expected) in [
        ("  claimMappings: {username: {}}", "jwt[0].claimMappings.username: Required value"),
        ("  claimMappings: {username: {claim: sub}}", "jwt[0].claimMappings.username.prefix: Required value"),
        (
            "  claimMappings: {username: {claim: a, expression: b, prefix: ''}}",
            "jwt[0].claimMappings.username: Invalid value: claim and expression",
        ),
        (
            "  claimMappings: {username: {expression: 'claims.'}}",
            "jwt[0].claimMappings.username.expression: Invalid value",
        ),
        (
            "  claimMappings: {username: {expression: 'true'}}",
            "jwt[0].claimMappings.username.expression: Invalid value",
        ),
        (
            "  claimMappings: {username: {expression: 'user.name'}}",
            "jwt[0].claimMappings.username.expression: Invalid value",
        ),
        (
            "  claimMappings: {username: {expression: claims.email}}",
            "jwt[0].claimMappings.username.expression: Invalid value: claims.email_verified must be used",
        ),
        (
            "  claimMappings: {username: {expression: \"claims['email']\"}}",
            "jwt[0].claimMappings.username.expression: Invalid value: claims.email_verified must be used",
        ),
        (
            "  claimMappings: {username: {expression: claims.email.lowerAscii()}}",
            "jwt[0].claimMappings.username.expression: Invalid value: claims.email_verified must be used",
        ),
        (
            "  claimMappings: {username: {expression: \"'a' + claims.email\"}}",
            "jwt[0].claimMappings.username.expression: Invalid value: claims.email_verified must be used",
        ),
        (
            "  claimMappings: {username: {expression: \"claims.email + 'claims.email_verified'\"}}",
            "jwt[0].claimMappings.username.expression: Invalid value: claims.email_verified must be used",
        ),
        (
            "  claimMappings: {username: {expression: 'claims.email + claims.email_verified2'}}",
            "jwt[0].claimMappings.username.expression: Invalid value: claims.email_verified must be used",
        ),
        (&format!("{PLAIN}\n  claimValidationRules: [{{}}]"), "jwt[0].claimValidationRules[0]: Required value"),
        (
            &format!("{PLAIN}\n  claimValidationRules: [{{expression: \"'a'\"}}]"),
            "jwt[0].claimValidationRules[0].expression: Invalid value",
        ),
        (
            &format!("{PLAIN}\n  userValidationRules: [{{expression: claims.a}}]"),
            "jwt[0].userValidationRules[0].expression: Invalid value",
        ),
        (
            "  claimMappings: {username: {claim: a, prefix: ''}, extra: [{key: a, valueExpression: claims.a}]}",
            "jwt[0].claimMappings.extra[0].key: Invalid value",
        ),
        (
            "  claimMappings: {username: {claim: a, prefix: ''}, extra: [{key: x.k8s.io/a, valueExpression: claims.a}]}",
            "jwt[0].claimMappings.extra[0].key: Invalid value",
        ),
        (
            &format!("{PLAIN}\n- issuer: {{url: '{ISSUER}', audiences: [a]}}\n{PLAIN}"),
            "jwt[1].issuer.url: Duplicate value",
        ),
        (
            &format!("{PLAIN}\n- issuer: {{url: 'https://kubernetes', audiences: [a]}}\n{PLAIN}"),
            "jwt[1].issuer.url: Duplicate value",
        ),
        (
            &format!("{PLAIN}\n- issuer: {{url: 'http://a', audiences: [a]}}\n{PLAIN}"),
            "jwt[1].issuer.url: Invalid value: URL scheme must be https",
        ),
        (&format!("{PLAIN}\n- issuer: {{url: 'https://a'}}\n{PLAIN}"), "jwt[1].issuer.audiences: Required value"),
        (
            &format!("{PLAIN}\n- issuer: {{url: 'https://a', audiences: [a, b]}}\n{PLAIN}"),
            "jwt[1].issuer.audienceMatchPolicy: Invalid value",
        ),
        (
            &format!("{PLAIN}\n- issuer: {{url: 'https://a', discoveryURL: 'https://a/', audiences: [a]}}\n{PLAIN}"),
            "jwt[1].issuer.discoveryURL: Invalid value",
        ),
        (
            &format!("{PLAIN}\n- issuer: {{url: 'https://a', certificateAuthority: x, audiences: [a]}}\n{PLAIN}"),
            "jwt[1].issuer.certificateAuthority: Invalid value",
        ),
        (&format!("{PLAIN}\n  more: 1"), "jwt"),
    ] {
        let found = error(rest);
        assert!(found.starts_with(expected), "{rest}\n{found}\n{expected}");
    }
    for accepted in [
        "claims.emailaddress",
        "claims.sub == \\\"claims.email\\\" ? claims.sub : claims.sub",
        "claims.email_verified ? claims.email.lowerAscii() : claims.sub",
    ] {
        let rest = format!("  claimMappings: {{username: {{expression: \"{accepted}\"}}}}");
        assert!(configuration(&rest).is_ok(), "{accepted}");
    }
    let parse = |text: &str| AuthenticationConfiguration::parse(text, &[]);
    assert!(parse("kind: AuthenticationConfiguration\napiVersion: v1").is_err());
    let head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n";
    assert!(parse(&format!("{head}anonymous: {{enabled: false, conditions: [{{path: /a}}]}}")).is_err());
    let anonymous =
        parse(&format!("{head}anonymous: {{enabled: true, conditions: [{{path: /livez}}]}}")).unwrap().anonymous;
    assert_eq!(anonymous, Some(AnonymousConfiguration { enabled: true, paths: vec!["/livez".to_owned()] }));
}

#[tokio::test]
async fn oidc_flags_set_prefixes_required_claims_and_algorithms_as_upstream() {
    let key = key();
    let documents = Documents::of_keys(&[&key]);
    let flags = || OidcFlags {
        issuer_url: ISSUER.to_owned(),
        client_id: "me".to_owned(),
        username_claim: "sub".to_owned(),
        signing_algorithms: vec!["RS256".to_owned(), "ES256".to_owned()],
        ..OidcFlags::default()
    };
    let user = async |flags: OidcFlags, changes: Value| {
        let issuer = JwtIssuer::of_flags(flags, &[]).unwrap();
        let authenticator = JwtAuthenticator::new(issuer, documents.clone(), Vec::new());
        ask(&authenticator, &token(&key, changes), NOW).await
    };
    let name = async |flags: OidcFlags| {
        let email = json!({"email": "j@example.com", "email_verified": true});
        user(flags, email).await.map(|user| user["username"].as_str().unwrap().to_owned())
    };
    let email = || OidcFlags { username_claim: "email".to_owned(), ..flags() };
    let prefixed = |prefix: &str, flags: OidcFlags| OidcFlags { username_prefix: prefix.to_owned(), ..flags };
    for (flags, expected) in [
        (flags(), "https://issuer.example.com#jane"),
        (prefixed("-", flags()), "jane"),
        (prefixed("o:", flags()), "o:jane"),
        (email(), "j@example.com"),
        (prefixed("-", email()), "j@example.com"),
        (prefixed("o:", email()), "o:j@example.com"),
    ] {
        assert_eq!(name(flags.clone()).await, Ok(expected.to_owned()), "{flags:?}");
    }
    let everyone = "system:authenticated";
    assert_eq!(user(flags(), json!({})).await.unwrap()["groups"], json!([everyone]), "no claim names the groups");
    let grouped =
        |prefix: &str| OidcFlags { groups_claim: "groups".to_owned(), groups_prefix: prefix.to_owned(), ..flags() };
    assert_eq!(user(grouped("o:"), json!({})).await.unwrap()["groups"], json!(["o:dev", everyone]));
    assert_eq!(user(grouped(""), json!({})).await.unwrap()["groups"], json!(["dev", everyone]));
    let required = || OidcFlags { required_claims: vec![("hd".to_owned(), "a".to_owned())], ..flags() };
    assert!(user(required(), json!({"hd": "a"})).await.is_ok());
    assert_eq!(user(required(), json!({})).await, Err("oidc: required claim hd not present in ID token".to_owned()));
    let rsa = OidcFlags { signing_algorithms: vec!["RS256".to_owned()], ..flags() };
    let unsupported = Err("oidc: id token signed with unsupported algorithm \"ES256\"".to_owned());
    assert_eq!(user(rsa, json!({})).await, unsupported);
}

#[test]
fn invalid_flags_of_an_issuer_are_rejected_with_their_field() {
    let flags = || OidcFlags {
        issuer_url: ISSUER.to_owned(),
        client_id: "me".to_owned(),
        username_claim: "sub".to_owned(),
        signing_algorithms: vec!["RS256".to_owned()],
        ..OidcFlags::default()
    };
    let error = |flags: OidcFlags| JwtIssuer::of_flags(flags, &["https://own".to_owned()]).unwrap_err().to_string();
    let algorithms = vec!["HS256".to_owned()];
    for (flags, expected) in [
        (OidcFlags { signing_algorithms: algorithms, ..flags() }, "oidc: unsupported signing alg: \"HS256\""),
        (
            OidcFlags { issuer_url: "http://a".to_owned(), ..flags() },
            "jwt[0].issuer.url: Invalid value: URL scheme must be https",
        ),
        (
            OidcFlags { issuer_url: "https://own".to_owned(), ..flags() },
            "jwt[0].issuer.url: Invalid value: \"https://own\"",
        ),
        (OidcFlags { client_id: String::new(), ..flags() }, "jwt[0].issuer.audiences: Required value"),
        (OidcFlags { username_claim: String::new(), ..flags() }, "jwt[0].claimMappings.username: Required value"),
        (
            OidcFlags { certificate_authority: "no PEM".to_owned(), ..flags() },
            "jwt[0].issuer.certificateAuthority: Invalid value",
        ),
    ] {
        let found = error(flags);
        assert!(found.starts_with(expected), "{found}\n{expected}");
    }
}
