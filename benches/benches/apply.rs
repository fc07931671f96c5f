//! `apply`: the number of events per second that one cache applies, without watchers and with
//! selective ones. Measures also the cost of a delivery, and shows that requesting a list costs one
//! step for any size.
//!
//! The store is a `Feed`. The measurement includes scanning the object, state, history and
//! dispatch, and for receiving watchers the push, the wake-up and the frame.
#![allow(missing_docs, reason = "criterion's macros make functions without a doc")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use listwatch_benches::feed::{Feed, fed};
use listwatch_benches::{measured, runtime, value};
use listwatch_cacher::{Cacher, Delivery, Scope, Watcher};
use listwatch_meta::{ListOptions, ObjectShape, ResourceVersion, SelectableField};
use rustix::time::{ClockId, clock_gettime};

/// The number of events that are delivered at once, like by a store under load.
const BURST: u64 = 512;

#[derive(Clone, Copy)]
enum Watchers {
    /// No watchers.
    None,
    /// This number of watchers, each with its own label value.
    OfLabels(usize),
    /// This number of watchers, each of one node.
    OfNodes(usize),
    /// This number of watchers of all objects.
    OfAll(usize),
}

fn shape() -> Arc<ObjectShape> {
    Arc::new(ObjectShape::new(true, vec![SelectableField::string("spec.nodeName")]))
}

/// An object of about 1 KiB, or the smallest possible one.
fn object(n: usize, small: bool) -> Bytes {
    let node = format!("\"spec\":{{\"nodeName\":\"node-{n}\"}},\"metadata\":{{\"labels\":{{\"app\":\"app-{n}\"}}");
    if small {
        return format!("{{{node},\"name\":\"map-{n:06}\"}}}}").into();
    }
    let text = String::from_utf8(value(n, 0)).expect("text");
    text.replace("\"metadata\":{", &format!("{node},"))
        .replace(",\"labels\":{\"app\":\"shop\"", ",\"was\":{\"x\":\"\"")
        .into()
}

async fn open(cacher: &Cacher, watchers: Watchers) -> Vec<Watcher> {
    let all = ListOptions { watch: true, resource_version: ResourceVersion::new("1"), ..ListOptions::default() };
    let options: Vec<ListOptions> = match watchers {
        Watchers::None => Vec::new(),
        Watchers::OfLabels(count) => {
            (0..count).map(|n| ListOptions { label_selector: format!("app=app-{n}"), ..all.clone() }).collect()
        }
        Watchers::OfNodes(count) => (0..count)
            .map(|n| ListOptions { field_selector: format!("spec.nodeName=node-{n}"), ..all.clone() })
            .collect(),
        Watchers::OfAll(count) => vec![all; count],
    };
    let deadline = tokio::time::Instant::now() + Duration::from_secs(3_600);
    let mut open = Vec::new();
    for options in options {
        let request = options.watch(cacher.shape(), false).expect("valid options");
        let mut watcher = cacher.watch(&Scope::All, &request, deadline).await.expect("a watch");
        assert!(watcher.try_next().is_none(), "nothing happened yet");
        open.push(watcher);
    }
    open
}

/// The CPU time of this thread, which does all work. Other load on the machine does not affect it.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Applies at least `turns` events to `objects` objects. Every watcher takes its events.
fn apply(turns: u64, objects: usize, small: bool, watchers: Watchers) -> Duration {
    runtime().block_on(async {
        let feed = Feed::new(0, |_| Vec::new());
        let cacher = fed(&feed, shape(), &["spec.nodeName"]).await;
        let mut open = open(&cacher, watchers).await;
        let values: Vec<Bytes> = (0..objects).map(|n| object(n, small)).collect();
        let (mut revision, mut spent, mut taken, mut done) = (1, Duration::ZERO, 0, 0);
        let queue = if matches!(watchers, Watchers::OfAll(_)) { 64 } else { BURST };
        while done < turns {
            let first = revision;
            let items: Vec<_> = (0..queue)
                .map(|_| {
                    revision += 1;
                    let n = revision as usize % objects;
                    feed.update(n, revision, values[n].clone())
                })
                .collect();
            let start = cpu();
            feed.push(items);
            while cacher.revision().get() < revision {
                tokio::task::yield_now().await;
            }
            for happened in first + 1..=revision {
                let n = happened as usize % objects;
                let interested = match watchers {
                    Watchers::None => 0..0,
                    Watchers::OfLabels(count) | Watchers::OfNodes(count) => n.min(count)..(n + 1).min(count),
                    Watchers::OfAll(count) => 0..count,
                };
                for watcher in &mut open[interested] {
                    let Some(Delivery::Event(event)) = watcher.try_next() else { panic!("an event") };
                    black_box(event.json_frame());
                    taken += 1;
                }
            }
            spent += cpu() - start;
            done += queue;
        }
        assert!(
            matches!(watchers, Watchers::None) || taken > 0 || done < objects as u64,
            "watchers get what they want"
        );
        spent.mul_f64(turns as f64 / done as f64)
    })
}

fn benches_of_apply(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("apply");
    group.throughput(Throughput::Elements(1));
    let many = if measured() { 10_000 } else { 100 };
    for (name, objects, small, watchers) in [
        ("no watchers, 100 B", 1_000, true, Watchers::None),
        ("no watchers, 1 KiB", 1_000, false, Watchers::None),
        ("100 of a label each", 1_000, false, Watchers::OfLabels(100)),
        ("1 of a node", many, false, Watchers::OfNodes(1)),
        ("10,000 of a node each", many, false, Watchers::OfNodes(many)),
    ] {
        group.bench_function(name, |bencher| bencher.iter_custom(|turns| apply(turns, objects, small, watchers)));
    }
    group.finish();

    let mut group = criterion.benchmark_group("deliver");
    for watchers in [100, 1_000] {
        group.throughput(Throughput::Elements(watchers as u64));
        group.bench_function(BenchmarkId::new("everything", watchers), |bencher| {
            bencher.iter_custom(|turns| apply(turns, 1_000, false, Watchers::OfAll(watchers)));
        });
    }
    group.finish();

    let mut group = criterion.benchmark_group("ask for a list");
    for objects in if measured() { [1_000, 100_000] } else { [10, 100] } {
        let runtime = runtime();
        let feed = Feed::new(objects, |n| value(n, 0));
        let cacher = runtime.block_on(fed(&feed, shape(), &[]));
        let cached = ListOptions { resource_version: ResourceVersion::new("0"), ..ListOptions::default() };
        let request = cached.list(cacher.shape()).expect("valid options");
        group.bench_function(BenchmarkId::new("of objects", objects), |bencher| {
            bencher.iter(|| runtime.block_on(cacher.list(&Scope::All, &request)).expect("a list"));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(2));
    targets = benches_of_apply
}
criterion_main!(benches);
