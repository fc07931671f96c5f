//! CBOR in both directions: bytes of apimachinery's serializer, random values through an
//! independent implementation (ciborium), and invalid bytes.

use bytes::Bytes;
use ciborium::Value as Cbor;
use listwatch_json::{Value, json};
use listwatch_meta::{Change, Key, Object, ObjectShape, Revision, Status};
use listwatch_wire::cbor::{self, CborFrames, DecodeError, EncodeError, ListBody, WatchMessage};
use listwatch_wire::{Bookmark, EventKind, ListMeta, ListStyle};
use proptest::prelude::*;

fn decoded(body: &[u8]) -> Value {
    serde_json::from_slice(&cbor::decode(body).expect("CBOR")).expect("JSON")
}

/// Frames of a watch, byte for byte: the tag before the event and the object, definite lengths,
/// strings as bytes.
#[test]
fn watch_frames_equal_those_of_kubernetes() {
    let object =
        br#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","generation":300},"data":{"k":"<\u00e4>"}}"#;
    let added = cbor::event_frame(EventKind::Added, object).expect("JSON");
    let expected: &[&[u8]] = &[
        b"\xd9\xd9\xf7\xa2\x44type\x45ADDED\x46object\xd9\xd9\xf7\xa4",
        b"\x44kind\x49ConfigMap\x4aapiVersion\x42v1",
        b"\x48metadata\xa2\x44name\x41a\x4ageneration\x19\x01\x2c",
        b"\x44data\xa1\x41k\x44<\xc3\xa4>",
    ];
    assert_eq!(added, expected.concat());
    let bookmark = Bookmark {
        api_version: "v1",
        kind: "ConfigMap",
        revision: Revision::new(15),
        initial_events_end: false,
        zero_members: "",
    };
    let bookmark = cbor::event_frame(EventKind::Bookmark, &bookmark.object()).expect("JSON");
    let expected: &[&[u8]] = &[
        b"\xd9\xd9\xf7\xa2\x44type\x48BOOKMARK\x46object\xd9\xd9\xf7\xa3",
        b"\x44kind\x49ConfigMap\x4aapiVersion\x42v1\x48metadata\xa1\x4fresourceVersion\x4215",
    ];
    assert_eq!(bookmark, expected.concat());
    let status = Status::expired_watch(3, 9);
    let error = cbor::error_frame(&status);

    let mut frames = CborFrames::new();
    frames.feed(Bytes::from([&added[..], &bookmark, &error].concat()));
    let mut next = || WatchMessage::parse(&frames.next_frame().expect("a frame").expect("an event")).expect("an event");
    let event = next();
    assert_eq!(event.kind, EventKind::Added);
    assert_eq!(decoded(&event.object), serde_json::from_slice::<Value>(object).expect("JSON"));
    assert_eq!(next().kind, EventKind::Bookmark);
    let event = next();
    assert_eq!(event.kind, EventKind::Error);
    assert_eq!(cbor::decode(&event.object).expect("CBOR"), status.to_json());
    assert_eq!(frames.next_frame(), Ok(None));
    assert_eq!(frames.finish(), Ok(()));
}

#[test]
fn cbor_events_of_other_encoders_are_decoded_and_invalid_events_rejected() {
    let parse = |message: &'static [u8]| WatchMessage::parse(&Bytes::from_static(message));
    for message in [
        &b"\xa2\x64type\x67DELETED\x66object\xa0"[..],
        b"\xa3\x46object\xa0\x61x\x82\x01\x02\x44type\x47DELETED",
        b"\xd9\xd9\xf7\xb8\x02\x44type\x47DELETED\x46object\xa0",
    ] {
        let event = parse(message).unwrap_or_else(|error| panic!("{error}: {message:x?}"));
        assert_eq!((event.kind, &event.object[..]), (EventKind::Deleted, &b"\xa0"[..]));
    }
    for (message, why) in [
        (&b""[..], "unexpected EOF at byte 0"),
        (b"\x80", "cbor: a watch event that is no map at byte 0"),
        (b"\xa1\x44type\x45ADDED", "cbor: a watch event without a type or an object at byte 12"),
        (b"\xa2\x44type\x41X\x46object\xa0", "cbor: a watch event of an unknown type at byte 6"),
        (b"\xa2\x44type\x45ADD", "unexpected EOF at byte 10"),
        (b"\xbb\xff\xff\xff\xff\xff\xff\xff\xff", "unexpected EOF at byte 9"),
        (b"\xa1\x44type\xff", "cbor: malformed item at byte 6"),
    ] {
        assert_eq!(parse(message).expect_err("no event").to_string(), why, "{message:x?}");
    }
}

