//! `codec`: the costs per object and per event besides copying. The operations are scanning an
//! object's metadata, matching a selector, encoding and decoding watch frames, splitting a list
//! body, and encoding objects in protobuf and CBOR.
#![allow(missing_docs, reason = "criterion's macros make functions without a doc")]

use std::hint::black_box;
use std::time::Duration;

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use listwatch_benches::{key, shape, value};
use listwatch_meta::{Change, LabelSelector, Object, Revision};
use listwatch_wire::{EventKind, JsonFrames, ListBody, ListDecoder, ListMeta, ListStyle, WatchEvent, cbor, protobuf};

/// The number of events or items per pass over a stream.
const COUNT: usize = 256;

/// The number of bytes per read of a socket.
const READ_BYTES: usize = 16 << 10;

fn object(n: usize) -> Object {
    let revision = Revision::new(n as u64 + 1);
    Object::from_stored(key(n), revision, Change::Modified, &value(n, 7), &shape()).expect("an object")
}

fn objects(criterion: &mut Criterion) {
    let (value, shape) = (value(1, 7), shape());
    let mut group = criterion.benchmark_group("codec");
    group.throughput(Throughput::Bytes(value.len() as u64));
    group.bench_function("from_stored", |bencher| {
        bencher.iter(|| {
            Object::from_stored(key(1), Revision::new(8), Change::Added, black_box(&value), &shape).expect("an object")
        });
    });
    group.throughput(Throughput::Elements(1));
    let object = object(1);
    for text in ["app=shop", "tier in (back,edge),app=shop,!canary"] {
        let selector = LabelSelector::parse(text).expect("a selector");
        group.bench_function(format!("matches {text}"), |bencher| {
            bencher.iter(|| selector.matches(|name| black_box(&object).label(name)));
        });
    }
    group.finish();
}

fn streams(criterion: &mut Criterion) {
    let chunked = |bytes: Vec<u8>| -> Vec<Bytes> {
        let bytes = Bytes::from(bytes);
        (0..bytes.len()).step_by(READ_BYTES).map(|at| bytes.slice(at..bytes.len().min(at + READ_BYTES))).collect()
    };
    let mut group = criterion.benchmark_group("codec");
    let stream: Vec<u8> = (0..COUNT).flat_map(|n| object(n).frame().to_vec()).collect();
    group.throughput(Throughput::Bytes(stream.len() as u64));
    let chunks = chunked(stream);
    group.bench_function("read a watch", |bencher| {
        bencher.iter(|| {
            let (mut frames, mut events) = (JsonFrames::new(), 0);
            for chunk in &chunks {
                frames.feed(chunk.clone());
                while let Some(frame) = frames.next_frame().expect("whole frames") {
                    black_box(WatchEvent::decode_with_metadata(&frame).expect("an event"));
                    events += 1;
                }
            }
            assert_eq!(events, COUNT);
        });
    });

    let meta = ListMeta { api_version: "v1".to_owned(), kind: "ConfigMapList".to_owned(), ..ListMeta::default() };
    let body: Vec<u8> = ListBody::new(&meta, ListStyle::Typed, (0..COUNT).map(object)).flatten().collect();
    group.throughput(Throughput::Bytes(body.len() as u64));
    let chunks = chunked(body);
    group.bench_function("read a list", |bencher| {
        bencher.iter(|| {
            let (mut decoder, mut items) = (ListDecoder::new(), 0);
            for chunk in &chunks {
                decoder.feed(chunk.clone());
                while let Some(item) = decoder.next_item().expect("whole items") {
                    black_box(item);
                    items += 1;
                }
            }
            decoder.finish().expect("a whole list");
            assert_eq!(items, COUNT);
        });
    });
    group.finish();
}

/// Converts JSON to another encoding; the figure is per byte of JSON.
fn encodings(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("codec");
    let (config, pod) = (object(1), pod().as_bytes());
    for (what, kind, json) in [("ConfigMap", "ConfigMap", config.json_slice()), ("Pod", "Pod", pod)] {
        group.throughput(Throughput::Bytes(json.len() as u64));
        group.bench_function(format!("protobuf event of a {what}"), |bencher| {
            bencher.iter(|| protobuf::event_frame(EventKind::Modified, "v1", kind, black_box(json)).expect("a frame"));
        });
        let body = protobuf::encode("v1", kind, json).expect("an object of its kind");
        group.bench_function(format!("protobuf body of a {what} read"), |bencher| {
            bencher.iter(|| protobuf::decode(black_box(&body)).expect("an object"));
        });
        group.bench_function(format!("CBOR event of a {what}"), |bencher| {
            bencher.iter(|| cbor::event_frame(EventKind::Modified, black_box(json)).expect("a frame"));
        });
        let body = cbor::encode(json).expect("JSON");
        group.bench_function(format!("CBOR body of a {what} read"), |bencher| {
            bencher.iter(|| cbor::decode(black_box(&body)).expect("an object"));
        });
    }
    let objects: Vec<Object> = (0..COUNT).map(object).collect();
    let meta = ListMeta { api_version: "v1".to_owned(), kind: "ConfigMapList".to_owned(), ..ListMeta::default() };
    group.throughput(Throughput::Bytes(objects.iter().map(|object| object.json_slice().len() as u64).sum()));
    for (what, kept_bytes) in [("once", usize::MAX), ("twice", 0)] {
        group.bench_function(format!("protobuf list encoded {what}"), |bencher| {
            bencher.iter(|| {
                let items = objects.iter().cloned();
                let body = protobuf::ListBody::with_limits(&meta, items, listwatch_wire::list::CHUNK_BYTES, kept_bytes);
                body.expect("a list").map(|chunk| chunk.expect("a chunk").len()).sum::<usize>()
            });
        });
    }
    group.finish();
}

/// A Pod from a kube-apiserver, with many small and deeply nested members. The Pod is in the data
/// of the protobuf tests: one line with its name, one with hexadecimal and one with JSON.
fn pod() -> &'static str {
    let golden = include_str!("../../crates/wire/tests/it/protobuf/golden.txt");
    let block = golden.split("\n\n").find_map(|block| block.strip_prefix("pod\n")).expect("a golden Pod");
    block.lines().nth(1).expect("its JSON")
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(50).warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(2));
    targets = objects, streams, encodings
}
criterion_main!(benches);
