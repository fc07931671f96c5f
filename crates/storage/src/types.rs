//! The [`Storage`] trait and its types.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::Stream;
use listwatch_meta::{Key, KeyRange, Revision};

use crate::error::{CreateError, DeleteError, ReadError, StoreFault, UpdateError, WatchError};

/// The largest value of this crate's stores, in bytes: 1.5 MiB, etcd's default request limit. A
/// larger one fails with [`StoreFault::TooLarge`]. (etcd also counts the request's other parts, so
/// its largest value is a little smaller.)
pub const VALUE_BYTES_MAX: usize = 3 << 19;

/// The prefix of a value that a transforming store returns in place of one that it cannot read. The text of the reason
/// follows. Such a value is not an object, so readers treat it like any other damaged value.
pub const UNREADABLE_PREFIX: &[u8] = b"\0unreadable: ";

/// Returns the reason if a transforming store could not read a value.
pub fn unreadable_reason(value: &[u8]) -> Option<&str> {
    value.strip_prefix(UNREADABLE_PREFIX).map(|reason| std::str::from_utf8(reason).unwrap_or("unknown reason"))
}

/// A key with its value and the value's revision.
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
    /// True if the stored form of the value is outdated: encrypted with a former key, or in another encoding. The next
    /// update writes the value again, even if the value stays the same. Only stores that transform values set this
    /// field: [`Storage::get`] and conflicts always, [`Storage::list`] for former keys, and watches never.
    pub stale: bool,
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
    /// The revision of this page. Pass it as [`ListQuery::at`] for the following pages.
    pub revision: Revision,
    /// True when keys of the range follow after the last item.
    pub more: bool,
    /// The number of keys of the range after the last item, if the store counts them exactly;
    /// `None` means unknown.
    pub remaining: Option<u64>,
}

/// The parameters of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListQuery {
    /// The keys; resume a paged list with [`KeyRange::starting_at`].
    pub range: KeyRange,
    /// The revision to read; `None` and [`Revision::ZERO`] both mean the latest, read linearizably.
    pub at: Option<Revision>,
    /// The maximum number of items; 0 for no limit.
    pub limit: usize,
}

/// A change of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreEvent {
    /// The key was written: created if `previous` is `None`, else changed.
    Put {
        /// The new state.
        current: KeyValue,
        /// The state before.
        previous: Option<KeyValue>,
    },
    /// The key was removed by a delete or by its TTL.
    Delete {
        /// The key.
        key: Key,
        /// The revision of the removal.
        revision: Revision,
        /// The last state; `None` only if the store has compacted it.
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

/// An item of a [`Watch`]: a change, progress, or the reason why the watch ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchItem {
    /// A change. Revisions never decrease. Changes of one revision (one transaction, the keys of
    /// one expired lease) are adjacent and ready together: between the first and the last of them,
    /// the stream is never pending. So a reader that takes all ready items never stops within a
    /// revision.
    Event(StoreEvent),
    /// All changes of this range up to and including this revision have been delivered.
    Progress(Revision),
    /// The store no longer holds the watch's revision (compacted, or the history was replaced):
    /// list again. Last item.
    Expired {
        /// The oldest revision that can be watched from, if known.
        oldest: Option<Revision>,
    },
    /// The watch broke. Resume from the last seen revision. Last item.
    Lost(StoreFault),
}

/// A running watch: a stream of [`WatchItem`]. Dropping it ends the watch.
///
/// After [`WatchItem::Expired`] or [`WatchItem::Lost`] the stream ends. Without one of them it ends
/// only when the store is closed.
pub struct Watch {
    items: ItemStream,
    progress: ProgressRequest,
    reader: Option<ValueReader>,
}

/// The conversion of a [`ValueReader`]: the value of a key from its form in the store.
pub type ReadValue = dyn Fn(&Key, Bytes) -> Bytes + Send + Sync;

/// Converts the values of a watch from the form in the store, for [`Watch::with_reader`].
#[derive(Clone)]
pub struct ValueReader {
    /// Converts the value of a key.
    pub read: Arc<ReadValue>,
    /// Values that begin with `{` are passed on without a call of `read`.
    pub json_is_plain: bool,
}

