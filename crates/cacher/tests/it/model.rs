//! Random operations on a cache, checked against a sorted list of all changes.
//!
//! The operations are writes, compactions, lost and expired store watches, and a store that becomes
//! silent. Further operations are watches from random revisions, readers that stall, resume and
//! leave, and lists of every kind. Time is virtual and the operations determine the order of
//! everything, so a failure can be replayed. For more cases: `PROPTEST_CASES=20000 cargo nextest
//! run -p listwatch-cacher model::`.

use std::time::Duration;

use crate::support::checker::{
    Checker, ExpectedFreshness, Log, Seen, Shown, Wanted, check_list, check_revision, seen, shown,
};
use crate::support::store::TestStore;
use crate::support::{config, drain, key, options, settle};
use listwatch_cacher::{Cacher, Limits, Scope, Watcher};
use listwatch_meta::{Key, ListOptions, ResourceVersion};
use listwatch_storage::Storage;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Write {
        path: &'static str,
        app: &'static str,
        node: &'static str,
    },
    Delete {
        path: &'static str,
    },
    /// Writes another resource.
    Other,
    Compact,
    Hold,
    Release,
    Lose,
    Expire,
    /// Replaces the cache, as after a restart of its process. The clients resume at the revisions
    /// that they have received.
    Restart,
    Advance {
        seconds: u64,
    },
    Watch {
        slot: usize,
        wanted: Wanted,
        from: From,
    },
    Read {
        slot: usize,
        events: usize,
    },
    Resume {
        slot: usize,
    },
    Leave {
        slot: usize,
    },
    List {
        wanted: Wanted,
        kind: Kind,
    },
    Pages {
        wanted: Wanted,
        limit: usize,
        write: &'static str,
    },
    Cancel,
}

#[derive(Clone, Debug)]
enum From {
    Consistent,
    Any,
    Back(u64),
    Ahead(u64),
}

#[derive(Clone, Debug)]
enum Kind {
    Consistent,
    Any,
    NotOlder(u64),
    Exact(u64),
}

const PATHS: [&str; 6] = ["a/x", "a/y", "a/z", "ab/x", "b/x", "b/y"];
const SLOTS: usize = 4;

fn path() -> impl Strategy<Value = &'static str> {
    prop::sample::select(PATHS.to_vec())
}

fn wanted() -> impl Strategy<Value = Wanted> {
    let maybe =
        |values: Vec<&'static str>| prop::option::weighted(0.3, prop::sample::select(values).prop_map(str::to_owned));
    (maybe(vec!["a", "b"]), maybe(vec!["x", "y"]), maybe(vec!["p", "q"]), maybe(vec!["", "n1"]))
        .prop_map(|(namespace, name, app, node)| Wanted { namespace, name, app, node })
}

fn op() -> impl Strategy<Value = Op> {
    let slot = 0..SLOTS;
    let from = prop_oneof![
        Just(From::Consistent),
        Just(From::Any),
        (0..12u64).prop_map(From::Back),
        (1..3u64).prop_map(From::Ahead),
    ];
    let kind = prop_oneof![
        Just(Kind::Consistent),
        Just(Kind::Any),
        (0..5u64).prop_map(Kind::NotOlder),
        (0..12u64).prop_map(Kind::Exact),
    ];
    prop_oneof![
        12 => (path(), prop::sample::select(vec!["p", "q"]), prop::sample::select(vec!["", "n1"]))
            .prop_map(|(path, app, node)| Op::Write { path, app, node }),
        5 => path().prop_map(|path| Op::Delete { path }),
        2 => Just(Op::Other),
        1 => Just(Op::Compact),
        1 => Just(Op::Hold),
        2 => Just(Op::Release),
        1 => Just(Op::Lose),
        1 => Just(Op::Expire),
        1 => Just(Op::Restart),
        2 => (1..8u64).prop_map(|seconds| Op::Advance { seconds }),
        4 => (slot.clone(), wanted(), from).prop_map(|(slot, wanted, from)| Op::Watch { slot, wanted, from }),
        8 => (slot.clone(), 1..6usize).prop_map(|(slot, events)| Op::Read { slot, events }),
        2 => slot.clone().prop_map(|slot| Op::Resume { slot }),
        1 => slot.prop_map(|slot| Op::Leave { slot }),
        3 => (wanted(), kind).prop_map(|(wanted, kind)| Op::List { wanted, kind }),
        1 => (wanted(), 1..4usize, path()).prop_map(|(wanted, limit, write)| Op::Pages { wanted, limit, write }),
        1 => Just(Op::Cancel),
    ]
}

