//! Tests lists in forms that the server caches for later requests. The lists must always contain the current objects.
//!
//! Two servers share one store. One server caches encodings, the other encodes each list again.

use std::io::Read as _;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use listwatch_apiserver::ApiServer;
use listwatch_json::{Value, json};
use listwatch_storage::MemoryStorage;
use listwatch_wire::protobuf;
use proptest::prelude::*;

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";
/// A Table without objects, which shows no labels.
const BARE_TABLE: &str = "includeObject=None";
/// `Accept`, query parameters, and whether the client accepts gzip.
type Form<'a> = (&'a str, &'a str, bool);
/// The forms of a list.
const FORMS: [Form<'static>; 9] = [
    (PROTOBUF, "", false),
    (PROTOBUF, "limit=2", false),
    ("application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", "", false),
    (TABLE, "", false),
    (TABLE, "includeObject=Object", false),
    (TABLE, BARE_TABLE, false),
    ("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", "", false),
    ("application/json", "", true),
    (TABLE, "includeObject=Object", true),
];

async fn send(
    server: &ApiServer,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Value,
) -> (StatusCode, HeaderMap, Bytes) {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
    let response = server.service().handle(request.body(Full::new(body)).expect("a request")).await;
    let (parts, body) = response.into_parts();
    (parts.status, parts.headers, body.collect().await.expect("a whole body").to_bytes())
}

async fn write(server: &ApiServer, method: &str, path: &str, body: Value) -> StatusCode {
    send(server, method, path, &[("content-type", "application/json")], body).await.0
}

/// Returns a list as JSON without its own resource version, which the servers may read at different times.
async fn list(server: &ApiServer, path: &str, (accept, query, gzip): Form<'_>) -> Value {
    let mut headers = vec![("accept", accept)];
    headers.extend(gzip.then_some(("accept-encoding", "gzip")));
    let (code, headers, body) = send(server, "GET", &format!("{path}?{query}"), &headers, Value::Null).await;
    assert_eq!(code, 200, "{path} {accept}");
    let mut plain = Vec::new();
    match headers.get("content-encoding") {
        Some(_) => drop(flate2::read::GzDecoder::new(&body[..]).read_to_end(&mut plain).expect("one gzip member")),
        None => plain.extend_from_slice(&body),
    }
    let mut list: Value = match accept.starts_with(PROTOBUF) {
        true => serde_json::from_slice(&protobuf::decode(&plain).expect("protobuf").json).expect("JSON"),
        false => serde_json::from_slice(&plain).expect("JSON"),
    };
    list["metadata"] = Value::Null;
    list
}

