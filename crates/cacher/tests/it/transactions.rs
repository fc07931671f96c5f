//! Random sequences of watches and reads on a store whose revisions change many keys, with and
//! without a cache. Other clients write between a list and its watch, and between two pages.
//!
//! Watches have deadlines, servers stop, and each reader resumes at the end of its last watch, as
//! clients do. For more cases: `PROPTEST_CASES=20000 cargo nextest run -p listwatch-cacher
//! transactions::`.

use std::sync::Arc;
use std::time::Duration;

use crate::support::checker::{Checker, Seen, Shown, Wanted, check_list, seen, shown};
use crate::support::transactions::{GARBAGE, Transaction, TransactionStore};
use crate::support::{config, drain, key, options, quiet, settle, watch};
use listwatch_cacher::{Cacher, Limits, Scope, Watcher};
use listwatch_meta::{ListOptions, ReadAt, ResourceVersion, Revision};
use proptest::prelude::*;

// ----------------------------------------------------------------------- fixed scenarios

fn run<F: Future>(story: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(story)
}

const MINUTE: Duration = Duration::from_secs(60);

fn put(path: &'static str) -> (&'static str, Option<(&'static str, &'static str)>) {
    (path, Some(("p", "n1")))
}

/// Writes five objects at one revision.
fn five() -> Transaction {
    ["a/v", "a/w", "a/x", "a/y", "a/z"].map(put).to_vec()
}

/// Formats an event in short form.
fn told(seen: &Seen) -> String {
    match seen {
        Seen::Initial(shown) => format!("initial {}@{}", shown.path, shown.revision),
        Seen::Event(change, shown) => format!("{change} {}@{}", shown.path, shown.revision),
        Seen::Bookmark(revision) => format!("bookmark {revision}"),
        Seen::InitialEnd(revision) => format!("end of the initial events {revision}"),
        Seen::Error(code) => format!("error {code}"),
        Seen::End => "end".to_owned(),
    }
}

/// Formats all ready items in short form.
async fn ready(watcher: &mut Watcher) -> Vec<String> {
    settle().await;
    let (deliveries, ended) = drain(watcher).await;
    let mut told: Vec<String> = deliveries.iter().map(|delivery| told(&seen(delivery))).collect();
    told.extend(ended.then(|| "end".to_owned()));
    told
}

#[test]
fn uncached_watch_completes_a_revision_before_its_deadline_or_stop() {
    for stopped in [false, true] {
        run(async {
            let store = TransactionStore::new();
            let cacher = Cacher::direct(store.clone(), config(quiet()));
            let mut all = watch(&cacher, &Scope::All, &["rv=1"], MINUTE).await;
            let mut some = watch(&cacher, &Scope::All, &["rv=1", "labels=app=p"], MINUTE).await;
            let mut none = watch(&cacher, &Scope::All, &["rv=1"], MINUTE).await;
            store.write(&five());
            store.write(&vec![("a/v", Some(("q", ""))), ("a/w", Some(("q", ""))), put("a/x")]);
            for watcher in [&mut all, &mut some] {
                assert_eq!(told(&seen(&watcher.try_next().unwrap())), "ADDED a/v@2");
                assert_eq!(told(&seen(&watcher.try_next().unwrap())), "ADDED a/w@2");
            }
            if stopped {
                cacher.stop(Some(listwatch_meta::Status::unavailable("the server stops".to_owned())));
            } else {
                tokio::time::advance(MINUTE).await;
            }
            let end: &[&str] = if stopped { &["error 503", "end"] } else { &["end"] };
            let rest = [&["ADDED a/x@2", "ADDED a/y@2", "ADDED a/z@2"], end].concat();
            assert_eq!(ready(&mut all).await, rest, "promise: atomic, stopped: {stopped}");
            assert_eq!(ready(&mut some).await, rest, "promise: atomic, stopped: {stopped}");
            assert_eq!(ready(&mut none).await, end, "a reader without events resumes from its start");
        });
    }
}

