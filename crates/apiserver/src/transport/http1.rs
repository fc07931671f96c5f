//! [`Http1`]: an HTTP/1.1 connection. hyper serves the connection, except while a watch is open.
//!
//! ```text
//!  request ──▶ hyper ── head of a watch is sent ──▶ hyper's state is dropped ──▶ Watch: chunks of events
//!                ▲                                                                 │ the watch ends
//!                └──────────── bytes that the peer sent meanwhile ◀────────────────┘
//! ```
//!
//! hyper keeps buffers of 8 KiB to read the next request and to write the next head. An open watch needs neither, and
//! the buffers are most of the memory of an idle watcher. hyper therefore parses the request and sends the head. Then
//! hyper's state is dropped, and [`Watch`] writes the chunks of the body. After the last chunk, hyper continues with
//! the next request.

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

use crate::response::chunks::BodyError;
use crate::transport::peer::SentBody;

type ConnectionError = Box<dyn std::error::Error + Send + Sync>;

/// The response to one request.
pub(crate) type Answer = Pin<Box<dyn Future<Output = Response<SentBody>> + Send>>;

/// Maximum number of bytes that are read from a peer during a watch. The peer may send the next request early. At this
/// limit, the connection is not read until the watch ends.
const EARLY_BYTES_MAX: usize = 512;

/// One HTTP/1.1 connection.
pub(crate) struct Http1<T> {
    state: State<T>,
    builder: Arc<http1::Builder>,
    answer: Arc<dyn Fn(Request<Incoming>) -> Answer + Send + Sync>,
    /// Whether the connection accepts no further request.
    is_draining: bool,
}

enum State<T> {
    Requests(Box<Requests<T>>),
    Watch(Box<Watch<T>>),
    Closing(T),
    Closed,
}

/// The state while hyper has the connection.
struct Requests<T> {
    connection: http1::UpgradeableConnection<TokioIo<HyperIo<T>>, Service>,
    handover: Arc<Handover>,
}

/// The transfer of a watch from hyper to [`Watch`], after hyper has sent the head.
#[derive(Default)]
struct Handover {
    watch: Mutex<Option<SentBody>>,
    /// Whether all bytes that hyper has written are sent.
    flushed: AtomicBool,
}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Http1<T> {
    /// Creates a connection on which no byte has been read yet.
    pub(crate) fn new(
        io: T,
        builder: Arc<http1::Builder>,
        answer: Arc<dyn Fn(Request<Incoming>) -> Answer + Send + Sync>,
    ) -> Self {
        let mut connection = Http1 { state: State::Closed, builder, answer, is_draining: false };
        connection.requests(io, Bytes::new());
        connection
    }

    /// Closes the connection after the open request has finished.
    pub(crate) fn graceful_shutdown(&mut self) {
        self.is_draining = true;
        if let State::Requests(requests) = &mut self.state {
            Pin::new(&mut requests.connection).graceful_shutdown();
        }
    }

    fn requests(&mut self, io: T, early: Bytes) {
        let handover = Arc::new(Handover::default());
        let service = Service { answer: Arc::clone(&self.answer), handover: Arc::clone(&handover) };
        let io = TokioIo::new(HyperIo { io, early, handover: Arc::clone(&handover) });
        let connection = self.builder.serve_connection(io, service).with_upgrades();
        self.state = State::Requests(Box::new(Requests { connection, handover }));
    }
}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Future for Http1<T> {
    type Output = Result<(), ConnectionError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            let is_over = match &mut this.state {
                State::Requests(requests) => {
                    if let Poll::Ready(ended) = Pin::new(&mut requests.connection).poll(cx) {
                        return Poll::Ready(ended.map_err(Into::into));
                    }
                    requests.handover.is_ready()
                }
                State::Watch(watch) => ready!(watch.poll(cx))? == End::PeerClosed,
                State::Closing(io) => return Pin::new(io).poll_shutdown(cx).map_err(Into::into),
                State::Closed => return Poll::Ready(Ok(())),
            };
            match (std::mem::replace(&mut this.state, State::Closed), is_over) {
                (State::Requests(requests), true) => {
                    let Requests { connection, handover } = *requests;
                    let watch = handover.watch.lock().take();
                    // Both are present: the connection was not upgraded, and the watch was found just before.
                    if let (Some(parts), Some(body)) = (connection.into_parts(), watch) {
                        let HyperIo { io, early, .. } = parts.io.into_inner();
                        this.state = State::Watch(Box::new(Watch::new(io, joined(parts.read_buf, early), body)));
                    }
                }
                (waiting @ State::Requests(_), false) => {
                    this.state = waiting;
                    return Poll::Pending;
                }
                (State::Watch(watch), false) if this.is_draining => this.state = State::Closing(watch.io),
                (State::Watch(watch), false) => this.requests(watch.io, watch.early),
                // The peer has closed the connection.
                _ => {}
            }
        }
    }
}

