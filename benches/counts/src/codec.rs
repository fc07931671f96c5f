//! Hot paths on bytes alone: the costs per object and event besides copying.

use std::hint::black_box;

use bytes::Bytes;
use listwatch_benches::{key, shape, value};
use listwatch_meta::{Change, LabelSelector, Object, Revision};
use listwatch_wire::{EventKind, JsonFrames, ListBody, ListDecoder, ListMeta, ListStyle, WatchEvent, protobuf};

/// The number of bytes per read of a socket.
const READ_BYTES: usize = 16 << 10;

/// The number of events or items per stream.
const STREAM: u64 = 256;

fn object(n: usize) -> Object {
    let revision = Revision::new(n as u64 + 1);
    Object::from_stored(key(n), revision, Change::Modified, &value(n, 7), &shape()).expect("an object")
}

pub(crate) fn scan(turns: u64) {
    let (value, shape) = (value(1, 7), shape());
    for _ in 0..turns {
        let object = Object::from_stored(key(1), Revision::new(8), Change::Added, black_box(&value), &shape);
        black_box(object.expect("an object"));
    }
}

pub(crate) fn match_labels(turns: u64) {
    let object = object(1);
    let selector = LabelSelector::parse("tier in (back,edge),app=shop,!canary").expect("a selector");
    for _ in 0..turns {
        black_box(selector.matches(|name| black_box(&object).label(name)));
    }
}

pub(crate) fn protobuf_event(turns: u64) {
    let object = object(1);
    for _ in 0..turns {
        let frame = protobuf::event_frame(EventKind::Modified, "v1", "ConfigMap", black_box(object.json_slice()));
        black_box(frame.expect("a frame"));
    }
}

fn reads(bytes: Vec<u8>) -> Vec<Bytes> {
    let bytes = Bytes::from(bytes);
    (0..bytes.len()).step_by(READ_BYTES).map(|at| bytes.slice(at..bytes.len().min(at + READ_BYTES))).collect()
}

/// The number of streams for at least `turns` events. The constant cost per stream cancels out.
fn streams(turns: u64) -> u64 {
    turns.div_ceil(STREAM)
}

pub(crate) fn read_watch(turns: u64) {
    let chunks = reads((0..STREAM as usize).flat_map(|n| object(n).frame().to_vec()).collect());
    for _ in 0..streams(turns) {
        let mut frames = JsonFrames::new();
        for chunk in &chunks {
            frames.feed(chunk.clone());
            while let Some(frame) = frames.next_frame().expect("whole frames") {
                black_box(WatchEvent::decode_with_metadata(&frame).expect("an event"));
            }
        }
    }
}

pub(crate) fn read_list(turns: u64) {
    let meta = ListMeta { api_version: "v1".to_owned(), kind: "ConfigMapList".to_owned(), ..ListMeta::default() };
    let items = (0..STREAM as usize).map(object);
    let chunks = reads(ListBody::new(&meta, ListStyle::Typed, items).flatten().collect());
    for _ in 0..streams(turns) {
        let mut decoder = ListDecoder::new();
        for chunk in &chunks {
            decoder.feed(chunk.clone());
            while let Some(item) = decoder.next_item().expect("whole items") {
                black_box(item);
            }
        }
        decoder.finish().expect("a whole list");
    }
}
