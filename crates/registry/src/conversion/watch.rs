//! [`ConvertedItems`]: the items of a store watch, with objects converted to one version.
//!
//! ```text
//!  store's watch ─▶ ready items ─▶ one conversion ─▶ items in the same order
//!                      ▲                  │ failed: Lost, after the items before the failure
//!                      └──── next burst ──┘
//! ```
//!
//! Items that are ready at the same time are converted in one call, so a backlog costs few calls. While a conversion
//! runs, later items wait in the bounded buffer of the store watch.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use listwatch_storage::{ItemStream, KeyValue, StoreEvent, StoreFault, WatchItem};

use super::storage::{PreviousValues, convert_entries};
use crate::custom::Form;

/// Maximum number of items per conversion. Exceeded only to keep the changes of one revision together.
const BURST_ITEMS_MAX: usize = 256;

/// Maximum size of the items per conversion, in bytes. Exceeded by the last item, and to keep the changes of one
/// revision together.
const BURST_BYTES_MAX: usize = 1 << 20;

type Conversion = Pin<Box<dyn Future<Output = Vec<WatchItem>> + Send>>;

/// A store watch whose objects are converted to one version. See the module documentation.
pub(super) struct ConvertedItems {
    items: ItemStream,
    form: Form,
    previous: PreviousValues,
    /// Converted items that the reader has not taken yet.
    ready: VecDeque<WatchItem>,
    /// The first item after a full burst, which belongs to the next one.
    ahead: Option<WatchItem>,
    running: Option<Conversion>,
    /// Whether the store's watch has ended, or a conversion has failed.
    ended: bool,
}

impl ConvertedItems {
    pub(super) fn new(items: ItemStream, form: Form, previous: PreviousValues) -> Self {
        ConvertedItems { items, form, previous, ready: VecDeque::new(), ahead: None, running: None, ended: false }
    }

    /// Takes the items that are ready. Changes of one revision that are ready stay in one burst.
    fn poll_burst(&mut self, cx: &mut Context<'_>) -> Vec<WatchItem> {
        let mut burst: Vec<WatchItem> = Vec::new();
        let mut bytes = 0;
        loop {
            let next = match self.ahead.take() {
                Some(item) => Poll::Ready(Some(item)),
                None => self.items.as_mut().poll_next(cx),
            };
            match next {
                Poll::Ready(Some(item)) => {
                    let is_full = burst.len() >= BURST_ITEMS_MAX || bytes >= BURST_BYTES_MAX;
                    if is_full && revision(&item).is_none_or(|new| burst.last().and_then(revision) != Some(new)) {
                        self.ahead = Some(item);
                        return burst;
                    }
                    bytes += value_bytes(&item);
                    burst.push(item);
                }
                Poll::Ready(None) => {
                    self.ended = true;
                    return burst;
                }
                Poll::Pending => return burst,
            }
        }
    }
}

fn revision(item: &WatchItem) -> Option<listwatch_meta::Revision> {
    match item {
        WatchItem::Event(event) => Some(event.revision()),
        _ => None,
    }
}

fn value_bytes(item: &WatchItem) -> usize {
    match item {
        WatchItem::Event(StoreEvent::Put { current, .. }) => current.value.len(),
        _ => 0,
    }
}

/// Returns the entries of an item that must be converted.
fn entries(item: &mut WatchItem) -> Vec<&mut KeyValue> {
    match item {
        WatchItem::Event(StoreEvent::Put { current, previous }) => {
            previous.as_mut().into_iter().chain([current]).collect()
        }
        WatchItem::Event(StoreEvent::Delete { previous, .. }) => previous.as_mut().into_iter().collect(),
        WatchItem::Progress(_) | WatchItem::Expired { .. } | WatchItem::Lost(_) => Vec::new(),
    }
}

fn drop_previous(item: &mut WatchItem) {
    if let WatchItem::Event(StoreEvent::Put { previous, .. } | StoreEvent::Delete { previous, .. }) = item {
        *previous = None;
    }
}

/// Converts the items of a burst. If a conversion fails, returns the items before the failed revision, then
/// [`WatchItem::Lost`].
async fn convert(form: Form, mut burst: Vec<WatchItem>) -> Vec<WatchItem> {
    let failure = match convert_entries(&form, burst.iter_mut().flat_map(entries).collect()).await {
        Ok(()) => return burst,
        Err(failure) => failure,
    };
    let is_one_revision =
        burst.windows(2).all(|pair| revision(&pair[0]).is_some() && revision(&pair[0]) == revision(&pair[1]));
    if is_one_revision {
        return vec![WatchItem::Lost(failure)];
    }
    // An object that cannot be converted must not hold back the changes before it, or a reader could never pass them.
    let mut done = Vec::new();
    let mut rest = burst.into_iter().peekable();
    while let Some(item) = rest.next() {
        let same = revision(&item);
        let mut together = vec![item];
        while let Some(next) = rest.next_if(|next| same.is_some() && revision(next) == same) {
            together.push(next);
        }
        if let Err(failure) = convert_entries(&form, together.iter_mut().flat_map(entries).collect()).await {
            done.push(WatchItem::Lost(failure));
            return done;
        }
        done.extend(together);
    }
    done
}

impl Stream for ConvertedItems {
    type Item = WatchItem;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<WatchItem>> {
        let this = &mut *self;
        loop {
            if let Some(item) = this.ready.pop_front() {
                return Poll::Ready(Some(item));
            }
            if let Some(running) = &mut this.running {
                let Poll::Ready(items) = running.as_mut().poll(cx) else { return Poll::Pending };
                this.running = None;
                this.ended |= matches!(items.last(), Some(WatchItem::Lost(StoreFault::Unconvertible(_))));
                this.ready = items.into();
                continue;
            }
            if this.ended {
                return Poll::Ready(None);
            }
            let mut burst = this.poll_burst(cx);
            if burst.is_empty() {
                return if this.ended { Poll::Ready(None) } else { Poll::Pending };
            }
            if this.previous == PreviousValues::Dropped {
                burst.iter_mut().for_each(drop_previous);
            }
            if burst.iter_mut().all(|item| entries(item).is_empty()) {
                this.ready = burst.into();
            } else {
                this.running = Some(Box::pin(convert(this.form.clone(), burst)));
            }
        }
    }
}