struct World {
    store: std::sync::Arc<TestStore>,
    cacher: Cacher,
    limits: Limits,
    log: Log,
    held: bool,
    watches: Vec<Option<Watch>>,
    /// The newest revision that any response of the cache has shown.
    shown: u64,
    /// The revision of the newest compaction.
    compacted: u64,
}

struct Watch {
    watcher: Watcher,
    checker: Checker,
    wanted: Wanted,
    from_start: bool,
}

fn words(wanted: &Wanted) -> (Scope, Vec<String>) {
    let mut words = Vec::new();
    let scope = match (&wanted.namespace, &wanted.name) {
        (Some(namespace), Some(name)) => Scope::Object { namespace: Some(namespace.clone()), name: name.clone() },
        (Some(namespace), None) => Scope::Namespace(namespace.clone()),
        (None, _) => Scope::All,
    };
    let mut fields = Vec::new();
    if let (None, Some(name)) = (&wanted.namespace, &wanted.name) {
        fields.push(format!("metadata.name={name}"));
    }
    if let Some(node) = &wanted.node {
        fields.push(format!("spec.nodeName={node}"));
    }
    if !fields.is_empty() {
        words.push(format!("fields={}", fields.join(",")));
    }
    if let Some(app) = &wanted.app {
        words.push(format!("labels=app={app}"));
    }
    (scope, words)
}

