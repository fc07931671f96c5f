//! Tests of the suite itself: each flawed store must fail the case of its broken guarantee.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::Stream;
use listwatch_meta::{Key, KeyRange, Revision};
use listwatch_storage::{
    Capabilities, CreateError, DeleteError, KeyValue, ListPage, ListQuery, MemoryStorage, ReadError, Storage,
    StoreEvent, StoreFault, StoreStats, UpdateError, Watch, WatchError, WatchItem,
};
use listwatch_store_conformance::{cases, check_model, operations};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

/// The flaw of a store.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Flaw {
    None,
    StaleGet,
    CreateOverwrites,
    UpdateUnconditional,
    DeleteUnconditional,
    ConflictWithoutState,
    RevisionZero,
    ListIgnoresRevision,
    ListOutOfOrder,
    ListIgnoresLimit,
    RemainingOffByOne,
    ListKeysIgnoresRevision,
    ListMatchesNeighbours,
    FutureIsLatest,
    CompactionIgnored,
    WatchSkipsOne,
    WatchRepeats,
    WatchWithoutPrevious,
    WatchMatchesNeighbours,
    WatchFromNow,
    ProgressTooEarly,
    ProgressEchoesTheCaller,
    RevisionTorn,
    TtlIgnored,
    TtlTooShort,
}

struct Flawed {
    inner: Arc<MemoryStorage>,
    flaw: Flaw,
}

impl Flawed {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    /// Returns the range, or with this flaw all keys from its start on, including those of other resources.
    fn range(&self, range: &KeyRange, flaw: Flaw) -> KeyRange {
        if self.has(flaw) { KeyRange::below("/").starting_at(range.start()) } else { range.clone() }
    }

    fn ttl(&self, ttl: Option<Duration>) -> Option<Duration> {
        match self.flaw {
            Flaw::TtlIgnored => None,
            Flaw::TtlTooShort => ttl.map(|ttl| ttl - Duration::from_millis(2)),
            _ => ttl,
        }
    }
}

#[async_trait]
impl Storage for Flawed {
    async fn get(&self, key: &Key) -> Result<(Option<KeyValue>, Revision), ReadError> {
        let (found, revision) = self.inner.get(key).await?;
        if self.has(Flaw::StaleGet) {
            let at = Some(revision.previous().max(Revision::new(1)));
            let old = self.inner.list(ListQuery { range: KeyRange::single(key), at, limit: 0 }).await;
            return Ok((old.ok().and_then(|page| page.items.into_iter().next()), revision));
        }
        Ok((found, revision))
    }

    async fn list(&self, query: ListQuery) -> Result<ListPage, ReadError> {
        let mut asked = query.clone();
        asked.range = self.range(&query.range, Flaw::ListMatchesNeighbours);
        match self.flaw {
            Flaw::ListIgnoresRevision => asked.at = None,
            Flaw::ListIgnoresLimit => asked.limit = 0,
            Flaw::FutureIsLatest => {
                let now = self.inner.current_revision().await?;
                asked.at = asked.at.map(|at| at.min(now));
            }
            _ => {}
        }
        let mut page = self.inner.list(asked).await?;
        match self.flaw {
            Flaw::ListIgnoresRevision => page.revision = query.at.unwrap_or(page.revision),
            Flaw::ListOutOfOrder => page.items.reverse(),
            Flaw::RemainingOffByOne => page.remaining = page.remaining.map(|remaining| remaining + 1),
            _ => {}
        }
        Ok(page)
    }

    async fn list_keys(&self, query: ListQuery) -> Result<ListPage, ReadError> {
        let at = query.at.filter(|_| !self.has(Flaw::ListKeysIgnoresRevision));
        self.inner.list_keys(ListQuery { at, ..query }).await
    }

    async fn create(&self, key: &Key, value: Bytes, ttl: Option<Duration>) -> Result<Revision, CreateError> {
        let ttl = self.ttl(ttl);
        match self.inner.create(key, value.clone(), ttl).await {
            Err(CreateError::AlreadyExists { key, current }) if self.has(Flaw::CreateOverwrites) => {
                let updated = self.inner.update(&key, current.modified, value, ttl).await;
                Ok(updated.unwrap_or(current.modified))
            }
            result => result,
        }
    }

