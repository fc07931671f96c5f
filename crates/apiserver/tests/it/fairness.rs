//! Tests the guarantee "Fair": the lists of one user do not delay the lease renewals of another user.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use listwatch_apiserver::{ApiServer, ApiService, AuthorizationMode, Body, Builder};
use listwatch_json::{Value, json};

/// The error message of a broken guarantee.
const BROKEN: &str = "Fair: the lists of one user delay the leases of another";
/// The number of lists that one user starts concurrently. The lists need more seats than the server has.
const LISTS: usize = 700;
/// The number of renewals of a lease during these lists.
const RENEWALS: usize = 20;
/// Maximum duration of a renewal. A request that waits for a list would wait for 15 s.
const RENEWAL_MAX: Duration = Duration::from_secs(2);
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
const FLOW_SCHEMAS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas";
const LEVELS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations";

/// Returns the builder of a server that allows every request.
fn allowing() -> Builder {
    ApiServer::builder().authorization([AuthorizationMode::AlwaysAllow])
}

async fn call(client: &ApiService, method: &str, path: &str, body: Option<&Value>) -> Response<Body> {
    let body = body.map(Value::to_string).unwrap_or_default();
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    client.handle(request.body(Full::new(Bytes::from(body))).expect("a request")).await
}

async fn json_of(response: Response<Body>) -> Value {
    let bytes = response.into_body().collect().await.expect("whole").to_bytes();
    serde_json::from_slice(&bytes).unwrap_or_default()
}

/// Renews the lease like a leader election client.
async fn renew(client: &ApiService) -> Result<(), String> {
    let path = format!("{LEASES}/manager");
    let found = call(client, "GET", &path, None).await;
    if found.status() != 200 {
        return Err(format!("GET: {}", found.status()));
    }
    let mut lease = json_of(found).await;
    lease["spec"]["renewTime"] = json!("2026-01-01T00:00:00.000000Z");
    let renewed = call(client, "PUT", &path, Some(&lease)).await;
    if renewed.status() == 200 { Ok(()) } else { Err(format!("PUT: {}", renewed.status())) }
}