fn parsed(words: &[String]) -> ListOptions {
    options(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

impl World {
    async fn new(limits: Limits) -> Self {
        let store = TestStore::new();
        let cacher = Cacher::start(store.clone(), config(limits.clone()));
        cacher.wait_ready().await.unwrap();
        settle().await;
        let revision = store.current_revision().await.unwrap().get();
        World {
            store,
            cacher,
            limits,
            log: Log { revision, ..Log::default() },
            held: false,
            watches: (0..SLOTS).map(|_| None).collect(),
            shown: 0,
            compacted: 0,
        }
    }

    /// Waits until the cache has resumed its store watch, if it was lost.
    async fn quiet(&self) {
        for _ in 0..6 {
            settle().await;
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        settle().await;
    }

    async fn write(&mut self, path: &str, app: &str, node: &str) {
        let name = path.split_once('/').unwrap().1;
        let value =
            format!(r#"{{"metadata":{{"name":"{name}","labels":{{"app":"{app}"}}}},"spec":{{"nodeName":"{node}"}}}}"#);
        let key = key(path);
        let revision = match self.store.get(&key).await.unwrap().0 {
            Some(found) => self.store.update(&key, found.modified, value.into(), None).await.unwrap(),
            None => self.store.create(&key, value.into(), None).await.unwrap(),
        };
        self.log.write(revision.get(), path, app, node);
    }

    async fn step(&mut self, op: &Op) -> Result<(), String> {
        match op {
            Op::Write { path, app, node } => self.write(path, app, node).await,
            Op::Delete { path } => {
                if let Some(found) = self.store.get(&key(path)).await.unwrap().0 {
                    let revision = self.store.delete(&key(path), found.modified).await.unwrap();
                    self.log.delete(revision.get(), path);
                }
            }
            Op::Other => {
                let node = Key::new("nodes", None, "n").unwrap();
                let revision = match self.store.get(&node).await.unwrap().0 {
                    Some(found) => self.store.update(&node, found.modified, "{}".into(), None).await.unwrap(),
                    None => self.store.create(&node, "{}".into(), None).await.unwrap(),
                };
                self.log.revision = revision.get();
            }
            Op::Compact => {
                self.quiet().await;
                self.store.compact(listwatch_meta::Revision::new(self.log.revision)).await.unwrap();
                self.compacted = self.log.revision;
            }
            Op::Hold => {
                self.quiet().await;
                self.held = true;
                self.store.hold(true);
            }
            Op::Release => {
                self.held = false;
                self.store.hold(false);
                self.quiet().await;
            }
            Op::Lose => {
                settle().await;
                self.store.lose();
                self.quiet().await;
            }
            Op::Expire => {
                self.quiet().await;
                self.store.expire();
                settle().await;
            }
            Op::Restart => self.restart().await?,
            Op::Advance { seconds } => {
                for _ in 0..*seconds {
                    tokio::time::advance(Duration::from_secs(1)).await;
                    settle().await;
                }
            }
            Op::Watch { slot, wanted, from } => self.watch(*slot, wanted, from).await?,
            Op::Read { slot, events } => {
                settle().await;
                self.read(*slot, *events).await?;
            }
            Op::Resume { slot } => {
                let place = self.watches[*slot].as_ref().and_then(|watch| {
                    Some((watch.wanted.clone(), watch.checker.resume_from().filter(|_| !watch.checker.is_over())?))
                });
                if let Some((wanted, place)) = place {
                    self.watch_after(*slot, &wanted, place).await;
                }
            }
            Op::Leave { slot } => self.watches[*slot] = None,
            Op::List { wanted, kind } => self.list(wanted, kind).await?,
            Op::Pages { wanted, limit, write } => self.pages(wanted, *limit, write).await?,
            Op::Cancel => {
                let request = parsed(&[format!("rv={}", self.log.revision + 5)]).list(self.cacher.shape()).unwrap();
                let list = self.cacher.list(&Scope::All, &request);
                let _ = tokio::time::timeout(Duration::from_millis(250), list).await;
                if self.cacher.stats().waiting_reads != 0 {
                    return Err("a read whose client has gone still waits".to_owned());
                }
            }
        }
        Ok(())
    }

    async fn restart(&mut self) -> Result<(), String> {
        self.cacher.stop(None);
        let places: Vec<_> = self
            .watches
            .iter_mut()
            .map(|slot| {
                let watch = slot.take()?;
                Some((watch.wanted, watch.checker.resume_from().filter(|_| !watch.checker.is_over())?))
            })
            .collect();
        self.cacher = Cacher::start(self.store.clone(), config(self.limits.clone()));
        self.cacher.wait_ready().await.unwrap();
        let (oldest, reach) = (self.cacher.stats().oldest.get(), self.limits.history_refill_revisions_max);
        let held = self.compacted.max(self.log.revision.saturating_sub(reach)).max(1);
        // A window with a minimum of more events than were written has lost none.
        let room = self.limits.history_events_min > self.log.real.len();
        if !self.held && room && oldest > held {
            return Err(format!("resumable: after a restart the window begins at {oldest}, the store holds {held}"));
        }
        for (slot, place) in places.into_iter().enumerate() {
            if let Some((wanted, place)) = place {
                self.watch_after(slot, &wanted, place).await;
            }
        }
        Ok(())
    }

    async fn watch(&mut self, slot: usize, wanted: &Wanted, from: &From) -> Result<(), String> {
        let (rv, at_least) = match from {
            // A silent store cannot serve consistent reads; other tests cover them.
            From::Consistent if !self.held => ("", self.log.revision),
            From::Consistent | From::Any => ("0", self.shown),
            From::Back(revisions) => {
                let place = self.log.revision.saturating_sub(*revisions).max(1);
                self.watch_after(slot, wanted, place).await;
                return Ok(());
            }
            From::Ahead(revisions) => {
                self.watch_after(slot, wanted, self.log.revision + revisions).await;
                return Ok(());
            }
        };
        settle().await;
        let (scope, mut words) = words(wanted);
        words.extend([format!("rv={rv}"), "bookmarks".to_owned()]);
        self.count_restarts();
        let watcher = self.begin(&scope, &words).await;
        let checker = Checker::initial(wanted.clone(), at_least).begun_at(&self.log);
        self.watches[slot] = Some(Watch { watcher, checker, wanted: wanted.clone(), from_start: true });
        Ok(())
    }

    /// Counts the restarts of the cache, after which earlier watches may receive `410 Expired`.
    fn count_restarts(&mut self) {
        self.log.restarts = self.cacher.stats().generation;
    }

    async fn watch_after(&mut self, slot: usize, wanted: &Wanted, place: u64) {
        let (scope, mut words) = words(wanted);
        words.extend([format!("rv={place}"), "bookmarks".to_owned()]);
        self.count_restarts();
        let watcher = self.begin(&scope, &words).await;
        let checker = Checker::after(wanted.clone(), place).begun_at(&self.log);
        self.watches[slot] = Some(Watch { watcher, checker, wanted: wanted.clone(), from_start: false });
    }

    async fn begin(&self, scope: &Scope, words: &[String]) -> Watcher {
        let request = ListOptions { watch: true, ..parsed(words) }.watch(self.cacher.shape(), false).unwrap();
        let deadline = tokio::time::Instant::now() + Duration::from_secs(100_000);
        self.cacher.watch(scope, &request, deadline).await.unwrap()
    }

    async fn read(&mut self, slot: usize, events: usize) -> Result<(), String> {
        self.count_restarts();
        let Some(watch) = &mut self.watches[slot] else { return Ok(()) };
        for _ in 0..events {
            let Some(delivery) = watch.watcher.try_next() else { break };
            let oldest = self.cacher.stats().oldest.get();
            let seen = seen(&delivery);
            if let Seen::Event(_, Shown { revision, .. }) | Seen::Bookmark(revision) | Seen::InitialEnd(revision) =
                &seen
            {
                self.shown = self.shown.max(*revision);
            }
            watch.checker.see(&self.log, oldest, seen)?;
        }
        Ok(())
    }

    async fn list(&mut self, wanted: &Wanted, kind: &Kind) -> Result<(), String> {
        settle().await;
        let (scope, mut words) = words(wanted);
        let (extra, at_least, exactly) = match kind {
            Kind::Consistent => (Vec::new(), self.log.revision, None),
            Kind::Any => (vec!["rv=0".to_owned()], self.shown, None),
            Kind::NotOlder(back) => {
                let known = self.cacher.stats().revision.get().saturating_sub(*back).max(1);
                (vec![format!("rv={known}")], known.max(self.shown), None)
            }
            Kind::Exact(back) => {
                let at = self.log.revision.saturating_sub(*back).max(1);
                (vec![format!("rv={at}"), "match=Exact".to_owned()], at, Some(at))
            }
        };
        words.extend(extra);
        let request = parsed(&words).list(self.cacher.shape()).unwrap();
        let list = match self.cacher.list(&scope, &request).await {
            Ok(list) => list,
            Err(listwatch_cacher::ReadError::Expired { requested }) if requested.get() < self.compacted => {
                return Ok(());
            }
            // The store is silent, so the cache cannot know this revision.
            Err(listwatch_cacher::ReadError::TooLarge { .. }) if self.held => return Ok(()),
            Err(error) => return Err(format!("{kind:?} fails: {error}")),
        };
        let revision = list.revision.get();
        let consistent = matches!(kind, Kind::Consistent);
        check_revision(ExpectedFreshness { consistent, at_least, exactly }, revision)?;
        if matches!(kind, Kind::Any | Kind::NotOlder(_)) {
            self.shown = self.shown.max(revision);
        }
        let items: Vec<Shown> = list.items.map(|object| shown(&object)).collect();
        check_list(&self.log, wanted, revision, &items)
    }

    async fn pages(&mut self, wanted: &Wanted, limit: usize, write: &str) -> Result<(), String> {
        settle().await;
        let (scope, words) = words(wanted);
        let mut options = ListOptions { limit: limit as i64, ..parsed(&words) };
        let (mut items, mut revision) = (Vec::new(), None);
        loop {
            let request = options.list(self.cacher.shape()).unwrap();
            let list = self.cacher.list(&scope, &request).await.map_err(|error| format!("a page fails: {error}"))?;
            let first = *revision.get_or_insert(list.revision.get());
            if list.revision.get() != first {
                return Err(format!("one state: a page at {first} is followed by one at {:?}", list.revision));
            }
            let page: Vec<Shown> = list.items.map(|object| shown(&object)).collect();
            if page.len() > limit {
                return Err(format!("one state: a page of {limit} has {} items", page.len()));
            }
            items.extend(page);
            if let Some(remaining) = list.remaining {
                let left = wanted.of(self.log.state(first)).len() - items.len();
                if remaining != left as u64 {
                    return Err(format!("one state: {left} are left, the list says {remaining}"));
                }
            }
            match list.continue_token {
                Some(token) => {
                    options.continue_token = token;
                    options.resource_version = ResourceVersion::default();
                }
                None => return check_list(&self.log, wanted, first, &items),
            }
            self.write(write, "p", "n1").await;
        }
    }

    /// Ends all faults, reads all watches and checks that nothing is missing.
    async fn finish(&mut self) -> Result<(), String> {
        self.step(&Op::Release).await?;
        self.quiet().await;
        for slot in 0..SLOTS {
            let Some(mut watch) = self.watches[slot].take() else { continue };
            let (deliveries, ended) = drain(&mut watch.watcher).await;
            self.count_restarts();
            let oldest = self.cacher.stats().oldest.get();
            for delivery in &deliveries {
                watch.checker.see(&self.log, oldest, seen(delivery))?;
            }
            if ended {
                watch.checker.see(&self.log, oldest, Seen::End)?;
            }
            watch.checker.finish(&self.log)?;
            if watch.from_start {
                watch.checker.converged(&self.log)?;
            }
        }
        let stats = self.cacher.stats();
        if stats.watchers != listwatch_cacher::WatcherStats::default() {
            return Err(format!("watchers that have gone are still known: {stats:?}"));
        }
        Ok(())
    }
}

fn small() -> Limits {
    Limits {
        watcher_queue_events_max: 2,
        history_events_min: 4,
        history_age: Duration::from_secs(5),
        bookmark_interval: Duration::from_secs(3),
        pinned_snapshots_max: 1,
        list_page_objects: 2,
        audit_interval: Some(Duration::from_secs(7)),
        history_refill_revisions_max: 6,
        ..Limits::default()
    }
}

fn live(limits: &Limits, ops: &[Op]) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut world = World::new(limits.clone()).await;
        for op in ops {
            world.step(op).await?;
        }
        world.finish().await?;
        let stats = world.cacher.stats();
        if stats.audit_mismatches > 0 {
            return Err(format!("one state: the cache differs from the store: {stats:?}"));
        }
        Ok(())
    })
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 5_000, ..ProptestConfig::default() })]

    #[test]
    fn random_operations_keep_every_guarantee(ops in prop::collection::vec(op(), 1..60)) {
        if let Err(broken) = live(&small(), &ops) {
            prop_assert!(false, "{}", broken);
        }
    }

    #[test]
    fn random_operations_with_default_limits_keep_every_guarantee(ops in prop::collection::vec(op(), 1..60)) {
        let limits = Limits { audit_interval: Some(Duration::from_secs(7)), ..Limits::default() };
        if let Err(broken) = live(&limits, &ops) {
            prop_assert!(false, "{}", broken);
        }
    }
}