impl ValueReader {
    fn apply(&self, item: &mut WatchItem) {
        let apply = |entry: &mut KeyValue| {
            if !(self.json_is_plain && entry.value.first() == Some(&b'{')) {
                entry.value = (self.read)(&entry.key, std::mem::take(&mut entry.value));
            }
        };
        match item {
            WatchItem::Event(StoreEvent::Put { current, previous }) => {
                apply(current);
                previous.iter_mut().for_each(apply);
            }
            WatchItem::Event(StoreEvent::Delete { previous, .. }) => previous.iter_mut().for_each(apply),
            WatchItem::Progress(_) | WatchItem::Expired { .. } | WatchItem::Lost(_) => {}
        }
    }
}

/// The items of a [`Watch`].
pub type ItemStream = Pin<Box<dyn Stream<Item = WatchItem> + Send>>;

/// The implementation of [`Watch::request_progress`].
pub type ProgressRequest = Box<dyn Fn() + Send + Sync>;

impl Watch {
    /// Creates a watch from its stream of items and the implementation of
    /// [`Watch::request_progress`].
    pub fn new(
        items: impl Stream<Item = WatchItem> + Send + 'static,
        progress: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        Watch { items: Box::pin(items), progress: Box::new(progress), reader: None }
    }

    /// Converts the values of all items, former ones included. Without a reader an item costs one branch.
    #[must_use]
    pub fn with_reader(mut self, reader: ValueReader) -> Self {
        self.reader = Some(reader);
        self
    }

    /// Requests a [`WatchItem::Progress`] soon and returns at once. Frequent calls are harmless,
    /// because the implementation merges requests. Without [`Capabilities::progress_requests`] the
    /// call has no effect.
    pub fn request_progress(&self) {
        (self.progress)();
    }

    /// The stream of items and the implementation of [`Watch::request_progress`], for wrappers of a
    /// watch.
    pub fn into_parts(self) -> (ItemStream, ProgressRequest) {
        let Watch { items, progress, reader } = self;
        if reader.is_none() {
            return (items, progress);
        }
        (Box::pin(Watch { items, progress: Box::new(|| ()), reader }), progress)
    }

    /// Waits for the next item; `None` after the end.
    pub async fn next(&mut self) -> Option<WatchItem> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }
}

impl Stream for Watch {
    type Item = WatchItem;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<WatchItem>> {
        let mut next = self.items.as_mut().poll_next(cx);
        if let (Some(reader), Poll::Ready(Some(item))) = (&self.reader, &mut next) {
            reader.apply(item);
        }
        next
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

/// Optional features of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Whether [`Watch::request_progress`] is answered reliably, so that reads may depend on it.
    /// False on etcd before 3.4.31 and 3.5.13 (etcd #15220).
    pub progress_requests: bool,
}

/// Statistics of a store, for metrics and `listwatch storage stats`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct StoreStats {
    /// The kind of store, e.g. `memory`, `embedded (redb)`, `etcd 3.5.16`.
    pub description: String,
    /// The revision of the last write.
    pub revision: Revision,
    /// The oldest revision that can be read or watched from.
    pub oldest: Revision,
    /// Live keys, if known.
    pub keys: Option<u64>,
    /// Bytes on disk, if known.
    pub disk_bytes: Option<u64>,
}

/// The result of [`Storage::get_unless`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reread {
    /// The key is at the known revision.
    Unchanged,
    /// The state of the key, which is at another revision or absent.
    Changed(Option<KeyValue>),
}

impl Reread {
    /// Compares the state that was read with the known revision.
    pub fn of(found: Option<KeyValue>, known: Revision) -> Self {
        match found {
            Some(found) if found.modified == known => Reread::Unchanged,
            found => Reread::Changed(found),
        }
    }
}

