//! [`Body`]: the body of a response: a short document, a streamed list, a watch, or a proxied body.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{self, Duration};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use listwatch_proxy::ProxyBody;
use listwatch_wire::pretty::Indenter;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::audit::AuditedRequest;
use crate::connections::ConnectSlot;
use crate::flow_control::in_flight::InFlightSlot;
use crate::response::chunks::{BodyError, Chunks};
use crate::response::compressed_blocks::CompressedBlocks;
use crate::response::gzip::{self, GZIP_BYTES_MIN};
use crate::response::watch_stream::WatchStream;

/// The largest chunk that the connection receives at once, in bytes. A stalled client holds one chunk in addition to
/// the connection's buffer. Larger pieces are split without a copy. The limit is twice the target size of joined events
/// and items, so only a very large object is split.
pub(crate) const CHUNK_BYTES_MAX: usize = 128 * 1024;

/// If a piece took longer than this time to produce, the task yields before the next piece. A piece can take
/// milliseconds to convert, compress or indent, and a connection polls for many pieces in a row.
const PIECE_TIME_MAX: Duration = Duration::from_micros(500);

/// A response body. A chunk is produced when the connection polls for it, so a stalled client costs no CPU, and no
/// memory beyond its current chunk.
pub struct Body {
    /// The rest of a piece that is larger than a chunk.
    rest: Bytes,
    source: Source,
    gzip: bool,
    hold: Option<Box<Hold>>,
    /// The audit record of a long-running request. The record ends with the body.
    audited: Option<Arc<AuditedRequest>>,
    /// Whether the task yields before the next piece.
    yields: bool,
}

/// The resources of a response until it is sent or dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) slot: InFlightSlot,
    /// The deadline of the request.
    pub(crate) deadline: Instant,
    /// The second piece of a chunk that is sent in two pieces.
    pub(crate) tail: Bytes,
    /// The memory permit of the response to a write.
    #[expect(dead_code, reason = "freed when it is dropped")]
    pub(crate) memory: Option<OwnedSemaphorePermit>,
}

impl Hold {
    /// Creates a boxed value, because most bodies are watches and hold no resources.
    pub(crate) fn new(slot: InFlightSlot, deadline: Instant, memory: Option<OwnedSemaphorePermit>) -> Box<Self> {
        Box::new(Hold { slot, deadline, tail: Bytes::new(), memory })
    }
}

/// The changes to the bytes of a body after encoding.
#[derive(Clone, Default)]
pub(crate) struct Format {
    /// Whether JSON is indented.
    pub(crate) pretty: bool,
    /// The cache of compressed blocks. If set, bodies of at least [`GZIP_BYTES_MIN`] bytes are compressed.
    pub(crate) gzip: Option<CompressedBlocks>,
}

fn indented(chunks: Chunks) -> Chunks {
    let mut indenter = Indenter::default();
    let indented = chunks.map(move |chunk| chunk.map(|chunk| indenter.chunk(&chunk)));
    // Indentation can make a chunk of spaces empty. Empty chunks are not sent.
    Box::new(indented.filter(|chunk| chunk.as_ref().map_or(true, |chunk| !chunk.is_empty())))
}

enum Source {
    /// The body has no bytes after `rest`.
    Empty,
    /// A list, produced chunk by chunk.
    Chunks(Chunks),
    Watch(Box<WatchStream>),
    /// The response of another server, frame by frame.
    Proxied(Box<Proxied>),
}

/// The body of another server's response.
struct Proxied {
    body: ProxyBody,
    _slot: Option<ConnectSlot>,
}

impl Body {
    /// Creates an empty body.
    pub(crate) fn empty() -> Self {
        Body::full(Bytes::new())
    }

    /// Creates a body with the given bytes.
    pub(crate) fn full(bytes: impl Into<Bytes>) -> Self {
        Body { rest: bytes.into(), source: Source::Empty, gzip: false, hold: None, audited: None, yields: false }
    }

    /// Creates a body that is compressed while it is sent, if `blocks` is set and the bytes are at least
    /// [`GZIP_BYTES_MIN`].
    pub(crate) fn compressed(mut bytes: Bytes, blocks: Option<CompressedBlocks>) -> Self {
        let Some(blocks) = blocks.filter(|_| bytes.len() >= GZIP_BYTES_MIN) else { return Body::full(bytes) };
        let chunks = std::iter::from_fn(move || {
            let chunk_bytes = bytes.len().min(CHUNK_BYTES_MAX);
            (chunk_bytes > 0).then(|| Ok(bytes.split_to(chunk_bytes)))
        });
        Body { source: Source::Chunks(gzip::compressed(Box::new(chunks), blocks)), gzip: true, ..Body::empty() }
    }

    /// Creates a body from chunks. A body with only one chunk has a known length.
    ///
    /// # Errors
    /// The [`BodyError`] of the first chunks.
    pub(crate) fn chunks(chunks: Chunks, format: &Format) -> Result<Self, BodyError> {
        let mut chunks = if format.pretty { indented(chunks) } else { chunks };
        // The first chunks decide whether there is a second chunk, and whether there are enough bytes for gzip.
        let enough = if format.gzip.is_some() { GZIP_BYTES_MIN } else { 1 };
        let (mut first, mut bytes) = (Vec::new(), 0);
        while first.len() < 2 || bytes < enough {
            let Some(chunk) = chunks.next().transpose()? else {
                let whole = match first.as_slice() {
                    [single] => Bytes::clone(single),
                    several => several.concat().into(),
                };
                let gzip = format.gzip.is_some() && bytes >= GZIP_BYTES_MIN;
                return Ok(Body { gzip, ..Body::full(if gzip { gzip::member(&whole) } else { whole }) });
            };
            bytes += chunk.len();
            first.push(chunk);
        }
        let chunks: Chunks = Box::new(first.into_iter().map(Ok).chain(chunks));
        let chunks = match &format.gzip {
            Some(blocks) => gzip::compressed(chunks, blocks.clone()),
            None => chunks,
        };
        Ok(Body { source: Source::Chunks(chunks), gzip: format.gzip.is_some(), ..Body::empty() })
    }