/// A short history, and the items of a watch of `app=p` in it.
fn told() -> (Log, Vec<Seen>) {
    let mut log = Log { revision: 1, ..Log::default() };
    log.write(2, "a/x", "p", "");
    log.write(3, "a/y", "p", "");
    log.write(4, "a/x", "q", "");
    log.write(5, "a/x", "p", "");
    log.delete(6, "a/y");
    log.revision = 8;
    let event = |change, path: &str, revision| {
        Seen::Event(change, Shown { path: path.to_owned(), app: "p".to_owned(), revision })
    };
    use listwatch_meta::Change::{Added, Deleted};
    let seen = vec![
        event(Added, "a/x", 2),
        event(Added, "a/y", 3),
        Seen::Bookmark(3),
        event(Deleted, "a/x", 4),
        event(Added, "a/x", 5),
        event(Deleted, "a/y", 6),
        Seen::Bookmark(7),
    ];
    (log, seen)
}

fn verdict(mutate: impl FnOnce(&mut Vec<Seen>)) -> String {
    let (log, mut deliveries) = told();
    mutate(&mut deliveries);
    let mut checker = Checker::after(Wanted { app: Some("p".to_owned()), ..Wanted::default() }, 1);
    for seen in deliveries {
        if let Err(broken) = checker.see(&log, 3, seen) {
            return broken;
        }
    }
    checker.finish(&log).err().unwrap_or_else(|| "kept".to_owned())
}