/// A store of keys and values with one sequence of revisions, as list and watch need it.
///
/// # Guarantees
/// 1. **One order.** Every successful write (create, update, delete, TTL removal) takes the next
///    revision; all readers and watchers see the same order.
/// 2. **Linearizable.** A read without a revision shows every write acknowledged before it began.
/// 3. **Optimistic.** `update` and `delete` happen only if the key is at the expected revision.
/// 4. **Complete.** A watch from revision R delivers every change of its range after R once, in
///    order, or reports that it cannot ([`WatchItem::Expired`], [`WatchItem::Lost`]). The changes
///    of one revision are delivered together ([`WatchItem::Event`]).
/// 5. **Reliable progress.** After [`WatchItem::Progress`] at R, no change at or below R follows, and the store has
///    reached R. Progress never repeats a revision that only the watcher claimed.
/// 6. **Durable.** An acknowledged write survives the failures that the implementation covers
///    (memory: none; embedded: power loss; etcd: loss of a minority of members).
/// 7. **Cancel safe.** Dropping a read's future has no effect. After dropping a write's future the
///    write may still happen.
#[async_trait]
pub trait Storage: Send + Sync + 'static {
    /// Reads one key linearizably, with the store's revision at that moment.
    ///
    /// # Errors
    /// [`ReadError::Fault`] when the store fails.
    async fn get(&self, key: &Key) -> Result<(Option<KeyValue>, Revision), ReadError>;

    /// Reads one key linearizably, for a caller that already has its value at the revision `known`. If the key is still
    /// at this revision, the value need not be read and transferred.
    ///
    /// # Errors
    /// As [`Storage::get`].
    async fn get_unless(&self, key: &Key, known: Revision) -> Result<(Reread, Revision), ReadError> {
        let (found, revision) = self.get(key).await?;
        Ok((Reread::of(found, known), revision))
    }

    /// Lists the entries of a range in key order.
    ///
    /// # Errors
    /// [`ReadError::Compacted`] or [`ReadError::Future`] when [`ListQuery::at`] is not available;
    /// [`ReadError::Fault`] when the store fails.
    async fn list(&self, query: ListQuery) -> Result<ListPage, ReadError>;

    /// Lists keys and revisions like [`Storage::list`], with empty values, so that the values need
    /// not be read and transferred.
    ///
    /// # Errors
    /// As [`Storage::list`].
    async fn list_keys(&self, query: ListQuery) -> Result<ListPage, ReadError> {
        let mut page = self.list(query).await?;
        page.items.iter_mut().for_each(|entry| entry.value = Bytes::new());
        Ok(page)
    }

    /// Creates a key that must not exist. With `ttl`, the key expires never earlier than this time. The delay is at
    /// most a minute or a twentieth of the TTL, whichever is less, plus the store's tick.
    ///
    /// # Errors
    /// [`CreateError::AlreadyExists`]; [`CreateError::Fault`] when the store fails.
    async fn create(&self, key: &Key, value: Bytes, ttl: Option<Duration>) -> Result<Revision, CreateError>;

    /// The value as a read would return it after a write. A store that encodes values reads several texts of one object
    /// as the same value, for example with and without an empty struct. The default returns the value unchanged.
    fn normal_form(&self, key: &Key, value: Bytes) -> Bytes {
        let _ = key;
        value
    }

    /// Replaces the value of a key that is at revision `expected`. `ttl` replaces the key's former
    /// TTL; `None` removes it.
    ///
    /// # Errors
    /// [`UpdateError::Conflict`] with the current state; [`UpdateError::Fault`].
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
    /// [`DeleteError::Conflict`] with the current state; [`DeleteError::Fault`].
    async fn delete(&self, key: &Key, expected: Revision) -> Result<Revision, DeleteError>;

    /// Watches every change of a range after revision `after`. [`Revision::ZERO`] means from the
    /// first revision ever, which is [`WatchItem::Expired`] on a compacted store. An implementation
    /// keeps the changes of one revision together: between the first and the last of them its
    /// stream is never pending.
    ///
    /// # Errors
    /// [`WatchError::Fault`] when the store fails before the watch is established. A compacted
    /// revision is an item, not an error.
    async fn watch(&self, range: KeyRange, after: Revision) -> Result<Watch, WatchError>;

    /// The store's current revision, read linearizably.
    ///
    /// # Errors
    /// [`ReadError::Fault`] when the store fails.
    async fn current_revision(&self) -> Result<Revision, ReadError>;

    /// Compacts history before `revision`: older revisions can no longer be read or watched from.
    /// Returns when the store has accepted it. Compacting twice to the same revision is allowed.
    ///
    /// # Errors
    /// [`ReadError::Future`] when the store has not reached the revision; [`ReadError::Fault`].
    async fn compact(&self, revision: Revision) -> Result<(), ReadError>;

    /// The optional features of this store.
    fn capabilities(&self) -> Capabilities;

    /// Checks that the store can serve, within two seconds; for `/healthz` and `/readyz`.
    ///
    /// # Errors
    /// The fault that prevents the store from serving.
    async fn health(&self) -> Result<(), StoreFault>;

    /// Statistics of the store.
    ///
    /// # Errors
    /// The fault that prevents an answer.
    async fn stats(&self) -> Result<StoreStats, StoreFault>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_of_an_unreadable_value_is_the_text_after_the_prefix() {
        let check = |value: &[u8], expected| assert_eq!(unreadable_reason(value), expected, "{value:?}");
        check(b"\0unreadable: no key of this name", Some("no key of this name"));
        check(b"\0unreadable: ", Some(""));
        check(b"\0unreadable: \xff", Some("unknown reason"));
        check(b"{}", None);
        check(b"unreadable: text", None);
        check(b"", None);
    }

    fn entry(value: &str) -> KeyValue {
        let key = Key::new("pods", Some("ns"), "a").unwrap();
        let (created, modified) = (Revision::new(2), Revision::new(3));
        KeyValue { key, value: Bytes::copy_from_slice(value.as_bytes()), created, modified, stale: false }
    }

    /// The values of an event after the conversion: the current and the previous one.
    fn check(
        current: Option<&str>,
        previous: Option<&str>,
        json_is_plain: bool,
        expected: (Option<&str>, Option<&str>),
    ) {
        let read: Arc<ReadValue> = Arc::new(|key, value| {
            assert_eq!(key.name(), "a", "the reader is told the key");
            [b"read ", &*value].concat().into()
        });
        let previous = previous.map(entry);
        let mut item = WatchItem::Event(match current {
            Some(current) => StoreEvent::Put { current: entry(current), previous },
            None => StoreEvent::Delete { key: entry("").key, revision: Revision::new(4), previous },
        });
        ValueReader { read, json_is_plain }.apply(&mut item);
        let text = |entry: KeyValue| String::from_utf8(entry.value.to_vec()).unwrap();
        let found = match item {
            WatchItem::Event(StoreEvent::Put { current, previous }) => (Some(text(current)), previous.map(text)),
            WatchItem::Event(StoreEvent::Delete { previous, .. }) => (None, previous.map(text)),
            other => panic!("{other:?}"),
        };
        assert_eq!((found.0.as_deref(), found.1.as_deref()), expected);
    }

    #[test]
    fn value_reader_converts_each_value_of_an_event() {
        check(Some("new"), Some("old"), false, (Some("read new"), Some("read old")));
        check(Some("new"), None, false, (Some("read new"), None));
        check(None, Some("old"), false, (None, Some("read old")));
        check(None, None, false, (None, None));
        check(Some("{}"), Some("{}"), false, (Some("read {}"), Some("read {}")));
        check(Some("{}"), Some("old"), true, (Some("{}"), Some("read old")));
        check(Some("new"), Some("{}"), true, (Some("read new"), Some("{}")));
        check(Some(""), None, true, (Some("read "), None));
    }

    #[tokio::test]
    async fn normal_form_returns_the_value_unchanged_by_default() {
        let store = crate::MemoryStorage::new();
        assert_eq!(store.normal_form(&entry("").key, "{ }".into()), "{ }");
    }
}
