//! Uncached mode: reads and watches the store directly, with the same semantics ([`Direct`], [`DirectWatch`]).
//!
//! Each watch is a separate watch of the store, and decodes its own events.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Instant;

use futures_core::Stream;
use listwatch_meta::{
    Change, Event, FieldSelector, Key, LabelSelector, ListRequest, Object, ObjectShape, ReadAt, Revision,
    ShardSelector, Status, WatchFrom, WatchRequest,
};
use listwatch_storage::{KeyValue, Storage, StoreEvent, StoreFault, Watch, WatchError, WatchItem};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Sleep;

use crate::bookmark;
use crate::cache::decode;
use crate::delivery::{Delivered, Delivery, SharedEvent};
use crate::encodings::Encodings;
use crate::error::ReadError;
use crate::filter::{EventLabels, Filter, Scope};
use crate::handle::{List, ResourceConfig, refuse_undecodable};
use crate::limits::Limits;
use crate::shared::now;
use crate::snapshot::ListItems;
use crate::stats::{CacherStats, Counters, WatcherStats};
use crate::store_read;
use crate::stream::Watcher;

/// A resource without a cache.
pub(crate) struct Direct {
    storage: Arc<dyn Storage>,
    config: ResourceConfig,
    counters: Arc<Counters>,
    encodings: Arc<Encodings>,
    /// The status for watchers, set by a stop. The receivers are the watchers.
    stopped: watch::Sender<Option<LastStatus>>,
    /// The newest revision in any response, for statistics.
    seen: Mutex<Revision>,
}

/// The last status of a stopped watch, if any.
type LastStatus = Option<Status>;

impl Direct {
    pub(crate) fn new(storage: Arc<dyn Storage>, config: ResourceConfig) -> Self {
        let counters = Arc::<Counters>::default();
        let encodings = Encodings::new(config.limits.encodings_bytes_max, counters.clone());
        Direct { storage, config, counters, encodings, stopped: watch::Sender::new(None), seen: Mutex::default() }
    }

    pub(crate) fn config(&self) -> &ResourceConfig {
        &self.config
    }

    pub(crate) fn wait_ready(&self) -> Result<(), ReadError> {
        if self.stopped.borrow().is_some() { Err(StoreFault::Closed.into()) } else { Ok(()) }
    }

    pub(crate) fn stop(&self, last_status: Option<Status>) {
        self.stopped.send_if_modified(|stopped| {
            let first = stopped.is_none();
            if first {
                *stopped = Some(last_status);
            }
            first
        });
    }

    pub(crate) fn stats(&self) -> CacherStats {
        CacherStats {
            name: self.config.name.clone(),
            ready: self.wait_ready().is_ok(),
            revision: *self.seen.lock(),
            watchers: WatcherStats { live: self.stopped.receiver_count(), ..WatcherStats::default() },
            events_received: self.counters.received.load(Relaxed),
            bookmarks: self.counters.bookmarks.load(Relaxed),
            initial_events: self.counters.initial.load(Relaxed),
            watches_started: self.counters.started.load(Relaxed),
            expired_watches: self.counters.expired.load(Relaxed),
            store_lists: self.counters.store_lists.load(Relaxed),
            encodings: self.counters.encodes.load(Relaxed),
            encodings_bytes: self.counters.encodings_bytes.load(Relaxed),
            ..CacherStats::default()
        }
    }

    pub(crate) async fn get(&self, key: &Key, at: ReadAt) -> Result<Option<Object>, ReadError> {
        self.wait_ready()?;
        store_read::get(&self.storage, key, at, &self.config.shape, None).await
    }

    pub(crate) async fn list(&self, scope: &Scope, request: &ListRequest) -> Result<List, ReadError> {
        self.wait_ready()?;
        let filter = self.filter(scope, &request.labels, &request.fields, request.shard.as_ref());
        self.list_filtered(&filter, request).await
    }

    pub(crate) async fn watch(
        &self,
        scope: &Scope,
        request: &WatchRequest,
        deadline: tokio::time::Instant,
    ) -> Result<Watcher, ReadError> {
        self.wait_ready()?;
        self.counters.started.fetch_add(1, Relaxed);
        let filter = Arc::new(self.filter(scope, &request.labels, &request.fields, request.shard.as_ref()));
        match self.begin(filter, request, deadline).await {
            Ok(watch) => Ok(Watcher::direct(watch)),
            Err(ReadError::Fault(StoreFault::Closed)) => Err(StoreFault::Closed.into()),
            Err(error) => Ok(Watcher::over(error.status(self.config.group_resource()))),
        }
    }

