//! Writes of many streams, sent together: [`Gather`] stands between HTTP/2 and TLS.
//!
//! ```text
//!  100 streams ──frame, flush──▶ Gather ── one write per turn of the connection ──▶ TLS ──▶ socket
//! ```
//!
//! The HTTP/2 codec flushes behind every DATA frame, and each flush is a TLS record and a system
//! call. An event for a hundred watchers of one connection would be a hundred of each. Here the
//! frames are put behind one another, and go out when the connection has nothing more to do in this
//! turn, or when [`GATHER_BYTES_MAX`] are full. Nothing waits for a timer: a turn ends when every
//! task that was ready before it has run.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes of frames that are gathered at most; with as many waiting, they go out at once, and while
/// the socket takes none, no more are taken either.
pub(crate) const GATHER_BYTES_MAX: usize = 64 * 1024;
/// Room that is made for the first frame of a turn.
const FIRST_BYTES: usize = 4 * 1024;

/// The end that HTTP writes to.
pub(crate) struct Gather<T>(Arc<Mutex<Gathered<T>>>);

/// The end that lets out what was gathered.
pub(crate) struct Outlet<T>(Arc<Mutex<Gathered<T>>>);

/// The two never wait for each other: both are used by the one task of the connection.
struct Gathered<T> {
    io: T,
    /// Whether anything is gathered at all, or every write goes through.
    gather: bool,
    waiting: Vec<u8>,
    /// So much of it has been written.
    written: usize,
    /// The turn has been given to the other tasks once.
    yielded: bool,
}

/// The two ends. With `gather: false` they change nothing.
pub(crate) fn gather<T>(io: T, gather: bool) -> (Gather<T>, Outlet<T>) {
    let gathered = Gathered { io, gather, waiting: Vec::new(), written: 0, yielded: false };
    let shared = Arc::new(Mutex::new(gathered));
    (Gather(Arc::clone(&shared)), Outlet(shared))
}

impl<T: AsyncWrite + Unpin> Gathered<T> {
    /// Writes all that waits, and has it sent.
    fn poll_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.waiting.len() {
            let written = ready!(Pin::new(&mut self.io).poll_write(cx, &self.waiting[self.written..]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += written;
        }
        // A connection to which nothing happens holds nothing.
        (self.waiting, self.written) = (Vec::new(), 0);
        Pin::new(&mut self.io).poll_flush(cx)
    }

    /// Room for more: everything, unless so much waits that some of it has to go first.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.waiting.len() >= GATHER_BYTES_MAX {
            return self.poll_out(cx);
        }
        if self.waiting.capacity() == 0 {
            self.waiting.reserve(FIRST_BYTES);
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> Outlet<T> {
    /// Runs a connection that writes to the other end, and sends what it has gathered whenever it
    /// has nothing more to do.
    pub(crate) async fn run<F, E>(&self, mut connection: Pin<&mut F>) -> Result<(), E>
    where
        F: Future<Output = Result<(), E>>,
        E: From<io::Error>,
    {
        std::future::poll_fn(|cx| {
            if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                return Poll::Ready(ended);
            }
            match self.poll_turn(cx) {
                Poll::Ready(Err(error)) => Poll::Ready(Err(error.into())),
                _ => Poll::Pending,
            }
        })
        .await
    }

    fn poll_turn(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut gathered = self.0.lock();
        if !gathered.gather {
            return Poll::Pending;
        }
        // The first stream with an event wakes the connection, and it runs before the others: they
        // are given one turn, so that their frames come along. With no other task ready, that is
        // now.
        if !gathered.waiting.is_empty() && !gathered.yielded {
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

impl<T: AsyncWrite + Unpin> AsyncWrite for Gather<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let mut gathered = self.0.lock();
        if !gathered.gather {
            return Pin::new(&mut gathered.io).poll_write(cx, buf);
        }
        ready!(gathered.poll_room(cx))?;
        gathered.waiting.extend_from_slice(buf);
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut gathered = self.0.lock();
        if !gathered.gather {
            return Pin::new(&mut gathered.io).poll_write_vectored(cx, slices);
        }
        ready!(gathered.poll_room(cx))?;
        slices.iter().for_each(|slice| gathered.waiting.extend_from_slice(slice));
        Poll::Ready(Ok(slices.iter().map(|slice| slice.len()).sum()))
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

    use super::*;

    /// Remembers each write; takes none while it is full.
    #[derive(Default)]
    struct Socket {
        writes: Vec<Vec<u8>>,
        full: bool,
        shut: bool,
    }

    impl AsyncWrite for Socket {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            if self.full {
                return Poll::Pending;
            }
            self.writes.push(buf.to_vec());
            Poll::Ready(Ok(buf.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
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
        let connection = std::pin::pin!(std::future::pending::<io::Result<()>>());
        let mut turn = std::pin::pin!(outlet.run(connection));
        assert!(turn.as_mut().poll(&mut cx()).is_pending());
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
            assert!(taken < GATHER_BYTES_MAX + frame.len(), "a socket that takes nothing holds the writer up");
        }
        outlet.0.lock().io.full = false;
        assert!(Pin::new(&mut end).poll_write(&mut cx(), frame.as_bytes()).is_ready());
        assert_eq!(sent(&outlet).concat().len(), taken, "it goes on where it stopped");
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