#[test]
fn uncached_watch_with_initial_events_misses_nothing_between_its_list_and_its_watch() {
    run(async {
        let store = TransactionStore::new();
        store.write(&five());
        let cacher = Cacher::direct(store.clone(), config(quiet()));
        store.stage(vec![put("a/x"), put("b/x")]);
        store.stage(vec![put("b/y"), ("a/z", None)]);
        let mut watcher = watch(&cacher, &Scope::All, &["bookmarks"], MINUTE).await;
        let told = ready(&mut watcher).await;
        assert_eq!(told[5], "end of the initial events 2");
        assert_eq!(told[6..], ["MODIFIED a/x@3", "ADDED b/x@3", "ADDED b/y@4", "DELETED a/z@4"], "promise: complete");
    });
}

#[test]
fn uncached_watch_expires_at_an_undecodable_deletion_in_a_partly_delivered_revision() {
    // A client that resumes after the revision would miss the deletion, and a list shows it.
    for (path, expected) in [("a/w", vec!["ADDED a/v@3", "error 410", "end"]), ("a/u", vec!["error 500", "end"])] {
        run(async {
            let store = TransactionStore::new();
            store.write(&vec![(path, Some((GARBAGE, "")))]);
            let cacher = Cacher::direct(store.clone(), config(quiet()));
            let mut watcher = watch(&cacher, &Scope::All, &["rv=2"], MINUTE).await;
            let mut changes = vec![put("a/v"), (path, None)];
            changes.sort_unstable();
            store.write(&changes);
            assert_eq!(ready(&mut watcher).await, expected, "{path}");
        });
    }
}

#[test]
fn watch_with_initial_events_from_the_store_continues_without_gap() {
    run(async {
        // A store without progress requests serves the initial state itself.
        let store = TransactionStore::without_progress();
        let cacher = Cacher::start(store.clone(), config(quiet()));
        cacher.wait_ready().await.unwrap();
        settle().await;
        // The cache has not seen these writes, so it reads the state from the store. The changes
        // after that list reach the cache before the watch begins.
        store.write(&five());
        store.stage(vec![put("a/x"), put("b/x")]);
        let mut watcher = watch(&cacher, &Scope::All, &["bookmarks"], MINUTE).await;
        store.write(&vec![("a/z", None)]);
        let told = ready(&mut watcher).await;
        assert_eq!(told[5], "end of the initial events 2");
        assert_eq!(told[6..], ["MODIFIED a/x@3", "ADDED b/x@3", "DELETED a/z@4"], "promise: complete");
    });
}

#[test]
fn pages_of_a_list_from_the_store_show_the_revision_of_the_first_page() {
    run(async {
        let store = TransactionStore::new();
        store.write(&five());
        let limits = Limits { list_page_objects: 2, ..quiet() };
        let cacher = Cacher::direct(store.clone(), config(limits));
        let expected: Vec<String> = ["a/v@2", "a/w@2", "a/x@2", "a/y@2", "a/z@2"].map(str::to_owned).to_vec();
        let short = |shown: Shown| format!("{}@{}", shown.path, shown.revision);
        for words in [&[][..], &["limit=5"], &["labels=app=p"]] {
            // Behind each page of the store, a write changes the following keys.
            let revision = store.log().revision;
            store.stage(vec![("a/y", None), put("a/yy"), ("a/z", Some(("q", "n2")))]);
            let request = options(words).list(cacher.shape()).unwrap();
            let list = cacher.list(&Scope::All, &request).await.unwrap();
            assert_eq!(list.revision.get(), revision, "promise: one state");
            let items: Vec<String> = list.items.map(|object| short(shown(&object))).collect();
            if revision == 2 {
                assert_eq!(items, expected, "promise: one state, {words:?}");
            } else {
                let state = store.log().state(revision);
                let state = state.iter().filter(|(_, state)| words != ["labels=app=p"] || state.app == "p");
                let state: Vec<String> = state.map(|(path, state)| format!("{path}@{}", state.revision)).collect();
                let shown = state.len().min(5);
                assert_eq!(items, state[..shown], "promise: one state, {words:?}");
            }
        }
    });
}

