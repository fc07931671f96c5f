//! Lists in protobuf: equal to those of kube-apiserver, with bounded work, and an error for objects of another kind.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use listwatch_json::Value;
use listwatch_meta::{Change, Key, Object, ObjectShape, Revision};
use listwatch_wire::ListMeta;
use listwatch_wire::protobuf::{self, DecodeError, EncodeError, ItemCache, ListBody};

use super::{decoded, encoded, field, golden_of, hex};

#[test]
fn protobuf_list_is_encoded_from_stored_envelopes() {
    let list = golden_of("configmap list");
    let value: Value = serde_json::from_str(list.json).expect("JSON");
    let items = value["items"].as_array().expect("items");
    let items: Vec<Vec<u8>> = items.iter().map(|item| encoded("v1", "ConfigMap", &item.to_string())).collect();
    let text = |name: &str| value["metadata"][name].as_str().unwrap_or_default().to_owned();
    let meta = ListMeta {
        api_version: "v1".to_owned(),
        kind: "ConfigMapList".to_owned(),
        resource_version: text("resourceVersion"),
        continue_token: text("continue"),
        remaining_item_count: value["metadata"]["remainingItemCount"].as_i64(),
        shard_selector: String::new(),
    };
    let body = protobuf::encode_list(&meta, &items).expect("a list");
    assert_eq!(hex(&body), hex(&list.protobuf), "a list is what kube-apiserver makes of it");

    // `shardInfo` is field 5 of the metadata; its selector is field 1.
    let sharded = ListMeta { shard_selector: "x".to_owned(), ..meta.clone() };
    let shard = [5 << 3 | 2, 3, 1 << 3 | 2, 1, b'x'];
    let at = |body: &[u8]| body.windows(shard.len()).position(|window| window == shard);
    let with = protobuf::encode_list(&sharded, &items).expect("a list");
    assert!(at(&with).is_some() && at(&body).is_none());
    assert_eq!(with.len(), body.len() + shard.len(), "and nothing else, lengths included, takes more room");
    let json = decoded(&with);
    assert!(json.contains(r#""shardInfo":{"selector":"x"}"#), "the lengths include the selector: {json}");

    let none = golden_of("empty list");
    let value: Value = serde_json::from_str(none.json).expect("JSON");
    let resource_version = value["metadata"]["resourceVersion"].as_str().expect("a version").to_owned();
    let meta = ListMeta { api_version: "v1".to_owned(), kind: "NodeList".to_owned(), resource_version, ..meta };
    let meta = ListMeta { continue_token: String::new(), remaining_item_count: None, ..meta };
    assert_eq!(hex(&protobuf::encode_list::<Vec<u8>>(&meta, &[]).expect("a list")), hex(&none.protobuf));

    let refused = protobuf::encode_list(&meta, &[b"{}"]);
    assert_eq!(refused, Err(EncodeError::Item { index: 0, why: DecodeError::NoPrefix }));
    let meta = ListMeta { kind: "WidgetList".to_owned(), ..meta };
    assert!(matches!(protobuf::list_head(&meta, 0), Err(EncodeError::UnknownKind { .. })));
}

/// The objects of a list body as stored.
fn objects(list: &Value) -> Vec<Object> {
    let items = list["items"].as_array().expect("items");
    let object = |item: &Value| {
        let text = |name: &str| item["metadata"][name].as_str().expect("text");
        let key = Key::new("things", Some("default"), text("name")).expect("a key");
        let revision = Revision::new(text("resourceVersion").parse().expect("a number"));
        let shape = ObjectShape::new(true, Vec::new());
        Object::from_stored(key, revision, Change::Added, item.to_string().as_bytes(), &shape).expect("an object")
    };
    items.iter().map(object).collect()
}

#[test]
fn list_body_equals_kube_apiserver_for_any_chunks_and_limits() {
    for (name, kind) in [("configmap list", "ConfigMapList"), ("empty list", "NodeList")] {
        let list = golden_of(name);
        let value: Value = serde_json::from_str(list.json).expect("JSON");
        let text = |name: &str| value["metadata"][name].as_str().unwrap_or_default().to_owned();
        let meta = ListMeta {
            api_version: "v1".to_owned(),
            kind: kind.to_owned(),
            resource_version: text("resourceVersion"),
            continue_token: text("continue"),
            remaining_item_count: value["metadata"]["remainingItemCount"].as_i64(),
            shard_selector: String::new(),
        };
        let objects = objects(&value);
        for chunk_bytes in [1, 7, 100, 64 << 10] {
            for kept_bytes in [0, 300, 64 << 10] {
                let mut body =
                    ListBody::with_limits(&meta, objects.iter().cloned(), chunk_bytes, kept_bytes).expect("a list");
                assert_eq!(body.body_bytes(), None, "nothing is measured yet");
                while !body.measure().expect("objects of their kind") {}
                assert_eq!(body.body_bytes(), Some(list.protobuf.len()));
                let chunks: Vec<Bytes> = body.collect::<Result<_, _>>().expect("the same objects again");
                assert_eq!(hex(&chunks.concat()), hex(&list.protobuf), "{name} {chunk_bytes} {kept_bytes}");
                let (last, full) = chunks.split_last().expect("a chunk");
                assert!(full.iter().all(|chunk| chunk.len() == chunk_bytes), "chunks are as large as they may be");
                assert!(last.len() <= chunk_bytes + protobuf::LIST_TAIL.len());
            }
        }
    }
}

/// Counts the encodings of items, and keeps none.
#[derive(Clone, Default)]
struct EncodingCounter(Arc<AtomicUsize>);

impl ItemCache for EncodingCounter {
    fn read(&self, _: &Object, _: &mut dyn FnMut(&[u8])) -> bool {
        false
    }

    fn keep(&self, _: &Object, _: &[u8]) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn config_map_list() -> ListMeta {
    ListMeta { api_version: "v1".to_owned(), kind: "ConfigMapList".to_owned(), ..ListMeta::default() }
}

/// ConfigMaps with one value of these lengths.
fn config_maps(values_bytes: &[usize]) -> Vec<Object> {
    let item = |(at, bytes): (usize, &usize)| {
        let metadata = listwatch_json::json!({"name": format!("c{at}"), "resourceVersion": "1"});
        listwatch_json::json!({"metadata": metadata, "data": {"a": "x".repeat(*bytes)}})
    };
    objects(&Value::from_iter([("items", values_bytes.iter().enumerate().map(item).collect::<Value>())]))
}

#[test]
fn items_that_fit_the_kept_bytes_are_encoded_once_and_others_twice() {
    let objects = config_maps(&[100, 100, 100]);
    let item = protobuf::message("v1", "ConfigMap", objects[0].json_slice()).expect("a ConfigMap");
    let item_bytes = field(2, &item).len();
    for (kept_bytes, expected) in [
        (0, 6),
        (item_bytes - 1, 6),
        (item_bytes, 5),
        (2 * item_bytes, 4),
        (3 * item_bytes - 1, 4),
        (3 * item_bytes, 3),
    ] {
        let counter = EncodingCounter::default();
        let mut body = ListBody::with_limits(&config_map_list(), objects.iter().cloned(), 1 << 20, kept_bytes)
            .expect("a list")
            .with_cache(counter.clone());
        assert!(body.all(|chunk| chunk.is_ok()), "ConfigMaps are encoded");
        assert_eq!(counter.0.load(Ordering::Relaxed), expected, "three items and {kept_bytes} kept bytes");
    }
}

#[test]
fn list_is_measured_in_steps_of_bounded_json() {
    let half = protobuf::MEASURE_STEP_BYTES / 2;
    let mut body = ListBody::new(&config_map_list(), config_maps(&[half; 4]).into_iter()).expect("a list");
    let steps: Vec<bool> = (0..3).map(|_| body.measure().expect("ConfigMaps")).collect();
    assert_eq!(steps, [false, false, true], "a step ends after two items of half a step");
}

#[test]
fn list_that_changes_between_measuring_and_sending_fails() {
    let objects = config_maps(&[1000, 10, 10]);
    let is_second = std::cell::Cell::new(false);
    // The second iteration begins with an item that is longer than the measured list.
    let changed = objects.iter().enumerate().filter(|(at, _)| *at > 0 || is_second.get()).map(|(_, object)| object);
    let mut body = ListBody::with_limits(&config_map_list(), changed.cloned(), 1 << 20, 0).expect("a list");
    assert!(body.measure().expect("ConfigMaps"));
    is_second.set(true);
    assert_eq!(body.by_ref().find_map(Result::err), Some(EncodeError::ListChanged));
    assert!(body.next().is_none(), "after an error there is no chunk");
}

/// Earlier versions stored any text as a time.
#[test]
fn list_with_a_text_that_is_no_time_is_encoded_without_this_time() {
    let meta = ListMeta {
        api_version: "coordination.k8s.io/v1".to_owned(),
        kind: "LeaseList".to_owned(),
        ..ListMeta::default()
    };
    let value = listwatch_json::json!({"items": [
        {"metadata": {"name": "a", "resourceVersion": "1"}, "spec": {"renewTime": "yesterday"}},
        {"metadata": {"name": "b", "resourceVersion": "2"}, "spec": {"renewTime": "10000-01-01T00:00:59.000000Z"}},
    ]});
    let body = ListBody::new(&meta, objects(&value).into_iter()).expect("a list");
    let bytes = body.collect::<Result<Vec<_>, _>>().expect("leases").concat();
    let list: Value = serde_json::from_str(&decoded(&bytes)).expect("JSON");
    assert_eq!(list["items"][0]["spec"]["renewTime"], Value::Null);
    assert_eq!(list["items"][1]["spec"]["renewTime"], "10000-01-01T00:00:59.000000Z");
    // The store keeps such an object as JSON.
    let lease =
        br#"{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{},"spec":{"renewTime":"yesterday"}}"#;
    assert!(protobuf::encode_strict("coordination.k8s.io/v1", "Lease", lease).is_err());
}

#[test]
fn list_with_object_of_another_kind_fails_before_the_first_chunk() {
    let meta = ListMeta { api_version: "v1".to_owned(), kind: "PodList".to_owned(), ..ListMeta::default() };
    let value = listwatch_json::json!({"items": [
        {"metadata": {"name": "a", "resourceVersion": "1"}, "spec": {}},
        {"metadata": {"name": "b", "resourceVersion": "2"}, "spec": []},
    ]});
    let mut body = ListBody::new(&meta, objects(&value).into_iter()).expect("a list");
    assert!(matches!(body.measure(), Err(EncodeError::ListItem { index: 1, .. })));
    // Metadata has no spec.
    let partial = ListMeta {
        api_version: "meta.k8s.io/v1".to_owned(),
        kind: "PartialObjectMetadataList".to_owned(),
        ..ListMeta::default()
    };
    let body = ListBody::new(&partial, objects(&value).into_iter()).expect("a list");
    let bytes = body.collect::<Result<Vec<_>, _>>().expect("metadata").concat();
    let list: Value = serde_json::from_str(&decoded(&bytes)).expect("JSON");
    assert_eq!(list["items"][1]["metadata"]["name"], "b");
    for kind in ["Pod", "WidgetList", "DeleteOptions"] {
        let meta = ListMeta { kind: kind.to_owned(), ..meta.clone() };
        let refused = ListBody::new(&meta, std::iter::empty());
        assert!(matches!(refused, Err(EncodeError::UnknownKind { .. })), "{kind} is no list with protobuf");
    }
    // An iterator with another result at its second use.
    let left = std::cell::Cell::new(true);
    let objects = objects(&value);
    let lying = objects.iter().filter(|_| left.get()).cloned();
    let mut body = ListBody::with_limits(&partial, lying, 64, 0).expect("a list");
    assert!(body.measure().expect("objects"), "a short list is measured in one step");
    left.set(false);
    assert_eq!(body.by_ref().find_map(Result::err), Some(EncodeError::ListChanged));
    assert!(body.next().is_none(), "after an error there is no chunk");
}
