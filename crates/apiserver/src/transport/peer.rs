//! Monitors the peer of a connection. A connection is closed if its peer sends no requests and accepts no responses, so
//! that idle peers hold no memory.
//!
//! ```text
//!  socket ── MonitoredIo ── TLS ── hyper ─┬─ stream ── StreamTask ── SentBody(Body)
//!               │                         └─ stream ── …               │
//!               └── Peer: open requests, blocked socket ◀──────────────┘
//! ```
//!
//! Two parts of a connection can stall:
//!
//! - the socket, if the peer reads no bytes. The connection is closed.
//! - an HTTP/2 stream, if its window is used up while other streams make progress. The stream is reset.
//!
//! Both are checked once per [`STALL_CHECK`], and are closed if there was no progress between two checks. This is one
//! to two intervals after the last byte. A watch whose client reads slowly makes progress.
//!
//! Any other response has a slot ([`crate::flow_control::in_flight`]) and a deadline. [`SentBody`] keeps the slot until
//! the last bytes are sent. Over HTTP/1.1, this is the flush of the connection. Over HTTP/2, the peer's window must
//! cover all but [`TAIL_BYTES`]. The response is aborted at its deadline, or if it is slow while another request needs
//! the slot. Over HTTP/2 the stream is reset; over HTTP/1.1 the connection is closed.
//!
//! Until then, a stalled peer costs no CPU, because no task polls for it. The memory of a stalled peer is:
//!
//! | protocol | bytes |
//! |---|---|
//! | HTTP/1.1 | `HTTP1_BUFFER_BYTES_MAX` and one chunk; for a watch one chunk and 64 KiB of TLS |
//! | HTTP/2, for each stream | `HTTP2_STREAM_BUFFER_BYTES_MAX` and one chunk |
//!
//! A chunk has at most [`crate::response::body::CHUNK_BYTES_MAX`].

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

use crate::flow_control::in_flight::Abort;
use crate::request::body_budget::ConnectionBodies;
use crate::response::body::{Body, Hold};
use crate::response::chunks::BodyError;
use crate::transport::gather::Cork;

/// The interval of the checks for progress. A stream or connection without progress between two checks is closed.
pub(crate) const STALL_CHECK: Duration = Duration::from_secs(60);
/// The time limit for the start of the first request (kube-apiserver's 32 s to read the headers of the first request).
/// After that time the connection is closed.
pub(crate) const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(32);
/// The time after which a connection without an open request is closed (kube-apiserver's idle timeout). The headers of
/// a request must arrive within the same time.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// The time limit for an orderly close of an idle connection.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of bytes of a response over HTTP/2 that may wait in the connection's buffer without a slot. A larger
/// chunk is sent in two pieces, and the second piece has this size. hyper polls for the second piece when the peer's
/// window covers the first.
const TAIL_BYTES: usize = 4 * 1024;
/// The largest number of requests without a valid credential on one HTTP/2 connection. After the first one, the
/// connection accepts no new request. At this number the connection is aborted. The limit is not lower, because this
/// number of requests may already be in flight when the first one is rejected.
const UNAUTHENTICATED_REQUESTS_MAX: u32 = 100;
/// The time for which a closing connection is still read. A peer that is still sending can then read the response
/// before the reset of its connection. Go waits 0.5 s and reads nothing.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);
/// The most bytes that are read from a closing connection and discarded. After more bytes, the connection is closed at
/// once.
const LINGER_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The buffer of one read from a closing connection, in bytes.
const LINGER_BUFFER_BYTES: usize = 8 * 1024;

/// The progress of a socket or stream. Every write updates the value; only the rare checks read the value.
#[derive(Debug, Default)]
struct Progress {
    /// Whether bytes wait for the peer.
    waiting: AtomicBool,
    /// The number of writes that the peer has accepted.
    taken: AtomicU32,
    /// Whether the response on this stream must be dropped.
    aborted: AtomicBool,
    /// The task of the stream, while it sends a response that can be aborted.
    task: OnceLock<Waker>,
}