/// Lists with these options: the revision and objects, or the error code.
async fn listed(cacher: &Cacher, words: &[&str]) -> Result<(u64, Vec<String>), u16> {
    let gr = listwatch_meta::GroupResource { group: "", resource: "pods" };
    let list = cacher.list(&Scope::All, &options(words).list(cacher.shape()).unwrap()).await;
    let list = list.map_err(|error| error.status(gr).code)?;
    let items = list.items.map(|object| shown(&object)).map(|shown| format!("{}@{}", shown.path, shown.revision));
    Ok((list.revision.get(), items.collect()))
}

#[test]
fn cache_of_a_restored_store_waits_until_the_new_history_reaches_the_revision() {
    run(async {
        let store = TransactionStore::new();
        store.write(&vec![put("a/x")]);
        store.write(&vec![put("a/y")]);
        let cacher = Cacher::start(store.clone(), config(quiet()));
        cacher.wait_ready().await.unwrap();
        for _ in 0..3 {
            store.write(&five());
            settle().await;
        }
        assert_eq!(listed(&cacher, &["rv=6"]).await.map(|(revision, _)| revision), Ok(6));
        store.put_back(3);
        // The driver backs off before it lists a store that expired its last list.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(cacher.stats().generation, 2, "the cache starts over");
        assert_eq!(listed(&cacher, &["rv=0"]).await, Ok((3, vec!["a/x@2".to_owned(), "a/y@3".to_owned()])));
        // The former state had this revision; the new one does not.
        assert_eq!(listed(&cacher, &["rv=5"]).await, Err(504), "promise: no time travel");
        let later = ReadAt::NotOlderThan(Revision::new(5));
        assert!(cacher.get(&key("a/x"), later).await.is_err(), "promise: no time travel");
        let mut watcher =
            watch(&cacher, &Scope::All, &["rv=5", "sie=true", "match=NotOlderThan", "bookmarks"], MINUTE).await;
        assert_eq!(ready(&mut watcher).await, ["error 504", "end"], "promise: no time travel");
        store.write(&vec![put("a/z")]);
        store.write(&vec![put("a/z")]);
        assert_eq!(listed(&cacher, &["rv=5"]).await.map(|(revision, _)| revision), Ok(5));
    });
}

/// A cache at revision 6, whose store is then restored to revision 3.
async fn restored(store: &Arc<TransactionStore>) -> Cacher {
    restored_with(store, quiet()).await
}

async fn restored_with(store: &Arc<TransactionStore>, limits: Limits) -> Cacher {
    store.write(&vec![put("a/x")]);
    store.write(&vec![put("a/y")]);
    let cacher = Cacher::start(store.clone(), config(limits));
    cacher.wait_ready().await.unwrap();
    for _ in 0..3 {
        store.write(&five());
        settle().await;
    }
    store.put_back(3);
    settle().await;
    cacher
}

