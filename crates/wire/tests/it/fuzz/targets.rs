//! The fuzz targets: one function each, which panics when a guarantee is broken. The fuzzer
//! (`fuzz/`) and `crates/wire/tests/it/fuzz.rs` call the same functions.

use std::fmt::Debug;

use bytes::Bytes;
use listwatch_k8s_types as types;
use listwatch_meta::{ContinueToken, FieldSelector, LabelSelector, ListOptions, ObjectShape};
use listwatch_wire::media_type::{Purpose, Served, negotiate, negotiate_body, negotiate_patch};
use listwatch_wire::protobuf;
use listwatch_wire::query::{Query, WriteOptions};
use listwatch_wire::websocket::{self, Role};
use listwatch_wire::{Encoding, Frames, JsonEvents, ListDecoder, WatchEvent, cbor};

/// A target with its name.
pub(crate) type Target = (&'static str, fn(&[u8]));

/// All targets. The fuzzer has a file for each.
#[allow(dead_code, reason = "a file of the fuzzer runs one target")]
pub(crate) const ALL: [Target; 11] = [
    ("frames", frames),
    ("lists", lists),
    ("websocket", websocket),
    ("queries", queries),
    ("selectors", selectors),
    ("continue_tokens", continue_tokens),
    ("media_types", media_types),
    ("protobuf", protobuf),
    ("protobuf_encode", protobuf_encode),
    ("cbor", cbor),
    ("cbor_encode", cbor_encode),
];

/// Takes choices from the front of the bytes; 0 when none are left.
fn choose(data: &mut &[u8], count: usize) -> usize {
    let Some((first, rest)) = data.split_first() else { return 0 };
    *data = rest;
    usize::from(*first) % count
}

/// Splits the bytes into pieces of repeating lengths.
fn pieces<'a>(stream: &'a [u8], lengths: &[usize]) -> Vec<&'a [u8]> {
    let (mut pieces, mut rest) = (Vec::new(), stream);
    for length in lengths.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (piece, others) = rest.split_at((length + 1).min(rest.len()));
        pieces.push(piece);
        rest = others;
    }
    pieces
}

/// Checks that a decoder returns the same for the same bytes in other pieces.
fn check_any_split<T: PartialEq + Debug>(data: &[u8], read: impl Fn(&[&[u8]]) -> T) {
    let mut stream = data;
    let lengths = [choose(&mut stream, 9), choose(&mut stream, 40), choose(&mut stream, 3)];
    let whole = read(&[stream]);
    assert_eq!(whole, read(&pieces(stream, &lengths)), "the same bytes, split elsewhere, gave something else");
    assert_eq!(whole, read(&pieces(stream, &[0])), "the same bytes, one by one, gave something else");
}

/// Decodes watch streams in every encoding, and the events in their frames.
pub(crate) fn frames(mut data: &[u8]) {
    let encoding = [Encoding::Json, Encoding::Protobuf, Encoding::Cbor][choose(&mut data, 3)];
    let limit = 1 + choose(&mut data, 256);
    check_any_split(data, |pieces| {
        let mut frames = Frames::new(encoding, limit).expect("an encoding that streams");
        let mut found = Vec::new();
        for piece in pieces {
            frames.feed(Bytes::copy_from_slice(piece));
            loop {
                match frames.next_frame() {
                    Ok(Some(frame)) => found.push(frame),
                    Ok(None) => break,
                    Err(error) => return (found, Err(error)),
                }
            }
        }
        let end = frames.finish();
        (found, end)
    });
    let mut frames = Frames::new(encoding, limit).expect("an encoding that streams");
    frames.feed(Bytes::copy_from_slice(data));
    while let Ok(Some(frame)) = frames.next_frame() {
        assert!(frame.len() <= limit, "a frame is within the limit");
        match encoding {
            Encoding::Json => drop(WatchEvent::decode_with_metadata(&frame)),
            Encoding::Protobuf => drop(protobuf::WatchMessage::parse(&frame)),
            _ => drop(cbor::WatchMessage::parse(&frame)),
        }
    }
    if encoding == Encoding::Json {
        check_any_split(data, |pieces| {
            let mut events = JsonEvents::with_limit(limit);
            let mut found = Vec::new();
            for piece in pieces {
                events.feed(Bytes::copy_from_slice(piece));
                loop {
                    match events.next_event() {
                        Ok(None) => break,
                        Err(listwatch_wire::ReadEventError::Frame(error)) => return (found, Some(error)),
                        event => found.push(event),
                    }
                }
            }
            let end = events.finish().err();
            (found, end)
        });
    }
}

