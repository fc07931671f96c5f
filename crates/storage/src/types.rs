//! The [`Storage`] trait and the values that cross it.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::Stream;
use listwatch_meta::{Key, KeyRange, Revision};

use crate::error::{CreateError, DeleteError, ReadError, StoreFault, UpdateError, WatchError};

/// The largest value that the stores of this crate take, in bytes: 1.5 MiB, etcd's default request
/// limit. A larger one is refused with [`StoreFault::TooLarge`]. (etcd counts the request's other
/// parts too, so there the largest value is a little smaller.)
pub const VALUE_BYTES_MAX: usize = 3 << 19;

/// A key with its value, at the revision that wrote it.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyValue {
    /// The key, relative to the store's prefix.
    pub key: Key,
    /// The bytes as written.
    pub value: Bytes,
    /// The revision that created the key (its current incarnation).
    pub created: Revision,
    /// The revision that wrote this value.
    pub modified: Revision,
}

impl fmt::Debug for KeyValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{:?} ({} bytes)", self.key, self.modified, self.value.len())
    }
}

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListPage {
    /// The entries, in key order.
    pub items: Vec<KeyValue>,
    /// The revision this page shows. Pin it in [`ListQuery::at`] for the further pages.
    pub revision: Revision,
    /// True when keys of the range follow behind the last item.
    pub more: bool,
    /// How many keys of the range follow behind the last item, where the store counts them
    /// exactly. `None` is "unknown", never "none".
    pub remaining: Option<u64>,
}

/// What a list asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListQuery {
    /// Which keys; resume a paged list with [`KeyRange::starting_at`].
    pub range: KeyRange,
    /// The revision to show; `None`, and [`Revision::ZERO`] likewise, is the latest, read
    /// linearizably.
    pub at: Option<Revision>,
    /// At most this many items; 0 is no limit.
    pub limit: usize,
}

/// What happened to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreEvent {
    /// The key was written: created when `previous` is `None`, else changed.
    Put {
        /// The new state.
        current: KeyValue,
        /// The state before.
        previous: Option<KeyValue>,
    },
    /// The key was removed, by a delete or because its TTL ran out.
    Delete {
        /// The key.
        key: Key,
        /// The revision of the removal.
        revision: Revision,
        /// The last state; `None` only where the store no longer holds it (compacted).
        previous: Option<KeyValue>,
    },
}

impl StoreEvent {
    /// The revision of the change.
    pub fn revision(&self) -> Revision {
        match self {
            StoreEvent::Put { current, .. } => current.modified,
            StoreEvent::Delete { revision, .. } => *revision,
        }
    }

    /// The key that changed.
    pub fn key(&self) -> &Key {
        match self {
            StoreEvent::Put { current, .. } => &current.key,
            StoreEvent::Delete { key, .. } => key,
        }
    }
}

/// What a watch hands out, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchItem {
    /// A change. Revisions never fall. Changes of one revision (one transaction, the keys of one
    /// lease that ran out) are adjacent and ready together: after the first of them was handed out
    /// the stream is not pending before the last one was. So a reader that takes what is ready
    /// never holds a part of a revision.
    Event(StoreEvent),
    /// Everything of this range up to and including this revision has been handed out.
    Progress(Revision),
    /// The watch's place is no longer held by the store (compacted, or of a history that was
    /// replaced by another one): list again. Last item.
    Expired {
        /// The oldest revision that can be watched from, where the store tells.
        oldest: Option<Revision>,
    },
    /// The watch cannot go on and nothing more is known. Resume from the last revision seen.
    /// Last item.
    Lost(StoreFault),
}

/// A running watch: a stream of [`WatchItem`]s. Dropping it ends the watch.
///
/// After [`WatchItem::Expired`] or [`WatchItem::Lost`] the stream ends. It never ends without one
/// of them, except when the store was closed.
pub struct Watch {
    items: ItemStream,
    progress: ProgressRequest,
}

/// The items of a [`Watch`].
pub type ItemStream = Pin<Box<dyn Stream<Item = WatchItem> + Send>>;

/// What [`Watch::request_progress`] does.
pub type ProgressRequest = Box<dyn Fn() + Send + Sync>;

impl Watch {
    /// A watch from its stream of items and what [`Watch::request_progress`] does.
    pub fn new(
        items: impl Stream<Item = WatchItem> + Send + 'static,
        progress: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        Watch { items: Box::pin(items), progress: Box::new(progress) }
    }

    /// Asks for a [`WatchItem::Progress`] soon. Returns at once; asking often is harmless, the
    /// implementation merges requests. Where [`Capabilities::progress_requests`] is false nothing
    /// happens.
    pub fn request_progress(&self) {
        (self.progress)();
    }

    /// The stream of items and what [`Watch::request_progress`] does, for who wraps a watch.
    pub fn into_parts(self) -> (ItemStream, ProgressRequest) {
        (self.items, self.progress)
    }

    /// The next item; `None` after the end.
    pub async fn next(&mut self) -> Option<WatchItem> {
        std::future::poll_fn(|cx| self.items.as_mut().poll_next(cx)).await
    }
}

