//! Tests RBAC on a complete server: decisions for identities, bypass attempts, escalation checks, and rules reviews.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use listwatch_apiserver::{ApiServer, AuthorizationMode};
use listwatch_json::{Value, json};

const GROUP: &str = "rbac.authorization.k8s.io";
const DECISIONS: &str = include_str!("rbac/decisions.txt");

/// The identity of a request: a user name and groups, by impersonation.
type Identity<'a> = (&'a str, &'a [&'a str]);

const ADMIN: Identity<'_> = ("root", &["system:masters"]);

/// A server with RBAC, with helpers for requests.
struct Server(ApiServer);

impl Server {
    async fn start() -> Self {
        let server = ApiServer::builder().authorization([AuthorizationMode::Rbac]).build().await.unwrap();
        Server(server)
    }

    async fn request(&self, who: Identity<'_>, line: &str, headers: &[(&str, &str)], body: Value) -> (u16, Value) {
        let (method, path) = line.split_once(' ').unwrap();
        let content_type = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let mut request = Request::builder().method(method).uri(path).header("content-type", content_type);
        request = request.header("impersonate-user", who.0);
        for group in who.1 {
            request = request.header("impersonate-group", *group);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        let response = self.0.service().handle(request.body(Full::new(body)).unwrap()).await;
        let code = response.status().as_u16();
        let is_stream = code == 200 && line.contains("watch");
        let bytes = match is_stream {
            true => Bytes::new(),
            false => response.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default(),
        };
        (code, serde_json::from_slice(&bytes).unwrap_or_default())
    }

    async fn send(&self, who: Identity<'_>, line: &str, body: Value) -> (u16, Value) {
        self.request(who, line, &[], body).await
    }

    async fn create(&self, line: &str, body: Value) {
        let (code, answer) = self.send(ADMIN, &format!("POST {line}"), body).await;
        assert_eq!(code, 201, "{line}: {answer}");
    }

    async fn namespace(&self, name: &str) {
        self.create("/api/v1/namespaces", json!({"metadata": {"name": name}})).await;
    }

    async fn bind(&self, namespace: Option<&str>, name: &str, role: (&str, &str), subject: Value) {
        let (path, _) = paths(namespace);
        let role = json!({"apiGroup": GROUP, "kind": role.0, "name": role.1});
        self.create(&path, json!({"metadata": {"name": name}, "roleRef": role, "subjects": [subject]})).await;
    }

    async fn role(&self, namespace: Option<&str>, name: &str, rules: Value) {
        let (_, path) = paths(namespace);
        self.create(&path, json!({"metadata": {"name": name}, "rules": rules})).await;
    }

    /// Waits until the authorizer has read all earlier writes. Each of the four kinds has a separate watch, so one
    /// object of each kind is written last.
    async fn wait_until_roles_apply(&self) {
        let rule = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["secrets", "nodes"]}]);
        self.role(None, "last", rule.clone()).await;
        self.bind(None, "last", ("ClusterRole", "last"), user("last-cluster")).await;
        self.role(Some("default"), "last", rule).await;
        self.bind(Some("default"), "last", ("Role", "last"), user("last")).await;
        for (who, line) in
            [("last-cluster", "GET /api/v1/nodes/n"), ("last", "GET /api/v1/namespaces/default/secrets/s")]
        {
            let mut code = 0;
            for _ in 0..1_000 {
                code = self.send((who, &[]), line, Value::Null).await.0;
                if code == 404 {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            assert_eq!(code, 404, "roles and bindings must take effect within 10 s: {who} {line}");
        }
    }
}

/// Returns the paths of bindings and of roles.
fn paths(namespace: Option<&str>) -> (String, String) {
    match namespace {
        Some(namespace) => {
            let base = format!("/apis/{GROUP}/v1/namespaces/{namespace}");
            (format!("{base}/rolebindings"), format!("{base}/roles"))
        }
        None => {
            let base = format!("/apis/{GROUP}/v1");
            (format!("{base}/clusterrolebindings"), format!("{base}/clusterroles"))
        }
    }
}

