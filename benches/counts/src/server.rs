//! Hot paths through the whole server, from a request to the bytes of the response body: routing,
//! checks, writes, cache, frames. No sockets and no TLS; the store is in memory.

use std::hint::black_box;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use listwatch_access::TokenFileAuthenticator;
use listwatch_apiserver::{ApiServer, ApiService, AuthorizationMode, Body, Controllers};
use listwatch_benches::runtime;
use listwatch_meta::Key;
use listwatch_storage::{MemoryStorage, Storage as _};

const PATH: &str = "/api/v1/namespaces/default/configmaps";

/// The body that writes object `n`. With its metadata it is about 1 KiB.
fn body_of(n: u64, turn: u64) -> Bytes {
    let payload = "0123456789abcdef".repeat(40);
    format!(
        "{{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"metadata\":{{\"name\":\"map-{n:06}\",\
         \"labels\":{{\"app\":\"shop\",\"tier\":\"front\"}},\"annotations\":{{\"example.com/owner\":\"team-1\"}}}},\
         \"data\":{{\"turn\":\"{turn}\",\"payload\":\"{payload}\"}}}}"
    )
    .into()
}

async fn send(service: &ApiService, request: http::request::Builder, body: Bytes) -> Response<Body> {
    service.handle(request.body(Full::new(body)).expect("a request")).await
}

/// Sends a request and reads the whole response.
pub(crate) async fn send_and_read(
    service: &ApiService,
    request: http::request::Builder,
    body: Bytes,
    status: StatusCode,
) -> Bytes {
    let response = send(service, request, body).await;
    assert_eq!(response.status(), status);
    response.into_body().collect().await.expect("a whole body").to_bytes()
}

fn post() -> http::request::Builder {
    Request::post(PATH).header("content-type", "application/json").header("user-agent", "counts/1")
}

fn put(n: u64) -> http::request::Builder {
    let path = format!("{PATH}/map-{n:06}");
    Request::put(path).header("content-type", "application/json").header("user-agent", "counts/1")
}

/// A server with this number of objects.
async fn server(objects: u64) -> ApiService {
    server_over(MemoryStorage::new(), objects).await
}

async fn server_over(storage: Arc<MemoryStorage>, objects: u64) -> ApiService {
    let service = ApiServer::builder().storage(storage).build().await.expect("a server").service();
    for n in 0..objects {
        send_and_read(&service, post(), body_of(n, 0), StatusCode::CREATED).await;
    }
    service
}

/// A server whose objects were created more than 8 years ago. The ages in the rows of its Tables change once a year.
/// Those of young objects change every second, so that the number of rows that are made anew depends on the machine.
async fn server_with_old_objects(objects: u64) -> ApiService {
    const CREATION_TIME: &str = "\"creationTimestamp\":\"";
    const OLD: &str = "2010-01-01T00:00:00Z";

    let storage = MemoryStorage::new();
    let service = server_over(Arc::clone(&storage), objects).await;
    for n in 0..objects {
        let key = Key::new("configmaps", Some("default"), &format!("map-{n:06}")).expect("a key");
        let (found, _) = storage.get(&key).await.expect("an answer of the store");
        let found = found.expect("a stored object");
        let mut text = String::from_utf8(found.value.to_vec()).expect("a stored object in JSON");
        let start = text.find(CREATION_TIME).expect("a creation time") + CREATION_TIME.len();
        text.replace_range(start..start + OLD.len(), OLD);
        storage.update(&key, found.modified, text.into(), None).await.expect("an update of the store");
    }
    service
}

pub(crate) fn get(turns: u64) {
    runtime().block_on(async {
        let service = server(10).await;
        for turn in 0..turns {
            let request = Request::get(format!("{PATH}/map-{:06}", turn % 10));
            black_box(send_and_read(&service, request, Bytes::new(), StatusCode::OK).await);
        }
    });
}

pub(crate) fn get_as_user(turns: u64) {
    gets(turns, AuthorizationMode::AlwaysAllow, Credential::Identity);
}

pub(crate) fn get_by_rbac(turns: u64) {
    gets(turns, AuthorizationMode::Rbac, Credential::Identity);
}

pub(crate) fn get_with_token(turns: u64) {
    gets(turns, AuthorizationMode::AlwaysAllow, Credential::Token);
}

pub(crate) fn get_with_token_by_rbac(turns: u64) {
    gets(turns, AuthorizationMode::Rbac, Credential::Token);
}

/// The number of bindings beside the one of the user.
const OTHER_BINDINGS: usize = 1_000;

/// The way a request is authenticated.
#[derive(Clone, Copy)]
enum Credential {
    /// The user of an in-process client.
    Identity,
    /// A bearer token of a token file.
    Token,
}