#[test]
fn watch_and_page_of_a_revision_that_the_store_lost_expire() {
    run(async {
        let store = TransactionStore::new();
        store.write(&vec![put("a/x")]);
        store.write(&vec![put("a/y")]);
        let cacher = Cacher::start(store.clone(), config(quiet()));
        cacher.wait_ready().await.unwrap();
        for _ in 0..3 {
            store.write(&five());
            settle().await;
        }
        let request = options(&["limit=2"]).list(cacher.shape()).unwrap();
        let first = cacher.list(&Scope::All, &request).await.unwrap();
        assert_eq!(first.revision.get(), 6);
        store.put_back(3);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(cacher.stats().generation, 2, "the cache starts over");
        // The clients were between two watches, and between two pages.
        for rv in ["rv=4", "rv=6"] {
            let mut watcher = watch(&cacher, &Scope::All, &[rv], MINUTE).await;
            assert_eq!(ready(&mut watcher).await, ["error 410", "end"], "promise: resumable, from {rv}");
        }
        let next = format!("continue={}", first.continue_token.expect("more pages"));
        assert_eq!(listed(&cacher, &[&next]).await, Err(410), "promise: no time travel");
        // No state of this server had this revision, so it may be one of a server that is ahead.
        let mut ahead = watch(&cacher, &Scope::All, &["rv=7"], 5 * MINUTE).await;
        assert!(ready(&mut ahead).await.is_empty());
        for _ in 0..5 {
            store.write(&vec![put("a/z")]);
            settle().await;
        }
        assert_eq!(ready(&mut ahead).await, ["MODIFIED a/z@8"]);
        // The new history has this revision, too.
        let mut watcher = watch(&cacher, &Scope::All, &["rv=6"], MINUTE).await;
        assert_eq!(ready(&mut watcher).await, ["MODIFIED a/z@7", "MODIFIED a/z@8"]);
    });
}

/// Without progress, a quiet cache stays at the restored revision, while lists come from the store.
#[test]
fn watch_after_a_list_of_a_restored_store_does_not_expire() {
    run(async {
        let store = TransactionStore::without_progress();
        let cacher = restored(&store).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        store.write_elsewhere();
        assert_eq!(listed(&cacher, &[]).await.map(|(revision, _)| revision), Ok(4));
        assert_eq!(cacher.revision().get(), 3, "the cache is behind");
        let mut watcher = watch(&cacher, &Scope::All, &["rv=4"], MINUTE).await;
        assert!(ready(&mut watcher).await.is_empty(), "the new history has this revision");
        store.write(&vec![put("a/z")]);
        assert_eq!(ready(&mut watcher).await, ["ADDED a/z@5"]);
    });
}

#[test]
fn consistent_reads_do_not_show_the_former_state_while_the_cache_lists_again() {
    run(async {
        let store = TransactionStore::new();
        let cacher = restored(&store).await;
        // The driver waits before it lists a store that expired its last list.
        assert_eq!((cacher.stats().generation, cacher.revision().get()), (1, 6));
        let present = Ok((3, vec!["a/x@2".to_owned(), "a/y@3".to_owned()]));
        assert_eq!(listed(&cacher, &["limit=500"]).await, present, "promise: read your writes");
        assert_eq!(cacher.stats().generation, 1, "the store has served the page");
        let mut now = watch(&cacher, &Scope::All, &[], MINUTE).await;
        let mut replayed = watch(&cacher, &Scope::All, &["sie=true", "match=NotOlderThan", "bookmarks"], MINUTE).await;
        store.write(&vec![put("a/z")]);
        let state = ["initial a/x@2", "initial a/y@3"];
        assert_eq!(ready(&mut now).await, [&state[..], &["ADDED a/z@4"]].concat());
        let end = ["end of the initial events 3", "ADDED a/z@4"];
        assert_eq!(ready(&mut replayed).await, [&state[..], &end].concat(), "promise: read your writes");
        assert_eq!(cacher.stats().generation, 2);
        assert_eq!(listed(&cacher, &[]).await.map(|(revision, _)| revision), Ok(4));
    });
}

/// Each such list would read everything from the store, and could delay the list of the cache forever.
#[test]
fn unbounded_lists_wait_while_the_cache_lists_again() {
    run(async {
        let store = TransactionStore::new();
        let cacher = restored(&store).await;
        assert_eq!((cacher.stats().generation, cacher.revision().get()), (1, 6));
        let before = cacher.stats().store_lists;
        let list = tokio::join!(listed(&cacher, &[]), listed(&cacher, &["labels=app=web"]));
        assert_eq!(list.0, Ok((3, vec!["a/x@2".to_owned(), "a/y@3".to_owned()])), "promise: read your writes");
        assert_eq!(list.1.map(|(revision, _)| revision), Ok(3));
        assert_eq!(cacher.stats().generation, 2);
        assert_eq!(cacher.stats().store_lists, before, "the cache has served the lists");

        let store = TransactionStore::new();
        let cacher = restored_with(&store, Limits { ready_wait: Duration::from_millis(10), ..quiet() }).await;
        assert_eq!(listed(&cacher, &[]).await, Err(429), "bounded: the client tries again later");
    });
}

