//! Writes of many streams, sent together: [`Gather`] stands between HTTP/2 and TLS.
//!
//! ```text
//!  100 streams ──frame, flush──▶ Gather ── whole records ──▶ TLS ── once per turn of the connection ──▶ socket
//! ```
//!
//! The HTTP/2 codec flushes behind every DATA frame, and each flush is a TLS record and a system
//! call. An event for a hundred watchers of one connection would be a hundred of each. Here the
//! frames are put behind one another. As soon as they fill a record TLS is given it, from where it lies
//! (of a large frame only the end that fills no record is copied), and keeps it: the socket is corked.
//! All goes out when the connection has nothing more to do in this turn, or when
//! [`GATHER_BYTES_MAX`] are full. Nothing waits for a timer: a turn ends when every task that was
//! ready before it has run.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes of frames that are gathered at most, and a frame; with as many waiting, they go out at once,
/// and while the socket takes none, no more are taken either.
pub(crate) const GATHER_BYTES_MAX: usize = 64 * 1024;
/// Bytes of a whole TLS record.
const RECORD_BYTES: usize = 16 * 1024;
/// Pieces that are handed to TLS at once; of a frame there are two.
const SLICES_MAX: usize = 8;
/// Room that is made for the first frame of a turn.
const FIRST_BYTES: usize = 4 * 1024;

/// A socket, or what ends in one, that can be told to take nothing for a moment: TLS on top of it
/// then keeps what it has made.
pub(crate) trait Cork {
    /// While it is corked, a write is [`Poll::Pending`], and nobody is told when it is no longer.
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

/// The end that HTTP writes to.
pub(crate) struct Gather<T>(Arc<Mutex<Gathered<T>>>);

/// The end that lets out what was gathered.
pub(crate) struct Outlet<T>(Arc<Mutex<Gathered<T>>>);

/// The two never wait for each other: both are used by the one task of the connection.
struct Gathered<T> {
    io: T,
    /// Whether anything is gathered at all, or every write goes through.
    gather: bool,
    /// What fills no record yet.
    waiting: Vec<u8>,
    /// Bytes taken and not sent.
    held: usize,
    /// The turn has been given to the other tasks once.
    yielded: bool,
}

/// The two ends. With `gather: false` they change nothing.
pub(crate) fn gather<T>(io: T, gather: bool) -> (Gather<T>, Outlet<T>) {
    let gathered = Gathered { io, gather, waiting: Vec::new(), held: 0, yielded: false };
    let shared = Arc::new(Mutex::new(gathered));
    (Gather(Arc::clone(&shared)), Outlet(shared))
}

impl<T: AsyncWrite + Cork + Unpin> Gathered<T> {
    /// Writes all that waits, and has it sent.
    fn poll_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.waiting.is_empty() {
            let written = some(ready!(Pin::new(&mut self.io).poll_write(cx, &self.waiting))?)?;
            self.waiting.drain(..written);
        }
        // A connection to which nothing happens holds nothing.
        self.waiting = Vec::new();
        ready!(Pin::new(&mut self.io).poll_flush(cx))?;
        self.held = 0;
        Poll::Ready(Ok(()))
    }