/// Renews a lease while another user sends as many lists as the server allows.
///
/// # Errors
/// The guarantee, if a renewal fails or takes too long.
async fn check_leases_during_a_list_storm(server: &ApiServer) -> Result<(), String> {
    let manager = server.client_as("system:kube-controller-manager", &[]);
    let lease = json!({"metadata": {"name": "manager"}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15}});
    let created = call(&manager, "POST", LEASES, Some(&lease)).await;
    assert_eq!(created.status(), 201);
    drop(created);
    // The clients of one user that do not read their responses, which hold their seats.
    let greedy = server.client_as("greedy", &[]);
    let lists: Vec<_> = (0..LISTS)
        .map(|_| {
            let greedy = greedy.clone();
            tokio::spawn(async move {
                let response = call(&greedy, "GET", "/api/v1/namespaces", None).await;
                tokio::time::sleep(Duration::from_secs(600)).await;
                drop(response);
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut outcome = Ok(());
    for _ in 0..RENEWALS {
        let broken = match tokio::time::timeout(RENEWAL_MAX, renew(&manager)).await {
            Ok(Ok(())) => continue,
            Ok(Err(why)) => why,
            Err(_) => format!("no answer in {RENEWAL_MAX:?}"),
        };
        outcome = Err(format!("{BROKEN}: {broken}"));
        break;
    }
    lists.into_iter().for_each(|list| list.abort());
    outcome
}

#[tokio::test(start_paused = true)]
async fn lists_of_one_user_do_not_delay_leases_of_another() {
    let server = allowing().build().await.expect("a server");
    assert_eq!(check_leases_during_a_list_storm(&server).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn lease_renewal_check_detects_planted_bugs() {
    // The server has no priority and fairness.
    let server = allowing().priority_and_fairness(false).build().await.expect("a server");
    let found = check_leases_during_a_list_storm(&server).await;
    assert!(found.as_ref().is_err_and(|why| why.starts_with(BROKEN)), "without fairness: {found:?}");
    // The server does not distinguish the users: all have the level and the queues of the lists.
    let server = allowing().build().await.expect("a server");
    let admin = server.client_as("admin", &["system:masters"]);
    let response = json!({"type": "Queue", "queuing": {"queues": 1, "handSize": 1, "queueLengthLimit": 1000}});
    let spec = json!({"type": "Limited", "limited": {"nominalConcurrencyShares": 10, "limitResponse": response}});
    let level = json!({"metadata": {"name": "one"}, "spec": spec});
    assert_eq!(call(&admin, "POST", LEVELS, Some(&level)).await.status(), 201);
    let rule =
        json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": true});
    let subjects = json!([{"kind": "Group", "group": {"name": "system:authenticated"}}]);
    let rules = json!([{"subjects": subjects, "resourceRules": [rule]}]);
    let spec = json!({"priorityLevelConfiguration": {"name": "one"}, "matchingPrecedence": 50, "rules": rules});
    let schema = json!({"metadata": {"name": "one"}, "spec": spec});
    assert_eq!(call(&admin, "POST", FLOW_SCHEMAS, Some(&schema)).await.status(), 201);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let found = check_leases_during_a_list_storm(&server).await;
    assert!(found.as_ref().is_err_and(|why| why.starts_with(BROKEN)), "with one queue: {found:?}");
}

#[tokio::test(start_paused = true)]
async fn response_headers_name_the_flow_schema_and_priority_level_by_uid() {
    let server = allowing().build().await.expect("a server");
    let admin = server.client_as("admin", &["system:masters"]);
    let uid = async |path: String| json_of(call(&admin, "GET", &path, None).await).await["metadata"]["uid"].clone();
    let account = ["system:serviceaccounts", "system:serviceaccounts:shop"];
    for (user, groups, line, schema, level) in [
        ("admin", &["system:masters"][..], "GET /api/v1/pods", "exempt", "exempt"),
        ("ann", &[], "GET /readyz", "probes", "exempt"),
        ("ann", &[], "GET /api/v1/pods", "global-default", "global-default"),
        ("ann", &[], "GET /api/v1/nonsense", "global-default", "global-default"),
        ("system:kube-scheduler", &[], "GET /api/v1/pods", "kube-scheduler", "workload-high"),
        ("system:serviceaccount:shop:a", &account, "GET /apis", "service-accounts", "workload-low"),
        ("system:node:a", &["system:nodes"], "GET /api/v1/nodes/a", "system-node-high", "node-high"),
        ("system:node:a", &["system:nodes"], "GET /api/v1/pods?watch=true&timeoutSeconds=1", "system-nodes", "system"),
    ] {
        let (method, path) = line.split_once(' ').expect("a method");
        let response = call(&server.client_as(user, groups), method, path, None).await;
        let header = |name: &str| response.headers()[name].to_str().expect("text").to_owned();
        let found = (header("x-kubernetes-pf-flowschema-uid"), header("x-kubernetes-pf-prioritylevel-uid"));
        let schema = uid(format!("{FLOW_SCHEMAS}/{schema}")).await;
        let level = uid(format!("{LEVELS}/{level}")).await;
        assert_eq!((json!(found.0), json!(found.1)), (schema, level), "{user}: {line}");
    }
    let off = allowing().priority_and_fairness(false).build().await.expect("a server");
    let response = call(&off.client_as("ann", &[]), "GET", "/api/v1/pods", None).await;
    assert!(!response.headers().contains_key("x-kubernetes-pf-flowschema-uid"));
}

#[tokio::test(start_paused = true)]
async fn changed_flow_schema_moves_requests_to_another_priority_level() {
    let server = allowing().build().await.expect("a server");
    let admin = server.client_as("admin", &["system:masters"]);
    let ann = server.client_as("ann", &[]);
    let rule = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "namespaces": ["*"]});
    let rules = json!([{"subjects": [{"kind": "User", "user": {"name": "ann"}}], "resourceRules": [rule]}]);
    let spec = json!({"priorityLevelConfiguration": {"name": "system"}, "matchingPrecedence": 50, "rules": rules});
    let schema = json!({"metadata": {"name": "ann"}, "spec": spec});
    let created = json_of(call(&admin, "POST", FLOW_SCHEMAS, Some(&schema)).await).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let response = call(&ann, "GET", "/api/v1/namespaces/a/pods/x", None).await;
    assert_eq!(
        json!(response.headers()["x-kubernetes-pf-flowschema-uid"].to_str().expect("text")),
        created["metadata"]["uid"]
    );
    drop(response);
    assert_eq!(call(&admin, "DELETE", &format!("{FLOW_SCHEMAS}/ann"), None).await.status(), 200);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let response = call(&ann, "GET", "/api/v1/namespaces/a/pods/x", None).await;
    assert_ne!(
        json!(response.headers()["x-kubernetes-pf-flowschema-uid"].to_str().expect("text")),
        created["metadata"]["uid"]
    );
}

#[tokio::test(start_paused = true)]
async fn metrics_show_levels_and_schemas_under_upstreams_names() {
    let server = allowing().build().await.expect("a server");
    drop(call(&server.client_as("ann", &[]), "GET", "/api/v1/pods", None).await);
    let response = call(&server.client_as("admin", &["system:masters"]), "GET", "/metrics", None).await;
    let text = response.into_body().collect().await.expect("whole").to_bytes();
    let text = std::str::from_utf8(&text).expect("text");
    for line in [
        "apiserver_flowcontrol_nominal_limit_seats{priority_level=\"global-default\"} 49",
        "apiserver_flowcontrol_current_limit_seats{priority_level=\"global-default\"} 56",
        "apiserver_flowcontrol_dispatched_requests_total{flow_schema=\"global-default\",priority_level=\"global-default\"} 1",
        "apiserver_flowcontrol_current_executing_requests{flow_schema=\"exempt\",priority_level=\"exempt\"} 1",
        "apiserver_flowcontrol_current_inqueue_requests{flow_schema=\"global-default\",priority_level=\"global-default\"} 0",
        "apiserver_flowcontrol_request_wait_duration_seconds_count{execute=\"true\",flow_schema=\"global-default\",\
         priority_level=\"global-default\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
    }
}