/// Checks a watch of two objects that are written at one revision.
fn verdict_on_transaction(mutate: impl FnOnce(&mut Vec<Seen>)) -> String {
    let mut log = Log { revision: 1, ..Log::default() };
    log.write(2, "a/x", "p", "");
    log.write(2, "a/y", "p", "");
    log.write(3, "a/z", "p", "");
    let event = |path: &str, revision| {
        let shown = Shown { path: path.to_owned(), app: "p".to_owned(), revision };
        Seen::Event(listwatch_meta::Change::Added, shown)
    };
    let mut deliveries = vec![event("a/x", 2), event("a/y", 2), Seen::Bookmark(2), event("a/z", 3)];
    mutate(&mut deliveries);
    let mut checker = Checker::after(Wanted::default(), 1);
    for seen in deliveries {
        if let Err(broken) = checker.see(&log, 1, seen) {
            return broken;
        }
    }
    checker.finish(&log).err().unwrap_or_else(|| "kept".to_owned())
}

#[test]
fn checker_reports_each_planted_bug_by_its_name() {
    assert_eq!(verdict(|_| {}), "kept");
    assert_eq!(verdict_on_transaction(|_| {}), "kept");
    for bug in [|seen: &mut Vec<Seen>| seen.swap(1, 2), |seen: &mut Vec<Seen>| seen[1] = Seen::End] {
        let caught = verdict_on_transaction(bug);
        assert!(caught.starts_with("atomic"), "a bug against \"atomic\" is reported as: {caught}");
    }
    let asked = ExpectedFreshness { consistent: false, at_least: 5, exactly: None };
    assert_eq!(check_revision(asked, 5), Ok(()));
    assert!(check_revision(asked, 4).unwrap_err().starts_with("no time travel"));
    let consistent = ExpectedFreshness { consistent: true, ..asked };
    assert!(check_revision(consistent, 4).unwrap_err().starts_with("read your writes"));
    let exactly = ExpectedFreshness { exactly: Some(5), ..asked };
    assert!(check_revision(exactly, 6).unwrap_err().starts_with("one state"));
    type Bug = (&'static str, fn(&mut Vec<Seen>));
    let bugs: [Bug; 10] = [
        ("ordered", |seen| seen.insert(5, seen[3].clone())),
        ("unique", |seen| seen.insert(1, seen[0].clone())),
        ("complete", |seen| drop(seen.remove(3))),
        ("complete", |seen| seen.truncate(5)),
        ("bookmarkable", |seen| seen.swap(1, 2)),
        ("bookmarkable", |seen| seen[6] = Seen::Bookmark(9)),
        ("filtered truthfully", |seen| {
            if let Seen::Event(change, _) = &mut seen[3] {
                *change = listwatch_meta::Change::Modified;
            }
        }),
        ("filtered truthfully", |seen| {
            if let Seen::Event(_, shown) = &mut seen[3] {
                shown.app = "q".to_owned();
            }
        }),
        ("resumable", |seen| seen[4] = Seen::Error(410)),
        ("never silent", |seen| seen[4] = Seen::End),
    ];
    for (promise, bug) in bugs {
        let caught = verdict(bug);
        assert!(caught.starts_with(promise), "a bug against {promise:?} is reported as: {caught}");
    }
    let (log, _) = told();
    let object = |path: &str, revision| Shown { path: path.to_owned(), app: "p".to_owned(), revision };
    let all = Wanted::default();
    assert_eq!(check_list(&log, &all, 3, &[object("a/x", 2), object("a/y", 3)]), Ok(()));
    assert!(check_list(&log, &all, 5, &[object("a/x", 2), object("a/y", 3)]).unwrap_err().starts_with("one state"));
    let mut stale = Checker::initial(all.clone(), 5);
    assert!(stale.see(&log, 1, Seen::InitialEnd(3)).unwrap_err().starts_with("read your writes"));
    let mut copy = Checker::initial(all, 1);
    for seen in [Seen::Initial(object("a/x", 2)), Seen::Initial(object("a/y", 3)), Seen::InitialEnd(3)] {
        copy.see(&log, 1, seen).unwrap();
    }
    assert!(copy.converged(&log).unwrap_err().starts_with("converging"));
}
