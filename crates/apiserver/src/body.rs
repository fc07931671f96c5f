//! The body of a response: [`Body`], one type for a short answer, a streamed list and a watch.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{self, Duration};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::gzip::{self, GZIP_BYTES_MIN};
use crate::pretty::Indenter;
use crate::seats::Seat;
use crate::watch::WatchStream;

/// Bytes handed to the connection at once: what a client that stops reading holds besides the
/// connection's own buffer. Larger pieces are cut, without a copy. Twice what events and items are
/// gathered to, so that only a very large object is ever cut.
pub(crate) const CHUNK_BYTES_MAX: usize = 128 * 1024;

/// After a piece that took longer to make, others have their turn on the worker: pieces that are converted,
/// compressed or printed take milliseconds, and a connection asks for many of them in a row.
const PIECE_TIME_MAX: Duration = Duration::from_micros(500);

/// The body cannot be ended: the client sees it cut off and takes none of it for whole.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the answer broke off: {0}")]
pub struct BrokenOff(pub(crate) String);

/// A body's pieces, made as they are asked for.
pub(crate) type Chunks = Box<dyn Iterator<Item = Result<Bytes, BrokenOff>> + Send>;

/// A response body. Chunks are produced when the connection asks for them, so a client that stops
/// reading costs no CPU and holds only what it has been handed.
pub struct Body {
    /// What is left of a piece that was larger than a chunk.
    rest: Bytes,
    source: Source,
    gzip: bool,
    hold: Option<Box<Hold>>,
    /// Others have their turn before the next piece is made.
    pauses: bool,
}

/// What an answer keeps until it is sent or dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) seat: Seat,
    /// When the time of the request is over.
    pub(crate) deadline: Instant,
    /// The second piece of a chunk that is handed over in two.
    pub(crate) tail: Bytes,
    /// The bytes of the answer to a write, of the budget of writes.
    #[expect(dead_code, reason = "given back when it is dropped")]
    pub(crate) room: Option<OwnedSemaphorePermit>,
}

impl Hold {
    /// Boxed: a watch has none, and there are many watches.
    pub(crate) fn new(seat: Seat, deadline: Instant, room: Option<OwnedSemaphorePermit>) -> Box<Self> {
        Box::new(Hold { seat, deadline, tail: Bytes::new(), room })
    }
}

/// What is done to a body besides encoding it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Form {
    /// Indented, for human eyes.
    pub(crate) pretty: bool,
    /// Compressed, if it is large.
    pub(crate) gzip: bool,
}

fn indented(chunks: Chunks) -> Chunks {
    let mut indenter = Indenter::default();
    let indented = chunks.map(move |chunk| chunk.map(|chunk| indenter.chunk(&chunk)));
    // A chunk of nothing but spaces indents to nothing; an empty frame would be waste.
    Box::new(indented.filter(|chunk| chunk.as_ref().map_or(true, |chunk| !chunk.is_empty())))
}

enum Source {
    /// There is no more than the rest.
    Over,
    /// A list, chunk by chunk.
    Chunks(Chunks),
    Watch(Box<WatchStream>),
}

impl Body {
    /// No bytes at all.
    pub(crate) fn empty() -> Self {
        Body::full(Bytes::new())
    }

    /// A body that is there already.
    pub(crate) fn full(bytes: impl Into<Bytes>) -> Self {
        Body { rest: bytes.into(), source: Source::Over, gzip: false, hold: None, pauses: false }
    }

    /// A body made chunk by chunk. What fits one chunk is sent whole, with its length, as a small
    /// answer should be.
    ///
    /// # Errors
    /// [`BrokenOff`] when it breaks off before anything was sent.
    pub(crate) fn chunks(chunks: Chunks, form: Form) -> Result<Self, BrokenOff> {
        let mut chunks = if form.pretty { indented(chunks) } else { chunks };
        // As much as has to be known: whether there is a second chunk, or enough for gzip.
        let enough = if form.gzip { GZIP_BYTES_MIN } else { 1 };
        let (mut first, mut bytes) = (Vec::new(), 0);
        while first.len() < 2 || bytes < enough {
            let Some(chunk) = chunks.next().transpose()? else {
                let whole = match first.as_slice() {
                    [single] => Bytes::clone(single),
                    several => several.concat().into(),
                };
                let gzip = form.gzip && bytes >= GZIP_BYTES_MIN;
                return Ok(Body { gzip, ..Body::full(if gzip { gzip::member(&whole) } else { whole }) });
            };
            bytes += chunk.len();
            first.push(chunk);
        }
        let chunks: Chunks = Box::new(first.into_iter().map(Ok).chain(chunks));
        let chunks = if form.gzip { gzip::compressed(chunks) } else { chunks };
        Ok(Body { rest: Bytes::new(), source: Source::Chunks(chunks), gzip: form.gzip, hold: None, pauses: false })
    }

    /// Keeps this until the body is sent or dropped.
    pub(crate) fn hold(&mut self, hold: Box<Hold>) {
        self.hold = Some(hold);
    }

