//! LIST, GET and WATCH as clients see them: requests in, whole responses out, through the service
//! and without a network.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Empty};
use listwatch_apiserver::{ApiServer, Body};
use listwatch_meta::{Key, Revision};
use listwatch_storage::{MemoryStorage, Storage as _};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const PARTIAL: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";

struct World {
    server: ApiServer,
    store: Arc<MemoryStorage>,
}

impl World {
    async fn new() -> Self {
        let store = MemoryStorage::new();
        let server = ApiServer::builder().storage(store.clone()).build().await.expect("a server");
        World { server, store }
    }

    fn key(name: &str) -> Key {
        Key::new("configmaps", Some("shop"), name).expect("a key")
    }

    fn stored(name: &str, app: &str, n: u32) -> Bytes {
        format!(
            r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"{name}","namespace":"shop","labels":{{"app":"{app}"}}}},"data":{{"n":"{n}"}}}}"#
        )
        .into()
    }

    async fn create(&self, name: &str, app: &str) -> Revision {
        self.store.create(&Self::key(name), Self::stored(name, app, 0), None).await.expect("created")
    }

    async fn update(&self, name: &str, app: &str, n: u32) -> Revision {
        let (current, _) = self.store.get(&Self::key(name)).await.expect("read");
        let current = current.expect("there");
        self.store.update(&current.key, current.modified, Self::stored(name, app, n), None).await.expect("updated")
    }

    async fn delete(&self, name: &str) -> Revision {
        let (current, _) = self.store.get(&Self::key(name)).await.expect("read");
        let current = current.expect("there");
        self.store.delete(&current.key, current.modified).await.expect("deleted")
    }

    async fn ask(&self, path: &str, accept: &str) -> Response<Body> {
        let mut request = Request::get(path);
        if !accept.is_empty() {
            request = request.header("accept", accept);
        }
        self.server.service().handle(request.body(Empty::<Bytes>::new()).expect("a request")).await
    }

    /// Code, content type and body.
    async fn get(&self, path: &str, accept: &str) -> (u16, String, String) {
        let response = self.ask(path, accept).await;
        let code = response.status().as_u16();
        let content_type = response.headers().get("content-type").map(|value| value.to_str().expect("text").to_owned());
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        (code, content_type.unwrap_or_default(), String::from_utf8(body.to_vec()).expect("text"))
    }

    /// The lines of a watch that ends by itself.
    async fn watch(&self, query: &str, accept: &str) -> Vec<String> {
        let (code, _, body) = self.get(&format!("/api/v1/namespaces/shop/configmaps?watch=true&{query}"), accept).await;
        assert_eq!(code, 200, "{body}");
        assert!(body.is_empty() || body.ends_with('\n'), "every frame ends in a newline: {body}");
        body.lines().map(str::to_owned).collect()
    }
}

fn object(name: &str, app: &str, n: u32, revision: Revision) -> String {
    format!(
        r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"resourceVersion":"{revision}","name":"{name}","namespace":"shop","labels":{{"app":"{app}"}}}},"data":{{"n":"{n}"}}}}"#
    )
}