    /// Takes a frame; so much of it.
    fn poll_take(&mut self, cx: &mut Context<'_>, frame: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if self.held >= GATHER_BYTES_MAX {
            ready!(self.poll_out(cx))?;
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
                // What was taken is not to be given again.
                Poll::Pending if taken > 0 => return Poll::Ready(Ok(taken)),
                written => some(ready!(written)?)?,
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
/// The bytes of some slices from one place to another.
fn between<'a>(slices: &'a [IoSlice<'_>], from: usize, to: usize) -> impl Iterator<Item = &'a [u8]> {
    let mut end = 0;
    slices.iter().filter_map(move |slice| {
        let begin = end;
        end += slice.len();
        slice.get(from.max(begin) - begin..to.min(end).max(begin) - begin).filter(|piece| !piece.is_empty())
    })
}

/// A socket that takes nothing takes nothing ever again.
fn some(written: usize) -> io::Result<usize> {
    if written == 0 { Err(io::ErrorKind::WriteZero.into()) } else { Ok(written) }
}

/// A connection that writes to the one end, and its other end: sends what was gathered whenever the
/// connection has nothing more to do.
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
        // The first stream with an event wakes the connection, and it runs before the others: they
        // are given one turn, so that their frames come along. With no other task ready, that is
        // now.
        if gathered.held > 0 && !gathered.yielded {
            gathered.yielded = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        gathered.yielded = false;
        gathered.poll_out(cx)
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

    /// The end of the turn is what flushes.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut gathered = self.0.lock();
        if gathered.gather { Poll::Ready(Ok(())) } else { Pin::new(&mut gathered.io).poll_flush(cx) }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut gathered = self.0.lock();
        ready!(gathered.poll_out(cx))?;
        Pin::new(&mut gathered.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use proptest::prelude::*;

    use super::*;

    /// Remembers each write, and when it was told to send them; takes none while it is full, and of
    /// each at most so many bytes.
    struct Socket {
        writes: Vec<Vec<u8>>,
        /// So many writes had been sent at each flush.
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

        /// As TLS does: corked, it takes what it is given, and keeps it.
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

    /// One turn of a connection that writes these frames, each with a flush behind it.
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
    fn frames_of_streams_that_were_ready_together_are_one_write() {
        let (mut end, outlet) = gather(Socket::default(), true);
        turn(&mut end, &outlet, &["a"]);
        assert!(sent(&outlet).is_empty(), "the other tasks have their turn first");
        turn(&mut end, &outlet, &["b", "c"]);
        assert_eq!(sent(&outlet), ["abc"]);
        turn(&mut end, &outlet, &["d"]);
        turn(&mut end, &outlet, &[]);
        assert_eq!(sent(&outlet), ["abc", "d"], "nothing waits for more than one turn");
        assert_eq!(outlet.0.lock().waiting.capacity(), 0, "an idle connection holds nothing");
    }

    #[test]
    fn what_is_gathered_is_bounded() {
        let (mut end, outlet) = gather(Socket { full: true, ..Socket::default() }, true);
        let frame = "x".repeat(10_000);
        let mut taken = 0;
        while Pin::new(&mut end).poll_write(&mut cx(), frame.as_bytes()).is_ready() {
            taken += frame.len();
            assert!(taken < GATHER_BYTES_MAX + 2 * frame.len(), "a socket that takes nothing holds the writer up");
        }
        assert!(taken >= GATHER_BYTES_MAX);
        outlet.0.lock().io.full = false;
        assert!(Pin::new(&mut end).poll_write(&mut cx(), frame.as_bytes()).is_ready());
        assert_eq!(sent(&outlet).concat().len(), taken, "it goes on where it stopped");
    }

    #[test]
    fn records_are_whole_and_go_out_with_the_turn() {
        let (mut end, outlet) = gather(Socket::default(), true);
        let (head, frame) = ([b'h'; 9], [b'f'; RECORD_BYTES]);
        for _ in 0..3 {
            let slices = [IoSlice::new(&head), IoSlice::new(&frame)];
            let taken = Pin::new(&mut end).poll_write_vectored(&mut cx(), &slices);
            assert!(matches!(taken, Poll::Ready(Ok(bytes)) if bytes == head.len() + frame.len()));
        }
        let lengths = || outlet.0.lock().io.writes.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(lengths(), [RECORD_BYTES; 3]);
        assert!(outlet.0.lock().io.flushes.is_empty(), "sent before the turn is over");
        turn(&mut end, &outlet, &[]);
        turn(&mut end, &outlet, &[]);
        assert_eq!(lengths(), [RECORD_BYTES, RECORD_BYTES, RECORD_BYTES, 27]);
        assert_eq!(outlet.0.lock().io.flushes, [4]);
        let expected = [&head[..], &frame[..]].concat().repeat(3);
        assert_eq!(sent(&outlet).concat().into_bytes(), expected);
    }

    proptest! {
        #[test]
        fn frames_arrive_in_order_whatever_is_taken_of_them(
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
                        panic!("a socket that has room");
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
    fn the_end_sends_what_waits() {
        let (mut end, outlet) = gather(Socket::default(), true);
        turn(&mut end, &outlet, &["goodbye"]);
        assert!(Pin::new(&mut end).poll_shutdown(&mut cx()).is_ready());
        assert_eq!(sent(&outlet), ["goodbye"]);
        assert!(outlet.0.lock().io.shut);
    }

    #[test]
    fn without_gathering_every_write_goes_through() {
        let (mut end, outlet) = gather(Socket::default(), false);
        turn(&mut end, &outlet, &["a", "b"]);
        assert_eq!(sent(&outlet), ["a", "b"]);
    }
}
