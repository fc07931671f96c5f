//! A connection of HTTP/1.1: [`Http1`] leaves it to hyper, except for the time of a watch.
//!
//! ```text
//!  request ──▶ hyper ──head of a watch is sent──▶ hyper is taken apart ──▶ Watch: chunks of events
//!                ▲                                                            │ the watch ends
//!                └───────────────── what the peer sent meanwhile ◀────────────┘
//! ```
//!
//! hyper keeps buffers of 8 KiB to read the next request and to write the next head. A watch needs
//! neither for half an hour, and they are most of what an idle watcher would weigh. So hyper answers
//! the request and sends the head; then its half is dropped, and this one writes the chunks of the
//! body as they come. Behind the last one the connection is hyper's again.

use std::convert::Infallible;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use bytes::buf::Chain;
use bytes::{Buf, Bytes};
use http::{HeaderMap, Request, Response, Version, header};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::body::BrokenOff;
use crate::peer::Counted;

type ConnectionError = Box<dyn std::error::Error + Send + Sync>;

/// The answer to one request.
pub(crate) type Answer = Pin<Box<dyn Future<Output = Response<Counted>> + Send>>;

/// Bytes taken from a peer while its watch is open, at once and in all: it has nothing to say, but
/// may send its next request early. With as many here it is not read from until the watch ends.
const EARLY_BYTES_MAX: usize = 512;

/// One connection, until it ends.
pub(crate) struct Http1<T> {
    state: State<T>,
    builder: Arc<http1::Builder>,
    answer: Arc<dyn Fn(Request<Incoming>) -> Answer + Send + Sync>,
    /// No request is taken any more.
    last: bool,
}

enum State<T> {
    Requests(Box<Requests<T>>),
    Watch(Watch<T>),
    Closing(T),
    Over,
}

/// The time in which hyper has the connection.
struct Requests<T> {
    connection: http1::UpgradeableConnection<TokioIo<Lent<T>>, Service>,
    handover: Arc<Handover>,
}

/// Where a watch passes from hyper, which sent its head, to [`Watch`].
#[derive(Default)]
struct Handover {
    watch: Mutex<Option<Counted>>,
    /// Nothing that hyper has written is still on its way.
    flushed: AtomicBool,
}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Http1<T> {
    /// A connection on which nothing has been read.
    pub(crate) fn new(
        io: T,
        builder: Arc<http1::Builder>,
        answer: Arc<dyn Fn(Request<Incoming>) -> Answer + Send + Sync>,
    ) -> Self {
        let mut connection = Http1 { state: State::Over, builder, answer, last: false };
        connection.requests(io, Bytes::new());
        connection
    }

    /// Lets the request that is being answered finish; the connection ends behind it.
    pub(crate) fn graceful_shutdown(&mut self) {
        self.last = true;
        if let State::Requests(requests) = &mut self.state {
            Pin::new(&mut requests.connection).graceful_shutdown();
        }
    }

    fn requests(&mut self, io: T, early: Bytes) {
        let handover = Arc::new(Handover::default());
        let service = Service { answer: Arc::clone(&self.answer), handover: Arc::clone(&handover) };
        let io = TokioIo::new(Lent { io, early, handover: Arc::clone(&handover) });
        let connection = self.builder.serve_connection(io, service).with_upgrades();
        self.state = State::Requests(Box::new(Requests { connection, handover }));
    }
}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Future for Http1<T> {
    type Output = Result<(), ConnectionError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            let over = match &mut this.state {
                State::Requests(requests) => {
                    if let Poll::Ready(ended) = Pin::new(&mut requests.connection).poll(cx) {
                        return Poll::Ready(ended.map_err(Into::into));
                    }
                    requests.handover.is_ready()
                }
                State::Watch(watch) => ready!(watch.poll(cx))? == End::Gone,
                State::Closing(io) => return Pin::new(io).poll_shutdown(cx).map_err(Into::into),
                State::Over => return Poll::Ready(Ok(())),
            };
            match (std::mem::replace(&mut this.state, State::Over), over) {
                (State::Requests(requests), true) => {
                    let Requests { connection, handover } = *requests;
                    let watch = handover.watch.lock().take();
                    // Both are there: nothing was upgraded, and the watch was seen just now.
                    if let (Some(parts), Some(body)) = (connection.into_parts(), watch) {
                        let Lent { io, early, .. } = parts.io.into_inner();
                        this.state = State::Watch(Watch::new(io, joined(parts.read_buf, early), body));
                    }
                }
                (waiting @ State::Requests(_), false) => {
                    this.state = waiting;
                    return Poll::Pending;
                }
                (State::Watch(watch), false) if this.last => this.state = State::Closing(watch.io),
                (State::Watch(watch), false) => this.requests(watch.io, watch.early),
                // The peer is gone.
                _ => {}
            }
        }
    }
}

