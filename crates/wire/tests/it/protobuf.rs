//! Protobuf compared with kube-apiserver: recorded bodies in both encodings, random objects of
//! every kind encoded by Go, random objects, and invalid bytes.

mod lists;
mod random;

use std::path::Path;

use bytes::Bytes;
use listwatch_json::Value;
use listwatch_k8s_types as types;
use listwatch_meta::{Revision, Status};
use listwatch_wire::protobuf::{self, DecodeError, EncodeError, Envelope, MAGIC, Malformed, WatchMessage};
use listwatch_wire::{Bookmark, EventKind, LengthFrames};
use proptest::prelude::*;
use random::Tape;

/// The name of an object, its protobuf body, and its JSON body.
struct Golden {
    name: &'static str,
    protobuf: Vec<u8>,
    json: &'static str,
}

fn golden() -> Vec<Golden> {
    let text = include_str!("protobuf/golden.txt");
    let blocks = text.split("\n\n").skip(1).map(|block| {
        let mut lines = block.lines();
        let mut line = || lines.next().expect("three lines a block");
        Golden { name: line(), protobuf: unhex(line()), json: line() }
    });
    blocks.collect()
}

fn golden_of(name: &str) -> Golden {
    golden().into_iter().find(|golden| golden.name == name).expect("a golden body has this name")
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hex");
    (0..text.len()).step_by(2).map(digit).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn decoded(body: &[u8]) -> String {
    let decoded = protobuf::decode(body).unwrap_or_else(|error| panic!("{error}: {}", hex(body)));
    String::from_utf8(decoded.json).expect("JSON is text")
}

fn encoded(api_version: &str, kind: &str, json: &str) -> Vec<u8> {
    protobuf::encode(api_version, kind, json.as_bytes()).unwrap_or_else(|error| panic!("{error}: {json}"))
}

#[test]
fn decoded_protobuf_equals_json_of_kube_apiserver() {
    for Golden { name, protobuf, json } in golden() {
        // An empty list equals an absent one on the wire, and Go decodes it as absent. Inside a
        // list, items have no type.
        let json = json.replace("\"items\":[]", "\"items\":null");
        let json = json.replace("[{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"meta.k8s.io/v1\",", "[{");
        assert_eq!(decoded(&protobuf), json, "{name}");
    }
}

#[test]
fn encoded_json_equals_protobuf_of_kube_apiserver() {
    for Golden { name, protobuf, json } in golden() {
        let envelope = Envelope::parse(&protobuf).expect("an envelope");
        assert_eq!(hex(&encoded(&envelope.api_version, &envelope.kind, json)), hex(&protobuf), "{name}");
    }
}

/// Objects of every kind that Go filled with random values. A comment at the start of the file
/// describes the generation.
#[test]
fn objects_of_every_kind_are_converted_as_in_go() {
    let mut kinds = std::collections::BTreeSet::new();
    let lines = include_str!("protobuf/every_kind.txt").lines();
    for line in lines.filter(|line| !line.starts_with('#')) {
        let columns: Vec<&str> = line.split('\t').collect();
        let (api_version, kind, body, json) = (columns[0], columns[1], columns[2], columns[3]);
        assert_eq!(decoded(&unhex(body)), json, "{api_version} {kind}");
        let again = columns.get(4).unwrap_or(&body);
        assert_eq!(hex(&encoded(api_version, kind, json)), *again, "{api_version} {kind}: {json}");
        kinds.insert(types::message_of(api_version, kind).map(|id| id.message().name()));
    }
    for (api_version, kind, id) in types::kinds().filter(|(api_version, ..)| *api_version != "apidiscovery.k8s.io/v2") {
        assert!(kinds.contains(&Some(id.message().name())), "{api_version} {kind} was tried");
    }
}

#[test]
fn partial_metadata_is_encoded_from_the_whole_object() {
    let partial = golden_of("partial metadata");
    let whole = golden_of("configmap with binaryData").json;
    let body = encoded("meta.k8s.io/v1", "PartialObjectMetadata", whole);
    assert_eq!(hex(&body), hex(&partial.protobuf), "members beside the metadata are passed over");
    let bookmark = encoded("v1", "Pod", r#"{"metadata":{"resourceVersion":"7"}}"#);
    let zeros =
        r#"{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"7"},"spec":{"containers":null},"status":{}}"#;
    assert_eq!(decoded(&bookmark), zeros, "what Go always writes is filled in");
}

#[test]
fn protobuf_encoder_interprets_json_as_go() {
    let config = |json: &str| decoded(&encoded("v1", "ConfigMap", json));
    let object = |members: &str| format!(r#"{{"kind":"ConfigMap","apiVersion":"v1",{members}}}"#);
    for (what, json, expected) in [
        ("null is nothing", r#"{"metadata":null,"data":null,"immutable":null}"#, r#""metadata":{}"#),
        (
            "order does not matter",
            r#"{"data":{"b":"2","a":"1"},"metadata":{"uid":"u","name":"n"}}"#,
            r#""metadata":{"name":"n","uid":"u"},"data":{"a":"1","b":"2"}"#,
        ),
        (
            "the last counts",
            r#"{"data":{"a":"1","a":"2"},"metadata":{"name":"a","name":"b"}}"#,
            r#""metadata":{"name":"b"},"data":{"a":"2"}"#,
        ),
        ("strangers are passed over", r#"{"metadata":{"selfie":[{}]},"spec":{"x":1}}"#, r#""metadata":{}"#),
        ("null in a map is its zero", r#"{"metadata":{},"data":{"a":null}}"#, r#""metadata":{},"data":{"a":""}"#),
        ("names are as they are written", r#"{"metadata":{"Name":"a"}}"#, r#""metadata":{}"#),
        (
            "whole numbers may have a fraction of zero",
            r#"{"metadata":{"generation":3}}"#,
            r#""metadata":{"generation":3}"#,
        ),
    ] {
        assert_eq!(config(json), object(expected), "{what}");
    }
    let limits = decoded(&encoded("v1", "Pod", r#"{"spec":{"overhead":{"cpu":2,"gpu":0.5,"memory":"1Gi"}}}"#));
    assert!(
        limits.contains(r#""overhead":{"cpu":"2","gpu":"0.5","memory":"1Gi"}"#),
        "quantities may be numbers: {limits}"
    );
}

#[test]
fn equal_go_values_are_encoded_to_equal_bytes() {
    fn check(what: &str, kind: &str, json: &str, equal: &str) {
        assert_eq!(hex(&encoded("v1", kind, json)), hex(&encoded("v1", kind, equal)), "{what}: {json}");
        let spaced = json.replacen(':', ": ", 1);
        assert_eq!(hex(&encoded("v1", kind, &spaced)), hex(&encoded("v1", kind, equal)), "{what}: {spaced}");
    }
    for (what, kind, json, equal) in [
        ("keys are sorted", "ConfigMap", r#"{"data":{"b":"2","a":"1"}}"#, r#"{"data":{"a":"1","b":"2"}}"#),
        ("the last of two values counts", "ConfigMap", r#"{"data":{"a":"1","a":"2"}}"#, r#"{"data":{"a":"2"}}"#),
        (
            "also with a key between them",
            "ConfigMap",
            r#"{"data":{"a":"1","b":"x","a":"2"}}"#,
            r#"{"data":{"a":"2","b":"x"}}"#,
        ),
        ("null in a map is its zero", "ConfigMap", r#"{"data":{"a":null}}"#, r#"{"data":{"a":""}}"#),
        (
            "null in a list of texts is an empty text",
            "ConfigMap",
            r#"{"metadata":{"finalizers":["a",null]}}"#,
            r#"{"metadata":{"finalizers":["a",""]}}"#,
        ),
        (
            "null in a list of structs is a zero struct",
            "Pod",
            r#"{"spec":{"containers":[null]}}"#,
            r#"{"spec":{"containers":[{}]}}"#,
        ),
        (
            "Go's zero time is no time",
            "ConfigMap",
            r#"{"metadata":{"creationTimestamp":"0001-01-01T00:00:00Z"}}"#,
            r#"{"metadata":{"creationTimestamp":null}}"#,
        ),
    ] {
        check(what, kind, json, equal);
    }
    let strings = decoded(&encoded("v1", "ConfigMap", r#"{"metadata":{"finalizers":["a",null]}}"#));
    assert!(strings.contains(r#""finalizers":["a",""]"#), "a null element keeps its place: {strings}");
}

/// The protobuf of Go's zero time, with nanoseconds.
fn zero_time(nanos: u8) -> Vec<u8> {
    [&b"\x08\x80\x92\xb8\xc3\x98\xfe\xff\xff\xff\x01\x10"[..], &[nanos]].concat()
}

#[test]
fn times_are_decoded_with_the_precision_of_go() {
    // `creationTimestamp` has seconds.
    for nanos in [0, 1] {
        let body = envelope("v1", "ConfigMap", &field(1, &field(8, &zero_time(nanos))));
        let json = r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{}}"#;
        assert_eq!(decoded(&body), json, "Go's zero time with {nanos} ns is omitted");
    }
    // `eventTime` has microseconds; one microsecond more than the zero time is a time.
    let event = |time: &[u8]| decoded(&envelope("v1", "Event", &field(10, time)));
    let micro = [&zero_time(0)[..12], b"\xe8\x07"].concat();
    for (what, time, expected) in [
        ("the zero time", zero_time(0), r#""eventTime":null"#),
        ("a part of a microsecond", zero_time(1), r#""eventTime":null"#),
        ("a microsecond", micro, r#""eventTime":"0001-01-01T00:00:00.000001Z""#),
    ] {
        let json = event(&time);
        assert!(json.contains(expected), "{what}: {json}");
        assert_eq!(decoded(&encoded("v1", "Event", &json)), json, "{what} round-trips");
    }
    // A fraction of -1 ns is an error only where fractions are read.
    let negative = [&zero_time(0)[..12], &[0xff; 9], b"\x01"].concat();
    assert!(protobuf::decode(&envelope("v1", "ConfigMap", &field(1, &field(8, &negative)))).is_ok());
    let refused = protobuf::decode(&envelope("v1", "Event", &field(10, &negative)));
    assert!(matches!(refused, Err(DecodeError::InvalidValue { .. })), "{refused:?}");
}

#[test]
fn member_of_wrong_type_fails_with_its_path() {
    for (kind, json, message, path, why) in [
        (
            "ConfigMap",
            r#"{"metadata":{"name":7}}"#,
            "ObjectMeta",
            "metadata.name",
            "invalid type: integer `7`, expected string",
        ),
        ("ConfigMap", r#"{"data":{"a":true}}"#, "ConfigMap", "data", "invalid type: boolean `true`, expected string"),
        ("ConfigMap", r#"{"data":[]}"#, "ConfigMap", "data", "invalid type: sequence, expected an object"),
        (
            "Pod",
            r#"{"spec":{"containers":[{"env":[{"name":{}}]}]}}"#,
            "EnvVar",
            "spec.containers.env.name",
            "invalid type: map, expected string",
        ),
        ("Pod", r#"{"spec":{"containers":{}}}"#, "PodSpec", "spec.containers", "invalid type: map, expected a list"),
        ("Pod", r#"{"spec":{"priority":2147483648}}"#, "PodSpec", "spec.priority", "expected int32"),
        ("Pod", r#"{"spec":{"priority":1.5}}"#, "PodSpec", "spec.priority", "expected int32"),
        ("Pod", r#"{"spec":{"overhead":{"cpu":""}}}"#, "PodSpec", "spec.overhead", "expected quantity"),
        (
            "Service",
            r#"{"spec":{"ports":[{"targetPort":2147483648}]}}"#,
            "ServicePort",
            "spec.ports.targetPort",
            "expected int32 or string",
        ),
        ("Pod", r#"{"spec":[]}"#, "Pod", "spec", "expected object (PodSpec)"),
        ("Pod", r#"{"spec":{}"#, "Pod", "", "EOF while parsing"),
        ("Pod", r#"{} {}"#, "Pod", "", "trailing characters"),
        ("Pod", "[]", "Pod", "", "expected an object"),
        ("Pod", "", "Pod", "", "EOF while parsing"),
    ] {
        match protobuf::encode("v1", kind, json.as_bytes()) {
            Err(EncodeError::Mismatch { message: seen, path: at, why: text }) => {
                assert_eq!((seen, at.as_str()), (message, path), "{json}: {text}");
                assert!(text.contains(why), "{json}: {text}");
            }
            other => panic!("{json}: {other:?}"),
        }
    }
    // Earlier versions stored such texts. The store keeps them as JSON, and clients receive the object without them.
    for json in [r#"{"metadata":{"creationTimestamp":"now"}}"#, r#"{"binaryData":{"a":"?"}}"#] {
        let strict = protobuf::encode_strict("v1", "ConfigMap", json.as_bytes());
        assert!(matches!(strict, Err(EncodeError::Mismatch { .. })), "{json}: {strict:?}");
        assert!(protobuf::encode("v1", "ConfigMap", json.as_bytes()).is_ok(), "{json}");
    }
    let unknown = EncodeError::UnknownKind { api_version: "example.com/v1".to_owned(), kind: "Widget".to_owned() };
    assert_eq!(protobuf::encode("example.com/v1", "Widget", b"{}"), Err(unknown), "custom resources have no protobuf");
}

/// A length-delimited field.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut len = bytes.len();
    while len >= 0x80 {
        out.push(len as u8 | 0x80);
        len >>= 7;
    }
    out.push(len as u8);
    out.extend_from_slice(bytes);
    out
}

/// An envelope around a message.
fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let names = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
    [MAGIC, &field(1, &names), &field(2, raw)].concat()
}

#[test]
fn invalid_body_fails_with_its_position() {
    let unknown = |api_version: &str, kind: &str| DecodeError::UnknownKind {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
    };
    let wrong = |at, message, field, found| DecodeError::WrongType { at, message, field, found };
    let config = |raw: &[u8]| envelope("v1", "ConfigMap", raw);
    // The position of the message in such an envelope.
    let raw = config(b"").len();
    for (what, body, expected) in [
        ("nothing at all", vec![], DecodeError::NoPrefix),
        ("JSON", b"{}".to_vec(), DecodeError::NoPrefix),
        ("a prefix alone", MAGIC.to_vec(), DecodeError::Empty),
        ("no kind", envelope("v1", "", b""), DecodeError::MissingKind),
        ("no version", envelope("", "Pod", b""), DecodeError::MissingVersion),
        ("a custom resource", envelope("example.com/v1", "Widget", b""), unknown("example.com/v1", "Widget")),
        ("a kind of another group", envelope("v1", "Deployment", b""), unknown("v1", "Deployment")),
        (
            "an envelope that ends early",
            b"k8s\0\x0a\x20".to_vec(),
            DecodeError::Malformed { at: 6, what: Malformed::Truncated },
        ),
        ("metadata as a number", config(b"\x08\x01"), wrong(raw, "ConfigMap", "metadata", 0)),
        ("immutable as text", config(b"\x22\x01x"), wrong(raw, "ConfigMap", "immutable", 2)),
        ("a map's key as a number", config(b"\x12\x02\x08\x01"), wrong(raw + 2, "map", "key", 0)),
        ("a map's value as a number", config(b"\x12\x02\x10\x01"), wrong(raw + 2, "map", "value", 0)),
        (
            "a name that ends early",
            config(b"\x0a\x03\x0a\x05a"),
            DecodeError::Malformed { at: raw + 4, what: Malformed::Truncated },
        ),
        (
            "metadata that ends early",
            config(b"\x0a\x7f"),
            DecodeError::Malformed { at: raw + 2, what: Malformed::Truncated },
        ),
        ("a field numbered zero", config(b"\x02\x00"), DecodeError::Malformed { at: raw, what: Malformed::Tag }),
    ] {
        assert_eq!(protobuf::decode(&body), Err(expected), "{what}: {}", hex(&body));
    }
    let revision = envelope("apps/v1", "ControllerRevision", b"\x12\x03\x0a\x01{");
    let error = protobuf::decode(&revision).expect_err("half an object is no JSON").to_string();
    assert!(error.starts_with("EOF while parsing an object"), "{error}");
}

#[test]
fn split_and_unknown_fields_are_decoded() {
    let read = |raw: &[u8]| decoded(&envelope("v1", "Pod", raw));
    let pod = |metadata: &str, spec: &str| {
        format!(r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{{metadata}}},"spec":{{{spec}}},"status":{{}}}}"#)
    };
    for (what, raw, expected) in [
        (
            "unknown fields",
            &b"\xfa\x3f\x01x\x0a\x03\x0a\x01a\xf8\x3f\x07"[..],
            pod(r#""name":"a""#, r#""containers":null"#),
        ),
        (
            "a message in two pieces",
            b"\x0a\x03\x0a\x01a\x0a\x03\x1a\x01b",
            pod(r#""name":"a","namespace":"b""#, r#""containers":null"#),
        ),
        ("a value that comes twice", b"\x0a\x06\x0a\x01a\x0a\x01b", pod(r#""name":"b""#, r#""containers":null"#)),
        (
            "any order",
            b"\x12\x03\x1a\x01x\x0a\x03\x0a\x01a",
            pod(r#""name":"a""#, r#""containers":null,"restartPolicy":"x""#),
        ),
        (
            "numbers in one piece",
            b"\x12\x08\x72\x06\x22\x04\x01\x02\xac\x02",
            pod("", r#""containers":null,"securityContext":{"supplementalGroups":[1,2,300]}"#),
        ),
    ] {
        assert_eq!(read(raw), expected, "{what}");
    }
}

#[test]
fn strict_decoding_rejects_fields_that_json_would_lose() {
    for Golden { name, protobuf, json } in golden() {
        let lenient = decoded(&protobuf);
        let strict = protobuf::decode_strict(&protobuf).unwrap_or_else(|error| panic!("{name}: {error}: {json}"));
        assert_eq!(strict.json, lenient.as_bytes(), "{name}");
    }
    for (what, raw, message, number) in [
        ("a field of the object", &b"\xfa\x3f\x01x\x0a\x03\x0a\x01a"[..], "Pod", 1023),
        ("a field of its metadata", b"\x0a\x07\x0a\x01a\xfa\x3f\x01x", "ObjectMeta", 1023),
        ("a field of a map's entry", b"\x0a\x08\x5a\x06\x0a\x01a\x1a\x01b", "map", 3),
        ("a field of a time", b"\x0a\x06\x42\x04\x08\x01\x18\x01", "Time", 3),
        ("a field of a quantity", b"\x12\x0e\x82\x02\x0b\x0a\x01a\x12\x06\x0a\x011\x12\x01x", "Quantity", 2),
    ] {
        let body = envelope("v1", "Pod", raw);
        assert!(protobuf::decode(&body).is_ok(), "{what} is skipped");
        match protobuf::decode_strict(&body) {
            Err(DecodeError::UnknownField { message: found, number: at, .. }) => {
                assert_eq!((found, at), (message, number), "{what}");
            }
            other => panic!("{what}: {other:?}"),
        }
    }
}

#[test]
fn strict_decoding_rejects_an_envelope_that_json_would_lose() {
    let plain = encoded("v1", "ConfigMap", "{}");
    for (what, tail, expected) in [
        ("a field of a newer release", &b"\x2a\x01x"[..], Some(5)),
        ("a number of a newer release", b"\x28\x01", Some(5)),
        ("a content encoding", b"\x1a\x04gzip", Some(3)),
        ("an empty content encoding", b"\x1a\x00", None),
        ("a content type", b"\x22\x10application/json", None),
    ] {
        let body = [&plain[..], tail].concat();
        assert!(protobuf::decode(&body).is_ok(), "{what} is skipped");
        let unknown = |number| DecodeError::UnknownField { at: plain.len(), message: "Unknown", number };
        assert_eq!(protobuf::decode_strict(&body).err(), expected.map(unknown), "{what}");
    }
}

/// `spec.extra` of a CertificateSigningRequest is a map of lists, whose messages have one field.
#[test]
fn unknown_fields_of_a_list_in_a_map_are_skipped_and_known_ones_checked() {
    let request = |list: &[u8]| {
        let entry = [field(1, b"a"), field(2, list)].concat();
        envelope("certificates.k8s.io/v1", "CertificateSigningRequest", &field(2, &field(6, &entry)))
    };
    for (what, list, unknown) in [
        ("the known field", &b"\x0a\x01x"[..], None),
        ("a number as field 2", b"\x0a\x01x\x10\x01", Some(2)),
        ("a text as field 2", b"\x0a\x01x\x12\x01y", Some(2)),
        ("a number as field 5", b"\x0a\x01x\x28\x01", Some(5)),
    ] {
        let body = request(list);
        assert!(decoded(&body).contains(r#""extra":{"a":["x"]}"#), "{what}: {}", decoded(&body));
        let found = match protobuf::decode_strict(&body) {
            Err(DecodeError::UnknownField { message: "items", number, .. }) => Some(number),
            other => other.map(|_| None).expect("no other error"),
        };
        assert_eq!(found, unknown, "{what}");
    }
    let wrong = protobuf::decode(&request(b"\x08\x01"));
    assert!(matches!(wrong, Err(DecodeError::WrongType { message: "items", found: 0, .. })), "{wrong:?}");
}

/// The body of an object with JSON inside, which begins at the second level.
fn revision_with(json: &str) -> Vec<u8> {
    envelope("apps/v1", "ControllerRevision", &field(2, &field(1, json.as_bytes())))
}

#[test]
fn json_inside_protobuf_is_limited_by_its_depth_in_the_object() {
    let nested = |levels: usize| revision_with(&format!("{}{}", "[".repeat(levels), "]".repeat(levels)));
    assert!(protobuf::decode(&nested(protobuf::DEPTH_MAX - 1)).is_ok(), "the object itself is one level");
    match protobuf::decode(&nested(protobuf::DEPTH_MAX)) {
        Err(DecodeError::InvalidValue { why, .. }) => assert_eq!(why, "JSON that is nested too deeply"),
        other => panic!("a level too many: {other:?}"),
    }
    let empty = decoded(&revision_with(""));
    assert!(empty.contains(r#""data":null"#), "no bytes are no JSON: {empty}");
}

/// A store must be able to read what it wrote.
#[test]
fn strict_encoding_rejects_nesting_that_decoding_would_reject() {
    let revision = |levels: usize| {
        let data = format!("{}null{}", "[".repeat(levels), "]".repeat(levels));
        format!(r#"{{"kind":"ControllerRevision","apiVersion":"apps/v1","metadata":{{}},"data":{data},"revision":0}}"#)
    };
    // A schema in a schema: two levels each, after five levels of the definition; `null` becomes `{}`.
    let definition = |schemas: usize| {
        let mut schema = r#"{"allOf":[null]}"#.to_owned();
        for _ in 1..schemas {
            schema = format!(r#"{{"allOf":[{schema}]}}"#);
        }
        format!(r#"{{"spec":{{"versions":[{{"schema":{{"openAPIV3Schema":{schema}}}}}]}}}}"#)
    };
    for (what, api_version, kind, json, expected) in [
        ("99 levels", "apps/v1", "ControllerRevision", revision(98), true),
        ("100 levels", "apps/v1", "ControllerRevision", revision(99), false),
        ("120 levels", "apps/v1", "ControllerRevision", revision(119), false),
        ("99 levels and a zero struct", "apiextensions.k8s.io/v1", "CustomResourceDefinition", definition(47), true),
        ("101 levels of schema", "apiextensions.k8s.io/v1", "CustomResourceDefinition", definition(48), false),
    ] {
        for json in [json.replacen(':', ": ", 1), json] {
            assert!(protobuf::encode(api_version, kind, json.as_bytes()).is_ok(), "{what} are JSON");
            match protobuf::encode_strict(api_version, kind, json.as_bytes()) {
                Ok(body) => {
                    assert!(expected, "{what} are rejected");
                    assert!(protobuf::decode_strict(&body).is_ok(), "{what} can be read again");
                }
                Err(error) => {
                    assert!(!expected, "{what} are accepted: {error}");
                    assert!(error.to_string().ends_with("JSON that is nested too deeply"), "{error}");
                }
            }
        }
    }
}

#[test]
fn strict_encoding_rejects_members_that_protobuf_would_lose() {
    let check = |json: &str, expected: Result<(), &str>| {
        let found = protobuf::encode_strict("v1", "Pod", json.as_bytes()).map(drop).map_err(|error| error.to_string());
        match (found, expected) {
            (Ok(()), Ok(())) => {}
            (Err(found), Err(expected)) if found.contains(expected) => {}
            (found, expected) => panic!("{json}: {found:?}, expected {expected:?}"),
        }
        assert!(protobuf::encode("v1", "Pod", json.as_bytes()).is_ok(), "{json} has only unknown members");
    };
    check(r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"}}"#, Ok(()));
    check(r#"{"metadata":{"name":"a"},"newer":1}"#, Err("unknown field \"newer\""));
    check(r#"{"metadata":{"kind":"a"}}"#, Err("unknown field \"kind\""));
    check(r#"{"spec":{"containers":[{"name":"a","newer":{}}]}}"#, Err("unknown field \"newer\""));
}

#[test]
fn envelope_inside_raw_extension_is_decoded() {
    let inner = encoded("v1", "Namespace", r#"{"metadata":{"name":"web"}}"#);
    let raw = [&[0x12, inner.len() as u8 + 2, 0x0a, inner.len() as u8][..], &inner].concat();
    let expected = r#"{"kind":"ControllerRevision","apiVersion":"apps/v1","metadata":{},"data":{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"web"},"spec":{},"status":{}},"revision":0}"#;
    assert_eq!(decoded(&envelope("apps/v1", "ControllerRevision", &raw)), expected);
}

#[test]
fn body_with_excessive_json_is_rejected() {
    // A schema whose property `a` has a property `a`, and so on.
    let mut json = "{}".to_owned();
    for _ in 0..40 {
        json = format!(r#"{{"properties":{{"a":{json}}}}}"#);
    }
    let definition = |schema: &str| {
        format!(r#"{{"spec":{{"versions":[{{"name":"v1","schema":{{"openAPIV3Schema":{schema}}}}}]}}}}"#)
    };
    let body = encoded("apiextensions.k8s.io/v1", "CustomResourceDefinition", &definition(&json));
    assert!(protobuf::decode(&body).is_ok(), "forty levels of schema are fine");
    for _ in 0..10 {
        json = format!(r#"{{"properties":{{"a":{json}}}}}"#);
    }
    let body = encoded("apiextensions.k8s.io/v1", "CustomResourceDefinition", &definition(&json));
    let refused = protobuf::decode(&body);
    assert!(matches!(refused, Err(DecodeError::TooDeep { .. })), "fifty are not: {refused:?}");

    // Two bytes each encode a container of thirty characters.
    let containers = [0x12, 0x00].repeat(64 << 10);
    let spec_bytes = containers.len() as u32;
    let mut raw =
        vec![0x12, (spec_bytes & 0x7f) as u8 | 0x80, (spec_bytes >> 7) as u8 | 0x80, (spec_bytes >> 14) as u8];
    raw.extend_from_slice(&containers);
    let body = envelope("v1", "Pod", &raw);
    let limit_bytes = protobuf::json_limit_bytes(body.len());
    assert_eq!(protobuf::decode(&body), Err(DecodeError::TooLarge { limit_bytes }));

    // The same share of empty containers is permitted in a small body.
    let containers = [0x12, 0x00].repeat(60);
    let small = envelope("v1", "Pod", &[&[0x12, containers.len() as u8][..], &containers].concat());
    assert!(protobuf::decode(&small).is_ok(), "a small body has 64 KiB more than its share");
}

#[test]
fn frame_from_json_equals_frame_from_envelope() {
    let config = golden_of("configmap with binaryData");
    let partial = golden_of("partial metadata");
    for (kind, api_version, object_kind, golden) in [
        (EventKind::Modified, "v1", "ConfigMap", &config),
        (EventKind::Added, "meta.k8s.io/v1", "PartialObjectMetadata", &partial),
    ] {
        let frame = protobuf::event_frame(kind, api_version, object_kind, config.json.as_bytes()).expect("a frame");
        assert_eq!(frame, protobuf::watch_frame(kind, &golden.protobuf));
        let message = WatchMessage::parse(&protobuf::message_of_frame(&frame)).expect("an event");
        assert_eq!((message.kind, &message.envelope[..]), (kind, &golden.protobuf[..]));
    }
    let bookmark = Bookmark {
        api_version: "v1",
        kind: "ConfigMap",
        revision: Revision::new(233),
        initial_events_end: true,
        zero_members: "",
    };
    assert_eq!(hex(&protobuf::bookmark_frame(&bookmark).expect("a frame")), BOOKMARK);
    let status = Status::expired_watch(3, 9);
    let frame = protobuf::error_frame(&status);
    let message = WatchMessage::parse(&protobuf::message_of_frame(&frame)).expect("an event");
    assert_eq!((message.kind, &message.envelope[..]), (EventKind::Error, &protobuf::status(&status)[..]));
    assert_eq!(decoded(&message.envelope).as_bytes(), status.to_json());
}

/// A recorded bookmark of kube-apiserver, which ends the initial events.
const BOOKMARK: &str = concat!(
    "000000610a08424f4f4b4d41524b12550a536b3873000a0f0a0276311209436f6e6669674d617012380a360a0012001a0022",
    "002a0032033233333800420062210a196b38732e696f2f696e697469616c2d6576656e74732d656e641204747275651a0022",
    "00",
);

#[test]
fn watch_frames_equal_those_of_kube_apiserver() {
    let config = golden_of("configmap with binaryData");
    let added = protobuf::watch_frame(EventKind::Added, &config.protobuf);
    let bookmark = unhex(BOOKMARK);
    let mut frames = LengthFrames::new();
    frames.feed(added.clone());
    frames.feed(Bytes::from(bookmark.clone()));

    let message = frames.next_frame().expect("a frame").expect("an event");
    let event = WatchMessage::parse(&message).expect("an event");
    assert_eq!((event.kind, decoded(&event.envelope).as_str()), (EventKind::Added, config.json));

    let message = frames.next_frame().expect("a frame").expect("an event");
    let event = WatchMessage::parse(&message).expect("an event");
    assert_eq!(event.kind, EventKind::Bookmark);
    let json = decoded(&event.envelope);
    assert!(json.starts_with(r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"#), "{json}");
    let again = protobuf::watch_frame(EventKind::Bookmark, &encoded("v1", "ConfigMap", &json));
    assert_eq!(hex(&again), hex(&bookmark), "a bookmark is what kube-apiserver makes of it");
}

#[test]
fn invalid_watch_message_is_rejected() {
    for (message, why) in [
        (&b""[..], "empty body"),
        (b"\x0a\x05ADDED", "empty body"),
        (b"\x0a\x05ADDED\x12\x00", "empty body"),
        (b"\x0a\x03ODD\x12\x04\x0a\x02{}", "a watch event of the unknown type ODD at byte 2"),
        (b"\x0a\x09ADDED", "proto: unexpected EOF at byte 2"),
        (b"\x08\x01", "proto: wrong wireType = 0 for field  of WatchEvent at byte 0"),
    ] {
        let error = WatchMessage::parse(&Bytes::from_static(message)).expect_err("no event").to_string();
        assert_eq!(error, why, "{message:x?}");
    }
}

/// Example manifests keep every field through protobuf and back.
#[test]
fn example_manifests_round_trip() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/manifests");
    let mut count = 0;
    let mut open = vec![root];
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(std::fs::read_dir(&path).expect("a folder").map(|entry| entry.expect("an entry").path()));
            continue;
        }
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a manifest");
        for document in yaml_serde::Deserializer::from_str(&text) {
            let value: Value = serde::Deserialize::deserialize(document).expect("YAML");
            let Some(kind) = value["kind"].as_str() else { continue };
            let api_version = value["apiVersion"].as_str().expect("a version");
            let back: Value =
                serde_json::from_str(&decoded(&encoded(api_version, kind, &value.to_string()))).expect("JSON");
            assert_eq!(lost(&value, &back, kind), None, "{}", path.display());
            count += 1;
        }
    }
    assert!(count > 20, "{count} objects were found");
}

/// The path of a value in `old` that is missing in `new`. Values that Go omits may be missing.
fn lost(old: &Value, new: &Value, at: &str) -> Option<String> {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => old.iter().find_map(|(name, value)| {
            let at = format!("{at}.{name}");
            let empty = matches!(value, Value::Null | Value::Bool(false))
                || value == 0
                || value == ""
                || value.as_object().is_some_and(|o| o.is_empty())
                || value.as_array().is_some_and(|a| a.is_empty());
            match new.get(name) {
                Some(found) => lost(value, found, &at),
                None => (!empty).then_some(at),
            }
        }),
        (Value::Array(old), Value::Array(new)) if old.len() == new.len() => {
            old.iter().zip(new).enumerate().find_map(|(place, (old, new))| lost(old, new, &format!("{at}[{place}]")))
        }
        // A quantity may be written as a number.
        (Value::Number(old), Value::String(new)) if old.to_string() == *new => None,
        _ => (old != new).then(|| format!("{at}: {old} became {new}")),
    }
}

fn reversed(value: Value) -> Value {
    match value {
        Value::Object(members) => Value::Object(members.into_iter().rev().map(|(k, v)| (k, reversed(v))).collect()),
        Value::Array(elements) => Value::Array(elements.into_iter().map(reversed).collect()),
        other => other,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, ..ProptestConfig::default() })]

    #[test]
    fn random_objects_round_trip(
        kind in 0..types::kinds().count(),
        tape in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let (api_version, kind, id) = types::kinds().nth(kind).expect("a kind");
        let api_version = if api_version.is_empty() { "apps/v1" } else { api_version };
        let json = random::object(api_version, kind, id, &mut Tape::new(&tape));
        let body = encoded(api_version, kind, &json);
        prop_assert_eq!(decoded(&body), &json[..], "an object is the same behind protobuf");
        let value: Value = serde_json::from_str(&json).expect("JSON");
        let other_order = reversed(value.clone()).to_string();
        let back: Value = serde_json::from_str(&decoded(&encoded(api_version, kind, &other_order))).expect("JSON");
        prop_assert_eq!(back, value, "the order of members does not matter");
    }

    #[test]
    fn random_bytes_never_panic_and_give_json_or_an_error(
        kind in 0..types::kinds().count(),
        raw in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let (api_version, kind, _) = types::kinds().nth(kind).expect("a kind");
        let api_version = if api_version.is_empty() { "v1" } else { api_version };
        survives(&envelope(api_version, kind, &raw))?;
        survives(&raw)?;
    }

    #[test]
    fn damaged_bodies_never_panic_and_give_json_or_an_error(
        which in any::<prop::sample::Index>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        end in any::<prop::sample::Index>(),
        cut in any::<bool>(),
    ) {
        let all = golden();
        let mut body = which.get(&all).protobuf.clone();
        for (at, byte) in damage {
            let at = at.index(body.len());
            body[at] = byte;
        }
        if cut {
            body.truncate(end.index(body.len()));
        }
        survives(&body)?;
        // Also as a watch message, which is read by other code.
        let _ = WatchMessage::parse(&Bytes::from(body));
    }
}

/// Checks that decoded bytes are JSON, and that encoding and decoding them again changes nothing.
fn survives(body: &[u8]) -> Result<(), TestCaseError> {
    let Ok(first) = protobuf::decode(body) else { return Ok(()) };
    prop_assert!(first.json.len() <= protobuf::json_limit_bytes(body.len()) + (4 << 10), "the limit holds");
    let parsed = serde_json::from_slice::<Value>(&first.json);
    prop_assert!(parsed.is_ok(), "what was decoded is JSON: {:?}", parsed.err());
    let encode = |json: &[u8]| protobuf::encode(&first.api_version, &first.kind, json);
    let again = encode(&first.json);
    prop_assert!(again.is_ok(), "what was decoded can be encoded: {:?}", again.err());
    let second = decoded(&again.unwrap_or_default());
    let third = decoded(&encode(second.as_bytes()).unwrap_or_default());
    prop_assert_eq!(second, third, "a second round changes nothing");
    Ok(())
}
