//! The stream of a watch: [`Watcher`].

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};

use futures_core::Stream;
use listwatch_meta::Status;

use crate::delivery::{Delivered, Delivery, SharedEvent};
use crate::direct::DirectWatch;
use crate::filter::{EventLabels, Filter};
use crate::handle::Handle;
use crate::hub::WatcherId;
use crate::limits::{CATCH_UP_EVENTS, CATCH_UP_EVENTS_PER_POLL, LIST_BATCH_OBJECTS};
use crate::shared::{Cell, Shared};
use crate::snapshot::WalkStep;
use crate::watcher::{Queued, Step};

/// A watch: a stream of [`Delivery`] items. Dropping it ends the watch.
///
/// The stream ends after [`Delivery::Error`], at its deadline, or when the cache is stopped. A reader may stop
/// reading without affecting others. A reader that resumes continues from the history or receives `410 Expired`.
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

    /// Creates a watch that could not begin; the only item of the stream is the error.
    pub(crate) fn over(last_status: Status) -> Self {
        Watcher(Inner::Over(Some(Box::new(last_status))))
    }

    /// Returns a ready item without waiting. `None` when none is ready, at the end, or after
    /// examining a bounded number of events outside of this watch. No waker is registered: use
    /// [`Stream::poll_next`] to wait.
    pub fn try_next(&mut self) -> Option<Delivery> {
        match self.poll_next_delivery(&mut Context::from_waker(Waker::noop()), false) {
            Poll::Ready(delivery) => delivery,
            Poll::Pending => None,
        }
    }

    /// Waits for the next item; `None` after the end.
    pub async fn next(&mut self) -> Option<Delivery> {
        std::future::poll_fn(|cx| self.poll_next_delivery(cx, true)).await
    }

    fn poll_next_delivery(&mut self, cx: &mut Context<'_>, wait: bool) -> Poll<Option<Delivery>> {
        match &mut self.0 {
            Inner::Cached(watch) => watch.poll(cx, wait),
            Inner::Direct(watch) => watch.poll(cx),
            Inner::Over(last_status) => Poll::Ready(last_status.take().map(Delivery::Error)),
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
        let mut labeled_event = 0;
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
                    if labeled_event >= CATCH_UP_EVENTS_PER_POLL {
                        drop(self.cell.lock().handle_walked(items, false));
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    let found = items.look();
                    let done = matches!(found, WalkStep::End);
                    let unneeded = self.cell.lock().handle_walked(items, done);
                    drop(unneeded); // not under the lock
                    match found {
                        WalkStep::Object(object) => {
                            counters.initial.fetch_add(1, Relaxed);
                            Delivery::Event(Delivered::initial(object))
                        }
                        WalkStep::Nothing => {
                            labeled_event += LIST_BATCH_OBJECTS;
                            continue;
                        }
                        WalkStep::End => continue,
                    }
                }
                Step::InitialEnd(revision) => {
                    counters.bookmarks.fetch_add(1, Relaxed);
                    Delivery::Bookmark { revision, initial_events_end: true }
                }
                Step::LastStatus(status) => Delivery::Error(status),
                Step::Wait => return Poll::Pending,
                Step::End => return Poll::Ready(None),
                Step::NeedHistory(position) => {
                    if labeled_event >= CATCH_UP_EVENTS_PER_POLL {
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    labeled_event += self.catch_up(position);
                    continue;
                }
            };
            return Poll::Ready(Some(delivery));
        }
    }

    /// Reads the next part of the history or, at its end, attaches the watcher. Returns the number
    /// of examined events.
    fn catch_up(&self, position: u64) -> usize {
        let shared = &*self.handle.shared;
        let read = {
            let cache = shared.cache.read();
            let history = cache.history();
            history.read(position, CATCH_UP_EVENTS).map_err(|_| history.window_start())
        };
        match read {
            Err(window_start) => {
                self.cell.lock().handle_gone(position, window_start, |seen| shared.expired(seen, window_start.floor))
            }
            Ok(events) if events.is_empty() => {
                let mut hub = shared.hub.lock();
                // While the hub is locked, no event is dispatched. So either everything dispatched
                // so far has been read, or the reader must read on. A close needs no position in
                // the hub: it goes to the mailbox, attached or not.
                if hub.handle_attach(self.id, position) && !self.cell.lock().handle_attached(position) {
                    hub.handle_detach(self.id);
                }
            }
            Ok(events) => {
                let mut mailbox = self.cell.lock();
                let view =
                    |event: &SharedEvent| self.filter.view(&EventLabels::new(&event.event, &shared.config.shape));
                let seen = mailbox.handle_history(position, &events, view, |seen, floor| shared.expired(seen, floor));
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