    async fn begin(
        &self,
        filter: Arc<Filter>,
        request: &WatchRequest,
        deadline: tokio::time::Instant,
    ) -> Result<DirectWatch, ReadError> {
        let mut initial = None;
        let mut end = None;
        let after = match request.from {
            WatchFrom::InitialEvents { at, mark_end } => {
                let all = ListRequest {
                    at,
                    limit: None,
                    resume: None,
                    labels: LabelSelector::default(),
                    fields: FieldSelector::default(),
                    shard: None,
                };
                let list = self.list_filtered(&filter, &all).await?;
                refuse_undecodable(list.undecodable)?;
                initial = Some(list.items);
                end = (mark_end && request.bookmarks).then_some(list.revision);
                list.revision
            }
            WatchFrom::Now(_) => self.storage.current_revision().await.map_err(ReadError::from_store)?,
            WatchFrom::After(revision) => revision,
        };
        let watch = self.storage.watch(filter.range().clone(), after).await;
        let watch = watch.map_err(|WatchError::Fault(fault)| ReadError::Fault(fault))?;
        let bookmark = request.bookmarks.then(|| bookmark::next_due(now(), deadline.into_std(), &self.config.limits));
        let bookmark = bookmark.flatten();
        let mut stopped = self.stopped.subscribe();
        Ok(DirectWatch {
            initial,
            end,
            watch,
            filter,
            shape: self.config.shape.clone(),
            limits: self.config.limits.clone(),
            counters: self.counters.clone(),
            encodings: self.encodings.clone(),
            begun: after,
            last: after,
            next_sequence: 0,
            bookmark,
            asked: false,
            deadline: deadline.into_std(),
            timer: Box::pin(tokio::time::sleep_until(bookmark.map_or(deadline, Into::into))),
            stopped: Box::pin(async move {
                // A dropped sender is a stop without a status.
                stopped.wait_for(Option::is_some).await.ok().and_then(|last_status| last_status.clone()).flatten()
            }),
            handed_out: Revision::ZERO,
            state: State::Running,
        })
    }

    fn filter(
        &self,
        scope: &Scope,
        labels: &LabelSelector,
        fields: &FieldSelector,
        shard: Option<&ShardSelector>,
    ) -> Filter {
        Filter::new(&self.config.prefix, &self.config.shape, &[], scope, labels.clone(), fields).sharded(shard)
    }

    async fn list_filtered(&self, filter: &Filter, request: &ListRequest) -> Result<List, ReadError> {
        let ResourceConfig { shape, limits, .. } = &self.config;
        self.counters.store_lists.fetch_add(1, Relaxed);
        let list = store_read::list(&self.storage, filter, request, shape, limits).await?;
        let mut seen = self.seen.lock();
        *seen = (*seen).max(list.revision);
        Ok(list)
    }
}

/// One watch of the store, as one client sees it.
pub(crate) struct DirectWatch {
    /// The rest of the initial state.
    initial: Option<ListItems>,
    /// The revision of the bookmark after the initial state.
    end: Option<Revision>,
    watch: Watch,
    filter: Arc<Filter>,
    shape: Arc<ObjectShape>,
    limits: Limits,
    counters: Arc<Counters>,
    encodings: Arc<Encodings>,
    /// The revision after which the watch begins.
    begun: Revision,
    /// The newest delivered revision, of an event or a bookmark.
    last: Revision,
    next_sequence: u64,
    /// The time of the next bookmark.
    bookmark: Option<Instant>,
    /// Whether a bookmark is due and waits for the store's progress.
    asked: bool,
    deadline: Instant,
    /// Expires at the next bookmark or the deadline.
    timer: Pin<Box<Sleep>>,
    stopped: Pin<Box<dyn Future<Output = LastStatus> + Send>>,
    /// The revision of the last delivered event; zero before the first.
    handed_out: Revision,
    state: State,
}