async fn kept_bytes(server: &ApiServer, form: &str) -> u64 {
    let (_, _, body) = send(server, "GET", "/metrics", &[], Value::Null).await;
    let text = String::from_utf8(body.to_vec()).expect("text");
    let start = format!("listwatch_encoding_cache_bytes{{form=\"{form}\"}} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&start)).expect("the gauge");
    line.parse().expect("a number")
}

/// Compares a list of both servers in one form. `kept_query` replaces the query parameters of the first server's list.
///
/// # Errors
/// The broken guarantee.
async fn compare_form(
    keeping: &ApiServer,
    plain: &ApiServer,
    path: &str,
    form: Form<'_>,
    kept_query: &str,
) -> Result<(), String> {
    let mut kept = list(keeping, path, (form.0, kept_query, form.2)).await;
    let mut encoded = list(plain, path, form).await;
    if form.0 == TABLE {
        // The last cell is the age, which may change between the two requests.
        for list in [&mut kept, &mut encoded] {
            for row in list["rows"].as_array_mut().into_iter().flatten() {
                row["cells"].as_array_mut().and_then(|cells| cells.pop());
            }
        }
    }
    if kept == encoded {
        return Ok(());
    }
    // The lists are large, so the text shows only the bytes around the first difference.
    let (kept, encoded) = (kept.to_string(), encoded.to_string());
    let equal = kept.bytes().zip(encoded.bytes()).take_while(|(a, b)| a == b).count();
    let around = |list: &str| {
        let bytes = &list.as_bytes()[equal.saturating_sub(200)..list.len().min(equal + 200)];
        String::from_utf8_lossy(bytes).into_owned()
    };
    let (kept, encoded) = (around(&kept), around(&encoded));
    Err(format!("Same objects in every form: {form:?} shows {kept}, but an uncached list shows {encoded}"))
}

/// Compares a list of both servers in every form. If `version` is given, the first server returns its list at that
/// resource version.
///
/// # Errors
/// The broken guarantee.
async fn compare(keeping: &ApiServer, plain: &ApiServer, path: &str, version: Option<&str>) -> Result<(), String> {
    for form in FORMS {
        let kept_query = version.map_or_else(|| form.1.to_owned(), |version| at_version(form, version));
        compare_form(keeping, plain, path, form, &kept_query).await?;
    }
    Ok(())
}

/// Returns the query parameters of a form for the state at a resource version.
fn at_version(form: Form<'_>, version: &str) -> String {
    let exact = format!("resourceVersion={version}&resourceVersionMatch=Exact");
    if form.1.is_empty() { exact } else { format!("{exact}&{}", form.1) }
}

/// Compares the current lists of both servers in every form.
///
/// # Panics
/// If the lists differ.
async fn check(keeping: &ApiServer, plain: &ApiServer, path: &str) {
    compare(keeping, plain, path, None).await.unwrap_or_else(|broken| panic!("{broken}"));
}

async fn servers() -> (ApiServer, ApiServer) {
    let store = MemoryStorage::new();
    let plain = ApiServer::builder().storage(store.clone()).encoding_cache_bytes_max(0);
    (
        ApiServer::builder().storage(Arc::clone(&store) as _).build().await.expect("a server"),
        plain.build().await.expect("a server"),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn lists_from_cached_encodings_equal_uncached_lists_after_random_writes(
        steps in prop::collection::vec((0_u8..4, 0_u8..6, prop_oneof![1_usize..50, 40_000_usize..90_000]), 1..14),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let (keeping, plain) = servers().await;
            for (step, name, bytes) in steps {
                let object = json!({
                    "metadata": {"name": format!("map-{name}"), "labels": {"n": bytes.to_string()}},
                    "data": {"d": "d".repeat(bytes)},
                });
                let path = format!("{CONFIG_MAPS}/map-{name}");
                match step {
                    0 => drop(write(&keeping, "DELETE", &path, Value::Null).await),
                    _ if write(&keeping, "PUT", &path, object.clone()).await.is_success() => {}
                    _ => assert_eq!(write(&keeping, "POST", CONFIG_MAPS, object).await, 201),
                }
                check(&keeping, &plain, CONFIG_MAPS).await;
            }
            assert_eq!((kept_bytes(&plain, "object").await, kept_bytes(&plain, "gzip").await), (0, 0));
        });
    }
}

/// Each planted bug is a stale list: the caching server returns the state before a write. Only lists of one store have
/// the same uids and resource versions, so that nothing but the write differs.
#[tokio::test]
async fn comparison_reports_each_planted_bug() {
    let (keeping, plain) = servers().await;
    let map = |name: &str, label: &str| {
        let metadata = json!({"name": name, "labels": {"n": label}});
        json!({"metadata": metadata, "data": {"d": "d".repeat(60_000)}})
    };
    for n in 0..3 {
        assert_eq!(write(&keeping, "POST", CONFIG_MAPS, map(&format!("map-{n}"), "1")).await, 201);
    }
    let path = format!("{CONFIG_MAPS}/map-0");
    let first = path.as_str();
    // A Table counts the entries of the data.
    let mut updated = map("map-0", "1");
    updated["data"]["e"] = json!("e");
    let mut labeled = updated.clone();
    labeled["metadata"]["labels"]["n"] = json!("2");
    let bugs: [(&str, &str, &str, Value, Option<&str>); 4] = [
        ("the last update is missing", "PUT", first, updated, None),
        ("a label differs", "PUT", first, labeled, Some(BARE_TABLE)),
        ("a created object is missing", "POST", CONFIG_MAPS, map("map-00", "1"), None),
        ("a deleted object is shown", "DELETE", first, Value::Null, None),
    ];
    for (bug, method, path, body, unaffected) in bugs {
        let (_, _, before) = send(&plain, "GET", CONFIG_MAPS, &[], Value::Null).await;
        let before: Value = serde_json::from_slice(&before).expect("JSON");
        let version = before["metadata"]["resourceVersion"].as_str().expect("a resource version");
        // Without the write, the state at this version equals the current one.
        assert_eq!(compare(&keeping, &plain, CONFIG_MAPS, Some(version)).await, Ok(()), "before the bug: {bug}");
        assert!(write(&keeping, method, path, body).await.is_success(), "{bug}");
        for form in FORMS {
            if unaffected == Some(form.1) {
                continue;
            }
            let found = compare_form(&keeping, &plain, CONFIG_MAPS, form, &at_version(form, version)).await;
            let is_reported = found.as_ref().is_err_and(|text| text.starts_with("Same objects in every form: "));
            assert!(is_reported, "{bug}, {form:?}: {found:?}");
        }
        check(&keeping, &plain, CONFIG_MAPS).await;
    }
}