fn user(name: &str) -> Value {
    json!({"apiGroup": GROUP, "kind": "User", "name": name})
}

async fn with_identities() -> Server {
    let server = Server::start().await;
    server.namespace("a").await;
    server.namespace("b").await;
    for role in ["admin", "edit", "view"] {
        server.bind(Some("a"), role, ("ClusterRole", role), user(role)).await;
    }
    server.bind(None, "viewer", ("ClusterRole", "view"), user("viewer")).await;
    let pods =
        json!({"verbs": ["get", "list", "watch"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["x"]});
    server.role(Some("a"), "one-pod", json!([pods])).await;
    server.bind(Some("a"), "one-pod", ("Role", "one-pod"), user("pod-reader")).await;
    server.wait_until_roles_apply().await;
    server
}

fn identity(column: char) -> Identity<'static> {
    match column {
        'M' => ADMIN,
        'A' => ("admin", &[]),
        'E' => ("edit", &[]),
        'V' => ("view", &[]),
        'W' => ("viewer", &[]),
        'U' => ("nobody", &[]),
        'N' => ("system:anonymous", &[]),
        'S' => ("system:kube-scheduler", &[]),
        'K' => ("system:kube-controller-manager", &[]),
        'G' => ("system:serviceaccount:kube-system:generic-garbage-collector", &[]),
        'H' => ("system:serviceaccount:kube-system:horizontal-pod-autoscaler", &[]),
        'P' => ("pod-reader", &[]),
        'X' => ("system:node:n", &["system:nodes"]),
        other => panic!("unknown identity {other}"),
    }
}

/// Whether RBAC rejected the request. Other errors occur after the authorization.
fn is_refused((code, status): &(u16, Value)) -> bool {
    // The response to a HEAD has no message.
    *code == 403 && (status.is_null() || status["message"].as_str().is_some_and(|text| text.contains(" cannot ")))
}

