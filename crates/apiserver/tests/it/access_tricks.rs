//! Tests attempts of clients to bypass authentication and authorization.
//!
//! In the namespace `default`, `bob` may read the ConfigMap `mine`, and update and patch ConfigMaps. `bob` has no other
//! permissions. Only the administrator may read the Secret. `eve` has the permissions that a test grants.

mod spellings;
mod wire;

use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, HeaderName};
use http::{HeaderValue, Method, Request, Uri};
use http_body_util::{BodyExt as _, Full};
use listwatch_access::TokenFileAuthenticator;
use listwatch_apiserver::{AnonymousAuth, ApiServer, Auth, AuthorizationMode};

const SECRET_PATH: &str = "/api/v1/namespaces/default/secrets/s";
const SECRET_DATA: &str = "dG9wLXNlY3JldA==";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// The sender of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    Admin,
    Bob,
    Eve,
    /// The request has no credential.
    Nobody,
}

/// The scope of a role.
#[derive(Clone, Copy, Debug)]
enum Scope {
    Default,
    Cluster,
}

struct Target(ApiServer);

impl Target {
    /// Starts a server with the objects and permissions above. Anonymous requests reach the authorizers.
    async fn start() -> Target {
        let server = ApiServer::builder()
            .auth(Auth::Token("admins".to_owned()))
            .authenticator(TokenFileAuthenticator::new("bobs,bob,1\neves,eve,2\n").unwrap())
            .anonymous_auth(AnonymousAuth::Enabled)
            .authorization([AuthorizationMode::Rbac])
            .build()
            .await
            .unwrap();
        let target = Target(server);
        let roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
        for (path, body) in [
            ("/api/v1/namespaces/default/secrets", format!(r#"{{"metadata":{{"name":"s"}},"data":{{"k":"{SECRET_DATA}"}}}}"#)),
            (MAPS, r#"{"metadata":{"name":"mine"}}"#.to_owned()),
            (MAPS, format!(r#"{{"metadata":{{"name":"other"}},"data":{{"k":"{SECRET_DATA}"}}}}"#)),
            (
                &*format!("{roles}/roles"),
                r#"{"metadata":{"name":"r"},"rules":[
                    {"verbs":["get","list","watch"],"apiGroups":[""],"resources":["configmaps"],"resourceNames":["mine"]},
                    {"verbs":["update","patch"],"apiGroups":[""],"resources":["configmaps"]}]}"#
                    .to_owned(),
            ),
            (
                &*format!("{roles}/rolebindings"),
                r#"{"metadata":{"name":"b"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"r"},
                    "subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"bob"}]}"#
                    .to_owned(),
            ),
        ] {
            let (code, text) = target.send(Sender::Admin, Method::POST, path, &[], &body).await;
            assert_eq!(code, 201, "{path}: {text}");
        }
        let granted = async {
            while target.get(Sender::Bob, &format!("{MAPS}/mine"), &[]).await.0 != 200 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), granted).await.expect("bob's role takes effect");
        target
    }

    /// Creates an object as the administrator.
    async fn create(&self, path: &str, body: &str) {
        let (code, text) = self.send(Sender::Admin, Method::POST, path, &[], body).await;
        assert_eq!(code, 201, "{path}: {text}");
    }

    /// Grants `eve` these rules, in the namespace `default` or in the whole cluster. Waits until the request `probe` is
    /// no longer forbidden.
    async fn allow_eve(&self, scope: Scope, rules: &str, probe: (Method, &str)) {
        let (roles, kind) = match scope {
            Scope::Default => ("/apis/rbac.authorization.k8s.io/v1/namespaces/default/role", "Role"),
            Scope::Cluster => ("/apis/rbac.authorization.k8s.io/v1/clusterrole", "ClusterRole"),
        };
        self.create(&format!("{roles}s"), &format!(r#"{{"metadata":{{"name":"eves"}},"rules":[{rules}]}}"#)).await;
        let binding = format!(
            r#"{{"metadata":{{"name":"eves"}},"roleRef":{{"apiGroup":"rbac.authorization.k8s.io","kind":"{kind}","name":"eves"}},
            "subjects":[{{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"eve"}}]}}"#
        );
        self.create(&format!("{roles}bindings"), &binding).await;
        let granted = async {
            while self.send(Sender::Eve, probe.0.clone(), probe.1, &[], "").await.0 == 403 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), granted).await.expect("the rules take effect");
    }

    async fn send(
        &self,
        sender: Sender,
        method: Method,
        uri: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> (u16, String) {
        let uri: Uri = uri.parse().unwrap_or_else(|error| panic!("{uri}: {error}"));
        let mut request = Request::new(Full::new(Bytes::from(body.to_owned())));
        (*request.method_mut(), *request.uri_mut()) = (method, uri);
        let token = match sender {
            Sender::Admin => Some("Bearer admins"),
            Sender::Bob => Some("Bearer bobs"),
            Sender::Eve => Some("Bearer eves"),
            Sender::Nobody => None,
        };
        let all = request.headers_mut();
        if let Some(token) = token {
            all.insert(AUTHORIZATION, HeaderValue::from_static(token));
        }
        for (name, value) in headers {
            all.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap());
        }
        all.entry("content-type").or_insert(HeaderValue::from_static("application/json"));
        let response = self.0.service().handle(request).await;
        let code = response.status().as_u16();
        // A watch that is allowed would not end.
        let body = tokio::time::timeout(Duration::from_secs(60), response.into_body().collect()).await;
        let bytes = body.expect("a response that ends").map(|body| body.to_bytes()).unwrap_or_default();
        (code, String::from_utf8_lossy(&bytes).into_owned())
    }

    async fn get(&self, sender: Sender, uri: &str, headers: &[(&str, &str)]) -> (u16, String) {
        self.send(sender, Method::GET, uri, headers, "").await
    }

    /// Sends a request that must fail with a 4xx code, and whose response must not contain the data of the Secret.
    async fn refused(&self, sender: Sender, method: Method, uri: &str, headers: &[(&str, &str)]) -> u16 {
        let (code, text) = self.send(sender, method.clone(), uri, headers, "").await;
        assert!((300..500).contains(&code), "{sender:?} {method} {uri} {headers:?}: {code} {text}");
        assert!(!text.contains(SECRET_DATA), "{sender:?} {method} {uri} {headers:?}: {text}");
        code
    }
}

#[tokio::test]
async fn path_with_double_slashes_dots_or_escapes_cannot_read_a_secret() {
    let target = Target::start().await;
    for path in [
        SECRET_PATH,
        "//api/v1/namespaces/default/secrets/s",
        "/api//v1/namespaces/default/secrets/s",
        "/api/v1//namespaces/default/secrets/s",
        "/api/v1/namespaces/default/secrets//s",
        "/api/v1/namespaces/default/secrets/s/",
        "/api/v1/namespaces/default/secrets/s/.",
        "/./api/v1/namespaces/default/secrets/s",
        "/api/v1/namespaces/default/configmaps/../secrets/s",
        "/api/v1/namespaces/default/configmaps/mine/../../secrets/s",
        "/api/v1/namespaces/default/configmaps/%2e%2e/secrets/s",
        "/api/v1/namespaces/default/configmaps%2f..%2fsecrets/s",
        "/api/v1/namespaces/default/configmaps/mine%2f..%2f..%2fsecrets%2fs",
        "/api/v1/namespaces/default/secrets%2fs",
        "/api/v1/namespaces/default%2fsecrets/s",
        "/%61pi/v1/namespaces/default/secrets/s",
        "/api/v1/namespaces/default/s%65crets/s",
        "/api/v1/namespaces/default/%73ecrets/%73",
        "/api/v1/namespaces/default/secrets;a=b/s",
        "/api/v1/namespaces/default/secrets/s;.json",
        "/api/v1/namespaces/default/secrets/s%00",
        "/api/v1/namespaces/default/secrets/s%20",
        "/api/v1/namespaces/default/secrets/%ff",
        "/api/v1/namespaces/default/Secrets/s",
        "/API/V1/namespaces/default/secrets/s",
        "/api/v1/proxy/namespaces/default/secrets/s",
        "/api/v1/watch/namespaces/default/secrets/s",
        "/api/v1/watch/secrets",
        "/apis//v1/namespaces/default/secrets/s",
        "/apis/v1/namespaces/default/secrets/s",
        "/api/v1/secrets",
        "/api/v1/secrets/",
        "/api/v1/namespaces//secrets",
        "/api/v1/namespaces/%2a/secrets",
    ] {
        for sender in [Sender::Bob, Sender::Nobody] {
            target.refused(sender, Method::GET, path, &[]).await;
        }
    }
    assert_eq!(target.get(Sender::Admin, SECRET_PATH, &[]).await.0, 200, "the plain path is right");
}

#[tokio::test]
async fn anonymous_path_followed_by_dots_or_escapes_gives_no_access_to_other_paths() {
    let target = Target::start().await;
    for path in [
        "/healthz/../api/v1/namespaces/default/secrets/s",
        "/healthz/%2e%2e/api/v1/namespaces/default/secrets/s",
        "/healthz%2f..%2fapi/v1/namespaces/default/secrets/s",
        "/livez/..;/api/v1/namespaces/default/secrets/s",
        "/readyz//api/v1/namespaces/default/secrets/s",
        "/version/../metrics",
        "/version%2f..%2fmetrics",
        "/healthz?/api/v1/namespaces/default/secrets/s",
    ] {
        let (code, text) = target.get(Sender::Nobody, path, &[]).await;
        assert!(!text.contains(SECRET_DATA) && !text.contains("apiserver_request_total"), "{path}: {code} {text}");
        assert!(code >= 400 || text == "ok", "{path}: {code} {text}");
    }
}

#[tokio::test]
async fn unusual_http_method_cannot_read_or_delete_objects() {
    let target = Target::start().await;
    for name in
        ["HEAD", "OPTIONS", "TRACE", "get", "Get", "delete", "PROPFIND", "QUERY", "SEARCH", "LIST", "WATCH", "X"]
    {
        let method = Method::from_bytes(name.as_bytes()).unwrap();
        for sender in [Sender::Bob, Sender::Nobody] {
            for path in [SECRET_PATH, "/api/v1/secrets", "/api/v1/namespaces/default/configmaps/other"] {
                target.refused(sender, method.clone(), path, &[]).await;
            }
        }
    }
    assert_eq!(target.get(Sender::Admin, SECRET_PATH, &[]).await.0, 200, "the Secret is still there");
}

#[tokio::test]
async fn method_override_header_is_ignored() {
    let target = Target::start().await;
    let own = format!("{MAPS}/mine");
    for name in ["x-http-method-override", "x-http-method", "x-method-override"] {
        for value in ["DELETE", "PUT"] {
            assert_eq!(target.get(Sender::Bob, &own, &[(name, value)]).await.0, 200, "{name}: {value}");
        }
        assert_eq!(target.refused(Sender::Bob, Method::POST, SECRET_PATH, &[(name, "GET")]).await, 403, "{name}");
        let query = format!("{own}?_method=DELETE&method=DELETE");
        assert_eq!(target.get(Sender::Bob, &query, &[]).await.0, 200);
    }
    assert_eq!(target.get(Sender::Admin, &own, &[]).await.0, 200, "the object is still there");
}

#[tokio::test]
async fn upgrade_request_requires_the_same_credential_and_permission() {
    let target = Target::start().await;
    let websocket = [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let spdy = [("connection", "Upgrade"), ("upgrade", "SPDY/3.1")];
    for path in [
        "/api/v1/namespaces/default/secrets?watch=true",
        "/api/v1/watch/secrets",
        "/api/v1/namespaces/default/pods/p/exec?command=id",
        "/api/v1/namespaces/default/pods/p/portforward?ports=1",
        "/api/v1/nodes/n/proxy/",
        SECRET_PATH,
    ] {
        for headers in [&websocket[..], &spdy] {
            assert_eq!(target.refused(Sender::Bob, Method::GET, path, headers).await, 403, "{path}");
            assert_eq!(target.refused(Sender::Nobody, Method::GET, path, headers).await, 403, "{path}");
        }
    }
}

#[tokio::test]
async fn malformed_authorization_headers_do_not_authenticate() {
    let target = Target::start().await;
    for values in [
        &["Bearer bobs", "Bearer admins"][..],
        &["", "Bearer admins"],
        &["Bearer wrong", "Bearer admins"],
        &["Bearer admins, Bearer bobs"],
        &["Bearer bobs,admins"],
        &["Bearer  admins"],
        &["Bearer\tadmins"],
        &["Bearer=admins"],
        &["Bearer: admins"],
        &["Token admins"],
        &["Basic admins"],
        &["admins"],
        &["Bearer admin"],
        &["Bearer adminss"],
        &["Bearer \"admins\""],
        &["Bearer null"],
        &["Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiJ9."],
    ] {
        let headers: Vec<(&str, &str)> = values.iter().map(|value| ("authorization", *value)).collect();
        let code = target.refused(Sender::Nobody, Method::GET, SECRET_PATH, &headers).await;
        assert!(matches!(code, 401 | 403), "{values:?}: {code}");
    }
    // As in kube-apiserver, the first header and the first word after the scheme count.
    for values in [&["Bearer admins", "Bearer bobs"][..], &["Bearer admins", ""], &["Bearer admins bobs"]] {
        let headers: Vec<(&str, &str)> = values.iter().map(|value| ("authorization", *value)).collect();
        assert_eq!(target.get(Sender::Nobody, SECRET_PATH, &headers).await.0, 200, "{values:?}");
    }
    let long = format!("Bearer {}", "a".repeat(100 << 10));
    assert_eq!(target.refused(Sender::Nobody, Method::GET, SECRET_PATH, &[("authorization", &long)]).await, 401);
    assert_eq!(
        target.refused(Sender::Nobody, Method::GET, "/version", &[("authorization", "Bearer wrong")]).await,
        401
    );
}

#[tokio::test]
async fn token_outside_the_authorization_header_does_not_authenticate() {
    let target = Target::start().await;
    for name in
        ["x-authorization", "proxy-authorization", "x-auth-token", "x-access-token", "cookie", "x_authorization"]
    {
        let headers = [(name, "Bearer admins")];
        assert_eq!(target.refused(Sender::Nobody, Method::GET, SECRET_PATH, &headers).await, 403, "{name}");
    }
    for query in ["access_token=admins", "token=admins", "authorization=Bearer%20admins", "bearer=admins"] {
        let path = format!("{SECRET_PATH}?{query}");
        assert_eq!(target.refused(Sender::Nobody, Method::GET, &path, &[]).await, 403, "{query}");
    }
}

#[tokio::test]
async fn websocket_subprotocol_token_authenticates_only_well_formed_upgrades() {
    let target = Target::start().await;
    let token = "base64url.bearer.authorization.k8s.io.YWRtaW5z";
    let path = "/api/v1/namespaces/default/secrets?watch=true";
    let upgrade = [("connection", "Upgrade"), ("upgrade", "websocket")];
    for (headers, protocols) in [
        (&[][..], format!("{token}, v5")),
        (&upgrade[..1], format!("{token}, v5")),
        (&upgrade[1..], format!("{token}, v5")),
        (&upgrade, token.to_owned()),
        (&upgrade, format!("{token}, {token}, v5")),
        (&upgrade, format!("{token}=, v5")),
        (&upgrade, "base64url.bearer.authorization.k8s.io.admins!, v5".to_owned()),
        (&upgrade, "base64url.bearer.authorization.k8s.io., v5".to_owned()),
        (&upgrade, "BASE64URL.BEARER.AUTHORIZATION.K8S.IO.YWRtaW5z, v5".to_owned()),
    ] {
        let mut headers = headers.to_vec();
        headers.push(("sec-websocket-protocol", &protocols));
        let code = target.refused(Sender::Nobody, Method::GET, path, &headers).await;
        assert!(matches!(code, 401 | 403), "{headers:?}: {code}");
    }
}

#[tokio::test]
async fn every_combination_of_impersonation_headers_needs_permission() {
    let target = Target::start().await;
    for (headers, code) in [
        (&[("impersonate-user", "admin")][..], 403),
        (&[("impersonate-user", "bob")], 403),
        (&[("impersonate-user", "system:anonymous")], 403),
        (&[("impersonate-user", "system:serviceaccount:kube-system:x")], 403),
        (&[("impersonate-user", "bob"), ("impersonate-group", "system:masters")], 403),
        (&[("impersonate-user", "bob"), ("impersonate-user", "admin")], 403),
        (&[("impersonate-user", ""), ("impersonate-user", "admin")], 400),
        (&[("impersonate-group", "system:masters")], 400),
        (&[("impersonate-user", ""), ("impersonate-group", "system:masters")], 400),
        (&[("impersonate-uid", "1")], 400),
        (&[("impersonate-extra-scopes", "all")], 400),
    ] {
        assert_eq!(target.refused(Sender::Bob, Method::GET, SECRET_PATH, headers).await, code, "{headers:?}");
        let anonymous = target.refused(Sender::Nobody, Method::GET, SECRET_PATH, headers).await;
        assert!(matches!(anonymous, 400 | 401 | 403), "{headers:?}: {anonymous}");
    }
    for name in ["impersonate_user", "impersonate-users", "x-impersonate-user", "impersonate"] {
        assert_eq!(target.refused(Sender::Bob, Method::GET, SECRET_PATH, &[(name, "admin")]).await, 403, "{name}");
    }
}

#[tokio::test]
async fn front_proxy_headers_without_the_proxy_certificate_do_not_authenticate() {
    let target = Target::start().await;
    let headers = [
        ("x-remote-user", "admin"),
        ("x-remote-group", "system:masters"),
        ("x-remote-uid", "1"),
        ("x-remote-extra-a", "b"),
        ("x-forwarded-user", "admin"),
        ("x-forwarded-client-cert", "Subject=\"CN=admin,O=system:masters\""),
        ("x-ssl-client-s-dn", "CN=admin,O=system:masters"),
    ];
    assert_eq!(target.refused(Sender::Nobody, Method::GET, SECRET_PATH, &headers).await, 403);
    assert_eq!(target.refused(Sender::Bob, Method::GET, SECRET_PATH, &headers).await, 403);
}

#[tokio::test]
async fn impersonation_header_listed_in_connection_still_applies() {
    let target = Target::start().await;
    for connection in ["impersonate-user", "close, Impersonate-User", "keep-alive, impersonate-user, impersonate-group"]
    {
        let headers = [("connection", connection), ("impersonate-user", "bob")];
        let code = target.refused(Sender::Admin, Method::GET, SECRET_PATH, &headers).await;
        assert_eq!(code, 403, "{connection}: the administrator acts as bob");
    }
    let headers = [("connection", "authorization")];
    assert_eq!(target.refused(Sender::Bob, Method::GET, SECRET_PATH, &headers).await, 403);
}

#[tokio::test]
async fn rewrite_and_forwarding_headers_do_not_change_the_path_or_client() {
    let target = Target::start().await;
    let headers = [
        ("x-original-url", SECRET_PATH),
        ("x-rewrite-url", SECRET_PATH),
        ("x-forwarded-prefix", "/api"),
        ("x-forwarded-uri", SECRET_PATH),
        ("x-forwarded-for", "127.0.0.1"),
        ("x-real-ip", "127.0.0.1"),
        ("forwarded", "for=127.0.0.1;host=localhost"),
        ("host", "localhost"),
    ];
    let (code, text) = target.get(Sender::Nobody, "/version", &headers).await;
    assert!(code == 200 && text.contains("gitVersion"), "{code} {text}");
    assert_eq!(target.refused(Sender::Nobody, Method::GET, SECRET_PATH, &headers).await, 403);
    let absolute = format!("http://localhost{SECRET_PATH}");
    assert_eq!(target.refused(Sender::Bob, Method::GET, &absolute, &[]).await, 403);
}

#[tokio::test]
async fn field_selector_does_not_extend_a_permission_on_one_name() {
    let target = Target::start().await;
    let list = |query: &str| format!("{MAPS}?{query}");
    let (code, text) = target.get(Sender::Bob, &list("fieldSelector=metadata.name%3Dmine"), &[]).await;
    assert!(code == 200 && text.contains("\"mine\""), "{code} {text}");
    for query in [
        "",
        "fieldSelector=",
        "fieldSelector=metadata.name%3Dother",
        "fieldSelector=metadata.name!%3Dmine",
        "fieldSelector=metadata.namespace%3Ddefault",
        "fieldSelector=metadata.name%3Dmine%2F..%2Fother",
        "fieldSelector=metadata.name%3D%252a",
        "labelSelector=metadata.name%3Dmine",
    ] {
        assert_eq!(target.refused(Sender::Bob, Method::GET, &list(query), &[]).await, 403, "{query}");
    }
    for query in [
        "fieldSelector=metadata.name%3Dmine&fieldSelector=metadata.name%3Dother",
        "fieldSelector=metadata.name%3Dmine%2Cmetadata.name%3Dother",
    ] {
        let (_, text) = target.get(Sender::Bob, &list(query), &[]).await;
        assert!(!text.contains(SECRET_DATA), "{query}: {text}");
    }
    let all = list("fieldSelector=metadata.name%3Dmine");
    assert_eq!(target.refused(Sender::Bob, Method::DELETE, &all, &[]).await, 403, "a deletion has no name");
}

#[tokio::test]
async fn create_by_put_patch_apply_or_dry_run_requires_the_verb_create() {
    let target = Target::start().await;
    let body = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"new"}}"#;
    for (expected, method, path, content_type) in [
        // A ConfigMap is never created by an update.
        (404, Method::PUT, format!("{MAPS}/new"), "application/json"),
        (403, Method::PATCH, format!("{MAPS}/new?fieldManager=m"), "application/apply-patch+yaml"),
        (
            403,
            Method::PATCH,
            format!("{MAPS}/new?fieldManager=m&force=true&dryRun=All"),
            "application/apply-patch+yaml",
        ),
        (403, Method::POST, MAPS.to_owned(), "application/json"),
        (403, Method::POST, format!("{MAPS}?dryRun=All"), "application/json"),
    ] {
        let (code, text) =
            target.send(Sender::Bob, method.clone(), &path, &[("content-type", content_type)], body).await;
        assert_eq!(code, expected, "{method} {path}: {text}");
    }
    assert_eq!(target.get(Sender::Admin, &format!("{MAPS}/new"), &[]).await.0, 404);
}