/// The state of a watch between its start and its end.
///
/// ```text
///   Running ── deadline, stop ──▶ Finishing ── revision complete ──▶ Ended
///      └────────────────── an error ended the stream ─────────────────▲
/// ```
#[derive(Debug)]
enum State {
    Running,
    /// The deadline has passed or the cache was stopped. A client that saw one change of a revision
    /// resumes after that revision, so the revision's other changes are delivered first. The store
    /// has them ready ([`WatchItem::Event`]). Then the status is delivered, if any.
    Finishing(Option<Box<Status>>),
    Ended,
}

impl fmt::Debug for DirectWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DirectWatch({:?})", self.filter.range())
    }
}

/// The reason of [`Unreadable::Deleted`] for a stored value that is not an object.
const UNDECODABLE: &str = "cannot be decoded";

/// The reason why an event of the store cannot be delivered.
enum Unreadable {
    /// The last state of the object is not known: the store lost it, or its value is not an object. A reader that was
    /// shown the object would miss its deletion.
    Deleted(Key, &'static str),
    /// The stored value is no longer an object. The object exists, so DELETED would be false. Holds
    /// the deletion of its last state, if known.
    Stored(Option<Box<Event>>),
}

impl DirectWatch {
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Delivery>> {
        if matches!(self.state, State::Running) {
            if let Poll::Ready(last_status) = self.stopped.as_mut().poll(cx) {
                self.state = State::Finishing(last_status.map(Box::new));
            } else if self.poll_timer(cx).is_ready() {
                self.state = State::Finishing(None);
            }
        }
        match self.state {
            State::Running => {}
            State::Finishing(_) => return Poll::Ready(self.finish(cx)),
            State::Ended => return Poll::Ready(None),
        }
        if let Some(object) = self.initial.as_mut().and_then(Iterator::next) {
            self.counters.initial.fetch_add(1, Relaxed);
            return Poll::Ready(Some(Delivery::Event(Delivered::initial(object))));
        }
        self.initial = None;
        if let Some(revision) = self.end.take() {
            self.counters.bookmarks.fetch_add(1, Relaxed);
            return Poll::Ready(Some(Delivery::Bookmark { revision, initial_events_end: true }));
        }
        loop {
            let Poll::Ready(item) = Pin::new(&mut self.watch).poll_next(cx) else { return Poll::Pending };
            let delivery = match item {
                Some(WatchItem::Event(event)) => self.handle_event(event),
                Some(WatchItem::Progress(revision)) => self.handle_progress(revision),
                Some(WatchItem::Expired { .. }) => {
                    self.counters.expired.fetch_add(1, Relaxed);
                    Some(self.last_status(Status::compacted_watch()))
                }
                Some(WatchItem::Lost(StoreFault::Unconvertible(text))) => Some(self.last_status(Status::unknown(text))),
                Some(WatchItem::Lost(fault)) => Some(self.last_status(Status::internal(fault))),
                None => Some(self.last_status(Status::unavailable(StoreFault::Closed.to_string()))),
            };
            if delivery.is_some() {
                return Poll::Ready(delivery);
            }
        }
    }

    /// Delivers the other changes of the last delivered revision, then the end.
    fn finish(&mut self, cx: &mut Context<'_>) -> Option<Delivery> {
        self.initial = None;
        while !self.handed_out.is_zero() {
            match Pin::new(&mut self.watch).poll_next(cx) {
                Poll::Ready(Some(WatchItem::Event(event))) if event.revision() == self.handed_out => {
                    if let Some(delivery) = self.handle_event(event) {
                        return Some(delivery);
                    }
                }
                // Any other item, or no ready item, shows that the revision is complete.
                _ => break,
            }
        }
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Finishing(last_status) => last_status.map(Delivery::Error),
            State::Running | State::Ended => None,
        }
    }