/// The service that hyper calls.
struct Service {
    answer: Arc<dyn Fn(Request<Incoming>) -> Answer + Send + Sync>,
    handover: Arc<Handover>,
}

impl hyper::service::Service<Request<Incoming>> for Service {
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<ResponseBody>, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        // hyper must be about to write chunks, must have read the whole request, and must keep the connection open.
        let can_hand_over =
            request.version() == Version::HTTP_11 && request.body().is_end_stream() && !wants_close(request.headers());
        let handover = can_hand_over.then(|| Arc::clone(&self.handover));
        let answer = (self.answer)(request);
        Box::pin(async move {
            Ok(answer.await.map(|body| match handover {
                Some(handover) if body.is_watch() => ResponseBody::Over(Some(body), handover),
                _ => ResponseBody::Hyper(body),
            }))
        })
    }
}

fn wants_close(headers: &HeaderMap) -> bool {
    let close = |part: &[u8]| part.trim_ascii().eq_ignore_ascii_case(b"close");
    headers.get_all(header::CONNECTION).iter().any(|value| value.as_bytes().split(|byte| *byte == b',').any(close))
}

/// The body that hyper polls.
enum ResponseBody {
    Hyper(SentBody),
    /// A watch. After hyper has written the head, hyper polls for the first chunk. That poll moves the watch to the
    /// handover.
    Over(Option<SentBody>, Arc<Handover>),
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut *self {
            ResponseBody::Hyper(body) => Pin::new(body).poll_frame(cx),
            ResponseBody::Over(body, handover) => {
                if let Some(body) = body.take() {
                    *handover.watch.lock() = Some(body);
                }
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            ResponseBody::Hyper(body) => body.is_end_stream(),
            ResponseBody::Over(..) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ResponseBody::Hyper(body) => body.size_hint(),
            ResponseBody::Over(..) => SizeHint::default(),
        }
    }
}

impl Handover {
    fn is_ready(&self) -> bool {
        self.flushed.load(Relaxed) && self.watch.lock().is_some()
    }
}

/// The connection that hyper reads and writes. Early bytes are read first.
struct HyperIo<T> {
    io: T,
    early: Bytes,
    handover: Arc<Handover>,
}

