//! Soak test: many watchers stall, leave, resume and are disconnected at random, during steady
//! writes. In the end each watcher's copy must equal the store. The example `soak` runs in real
//! time, the test `soak` on a virtual clock.
#![allow(unreachable_pub, reason = "part of a test and of an example")]

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use listwatch_cacher::{Cacher, CacherStats, Delivery, Limits, ResourceConfig, Scope, Watcher};
use listwatch_meta::{Change, Key, KeyRange, ListOptions, ObjectShape, ResourceVersion, SelectableField};
use listwatch_storage::{ListQuery, MemoryStorage, Retention, Storage};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// The size and duration of a soak.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub time: Duration,
    pub watchers: usize,
    pub writes_per_second: u64,
    pub objects: usize,
    pub seed: u64,
}

/// Counts of all watchers together.
#[derive(Debug, Default)]
pub struct Tally {
    pub writes: AtomicU64,
    pub events: AtomicU64,
    pub stalls: AtomicU64,
    pub resumed: AtomicU64,
    pub begun: AtomicU64,
    pub expired: AtomicU64,
}

const NAMESPACES: usize = 100;
const NODES: usize = 1_000;

/// A SplitMix64 generator, so that a failure can be replayed.
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn millis(&mut self, bound: usize) -> Duration {
        Duration::from_millis(self.below(bound) as u64)
    }
}

/// The selection of one watcher.
#[derive(Clone, Debug)]
struct Wanted {
    namespace: Option<String>,
    node: Option<String>,
    app: Option<&'static str>,
}

impl Wanted {
    /// Draws a selection: 2 % everything, 20 % a namespace or a label, the others one node.
    fn draw(random: &mut Random) -> Self {
        let nothing = Wanted { namespace: None, node: None, app: None };
        match random.below(100) {
            0..2 => nothing,
            2..17 => Wanted { namespace: Some(namespace(random.below(NAMESPACES))), ..nothing },
            17..22 => {
                Wanted { namespace: Some(namespace(random.below(NAMESPACES))), app: Some(app(random)), ..nothing }
            }
            _ => Wanted { node: Some(format!("node-{}", random.below(NODES))), ..nothing },
        }
    }

    fn sees(&self, namespace: &str, json: &str) -> bool {
        self.namespace.as_deref().is_none_or(|wanted| wanted == namespace)
            && self.node.as_deref().is_none_or(|wanted| json.contains(&format!("\"nodeName\":\"{wanted}\"")))
            && self.app.is_none_or(|wanted| json.contains(&format!("\"app\":\"{wanted}\"")))
    }
}

fn namespace(n: usize) -> String {
    format!("team-{n}")
}

fn app(random: &mut Random) -> &'static str {
    ["shop", "bank", "mail"][random.below(3)]
}

fn key(n: usize) -> Key {
    Key::new("pods", Some(&namespace(n % NAMESPACES)), &format!("pod-{n:06}")).expect("a valid name")
}

fn value(n: usize, random: &mut Random) -> String {
    let (app, node, padding) = (app(random), random.below(NODES), "x".repeat(600));
    format!(
        r#"{{"metadata":{{"name":"pod-{n:06}","labels":{{"app":"{app}"}}}},"spec":{{"nodeName":"node-{node}","padding":"{padding}"}}}}"#
    )
}

/// The bounds of the cache under test: a window that long stalls exceed, and frequent bookmarks, so
/// that the end is reached soon.
fn limits() -> Limits {
    Limits {
        history_age: Duration::from_secs(20),
        watcher_queue_events_max: 32,
        bookmark_interval: Duration::from_secs(2),
        audit_interval: Some(Duration::from_secs(30)),
        ready_wait: Duration::from_secs(60),
        ..Limits::default()
    }
}

