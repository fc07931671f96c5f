//! What the other end of a connection does: whether it asks for anything, and whether it takes what
//! it asked for. A peer that does neither is let go, so that nobody holds memory here by silence.
//!
//! ```text
//!  socket ── WatchedIo ── TLS ── hyper ─┬─ stream ── StreamTask ── Counted(Body)
//!               │                       └─ stream ── …                │
//!               └── Peer: requests open, socket blocked ◀─────────────┘
//! ```
//!
//! Two things can stand still. The socket, when the peer reads nothing at all: the connection is
//! cut. And one HTTP/2 stream, when its window is used up while others flow: that stream alone is
//! reset. Both are looked at once per [`STALL_CHECK`]; what has not moved between two looks is cut,
//! that is one to two times that long after its last byte. A reader that takes its bytes, however
//! slowly, moves.
//!
//! Until then a stalled peer costs no CPU (nothing is polled that waits for it) and these buffers:
//! over HTTP/1.1 `HTTP1_BUFFER_BYTES_MAX` and a chunk (of a watch a chunk and 64 KiB of TLS), over HTTP/2 `HTTP2_STREAM_BUFFER_BYTES_MAX`
//! and a chunk a stream; a chunk has at most [`crate::body::CHUNK_BYTES_MAX`].

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::body::{Body, BrokenOff};
use crate::gather::Cork;

/// How often a peer that takes nothing is looked at; it is cut when nothing moved between two looks.
pub(crate) const STALL_CHECK: Duration = Duration::from_secs(60);
/// A connection that brings no request within this time is closed (kube-apiserver's 32 s to read
/// the headers of the first one).
pub(crate) const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(32);
/// A connection without an open request is closed after this time (kube-apiserver's idle timeout);
/// the headers of a request have to arrive within it too.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// How long a connection that was told to end may take to say goodbye.
pub(crate) const GOODBYE_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether something moves: turned by the hot path, looked at rarely.
#[derive(Debug, Default)]
struct Flow {
    /// Something is waiting for the peer to take it.
    waiting: AtomicBool,
    /// Goes up when something was taken.
    taken: AtomicU32,
}

impl Flow {
    fn wait(&self) {
        self.waiting.store(true, Relaxed);
    }

    fn moved(&self) {
        self.waiting.store(false, Relaxed);
        // One writer at a time: no read-modify-write is needed.
        self.taken.store(self.taken.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// What has to differ at the next look; `None` while nothing waits.
    fn look(&self) -> Option<u32> {
        self.waiting.load(Relaxed).then(|| self.taken.load(Relaxed))
    }
}

/// One connection's peer, as the connection's task sees it.
#[derive(Debug)]
pub(crate) struct Peer {
    socket: Flow,
    open: AtomicU32,
    /// Requests ever begun, to tell "idle since the last look" from "idle again".
    begun: AtomicU32,
}

/// What to do about a peer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Look again at this time.
    Fine(Instant),
    /// It asks for nothing: end the connection in order.
    Idle,
    /// It takes nothing: cut it.
    Stalled,
}

/// The looks at one peer: a state machine over the time.
#[derive(Debug)]
pub(crate) struct Looks {
    begun: u32,
    idle_since: Option<Instant>,
    socket: Option<u32>,
    socket_looked: Instant,
}

impl Looks {
    pub(crate) fn new(now: Instant) -> Self {
        Looks { begun: 0, idle_since: Some(now), socket: None, socket_looked: now }
    }