    /// What the body keeps, for whoever sends it.
    pub(crate) fn held(&mut self) -> &mut Option<Box<Hold>> {
        &mut self.hold
    }

    /// Has every chunk been handed over whole?
    pub(crate) fn has_no_tail(&self) -> bool {
        self.hold.as_ref().is_none_or(|hold| hold.tail.is_empty())
    }

    /// Is it compressed?
    pub(crate) fn is_gzip(&self) -> bool {
        self.gzip
    }

    /// Is it a watch?
    pub(crate) fn is_watch(&self) -> bool {
        matches!(self.source, Source::Watch(_))
    }

    /// A watch.
    pub(crate) fn watch(stream: WatchStream) -> Self {
        let gzip = stream.is_gzip();
        Body { rest: Bytes::new(), source: Source::Watch(Box::new(stream)), gzip, hold: None, pauses: false }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        if std::mem::take(&mut self.pauses) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.rest.is_empty() {
            let next = match &mut self.source {
                Source::Over => None,
                Source::Chunks(chunks) => {
                    let begun = time::Instant::now();
                    let next = chunks.next();
                    self.pauses = begun.elapsed() > PIECE_TIME_MAX;
                    next
                }
                Source::Watch(stream) => std::task::ready!(stream.poll_chunk(cx)).map(Ok),
            };
            match next {
                None => return Poll::Ready(None),
                Some(Err(error)) => {
                    self.source = Source::Over;
                    return Poll::Ready(Some(Err(error)));
                }
                Some(Ok(next)) if next.len() <= CHUNK_BYTES_MAX => return Poll::Ready(Some(Ok(Frame::data(next)))),
                Some(Ok(next)) => self.rest = next,
            }
        }
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        let chunk_bytes = self.rest.len().min(CHUNK_BYTES_MAX);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(chunk_bytes)))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.source, Source::Over) && self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Over => SizeHint::with_exact(self.rest.len() as u64),
            _ => SizeHint::default(),
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.source {
            Source::Over => "full",
            Source::Chunks(_) => "list",
            Source::Watch(_) => "watch",
        };
        write!(f, "Body({kind})")
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    fn made(pieces: Vec<Result<&'static str, &str>>) -> Chunks {
        let pieces: Vec<Result<Bytes, BrokenOff>> = pieces
            .into_iter()
            .map(|piece| piece.map(|text| Bytes::from_static(text.as_bytes())).map_err(|why| BrokenOff(why.to_owned())))
            .collect();
        Box::new(pieces.into_iter())
    }

    #[tokio::test(start_paused = true)]
    async fn large_pieces_are_cut_without_a_copy() {
        let whole = Bytes::from(vec![7; 2 * CHUNK_BYTES_MAX + 1]);
        let mut body = Body::full(whole.clone());
        assert_eq!(http_body::Body::size_hint(&body).exact(), Some(whole.len() as u64));
        let mut from = 0;
        for bytes in [CHUNK_BYTES_MAX, CHUNK_BYTES_MAX, 1] {
            let chunk = body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert_eq!((chunk.len(), chunk.as_ptr()), (bytes, whole[from..].as_ptr()));
            from += bytes;
        }
        assert!(body.frame().await.is_none() && http_body::Body::is_end_stream(&body));
        assert!(http_body::Body::is_end_stream(&Body::empty()));
    }

    #[tokio::test]
    async fn others_have_their_turn_after_a_piece_that_takes_long() {
        let slow = (0..3).map(|_| {
            let begun = time::Instant::now();
            while begun.elapsed() <= PIECE_TIME_MAX {}
            Ok(Bytes::from_static(b"x"))
        });
        let mut body = Body::chunks(Box::new(slow), Form::default()).unwrap();
        let mut polls = Vec::new();
        let mut cx = Context::from_waker(std::task::Waker::noop());
        while polls.len() < 6 {
            match http_body::Body::poll_frame(Pin::new(&mut body), &mut cx) {
                Poll::Pending => polls.push("pause"),
                Poll::Ready(Some(_)) => polls.push("piece"),
                Poll::Ready(None) => break,
            }
        }
        // The first two were made before the body was.
        assert_eq!(polls, ["piece", "piece", "piece", "pause"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_breaks_off_is_no_whole_body() {
        let mut body = Body::chunks(made(vec![Ok("a"), Ok("b"), Err("c"), Ok("d")]), Form::default()).unwrap();
        let mut seen = Vec::new();
        while let Some(frame) = body.frame().await {
            seen.push(frame.map(|frame| frame.into_data().unwrap()).map_err(|error| error.to_string()));
        }
        assert_eq!(seen, [Ok("a".into()), Ok("b".into()), Err("the answer broke off: c".to_owned())]);
        assert_eq!(Body::chunks(made(vec![Err("a")]), Form::default()).unwrap_err(), BrokenOff("a".to_owned()));
    }
}