impl Abort for Progress {
    fn abort(&self) {
        self.aborted.store(true, Relaxed);
        if let Some(task) = self.task.get() {
            task.wake_by_ref();
        }
    }
}

impl Progress {
    fn wait(&self) {
        self.waiting.store(true, Relaxed);
    }

    fn advance(&self) {
        self.waiting.store(false, Relaxed);
        // There is only one writer, so no atomic addition is needed.
        self.taken.store(self.taken.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Returns the number that must change until the next check; `None` while no bytes wait.
    fn snapshot(&self) -> Option<u32> {
        self.waiting.load(Relaxed).then(|| self.taken.load(Relaxed))
    }
}

/// The state of a peer, which the connection, its streams and their responses share.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    socket: Progress,
    open: AtomicU32,
    /// The number of requests since the start. The number distinguishes a peer that stayed idle from a peer that became
    /// idle again.
    begun: AtomicU32,
    /// The next [`Command`] for the task of the connection, or 0.
    command: AtomicU8,
    /// The task of the connection.
    task: OnceLock<Waker>,
    /// The number of requests without a valid credential, over HTTP/2.
    unauthenticated: AtomicU32,
    /// The slot of a response that hyper has buffered and not sent yet, over HTTP/1.1.
    unsent: Unsent,
    /// Whether a response was sent before the whole request had arrived.
    sending: AtomicBool,
    bodies: ConnectionBodies,
}

/// The slot of a response until the next flush. The lock is never contended; connections move between threads.
#[derive(Debug, Default)]
struct Unsent {
    any: AtomicBool,
    hold: Mutex<Option<Box<Hold>>>,
}

/// A command to the task of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Command {
    /// Accept no further request, and close the connection after the open requests.
    Drain = 1,
    /// Close the connection at once.
    Abort = 2,
}

/// The result of a check of a peer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PeerState {
    /// The peer is active. The next check is due at this time.
    Active(Instant),
    /// The peer sends no requests. The connection must be closed gracefully.
    Idle,
    /// The peer accepts no bytes. The connection must be closed at once.
    Stalled,
}

/// Detects that a peer is idle or stalled: a state machine over time.
#[derive(Debug)]
pub(crate) struct PeerMonitor {
    begun: u32,
    idle_since: Option<Instant>,
    socket: Option<u32>,
    socket_checked: Instant,
}

impl PeerMonitor {
    pub(crate) fn new(now: Instant) -> Self {
        PeerMonitor { begun: 0, idle_since: Some(now), socket: None, socket_checked: now }
    }

    /// Returns the state of the peer at the time `now`.
    pub(crate) fn check(&mut self, peer: &Peer, now: Instant) -> PeerState {
        if now >= self.socket_checked + STALL_CHECK {
            let socket = peer.socket.snapshot();
            if socket.is_some() && socket == self.socket {
                return PeerState::Stalled;
            }
            (self.socket, self.socket_checked) = (socket, now);
        }
        let begun = peer.begun.load(Relaxed);
        let is_new = begun != self.begun;
        self.begun = begun;
        let busy = peer.open.load(Relaxed) > 0;
        // A request may have begun and ended since the last check, so the idle time starts now.
        self.idle_since = if busy { None } else { self.idle_since.filter(|_| !is_new).or(Some(now)) };
        let socket_due = self.socket_checked + STALL_CHECK;
        let Some(since) = self.idle_since else { return PeerState::Active(socket_due) };
        let limit = if begun == 0 { FIRST_REQUEST_TIMEOUT } else { IDLE_TIMEOUT };
        let due = since + limit;
        if now >= due { PeerState::Idle } else { PeerState::Active(due.min(socket_due)) }
    }
}