fn objects(count: u64) -> Vec<Object> {
    let object = |revision: u64| {
        let name = format!("o{revision}");
        let key = Key::new("configmaps", Some("default"), &name).expect("a key");
        let json =
            json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name}, "data": {"n": revision}});
        let shape = ObjectShape::new(true, Vec::new());
        Object::from_stored(key, Revision::new(revision), Change::Added, json.to_string().as_bytes(), &shape)
            .expect("an object")
    };
    (1..=count).map(object).collect()
}

#[test]
fn lists_equal_those_of_kubernetes_for_any_chunks() {
    let meta = ListMeta {
        api_version: "v1".to_owned(),
        kind: "ConfigMapList".to_owned(),
        resource_version: "9".to_owned(),
        continue_token: "abc".to_owned(),
        remaining_item_count: Some(4),
        shard_selector: String::new(),
    };
    let body = |style, count, chunk_bytes| {
        ListBody::with_chunk_bytes(&meta, style, objects(count).into_iter(), chunk_bytes)
            .collect::<Result<Vec<Bytes>, _>>()
            .expect("a list")
    };
    let expected: &[&[u8]] = &[
        b"\xd9\xd9\xf7\xa4\x44kind\x4dConfigMapList\x45items\x81",
        b"\xa2\x48metadata\xa2\x4fresourceVersion\x411\x44name\x42o1\x44data\xa1\x41n\x01",
        b"\x48metadata\xa3\x4fresourceVersion\x419\x48continue\x43abc\x52remainingItemCount\x04",
        b"\x4aapiVersion\x42v1",
    ];
    assert_eq!(body(ListStyle::Typed, 1, 1 << 16).concat(), expected.concat());
    for style in [ListStyle::Typed, ListStyle::Unstructured] {
        let whole = body(style, 30, 1 << 16);
        assert_eq!(whole.len(), 1, "a small list is one chunk");
        for chunk_bytes in [1, 100, 1000] {
            let chunks = body(style, 30, chunk_bytes);
            assert!(chunks.iter().all(|chunk| !chunk.is_empty() && chunk.len() < chunk_bytes + 200));
            assert_eq!(chunks.concat(), whole.concat());
        }
        let list = decoded(&whole.concat());
        assert_eq!(list["items"].as_array().expect("items").len(), 30);
        assert_eq!(list["items"][29]["data"]["n"], 30);
        assert_eq!(list["items"][0]["kind"].is_null(), style == ListStyle::Typed, "typed items have no type");
        assert_eq!(list["metadata"], json!({"resourceVersion": "9", "continue": "abc", "remainingItemCount": 4}));
    }
    // An iterator with another result at its second use.
    let left = std::cell::Cell::new(true);
    let (all, lying) = (objects(3), |_: &&Object| left.get());
    let mut list = ListBody::with_chunk_bytes(&meta, ListStyle::Typed, all.iter().filter(lying).cloned(), 1);
    left.set(false);
    assert_eq!(list.by_ref().find_map(Result::err), Some(EncodeError::ListChanged));
    assert!(list.next().is_none(), "after an error there is no chunk");
}

