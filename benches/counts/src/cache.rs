//! Hot paths of the cache: applied events, frames, lists. No store, no HTTP.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use listwatch_benches::feed::{Feed, fed};
use listwatch_benches::{filled, runtime, value};
use listwatch_cacher::{Cacher, Delivery, Scope, Watcher};
use listwatch_meta::{ListOptions, ObjectShape, ResourceVersion, SelectableField};
use listwatch_wire::{ListBody, ListMeta, ListStyle};

/// The number of objects that are updated round-robin.
const OBJECTS: usize = 500;

/// The number of events that are delivered at once, within the queue of a watcher.
const BURST: u64 = 64;

/// An object of about 1 KiB, or the smallest possible one, with its own node.
fn object(n: usize, small: bool) -> Bytes {
    let node = format!("\"spec\":{{\"nodeName\":\"node-{n}\"}},\"metadata\":{{\"labels\":{{\"app\":\"app-{n}\"");
    if small {
        return format!("{{{node}}},\"name\":\"map-{n:06}\"}}}}").into();
    }
    let text = String::from_utf8(value(n, 0)).expect("text");
    text.replace("\"metadata\":{", &format!("{node},\"tier\":\"front\"}},"))
        .replace(",\"labels\":{\"app\":\"shop\"", ",\"was\":{\"x\":\"\"")
        .into()
}

async fn open(cacher: &Cacher, options: &ListOptions) -> Watcher {
    let request = options.watch(cacher.shape(), false).expect("valid options");
    let deadline = tokio::time::Instant::now() + Duration::from_secs(36_000);
    cacher.watch(&Scope::All, &request, deadline).await.expect("a watch")
}

/// Applies this number of events. Each watcher in the range that `interested` returns takes its
/// frame.
fn run(turns: u64, small: bool, watches: &[ListOptions], interested: fn(usize, usize) -> std::ops::Range<usize>) {
    let shape = Arc::new(ObjectShape::new(true, vec![SelectableField::string("spec.nodeName")]));
    runtime().block_on(async {
        let feed = Feed::new(0, |_| Vec::new());
        let cacher = fed(&feed, shape, &["spec.nodeName"]).await;
        let mut open_watches = Vec::new();
        for options in watches {
            let mut watcher = open(&cacher, options).await;
            assert!(watcher.try_next().is_none(), "nothing happened yet");
            open_watches.push(watcher);
        }
        let values: Vec<Bytes> = (0..OBJECTS).map(|n| object(n, small)).collect();
        let (mut revision, mut left) = (1, turns);
        while left > 0 {
            let (first, burst) = (revision, left.min(BURST));
            let items: Vec<_> = (0..burst)
                .map(|_| {
                    revision += 1;
                    let n = revision as usize % OBJECTS;
                    feed.update(n, revision, values[n].clone())
                })
                .collect();
            feed.push(items);
            while cacher.revision().get() < revision {
                tokio::task::yield_now().await;
            }
            for happened in first + 1..=revision {
                for watcher in &mut open_watches[interested(happened as usize % OBJECTS, watches.len())] {
                    let Some(Delivery::Event(event)) = watcher.try_next() else { panic!("an event") };
                    black_box(event.json_frame());
                }
            }
            left -= burst;
        }
    });
}

fn everything() -> ListOptions {
    ListOptions { watch: true, resource_version: ResourceVersion::new("1"), ..ListOptions::default() }
}

pub(crate) fn apply_small(turns: u64) {
    run(turns, true, &[], |_, _| 0..0);
}

pub(crate) fn apply(turns: u64) {
    run(turns, false, &[], |_, _| 0..0);
}

pub(crate) fn deliver(turns: u64) {
    run(turns, false, &vec![everything(); 100], |_, watchers| 0..watchers);
}

pub(crate) fn deliver_by_label(turns: u64) {
    let selected = ListOptions { label_selector: "tier=front,app".to_owned(), ..everything() };
    run(turns, false, &vec![selected; 100], |_, watchers| 0..watchers);
}

pub(crate) fn deliver_by_node(turns: u64) {
    let of_node = |n| ListOptions { field_selector: format!("spec.nodeName=node-{n}"), ..everything() };
    let watches: Vec<ListOptions> = (0..1_000).map(of_node).collect();
    run(turns, false, &watches, |n, _| n..n + 1);
}

pub(crate) fn list(turns: u64) {
    runtime().block_on(async {
        let (_store, cacher) = filled(1_000).await;
        let cached = ListOptions { resource_version: ResourceVersion::new("0"), ..ListOptions::default() };
        let request = cached.list(cacher.shape()).expect("valid options");
        for _ in 0..turns {
            let list = cacher.list(&Scope::All, &request).await.expect("a list");
            let meta = ListMeta {
                api_version: "v1".to_owned(),
                kind: "ConfigMapList".to_owned(),
                resource_version: list.revision.get().to_string(),
                ..ListMeta::default()
            };
            for chunk in ListBody::new(&meta, ListStyle::Typed, list.items) {
                black_box(chunk);
            }
        }
    });
}