    /// Holds resources until the body is sent or dropped.
    pub(crate) fn hold(&mut self, hold: Box<Hold>) {
        self.hold = Some(hold);
    }

    /// Holds the audit record until the body is sent or dropped.
    pub(crate) fn hold_audit(&mut self, audited: Arc<AuditedRequest>) {
        self.audited = Some(audited);
    }

    /// Returns the resources that the body holds until it is sent.
    pub(crate) fn held(&mut self) -> &mut Option<Box<Hold>> {
        &mut self.hold
    }

    /// Whether no second piece of a chunk is waiting to be sent.
    pub(crate) fn has_no_tail(&self) -> bool {
        self.hold.as_ref().is_none_or(|hold| hold.tail.is_empty())
    }

    /// Whether the body is compressed.
    pub(crate) fn is_gzip(&self) -> bool {
        self.gzip
    }

    /// Whether the body is a watch.
    pub(crate) fn is_watch(&self) -> bool {
        matches!(self.source, Source::Watch(_))
    }

    /// Creates the body of a watch.
    pub(crate) fn watch(stream: WatchStream) -> Self {
        Body { source: Source::Watch(Box::new(stream)), ..Body::empty() }
    }
}

impl Body {
    /// Creates a body that forwards another server's response as it arrives. The body holds a slot until it is sent or
    /// dropped.
    pub(crate) fn proxied(body: ProxyBody, slot: Option<ConnectSlot>) -> Self {
        Body { source: Source::Proxied(Box::new(Proxied { body, _slot: slot })), ..Body::empty() }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if std::mem::take(&mut self.yields) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.rest.is_empty() {
            let next = match &mut self.source {
                Source::Empty => None,
                Source::Chunks(chunks) => {
                    let begun = time::Instant::now();
                    let next = chunks.next();
                    self.yields = begun.elapsed() > PIECE_TIME_MAX;
                    next
                }
                Source::Watch(stream) => std::task::ready!(stream.poll_chunk(cx)).map(Ok),
                Source::Proxied(proxied) => match std::task::ready!(Pin::new(&mut proxied.body).poll_frame(cx)) {
                    None => None,
                    Some(Err(error)) => Some(Err(BodyError(error.to_string()))),
                    Some(Ok(frame)) => match frame.into_data() {
                        Ok(data) => Some(Ok(data)),
                        Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                    },
                },
            };
            match next {
                None => return Poll::Ready(None),
                Some(Err(error)) => {
                    self.source = Source::Empty;
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
        let has_ended = match &self.source {
            Source::Empty => true,
            Source::Proxied(proxied) => proxied.body.is_end_stream(),
            Source::Chunks(_) | Source::Watch(_) => false,
        };
        has_ended && self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Empty => SizeHint::with_exact(self.rest.len() as u64),
            Source::Proxied(proxied) if self.rest.is_empty() => proxied.body.size_hint(),
            _ => SizeHint::default(),
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.source {
            Source::Empty => "full",
            Source::Chunks(_) => "list",
            Source::Watch(_) => "watch",
            Source::Proxied(_) => "proxied",
        };
        write!(f, "Body({kind})")
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    fn chunks(pieces: Vec<Result<&'static str, &str>>) -> Chunks {
        let pieces: Vec<Result<Bytes, BodyError>> = pieces
            .into_iter()
            .map(|piece| piece.map(|text| Bytes::from_static(text.as_bytes())).map_err(|why| BodyError(why.to_owned())))
            .collect();
        Box::new(pieces.into_iter())
    }

    #[tokio::test(start_paused = true)]
    async fn large_body_piece_is_split_without_a_copy() {
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
    async fn body_yields_after_a_slow_piece() {
        let slow = (0..3).map(|_| {
            let begun = time::Instant::now();
            while begun.elapsed() <= PIECE_TIME_MAX {}
            Ok(Bytes::from_static(b"x"))
        });
        let mut body = Body::chunks(Box::new(slow), &Format::default()).unwrap();
        let mut polls = Vec::new();
        let mut cx = Context::from_waker(std::task::Waker::noop());
        while polls.len() < 6 {
            match http_body::Body::poll_frame(Pin::new(&mut body), &mut cx) {
                Poll::Pending => polls.push("yield"),
                Poll::Ready(Some(_)) => polls.push("piece"),
                Poll::Ready(None) => break,
            }
        }
        // The first two chunks were produced when the body was created.
        assert_eq!(polls, ["piece", "piece", "piece", "yield"]);
    }

    #[tokio::test(start_paused = true)]
    async fn chunk_error_ends_the_response_body() {
        let mut body = Body::chunks(chunks(vec![Ok("a"), Ok("b"), Err("c"), Ok("d")]), &Format::default()).unwrap();
        let mut seen = Vec::new();
        while let Some(frame) = body.frame().await {
            seen.push(frame.map(|frame| frame.into_data().unwrap()).map_err(|error| error.to_string()));
        }
        assert_eq!(seen, [Ok("a".into()), Ok("b".into()), Err("the response was interrupted: c".to_owned())]);
        assert_eq!(Body::chunks(chunks(vec![Err("a")]), &Format::default()).unwrap_err(), BodyError("a".to_owned()));
    }
}