impl Stream for Watch {
    type Item = WatchItem;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<WatchItem>> {
        self.items.as_mut().poll_next(cx)
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

/// What this store can do beyond the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// [`Watch::request_progress`] is answered, and truthfully: reads may rely on it to learn
    /// that a cache is fresh. False on etcd before 3.4.31 and 3.5.13 (etcd #15220).
    pub progress_requests: bool,
}

/// What the store reports about itself, for metrics and `listwatch storage stats`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct StoreStats {
    /// What the store is, e.g. `memory`, `embedded (redb)`, `etcd 3.5.16`.
    pub description: String,
    /// The revision of the last write.
    pub revision: Revision,
    /// The oldest revision that can be read or watched from.
    pub oldest: Revision,
    /// Live keys, where known.
    pub keys: Option<u64>,
    /// Bytes on disk, where known.
    pub disk_bytes: Option<u64>,
}

/// A store of keys and values with one revision clock: what list-watch stands on.
///
/// # Guarantees
/// 1. **One order.** Every successful write (create, update, delete, TTL removal) takes the next
///    revision; all readers and watchers agree on the order.
/// 2. **Linearizable.** A read without a revision shows every write acknowledged before it began.
/// 3. **Optimistic.** `update` and `delete` happen only if the key is at the expected revision.
/// 4. **Complete.** A watch from revision R hands out every change of its range after R, once,
///    in order, or says that it cannot ([`WatchItem::Expired`], [`WatchItem::Lost`]). The changes
///    of one revision are handed out together ([`WatchItem::Event`]).
/// 5. **Progress is true.** After [`WatchItem::Progress`] at R no change at or below R follows, and
///    the store has reached R: a revision that only the watcher has named is never told.
/// 6. **Durable.** A write is acknowledged only when it survives whatever the implementation
///    promises to survive (memory: nothing; embedded: power loss; etcd: a minority of members).
/// 7. **Cancel safe.** Dropping a read's future does nothing. Dropping a write's future leaves it
///    undecided: it may still happen.
#[async_trait]
pub trait Storage: Send + Sync + 'static {
    /// The value of one key, read linearizably, with the store's revision at that moment.
    ///
    /// # Errors
    /// [`ReadError::Fault`] when the store fails.
    async fn get(&self, key: &Key) -> Result<(Option<KeyValue>, Revision), ReadError>;

    /// The entries of a range in key order.
    ///
    /// # Errors
    /// [`ReadError::Compacted`] or [`ReadError::Future`] when [`ListQuery::at`] is not held;
    /// [`ReadError::Fault`] when the store fails.
    async fn list(&self, query: ListQuery) -> Result<ListPage, ReadError>;

    /// What [`Storage::list`] shows, with empty values: for callers that compare keys and revisions,
    /// which need not read and carry the values.
    ///
    /// # Errors
    /// As [`Storage::list`].
    async fn list_keys(&self, query: ListQuery) -> Result<ListPage, ReadError> {
        let mut page = self.list(query).await?;
        page.items.iter_mut().for_each(|entry| entry.value = Bytes::new());
        Ok(page)
    }

    /// Writes a key that must not exist. With `ttl` the key removes itself after about that time
    /// (never earlier; at most a minute or a twentieth later, whichever is less, plus the store's
    /// own tick).
    ///
    /// # Errors
    /// [`CreateError::AlreadyExists`]; [`CreateError::Fault`] when the store fails.
    async fn create(&self, key: &Key, value: Bytes, ttl: Option<Duration>) -> Result<Revision, CreateError>;

    /// Replaces the value of a key that is at revision `expected`. `ttl` replaces the key's former
    /// TTL; `None` removes it.
    ///
    /// # Errors
    /// [`UpdateError::Conflict`] with the present state; [`UpdateError::Fault`].
    async fn update(
        &self,
        key: &Key,
        expected: Revision,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> Result<Revision, UpdateError>;

    /// Removes a key that is at revision `expected`; returns the revision of the removal.
    ///
    /// # Errors
    /// [`DeleteError::Conflict`] with the present state; [`DeleteError::Fault`].
    async fn delete(&self, key: &Key, expected: Revision) -> Result<Revision, DeleteError>;

    /// Every change of a range after revision `after`. [`Revision::ZERO`] means from the first
    /// revision ever, which is [`WatchItem::Expired`] on a store that was compacted. An
    /// implementation keeps the changes of one revision together: between the first and the last of
    /// them its stream is never pending, whatever its buffers and its scheduler would like.
    ///
    /// # Errors
    /// [`WatchError::Fault`] when the store fails before the watch stands. A place that is no
    /// longer held is an item, not an error.
    async fn watch(&self, range: KeyRange, after: Revision) -> Result<Watch, WatchError>;

    /// The store's revision now, read linearizably.
    ///
    /// # Errors
    /// [`ReadError::Fault`] when the store fails.
    async fn current_revision(&self) -> Result<Revision, ReadError>;

    /// Forgets history before `revision`: older revisions can no longer be read or watched from.
    /// Returns when the store has accepted it. Compacting twice to the same place is fine.
    ///
    /// # Errors
    /// [`ReadError::Future`] when the revision has not happened yet; [`ReadError::Fault`].
    async fn compact(&self, revision: Revision) -> Result<(), ReadError>;

    /// What this store can do beyond the contract.
    fn capabilities(&self) -> Capabilities;

    /// Is the store able to serve? For `/healthz` and `/readyz`; answers within two seconds.
    ///
    /// # Errors
    /// The fault that keeps it from serving.
    async fn health(&self) -> Result<(), StoreFault>;

    /// What the store reports about itself.
    ///
    /// # Errors
    /// The fault that keeps it from answering.
    async fn stats(&self) -> Result<StoreStats, StoreFault>;
}