/// Decodes list bodies.
pub(crate) fn lists(mut data: &[u8]) {
    let limit = 1 + choose(&mut data, 256);
    check_any_split(data, |pieces| {
        let mut decoder = ListDecoder::with_limit(limit);
        let mut found = Vec::new();
        for piece in pieces {
            decoder.feed(Bytes::copy_from_slice(piece));
            loop {
                match decoder.next_object() {
                    Ok(Some((item, _))) => found.push(item),
                    Ok(None) => break,
                    Err(error) => return (found, Err(error)),
                }
            }
        }
        let end = decoder.finish();
        (found, end)
    });
}

/// Decodes WebSocket frames, and the headers before them.
pub(crate) fn websocket(mut data: &[u8]) {
    let role = [Role::Server, Role::Client][choose(&mut data, 2)];
    let limit = choose(&mut data, 256);
    check_any_split(data, |pieces| {
        let mut decoder = websocket::Decoder::with_limit(role, limit);
        let mut found = Vec::new();
        for piece in pieces {
            decoder.feed(piece);
            loop {
                match decoder.next_message() {
                    Ok(Some(message)) => found.push(message),
                    Ok(None) => break,
                    Err(error) => return (found, Err(error)),
                }
            }
        }
        (found, decoder.finish())
    });
    let mut discarding = websocket::Decoder::discarding();
    for piece in data.chunks(7) {
        discarding.feed(piece);
        while let Ok(Some(_)) = discarding.next_message() {}
    }
    let text = String::from_utf8_lossy(data);
    let _ = websocket::bearer_token(&text);
    let header = Some(&*text);
    let _ = websocket::Upgrade { key: header, version: Some("13"), origin: header, protocols: header }.check();
}

fn shape() -> ObjectShape {
    ObjectShape::new(true, Vec::new())
}

/// Parses query strings: printed options parse to equal options.
pub(crate) fn queries(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let query = Query::parse(&text);
    let _ = WriteOptions::from_query(&query);
    let Ok((options, extra)) = listwatch_wire::parse_list_options(&text) else { return };
    let _ = extra.timeout();
    let printed = listwatch_wire::print_list_options(&options);
    let again = listwatch_wire::parse_list_options(&printed).map(|(options, _)| options);
    assert_eq!(again, Ok(options.clone()), "{printed}");
    judge(&options);
}

/// Checks that any options give a request or a 4xx Status. The exception is an invalid resource
/// version of a get or a watch, which is a 500, as in kube-apiserver.
fn judge(options: &ListOptions) {
    let shape = shape();
    let statuses = [
        options.list(&shape).err(),
        options.watch(&shape, false).err(),
        options.watch(&shape, true).err(),
        options.get().err(),
    ];
    for status in statuses.into_iter().flatten() {
        let no_number = status.code == 500 && options.resource_version.revision().is_err();
        assert!((400..500).contains(&status.code) || no_number, "{options:?} gave {status:?}");
    }
}

/// Parses selectors: a printed selector parses to a selector with the same text.
pub(crate) fn selectors(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(selector) = LabelSelector::parse(&text) {
        let printed = selector.to_string();
        let again = LabelSelector::parse(&printed).map(|again| again.to_string());
        assert_eq!(again.as_ref(), Ok(&printed), "{text:?}");
        let _ = selector.matches(|_| None);
        let _ = selector.matches(|name| Some(name.to_owned().into()));
    }
    if let Ok(selector) = FieldSelector::parse(&text) {
        // `==` is printed as `=`, so the terms may sort differently the first time.
        let printed = FieldSelector::parse(&selector.to_string()).unwrap().to_string();
        let again = FieldSelector::parse(&printed).map(|again| again.to_string());
        assert_eq!(again.as_ref(), Ok(&printed), "{text:?}");
    }
    judge(&ListOptions { label_selector: text.clone().into_owned(), ..ListOptions::default() });
    judge(&ListOptions { field_selector: text.into_owned(), ..ListOptions::default() });
}

/// Decodes continue tokens, as base64 and as the JSON inside.
pub(crate) fn continue_tokens(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let inside = base64::Engine::encode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, data);
    for text in [&*text, &*inside] {
        if let Ok(token) = ContinueToken::decode(text) {
            let again = ContinueToken::decode(&token.encode());
            assert_eq!(again.as_ref(), Ok(&token), "{text:?}");
        }
        judge(&ListOptions { continue_token: text.to_owned(), limit: 5, ..ListOptions::default() });
    }
}

