//! [`Gather`]: joins the writes of the streams of an HTTP/2 connection. The value sits between HTTP/2 and TLS.
//!
//! ```text
//!  100 streams ──frame, flush──▶ Gather ── whole records ──▶ TLS ── once per turn of the connection ──▶ socket
//! ```
//!
//! The HTTP/2 codec flushes after every DATA frame. Each flush is a TLS record and a system call. Without gathering, an
//! event for a hundred watchers on one connection would cost a hundred TLS records and a hundred system calls.
//! [`Gather`] joins the frames. When the frames fill a TLS record, the record is passed to TLS without a copy. Only the
//! rest of a large frame is copied. The socket is corked, so that TLS buffers the record.
//!
//! All records are sent when the connection has no more work in this turn, or at [`GATHER_BYTES_MAX`]. No frame waits
//! for a timer. A turn ends when each task that was already ready has run.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Maximum number of frame bytes that wait for the end of the turn, in addition to one frame. At this limit, the frames
/// are sent at once. While the socket accepts no bytes, no further frame is accepted.
pub(crate) const GATHER_BYTES_MAX: usize = 64 * 1024;
/// The size of a full TLS record, in bytes.
const RECORD_BYTES: usize = 16 * 1024;
/// The largest number of slices that are passed to TLS at once. A frame has two slices.
const SLICES_MAX: usize = 8;
/// The capacity that is reserved for the first frame of a turn, in bytes.
const FIRST_BYTES: usize = 4 * 1024;

/// A socket, or a stream above it, that can block writes temporarily. TLS then buffers its records.
pub(crate) trait Cork {
    /// While the socket is corked, a write is [`Poll::Pending`] and wakes no task.
    fn cork(&mut self, on: bool);
}

impl<T: Cork> Cork for tokio_rustls::server::TlsStream<T> {
    fn cork(&mut self, on: bool) {
        self.get_mut().0.cork(on);
    }
}

impl<T: Cork> Cork for Box<T> {
    fn cork(&mut self, on: bool) {
        T::cork(self, on);
    }
}

/// The side that HTTP/2 writes to.
pub(crate) struct Gather<T>(Arc<Mutex<Gathered<T>>>);

/// The side that sends the gathered frames.
pub(crate) struct Outlet<T>(Arc<Mutex<Gathered<T>>>);

/// The shared state of both sides. The lock is never contended, because one task uses both.
struct Gathered<T> {
    io: T,
    /// Whether writes are gathered or passed through.
    gather: bool,
    /// The bytes that do not fill a record yet.
    waiting: Vec<u8>,
    /// The number of accepted bytes that are not sent yet.
    held: usize,
    /// Whether the connection has yielded to the other tasks in this turn.
    yielded: bool,
}

/// Creates both sides. If `gather` is false, writes are passed through.
pub(crate) fn gather<T>(io: T, gather: bool) -> (Gather<T>, Outlet<T>) {
    let gathered = Gathered { io, gather, waiting: Vec::new(), held: 0, yielded: false };
    let shared = Arc::new(Mutex::new(gathered));
    (Gather(Arc::clone(&shared)), Outlet(shared))
}

