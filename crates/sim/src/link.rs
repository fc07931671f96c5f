//! [`FaultyLink`]: the client's end of a connection whose bytes are delayed, split, cut or lost.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::plan::{FaultKind, Plan};

/// The way in which a connection breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Break {
    /// The connection is cut: both ends receive an error.
    Cut,
    /// The connection stays open, but delivers no more bytes in either direction.
    Silent,
}

/// The client's end of a connection with faults.
pub(crate) struct FaultyLink {
    io: DuplexStream,
    rng: StdRng,
    /// Whether bytes are delayed.
    is_slow: bool,
    /// Whether bytes arrive in small parts.
    is_partial: bool,
    /// The number of bytes, read or written, after which the connection breaks.
    breaks: Option<(usize, Break)>,
    bytes: usize,
    delay: Option<Pin<Box<Sleep>>>,
    /// Whether the delay before the next read is over.
    is_delayed: bool,
}

impl FaultyLink {
    /// Draws the faults of a connection.
    pub(crate) fn new(io: DuplexStream, plan: &Plan, has_faults: bool, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut draw = |kind: FaultKind, probability: f64| has_faults && plan.has(kind) && rng.random_bool(probability);
        let is_slow = draw(FaultKind::LinkDelay, 0.7);
        let is_partial = draw(FaultKind::PartialDelivery, 0.5);
        let cut = draw(FaultKind::ConnectionCut, 0.3);
        let silent = draw(FaultKind::HalfOpen, 0.1);
        let kind = if silent { Some(Break::Silent) } else { cut.then_some(Break::Cut) };
        // Many connections break within the head of a response or its first events.
        let bytes_max = if rng.random_bool(0.5) { 3_000 } else { 20_000 };
        let breaks = kind.map(|kind| (rng.random_range(1..bytes_max), kind));
        FaultyLink { io, rng, is_slow, is_partial, breaks, bytes: 0, delay: None, is_delayed: false }
    }

    /// The way in which the connection is broken; `None` if it works.
    fn broken(&self) -> Option<Break> {
        self.breaks.filter(|(after, _)| self.bytes >= *after).map(|(_, kind)| kind)
    }

    /// The number of bytes until the connection breaks.
    fn remaining(&self) -> usize {
        self.breaks.map_or(usize::MAX, |(after, _)| after - self.bytes)
    }
}

impl AsyncRead for FaultyLink {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match this.broken() {
            Some(Break::Cut) => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            // Nobody wakes this task: the other end is silent.
            Some(Break::Silent) => return Poll::Pending,
            None => {}
        }
        if this.is_slow && !this.is_delayed {
            let rng = &mut this.rng;
            let delay = this.delay.get_or_insert_with(|| {
                Box::pin(tokio::time::sleep_until(Instant::now() + Duration::from_micros(rng.random_range(0..50_000))))
            });
            ready!(delay.as_mut().poll(cx));
            (this.delay, this.is_delayed) = (None, true);
        }
        let mut most = this.remaining().min(buffer.remaining());
        if this.is_partial {
            most = most.min(this.rng.random_range(1..=64));
        }
        let mut part = buffer.take(most);
        let before = part.filled().len();
        ready!(Pin::new(&mut this.io).poll_read(cx, &mut part))?;
        let read = part.filled().len() - before;
        // The bytes are initialized, because the duplex stream filled them.
        let filled = part.filled().to_vec();
        buffer.put_slice(&filled[before..]);
        this.bytes += read;
        this.is_delayed = false;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for FaultyLink {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        match this.broken() {
            Some(Break::Cut) => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            Some(Break::Silent) => return Poll::Ready(Ok(bytes.len())),
            None => {}
        }
        let mut most = this.remaining().min(bytes.len());
        if this.is_partial {
            most = most.min(this.rng.random_range(1..=64));
        }
        let written = ready!(Pin::new(&mut this.io).poll_write(cx, &bytes[..most]))?;
        this.bytes += written;
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}