/// A user whom a RoleBinding allows to read ConfigMaps, among many bindings of others.
struct Reader {
    server: ApiServer,
    service: ApiService,
    token: Option<&'static str>,
}

impl Reader {
    /// A server with 10 objects, and the user. Both modes have the same objects, so that only the decision differs.
    async fn new(mode: AuthorizationMode, credential: Credential) -> Self {
        const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
        let role = r#"{"metadata":{"name":"reader"},
            "rules":[{"apiGroups":[""],"resources":["configmaps"],"verbs":["get","list","watch"]}]}"#;
        let binding = |name: &str, group: &str| {
            format!(
                r#"{{"metadata":{{"name":"{name}"}},"subjects":[{{"kind":"Group","name":"{group}",
                "apiGroup":"rbac.authorization.k8s.io"}}],
                "roleRef":{{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"reader"}}}}"#
            )
        };
        let tokens = TokenFileAuthenticator::new("bobs-token,bob,7,readers\n").expect("a token file");
        let server = ApiServer::builder().authenticator(tokens).authorization([mode]);
        // Controllers work at times of their own.
        let server = server.controllers(Controllers::NONE).build().await.expect("a server");
        let admin = server.client_as("admin", &["system:masters"]);
        let others = (0..OTHER_BINDINGS).map(|n| binding(&format!("other-{n}"), &format!("group-{n}")));
        let bindings = others.chain([binding("readers", "readers")]).map(|body| ("rolebindings", body));
        for (path, body) in std::iter::once(("roles", role.to_owned())).chain(bindings) {
            let request = Request::post(format!("{RBAC}/{path}")).header("content-type", "application/json");
            send_and_read(&admin, request, body.into(), StatusCode::CREATED).await;
        }
        for n in 0..10 {
            send_and_read(&admin, post(), body_of(n, 0), StatusCode::CREATED).await;
        }
        let (service, token) = match credential {
            Credential::Identity => (server.client_as("bob", &["readers"]), None),
            Credential::Token => (server.service(), Some("Bearer bobs-token")),
        };
        let reader = Reader { server, service, token };
        // The authorizer learns of the binding from its watch.
        while send(&reader.service, reader.get(0), Bytes::new()).await.status() == StatusCode::FORBIDDEN {
            tokio::task::yield_now().await;
        }
        reader
    }

    fn with_token(&self, request: http::request::Builder) -> http::request::Builder {
        match self.token {
            Some(token) => request.header("authorization", token),
            None => request,
        }
    }

    fn get(&self, n: u64) -> http::request::Builder {
        self.with_token(Request::get(format!("{PATH}/map-{n:06}")))
    }
}

fn gets(turns: u64, mode: AuthorizationMode, credential: Credential) {
    runtime().block_on(async {
        let reader = Reader::new(mode, credential).await;
        for turn in 0..turns {
            black_box(send_and_read(&reader.service, reader.get(turn % 10), Bytes::new(), StatusCode::OK).await);
        }
    });
}

pub(crate) fn create(turns: u64) {
    runtime().block_on(async {
        let service = server(1).await;
        for turn in 0..turns {
            black_box(send_and_read(&service, post(), body_of(turn + 1, 0), StatusCode::CREATED).await);
        }
    });
}

/// The number of webhook configurations that match no request of the path.
const OTHER_WEBHOOKS: usize = 1_000;

pub(crate) fn create_beside_webhooks(turns: u64) {
    create_beside(turns, |n| match n % 2 {
        0 => r#"{"apiGroups":["apps"],"apiVersions":["v1"],"operations":["*"],"resources":["deployments"]}"#,
        _ => r#"{"apiGroups":[""],"apiVersions":["v1"],"operations":["DELETE"],"resources":["configmaps"]}"#,
    });
}

fn create_beside(turns: u64, rule: fn(usize) -> &'static str) {
    const CONFIGURATIONS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    runtime().block_on(async {
        let server = ApiServer::builder().controllers(Controllers::NONE).build().await.expect("a server");
        let service = server.service();
        for n in 0..OTHER_WEBHOOKS {
            let body = format!(
                r#"{{"metadata":{{"name":"other-{n}"}},"webhooks":[{{"name":"a.example.com","sideEffects":"None",
                "admissionReviewVersions":["v1"],"failurePolicy":"Ignore","clientConfig":{{"url":"https://127.0.0.1:1/"}},
                "rules":[{}]}}]}}"#,
                rule(n)
            );
            let request = Request::post(CONFIGURATIONS).header("content-type", "application/json");
            send_and_read(&service, request, body.into(), StatusCode::CREATED).await;
        }
        // The server learns of the webhooks from its watch.
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
        }
        for turn in 0..turns {
            black_box(send_and_read(&service, post(), body_of(turn + 1, 0), StatusCode::CREATED).await);
        }
    });
}

