//! [`WatchStream`]: encodes the deliveries of the cache for one watch, and joins them into chunks.
//!
//! ```text
//!  Watcher ──Delivery──▶ encode (shared bytes) ──▶ batch ──▶ one chunk
//!                                                   │ no delivery is ready, or 64 KiB are full
//! ```
//!
//! A single event is sent at once and without a copy: the chunk is the frame that all watchers share. Events that are
//! ready together are sent in one chunk. A busy server therefore writes to the socket once per chunk and not once per
//! event. No event waits for a timer. As in kube-apiserver, no watch is compressed
//! (`k8s.io/apiserver/pkg/endpoints/handlers/watch.go`).

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use futures_core::Stream as _;
use listwatch_cacher::{Delivery, Watcher};
use listwatch_wire::media_type::Encoding;
use tokio::time::Sleep;

use crate::flow_control::WatchAdmission;
use crate::response::watch_drain::{OpenWatch, WatchDrain};
use crate::response::watch_view::WatchView;
use listwatch_registry::Resource;

/// The size at which a chunk is complete, in bytes. A watcher holds at most this many bytes in addition to the shared
/// history. Further deliveries wait for the next chunk.
pub(crate) const BATCH_BYTES_MAX: usize = 64 * 1024;

/// A watch as a source of chunks. The stream ends when the cache ends the watch (deadline, shutdown), or after an
/// `ERROR` event.
pub(crate) struct WatchStream {
    watcher: Watcher,
    resource: Arc<Resource>,
    view: WatchView,
    ended: bool,
    open: OpenWatch,
    /// The time until this watch ends, while the server drains its watches.
    drain_delay: Option<Pin<Box<Sleep>>>,
    admission: WatchAdmission,
}

impl WatchStream {
    pub(crate) fn new(watcher: Watcher, resource: Arc<Resource>, view: WatchView, drain: Arc<WatchDrain>) -> Self {
        let open = OpenWatch::new(drain);
        WatchStream {
            watcher,
            resource,
            view,
            ended: false,
            open,
            drain_delay: None,
            admission: WatchAdmission::default(),
        }
    }

    /// Sets the flow control resources of the watch.
    pub(crate) fn with_admission(mut self, admission: WatchAdmission) -> Self {
        self.admission = admission;
        self
    }

    /// Returns the `Content-Type` of the stream.
    pub(crate) fn content_type(&self) -> &'static str {
        self.view.content_type()
    }

    /// Returns the encoding of the events.
    pub(crate) fn encoding(&self) -> Encoding {
        self.view.encoding()
    }

    /// Returns the next single frame; `None` after the end.
    pub(crate) fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if !self.ended {
            match Pin::new(&mut self.watcher).poll_next(cx) {
                Poll::Ready(Some(delivery)) => {
                    let message = self.encode(delivery);
                    self.admission.note_sent(message.len());
                    return Poll::Ready(Some(message));
                }
                Poll::Ready(None) => self.ended = true,
                Poll::Pending => {
                    self.admission.note_initialized();
                    return Poll::Pending;
                }
            }
        }
        self.poll_end(cx).map(|()| None)
    }

    /// Returns the next chunk; `None` after the end.
    pub(crate) fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut batch = Batch::default();
        while !self.ended && batch.len() < BATCH_BYTES_MAX {
            match Pin::new(&mut self.watcher).poll_next(cx) {
                Poll::Ready(Some(delivery)) => {
                    let frame = self.encode(delivery);
                    batch.push(frame);
                }
                Poll::Ready(None) => self.ended = true,
                Poll::Pending => {
                    self.admission.note_initialized();
                    if batch.len() == 0 {
                        return Poll::Pending;
                    }
                    // The waker is registered, and the frames of this batch are sent now.
                    break;
                }
            }
        }
        self.admission.note_sent(batch.len());
        match batch.finish() {
            Some(chunk) => Poll::Ready(Some(chunk)),
            None => self.poll_end(cx).map(|()| None),
        }
    }

    /// Completes when the stream may end: at once, or at its scheduled time while the server drains its watches.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.drain_delay.is_none() {
            let Some(end) = self.open.end_time() else { return Poll::Ready(()) };
            self.drain_delay = Some(Box::pin(tokio::time::sleep_until(end)));
        }
        self.drain_delay.as_mut().map_or(Poll::Ready(()), |delay| delay.as_mut().poll(cx))
    }

    fn encode(&mut self, delivery: Delivery) -> Bytes {
        let encoded = match delivery {
            Delivery::Event(event) => self.view.event(&event),
            Delivery::Bookmark { revision, initial_events_end } => {
                self.view.bookmark(&self.resource, revision, initial_events_end)
            }
            Delivery::Error(status) => Err(*status),
        };
        encoded.unwrap_or_else(|status| {
            self.ended = true;
            self.view.error(&status)
        })
    }
}

/// Frames that become one chunk. A single frame is not copied.
#[derive(Default)]
struct Batch {
    first: Option<Bytes>,
    joined: BytesMut,
}

impl Batch {
    fn len(&self) -> usize {
        self.first.as_ref().map_or(0, Bytes::len) + self.joined.len()
    }

    fn push(&mut self, frame: Bytes) {
        if self.joined.is_empty() {
            let Some(first) = self.first.take() else {
                self.first = Some(frame);
                return;
            };
            self.joined.reserve(BATCH_BYTES_MAX.min(4 * (first.len() + frame.len())));
            self.joined.extend_from_slice(&first);
        }
        if self.joined.capacity() - self.joined.len() < frame.len() {
            // The capacity suffices for a whole batch, so that its bytes are moved at most once.
            self.joined.reserve(BATCH_BYTES_MAX.saturating_sub(self.joined.len()) + frame.len());
        }
        self.joined.extend_from_slice(&frame);
    }

    fn finish(self) -> Option<Bytes> {
        self.first.or_else(|| (!self.joined.is_empty()).then(|| self.joined.freeze()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_watch_frame_is_sent_without_a_copy() {
        let frame = Bytes::from(vec![1, 2, 3]);
        let mut batch = Batch::default();
        batch.push(frame.clone());
        assert_eq!(batch.finish().unwrap().as_ptr(), frame.as_ptr());
    }

    #[test]
    fn full_batch_of_watch_frames_is_copied_at_most_once() {
        let (mut batch, mut allocations) = (Batch::default(), Vec::new());
        let frame = Bytes::from(vec![b'x'; 1_000]);
        while batch.len() < BATCH_BYTES_MAX {
            batch.push(frame.clone());
            allocations.push((batch.joined.as_ptr(), batch.joined.capacity()));
        }
        allocations.remove(0); // the single frame
        allocations.dedup();
        assert!(allocations.len() <= 2, "{allocations:?}");
        assert_eq!(batch.finish().unwrap(), frame.repeat(66));
    }

    #[test]
    fn watch_frames_of_a_batch_keep_their_order() {
        let mut batch = Batch::default();
        for frame in ["a\n", "bb\n", "ccc\n"] {
            batch.push(Bytes::from_static(frame.as_bytes()));
        }
        assert_eq!(batch.len(), 9);
        assert_eq!(batch.finish().unwrap(), "a\nbb\nccc\n");
        assert_eq!(Batch::default().finish(), None);
    }
}