impl<T: AsyncWrite + Cork + Unpin> Gathered<T> {
    /// Writes and flushes all waiting bytes.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.waiting.is_empty() {
            let written = nonzero(ready!(Pin::new(&mut self.io).poll_write(cx, &self.waiting))?)?;
            self.waiting.drain(..written);
        }
        // The buffer is freed, so that an idle connection holds no memory for it.
        self.waiting = Vec::new();
        ready!(Pin::new(&mut self.io).poll_flush(cx))?;
        self.held = 0;
        Poll::Ready(Ok(()))
    }

    /// Accepts a frame, and returns the number of accepted bytes.
    fn poll_take(&mut self, cx: &mut Context<'_>, frame: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if self.held >= GATHER_BYTES_MAX {
            ready!(self.poll_send(cx))?;
        }
        let frame = &frame[..frame.len().min(SLICES_MAX - 1)];
        let bytes: usize = frame.iter().map(|slice| slice.len()).sum();
        let mut rest = bytes;
        while self.waiting.len() + rest >= RECORD_BYTES {
            let taken = bytes - rest;
            let whole = (self.waiting.len() + rest) / RECORD_BYTES * RECORD_BYTES;
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            slices[0] = IoSlice::new(&self.waiting);
            let pieces = between(frame, taken, taken + whole - self.waiting.len());
            let count =
                1 + slices[1..].iter_mut().zip(pieces).map(|(slice, piece)| *slice = IoSlice::new(piece)).count();
            self.io.cork(true);
            let written = Pin::new(&mut self.io).poll_write_vectored(cx, &slices[..count]);
            self.io.cork(false);
            let written = match written {
                // The writer must not send accepted bytes again.
                Poll::Pending if taken > 0 => return Poll::Ready(Ok(taken)),
                written => nonzero(ready!(written)?)?,
            };
            let of_waiting = written.min(self.waiting.len());
            self.waiting.drain(..of_waiting);
            self.held += written - of_waiting;
            rest -= written - of_waiting;
        }
        if self.waiting.capacity() == 0 {
            self.waiting.reserve(FIRST_BYTES);
        }
        between(frame, bytes - rest, bytes).for_each(|piece| self.waiting.extend_from_slice(piece));
        self.held += rest;
        Poll::Ready(Ok(bytes))
    }
}

/// Returns the bytes of the slices in a range.
fn between<'a>(slices: &'a [IoSlice<'_>], from: usize, to: usize) -> impl Iterator<Item = &'a [u8]> {
    let mut end = 0;
    slices.iter().filter_map(move |slice| {
        let begin = end;
        end += slice.len();
        slice.get(from.max(begin) - begin..to.min(end).max(begin) - begin).filter(|piece| !piece.is_empty())
    })
}

/// Returns the number of written bytes. Zero is an error, because the socket is closed.
fn nonzero(written: usize) -> io::Result<usize> {
    if written == 0 { Err(io::ErrorKind::WriteZero.into()) } else { Ok(written) }
}

/// A connection that writes to a [`Gather`], with the [`Outlet`]. The gathered frames are sent whenever the connection
/// has no more work.
pub(crate) struct Gathering<C, T> {
    pub(crate) connection: Pin<Box<C>>,
    pub(crate) outlet: Outlet<T>,
}

impl<C, T, E> Future for Gathering<C, T>
where
    C: Future<Output = Result<(), E>>,
    T: AsyncWrite + Cork + Unpin,
    E: From<io::Error>,
{
    type Output = Result<(), E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), E>> {
        if let Poll::Ready(ended) = self.connection.as_mut().poll(cx) {
            return Poll::Ready(ended);
        }
        match self.outlet.poll_turn(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error.into())),
            _ => Poll::Pending,
        }
    }
}