impl Peer {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Sets the task that runs the connection.
    pub(crate) fn set_task(&self, task: &Waker) {
        let _ = self.task.set(task.clone());
    }

    fn send(&self, command: Command) {
        // A later drain command does not replace an abort command.
        self.command.fetch_max(command as u8, Relaxed);
        if let Some(task) = self.task.get() {
            task.wake_by_ref();
        }
    }

    /// Takes the pending command for the connection.
    pub(crate) fn take_command(&self) -> Option<Command> {
        if self.command.load(Relaxed) == 0 {
            return None;
        }
        match self.command.swap(0, Relaxed) {
            0 => None,
            1 => Some(Command::Drain),
            _ => Some(Command::Abort),
        }
    }

    /// Records a request without a valid credential. The connection accepts no further requests, because HTTP/2 clients
    /// can send many requests cheaply (kube-apiserver's `UnauthenticatedHTTP2DOSMitigation`). Open streams, such as
    /// watches, continue.
    pub(crate) fn note_unauthenticated(&self) {
        match self.unauthenticated.fetch_add(1, Relaxed) {
            0 => self.send(Command::Drain),
            UNAUTHENTICATED_REQUESTS_MAX.. => self.send(Command::Abort),
            _ => {}
        }
    }

    /// Drains the connection: no further request is accepted, and open requests finish.
    pub(crate) fn go_away(&self) {
        self.send(Command::Drain);
    }

    /// Records a response that was sent before the whole request had arrived. The connection ends after the response.
    pub(crate) fn note_answered_early(&self) {
        self.sending.store(true, Relaxed);
    }

    /// The charged memory of the request bodies of this connection.
    pub(crate) fn bodies(&self) -> &ConnectionBodies {
        &self.bodies
    }

    /// Records that hyper has sent its buffer.
    fn note_flushed(&self) {
        if self.unsent.any.load(Relaxed) {
            self.unsent.any.store(false, Relaxed);
            drop(self.unsent.hold.lock().take());
        }
    }

    /// Records a new request, which is open until the result and the body of its response are dropped.
    pub(crate) fn open_request(self: &Arc<Self>) -> OpenRequest {
        self.open.fetch_add(1, Relaxed);
        self.begun.fetch_add(1, Relaxed);
        OpenRequest(Arc::clone(self))
    }
}

/// A request whose response is not sent completely.
#[derive(Debug)]
pub(crate) struct OpenRequest(Arc<Peer>);

impl OpenRequest {
    /// Wraps the body of the response, which the calling task sends.
    pub(crate) async fn send_body(self, mut body: Body) -> SentBody {
        let progress = STREAM.try_with(Arc::clone).ok();
        if let Some(hold) = body.held() {
            let response: Weak<dyn Abort> = match &progress {
                Some(progress) => {
                    let task = std::future::poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
                    let _ = progress.task.set(task);
                    Arc::<Progress>::downgrade(progress)
                }
                None => Arc::<Peer>::downgrade(&self.0),
            };
            let deadline = hold.deadline;
            hold.slot.begin_sending(Instant::now(), deadline, response);
        }
        SentBody { body, progress, open: self }
    }
}

impl Abort for Peer {
    fn abort(&self) {
        self.send(Command::Abort);
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
    }
}

/// A response body that is sent to a peer.
#[derive(Debug)]
pub(crate) struct SentBody {
    body: Body,
    /// The progress of the HTTP/2 stream.
    progress: Option<Arc<Progress>>,
    open: OpenRequest,
}

/// Splits the first piece from a chunk. For an HTTP/2 stream, the rest stays in `hold`.
fn first_piece(hold: &mut Hold, mut chunk: Bytes, is_stream: bool) -> Bytes {
    if is_stream && chunk.len() > 2 * TAIL_BYTES {
        hold.tail = chunk.split_off(chunk.len() - TAIL_BYTES);
    }
    hold.slot.add_sent(chunk.len());
    chunk
}