#[test]
fn store_restored_during_the_refill_is_not_served_as_fresh() {
    run(async {
        let store = TransactionStore::new();
        for _ in 0..6 {
            store.write(&five());
        }
        // The cache refills its window up to 7, and has received 6.
        store.hold(6);
        let cacher = Cacher::start(store.clone(), config(quiet()));
        settle().await;
        assert_eq!((cacher.revision().get(), cacher.is_ready()), (6, false));
        store.put_back(3);
        store.hold(u64::MAX);
        cacher.wait_ready().await.unwrap();
        assert_eq!(listed(&cacher, &["rv=0"]).await.map(|(revision, _)| revision), Ok(3));
        assert_eq!(listed(&cacher, &["rv=5"]).await, Err(504), "promise: no time travel");
    });
}

#[test]
fn cache_is_ready_after_the_revision_that_was_current_at_its_start() {
    run(async {
        let store = TransactionStore::new();
        for _ in 0..6 {
            store.write(&five());
        }
        store.hold(6);
        let cacher = Cacher::start(store.clone(), config(quiet()));
        // Progress requests meanwhile return 6.
        for _ in 0..5 {
            settle().await;
            tokio::time::advance(Duration::from_millis(100)).await;
        }
        settle().await;
        assert_eq!((cacher.revision().get(), cacher.is_ready()), (6, false), "promise: no time travel");
        store.hold(7);
        settle().await;
        assert_eq!((cacher.revision().get(), cacher.is_ready()), (7, true));
        assert_eq!(cacher.stats().oldest.get(), 1, "and its window reaches back");
    });
}

#[test]
fn cache_requests_progress_as_soon_as_the_store_answers_it_reliably() {
    run(async {
        // As at a start of the server while one member of etcd is down.
        let store = TransactionStore::without_progress();
        store.write(&five());
        let cacher = Cacher::start(store.clone(), config(quiet()));
        cacher.wait_ready().await.unwrap();
        settle().await;
        assert_eq!(cacher.stats().progress_requests, 0, "the store may answer too early");
        store.set_progress(true);
        store.write_elsewhere();
        let begun = tokio::time::Instant::now();
        assert_eq!(listed(&cacher, &[]).await.map(|(revision, _)| revision), Ok(3), "promise: read your writes");
        let stats = cacher.stats();
        assert!(stats.progress_requests > 0, "the watch goes on without a progress request");
        assert_eq!((stats.consistent_fallbacks, stats.store_lists), (0, 0), "the cache serves the list");
        assert!(begun.elapsed() < Duration::from_secs(1), "the list waits {:?}", begun.elapsed());

        // A member was replaced by an older one.
        store.set_progress(false);
        store.write_elsewhere();
        assert_eq!(listed(&cacher, &[]).await.map(|(revision, _)| revision), Ok(4), "promise: read your writes");
        tokio::time::sleep(5 * MINUTE).await;
        assert_eq!(cacher.stats().progress_requests, stats.progress_requests, "the store may answer too early");
        store.set_progress(true);
        tokio::time::sleep(2 * MINUTE).await;
        assert_eq!(cacher.revision().get(), 4, "progress is also requested without a read");
    });
}

// ----------------------------------------------------------------------- random sequences