impl<T: AsyncRead + Unpin> AsyncRead for HyperIo<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.early.is_empty() {
            return Pin::new(&mut self.io).poll_read(cx, buf);
        }
        let bytes = self.early.len().min(buf.remaining());
        buf.put_slice(&self.early.split_to(bytes));
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for HyperIo<T> {
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

    /// Records that hyper has written the whole buffer, because hyper writes the buffer before each flush.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.handover.flushed.store(matches!(flushed, Poll::Ready(Ok(()))), Relaxed);
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// Joins the bytes of two reads.
fn joined(first: Bytes, rest: Bytes) -> Bytes {
    match (first.is_empty(), rest.is_empty()) {
        // The bytes are copied, because they may be a small part of a large buffer.
        (_, true) => Bytes::copy_from_slice(&first),
        (true, false) => rest,
        (false, false) => [first, rest].concat().into(),
    }
}

/// The state while a watch is open. The chunks are written, and the connection is read to detect that the peer has
/// closed it. The state holds one chunk in addition to the buffers of TLS.
struct Watch<T> {
    io: T,
    body: SentBody,
    /// The bytes that the peer has sent early, for hyper.
    early: Bytes,
    /// The rest of the chunk that is being written.
    out: Option<Piece>,
    /// Whether the chunk is the last one.
    is_last: bool,
}

/// The reason for the end of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The last chunk was sent.
    Complete,
    /// The peer has closed the connection.
    PeerClosed,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Watch<T> {
    fn new(io: T, early: Bytes, body: SentBody) -> Self {
        Watch { io, body, early, out: None, is_last: false }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<End, ConnectionError>> {
        if self.early.is_empty() {
            let mut early = [0; EARLY_BYTES_MAX];
            let mut early = ReadBuf::new(&mut early);
            if Pin::new(&mut self.io).poll_read(cx, &mut early)?.is_ready() {
                if early.filled().is_empty() {
                    return Poll::Ready(Ok(End::PeerClosed));
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
                if self.is_last {
                    return Poll::Ready(Ok(End::Complete));
                }
            }
            let chunk = match ready!(Pin::new(&mut self.body).poll_frame(cx)).transpose()? {
                Some(frame) => frame.into_data().unwrap_or_default(),
                None => Bytes::new(),
            };
            // An empty chunk ends the body (RFC 9112, section 7.1).
            self.is_last = chunk.is_empty();
            self.out = Some(piece(chunk));
        }
    }
}

/// A chunk in the chunked transfer coding: the size line, the bytes and a line break.
type Piece = Chain<Chain<io::Cursor<SizeLine>, Bytes>, &'static [u8]>;

fn piece(chunk: Bytes) -> Piece {
    io::Cursor::new(SizeLine::new(chunk.len())).chain(chunk).chain(b"\r\n".as_slice())
}

/// The line with the size of a chunk, in hexadecimal digits.
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
    use crate::response::body::{Body, Format};
    use crate::transport::peer::Peer;

    async fn watch<T: AsyncRead + AsyncWrite + Unpin>(io: T, chunks: &[&'static str]) -> Watch<T> {
        let chunks: Vec<_> = chunks.iter().map(|chunk| Ok(Bytes::from_static(chunk.as_bytes()))).collect();
        let body = Body::chunks(Box::new(chunks.into_iter()), &Format::default()).unwrap();
        Watch::new(io, Bytes::new(), Peer::new().open_request().send_body(body).await)
    }

    #[tokio::test]
    async fn partial_socket_writes_do_not_split_or_lose_watch_chunks() {
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
            assert_eq!(sent.await.unwrap(), End::Complete);
            assert_eq!(text, format!("3\r\none\r\n64\r\n{long}\r\n5\r\nthree\r\n0\r\n\r\n"));
        }
    }

    #[tokio::test]
    async fn request_bytes_sent_during_a_watch_are_kept_up_to_the_limit() {
        let (io, mut peer) = tokio::io::duplex(10_000);
        let sent = "next ".repeat(1_000);
        tokio::io::AsyncWriteExt::write_all(&mut peer, sent.as_bytes()).await.unwrap();
        let mut watch = watch(io, &["one", "two"]).await;
        assert_eq!(std::future::poll_fn(|cx| watch.poll(cx)).await.unwrap(), End::Complete);
        let early = joined(Bytes::new(), watch.early);
        assert_eq!(early, sent.as_bytes()[..EARLY_BYTES_MAX]);

        let io =
            HyperIo { io: watch.io, early: joined(Bytes::from_static(b"first "), early), handover: Arc::default() };
        let mut all = vec![0; "first ".len() + sent.len()];
        tokio::io::BufReader::new(io).read_exact(&mut all).await.unwrap();
        assert_eq!(String::from_utf8(all).unwrap(), format!("first {sent}"));
    }

    #[tokio::test]
    async fn closed_connection_ends_the_watch() {
        let (io, peer) = tokio::io::duplex(10);
        drop(peer);
        let mut watch = watch(io, &["one", "two"]).await;
        assert_eq!(std::future::poll_fn(|cx| watch.poll(cx)).await.unwrap(), End::PeerClosed);
    }

    #[test]
    fn chunk_size_is_written_in_hexadecimal_digits() {
        for (size, line) in [(0, "0\r\n"), (9, "9\r\n"), (255, "ff\r\n"), (usize::MAX, "ffffffffffffffff\r\n")] {
            assert_eq!(SizeLine::new(size).as_ref(), line.as_bytes());
        }
    }
}