impl Drop for SentBody {
    fn drop(&mut self) {
        // Over HTTP/1.1, the end of the body may still be in hyper's buffer.
        if self.progress.is_none()
            && let Some(hold) = self.body.held().take()
        {
            let unsent = &self.open.0.unsent;
            *unsent.hold.lock() = Some(hold);
            unsent.any.store(true, Relaxed);
        }
    }
}

impl SentBody {
    /// Whether the body is a watch.
    pub(crate) fn is_watch(&self) -> bool {
        self.body.is_watch()
    }
}

impl http_body::Body for SentBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(progress) = &self.progress {
            // hyper polls when the peer's window has room.
            progress.advance();
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
            *chunk = first_piece(hold, std::mem::take(chunk), this.progress.is_some());
        }
        if let (Some(progress), Poll::Ready(_)) = (&this.progress, &polled) {
            progress.wait();
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
    /// The progress of the HTTP/2 stream that the current task serves.
    static STREAM: Arc<Progress>;
}

/// Runs each HTTP/2 stream as a task that ends when the stream is stalled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamExecutor;

impl<F> hyper::rt::Executor<F> for StreamExecutor
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, stream: F) {
        tokio::spawn(StreamTask { stream: Box::pin(stream), progress: Arc::default(), check: None });
    }
}

struct StreamTask<F> {
    stream: Pin<Box<F>>,
    progress: Arc<Progress>,
    /// The time of the next check and the progress at the last one, while the stream may be stalled.
    check: Option<(Pin<Box<Sleep>>, u32)>,
}

