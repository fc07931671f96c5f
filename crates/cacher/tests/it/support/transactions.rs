//! [`TransactionStore`]: a store whose revisions change many keys, as etcd's transactions and
//! leases do. Tests can stage writes of other clients at critical moments.
//!
//! The store consists of the checker's [`Log`]: a list is the state at a revision, and a watch is a
//! position in the log.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::Stream;
use listwatch_meta::{Key, KeyRange, Revision};
use listwatch_storage::{
    Capabilities, CreateError, DeleteError, KeyValue, ListPage, ListQuery, ReadError, Storage, StoreEvent, StoreFault,
    StoreStats, UpdateError, Watch, WatchError, WatchItem,
};
use parking_lot::Mutex;

use super::checker::{Fact, Log, State};
use super::{key, settle};

/// One transaction: the written objects (label `app`, field `spec.nodeName`) and the removed ones.
/// All changes have one revision.
pub type Transaction = Vec<(&'static str, Option<(&'static str, &'static str)>)>;

pub struct TransactionStore {
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    log: Log,
    /// The compacted revision. Older revisions can be neither read nor watched from.
    compacted: u64,
    /// Transactions to write after the next page, or before the next watch begins.
    staged: VecDeque<Transaction>,
    /// Whether progress can be requested.
    progress: bool,
    /// The revision after which watches deliver nothing.
    held: u64,
    /// The number of restores; watches of a former history are expired.
    histories: u64,
    wakers: Vec<Waker>,
}

impl Shared {
    fn write(&mut self, transaction: &Transaction) {
        let revision = self.log.revision + 1;
        let before = self.log.state(self.log.revision);
        let mut written: Vec<&str> = Vec::new();
        for (path, state) in transaction {
            // A transaction of etcd writes a key once.
            if written.contains(path) || (state.is_none() && !before.contains_key(*path)) {
                continue;
            }
            written.push(path);
            match state {
                Some((app, node)) => self.log.write(revision, path, app, node),
                None => self.log.delete(revision, path),
            }
        }
    }

    /// Writes the next staged transaction, if any; returns the wakers to call.
    fn write_staged(&mut self) -> Option<Vec<Waker>> {
        let transaction = self.staged.pop_front()?;
        self.write(&transaction);
        Some(std::mem::take(&mut self.wakers))
    }
}

impl TransactionStore {
    pub fn new() -> Arc<Self> {
        Self::with_progress(true)
    }

    /// Creates a store without progress requests, like an old etcd.
    pub fn without_progress() -> Arc<Self> {
        Self::with_progress(false)
    }

    fn with_progress(progress: bool) -> Arc<Self> {
        let log = Log { revision: 1, ..Log::default() };
        let shared = Shared {
            log,
            compacted: 0,
            staged: VecDeque::new(),
            progress,
            held: u64::MAX,
            histories: 0,
            wakers: Vec::new(),
        };
        Arc::new(TransactionStore { shared: Arc::new(Mutex::new(shared)) })
    }

    /// Writes several objects at one revision.
    pub fn write(&self, transaction: &Transaction) {
        self.change(|shared| shared.write(transaction));
    }

    /// Writes one revision of another resource.
    pub fn write_elsewhere(&self) {
        self.change(|shared| shared.log.revision += 1);
    }

    /// Sets whether progress can be requested.
    pub fn set_progress(&self, progress: bool) {
        self.shared.lock().progress = progress;
    }

    /// Holds back watch events after this revision, and reports the revision as progress.
    pub fn hold(&self, revision: u64) {
        self.change(|shared| shared.held = revision);
    }

    /// Restores the state at a revision, as an operator may do. Every watch is expired.
    pub fn put_back(&self, revision: u64) {
        self.change(|shared| {
            shared.log.real.retain(|fact| fact.revision <= revision);
            shared.log.revision = revision;
            shared.histories += 1;
        });
    }

    fn change(&self, change: impl FnOnce(&mut Shared)) {
        let wakers = {
            let mut shared = self.shared.lock();
            change(&mut shared);
            std::mem::take(&mut shared.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Stages a write after the next listed page, or before the next watch begins.
    pub fn stage(&self, transaction: Transaction) {
        self.shared.lock().staged.push_back(transaction);
    }

    /// Compacts all former revisions.
    pub fn forget(&self) {
        let mut shared = self.shared.lock();
        shared.compacted = shared.log.revision;
    }

    /// Returns a page, and the wakers to call for the write that is staged after it.
    fn read_page(&self, query: &ListQuery) -> Result<(ListPage, Option<Vec<Waker>>), ReadError> {
        let mut shared = self.shared.lock();
        let current = shared.log.revision;
        let at = query.at.filter(|at| !at.is_zero()).map_or(current, Revision::get);
        let requested = Revision::new(at);
        if at > current {
            return Err(ReadError::Future { requested, current: Revision::new(current) });
        }
        if at < shared.compacted {
            return Err(ReadError::Compacted { requested, oldest: Some(Revision::new(shared.compacted)) });
        }
        let entries = shared.log.state(at);
        let entries = entries.iter().map(|(path, state)| entry(path, state));
        let mut items: Vec<_> = entries.filter(|entry| query.range.contains(entry.key.as_str())).collect();
        let limit = if query.limit == 0 { usize::MAX } else { query.limit };
        let remaining = items.len().saturating_sub(limit) as u64;
        items.truncate(limit);
        let page = ListPage { items, revision: requested, more: remaining > 0, remaining: Some(remaining) };
        Ok((page, shared.write_staged()))
    }

    /// The oldest revision that can be read and watched from.
    pub fn oldest(&self) -> u64 {
        self.shared.lock().compacted
    }

    /// All changes.
    pub fn log(&self) -> Log {
        let shared = self.shared.lock();
        Log { real: shared.log.real.clone(), revision: shared.log.revision, restarts: 0 }
    }
}

/// The error of write requests: only [`TransactionStore::write`] writes.
fn read_only() -> StoreFault {
    StoreFault::Unavailable("this store is written by transactions".to_owned())
}

/// The label `app` of an object whose stored value is not an object.
pub const GARBAGE: &str = "garbage";

fn entry(path: &str, state: &State) -> KeyValue {
    let State { app, node, revision, created } = state;
    let name = path.split_once('/').expect("namespace/name").1;
    let json =
        format!(r#"{{"metadata":{{"name":"{name}","labels":{{"app":"{app}"}}}},"spec":{{"nodeName":"{node}"}}}}"#);
    let value = if app == GARBAGE { GARBAGE.to_owned() } else { json };
    let (created, modified) = (Revision::new(*created), Revision::new(*revision));
    KeyValue { key: key(path), value: value.into(), created, modified, stale: false }
}

fn event(fact: &Fact) -> StoreEvent {
    let previous = fact.before.as_ref().map(|state| entry(&fact.path, state));
    match &fact.after {
        Some(state) => StoreEvent::Put { current: entry(&fact.path, state), previous },
        None => StoreEvent::Delete { key: key(&fact.path), revision: Revision::new(fact.revision), previous },
    }
}

#[async_trait]
impl Storage for TransactionStore {
    async fn get(&self, key: &Key) -> Result<(Option<KeyValue>, Revision), ReadError> {
        let page = self.list(ListQuery { range: KeyRange::single(key), at: None, limit: 0 }).await?;
        Ok((page.items.into_iter().next(), page.revision))
    }

    async fn list(&self, query: ListQuery) -> Result<ListPage, ReadError> {
        let (page, wakers) = self.read_page(&query)?;
        if let Some(wakers) = wakers {
            // Watches receive the event before the client of the list gets its page.
            wakers.into_iter().for_each(Waker::wake);
            settle().await;
        }
        Ok(page)
    }

    async fn watch(&self, range: KeyRange, after: Revision) -> Result<Watch, WatchError> {
        let wakers = self.shared.lock().write_staged();
        wakers.into_iter().flatten().for_each(Waker::wake);
        let asked = Arc::new(Mutex::new(false));
        let shared = self.shared.clone();
        let histories = shared.lock().histories;
        let (place, within, ended) = (after.get(), 0, false);
        let items = Items { shared: shared.clone(), range, place, within, asked: asked.clone(), histories, ended };
        Ok(Watch::new(items, move || {
            let mut shared = shared.lock();
            *asked.lock() = shared.progress;
            let wakers = std::mem::take(&mut shared.wakers);
            drop(shared);
            wakers.into_iter().for_each(Waker::wake);
        }))
    }

    async fn current_revision(&self) -> Result<Revision, ReadError> {
        Ok(Revision::new(self.shared.lock().log.revision))
    }

    async fn compact(&self, revision: Revision) -> Result<(), ReadError> {
        let mut shared = self.shared.lock();
        shared.compacted = shared.compacted.max(revision.get());
        Ok(())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { progress_requests: self.shared.lock().progress }
    }

    async fn health(&self) -> Result<(), StoreFault> {
        Ok(())
    }

    async fn stats(&self) -> Result<StoreStats, StoreFault> {
        let shared = self.shared.lock();
        let (revision, oldest) = (Revision::new(shared.log.revision), Revision::new(shared.compacted));
        Ok(StoreStats { description: "transactions".to_owned(), revision, oldest, ..StoreStats::default() })
    }

    async fn create(&self, _: &Key, _: Bytes, _: Option<Duration>) -> Result<Revision, CreateError> {
        Err(read_only().into())
    }

    async fn update(&self, _: &Key, _: Revision, _: Bytes, _: Option<Duration>) -> Result<Revision, UpdateError> {
        Err(read_only().into())
    }

    async fn delete(&self, _: &Key, _: Revision) -> Result<Revision, DeleteError> {
        Err(read_only().into())
    }
}

struct Items {
    shared: Arc<Mutex<Shared>>,
    range: KeyRange,
    /// The revision up to which everything was delivered.
    place: u64,
    /// The number of delivered changes of the revision after `place`.
    within: usize,
    asked: Arc<Mutex<bool>>,
    /// The history that this watch reads.
    histories: u64,
    ended: bool,
}

impl Stream for Items {
    type Item = WatchItem;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<WatchItem>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let shared = self.shared.clone();
        let mut shared = shared.lock();
        if self.histories != shared.histories {
            self.ended = true;
            return Poll::Ready(Some(WatchItem::Expired { oldest: None }));
        }
        let shown = shared.log.revision.min(shared.held);
        let ours = |fact: &&Fact| {
            fact.revision > self.place && fact.revision <= shown && self.range.contains(key(&fact.path).as_str())
        };
        let Some(next) = shared.log.real.iter().find(ours).map(|fact| fact.revision) else {
            // The range has no later change, so compaction removes nothing from it.
            self.place = self.place.max(shown);
            if std::mem::take(&mut *self.asked.lock()) {
                return Poll::Ready(Some(WatchItem::Progress(Revision::new(shown))));
            }
            shared.wakers.push(cx.waker().clone());
            return Poll::Pending;
        };
        // The changes of one revision are delivered together, also after a compaction.
        if self.within == 0 && next <= shared.compacted && self.place < shared.compacted {
            self.ended = true;
            return Poll::Ready(Some(WatchItem::Expired { oldest: Some(Revision::new(shared.compacted)) }));
        }
        let here: Vec<StoreEvent> =
            shared.log.real.iter().filter(ours).take_while(|fact| fact.revision == next).map(event).collect();
        let event = here[self.within].clone();
        self.within += 1;
        if self.within == here.len() {
            (self.place, self.within) = (next, 0);
        }
        Poll::Ready(Some(WatchItem::Event(event)))
    }
}