/// What hyper asks for answers.
struct Service {
    answer: Arc<dyn Fn(Request<Incoming>) -> Answer + Send + Sync>,
    handover: Arc<Handover>,
}

impl hyper::service::Service<Request<Incoming>> for Service {
    type Response = Response<Handed>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Handed>, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        // Only where hyper would write chunks, has read all of the request, and would go on behind it.
        let alike =
            request.version() == Version::HTTP_11 && request.body().is_end_stream() && !wants_close(request.headers());
        let handover = alike.then(|| Arc::clone(&self.handover));
        let answer = (self.answer)(request);
        Box::pin(async move {
            Ok(answer.await.map(|body| match handover {
                Some(handover) if body.is_watch() => Handed::Away(Some(body), handover),
                _ => Handed::Here(body),
            }))
        })
    }
}

fn wants_close(headers: &HeaderMap) -> bool {
    let close = |part: &[u8]| part.trim_ascii().eq_ignore_ascii_case(b"close");
    headers.get_all(header::CONNECTION).iter().any(|value| value.as_bytes().split(|byte| *byte == b',').any(close))
}

/// The body as hyper sees it.
enum Handed {
    Here(Counted),
    /// One that has nothing for hyper: asked for its first chunk, when the head is written, it goes
    /// where the connection is taken over.
    Away(Option<Counted>, Arc<Handover>),
}

impl http_body::Body for Handed {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        match &mut *self {
            Handed::Here(body) => Pin::new(body).poll_frame(cx),
            Handed::Away(body, handover) => {
                if let Some(body) = body.take() {
                    *handover.watch.lock() = Some(body);
                }
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Handed::Here(body) => body.is_end_stream(),
            Handed::Away(..) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Handed::Here(body) => body.size_hint(),
            Handed::Away(..) => SizeHint::default(),
        }
    }
}

impl Handover {
    fn is_ready(&self) -> bool {
        self.flushed.load(Relaxed) && self.watch.lock().is_some()
    }
}

/// The connection as hyper sees it: first what came early, then the rest.
struct Lent<T> {
    io: T,
    early: Bytes,
    handover: Arc<Handover>,
}

impl<T: AsyncRead + Unpin> AsyncRead for Lent<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.early.is_empty() {
            return Pin::new(&mut self.io).poll_read(cx, buf);
        }
        let bytes = self.early.len().min(buf.remaining());
        buf.put_slice(&self.early.split_to(bytes));
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Lent<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.handover.flushed.store(false, Relaxed);
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.handover.flushed.store(false, Relaxed);
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    /// hyper comes here when it has handed over all that it had.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.handover.flushed.store(matches!(flushed, Poll::Ready(Ok(()))), Relaxed);
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// What came earlier, and what came behind it.
fn joined(first: Bytes, rest: Bytes) -> Bytes {
    match (first.is_empty(), rest.is_empty()) {
        // A copy: the bytes may be a few of a large buffer.
        (_, true) => Bytes::copy_from_slice(&first),
        (true, false) => rest,
        (false, false) => [first, rest].concat().into(),
    }
}

/// The time of a watch: its chunks go out, and what the peer sends is looked at only as far as it
/// says that the peer is gone. It holds one chunk besides what TLS holds.
struct Watch<T> {
    io: T,
    body: Counted,
    /// What the peer has sent, for hyper.
    early: Bytes,
    /// What is left to send of a chunk.
    out: Option<Piece>,
    /// It is the last one.
    last: bool,
}