#[tokio::test]
async fn cached_encodings_are_dropped_after_their_objects_are_deleted() {
    let (keeping, plain) = servers().await;
    for n in 0..20 {
        let object = json!({"metadata": {"name": format!("map-{n}")}, "data": {"d": "d".repeat(20_000)}});
        assert_eq!(write(&keeping, "POST", CONFIG_MAPS, object).await, 201);
    }
    assert_eq!(kept_bytes(&keeping, "object").await, 0);
    check(&keeping, &plain, CONFIG_MAPS).await;
    let (objects, blocks) = (kept_bytes(&keeping, "object").await, kept_bytes(&keeping, "gzip").await);
    assert!(objects > 20 * 20_000 && blocks > 0, "{objects} bytes of objects, {blocks} bytes of blocks");
    assert_eq!(write(&keeping, "DELETE", CONFIG_MAPS, Value::Null).await, 200);
    assert_eq!(list(&keeping, CONFIG_MAPS, FORMS[0]).await["items"], Value::Null);
    tokio::time::pause();
    tokio::time::sleep(std::time::Duration::from_secs(100)).await;
    assert_eq!(kept_bytes(&keeping, "gzip").await, 0, "promise: unused encodings are dropped after a minute");
}

#[tokio::test]
async fn event_write_response_and_get_of_one_revision_have_the_same_protobuf_message() {
    let (keeping, plain) = servers().await;
    let watch = Request::get(format!("{CONFIG_MAPS}?watch=true"))
        .header("accept", "application/vnd.kubernetes.protobuf;stream=watch")
        .body(Full::new(Bytes::new()))
        .expect("a request");
    let mut events = keeping.service().handle(watch).await.into_body();
    let path = format!("{CONFIG_MAPS}/a");
    for n in 0..20 {
        let object = json!({"metadata": {"name": "a"}, "data": {"n": n.to_string()}});
        let (method, target) = if n == 0 { ("POST", CONFIG_MAPS) } else { ("PUT", path.as_str()) };
        let headers = [("content-type", "application/json"), ("accept", PROTOBUF)];
        let (code, _, response) = send(&keeping, method, target, &headers, object).await;
        assert!(code.is_success());
        let frame = events.frame().await.expect("an event").expect("a frame").into_data().expect("bytes");
        for server in [&keeping, &keeping, &plain] {
            for query in ["", "?resourceVersion=0"] {
                let (_, _, got) =
                    send(server, "GET", &format!("{path}{query}"), &[("accept", PROTOBUF)], Value::Null).await;
                // The cache of the other server may be behind.
                if query.is_empty() || std::ptr::eq(server, &raw const keeping) {
                    assert_eq!(got, response, "promise: a get shows the acknowledged write");
                }
            }
        }
        assert!(frame.ends_with(&response), "promise: an event has the object of the write");
        let decoded: Value = serde_json::from_slice(&protobuf::decode(&response).unwrap().json).unwrap();
        assert_eq!(decoded["data"]["n"], n.to_string());
    }
    assert!(kept_bytes(&keeping, "object").await > 0);
    assert_eq!(kept_bytes(&plain, "object").await, 0);
}

#[tokio::test]
async fn table_rows_of_a_custom_resource_change_with_its_definition() {
    let (keeping, plain) = servers().await;
    let mut definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    });
    assert_eq!(write(&keeping, "POST", DEFINITIONS, definition.clone()).await, 201);
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a"}, "size": "large"});
    let mut code = StatusCode::NOT_FOUND;
    while code == StatusCode::NOT_FOUND {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        code = write(&keeping, "POST", WIDGETS, widget.clone()).await;
    }
    assert_eq!(code, 201);
    let cells = async || list(&keeping, WIDGETS, FORMS[5]).await["rows"][0]["cells"].clone();
    assert_eq!(cells().await.as_array().map(Vec::len), Some(2), "the name and the age");
    definition["spec"]["versions"][0]["additionalPrinterColumns"] =
        json!([{"name": "Size", "type": "string", "jsonPath": ".size"}]);
    let path = format!("{DEFINITIONS}/widgets.example.com");
    let (_, _, current) = send(&keeping, "GET", &path, &[], Value::Null).await;
    let current: Value = serde_json::from_slice(&current).expect("JSON");
    definition["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"].clone();
    assert_eq!(write(&keeping, "PUT", &path, definition).await, 200);
    let mut shown = cells().await;
    for _ in 0..12_000 {
        if shown == json!(["a", "large"]) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        shown = cells().await;
    }
    assert_eq!(
        shown,
        json!(["a", "large"]),
        "Same objects in every form: a Table lacks the columns of the present definition"
    );
    drop(plain);
}