#[derive(Clone, Debug)]
enum Op {
    /// Writes one revision.
    Write(Transaction),
    /// Writes one revision after the next page of a list, or before the next watch of the store.
    Stage(Transaction),
    Forget,
    Advance {
        seconds: u64,
    },
    Watch {
        slot: usize,
        wanted: Wanted,
        from: From,
        lasts: u64,
    },
    Read {
        slot: usize,
        events: usize,
    },
    /// The server stops and another one replaces it.
    Stop,
    List {
        wanted: Wanted,
    },
    Pages {
        wanted: Wanted,
        limit: i64,
    },
}

#[derive(Clone, Copy, Debug)]
enum From {
    Consistent,
    Any,
    Back(u64),
    Ahead(u64),
}

const PATHS: [&str; 6] = ["a/x", "a/y", "a/z", "ab/x", "b/x", "b/y"];
const SLOTS: usize = 3;

fn transaction() -> impl Strategy<Value = Transaction> {
    let state =
        prop::option::weighted(0.7, (prop::sample::select(vec!["p", "q"]), prop::sample::select(vec!["", "n1"])));
    prop::collection::vec((prop::sample::select(PATHS.to_vec()), state), 1..5)
}

fn wanted() -> impl Strategy<Value = Wanted> {
    let maybe =
        |values: Vec<&'static str>| prop::option::weighted(0.3, prop::sample::select(values).prop_map(str::to_owned));
    (maybe(vec!["a", "b"]), maybe(vec!["p", "q"])).prop_map(|(namespace, app)| Wanted {
        namespace,
        app,
        ..Wanted::default()
    })
}

fn op() -> impl Strategy<Value = Op> {
    let from = prop_oneof![
        2 => Just(From::Consistent),
        1 => Just(From::Any),
        2 => (0..6u64).prop_map(From::Back),
        1 => (1..3u64).prop_map(From::Ahead),
    ];
    prop_oneof![
        8 => transaction().prop_map(Op::Write),
        4 => transaction().prop_map(Op::Stage),
        1 => Just(Op::Forget),
        3 => (1..5u64).prop_map(|seconds| Op::Advance { seconds }),
        4 => (0..SLOTS, wanted(), from, 1..12u64)
            .prop_map(|(slot, wanted, from, lasts)| Op::Watch { slot, wanted, from, lasts }),
        10 => (0..SLOTS, 1..4usize).prop_map(|(slot, events)| Op::Read { slot, events }),
        1 => Just(Op::Stop),
        2 => wanted().prop_map(|wanted| Op::List { wanted }),
        2 => (wanted(), 1..4i64).prop_map(|(wanted, limit)| Op::Pages { wanted, limit }),
    ]
}

/// A server with a cache, or without.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Server {
    Cached,
    Direct,
}

struct World {
    server: Server,
    store: Arc<TransactionStore>,
    cacher: Cacher,
    /// The number of server restarts. The checker accepts `410 Expired` for a retained revision only
    /// if the server restarted during the watch.
    restarts: u64,
    readers: Vec<Option<Reader>>,
}

struct Reader {
    watcher: Watcher,
    checker: Checker,
    wanted: Wanted,
}

fn limits() -> Limits {
    Limits {
        watcher_queue_events_max: 3,
        bookmark_interval: Duration::from_secs(2),
        bookmark_before_deadline: Duration::from_secs(1),
        list_page_objects: 2,
        audit_interval: None,
        ..Limits::default()
    }
}

fn words(wanted: &Wanted) -> (Scope, Vec<String>) {
    let scope = wanted.namespace.clone().map_or(Scope::All, Scope::Namespace);
    (scope, wanted.app.iter().map(|app| format!("labels=app={app}")).collect())
}

