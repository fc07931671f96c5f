//! Tests LIST, GET and WATCH: complete requests and responses, through the service and without a network.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Empty};
use listwatch_apiserver::{ApiServer, Body};
use listwatch_meta::{Key, Revision};
use listwatch_storage::{MemoryStorage, Storage as _};
use listwatch_wire::protobuf;

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

    /// Returns code, content type and body.
    async fn get(&self, path: &str, accept: &str) -> (u16, String, String) {
        let response = self.ask(path, accept).await;
        let code = response.status().as_u16();
        let content_type = response.headers().get("content-type").map(|value| value.to_str().expect("text").to_owned());
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        (code, content_type.unwrap_or_default(), String::from_utf8(body.to_vec()).expect("text"))
    }

    /// Returns code, content type and the bytes of the body.
    async fn bytes(&self, path: &str, accept: &str) -> (u16, String, Bytes) {
        let response = self.ask(path, accept).await;
        let code = response.status().as_u16();
        let content_type = response.headers()["content-type"].to_str().expect("text").to_owned();
        (code, content_type, response.into_body().collect().await.expect("a body").to_bytes())
    }

    /// Returns the lines of a watch that ends after its timeout.
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

/// Returns an object in the form of a list item, without `apiVersion` and `kind`.
fn item(name: &str, app: &str, n: u32, revision: Revision) -> String {
    object(name, app, n, revision).replacen(r#""kind":"ConfigMap","apiVersion":"v1","#, "", 1)
}

fn event(kind: &str, object: &str) -> String {
    format!(r#"{{"type":"{kind}","object":{object}}}"#)
}

#[tokio::test(start_paused = true)]
async fn list_response_consists_of_the_stored_bytes() {
    let world = World::new().await;
    let b = world.create("b", "web").await;
    let a = world.create("a", "db").await;
    let (code, content_type, body) = world.get("/api/v1/namespaces/shop/configmaps", "").await;
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
    let (_, _, body) =
        world.get("/api/v1/namespaces/shop/configmaps?labelSelector=app%3Dweb&resourceVersion=0", "").await;
    assert!(body.contains(&item("b", "web", 0, b)) && !body.contains("\"a\""), "{body}");
}

#[tokio::test(start_paused = true)]
async fn list_pages_have_one_revision_and_the_remaining_item_count() {
    let world = World::new().await;
    for name in ["a", "b", "c"] {
        world.create(name, "web").await;
    }
    let list = |body: String| serde_json::from_str::<listwatch_json::Value>(&body).expect("JSON");
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
async fn watch_list_starts_with_current_objects_and_marks_their_end_with_a_bookmark() {
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
async fn watch_from_version_delivers_every_later_change_of_its_selector() {
    let world = World::new().await;
    let start = world.create("a", "web").await;
    world.get("/api/v1/namespaces/shop/configmaps", "").await; // the cache begins here
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
async fn watch_event_is_sent_at_once_in_its_own_chunk() {
    let world = World::new().await;
    let start = world.create("a", "web").await;
    let path = format!("/api/v1/namespaces/shop/configmaps?watch=true&resourceVersion={start}");
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
async fn watch_from_version_outside_the_window_ends_with_410_in_the_stream() {
    let world = World::new().await;
    let start = world.create("a", "web").await;
    let last = world.update("a", "web", 1).await;
    world.store.compact(last).await.expect("compacted");
    world.get("/api/v1/namespaces/shop/configmaps", "").await; // the cache begins where the store does
    let lines = world.watch(&format!("resourceVersion={}", start.previous()), "").await;
    assert_eq!(lines.len(), 1, "{lines:?}");
    let error: listwatch_json::Value = serde_json::from_str(&lines[0]).expect("JSON");
    assert_eq!(
        (&error["type"], &error["object"]["code"], &error["object"]["reason"]),
        (&"ERROR".into(), &410.into(), &"Expired".into())
    );
}

#[tokio::test(start_paused = true)]
async fn deprecated_watch_path_checks_the_object_name() {
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
async fn table_and_metadata_views_are_negotiated() {
    let world = World::new().await;
    let a = world.create("a", "web").await;
    let item = "/api/v1/namespaces/shop/configmaps/a";
    let parse = |body: &str| serde_json::from_str::<listwatch_json::Value>(body).expect("JSON");

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
    let (code, _, _) = world.get("/api/v1/namespaces/shop/configmaps", PARTIAL).await;
    assert_eq!(code, 406, "a list needs PartialObjectMetadataList");
    let (code, _, _) = world.get("/api/v1/namespaces/shop/configmaps?watch=1", "application/yaml").await;
    assert_eq!(code, 406, "YAML cannot stream");

    world.create("b", "web").await;
    let rows = world.watch("timeoutSeconds=1&allowWatchBookmarks=true", TABLE).await;
    let rows: Vec<listwatch_json::Value> = rows.iter().map(|line| parse(line)).collect();
    assert_eq!(rows.len(), 3);
    assert!(rows[0]["object"]["columnDefinitions"].is_array(), "the first event says what the columns are");
    assert!(rows[1]["object"]["columnDefinitions"].is_null(), "and only the first");
    assert_eq!(rows[2]["type"], "BOOKMARK");
    assert_eq!(rows[2]["object"]["rows"][0]["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
}

#[tokio::test(start_paused = true)]
async fn browser_requests_get_indented_json() {
    let world = World::new().await;
    world.create("a", "web").await;
    let (_, _, body) = world.get("/api/v1/namespaces/shop/configmaps?pretty=true", "").await;
    assert!(body.starts_with("{\n  \"kind\": \"ConfigMapList\",\n") && body.ends_with("\n}\n"), "{body}");
    let (_, _, compact) = world.get("/api/v1/namespaces/shop/configmaps", "").await;
    assert_eq!(
        serde_json::from_str::<listwatch_json::Value>(&body).expect("JSON"),
        serde_json::from_str::<listwatch_json::Value>(&compact).expect("JSON")
    );
}

#[tokio::test(start_paused = true)]
async fn read_at_future_version_waits_then_fails_with_504() {
    let world = World::new().await;
    world.create("a", "web").await;
    let begun = tokio::time::Instant::now();
    let response = world
        .ask("/api/v1/namespaces/shop/configmaps?resourceVersion=999999&resourceVersionMatch=NotOlderThan", "")
        .await;
    assert_eq!(response.status(), 504);
    assert_eq!(response.headers()["retry-after"], "1");
    assert!(begun.elapsed() >= Duration::from_secs(3), "waited {:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn uncached_watch_delivers_the_same_events_as_a_cached_watch() {
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

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// Decodes a protobuf body to JSON.
fn decoded(body: &[u8]) -> listwatch_json::Value {
    let decoded = protobuf::decode(body).expect("protobuf");
    serde_json::from_slice(&decoded.json).expect("JSON")
}

#[tokio::test(start_paused = true)]
async fn protobuf_reads_equal_json_reads() {
    let world = World::new().await;
    let revision = world.create("a", "web").await;
    for n in 0..700 {
        world.create(&format!("b{n}"), &"x".repeat(50)).await;
    }
    for path in [
        "/api/v1/namespaces/shop/configmaps/a",
        "/api/v1/namespaces/shop/configmaps",
        "/api/v1/namespaces/shop/configmaps?limit=2",
    ] {
        let (code, content_type, body) = world.bytes(path, PROTOBUF).await;
        assert_eq!((code, content_type.as_str()), (200, PROTOBUF), "{path}");
        let json: listwatch_json::Value = serde_json::from_str(&world.get(path, "").await.2).expect("JSON");
        let mut found = decoded(&body);
        // The remaining count and the continue token are equal.
        assert_eq!(found["metadata"], json["metadata"], "{path}");
        let (items, expected) = (found["items"].take(), json["items"].clone());
        assert_eq!(items.as_array().map(Vec::len), expected.as_array().map(Vec::len), "{path}");
        for (item, expected) in items.as_array().into_iter().flatten().zip(expected.as_array().into_iter().flatten()) {
            assert_eq!(item["metadata"]["name"], expected["metadata"]["name"]);
            assert_eq!(
                (&item["metadata"]["labels"], &item["data"]),
                (&expected["metadata"]["labels"], &expected["data"])
            );
        }
    }
    let wanted = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let (_, content_type, body) = world.bytes("/api/v1/namespaces/shop/configmaps", wanted).await;
    assert_eq!(content_type, PROTOBUF);
    let list = decoded(&body);
    assert_eq!((&list["kind"], &list["apiVersion"]), (&"PartialObjectMetadataList".into(), &"meta.k8s.io/v1".into()));
    assert_eq!(list["items"][0]["metadata"]["resourceVersion"], revision.to_string());
    assert_eq!(list["items"][0].get("data"), None);
    let (code, _, body) =
        world.bytes("/api/v1/namespaces/shop/configmaps", &TABLE.replace("json", "vnd.kubernetes.protobuf")).await;
    assert_eq!(code, 406, "{body:?}");
}

#[tokio::test(start_paused = true)]
async fn protobuf_watch_is_framed_by_lengths() {
    use listwatch_wire::protobuf::{WatchMessage, decode};
    use listwatch_wire::{EventKind, LengthFrames};
    let world = World::new().await;
    let a = world.create("a", "web").await;
    let changed = world.update("a", "db", 1).await;
    let read = async |query: &str, accept: &str| {
        let path = format!("/api/v1/namespaces/shop/configmaps?watch=true&timeoutSeconds=1&{query}");
        let (code, content_type, body) = world.bytes(&path, accept).await;
        assert_eq!((code, content_type.as_str()), (200, "application/vnd.kubernetes.protobuf;stream=watch"));
        let mut frames = LengthFrames::new();
        frames.feed(body);
        let mut events = Vec::new();
        while let Some(frame) = frames.next_frame().expect("frames") {
            let message = WatchMessage::parse(&frame).expect("an event");
            let object = decode(&message.envelope).expect("an object");
            let json: listwatch_json::Value = serde_json::from_slice(&object.json).expect("JSON");
            events.push((message.kind, object.kind, json));
        }
        frames.finish().expect("whole frames");
        events
    };
    let state = read("allowWatchBookmarks=true", PROTOBUF).await;
    assert_eq!(
        (state[0].0, state[0].1.as_str(), &state[0].2["data"]["n"]),
        (EventKind::Added, "ConfigMap", &"1".into())
    );
    assert_eq!((state[1].0, state[1].1.as_str()), (EventKind::Bookmark, "ConfigMap"));
    assert_eq!(state[1].2["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");

    let left = read(&format!("resourceVersion={a}&labelSelector=app%3Dweb"), PROTOBUF).await;
    assert_eq!(left.len(), 1);
    assert_eq!(
        (left[0].0, &left[0].2["data"]["n"]),
        (EventKind::Deleted, &"0".into()),
        "the state in which it was seen"
    );
    assert_eq!(left[0].2["metadata"]["resourceVersion"], changed.to_string());

    let wanted = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let partial = read(&format!("resourceVersion={a}"), wanted).await;
    assert_eq!((partial[0].0, partial[0].1.as_str()), (EventKind::Modified, "PartialObjectMetadata"));
    assert_eq!(partial[0].2["apiVersion"], "meta.k8s.io/v1");

    let expired =
        read("sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=999999", PROTOBUF).await;
    assert_eq!((expired[0].0, expired[0].1.as_str()), (EventKind::Error, "Status"));
    assert_eq!(expired[0].2["code"], 504);
}

#[tokio::test(start_paused = true)]
async fn error_status_has_the_requested_encoding() {
    let world = World::new().await;
    let path = "/api/v1/namespaces/shop/configmaps/none";
    let message = "configmaps \"none\" not found";
    let (code, content_type, body) = world.bytes(path, PROTOBUF).await;
    assert_eq!((code, content_type.as_str()), (404, PROTOBUF));
    let status = decoded(&body);
    assert_eq!((&status["kind"], &status["message"]), (&"Status".into(), &message.into()));
    let (code, content_type, body) = world.get(path, "application/yaml").await;
    assert_eq!((code, content_type.as_str()), (404, "application/yaml"));
    assert_eq!(
        body,
        "apiVersion: v1\ncode: 404\ndetails:\n  kind: configmaps\n  name: none\nkind: Status\n\
         message: configmaps \"none\" not found\nmetadata: {}\nreason: NotFound\nstatus: Failure\n"
    );
    // A Status has no Table form, so the response has the second accepted type, plain JSON.
    let (code, content_type, body) = world.get(path, &format!("{TABLE},application/json")).await;
    assert_eq!((code, content_type.as_str()), (404, "application/json"));
    assert!(body.starts_with("{\"kind\":\"Status\"") && body.ends_with("}\n"), "{body}");
    for accept in [TABLE, "text/html"] {
        let (_, content_type, body) = world.get(path, accept).await;
        assert_eq!(content_type, "application/json");
        assert!(body.starts_with("{\n  \"kind\": \"Status\",") && body.ends_with('}'), "for {accept}: {body}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_view_of_a_long_list_is_streamed_completely() {
    let world = World::new().await;
    for n in 0..1_500 {
        world.create(&format!("c{n:04}"), &"x".repeat(60)).await;
    }
    let whole: listwatch_json::Value =
        serde_json::from_str(&world.get("/api/v1/namespaces/shop/configmaps", "").await.2).expect("JSON");
    assert_eq!(whole["items"].as_array().expect("items").len(), 1_500);
    let yaml = |media: &str| media.replace("json", "yaml");
    let partial = PARTIAL.replace("Metadata;", "MetadataList;");
    for (accept, rows) in [
        (TABLE.to_owned(), "rows"),
        (yaml(TABLE), "rows"),
        (partial.clone(), "items"),
        (yaml(&partial), "items"),
        ("application/yaml".to_owned(), "items"),
    ] {
        let (code, _, body) = world.get("/api/v1/namespaces/shop/configmaps", &accept).await;
        assert_eq!(code, 200, "{body}");
        let list: listwatch_json::Value = yaml_serde::from_str(&body).expect("YAML, or JSON, which is YAML");
        assert_eq!(list["metadata"], whole["metadata"], "{accept}");
        let names: Vec<&str> = list[rows]
            .as_array()
            .expect("an array")
            .iter()
            .map(|item| item["metadata"]["name"].as_str().or(item["cells"][0].as_str()).expect("a name"))
            .collect();
        assert!(names.is_sorted() && names.len() == 1_500, "{accept}: {} names", names.len());
        let (_, _, empty) = world.get("/api/v1/secrets", &accept).await;
        assert_eq!(
            yaml_serde::from_str::<listwatch_json::Value>(&empty).expect("YAML")[rows],
            listwatch_json::json!([])
        );
    }
    let (_, _, body) = world.get("/api/v1/namespaces/shop/configmaps?limit=1", "application/yaml").await;
    let revision = whole["items"][0]["metadata"]["resourceVersion"].as_str().expect("a version");
    let begin = format!(
        "apiVersion: v1\nitems:\n- data:\n    \"n\": \"0\"\n  metadata:\n    labels:\n      app: {}\n    name: c0000\n    namespace: shop\n    resourceVersion: \"{revision}\"\nkind: ConfigMapList\nmetadata:\n  continue: ",
        "x".repeat(60)
    );
    assert!(body.starts_with(&begin), "{body}");
}

#[tokio::test(start_paused = true)]
async fn watch_event_is_sent_without_waiting_for_a_timer() {
    let world = World::new().await;
    let start = world.create("a", "web").await;
    let path = format!("/api/v1/namespaces/shop/configmaps?watch=true&resourceVersion={start}");
    for accept in ["", TABLE, PARTIAL, PROTOBUF] {
        let mut body = world.ask(&path, accept).await.into_body();
        // The paused clock advances only when every task waits for it.
        let begun = tokio::time::Instant::now();
        for n in 1..10 {
            world.update("a", "web", n).await;
            body.frame().await.expect("open").expect("well");
        }
        assert_eq!(begun.elapsed(), Duration::ZERO, "a frame waited for a timer: {accept}");
    }
}

fn gunzip(gzip: &[u8]) -> String {
    let mut text = String::new();
    std::io::Read::read_to_string(&mut flate2::read::MultiGzDecoder::new(gzip), &mut text).expect("gzip");
    text
}

#[tokio::test(start_paused = true)]
async fn large_reads_are_compressed_on_request_and_watches_are_not() {
    let world = World::new().await;
    for n in 0..1_000 {
        world.create(&format!("c{n:04}"), &"x".repeat(60)).await;
    }
    let ask = async |path: &str, accept: &str| {
        let request = Request::get(path).header("accept-encoding", "gzip").header("accept", accept);
        let response = world.server.service().handle(request.body(Empty::<Bytes>::new()).expect("a request")).await;
        let headers = response.headers();
        let encoding = headers.get("content-encoding").map(|value| value.to_str().expect("text").to_owned());
        assert_eq!(headers.get("vary").is_some(), encoding.is_some(), "{path}");
        (encoding, response.into_body().collect().await.expect("a body").to_bytes())
    };
    for path in ["/api/v1/namespaces/shop/configmaps", "/api/v1/namespaces/shop/configmaps?pretty=true"] {
        let (encoding, body) = ask(path, "application/json").await;
        assert_eq!(encoding.as_deref(), Some("gzip"));
        assert_eq!(gunzip(&body), world.get(path, "").await.2);
    }
    let (encoding, body) = ask("/api/v1/namespaces/shop/configmaps?limit=100", "application/json").await;
    assert_eq!(encoding, None, "a small one is sent as it is");
    assert!(body.starts_with(b"{"));
    for query in ["", "&allowWatchBookmarks=true", "&resourceVersion=1&allowWatchBookmarks=true"] {
        let (encoding, body) =
            ask(&format!("/api/v1/namespaces/shop/configmaps?watch=true&timeoutSeconds=1{query}"), "").await;
        assert_eq!(encoding, None, "no watch is compressed: {query}");
        assert!(body.starts_with(b"{\"type\":\"ADDED\""), "{query}");
    }
}

#[tokio::test(start_paused = true)]
async fn metrics_report_the_number_of_requests_and_cached_objects() {
    let world = World::new().await;
    world.create("a", "web").await;
    world.get("/api/v1/configmaps", "").await;
    world.get("/api/v1/configmaps?limit=nonsense", "").await;
    world.watch("timeoutSeconds=1", "").await;
    let (code, content_type, text) = world.get("/metrics", "").await;
    assert_eq!((code, content_type.as_str()), (200, "text/plain; version=0.0.4; charset=utf-8"));
    let labels = |scope: &str, verb: &str| {
        format!(
            "component=\"apiserver\",dry_run=\"\",group=\"\",resource=\"configmaps\",scope=\"{scope}\",subresource=\"\",verb=\"{verb}\",version=\"v1\""
        )
    };
    for line in [
        format!("apiserver_request_total{{code=\"200\",{}}} 1", labels("cluster", "LIST")),
        format!("apiserver_request_total{{code=\"400\",{}}} 1", labels("cluster", "LIST")),
        format!("apiserver_request_total{{code=\"200\",{}}} 1", labels("namespace", "WATCH")),
        // Two of the requests are from the server itself.
        "apiserver_resource_objects{group=\"\",resource=\"configmaps\"} 3".to_owned(),
        "apiserver_init_events_total{group=\"\",resource=\"configmaps\"} 1".to_owned(),
        "listwatch_store_up 1".to_owned(),
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn cbor_reads_equal_json_reads_if_enabled() {
    use listwatch_wire::cbor::{self, CborFrames, WatchMessage};
    const CBOR: &str = "application/cbor";
    let plain = World::new().await;
    assert_eq!(plain.bytes("/api/v1/namespaces/shop/configmaps", CBOR).await.0, 406, "behind a gate");
    let store = MemoryStorage::new();
    let server = ApiServer::builder().storage(store.clone()).cbor(true).build().await.expect("a server");
    let world = World { server, store };
    world.create("a", "web").await;
    world.create("b", "db").await;
    let json = |cbor: &[u8]| {
        serde_json::from_slice::<listwatch_json::Value>(&cbor::decode(cbor).expect("CBOR")).expect("JSON")
    };
    let partial = |media: &str, kind: &str| format!("{media};as={kind};g=meta.k8s.io;v=v1");
    for (path, kind) in [
        ("/api/v1/namespaces/shop/configmaps/a", "PartialObjectMetadata"),
        ("/api/v1/namespaces/shop/configmaps", "PartialObjectMetadataList"),
        ("/api/v1/namespaces/shop/configmaps?limit=1", "PartialObjectMetadataList"),
    ] {
        for (accept, same) in
            [(CBOR.to_owned(), String::new()), (partial(CBOR, kind), partial("application/json", kind))]
        {
            let (code, content_type, body) = world.bytes(path, &accept).await;
            assert_eq!((code, content_type.as_str()), (200, CBOR), "{path}");
            assert_eq!(
                json(&body),
                serde_json::from_str::<listwatch_json::Value>(&world.get(path, &same).await.2).expect("JSON")
            );
        }
    }
    let (code, content_type, body) =
        world.bytes("/api/v1/namespaces/shop/configmaps/", "application/cbor;as=Table;v=v1;g=meta.k8s.io").await;
    assert_eq!((code, content_type.as_str()), (406, "application/json"), "{body:?}");
    let (code, content_type, body) = world.bytes("/api/v1/namespaces/shop/configmaps/none", CBOR).await;
    assert_eq!((code, content_type.as_str(), &json(&body)["reason"]), (404, CBOR, &"NotFound".into()));

    let query = "timeoutSeconds=1&allowWatchBookmarks=true";
    let path = format!("/api/v1/namespaces/shop/configmaps?watch=true&{query}");
    for (accept, same) in [
        (CBOR.to_owned(), String::new()),
        (partial(CBOR, "PartialObjectMetadata"), partial("application/json", "PartialObjectMetadata")),
    ] {
        let (code, content_type, body) = world.bytes(&path, &accept).await;
        assert_eq!((code, content_type.as_str()), (200, "application/cbor-seq"));
        let mut frames = CborFrames::new();
        frames.feed(body);
        let mut events = Vec::new();
        while let Some(frame) = frames.next_frame().expect("items") {
            let message = WatchMessage::parse(&frame).expect("an event");
            events.push(listwatch_json::json!({ "type": message.kind.as_str(), "object": json(&message.object) }));
        }
        let expected: Vec<listwatch_json::Value> =
            world.watch(query, &same).await.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!(events, expected);
    }

    let object = br#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"new"},"data":{"a":"b"}}"#;
    for (body, code) in [(cbor::encode(object).expect("CBOR"), 201), (b"nonsense".to_vec(), 400)] {
        let request = Request::post("/api/v1/namespaces/default/configmaps").header("content-type", CBOR);
        let request = request.body(http_body_util::Full::new(Bytes::from(body))).expect("a request");
        assert_eq!(world.server.service().handle(request).await.status(), code);
    }
}

/// Checks the order of events on the whole path from store to response body.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousand_watchers_see_thousand_updates_in_one_order() {
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

/// Two replicas of a client each select half of the hash range. Together, they receive each object exactly once, in
/// lists, pages and watches.
#[tokio::test(start_paused = true)]
async fn shard_selectors_together_return_each_object_once() {
    let world = World::new().await;
    let stored = |n: u32, text: &str| -> Bytes {
        format!(
            r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"m{n}","namespace":"shop","uid":"{:08x}-0000-4000-8000-000000000000"}},"data":{{"x":"{text}"}}}}"#,
            n.wrapping_mul(0x9e37_79b9)
        )
        .into()
    };
    for n in 0..40 {
        world.store.create(&World::key(&format!("m{n}")), stored(n, "old"), None).await.expect("created");
    }
    let selector = |from: &str, to: &str| format!("shardRange(object.metadata.uid, '{from}', '{to}')");
    let halves =
        [selector("0x0000000000000000", "0x8000000000000000"), selector("0x8000000000000000", "0x10000000000000000")];
    let query = |half: &str| half.replace(' ', "%20").replace('\'', "%27");
    let names = |list: &listwatch_json::Value| -> Vec<String> {
        let items = list["items"].as_array().expect("items");
        items.iter().map(|item| item["metadata"]["name"].as_str().expect("a name").to_owned()).collect()
    };
    let path = "/api/v1/namespaces/shop/configmaps";
    let (mut together, mut version) = (Vec::new(), String::new());
    for half in &halves {
        let (code, _, body) = world.get(&format!("{path}?shardSelector={}", query(half)), "").await;
        assert_eq!(code, 200, "{body}");
        let list: listwatch_json::Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(list["metadata"]["shardInfo"]["selector"], half.as_str());
        let whole = names(&list);
        assert!(whole.len() > 5, "a half is more than {whole:?}");
        version = list["metadata"]["resourceVersion"].as_str().expect("a version").to_owned();

        let (mut paged, mut token) = (Vec::new(), String::new());
        loop {
            let (_, _, body) =
                world.get(&format!("{path}?limit=7&shardSelector={}&continue={token}", query(half)), "").await;
            let page: listwatch_json::Value = serde_json::from_str(&body).expect("JSON");
            assert!(page["metadata"]["remainingItemCount"].is_null(), "what is left is not counted: {body}");
            paged.extend(names(&page));
            match page["metadata"]["continue"].as_str() {
                Some(next) => token = next.to_owned(),
                None => break,
            }
        }
        assert_eq!(paged, whole, "pages show what the whole list does");
        together.extend(whole);
    }
    together.sort();
    let mut all: Vec<_> = (0..40).map(|n| format!("m{n}")).collect();
    all.sort();
    assert_eq!(together, all, "each object is in one half");

    for n in 0..40 {
        let (there, _) = world.store.get(&World::key(&format!("m{n}"))).await.expect("read");
        let there = there.expect("there");
        world.store.update(&there.key, there.modified, stored(n, "new"), None).await.expect("updated");
    }
    let mut seen = 0;
    for half in &halves {
        let events =
            world.watch(&format!("timeoutSeconds=1&resourceVersion={version}&shardSelector={}", query(half)), "").await;
        assert!(events.iter().all(|event| event.starts_with(r#"{"type":"MODIFIED""#)), "{events:?}");
        seen += events.len();
    }
    assert_eq!(seen, 40, "each change is seen by one half");

    let (code, _, body) = world.get(&format!("{path}?shardSelector=x"), "").await;
    assert_eq!(code, 500);
    assert!(body.contains("invalid shard selector: "), "{body}");
}
