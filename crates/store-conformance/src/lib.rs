//! The conformance suite of stores ([`Storage`]): one case per guarantee, named after it.
//!
//! ```text
//!   cases()          every case, for a custom harness
//!   run_all(factory) all of them, one after the other
//!   conformance_tests!{ .. }   one #[tokio::test] per case, so that a runner lists them
//!   model            random operations, compared with a simple list of events
//! ```
//!
//! The store of a case may hold other keys and have other writers (a shared etcd). A case therefore uses its own
//! resource prefix, and expects only that revisions increase. The text of a failure is the broken guarantee and the
//! observation.
//!
//! # Example
//! ```
//! use listwatch_storage::MemoryStorage;
//! # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?.block_on(async {
//! listwatch_store_conformance::run_all(async || MemoryStorage::new()).await?;
//! # Ok::<(), Box<dyn std::error::Error>>(()) })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod model;
mod reads;
mod times;
mod watches;
mod writes;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use listwatch_meta::{Key, KeyRange, Revision};
use tokio::time::timeout;

use listwatch_storage::StoreFault;
use listwatch_storage::{KeyValue, ListPage, ListQuery, Storage, StoreEvent, Watch, WatchItem};

pub use model::{Op, check_model, operations};

/// The time limit for an expected event.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A broken guarantee.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The guarantee.
    pub promise: String,
    /// The observation that contradicts it.
    pub seen: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "broken promise: {}; seen: {}", self.promise, self.seen)
    }
}

impl std::error::Error for Broken {}

/// The result of a case.
pub type Verdict = Result<(), Broken>;

/// One case of the suite.
#[derive(Clone, Copy)]
pub struct Case {
    /// The name for test runners.
    pub name: &'static str,
    /// The guarantee that the case checks.
    pub promise: &'static str,
    /// Whether the case compacts the store. Such a case must run alone if several cases share a
    /// store.
    pub compacts: bool,
    run: fn(Subject) -> Pin<Box<dyn Future<Output = Verdict> + Send>>,
}

impl Case {
    /// Runs the case on a store. The case leaves keys in the store.
    ///
    /// # Errors
    /// The broken guarantee.
    pub async fn run(&self, store: Arc<dyn Storage>) -> Verdict {
        static RUNS: AtomicU64 = AtomicU64::new(0);
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        // The process id distinguishes runs that share an etcd.
        let resource = format!("conformance/{}-{}-{run}", self.name, std::process::id());
        (self.run)(Subject { store, resource: resource.into(), promise: self.promise }).await
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.promise)
    }
}

/// All cases.
pub fn cases() -> impl Iterator<Item = &'static Case> {
    [writes::CASES, reads::CASES, watches::CASES, times::CASES].into_iter().flatten()
}

/// Runs every case, each on a store from `factory`, and stops at the first broken guarantee.
///
/// # Errors
/// The broken guarantee, with the name of its case.
pub async fn run_all<S: Storage>(factory: impl AsyncFn() -> Arc<S>) -> Verdict {
    for case in cases() {
        let broken = |broken: Broken| Broken { promise: format!("[{}] {}", case.name, broken.promise), ..broken };
        case.run(factory().await).await.map_err(broken)?;
    }
    Ok(())
}

/// Runs the case of this name, for [`conformance_tests!`](crate::conformance_tests).
///
/// # Panics
/// When a guarantee is broken, or when there is no such case.
pub async fn run_case(name: &str, store: Arc<dyn Storage>) {
    let case = cases().find(|case| case.name == name).expect("a case of this name");
    if let Err(broken) = case.run(store).await {
        panic!("{broken}");
    }
}