fn parsed(words: &[String]) -> ListOptions {
    options(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

impl World {
    async fn new(server: Server, progress: bool) -> Self {
        let store = if progress { TransactionStore::new() } else { TransactionStore::without_progress() };
        let cacher = Self::start(server, &store).await;
        World { server, store, cacher, restarts: 0, readers: (0..SLOTS).map(|_| None).collect() }
    }

    async fn start(server: Server, store: &Arc<TransactionStore>) -> Cacher {
        let start = if server == Server::Cached { Cacher::start } else { Cacher::direct };
        let cacher = start(store.clone(), config(limits()));
        cacher.wait_ready().await.unwrap();
        settle().await;
        cacher
    }

    /// All changes, and the number of replaced states.
    fn log(&self) -> crate::support::checker::Log {
        let restarts = self.restarts * 1_000 + self.cacher.stats().generation;
        crate::support::checker::Log { restarts, ..self.store.log() }
    }

    /// The oldest revision after which a watch may begin.
    fn oldest(&self) -> u64 {
        match self.server {
            Server::Cached => self.cacher.stats().oldest.get(),
            Server::Direct => self.store.oldest(),
        }
    }

    async fn step(&mut self, op: &Op) -> Result<(), String> {
        match op {
            Op::Write(transaction) => self.store.write(transaction),
            Op::Stage(transaction) => self.store.stage(transaction.clone()),
            Op::Forget => {
                settle().await;
                self.store.forget();
            }
            Op::Advance { seconds } => {
                for _ in 0..*seconds {
                    tokio::time::advance(Duration::from_secs(1)).await;
                    settle().await;
                }
            }
            Op::Watch { slot, wanted, from, lasts } => self.watch(*slot, wanted, *from, *lasts).await,
            Op::Read { slot, events } => {
                settle().await;
                self.read(*slot, *events).await?;
            }
            Op::Stop => {
                self.cacher.stop(None);
                for slot in 0..SLOTS {
                    self.read_all(slot).await?;
                }
                self.restarts += 1;
                self.cacher = Self::start(self.server, &self.store).await;
                for slot in 0..SLOTS {
                    self.resume(slot).await;
                }
            }
            Op::List { wanted } => {
                settle().await;
                let (scope, words) = words(wanted);
                let at_least = self.store.log().revision;
                let request = parsed(&words).list(self.cacher.shape()).unwrap();
                let list =
                    self.cacher.list(&scope, &request).await.map_err(|error| format!("a list fails: {error}"))?;
                let revision = list.revision.get();
                if revision < at_least {
                    return Err(format!("read your writes: a list shows {revision}, {at_least} was known"));
                }
                let items: Vec<Shown> = list.items.map(|object| shown(&object)).collect();
                check_list(&self.log(), wanted, revision, &items)?;
            }
            Op::Pages { wanted, limit } => self.pages(wanted, *limit).await?,
        }
        Ok(())
    }

    async fn watch(&mut self, slot: usize, wanted: &Wanted, from: From, lasts: u64) {
        settle().await;
        let revision = self.store.log().revision;
        let (rv, checker) = match from {
            From::Consistent => (String::new(), Checker::initial(wanted.clone(), revision)),
            From::Any => ("0".to_owned(), Checker::initial(wanted.clone(), 0)),
            From::Back(back) => {
                let place = revision.saturating_sub(back).max(1);
                (place.to_string(), Checker::after(wanted.clone(), place))
            }
            From::Ahead(ahead) => ((revision + ahead).to_string(), Checker::after(wanted.clone(), revision + ahead)),
        };
        self.begin(slot, wanted.clone(), &rv, checker, lasts).await;
    }

    async fn begin(&mut self, slot: usize, wanted: Wanted, rv: &str, checker: Checker, lasts: u64) {
        let (scope, mut words) = words(&wanted);
        words.extend([format!("rv={rv}"), "bookmarks".to_owned()]);
        let checker = checker.may_end().begun_at(&self.log());
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let watcher = watch(&self.cacher, &scope, &words, Duration::from_secs(lasts)).await;
        self.readers[slot] = Some(Reader { watcher, checker, wanted });
    }

    /// Resumes a reader whose watch has ended.
    async fn resume(&mut self, slot: usize) {
        let Some(reader) = &self.readers[slot] else { return };
        let Some(place) = reader.checker.resume_from().filter(|_| reader.checker.is_over()) else { return };
        let (wanted, checker) = (reader.wanted.clone(), Checker::after(reader.wanted.clone(), place));
        self.begin(slot, wanted, &place.to_string(), checker, 8).await;
    }

    async fn read(&mut self, slot: usize, events: usize) -> Result<(), String> {
        let Some(mut reader) = self.readers[slot].take() else { return Ok(()) };
        let (mut ended, mut expired) = (false, false);
        for _ in 0..events {
            let next = std::future::poll_fn(|cx| {
                std::task::Poll::Ready(futures_core::Stream::poll_next(std::pin::Pin::new(&mut reader.watcher), cx))
            });
            let seen = match next.await {
                std::task::Poll::Pending => break,
                std::task::Poll::Ready(Some(delivery)) => seen(&delivery),
                std::task::Poll::Ready(None) => Seen::End,
            };
            ended = seen == Seen::End;
            expired |= matches!(seen, Seen::Error(_));
            reader.checker.see(&self.log(), self.oldest(), seen)?;
            if ended {
                break;
            }
        }
        // A reader that receives `410 Expired` lists again.
        self.readers[slot] = (!expired).then_some(reader);
        if ended && !self.cacher.is_stopped() {
            self.resume(slot).await;
        }
        Ok(())
    }

    async fn read_all(&mut self, slot: usize) -> Result<(), String> {
        self.read(slot, 10_000).await
    }

    async fn pages(&mut self, wanted: &Wanted, limit: i64) -> Result<(), String> {
        settle().await;
        let (scope, words) = words(wanted);
        let mut options = ListOptions { limit, ..parsed(&words) };
        let (mut items, mut revision) = (Vec::new(), None);
        loop {
            let request = options.list(self.cacher.shape()).unwrap();
            let list = self.cacher.list(&scope, &request).await.map_err(|error| format!("a page fails: {error}"))?;
            let first = *revision.get_or_insert(list.revision.get());
            if list.revision.get() != first {
                return Err(format!("one state: a page at {first} is followed by one at {:?}", list.revision));
            }
            items.extend(list.items.map(|object| shown(&object)));
            match list.continue_token {
                Some(token) => {
                    options.continue_token = token;
                    options.resource_version = ResourceVersion::default();
                }
                None => return check_list(&self.log(), wanted, first, &items),
            }
        }
    }

    /// Reads all watches to the end and checks that nothing is missing.
    async fn finish(&mut self) -> Result<(), String> {
        for _ in 0..2 {
            // Releases the watches that wait for a staged write.
            self.store.write(&vec![put("a/x"), put("b/x")]);
            settle().await;
        }
        for slot in 0..SLOTS {
            // The first pass resumes ended watches, the next one reads them.
            for _ in 0..3 {
                settle().await;
                self.read_all(slot).await?;
            }
            if let Some(reader) = &self.readers[slot] {
                reader.checker.finish(&self.log())?;
            }
        }
        Ok(())
    }
}

fn live(server: Server, progress: bool, ops: &[Op]) -> Result<(), String> {
    run(async {
        let mut world = World::new(server, progress).await;
        for op in ops {
            world.step(op).await?;
        }
        world.finish().await
    })
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 5_000, ..ProptestConfig::default() })]

    #[test]
    fn uncached_watches_deliver_multi_key_revisions_completely(
        ops in prop::collection::vec(op(), 1..50),
    ) {
        if let Err(broken) = live(Server::Direct, true, &ops) {
            prop_assert!(false, "{}", broken);
        }
    }

    #[test]
    fn cached_watches_deliver_multi_key_revisions_completely(
        ops in prop::collection::vec(op(), 1..50),
        progress in any::<bool>(),
    ) {
        if let Err(broken) = live(Server::Cached, progress, &ops) {
            prop_assert!(false, "{}", broken);
        }
    }
}