    async fn update(
        &self,
        key: &Key,
        expected: Revision,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> Result<Revision, UpdateError> {
        let ttl = self.ttl(ttl);
        match self.inner.update(key, expected, value.clone(), ttl).await {
            Err(UpdateError::Conflict { current: Some(current) }) if self.has(Flaw::UpdateUnconditional) => {
                self.inner.update(key, current.modified, value, ttl).await
            }
            Err(UpdateError::Conflict { .. }) if self.has(Flaw::ConflictWithoutState) => {
                Err(UpdateError::Conflict { current: None })
            }
            result => result,
        }
    }

    async fn delete(&self, key: &Key, expected: Revision) -> Result<Revision, DeleteError> {
        match self.inner.delete(key, expected).await {
            Err(DeleteError::Conflict { current: Some(current) }) if self.has(Flaw::DeleteUnconditional) => {
                self.inner.delete(key, current.modified).await
            }
            result => result,
        }
    }

    async fn watch(&self, range: KeyRange, after: Revision) -> Result<Watch, WatchError> {
        let range = self.range(&range, Flaw::WatchMatchesNeighbours);
        let now = self.inner.current_revision().await.unwrap_or_default();
        let after = if self.has(Flaw::WatchFromNow) { now.max(after) } else { after };
        let (items, progress) = self.inner.watch(range, after).await?.into_parts();
        let (inner, flaw) = (self.inner.clone(), self.flaw);
        let again = (self.has(Flaw::ProgressEchoesTheCaller) && after > now).then_some(WatchItem::Progress(after));
        let items = FlawedWatch { items, flaw, seen: 0, again, torn: None, inner };
        Ok(Watch::new(items, progress))
    }

    async fn current_revision(&self) -> Result<Revision, ReadError> {
        let now = self.inner.current_revision().await?;
        Ok(if self.has(Flaw::RevisionZero) { now.previous() } else { now })
    }

    async fn compact(&self, revision: Revision) -> Result<(), ReadError> {
        if self.has(Flaw::CompactionIgnored) { Ok(()) } else { self.inner.compact(revision).await }
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn health(&self) -> Result<(), StoreFault> {
        self.inner.health().await
    }

    async fn stats(&self) -> Result<StoreStats, StoreFault> {
        self.inner.stats().await
    }
}

struct FlawedWatch {
    items: listwatch_storage::ItemStream,
    flaw: Flaw,
    seen: usize,
    again: Option<WatchItem>,
    torn: Option<Revision>,
    inner: Arc<MemoryStorage>,
}

impl Stream for FlawedWatch {
    type Item = WatchItem;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<WatchItem>> {
        if let Some(item) = self.again.take() {
            return Poll::Ready(Some(item));
        }
        loop {
            let item = std::task::ready!(self.items.as_mut().poll_next(cx));
            let Some(WatchItem::Event(mut event)) = item else { return Poll::Ready(item) };
            self.seen += 1;
            match self.flaw {
                Flaw::WatchSkipsOne if self.seen == 2 => continue,
                Flaw::WatchRepeats if self.seen == 2 => self.again = Some(WatchItem::Event(event.clone())),
                Flaw::WatchWithoutPrevious => {
                    let (StoreEvent::Put { previous, .. } | StoreEvent::Delete { previous, .. }) = &mut event;
                    *previous = None;
                }
                // Two removals belong to one revision, and the watch is pending between them.
                Flaw::RevisionTorn => {
                    if let StoreEvent::Delete { revision, .. } = &mut event {
                        match self.torn.take() {
                            None => self.torn = Some(*revision),
                            Some(first) => {
                                *revision = first;
                                self.again = Some(WatchItem::Event(event));
                                cx.waker().wake_by_ref();
                                return Poll::Pending;
                            }
                        }
                    }
                }
                Flaw::ProgressTooEarly => {
                    self.again = Some(WatchItem::Event(event.clone()));
                    let revision = event.revision();
                    return Poll::Ready(Some(WatchItem::Progress(revision)));
                }
                _ => {}
            }
            // The store lives as long as its watches, as a remote one would.
            let _ = &self.inner;
            return Poll::Ready(Some(WatchItem::Event(event)));
        }
    }
}

fn run<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(future)
}

/// The cases that detect a flaw.
fn detected_by(flaw: Flaw) -> Vec<&'static str> {
    let notices = cases().filter(|case| {
        let store = Flawed { inner: MemoryStorage::new(), flaw };
        run(case.run(Arc::new(store))).is_err()
    });
    notices.map(|case| case.name).collect()
}

