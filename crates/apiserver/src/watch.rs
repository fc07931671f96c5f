//! One watch response: [`WatchStream`] turns what the cache delivers into chunks of bytes.
//!
//! ```text
//!  Watcher ──Delivery──▶ encode (shared bytes) ──▶ batch ──▶ one chunk
//!                                                   │ nothing more is waiting, or 64 KiB are full
//! ```
//!
//! A lone event goes out at once and without a copy: the chunk is the frame that all watchers
//! share. Events that wait together go out together, so that under load the price of a write to the
//! socket is paid per chunk and not per event. Nothing ever waits for a timer.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use futures_core::Stream as _;
use listwatch_cacher::{Delivery, Watcher};
use listwatch_meta::Status;

use crate::registry::Resource;
use crate::view::WatchView;

/// A batch is sent when it has this many bytes, whatever else is waiting: what a watcher holds
/// outside the shared history.
pub(crate) const BATCH_BYTES_MAX: usize = 64 * 1024;

/// A watch as a source of chunks. Ends when the cache ends the watch (deadline, shutdown) or right
/// after an `ERROR` event.
pub(crate) struct WatchStream {
    watcher: Watcher,
    resource: Arc<Resource>,
    view: WatchView,
    ended: bool,
}

impl WatchStream {
    pub(crate) fn new(watcher: Watcher, resource: Arc<Resource>, view: WatchView) -> Self {
        WatchStream { watcher, resource, view, ended: false }
    }

    /// The next chunk; `None` after the end.
    pub(crate) fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut batch = Batch::default();
        while !self.ended && batch.len() < BATCH_BYTES_MAX {
            match Pin::new(&mut self.watcher).poll_next(cx) {
                Poll::Ready(Some(delivery)) => {
                    self.ended = matches!(delivery, Delivery::Error(_));
                    batch.push(self.encode(delivery));
                }
                Poll::Ready(None) => self.ended = true,
                Poll::Pending if batch.len() == 0 => return Poll::Pending,
                // The waker is registered; what is at hand goes out now.
                Poll::Pending => break,
            }
        }
        Poll::Ready(batch.finish())
    }

    fn encode(&mut self, delivery: Delivery) -> Bytes {
        match delivery {
            Delivery::Event(event) => self.view.event(&event),
            Delivery::Bookmark { revision, initial_events_end } => {
                self.view.bookmark(&self.resource, revision, initial_events_end)
            }
            Delivery::Error(status) => error_frame(&status),
        }
    }
}

/// `ERROR` frames are Status objects in every view.
fn error_frame(status: &Status) -> Bytes {
    listwatch_wire::error_frame(status)
}

/// Frames on their way into one chunk. A single frame stays the shared bytes it is.
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
    fn a_lone_frame_is_not_copied() {
        let frame = Bytes::from(vec![1, 2, 3]);
        let mut batch = Batch::default();
        batch.push(frame.clone());
        assert_eq!(batch.finish().unwrap().as_ptr(), frame.as_ptr());
    }

    #[test]
    fn frames_are_joined_in_order() {
        let mut batch = Batch::default();
        for frame in ["a\n", "bb\n", "ccc\n"] {
            batch.push(Bytes::from_static(frame.as_bytes()));
        }
        assert_eq!(batch.len(), 9);
        assert_eq!(batch.finish().unwrap(), "a\nbb\nccc\n");
        assert_eq!(Batch::default().finish(), None);
    }
}
