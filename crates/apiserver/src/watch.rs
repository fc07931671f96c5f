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

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_core::Stream as _;
use listwatch_cacher::{Delivery, Watcher};
use listwatch_wire::media_type::Encoding;
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep};

use crate::gzip;
use crate::registry::Resource;
use crate::view::WatchView;

/// A batch is sent when it has this many bytes, whatever else is waiting: what a watcher holds
/// outside the shared history.
pub(crate) const BATCH_BYTES_MAX: usize = 64 * 1024;

/// Over at most this time the watches of a server that stops are spread (below the ten seconds that
/// requests have to finish).
const FAREWELL_GRACE: Duration = Duration::from_secs(5);
/// The shortest distance between two: few watches end at 200 a second, whatever the grace.
const FAREWELL_STEP: Duration = Duration::from_millis(5);

/// The open watches of a server, and in which order they leave when it stops.
#[derive(Debug, Default)]
pub(crate) struct Farewell(Mutex<Leaving>);

#[derive(Debug, Default)]
struct Leaving {
    open: u32,
    /// Once the end has begun: when the next one may leave, and how long after it the one behind it.
    turns: Option<(Instant, Duration)>,
}

impl Farewell {
    /// The server stops.
    pub(crate) fn begin(&self, now: Instant) {
        let mut leaving = self.0.lock();
        let step = FAREWELL_STEP.min(FAREWELL_GRACE / leaving.open.max(1));
        leaving.turns.get_or_insert((now, step));
    }

    /// When a watch that has nothing more to say may leave; `None` is at once, unless the server stops.
    fn turn(&self) -> Option<Instant> {
        let mut leaving = self.0.lock();
        let (turn, step) = leaving.turns.as_mut()?;
        let own = *turn;
        *turn += *step;
        Some(own)
    }
}

/// An open watch, counted.
struct Counted(Arc<Farewell>);

impl Counted {
    fn new(farewell: Arc<Farewell>) -> Self {
        farewell.0.lock().open += 1;
        Counted(farewell)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.lock().open -= 1;
    }
}

/// A watch as a source of chunks. Ends when the cache ends the watch (deadline, shutdown) or right
/// after an `ERROR` event.
pub(crate) struct WatchStream {
    watcher: Watcher,
    resource: Arc<Resource>,
    view: WatchView,
    ended: bool,
    counted: Counted,
    /// The server stops and others leave first.
    leaving: Option<Pin<Box<Sleep>>>,
    /// The compression, until its end is sent.
    gzip: Option<gzip::Streamed>,
    compressed: bool,
}

impl WatchStream {
    pub(crate) fn new(
        watcher: Watcher,
        resource: Arc<Resource>,
        view: WatchView,
        farewell: Arc<Farewell>,
        gzip: bool,
    ) -> Self {
        let counted = Counted::new(farewell);
        WatchStream {
            watcher,
            resource,
            view,
            ended: false,
            counted,
            leaving: None,
            gzip: gzip.then(gzip::Streamed::default),
            compressed: gzip,
        }
    }

    /// The `Content-Type` of the stream.
    pub(crate) fn content_type(&self) -> &'static str {
        self.view.content_type()
    }

    /// How its events are encoded.
    pub(crate) fn encoding(&self) -> Encoding {
        self.view.encoding()
    }

    /// The next frame, by itself; `None` after the end.
    pub(crate) fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if !self.ended {
            match std::task::ready!(Pin::new(&mut self.watcher).poll_next(cx)) {
                Some(delivery) => return Poll::Ready(Some(self.encode(delivery))),
                None => self.ended = true,
            }
        }
        self.poll_leave(cx).map(|()| None)
    }

    /// Are the chunks gzip?
    pub(crate) fn is_gzip(&self) -> bool {
        self.compressed
    }

    /// The next chunk; `None` after the end.
    pub(crate) fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut batch = Batch::default();
        while !self.ended && batch.len() < BATCH_BYTES_MAX {
            match Pin::new(&mut self.watcher).poll_next(cx) {
                Poll::Ready(Some(delivery)) => {
                    let frame = self.encode(delivery);
                    batch.push(frame);
                }
                Poll::Ready(None) => self.ended = true,
                Poll::Pending if batch.len() == 0 => return Poll::Pending,
                // The waker is registered; what is at hand goes out now.
                Poll::Pending => break,
            }
        }
        match (batch.finish(), &mut self.gzip) {
            (Some(chunk), Some(gzip)) => Poll::Ready(Some(gzip.chunk(&chunk))),
            (Some(chunk), None) => Poll::Ready(Some(chunk)),
            (None, _) => {
                std::task::ready!(self.poll_leave(cx));
                Poll::Ready(self.gzip.take().map(|mut gzip| gzip.end()))
            }
        }
    }

    fn poll_leave(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.leaving.is_none() {
            let Some(turn) = self.counted.0.turn() else { return Poll::Ready(()) };
            self.leaving = Some(Box::pin(tokio::time::sleep_until(turn)));
        }
        self.leaving.as_mut().map_or(Poll::Ready(()), |turn| turn.as_mut().poll(cx))
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
        if self.joined.capacity() - self.joined.len() < frame.len() {
            // Many wait: room for all that a batch takes, so that they are moved once at most.
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
    fn a_lone_frame_is_not_copied() {
        let frame = Bytes::from(vec![1, 2, 3]);
        let mut batch = Batch::default();
        batch.push(frame.clone());
        assert_eq!(batch.finish().unwrap().as_ptr(), frame.as_ptr());
    }

    #[tokio::test(start_paused = true)]
    async fn watches_leave_one_after_the_other_within_the_grace() {
        for open in [1, 10, 2_000, 100_000] {
            let farewell = Arc::new(Farewell::default());
            let watches: Vec<Counted> = (0..open).map(|_| Counted::new(Arc::clone(&farewell))).collect();
            assert_eq!(farewell.turn(), None, "a watch that ends by itself waits for nobody");
            let now = Instant::now();
            farewell.begin(now);
            let turns: Vec<Instant> = watches.iter().map(|_| farewell.turn().unwrap()).collect();
            assert_eq!(turns[0], now);
            assert!(turns.is_sorted() && *turns.last().unwrap() <= now + FAREWELL_GRACE, "{open}");
            let slow = turns.windows(2).all(|pair| pair[1] - pair[0] <= FAREWELL_STEP);
            assert!(slow, "never slower than 200 a second: {open}");
            drop(watches);
            assert_eq!(farewell.0.lock().open, 0);
        }
    }

    #[test]
    fn a_batch_that_fills_up_is_moved_once() {
        let (mut batch, mut places) = (Batch::default(), Vec::new());
        let frame = Bytes::from(vec![b'x'; 1_000]);
        while batch.len() < BATCH_BYTES_MAX {
            batch.push(frame.clone());
            places.push((batch.joined.as_ptr(), batch.joined.capacity()));
        }
        places.remove(0); // the lone frame
        places.dedup();
        assert!(places.len() <= 2, "{places:?}");
        assert_eq!(batch.finish().unwrap(), frame.repeat(66));
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