/// Defines one test per case, so that a runner lists them and runs them in parallel. Takes an
/// expression for a future of an `Arc` of a [`Storage`], which is evaluated once per case.
///
/// ```
/// listwatch_store_conformance::conformance_tests! { async { listwatch_storage::MemoryStorage::new() } }
/// ```
#[macro_export]
macro_rules! conformance_tests {
    ($factory:expr) => {
        $crate::conformance_tests! { @each $factory;
            each_write_takes_a_later_revision
            empty_store_has_a_revision_above_zero
            create_of_existing_key_fails
            update_at_another_revision_fails
            delete_at_another_revision_fails
            failed_write_changes_nothing
            recreated_key_has_new_revisions
            exactly_one_of_many_writers_succeeds
            exactly_one_of_many_creators_succeeds
            value_of_any_bytes_is_stored_unchanged
            any_valid_key_is_stored
            dropped_write_is_atomic
            read_shows_every_acknowledged_write
            conditional_read_equals_a_read
            reads_never_go_back_in_time
            list_is_in_key_order_and_counts_the_rest
            list_keys_equals_list_without_values
            list_excludes_keys_with_the_same_prefix
            list_at_former_revision_returns_its_state
            pages_show_one_revision_while_others_write
            list_at_future_revision_fails
            list_at_compacted_revision_fails
            compaction_keeps_the_latest_state
            health_and_stats_are_answered
            watch_from_any_revision_misses_nothing
            watch_from_the_beginning_sees_everything_or_expires
            watch_delivers_changes_as_they_happen
            watch_excludes_keys_with_the_same_prefix
            watch_begins_after_the_requested_revision
            all_watchers_see_the_same_order
            list_then_watch_misses_nothing
            slow_watcher_misses_nothing_or_expires
            watch_from_compacted_revision_expires
            current_watch_survives_compaction
            progress_is_never_ahead_of_events
            progress_covers_every_acknowledged_write
            progress_never_exceeds_the_stores_revision
            changes_of_one_revision_are_ready_together
            watch_delivers_large_values
            key_expires_after_its_ttl
        }
    };
    (@each $factory:expr; $($name:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                $crate::run_case(stringify!($name), $factory.await).await;
            }
        )*

        #[test]
        fn every_conformance_case_is_listed() {
            let listed = [$(stringify!($name)),*];
            let missing: Vec<_> =
                $crate::cases().map(|case| case.name).filter(|name| !listed.contains(name)).collect();
            assert!(missing.is_empty(), "cases that no test runs: {missing:?}");
        }
    };
}

/// Defines a table of cases from functions, which give the cases their names.
macro_rules! case_table {
    ($($name:ident $(($compacts:ident))? : $promise:literal,)*) => {
        pub(super) const CASES: &[$crate::Case] = &[$(
            $crate::Case {
                name: stringify!($name),
                promise: $promise,
                compacts: crate::case_table!(@compacts $($compacts)?),
                run: |subject| Box::pin($name(subject)),
            },
        )*];
    };
    (@compacts compacts) => { true };
    (@compacts) => { false };
}
use case_table;

/// A store under test, and the key range of this case.
#[derive(Clone)]
struct Subject {
    store: Arc<dyn Storage>,
    resource: Arc<str>,
    promise: &'static str,
}

impl Subject {
    fn key(&self, name: &str) -> Key {
        Key::new(&self.resource, Some("ns"), name).expect("a valid name")
    }

    fn range(&self) -> KeyRange {
        KeyRange::resource(&self.resource)
    }

    /// Reports the guarantee as broken by this observation.
    fn broken(&self, seen: impl fmt::Display) -> Broken {
        Broken { promise: self.promise.to_owned(), seen: seen.to_string() }
    }

    fn require(&self, kept: bool, seen: impl FnOnce() -> String) -> Verdict {
        if kept { Ok(()) } else { Err(self.broken(seen())) }
    }

    fn require_eq<T: PartialEq + fmt::Debug>(&self, what: &str, seen: T, expected: T) -> Verdict {
        self.require(seen == expected, || format!("{what} is {seen:?}, expected {expected:?}"))
    }

    async fn create(&self, name: &str, value: impl Into<Bytes>) -> Result<Revision, Broken> {
        let created = self.store.create(&self.key(name), value.into(), None).await;
        created.map_err(|error| self.broken(format!("creating {name} fails: {error}")))
    }

    async fn update(&self, name: &str, expected: Revision, value: impl Into<Bytes>) -> Result<Revision, Broken> {
        let updated = self.store.update(&self.key(name), expected, value.into(), None).await;
        updated.map_err(|error| self.broken(format!("updating {name} at {expected:?} fails: {error:?}")))
    }

    async fn delete(&self, name: &str, expected: Revision) -> Result<Revision, Broken> {
        let deleted = self.store.delete(&self.key(name), expected).await;
        deleted.map_err(|error| self.broken(format!("deleting {name} at {expected:?} fails: {error:?}")))
    }

    async fn get(&self, name: &str) -> Result<Option<KeyValue>, Broken> {
        let got = self.store.get(&self.key(name)).await;
        got.map(|(found, _)| found).map_err(|error| self.broken(format!("reading {name} fails: {error}")))
    }

    async fn list(&self, range: KeyRange, at: Option<Revision>, limit: usize) -> Result<ListPage, Broken> {
        let page = self.store.list(ListQuery { range, at, limit }).await;
        page.map_err(|error| self.broken(format!("listing at {at:?} fails: {error}")))
    }

    async fn now(&self) -> Result<Revision, Broken> {
        self.store.current_revision().await.map_err(|error| self.broken(format!("no current revision: {error}")))
    }