fn check(flaw: Flaw, case: &str) {
    let noticed = detected_by(flaw);
    assert!(noticed.contains(&case), "{flaw:?} must be noticed by {case}, it is by {noticed:?}");
}

#[test]
fn store_without_a_flaw_passes_every_case() {
    assert_eq!(detected_by(Flaw::None), [""; 0]);
}

#[test]
fn each_flaw_of_a_store_is_detected_by_its_conformance_case() {
    check(Flaw::StaleGet, "read_shows_every_acknowledged_write");
    check(Flaw::CreateOverwrites, "create_of_existing_key_fails");
    check(Flaw::CreateOverwrites, "exactly_one_of_many_creators_succeeds");
    check(Flaw::UpdateUnconditional, "update_at_another_revision_fails");
    check(Flaw::UpdateUnconditional, "exactly_one_of_many_writers_succeeds");
    check(Flaw::DeleteUnconditional, "delete_at_another_revision_fails");
    check(Flaw::ConflictWithoutState, "update_at_another_revision_fails");
    check(Flaw::RevisionZero, "empty_store_has_a_revision_above_zero");
    check(Flaw::ListIgnoresRevision, "list_at_former_revision_returns_its_state");
    check(Flaw::ListIgnoresRevision, "pages_show_one_revision_while_others_write");
    check(Flaw::ListOutOfOrder, "list_is_in_key_order_and_counts_the_rest");
    check(Flaw::ListIgnoresLimit, "list_is_in_key_order_and_counts_the_rest");
    check(Flaw::RemainingOffByOne, "list_is_in_key_order_and_counts_the_rest");
    check(Flaw::ListKeysIgnoresRevision, "list_keys_equals_list_without_values");
    check(Flaw::ListMatchesNeighbours, "list_excludes_keys_with_the_same_prefix");
    check(Flaw::FutureIsLatest, "list_at_future_revision_fails");
    check(Flaw::CompactionIgnored, "list_at_compacted_revision_fails");
    check(Flaw::CompactionIgnored, "watch_from_compacted_revision_expires");
    check(Flaw::WatchSkipsOne, "watch_from_any_revision_misses_nothing");
    check(Flaw::WatchSkipsOne, "all_watchers_see_the_same_order");
    check(Flaw::WatchSkipsOne, "list_then_watch_misses_nothing");
    check(Flaw::WatchRepeats, "watch_from_any_revision_misses_nothing");
    check(Flaw::WatchWithoutPrevious, "watch_from_any_revision_misses_nothing");
    check(Flaw::WatchMatchesNeighbours, "watch_excludes_keys_with_the_same_prefix");
    check(Flaw::WatchFromNow, "watch_from_any_revision_misses_nothing");
    check(Flaw::ProgressTooEarly, "progress_is_never_ahead_of_events");
    check(Flaw::ProgressEchoesTheCaller, "progress_never_exceeds_the_stores_revision");
    check(Flaw::RevisionTorn, "changes_of_one_revision_are_ready_together");
    check(Flaw::TtlIgnored, "key_expires_after_its_ttl");
    check(Flaw::TtlTooShort, "key_expires_after_its_ttl");
}

#[test]
fn model_check_detects_flawed_stores() {
    for flaw in [
        Flaw::CreateOverwrites,
        Flaw::UpdateUnconditional,
        Flaw::DeleteUnconditional,
        Flaw::ListIgnoresRevision,
        Flaw::RemainingOffByOne,
        Flaw::WatchSkipsOne,
        Flaw::WatchRepeats,
        Flaw::WatchWithoutPrevious,
        Flaw::CompactionIgnored,
    ] {
        let mut runner = TestRunner::deterministic();
        let strategy = operations(120);
        let noticed = (0..100).any(|_| {
            let operations = strategy.new_tree(&mut runner).unwrap().current();
            let store = Arc::new(Flawed { inner: MemoryStorage::new(), flaw });
            run(check_model(store, &operations, async || None)).is_err()
        });
        assert!(noticed, "{flaw:?} is not noticed in a hundred sequences");
    }
}