/// An object inside a list, which names the type for all its items.
fn item(name: &str, app: &str, n: u32, revision: Revision) -> String {
    object(name, app, n, revision).replacen(r#""kind":"ConfigMap","apiVersion":"v1","#, "", 1)
}

fn event(kind: &str, object: &str) -> String {
    format!(r#"{{"type":"{kind}","object":{object}}}"#)
}

#[tokio::test(start_paused = true)]
async fn a_list_is_the_stored_bytes_joined() {
    let world = World::new().await;
    let b = world.create("b", "web").await;
    let a = world.create("a", "db").await;
    let (code, content_type, body) = world.get("/api/v1/configmaps", "").await;
    assert_eq!((code, content_type.as_str()), (200, "application/json"));
    let items = [item("a", "db", 0, a), item("b", "web", 0, b)].join(",");
    assert_eq!(
        body,
        format!(
            "{{\"kind\":\"ConfigMapList\",\"apiVersion\":\"v1\",\"metadata\":{{\"resourceVersion\":\"{a}\"}},\"items\":[{items}]}}\n"
        )
    );
    let (_, _, body) = world.get("/api/v1/namespaces/other/configmaps", "").await;
    assert_eq!(
        body,
        format!(
            "{{\"kind\":\"ConfigMapList\",\"apiVersion\":\"v1\",\"metadata\":{{\"resourceVersion\":\"{a}\"}},\"items\":[]}}\n"
        )
    );
    let (_, _, body) = world.get("/api/v1/configmaps?labelSelector=app%3Dweb&resourceVersion=0", "").await;
    assert!(body.contains(&item("b", "web", 0, b)) && !body.contains("\"a\""), "{body}");
}

#[tokio::test(start_paused = true)]
async fn pages_show_one_revision_and_count_what_remains() {
    let world = World::new().await;
    for name in ["a", "b", "c"] {
        world.create(name, "web").await;
    }
    let list = |body: String| serde_json::from_str::<serde_json::Value>(&body).expect("JSON");
    let first = list(world.get("/api/v1/namespaces/shop/configmaps?limit=2", "").await.2);
    assert_eq!(first["items"].as_array().expect("items").len(), 2);
    assert_eq!(first["metadata"]["remainingItemCount"], 1);
    world.delete("c").await;
    let token = first["metadata"]["continue"].as_str().expect("a token");
    let second = list(world.get(&format!("/api/v1/namespaces/shop/configmaps?limit=2&continue={token}"), "").await.2);
    assert_eq!(second["items"][0]["metadata"]["name"], "c", "the page shows the revision of the first one");
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    assert_eq!(second["metadata"].get("continue"), None);
}

#[tokio::test(start_paused = true)]
async fn a_watch_begins_with_the_state_and_marks_its_end() {
    let world = World::new().await;
    let b = world.create("b", "web").await;
    let a = world.create("a", "db").await;
    let added = [event("ADDED", &object("a", "db", 0, a)), event("ADDED", &object("b", "web", 0, b))];
    assert_eq!(world.watch("timeoutSeconds=1", "").await, added);
    let marked = world.watch("timeoutSeconds=1&allowWatchBookmarks=true", "").await;
    assert_eq!(marked[..2], added);
    assert_eq!(
        marked[2],
        format!(
            r#"{{"type":"BOOKMARK","object":{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"resourceVersion":"{a}","annotations":{{"k8s.io/initial-events-end":"true"}}}}}}}}"#
        )
    );
}

#[tokio::test(start_paused = true)]
async fn a_watch_from_a_version_tells_every_later_change_as_its_selector_sees_it() {
    let world = World::new().await;
    let start = world.create("a", "web").await;
    world.get("/api/v1/configmaps", "").await; // the cache begins here
    let moved = world.update("a", "db", 1).await;
    let changed = world.update("a", "db", 2).await;
    let back = world.update("a", "web", 3).await;
    let gone = world.delete("a").await;
    let lines = world.watch(&format!("timeoutSeconds=1&resourceVersion={start}&labelSelector=app%3Dweb"), "").await;
    assert_eq!(
        lines,
        [
            event("DELETED", &object("a", "web", 0, moved)),
            event("ADDED", &object("a", "web", 3, back)),
            event("DELETED", &object("a", "web", 3, gone)),
        ]
    );
    let lines =
        world.watch(&format!("timeoutSeconds=1&resourceVersion={moved}&fieldSelector=metadata.name%3Da"), "").await;
    assert_eq!(
        lines,
        [
            event("MODIFIED", &object("a", "db", 2, changed)),
            event("MODIFIED", &object("a", "web", 3, back)),
            event("DELETED", &object("a", "web", 3, gone)),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn an_event_arrives_at_once_and_alone() {
    let world = World::new().await;
    let start = world.create("a", "web").await;
    let path = format!("/api/v1/configmaps?watch=true&resourceVersion={start}");
    let mut body = world.ask(&path, "").await.into_body();
    for n in 1..4 {
        let revision = world.update("a", "web", n).await;
        let begun = tokio::time::Instant::now();
        let frame = body.frame().await.expect("open").expect("well").into_data().expect("data");
        assert_eq!(frame, event("MODIFIED", &object("a", "web", n, revision)) + "\n");
        assert_eq!(begun.elapsed(), Duration::ZERO, "no timer stands between an event and its watcher");
    }
}

#[tokio::test(start_paused = true)]
async fn a_place_that_left_the_window_is_an_error_in_the_stream() {
    let world = World::new().await;
    let start = world.create("a", "web").await;
    let last = world.update("a", "web", 1).await;
    world.store.compact(last).await.expect("compacted");
    world.get("/api/v1/configmaps", "").await; // the cache begins where the store does
    let lines = world.watch(&format!("resourceVersion={}", start.previous()), "").await;
    assert_eq!(lines.len(), 1, "{lines:?}");
    let error: serde_json::Value = serde_json::from_str(&lines[0]).expect("JSON");
    assert_eq!(
        (&error["type"], &error["object"]["code"], &error["object"]["reason"]),
        (&"ERROR".into(), &410.into(), &"Expired".into())
    );
}

#[tokio::test(start_paused = true)]
async fn the_deprecated_paths_watch_one_object_and_check_its_name() {
    let world = World::new().await;
    let a = world.create("a", "web").await;
    world.create("b", "web").await;
    let path = "/api/v1/watch/namespaces/shop/configmaps/a?timeoutSeconds=1";
    let (code, _, body) = world.get(path, "").await;
    assert_eq!((code, body), (200, event("ADDED", &object("a", "web", 0, a)) + "\n"));
    let (code, _, body) = world.get(&format!("{path}&fieldSelector=metadata.name%3Db"), "").await;
    assert!(code == 400 && body.contains("fieldSelector metadata.name doesn't match requested name"), "{body}");
    let (code, _, _) = world.get(&format!("{path}&sendInitialEvents=true"), "").await;
    assert_eq!(code, 422, "the list rules hold on these paths");
}

#[tokio::test(start_paused = true)]
async fn views_are_negotiated() {
    let world = World::new().await;
    let a = world.create("a", "web").await;
    let item = "/api/v1/namespaces/shop/configmaps/a";
    let parse = |body: &str| serde_json::from_str::<serde_json::Value>(body).expect("JSON");

    let (_, _, table) = world.get(item, TABLE).await;
    let table = parse(&table);
    assert_eq!((&table["kind"], &table["rows"][0]["cells"][0]), (&"Table".into(), &"a".into()));
    assert_eq!(table["columnDefinitions"][0]["name"], "Name");
    let (_, _, partial) = world.get(item, PARTIAL).await;
    assert_eq!(
        partial,
        format!(
            r#"{{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{{"resourceVersion":"{a}","name":"a","namespace":"shop","labels":{{"app":"web"}}}}}}"#
        ) + "\n"
    );
    let (_, content_type, yaml) = world.get(item, "application/yaml").await;
    assert_eq!(content_type, "application/yaml");
    assert!(yaml.contains("\n  name: a\n"), "{yaml}");
    let (code, _, _) = world.get(item, "text/html").await;
    assert_eq!(code, 406);
    let (code, _, _) = world.get("/api/v1/configmaps", PARTIAL).await;
    assert_eq!(code, 406, "a list needs PartialObjectMetadataList");
    let (code, _, _) = world.get("/api/v1/configmaps?watch=1", "application/yaml").await;
    assert_eq!(code, 406, "YAML cannot stream");

    world.create("b", "web").await;
    let rows = world.watch("timeoutSeconds=1&allowWatchBookmarks=true", TABLE).await;
    let rows: Vec<serde_json::Value> = rows.iter().map(|line| parse(line)).collect();
    assert_eq!(rows.len(), 3);
    assert!(rows[0]["object"]["columnDefinitions"].is_array(), "the first event says what the columns are");
    assert!(rows[1]["object"]["columnDefinitions"].is_null(), "and only the first");
    assert_eq!(rows[2]["type"], "BOOKMARK");
    assert_eq!(rows[2]["object"]["rows"][0]["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
}

#[tokio::test(start_paused = true)]
async fn human_eyes_get_indented_json() {
    let world = World::new().await;
    world.create("a", "web").await;
    let (_, _, body) = world.get("/api/v1/configmaps?pretty=true", "").await;
    assert!(body.starts_with("{\n  \"kind\": \"ConfigMapList\",\n") && body.ends_with("\n}\n"), "{body}");
    let (_, _, compact) = world.get("/api/v1/configmaps", "").await;
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&body).expect("JSON"),
        serde_json::from_str::<serde_json::Value>(&compact).expect("JSON")
    );
}

#[tokio::test(start_paused = true)]
async fn a_version_ahead_of_the_server_is_waited_for_and_then_refused() {
    let world = World::new().await;
    world.create("a", "web").await;
    let begun = tokio::time::Instant::now();
    let response = world.ask("/api/v1/configmaps?resourceVersion=999999&resourceVersionMatch=NotOlderThan", "").await;
    assert_eq!(response.status(), 504);
    assert_eq!(response.headers()["retry-after"], "1");
    assert!(begun.elapsed() >= Duration::from_secs(3), "waited {:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn watches_straight_from_the_store_look_the_same() {
    let store = MemoryStorage::new();
    let server = ApiServer::builder().storage(store.clone()).watch_cache(false).build().await.expect("a server");
    let world = World { server, store };
    let a = world.create("a", "web").await;
    let moved = world.update("a", "db", 1).await;
    assert_eq!(
        world.watch(&format!("timeoutSeconds=1&resourceVersion={a}&labelSelector=app%3Dweb"), "").await,
        [event("DELETED", &object("a", "web", 0, moved))]
    );
    let state = world.watch("timeoutSeconds=1&allowWatchBookmarks=true", "").await;
    assert_eq!(state[0], event("ADDED", &object("a", "db", 1, moved)));
    assert!(state[1].contains("initial-events-end"), "{state:?}");
}

/// The main promise, on the whole path from store to response body.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_watchers_see_a_thousand_updates_in_one_order_with_none_missing() {
    const WATCHERS: usize = 1_000;
    const UPDATES: u32 = 1_000;
    let world = World::new().await;
    let start = world.create("a", "web").await;
    let path = format!("/api/v1/namespaces/shop/configmaps?watch=true&resourceVersion={start}");
    let mut watchers = tokio::task::JoinSet::new();
    for _ in 0..WATCHERS {
        let mut body = world.ask(&path, "").await.into_body();
        watchers.spawn(async move {
            let mut seen: Vec<u64> = Vec::with_capacity(UPDATES as usize);
            while seen.len() < UPDATES as usize {
                let chunk = body.frame().await.expect("open").expect("well").into_data().expect("data");
                for line in chunk.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                    let text = std::str::from_utf8(line).expect("text");
                    let (_, version) = text.split_once("\"resourceVersion\":\"").expect("a version");
                    seen.push(version[..version.find('"').expect("its end")].parse().expect("a number"));
                }
            }
            seen
        });
    }
    let mut written = Vec::new();
    for n in 1..=UPDATES {
        written.push(world.update("a", "web", n).await.get());
    }
    while let Some(seen) = watchers.join_next().await {
        assert_eq!(
            seen.expect("no panic"),
            written,
            "complete and ordered: a watcher saw something else than was written"
        );
    }
}