/// A Deployment of about 1 KiB as a client sends it.
fn deployment_of(n: u64) -> Bytes {
    let env: Vec<String> = (0..6).map(|at| format!("{{\"name\":\"SETTING_{at}\",\"value\":\"value-{at}\"}}")).collect();
    let env = env.join(",");
    format!(
        "{{\"apiVersion\":\"apps/v1\",\"kind\":\"Deployment\",\"metadata\":{{\"name\":\"web-{n:06}\",\
         \"labels\":{{\"app\":\"shop\",\"tier\":\"front\"}}}},\"spec\":{{\"replicas\":3,\
         \"selector\":{{\"matchLabels\":{{\"app\":\"shop\"}}}},\"template\":{{\"metadata\":{{\"labels\":{{\"app\":\"shop\"}}}},\
         \"spec\":{{\"containers\":[{{\"name\":\"web\",\"image\":\"shop:1\",\"env\":[{env}],\
         \"ports\":[{{\"name\":\"http\",\"containerPort\":8080}}],\
         \"resources\":{{\"requests\":{{\"cpu\":\"100m\",\"memory\":\"64Mi\"}}}}}}]}}}}}}}}"
    )
    .into()
}

pub(crate) fn create_deployment(turns: u64) {
    const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
    runtime().block_on(async {
        let service = server(1).await;
        for turn in 0..turns {
            let request = Request::post(DEPLOYMENTS).header("content-type", "application/json");
            let request = request.header("user-agent", "counts/1");
            black_box(send_and_read(&service, request, deployment_of(turn), StatusCode::CREATED).await);
        }
    });
}

pub(crate) fn update(turns: u64) {
    runtime().block_on(async {
        let service = server(10).await;
        for turn in 0..turns {
            black_box(send_and_read(&service, put(turn % 10), body_of(turn % 10, turn + 1), StatusCode::OK).await);
        }
    });
}

pub(crate) fn patch(turns: u64) {
    runtime().block_on(async {
        let service = server(10).await;
        for turn in 0..turns {
            let request = Request::patch(format!("{PATH}/map-{:06}", turn % 10))
                .header("content-type", "application/merge-patch+json")
                .header("user-agent", "counts/1");
            let body = format!("{{\"data\":{{\"turn\":\"{}\"}}}}", turn + 1);
            black_box(send_and_read(&service, request, body.into(), StatusCode::OK).await);
        }
    });
}

pub(crate) fn watch(turns: u64) {
    runtime().block_on(async {
        let service = server(10).await;
        watches(turns, &service, &service).await;
    });
}

pub(crate) fn watch_as_user(turns: u64) {
    watches_of_reader(turns, AuthorizationMode::AlwaysAllow);
}

pub(crate) fn watch_by_rbac(turns: u64) {
    watches_of_reader(turns, AuthorizationMode::Rbac);
}

fn watches_of_reader(turns: u64, mode: AuthorizationMode) {
    runtime().block_on(async {
        let reader = Reader::new(mode, Credential::Identity).await;
        let admin = reader.server.client_as("admin", &["system:masters"]);
        watches(turns, &admin, &reader.service).await;
    });
}

/// Each turn writes one of 10 objects and receives its event in 10 watches.
async fn watches(turns: u64, writer: &ApiService, watcher: &ApiService) {
    let mut watches = Vec::new();
    for _ in 0..10 {
        let request = Request::get(format!("{PATH}?watch=true&timeoutSeconds=36000"));
        let response = send(watcher, request, Bytes::new()).await;
        assert_eq!(response.status(), StatusCode::OK);
        let mut body = response.into_body();
        // The existing objects arrive first.
        let mut seen = 0;
        while seen < 10 {
            let frame = body.frame().await.expect("an event").expect("a frame").into_data().expect("data");
            seen += frame.iter().filter(|byte| **byte == b'\n').count();
        }
        watches.push(body);
    }
    for turn in 0..turns {
        black_box(send_and_read(writer, put(turn % 10), body_of(turn % 10, turn + 1), StatusCode::OK).await);
        for body in &mut watches {
            black_box(body.frame().await.expect("an event").expect("a frame"));
        }
    }
}

pub(crate) fn list(turns: u64) {
    lists(turns, server, "application/json");
}

pub(crate) fn table(turns: u64) {
    lists(turns, server_with_old_objects, "application/json;as=Table;v=v1;g=meta.k8s.io");
}

fn lists(turns: u64, server: impl AsyncFn(u64) -> ApiService, accept: &str) {
    runtime().block_on(async {
        let service = server(500).await;
        for _ in 0..turns {
            let request = Request::get(PATH).header("accept", accept);
            black_box(send_and_read(&service, request, Bytes::new(), StatusCode::OK).await);
        }
    });
}