    /// Looks at the peer.
    pub(crate) fn look(&mut self, peer: &Peer, now: Instant) -> Verdict {
        if now >= self.socket_looked + STALL_CHECK {
            let socket = peer.socket.look();
            if socket.is_some() && socket == self.socket {
                return Verdict::Stalled;
            }
            (self.socket, self.socket_looked) = (socket, now);
        }
        let begun = peer.begun.load(Relaxed);
        let asked = begun != self.begun;
        self.begun = begun;
        let busy = peer.open.load(Relaxed) > 0;
        // Between two looks a request may have come and gone: idle is counted from here on.
        self.idle_since = if busy { None } else { self.idle_since.filter(|_| !asked).or(Some(now)) };
        let socket_due = self.socket_looked + STALL_CHECK;
        let Some(since) = self.idle_since else { return Verdict::Fine(socket_due) };
        let limit = if begun == 0 { FIRST_REQUEST_TIMEOUT } else { IDLE_TIMEOUT };
        let due = since + limit;
        if now >= due { Verdict::Idle } else { Verdict::Fine(due.min(socket_due)) }
    }
}

impl Peer {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Peer { socket: Flow::default(), open: AtomicU32::new(0), begun: AtomicU32::new(0) })
    }

    /// A request has come; it is open until its body is dropped.
    pub(crate) fn request(self: &Arc<Self>) -> OpenRequest {
        self.open.fetch_add(1, Relaxed);
        self.begun.fetch_add(1, Relaxed);
        OpenRequest(Arc::clone(self))
    }
}

/// A request that is not answered to its end.
#[derive(Debug)]
pub(crate) struct OpenRequest(Arc<Peer>);

impl OpenRequest {
    /// The body of its answer.
    pub(crate) fn answered(self, body: Body) -> Counted {
        let flow = STREAM.try_with(Arc::clone).ok();
        Counted { body, flow, _open: self }
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
    }
}

/// A body on its way to a peer.
#[derive(Debug)]
pub(crate) struct Counted {
    body: Body,
    /// Of the HTTP/2 stream.
    flow: Option<Arc<Flow>>,
    _open: OpenRequest,
}

impl Counted {
    /// Is it a watch?
    pub(crate) fn is_watch(&self) -> bool {
        self.body.is_watch()
    }
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(flow) = &self.flow {
            // hyper comes for more when the peer has made room.
            flow.moved();
        }
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let (Some(flow), Poll::Ready(_)) = (&self.flow, &polled) {
            flow.wait();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

tokio::task_local! {
    /// The flow of the HTTP/2 stream whose task this is.
    static STREAM: Arc<Flow>;
}

/// Runs each HTTP/2 stream as a task that ends when its peer takes nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamExecutor;

impl<F> hyper::rt::Executor<F> for StreamExecutor
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, stream: F) {
        tokio::spawn(StreamTask { stream: Box::pin(stream), flow: Arc::default(), check: None });
    }
}

struct StreamTask<F> {
    stream: Pin<Box<F>>,
    flow: Arc<Flow>,
    /// While the peer may be stalled: what was seen at the last look, and when to look again.
    check: Option<(Pin<Box<Sleep>>, u32)>,
}

impl<F: Future> Future for StreamTask<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let polled = if Arc::strong_count(&this.flow) == 1 {
            // No body has taken hold of the flow yet: the answer is still being made.
            let flow = Arc::clone(&this.flow);
            STREAM.sync_scope(flow, || this.stream.as_mut().poll(cx))
        } else {
            this.stream.as_mut().poll(cx)
        };
        if polled.is_ready() {
            return Poll::Ready(());
        }
        if this.check.is_none()
            && let Some(seen) = this.flow.look()
        {
            this.check = Some((Box::pin(tokio::time::sleep(STALL_CHECK)), seen));
        }
        // One timer per look, however often the stream is polled in between.
        while let Some((sleep, seen)) = &mut this.check
            && sleep.as_mut().poll(cx).is_ready()
        {
            match this.flow.look() {
                // The stream is dropped with this task, and so reset.
                Some(now) if now == *seen => return Poll::Ready(()),
                Some(now) => {
                    *seen = now;
                    sleep.as_mut().reset(Instant::now() + STALL_CHECK);
                }
                None => this.check = None,
            }
        }
        Poll::Pending
    }
}

/// A socket that notes whether its peer takes what is written.
#[derive(Debug)]
pub(crate) struct WatchedIo<T> {
    io: T,
    peer: Arc<Peer>,
    corked: bool,
}

impl<T> WatchedIo<T> {
    pub(crate) fn new(io: T, peer: Arc<Peer>) -> Self {
        WatchedIo { io, peer, corked: false }
    }