/// Runs the soak; `look` is called once a second.
///
/// # Errors
/// The first watcher whose copy differs from the store, or a cache that still holds memory after its end.
pub async fn run(plan: Plan, tally: Arc<Tally>, mut look: impl FnMut(Duration, &CacherStats)) -> Result<(), String> {
    // Large enough for a starved process, and soon in the steady state.
    let retention = Retention { age: Duration::from_secs(30), revisions: 20_000, bytes: 64 << 20 };
    let store = MemoryStorage::with_retention(retention);
    let mut random = Random(plan.seed);
    for n in 0..plan.objects {
        store.create(&key(n), value(n, &mut random).into(), None).await.map_err(|error| error.to_string())?;
    }
    let config = ResourceConfig {
        name: "pods".to_owned(),
        prefix: "pods".to_owned(),
        shape: Arc::new(ObjectShape::new(true, vec![SelectableField::string("spec.nodeName")])),
        indexed_fields: vec!["spec.nodeName".to_owned()],
        limits: limits(),
    };
    let cacher = Cacher::start(store.clone(), config);
    cacher.wait_ready().await.map_err(|error| error.to_string())?;

    // Zero while the soak runs, then the revision that every watcher must reach.
    let (last, end) = watch::channel(0_u64);
    let mut readers = Vec::new();
    for _ in 0..plan.watchers {
        let reader = Reader {
            cacher: cacher.clone(),
            wanted: Wanted::draw(&mut random),
            random: Random(random.next()),
            copy: HashMap::new(),
            seen: 0,
            tally: tally.clone(),
            end: end.clone(),
        };
        readers.push(tokio::spawn(reader.run()));
    }

    let begun = Instant::now();
    let mut looked_at = begun;
    let per_write = Duration::from_secs(1) / u32::try_from(plan.writes_per_second).unwrap_or(u32::MAX).max(1);
    let mut turn = 0;
    while begun.elapsed() < plan.time {
        write(&store, random.below(plan.objects), &mut random).await;
        tally.writes.fetch_add(1, Relaxed);
        turn += 1;
        if looked_at.elapsed() >= Duration::from_secs(1) {
            looked_at = Instant::now();
            look(begun.elapsed(), &cacher.stats());
        }
        sleep_until(begun + per_write * turn).await;
    }
    // Writes another resource, which an up-to-date watcher sees only in a bookmark.
    let other = Key::new("nodes", None, "last").expect("a valid name");
    let revision = store.create(&other, "{}".into(), None).await.map_err(|error| error.to_string())?;
    last.send_replace(revision.get());

    let all = ListQuery { range: KeyRange::resource("pods"), at: None, limit: 0 };
    let stored = store.list(all).await.map_err(|error| error.to_string())?.items;
    for (n, reader) in readers.into_iter().enumerate() {
        let (wanted, copy) = match timeout(Duration::from_secs(120), reader).await {
            Ok(ended) => ended.map_err(|error| error.to_string())??,
            Err(_) => return Err(format!("converging: watcher {n} did not come to the end in two minutes")),
        };
        let expected: HashMap<String, u64> = stored
            .iter()
            .filter(|entry| wanted.sees(entry.key.namespace(), std::str::from_utf8(&entry.value).unwrap_or("")))
            .map(|entry| (entry.key.as_str().to_owned(), entry.modified.get()))
            .collect();
        if copy != expected {
            return Err(format!(
                "converging: watcher {n} of {wanted:?} holds {} objects that are not the store's {}",
                copy.len(),
                expected.len()
            ));
        }
    }
    let stats = cacher.stats();
    look(begun.elapsed(), &stats);
    let watchers = stats.watchers;
    if watchers.live + watchers.lagging + watchers.replaying + watchers.closed + stats.open_walks > 0 {
        return Err(format!("all have gone, and something of them is left: {stats:?}"));
    }
    if stats.audit_mismatches > 0 {
        return Err(format!("the cache was not the store's all the time: {stats:?}"));
    }
    Ok(())
}

async fn write(store: &MemoryStorage, n: usize, random: &mut Random) {
    let key = key(n);
    // There is one writer, so no write comes in between.
    match store.get(&key).await.expect("a read").0 {
        Some(found) if random.below(10) == 0 => store.delete(&key, found.modified).await.map(drop).expect("a delete"),
        Some(found) => {
            store.update(&key, found.modified, value(n, random).into(), None).await.map(drop).expect("an update")
        }
        None => store.create(&key, value(n, random).into(), None).await.map(drop).expect("a create"),
    }
}

