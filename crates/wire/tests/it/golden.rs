//! Recorded bytes of kube-apiserver in both directions: our output equals them, and our decoders
//! read them.

use bytes::Bytes;
use listwatch_meta::{Change, Key, Object, ObjectShape, Revision, Status};
use listwatch_wire::{
    Bookmark, EventKind, JsonFrames, ListBody, ListMeta, ListStyle, Metadata, WatchEvent, error_frame, split_list,
};

const CONFIG_MAP: &str = r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","namespace":"default","uid":"0d6e3f2a-1111-4222-8333-444455556666","creationTimestamp":"2026-01-02T03:04:05Z"},"data":{"k":"v"}}"#;

fn config_map(revision: u64, change: Change) -> Object {
    let key = Key::new("configmaps", Some("default"), "a").unwrap();
    let shape = ObjectShape::new(true, Vec::new());
    Object::from_stored(key, Revision::new(revision), change, CONFIG_MAP.as_bytes(), &shape).unwrap()
}

const ADDED: &str = "{\"type\":\"ADDED\",\"object\":{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"metadata\":{\"resourceVersion\":\"12\",\"name\":\"a\",\"namespace\":\"default\",\"uid\":\"0d6e3f2a-1111-4222-8333-444455556666\",\"creationTimestamp\":\"2026-01-02T03:04:05Z\"},\"data\":{\"k\":\"v\"}}}\n";
const POD_BOOKMARK: &str = "{\"type\":\"BOOKMARK\",\"object\":{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\"metadata\":{\"resourceVersion\":\"15\"},\"spec\":{\"containers\":null},\"status\":{}}}\n";
const END_BOOKMARK: &str = "{\"type\":\"BOOKMARK\",\"object\":{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"metadata\":{\"resourceVersion\":\"14\",\"annotations\":{\"k8s.io/initial-events-end\":\"true\"}}}}\n";
const EXPIRED: &str = "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\",\"message\":\"too old resource version: 3 (9)\",\"reason\":\"Expired\",\"code\":410}}\n";

#[test]
fn watch_frames_equal_those_of_kube_apiserver() {
    fn check(frame: Bytes, expected: &str) {
        assert_eq!(String::from_utf8_lossy(&frame), expected);
    }
    check(config_map(12, Change::Added).frame(), ADDED);
    let bookmark = |api_version, kind, revision, initial_events_end, zero_members| {
        let revision = Revision::new(revision);
        Bookmark { api_version, kind, revision, initial_events_end, zero_members }.encode()
    };
    check(bookmark("v1", "Pod", 15, false, r#""spec":{"containers":null},"status":{}"#), POD_BOOKMARK);
    check(bookmark("v1", "ConfigMap", 14, true, ""), END_BOOKMARK);
    check(error_frame(&Status::expired_watch(3, 9)), EXPIRED);
}

#[test]
fn recorded_watch_frames_are_decoded() {
    let mut frames = JsonFrames::new();
    frames.feed(Bytes::from([ADDED, END_BOOKMARK, POD_BOOKMARK, EXPIRED].concat()));
    let mut next = || frames.next_frame().unwrap().expect("a frame is there");

    let frame = next();
    let (event, spans) = WatchEvent::decode_with_metadata(&frame).unwrap();
    let metadata = spans.of(&event.object);
    assert_eq!((event.kind, &*metadata.name, &*metadata.resource_version), (EventKind::Added, "a", "12"));
    assert_eq!(event.object, config_map(12, Change::Added).json());

    let frame = next();
    let (event, spans) = WatchEvent::decode_with_metadata(&frame).unwrap();
    let metadata = spans.of(&event.object);
    assert_eq!((event.kind, &*metadata.resource_version), (EventKind::Bookmark, "14"));
    assert!(metadata.initial_events_end);

    let frame = next();
    let (event, spans) = WatchEvent::decode_with_metadata(&frame).unwrap();
    let metadata = spans.of(&event.object);
    assert_eq!((&*metadata.kind, &*metadata.resource_version), ("Pod", "15"));
    assert!(!metadata.initial_events_end);

    let event = WatchEvent::decode(&next()).unwrap();
    assert_eq!(event.kind, EventKind::Error);
    let status: Status = serde_json::from_slice(&event.object).unwrap();
    assert!(status.is_expired());
    assert_eq!(frames.next_frame(), Ok(None));
    assert_eq!(frames.finish(), Ok(()));
}

/// Built-in kinds have no type in the items of a list; empty list metadata stays `{}`.
const LIST: &str = "{\"kind\":\"ConfigMapList\",\"apiVersion\":\"v1\",\"metadata\":{\"resourceVersion\":\"20\",\"continue\":\"eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MjAsInN0YXJ0IjoiZGVmYXVsdC9hXHUwMDAwIn0\",\"remainingItemCount\":4},\"items\":[{\"metadata\":{\"name\":\"a\",\"namespace\":\"default\",\"uid\":\"u\",\"resourceVersion\":\"12\"},\"data\":{\"k\":\"v\"}}]}\n";

#[test]
fn recorded_list_is_decoded_and_encoded() {
    let (meta, items) = split_list(&Bytes::from_static(LIST.as_bytes())).unwrap();
    assert_eq!((&*meta.kind, &*meta.resource_version, meta.remaining_item_count), ("ConfigMapList", "20", Some(4)));
    assert_eq!(items.len(), 1);
    let metadata = Metadata::read(&items[0]).unwrap();
    assert_eq!((&*metadata.kind, &*metadata.name, &*metadata.resource_version), ("", "a", "12"));

    let head = meta.head(ListStyle::Typed);
    assert!(LIST.as_bytes().starts_with(&head));
    let empty: Vec<u8> = ListBody::new(
        &ListMeta { kind: "L".into(), api_version: "g/v".into(), ..ListMeta::default() },
        ListStyle::Typed,
        [].into_iter(),
    )
    .flatten()
    .collect();
    assert_eq!(empty, b"{\"kind\":\"L\",\"apiVersion\":\"g/v\",\"metadata\":{},\"items\":[]}\n");
}
