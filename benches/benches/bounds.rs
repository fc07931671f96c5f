//! `bounds`: the memory of a cache and of an idle watcher, counted by the allocator. Measures also
//! the cost of stalled watchers for the others, in six scenarios. Prints tables. The sizes are
//! small unless `cargo bench` runs it.
//!
//! Times are CPU times of the one thread that does all work. Events are spaced on a virtual clock,
//! so nothing waits and other load does not affect the result. A latency is the thread's CPU time
//! from the write until the last healthy watcher has its frame.
#![allow(unsafe_code, reason = "an allocator that counts has to be one; it only passes on")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};
use std::time::Duration;

use listwatch_benches::feed::{Feed, fed};
use listwatch_benches::{filled, key, measured, value};
use listwatch_cacher::{Cacher, Delivery, Scope, Watcher};
use listwatch_meta::{ListOptions, ObjectShape, ResourceVersion, Revision};
use listwatch_storage::{MemoryStorage, Storage as _};
use rustix::time::{ClockId, clock_gettime};

/// The system's allocator with a count of the allocated bytes.
struct Counting;

static HELD: AtomicIsize = AtomicIsize::new(0);

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size() as isize, Relaxed);
        // SAFETY: the caller fulfills the same requirements as for the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size() as isize, Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn paused() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime")
}

fn main() {
    let asked = |flag: &str| std::env::args().any(|argument| argument == flag);
    if asked("--list") {
        // The answer to a test runner's `--list`: the whole program is one test.
        if !asked("--ignored") {
            println!("bounds: test");
        }
        return;
    }
    let small = !measured();
    weigh_cache("1 KiB", if small { 100 } else { 20_000 }, |n| value(n, 0));
    weigh_cache("10 KiB", if small { 100 } else { 5_000 }, |n| {
        let text = String::from_utf8(value(n, 0)).expect("text");
        text.replace("\"payload\":\"", &format!("\"payload\":\"{}", "0123456789abcdef".repeat(580))).into_bytes()
    });
    weigh_watchers(if small { 100 } else { 10_000 });
    println!();
    for rate in [100, 1_000] {
        for stall in [Stall::Once, Stall::ForGood, Stall::Reconnecting] {
            compare(rate, stall, small);
        }
    }
}

// ------------------------------------------------------------------------------------- memory

/// Fills a cache from a store without memory, and prints the allocated bytes per byte of JSON.
fn weigh_cache(name: &str, objects: usize, make: fn(usize) -> Vec<u8>) {
    let bytes: usize = (0..objects).map(|n| make(n).len()).sum();
    let (held, cacher, runtime) = {
        let runtime = paused();
        let feed = Feed::new(objects, make);
        let before = HELD.load(Relaxed);
        let cacher = runtime.block_on(fed(&feed, Arc::new(ObjectShape::new(true, Vec::new())), &[]));
        (HELD.load(Relaxed) - before, cacher, runtime)
    };
    assert_eq!(cacher.stats().objects, objects);
    println!(
        "{objects:>6} objects of {name} ({} bytes of JSON each): {} bytes held each, {:.3} of the JSON; by its own count {:.3}",
        bytes / objects,
        held as usize / objects,
        held as f64 / bytes as f64,
        cacher.stats().object_bytes as f64 / bytes as f64,
    );
    drop(runtime);
}

fn weigh_watchers(count: usize) {
    let runtime = paused();
    runtime.block_on(async {
        let (_store, cacher) = filled(100).await;
        for (name, options) in [
            ("of everything", ListOptions::default()),
            (
                "of one object",
                ListOptions { field_selector: "metadata.name=map-000007".to_owned(), ..ListOptions::default() },
            ),
            ("of a label", ListOptions { label_selector: "app=shop,tier!=edge".to_owned(), ..ListOptions::default() }),
        ] {
            let before = HELD.load(Relaxed);
            let mut open = Vec::with_capacity(count);
            let own = HELD.load(Relaxed);
            for _ in 0..count {
                open.push(watch(&cacher, cacher.revision(), &options).await);
            }
            let inside = HELD.load(Relaxed) - own;
            println!(
                "{count:>6} idle watchers {name}: {} bytes each in the cache, {} in the handle",
                inside as usize / count,
                (own - before) as usize / count
            );
        }
    });
}

async fn watch(cacher: &Cacher, after: Revision, options: &ListOptions) -> Watcher {
    let options = ListOptions { watch: true, resource_version: ResourceVersion::from(after), ..options.clone() };
    let request = options.watch(cacher.shape(), false).expect("valid options");
    let deadline = tokio::time::Instant::now() + Duration::from_secs(360_000);
    let mut watcher = cacher.watch(&Scope::All, &request, deadline).await.expect("a watch");
    // The first poll makes the watcher live, like a served one.
    assert!(std::future::poll_fn(|cx| std::task::Poll::Ready(poll(&mut watcher, cx).is_none())).await);
    watcher
}

fn poll(watcher: &mut Watcher, cx: &mut std::task::Context<'_>) -> Option<Delivery> {
    match futures_core::Stream::poll_next(std::pin::Pin::new(watcher), cx) {
        std::task::Poll::Ready(delivery) => delivery,
        std::task::Poll::Pending => None,
    }
}

// ------------------------------------------------------------------------------------- stalls