/// One client, which keeps a copy as a reflector does.
struct Reader {
    cacher: Cacher,
    wanted: Wanted,
    random: Random,
    copy: HashMap<String, u64>,
    /// The newest version that the client has seen; 0 to begin with initial events.
    seen: u64,
    tally: Arc<Tally>,
    end: watch::Receiver<u64>,
}

impl Reader {
    async fn run(mut self) -> Result<(Wanted, HashMap<String, u64>), String> {
        loop {
            let mut watcher = self.watch().await?;
            // The time until the client drops this connection.
            let leaves_at = Instant::now() + self.random.millis(60_000);
            let mut stalls_at = Instant::now() + self.random.millis(20_000);
            loop {
                let last = *self.end.borrow_and_update();
                if last > 0 && self.seen >= last {
                    return Ok((self.wanted, self.copy));
                }
                if last == 0 && Instant::now() >= leaves_at {
                    break;
                }
                if last == 0 && Instant::now() >= stalls_at {
                    // Stalls are mostly short; one in eight is longer than the window.
                    let long = self.random.below(8) == 0;
                    let stall = self.random.millis(if long { 40_000 } else { 3_000 });
                    self.tally.stalls.fetch_add(1, Relaxed);
                    tokio::select! {
                        () = sleep(stall) => {}
                        _ = self.end.changed() => {}
                    }
                    stalls_at = Instant::now() + self.random.millis(20_000);
                }
                tokio::select! {
                    biased;
                    delivery = watcher.next() => match delivery {
                        Some(delivery) => {
                            if !self.take(delivery)? {
                                break;
                            }
                        }
                        None => break,
                    },
                    _ = self.end.changed() => {}
                    () = sleep_until(leaves_at.min(stalls_at)), if last == 0 => {}
                }
            }
        }
    }

    async fn watch(&mut self) -> Result<Watcher, String> {
        // A client that restarts loses its copy.
        if self.random.below(4) == 0 {
            self.seen = 0;
        }
        let mut options = ListOptions { watch: true, allow_watch_bookmarks: true, ..ListOptions::default() };
        if self.seen == 0 {
            self.copy.clear();
            self.tally.begun.fetch_add(1, Relaxed);
        } else {
            options.resource_version = ResourceVersion::new(self.seen.to_string());
            self.tally.resumed.fetch_add(1, Relaxed);
        }
        if let Some(node) = &self.wanted.node {
            options.field_selector = format!("spec.nodeName={node}");
        }
        if let Some(app) = self.wanted.app {
            options.label_selector = format!("app={app}");
        }
        let scope = self.wanted.namespace.clone().map_or(Scope::All, Scope::Namespace);
        let request = options.watch(self.cacher.shape(), false).map_err(|status| status.to_string())?;
        let deadline = Instant::now() + Duration::from_secs(5) + self.random.millis(60_000);
        self.cacher.watch(&scope, &request, deadline).await.map_err(|error| error.to_string())
    }

    /// Applies a delivery; false when the watch is over and the client must begin again.
    fn take(&mut self, delivery: Delivery) -> Result<bool, String> {
        match delivery {
            Delivery::Event(event) => {
                self.tally.events.fetch_add(1, Relaxed);
                let revision = event.object().revision().get();
                if !event.is_initial() {
                    if revision <= self.seen {
                        return Err(format!("ordered: {event:?} after {}", self.seen));
                    }
                    self.seen = revision;
                }
                let key = event.object().key().as_str();
                let known = match event.change() {
                    Change::Deleted => self.copy.remove(key).is_some(),
                    Change::Added => self.copy.insert(key.to_owned(), revision).is_none(),
                    Change::Modified => self.copy.insert(key.to_owned(), revision).is_some(),
                };
                if !known {
                    return Err(format!(
                        "filtered truthfully: {event:?} does not follow from what {:?} saw",
                        self.wanted
                    ));
                }
            }
            Delivery::Bookmark { revision, .. } => {
                if revision.get() < self.seen {
                    return Err(format!("ordered: a bookmark at {revision} after {}", self.seen));
                }
                self.seen = revision.get();
            }
            Delivery::Error(status) if status.code == 410 => {
                self.tally.expired.fetch_add(1, Relaxed);
                self.seen = 0;
                return Ok(false);
            }
            Delivery::Error(status) => return Err(format!("never silent: an unexpected {status}")),
        }
        Ok(true)
    }
}
