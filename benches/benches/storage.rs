//! `storage`: the number of acknowledged writes per second of N concurrent writers. The memory
//! store shows the cost of the contract alone. The embedded store acknowledges a write after it is
//! on stable storage; waiting writers share a commit.
#![allow(missing_docs, reason = "criterion's macros make functions without a doc")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use listwatch_benches::{key, value};
use listwatch_storage::{EmbeddedOptions, EmbeddedStorage, MemoryStorage, Storage};

/// Creates `writes` objects from `writers` tasks. Each task waits for a write before the next one.
async fn create(store: Arc<dyn Storage>, writers: usize, writes: usize) -> Duration {
    let next = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let tasks: Vec<_> = (0..writers)
        .map(|_| {
            let (store, next) = (store.clone(), next.clone());
            tokio::spawn(async move {
                loop {
                    let n = next.fetch_add(1, Relaxed);
                    if n >= writes {
                        return;
                    }
                    store.create(&key(n), value(n, 0).into(), None).await.expect("a new key");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("a writer");
    }
    start.elapsed()
}

fn storage(criterion: &mut Criterion) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let mut group = criterion.benchmark_group("storage");
    group.throughput(Throughput::Elements(1));
    for writers in [1, 32] {
        group.bench_function(BenchmarkId::new("memory", writers), |bencher| {
            bencher.iter_custom(|writes| runtime.block_on(create(MemoryStorage::new(), writers, writes as usize)));
        });
        group.bench_function(BenchmarkId::new("embedded", writers), |bencher| {
            bencher.iter_custom(|writes| {
                let dir = tempfile::tempdir().expect("a directory");
                runtime.block_on(async {
                    let store =
                        EmbeddedStorage::open(dir.path().join("store"), EmbeddedOptions::default()).expect("a store");
                    let took = create(store.clone(), writers, writes as usize).await;
                    store.close().await;
                    took
                })
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(3));
    targets = storage
}
criterion_main!(benches);