#[tokio::test]
async fn default_roles_give_upstreams_decision_for_each_identity_and_request() {
    let server = with_identities().await;
    let columns = DECISIONS.lines().find_map(|line| line.strip_prefix("#M")).map(|rest| format!("M{rest}")).unwrap();
    let mut wrong = Vec::new();
    let mut decisions = 0;
    for line in DECISIONS.lines().filter(|line| !line.starts_with('#')) {
        let line = line.strip_prefix(' ').unwrap_or_else(|| panic!("neither a remark nor a decision: {line:?}"));
        let (expected, request) = line.split_once(' ').unwrap();
        assert_eq!(expected.len(), columns.len(), "{line}");
        for (column, expected) in columns.chars().zip(expected.chars()) {
            let answer = server.send(identity(column), request, Value::Null).await;
            decisions += 1;
            if is_refused(&answer) == (expected == '+') {
                wrong
                    .push(format!("{column} {request}: expected {expected}, got {} {}", answer.0, answer.1["message"]));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {decisions}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(decisions >= 400, "the table has {decisions} decisions");
}

#[tokio::test]
async fn encoded_or_unusual_requests_do_not_bypass_rbac() {
    let server = with_identities().await;
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"password": "hunter2"}});
    server.create("/api/v1/namespaces/a/secrets", secret).await;
    let view = ("view", &[][..]);
    for request in [
        "GET /api/v1/namespaces/a/secrets/s",
        "HEAD /api/v1/namespaces/a/secrets/s",
        "GET /api/v1/namespaces/a/s%65crets/s",
        "GET /api/v1/namespaces/a/secrets/%73",
        "GET /api/v1/namespaces/%61/secrets/s",
        "GET /%61pi/v1/namespaces/a/secrets/s",
        "GET /api/v1/namespaces/a/secrets/s/",
        "GET //api/v1/namespaces/a/secrets/s",
        "GET /api//v1/namespaces/a/secrets/s",
        "GET /api/v1/namespaces//secrets/s",
        "GET /api/v1/namespaces/a/pods/../secrets/s",
        "GET /api/v1/namespaces/a/pods/..%2fsecrets/s",
        "GET /api/v1/namespaces/a/pods%2f..%2fsecrets/s",
        "GET /api/v1/./namespaces/a/secrets/s",
        "GET /version/../api/v1/namespaces/a/secrets/s",
        "GET /openapi/../api/v1/namespaces/a/secrets/s",
        "GET /API/v1/namespaces/a/secrets/s",
        "GET /api/V1/namespaces/a/secrets/s",
        "GET /api/v1/namespaces/a/Secrets/s",
        "GET /api/v1/namespaces/a/secrets/s/status",
        "GET /api/v1/namespaces/a/secrets/s?watch=true",
        "GET /api/v1/namespaces/a/secrets?watch=true",
        "GET /api/v1/namespaces/a/secrets?watch=1&resourceVersion=0",
        "GET /api/v1/watch/namespaces/a/secrets",
        "GET /api/v1/watch/namespaces/a/secrets/s",
        "GET /api/v1/secrets?fieldSelector=metadata.namespace%3Da",
        "GET /api/v1/namespaces/a/secrets?fieldSelector=metadata.name%3Ds",
        "GET /api/v1/namespaces/a/secrets?labelSelector=",
        "GET /api/v1/namespaces/a/secrets?limit=1",
        "GET /api/v1/namespaces/a/secrets%00/s",
        "GET /api/v1/namespaces/a/secrets;/s",
        "GET /api/v1/namespaces/a/*/s",
        "PATCH /api/v1/namespaces/a/secrets/s",
        "PUT /api/v1/namespaces/a/secrets/s",
        "DELETE /api/v1/namespaces/a/secrets/s",
        "OPTIONS /api/v1/namespaces/a/secrets/s",
        "TRACE /api/v1/namespaces/a/secrets/s",
        "get /api/v1/namespaces/a/secrets/s",
        "GET /metrics",
        "GET /metrics/",
        "GET /api/../metrics",
        "GET /openapi/../metrics",
        "GET /healthz/../metrics",
        "GET /readyz/etcd",
    ] {
        let (code, answer) = server.send(view, request, Value::Null).await;
        assert!(code >= 400, "{request}: {code}");
        assert!(!answer.to_string().contains("hunter2") && !answer.to_string().contains("aHVudGVyMg"), "{request}");
    }
    for header in [
        ("x-http-method-override", "GET"),
        ("x-original-url", "/version"),
        ("x-rewrite-url", "/version"),
        ("x-forwarded-prefix", "/version"),
        ("x-remote-group", "system:masters"),
        ("x-remote-user", "admin"),
        ("impersonate-extra-groups", "system:masters"),
        ("accept", "application/json;as=Table;v=v1;g=meta.k8s.io"),
        ("accept", "application/vnd.kubernetes.protobuf"),
    ] {
        let line = "GET /api/v1/namespaces/a/secrets/s";
        let answer = server.request(view, line, &[header], Value::Null).await;
        assert!(answer.0 == 403 || answer.0 == 401, "{header:?}: {}", answer.0);
    }
    let upgrade = [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    for line in [
        "GET /api/v1/namespaces/a/secrets?watch=true",
        "GET /api/v1/namespaces/a/pods/x/exec?command=sh",
        "GET /api/v1/namespaces/a/pods/x/portforward",
        "GET /api/v1/namespaces/a/pods/x/attach",
    ] {
        let answer = server.request(view, line, &upgrade, Value::Null).await;
        assert!(is_refused(&answer), "{line}: {answer:?}");
    }
    // Members of system:masters are impersonated only by those who may.
    let request = Request::get("/api/v1/nodes").header("impersonate-group", "system:masters");
    let answer = server.0.service().handle(request.body(Full::new(Bytes::new())).unwrap()).await;
    assert_eq!(answer.status(), 400, "a group without a user");
}

#[tokio::test]
async fn constrained_impersonation_allows_only_the_granted_verbs_and_users() {
    let server = Server::start().await;
    server.namespace("a").await;
    server.namespace("b").await;
    server.bind(Some("a"), "view", ("ClusterRole", "view"), user("view")).await;
    let rule = |verbs: &[&str], group: &str, resource: &str, names: &[&str]| json!({"verbs": verbs, "apiGroups": [group], "resources": [resource], "resourceNames": names});
    let of_user = rule(&["impersonate:user-info"], "authentication.k8s.io", "users", &["view"]);
    server.role(None, "act-as-view", json!([of_user])).await;
    server.bind(None, "act-as-view", ("ClusterRole", "act-as-view"), user("eve")).await;
    let on = rule(&["impersonate-on:user-info:list"], "", "pods", &[]);
    server.role(Some("a"), "list-as-another", json!([on])).await;
    server.bind(Some("a"), "list-as-another", ("Role", "list-as-another"), user("eve")).await;
    server.wait_until_roles_apply().await;
    let eve = server.0.client_as("eve", &[]);
    let ask = async |line: &str, headers: &[(&str, &str)]| -> (u16, Value) {
        let (method, path) = line.split_once(' ').unwrap();
        let request = Request::builder().method(method).uri(path);
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let response = eve.handle(request.body(Full::new(Bytes::new())).unwrap()).await;
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (code, serde_json::from_slice(&bytes).unwrap_or_default())
    };
    let view = ("impersonate-user", "view");
    let allowed = ask("GET /api/v1/namespaces/a/pods", &[view]).await;
    assert_eq!(allowed.0, 200, "{allowed:?}");
    for (line, headers, refused) in [
        ("GET /api/v1/namespaces/a/pods/x", &[view][..], "cannot impersonate-on:user-info:get resource \"pods\""),
        ("GET /api/v1/namespaces/b/pods", &[view], "cannot impersonate-on:user-info:list resource \"pods\""),
        ("GET /api/v1/namespaces/a/services", &[view], "cannot impersonate-on:user-info:list resource \"services\""),
        (
            "GET /api/v1/namespaces/a/pods",
            &[view, ("impersonate-group", "system:masters")],
            "impersonating the system:masters group is not allowed",
        ),
        (
            "GET /api/v1/namespaces/a/pods",
            &[view, ("impersonate-group", "dev")],
            "cannot impersonate:user-info resource \"groups\" in API group \"authentication.k8s.io\"",
        ),
    ] {
        let (code, status) = ask(line, headers).await;
        let text = status["message"].as_str().unwrap_or_default();
        assert!(code == 403 && text.contains(refused), "{line} {headers:?}: {code} {text}");
    }
    assert_eq!(ask("GET /api/v1/namespaces/a/pods", &[]).await.0, 403, "eve herself may not list");
}

#[tokio::test]
async fn forbidden_error_names_the_missing_role() {
    let server = Server::start().await;
    server.bind(None, "gone", ("ClusterRole", "gone"), user("bob")).await;
    server.wait_until_roles_apply().await;
    let (code, status) = server.send(("bob", &[]), "GET /api/v1/nodes/n", Value::Null).await;
    let text = "nodes \"n\" is forbidden: User \"bob\" cannot get resource \"nodes\" in API group \"\" at the cluster scope: \
                RBAC: clusterrole.rbac.authorization.k8s.io \"gone\" not found";
    assert_eq!((code, status["message"].as_str()), (403, Some(text)));
}

#[tokio::test]
async fn create_by_update_or_apply_requires_the_verb_create() {
    let server = Server::start().await;
    let rule = json!({"verbs": ["update", "patch"], "apiGroups": ["coordination.k8s.io"], "resources": ["leases"]});
    server.role(Some("default"), "updater", json!([rule])).await;
    server.bind(Some("default"), "updater", ("Role", "updater"), user("bob")).await;
    server.wait_until_roles_apply().await;
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}});
    let line = "/apis/coordination.k8s.io/v1/namespaces/default/leases/l";
    let put = server.send(("bob", &[]), &format!("PUT {line}"), lease.clone()).await;
    assert!(is_refused(&put) && put.1["message"].as_str().unwrap().contains("cannot create"), "{put:?}");
    server.create("/apis/coordination.k8s.io/v1/namespaces/default/leases", lease).await;
    let patch = json!({"metadata": {"labels": {"a": "b"}}});
    let patched = server.send(("bob", &[]), &format!("PATCH {line}"), patch).await;
    assert_eq!(patched.0, 200, "{patched:?}");
}