impl<F: Future> Future for StreamTask<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let polled = if Arc::strong_count(&this.progress) == 1 {
            // The handler is still running, so no body refers to the progress yet.
            let progress = Arc::clone(&this.progress);
            STREAM.sync_scope(progress, || this.stream.as_mut().poll(cx))
        } else {
            this.stream.as_mut().poll(cx)
        };
        // The end of this task drops the stream, which causes a reset.
        if polled.is_ready() || this.progress.aborted.load(Relaxed) {
            return Poll::Ready(());
        }
        if this.check.is_none()
            && let Some(seen) = this.progress.snapshot()
        {
            this.check = Some((Box::pin(tokio::time::sleep(STALL_CHECK)), seen));
        }
        // There is one timer per check, however often the stream is polled.
        while let Some((sleep, seen)) = &mut this.check
            && sleep.as_mut().poll(cx).is_ready()
        {
            match this.progress.snapshot() {
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

/// A socket that records the progress of the peer, and lingers when it is shut down.
#[derive(Debug)]
pub(crate) struct MonitoredIo<T> {
    io: T,
    peer: Arc<Peer>,
    corked: bool,
    lingering: Option<Box<Linger>>,
}

/// Reads from a socket after the last write. Closing a socket with unread bytes resets the connection, and the peer may
/// then lose the end of the response.
#[derive(Debug)]
pub(crate) struct Linger {
    until: Pin<Box<Sleep>>,
    bytes_left: usize,
    /// Whether the peer is still sending bytes.
    sending: bool,
}

impl Linger {
    /// Starts to linger. If `sending` is set, a response was sent before the whole request had arrived. Otherwise,
    /// lingering ends as soon as no bytes are left to read.
    pub(crate) fn new(sending: bool) -> Self {
        Linger { until: Box::pin(tokio::time::sleep(LINGER_TIMEOUT)), bytes_left: LINGER_BYTES_MAX, sending }
    }

    /// Reads and discards bytes, until the peer closes the connection or the time limit is reached.
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

impl<T> MonitoredIo<T> {
    pub(crate) fn new(io: T, peer: Arc<Peer>) -> Self {
        MonitoredIo { io, peer, corked: false, lingering: None }
    }

    fn note(&self, written: &Poll<io::Result<usize>>) {
        match written {
            Poll::Pending => self.peer.socket.wait(),
            Poll::Ready(_) => self.peer.socket.advance(),
        }
    }
}

impl<T> Cork for MonitoredIo<T> {
    fn cork(&mut self, on: bool) {
        self.corked = on;
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for MonitoredIo<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for MonitoredIo<T> {
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
            self.peer.note_flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let lingering = match &mut this.lingering {
            Some(lingering) => lingering,
            None => {
                ready!(Pin::new(&mut this.io).poll_shutdown(cx))?;
                this.peer.note_flushed();
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
    async fn idle_peer_is_detected_after_the_timeout_of_its_phase() {
        let (start, peer) = (Instant::now(), Peer::new());
        let mut monitor = PeerMonitor::new(start);
        assert_eq!(monitor.check(&peer, start), PeerState::Active(at(start, 32)));
        assert_eq!(monitor.check(&peer, at(start, 32)), PeerState::Idle);

        let mut monitor = PeerMonitor::new(start);
        let request = peer.open_request();
        assert_eq!(monitor.check(&peer, at(start, 32)), PeerState::Active(at(start, 60)));
        assert_eq!(
            monitor.check(&peer, at(start, 1_000)),
            PeerState::Active(at(start, 1_060)),
            "an open request may take long"
        );
        drop(request);
        assert_eq!(monitor.check(&peer, at(start, 1_060)), PeerState::Active(at(start, 1_120)));
        drop(peer.open_request());
        let last = monitor.check(&peer, at(start, 1_120));
        assert_eq!(last, PeerState::Active(at(start, 1_180)), "the peer was not idle");
        assert_eq!(monitor.check(&peer, at(start, 1_180)), PeerState::Active(at(start, 1_210)));
        assert_eq!(monitor.check(&peer, at(start, 1_210)), PeerState::Idle);
    }

    #[tokio::test(start_paused = true)]
    async fn socket_without_progress_between_two_checks_is_stalled() {
        let (start, peer) = (Instant::now(), Peer::new());
        let _request = peer.open_request();
        let mut monitor = PeerMonitor::new(start);
        peer.socket.wait();
        assert_eq!(monitor.check(&peer, at(start, 60)), PeerState::Active(at(start, 120)));
        peer.socket.advance();
        peer.socket.wait();
        assert_eq!(monitor.check(&peer, at(start, 120)), PeerState::Active(at(start, 180)), "it made progress");
        assert_eq!(
            monitor.check(&peer, at(start, 150)),
            PeerState::Active(at(start, 180)),
            "the next check is not due"
        );
        assert_eq!(monitor.check(&peer, at(start, 180)), PeerState::Stalled);

        let mut monitor = PeerMonitor::new(start);
        peer.socket.advance();
        assert_eq!(monitor.check(&peer, at(start, 60)), PeerState::Active(at(start, 120)));
        assert_eq!(monitor.check(&peer, at(start, 120)), PeerState::Active(at(start, 180)), "no bytes wait");
    }

    #[tokio::test(start_paused = true)]
    async fn stream_without_progress_is_dropped() {
        use http_body::Body as _;
        use hyper::rt::Executor as _;
        let (peer, dropped) = (Peer::new(), Arc::new(()));
        let alive = Arc::downgrade(&dropped);
        let request = peer.open_request();
        StreamExecutor.execute(async move {
            let _held = dropped;
            let mut body = request.send_body(Body::full("some bytes")).await;
            // The stream is polled once, as hyper does while a window is used up.
            let _ = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await;
            std::future::pending::<()>().await;
        });
        tokio::time::sleep(STALL_CHECK / 2).await;
        assert!(alive.upgrade().is_some(), "dropped before its time");
        tokio::time::sleep(STALL_CHECK).await;
        assert!(alive.upgrade().is_none(), "not dropped");
        assert_eq!(peer.open.load(Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn pending_stream_task_without_buffered_bytes_is_not_dropped() {
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
