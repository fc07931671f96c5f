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
//! that is one to two times that long after its last byte. A watch whose reader takes its bytes,
//! however slowly, moves.
//!
//! Any other answer has a seat ([`crate::seats`]) and a deadline. [`Counted`] keeps the seat until the
//! last bytes have left: over HTTP/1.1 until the connection is flushed, over HTTP/2 until the peer's
//! window covers all but [`TAIL_BYTES`]. At its deadline, or when others need the seat and the peer
//! is slow, the answer is cut: over HTTP/2 its stream is reset, over HTTP/1.1 its connection closed.
//!
//! Until then a stalled peer costs no CPU (nothing is polled that waits for it) and these buffers:
//! over HTTP/1.1 `HTTP1_BUFFER_BYTES_MAX` and a chunk (of a watch a chunk and 64 KiB of TLS), over HTTP/2 `HTTP2_STREAM_BUFFER_BYTES_MAX`
//! and a chunk a stream; a chunk has at most [`crate::body::CHUNK_BYTES_MAX`].

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::body::{Body, BrokenOff, Hold};
use crate::body_budget::ConnectionBodies;
use crate::gather::Cork;
use crate::seats::Cut;

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
/// Bytes of an answer over HTTP/2 that may wait in the connection's buffer without a seat. A larger
/// chunk is handed over in two pieces, the second of this size: hyper asks for it only when the peer's
/// window covers the first.
const TAIL_BYTES: usize = 4 * 1024;
/// An HTTP/2 connection is ended in order with its first request that is not authenticated. One that
/// goes on to send so many, all the same, is cut: as many as may be under way at the first one.
const UNAUTHENTICATED_REQUESTS_MAX: u32 = 100;
/// A connection that ends is read from for this long, so that a peer that is still sending reads the
/// answer before the system tells it that the connection is gone (Go waits 0.5 s and reads nothing).
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes read and forgotten in that time; with more, the connection is closed at once.
const LINGER_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Bytes of them that are read at once.
const LINGER_BUFFER_BYTES: usize = 8 * 1024;

/// Whether something moves: turned by the hot path, looked at rarely.
#[derive(Debug, Default)]
struct Flow {
    /// Something is waiting for the peer to take it.
    waiting: AtomicBool,
    /// Goes up when something was taken.
    taken: AtomicU32,
    /// The answer on this stream is to be dropped.
    cut: AtomicBool,
    /// The stream's task, while it sends an answer that can be cut.
    task: OnceLock<Waker>,
}

impl Cut for Flow {
    fn cut(&self) {
        self.cut.store(true, Relaxed);
        if let Some(task) = self.task.get() {
            task.wake_by_ref();
        }
    }
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
#[derive(Debug, Default)]
pub(crate) struct Peer {
    socket: Flow,
    open: AtomicU32,
    /// Requests ever begun, to tell "idle since the last look" from "idle again".
    begun: AtomicU32,
    /// What the connection's task is to do next: an [`Order`], or 0.
    order: AtomicU8,
    /// The connection's task.
    task: OnceLock<Waker>,
    /// Requests without a valid credential, over HTTP/2.
    unauthenticated: AtomicU32,
    /// Over HTTP/1.1: what an answer kept that hyper has taken and not sent yet.
    unsent: Unsent,
    /// A request was answered before all of it had come.
    sending: AtomicBool,
    bodies: ConnectionBodies,
}

/// What is kept until the next flush. Behind a lock only because connections move between threads.
#[derive(Debug, Default)]
struct Unsent {
    any: AtomicBool,
    hold: Mutex<Option<Box<Hold>>>,
}

/// What a connection is told from elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Order {
    /// Take no further request, and end when those under way are answered.
    End = 1,
    /// End at once.
    Cut = 2,
}

/// The answer to a request without a valid credential: a mark on the response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unauthenticated;

/// The answer to a request whose body was not read to its end: a mark on the response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnsweredEarly;

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
        Arc::default()
    }

    /// The task that runs the connection.
    pub(crate) fn run_by(&self, task: &Waker) {
        let _ = self.task.set(task.clone());
    }

    fn tell(&self, order: Order) {
        // A cut is never taken back.
        self.order.fetch_max(order as u8, Relaxed);
        if let Some(task) = self.task.get() {
            task.wake_by_ref();
        }
    }

    /// What the connection was told, once.
    pub(crate) fn take_order(&self) -> Option<Order> {
        if self.order.load(Relaxed) == 0 {
            return None;
        }
        match self.order.swap(0, Relaxed) {
            0 => None,
            1 => Some(Order::End),
            _ => Some(Order::Cut),
        }
    }

    /// A request came without a valid credential. HTTP/2 is expensive, and open to abuse: such a
    /// connection takes no more (kube-apiserver's `UnauthenticatedHTTP2DOSMitigation`). Streams that
    /// are open, such as watches, go on.
    pub(crate) fn unauthenticated(&self) {
        match self.unauthenticated.fetch_add(1, Relaxed) {
            0 => self.tell(Order::End),
            UNAUTHENTICATED_REQUESTS_MAX.. => self.tell(Order::Cut),
            _ => {}
        }
    }

    /// A request was answered before all of it had come: the connection ends behind it.
    pub(crate) fn answered_early(&self) {
        self.sending.store(true, Relaxed);
    }

    /// The bytes of the bodies that this connection sends.
    pub(crate) fn bodies(&self) -> &ConnectionBodies {
        &self.bodies
    }

    /// hyper has sent all that it was given.
    fn flushed(&self) {
        if self.unsent.any.load(Relaxed) {
            self.unsent.any.store(false, Relaxed);
            drop(self.unsent.hold.lock().take());
        }
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
    /// The body of its answer, sent by the task that calls.
    pub(crate) async fn answered(self, mut body: Body) -> Counted {
        let flow = STREAM.try_with(Arc::clone).ok();
        if let Some(hold) = body.held() {
            let cut: Weak<dyn Cut> = match &flow {
                Some(flow) => {
                    let task = std::future::poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
                    let _ = flow.task.set(task);
                    Arc::<Flow>::downgrade(flow)
                }
                None => Arc::<Peer>::downgrade(&self.0),
            };
            let deadline = hold.deadline;
            hold.seat.send(Instant::now(), deadline, cut);
        }
        Counted { body, flow, open: self }
    }
}