#[derive(Clone, Copy, Debug)]
enum Stall {
    /// Reads nothing during the middle half of the time.
    Once,
    /// Stops reading permanently at some time.
    ForGood,
    /// Reconnects every 500 ms, resumes, takes the missed events, and stalls again.
    Reconnecting,
}

const HEALTHY: usize = 100;
const STALLED: usize = 10;

/// Compares the healthy watchers' latencies with and without ten stalled watchers, in alternating
/// runs.
fn compare(rate: u64, stall: Stall, small: bool) {
    let (rounds, seconds) = if small { (1, 2) } else { (12, 20_000 / rate) };
    let (mut without, mut with) = (Vec::new(), Vec::new());
    let mut ratios = Vec::new();
    for round in 0..rounds {
        // The second run finds warmer caches, so the order alternates.
        let (first, second) = if round % 2 == 0 { (None, Some(stall)) } else { (Some(stall), None) };
        let (mut first_run, mut second_run) = (latencies(rate, first, seconds), latencies(rate, second, seconds));
        let (plain, stalled) =
            if round % 2 == 0 { (&mut first_run, &mut second_run) } else { (&mut second_run, &mut first_run) };
        ratios.push(quantile(stalled, 0.99) / quantile(plain, 0.99));
        without.append(plain);
        with.append(stalled);
    }
    ratios.sort_by(f64::total_cmp);
    println!(
        "{rate:>5} events/s, {STALLED} watchers stall {stall:?}: p50 {:.1} µs, without {:.1}; p99 {:.1} µs, without {:.1}; \
         p99 ratio of {rounds} rounds: median {:.3}, from {:.3} to {:.3}",
        quantile(&mut with, 0.5),
        quantile(&mut without, 0.5),
        quantile(&mut with, 0.99),
        quantile(&mut without, 0.99),
        ratios[ratios.len() / 2],
        ratios[0],
        ratios[ratios.len() - 1],
    );
}

fn quantile(samples: &mut [f64], quantile: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[((samples.len() - 1) as f64 * quantile) as usize]
}

/// The CPU time of this thread in microseconds.
fn cpu_micros() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

fn latencies(rate: u64, stall: Option<Stall>, seconds: u64) -> Vec<f64> {
    paused().block_on(async {
        let (store, cacher): (Arc<MemoryStorage>, Cacher) = filled(100).await;
        let mut revision = store.get(&key(0)).await.expect("a read").0.expect("object 0").modified;
        let everything = ListOptions::default();
        let mut healthy = Vec::new();
        for _ in 0..HEALTHY {
            healthy.push(watch(&cacher, cacher.revision(), &everything).await);
        }
        let tasks = tokio::task::LocalSet::new();
        tasks
            .run_until(async {
                if let Some(stall) = stall {
                    for _ in 0..STALLED {
                        let _task = tokio::task::spawn_local(stalled(stall, cacher.clone(), rate, seconds));
                    }
                }
                let step = Duration::from_secs(1) / rate as u32;
                let mut samples = Vec::new();
                for turn in 0..rate * seconds {
                    tokio::time::sleep(step).await;
                    let value = value(0, turn).into();
                    let start = cpu_micros();
                    revision = store.update(&key(0), revision, value, None).await.expect("an update");
                    for watcher in &mut healthy {
                        match watcher.next().await {
                            Some(Delivery::Event(event)) => drop(black_box(event.json_frame())),
                            other => panic!("an event, not {other:?}"),
                        }
                    }
                    // The first hundred writes are a warm-up.
                    if turn >= 100 {
                        samples.push(cpu_micros() - start);
                    }
                }
                samples
            })
            .await
    })
}

/// The behavior of one stalled watcher.
async fn stalled(stall: Stall, cacher: Cacher, rate: u64, seconds: u64) {
    let mut last = cacher.revision();
    let mut watcher = watch(&cacher, last, &ListOptions::default()).await;
    let quarter = Duration::from_millis(seconds * 250);
    // Offset from the writes, so that both do not share a tick.
    let first = tokio::time::Instant::now() + Duration::from_micros(500_000 + 500_000 / rate);
    let mut reconnects = tokio::time::interval_at(first, Duration::from_millis(500));
    match stall {
        Stall::ForGood => std::future::pending::<()>().await,
        Stall::Once => {
            let asleep = tokio::time::Instant::now() + quarter;
            while let Ok(Some(delivery)) = tokio::time::timeout_at(asleep, watcher.next()).await {
                black_box(delivery);
            }
            tokio::time::sleep(2 * quarter).await;
            while let Some(delivery) = watcher.next().await {
                black_box(delivery);
            }
        }
        Stall::Reconnecting => loop {
            reconnects.tick().await;
            drop(watcher);
            watcher = {
                let options = ListOptions {
                    watch: true,
                    resource_version: ResourceVersion::from(last),
                    ..ListOptions::default()
                };
                let request = options.watch(cacher.shape(), false).expect("valid options");
                let deadline = tokio::time::Instant::now() + Duration::from_secs(360_000);
                cacher.watch(&Scope::All, &request, deadline).await.expect("a watch")
            };
            while let Some(Delivery::Event(event)) = watcher.try_next() {
                last = event.object().revision();
                black_box(event.json_frame());
            }
        },
    }
}
