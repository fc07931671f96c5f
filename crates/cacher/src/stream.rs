//! [`Watcher`]: the stream a reader holds.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};

use futures_core::Stream;
use listwatch_meta::Status;

use crate::delivery::{Delivered, Delivery, SharedEvent};
use crate::direct::DirectWatch;
use crate::filter::{Filter, LookedAt};
use crate::handle::Handle;
use crate::hub::WatcherId;
use crate::limits::{CATCH_UP_EVENTS, CATCH_UP_EVENTS_PER_POLL, LIST_BATCH_OBJECTS};
use crate::shared::{Cell, Shared};
use crate::snapshot::Looked;
use crate::watcher::{Queued, Step};

/// A watch: a stream of [`Delivery`]s. Dropping it ends the watch.
///
/// It ends after [`Delivery::Error`], at its deadline, or when the cache is stopped. A reader that
/// does not read costs nobody anything; when it reads again it goes on from the history, or is told
/// `410 Expired`.
pub struct Watcher(Inner);

enum Inner {
    Cached(CachedWatch),
    Direct(Box<DirectWatch>),
    Over(Option<Box<Status>>),
}

struct CachedWatch {
    handle: Arc<Handle>,
    id: WatcherId,
    cell: Cell,
    filter: Arc<Filter>,
}

impl Watcher {
    pub(crate) fn cached(handle: Arc<Handle>, id: WatcherId, cell: Cell, filter: Arc<Filter>) -> Self {
        Watcher(Inner::Cached(CachedWatch { handle, id, cell, filter }))
    }

    pub(crate) fn direct(watch: DirectWatch) -> Self {
        Watcher(Inner::Direct(Box::new(watch)))
    }

    /// A watch that says why it could not begin.
    pub(crate) fn over(goodbye: Status) -> Self {
        Watcher(Inner::Over(Some(Box::new(goodbye))))
    }

    /// What is ready now; `None` when nothing is, or at the end, or after a bounded number of
    /// events that are none of this watch's: more may be ready then. Does not register a waker: go
    /// on with [`Stream::poll_next`] to wait.
    pub fn try_next(&mut self) -> Option<Delivery> {
        match self.poll_next_delivery(&mut Context::from_waker(Waker::noop()), false) {
            Poll::Ready(delivery) => delivery,
            Poll::Pending => None,
        }
    }

    /// The next delivery; `None` after the end.
    pub async fn next(&mut self) -> Option<Delivery> {
        std::future::poll_fn(|cx| self.poll_next_delivery(cx, true)).await
    }

    fn poll_next_delivery(&mut self, cx: &mut Context<'_>, wait: bool) -> Poll<Option<Delivery>> {
        match &mut self.0 {
            Inner::Cached(watch) => watch.poll(cx, wait),
            Inner::Direct(watch) => watch.poll(cx),
            Inner::Over(goodbye) => Poll::Ready(goodbye.take().map(Delivery::Error)),
        }
    }
}

impl Stream for Watcher {
    type Item = Delivery;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Delivery>> {
        self.poll_next_delivery(cx, true)
    }
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watcher")
    }
}

impl CachedWatch {
    fn poll(&mut self, cx: &mut Context<'_>, wait: bool) -> Poll<Option<Delivery>> {
        let Shared { counters, config, .. } = &*self.handle.shared;
        let mut looked_at = 0;
        loop {
            let step = {
                let mut mailbox = self.cell.lock();
                let step = mailbox.poll_delivery();
                if wait && matches!(step, Step::Wait) {
                    mailbox.wait(cx.waker());
                }
                step
            };
            let delivery = match step {
                Step::Deliver(Queued::Event(event, change)) => {
                    Delivery::Event(Delivered::new(event, change, &config.shape))
                }
                Step::Deliver(Queued::Bookmark(revision)) => {
                    counters.bookmarks.fetch_add(1, Relaxed);
                    Delivery::Bookmark { revision, initial_events_end: false }
                }
                Step::Walk(mut items) => {
                    if looked_at >= CATCH_UP_EVENTS_PER_POLL {
                        drop(self.cell.lock().handle_walked(items, false));
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    let found = items.look();
                    let done = matches!(found, Looked::End);
                    let unneeded = self.cell.lock().handle_walked(items, done);
                    drop(unneeded); // not under the lock
                    match found {
                        Looked::Object(object) => {
                            counters.initial.fetch_add(1, Relaxed);
                            Delivery::Event(Delivered::initial(object))
                        }
                        Looked::Nothing => {
                            looked_at += LIST_BATCH_OBJECTS;
                            continue;
                        }
                        Looked::End => continue,
                    }
                }
                Step::InitialEnd(revision) => {
                    counters.bookmarks.fetch_add(1, Relaxed);
                    Delivery::Bookmark { revision, initial_events_end: true }
                }
                Step::Goodbye(status) => Delivery::Error(status),
                Step::Wait => return Poll::Pending,
                Step::End => return Poll::Ready(None),
                Step::NeedHistory(place) => {
                    if looked_at >= CATCH_UP_EVENTS_PER_POLL {
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    looked_at += self.catch_up(place);
                    continue;
                }
            };
            return Poll::Ready(Some(delivery));
        }
    }

    /// Brings the next part of the history, or, at its end, attaches the watcher to the live part.
    /// Returns how many events were looked at.
    fn catch_up(&self, place: u64) -> usize {
        let shared = &*self.handle.shared;
        let read = {
            let cache = shared.cache.read();
            let history = cache.history();
            history.read(place, CATCH_UP_EVENTS).map_err(|_| history.edge())
        };
        match read {
            Err(edge) => self.cell.lock().handle_gone(place, edge, |seen| shared.expired(seen, edge.floor)),
            Ok(events) if events.is_empty() => {
                let mut hub = shared.hub.lock();
                // No event is dispatched while the hub is locked: either everything dispatched so
                // far has been read, or there is more to read. (What closes the watch needs no
                // place in the hub: it goes to the mailbox, attached or not.)
                if hub.handle_attach(self.id, place) && !self.cell.lock().handle_attached(place) {
                    hub.handle_detach(self.id);
                }
            }
            Ok(events) => {
                let mut mailbox = self.cell.lock();
                let view = |event: &SharedEvent| self.filter.view(&LookedAt::new(&event.event, &shared.config.shape));
                let seen = mailbox.handle_history(place, &events, view, |seen, floor| shared.expired(seen, floor));
                shared.counters.caught_up.fetch_add(seen as u64, Relaxed);
                return events.len();
            }
        }
        0
    }
}

impl Drop for CachedWatch {
    fn drop(&mut self) {
        let gone = self.handle.shared.hub.lock().handle_gone(self.id);
        drop(gone); // may free a snapshot: not under the lock
    }
}