/// How a watch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// With its last chunk.
    Body,
    /// The peer has closed.
    Gone,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Watch<T> {
    fn new(io: T, early: Bytes, body: Counted) -> Self {
        Watch { io, body, early, out: None, last: false }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<End, ConnectionError>> {
        if self.early.is_empty() {
            let mut early = [0; EARLY_BYTES_MAX];
            let mut early = ReadBuf::new(&mut early);
            if Pin::new(&mut self.io).poll_read(cx, &mut early)?.is_ready() {
                if early.filled().is_empty() {
                    return Poll::Ready(Ok(End::Gone));
                }
                self.early = Bytes::copy_from_slice(early.filled());
            }
        }
        loop {
            if let Some(out) = &mut self.out {
                while out.has_remaining() {
                    let mut slices = [IoSlice::new(&[]); 3];
                    let count = out.chunks_vectored(&mut slices);
                    let written = ready!(Pin::new(&mut self.io).poll_write_vectored(cx, &slices[..count]))?;
                    if written == 0 {
                        return Poll::Ready(Err(io::Error::from(io::ErrorKind::WriteZero).into()));
                    }
                    out.advance(written);
                }
                ready!(Pin::new(&mut self.io).poll_flush(cx))?;
                self.out = None;
                if self.last {
                    return Poll::Ready(Ok(End::Body));
                }
            }
            let chunk = match ready!(Pin::new(&mut self.body).poll_frame(cx)).transpose()? {
                Some(frame) => frame.into_data().unwrap_or_default(),
                None => Bytes::new(),
            };
            // A chunk without bytes is the sign that there are no more.
            self.last = chunk.is_empty();
            self.out = Some(piece(chunk));
        }
    }
}

/// A chunk as it is sent: its size, its bytes, the end of the line.
type Piece = Chain<Chain<io::Cursor<SizeLine>, Bytes>, &'static [u8]>;

fn piece(chunk: Bytes) -> Piece {
    io::Cursor::new(SizeLine::new(chunk.len())).chain(chunk).chain(b"\r\n".as_slice())
}

/// A size in hexadecimal digits and the end of the line.
struct SizeLine {
    bytes: [u8; 18],
    start: u8,
}

impl SizeLine {
    fn new(mut size: usize) -> Self {
        let mut line = SizeLine { bytes: *b"0000000000000000\r\n", start: 16 };
        while size > 0 || line.start == 16 {
            line.start -= 1;
            line.bytes[usize::from(line.start)] = b"0123456789abcdef"[size % 16];
            size /= 16;
        }
        line
    }
}

impl AsRef<[u8]> for SizeLine {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[usize::from(self.start)..]
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;
    use crate::body::{Body, Form};
    use crate::peer::Peer;

    async fn watch<T: AsyncRead + AsyncWrite + Unpin>(io: T, chunks: &[&'static str]) -> Watch<T> {
        let chunks: Vec<_> = chunks.iter().map(|chunk| Ok(Bytes::from_static(chunk.as_bytes()))).collect();
        let body = Body::chunks(Box::new(chunks.into_iter()), Form::default()).unwrap();
        Watch::new(io, Bytes::new(), Peer::new().request().answered(body).await)
    }

    #[tokio::test]
    async fn chunks_arrive_whole_however_little_the_socket_takes() {
        let long = "long ".repeat(20).leak();
        for room in [1, 2, 3, 7, 1000] {
            let (io, mut peer) = tokio::io::duplex(room);
            let mut watch = watch(io, &["one", long, "three"]).await;
            let sent = tokio::spawn(async move {
                let end = std::future::poll_fn(|cx| watch.poll(cx)).await;
                end.unwrap()
            });
            let mut text = String::new();
            peer.read_to_string(&mut text).await.unwrap();
            assert_eq!(sent.await.unwrap(), End::Body);
            assert_eq!(text, format!("3\r\none\r\n64\r\n{long}\r\n5\r\nthree\r\n0\r\n\r\n"));
        }
    }

    #[tokio::test]
    async fn what_comes_early_is_kept_and_no_more_is_taken() {
        let (io, mut peer) = tokio::io::duplex(10_000);
        let sent = "next ".repeat(1_000);
        tokio::io::AsyncWriteExt::write_all(&mut peer, sent.as_bytes()).await.unwrap();
        let mut watch = watch(io, &["one", "two"]).await;
        assert_eq!(std::future::poll_fn(|cx| watch.poll(cx)).await.unwrap(), End::Body);
        let early = joined(Bytes::new(), watch.early);
        assert_eq!(early, sent.as_bytes()[..EARLY_BYTES_MAX]);

        let lent = Lent { io: watch.io, early: joined(Bytes::from_static(b"first "), early), handover: Arc::default() };
        let mut all = vec![0; "first ".len() + sent.len()];
        tokio::io::BufReader::new(lent).read_exact(&mut all).await.unwrap();
        assert_eq!(String::from_utf8(all).unwrap(), format!("first {sent}"));
    }

    #[tokio::test]
    async fn a_peer_that_closes_ends_the_watch() {
        let (io, peer) = tokio::io::duplex(10);
        drop(peer);
        let mut watch = watch(io, &["one", "two"]).await;
        assert_eq!(std::future::poll_fn(|cx| watch.poll(cx)).await.unwrap(), End::Gone);
    }

    #[test]
    fn sizes_are_hexadecimal() {
        for (size, line) in [(0, "0\r\n"), (9, "9\r\n"), (255, "ff\r\n"), (usize::MAX, "ffffffffffffffff\r\n")] {
            assert_eq!(SizeLine::new(size).as_ref(), line.as_bytes());
        }
    }
}