/// The value that an independent decoder reads from our bytes, with strings for bytes.
fn as_json(value: Cbor) -> Value {
    match value {
        Cbor::Tag(55799, inner) => as_json(*inner),
        Cbor::Null => Value::Null,
        Cbor::Bool(value) => value.into(),
        Cbor::Integer(value) => i64::try_from(i128::from(value)).expect("64 bits").into(),
        Cbor::Float(value) => value.into(),
        Cbor::Bytes(bytes) => String::from_utf8(bytes).expect("a string").into(),
        Cbor::Array(items) => items.into_iter().map(as_json).collect::<Vec<_>>().into(),
        Cbor::Map(members) => {
            let count = members.len();
            let members: listwatch_json::Map = members
                .into_iter()
                .map(|(name, value)| (as_json(name).as_str().expect("a name").to_owned(), as_json(value)))
                .collect();
            assert_eq!(members.len(), count, "a name comes once");
            members.into()
        }
        other => panic!("{other:?} was never written"),
    }
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-300_i64..300).prop_map(Value::from),
        // A whole float is written as an integer, as in Go, and decoded as one.
        any::<f64>().prop_map(|value| Value::from(if value.is_finite() && value.fract() != 0.0 { value } else { 0.5 })),
        any::<i16>().prop_map(|value| Value::from(f64::from(value) / 1024.0 + 0.000_976_562_5 / 2.0)),
        ".{0,20}".prop_map(Value::from),
        "[a-z\"\\\\\n<&]{0,300}".prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 200, 40, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..40).prop_map(Value::from),
            prop::collection::hash_map("[a-z./\"]{0,30}", inner, 0..30)
                .prop_map(|members| members.into_iter().collect()),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn ciborium_decodes_the_encoded_cbor(value in values()) {
        let body = cbor::encode(value.to_string().as_bytes()).expect("JSON");
        let read: Cbor = ciborium::from_reader(&body[..]).expect("CBOR");
        prop_assert_eq!(as_json(read), value.clone());
        prop_assert_eq!(decoded(&body), value);
    }

    #[test]
    fn cbor_written_by_ciborium_is_decoded(value in values()) {
        let mut body = Vec::new();
        ciborium::into_writer(&value, &mut body).expect("CBOR");
        prop_assert_eq!(decoded(&body), value);
    }

    #[test]
    fn random_bytes_never_panic_and_give_json_or_an_error(
        body in prop::collection::vec(prop_oneof![
            any::<u8>(), Just(0x81_u8), Just(0xa1), Just(0x41), Just(0x61), Just(0x9f), Just(0xbf), Just(0xff), Just(0xc1),
        ], 0..60),
    ) {
        survives(&body)?;
    }

    #[test]
    fn damaged_bodies_never_panic_and_give_json_or_an_error(
        value in values(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut body = cbor::encode(value.to_string().as_bytes()).expect("JSON");
        for (at, byte) in damage {
            let at = at.index(body.len());
            body[at] = byte;
        }
        survives(&body)?;
        let _ = WatchMessage::parse(&Bytes::from(body));
    }

    #[test]
    fn random_text_is_encoded_only_if_it_is_json(text in "[\\[\\]{}:,\"\\\\a0-9.eE+\\- tfn]{0,20}|\\PC{0,20}") {
        let is_json = serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok();
        let encoded = cbor::encode(text.as_bytes());
        if let Ok(body) = &encoded {
            prop_assert!(is_json || text.bytes().any(|byte| byte < 0x20), "{} is no JSON", text);
            let read = cbor::decode(body);
            let is_read = matches!(read, Ok(_) | Err(DecodeError::DuplicateName { .. }));
            prop_assert!(is_read, "what was written is read: {:?}", read);
        } else if let Ok(value) = serde_json::from_str::<Value>(&text) {
            prop_assert!(false, "{} is JSON: {:?}", value, encoded);
        }
    }
}

/// Checks that decoded bytes are JSON of bounded length, and that encoding and decoding them again
/// changes nothing.
fn survives(body: &[u8]) -> Result<(), TestCaseError> {
    let read = cbor::decode(body);
    let mut frames = CborFrames::new();
    frames.feed(Bytes::copy_from_slice(body));
    let cut = frames.next_frame();
    let Ok(first) = read else { return Ok(()) };
    prop_assert_eq!(cut, Ok(Some(Bytes::copy_from_slice(body))), "a body is one item");
    prop_assert!(first.len() <= 12 * body.len() + 8, "the limit holds");
    prop_assert!(serde_json::from_slice::<Value>(&first).is_ok(), "what was read is JSON");
    let again = cbor::encode(&first);
    prop_assert!(again.is_ok(), "what was read can be written: {:?}", again);
    // Minus zero becomes zero: JSON's `-0` is an integer, as in Go.
    let second = cbor::decode(&again.unwrap_or_default()).expect("what was written can be read");
    let third = cbor::encode(&second).map(|body| cbor::decode(&body));
    prop_assert_eq!(third, Ok(Ok(second)), "another round changes nothing");
    Ok(())
}