impl<T: AsyncWrite + Cork + Unpin> Outlet<T> {
    fn poll_turn(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut gathered = self.0.lock();
        if !gathered.gather {
            return Poll::Pending;
        }
        // The first stream with an event wakes the connection, which then runs before the other streams. It yields
        // once, so that their frames are gathered, too. If no other task is ready, it runs again at once.
        if gathered.held > 0 && !gathered.yielded {
            gathered.yielded = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        gathered.yielded = false;
        gathered.poll_send(cx)
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Gather<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.lock().io).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Cork + Unpin> AsyncWrite for Gather<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let mut gathered = self.0.lock();
        if !gathered.gather {
            return Pin::new(&mut gathered.io).poll_write(cx, buf);
        }
        gathered.poll_take(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut gathered = self.0.lock();
        if !gathered.gather {
            return Pin::new(&mut gathered.io).poll_write_vectored(cx, slices);
        }
        gathered.poll_take(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        let gathered = self.0.lock();
        gathered.gather || gathered.io.is_write_vectored()
    }

    /// Does nothing, because the bytes are flushed at the end of the turn.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut gathered = self.0.lock();
        if gathered.gather { Poll::Ready(Ok(())) } else { Pin::new(&mut gathered.io).poll_flush(cx) }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut gathered = self.0.lock();
        ready!(gathered.poll_send(cx))?;
        Pin::new(&mut gathered.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use proptest::prelude::*;

    use super::*;

    /// A test socket that records writes and flushes. A full socket accepts no write; otherwise a write accepts at most
    /// `takes` bytes.
    struct Socket {
        writes: Vec<Vec<u8>>,
        /// The number of writes before each flush.
        flushes: Vec<usize>,
        corked: bool,
        full: bool,
        takes: usize,
        shut: bool,
    }

    impl Default for Socket {
        fn default() -> Self {
            let (writes, flushes) = (Vec::new(), Vec::new());
            Socket { writes, flushes, corked: false, full: false, takes: usize::MAX, shut: false }
        }
    }

    impl Cork for Socket {
        fn cork(&mut self, on: bool) {
            self.corked = on;
        }
    }

    impl AsyncWrite for Socket {
        fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            self.poll_write_vectored(cx, &[IoSlice::new(buf)])
        }

        /// Accepts and keeps every write while the socket is corked, as TLS does.
        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            slices: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            if self.full && !self.corked {
                return Poll::Pending;
            }
            let mut bytes = slices.iter().map(|slice| &**slice).collect::<Vec<_>>().concat();
            bytes.truncate(self.takes);
            let taken = bytes.len();
            self.writes.push(bytes);
            Poll::Ready(Ok(taken))
        }

        fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            if self.full {
                return Poll::Pending;
            }
            let writes = self.writes.len();
            self.flushes.push(writes);
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.shut = true;
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncRead for Socket {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    fn cx() -> Context<'static> {
        Context::from_waker(Waker::noop())
    }

    /// Simulates one turn of a connection, which writes and flushes frames.
    fn turn(end: &mut Gather<Socket>, outlet: &Outlet<Socket>, frames: &[&str]) {
        for frame in frames {
            assert!(Pin::new(&mut *end).poll_write(&mut cx(), frame.as_bytes()).is_ready());
            assert!(Pin::new(&mut *end).poll_flush(&mut cx()).is_ready());
        }
        let connection = Box::pin(std::future::pending::<io::Result<()>>());
        let mut turn = Gathering { connection, outlet: Outlet(Arc::clone(&outlet.0)) };
        assert!(Pin::new(&mut turn).poll(&mut cx()).is_pending());
    }

    fn sent(outlet: &Outlet<Socket>) -> Vec<String> {
        let gathered = outlet.0.lock();
        gathered.io.writes.iter().map(|write| String::from_utf8(write.clone()).unwrap()).collect()
    }

    #[test]
    fn frames_of_ready_streams_are_sent_in_one_write() {
        let (mut end, outlet) = gather(Socket::default(), true);
        turn(&mut end, &outlet, &["a"]);
        assert!(sent(&outlet).is_empty(), "the connection yields first");
        turn(&mut end, &outlet, &["b", "c"]);
        assert_eq!(sent(&outlet), ["abc"]);
        turn(&mut end, &outlet, &["d"]);
        turn(&mut end, &outlet, &[]);
        assert_eq!(sent(&outlet), ["abc", "d"], "a frame waits for one turn at most");
        assert_eq!(outlet.0.lock().waiting.capacity(), 0, "an idle connection keeps no buffer");
    }

    #[test]
    fn blocked_socket_stops_the_writer_at_the_limit() {
        let (mut end, outlet) = gather(Socket { full: true, ..Socket::default() }, true);
        let frame = "x".repeat(10_000);
        let mut taken = 0;
        while Pin::new(&mut end).poll_write(&mut cx(), frame.as_bytes()).is_ready() {
            taken += frame.len();
            assert!(taken < GATHER_BYTES_MAX + 2 * frame.len(), "a blocked socket stops the writer");
        }
        assert!(taken >= GATHER_BYTES_MAX);
        outlet.0.lock().io.full = false;
        assert!(Pin::new(&mut end).poll_write(&mut cx(), frame.as_bytes()).is_ready());
        assert_eq!(sent(&outlet).concat().len(), taken, "no byte is lost");
    }

    #[test]
    fn full_tls_records_are_flushed_at_the_end_of_the_turn() {
        let (mut end, outlet) = gather(Socket::default(), true);
        let (head, frame) = ([b'h'; 9], [b'f'; RECORD_BYTES]);
        for _ in 0..3 {
            let slices = [IoSlice::new(&head), IoSlice::new(&frame)];
            let taken = Pin::new(&mut end).poll_write_vectored(&mut cx(), &slices);
            assert!(matches!(taken, Poll::Ready(Ok(bytes)) if bytes == head.len() + frame.len()));
        }
        let lengths = || outlet.0.lock().io.writes.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(lengths(), [RECORD_BYTES; 3]);
        assert!(outlet.0.lock().io.flushes.is_empty(), "flushed before the end of the turn");
        turn(&mut end, &outlet, &[]);
        turn(&mut end, &outlet, &[]);
        assert_eq!(lengths(), [RECORD_BYTES, RECORD_BYTES, RECORD_BYTES, 27]);
        assert_eq!(outlet.0.lock().io.flushes, [4]);
        let expected = [&head[..], &frame[..]].concat().repeat(3);
        assert_eq!(sent(&outlet).concat().into_bytes(), expected);
    }

    proptest! {
        #[test]
        fn partial_socket_writes_keep_the_order_of_frames(
            frames in prop::collection::vec(prop::collection::vec(0_usize..40_000, 1..4), 1..12),
            takes in prop_oneof![1_000_usize..20_000, Just(usize::MAX)],
        ) {
            let (mut end, outlet) = gather(Socket { takes, ..Socket::default() }, true);
            let (mut expected, mut byte) = (Vec::new(), 0_u8);
            for frame in &frames {
                let pieces: Vec<Vec<u8>> = frame
                    .iter()
                    .map(|bytes| {
                        byte = byte.wrapping_add(1);
                        vec![byte; *bytes]
                    })
                    .collect();
                let all = pieces.concat();
                expected.extend_from_slice(&all);
                let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
                let (mut slices, mut left) = (&mut slices[..], all.len());
                while left > 0 {
                    let Poll::Ready(taken) = Pin::new(&mut end).poll_write_vectored(&mut cx(), slices) else {
                        panic!("the socket has room");
                    };
                    let taken = taken.unwrap();
                    prop_assert!(taken > 0);
                    left -= taken;
                    IoSlice::advance_slices(&mut slices, taken);
                }
            }
            prop_assert!(outlet.0.lock().waiting.len() < RECORD_BYTES);
            prop_assert!(Pin::new(&mut end).poll_shutdown(&mut cx()).is_ready());
            prop_assert_eq!(outlet.0.lock().io.writes.concat(), expected);
        }
    }

    #[test]
    fn connection_shutdown_sends_gathered_frames() {
        let (mut end, outlet) = gather(Socket::default(), true);
        turn(&mut end, &outlet, &["goodbye"]);
        assert!(Pin::new(&mut end).poll_shutdown(&mut cx()).is_ready());
        assert_eq!(sent(&outlet), ["goodbye"]);
        assert!(outlet.0.lock().io.shut);
    }

    #[test]
    fn disabled_gathering_passes_writes_through() {
        let (mut end, outlet) = gather(Socket::default(), false);
        turn(&mut end, &outlet, &["a", "b"]);
        assert_eq!(sent(&outlet), ["a", "b"]);
    }
}