impl Cut for Peer {
    fn cut(&self) {
        self.tell(Order::Cut);
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
    open: OpenRequest,
}

/// Of a chunk, the piece that is handed over now; the rest stays.
fn first_piece(hold: &mut Hold, mut chunk: Bytes, of_stream: bool) -> Bytes {
    if of_stream && chunk.len() > 2 * TAIL_BYTES {
        hold.tail = chunk.split_off(chunk.len() - TAIL_BYTES);
    }
    hold.seat.sent(chunk.len());
    chunk
}

impl Drop for Counted {
    fn drop(&mut self) {
        // Over HTTP/1.1 the end of the body may still be in hyper's buffer.
        if self.flow.is_none()
            && let Some(hold) = self.body.held().take()
        {
            let unsent = &self.open.0.unsent;
            *unsent.hold.lock() = Some(hold);
            unsent.any.store(true, Relaxed);
        }
    }
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
        let this = &mut *self;
        let tail = this.body.held().as_mut().map(|hold| std::mem::take(&mut hold.tail)).unwrap_or_default();
        let mut polled = match tail.is_empty() {
            true => Pin::new(&mut this.body).poll_frame(cx),
            false => Poll::Ready(Some(Ok(Frame::data(tail)))),
        };
        if let (Some(hold), Poll::Ready(Some(Ok(frame)))) = (this.body.held(), &mut polled)
            && let Some(chunk) = frame.data_mut()
        {
            *chunk = first_piece(hold, std::mem::take(chunk), this.flow.is_some());
        }
        if let (Some(flow), Poll::Ready(_)) = (&this.flow, &polled) {
            flow.wait();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream() && self.body.has_no_tail()
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
        // The stream is dropped with this task, and so reset.
        if polled.is_ready() || this.flow.cut.load(Relaxed) {
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

/// A socket that notes whether its peer takes what is written, and that lingers when it is shut down.
#[derive(Debug)]
pub(crate) struct WatchedIo<T> {
    io: T,
    peer: Arc<Peer>,
    corked: bool,
    lingering: Option<Box<Linger>>,
}

/// The time between the end of what is written and the end of the socket. A socket that is closed
/// with bytes unread resets the connection, and the peer may lose the answer that it has not read.
#[derive(Debug)]
pub(crate) struct Linger {
    until: Pin<Box<Sleep>>,
    bytes_left: usize,
    /// The peer is still sending.
    sending: bool,
}

impl Linger {
    /// `sending`: a request was answered before all of it had come. Else the time is over as soon as
    /// nothing is left to read.
    pub(crate) fn new(sending: bool) -> Self {
        Linger { until: Box::pin(tokio::time::sleep(LINGER_TIMEOUT)), bytes_left: LINGER_BYTES_MAX, sending }
    }

    /// Reads and forgets, until the peer closes or has had its time.
    pub(crate) fn poll<T: AsyncRead + Unpin>(&mut self, io: &mut T, cx: &mut Context<'_>) -> Poll<()> {
        let mut buffer = [0_u8; LINGER_BUFFER_BYTES];
        loop {
            let mut buffer = ReadBuf::new(&mut buffer);
            match Pin::new(&mut *io).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    let Some(left) = self.bytes_left.checked_sub(buffer.filled().len()) else {
                        return Poll::Ready(());
                    };
                    (self.bytes_left, self.sending) = (left, true);
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending if self.sending => return self.until.as_mut().poll(cx),
                Poll::Pending => return Poll::Ready(()),
            }
        }
    }
}

impl<T> WatchedIo<T> {
    pub(crate) fn new(io: T, peer: Arc<Peer>) -> Self {
        WatchedIo { io, peer, corked: false, lingering: None }
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

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WatchedIo<T> {
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
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        if matches!(flushed, Poll::Ready(Ok(()))) {
            self.peer.flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let lingering = match &mut this.lingering {
            Some(lingering) => lingering,
            None => {
                ready!(Pin::new(&mut this.io).poll_shutdown(cx))?;
                this.peer.flushed();
                this.lingering.insert(Box::new(Linger::new(this.peer.sending.load(Relaxed))))
            }
        };
        lingering.poll(&mut this.io, cx).map(Ok)
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
            let mut body = request.answered(Body::full("some bytes")).await;
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
