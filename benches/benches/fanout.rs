//! `fanout`: the cost of one event that N watchers of the cache receive, from the write to a memory
//! store to the last watcher's frame. No HTTP, TLS or sockets.
#![allow(missing_docs, reason = "criterion's macros make functions without a doc")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use listwatch_benches::{filled, key, runtime, value};
use listwatch_cacher::{Delivery, Scope, Watcher};
use listwatch_meta::{ListOptions, ResourceVersion};
use listwatch_storage::Storage as _;

/// Writes `turns` times. Every watcher takes each event.
fn deliver(watchers: usize, options: &ListOptions, turns: u64) -> Duration {
    runtime().block_on(async {
        let (store, cacher) = filled(100).await;
        let mut revision = store.get(&key(0)).await.expect("a read").0.expect("object 0").modified;
        // The watch begins at the current revision, without initial events.
        let present = store.current_revision().await.expect("a read");
        let options = ListOptions { resource_version: ResourceVersion::from(present), ..options.clone() };
        let request = options.watch(cacher.shape(), false).expect("valid options");
        let deadline = tokio::time::Instant::now() + Duration::from_secs(3_600);
        let mut open: Vec<Watcher> = Vec::with_capacity(watchers);
        for _ in 0..watchers {
            open.push(cacher.watch(&Scope::All, &request, deadline).await.expect("a watch"));
        }
        let values: Vec<_> = (0..turns).map(|turn| value(0, turn)).collect();
        let start = Instant::now();
        for value in values {
            revision = store.update(&key(0), revision, value.into(), None).await.expect("an update");
            for watcher in &mut open {
                match watcher.next().await {
                    Some(Delivery::Event(event)) => assert!(!black_box(event.json_frame()).is_empty()),
                    other => panic!("an event, not {other:?}"),
                }
            }
        }
        start.elapsed()
    })
}

fn fanout(criterion: &mut Criterion) {
    let everything = ListOptions { watch: true, ..ListOptions::default() };
    let selected = ListOptions { label_selector: "app=shop,tier!=edge".to_owned(), ..everything.clone() };
    let mut group = criterion.benchmark_group("fanout");
    for watchers in [1, 100, 1_000] {
        group.throughput(Throughput::Elements(watchers as u64));
        group.bench_with_input(BenchmarkId::new("everything", watchers), &watchers, |bencher, &watchers| {
            bencher.iter_custom(|turns| deliver(watchers, &everything, turns));
        });
        group.bench_with_input(BenchmarkId::new("by label", watchers), &watchers, |bencher, &watchers| {
            bencher.iter_custom(|turns| deliver(watchers, &selected, turns));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(3));
    targets = fanout
}
criterion_main!(benches);