    /// Ready when the deadline has passed.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.timer.as_mut().poll(cx).is_ready() {
            let now = now();
            if now >= self.deadline {
                return Poll::Ready(());
            }
            self.asked = true;
            self.watch.request_progress();
            self.bookmark = self.bookmark.and_then(|_| bookmark::next_due(now, self.deadline, &self.limits));
            self.timer.as_mut().reset(self.bookmark.unwrap_or(self.deadline).into());
        }
        Poll::Pending
    }

    fn handle_progress(&mut self, revision: Revision) -> Option<Delivery> {
        if !std::mem::take(&mut self.asked) || revision <= self.last {
            return None;
        }
        self.last = revision;
        self.counters.bookmarks.fetch_add(1, Relaxed);
        Some(Delivery::Bookmark { revision, initial_events_end: false })
    }

    fn handle_event(&mut self, event: StoreEvent) -> Option<Delivery> {
        self.counters.received.fetch_add(1, Relaxed);
        if !self.filter.covers(event.key()) {
            return None;
        }
        let revision = event.revision();
        let (key, has_unknown_former) = (event.key().clone(), self.has_unknown_former(&event));
        let read = match self.read(event) {
            Ok(None) if has_unknown_former => Err(Unreadable::Deleted(key, UNDECODABLE)),
            Ok(Some(event)) => match self.filter.view(&EventLabels::new(&event, &self.shape)) {
                Some(change) => Ok((event, change)),
                None if has_unknown_former => Err(Unreadable::Deleted(key, UNDECODABLE)),
                None => return None,
            },
            Ok(None) => return None,
            Err(unreadable) => Err(unreadable),
        };
        let (event, change) = match read {
            Ok(visible) => visible,
            Err(Unreadable::Deleted(key, why)) if revision != self.handed_out => {
                let message = format!("saw a DELETED event, but object data is corrupt - {key} {why}");
                return Some(self.last_status(Status::failure(500, "StorageReadError", message)));
            }
            // A reader that was not shown the object continues.
            Err(Unreadable::Stored(Some(hidden)))
                if self.filter.view(&EventLabels::new(&hidden, &self.shape)).is_none() =>
            {
                return None;
            }
            // A reader that saw a part of this revision would resume after it, so it must list.
            Err(Unreadable::Deleted(..) | Unreadable::Stored(_)) => {
                self.counters.expired.fetch_add(1, Relaxed);
                return Some(self.last_status(Status::compacted_watch()));
            }
        };
        self.last = revision;
        self.handed_out = revision;
        self.next_sequence += 1;
        let event = SharedEvent::new(self.next_sequence, now(), event, self.encodings.clone());
        Some(Delivery::Event(Delivered::new(Arc::new(event), change, &self.shape)))
    }

    /// Whether the event replaces or deletes a state that was written before this watch and cannot be decoded. A client
    /// may have read that state as an object, for example with a former encryption key. States after the start of this
    /// watch were already handled.
    fn has_unknown_former(&self, event: &StoreEvent) -> bool {
        let (StoreEvent::Put { previous, .. } | StoreEvent::Delete { previous, .. }) = event;
        previous.as_ref().is_some_and(|previous| {
            previous.modified <= self.begun && decode(previous, Change::Added, &self.shape).is_err()
        })
    }

    /// Decodes the event as the cache would record it.
    fn read(&self, event: StoreEvent) -> Result<Option<Event>, Unreadable> {
        let former = |entry: Option<KeyValue>| entry.and_then(|entry| decode(&entry, Change::Added, &self.shape).ok());
        let deletion = |previous: Object, revision| {
            let object = previous.at_change(revision, Change::Deleted, &self.shape);
            Event { change: Change::Deleted, object, previous: Some(previous) }
        };
        match event {
            StoreEvent::Put { current, previous } => {
                let created = current.created == current.modified;
                let known = created || previous.is_some();
                let previous = former(previous);
                let change = if previous.is_some() { Change::Modified } else { Change::Added };
                match decode(&current, change, &self.shape) {
                    Ok(object) => Ok(Some(Event { change, object, previous })),
                    Err(why) => {
                        // Further rewrites of an undecodable value are not logged.
                        if created || previous.is_some() {
                            tracing::error!(key = %current.key, revision = %current.modified, "the stored value is not an object: {why}");
                        }
                        match previous {
                            None if known => Ok(None),
                            hidden => {
                                let hidden = hidden.map(|previous| Box::new(deletion(previous, current.modified)));
                                Err(Unreadable::Stored(hidden))
                            }
                        }
                    }
                }
            }
            StoreEvent::Delete { key, previous: None, .. } => Err(Unreadable::Deleted(key, "is no longer known")),
            StoreEvent::Delete { revision, previous, .. } => {
                Ok(former(previous).map(|previous| deletion(previous, revision)))
            }
        }
    }

    fn last_status(&mut self, status: Status) -> Delivery {
        self.state = State::Ended;
        Delivery::Error(Box::new(status))
    }
}