#[tokio::test]
async fn role_writer_can_grant_only_permissions_that_the_writer_has() {
    let server = Server::start().await;
    let writes = json!({"verbs": ["create", "update"], "apiGroups": [GROUP], "resources": ["roles", "rolebindings", "clusterroles"]});
    let pods = json!({"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]});
    server.role(None, "role-writer", json!([writes, pods])).await;
    server
        .role(None, "escalator", json!([{"verbs": ["escalate", "bind"], "apiGroups": [GROUP], "resources": ["*"]}]))
        .await;
    server.role(None, "binder", json!([{"verbs": ["bind"], "apiGroups": [GROUP], "resources": ["clusterroles"], "resourceNames": ["edit"]}])).await;
    for name in ["bob", "eve", "ben"] {
        server.bind(None, &format!("writer-{name}"), ("ClusterRole", "role-writer"), user(name)).await;
    }
    server.bind(None, "eve", ("ClusterRole", "escalator"), user("eve")).await;
    server.bind(None, "ben", ("ClusterRole", "binder"), user("ben")).await;
    let one = json!({"verbs": ["escalate"], "apiGroups": [GROUP], "resources": ["roles"], "resourceNames": ["one"]});
    server.role(None, "escalator-of-one", json!([one])).await;
    server.bind(None, "ben-escalates", ("ClusterRole", "escalator-of-one"), user("ben")).await;
    server.wait_until_roles_apply().await;

    let [bob, eve, ben]: [Identity<'_>; 3] = [("bob", &["dev"]), ("eve", &[]), ("ben", &[])];
    let role = |name: &str, rules: Value| json!({"metadata": {"name": name}, "rules": rules});
    let secrets = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"]});
    let roles = "POST /apis/rbac.authorization.k8s.io/v1/namespaces/default/roles";
    let (code, status) = server.send(bob, roles, role("r", json!([secrets, pods]))).await;
    let text = "roles.rbac.authorization.k8s.io \"r\" is forbidden: user \"bob\" (groups=[\"dev\" \"system:authenticated\"]) is \
                attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\"]}";
    assert_eq!((code, status["message"].as_str()), (403, Some(text)));
    assert_eq!(server.send(bob, roles, role("r", json!([pods]))).await.0, 201, "held permissions may be granted");
    assert_eq!(server.send(eve, roles, role("s", json!([secrets]))).await.0, 201, "eve may escalate");

    // `escalate` for one name applies to a PUT that creates the role, and not to a POST.
    let put = |name: &str| format!("PUT /apis/rbac.authorization.k8s.io/v1/namespaces/default/roles/{name}");
    assert_eq!(server.send(ben, roles, role("one", json!([secrets]))).await.0, 403, "a POST has no name");
    assert_eq!(server.send(ben, &put("two"), role("two", json!([secrets]))).await.0, 403, "another name");
    assert_eq!(server.send(ben, &put("one"), role("one", json!([secrets]))).await.0, 201, "ben may escalate one");

    // An update must not add permissions; metadata for the garbage collector may change.
    let update = "PUT /apis/rbac.authorization.k8s.io/v1/namespaces/default/roles/s";
    let (code, _) = server.send(bob, update, role("s", json!([secrets, pods]))).await;
    assert_eq!(code, 403, "the role has permissions that bob lacks");
    let get = "GET /apis/rbac.authorization.k8s.io/v1/namespaces/default/roles/s";
    let (_, mut stored) = server.send(ADMIN, get, Value::Null).await;
    stored["metadata"]["finalizers"] = json!(["example.com/f"]);
    let (code, status) = server.send(bob, update, stored).await;
    assert_eq!(code, 200, "{status}");

    let cluster_roles = "POST /apis/rbac.authorization.k8s.io/v1/clusterroles";
    let mut sum = role("sum", json!([]));
    sum["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]});
    let (code, status) = server.send(bob, cluster_roles, sum).await;
    let text = "clusterroles.rbac.authorization.k8s.io \"sum\" is forbidden: must have cluster-admin privileges to use the aggregationRule";
    assert_eq!((code, status["message"].as_str()), (403, Some(text)));

    let bindings = "POST /apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
    let binding = |name: &str, kind: &str, role: &str| {
        json!({"metadata": {"name": name}, "subjects": [user("x")],
        "roleRef": {"apiGroup": GROUP, "kind": kind, "name": role}})
    };
    for (who, name, kind, role, code) in [
        (bob, "b1", "Role", "r", 201),
        (bob, "b2", "Role", "s", 403),
        (bob, "b3", "ClusterRole", "edit", 403),
        (bob, "b4", "ClusterRole", "cluster-admin", 403),
        (bob, "b5", "Role", "gone", 404),
        (ben, "b6", "ClusterRole", "edit", 201),
        (ben, "b7", "ClusterRole", "admin", 403),
        (eve, "b8", "Role", "gone", 201),
        (eve, "b9", "ClusterRole", "cluster-admin", 201),
    ] {
        let (found, status) = server.send(who, bindings, binding(name, kind, role)).await;
        assert_eq!(found, code, "{} binds {kind} {role}: {status}", who.0);
        let is_escalation = status["message"].as_str().is_some_and(|text| text.contains("is attempting to grant RBAC"));
        assert_eq!(is_escalation, code == 403, "{status}");
    }
}

#[tokio::test]
async fn rules_review_lists_the_rules_of_the_user() {
    let server = with_identities().await;
    let line = "POST /apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
    let ask = |namespace: &str| json!({"spec": {"namespace": namespace}});
    let (code, review) = server.send(("pod-reader", &[]), line, ask("a")).await;
    let status = &review["status"];
    let pods =
        json!({"verbs": ["get", "list", "watch"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["x"]});
    assert_eq!((code, &status["incomplete"]), (201, &json!(false)), "{review}");
    assert!(status["resourceRules"].as_array().unwrap().contains(&pods), "{status}");
    assert!(status["nonResourceRules"].to_string().contains("/openapi/*"), "{status}");
    let (_, review) = server.send(("pod-reader", &[]), line, ask("b")).await;
    assert!(!review["status"]["resourceRules"].to_string().contains("pods"), "{review}");
    let (_, review) = server.send(ADMIN, line, ask("b")).await;
    let everything = json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]});
    assert!(review["status"]["resourceRules"].as_array().unwrap().contains(&everything), "{review}");
    // Access reviews give the reason.
    let ask = json!({"spec": {"user": "viewer", "resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "b"}}});
    let (_, review) = server.send(ADMIN, "POST /apis/authorization.k8s.io/v1/subjectaccessreviews", ask).await;
    let reason = "RBAC: allowed by ClusterRoleBinding \"viewer\" of ClusterRole \"view\" to User \"viewer\"";
    assert_eq!(review["status"], json!({"allowed": true, "reason": reason}));
}

#[tokio::test]
async fn pages_about_the_server_are_readable_by_the_monitoring_group_only() {
    let server = Server::start().await;
    for path in ["/metrics", "/metrics/slis", "/statusz", "/flagz"] {
        for (who, line, expected) in [
            (("prometheus", &["system:monitoring"][..]), format!("GET {path}"), 200),
            (("prometheus", &["system:monitoring"][..]), format!("DELETE {path}"), 403),
            (("bob", &[][..]), format!("GET {path}"), 403),
        ] {
            let (code, answer) = server.send(who, &line, Value::Null).await;
            assert_eq!(code, expected, "{} {line}: {answer}", who.0);
        }
    }
}