    fn note(&self, written: &Poll<io::Result<usize>>) {
        match written {
            Poll::Pending => self.peer.socket.wait(),
            Poll::Ready(_) => self.peer.socket.moved(),
        }
    }
}

impl<T> Cork for WatchedIo<T> {
    fn cork(&mut self, on: bool) {
        self.corked = on;
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for WatchedIo<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for WatchedIo<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.corked {
            return Poll::Pending;
        }
        let written = Pin::new(&mut self.io).poll_write(cx, buf);
        self.note(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.corked {
            return Poll::Pending;
        }
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.note(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_never_asks_is_let_go_early_and_one_that_stops_asking_later() {
        let (start, peer) = (Instant::now(), Peer::new());
        let mut looks = Looks::new(start);
        assert_eq!(looks.look(&peer, start), Verdict::Fine(at(start, 32)));
        assert_eq!(looks.look(&peer, at(start, 32)), Verdict::Idle);

        let mut looks = Looks::new(start);
        let request = peer.request();
        assert_eq!(looks.look(&peer, at(start, 32)), Verdict::Fine(at(start, 60)));
        assert_eq!(looks.look(&peer, at(start, 1_000)), Verdict::Fine(at(start, 1_060)), "a request may be long");
        drop(request);
        assert_eq!(looks.look(&peer, at(start, 1_060)), Verdict::Fine(at(start, 1_120)));
        drop(peer.request());
        let last = looks.look(&peer, at(start, 1_120));
        assert_eq!(last, Verdict::Fine(at(start, 1_180)), "a request that came and went is no silence");
        assert_eq!(looks.look(&peer, at(start, 1_180)), Verdict::Fine(at(start, 1_210)));
        assert_eq!(looks.look(&peer, at(start, 1_210)), Verdict::Idle);
    }

    #[tokio::test(start_paused = true)]
    async fn a_socket_that_does_not_move_between_two_looks_is_cut() {
        let (start, peer) = (Instant::now(), Peer::new());
        let _request = peer.request();
        let mut looks = Looks::new(start);
        peer.socket.wait();
        assert_eq!(looks.look(&peer, at(start, 60)), Verdict::Fine(at(start, 120)));
        peer.socket.moved();
        peer.socket.wait();
        assert_eq!(looks.look(&peer, at(start, 120)), Verdict::Fine(at(start, 180)), "it moved");
        assert_eq!(looks.look(&peer, at(start, 150)), Verdict::Fine(at(start, 180)), "too early to say");
        assert_eq!(looks.look(&peer, at(start, 180)), Verdict::Stalled);

        let mut looks = Looks::new(start);
        peer.socket.moved();
        assert_eq!(looks.look(&peer, at(start, 60)), Verdict::Fine(at(start, 120)));
        assert_eq!(looks.look(&peer, at(start, 120)), Verdict::Fine(at(start, 180)), "nothing waits");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_whose_body_is_not_asked_for_more_is_dropped() {
        use http_body::Body as _;
        use hyper::rt::Executor as _;
        let (peer, dropped) = (Peer::new(), Arc::new(()));
        let alive = Arc::downgrade(&dropped);
        let request = peer.request();
        StreamExecutor.execute(async move {
            let _held = dropped;
            let mut body = request.answered(Body::full("some bytes"));
            // Taken once, and never again: what hyper does while a window is used up.
            let _ = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await;
            std::future::pending::<()>().await;
        });
        tokio::time::sleep(STALL_CHECK / 2).await;
        assert!(alive.upgrade().is_some(), "cut before its time");
        tokio::time::sleep(STALL_CHECK).await;
        assert!(alive.upgrade().is_none(), "not cut");
        assert_eq!(peer.open.load(Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_has_nothing_to_say_is_kept() {
        use hyper::rt::Executor as _;
        let dropped = Arc::new(());
        let alive = Arc::downgrade(&dropped);
        StreamExecutor.execute(async move {
            let _held = dropped;
            std::future::pending::<()>().await;
        });
        tokio::time::sleep(10 * STALL_CHECK).await;
        assert!(alive.upgrade().is_some());
    }
}