    async fn watch(&self, range: KeyRange, after: Revision) -> Result<Watched, Broken> {
        let watch = self.store.watch(range, after).await;
        let watch = watch.map_err(|error| self.broken(format!("watching after {after:?} fails: {error}")))?;
        Ok(Watched { subject: self.clone(), watch, last: Revision::ZERO })
    }
}

/// A watch that checks the rules of every watch on each item.
struct Watched {
    subject: Subject,
    watch: Watch,
    /// The revision of the last event or progress.
    last: Revision,
}

impl Watched {
    /// Waits for the next item.
    async fn item(&mut self) -> Result<WatchItem, Broken> {
        let item = match timeout(PATIENCE, self.watch.next()).await {
            Ok(Some(item)) => item,
            Ok(None) => return Err(self.subject.broken("the watch ends without a word")),
            Err(_) => {
                return Err(self.subject.broken(format!("nothing came for {PATIENCE:?} after {:?}", self.last)));
            }
        };
        match &item {
            WatchItem::Event(event) => {
                let revision = event.revision();
                self.subject.require(revision > self.last, || {
                    format!("an event at {revision:?} comes after {:?}", self.last)
                })?;
                self.last = revision;
            }
            WatchItem::Progress(revision) => {
                self.subject.require(*revision >= self.last, || {
                    format!("progress at {revision:?} comes after {:?}", self.last)
                })?;
                self.last = *revision;
            }
            WatchItem::Expired { .. } | WatchItem::Lost(_) => {}
        }
        Ok(item)
    }

    /// Waits for the next event; skips progress.
    async fn event(&mut self) -> Result<StoreEvent, Broken> {
        loop {
            match self.item().await? {
                WatchItem::Event(event) => return Ok(event),
                WatchItem::Progress(_) => {}
                other => return Err(self.subject.broken(format!("{other:?} instead of an event"))),
            }
        }
    }

    /// Waits for this many events.
    async fn events(&mut self, count: usize) -> Result<Vec<StoreEvent>, Broken> {
        let mut events = Vec::with_capacity(count);
        for _ in 0..count {
            events.push(self.event().await?);
        }
        Ok(events)
    }

    /// Requests progress until it covers a revision, and returns the events before it.
    async fn progress_to(&mut self, revision: Revision) -> Result<Vec<StoreEvent>, Broken> {
        /// The maximum number of items before progress covers the revision. With more items, the case fails. A store
        /// may report older revisions a few times first.
        const ANSWERS_MAX: usize = 10_000;
        let mut events = Vec::new();
        for _ in 0..ANSWERS_MAX {
            self.watch.request_progress();
            match self.item().await? {
                WatchItem::Event(event) => events.push(event),
                WatchItem::Progress(covered) if covered >= revision => return Ok(events),
                WatchItem::Progress(_) => tokio::task::yield_now().await,
                other => return Err(self.subject.broken(format!("{other:?} instead of progress"))),
            }
        }
        Err(self.subject.broken(format!("progress is at {:?} and does not reach {revision:?}", self.last)))
    }

    /// Checks that no event follows up to the store's current revision. A store without reliable progress is not
    /// checked.
    async fn quiet(&mut self) -> Verdict {
        if !self.subject.store.capabilities().progress_requests {
            return Ok(());
        }
        let now = self.subject.now().await?;
        let events = self.progress_to(now).await?;
        self.subject.require(events.is_empty(), || format!("{events:?} after the last expected event"))
    }

    /// Checks that the watch ends with Expired.
    async fn expired(mut self) -> Verdict {
        let item = self.item().await?;
        self.subject.require(matches!(item, WatchItem::Expired { .. }), || format!("{item:?} instead of Expired"))?;
        match timeout(PATIENCE, self.watch.next()).await {
            Ok(None) => Ok(()),
            Ok(Some(item)) => Err(self.subject.broken(format!("{item:?} after Expired"))),
            Err(_) => Err(self.subject.broken("the watch does not end after Expired")),
        }
    }
}

/// The value of an event's new state; `None` for a removal.
fn value(event: &StoreEvent) -> Option<&Bytes> {
    match event {
        StoreEvent::Put { current, .. } => Some(&current.value),
        StoreEvent::Delete { .. } => None,
    }
}

/// The state replaced by an event.
fn previous(event: &StoreEvent) -> Option<&KeyValue> {
    match event {
        StoreEvent::Put { previous, .. } | StoreEvent::Delete { previous, .. } => previous.as_ref(),
    }
}

/// Formats a store fault.
fn fault_text(fault: &StoreFault) -> String {
    format!("the store fails: {fault}")
}