/// Negotiates `Accept` and `Content-Type` headers.
pub(crate) fn media_types(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for served in [Served::BUILTIN, Served::CUSTOM_JSON, Served { cbor: true, ..Served::CUSTOM_JSON }] {
        for purpose in [Purpose::Object, Purpose::List, Purpose::Watch] {
            match negotiate(Some(&text), purpose, &served) {
                Ok(found) => {
                    let streams = found.encoding.stream_media_type().is_some();
                    assert!(purpose != Purpose::Watch || streams, "{text:?} gave a watch of {found:?}");
                }
                Err(status) => assert_eq!(status.code, 406, "{text:?}"),
            }
        }
        assert!(negotiate_body(Some(&text), &served).err().is_none_or(|status| status.code == 415), "{text:?}");
        assert!(negotiate_patch(Some(&text), &served).err().is_none_or(|status| status.code == 415), "{text:?}");
    }
}

/// Decodes any bytes in an envelope of any kind.
pub(crate) fn protobuf(mut data: &[u8]) {
    let (kinds, pages) = (types::kinds().count(), types::kinds().count().div_ceil(256));
    let kind = choose(&mut data, 256) + 256 * choose(&mut data, pages);
    let (api_version, kind, _) = types::kinds().nth(kind % kinds).expect("a kind");
    let api_version = if api_version.is_empty() { "v1" } else { api_version };
    let mut names = Vec::new();
    push_field(&mut names, 1, api_version.as_bytes());
    push_field(&mut names, 2, kind.as_bytes());
    let mut body = protobuf::MAGIC.to_vec();
    push_field(&mut body, 1, &names);
    push_field(&mut body, 2, data);
    for body in [&body, data] {
        let _ = protobuf::WatchMessage::parse(&Bytes::copy_from_slice(body));
        let Ok(first) = protobuf::decode(body) else { continue };
        assert!(first.json.len() <= protobuf::json_limit_bytes(body.len()) + (4 << 10), "the limit holds");
        assert!(serde_json::from_slice::<listwatch_json::Value>(&first.json).is_ok(), "what was decoded is JSON");
        let encode = |json: &[u8]| {
            let body =
                protobuf::encode(&first.api_version, &first.kind, json).expect("what was decoded can be encoded");
            protobuf::decode(&body).expect("what was encoded can be decoded").json
        };
        let second = encode(&first.json);
        assert_eq!(encode(&second), second, "a second round changes nothing");
    }
}

fn push_field(out: &mut Vec<u8>, number: u8, bytes: &[u8]) {
    out.push(number << 3 | 2);
    let mut length = bytes.len();
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(bytes);
}

/// Encodes any text as the JSON of an object.
pub(crate) fn protobuf_encode(mut data: &[u8]) {
    let kinds = [("v1", "Pod"), ("v1", "Secret"), ("apps/v1", "Deployment"), ("v1", "Status"), ("v1", "Event")];
    let (api_version, kind) = kinds[choose(&mut data, kinds.len())];
    if let Ok(body) = protobuf::encode(api_version, kind, data) {
        // A deeply nested object, or a time out of range, is written but not read.
        let _ = protobuf::decode(&body);
    }
}

/// Decodes any bytes as CBOR.
pub(crate) fn cbor(data: &[u8]) {
    let _ = cbor::WatchMessage::parse(&Bytes::copy_from_slice(data));
    let Ok(first) = cbor::decode(data) else { return };
    assert!(first.len() <= 12 * data.len() + 8, "the limit holds");
    assert!(serde_json::from_slice::<listwatch_json::Value>(&first).is_ok(), "what was read is JSON");
    let again = |json: &[u8]| {
        let body = cbor::encode(json).expect("what was read can be written");
        cbor::decode(&body).expect("what was written can be read")
    };
    // Minus zero becomes zero: JSON's `-0` is an integer, as in Go.
    let second = again(&first);
    assert_eq!(again(&second), second, "another round changes nothing");
}

/// Encodes any text as CBOR.
pub(crate) fn cbor_encode(data: &[u8]) {
    let Ok(body) = cbor::encode(data) else { return };
    let mut frames = cbor::CborFrames::new();
    frames.feed(Bytes::from(body.clone()));
    let whole = frames.next_frame();
    // Deeper nesting may be written than is read.
    if !matches!(whole, Err(listwatch_wire::FrameError::Malformed { .. })) {
        assert_eq!(whole, Ok(Some(Bytes::from(body))), "what is written is one item");
    }
}
