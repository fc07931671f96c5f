//! The body of a response: [`Body`], one type for a short answer, a streamed list and a watch.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

use crate::pretty::Indenter;
use crate::watch::WatchStream;

/// A response body. Chunks are produced when the connection asks for them, so a client that stops
/// reading costs no CPU and holds only what it has been handed.
pub struct Body(Inner);

enum Inner {
    Empty,
    Full(Bytes),
    /// A list, chunk by chunk.
    Chunks(Box<dyn Iterator<Item = Bytes> + Send>),
    /// The same, indented for human eyes.
    Indented(Indenter, Box<dyn Iterator<Item = Bytes> + Send>),
    Watch(Box<WatchStream>),
}

impl Body {
    /// No bytes at all.
    pub(crate) fn empty() -> Self {
        Body(Inner::Empty)
    }

    /// A body that is there already.
    pub(crate) fn full(bytes: impl Into<Bytes>) -> Self {
        Body(Inner::Full(bytes.into()))
    }

    /// A body made chunk by chunk, indented when `pretty`. What fits one chunk is sent whole, with
    /// its length, as a small answer should be.
    pub(crate) fn chunks(mut chunks: impl Iterator<Item = Bytes> + Send + 'static, pretty: bool) -> Self {
        let (first, second) = (chunks.next().unwrap_or_default(), chunks.next());
        if second.is_none() {
            return Body::full(if pretty { Indenter::default().chunk(&first) } else { first });
        }
        let chunks = Box::new(std::iter::once(first).chain(second).chain(chunks));
        Body(if pretty { Inner::Indented(Indenter::default(), chunks) } else { Inner::Chunks(chunks) })
    }

    /// A watch.
    pub(crate) fn watch(stream: WatchStream) -> Self {
        Body(Inner::Watch(Box::new(stream)))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let chunk = match &mut self.0 {
            Inner::Empty => None,
            Inner::Full(bytes) => Some(std::mem::take(bytes)).filter(|bytes| !bytes.is_empty()),
            Inner::Chunks(chunks) => chunks.next(),
            Inner::Indented(indenter, chunks) => {
                // A chunk of nothing but spaces indents to nothing; an empty frame would be waste.
                chunks.by_ref().map(|chunk| indenter.chunk(&chunk)).find(|chunk| !chunk.is_empty())
            }
            Inner::Watch(stream) => std::task::ready!(stream.poll_chunk(cx)),
        };
        Poll::Ready(chunk.map(|chunk| Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Inner::Empty => true,
            Inner::Full(bytes) => bytes.is_empty(),
            _ => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Inner::Empty => SizeHint::with_exact(0),
            Inner::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            _ => SizeHint::default(),
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.0 {
            Inner::Empty => "empty",
            Inner::Full(_) => "full",
            Inner::Chunks(_) | Inner::Indented(..) => "list",
            Inner::Watch(_) => "watch",
        };
        write!(f, "Body({kind})")
    }
}
